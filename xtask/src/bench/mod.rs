//! `bench`: measurements that stand beside the machine's own limits. Never part of the tests.

mod classes;

use crate::error::{Context, Result, failed};
use crate::workspace::{Workspace, cargo_command};
use clap::Subcommand;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// The durable buffer, beside `fio` overwriting a preallocated file with a flush per write.
    Buffer {
        /// Arguments of the measuring program, after `--`.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// The delay of a critical lane alone, and beside a bulk backlog that drains meanwhile.
    Classes(classes::Options),
}

/// Runs a measurement.
pub fn bench(workspace: &Workspace, bench: &Bench) -> Result<()> {
    match bench {
        Bench::Buffer { args } => buffer(workspace, args),
        Bench::Classes(options) => classes::run(workspace, options),
    }
}

/// Builds with optimisation, runs the measurement, and passes its lines through as they come.
fn buffer(workspace: &Workspace, args: &[String]) -> Result<()> {
    let mut child = cargo_command()
        .current_dir(&workspace.root)
        .args(["run", "--release", "--package", "consign-buffer"])
        .args(["--example", "buffer-bench", "--"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(|| "cannot run cargo".into())?;
    let mut last = String::new();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.context(|| "cannot read the measurement's output".into())?;
            println!("{line}");
            if !line.trim().is_empty() {
                last = line;
            }
        }
    }
    let status = child.wait().context(|| "cannot wait for cargo".into())?;
    if !status.success() {
        return failed(format!(
            "the measurement ended with {status}; its last line: {last:?}"
        ));
    }
    if last.is_empty() {
        return failed("the measurement ended without a summary");
    }
    Ok(())
}
