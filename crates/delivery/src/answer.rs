//! Answers: what each outcome does to its write, its gates and its batch.

use crate::config::{BatchKind, DirectMode, Repeat};
use crate::event::EventCode;
use crate::gate::Cause;
use crate::ids::{ConnectionId, LaneId, RequestId};
use crate::lane::Phase;
use crate::machine::{Delivery, Timer};
use crate::note::WriteNote;
use crate::outcome::{Detail, Outcome, Reaction};
use crate::output::{Dependents, ParkReason, SettleResult};
use crate::planted::Bug;
use crate::target::SUSPECT_WRITES;

/// A request that ended, as its writes see it.
struct Ended {
    id: RequestId,
    lane: LaneId,
    connection: ConnectionId,
    target: u32,
    sent_mark: u64,
    sent_ms: u64,
    sent_unix_ms: u64,
}

/// Whether a failure counts against its write once there is evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Charge {
    Own,
    /// Its batch failed because of another write of it, or a person stopped it.
    Collateral,
}

impl Delivery {
    /// A sink answered.
    pub(crate) fn answered(&mut self, id: RequestId, outcomes: &[Outcome]) {
        let Some(request) = self.end_request(id) else {
            self.late_answer(id, outcomes);
            return;
        };
        let lane_id = request.lane;
        let missing = Outcome::failed_maybe(Detail::new(
            "no_outcome",
            "the sink gave no outcome for this write",
        ));
        if outcomes.len() != request.seqs.len() {
            self.event(
                EventCode::OddAnswer,
                Some(lane_id),
                Some(request.connection),
                None,
                Detail::new(
                    "odd_answer",
                    format!(
                        "{} outcomes for {} writes",
                        outcomes.len(),
                        request.seqs.len()
                    ),
                ),
            );
        }
        let Some(lane) = self.lanes.get_mut(&lane_id) else {
            return;
        };
        let ended = Ended {
            id,
            lane: lane_id,
            connection: request.connection,
            target: lane.target,
            sent_mark: request.sent_mark,
            sent_ms: request.sent_ms,
            sent_unix_ms: request.sent_unix_ms,
        };
        let kind = lane.cfg.batch.kind;
        let mut trial = None;
        for seq in &request.seqs {
            if lane.trial == Some(*seq) {
                lane.trial = None;
                trial = Some(*seq);
            }
        }
        let rows: Vec<(u64, &Outcome)> = request
            .seqs
            .iter()
            .enumerate()
            .map(|(at, seq)| (*seq, outcomes.get(at).unwrap_or(&missing)))
            .collect();
        self.note_connection_answer(&ended, &rows);
        let delivered = self.settle_delivered(&ended, &rows);
        let taken = rows
            .iter()
            .any(|(_, outcome)| outcome.reaction() == Reaction::HandedOver);
        if (delivered || taken) && trial.is_some() {
            // The target takes writes: the next trial need not wait for the cap.
            if let Some(lane) = self.lanes.get_mut(&lane_id) {
                lane.trial_at_ms = self.now_ms;
            }
        }
        let refused = rows
            .iter()
            .filter(|(_, outcome)| outcome.reaction() == Reaction::Refused)
            .count();
        let split = kind == BatchKind::Atomic && rows.len() > 1 && refused > 1;
        let mut refused_seqs = Vec::new();
        let mut failed_before = request.by_operator;
        for (seq, outcome) in &rows {
            let reaction = outcome.reaction();
            if matches!(reaction, Reaction::Delivered | Reaction::HandedOver) {
                continue;
            }
            if split && reaction == Reaction::Refused {
                refused_seqs.push(*seq);
                continue;
            }
            let collateral = match kind {
                BatchKind::Atomic => {
                    request.by_operator || (refused > 0 && reaction != Reaction::Refused)
                }
                BatchKind::Prefix => failed_before,
                BatchKind::Independent => request.by_operator,
            };
            failed_before = true;
            let charge = if collateral {
                Charge::Collateral
            } else {
                Charge::Own
            };
            self.fail(&ended, *seq, outcome, reaction, charge);
        }
        // After the others: one of them that may have been applied keeps a sealed batch whole.
        if split {
            self.split(lane_id, &refused_seqs);
        }
        self.resolve_canary(&ended, &rows, delivered);
        self.check_halt(lane_id);
        let uneasy: Vec<LaneId> = self
            .targets
            .get(&ended.target)
            .map(|target| target.uneasy.iter().copied().collect())
            .unwrap_or_default();
        uneasy.into_iter().for_each(|lane| self.check_halt(lane));
        self.wake(lane_id);
        self.touch(lane_id);
    }

    /// Any answer but silence proves that the other side is there.
    fn note_connection_answer(&mut self, ended: &Ended, rows: &[(u64, &Outcome)]) {
        let proves = rows.iter().any(|(_, outcome)| {
            !matches!(
                outcome.reaction(),
                Reaction::Unknown | Reaction::Down | Reaction::HandedOver
            )
        });
        if proves {
            let mark = self.mark;
            if let Some(connection) = self.connections.get_mut(&ended.connection) {
                connection.answered_mark = mark;
            }
        }
    }

    /// Settles what was delivered. `true` if anything was.
    fn settle_delivered(&mut self, ended: &Ended, rows: &[(u64, &Outcome)]) -> bool {
        let (mut delivered, mut handed_over) = (false, false);
        for (seq, outcome) in rows {
            let result = match outcome.reaction() {
                Reaction::Delivered if outcome.repeat => SettleResult::DeliveredAsRepeat,
                Reaction::Delivered => SettleResult::Delivered,
                Reaction::HandedOver => SettleResult::SentUnconfirmed,
                Reaction::Unknown if self.has(Bug::SilenceIsDelivery) => SettleResult::Delivered,
                _ => continue,
            };
            delivered |= result != SettleResult::SentUnconfirmed;
            handed_over |= result == SettleResult::SentUnconfirmed;
            if result != SettleResult::DeliveredAsRepeat {
                self.check_window(ended.lane, *seq);
            }
            self.land(ended.lane, *seq);
            self.settle(ended.lane, *seq, result, Dependents::Release);
        }
        if delivered {
            self.evidence(ended.target, ended.sent_mark);
        } else if handed_over {
            self.taken(ended.target, ended.sent_mark);
        }
        delivered
    }

    /// A half-open gate whose canary this was is decided now, unless a failure closed it already.
    fn resolve_canary(&mut self, ended: &Ended, rows: &[(u64, &Outcome)], delivered: bool) {
        let (id, connection, number) = (ended.id, ended.connection, ended.target);
        let canary = self
            .connections
            .get(&connection)
            .is_some_and(|found| found.gate.is_canary(id));
        if canary {
            self.open_connection(connection);
        }
        let Some(target) = self.targets.get(&number) else {
            return;
        };
        if target.gate.is_canary(id) {
            // A canary whose own answer was maybe proves nothing about the target.
            let sound = rows.iter().any(|(_, outcome)| !outcome.is_maybe());
            let cut_off = self
                .connections
                .get(&connection)
                .is_some_and(|found| !found.gate.is_open());
            if cut_off {
                self.reset_canary(number);
            } else if sound {
                self.open_target(number);
            } else {
                self.close_target(number, Some(id), Cause::Outage, 0, Detail::default());
            }
        } else if delivered
            && target.gate.is_closed()
            && matches!(target.gate.cause, Cause::Outage | Cause::Denied)
        {
            // It answers others: no need to wait for the backoff.
            self.half_open_target(number);
        } else if delivered && target.gate.is_half_open() {
            self.open_target(number);
        }
    }

    /// The connection closed under the canary: the target's gate waits for the next one.
    fn reset_canary(&mut self, number: u32) {
        if let Some(target) = self.targets.get_mut(&number) {
            target.gate.state = crate::gate::State::HalfOpen(None);
        }
    }

    /// A write is on its way no longer.
    pub(crate) fn land(&mut self, id: LaneId, seq: u64) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.set_phase(seq, Phase::Ready);
            lane.set_busy(seq, false);
        }
    }

    /// Reacts to one failure.
    fn fail(
        &mut self,
        ended: &Ended,
        seq: u64,
        outcome: &Outcome,
        reaction: Reaction,
        charge: Charge,
    ) {
        let id = ended.lane;
        let maybe = outcome.is_maybe();
        // One by one: until its own answer is looked at, a write counts as on its way.
        self.land(id, seq);
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let direct = lane.cfg.direct;
        let never = lane.cfg.repeat == Repeat::Never;
        let Some(write) = lane.writes.get_mut(&seq) else {
            return;
        };
        write.detail = outcome.detail.clone();
        write.timed_out = reaction == Reaction::Unknown;
        let charged = write.note.attempts > 0;
        let doom = write.doom;
        let free = !maybe || self.maybe_applied(id, seq, ended.sent_ms, ended.sent_unix_ms);
        let Some(write) = self
            .lanes
            .get_mut(&id)
            .and_then(|lane| lane.writes.get_mut(&seq))
        else {
            self.close_gates(ended, outcome, reaction, charged);
            return;
        };
        if reaction == Reaction::Refused {
            if let Some(doom) = doom {
                self.carry_out(id, seq, doom);
            } else {
                write.note.attempts = write.note.attempts.saturating_add(1);
                self.finish(id, seq, ParkReason::Refused);
            }
            return;
        }
        let counts =
            charge == Charge::Own && !matches!(reaction, Reaction::Throttled | Reaction::Down);
        if counts {
            write.tries = write.tries.saturating_add(1);
            write.uncharged = write.uncharged.saturating_add(1);
            write.last_try_failed |= write.last_try;
            let mark = self.mark;
            if let Some(target) = self.targets.get_mut(&ended.target) {
                target.suspect((id, seq), mark);
            }
        }
        let gate = self.close_gates(ended, outcome, reaction, charged);
        if self.has(Bug::ForgetsOnDown) && reaction == Reaction::Down {
            self.take_write(id, seq);
            return;
        }
        if self.has(Bug::ChargesWithoutEvidence) && counts {
            self.evidence(ended.target, u64::MAX);
        }
        if self.has(Bug::ParksOnOutage) && reaction == Reaction::TargetFailed {
            self.finish(id, seq, ParkReason::AttemptsSpent);
            return;
        }
        if let Some(doom) = doom {
            self.carry_out(id, seq, doom);
            return;
        }
        if (direct == Some(DirectMode::Answer) && reaction != Reaction::Throttled)
            || (never && maybe)
        {
            self.answer_failed(id, seq);
            return;
        }
        if free {
            self.wait_for_next(ended, seq, reaction, gate, counts, maybe);
        }
    }

    /// Puts a failed write where it waits for its next attempt.
    fn wait_for_next(
        &mut self,
        ended: &Ended,
        seq: u64,
        reaction: Reaction,
        gate: bool,
        counts: bool,
        maybe: bool,
    ) {
        let id = ended.lane;
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let policy = lane.cfg.policy;
        let Some(write) = lane.writes.get_mut(&seq) else {
            return;
        };
        if counts && write.finish_on_failure {
            let reason = if write.note.has(WriteNote::AMBIGUOUS) {
                ParkReason::MayHaveLanded
            } else {
                ParkReason::AttemptsSpent
            };
            self.finish(id, seq, reason);
            return;
        }
        let spent = write.note.attempts.saturating_add(write.uncharged) >= policy.max_attempts;
        if counts && spent && lane.stuck.insert(seq) {
            self.delay_trial(id);
        }
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let Some(write) = lane.writes.get_mut(&seq) else {
            return;
        };
        if gate || !counts {
            lane.set_phase(seq, Phase::Ready);
        } else {
            let step = write.tries.saturating_sub(1);
            let denied = matches!(
                reaction,
                Reaction::DeniedTarget | Reaction::DeniedConnection
            );
            let wait = if denied {
                policy.backoff.max_ms.max(1)
            } else {
                self.rng.jitter(policy.backoff.bound_ms(step))
            };
            let until_ms = self.now_ms.saturating_add(wait);
            lane.set_phase(seq, Phase::Backoff { until_ms });
            self.timers.insert((until_ms, Timer::Backoff(id, seq)));
        }
        if maybe && !gate {
            self.suspect_target(ended, seq);
        }
    }

    /// Several writes in a row may have vanished and none got through: that is an outage, whatever
    /// each answer says.
    fn suspect_target(&mut self, ended: &Ended, seq: u64) {
        let Some(target) = self.targets.get_mut(&ended.target) else {
            return;
        };
        if target.vanished.len() < SUSPECT_WRITES {
            target.vanished.insert((ended.lane, seq));
        }
        if target.vanished.len() >= SUSPECT_WRITES && target.gate.is_open() {
            self.close_target(
                ended.target,
                Some(ended.id),
                Cause::Outage,
                0,
                Detail::new(
                    "target_closed",
                    "several writes failed in a row and none was delivered",
                ),
            );
        }
    }

    /// Closes the gate an outcome speaks of. `true` when a gate now holds the write back, so that
    /// it needs no backoff of its own.
    ///
    /// A write that evidence has charged before speaks for itself only: others got through.
    fn close_gates(
        &mut self,
        ended: &Ended,
        outcome: &Outcome,
        reaction: Reaction,
        charged: bool,
    ) -> bool {
        let detail = outcome.detail.as_deref().cloned().unwrap_or_default();
        let request = Some(ended.id);
        match reaction {
            Reaction::Throttled => {
                self.close_target(
                    ended.target,
                    request,
                    Cause::Throttled,
                    outcome.after_ms,
                    detail,
                );
                true
            }
            Reaction::Down => {
                self.close_connection(ended.connection, request, Cause::Outage, detail);
                true
            }
            Reaction::Unknown => {
                // A canary that meets silence closes the gate whatever its write did before.
                let silent = self
                    .connections
                    .get(&ended.connection)
                    .is_some_and(|found| {
                        found.answered_mark <= ended.sent_mark
                            && (!charged || found.gate.is_canary(ended.id))
                    });
                if silent {
                    self.close_connection(ended.connection, request, Cause::Outage, detail);
                }
                silent
            }
            Reaction::TargetFailed if !charged => {
                self.close_target(ended.target, request, Cause::Outage, 0, detail);
                true
            }
            Reaction::DeniedTarget if !charged => {
                self.close_target(ended.target, request, Cause::Denied, 0, detail);
                true
            }
            Reaction::DeniedConnection if !charged => {
                self.close_connection(ended.connection, request, Cause::Denied, detail);
                true
            }
            _ => false,
        }
    }
}
