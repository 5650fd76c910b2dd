//! What status pages and metrics read.

use crate::connection::Mode;
use crate::gate::Cause;
use crate::ids::{ConnectionId, LaneId};
use crate::lane::Phase;
use crate::machine::Delivery;
use crate::output::SettleResult;

/// A snapshot of one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneStats {
    /// Which.
    pub lane: LaneId,
    /// The connection it sends over.
    pub connection: ConnectionId,
    /// The target it writes to, unique within the connection.
    pub target: String,
    /// What it is doing.
    pub state: LaneState,
    /// Writes in flight.
    pub in_flight: u32,
    /// Answered, settlement not yet durable.
    pub settling: u32,
    /// Writes held as metadata.
    pub window: u32,
    /// Writes that failed and wait for their next attempt.
    pub retrying: u32,
    /// Maybe-applied writes held after an ambiguous resend.
    pub ambiguous: u32,
    /// Order keys held by parked writes.
    pub held_keys: u32,
    /// Since this host started, by result.
    pub counts: LaneCounts,
}

/// What a lane is doing, the first that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaneState {
    /// A person paused it, or its connection.
    Paused,
    /// It is being removed, leaves its target, or the host drains.
    Draining,
    /// One write fails and no other can tell whether it is the write or the target.
    HaltedOnOneWrite,
    /// Credentials are denied, or the connection was fenced too often.
    Halted,
    /// The gate of its connection is closed or half-open.
    GateClosed,
    /// The gate of its target is closed or half-open.
    TargetClosed,
    /// The destination asked for a pause.
    Throttled,
    /// Its head waits for its next attempt, a person, a handler or durability.
    Waiting,
    /// Writes are on their way.
    Sending,
    /// Nothing to send.
    Idle,
}

impl LaneState {
    /// The name in status, console and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Draining => "draining",
            Self::HaltedOnOneWrite => "halted_on_one_write",
            Self::Halted => "halted",
            Self::GateClosed => "gate_closed",
            Self::TargetClosed => "target_closed",
            Self::Throttled => "throttled",
            Self::Waiting => "waiting",
            Self::Sending => "sending",
            Self::Idle => "idle",
        }
    }
}

/// Counters of one lane since this host started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// Requests sent.
    pub requests: u64,
    /// Attempts, summed over writes.
    pub attempts: u64,
    /// Attempts of writes that may have landed before.
    pub resends: u64,
    /// Settled, by result code ([`SettleResult::code`]).
    pub settled: [u64; 11],
}

impl LaneCounts {
    /// Writes settled with this result.
    #[must_use]
    pub fn of(&self, result: SettleResult) -> u64 {
        self.settled
            .get(usize::from(result.code()))
            .copied()
            .unwrap_or(0)
    }

    pub(crate) fn count(&mut self, result: SettleResult) {
        if let Some(slot) = self.settled.get_mut(usize::from(result.code())) {
            *slot += 1;
        }
    }
}

/// A gate as its lanes see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GateState {
    /// Writes flow.
    Open,
    /// One canary decides.
    HalfOpen,
    /// Nothing is sent.
    Closed,
    /// Until a person acts; a canary goes at the backoff cap.
    Denied,
    /// Until restart.
    Halted,
}

impl GateState {
    /// The name in status, console and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::HalfOpen => "half_open",
            Self::Closed => "closed",
            Self::Denied => "denied",
            Self::Halted => "halted",
        }
    }
}

/// A snapshot of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionStats {
    /// Which.
    pub connection: ConnectionId,
    /// Its gate.
    pub gate: GateState,
    /// Monotonic time of the last change, in milliseconds.
    pub since_ms: u64,
    /// Monotonic time of the next probe or canary, where one is due.
    pub next_try_ms: Option<u64>,
    /// Requests in flight.
    pub in_flight: u32,
    /// Fenced instances since this host started.
    pub fenced: u32,
    /// Interruptions since this host started, summed over its targets.
    pub interruptions: u64,
    /// Its targets and their gates.
    pub targets: Vec<(String, GateState)>,
}

impl Delivery {
    /// All lanes.
    pub fn lanes(&self) -> impl Iterator<Item = LaneId> + '_ {
        self.lanes.keys().copied()
    }

    /// All connections.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.connections.keys().copied()
    }

    /// Requests on their way.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        count(self.requests.len())
    }

    /// A snapshot of one lane; O(its window).
    #[must_use]
    pub fn lane_stats(&self, id: LaneId) -> Option<LaneStats> {
        let lane = self.lanes.get(&id)?;
        let phases = |wanted: fn(&Phase) -> bool| {
            count(
                lane.writes
                    .values()
                    .filter(|write| wanted(&write.phase))
                    .count(),
            )
        };
        Some(LaneStats {
            lane: id,
            connection: lane.cfg.connection,
            target: lane.cfg.target.clone(),
            state: self.lane_state(id),
            in_flight: lane.in_flight,
            settling: count(lane.settling.len()),
            window: count(lane.writes.len()),
            retrying: phases(|phase| matches!(phase, Phase::Backoff { .. })),
            ambiguous: phases(|phase| *phase == Phase::Held),
            held_keys: count(lane.held.len()),
            counts: lane.counts.clone(),
        })
    }

    fn lane_state(&self, id: LaneId) -> LaneState {
        let Some(lane) = self.lanes.get(&id) else {
            return LaneState::Idle;
        };
        let (Some(connection), Some(target)) = (
            self.connections.get(&lane.cfg.connection),
            self.targets.get(&lane.target),
        ) else {
            return LaneState::Idle;
        };
        let halted = |gate: GateState| matches!(gate, GateState::Halted | GateState::Denied);
        if lane.paused || connection.paused {
            LaneState::Paused
        } else if lane.removing || lane.leaving_until_ms.is_some() || self.draining {
            LaneState::Draining
        } else if lane.halted_on.is_some() {
            LaneState::HaltedOnOneWrite
        } else if halted(connection.gate.shown()) || halted(target.gate.shown()) {
            LaneState::Halted
        } else if !connection.gate.is_open() || connection.rebuilding {
            LaneState::GateClosed
        } else if !target.gate.is_open() && target.gate.cause == Cause::Throttled {
            LaneState::Throttled
        } else if !target.gate.is_open() {
            LaneState::TargetClosed
        } else if lane.in_flight > 0 {
            LaneState::Sending
        } else if lane.writes.is_empty() && lane.held.is_empty() {
            LaneState::Idle
        } else if self.mode(id) == Mode::Open && !lane.ready.is_empty() {
            LaneState::Sending
        } else {
            LaneState::Waiting
        }
    }

    /// A snapshot of one connection; O(its targets).
    #[must_use]
    pub fn connection_stats(&self, id: ConnectionId) -> Option<ConnectionStats> {
        let connection = self.connections.get(&id)?;
        let targets = || {
            connection
                .targets
                .iter()
                .filter_map(|number| self.targets.get(number))
        };
        Some(ConnectionStats {
            connection: id,
            gate: connection.gate.shown(),
            since_ms: connection.gate.since_ms,
            next_try_ms: connection.gate.try_at_ms,
            in_flight: count(connection.live.len()),
            fenced: connection.fenced,
            interruptions: targets().map(|target| target.interruption).sum(),
            targets: targets()
                .map(|target| (target.name.clone(), target.gate.shown()))
                .collect(),
        })
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
