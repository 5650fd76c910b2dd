//! The machine itself: what it holds, how inputs are dispatched, timers and the pass over changed lanes.

use crate::classes::Classes;
use crate::config::{ConnectionConfig, HostLimits, LaneConfig, Repeat};
use crate::connection::Connection;
use crate::event::{Event, EventCode};
use crate::ids::{ClassId, ConnectionId, LaneId, RequestId, Ticket};
use crate::input::Input;
use crate::lane::{Lane, Phase};
use crate::outcome::Detail;
use crate::output::Output;
use crate::planted::Bug;
use crate::request::{Ghost, Request};
use crate::rng::Rng;
use crate::target::Target;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How far the wall clock may step back before it counts as gone back, in milliseconds: less is
/// the slewing of an ordinary time service.
const CLOCK_SLACK_MS: u64 = 1_000;

/// What a timer wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Backoff(LaneId, u64),
    Deadline(RequestId),
    Grace(RequestId),
    Gate(ConnectionId),
    Probe(ConnectionId),
    Target(u32),
    Linger(LaneId),
    Trial(LaneId),
    Expiry(LaneId),
    Tokens(ClassId),
    GiveUp(LaneId, u64),
    Inspect(LaneId),
    Leave(LaneId),
    Drain,
}

/// What a ticket stands for.
#[derive(Debug)]
pub(crate) enum Awaited {
    Frontier { lane: LaneId, seq: u64 },
    Note { lane: LaneId, seqs: Vec<u64> },
    Settle { lane: LaneId, seqs: Vec<u64> },
}

/// The state machine of all lanes, gates and retries of a host. See the crate's head.
#[derive(Debug)]
pub struct Delivery {
    pub(crate) now_ms: u64,
    pub(crate) wall_unix_ms: u64,
    /// How far the wall clock went back in all: what was noted before, in a lane that is not here or
    /// past a window, is older by so much than the clock says.
    pub(crate) clock_back_ms: u64,
    pub(crate) rng: Rng,
    pub(crate) lanes: BTreeMap<LaneId, Lane>,
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    pub(crate) targets: BTreeMap<u32, Target>,
    target_numbers: BTreeMap<(ConnectionId, String), u32>,
    next_target: u32,
    pub(crate) classes: Classes,
    pub(crate) requests: BTreeMap<RequestId, Request>,
    pub(crate) ghosts: BTreeMap<RequestId, Ghost>,
    pub(crate) tickets: BTreeMap<Ticket, Awaited>,
    pub(crate) timers: BTreeSet<(u64, Timer)>,
    next_request: u64,
    next_ticket: u64,
    /// Grows with each send and each answer: tells what came before what.
    pub(crate) mark: u64,
    pub(crate) out: VecDeque<Output>,
    touched: Vec<LaneId>,
    /// Gates whose lanes were looked at for a canary in this pass: of a target, or of a connection.
    pub(crate) canary_scans: BTreeSet<(bool, u32)>,
    pub(crate) draining: bool,
    pub(crate) drained: bool,
    pub(crate) planted: Option<Bug>,
}

impl Delivery {
    /// A machine without lanes. Equal seeds and inputs give equal outputs.
    #[must_use]
    pub fn new(limits: HostLimits, seed: u64) -> Self {
        Self {
            now_ms: 0,
            wall_unix_ms: 0,
            clock_back_ms: 0,
            rng: Rng::new(seed),
            lanes: BTreeMap::new(),
            connections: BTreeMap::new(),
            targets: BTreeMap::new(),
            target_numbers: BTreeMap::new(),
            next_target: 0,
            classes: Classes::new(&limits),
            requests: BTreeMap::new(),
            ghosts: BTreeMap::new(),
            tickets: BTreeMap::new(),
            timers: BTreeSet::new(),
            next_request: 1,
            next_ticket: 1,
            mark: 0,
            out: VecDeque::new(),
            touched: Vec::new(),
            canary_scans: BTreeSet::new(),
            draining: false,
            drained: false,
            planted: None,
        }
    }

    /// Takes one input. `now_ms` is monotonic and never goes back; `wall_unix_ms` may do anything.
    /// Inputs about lanes, requests or tickets that are unknown are ignored: they are late.
    pub fn handle(&mut self, now_ms: u64, wall_unix_ms: u64, input: Input) {
        self.now_ms = self.now_ms.max(now_ms);
        if wall_unix_ms.saturating_add(CLOCK_SLACK_MS) < self.wall_unix_ms {
            self.clock_went_back(wall_unix_ms);
        }
        self.wall_unix_ms = wall_unix_ms;
        self.fire_timers();
        match input {
            Input::Tick => {}
            Input::Limits(limits) => {
                self.classes.configure(&limits, self.now_ms);
                let lanes: Vec<LaneId> = self.lanes.keys().copied().collect();
                lanes.into_iter().for_each(|lane| self.wake(lane));
            }
            Input::AddConnection(config) => self.add_connection(config),
            Input::RemoveConnection { connection } => self.remove_connection(connection),
            Input::AddLane(config) => self.add_lane(*config),
            Input::RemoveLane { lane } => {
                // One that leaves its target goes once what may have landed there is finished.
                if let Some(found) = self.lanes.get_mut(&lane)
                    && found.leaving_until_ms.is_none()
                {
                    found.removing = true;
                    self.touch(lane);
                }
            }
            Input::LeaveTarget { lane, until_ms } => self.leave_target(lane, until_ms),
            Input::Available { lane } => self.available(lane),
            Input::Fetched { lane, writes, more } => self.fetched(lane, &writes, more),
            Input::Durable { ticket } => self.durable(ticket),
            Input::Answered { request, outcomes } => self.answered(request, &outcomes),
            Input::CancelAcknowledged { request, applied } => {
                self.cancel_acknowledged(request, applied);
            }
            Input::Probed { connection, result } => self.probed(connection, result),
            Input::Rebuilt { connection } => self.rebuilt(connection),
            Input::Inspected {
                lane,
                verdict,
                window_ms,
            } => self.inspected(lane, verdict, window_ms),
            Input::Decided {
                lane,
                seq,
                decision,
            } => self.decided(lane, seq, decision),
            Input::Direct { lane, write } => self.direct(lane, &write),
            Input::Withdraw { lane, seq } => self.withdraw(lane, seq),
            Input::Operator(act) => self.act(act),
            Input::Drain { deadline_ms } => {
                self.draining = true;
                self.timers.insert((deadline_ms, Timer::Drain));
            }
        }
    }

    /// Runs one pass over what changed and hands out what is to be done, in order.
    pub fn outputs(&mut self) -> impl Iterator<Item = Output> + '_ {
        self.schedule();
        self.flush();
        self.out.drain(..)
    }

    /// When [`Input::Tick`] is due at the latest, on the monotonic clock.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    pub(crate) fn new_request(&mut self) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request = self.next_request.saturating_add(1);
        id
    }

    pub(crate) fn new_ticket(&mut self, awaited: Awaited) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket = self.next_ticket.saturating_add(1);
        self.tickets.insert(ticket, awaited);
        ticket
    }

    /// Puts a lane into its class's queue: it may have something to send.
    pub(crate) fn wake(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && !lane.queued
        {
            lane.queued = true;
            let class = self.classes.resolve(lane.cfg.class);
            self.classes.enqueue(class, id);
        }
    }

    /// A lane has settlements, notes or a fetch to hand out at the end of the pass.
    pub(crate) fn touch(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && !lane.touched
        {
            lane.touched = true;
            self.touched.push(id);
        }
    }

    pub(crate) fn take_touched(&mut self) -> Vec<LaneId> {
        std::mem::take(&mut self.touched)
    }

    pub(crate) fn event(
        &mut self,
        code: EventCode,
        lane: Option<LaneId>,
        connection: Option<ConnectionId>,
        seq: Option<u64>,
        detail: Detail,
    ) {
        self.out.push_back(Output::Event(Event {
            code,
            lane,
            connection,
            seq,
            detail,
        }));
    }

    pub(crate) fn lane_event(&mut self, code: EventCode, lane: LaneId, seq: u64, message: &str) {
        self.event(
            code,
            Some(lane),
            None,
            Some(seq),
            Detail::new(code.name(), message),
        );
    }

    fn add_connection(&mut self, config: ConnectionConfig) {
        let id = config.id;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.cfg = config;
            return;
        }
        self.connections
            .insert(id, Connection::new(config, self.now_ms));
        self.timers.insert((self.now_ms, Timer::Gate(id)));
        self.fire_timers();
    }

    fn remove_connection(&mut self, id: ConnectionId) {
        if self
            .connections
            .get(&id)
            .is_some_and(|connection| connection.lanes.is_empty())
        {
            self.connections.remove(&id);
        }
    }

    fn add_lane(&mut self, config: LaneConfig) {
        let id = config.id;
        let Some(connection) = self.connections.get_mut(&config.connection) else {
            return;
        };
        if let Some(lane) = self.lanes.get_mut(&id) {
            if lane.leaving_until_ms.is_some() || !lane.cfg.takes_in_place(&config) {
                return;
            }
            self.reconfigure_lane(id, config);
        } else {
            connection.lanes.insert(id);
            let place = (config.connection, config.target.clone());
            let number = *self.target_numbers.entry(place).or_insert_with(|| {
                self.next_target = self.next_target.saturating_add(1);
                self.next_target
            });
            connection.targets.insert(number);
            let (name, connection_id) = (config.target.clone(), config.connection);
            let target = self
                .targets
                .entry(number)
                .or_insert_with(|| Target::new(name, connection_id, self.now_ms));
            target.lanes.insert(id);
            self.lanes
                .insert(id, Lane::new(config, number, self.wall_unix_ms));
            self.sync_clock(number);
        }
        self.inspect(id);
        self.wake(id);
        self.touch(id);
    }

    /// Forgets a lane that has nothing left in flight.
    pub(crate) fn drop_lane(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.remove(&id) else {
            return;
        };
        let mut target_empty = false;
        if let Some(target) = self.targets.get_mut(&lane.target) {
            target.lanes.remove(&id);
            target.suspects.retain(|(other, _), _| *other != id);
            target.ambiguous.retain(|(other, _), _| *other != id);
            target.failing.retain(|(other, _), _| *other != id);
            target.vanished.retain(|(other, _)| *other != id);
            target.uneasy.remove(&id);
            target_empty = target.lanes.is_empty();
        }
        if let Some(connection) = self.connections.get_mut(&lane.cfg.connection) {
            connection.lanes.remove(&id);
            if target_empty {
                connection.targets.remove(&lane.target);
            }
        }
        if target_empty {
            self.targets.remove(&lane.target);
            self.target_numbers
                .remove(&(lane.cfg.connection, lane.cfg.target));
        }
        self.out.push_back(Output::LaneRemoved { lane: id });
    }

    fn fire_timers(&mut self) {
        while let Some((at, timer)) = self.timers.first().copied() {
            if at > self.now_ms {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::Backoff(lane, seq) => self.backoff_over(lane, seq),
                Timer::Deadline(request) => self.deadline(request),
                Timer::Grace(request) => self.grace_over(request),
                Timer::Gate(connection) => self.gate_due(connection),
                Timer::Probe(connection) => self.probe_overdue(connection),
                Timer::Target(target) => self.target_due(target),
                Timer::Linger(lane) | Timer::Trial(lane) => self.wake(lane),
                Timer::Leave(lane) => self.touch(lane),
                Timer::Expiry(lane) => {
                    self.wake(lane);
                    self.touch(lane);
                }
                Timer::Tokens(_) => {}
                Timer::GiveUp(lane, seq) => self.give_up(lane, seq),
                Timer::Inspect(lane) => self.inspection_overdue(lane),
                Timer::Drain => self.drain_deadline(),
            }
        }
    }

    fn backoff_over(&mut self, id: LaneId, seq: u64) {
        let now_ms = self.now_ms;
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let due = lane.writes.get(&seq).is_some_and(
            |write| matches!(write.phase, Phase::Backoff { until_ms } if until_ms <= now_ms),
        );
        if due {
            lane.set_phase(seq, Phase::Ready);
            self.wake(id);
        }
    }

    /// Durable wall times are only good for a clock that does not go back: those of pending
    /// maybe-applied writes are brought to the new clock, by their monotonic age.
    fn clock_went_back(&mut self, wall_unix_ms: u64) {
        self.event(
            EventCode::ClockWentBack,
            None,
            None,
            None,
            Detail::new("clock_went_back", "the wall clock went back"),
        );
        let back_ms = self.wall_unix_ms.saturating_sub(wall_unix_ms);
        self.clock_back_ms = self.clock_back_ms.saturating_add(back_ms);
        let now_ms = self.now_ms;
        let mut changed = Vec::new();
        for (id, lane) in &mut self.lanes {
            let windowed = matches!(
                lane.cfg.repeat,
                Repeat::Dropped {
                    window_ms: Some(_),
                    ..
                }
            );
            if !windowed {
                continue;
            }
            for (seq, write) in &mut lane.writes {
                if let Some(age) = write.maybe_age {
                    let age_ms = age.age_ms.saturating_add(now_ms.saturating_sub(age.at_ms));
                    write.note.first_maybe_unix_ms = wall_unix_ms.saturating_sub(age_ms).max(1);
                    changed.push((*id, *seq));
                }
            }
        }
        for (id, seq) in changed {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.mark_note(seq);
            }
            self.touch(id);
        }
    }
}
