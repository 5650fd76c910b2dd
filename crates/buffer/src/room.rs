//! Room: when a checkpoint is due, what is kept free of the log, and what happens while the disk is full.

use std::io;

use crate::api::Health;
use crate::core::Core;
use crate::error::BufferError;
use crate::group::Done;

/// After a failed checkpoint (a full disk) the next attempt waits this long.
pub(crate) const RETRY_CHECKPOINT_MS: u64 = 100;
/// While they go on failing the wait grows to this: an attempt may write as much as the log holds.
const MAX_RETRY_CHECKPOINT_MS: u64 = 800;
/// Checkpoints made only to give back spill files are this far apart.
const RECLAIM_EVERY_MS: u64 = 1000;

impl Core {
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

    /// Begins the next segment if one is free.
    pub(crate) fn rotate(&mut self) -> bool {
        match self.log.rotate(self.fs.entropy()) {
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
    pub(crate) fn watch_room(&mut self) {
        // On a file system that needs space even to overwrite; with acceptances refused nothing else would try again.
        // Not before a group that is stalled: it was made for the segment in use, and would not check in another.
        if self.rotate_failed.is_some()
            && self.stalled.is_none()
            && self.now.mono_ms >= self.next_rotate_ms
        {
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
    pub(crate) fn refuse_while_full(&mut self) {
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
}

/// Whether an error says that there is no space.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
