//! `test`: everything that must hold, in one command, from a fresh checkout.

use crate::build::build_workspace;
use crate::error::{Result, failed};
use crate::services::{self, Started};
use crate::workspace::{Profile, Workspace, cargo_command, run};
use crate::{generated, system};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Installs what is missing, starts the services, builds host and plugins, runs the tests of the whole
/// workspace with `extra` arguments, and checks the generated files. A failing test does not hide a
/// stale file. The services that were started here are stopped again, whatever the tests came to.
pub fn test(workspace: &Workspace, extra: &[String]) -> Result<()> {
    system::ensure_build_needs()?;
    let compiler = system::ensure_second_compiler()?;
    let running = services::State::instances(&workspace.target);
    let started = services::up(workspace, &[], None)?;
    let mut results = vec![build_workspace(workspace)];
    if results.iter().all(Result::is_ok) {
        results.push(run_tests(workspace, &started, compiler.as_deref(), extra));
        results.push(generated::bring_up_to_date(workspace, true));
    }
    let ours: Vec<String> = started
        .into_keys()
        .filter(|name| !running.contains(name))
        .collect();
    if !ours.is_empty() {
        results.push(services::down(workspace, &ours, false, false));
    }
    let problems: Vec<String> = results
        .into_iter()
        .filter_map(|result| result.err().map(|error| error.to_string()))
        .collect();
    if problems.is_empty() {
        Ok(())
    } else {
        failed(problems.join("\n"))
    }
}

/// Builds host and plugins, and runs the soak for so many minutes. It starts its own services.
pub fn soak(workspace: &Workspace, minutes: u64, seed: u64) -> Result<()> {
    system::ensure_build_needs()?;
    build_workspace(workspace)?;
    let mut command = cargo_command();
    command
        .current_dir(&workspace.root)
        .args(["test", "--package", "consign-e2e", "--test", "soak"])
        .args(["--", "--ignored", "--nocapture"])
        .env("CONSIGN_SOAK_SECONDS", (minutes * 60).to_string())
        .env("CONSIGN_SOAK_SEED", seed.to_string());
    set_environment(workspace, &BTreeMap::new(), &mut command)?;
    run(&mut command)
}

fn run_tests(
    workspace: &Workspace,
    started: &BTreeMap<String, Started>,
    compiler: Option<&Path>,
    extra: &[String],
) -> Result<()> {
    let mut command = cargo_command();
    command
        .current_dir(&workspace.root)
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(extra);
    set_environment(workspace, started, &mut command)?;
    if let Some(compiler) = compiler {
        command.env("CONSIGN_SECOND_RUSTC", compiler);
    }
    run(&mut command)
}

/// What tests find in their environment: the built host and plugins, this program, and per service
/// either its address and version or the reason why it is not there.
fn set_environment(
    workspace: &Workspace,
    started: &BTreeMap<String, Started>,
    command: &mut Command,
) -> Result<()> {
    // Not `current_exe`: building the workspace has replaced this program's file, and Linux then calls
    // the running one "… (deleted)".
    let this = workspace.target.join(Profile::Debug.folder()).join("xtask");
    command
        // Tests that run the host need not build it themselves.
        .env("CONSIGN_BUILT", "1")
        .env("CONSIGN_BIN", workspace.host(Profile::Debug))
        .env("CONSIGN_PLUGINS", workspace.plugin_folder(Profile::Debug))
        .env("CONSIGN_XTASK", this);
    for (name, started) in started {
        let variable = format!("CONSIGN_SERVICE_{}", name.to_uppercase().replace('-', "_"));
        match started {
            Started::Running(state) => {
                command.env(format!("{variable}_VERSION"), &state.version);
                command.env(variable, &state.url);
            }
            Started::Skipped(reason) => {
                command.env(format!("{variable}_SKIPPED"), reason);
            }
        }
    }
    Ok(())
}
