//! Looking into a stopped host's folder, and carrying what is pending from one to another.
//!
//! [`inspect`], [`verify`] and [`export`] write nothing into the folder, not even its lock file: they read the newest
//! checkpoint and replay the log as opening does, over a file system that keeps writes in memory. A running host holds
//! the folder's lock, so they refuse then; and a host does not start while one of them runs.

mod copies;
mod envelope;
mod export;
mod import;
mod overlay;
mod verify;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::api::{LaneStats, Lost, Options, Pending};
use crate::core::Core;
use crate::error::OpenError;
use crate::fs::{Filesystem, LockOutcome, Open};
use crate::lane::Lane;
use crate::recovery;
use overlay::Overlay;

pub use copies::{SecondCopies, second_copies};
pub use export::{Exported, export};
pub use import::{ImportError, Imported, import, rehearse};
pub use verify::{Damage, Verified, verify};

/// Writes read at a time.
const WRITES: usize = 256;
/// Bytes of bodies read at a time.
const BYTES: usize = 4 << 20;

/// What a folder holds.
#[derive(Debug, Clone, Default)]
pub struct Inspection {
    /// Every lane.
    pub lanes: Vec<LaneStats>,
    /// Pending writes of each lane that may have been sent: the host's next start treats them as applied or not.
    pub maybe: Vec<u64>,
    /// Host-kept source positions: name and length in bytes.
    pub positions: Vec<(String, usize)>,
    /// The last run did not close the buffer.
    pub unclean_exit: bool,
    /// The last run's owner epoch.
    pub epoch: u32,
    /// Bytes of the log's files.
    pub log_bytes: u64,
    /// Files of the log.
    pub log_segments: usize,
    /// Log records after the checkpoint.
    pub log_records: u64,
    /// Pending writes that are in the log; the others are in spill files.
    pub log_writes: usize,
    /// Bytes of a torn tail, which opening would cut.
    pub torn_bytes: u64,
    /// What corruption took. [`verify`] reads every spill file for it, [`inspect`] only the log, the checkpoints and
    /// the accepted keys.
    pub lost: Lost,
    /// What did not check and had a second copy that did.
    pub healed: Vec<String>,
}

/// Reports what a stopped host's folder holds.
///
/// # Errors
/// See [`OpenError`]; [`OpenError::Locked`] while a host runs, [`OpenError::NoBuffer`] where there is none.
pub fn inspect(dir: &Path, fs: Arc<dyn Filesystem>) -> Result<Inspection, OpenError> {
    Ok(load(dir, fs)?.0)
}

/// Hands over every pending write of a lane after a number, in order, with the core to ask more of.
fn each_pending(
    core: &mut Core,
    dir: &Path,
    lane: u32,
    mut after: u64,
    mut each: impl FnMut(&mut Core, &Pending) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    loop {
        let got = core
            .fetch(lane, after, WRITES, BYTES)
            .map_err(|e| io_error(dir, io::Error::other(e.to_string())))?;
        let Some(last) = got.writes.last() else {
            return Ok(());
        };
        after = last.seq;
        for write in &got.writes {
            each(core, write)?;
        }
        // What settling a spilled write needs; nothing is settled here, and there may be millions.
        if let Some(lane) = core.shared.state.lock().lanes.get_mut(lane as usize) {
            lane.spilled.clear();
        }
    }
}

/// Refuses names that the folder does not have.
fn check_lanes(only: &[String], lanes: &[&str]) -> Result<(), OpenError> {
    match only.iter().find(|wanted| !lanes.contains(&wanted.as_str())) {
        Some(lane) => Err(OpenError::NoLane {
            lane: lane.clone(),
            known: lanes.iter().map(|id| (*id).to_owned()).collect(),
        }),
        None => Ok(()),
    }
}

fn io_error(path: &Path, source: io::Error) -> OpenError {
    OpenError::Io {
        what: "reading",
        path: path.to_owned(),
        source,
    }
}

/// The sizes the folder was made with, from its log's files: nothing would be made anew with them.
fn options(dir: &Path, fs: &dyn Filesystem) -> Result<Options, OpenError> {
    let folder = dir.join("log");
    let names = match fs.list(&folder) {
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Err(OpenError::NoBuffer {
                dir: dir.to_owned(),
            });
        }
        other => other.map_err(|e| io_error(&folder, e))?,
    };
    let mut sizes = Vec::new();
    for name in names.iter().filter(|name| name.ends_with(".log")) {
        let path = folder.join(name);
        let size = fs.open(&path, Open::Read).and_then(|file| file.size());
        sizes.push(size.map_err(|e| io_error(&path, e))?);
    }
    let mut options = Options::default();
    if let Some(largest) = sizes.iter().max() {
        let count = sizes.len().max(recovery::MIN_SEGMENTS as usize);
        options.log_segments = u32::try_from(count).unwrap_or(u32::MAX);
        options.log_bytes =
            (*largest).max(recovery::MIN_SEGMENT_BYTES) * u64::from(options.log_segments);
    }
    Ok(options)
}

/// Opens the folder in memory, with the lock held for as long as the core lives.
fn load(dir: &Path, fs: Arc<dyn Filesystem>) -> Result<(Inspection, Core), OpenError> {
    let options = options(dir, fs.as_ref())?;
    let lock = dir.join("lock");
    let held = match fs.lock_to_look(&lock).map_err(|e| io_error(&lock, e))? {
        LockOutcome::Held(guard) => guard,
        LockOutcome::HeldBy(pid) => {
            return Err(OpenError::Locked {
                dir: dir.to_owned(),
                pid,
            });
        }
    };
    let log_segments = options.log_segments as usize;
    let copies = copies::second_copies(dir, fs.as_ref()).map_err(|e| io_error(dir, e))?;
    let view = Overlay::new(fs, held);
    let (core, recovery) = recovery::open(dir.to_owned(), options, Arc::new(view), 0)?;
    let state = core.shared.state.lock();
    let found = Inspection {
        maybe: state.lanes.iter().map(maybe).collect(),
        lanes: recovery.lanes,
        positions: recovery
            .positions
            .iter()
            .map(|(s, v)| (s.clone(), v.len()))
            .collect(),
        unclean_exit: recovery.unclean_exit,
        epoch: recovery.epoch.saturating_sub(1),
        log_bytes: state.totals.log_bytes,
        log_segments,
        log_records: recovery.replayed_records,
        log_writes: state.entries,
        torn_bytes: recovery.torn_bytes,
        lost: state.lost.clone(),
        healed: copies.told(recovery.unclean_exit),
    };
    drop(state);
    Ok((found, core))
}

/// Pending writes that may have been applied: by an unclean exit, or by their notes.
fn maybe(lane: &Lane) -> u64 {
    let through = lane.maybe_through.min(lane.next_seq.saturating_sub(1));
    let by_exit = through - lane.settled.count_in(1, through);
    let noted = lane
        .states
        .range(through.saturating_add(1)..)
        .filter(|(_, state)| state.first_maybe_unix_ms.is_some());
    by_exit + noted.count() as u64
}

/// Whether a path is below the buffer's folder, as a reader of a report wants it.
fn shown(dir: &Path, path: &Path) -> PathBuf {
    path.strip_prefix(dir).unwrap_or(path).to_path_buf()
}
