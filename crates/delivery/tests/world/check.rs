//! The invariants, as an observer outside the machine sees them. It counts interruptions itself.

use super::World;
use consign_delivery::{
    ConnectionId, DirectResult, EventCode, GateState, LaneId, LaneState, OnAmbiguous, Order,
    Outcome, ParkReason, Reaction, Repeat, Send, SettleResult,
};

const ALL_RESULTS: [SettleResult; 9] = [
    SettleResult::Delivered,
    SettleResult::DeliveredAsRepeat,
    SettleResult::SentUnconfirmed,
    SettleResult::Parked,
    SettleResult::Skipped,
    SettleResult::Diverted,
    SettleResult::Purged,
    SettleResult::Expired,
    SettleResult::ConfirmedByOperator,
];

impl World {
    pub fn order_of(&self, lane: u32, seq: u64) -> u64 {
        match self.lanes[&lane].cfg.order {
            Order::Strict => 0,
            Order::None => u64::MAX - seq,
            Order::ByKey => self.orders.get(&(lane, seq)).copied().unwrap_or(0),
        }
    }

    pub fn gate_of(&self, connection: u32) -> GateState {
        self.d
            .connection_stats(ConnectionId(connection))
            .map_or(GateState::Closed, |stats| stats.gate)
    }

    /// Whether a request that leaves now goes through a gate that is not open.
    pub fn is_canary(&self, connection: u32) -> bool {
        self.gate_of(connection) != GateState::Open
    }

    /// Everything that must hold when a request leaves.
    pub fn check_send(&mut self, send: &Send, seqs: &[u64]) {
        let lane = send.lane.0;
        let spec = self.lanes[&lane].clone();
        let direct = spec.cfg.direct.is_some();
        let gate = self.gate_of(send.connection.0);
        if gate != GateState::Open {
            let out = self
                .live
                .values()
                .filter(|live| live.canary && live.connection == send.connection.0 && !live.fenced)
                .count();
            if out > 0 || seqs.len() > 1 && send.sealed == 0 {
                self.violate(format!(
                    "{} canaries through a {} gate",
                    out + 1,
                    gate.name()
                ));
            }
        }
        for seq in seqs {
            if self.may_step_over(lane, *seq) {
                self.trials.insert((lane, *seq));
            }
        }
        for seq in seqs {
            self.check_place((lane, *seq), send.connection.0, &spec.cfg.target, direct);
        }
        let mut busy = 0;
        for live in self
            .live
            .values()
            .filter(|live| live.lane == lane && !live.fenced)
        {
            busy += live.seqs.len();
            for seq in seqs {
                let clash = live.seqs.iter().any(|other| {
                    other == seq || self.order_of(lane, *other) == self.order_of(lane, *seq)
                });
                if clash {
                    let what = format!("{lane}/{seq} sent beside {:?}", live.seqs);
                    self.violations.push(what);
                }
            }
        }
        let unsettled: usize = self
            .buffer
            .queue
            .iter()
            .filter_map(|(_, op)| match op {
                super::model::Op::Settle { lane: l, writes } if *l == lane => Some(writes.len()),
                _ => None,
            })
            .sum();
        // One sealed under a larger limit goes alone.
        let alone = send.sealed != 0 && busy + unsettled == 0;
        if busy + unsettled + seqs.len() > spec.cfg.in_flight_limit as usize && !direct && !alone {
            self.violate(format!("lane {lane} is over its in-flight limit"));
        }
        if send.sealed != 0 {
            let known = self
                .sealed
                .entry((lane, send.sealed))
                .or_insert_with(|| seqs.to_vec())
                .clone();
            if known != seqs {
                self.violate(format!(
                    "sealed batch {} of lane {lane} changed: {known:?} {seqs:?}",
                    send.sealed
                ));
            }
        }
        for item in &send.items {
            let id = (lane, item.seq);
            if direct {
                let wall = self.wall();
                self.direct_sent.entry(id).or_insert(wall);
            }
            let may_be = self.interruptions.contains_key(&id);
            if may_be && !item.may_be_repeat && !direct {
                self.violate(format!(
                    "{lane}/{} may be a repeat and does not say so",
                    item.seq
                ));
            }
            let stored = &self.buffer.lanes[&lane];
            if direct {
                continue;
            }
            if item.seq > stored.frontier() {
                self.violate(format!(
                    "{lane}/{} sent past the durable frontier",
                    item.seq
                ));
            }
            let Some(pending) = self.buffer.lanes[&lane].pending.get(&item.seq) else {
                self.violate(format!("{lane}/{} sent though it is settled", item.seq));
                continue;
            };
            if item.may_be_repeat {
                let note = pending.note;
                let noted = note.first_maybe_unix_ms != 0;
                let copies = matches!(spec.cfg.repeat, Repeat::SecondCopy);
                *self.resends.entry(id).or_default() += 1;
                if !noted || (copies && note.spent_resends == 0) {
                    self.violate(format!(
                        "{lane}/{} sent again before that was noted: {note:?}",
                        item.seq
                    ));
                }
            }
        }
    }

    /// Whether a trial may send this write before earlier ones of its order key: one of them may
    /// be poison.
    fn may_step_over(&self, lane: u32, seq: u64) -> bool {
        let cfg = &self.lanes[&lane].cfg;
        let key = self.order_of(lane, seq);
        cfg.after_park == consign_delivery::AfterPark::Continue
            && self.buffer.lanes[&lane]
                .pending
                .range(..seq)
                .filter(|(other, _)| self.order_of(lane, **other) == key)
                .any(|(other, stored)| {
                    let id = (lane, *other);
                    // What an exit may have cut off counts as sent once already.
                    let handed_over_again = cfg.direct.is_some()
                        && self
                            .interruptions
                            .get(&id)
                            .is_some_and(|set| set.iter().any(|(kind, _)| *kind == u32::MAX - 1));
                    let cut = u32::from(stored.maybe_since_unix_ms.is_some() || handed_over_again);
                    self.failures.get(&id).copied().unwrap_or(0) >= cfg.policy.max_attempts
                        || self.maybes.get(&id).copied().unwrap_or(0) + cut >= 2
                        || self.lane_events.contains(&(lane, EventCode::WindowPassed))
                })
    }

    /// The first effect of a write must not overtake an earlier one of its order key.
    pub fn check_order(&mut self, lane: u32, seq: u64, fenced: bool, sent_under: Order) {
        if fenced || self.effects.copies_of(lane, seq) > 0 {
            return;
        }
        let cfg = self.lanes[&lane].cfg.clone();
        if cfg.order == Order::None || sent_under != cfg.order {
            return;
        }
        let key = self.order_of(lane, seq);
        let leaving = self.is_leaving(lane);
        let earlier: Vec<u64> = self.buffer.lanes[&lane]
            .pending
            .range(..seq)
            .map(|(other, _)| *other)
            .filter(|other| self.order_of(lane, *other) == key)
            .filter(|other| self.effects.copies_of(lane, *other) == 0)
            .filter(|other| !leaving || self.interruptions.contains_key(&(lane, *other)))
            .collect();
        for other in earlier {
            let id = (lane, other);
            let finishing = self.buffer.undurable().contains(&id);
            if !finishing && !self.trials.contains(&(lane, seq)) && !self.order_broken.contains(&id)
            {
                self.violate(format!("{lane}/{seq} overtakes {lane}/{other}"));
                return;
            }
        }
        if cfg.after_park == consign_delivery::AfterPark::HoldKey && cfg.direct.is_none() {
            let parked = self.parked.keys().copied().find(|(other_lane, other)| {
                *other_lane == lane
                    && *other < seq
                    && self.order_of(lane, *other) == key
                    && self.buffer.lanes[&lane].settled.get(other) == Some(&SettleResult::Parked)
                    && !self.resolved.contains(&(lane, *other))
                    && !self.order_broken.contains(&(lane, *other))
            });
            if let Some((_, other)) = parked
                && !cfg.batch.sealed
            {
                self.violate(format!(
                    "{lane}/{seq} passes {lane}/{other}, whose key is held"
                ));
            }
        }
    }

    /// Keeps the books of an answer as it goes to the machine.
    pub fn count_answer(&mut self, live: &super::Live, outcomes: &[Outcome]) {
        let missing = Outcome::failed_maybe(consign_delivery::Detail::default());
        let delivered = live
            .seqs
            .iter()
            .enumerate()
            .filter_map(|(at, _)| outcomes.get(at))
            .any(|outcome| {
                // What a destination that never confirms has taken ends an interruption, too.
                matches!(
                    outcome.reaction(),
                    Reaction::Delivered | Reaction::HandedOver
                )
            });
        if delivered {
            self.target_delivered(live);
        }
        for (at, seq) in live.seqs.iter().enumerate() {
            let id = (live.lane, *seq);
            let outcome = outcomes.get(at).unwrap_or(&missing);
            match outcome.reaction() {
                Reaction::HandedOver if self.lanes[&live.lane].manners.unconfirmed => {}
                Reaction::Delivered | Reaction::HandedOver => {
                    if self.effects.copies_of(id.0, id.1) == 0 {
                        self.violate(format!("the model answered {id:?} without an effect"));
                    }
                }
                Reaction::Throttled | Reaction::Down => {}
                _ => *self.failures.entry(id).or_default() += 1,
            }
            if outcome.is_maybe() {
                *self.maybes.entry(id).or_default() += 1;
                let place = (live.connection, live.target.clone());
                let state = self.interrupted.entry(place).or_insert((false, 0));
                if !state.0 {
                    *state = (true, state.1 + 1);
                }
                // Targets are told apart by connection; their names by their first letters' sum.
                let tag =
                    live.target.bytes().map(u32::from).sum::<u32>() + live.connection * 10_000;
                let number = (tag, state.1);
                self.interruptions.entry(id).or_default().insert(number);
            }
        }
    }

    pub fn target_delivered(&mut self, live: &super::Live) {
        let place = (live.connection, live.target.clone());
        self.interrupted.entry(place).or_insert((false, 0)).0 = false;
    }

    /// Everything that must hold at the end, with all faults gone and everything settled.
    pub fn check_end(&mut self) {
        let lanes: Vec<u32> = self.lanes.keys().copied().collect();
        for lane in lanes {
            let spec = self.lanes[&lane].clone();
            let stored = self.buffer.lanes[&lane].clone();
            for (seq, pending) in &stored.pending {
                let state = self.d.lane_stats(LaneId(lane)).map(|stats| stats.state);
                self.violate(format!(
                    "{lane}/{seq} never ends ({state:?}, {:?})",
                    pending.note
                ));
            }
            for seq in 1..=stored.last_seq {
                let id = (lane, seq);
                let result = stored.settled.get(&seq).copied();
                let copies = self.effects.copies_of(lane, seq);
                match result {
                    None if stored.pending.contains_key(&seq) => {}
                    None => self.violate(format!("{lane}/{seq} is lost")),
                    Some(SettleResult::Delivered | SettleResult::DeliveredAsRepeat)
                        if copies == 0 =>
                    {
                        self.violate(format!("{lane}/{seq} counts as delivered and is not there"));
                    }
                    Some(SettleResult::Parked) => self.check_park(&spec, lane, seq),
                    Some(_) => {}
                }
                self.check_copies(&spec, id, copies);
            }
        }
    }

    /// What the machine counts is what it handed out, and nothing stays in a state for ever.
    pub fn check_ledgers(&mut self) {
        let lanes: Vec<u32> = self.lanes.keys().copied().collect();
        for lane in lanes {
            let Some(stats) = self.d.lane_stats(LaneId(lane)) else {
                self.violate(format!("lane {lane} is gone"));
                continue;
            };
            if self.lanes[&lane].cfg.direct.is_some() {
                continue;
            }
            for code in ALL_RESULTS {
                let handed = self.handed_out.get(&(lane, code)).copied().unwrap_or(0);
                let counted = stats.counts.of(code);
                if handed != counted {
                    self.violate(format!(
                        "lane {lane} counts {counted} {} and handed out {handed}",
                        code.name()
                    ));
                }
            }
            // A gate with nothing to try stays as it is: the next write is its canary.
            let gate = [
                LaneState::GateClosed,
                LaneState::TargetClosed,
                LaneState::Throttled,
                LaneState::Halted,
            ];
            let rests = stats.state == LaneState::Idle
                || gate.contains(&stats.state)
                || (stats.state == LaneState::Waiting && stats.held_keys > 0);
            if self.buffer.lanes[&lane].pending.is_empty() && !rests {
                self.violate(format!(
                    "lane {lane} has nothing to do and says {}",
                    stats.state.name()
                ));
            }
        }
    }

    /// What may have landed at one target is not sent to another.
    fn check_place(&mut self, id: (u32, u64), connection: u32, target: &str, direct: bool) {
        let place = (connection, target.to_owned());
        let before = self.reloads.sent_to.insert(id, place.clone());
        let struck = self.interruptions.contains_key(&id);
        if let Some(before) = before
            && before != place
            && struck
            && !direct
            && !self.pardoned.contains_key(&id)
        {
            self.violate(format!(
                "{id:?} may have landed at {before:?} and was sent to {place:?}"
            ));
        }
    }

    fn check_copies(&mut self, spec: &super::LaneSpec, id: (u32, u64), copies: u32) {
        let struck = self.interruptions.get(&id).map_or(0, |set| set.len()) as u32;
        let pardoned = self.pardoned.get(&id).copied().unwrap_or(0);
        let bound = match spec.cfg.repeat {
            Repeat::Dropped { .. } if !self.effects.outside_window.contains(&id) => 1,
            _ if spec.cfg.on_ambiguous == OnAmbiguous::Retry => u32::MAX,
            Repeat::Never => 1,
            _ => 1 + struck + pardoned,
        };
        if copies > bound {
            self.violate(format!("{id:?} has {copies} copies, allowed are {bound}"));
        }
        let passed = self.events.contains_key(&EventCode::WindowPassed);
        let unheard = self.fenced_unheard.contains(&id);
        if self.effects.outside_window.contains(&id) && !passed && !unheard {
            self.violate(format!(
                "{id:?} was repeated outside its window without an event"
            ));
        }
    }

    fn check_park(&mut self, spec: &super::LaneSpec, lane: u32, seq: u64) {
        let poison = spec.poison.get(&seq).copied();
        let batched = !spec.poison.is_empty() && self.reloads.ever_sealed.contains(&lane);
        let reason = self.parked.get(&(lane, seq)).cloned();
        match reason {
            Some(ParkReason::MayHaveLanded | ParkReason::WindowPassed | ParkReason::Operator) => {}
            Some(ParkReason::SuspectedCrash) if self.suspects.contains(&(lane, seq)) => {}
            _ if poison.is_some() || batched || self.browned.contains(&(lane, seq)) => {}
            other => self.violate(format!("{lane}/{seq} parked ({other:?}) and is no poison")),
        }
    }

    /// Direct sends: each answered, and no lane waits without a reason that is shown.
    pub fn check_direct(&mut self) {
        let open: Vec<(u32, u64)> = self
            .direct
            .iter()
            .filter(|(_, answer)| answer.is_none())
            .map(|(id, _)| *id)
            .collect();
        for id in open {
            self.violate(format!("direct {id:?} has no answer"));
        }
        let wrong: Vec<(u32, u64)> = self
            .direct
            .iter()
            .filter(|(_, answer)| matches!(answer, Some(DirectResult::GaveUp { .. })))
            .map(|(id, _)| *id)
            .collect();
        for id in wrong {
            self.violate(format!("direct {id:?} given up, though nobody asked"));
        }
    }

    /// A lane at rest with pending writes must say why.
    pub fn check_rest(&mut self, lane: u32) {
        let Some(stats) = self.d.lane_stats(LaneId(lane)) else {
            return;
        };
        let told = matches!(
            stats.state,
            LaneState::HaltedOnOneWrite | LaneState::Halted | LaneState::Paused
        ) || stats.held_keys > 0;
        if !told {
            self.violate(format!(
                "lane {lane} stands still and says {}",
                stats.state.name()
            ));
        }
    }
}
