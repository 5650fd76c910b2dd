//! Delivery: the state machine of lanes, gates and retries, without I/O.
//!
//! One [`Delivery`] drives all lanes of a host. It holds metadata of pending writes, never bodies;
//! time, wall clock and randomness are given to it. The driver feeds [`Input`]s, drains
//! [`Output`]s, carries them out in order and answers with further inputs.
//!
//! # States of a write
//!
//! ```text
//!  fetched ──► Ready ──send──► InFlight ──delivered──► settled (slot held until durable)
//!               ▲  ▲              │ down, throttled, gate closed: back to Ready, the gate holds it
//!               │  └──────────────┤
//!               └──timer── Backoff◄┤ failed: charged once another write of the target is delivered
//!                          Held ◄──┤ resend ambiguous, too: evidence parks it, a person moves it
//!                          Asking◄─┘ refused or spent: the error handler decides, else parked
//! ```
//!
//! A failed attempt is *uncharged* until a delivery of another write of the same target follows
//! (evidence). At `max_attempts` charged failures the write is *spent*: one last try, alone; when
//! evidence follows that failure as well, and no other write failed beside it, it goes to the
//! handler or parks. An outage delivers nothing, so it charges nothing and parks nothing. A write
//! that is spent with no evidence is *stuck*: under `after_park: continue` the lane then tries its
//! next untried write, one per backoff cap (a trial); with nothing to try it reports
//! `halted_on_one_write`.
//!
//! # Gates
//!
//! Each connection and each target has one: open; closed until a probe (connection) or the backoff
//! (target); half-open with one canary on its way: a head of an order key, one that was never sent
//! if there is one. A good probe or the backoff's cap makes it half-open. The canary's answer opens
//! or closes it. A target also closes when several writes in a row may have vanished and none was
//! delivered. `denied` closes with a canary at the cap only. A third fenced instance halts a
//! connection until restart.
//!
//! # What is durable before what
//!
//! Each of these outputs carries a [`Ticket`], and the machine waits for its [`Input::Durable`]:
//!
//! * [`Output::Frontier`] before any [`Output::Send`] past the durable frontier;
//! * [`Output::Note`] (attempts, first maybe, spent resends, sealed batch) before its write is sent
//!   again, and before a sealed batch is sent at all; a resend where a repeat is a second copy is
//!   noted as spent *before* it is sent;
//! * [`Output::Settle`], [`Output::Park`], [`Output::Divert`] before the write's slot is free:
//!   writes in flight, or answered and not durably settled, stay within `in_flight_limit`, which
//!   bounds the copies after a crash. Later writes of the order key do not wait: the buffer applies
//!   a lane's settlements in order.
//!
//! # Limits
//!
//! A lane holds at most `window_writes` writes as metadata, `in_flight_limit` on their way and a
//! million held order keys. A pass costs O(lanes that changed); a stuck or closed lane costs
//! nothing until something happens to it. Choosing a canary looks at each lane behind the gate once.

mod answer;
mod batch;
mod canary;
mod classes;
mod config;
mod connection;
mod durable;
mod event;
mod evidence;
mod finish;
mod gate;
mod ids;
mod input;
mod interruption;
mod lane;
mod leave;
mod machine;
mod note;
mod operator;
mod outcome;
mod output;
mod planted;
mod request;
mod rng;
mod schedule;
mod settings;
mod split;
mod stats;
mod target;
mod window;

pub use config::{
    AfterPark, BatchConfig, BatchKind, ClassConfig, ConnectionConfig, DirectMode, HostLimits,
    LaneConfig, OnAmbiguous, OnWindowPassed, Order, Policy, Repeat,
};
pub use event::{Event, EventCode, Level};
pub use ids::{Backoff, ClassId, ConnectionId, LaneId, RequestId, Ticket};
pub use input::{Act, Decision, DirectWrite, FetchedWrite, Input, ProbeFailure, Verdict};
pub use machine::Delivery;
pub use note::WriteNote;
pub use outcome::{Advice, Applied, Detail, Outcome, Reaction, Scope};
pub use output::{
    Dependents, DirectResult, Failure, Output, ParkReason, Send, SendItem, SettleResult, Settled,
};
#[cfg(feature = "planted")]
pub use planted::Bug;
pub use stats::{ConnectionStats, GateState, LaneCounts, LaneState, LaneStats};
