//! The core: takes queued operations, commits them in groups, advances a checkpoint, serves reads. It has no thread and
//! no clock of its own; [`Core::step`] is called by the committing thread, or by the simulation.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::api::{Health, Options};
use crate::error::BufferError;
use crate::fs::{FileHandle, Filesystem};
use crate::group::{Done, Group, Prepared};
use crate::items::{self, Item};
use crate::job::Job;
use crate::log::{Log, LogPoint};
use crate::planted::Planted;
use crate::shared::{AcceptOp, Answer, Op, Shared};
use crate::slots::Slots;

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

    /// Whether anything waits for room or for its turn.
    pub(crate) fn waits(&self) -> bool {
        !self.accepts.is_empty()
            || !self.others.is_empty()
            || self.prepared.is_some()
            || self.stalled.is_some()
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

    pub(crate) fn count_written(&self, bytes: u64) {
        self.shared.state.lock().totals.written_bytes += bytes;
    }

    /// Copies bytes that do not check to `quarantine/`, for a person. Best effort: the loss is counted either way.
    pub(crate) fn quarantine(
        &self,
        file: (&dyn FileHandle, &Path),
        name: &str,
        from: u64,
        to: u64,
    ) {
        crate::salvage::quarantine(
            self.fs.as_ref(),
            &self.dir,
            file,
            name,
            from,
            to,
            &mut self.shared.state.lock(),
        );
    }
}
