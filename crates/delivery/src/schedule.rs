//! The pass: which lane sends next, trials, and the sending itself.

use crate::batch::{Pick, sealed_number};
use crate::canary::SealedLook;
use crate::config::{AfterPark, Repeat};
use crate::connection::Mode;
use crate::gate::State;
use crate::ids::{ClassId, LaneId};
use crate::lane::{Lane, Phase};
use crate::machine::{Awaited, Delivery, Timer};
use crate::note::WriteNote;
use crate::output::{Output, Send, SendItem};
use crate::planted::Bug;
use crate::request::Request;

impl Delivery {
    /// Sends what may go: classes in turn, one request each, until nothing more may.
    pub(crate) fn schedule(&mut self) {
        self.canary_scans.clear();
        loop {
            let mut progressed = false;
            for class in self.classes.in_turn() {
                progressed |= self.turn(class);
            }
            if !progressed {
                return;
            }
        }
    }

    /// One request of this class, if a lane of it has one.
    fn turn(&mut self, class: ClassId) -> bool {
        loop {
            if !self.classes.may_send(class, self.now_ms) {
                if let Some(at) = self.classes.token_at(class, self.now_ms) {
                    self.timers.insert((at, Timer::Tokens(class)));
                }
                return false;
            }
            let Some(id) = self.classes.pop(class) else {
                return false;
            };
            let Some(lane) = self.lanes.get_mut(&id) else {
                continue;
            };
            lane.queued = false;
            if self.classes.resolve(lane.cfg.class) != class {
                // A reload gave it another class: it waits for a slot of that one.
                self.wake(id);
                continue;
            }
            if self.service(id) {
                self.wake(id);
                return true;
            }
        }
    }

    /// Tries to send one request for a lane.
    fn service(&mut self, id: LaneId) -> bool {
        self.expire(id);
        self.sweep_leaving(id);
        match self.mode(id) {
            Mode::Blocked => false,
            Mode::Canary => self.send_canary(id),
            Mode::Open => self.send_next(id),
        }
    }

    fn send_next(&mut self, id: LaneId) -> bool {
        loop {
            let Some(lane) = self.lanes.get(&id) else {
                return false;
            };
            let room = lane.room();
            if room == 0 {
                return false;
            }
            match lane.pick(room, self.now_ms) {
                Pick::PastFrontier(seq) if self.has(Bug::FrontierNotAwaited) => {
                    self.ask_frontier(id, seq);
                    self.send(id, vec![seq], 0);
                    return true;
                }
                Pick::Nothing => return self.send_trial(id),
                Pick::PastFrontier(seq) => {
                    self.ask_frontier(id, seq);
                    return false;
                }
                Pick::Incomplete(number) => {
                    if !self.give_up_sealed(id, number) {
                        return false;
                    }
                }
                Pick::Batch { seqs, full } => {
                    if !full && self.lingers(id, &seqs) {
                        return false;
                    }
                    let mut admitted = true;
                    for seq in &seqs {
                        admitted &= self.admit(id, *seq);
                    }
                    // A write that was not admitted has left `ready`: what remains is tried again.
                    if admitted {
                        return self.seal_or_send(id, seqs);
                    }
                    if self.waits_for_inspection(id) {
                        return false;
                    }
                }
            }
        }
    }

    fn waits_for_inspection(&self, id: LaneId) -> bool {
        self.lanes.get(&id).is_some_and(|lane| lane.inspecting)
    }

    /// Whether an unfilled batch waits for more.
    fn lingers(&mut self, id: LaneId, seqs: &[u64]) -> bool {
        let Some(lane) = self.lanes.get(&id) else {
            return false;
        };
        if lane.cfg.batch.linger_ms == 0 {
            return false;
        }
        let mut until = u64::MAX;
        for seq in seqs {
            let Some(write) = lane.writes.get(seq) else {
                continue;
            };
            if !write.is_untried() {
                return false;
            }
            until = until.min(write.since_ms.saturating_add(lane.cfg.batch.linger_ms));
        }
        if until <= self.now_ms || until == u64::MAX {
            return false;
        }
        self.timers.insert((until, Timer::Linger(id)));
        true
    }

    fn seal_or_send(&mut self, id: LaneId, seqs: Vec<u64>) -> bool {
        let reseal = self.has(Bug::SealsAnew) && self.mark.is_multiple_of(3);
        let Some(lane) = self.lanes.get_mut(&id) else {
            return false;
        };
        let Some(first) = seqs.first().copied() else {
            return false;
        };
        let group = lane.writes.get(&first).map_or(0, |write| write.group);
        if !lane.cfg.batch.sealed {
            self.send(id, seqs, 0);
            return true;
        }
        if group != 0 {
            let mut seqs = seqs;
            if reseal && seqs.len() > 1 {
                seqs.pop();
            }
            self.send(id, seqs, group);
            return true;
        }
        let generation = lane
            .writes
            .get(&first)
            .map_or(0, |write| write.note.seal_generation());
        let number = sealed_number(first, generation, seqs.len());
        for seq in seqs {
            if let Some(write) = lane.writes.get_mut(&seq) {
                write.group = number;
                write.note.sealed = number;
            }
            lane.mark_note(seq);
        }
        self.touch(id);
        // A volatile lane has nothing to make durable.
        self.lanes.get(&id).is_some_and(Lane::is_volatile)
    }

    /// Sends one write alone (with its sealed batch, where batches are sealed). `false` when
    /// something must be durable first, or it may not go after all.
    pub(crate) fn send_alone(&mut self, id: LaneId, seq: u64, trial: bool) -> bool {
        if self.lanes.get(&id).is_some_and(|lane| seq > lane.frontier) {
            self.ask_frontier(id, seq);
            return false;
        }
        if !self.admit(id, seq) {
            return false;
        }
        let Some(lane) = self.lanes.get_mut(&id) else {
            return false;
        };
        let group = lane.writes.get(&seq).map_or(0, |write| write.group);
        let seqs = if lane.cfg.batch.sealed && group != 0 {
            match lane.pick_sealed(group, lane.room(), trial) {
                Pick::Batch { seqs, .. } => seqs,
                Pick::PastFrontier(last) => {
                    self.ask_frontier(id, last);
                    return false;
                }
                Pick::Incomplete(number) => {
                    self.give_up_sealed(id, number);
                    return false;
                }
                Pick::Nothing => return false,
            }
        } else {
            vec![seq]
        };
        let cap_ms = lane.cfg.policy.backoff.max_ms;
        let mut admitted = true;
        for other in seqs.iter().filter(|other| **other != seq) {
            admitted &= self.admit(id, *other);
        }
        if !admitted {
            return false;
        }
        let sent = self.seal_or_send(id, seqs);
        if sent && trial {
            let at = self.now_ms.saturating_add(cap_ms);
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.trial = Some(seq);
                lane.trial_at_ms = at;
            }
            self.timers.insert((at, Timer::Trial(id)));
        }
        sent
    }

    /// Rule 1: with a write that is spent or held and no evidence, the next untried write of the
    /// lane is tried, one per backoff cap.
    fn send_trial(&mut self, id: LaneId) -> bool {
        match self.trial_candidate(id) {
            Some(seq) => self.send_alone(id, seq, true),
            None => false,
        }
    }

    /// The write a trial would send now.
    pub(crate) fn trial_candidate(&self, id: LaneId) -> Option<u64> {
        let lane = self.lanes.get(&id)?;
        if self.has(Bug::NoTrials) {
            return None;
        }
        if lane.stuck.is_empty()
            || lane.trial.is_some()
            || lane.trial_at_ms > self.now_ms
            || lane.room() == 0
        {
            return None;
        }
        lane.next_untried()
    }

    /// Puts a batch on its way.
    pub(crate) fn send(&mut self, id: LaneId, seqs: Vec<u64>, sealed: u64) {
        let request = self.new_request();
        self.mark = self.mark.saturating_add(1);
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let (Some(connection), Some(target)) = (
            self.connections.get_mut(&lane.cfg.connection),
            self.targets.get_mut(&lane.target),
        ) else {
            return;
        };
        let class = self.classes.resolve(lane.cfg.class);
        let clock = target.open_clock(self.now_ms);
        let prompt = target.was_up(self.now_ms);
        let second_copy = lane.cfg.repeat == Repeat::SecondCopy || lane.contradicted;
        let mut items = Vec::with_capacity(seqs.len());
        for seq in &seqs {
            let Some(write) = lane.writes.get_mut(seq) else {
                continue;
            };
            let repeat = write.is_maybe();
            write.ghost = None;
            write.resend = repeat;
            write.last_try = prompt && write.note.has(WriteNote::SPENT);
            write.age_mark.get_or_insert(clock);
            write.last_attempt_unix_ms = self.wall_unix_ms;
            if write.note.first_attempt_unix_ms == 0 {
                write.note.first_attempt_unix_ms = self.wall_unix_ms.max(1);
            }
            if repeat {
                let passed = write.note.has(WriteNote::WINDOW_PASSED);
                if (second_copy || passed) && write.resent_in != Some(u64::MAX) {
                    write.resent_in = Some(target.interruption);
                }
                lane.counts.resends += 1;
            }
            write.phase = Phase::InFlight(request);
            lane.counts.attempts += 1;
            items.push(SendItem {
                seq: *seq,
                may_be_repeat: repeat,
            });
        }
        let free_key = self.planted == Some(Bug::KeyNotBusy);
        for seq in &seqs {
            lane.refresh(*seq);
            lane.set_busy(*seq, true);
            if free_key {
                lane.forget_busy(*seq);
            }
        }
        lane.counts.requests += 1;
        for gate in [&mut connection.gate, &mut target.gate] {
            if gate.wants_canary() {
                gate.state = State::HalfOpen(Some(request));
            }
        }
        let deadline_ms = self.now_ms.saturating_add(lane.cfg.timeout_ms);
        connection.live.insert(request);
        self.classes
            .take(class, u32::try_from(items.len()).unwrap_or(u32::MAX));
        self.timers.insert((deadline_ms, Timer::Deadline(request)));
        let last = seqs.last().copied().unwrap_or(0);
        self.out.push_back(Output::Send(Send {
            request,
            lane: id,
            connection: lane.cfg.connection,
            items,
            sealed,
            deadline_ms,
        }));
        self.requests.insert(
            request,
            Request {
                lane: id,
                connection: lane.cfg.connection,
                class,
                seqs,
                sent_mark: self.mark,
                sent_ms: self.now_ms,
                sent_unix_ms: self.wall_unix_ms,
                deadline_ms,
                cancelling: false,
                by_operator: false,
            },
        );
        self.advance_frontier(id, last);
    }

    /// Asks for the next frontier while there is still room below the durable one.
    fn advance_frontier(&mut self, id: LaneId, sent: u64) {
        let Some(lane) = self.lanes.get(&id) else {
            return;
        };
        let limit = u64::from(lane.cfg.in_flight_limit);
        if !lane.is_volatile() && lane.frontier.saturating_sub(sent) < limit {
            self.ask_frontier(id, sent);
        }
    }

    /// Asks for a frontier that lets `seq` and the in-flight limit after it go.
    pub(crate) fn ask_frontier(&mut self, id: LaneId, seq: u64) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let wanted = seq.saturating_add(u64::from(lane.cfg.in_flight_limit).saturating_mul(2));
        if lane.frontier_asked >= seq.saturating_add(u64::from(lane.cfg.in_flight_limit)) {
            return;
        }
        lane.frontier_asked = wanted;
        let wall_unix_ms = self.wall_unix_ms;
        let ticket = self.new_ticket(Awaited::Frontier {
            lane: id,
            seq: wanted,
        });
        self.out.push_back(Output::Frontier {
            lane: id,
            seq: wanted,
            wall_unix_ms,
            ticket,
        });
    }
}

impl Lane {
    /// The first untried write behind a stuck head, in an order key that is at rest.
    pub(crate) fn next_untried(&self) -> Option<u64> {
        if self.cfg.after_park != AfterPark::Continue {
            return None;
        }
        let mut sealed = SealedLook::default();
        self.writes
            .iter()
            .find(|(_, write)| {
                write.is_untried()
                    && write.is_sendable()
                    && sealed.may_go(self, write.group, true)
                    && (self.is_unordered()
                        || self.keys.get(&write.order).is_some_and(|key| {
                            key.busy == 0
                                && key
                                    .seqs
                                    .front()
                                    .is_some_and(|head| self.stuck.contains(head))
                        }))
            })
            .map(|(seq, _)| *seq)
    }
}
