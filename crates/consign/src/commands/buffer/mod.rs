//! `consign buffer`: what a stopped host's folder holds.

mod look;
mod transfer;

use crate::cli::{Buffer, Stopped};
use crate::output::{CliError, Kind, Output};
use consign_buffer::OpenError;
use std::path::{Path, PathBuf};

pub fn run(out: Output, act: Buffer) -> Result<(), CliError> {
    match act {
        Buffer::Inspect { at } => look::inspect(out, &at),
        Buffer::Verify { at } => look::verify(out, &at),
        Buffer::Export { at, output } => transfer::export(out, &at, output.as_deref()),
        Buffer::Import {
            file,
            from,
            lanes,
            dry_run,
        } => transfer::import(out, &file, &from, &lanes, dry_run),
    }
}

/// The buffer's folder of a data_dir, or of the configuration that names one.
fn folder(at: &Stopped) -> Result<PathBuf, CliError> {
    let given = &at.folder;
    if given.is_file() {
        let text = std::fs::read_to_string(given)
            .map_err(|error| CliError::input(format!("{}: {error}", given.display())))?;
        let look = consign_config::first_look(given, &text)
            .map_err(|problem| crate::problems::error(&[problem]))?;
        return Ok(consign_runtime::offline::buffer_dir(&look.data_dir));
    }
    Ok(consign_runtime::offline::buffer_dir(given))
}

/// Why a folder could not be opened, with what to do.
fn refused(error: &OpenError) -> CliError {
    match error {
        OpenError::Locked { dir, pid } => {
            let (who, stop) = match pid {
                0 => (
                    "another process".to_owned(),
                    "wait until it has ended".to_owned(),
                ),
                pid => (
                    format!("process {pid}"),
                    format!("stop it first (`kill -TERM {pid}` drains a host)"),
                ),
            };
            CliError::input(format!(
                "{} is in use by {who}; {stop}, or ask the running host with `consign status`",
                dir.display()
            ))
        }
        OpenError::NoBuffer { dir } => CliError::input(format!(
            "{} is not there or holds no log; name the data_dir of a host that has run, or its configuration",
            dir.display()
        )),
        OpenError::NoLane { .. } | OpenError::NewerFormat { .. } | OpenError::Options(_) => {
            CliError::input(error)
        }
        OpenError::Io { .. } => CliError::new(Kind::Failed, error.to_string()),
    }
}

/// Refuses names of lanes that are not there.
fn known_lanes<'a>(
    wanted: &[String],
    known: impl Iterator<Item = &'a str>,
) -> Result<(), CliError> {
    let known: Vec<&str> = known.collect();
    match wanted.iter().find(|lane| !known.contains(&lane.as_str())) {
        Some(lane) => Err(refused(&OpenError::NoLane {
            lane: lane.clone(),
            known: known.into_iter().map(str::to_owned).collect(),
        })),
        None => Ok(()),
    }
}

/// Whether a lane was asked for.
fn wanted(lanes: &[String], id: &str) -> bool {
    lanes.is_empty() || lanes.iter().any(|lane| lane == id)
}

/// A folder without its quarantine's path: how a report names it.
fn shown(path: &Path) -> String {
    path.display().to_string()
}
