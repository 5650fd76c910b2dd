//! Opening: the last checkpoint, then the log from its replay point on, then a new run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::api::{Options, Recovery};
use crate::checkpoint::{self, SlotFound, Slots, encode};
use crate::codec::Take;
use crate::core::{Core, Now};
use crate::error::OpenError;
use crate::fs::{FileHandle, Filesystem, LockOutcome, Open, read_full_at, write_all_at};
use crate::group::{Done, Group, Prepared};
use crate::items::{self, Item};
use crate::lane::Lane;
use crate::log::{
    FORMAT_VERSION, HeaderFound, Live, Log, LogPoint, SEGMENT_HEADER, SegmentHeader, Slot,
    encode_header, parse_header,
};
use crate::planted::Planted;
use crate::record;
use crate::replay::{Replayed, replay_segment};
use crate::shared::Shared;
use crate::spill::{FILE_HEADER, Step, Walk, parse_head};
use crate::state::State;

/// A segment smaller than this is mostly header.
const MIN_SEGMENT_BYTES: u64 = 16 << 10;
/// Fewer segments leave nothing between the one in use, the reserve and the one being freed.
const MIN_SEGMENTS: u32 = 4;
/// Bytes that do not check are copied to `quarantine/` up to this much a place.
const MAX_QUARANTINE_BYTES: u64 = 16 << 20;

struct At<'a> {
    dir: &'a Path,
}

impl At<'_> {
    fn io<'p>(
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
    for folder in [
        dir.clone(),
        dir.join("log"),
        dir.join("lanes"),
        dir.join("keys"),
    ] {
        fs.create_dir(&folder)
            .map_err(at.io("making the folder", &folder))?;
    }
    let lock_path = dir.join("lock");
    let lock = match fs.lock(&lock_path).map_err(at.io("locking", &lock_path))? {
        LockOutcome::Held(lock) => lock,
        LockOutcome::HeldBy(pid) => return Err(OpenError::Locked { dir, pid }),
    };

    // The checkpoint.
    let record_limit = (segment_bytes - SEGMENT_HEADER) / 2;
    let mut state = State::new(options.body_memory_bytes, record_limit);
    state.planted = planted;
    let mut best: Option<(u64, usize, Vec<u8>)> = None;
    for slot in 0..2 {
        let path = checkpoint::slot_path(&dir, slot);
        match checkpoint::read_slot(fs.as_ref(), &dir, slot).map_err(at.io("reading", &path))? {
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
            } if best.as_ref().is_none_or(|(g, ..)| generation > *g) => {
                best = Some((generation, slot, payload));
            }
            _ => {}
        }
    }
    let decoded = best
        .as_ref()
        .and_then(|(_, _, payload)| checkpoint::decode(payload, &mut state));
    let (generation, current) = best.as_ref().map_or((0, 1), |(g, slot, _)| (*g, *slot));

    // The log's files.
    let (mut slots, headers) = read_log(fs.as_ref(), &dir, &at)?;
    let mut epoch = headers.iter().map(|(h, _)| h.epoch).max().unwrap_or(0);
    let fresh = best.is_none() && headers.is_empty();
    let state_is_new = decoded.is_none();
    let mut point = LogPoint {
        segment: 1,
        offset: SEGMENT_HEADER,
        seq: 1,
    };
    let mut damage = false;
    match decoded {
        Some((found, e)) => {
            point = found;
            epoch = epoch.max(e);
        }
        None if fresh => {}
        None => {
            damage = true;
            state = State::new(options.body_memory_bytes, record_limit);
            state.note_loss(
                "both checkpoints are damaged; the log and spill files are salvaged".into(),
            );
            if let Some((first, _)) = headers.first() {
                point = LogPoint {
                    segment: first.number,
                    offset: SEGMENT_HEADER,
                    seq: first.first_seq,
                };
            }
        }
    }
    load_keys(fs.as_ref(), &dir, &mut state, &at)?;

    let slot_bytes =
        (options.log_bytes / 1024).clamp(checkpoint::MIN_SLOT_BYTES, checkpoint::FIRST_SLOT_BYTES);
    let mut slots_of_checkpoint = Slots::open(fs.as_ref(), &dir, generation, current, slot_bytes)
        .map_err(at.io("opening the checkpoints in", &dir))?;
    slots_of_checkpoint.planted = planted;
    if fresh {
        // Before any segment exists, so that segments without a checkpoint always mean that one was lost.
        let payload = encode(&state, &Default::default(), point, 0, None);
        slots_of_checkpoint
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
    let mut run = Replayed {
        expected: point.seq,
        epoch: 0,
        max_epoch: epoch,
        ..Replayed::default()
    };
    let started = point
        == LogPoint {
            segment: 1,
            offset: SEGMENT_HEADER,
            seq: 1,
        };
    if live
        .first()
        .is_none_or(|l| l.header.number != point.segment)
        && !(started && live.is_empty())
        && !fresh
    {
        damage = true;
        state.note_loss(format!(
            "log segment {} is missing or its header is damaged",
            point.segment
        ));
    }
    let mut offset = SEGMENT_HEADER;
    let mut tail = Vec::new();
    for (i, segment) in live.iter().enumerate() {
        let next = live.get(i + 1).map(|l| l.header);
        let Some(slot) = slots.get(segment.slot) else {
            continue;
        };
        let from = if segment.header.number == point.segment {
            point.offset
        } else {
            SEGMENT_HEADER
        };
        let mut buf = vec![0u8; usize::try_from(slot.bytes).unwrap_or(0)];
        let path = Log::path(&dir, segment.slot);
        let n = read_full_at(slot.file.as_ref(), &mut buf, 0).map_err(at.io("reading", &path))?;
        buf.truncate(n);
        let damaged = replay_segment(
            &buf,
            &segment.header,
            next.as_ref(),
            from,
            &mut state,
            &mut run,
            planted,
        );
        offset = run.offset;
        if next.is_none() {
            let range = usize::try_from(run.group_offset).unwrap_or(0)
                ..usize::try_from(run.offset).unwrap_or(0);
            tail = buf.get(range).unwrap_or_default().to_vec();
        }
        for (from, to) in damaged {
            damage = true;
            let name = format!("log-{}", segment.header.number);
            quarantine(
                fs.as_ref(),
                &dir,
                slot.file.as_ref(),
                &name,
                from,
                to,
                &mut state,
            );
        }
    }
    let never_began = fresh || (started && live.is_empty());
    let unclean = !(state.clean || never_began);
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
    if let Some((_, _, payload)) = best
        .as_ref()
        .filter(|_| !state_is_new && planted != Some(Planted::CheckpointNotRewritten))
    {
        slots_of_checkpoint
            .write(payload)
            .map_err(at.io("writing the checkpoint again in", &dir))?;
    }

    // Ready to write again.
    make_slots(
        fs.as_ref(),
        &dir,
        &options,
        segment_bytes,
        &live,
        &mut slots,
        &at,
    )?;
    let live: VecDeque<Live> = live.into();
    let log = Log {
        slots,
        live,
        offset,
        next_seq: run.expected,
        epoch,
        segment_bytes,
        planted,
    };
    let reuse = planted == Some(Planted::SeqReused);
    let first = |l: &Lane| {
        if reuse {
            l.settled_through() + 1
        } else {
            l.next_seq
        }
    };
    let assign = state.lanes.iter().map(first).collect();
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
        slots: slots_of_checkpoint,
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
        retry_ms: crate::core::RETRY_CHECKPOINT_MS,
        compaction_failed: false,
        closing: None,
        failed: false,
        planted,
        _lock: lock,
    };
    let first = (run.replayed == 0 && core.log.live.is_empty()).then_some(point.segment);
    begin_run(&mut core, first, damage).map_err(at.io("beginning a run in", &dir))?;
    if !damage {
        core.remove_unknown();
    }
    let mut state = shared.state.lock();
    state.totals.epoch = epoch;
    state.totals.log_bytes = core.log.slots.iter().map(|s| s.bytes).sum();
    let recovery = Recovery {
        lanes: state.lanes.iter().map(Lane::stats).collect(),
        unclean_exit: unclean,
        lost: state.lost.clone(),
        positions: state
            .positions
            .iter()
            .map(|(s, v)| (s.clone(), v.clone()))
            .collect(),
        replayed_records: run.replayed,
        torn_bytes: run.torn_bytes,
        epoch,
    };
    drop(state);
    Ok((core, recovery))
}

/// Writes the newest segment's header and its last group once more.
fn rewrite_tail(live: &[Live], slots: &mut [Slot], offset: u64, tail: &[u8]) -> io::Result<()> {
    let Some(last) = live.last() else {
        return Ok(());
    };
    let Some(slot) = slots.get_mut(last.slot) else {
        return Ok(());
    };
    write_all_at(slot.file.as_mut(), &encode_header(&last.header), 0)?;
    write_all_at(slot.file.as_mut(), tail, offset)?;
    slot.file.sync()
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
        return Err(io::Error::other("no log segment is free"));
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

/// The log's files, and the segments in them with the place of their file.
type LogFound = (Vec<Slot>, Vec<(SegmentHeader, usize)>);

/// Opens the log's files and reads their headers, in order of segment numbers.
fn read_log(fs: &dyn Filesystem, dir: &Path, at: &At<'_>) -> Result<LogFound, OpenError> {
    let folder = dir.join("log");
    let names = fs.list(&folder).map_err(at.io("listing", &folder))?;
    let count = names
        .iter()
        .filter_map(|n| n.strip_suffix(".log")?.parse::<usize>().ok())
        .max()
        .map_or(0, |n| n + 1);
    let (mut slots, mut headers) = (Vec::new(), Vec::new());
    for slot in 0..count {
        let path = Log::path(dir, slot);
        let file = match fs.open(&path, Open::Write) {
            // A hole in the numbers: its place is filled when slots are made.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                slots.push(Slot {
                    file: Box::new(Missing),
                    bytes: 0,
                });
                continue;
            }
            other => other.map_err(at.io("opening", &path))?,
        };
        let bytes = file.size().map_err(at.io("reading", &path))?;
        let mut head = vec![0u8; SEGMENT_HEADER as usize];
        let n = read_full_at(file.as_ref(), &mut head, 0).map_err(at.io("reading", &path))?;
        head.truncate(n);
        match parse_header(&head) {
            HeaderFound::Valid(header) => headers.push((header, slot)),
            HeaderFound::Newer(found) => {
                return Err(OpenError::NewerFormat {
                    path,
                    found,
                    supported: FORMAT_VERSION,
                });
            }
            HeaderFound::None => {}
        }
        slots.push(Slot { file, bytes });
    }
    headers.sort_by_key(|(h, _)| h.number);
    Ok((slots, headers))
}

/// Stands for a slot whose file is not there.
struct Missing;

impl FileHandle for Missing {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Ok(0)
    }
    fn write_at(&mut self, _: &[u8], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn sync(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn size(&self) -> io::Result<u64> {
        Ok(0)
    }
    fn set_len(&mut self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn allocate(&mut self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Makes missing slots, and makes those of another size anew that nothing is in.
fn make_slots(
    fs: &dyn Filesystem,
    dir: &Path,
    options: &Options,
    bytes: u64,
    live: &[Live],
    slots: &mut Vec<Slot>,
    at: &At<'_>,
) -> Result<(), OpenError> {
    let wanted = options.log_segments as usize;
    for slot in 0..slots.len().max(wanted) {
        let path = Log::path(dir, slot);
        let busy = live.iter().any(|l| l.slot == slot);
        let right = slots.get(slot).is_some_and(|s| s.bytes == bytes);
        if busy || (right && slot < wanted) {
            continue;
        }
        if slot >= wanted {
            match fs.remove(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(at.io("removing", &path)(e));
                }
                _ => {}
            }
            if let Some(s) = slots.get_mut(slot) {
                *s = Slot {
                    file: Box::new(Missing),
                    bytes: 0,
                };
            }
            continue;
        }
        let made = Log::create_slot(fs, dir, slot, bytes).map_err(at.io("preallocating", &path))?;
        match slots.get_mut(slot) {
            Some(s) => *s = made,
            None => slots.push(made),
        }
    }
    // Every time: the attempt that made a name may have ended before it was durable.
    for folder in [
        dir.join("log"),
        dir.join("lanes"),
        dir.join("keys"),
        dir.to_path_buf(),
    ] {
        fs.sync_dir(&folder)
            .map_err(at.io("flushing the folder", &folder))?;
    }
    if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs.sync_dir(parent)
            .map_err(at.io("flushing the folder", parent))?;
    }
    Ok(())
}

/// Reads the accepted keys back from their buckets' files.
fn load_keys(
    fs: &dyn Filesystem,
    dir: &Path,
    state: &mut State,
    at: &At<'_>,
) -> Result<(), OpenError> {
    let mut losses = Vec::new();
    for (number, scope) in (0u32..).zip(&mut state.scopes) {
        for i in 0..scope.buckets.len() {
            let Some(file) = scope.buckets.get(i).and_then(|b| b.file) else {
                continue;
            };
            let path = dir
                .join("keys")
                .join(format!("{number:08x}"))
                .join(format!("{:016x}.keys", file.number));
            let handle = match fs.open(&path, Open::Read) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    losses.push(format!("key file {} is missing", path.display()));
                    continue;
                }
                other => other.map_err(at.io("opening", &path))?,
            };
            let mut walk = Walk::new(handle.as_ref(), file.salt, file.len, FILE_HEADER);
            while let Some(step) = walk.next().map_err(at.io("reading", &path))? {
                match step {
                    Step::Record { enc, .. } => {
                        let mut take = Take::new(&enc);
                        while let Some(with_body) = take.u8() {
                            let Some(key) = take.array() else { break };
                            let body = if with_body == 1 { take.array() } else { None };
                            scope.restore(i, (key, body));
                        }
                    }
                    Step::Damage { offset, next } => losses.push(format!(
                        "{} bytes of accepted keys in {} are damaged: a redelivery may come through as a copy",
                        next - offset,
                        path.display()
                    )),
                }
            }
        }
    }
    for loss in losses {
        state.note_loss(loss);
    }
    Ok(())
}

/// After damage: takes in spill files, or parts of them, that the surviving checkpoint does not vouch for.
fn adopt_spill(fs: &dyn Filesystem, dir: &Path, state: &mut State) {
    let mut charges: Vec<(u32, u64)> = Vec::new();
    let mut notes = Vec::new();
    let folders = fs.list(&dir.join("lanes")).unwrap_or_default();
    for name in folders {
        let Ok(number) = u32::from_str_radix(&name, 16) else {
            continue;
        };
        let folder = dir.join("lanes").join(&name);
        let lane = state.lane_mut(number);
        for file_name in fs.list(&folder).unwrap_or_default() {
            let Some(file_number) = file_name
                .strip_suffix(".spill")
                .and_then(|n| u64::from_str_radix(n, 16).ok())
            else {
                continue;
            };
            lane.next_file = lane.next_file.max(file_number + 1);
            let Ok(handle) = fs.open(&folder.join(&file_name), Open::Read) else {
                continue;
            };
            let mut head = vec![0u8; FILE_HEADER as usize];
            let known = lane
                .files
                .iter()
                .find(|f| f.number == file_number)
                .map(|f| (f.len, f.salt));
            let Ok(_) = read_full_at(handle.as_ref(), &mut head, 0) else {
                continue;
            };
            let Some(head) = parse_head(&head) else {
                continue;
            };
            let (from, salt) = known.unwrap_or((FILE_HEADER, head.salt));
            let len = handle.size().unwrap_or(0);
            let mut walk = Walk::new(handle.as_ref(), salt, len, from);
            let mut found = crate::lane::SpillFile {
                number: file_number,
                salt,
                len: from,
                sealed: true,
                ..Default::default()
            };
            while let Ok(Some(step)) = walk.next() {
                let Step::Record { seq, enc, next, .. } = step else {
                    continue;
                };
                found.len = next;
                // The same number must not be in two files: an entry of the log, or an older file, is as good.
                let wanted = seq > lane.spilled_through
                    && seq > found.last_seq
                    && !lane.settled.contains(seq)
                    && lane
                        .entries
                        .first_key_value()
                        .is_none_or(|(first, _)| seq < *first);
                let Some(view) = items::parse_write(&enc).filter(|_| wanted) else {
                    continue;
                };
                if found.first_seq == 0 {
                    found.first_seq = seq;
                }
                found.last_seq = seq;
                found.put_on(view.charge(), &view.held());
            }
            if found.live == 0 {
                continue;
            }
            notes.push(format!(
                "lane {}: {} writes were salvaged from {}",
                lane.id, found.live, file_name
            ));
            charges.push((number, found.live_charge));
            charges.extend(found.held.iter().map(|(l, c)| (*l, *c)));
            // What is between and not here was settled, or is lost with the checkpoint that knew.
            lane.settled
                .insert_range(lane.spilled_through + 1, found.first_seq - 1);
            lane.spilled_through = found.last_seq;
            lane.next_seq = lane.next_seq.max(found.last_seq + 1);
            lane.maybe_through = lane.next_seq - 1;
            match lane.files.iter_mut().find(|f| f.number == file_number) {
                Some(old) => {
                    old.last_seq = found.last_seq;
                    old.len = found.len;
                    old.sealed = true;
                    old.live += found.live;
                    old.live_charge += found.live_charge;
                    old.live_physical += found.live_physical;
                    for (lane, charge) in found.held {
                        *old.held.entry(lane).or_default() += charge;
                    }
                }
                None => lane.files.push_back(found),
            }
        }
    }
    for (lane, charge) in charges {
        state.lane_mut(lane).charged += charge;
    }
    for note in notes {
        state.note_loss(note);
    }
}

impl Core {
    /// Whether anything waits for room or for its turn.
    pub(crate) fn waits(&self) -> bool {
        !self.accepts.is_empty()
            || !self.others.is_empty()
            || self.prepared.is_some()
            || self.stalled.is_some()
    }

    /// Removes spill and key files that no checkpoint names: left by a checkpoint that never became durable.
    fn remove_unknown(&mut self) {
        let mut wanted: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
        {
            let state = self.shared.state.lock();
            for (number, lane) in (0u32..).zip(&state.lanes) {
                let names = lane
                    .files
                    .iter()
                    .map(|f| format!("{:016x}.spill", f.number))
                    .collect();
                wanted.insert(self.lane_dir(number), names);
            }
            for (number, scope) in (0u32..).zip(&state.scopes) {
                let names = scope.buckets.iter().filter_map(|b| b.file);
                let names = names.map(|f| format!("{:016x}.keys", f.number)).collect();
                wanted.insert(self.dir.join("keys").join(format!("{number:08x}")), names);
            }
        }
        for top in ["lanes", "keys"] {
            let top = self.dir.join(top);
            for folder in self.fs.list(&top).unwrap_or_default() {
                let folder = top.join(folder);
                let none = BTreeSet::new();
                let keep = wanted.get(&folder).unwrap_or(&none);
                for name in self.fs.list(&folder).unwrap_or_default() {
                    if !keep.contains(&name) && self.fs.remove(&folder.join(&name)).is_err() {
                        self.garbage.push(folder.join(&name));
                    }
                }
            }
        }
    }
}

/// Copies bytes that do not check to `quarantine/`, for a person, and counts them.
pub(crate) fn quarantine(
    fs: &dyn Filesystem,
    dir: &Path,
    file: &dyn FileHandle,
    name: &str,
    from: u64,
    to: u64,
    state: &mut State,
) {
    let bytes = to.saturating_sub(from);
    state.lost.quarantined_bytes += bytes;
    let folder = dir.join("quarantine");
    let path = folder.join(format!("{name}-{from}.bin"));
    let copy = || -> io::Result<()> {
        fs.create_dir(&folder)?;
        let mut buf = vec![0u8; usize::try_from(bytes.min(MAX_QUARANTINE_BYTES)).unwrap_or(0)];
        let n = read_full_at(file, &mut buf, from)?;
        buf.truncate(n);
        let mut out = fs.open(&path, Open::Create)?;
        write_all_at(out.as_mut(), &buf, 0)?;
        out.sync()
    };
    let copied = match copy() {
        Ok(()) => format!("a copy is in {}", path.display()),
        Err(e) => format!("no copy could be made: {e}"),
    };
    state.note_loss(format!(
        "{bytes} bytes of {name} at {from} do not check; {copied}"
    ));
}

/// Used by replay to tell apart what a buffer can hold.
pub(crate) fn most_records(bytes: usize) -> u64 {
    (bytes / record::HEADER) as u64 + 1
}
