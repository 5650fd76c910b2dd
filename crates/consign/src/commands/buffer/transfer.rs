//! `consign buffer export` and `import`.

use super::{folder, known_lanes, refused, shown};
use crate::cli::Stopped;
use crate::output::{CliError, Output};
use crate::problems;
use consign_buffer::inspect::{self, ImportError, Imported};
use consign_buffer::{OpenError, RealFilesystem};
use consign_runtime::offline::{self, OfflineError};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

/// Bytes gathered before the output is written to.
const OUTPUT_BYTES: usize = 1 << 20;

/// Lines to the output; what was exported is said on stderr, so that stdout is data only.
pub fn export(out: Output, at: &Stopped, output: Option<&Path>) -> Result<(), CliError> {
    let dir = folder(at)?;
    let (mut target, to): (Box<dyn Write>, String) = match output {
        // Before the folder is read: a long export must not end with "the file exists".
        Some(path) => (Box::new(new_file(path)?), shown(path)),
        None => (
            Box::new(std::io::stdout().lock()),
            "standard output".to_owned(),
        ),
    };
    let mut buffered = BufWriter::with_capacity(OUTPUT_BYTES, &mut target);
    let exported = inspect::export(&dir, Arc::new(RealFilesystem), &at.lanes, &mut buffered);
    let exported = match exported {
        Ok(exported) => exported,
        Err(error) => {
            drop(buffered);
            return stopped(&error, output);
        }
    };
    if let Err(error) = buffered.flush() {
        return match (error.kind(), output) {
            (ErrorKind::BrokenPipe, None) => Ok(()),
            _ => Err(CliError::failed(format!("{to}: {error}"))),
        };
    }
    let said = format!("{} writes were exported to {to}", exported.writes);
    if out.json {
        eprintln!(
            "{}",
            json!({ "exported": exported.writes, "lost_writes": exported.lost.writes })
        );
    } else {
        eprintln!("{said}");
    }
    if exported.lost.is_empty() {
        return Ok(());
    }
    Err(CliError::failed(format!(
        "{}: {} writes are damaged and not in the export: {}; `consign buffer verify` names every place",
        shown(&dir),
        exported.lost.writes,
        exported.lost.notes.join("; ")
    )))
}

/// An export that did not get through leaves no file that looks like one.
fn stopped(error: &OpenError, output: Option<&Path>) -> Result<(), CliError> {
    if let Some(path) = output {
        drop(std::fs::remove_file(path));
    }
    match error {
        OpenError::Io { source, .. }
            if source.kind() == ErrorKind::BrokenPipe && output.is_none() =>
        {
            Ok(())
        }
        other => Err(refused(other)),
    }
}

fn new_file(path: &Path) -> Result<std::fs::File, CliError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| {
            let fix = match error.kind() {
                ErrorKind::AlreadyExists => "; name a new file",
                _ => "",
            };
            CliError::input(format!("{}: {error}{fix}", path.display()))
        })
}

pub fn import(
    out: Output,
    file: &Path,
    from: &Path,
    lanes: &[String],
    dry_run: bool,
) -> Result<(), CliError> {
    let plan = problems::plan(file)?;
    let mut input: Box<dyn BufRead + Send> = if from == Path::new("-") {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        let opened = std::fs::File::open(from)
            .map_err(|error| CliError::input(format!("{}: {error}", from.display())))?;
        Box::new(BufReader::with_capacity(OUTPUT_BYTES, opened))
    };
    let config = &plan.config;
    let specs = offline::lanes(config);
    known_lanes(lanes, specs.iter().map(|lane| lane.id.as_str()))?;
    let mut done = Imported::default();
    let result = if dry_run {
        let dir = offline::buffer_dir(&config.data_dir());
        let fs = Arc::new(RealFilesystem);
        inspect::rehearse(&dir, fs, &specs, &mut input, lanes, &mut done).map_err(Stop::Import)
    } else {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| CliError::failed(format!("cannot start: {error}")))?;
        runtime.block_on(carry(config, &mut input, lanes, &mut done))
    };
    let report = json!({
        "dry_run": dry_run,
        "accepted": done.accepted,
        "already_there": done.already_there,
        "other_lanes": done.other_lanes,
        "unsealed": done.unsealed,
    });
    out.show(&report, |_| text(&done, dry_run))?;
    result.map_err(|error| explained(error, from, &done))
}

enum Stop {
    Open(OfflineError),
    Import(ImportError),
}

/// Accepts the lines into the host's buffer.
async fn carry(
    config: &consign_config::Config,
    input: &mut (dyn BufRead + Send),
    lanes: &[String],
    done: &mut Imported,
) -> Result<(), Stop> {
    let (buffer, _lock) = offline::open(config).await.map_err(Stop::Open)?;
    let result = inspect::import(&buffer, input, lanes, done).await;
    let closed = buffer.close().await;
    result
        .and(closed.map_err(ImportError::from))
        .map_err(Stop::Import)
}

fn explained(stop: Stop, from: &Path, done: &Imported) -> CliError {
    let error = match stop {
        Stop::Open(OfflineError::Open(error)) => return refused(&error),
        Stop::Open(error) => return CliError::input(error),
        Stop::Import(ImportError::Open(error)) => return refused(&error),
        Stop::Import(error) => error,
    };
    let again = format!(
        "{} writes before it were accepted; the same import passes over them once this is mended",
        done.accepted
    );
    let place = shown(from);
    match error {
        ImportError::Line { .. } => CliError::input(format!("{place}: {error}; {again}")),
        ImportError::NoRoom { .. } => CliError::failed(format!(
            "{place}: {error}; raise the send's quota or let its lane drain; {again}"
        )),
        ImportError::Open(_) | ImportError::Read { .. } | ImportError::Buffer(_) => {
            CliError::failed(format!("{place}: {error}; {again}"))
        }
    }
}

fn text(done: &Imported, dry_run: bool) -> String {
    let mut parts = vec![match dry_run {
        true => format!("{} writes would be accepted", done.accepted),
        false => format!("{} writes were accepted", done.accepted),
    }];
    if done.already_there > 0 {
        parts.push(format!("{} are pending already", done.already_there));
    }
    if done.other_lanes > 0 {
        parts.push(format!("{} are of other lanes", done.other_lanes));
    }
    if done.unsealed > 0 {
        parts.push(format!(
            "{} were in a batch that may have been applied and can arrive twice",
            done.unsealed
        ));
    }
    parts.join("; ")
}
