//! Delivery: the state machine of lanes, gates and retries, without I/O.

mod config;
mod event;
mod ids;
mod input;
mod note;
mod outcome;
mod output;
mod stats;

pub use config::{
    AfterPark, BatchConfig, BatchKind, ClassConfig, ConnectionConfig, DirectMode, HostLimits,
    LaneConfig, OnAmbiguous, OnWindowPassed, Order, Policy, Repeat,
};
pub use event::{Event, EventCode, Level};
pub use ids::{Backoff, ClassId, ConnectionId, LaneId, RequestId, Ticket};
pub use input::{Act, Decision, DirectWrite, FetchedWrite, Input, ProbeFailure, Verdict};
pub use note::WriteNote;
pub use outcome::{Advice, Applied, Detail, Outcome, Reaction, Scope};
pub use output::{
    Dependents, DirectResult, Failure, Output, ParkReason, Send, SendItem, SettleResult, Settled,
};
pub use stats::{ConnectionStats, GateState, LaneCounts, LaneState, LaneStats};
