//! Opening: the last checkpoint, then the log from its replay point on, then a new run.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::api::{Options, Recovery};
use crate::begin::{begin_run, vouch_for_log};
use crate::checkpoint::{Untold, amended, decode, encode};
use crate::core::{Core, Now};
use crate::error::OpenError;
use crate::fs::{Filesystem, LockOutcome};
use crate::keyfile::load_keys;
use crate::lane::Lane;
use crate::log::{FORMAT_VERSION, Live, Log, LogPoint, SEGMENT_HEADER};
use crate::planted::Planted;
use crate::rebuild::{Segments, rebuild};
use crate::replay::{Replayed, replay};
use crate::salvage::holds_files;
use crate::segments::{make_slots, missing, read_log, rewrite_tail};
use crate::shared::Shared;
use crate::slots::{self, Slots, Stored};
use crate::state::State;

/// A segment smaller than this is mostly header.
pub(crate) const MIN_SEGMENT_BYTES: u64 = 16 << 10;
/// Fewer segments leave nothing between the one in use, the reserve and the one being freed.
pub(crate) const MIN_SEGMENTS: u32 = 4;
/// Where the first segment's records begin.
const START: LogPoint = LogPoint {
    segment: 1,
    offset: SEGMENT_HEADER,
    seq: 1,
};

/// Makes errors that name the folder, or a file in it.
pub(crate) struct At<'a> {
    pub(crate) dir: &'a Path,
}

impl At<'_> {
    pub(crate) fn io<'p>(
        &'p self,
        what: &'static str,
        path: &'p Path,
    ) -> impl FnOnce(io::Error) -> OpenError + 'p {
        let path = if path.as_os_str().is_empty() {
            self.dir.to_path_buf()
        } else {
            path.to_path_buf()
        };
        move |source| OpenError::Io { what, path, source }
    }
}

/// The size of a segment, from the options.
fn segment_bytes(options: &Options) -> Result<u64, OpenError> {
    if options.log_segments < MIN_SEGMENTS {
        return Err(OpenError::Options(format!(
            "log_segments must be at least {MIN_SEGMENTS}"
        )));
    }
    let bytes = options.log_bytes / u64::from(options.log_segments) / 4096 * 4096;
    if bytes < MIN_SEGMENT_BYTES {
        let least = MIN_SEGMENT_BYTES * u64::from(options.log_segments);
        return Err(OpenError::Options(format!(
            "buffer.log_size must be at least {least} bytes"
        )));
    }
    Ok(bytes)
}

/// Opens a folder and begins a run. `unix_ms` replaces the wall clock when it is not 0.
pub(crate) fn open(
    dir: PathBuf,
    options: Options,
    fs: Arc<dyn Filesystem>,
    unix_ms: u64,
) -> Result<(Core, Recovery), OpenError> {
    #[cfg(any(test, feature = "simulation"))]
    let planted = options.planted;
    #[cfg(not(any(test, feature = "simulation")))]
    let planted: Option<Planted> = None;
    let segment_bytes = segment_bytes(&options)?;
    let at = At { dir: &dir };
    let lock = lock(fs.as_ref(), &at)?;

    let record_limit = (segment_bytes - SEGMENT_HEADER) / 2;
    let new_state = || {
        let mut state = State::new(options.body_memory_bytes, record_limit);
        state.planted = planted;
        state
    };
    let mut state = new_state();
    let (stored, mark) = read_checkpoints(fs.as_ref(), &at, planted)?;
    let decoded = stored.as_ref().and_then(|s| decode(&s.payload, &mut state));
    let (mut slots, headers) = read_log(fs.as_ref(), &dir, &at)?;
    let lanes = dir.join("lanes");
    // No log file is made before the first checkpoint is durable.
    let fresh = stored.is_none()
        && mark == 0
        && slots.is_empty()
        && !holds_files(fs.as_ref(), &lanes).map_err(at.io("listing", &lanes))?;
    let began = decoded.as_ref().is_some_and(|d| d.epoch > 0);
    if decoded.is_none() && !fresh {
        state = new_state();
        state.damage(
            "no checkpoint is left that checks; the log and the spill files are salvaged".into(),
        );
    } else if stored.as_ref().is_some_and(|s| mark > s.generation) {
        state.lost.files += 1;
        state.damage(
            "the newest checkpoint is missing or does not check; the one before it is used".into(),
        );
    }
    let untold = decoded.as_ref().map_or(Untold::Nothing, |d| d.untold);
    match untold {
        Untold::Nothing => {}
        Untold::Found => {
            state.damage("damage was found by an opening that ended before it could tell".into());
        }
        Untold::MadeGood => state.note_loss(
            "damage was found and made good by a run that ended before its first checkpoint".into(),
        ),
    }
    let told = state.gaps.clone();
    let point = match (&decoded, headers.first()) {
        (Some(d), _) => d.point,
        (None, Some((first, _))) => LogPoint {
            segment: first.number,
            offset: SEGMENT_HEADER,
            seq: first.first_seq,
        },
        (None, None) => START,
    };
    let epochs = headers.iter().map(|(h, _)| h.epoch);
    let epoch = epochs.chain(decoded.as_ref().map(|d| d.epoch)).max();
    let keys_lost = load_keys(fs.as_ref(), &dir, &mut state, &at)?;
    let mut checkpoints = open_slots(fs.as_ref(), &at, &options, stored.as_ref(), mark, planted)?;
    fs.sync_dir(&dir)
        .map_err(at.io("flushing the folder", &dir))?;
    if fresh {
        // Before any segment exists, so that segments without a checkpoint always mean that one was lost.
        let payload = encode(
            &state,
            &Default::default(),
            point,
            0,
            &[],
            Untold::Nothing,
            None,
        );
        checkpoints
            .write(&payload)
            .map_err(at.io("writing the first checkpoint in", &dir))?;
    }

    // Replay.
    let mut live: Vec<Live> = headers
        .iter()
        .filter(|(h, _)| h.number >= point.segment)
        .map(|&(header, slot)| Live { header, slot })
        .collect();
    // Until a checkpoint says that a run began, a log without segments is one that was never used.
    let unused =
        point == START && live.is_empty() && (!began || planted == Some(Planted::RemovedLogIsNew));
    let gone = match live.first() {
        Some(l) if l.header.number == point.segment => false,
        Some(l) => {
            let before = l.header.first_seq.saturating_sub(1);
            !state.gaps.missing_in(point.seq, before).is_empty()
        }
        None => !unused && !fresh,
    };
    if gone {
        state.damage(format!(
            "log segment {} is missing or its header is damaged",
            point.segment
        ));
    }
    let recorded = decoded.as_ref().map_or(&[][..], |d| &d.sizes);
    let recorded = if planted == Some(Planted::RemovedLogIsNew) {
        &[][..]
    } else {
        recorded
    };
    let shape = (options.log_segments as usize, segment_bytes);
    let sizes = missing(&dir, recorded, &slots, shape, &live, &mut state);
    let mut run = Replayed {
        expected: point.seq,
        max_epoch: epoch.unwrap_or(0),
        ..Replayed::default()
    };
    let tail = replay(
        fs.as_ref(),
        &at,
        &mut live,
        &slots,
        point,
        &mut state,
        &mut run,
    )?;
    let unclean = !(state.clean || fresh || unused);
    let damage = state.damaged;
    if damage {
        // A lost record may have been a frontier or a settlement: anything pending may have been applied.
        state.clean = false;
        let log = Segments {
            live: &live,
            slots: &slots,
        };
        rebuild(fs.as_ref(), &dir, &log, &mut state)
            .map_err(at.io("finding out what is pending in", &dir))?;
        state.rebuilt_at = run.expected;
        for lane in &mut state.lanes {
            lane.maybe_through = lane.next_seq.saturating_sub(1);
        }
    }
    let epoch = if planted == Some(Planted::CutIgnoresEpoch) {
        1
    } else {
        run.max_epoch + 1
    };

    // What was read may be in the system's cache alone: its flush failed, and no later flush would write it. So what
    // the last run wrote last is written again before anything is built on it.
    if planted != Some(Planted::TailNotRewritten) {
        rewrite_tail(&live, &mut slots, &tail).map_err(at.io("writing again in", &dir))?;
    }
    if let (Some(stored), Some(decoded)) = (&stored, &decoded)
        && planted != Some(Planted::CheckpointNotRewritten)
    {
        checkpoints
            .rewrite(stored, mark)
            .map_err(at.io("writing the checkpoint again in", &dir))?;
        let left = if damage { Untold::Found } else { untold };
        // With what was found out, so that an opening that ends early leaves it to be told by the next. Nothing is
        // made good before.
        checkpoints
            .write(&amended(&stored.payload, decoded, &sizes, left, &told))
            .map_err(at.io("writing the checkpoint again in", &dir))?;
    }

    // Ready to write again.
    make_slots(fs.as_ref(), &dir, shape, &sizes, &live, &mut slots, &at)?;
    // Where the replay point's own segment is gone, what comes before the first that is left is known to be lost.
    let point = match live.first() {
        Some(l) if damage && l.header.number > point.segment => LogPoint {
            segment: l.header.number,
            offset: SEGMENT_HEADER,
            seq: l.header.first_seq,
        },
        _ => point,
    };
    let numbers = headers.iter().map(|(h, _)| h.number);
    let last_number = numbers.max().unwrap_or(0);
    let log = Log {
        slots,
        live: live.into(),
        offset: tail.end,
        next_seq: run.expected,
        epoch,
        segment_bytes,
        last_number: if began {
            last_number.max(point.segment)
        } else {
            last_number
        },
    };
    let reuse = planted == Some(Planted::SeqReused);
    let next_number = |l: &Lane| {
        if reuse {
            l.settled_through() + 1
        } else {
            l.next_seq
        }
    };
    let assign = state.lanes.iter().map(next_number).collect();
    let shared = Arc::new(Shared::new(state));
    #[cfg(any(test, feature = "simulation"))]
    shared.set_clock(unix_ms);
    #[cfg(not(any(test, feature = "simulation")))]
    let _ = unix_ms;
    let now = Now {
        mono_ms: 0,
        unix_ms: shared.unix_now_ms(),
    };
    let mut core = Core {
        shared: shared.clone(),
        fs,
        dir: dir.clone(),
        options,
        log,
        slots: checkpoints,
        point,
        assign,
        accepts: VecDeque::new(),
        others: VecDeque::new(),
        fetches: VecDeque::new(),
        prepared: None,
        stalled: None,
        job: None,
        now,
        next_checkpoint_ms: 0,
        next_reclaim_ms: 0,
        checkpoint_wanted: damage || keys_lost || untold != Untold::Nothing,
        releasing: BTreeSet::new(),
        losing: BTreeSet::new(),
        losing_in_log: BTreeSet::new(),
        garbage: Vec::new(),
        last_failure: None,
        full: None,
        rotate_failed: None,
        next_rotate_ms: 0,
        stalled_why: None,
        retry_ms: crate::room::RETRY_CHECKPOINT_MS,
        compaction_failed: false,
        closing: None,
        failed: false,
        planted,
        _lock: lock,
    };
    begin_run(&mut core, damage).map_err(at.io("beginning a run in", &dir))?;
    let left = if damage { Untold::MadeGood } else { untold };
    vouch_for_log(&mut core, &sizes, began, damage, left)
        .map_err(at.io("writing a checkpoint in", &dir))?;
    if !damage {
        core.remove_unknown();
    }
    let mut state = shared.state.lock();
    if planted == Some(Planted::LossSilent) {
        state.lost = Default::default();
    }
    state.totals.epoch = epoch;
    state.totals.log_bytes = core.log.sizes().iter().sum();
    let positions = state.positions.iter();
    let recovery = Recovery {
        lanes: state.lanes.iter().map(Lane::stats).collect(),
        unclean_exit: unclean,
        lost: state.lost.clone(),
        positions: positions.map(|(s, v)| (s.clone(), v.clone())).collect(),
        replayed_records: run.replayed,
        torn_bytes: run.torn_bytes,
        epoch,
    };
    drop(state);
    Ok((core, recovery))
}

/// Makes the folders and takes the lock.
fn lock(fs: &dyn Filesystem, at: &At<'_>) -> Result<Box<dyn Send + Sync>, OpenError> {
    for name in ["", "log", "lanes", "keys"] {
        let folder = if name.is_empty() {
            at.dir.to_path_buf()
        } else {
            at.dir.join(name)
        };
        fs.create_dir(&folder)
            .map_err(at.io("making the folder", &folder))?;
    }
    let path = at.dir.join("lock");
    match fs.lock(&path).map_err(at.io("locking", &path))? {
        LockOutcome::Held(lock) => Ok(lock),
        LockOutcome::HeldBy(pid) => Err(OpenError::Locked {
            dir: at.dir.to_path_buf(),
            pid,
        }),
    }
}

/// The newest checkpoint that checks, and the highest generation that either slot says there was.
fn read_checkpoints(
    fs: &dyn Filesystem,
    at: &At<'_>,
    planted: Option<Planted>,
) -> Result<(Option<Stored>, u64), OpenError> {
    let (mut best, mut mark): (Option<Stored>, u64) = (None, 0);
    for slot in 0..2 {
        let path = slots::slot_path(at.dir, slot);
        let found = slots::read_slot(fs, at.dir, slot, planted).map_err(at.io("reading", &path))?;
        if let Some(found) = found.newer {
            return Err(OpenError::NewerFormat {
                path,
                found,
                supported: FORMAT_VERSION,
            });
        }
        mark = mark.max(found.mark);
        if let Some((generation, payload)) = found.checkpoint
            && best.as_ref().is_none_or(|b| generation > b.generation)
        {
            best = Some(Stored {
                generation,
                slot,
                payload,
            });
        }
    }
    Ok((best, mark))
}

fn open_slots(
    fs: &dyn Filesystem,
    at: &At<'_>,
    options: &Options,
    stored: Option<&Stored>,
    mark: u64,
    planted: Option<Planted>,
) -> Result<Slots, OpenError> {
    let by_log = (options.log_bytes / 1024).clamp(slots::MIN_SLOT_BYTES, slots::FIRST_SLOT_BYTES);
    #[cfg(any(test, feature = "simulation"))]
    let bytes = if options.slot_bytes > 0 {
        options.slot_bytes
    } else {
        by_log
    };
    #[cfg(not(any(test, feature = "simulation")))]
    let bytes = by_log;
    let (generation, current) = stored.map_or((0, 1), |s| (s.generation, s.slot));
    let mut slots = Slots::open(fs, at.dir, generation.max(mark), current, bytes)
        .map_err(at.io("opening the checkpoints in", at.dir))?;
    slots.planted = planted;
    Ok(slots)
}
