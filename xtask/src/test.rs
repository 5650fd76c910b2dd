//! `test`: everything that must hold, in one command, from a fresh checkout.

use crate::build::build;
use crate::error::{Context, Result};
use crate::services::{self, Started};
use crate::workspace::{Profile, Workspace, cargo_command, run};
use crate::{generated, system};
use std::collections::BTreeMap;
use std::process::Command;

/// Installs what is missing, starts the services, builds host and plugins, runs the tests of the whole
/// workspace with `extra` arguments, and checks the generated files. The services that were started
/// here are stopped again, whatever the tests came to.
pub fn test(workspace: &Workspace, extra: &[String]) -> Result<()> {
    system::ensure_build_needs()?;
    let running = services::State::instances(&workspace.target);
    let started = services::up(workspace, &[], None)?;
    let result = build(workspace, Profile::Debug)
        .and_then(|()| run_tests(workspace, &started, extra))
        .and_then(|()| generated::generate(workspace, true));
    let ours: Vec<String> = started
        .into_keys()
        .filter(|name| !running.contains(name))
        .collect();
    let stopped = if ours.is_empty() {
        Ok(())
    } else {
        services::down(workspace, &ours, false, false)
    };
    result.and(stopped)
}

fn run_tests(
    workspace: &Workspace,
    started: &BTreeMap<String, Started>,
    extra: &[String],
) -> Result<()> {
    let mut command = cargo_command();
    command
        .current_dir(&workspace.root)
        .args(["test", "--workspace"])
        .args(extra);
    set_environment(workspace, started, &mut command)?;
    run(&mut command)
}

/// What tests find in their environment: the built host and plugins, this program, and per service
/// either its address and version or the reason why it is not there.
fn set_environment(
    workspace: &Workspace,
    started: &BTreeMap<String, Started>,
    command: &mut Command,
) -> Result<()> {
    let this = std::env::current_exe().context(|| "cannot tell where this program is".into())?;
    command
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
