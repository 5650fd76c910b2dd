//! Looking into a stopped host's folder: report, verify, export. Nothing here writes into it.
//!
//! A host that runs holds the folder's lock, so the functions refuse then. They read the newest checkpoint and replay
//! the log as opening does, in memory alone.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::api::{Acceptance, LaneId, LaneStats, Lost, NewWrite, Options, WriteState};
use crate::buffer::Buffer;
use crate::envelope;
use crate::error::{BufferError, OpenError};
use crate::fs::{FileHandle, Filesystem, LockOutcome, Open};
use crate::recovery;

/// Writes fetched at a time while exporting.
const EXPORT_WRITES: usize = 256;
/// Bytes of bodies fetched at a time while exporting.
const EXPORT_BYTES: usize = 4 << 20;

/// What a folder holds.
#[derive(Debug, Clone, Default)]
pub struct Inspection {
    /// Every lane.
    pub lanes: Vec<LaneStats>,
    /// Host-kept source positions: name and length in bytes.
    pub positions: Vec<(String, usize)>,
    /// The last run did not close the buffer.
    pub unclean_exit: bool,
    /// Log records after the checkpoint.
    pub log_records: u64,
    /// Bytes of a torn tail, which opening would cut.
    pub torn_bytes: u64,
    /// The last run's owner epoch.
    pub epoch: u32,
    /// What corruption took. [`verify`] reads every spill file for it, [`inspect`] only the log and the checkpoint.
    pub lost: Lost,
}

/// Reports what a stopped host's folder holds.
///
/// # Errors
/// See [`OpenError`]; [`OpenError::Locked`] while a host runs.
pub fn inspect(
    dir: &Path,
    options: &Options,
    fs: Arc<dyn Filesystem>,
) -> Result<Inspection, OpenError> {
    Ok(load(dir, options, fs)?.0)
}

/// As [`inspect`], and reads every pending write: `lost` is complete then.
///
/// # Errors
/// As [`inspect`].
pub fn verify(
    dir: &Path,
    options: &Options,
    fs: Arc<dyn Filesystem>,
) -> Result<Inspection, OpenError> {
    let (mut found, mut core) = load(dir, options, fs)?;
    let lanes = u32::try_from(found.lanes.len()).unwrap_or(u32::MAX);
    for lane in 0..lanes {
        let mut after = 0;
        loop {
            let got = core
                .fetch(lane, after, EXPORT_WRITES, EXPORT_BYTES)
                .map_err(|e| failed(dir, &e))?;
            let Some(last) = got.writes.last() else { break };
            after = last.seq;
        }
    }
    core.settle_losses();
    let state = core.shared.state.lock();
    found.lost = state.lost.clone();
    found.lanes = state.lanes.iter().map(crate::lane::Lane::stats).collect();
    drop(state);
    Ok(found)
}

/// Writes every pending write as one JSON object a line: `lane`, `seq`, `key`, `order`, `created_unix_ms`,
/// `expires_unix_ms`, `maybe_since_unix_ms`, `attempts`, `body` (base64), `children`. Returns how many.
///
/// # Errors
/// As [`inspect`]; [`OpenError::Io`] also when `out` fails.
pub fn export(
    dir: &Path,
    options: &Options,
    fs: Arc<dyn Filesystem>,
    lane: Option<&str>,
    out: &mut dyn Write,
) -> Result<u64, OpenError> {
    let (found, mut core) = load(dir, options, fs)?;
    let mut count = 0;
    for (number, stats) in (0u32..).zip(&found.lanes) {
        if lane.is_some_and(|wanted| wanted != stats.id) {
            continue;
        }
        let mut after = 0;
        loop {
            let got = core
                .fetch(number, after, EXPORT_WRITES, EXPORT_BYTES)
                .map_err(|e| failed(dir, &e))?;
            let Some(last) = got.writes.last() else { break };
            after = last.seq;
            for write in &got.writes {
                let enc = core
                    .read_write(number, write.seq)
                    .map_err(|e| io_error(dir, e))?
                    .unwrap_or_default();
                let Some(view) = crate::write::parse_write(&enc) else {
                    continue;
                };
                let lanes: Vec<&str> = found.lanes.iter().map(|l| l.id.as_str()).collect();
                let line = envelope::line(
                    &view,
                    &lanes,
                    Some((write.seq, write.maybe_since_unix_ms, write.state)),
                );
                writeln!(out, "{line}").map_err(|e| io_error(dir, e))?;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// Reads what [`export`] wrote and accepts it again into an open buffer whose lanes are claimed. Keys, bodies,
/// dependents and times stay; numbers are new. Returns how many writes were accepted.
///
/// # Errors
/// The line that is not one of an export, names an unknown lane, or finds no room.
pub async fn import(buffer: &Buffer, input: &mut (dyn BufRead + Send)) -> Result<u64, ImportError> {
    let lanes: Vec<(LaneId, String)> = buffer
        .lanes()
        .into_iter()
        .map(|(id, s)| (id, s.id))
        .collect();
    let mut count = 0;
    let mut text = String::new();
    for line in 1u64.. {
        text.clear();
        if input.read_line(&mut text).map_err(|e| ImportError::Read {
            line,
            why: e.to_string(),
        })? == 0
        {
            break;
        }
        if text.trim().is_empty() {
            continue;
        }
        let parsed =
            envelope::parse(&text, &lanes).map_err(|why| ImportError::Line { line, why })?;
        let mut wanted = Vec::new();
        rooms(&parsed.write, &mut wanted);
        let reservation = buffer.reserve(&wanted).map_err(|e| ImportError::Line {
            line,
            why: e.to_string(),
        })?;
        let acceptance = Acceptance {
            writes: vec![parsed.write],
            ..Acceptance::default()
        };
        let numbers = buffer.accept(reservation, acceptance).await?;
        if let (Some((lane, seq)), Some(since)) = (numbers.first(), parsed.maybe_since_unix_ms) {
            let state = WriteState {
                attempts: parsed.attempts,
                first_maybe_unix_ms: Some(since),
                ..WriteState::default()
            };
            buffer.note(*lane, *seq, state).await?;
        }
        count += 1;
    }
    Ok(count)
}

/// Why an import stopped. Lines before the one named were accepted.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A line is not one of an export, names an unknown lane, or found no room.
    #[error("line {line}: {why}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The input could not be read.
    #[error("line {line} could not be read: {why}")]
    Read {
        /// Counted from 1.
        line: u64,
        /// What the system answered.
        why: String,
    },
    /// The buffer failed or was closed.
    #[error(transparent)]
    Buffer(#[from] BufferError),
}

fn rooms(write: &NewWrite, out: &mut Vec<(LaneId, u64)>) {
    out.push((write.lane, write.body.len() as u64));
    write.children.iter().for_each(|child| rooms(child, out));
}

fn failed(dir: &Path, why: &BufferError) -> OpenError {
    io_error(dir, io::Error::other(why.to_string()))
}

fn io_error(dir: &Path, source: io::Error) -> OpenError {
    OpenError::Io {
        what: "reading",
        path: dir.to_owned(),
        source,
    }
}

fn load(
    dir: &Path,
    options: &Options,
    fs: Arc<dyn Filesystem>,
) -> Result<(Inspection, crate::core::Core), OpenError> {
    // The folder must be there: opening would make it.
    fs.list(&dir.join("log")).map_err(|e| io_error(dir, e))?;
    let held = match fs.lock(&dir.join("lock")).map_err(|e| io_error(dir, e))? {
        LockOutcome::Held(guard) => guard,
        LockOutcome::HeldBy(pid) => {
            return Err(OpenError::Locked {
                dir: dir.to_owned(),
                pid,
            });
        }
    };
    let view = Overlay {
        below: fs,
        held: Mutex::new(Some(held)),
        memory: Arc::default(),
    };
    let (core, recovery) = recovery::open(dir.to_owned(), options.clone(), Arc::new(view), 0)?;
    let state = core.shared.state.lock();
    let found = Inspection {
        lanes: recovery.lanes,
        positions: recovery
            .positions
            .iter()
            .map(|(s, v)| (s.clone(), v.len()))
            .collect(),
        unclean_exit: recovery.unclean_exit,
        log_records: recovery.replayed_records,
        torn_bytes: recovery.torn_bytes,
        epoch: recovery.epoch.saturating_sub(1),
        lost: state.lost.clone(),
    };
    drop(state);
    Ok((found, core))
}

/// Pieces written over a file, by offset, and the file's length.
#[derive(Default)]
struct Written {
    pieces: Vec<(u64, Vec<u8>)>,
    len: u64,
}

type Memory = Arc<Mutex<std::collections::BTreeMap<PathBuf, Written>>>;

/// A file system that keeps every write in memory and passes reads through: opening works as always, and the folder
/// stays as it is.
struct Overlay {
    below: Arc<dyn Filesystem>,
    held: Mutex<Option<Box<dyn Send + Sync>>>,
    memory: Memory,
}

impl Filesystem for Overlay {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn FileHandle>> {
        let below = match (how, self.below.open(path, Open::Read)) {
            (_, Ok(file)) => Some(file),
            (Open::Create, Err(_)) => None,
            (_, Err(e)) if !self.memory.lock().contains_key(path) => return Err(e),
            (_, Err(_)) => None,
        };
        let len = below.as_ref().map_or(Ok(0), |f| f.size())?;
        let mut memory = self.memory.lock();
        let written = memory.entry(path.to_owned()).or_default();
        written.len = written.len.max(len);
        drop(memory);
        Ok(Box::new(OverlayFile {
            below,
            path: path.to_owned(),
            memory: self.memory.clone(),
        }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.below.list(dir)
    }
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn remove(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn lock(&self, _: &Path) -> io::Result<LockOutcome> {
        let held = self.held.lock().take();
        Ok(held.map_or(LockOutcome::HeldBy(0), LockOutcome::Held))
    }
    fn entropy(&self) -> u64 {
        self.below.entropy()
    }
}

struct OverlayFile {
    below: Option<Box<dyn FileHandle>>,
    path: PathBuf,
    memory: Memory,
}

impl FileHandle for OverlayFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let memory = self.memory.lock();
        let written = memory.get(&self.path);
        let len = written.map_or(0, |w| w.len);
        let n = usize::try_from(len.saturating_sub(offset))
            .unwrap_or(usize::MAX)
            .min(buf.len());
        let Some(out) = buf.get_mut(..n) else {
            return Ok(0);
        };
        out.fill(0);
        if let Some(below) = &self.below {
            crate::fs::read_full_at(below.as_ref(), out, offset)?;
        }
        for (at, bytes) in written.map_or(&[][..], |w| &w.pieces) {
            let (from, to) = (
                (*at).max(offset),
                (at + bytes.len() as u64).min(offset + n as u64),
            );
            if from < to {
                let source = bytes.get((from - at) as usize..(to - at) as usize);
                let target = out.get_mut((from - offset) as usize..(to - offset) as usize);
                if let (Some(source), Some(target)) = (source, target) {
                    target.copy_from_slice(source);
                }
            }
        }
        Ok(n)
    }
    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut memory = self.memory.lock();
        let written = memory.entry(self.path.clone()).or_default();
        written.len = written.len.max(offset + buf.len() as u64);
        written.pieces.push((offset, buf.to_vec()));
        Ok(buf.len())
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn size(&self) -> io::Result<u64> {
        Ok(self.memory.lock().get(&self.path).map_or(0, |w| w.len))
    }
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.memory.lock().entry(self.path.clone()).or_default().len = len;
        Ok(())
    }
    fn allocate(&mut self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}
