//! The core: takes queued operations, commits them in groups, advances a checkpoint, serves reads. It has no thread and
//! no clock of its own; [`Core::step`] is called by the committing thread, or by the simulation.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::api::{Health, LOST, LaneId, Options, Settlement};
use crate::checkpoint::Slots;
use crate::error::BufferError;
use crate::fs::{FileHandle, Filesystem};
use crate::group::{Done, Group, Prepared};
use crate::items::{self, Held, Item};
use crate::job::Job;
use crate::log::{Log, LogPoint};
use crate::planted::Planted;
use crate::shared::{AcceptOp, Answer, Op, Shared};
use crate::state::{Applied, Books};

/// The most bytes one group holds: beyond it, waiting longer costs more than another flush.
pub(crate) const MAX_GROUP_BYTES: u64 = 4 << 20;
/// After a failed checkpoint (a full disk) the next attempt waits this long.
pub(crate) const RETRY_CHECKPOINT_MS: u64 = 100;
/// While they go on failing the wait grows to this: an attempt may write as much as the log holds.
const MAX_RETRY_CHECKPOINT_MS: u64 = 800;
/// Checkpoints made only to give back spill files are this far apart.
const RECLAIM_EVERY_MS: u64 = 1000;

/// Groups in which a verification takes the losses it found into its books.
const MAX_LOSS_STEPS: usize = 10_000;

/// Time as the driver sees it.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic milliseconds.
    pub mono_ms: u64,
    /// Wall clock.
    pub unix_ms: u64,
}

/// What a step leaves to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stepped {
    /// Call again at once: a checkpoint is under way or work waits.
    pub more: bool,
    /// Acceptances in the last group.
    pub group: usize,
    /// The buffer is closed; do not call again.
    pub closed: bool,
}

/// The committing side of a buffer.
pub struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) fs: Arc<dyn Filesystem>,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) log: Log,
    pub(crate) slots: Slots,
    /// Replay begins here, as the last durable checkpoint says.
    pub(crate) point: LogPoint,
    /// The next number of each lane, ahead of the state by the group being made.
    pub(crate) assign: Vec<u64>,
    pub(crate) accepts: VecDeque<AcceptOp>,
    pub(crate) others: VecDeque<Op>,
    pub(crate) fetches: VecDeque<Op>,
    /// Made, but did not fit the last group.
    pub(crate) prepared: Option<Prepared>,
    /// Written in part: the log's file system had no space. Tried again as it is.
    pub(crate) stalled: Option<Group>,
    pub(crate) job: Option<Job>,
    pub(crate) now: Now,
    pub(crate) next_checkpoint_ms: u64,
    pub(crate) next_reclaim_ms: u64,
    /// A checkpoint must be made soon whatever the log's room: after damage and after a purge.
    pub(crate) checkpoint_wanted: bool,
    /// Parents whose dependents are being released or dropped by a record that has not taken effect.
    pub(crate) releasing: BTreeSet<(u32, u64)>,
    /// Spill files whose losses are recorded already.
    pub(crate) losing: BTreeSet<(u32, u64)>,
    /// Writes in the log whose losses are recorded already.
    pub(crate) losing_in_log: BTreeSet<(u32, u64)>,
    /// Files to unlink once another checkpoint is durable.
    pub(crate) garbage: Vec<PathBuf>,
    /// Why the last checkpoint could not free the log.
    pub(crate) last_failure: Option<String>,
    /// Why nothing is accepted while the disk is full, as the state has it.
    pub(crate) full: Option<String>,
    /// A segment could not be begun for want of space, and what the disk answered.
    pub(crate) rotate_failed: Option<String>,
    /// When that is tried again.
    pub(crate) next_rotate_ms: u64,
    /// What the disk answered to the group that is stalled.
    pub(crate) stalled_why: Option<String>,
    /// When the next attempt follows a failed checkpoint; doubled each time.
    pub(crate) retry_ms: u64,
    /// Copying spill files forward failed, and that was said.
    pub(crate) compaction_failed: bool,
    pub(crate) closing: Option<Answer<()>>,
    pub(crate) failed: bool,
    pub(crate) planted: Option<Planted>,
    pub(crate) _lock: Box<dyn Send + Sync>,
}

impl Core {
    /// Does what there is to do once: one group, one piece of a checkpoint, the waiting reads.
    pub fn step(&mut self, now: Now) -> Stepped {
        self.now = now;
        for op in self.shared.take() {
            match op {
                Op::Accept(op) => self.accepts.push_back(*op),
                Op::Fetch { .. } | Op::Children { .. } => self.fetches.push_back(op),
                Op::Close { answer } => self.closing = Some(answer),
                other => self.others.push_back(other),
            }
        }
        if self.failed {
            return Stepped {
                more: false,
                group: 0,
                closed: self.close_failed(),
            };
        }
        let group = self.commit_group();
        let mut busy = group > 0;
        if !self.failed {
            busy |= self.advance_checkpoint();
        }
        self.serve_fetches();
        if !self.failed {
            self.watch_room();
        }
        if !self.failed {
            self.refuse_while_full();
        }
        let closed = self.close_when_drained();
        Stepped {
            more: busy,
            group,
            closed,
        }
    }

    fn serve_fetches(&mut self) {
        while let Some(op) = self.fetches.pop_front() {
            match op {
                Op::Fetch {
                    lane,
                    after_seq,
                    max_writes,
                    max_bytes,
                    answer,
                } => {
                    let result = if self.failed {
                        Err(self.stop_reason())
                    } else {
                        self.fetch(lane.0, after_seq, max_writes, max_bytes)
                    };
                    let _ = answer.send(result);
                }
                Op::Children { lane, seq, answer } => {
                    let result = if self.failed {
                        Err(self.stop_reason())
                    } else {
                        self.children(lane.0, seq)
                    };
                    let _ = answer.send(result);
                }
                _ => {}
            }
        }
    }

    fn stop_reason(&self) -> BufferError {
        self.shared
            .state
            .lock()
            .stopped
            .clone()
            .unwrap_or(BufferError::Closed)
    }

    fn close_failed(&mut self) -> bool {
        self.refuse_all();
        match self.closing.take() {
            Some(answer) => {
                let _ = answer.send(Err(self.stop_reason()));
                true
            }
            None => false,
        }
    }

    fn close_when_drained(&mut self) -> bool {
        if self.closing.is_none() {
            return false;
        }
        if self.failed {
            return self.close_failed();
        }
        // A full log can keep acceptances waiting for ever; they were never acknowledged and are refused.
        let drained = self.others.is_empty()
            && self.prepared.is_none()
            && self.stalled.is_none()
            && (self.accepts.is_empty() || self.blocked());
        if !drained {
            return false;
        }
        let mut payload = Vec::new();
        items::put_item(&mut payload, &Item::Clean);
        let mark = Prepared::items(payload, Done::Nothing);
        let mut group = Group::default();
        let fits = mark.size() <= self.log.remaining() || self.rotate();
        if fits && !self.failed {
            self.put(&mut group, mark);
            self.write_group(group);
        }
        if self.stalled.is_some() && !self.failed {
            // No space to write even that. It is tried again, and another mark after it does no harm.
            return false;
        }
        let result = match (self.failed, fits) {
            (true, _) => Err(self.stop_reason()),
            (false, false) => Err(BufferError::Failed(
                "the log had no room for the clean mark".into(),
            )),
            (false, true) => Ok(()),
        };
        self.shared.stop(BufferError::Closed, Health::Closed);
        self.failed = true;
        self.refuse_all();
        if let Some(answer) = self.closing.take() {
            let _ = answer.send(result);
        }
        true
    }

    /// Whether acceptances cannot go on until a checkpoint has freed a segment: the next one would have to come out
    /// of the reserve.
    pub(crate) fn blocked(&self) -> bool {
        self.log.free_slots() <= self.reserve_slots() || self.stalled.is_some()
    }

    /// Segments kept for settlements, parks and frontiers: a quarter of the log. A settlement takes a fraction of
    /// what its write took, so this outlasts what the other three quarters can hold.
    pub(crate) fn reserve_slots(&self) -> usize {
        (self.log.slots.len() / 4).max(1)
    }

    /// The log failed. Nothing is tried again in this run: what a failed flush left behind is unknowable.
    pub(crate) fn fail(&mut self, what: &str, why: &io::Error) {
        self.failed = true;
        self.job = None;
        let why = format!("{what}: {why}");
        tracing::error!(target: "consign::buffer", "the log failed and nothing more is accepted: {why}");
        self.shared
            .stop(BufferError::Failed(why.clone()), Health::Failed { why });
        self.refuse_all();
    }

    fn refuse_all(&mut self) {
        let why = self.stop_reason();
        let late = self.shared.take();
        let mut accepts: Vec<AcceptOp> = self.accepts.drain(..).collect();
        let mut others: Vec<Op> = self
            .others
            .drain(..)
            .chain(self.fetches.drain(..))
            .collect();
        for op in late {
            match op {
                Op::Accept(op) => accepts.push(*op),
                Op::Close { answer } => self.closing = Some(answer),
                other => others.push(other),
            }
        }
        let mut done: Vec<Done> = self.prepared.take().map(|p| p.done).into_iter().collect();
        done.extend(
            self.stalled
                .take()
                .into_iter()
                .flat_map(|g| g.records)
                .map(|r| r.done),
        );
        for op in accepts {
            done.push(Done::Accept {
                answer: op.answer,
                reserved: op.reserved,
                busy: op.busy,
                writes: Vec::new(),
            });
        }
        let mut state = self.shared.state.lock();
        let mut answers = Vec::new();
        for done in done {
            done.give_back(&mut state);
            answers.push(done);
        }
        drop(state);
        for done in answers {
            done.refuse(&why);
        }
        for op in others {
            match op {
                Op::Settle { answer, .. } => drop(answer.send(Err(why.clone()))),
                Op::Items { answer, .. } => drop(answer.map(|a| a.send(Err(why.clone())))),
                Op::Purge { answer, .. } => drop(answer.send(Err(why.clone()))),
                Op::Fetch { answer, .. } => drop(answer.send(Err(why.clone()))),
                Op::Children { answer, .. } => drop(answer.send(Err(why.clone()))),
                Op::Accept(_) | Op::Close { .. } => {}
            }
        }
    }

    /// Begins the next segment if one is free.
    pub(crate) fn rotate(&mut self) -> bool {
        let number = self.log.active_number() + 1;
        let salt = self.fs.entropy();
        match self.log.rotate(number, salt) {
            Ok(done) => {
                self.rotate_failed = None;
                if done {
                    self.count_written(crate::log::SEGMENT_HEADER);
                }
                done
            }
            Err(e) => {
                if is_full(&e) {
                    self.rotate_failed = Some(format!("beginning a log segment: {e}"));
                    return false;
                }
                self.fail("beginning a log segment", &e);
                false
            }
        }
    }

    pub(crate) fn count_written(&self, bytes: u64) {
        self.shared.state.lock().totals.written_bytes += bytes;
    }

    /// Makes settle items for the writes that are still pending, and the releases that go with them. What could not
    /// be read leaves nothing behind.
    pub(crate) fn settle_items(
        &mut self,
        settlements: &[Settlement],
        made: &mut SettleItems,
    ) -> io::Result<()> {
        let before = made.releases.len();
        for s in settlements {
            if let Err(e) = self.settle_one(s, made) {
                for parent in made.releases.drain(before..) {
                    self.releasing.remove(&parent);
                }
                return Err(e);
            }
        }
        Ok(())
    }

    fn settle_one(&mut self, s: &Settlement, made: &mut SettleItems) -> io::Result<()> {
        let (lane, seq) = (s.lane.0, s.seq);
        let meta = {
            let state = self.shared.state.lock();
            if !state.is_pending(lane, seq) {
                return Ok(());
            }
            state.meta(lane, seq)
        };
        let mut enc = None;
        let (charge, held) = match meta {
            Some(meta) => (meta.charge, meta.held.map(|h| *h).unwrap_or_default()),
            None => {
                enc = self.read_write(lane, seq)?;
                let Some(view) = enc.as_deref().and_then(items::parse_write) else {
                    // Lost: that is recorded by what found it.
                    made.passed_over = true;
                    return Ok(());
                };
                (view.charge(), view.held())
            }
        };
        let releases = s.release_children && !held.is_empty();
        if releases && enc.is_none() {
            enc = self.read_write(lane, seq)?;
        }
        if !held.is_empty() {
            if !self.releasing.insert((lane, seq)) {
                made.passed_over = true;
                return Ok(());
            }
            made.releases.push((lane, seq));
        }
        let charge = if self.planted == Some(Planted::SettleNotCharged) {
            0
        } else {
            charge
        };
        items::put_item(
            &mut made.payload,
            &Item::Settle {
                lane,
                seq,
                result: s.result,
                charge,
                held,
            },
        );
        let Some(enc) = enc.filter(|_| releases) else {
            return Ok(());
        };
        for child in items::parse_write(&enc)
            .map(|v| v.children)
            .unwrap_or_default()
        {
            if let Some(view) = items::parse_write(child) {
                items::put_write_enc(&mut made.payload, child);
                made.lanes.push(LaneId(view.lane));
                made.bodies.push(enc.slice_ref(view.body));
            }
        }
        Ok(())
    }

    /// A pending write in the log cannot be read back: it is settled as lost.
    pub(crate) fn lose_in_log(&mut self, lane: u32, seq: u64) {
        if !self.losing_in_log.insert((lane, seq)) {
            return;
        }
        {
            let mut state = self.shared.state.lock();
            state.lost.writes += 1;
            let id = state
                .lanes
                .get(lane as usize)
                .map(|l| l.id.clone())
                .unwrap_or_default();
            state.note_loss(format!(
                "lane {id}: write {seq} does not check in the log and is lost"
            ));
        }
        let settlements = vec![Settlement {
            lane: LaneId(lane),
            seq,
            result: LOST,
            release_children: false,
        }];
        let (answer, _) = tokio::sync::oneshot::channel();
        self.others.push_front(Op::Settle {
            settlements,
            answer,
        });
    }

    /// Has losses in a spill file made durable.
    pub(crate) fn record_loss(
        &mut self,
        lane: u32,
        file: u64,
        ranges: Vec<(u64, u64)>,
        books: Books,
        held: Held,
    ) {
        if ranges.is_empty() {
            return;
        }
        let Books {
            writes,
            charge,
            physical,
        } = books;
        let mut payload = Vec::new();
        items::put_item(
            &mut payload,
            &Item::Lost {
                lane,
                file,
                ranges,
                writes,
                charge,
                physical,
                held,
            },
        );
        // Before anything that waits, so that no settlement of a lost write comes between.
        self.others.push_front(Op::Items {
            payload,
            answer: None,
        });
    }

    /// Takes recorded losses into the books without a flush: for looking at a folder that is never written.
    pub(crate) fn settle_losses(&mut self) {
        for _ in 0..MAX_LOSS_STEPS {
            self.commit_group();
            if self.others.is_empty() && self.prepared.is_none() {
                return;
            }
        }
    }

    /// Copies bytes that do not check to `quarantine/`, for a person. Best effort: the loss is counted either way.
    pub(crate) fn quarantine(&self, file: &dyn FileHandle, name: &str, from: u64, to: u64) {
        crate::recovery::quarantine(
            self.fs.as_ref(),
            &self.dir,
            file,
            name,
            from,
            to,
            &mut self.shared.state.lock(),
        );
    }

    /// Why nothing can be accepted, while that is so: the log is down to its reserve and no checkpoint frees it.
    ///
    /// Once so it stays so until a checkpoint has gone through or half the log is free, and the first reason stands:
    /// between two attempts on a full disk nothing changes for anybody.
    fn why_full(&self) -> Option<String> {
        let before = self.full.clone();
        if let Some(why) = &self.stalled_why
            && self.stalled.is_some()
        {
            return before.or_else(|| Some(why.clone()));
        }
        if let Some(why) = &self.rotate_failed {
            return before.or_else(|| Some(why.clone()));
        }
        let why = self.job_failure()?;
        let short = match before {
            Some(_) => self.log.free_slots() <= self.log.slots.len() / 2,
            None => self.blocked(),
        };
        short.then(|| before.unwrap_or(why))
    }

    /// Tells sources when the disk is full, and when it no longer is.
    fn watch_room(&mut self) {
        // On a file system that needs space even to overwrite; with acceptances refused nothing else would try again.
        if self.rotate_failed.is_some() && self.now.mono_ms >= self.next_rotate_ms {
            self.next_rotate_ms = self.now.mono_ms + RETRY_CHECKPOINT_MS;
            if self.log.free_slots() > self.reserve_slots() {
                self.rotate();
            } else {
                self.rotate_failed = None;
            }
            if self.failed {
                return;
            }
        }
        let full = self.why_full();
        let changed = self.full != full;
        let mut state = self.shared.state.lock();
        state.totals.log_used_bytes = self.log.used_bytes();
        if changed {
            let health = full
                .clone()
                .map_or(Health::Running, |why| Health::Full { why });
            match &full {
                Some(why) => {
                    tracing::warn!(target: "consign::buffer", "the disk is full; nothing is accepted until there is room: {why}");
                }
                None => {
                    tracing::info!(target: "consign::buffer", "there is room on the disk again");
                }
            }
            state.health.send_replace(health);
            state.disk_full = full.clone();
            state.room_appeared();
        }
        drop(state);
        self.full = full;
    }

    /// While the disk is full no acceptance waits: all are refused, in order, so that none passes an earlier one.
    fn refuse_while_full(&mut self) {
        let Some(why) = self.full.clone() else {
            return;
        };
        let accepts = self.accepts.drain(..).map(|op| Done::Accept {
            answer: op.answer,
            reserved: op.reserved,
            busy: op.busy,
            writes: Vec::new(),
        });
        let mut refused: Vec<Done> = accepts.collect();
        // One that is made but in no group has no numbers yet.
        if let Some(prepared) = self
            .prepared
            .take_if(|p| matches!(p.done, Done::Accept { .. }))
        {
            for parent in &prepared.releases {
                self.releasing.remove(parent);
            }
            refused.insert(0, prepared.done);
        }
        if refused.is_empty() {
            return;
        }
        let mut state = self.shared.state.lock();
        refused.iter().for_each(|done| done.give_back(&mut state));
        drop(state);
        let why = BufferError::DiskFull(why);
        refused.into_iter().for_each(|done| done.refuse(&why));
    }

    /// Whether a checkpoint is due, and which segments it should free.
    pub(crate) fn checkpoint_due(&self) -> Option<u64> {
        let (mono_ms, active) = (self.now.mono_ms, self.log.active_number());
        if mono_ms < self.next_checkpoint_ms {
            return None;
        }
        let state = self.shared.state.lock();
        let slots = self.log.slots.len();
        if self.full.is_some() && self.last_failure.is_some() {
            // Whatever the log looks like by now: only an attempt that goes through ends it.
            return Some(active);
        }
        // The youngest quarter of the log is left alone: most of its writes settle before they would be copied.
        let keep = (slots / 4) as u64;
        if self.log.free_slots() <= slots / 2 || self.checkpoint_wanted {
            let all = self.checkpoint_wanted || self.log.free_slots() <= self.reserve_slots();
            let cut = if all {
                active
            } else {
                active.saturating_sub(keep)
            };
            let oldest = self.log.live.front().map_or(active, |l| l.header.number);
            if self.checkpoint_wanted || oldest < cut {
                return Some(cut);
            }
        }
        if state.entries > self.options.log_entries {
            return Some(active + 1);
        }
        (state.reclaim && mono_ms >= self.next_reclaim_ms).then_some(0)
    }

    /// A checkpoint failed, or did not free what it should. True when the one before it did not.
    pub(crate) fn checkpoint_failed(&mut self, why: String) -> bool {
        self.next_checkpoint_ms = self.now.mono_ms + self.retry_ms;
        self.retry_ms = (self.retry_ms * 2).min(MAX_RETRY_CHECKPOINT_MS);
        self.shared.state.lock().totals.checkpoint_failures += 1;
        self.last_failure.replace(why).is_none()
    }

    /// A checkpoint went through whole.
    pub(crate) fn checkpoint_succeeded(&mut self) {
        self.retry_ms = RETRY_CHECKPOINT_MS;
        if self.last_failure.take().is_some() {
            tracing::info!(target: "consign::buffer", "checkpoints go through again");
        }
    }

    pub(crate) fn checkpoint_done(&mut self) {
        self.checkpoint_wanted = false;
        self.next_reclaim_ms = self.now.mono_ms + RECLAIM_EVERY_MS;
    }

    /// Makes the records of a durable group take effect and answers their callers.
    pub(crate) fn apply_group(&mut self, group: Group, base_offset: u64) {
        let mut state = self.shared.state.lock();
        let segment = self.log.active_number();
        state.totals.groups += 1;
        state.totals.written_bytes += group.bytes.len() as u64;
        let mut settled = false;
        for record in &group.records {
            state.totals.records += 1;
            let payload = group.bytes.get(record.payload.clone()).unwrap_or_default();
            let Some(items) = items::parse(payload, &record.numbers) else {
                continue;
            };
            settled |= items.iter().any(|i| {
                matches!(
                    i,
                    Item::Settle { .. } | Item::Purge { .. } | Item::Lost { .. }
                )
            });
            let at = Applied {
                segment,
                payload_offset: base_offset + record.payload.start as u64,
                bodies: &record.bodies,
            };
            state.apply(items, &at);
            record.done.give_back(&mut state);
        }
        if settled {
            state.room_appeared();
        }
        drop(state);
        for record in group.records {
            for parent in &record.releases {
                self.releasing.remove(parent);
            }
            record.done.answer();
        }
    }
}

/// Settlements on their way into a record.
#[derive(Debug, Default)]
pub(crate) struct SettleItems {
    pub(crate) payload: Vec<u8>,
    /// The lane of each released write, in order.
    pub(crate) lanes: Vec<LaneId>,
    pub(crate) bodies: Vec<Bytes>,
    /// Parents whose dependents are in this.
    pub(crate) releases: Vec<(u32, u64)>,
    /// Some are being settled by a record that is not durable yet.
    pub(crate) passed_over: bool,
}

/// Whether an error says that there is no space.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
