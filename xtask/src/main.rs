//! Workspace automation: `cargo xtask COMMAND`.
//!
//! This is the first program a newcomer builds, so it depends on little and on none of the host's
//! crates: what it needs from the host it asks the built binary.

mod bench;
mod build;
mod conformance;
mod demo;
mod error;
mod generated;
mod http;
mod new_connector;
mod services;
mod system;
mod test;
mod workspace;

use clap::{Parser, Subcommand};
use error::Result;
use std::path::PathBuf;
use std::process::{Command as Process, ExitCode};
use workspace::{Profile, Workspace, run};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Workspace automation", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build the host and all plugins, and collect the plugins in target/<profile>/plugins.
    Build {
        /// With optimisation.
        #[arg(long)]
        release: bool,
    },
    /// Build, then run the host with a configuration.
    Run {
        /// The configuration. Without one: examples/quickstart.yaml, laid out in target/quickstart.
        file: Option<PathBuf>,
        /// With optimisation.
        #[arg(long)]
        release: bool,
        /// Further arguments of `consign run`, after `--`.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Install what is missing, start the services, and run every test and check.
    Test {
        /// Further arguments of `cargo test`, after `--`.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Kills, outages, a full disk and people who act, all at once, for minutes; then everything is counted.
    Soak {
        /// For how long.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
        minutes: u64,
        /// Which happenings, in which order.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Write every generated file.
    Gen {
        /// Write nothing; fail with the difference where a file is stale.
        #[arg(long)]
        check: bool,
    },
    /// Make a connector that builds, is tested and can be proven, in plugins/NAME.
    NewConnector(new_connector::Options),
    /// Prove what connectors declare: break their connections and count effects.
    Conformance(conformance::Options),
    /// Show that nothing is lost or copied: 20,000 webhooks, an outage, three times `kill -9`.
    Demo(demo::Options),
    /// Real servers for tests, started and stopped here.
    Services {
        #[command(subcommand)]
        act: services::Act,
    },
    /// Measure.
    Bench {
        #[command(subcommand)]
        bench: bench::Bench,
    },
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(command: Command) -> Result<()> {
    let workspace = Workspace::find()?;
    match command {
        Command::Build { release } => {
            let profile = Profile::from_release(release);
            build::build(&workspace, profile)?;
            let host = workspace.host(profile);
            let plugins = workspace.plugin_folder(profile);
            eprintln!("host:    {}", workspace.shown(&host));
            eprintln!("plugins: {}", workspace.shown(&plugins));
            Ok(())
        }
        Command::Run {
            file,
            release,
            args,
        } => {
            let profile = Profile::from_release(release);
            build::build(&workspace, profile)?;
            let mut host = Process::new(workspace.host(profile));
            match file {
                Some(file) => host.arg("run").arg(file),
                None => {
                    let folder = workspace.target.join("quickstart");
                    let config = demo::lay_out_quickstart(&workspace, profile, &folder)?;
                    eprintln!("running {} in {}", demo::EXAMPLE, workspace.shown(&folder));
                    host.current_dir(&folder).arg("run").arg(config)
                }
            };
            run(host.args(args))
        }
        Command::Test { args } => test::test(&workspace, &args),
        Command::Soak { minutes, seed } => test::soak(&workspace, minutes, seed),
        Command::Gen { check } => generated::generate(&workspace, check),
        Command::NewConnector(options) => new_connector::make(&workspace, &options),
        Command::Conformance(options) => conformance::conformance(&workspace, &options),
        Command::Demo(options) => demo::demo(&workspace, &options),
        Command::Services { act } => services::act(&workspace, act),
        Command::Bench { bench } => bench::bench(&workspace, &bench),
    }
}
