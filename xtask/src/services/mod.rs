//! `services up | down | status`: the real servers that tests and the demo talk to.
//!
//! Each server is one file, `tests/services/NAME.toml` ([`spec`]). A running server is an *instance*
//! under `target/services/INSTANCE/` with its data, its log and `state.json` ([`state`]), which tests
//! read. The shared instance of a service is named like the service; a test that stops or restarts
//! its server runs an instance of its own.
//!
//! A service that cannot be had fails the command when `CI=true`; elsewhere it is skipped, loudly.

mod process;
mod spec;
mod start;
mod state;

use crate::error::{Error, Result, failed};
use crate::system;
use crate::workspace::Workspace;
use clap::Subcommand;
pub use process::Pid;
use spec::Spec;
pub use state::State;
use std::collections::BTreeMap;

/// The acts on services.
#[derive(Debug, Subcommand)]
pub enum Act {
    /// Start services (all of them when none is named), installing what is missing.
    Up {
        /// Names of files in tests/services, without `.toml`.
        names: Vec<String>,
        /// Run a separate instance under this name, with its own data and ports.
        #[arg(long)]
        instance: Option<String>,
        /// One JSON document on standard output.
        #[arg(long)]
        json: bool,
    },
    /// Stop services (all that run when none is named) and remove their data.
    Down {
        /// Names of services or instances.
        names: Vec<String>,
        /// Stop, but keep data and ports: the next `up` of the same name goes on with them.
        #[arg(long)]
        keep: bool,
        /// Stop with SIGKILL, as a crash would.
        #[arg(long)]
        kill: bool,
    },
    /// Show which services run, where, and in which version.
    Status {
        /// Names of services or instances; all when none is named.
        names: Vec<String>,
        /// One JSON document on standard output.
        #[arg(long)]
        json: bool,
    },
}

/// What came of starting a service.
#[derive(Debug)]
pub enum Started {
    /// It runs.
    Running(Box<State>),
    /// It cannot be had here, and this is not CI.
    Skipped(String),
}

/// Carries out one act.
pub fn act(workspace: &Workspace, act: Act) -> Result<()> {
    match act {
        Act::Up {
            names,
            instance,
            json,
        } => {
            if instance.is_some() && names.len() != 1 {
                return Err(Error::Input(
                    "--instance goes with exactly one service".into(),
                ));
            }
            let started = up(workspace, &names, instance.as_deref())?;
            show_started(&started, json)
        }
        Act::Down { names, keep, kill } => down(workspace, &names, keep, kill),
        Act::Status { names, json } => status(workspace, &names, json),
    }
}

/// Starts the named services, or all that have a file. In CI one that cannot be had is an error.
pub fn up(
    workspace: &Workspace,
    names: &[String],
    instance: Option<&str>,
) -> Result<BTreeMap<String, Started>> {
    let names = if names.is_empty() {
        Spec::names(&workspace.root)?
    } else {
        names.to_vec()
    };
    let mut all = BTreeMap::new();
    for name in names {
        let spec = Spec::read(&workspace.root, &name)?;
        let instance = instance.unwrap_or(&name);
        let started = match start::start(&spec, instance, &workspace.target) {
            Ok(state) => Started::Running(Box::new(state)),
            Err(Error::Failed(reason)) if !system::in_ci() => {
                eprintln!("SKIPPED {name}: {reason}");
                Started::Skipped(reason)
            }
            Err(error) => return Err(error),
        };
        all.insert(name, started);
    }
    Ok(all)
}

/// Stops the named instances, or all there are. With `keep` their data and ports stay.
pub fn down(workspace: &Workspace, names: &[String], keep: bool, kill: bool) -> Result<()> {
    let names = if names.is_empty() {
        State::instances(&workspace.target)
    } else {
        names.to_vec()
    };
    let mut problems = Vec::new();
    for name in names {
        match start::stop(&workspace.target, &name, keep, kill) {
            Ok(true) => eprintln!("stopped {name}"),
            Ok(false) => eprintln!("{name} was not running"),
            Err(error) => problems.push(error.to_string()),
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        failed(problems.join("\n"))
    }
}

fn show_started(started: &BTreeMap<String, Started>, json: bool) -> Result<()> {
    if json {
        let rows: Vec<_> = started
            .iter()
            .map(|(name, started)| match started {
                Started::Running(state) => state.to_json(true),
                Started::Skipped(reason) => {
                    serde_json::json!({"service": name, "running": false, "skipped": reason})
                }
            })
            .collect();
        println!("{}", serde_json::Value::from(rows));
        return Ok(());
    }
    for started in started.values() {
        if let Started::Running(state) = started {
            println!("{}", state.line(true));
        }
    }
    Ok(())
}

fn status(workspace: &Workspace, names: &[String], json: bool) -> Result<()> {
    let mut states = Vec::new();
    for instance in State::instances(&workspace.target) {
        if !names.is_empty() && !names.contains(&instance) {
            continue;
        }
        if let Some(state) = State::read(&workspace.target, &instance)? {
            let running = state.pid.is_some_and(Pid::is_alive);
            states.push((state, running));
        }
    }
    if json {
        let rows: Vec<_> = states
            .iter()
            .map(|(state, running)| state.to_json(*running))
            .collect();
        println!("{}", serde_json::Value::from(rows));
        return Ok(());
    }
    if states.is_empty() {
        eprintln!("no service runs; `cargo xtask services up` starts them");
    }
    for (state, running) in states {
        println!("{}", state.line(running));
    }
    Ok(())
}
