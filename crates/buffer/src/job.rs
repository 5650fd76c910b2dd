//! A checkpoint under way, one piece per step so that commits go on in between.
//!
//! Spill (pending writes of old segments go to their lanes' files) → compact (files under a quarter live are copied
//! forward) → keys (accepted keys go to their buckets' files) → write (the checkpoint becomes durable) → only then is
//! the log cut and are files unlinked.
//!
//! Until the checkpoint is durable nothing of it is believed: new files and appended bytes are outside what the last
//! one vouches for. A spill that fails gives up that lane alone; the rest still becomes a checkpoint, which may be
//! what frees the space.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;

use crate::checkpoint::{LaneOverride, Overrides, encode};
use crate::codec::Put;
use crate::core::Core;
use crate::fs::{FileHandle, Open, write_all_at};
use crate::items::Held;
use crate::keys::KeyFile;
use crate::lane::{LogPlace, SpillFile};
use crate::log::{FORMAT_VERSION, LogPoint, SEGMENT_HEADER};
use crate::planted::Planted;
use crate::record;
use crate::spill::{FILE_HEADER, FileHead, Step, Walk, encode_head};

/// Bytes spilled in one step.
const SPILL_PIECE_BYTES: u64 = 1 << 20;
/// Rows in one record of a key file.
const KEY_ROWS: usize = 16_384;

#[derive(Debug)]
enum Stage {
    Spill(VecDeque<u32>),
    Compact(VecDeque<u32>),
    Keys,
}

/// A lane's part of the job.
#[derive(Default)]
struct LaneJob {
    /// The file being appended to.
    open: Option<(SpillFile, Box<dyn FileHandle>)>,
    /// Files that were appended to or made, as they will be.
    files: Vec<SpillFile>,
    through: u64,
    next_file: u64,
    /// New files in place of old ones.
    compacted: Vec<(SpillFile, Vec<u64>)>,
    /// Numbers of files made by this job.
    made: Vec<u64>,
}

pub(crate) struct Job {
    cut: u64,
    stage: Stage,
    lanes: BTreeMap<u32, LaneJob>,
    keys: BTreeMap<(u32, u64), (KeyFile, usize)>,
    /// A part failed; the replay point must not pass what it would have saved.
    failure: Option<String>,
    keys_failed: bool,
}

impl Core {
    /// Why the last checkpoint could not free the log, while that is so.
    pub(crate) fn job_failure(&self) -> Option<String> {
        self.last_failure.clone()
    }

    /// Does a piece of the checkpoint under way, or begins one that is due. True while there is more to do.
    pub(crate) fn advance_checkpoint(&mut self) -> bool {
        let Some(mut job) = self.job.take() else {
            if let Some(cut) = self.checkpoint_due() {
                self.begin_checkpoint(cut);
                return true;
            }
            return false;
        };
        match &mut job.stage {
            Stage::Spill(todo) => match todo.pop_front() {
                Some(lane) => match self.spill_some(&mut job, lane) {
                    Ok(true) => {}
                    Ok(false) => {
                        if let Stage::Spill(todo) = &mut job.stage {
                            todo.push_front(lane);
                        }
                    }
                    Err(e) => {
                        self.discard_lane(&mut job, lane);
                        job.failure = Some(format!("spilling: {e}"));
                        job.stage = Stage::Keys;
                    }
                },
                None => job.stage = Stage::Compact(self.sparse_lanes(&job)),
            },
            Stage::Compact(todo) => match todo.pop_front() {
                Some(lane) => {
                    // A copy that fails leaves the old files, which is no harm.
                    let copied = self.compact_some(&mut job, lane);
                    let again = std::mem::replace(&mut self.compaction_failed, copied.is_err());
                    if let Err(e) = copied {
                        if let Some(made) = job.lanes.get_mut(&lane).and_then(|j| j.made.pop()) {
                            self.garbage.push(self.spill_path(lane, made));
                        }
                        if !again {
                            tracing::warn!(target: "consign::buffer", "copying spill files forward failed: {e}");
                        }
                    }
                }
                None => job.stage = Stage::Keys,
            },
            Stage::Keys => {
                if let Err(e) = self.save_keys(&mut job) {
                    job.keys.clear();
                    job.keys_failed = true;
                    job.failure = Some(format!("saving accepted keys: {e}"));
                }
                // In the same step: a key accepted in between would be neither in a file nor after the replay point.
                self.finish_checkpoint(job);
                return true;
            }
        }
        self.job = Some(job);
        true
    }

    fn stamp(&self, salt: u64, seq: u64) -> record::Stamp {
        record::Stamp {
            salt,
            seq,
            epoch: self.log.epoch,
            index: 0,
        }
    }

    fn begin_checkpoint(&mut self, cut: u64) {
        let mut state = self.shared.state.lock();
        for scope in &mut state.scopes {
            scope.expire(self.now.unix_ms);
        }
        state.reclaim = false;
        let lanes = (0u32..)
            .zip(&state.lanes)
            .filter(|(_, l)| {
                l.entries
                    .first_key_value()
                    .is_some_and(|(_, e)| e.place.segment < cut)
            })
            .map(|(n, _)| n)
            .collect();
        drop(state);
        self.job = Some(Job {
            cut,
            stage: Stage::Spill(lanes),
            lanes: BTreeMap::new(),
            keys: BTreeMap::new(),
            failure: None,
            keys_failed: false,
        });
    }

    /// Spills a piece of one lane; true when the lane is done, its files durable.
    fn spill_some(&mut self, job: &mut Job, number: u32) -> io::Result<bool> {
        let cut = job.cut;
        let mut batch: Vec<(u64, LogPlace)> = Vec::new();
        let lane_job = {
            let state = self.shared.state.lock();
            let Some(lane) = state.lanes.get(number as usize) else {
                return Ok(true);
            };
            let lane_job = job.lanes.entry(number).or_insert_with(|| LaneJob {
                through: lane.spilled_through,
                next_file: lane.next_file,
                ..LaneJob::default()
            });
            let mut bytes = 0;
            for (seq, entry) in lane.entries.range(lane_job.through + 1..) {
                if entry.place.segment >= cut || bytes >= SPILL_PIECE_BYTES {
                    break;
                }
                bytes += u64::from(entry.place.len);
                batch.push((*seq, entry.place));
            }
            lane_job
        };
        if batch.is_empty() {
            self.close_spill(number, lane_job, false)?;
            return Ok(true);
        }
        let places: Vec<LogPlace> = batch.iter().map(|(_, p)| *p).collect();
        let encodings = self.log.read_many(&places)?;
        let mut buf = Vec::new();
        for ((seq, place), enc) in batch.into_iter().zip(encodings) {
            let Some(enc) = enc else {
                // Goes on behind it once its loss is durable and it has left the index.
                self.lose_in_log(number, seq);
                break;
            };
            let size = record::size(0, enc.len()) as u64;
            let used = lane_job
                .open
                .as_ref()
                .map(|(f, _)| f.len + buf.len() as u64);
            if used.is_some_and(|used| {
                used > FILE_HEADER && used + size > self.options.spill_file_bytes
            }) {
                append(lane_job, &mut buf)?;
                self.close_spill(number, lane_job, true)?;
            }
            if lane_job.open.is_none() {
                self.open_spill(number, lane_job, seq)?;
            }
            if let Some((file, _)) = &mut lane_job.open {
                if file.first_seq == 0 {
                    file.first_seq = seq;
                }
                file.last_seq = seq;
                record::append(&mut buf, self.stamp(file.salt, seq), &[], &enc, place.crc);
            }
            lane_job.through = seq;
        }
        let written = append(lane_job, &mut buf)?;
        self.count_written(written);
        Ok(false)
    }

    /// The lane's tail file, or a new one.
    fn open_spill(&mut self, number: u32, lane_job: &mut LaneJob, seq: u64) -> io::Result<()> {
        let tail = {
            let state = self.shared.state.lock();
            let lane = state.lanes.get(number as usize);
            let tail = lane
                .and_then(|l| l.files.back())
                .filter(|f| !f.sealed && f.last_seq < seq);
            tail.filter(|f| f.len < self.options.spill_file_bytes)
                .cloned()
        };
        if let Some(mut tail) = tail.filter(|_| lane_job.files.is_empty()) {
            match self
                .fs
                .open(&self.spill_path(number, tail.number), Open::Write)
            {
                Ok(handle) => {
                    // Books are made up when the checkpoint is written.
                    tail.index = Vec::new();
                    lane_job.open = Some((tail, handle));
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        let file_number = lane_job.next_file;
        lane_job.next_file += 1;
        lane_job.made.push(file_number);
        lane_job.open = Some(self.create_spill(number, file_number)?);
        Ok(())
    }

    fn close_spill(&mut self, number: u32, lane_job: &mut LaneJob, sealed: bool) -> io::Result<()> {
        let Some((mut file, mut handle)) = lane_job.open.take() else {
            return Ok(());
        };
        if self.planted != Some(Planted::SpillNotSynced) {
            handle.sync()?;
        }
        if lane_job.made.contains(&file.number) {
            self.sync_lane_dir(number)?;
        }
        file.sealed |= sealed;
        lane_job.files.push(file);
        Ok(())
    }

    fn sync_lane_dir(&self, number: u32) -> io::Result<()> {
        if self.planted == Some(Planted::SpillDirNotSynced) {
            return Ok(());
        }
        self.fs.sync_dir(&self.lane_dir(number))?;
        self.fs.sync_dir(&self.dir.join("lanes"))
    }

    /// A lane's spill failed: its new files go, its tail is not appended to again, the log keeps its writes.
    fn discard_lane(&mut self, job: &mut Job, number: u32) {
        let Some(lane_job) = job.lanes.remove(&number) else {
            return;
        };
        self.give_up(number, &lane_job);
        for file in lane_job.made {
            // No checkpoint was ever asked to name it.
            let path = self.spill_path(number, file);
            if self.fs.remove(&path).is_err() {
                self.garbage.push(path);
            }
        }
    }

    fn give_up(&mut self, number: u32, lane_job: &LaneJob) {
        let mut state = self.shared.state.lock();
        let lane = state.lane_mut(number);
        lane.next_file = lane.next_file.max(lane_job.next_file);
        let touched = |n: u64| {
            lane_job
                .files
                .iter()
                .chain(lane_job.open.iter().map(|(f, _)| f))
                .any(|f| f.number == n)
        };
        if let Some(tail) = lane.files.back_mut().filter(|f| touched(f.number)) {
            tail.sealed = true;
        }
    }

    /// Lanes with files worth copying forward.
    fn sparse_lanes(&self, job: &Job) -> VecDeque<u32> {
        let state = self.shared.state.lock();
        (0u32..)
            .zip(&state.lanes)
            .filter(|(n, lane)| {
                let touched = |f: &SpillFile| {
                    job.lanes
                        .get(n)
                        .is_some_and(|j| j.files.iter().any(|t| t.number == f.number))
                };
                lane.files
                    .iter()
                    .any(|f| f.live > 0 && f.is_sparse() && f.len > FILE_HEADER && !touched(f))
            })
            .map(|(n, _)| n)
            .collect()
    }

    /// Copies one run of neighbouring sparse files into a new file.
    fn compact_some(&mut self, job: &mut Job, number: u32) -> io::Result<()> {
        let (run, next_file, through) = {
            let state = self.shared.state.lock();
            let Some(lane) = state.lanes.get(number as usize) else {
                return Ok(());
            };
            let touched: Vec<u64> = job
                .lanes
                .get(&number)
                .map(|j| j.files.iter().map(|f| f.number).collect())
                .unwrap_or_default();
            let mut run: Vec<SpillFile> = Vec::new();
            let mut bytes = 0;
            for file in &lane.files {
                let fits = bytes + file.live_physical <= self.options.spill_file_bytes;
                if file.is_sparse() && fits && !touched.contains(&file.number) {
                    bytes += file.live_physical;
                    run.push(file.clone());
                } else if !run.is_empty() {
                    break;
                }
            }
            (run, lane.next_file, lane.spilled_through)
        };
        if run.iter().all(|f| f.live == 0) {
            return Ok(());
        }
        let lane_job = job.lanes.entry(number).or_insert_with(|| LaneJob {
            through,
            next_file,
            ..LaneJob::default()
        });
        let made = lane_job.next_file;
        lane_job.next_file += 1;
        lane_job.made.push(made);
        let (mut out, mut handle) = self.create_spill(number, made)?;
        let mut buf = Vec::new();
        for file in &run {
            let old = self
                .fs
                .open(&self.spill_path(number, file.number), Open::Read)?;
            let mut walk = Walk::new(old.as_ref(), file.salt, file.len, FILE_HEADER);
            let mut copied = 0;
            while let Some(step) = walk.next()? {
                let Step::Record { seq, enc, .. } = step else {
                    continue;
                };
                let wanted = {
                    let state = self.shared.state.lock();
                    state.is_pending(number, seq)
                };
                let wanted = wanted
                    && !(self.planted == Some(Planted::CompactionDropsLive) && copied % 8 == 7);
                if wanted {
                    copied += 1;
                    let crc = crc32c::crc32c(&enc);
                    record::append(&mut buf, self.stamp(out.salt, seq), &[], &enc, crc);
                }
            }
            if copied < file.live && self.planted.is_none() {
                // Something is missing from the old file. Reading it for a fetch will count what.
                self.lose_in_spill(number, file.number)?;
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a spill file is damaged",
                ));
            }
        }
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Ok(());
        };
        (out.first_seq, out.last_seq, out.sealed) = (first.first_seq, last.last_seq, true);
        handle.allocate(out.len, buf.len() as u64)?;
        write_all_at(handle.as_mut(), &buf, out.len)?;
        out.len += buf.len() as u64;
        handle.sync()?;
        self.sync_lane_dir(number)?;
        self.count_written(buf.len() as u64);
        if let Some(lane_job) = job.lanes.get_mut(&number) {
            lane_job
                .compacted
                .push((out, run.iter().map(|f| f.number).collect()));
        }
        Ok(())
    }

    pub(crate) fn key_path(&self, scope: u32, file: u64) -> PathBuf {
        self.dir
            .join("keys")
            .join(format!("{scope:08x}"))
            .join(format!("{file:016x}.keys"))
    }

    /// Appends accepted keys to their buckets' files.
    fn save_keys(&mut self, job: &mut Job) -> io::Result<()> {
        let mut todo = Vec::new();
        {
            let mut state = self.shared.state.lock();
            for (number, scope) in (0u32..).zip(&mut state.scopes) {
                for bucket in &scope.buckets {
                    if !bucket.unsaved.is_empty() {
                        let file = bucket.file.filter(|_| !bucket.rewrite).unwrap_or_else(|| {
                            scope.next_file += 1;
                            KeyFile {
                                number: scope.next_file,
                                salt: 0,
                                len: 0,
                            }
                        });
                        todo.push((number, bucket.start_unix_ms, file, bucket.unsaved.clone()));
                    }
                }
            }
        }
        for (scope, start, mut file, rows) in todo {
            let path = self.key_path(scope, file.number);
            let dir = self.dir.join("keys").join(format!("{scope:08x}"));
            let made = file.len == 0;
            let mut handle = if made {
                self.fs.create_dir(&dir)?;
                file.salt = self.fs.entropy();
                if self.planted != Some(Planted::GarbageKept) {
                    self.garbage.retain(|p| *p != path);
                }
                let mut handle = match self.fs.open(&path, Open::Create) {
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                        self.fs.open(&path, Open::Write)?
                    }
                    other => other?,
                };
                let head = FileHead {
                    version: FORMAT_VERSION,
                    lane: scope,
                    number: file.number,
                    salt: file.salt,
                };
                write_all_at(handle.as_mut(), &encode_head(&head), 0)?;
                file.len = FILE_HEADER;
                handle
            } else {
                self.fs.open(&path, Open::Write)?
            };
            let mut buf = Vec::new();
            for rows in rows.chunks(KEY_ROWS) {
                let mut payload = Vec::new();
                for (key, body) in rows {
                    payload.put_u8(u8::from(body.is_some()));
                    payload.put_raw(key);
                    payload.put_raw(body.as_ref().map_or(&[], |b| &b[..]));
                }
                let crc = crc32c::crc32c(&payload);
                record::append(&mut buf, self.stamp(file.salt, 1), &[], &payload, crc);
            }
            handle.allocate(file.len, buf.len() as u64)?;
            write_all_at(handle.as_mut(), &buf, file.len)?;
            handle.sync()?;
            if made {
                self.fs.sync_dir(&dir)?;
                self.fs.sync_dir(&self.dir.join("keys"))?;
            }
            file.len += buf.len() as u64;
            self.count_written(buf.len() as u64);
            job.keys.insert((scope, start), (file, rows.len()));
        }
        Ok(())
    }

    /// Makes the checkpoint durable, then takes it into the books, cuts the log and unlinks what is done with.
    fn finish_checkpoint(&mut self, job: Job) {
        let (over, point, unlink, payload) = {
            let state = self.shared.state.lock();
            let (over, unlink) = overrides(&state, &job);
            let point = if job.keys_failed {
                self.point
            } else {
                self.replay_point(&state, &over)
            };
            let payload = encode(&state, &over, point, self.log.epoch, self.planted);
            (over, point, unlink, payload)
        };
        let unlink: Vec<PathBuf> = unlink
            .into_iter()
            .map(|(lane, file)| self.spill_path(lane, file))
            .collect();
        match self.planted {
            Some(Planted::UnlinkBeforeCheckpoint) => {
                unlink.iter().for_each(|p| drop(self.fs.remove(p)))
            }
            Some(Planted::LogCutBeforeCheckpoint) => self.log.free_before(point.segment),
            _ => {}
        }
        match self.slots.write(&payload) {
            Ok(written) => self.count_written(written),
            Err(e) => {
                self.abandon_checkpoint(job, &e);
                return;
            }
        }
        let mut dead = Vec::new();
        {
            let mut state = self.shared.state.lock();
            for (number, lane_over) in over.lanes {
                install_lane(&mut state, number, lane_over);
            }
            for ((scope, start), (file, rows)) in over.keys {
                let found = state
                    .scope_mut(scope)
                    .buckets
                    .iter_mut()
                    .find(|b| b.start_unix_ms == start);
                match found {
                    Some(bucket) => {
                        if let Some(old) = bucket.file.filter(|f| f.number != file.number) {
                            dead.push(self.key_path(scope, old.number));
                        }
                        bucket.file = Some(file);
                        bucket.rewrite = false;
                        bucket.unsaved.drain(..rows.min(bucket.unsaved.len()));
                    }
                    None => dead.push(self.key_path(scope, file.number)),
                }
            }
            for (number, scope) in (0u32..).zip(&mut state.scopes) {
                for file in scope.dead_files.drain(..) {
                    dead.push(self.key_path(number, file));
                }
            }
            state.totals.checkpoints += 1;
        }
        self.point = point;
        self.log.free_before(point.segment);
        self.losing.clear();
        let garbage = std::mem::take(&mut self.garbage);
        for path in unlink.into_iter().chain(dead).chain(garbage) {
            match self.fs.remove(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => self.garbage.push(path),
                _ => {}
            }
        }
        self.checkpoint_done();
        match job.failure {
            Some(why) => {
                if self.checkpoint_failed(why.clone()) {
                    tracing::warn!(target: "consign::buffer", "a checkpoint could not free the log: {why}");
                }
            }
            None => self.checkpoint_succeeded(),
        }
        self.shared.state.lock().room_appeared();
    }

    /// The checkpoint may or may not have reached the disk. Nothing it names is touched until another one is durable.
    fn abandon_checkpoint(&mut self, job: Job, why: &io::Error) {
        for (number, lane_job) in &job.lanes {
            self.give_up(*number, lane_job);
            for file in &lane_job.made {
                self.garbage.push(self.spill_path(*number, *file));
            }
        }
        let mut state = self.shared.state.lock();
        for ((scope, start), (file, _)) in &job.keys {
            let scope = state.scope_mut(*scope);
            let mut made = Vec::new();
            if let Some(bucket) = scope.buckets.iter_mut().find(|b| b.start_unix_ms == *start) {
                if bucket.file.is_none_or(|f| f.number != file.number) {
                    made.push(file.number);
                }
                bucket.rewrite = true;
                let mut rows: Vec<_> = bucket.keys.iter().map(|(k, b)| (*k, *b)).collect();
                rows.sort_unstable();
                bucket.unsaved = rows;
            }
            scope.dead_files.extend(made);
        }
        state.reclaim = true;
        drop(state);
        let why = format!("writing a checkpoint: {why}");
        if self.checkpoint_failed(why.clone()) {
            tracing::warn!(target: "consign::buffer", "a checkpoint failed: {why}");
        }
    }

    /// The oldest segment that still holds a pending write, or the end of the log.
    fn replay_point(&self, state: &crate::state::State, over: &Overrides) -> LogPoint {
        let mut oldest: Option<u64> = None;
        for (number, lane) in (0u32..).zip(&state.lanes) {
            let through = over
                .lanes
                .get(&number)
                .map_or(lane.spilled_through, |o| o.through);
            if let Some((_, entry)) = lane.entries.range(through + 1..).next() {
                let segment = entry.place.segment;
                oldest = Some(oldest.map_or(segment, |o| o.min(segment)));
            }
        }
        let Some(segment) = oldest else {
            return self.log.point();
        };
        let header = self
            .log
            .live
            .iter()
            .map(|l| l.header)
            .find(|h| h.number == segment);
        match header {
            Some(header) if segment > self.point.segment => LogPoint {
                segment,
                offset: SEGMENT_HEADER,
                seq: header.first_seq,
            },
            _ => self.point,
        }
    }
}

/// Writes what has gathered for the open file.
fn append(lane_job: &mut LaneJob, buf: &mut Vec<u8>) -> io::Result<u64> {
    let Some((file, handle)) = &mut lane_job.open else {
        return Ok(0);
    };
    let bytes = buf.len() as u64;
    if bytes > 0 {
        handle.allocate(file.len, bytes)?;
        write_all_at(handle.as_mut(), buf, file.len)?;
        file.len += bytes;
        buf.clear();
    }
    Ok(bytes)
}

/// The lanes' files as they will be, and which files are then done with.
fn overrides(state: &crate::state::State, job: &Job) -> (Overrides, Vec<(u32, u64)>) {
    let mut over = Overrides {
        lanes: BTreeMap::new(),
        keys: job.keys.clone(),
    };
    let mut unlink = Vec::new();
    let idle = LaneJob::default();
    for (number, lane) in (0u32..).zip(&state.lanes) {
        let lane_job = job.lanes.get(&number);
        let dead = lane.files.iter().any(|f| f.live == 0);
        if lane_job.is_none() && !dead {
            continue;
        }
        let through = lane_job.map_or(lane.spilled_through, |j| j.through);
        let next_file = lane_job.map_or(lane.next_file, |j| j.next_file.max(lane.next_file));
        let lane_job = lane_job.unwrap_or(&idle);
        let mut files = lane.files.clone();
        for (new, old) in &lane_job.compacted {
            let mut new = new.clone();
            let at = files
                .iter()
                .position(|f| old.contains(&f.number))
                .unwrap_or(0);
            for file in files.iter().filter(|f| old.contains(&f.number)) {
                new.live += file.live;
                new.live_charge += file.live_charge;
                new.live_physical += file.live_physical;
                for (lane, charge) in &file.held {
                    *new.held.entry(*lane).or_default() += charge;
                }
            }
            files.retain(|f| !old.contains(&f.number));
            files.insert(at.min(files.len()), new);
            unlink.extend(old.iter().map(|n| (number, *n)));
        }
        for touched in &lane_job.files {
            match files.iter_mut().find(|f| f.number == touched.number) {
                Some(file) => {
                    (file.len, file.last_seq, file.sealed) =
                        (touched.len, touched.last_seq, touched.sealed)
                }
                None => files.push_back(touched.clone()),
            }
        }
        // Writes that settled after they were spilled are in the file, but not on its books.
        for (seq, entry) in lane.entries.range(..=through) {
            let at = files.partition_point(|f| f.last_seq < *seq);
            if let Some(file) = files.get_mut(at) {
                let none = Held::new();
                let held = entry.held.as_deref().unwrap_or(&none);
                let forget = state.planted == Some(Planted::ChildrenForgottenOnSpill);
                file.put_on(entry.charge, if forget { &none } else { held });
            }
        }
        files.retain(|f| {
            if f.live == 0 {
                unlink.push((number, f.number));
            }
            f.live > 0
        });
        over.lanes.insert(
            number,
            LaneOverride {
                files,
                through,
                next_file,
            },
        );
    }
    (over, unlink)
}

/// Takes a durable spill into the books: the writes leave the log's index.
fn install_lane(state: &mut crate::state::State, number: u32, over: LaneOverride) {
    let spilled: Vec<u64> = state
        .lane_mut(number)
        .entries
        .range(..=over.through)
        .map(|(s, _)| *s)
        .collect();
    for seq in spilled {
        if let Some(entry) = state.drop_entry(number, seq)
            && entry.fetched
        {
            let meta = crate::lane::SpilledMeta {
                charge: entry.charge,
                held: entry.held,
            };
            state.lane_mut(number).spilled.insert(seq, meta);
        }
    }
    let lane = state.lane_mut(number);
    lane.files = over.files;
    lane.spilled_through = over.through;
    lane.next_file = over.next_file;
}
