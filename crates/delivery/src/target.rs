//! A target: what lanes of one connection write to in common; evidence and interruptions are kept here.

use crate::gate::Gate;
use crate::ids::{ConnectionId, LaneId};
use std::collections::{BTreeMap, BTreeSet};

/// Distinct writes that fail in a row, with none delivered between, before the target counts as
/// out of order even though each answer spoke of its write only. Below it a single poison write
/// in each of two lanes would look like an outage; above it an outage that answers 500 costs one
/// attempt of each write.
pub(crate) const SUSPECT_WRITES: usize = 3;

/// How soon after a delivery a last try must leave to tell anything about its write: later, an
/// outage may have begun meanwhile.
const PROMPT_MS: u64 = 5_000;

/// When a write failed: marks of the machine. A delivery tells something about a failure only if
/// its request left after it: an answer that was on its way when an outage began proves nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failures {
    /// The first failure that is not charged.
    pub(crate) first: u64,
    /// The last one.
    pub(crate) last: u64,
}

/// One target.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) connection: ConnectionId,
    pub(crate) gate: Gate,
    pub(crate) lanes: BTreeSet<LaneId>,
    /// Writes with failures that no delivery followed yet, and when they failed.
    pub(crate) suspects: BTreeMap<(LaneId, u64), Failures>,
    /// Writes whose resend was ambiguous, too, and the mark of its answer.
    pub(crate) ambiguous: BTreeMap<(LaneId, u64), u64>,
    /// Distinct writes that failed since the last delivery, and the mark of their last failure; at
    /// most [`SUSPECT_WRITES`].
    pub(crate) failing: BTreeMap<(LaneId, u64), u64>,
    /// Those of them that may have been applied.
    pub(crate) vanished: BTreeSet<(LaneId, u64)>,
    /// Lanes that would report `halted_on_one_write` but for others on their way.
    pub(crate) uneasy: BTreeSet<LaneId>,
    /// Number of the interruption it is in, or was in last.
    pub(crate) interruption: u64,
    pub(crate) interrupted: bool,
    /// When a write of it was last delivered.
    pub(crate) delivered_ms: Option<u64>,
    /// Milliseconds during which both gates were open.
    open_clock_ms: u64,
    open_since_ms: Option<u64>,
}

impl Target {
    pub(crate) fn new(name: String, connection: ConnectionId, now_ms: u64) -> Self {
        Self {
            name,
            connection,
            gate: Gate::open(now_ms),
            lanes: BTreeSet::new(),
            suspects: BTreeMap::new(),
            ambiguous: BTreeMap::new(),
            failing: BTreeMap::new(),
            vanished: BTreeSet::new(),
            uneasy: BTreeSet::new(),
            interruption: 0,
            interrupted: false,
            delivered_ms: None,
            open_clock_ms: 0,
            open_since_ms: None,
        }
    }

    /// A write may have been applied and nobody said so: the interruption runs from the first one.
    pub(crate) fn interrupt(&mut self) {
        if !self.interrupted {
            self.interrupted = true;
            self.interruption = self.interruption.saturating_add(1);
        }
    }

    /// A write of it failed.
    pub(crate) fn suspect(&mut self, write: (LaneId, u64), mark: u64) {
        self.suspects
            .entry(write)
            .or_insert(Failures {
                first: mark,
                last: mark,
            })
            .last = mark;
        if self.failing.len() < SUSPECT_WRITES || self.failing.contains_key(&write) {
            self.failing.insert(write, mark);
        }
    }

    /// Whether it delivered a moment ago.
    pub(crate) fn was_up(&self, now_ms: u64) -> bool {
        self.delivered_ms
            .is_some_and(|at| now_ms.saturating_sub(at) <= PROMPT_MS)
    }

    /// The clock that runs while writes may flow: `max_age` is measured on it.
    pub(crate) fn open_clock(&self, now_ms: u64) -> u64 {
        let running = self
            .open_since_ms
            .map_or(0, |since| now_ms.saturating_sub(since));
        self.open_clock_ms.saturating_add(running)
    }

    /// Starts or stops that clock.
    pub(crate) fn run_clock(&mut self, open: bool, now_ms: u64) {
        match (open, self.open_since_ms) {
            (true, None) => self.open_since_ms = Some(now_ms),
            (false, Some(_)) => {
                self.open_clock_ms = self.open_clock(now_ms);
                self.open_since_ms = None;
            }
            _ => {}
        }
    }
}
