//! The end of a checkpoint: it becomes durable, and only then is the log cut and are files unlinked.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use crate::checkpoint::{LaneOverride, Overrides, Untold, encode};
use crate::core::Core;
use crate::job::{Job, LaneJob};
use crate::lane::SpilledMeta;
use crate::log::{Log, LogPoint, SEGMENT_HEADER};
use crate::planted::Planted;
use crate::room::RETRY_CHECKPOINT_MS;
use crate::state::State;
use crate::write::Held;

impl Core {
    /// Makes the checkpoint durable, then takes it into the books, cuts the log and unlinks what is done with.
    pub(crate) fn finish_checkpoint(&mut self, job: Job) {
        let (over, point, unlink, payload) = {
            let state = self.shared.state.lock();
            let (over, unlink) = overrides(&state, &job);
            let point = if job.keys_failed {
                self.point
            } else {
                self.replay_point(&state, &over)
            };
            let payload = encode(
                &state,
                &over,
                point,
                self.log.epoch,
                &self.log.sizes(),
                Untold::Nothing,
                self.planted,
            );
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
        // Those that were free before: this checkpoint says that their lengths may change.
        self.make_odd_slots();
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
        self.checkpoint_wanted = (0..self.log_segments()).any(|at| self.log.is_odd(at));
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

    fn log_segments(&self) -> usize {
        self.log.slots.len().min(self.options.log_segments as usize)
    }

    /// Gives the log the slots back that are of no use as they are.
    fn make_odd_slots(&mut self) {
        for at in 0..self.log_segments() {
            if !self.log.is_odd(at) {
                continue;
            }
            let bytes = self.log.segment_bytes;
            match Log::create_slot(self.fs.as_ref(), &self.dir, at, bytes) {
                Ok(made) => {
                    if let Some(slot) = self.log.slots.get_mut(at) {
                        *slot = made;
                    }
                }
                Err(e) => {
                    tracing::warn!(target: "consign::buffer", "a log file could not be made anew: {e}");
                    self.next_checkpoint_ms = self.now.mono_ms + RETRY_CHECKPOINT_MS;
                    return;
                }
            }
        }
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
                bucket.write_anew();
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
    fn replay_point(&self, state: &State, over: &Overrides) -> LogPoint {
        if self.planted == Some(Planted::CutTooFar) {
            return self.log.point();
        }
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

/// The lanes' files as they will be, and which files are then done with.
fn overrides(state: &State, job: &Job) -> (Overrides, Vec<(u32, u64)>) {
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
fn install_lane(state: &mut State, number: u32, over: LaneOverride) {
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
            let meta = SpilledMeta {
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
