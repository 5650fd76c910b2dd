//! How a write leaves its lane: settled, parked, diverted, expired, or answered where it is direct.

use crate::config::{AfterPark, DirectMode, Order};
use crate::event::EventCode;
use crate::ids::LaneId;
use crate::input::Decision;
use crate::lane::{Lane, MAX_HELD_KEYS, Pending, Phase};
use crate::machine::{Awaited, Delivery, Timer};
use crate::note::WriteNote;
use crate::output::{Dependents, DirectResult, Failure, Output, ParkReason, SettleResult, Settled};
use crate::planted::Bug;

impl Pending {
    /// What a handler and a person are told.
    pub(crate) fn failure(&self, class: &'static str) -> Failure {
        Failure {
            class,
            maybe_applied: self.is_maybe(),
            timed_out: self.timed_out,
            attempts: self.note.attempts,
            tries: self.tries,
            first_attempt_unix_ms: self.note.first_attempt_unix_ms,
            last_attempt_unix_ms: self.last_attempt_unix_ms,
            detail: self.detail.as_deref().cloned().unwrap_or_default(),
        }
    }
}

impl Delivery {
    /// Takes a write out of its lane and out of its target's books.
    pub(crate) fn take_write(&mut self, id: LaneId, seq: u64) -> Option<Pending> {
        let lane = self.lanes.get_mut(&id)?;
        if let Some(write) = lane.writes.get(&seq)
            && matches!(write.phase, Phase::InFlight(_))
        {
            lane.set_busy(seq, false);
        }
        let write = lane.remove(seq)?;
        if let Some(target) = self.targets.get_mut(&lane.target) {
            // It stays among those that failed, until evidence comes: delivered after all, it shows
            // that an outage met it, and others beside it.
            target.suspects.remove(&(id, seq));
            target.ambiguous.remove(&(id, seq));
            target.vanished.remove(&(id, seq));
        }
        if let Some(at) = write.give_up_at_ms {
            self.timers.remove(&(at, Timer::GiveUp(id, seq)));
        }
        if let Phase::Backoff { until_ms } = write.phase {
            self.timers.remove(&(until_ms, Timer::Backoff(id, seq)));
        }
        self.wake(id);
        self.touch(id);
        Some(write)
    }

    /// Settles a write, in the window or not.
    pub(crate) fn settle(
        &mut self,
        id: LaneId,
        seq: u64,
        result: SettleResult,
        dependents: Dependents,
    ) {
        if self.lanes.get(&id).is_some_and(Lane::is_volatile) {
            let direct = match result {
                SettleResult::Delivered => DirectResult::Delivered { repeat: false },
                SettleResult::DeliveredAsRepeat => DirectResult::Delivered { repeat: true },
                SettleResult::SentUnconfirmed => DirectResult::HandedOver,
                SettleResult::ConfirmedByOperator => DirectResult::Delivered { repeat: false },
                _ => DirectResult::Skipped,
            };
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.counts.count(result);
            }
            self.answer_direct(id, seq, direct);
            return;
        }
        self.take_write(id, seq);
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if !lane.settling.insert(seq) {
            return;
        }
        lane.counts.count(result);
        lane.out.push(Settled {
            seq,
            result,
            dependents,
        });
        self.touch(id);
    }

    /// Settles as skipped; its dependents go as the lane says.
    pub(crate) fn skip(&mut self, id: LaneId, seq: u64) {
        let releases = self
            .lanes
            .get(&id)
            .is_some_and(|lane| lane.cfg.skip_releases_dependents);
        let dependents = if releases {
            Dependents::Release
        } else {
            Dependents::Drop
        };
        self.settle(id, seq, SettleResult::Skipped, dependents);
    }

    /// A write is refused or spent: the error handler is asked, or it parks.
    pub(crate) fn finish(&mut self, id: LaneId, seq: u64, reason: ParkReason) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let (has_handler, direct) = (lane.cfg.has_handler, lane.cfg.direct);
        let Some(write) = lane.writes.get_mut(&seq) else {
            return;
        };
        let (sealed, group) = (lane.cfg.batch.sealed, write.group);
        if sealed && group != 0 {
            self.unseal(id, group, seq);
        }
        let Some(write) = self
            .lanes
            .get_mut(&id)
            .and_then(|lane| lane.writes.get_mut(&seq))
        else {
            return;
        };
        let spent = matches!(reason, ParkReason::AttemptsSpent | ParkReason::AgeSpent);
        let reason = if spent && write.note.has(WriteNote::AMBIGUOUS) {
            ParkReason::MayHaveLanded
        } else {
            reason
        };
        // One that may have landed twice over is no handler's to send again.
        let asks = has_handler
            && matches!(
                reason,
                ParkReason::AttemptsSpent | ParkReason::AgeSpent | ParkReason::Refused
            );
        if asks {
            let failure = write.failure(reason.name());
            write.asked_for = Some(reason);
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.stuck.remove(&seq);
                lane.set_phase(seq, Phase::Asking);
            }
            self.out.push_back(Output::AskHandler {
                lane: id,
                seq,
                failure,
            });
            return;
        }
        match direct {
            None => self.park(id, seq, reason),
            Some(DirectMode::Answer) => self.answer_failed(id, seq),
            Some(DirectMode::Hold)
                if matches!(reason, ParkReason::MayHaveLanded | ParkReason::WindowPassed) =>
            {
                // One more send would be one copy too many: a person decides.
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.stuck.insert(seq);
                    lane.set_phase(seq, Phase::Held);
                }
                self.check_halt(id);
            }
            Some(DirectMode::Hold) => {
                self.tell_direct_held(id, seq, reason);
                self.keep_trying(id, seq, None);
            }
        }
    }

    /// Says once that a direct send is refused or spent while its source has the message: it is held,
    /// and nobody else would tell.
    fn tell_direct_held(&mut self, id: LaneId, seq: u64, reason: ParkReason) {
        let Some(write) = self.lanes.get(&id).and_then(|lane| lane.writes.get(&seq)) else {
            return;
        };
        if write.note.has(WriteNote::SPENT) {
            return;
        }
        let mut detail = write.failure(reason.name()).detail;
        detail.message = format!(
            "its source keeps the message until it is delivered ({}): {}",
            reason.name(),
            detail.message
        );
        self.event(EventCode::DirectHeld, Some(id), None, Some(seq), detail);
    }

    /// Keeps a write and tries again later, at the backoff's cap unless told otherwise.
    fn keep_trying(&mut self, id: LaneId, seq: u64, after_ms: Option<u64>) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let wait = after_ms.unwrap_or(lane.cfg.policy.backoff.max_ms).max(1);
        let until_ms = self.now_ms.saturating_add(wait);
        if let Some(write) = lane.writes.get_mut(&seq) {
            write.asked_for = None;
            write.uncharged = 0;
            // Whatever it says next is asked about once evidence follows.
            write.last_try_failed = false;
            write.finish_on_failure = false;
            write.note.set(WriteNote::SPENT, true);
            write.note.set(WriteNote::AMBIGUOUS, false);
            write.resent_in = None;
            write.alone = true;
        } else {
            return;
        }
        lane.stuck.remove(&seq);
        lane.set_phase(seq, Phase::Backoff { until_ms });
        lane.mark_note(seq);
        self.timers.insert((until_ms, Timer::Backoff(id, seq)));
        self.touch(id);
    }

    /// What the error handler decided.
    pub(crate) fn decided(&mut self, id: LaneId, seq: u64, decision: Decision) {
        let Some(lane) = self.lanes.get(&id) else {
            return;
        };
        let Some(write) = lane.writes.get(&seq) else {
            return;
        };
        if write.phase != Phase::Asking {
            return;
        }
        let reason = write.asked_for.clone().unwrap_or(ParkReason::Refused);
        let failure = write.failure(reason.name());
        let direct = lane.cfg.direct;
        match (decision, direct) {
            (Decision::Retry { after_ms }, _) => self.keep_trying(id, seq, Some(after_ms)),
            (Decision::Block, _) => {
                self.lane_event(
                    EventCode::HandlerBlocked,
                    id,
                    seq,
                    "its error handler keeps it: it is tried at the backoff cap and blocks its order key",
                );
                self.keep_trying(id, seq, None);
            }
            (Decision::Skip, _) => self.skip(id, seq),
            (Decision::Park { reason }, None) => self.park(id, seq, ParkReason::Handler(reason)),
            (Decision::Park { reason }, Some(_)) => {
                let reason = ParkReason::Handler(reason);
                self.answer_direct(id, seq, DirectResult::Parked { reason, failure });
            }
            (Decision::Divert { target }, Some(_)) => {
                self.answer_direct(id, seq, DirectResult::Diverted { target, failure });
            }
            (Decision::Divert { target }, None) => self.divert(id, seq, target, failure),
            (Decision::Failed, None) => self.park(id, seq, ParkReason::HandlerFailed),
            (Decision::Failed, Some(DirectMode::Hold)) => self.keep_trying(id, seq, None),
            (Decision::Failed, Some(DirectMode::Answer)) => self.answer_failed(id, seq),
        }
    }

    fn divert(&mut self, id: LaneId, seq: u64, target: String, failure: Failure) {
        self.take_write(id, seq);
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.settling.insert(seq);
        lane.counts.count(SettleResult::Diverted);
        let ticket = self.new_ticket(Awaited::Settle {
            lane: id,
            seqs: vec![seq],
        });
        self.out.push_back(Output::Divert {
            lane: id,
            seq,
            target,
            failure,
            ticket,
        });
    }

    /// Hands a write to Failed messages.
    pub(crate) fn park(&mut self, id: LaneId, seq: u64, reason: ParkReason) {
        if let Some(direct) = self.lanes.get(&id).and_then(|lane| lane.cfg.direct) {
            match direct {
                DirectMode::Hold => self.keep_trying(id, seq, None),
                DirectMode::Answer => self.answer_failed(id, seq),
            }
            return;
        }
        let write = self.take_write(id, seq);
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if !lane.settling.insert(seq) {
            return;
        }
        lane.counts.count(SettleResult::Parked);
        let (failure, note) = write.as_ref().map_or_else(Default::default, |write| {
            (write.failure(reason.name()), write.note)
        });
        let holds = self.planted != Some(Bug::IgnoresHeldKeys);
        if holds
            && lane.cfg.after_park == AfterPark::HoldKey
            && lane.cfg.order != Order::None
            && let Some(write) = &write
        {
            self.hold_key(id, write.order);
        }
        let ticket = self.new_ticket(Awaited::Settle {
            lane: id,
            seqs: vec![seq],
        });
        self.out.push_back(Output::Park {
            lane: id,
            seq,
            reason,
            failure,
            note,
            ticket,
        });
    }

    /// Later writes of this key wait. Those never tried leave the window and are fetched again on
    /// release; the others stay, with what is known of them.
    fn hold_key(&mut self, id: LaneId, order: u64) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let waiting: Vec<u64> = lane
            .keys
            .get(&order)
            .map(|key| key.seqs.iter().copied().collect())
            .unwrap_or_default();
        let mut first = None;
        for seq in waiting {
            let at_rest = lane
                .writes
                .get(&seq)
                .is_some_and(|write| write.is_untried() && write.is_sendable() && write.group == 0);
            if at_rest {
                first.get_or_insert(seq);
                lane.remove(seq);
            }
        }
        let slot = lane.held.entry(order).or_insert(None);
        // A later one may have been skipped at a fetch before this one was let go.
        *slot = match (*slot, first) {
            (Some(known), Some(first)) => Some(known.min(first)),
            (known, first) => known.or(first),
        };
        lane.refresh_key(order);
        let full = lane.held.len() > MAX_HELD_KEYS && !lane.held_full;
        if full {
            lane.held_full = true;
            self.lane_event(
                EventCode::HeldKeysFull,
                id,
                first.unwrap_or(0),
                "too many order keys are held: the lane looks no further ahead",
            );
        }
    }

    /// A parked write is resolved: later writes of its key go on.
    pub(crate) fn release_key(&mut self, id: LaneId, order: u64) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let order = lane.order_of(order);
        let Some(skipped) = lane.held.remove(&order) else {
            return;
        };
        lane.held_full = lane.held.len() > MAX_HELD_KEYS;
        if let Some(first) = skipped {
            lane.cursor = lane.cursor.min(first.saturating_sub(1));
            lane.released.insert(order);
        }
        lane.refresh_key(order);
        lane.more = true;
        lane.news = true;
        lane.stale_fetch = lane.fetching;
        self.touch(id);
        self.wake(id);
    }

    /// Drops writes whose `expires_after` has passed.
    pub(crate) fn expire(&mut self, id: LaneId) {
        let wall = self.wall_unix_ms;
        let mut due = Vec::new();
        let Some(lane) = self.lanes.get(&id) else {
            return;
        };
        for (at, seq) in &lane.expiries {
            if *at > wall {
                break;
            }
            let at_rest = lane
                .writes
                .get(seq)
                .is_some_and(|write| !matches!(write.phase, Phase::InFlight(_) | Phase::Asking));
            if at_rest {
                due.push(*seq);
            }
        }
        for seq in due {
            self.lane_event(
                EventCode::Expired,
                id,
                seq,
                "it was not delivered within expires_after",
            );
            self.settle(id, seq, SettleResult::Expired, Dependents::Drop);
            self.check_halt(id);
        }
    }

    /// The answer of a direct send; it leaves the lane.
    pub(crate) fn answer_direct(&mut self, id: LaneId, seq: u64, result: DirectResult) {
        if self.take_write(id, seq).is_some() {
            self.out.push_back(Output::DirectAnswer {
                lane: id,
                seq,
                result,
            });
        }
    }

    /// A direct send failed for good.
    pub(crate) fn answer_failed(&mut self, id: LaneId, seq: u64) {
        let failure = self
            .lanes
            .get(&id)
            .and_then(|lane| lane.writes.get(&seq))
            .map(|write| write.failure("direct"))
            .unwrap_or_default();
        self.answer_direct(id, seq, DirectResult::Failed { failure });
    }
}
