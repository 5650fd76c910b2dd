//! Rules 2 and 4: what a write that may have been applied may still do.

use crate::config::{LaneConfig, OnAmbiguous, OnWindowPassed, Repeat};
use crate::event::EventCode;
use crate::ids::LaneId;
use crate::lane::{Lane, MaybeAge, Pending, Phase};
use crate::machine::Delivery;
use crate::note::WriteNote;
use crate::output::ParkReason;
use crate::planted::Bug;

/// What a repeat of a maybe-applied write comes to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepeatNow {
    /// The destination drops it.
    Free,
    /// The destination dropped it until the window passed just now.
    JustPassed,
    /// A second copy.
    Copy,
}

impl Lane {
    /// What a repeat of this write comes to.
    pub(crate) fn repeat_now(&self, write: &Pending, now_ms: u64) -> RepeatNow {
        let Repeat::Dropped {
            window_ms,
            margin_ms,
            ..
        } = self.cfg.repeat
        else {
            return RepeatNow::Copy;
        };
        if self.contradicted || write.note.has(WriteNote::WINDOW_PASSED) {
            return RepeatNow::Copy;
        }
        let Some(window_ms) = self.narrowest(window_ms) else {
            return RepeatNow::Free;
        };
        if write.maybe_age_ms(now_ms) >= window_ms.saturating_sub(margin_ms) {
            RepeatNow::JustPassed
        } else {
            RepeatNow::Free
        }
    }

    /// The window as declared or as inspected, whichever is shorter.
    fn narrowest(&self, declared_ms: Option<u64>) -> Option<u64> {
        match (declared_ms, self.inspected_window_ms) {
            (Some(declared), Some(found)) => Some(declared.min(found)),
            (declared, found) => declared.or(found),
        }
    }

    /// How long the destination recognises a repeat; `None` where it does for ever or never does.
    pub(crate) fn window_ms(&self) -> Option<u64> {
        match self.cfg.repeat {
            Repeat::Dropped { window_ms, .. } if !self.contradicted => self.narrowest(window_ms),
            _ => None,
        }
    }
}

impl Pending {
    /// How long ago it may have been applied first; the longest time there is when nobody knows.
    fn maybe_age_ms(&self, now_ms: u64) -> u64 {
        self.maybe_age.map_or(u64::MAX, |age| {
            age.age_ms.saturating_add(now_ms.saturating_sub(age.at_ms))
        })
    }
}

fn on_window_passed(cfg: &LaneConfig) -> OnWindowPassed {
    match cfg.repeat {
        Repeat::Dropped {
            on_window_passed, ..
        } => on_window_passed,
        _ => OnWindowPassed::Resend,
    }
}

impl Delivery {
    /// Whether this write may go right now. One that may have been applied is checked against its
    /// window, and its resend is noted before it goes; then `false`, and it has left `ready`.
    pub(crate) fn admit(&mut self, id: LaneId, seq: u64) -> bool {
        let now_ms = self.now_ms;
        let Some(lane) = self.lanes.get_mut(&id) else {
            return false;
        };
        let Some(write) = lane.writes.get(&seq) else {
            return false;
        };
        if !write.is_maybe() {
            return true;
        }
        let volatile = lane.is_volatile();
        match lane.repeat_now(write, now_ms) {
            RepeatNow::JustPassed if self.planted == Some(Bug::IgnoresWindow) => true,
            RepeatNow::Free => !lane.inspecting,
            RepeatNow::Copy if volatile || write.note.spent_resends > 0 => true,
            RepeatNow::Copy => {
                self.note_resend(id, seq);
                false
            }
            RepeatNow::JustPassed => {
                let park = on_window_passed(&lane.cfg) == OnWindowPassed::Park;
                if let Some(write) = lane.writes.get_mut(&seq) {
                    write.note.set(WriteNote::WINDOW_PASSED, true);
                }
                self.lane_event(
                    EventCode::WindowPassed,
                    id,
                    seq,
                    "it may have been applied and the destination may no longer recognise a repeat",
                );
                if park {
                    self.finish(id, seq, ParkReason::WindowPassed);
                    return false;
                }
                self.note_resend(id, seq);
                volatile
            }
        }
    }

    /// A write is delivered, and not as a repeat. Left in time, its resend may have reached the
    /// destination after the window all the same: then it may be a second copy, which is told.
    pub(crate) fn check_window(&mut self, id: LaneId, seq: u64) {
        let now_ms = self.now_ms;
        let late = self.lanes.get(&id).is_some_and(|lane| {
            let window_ms = lane.window_ms();
            lane.writes.get(&seq).is_some_and(|write| {
                write.resend
                    && !write.note.has(WriteNote::WINDOW_PASSED)
                    && window_ms.is_some_and(|window_ms| write.maybe_age_ms(now_ms) >= window_ms)
            })
        });
        if late {
            self.tell_late_repeat(id, seq);
        }
    }

    pub(crate) fn tell_late_repeat(&mut self, id: LaneId, seq: u64) {
        self.lane_event(
            EventCode::WindowPassed,
            id,
            seq,
            "a resend that left inside the window was answered after it: it may be a second copy",
        );
    }

    /// Notes one more resend; the write waits until that is durable.
    fn note_resend(&mut self, id: LaneId, seq: u64) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            if let Some(write) = lane.writes.get_mut(&seq) {
                write.note.spent_resends = write.note.spent_resends.saturating_add(1);
            }
            lane.mark_note(seq);
        }
        self.touch(id);
    }

    /// An attempt of this write may have been applied. `false` when that ends or holds the write.
    pub(crate) fn maybe_applied(
        &mut self,
        id: LaneId,
        seq: u64,
        sent_ms: u64,
        sent_unix_ms: u64,
    ) -> bool {
        let (now_ms, mark) = (self.now_ms, self.mark);
        let Some(lane) = self.lanes.get_mut(&id) else {
            return false;
        };
        let Some(target) = self.targets.get_mut(&lane.target) else {
            return false;
        };
        target.interrupt();
        let interruption = target.interruption;
        let Some(write) = lane.writes.get_mut(&seq) else {
            return false;
        };
        let first = !write.is_maybe();
        if first {
            write.note.first_maybe_unix_ms = sent_unix_ms.max(1);
            write.maybe_age = Some(MaybeAge {
                at_ms: now_ms,
                age_ms: now_ms.saturating_sub(sent_ms),
            });
        }
        let repeat = lane
            .writes
            .get(&seq)
            .map_or(RepeatNow::Copy, |write| lane.repeat_now(write, now_ms));
        let on_ambiguous = lane.cfg.on_ambiguous;
        let Some(write) = lane.writes.get_mut(&seq) else {
            return false;
        };
        if repeat != RepeatNow::Copy {
            if first {
                lane.mark_note(seq);
                self.touch(id);
            }
            return true;
        }
        let was_resend = write.resend && self.planted != Some(Bug::ResendsWithoutBound);
        let exhausted = was_resend
            && write
                .resent_in
                .is_some_and(|charged| charged == u64::MAX || charged == interruption);
        if was_resend && on_ambiguous != OnAmbiguous::Retry {
            write.note.set(WriteNote::AMBIGUOUS, true);
            target.ambiguous.insert((id, seq), mark);
        }
        match on_ambiguous {
            OnAmbiguous::Park if exhausted => {
                self.finish(id, seq, ParkReason::MayHaveLanded);
                return false;
            }
            OnAmbiguous::Hold if exhausted => {
                lane.stuck.insert(seq);
                lane.set_phase(seq, Phase::Held);
                lane.mark_note(seq);
                self.touch(id);
                self.lane_event(
                    EventCode::AmbiguousHeld,
                    id,
                    seq,
                    "its resend may have landed, too: held until another write is delivered or a person decides",
                );
                return false;
            }
            _ => {}
        }
        write.note.spent_resends = write.note.spent_resends.saturating_add(1);
        lane.mark_note(seq);
        self.touch(id);
        true
    }

    /// Takes up what is known of a fetched write that may have been applied.
    pub(crate) fn load_maybe(&mut self, id: LaneId, seq: u64, maybe_since_unix_ms: Option<u64>) {
        let (now_ms, wall_unix_ms) = (self.now_ms, self.wall_unix_ms);
        let (back_ms, mark) = (self.clock_back_ms, self.mark);
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let (went_back, volatile) = (lane.clock_went_back, lane.is_volatile());
        let Some(write) = lane.writes.get_mut(&seq) else {
            return;
        };
        let noted = (write.note.first_maybe_unix_ms != 0).then_some(write.note.first_maybe_unix_ms);
        let since = match (noted, maybe_since_unix_ms) {
            (Some(noted), Some(since)) => noted.min(since.max(1)),
            (Some(noted), None) => noted,
            (None, Some(since)) => since.max(1),
            (None, None) => return,
        };
        let passed = went_back || since > wall_unix_ms;
        write.maybe_age = (!passed).then(|| MaybeAge {
            at_ms: now_ms,
            age_ms: wall_unix_ms.saturating_sub(since).saturating_add(back_ms),
        });
        write.note.first_maybe_unix_ms = since;
        let ambiguous = write.note.has(WriteNote::AMBIGUOUS);
        let mut changed = noted.is_none();
        if volatile || noted.is_some() {
            // Its resend may have been spent before the restart: the interruption may be the same.
            write.resent_in = Some(u64::MAX);
        }
        let copies = lane.writes.get(&seq).is_some_and(|write| {
            write.note.spent_resends == 0 && lane.repeat_now(write, now_ms) == RepeatNow::Copy
        });
        if copies {
            if let Some(write) = lane.writes.get_mut(&seq) {
                write.note.spent_resends = 1;
            }
            changed = true;
        }
        if changed {
            lane.mark_note(seq);
        }
        if ambiguous && lane.cfg.on_ambiguous != OnAmbiguous::Retry {
            if let Some(target) = self.targets.get_mut(&lane.target) {
                target.ambiguous.insert((id, seq), mark);
            }
            if lane.cfg.on_ambiguous == OnAmbiguous::Park {
                self.finish(id, seq, ParkReason::MayHaveLanded);
            } else {
                lane.stuck.insert(seq);
                lane.set_phase(seq, Phase::Held);
                self.lane_event(
                    EventCode::AmbiguousHeld,
                    id,
                    seq,
                    "it was held before the restart",
                );
            }
        }
    }
}
