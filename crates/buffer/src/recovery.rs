//! Opening: the last checkpoint, then the log from its replay point on, then a new run.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::api::{Options, Recovery};
use crate::checkpoint::{self, Decoded, SlotFound, Slots, encode, with_sizes};
use crate::core::{Core, Now};
use crate::error::OpenError;
use crate::fs::{Filesystem, LockOutcome, read_full_at};
use crate::group::{Done, Group, Prepared};
use crate::items::{self, Item};
use crate::keyfile::load_keys;
use crate::lane::Lane;
use crate::log::{FORMAT_VERSION, Live, Log, LogPoint, SEGMENT_HEADER, SegmentHeader, Slot};
use crate::planted::Planted;
use crate::replay::{Replayed, replay_segment};
use crate::salvage::{adopt_spill, holds_files, quarantine};
use crate::segments::{make_slots, missing, read_log, rewrite_tail};
use crate::shared::Shared;
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

/// A checkpoint as it was found.
struct Stored {
    generation: u64,
    slot: usize,
    payload: Vec<u8>,
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
    let (stored, slot_gone) = read_checkpoints(fs.as_ref(), &at, planted)?;
    let decoded = stored
        .as_ref()
        .and_then(|s| checkpoint::decode(&s.payload, &mut state));
    let (mut slots, headers) = read_log(fs.as_ref(), &dir, &at)?;
    let fresh =
        stored.is_none() && headers.is_empty() && !holds_files(fs.as_ref(), &dir.join("lanes"));
    let began = decoded.as_ref().is_some_and(|d| d.epoch > 0);
    let mut damage = false;
    if decoded.is_none() && !fresh {
        damage = true;
        state = new_state();
        state.note_loss(
            "no checkpoint is left that checks; the log and the spill files are salvaged".into(),
        );
    } else if began && let Some(path) = slot_gone {
        damage = true;
        state.lost.files += 1;
        state.note_loss(format!(
            "{} is missing, and may have been the newest checkpoint",
            path.display()
        ));
    }
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
    load_keys(fs.as_ref(), &dir, &mut state, &at)?;
    let mut checkpoints = open_slots(fs.as_ref(), &at, &options, stored.as_ref(), planted)?;
    if fresh {
        // Before any segment exists, so that segments without a checkpoint always mean that one was lost.
        let payload = encode(&state, &Default::default(), point, 0, &[], None);
        checkpoints
            .write(&payload)
            .map_err(at.io("writing the first checkpoint in", &dir))?;
        fs.sync_dir(&dir)
            .map_err(at.io("flushing the folder", &dir))?;
    }

    // Replay.
    let live: Vec<Live> = headers
        .iter()
        .filter(|(h, _)| h.number >= point.segment)
        .map(|&(header, slot)| Live { header, slot })
        .collect();
    // Until a checkpoint says that a run began, a log without segments is one that was never used.
    let unused =
        point == START && live.is_empty() && (!began || planted == Some(Planted::RemovedLogIsNew));
    let begins_elsewhere = live
        .first()
        .is_none_or(|l| l.header.number != point.segment);
    if begins_elsewhere && !unused && !fresh {
        damage = true;
        state.note_loss(format!(
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
        epoch: 0,
        max_epoch: epoch.unwrap_or(0),
        ..Replayed::default()
    };
    let tail = replay(fs.as_ref(), &at, &live, &slots, point, &mut state, &mut run)?;
    let unclean = !(state.clean || fresh || unused);
    damage |= !state.lost.is_empty();
    if damage {
        // A lost record may have been a frontier or a settlement: anything pending may have been applied.
        state.clean = false;
        for lane in &mut state.lanes {
            lane.maybe_through = lane.next_seq.saturating_sub(1);
        }
        adopt_spill(fs.as_ref(), &dir, &mut state);
    }
    let epoch = if planted == Some(Planted::CutIgnoresEpoch) {
        1
    } else {
        run.max_epoch + 1
    };

    // What was read may be in the system's cache alone: its flush failed, and no later flush would write it. So what
    // the last run wrote last is written again before anything is built on it.
    if planted != Some(Planted::TailNotRewritten) {
        rewrite_tail(&live, &mut slots, run.group_offset, &tail)
            .map_err(at.io("writing again in", &dir))?;
    }
    if let (Some(stored), Some(decoded)) = (&stored, &decoded)
        && planted != Some(Planted::CheckpointNotRewritten)
    {
        // With what is missing of the log, so that an opening that ends early leaves it to be told by the next.
        checkpoints
            .write(&with_sizes(&stored.payload, decoded, &sizes))
            .map_err(at.io("writing the checkpoint again in", &dir))?;
    }

    // Ready to write again.
    make_slots(fs.as_ref(), &dir, shape, &sizes, &live, &mut slots, &at)?;
    let log = Log {
        slots,
        live: live.into(),
        offset: run.offset.max(SEGMENT_HEADER),
        next_seq: run.expected,
        epoch,
        segment_bytes,
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
        checkpoint_wanted: damage,
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
    let first = (run.replayed == 0 && core.log.live.is_empty()).then_some(point.segment);
    begin_run(&mut core, first, damage).map_err(at.io("beginning a run in", &dir))?;
    vouch_for_log(&mut core, decoded.as_ref(), &sizes, began, damage)
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

/// The newest checkpoint that checks, and the slot whose file is not there.
fn read_checkpoints(
    fs: &dyn Filesystem,
    at: &At<'_>,
    planted: Option<Planted>,
) -> Result<(Option<Stored>, Option<PathBuf>), OpenError> {
    let (mut best, mut gone): (Option<Stored>, _) = (None, None);
    for slot in 0..2 {
        let path = checkpoint::slot_path(at.dir, slot);
        let found = checkpoint::read_slot(fs, at.dir, slot, planted);
        match found.map_err(at.io("reading", &path))? {
            SlotFound::Newer(found) => {
                return Err(OpenError::NewerFormat {
                    path,
                    found,
                    supported: FORMAT_VERSION,
                });
            }
            SlotFound::Valid {
                generation,
                payload,
            } if best.as_ref().is_none_or(|b| generation > b.generation) => {
                best = Some(Stored {
                    generation,
                    slot,
                    payload,
                });
            }
            SlotFound::Missing => gone = Some(path),
            SlotFound::Valid { .. } | SlotFound::None => {}
        }
    }
    Ok((best, gone))
}

fn open_slots(
    fs: &dyn Filesystem,
    at: &At<'_>,
    options: &Options,
    stored: Option<&Stored>,
    planted: Option<Planted>,
) -> Result<Slots, OpenError> {
    let by_log =
        (options.log_bytes / 1024).clamp(checkpoint::MIN_SLOT_BYTES, checkpoint::FIRST_SLOT_BYTES);
    #[cfg(any(test, feature = "simulation"))]
    let bytes = if options.slot_bytes > 0 {
        options.slot_bytes
    } else {
        by_log
    };
    #[cfg(not(any(test, feature = "simulation")))]
    let bytes = by_log;
    let (generation, current) = stored.map_or((0, 1), |s| (s.generation, s.slot));
    let mut slots = Slots::open(fs, at.dir, generation, current, bytes)
        .map_err(at.io("opening the checkpoints in", at.dir))?;
    slots.planted = planted;
    Ok(slots)
}

/// Replays the live segments from the checkpoint's point on; returns the bytes of the last group.
fn replay(
    fs: &dyn Filesystem,
    at: &At<'_>,
    live: &[Live],
    slots: &[Slot],
    point: LogPoint,
    state: &mut State,
    run: &mut Replayed,
) -> Result<Vec<u8>, OpenError> {
    let mut tail = Vec::new();
    for (i, segment) in live.iter().enumerate() {
        let next: Option<SegmentHeader> = live.get(i + 1).map(|l| l.header);
        let Some(slot) = slots.get(segment.slot) else {
            continue;
        };
        let from = if segment.header.number == point.segment {
            point.offset
        } else {
            SEGMENT_HEADER
        };
        let mut buf = vec![0u8; usize::try_from(slot.bytes).unwrap_or(0)];
        let path = Log::path(at.dir, segment.slot);
        let n = read_full_at(slot.file.as_ref(), &mut buf, 0).map_err(at.io("reading", &path))?;
        buf.truncate(n);
        let damaged = replay_segment(&buf, &segment.header, next.as_ref(), from, state, run);
        if next.is_none() {
            let range = usize::try_from(run.group_offset).unwrap_or(0)
                ..usize::try_from(run.offset).unwrap_or(0);
            tail = buf.get(range).unwrap_or_default().to_vec();
        }
        for (from, to) in damaged {
            let name = format!("log-{}", segment.header.number);
            let file = (slot.file.as_ref(), path.as_path());
            quarantine(fs, at.dir, file, &name, from, to, state);
        }
    }
    Ok(tail)
}

/// Makes the run's first record durable, in a new segment after damage.
fn begin_run(core: &mut Core, first: Option<u64>, damage: bool) -> io::Result<()> {
    let mut payload = Vec::new();
    let wall_unix_ms = core.now.unix_ms;
    items::put_item(
        &mut payload,
        &Item::Session {
            epoch: core.log.epoch,
            wall_unix_ms,
        },
    );
    if core.planted == Some(Planted::CleanMarkEarly) {
        items::put_item(&mut payload, &Item::Clean);
    }
    let record = Prepared::items(payload, Done::Nothing);
    let mut rotate = damage || record.size() > core.log.remaining();
    let number = first.unwrap_or_else(|| core.log.active_number().max(core.point.segment) + 1);
    rotate |= core.log.live.is_empty();
    if rotate
        && !core.log.rotate(number, core.fs.entropy())?
        && record.size() > core.log.remaining()
    {
        // Full to the last byte. One segment more than configured begins this run; it goes once it is free again.
        if core.planted == Some(Planted::LogFilledWhole) {
            return Err(io::Error::other("no log segment is free"));
        }
        let slot = core.log.slots.len();
        let bytes = core.log.segment_bytes;
        let made = Log::create_slot(core.fs.as_ref(), &core.dir, slot, bytes)?;
        core.fs.sync_dir(&core.dir.join("log"))?;
        core.log.slots.push(made);
        core.log.rotate(number, core.fs.entropy())?;
    }
    let mut group = Group::default();
    core.put(&mut group, record);
    core.log.write(&group.bytes)?;
    if core.planted != Some(Planted::LogNotSynced) {
        core.log.sync()?;
    }
    let base = core.log.offset;
    core.log.advance(group.bytes.len() as u64, 1);
    core.apply_group(group, base);
    Ok(())
}

/// Has a checkpoint say that a run began and what the log's files are, where the one in force does not: from then on a
/// log that is gone is told from one that never was. What an earlier opening found missing is told by now.
///
/// After damage always: that anything pending may have been applied is known from what was found, and the next opening
/// may find a checkpoint and a log that look whole again.
fn vouch_for_log(
    core: &mut Core,
    decoded: Option<&Decoded>,
    written: &[u64],
    began: bool,
    damage: bool,
) -> io::Result<()> {
    let sizes = core.log.sizes();
    if decoded.is_some() && began && written == sizes && !damage {
        return Ok(());
    }
    let payload = {
        let state = core.shared.state.lock();
        let over = Default::default();
        encode(
            &state,
            &over,
            core.point,
            core.log.epoch,
            &sizes,
            core.planted,
        )
    };
    match core.slots.write(&payload) {
        Ok(bytes) => {
            core.count_written(bytes);
            Ok(())
        }
        Err(e) if began => {
            // The one in force will do; the next opening tells what this one told.
            tracing::warn!(target: "consign::buffer", "a checkpoint could not be written while opening: {e}");
            Ok(())
        }
        Err(e) => Err(e),
    }
}
