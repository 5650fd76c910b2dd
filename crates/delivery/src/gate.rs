//! A gate: open, half-open, closed, for a connection or for one target of it.

use crate::ids::{Backoff, RequestId};
use crate::rng::Rng;
use crate::stats::GateState;

/// Longest pause a destination may ask for (rule table: clamped to 1 h).
pub(crate) const MAX_THROTTLE_MS: u64 = 3_600_000;

/// Why a gate is not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Not connected yet.
    Start,
    /// An outage.
    Outage,
    /// Credentials are denied.
    Denied,
    /// The destination asked for a pause.
    Throttled,
    /// The connection's instance was fenced.
    Fenced,
}

/// How a gate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    /// One canary decides; `None` while it is being chosen.
    HalfOpen(Option<RequestId>),
    /// Nothing goes until `try_at_ms`.
    Closed,
    /// Until restart.
    Halted,
}

/// A gate.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    pub(crate) state: State,
    pub(crate) cause: Cause,
    /// Number of failed openings: the backoff's exponent.
    step: u32,
    pub(crate) since_ms: u64,
    /// When the next probe or canary is due.
    pub(crate) try_at_ms: Option<u64>,
    /// A probe is out, and when it counts as failed.
    pub(crate) probing_until_ms: Option<u64>,
}

impl Gate {
    /// Closed, with a probe due at once.
    pub(crate) fn starting(now_ms: u64) -> Self {
        Self {
            state: State::Closed,
            cause: Cause::Start,
            step: 0,
            since_ms: now_ms,
            try_at_ms: Some(now_ms),
            probing_until_ms: None,
        }
    }

    /// Open.
    pub(crate) fn open(now_ms: u64) -> Self {
        Self {
            state: State::Open,
            cause: Cause::Start,
            step: 0,
            since_ms: now_ms,
            try_at_ms: None,
            probing_until_ms: None,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub(crate) fn is_half_open(&self) -> bool {
        matches!(self.state, State::HalfOpen(_))
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::Halted)
    }

    /// Whether this request is the canary.
    pub(crate) fn is_canary(&self, request: RequestId) -> bool {
        self.state == State::HalfOpen(Some(request))
    }

    /// Half-open and free for a canary.
    pub(crate) fn wants_canary(&self) -> bool {
        self.state == State::HalfOpen(None)
    }

    /// Closes for `cause`; the next try is due after the backoff, at its cap where only a person
    /// helps, or after the pause that was asked for.
    pub(crate) fn close(
        &mut self,
        cause: Cause,
        pause_ms: u64,
        backoff: &Backoff,
        rng: &mut Rng,
        now_ms: u64,
    ) {
        if self.state == State::Halted {
            return;
        }
        if self.is_open() {
            self.step = 0;
        } else {
            self.step = self.step.saturating_add(1);
        }
        if self.is_open() || self.cause != cause {
            self.since_ms = now_ms;
        }
        self.state = State::Closed;
        self.cause = cause;
        self.probing_until_ms = None;
        let wait = match cause {
            Cause::Denied => backoff.max_ms.max(1),
            Cause::Throttled if pause_ms > 0 => pause_ms.min(MAX_THROTTLE_MS),
            Cause::Fenced => 0,
            _ => rng.jitter(backoff.bound_ms(self.step)),
        };
        self.try_at_ms = Some(now_ms.saturating_add(wait));
    }

    /// A probe failed: wait longer. `true` when the backoff is at its cap, where a canary goes
    /// without a good probe.
    pub(crate) fn probe_failed(&mut self, backoff: &Backoff, rng: &mut Rng, now_ms: u64) -> bool {
        self.probing_until_ms = None;
        let at_cap = backoff.at_cap(self.step);
        self.step = self.step.saturating_add(1);
        self.try_at_ms = Some(now_ms.saturating_add(rng.jitter(backoff.bound_ms(self.step))));
        at_cap
    }

    /// Half-open: a canary may go.
    pub(crate) fn half_open(&mut self) {
        if self.state == State::Closed {
            self.state = State::HalfOpen(None);
            self.try_at_ms = None;
            self.probing_until_ms = None;
        }
    }

    /// Writes flow again.
    pub(crate) fn reopen(&mut self, now_ms: u64) {
        if self.state == State::Halted {
            return;
        }
        *self = Self::open(now_ms);
    }

    /// Until restart.
    pub(crate) fn halt(&mut self, now_ms: u64) {
        self.state = State::Halted;
        self.since_ms = now_ms;
        self.try_at_ms = None;
        self.probing_until_ms = None;
    }

    /// As shown.
    pub(crate) fn shown(&self) -> GateState {
        match (self.state, self.cause) {
            (State::Open, _) => GateState::Open,
            (State::Halted, _) => GateState::Halted,
            (_, Cause::Denied) => GateState::Denied,
            (State::HalfOpen(_), _) => GateState::HalfOpen,
            (State::Closed, _) => GateState::Closed,
        }
    }
}
