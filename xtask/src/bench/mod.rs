//! `bench`: measurements that stand beside the machine's own limits. Never part of the tests.

mod classes;

use crate::error::{Context, Result, failed};
use crate::workspace::{Workspace, cargo_command};
use clap::Subcommand;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// The durable buffer, beside `fio` overwriting a preallocated file with a flush per write.
    Buffer {
        /// Arguments of the measuring program, after `--`: `--seconds N` (3), `--rounds N` (3), `--dir PATH`.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Memory and start-up time with a backlog on the disk: filled, killed, opened, drained in part.
    Backlog {
        /// GiB of bodies. Less is measured where the disk would keep less than 3 GiB or the time is over.
        #[arg(long, default_value_t = 10.0)]
        gib: f64,
        /// Bytes of one body.
        #[arg(long, default_value_t = 1024)]
        body: usize,
        /// The longest the filling may take.
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// Where the backlog is put; removed afterwards. The system's temporary folder unless named.
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// The delay of a critical lane alone, and beside a bulk backlog that drains meanwhile.
    Classes(classes::Options),
}

/// Runs a measurement.
pub fn bench(workspace: &Workspace, bench: &Bench) -> Result<()> {
    match bench {
        Bench::Buffer { args } => buffer(workspace, args),
        Bench::Backlog {
            gib,
            body,
            minutes,
            dir,
        } => {
            let mut args = vec![
                format!("--backlog={gib}"),
                format!("--body={body}"),
                format!("--minutes={minutes}"),
            ];
            args.extend(dir.iter().map(|dir| format!("--dir={}", dir.display())));
            buffer(workspace, &args)
        }
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
