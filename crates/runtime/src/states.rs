//! The words for the states of a host's parts, as status, API and page show them. docs/operating.md has
//! a section for each; `tests/operating.rs` holds that.

use crate::source::SourceState;
use consign_buffer::Health;
use consign_delivery::{GateState, LaneState, SettleResult};

/// A lane whose part of the host does not run.
pub const LANE_STOPPED: &str = "stopped";
/// A lane that no send of the configuration has.
pub const LANE_ORPHANED: &str = "orphaned";
/// A source that runs and whose message cannot be accepted now.
pub const SOURCE_HELD: &str = "held";
/// A source that runs and that an operator paused.
pub const SOURCE_PAUSED: &str = "paused";

/// The states of lanes.
#[must_use]
pub fn of_lanes() -> Vec<&'static str> {
    // Each names the next, so that a state that is added to the machine must find its place here.
    let next = |state: LaneState| match state {
        LaneState::Paused => Some(LaneState::Draining),
        LaneState::Draining => Some(LaneState::HaltedOnOneWrite),
        LaneState::HaltedOnOneWrite => Some(LaneState::Halted),
        LaneState::Halted => Some(LaneState::GateClosed),
        LaneState::GateClosed => Some(LaneState::TargetClosed),
        LaneState::TargetClosed => Some(LaneState::Throttled),
        LaneState::Throttled => Some(LaneState::Waiting),
        LaneState::Waiting => Some(LaneState::Sending),
        LaneState::Sending => Some(LaneState::Idle),
        LaneState::Idle => None,
    };
    std::iter::successors(Some(LaneState::Paused), |state| next(*state))
        .map(LaneState::name)
        .chain([LANE_STOPPED, LANE_ORPHANED])
        .collect()
}

/// The states of gates.
#[must_use]
pub fn of_gates() -> Vec<&'static str> {
    let next = |state: GateState| match state {
        GateState::Open => Some(GateState::HalfOpen),
        GateState::HalfOpen => Some(GateState::Closed),
        GateState::Closed => Some(GateState::Denied),
        GateState::Denied => Some(GateState::Halted),
        GateState::Halted => None,
    };
    std::iter::successors(Some(GateState::Open), |state| next(*state))
        .map(GateState::name)
        .collect()
}

/// The state of a source, unless it is [`SOURCE_HELD`] or [`SOURCE_PAUSED`].
pub(crate) fn source(state: &SourceState) -> &'static str {
    match state {
        SourceState::Opening => "opening",
        SourceState::Running => "running",
        SourceState::Failed(_) => "failed",
        SourceState::Stopped => "stopped",
    }
}

/// The states of sources.
#[must_use]
pub fn of_sources() -> Vec<&'static str> {
    let next = |state: &SourceState| match state {
        SourceState::Opening => Some(SourceState::Running),
        SourceState::Running => Some(SourceState::Failed(String::new())),
        SourceState::Failed(_) => Some(SourceState::Stopped),
        SourceState::Stopped => None,
    };
    std::iter::successors(Some(SourceState::Opening), next)
        .map(|state| source(&state))
        .chain([SOURCE_HELD, SOURCE_PAUSED])
        .collect()
}

/// The state of the buffer.
pub(crate) fn buffer(health: &Health) -> &'static str {
    match health {
        Health::Running => "running",
        Health::Full { .. } => "full",
        Health::Failed { .. } => "failed",
        Health::Closed => "closed",
    }
}

/// The states of the buffer.
#[must_use]
pub fn of_the_buffer() -> Vec<&'static str> {
    let why = String::new;
    let next = |health: &Health| match health {
        Health::Running => Some(Health::Full { why: why() }),
        Health::Full { .. } => Some(Health::Failed { why: why() }),
        Health::Failed { .. } => Some(Health::Closed),
        Health::Closed => None,
    };
    std::iter::successors(Some(Health::Running), next)
        .map(|health| buffer(&health))
        .collect()
}

/// What a write can end as, by the code the buffer keeps.
pub(crate) const RESULTS: [SettleResult; 9] = [
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

/// A write that damage took.
pub(crate) const LOST: &str = "lost";

/// What a write can end as.
#[must_use]
pub fn of_ended_writes() -> Vec<&'static str> {
    RESULTS
        .iter()
        .map(|result| result.name())
        .chain([LOST])
        .collect()
}
