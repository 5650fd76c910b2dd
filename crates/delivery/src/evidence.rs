//! Rule 1: poison is told from outage by evidence, and the policy that spends a write (rule 6).

use crate::event::EventCode;
use crate::ids::LaneId;
use crate::lane::Phase;
use crate::machine::{Delivery, Timer};
use crate::note::WriteNote;
use crate::output::ParkReason;

impl Delivery {
    /// A write of this target was delivered by a request sent at `sent_mark`: failures before that
    /// count, and its interruption is over.
    pub(crate) fn evidence(&mut self, number: u32, sent_mark: u64) {
        let Some(target) = self.targets.get_mut(&number) else {
            return;
        };
        target.interrupted = false;
        target.delivered_ms = Some(self.now_ms);
        target.vanished.clear();
        let clock = target.open_clock(self.now_ms);
        let mut judged = Vec::new();
        for (write, failures) in &mut target.suspects {
            if failures.first < sent_mark {
                // When others failed beside it, its last try may have met an outage.
                let alone = target.failing.keys().all(|other| other == write);
                judged.push((*write, failures.last < sent_mark, alone));
                failures.first = failures.last;
            }
        }
        target
            .suspects
            .retain(|_, failures| failures.last >= sent_mark);
        target.failing.retain(|_, mark| *mark >= sent_mark);
        for ((lane, seq), whole, alone) in judged {
            if whole {
                self.charge(lane, seq, clock, u32::MAX, alone);
            } else {
                // It failed again since that request left: one failure was before it for certain.
                self.charge(lane, seq, clock, 1, false);
            }
        }
        self.judge_ambiguous(number, sent_mark);
    }

    /// The network took a write at a target where nothing ever confirms. It is all that is ever known
    /// there: it ends the interruption and is the verdict on resends that were ambiguous, too, which
    /// would wait for ever else. It is no evidence that a failure was its write's own.
    pub(crate) fn taken(&mut self, number: u32, sent_mark: u64) {
        if let Some(target) = self.targets.get_mut(&number) {
            target.interrupted = false;
            target.vanished.clear();
        }
        self.judge_ambiguous(number, sent_mark);
    }

    /// Writes whose resend was ambiguous before this mark park: another write got through since.
    fn judge_ambiguous(&mut self, number: u32, sent_mark: u64) {
        let Some(target) = self.targets.get_mut(&number) else {
            return;
        };
        let ambiguous: Vec<(LaneId, u64)> = target
            .ambiguous
            .extract_if(.., |_, mark| *mark < sent_mark)
            .map(|(write, _)| write)
            .collect();
        for (id, seq) in ambiguous {
            let Some(write) = self
                .lanes
                .get_mut(&id)
                .and_then(|lane| lane.writes.get_mut(&seq))
            else {
                continue;
            };
            if matches!(write.phase, Phase::InFlight(_)) {
                // It is on its way once more: that answer decides.
                write.finish_on_failure = true;
            } else {
                self.finish(id, seq, ParkReason::MayHaveLanded);
            }
        }
    }

    /// At most `count` failures of one write count now; all of them may be the verdict on its last
    /// try, if it failed alone.
    fn charge(&mut self, id: LaneId, seq: u64, clock: u64, count: u32, alone: bool) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let policy = lane.cfg.policy;
        let volatile = lane.is_volatile();
        let mut hurries = false;
        let Some(write) = lane.writes.get_mut(&seq) else {
            return;
        };
        let note = &mut write.note;
        let charged = write.uncharged.min(count);
        note.attempts = note.attempts.saturating_add(charged);
        write.uncharged -= charged;
        if let Some(mark) = write.age_mark {
            note.open_gate_age_ms = note
                .open_gate_age_ms
                .saturating_add(clock.saturating_sub(mark));
            write.age_mark = Some(clock);
        }
        let too_old = write.is_too_old(&policy);
        let spent = write.is_spent(&policy);
        if write.phase != Phase::Held {
            lane.stuck.remove(&seq);
        }
        if write.last_try_failed && write.uncharged > 0 {
            // A later delivery tells about the last try.
        } else if write.last_try_failed && !alone {
            write.last_try_failed = false;
        } else if write.last_try_failed {
            let reason = if too_old {
                ParkReason::AgeSpent
            } else {
                ParkReason::AttemptsSpent
            };
            match write.phase {
                Phase::InFlight(_) => write.finish_on_failure = true,
                Phase::Asking => {}
                _ => {
                    self.finish(id, seq, reason);
                    return;
                }
            }
        } else if spent {
            // One last try, alone: a companion of its batch may have been the culprit.
            write.note.set(WriteNote::SPENT, true);
            write.alone = true;
            hurries = matches!(write.phase, Phase::Backoff { .. });
        }
        if hurries && let Some(lane) = self.lanes.get_mut(&id) {
            lane.set_phase(seq, Phase::Ready);
        }
        self.wake(id);
        if !volatile {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.mark_note(seq);
            }
            self.touch(id);
        }
        self.check_halt(id);
    }

    /// Where other order keys or lanes may tell, they get one backoff cap to do so before a trial.
    pub(crate) fn delay_trial(&mut self, id: LaneId) {
        let now_ms = self.now_ms;
        let others = self.others_may_tell(id)
            || self.lanes.get(&id).is_some_and(|lane| {
                lane.has_sound_in_flight() || lane.ready.iter().any(|seq| !lane.stuck.contains(seq))
            });
        if let Some(lane) = self.lanes.get_mut(&id)
            && others
            && lane.trial_at_ms <= now_ms
        {
            let at = now_ms.saturating_add(lane.cfg.policy.backoff.max_ms);
            lane.trial_at_ms = at;
            self.timers.insert((at, Timer::Trial(id)));
        }
    }

    /// Rule 1's report: one write fails and no other can tell whether it is the write or the target.
    pub(crate) fn check_halt(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get(&id) else {
            return;
        };
        if lane.stuck.is_empty() && lane.halted_on.is_none() {
            return;
        }
        let first = lane.stuck.first().copied();
        let alone = first.is_some()
            && lane.trial.is_none()
            && lane.next_untried().is_none()
            && lane.ready.iter().all(|seq| lane.stuck.contains(seq))
            && !lane.has_sound_in_flight()
            && !lane.fetching
            && lane.wants_fetch().is_none();
        let others = alone && self.others_may_tell(id);
        let number = lane.target;
        if let Some(target) = self.targets.get_mut(&number) {
            // Looked at again when the other lanes have been answered.
            if others {
                target.uneasy.insert(id);
            } else {
                target.uneasy.remove(&id);
            }
        }
        let alone = alone && !others;
        let before = self.lanes.get(&id).and_then(|lane| lane.halted_on);
        let after = if alone { first } else { None };
        if before.is_some() == after.is_some() {
            return;
        }
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.halted_on = after;
        }
        match (before, after) {
            (_, Some(seq)) => self.lane_event(
                EventCode::HaltedOnOneWrite,
                id,
                seq,
                "no other write can tell whether this one or the target is at fault",
            ),
            (Some(seq), None) => {
                self.lane_event(EventCode::HaltedOver, id, seq, "other writes can tell now");
            }
            (None, None) => {}
        }
    }

    /// The write a lane halted on may have left it by another way: expired, skipped, parked by the
    /// evidence of another lane.
    pub(crate) fn end_halt(&mut self, id: LaneId) {
        let gone = self.lanes.get(&id).is_some_and(|lane| {
            lane.halted_on
                .is_some_and(|seq| !lane.writes.contains_key(&seq))
        });
        if gone {
            self.check_halt(id);
        }
    }

    /// Whether another lane of the target has a write that may be delivered.
    fn others_may_tell(&self, id: LaneId) -> bool {
        let Some(target) = self
            .lanes
            .get(&id)
            .and_then(|lane| self.targets.get(&lane.target))
        else {
            return false;
        };
        target
            .lanes
            .iter()
            .filter(|other| **other != id)
            .any(|other| {
                self.lanes.get(other).is_some_and(|lane| {
                    !lane.paused
                        && (lane.has_sound_in_flight()
                            || lane.ready.iter().any(|seq| !lane.stuck.contains(seq)))
                })
            })
    }
}

impl crate::lane::Lane {
    /// Whether a write that is not stuck is on its way.
    fn has_sound_in_flight(&self) -> bool {
        let stuck = self
            .stuck
            .iter()
            .filter(|seq| {
                self.writes
                    .get(seq)
                    .is_some_and(|write| matches!(write.phase, Phase::InFlight(_)))
            })
            .count();
        usize::try_from(self.in_flight).is_ok_and(|all| all > stuck)
    }
}
