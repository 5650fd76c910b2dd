//! `conformance`: each operation of a connector through the real host with the connection broken on
//! purpose, and the records that docs/promises.md is generated from.
//!
//! The scenarios are the kit's (`sdk/testkit`), the destinations each connector's own
//! (`plugins/NAME/tests/conformance.rs`). A whole run that kept every promise is recorded in
//! `tests/conformance/results/NAME.json` with the digest of the plugin's sources and of the
//! declaration: once either is another, `cargo xtask gen --check` fails and says what to run again.

#![allow(
    clippy::indexing_slicing,
    reason = "a field that a JSON document lacks is null, and null matches nothing"
)]

mod record;

pub use record::source_digests;

use crate::build::build_workspace;
use crate::error::{Context, Error, Result, failed};
use crate::services;
use crate::workspace::{Profile, Workspace, cargo_command};
use clap::Args;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where records are kept, relative to the workspace.
pub const RESULTS: &str = "tests/conformance/results";

/// What to run.
#[derive(Debug, Args)]
pub struct Options {
    /// Only this connector; all that have a conformance test when none is named.
    connector: Option<String>,
    /// Only this configuration of it.
    #[arg(long)]
    case: Option<String>,
    /// Only this scenario.
    #[arg(long)]
    scenario: Option<String>,
    /// Use host and plugins as they are built.
    #[arg(long)]
    no_build: bool,
}

/// Scenarios by what came of them.
#[derive(Debug, Default)]
struct Tally {
    kept: usize,
    failed: usize,
    not_run: usize,
}

/// Builds, runs, records, and ends with one summary line.
pub fn conformance(workspace: &Workspace, options: &Options) -> Result<()> {
    let connectors = chosen(workspace, options.connector.as_deref())?;
    if !options.no_build {
        build_workspace(workspace)?;
    }
    let programs = programs(workspace)?;
    let running = services::State::instances(&workspace.target);
    let mut tally = Tally::default();
    let mut problems = Vec::new();
    for connector in &connectors {
        if let Err(error) = run_one(workspace, options, connector, &programs, &mut tally) {
            problems.push(error.to_string());
        }
    }
    let ours: Vec<String> = services::State::instances(&workspace.target)
        .into_iter()
        .filter(|instance| !running.contains(instance))
        .collect();
    if !ours.is_empty() {
        services::down(workspace, &ours, false, false)?;
    }
    println!(
        "conformance of {}: {} kept, {} failed, {} not run",
        connectors.join(", "),
        tally.kept,
        tally.failed,
        tally.not_run
    );
    if problems.is_empty() {
        Ok(())
    } else {
        failed(problems.join("\n"))
    }
}

/// Names of the connectors to run.
fn chosen(workspace: &Workspace, only: Option<&str>) -> Result<Vec<String>> {
    let folder = workspace.root.join("plugins");
    let entries = fs::read_dir(&folder).context(|| format!("cannot read {}", folder.display()))?;
    let mut all: Vec<String> = entries
        .flatten()
        .filter(|entry| {
            let tests = entry.path().join("tests");
            tests.join("conformance.rs").is_file() || tests.join("conformance/main.rs").is_file()
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    all.sort();
    match only {
        None => Ok(all),
        Some(name) if all.iter().any(|known| known == name) => Ok(vec![name.to_owned()]),
        Some(name) => Err(Error::Input(format!(
            "no conformance test of {name:?}; there are: {}",
            all.join(", ")
        ))),
    }
}

/// The built conformance test of each plugin's folder. Built as the tests build it: cargo chooses
/// features by what is built together, and another choice would compile everything once more.
fn programs(workspace: &Workspace) -> Result<Vec<(PathBuf, PathBuf)>> {
    let output = cargo_command()
        .current_dir(&workspace.root)
        .args(["test", "--workspace", "--test", "conformance", "--no-run"])
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context(|| "cannot run cargo".into())?;
    if !output.status.success() {
        return failed("the conformance tests do not build");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let artifacts = text.lines().filter_map(|line| {
        let artifact: Value = serde_json::from_str(line).ok()?;
        let program = artifact["executable"].as_str()?;
        let manifest = Path::new(artifact["manifest_path"].as_str()?);
        (artifact["target"]["name"] == "conformance")
            .then(|| (manifest.with_file_name(""), PathBuf::from(program)))
    });
    Ok(artifacts.collect())
}

fn run_one(
    workspace: &Workspace,
    options: &Options,
    connector: &str,
    programs: &[(PathBuf, PathBuf)],
    tally: &mut Tally,
) -> Result<()> {
    let folder = workspace.target.join("conformance");
    fs::create_dir_all(&folder).context(|| format!("cannot create {}", folder.display()))?;
    let report = folder.join(format!("{connector}.json"));
    // What an earlier run left must not be taken for the result of this one.
    let _ = fs::remove_file(&report);
    let plugin = workspace.root.join("plugins").join(connector);
    let Some((_, program)) = programs
        .iter()
        .find(|(folder, _)| *folder == plugin.join(""))
    else {
        return failed(format!("cargo built no conformance test of {connector}"));
    };
    let mut command = Command::new(program);
    command.current_dir(&plugin);
    if options.scenario.is_none() {
        command.arg("--full");
    }
    for (flag, value) in [("--case", &options.case), ("--scenario", &options.scenario)] {
        command.args(value.iter().flat_map(|value| [flag, value]));
    }
    let status = command
        .env("CONSIGN_BUILT", "1")
        .env("CONSIGN_XTASK", this_program(workspace))
        .env("CONSIGN_CONFORMANCE_REPORT", &report)
        .status()
        .context(|| format!("cannot run {}", program.display()))?;
    let report = read(&report)?;
    count(&report, tally);
    if !status.success() {
        return failed(format!(
            "{connector} does not keep what it declares; see above"
        ));
    }
    let whole = options.case.is_none() && options.scenario.is_none();
    let skipped = report["skipped"].as_array().is_some_and(|s| !s.is_empty());
    if whole && !skipped {
        let path = record::write(workspace, connector, &report)?;
        eprintln!(
            "recorded in {}; now run `cargo xtask gen`",
            workspace.shown(&path)
        );
    }
    Ok(())
}

/// Not `current_exe`: building replaces this program's file.
fn this_program(workspace: &Workspace) -> PathBuf {
    workspace.target.join(Profile::Debug.folder()).join("xtask")
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read(path).context(|| "the conformance run ended without a report".into())?;
    serde_json::from_slice(&text).context(|| format!("{} is not understood", path.display()))
}

fn count(report: &Value, tally: &mut Tally) {
    for row in report["rows"].as_array().into_iter().flatten() {
        match row["verdict"].as_str() {
            Some("kept") => tally.kept += 1,
            Some("not_run") => tally.not_run += 1,
            _ => tally.failed += 1,
        }
    }
}
