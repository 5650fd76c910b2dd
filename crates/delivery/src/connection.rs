//! A connection and its gate: probes, canaries, opening and closing, for it and its targets.

use crate::config::{ConnectionConfig, Repeat};
use crate::event::EventCode;
use crate::gate::{Cause, Gate, State};
use crate::ids::{ConnectionId, LaneId, RequestId};
use crate::input::{ProbeFailure, Verdict};
use crate::machine::{Delivery, Timer};
use crate::outcome::Detail;
use crate::output::Output;
use crate::planted::Bug;
use std::collections::BTreeSet;

/// Fenced instances after which a connection halts until restart: each may have left a plugin
/// task behind that can still write.
pub(crate) const MAX_FENCED: u32 = 3;

/// How long an inspection may hold up effectively-once resends, in milliseconds; past it the
/// destination counts as not inspected.
const INSPECT_LIMIT_MS: u64 = 30_000;

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) cfg: ConnectionConfig,
    pub(crate) gate: Gate,
    pub(crate) paused: bool,
    /// Fenced; the new instance is not there yet.
    pub(crate) rebuilding: bool,
    pub(crate) fenced: u32,
    pub(crate) lanes: BTreeSet<LaneId>,
    pub(crate) targets: BTreeSet<u32>,
    pub(crate) live: BTreeSet<RequestId>,
    /// Mark of the last answer that proves that the other side is there.
    pub(crate) answered_mark: u64,
}

impl Connection {
    pub(crate) fn new(cfg: ConnectionConfig, now_ms: u64) -> Self {
        Self {
            cfg,
            gate: Gate::starting(now_ms),
            paused: false,
            rebuilding: false,
            fenced: 0,
            lanes: BTreeSet::new(),
            targets: BTreeSet::new(),
            live: BTreeSet::new(),
            answered_mark: 0,
        }
    }
}

/// What a lane may send, as far as its gates go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Open,
    Canary,
    Blocked,
}

impl Delivery {
    /// What a lane may send.
    pub(crate) fn mode(&self, id: LaneId) -> Mode {
        let Some(lane) = self.lanes.get(&id) else {
            return Mode::Blocked;
        };
        let (Some(connection), Some(target)) = (
            self.connections.get(&lane.cfg.connection),
            self.targets.get(&lane.target),
        ) else {
            return Mode::Blocked;
        };
        if self.draining
            || lane.paused
            || lane.removing
            || connection.paused
            || connection.rebuilding
            || connection.gate.is_closed()
            || target.gate.is_closed()
        {
            return Mode::Blocked;
        }
        let gates = [&connection.gate, &target.gate];
        if self.has(Bug::NoCanary) {
            return Mode::Open;
        }
        if gates.iter().all(|gate| gate.is_open()) {
            return Mode::Open;
        }
        if gates
            .iter()
            .all(|gate| gate.is_open() || gate.wants_canary())
        {
            Mode::Canary
        } else {
            Mode::Blocked
        }
    }

    /// Whether a gate of this lane is closed by an outage or a denial: a live session is told so
    /// at once instead of being kept waiting.
    pub(crate) fn is_closed(&self, id: LaneId) -> bool {
        self.lanes.get(&id).is_some_and(|lane| {
            let connection = self
                .connections
                .get(&lane.cfg.connection)
                .map(|found| &found.gate);
            let target = self.targets.get(&lane.target).map(|found| &found.gate);
            connection
                .into_iter()
                .chain(target)
                .any(|gate| gate.is_closed() && gate.cause != Cause::Start)
        })
    }

    /// A probe of a closed gate is due.
    pub(crate) fn gate_due(&mut self, id: ConnectionId) {
        let now_ms = self.now_ms;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.gate.state != State::Closed
            || connection.rebuilding
            || connection.gate.try_at_ms.is_none_or(|at| at > now_ms)
            || connection.gate.probing_until_ms.is_some()
        {
            return;
        }
        let deadline_ms = now_ms.saturating_add(connection.cfg.probe_timeout_ms.max(1));
        connection.gate.probing_until_ms = Some(deadline_ms);
        connection.gate.try_at_ms = None;
        self.timers.insert((deadline_ms, Timer::Probe(id)));
        self.out.push_back(Output::Probe {
            connection: id,
            deadline_ms,
        });
    }

    pub(crate) fn probe_overdue(&mut self, id: ConnectionId) {
        let now_ms = self.now_ms;
        let overdue = self
            .connections
            .get(&id)
            .and_then(|connection| connection.gate.probing_until_ms)
            .is_some_and(|until| until <= now_ms);
        if overdue {
            let detail = Detail::new("probe_timeout", "the probe was not answered in time");
            self.probe_failed(
                id,
                ProbeFailure {
                    denied: false,
                    detail,
                },
            );
        }
    }

    pub(crate) fn probed(&mut self, id: ConnectionId, result: Result<(), ProbeFailure>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.gate.probing_until_ms.is_none() {
            return;
        }
        match result {
            Ok(()) if connection.gate.cause == Cause::Start => self.open_connection(id),
            Ok(()) => self.half_open_connection(id),
            Err(failure) => self.probe_failed(id, failure),
        }
    }

    fn probe_failed(&mut self, id: ConnectionId, failure: ProbeFailure) {
        let now_ms = self.now_ms;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let first = connection.gate.cause == Cause::Start;
        if failure.denied {
            let backoff = connection.cfg.backoff;
            let news = connection.gate.cause != Cause::Denied;
            connection
                .gate
                .close(Cause::Denied, 0, &backoff, &mut self.rng, now_ms);
            let at = connection.gate.try_at_ms.unwrap_or(now_ms);
            self.timers.insert((at, Timer::Gate(id)));
            if news {
                self.event(EventCode::Denied, None, Some(id), None, failure.detail);
            }
            return;
        }
        if first {
            connection.gate.cause = Cause::Outage;
            connection.gate.since_ms = now_ms;
        }
        let backoff = connection.cfg.backoff;
        let at_cap = connection
            .gate
            .probe_failed(&backoff, &mut self.rng, now_ms);
        if first {
            self.event(EventCode::GateClosed, None, Some(id), None, failure.detail);
        }
        if at_cap {
            self.half_open_connection(id);
        } else if let Some(at) = self
            .connections
            .get(&id)
            .and_then(|connection| connection.gate.try_at_ms)
        {
            self.timers.insert((at, Timer::Gate(id)));
        }
    }

    fn half_open_connection(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.gate.half_open();
            let lanes: Vec<LaneId> = connection.lanes.iter().copied().collect();
            for lane in lanes {
                self.inspect(lane);
                self.wake(lane);
            }
        }
    }

    /// Closes the gate of a connection, unless somebody else's canary is deciding.
    pub(crate) fn close_connection(
        &mut self,
        id: ConnectionId,
        request: Option<RequestId>,
        cause: Cause,
        detail: Detail,
    ) {
        let now_ms = self.now_ms;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let gate = &mut connection.gate;
        let decides = gate.is_open()
            || cause == Cause::Fenced
            || request.is_some_and(|request| gate.is_canary(request));
        if !decides || gate.state == State::Halted {
            return;
        }
        let was_open = gate.is_open();
        let news = was_open || (gate.cause != cause && cause == Cause::Denied);
        gate.close(cause, 0, &connection.cfg.backoff, &mut self.rng, now_ms);
        if let Some(at) = gate.try_at_ms {
            self.timers.insert((at, Timer::Gate(id)));
        }
        self.sync_clocks(id);
        if news {
            let code = match cause {
                Cause::Denied => EventCode::Denied,
                _ => EventCode::GateClosed,
            };
            self.event(code, None, Some(id), None, detail);
        }
        self.fire_due_gate(id);
    }

    fn fire_due_gate(&mut self, id: ConnectionId) {
        let due = self
            .connections
            .get(&id)
            .and_then(|connection| connection.gate.try_at_ms)
            .is_some_and(|at| at <= self.now_ms);
        if due {
            self.gate_due(id);
        }
    }

    /// The canary got through, or the first probe did.
    pub(crate) fn open_connection(&mut self, id: ConnectionId) {
        let now_ms = self.now_ms;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.gate.is_open() || connection.gate.state == State::Halted {
            return;
        }
        let cause = connection.gate.cause;
        let was_half_open = connection.gate.is_half_open();
        connection.gate.reopen(now_ms);
        let lanes: Vec<LaneId> = connection.lanes.iter().copied().collect();
        let code = match cause {
            Cause::Start => None,
            Cause::Denied => Some(EventCode::DeniedOver),
            _ => Some(EventCode::GateOpened),
        };
        if let Some(code) = code {
            self.event(
                code,
                None,
                Some(id),
                None,
                Detail::new(code.name(), "writes get through again"),
            );
        }
        self.sync_clocks(id);
        for lane in lanes {
            if !was_half_open {
                self.inspect(lane);
            }
            self.wake(lane);
        }
    }

    /// Closes the gate of a target.
    pub(crate) fn close_target(
        &mut self,
        number: u32,
        request: Option<RequestId>,
        cause: Cause,
        pause_ms: u64,
        detail: Detail,
    ) {
        let now_ms = self.now_ms;
        let Some(target) = self.targets.get_mut(&number) else {
            return;
        };
        let Some(connection) = self.connections.get(&target.connection) else {
            return;
        };
        let gate = &mut target.gate;
        // A longer pause asked for by another answer counts; everything else leaves a closed
        // gate, or somebody else's canary, alone.
        let longer = gate.state == State::Closed
            && gate.cause == Cause::Throttled
            && cause == Cause::Throttled
            && gate.try_at_ms.is_some_and(|at| {
                at < now_ms.saturating_add(pause_ms.min(crate::gate::MAX_THROTTLE_MS))
            });
        let decides =
            gate.is_open() || longer || request.is_some_and(|request| gate.is_canary(request));
        if !decides {
            return;
        }
        let news = gate.is_open() || (gate.cause != cause && cause == Cause::Denied);
        gate.close(
            cause,
            pause_ms,
            &connection.cfg.backoff,
            &mut self.rng,
            now_ms,
        );
        if let Some(at) = gate.try_at_ms {
            self.timers.insert((at, Timer::Target(number)));
        }
        let (connection_id, lane) = (target.connection, target.lanes.first().copied());
        self.sync_clock(number);
        if news {
            let code = match cause {
                Cause::Denied => EventCode::Denied,
                Cause::Throttled => EventCode::Throttled,
                _ => EventCode::TargetClosed,
            };
            self.event(code, lane, Some(connection_id), None, detail);
        }
    }

    /// A canary to a closed target is due.
    pub(crate) fn target_due(&mut self, number: u32) {
        let now_ms = self.now_ms;
        let Some(target) = self.targets.get_mut(&number) else {
            return;
        };
        if target.gate.state == State::Closed
            && target.gate.try_at_ms.is_some_and(|at| at <= now_ms)
        {
            self.half_open_target(number);
        }
    }

    pub(crate) fn half_open_target(&mut self, number: u32) {
        if let Some(target) = self.targets.get_mut(&number) {
            target.gate.half_open();
            let lanes: Vec<LaneId> = target.lanes.iter().copied().collect();
            lanes.into_iter().for_each(|lane| self.wake(lane));
        }
    }

    /// The target answered its canary.
    pub(crate) fn open_target(&mut self, number: u32) {
        let now_ms = self.now_ms;
        let Some(target) = self.targets.get_mut(&number) else {
            return;
        };
        if target.gate.is_open() {
            return;
        }
        let cause = target.gate.cause;
        target.gate.reopen(now_ms);
        target.vanished.clear();
        let lanes: Vec<LaneId> = target.lanes.iter().copied().collect();
        let (connection, first) = (target.connection, lanes.first().copied());
        let code = match cause {
            Cause::Denied => Some(EventCode::DeniedOver),
            Cause::Throttled => None,
            _ => Some(EventCode::TargetOpened),
        };
        if let Some(code) = code {
            self.event(
                code,
                first,
                Some(connection),
                None,
                Detail::new(code.name(), "writes get through again"),
            );
        }
        self.sync_clock(number);
        lanes.into_iter().for_each(|lane| self.wake(lane));
    }

    /// `max_age` runs only while both gates are open.
    pub(crate) fn sync_clock(&mut self, number: u32) {
        let now_ms = self.now_ms;
        if let Some(target) = self.targets.get_mut(&number) {
            let open = target.gate.is_open()
                && self
                    .connections
                    .get(&target.connection)
                    .is_some_and(|connection| connection.gate.is_open());
            target.run_clock(open, now_ms);
        }
    }

    pub(crate) fn sync_clocks(&mut self, id: ConnectionId) {
        let targets: Vec<u32> = self
            .connections
            .get(&id)
            .map(|connection| connection.targets.iter().copied().collect())
            .unwrap_or_default();
        targets
            .into_iter()
            .for_each(|number| self.sync_clock(number));
    }

    /// Asks what the destination of a lane really does, where that decides about resends.
    pub(crate) fn inspect(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let reachable = self
            .connections
            .get(&lane.cfg.connection)
            .is_some_and(|connection| !connection.gate.is_closed() && !connection.rebuilding);
        if reachable
            && lane.cfg.inspected
            && !lane.inspecting
            && matches!(lane.cfg.repeat, Repeat::Dropped { .. })
        {
            lane.inspecting = true;
            self.timers.insert((
                self.now_ms.saturating_add(INSPECT_LIMIT_MS),
                Timer::Inspect(id),
            ));
            self.out.push_back(Output::Inspect { lane: id });
        }
    }

    pub(crate) fn inspection_overdue(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.inspecting = false;
            self.wake(id);
        }
    }

    pub(crate) fn inspected(&mut self, id: LaneId, verdict: Verdict, window_ms: Option<u64>) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.inspecting = false;
        lane.inspected_window_ms = window_ms;
        let was = lane.contradicted;
        match verdict {
            Verdict::Verified => lane.contradicted = false,
            Verdict::Contradicted => lane.contradicted = true,
            Verdict::NotInspected => {}
        }
        let (connection, now_contradicted) = (lane.cfg.connection, lane.contradicted);
        if now_contradicted && !was {
            self.event(
                EventCode::PromiseContradicted,
                Some(id),
                Some(connection),
                None,
                Detail::new(
                    "promise_contradicted",
                    "the destination does not drop repeats: at least once from here on",
                ),
            );
        }
        self.wake(id);
    }
}
