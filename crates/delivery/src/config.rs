//! What the driver tells the machine about host, classes, connections and lanes.

use crate::ids::{Backoff, ClassId, ConnectionId, LaneId};

/// Host-wide limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLimits {
    /// Requests in flight over all lanes. Default 256; at least the sum of the classes' `reserved`.
    pub max_in_flight: u32,
    /// The workload classes. A lane of a class that is not listed falls into [`ClassId`] 0, which
    /// always exists.
    pub classes: Vec<ClassConfig>,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            max_in_flight: 256,
            classes: Vec::new(),
        }
    }
}

/// One workload class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassConfig {
    /// Its number.
    pub id: ClassId,
    /// Requests that only this class may use. At least 1: a class without a slot would starve.
    pub reserved: u32,
    /// Requests of this class in flight at most; `None` is no limit of its own.
    pub max_in_flight: Option<u32>,
    /// Writes a second at most, with a burst of one second's worth; `None` is no limit.
    pub rate_per_s: Option<u32>,
}

/// One connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionConfig {
    /// Its number.
    pub id: ConnectionId,
    /// How long to wait between probes while the gate is closed.
    pub backoff: Backoff,
    /// How long a probe may take before it counts as failed, in milliseconds. Default 30,000.
    pub probe_timeout_ms: u64,
    /// How long a cancelled request may take to acknowledge before the connection's instance is
    /// fenced and rebuilt, in milliseconds. Default 10,000.
    pub cancel_grace_ms: u64,
}

impl ConnectionConfig {
    /// A connection with the default timings.
    #[must_use]
    pub fn new(id: ConnectionId) -> Self {
        Self {
            id,
            backoff: Backoff::default(),
            probe_timeout_ms: 30_000,
            cancel_grace_ms: 10_000,
        }
    }
}

/// Which writes must wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// All of the lane, in the order of acceptance.
    #[default]
    Strict,
    /// Those with the same order key (a 64-bit hash, given with each write).
    ByKey,
    /// None.
    None,
}

/// How a batch fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BatchKind {
    /// All or nothing; a refused one is bisected.
    Atomic,
    /// In order; a failure fails all after it.
    Prefix,
    /// Each write alone; under strict and by_key it holds one write per order key.
    #[default]
    Independent,
}

/// How batches form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchConfig {
    /// How it fails.
    pub kind: BatchKind,
    /// Whether its boundaries are durable before the first send and reused ever after.
    pub sealed: bool,
    /// Writes at most. Default 1.
    pub max_writes: u32,
    /// Bytes at most; a larger write goes alone. Default 1 MiB.
    pub max_bytes: u64,
    /// How long an unfilled batch waits for more, in milliseconds. Default 0.
    pub linger_ms: u64,
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self {
            kind: BatchKind::Independent,
            sealed: false,
            max_writes: 1,
            max_bytes: 1 << 20,
            linger_ms: 0,
        }
    }
}

/// What a maybe-applied write may do once its one resend was ambiguous too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnAmbiguous {
    /// Wait for evidence or a person.
    #[default]
    Hold,
    /// Park as `may_have_landed`.
    Park,
    /// Keep sending: it may arrive several times.
    Retry,
}

/// What happens to a maybe-applied write whose window has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnWindowPassed {
    /// It counts as at least once from here on.
    #[default]
    Resend,
    /// Park it (`require: effectively_once`).
    Park,
}

/// What a repeat comes to at the destination, as resolved for this send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// The destination drops it: effectively once, resent freely inside the window.
    Dropped {
        /// How long it recognises a repeat, in milliseconds; `None` is for ever.
        window_ms: Option<u64>,
        /// Taken off the window, in milliseconds.
        margin_ms: u64,
        /// Past the window.
        on_window_passed: OnWindowPassed,
    },
    /// It is a second copy: at least once.
    SecondCopy,
    /// Never sent again once it may have been applied: at most once. Direct sends only.
    Never,
}

/// What a parked write means for its order key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AfterPark {
    /// Later writes go on.
    #[default]
    Continue,
    /// Later writes of the same order key wait until [`crate::Act::ReleaseKey`].
    HoldKey,
}

/// When a failing write is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Attempts that count (rule 1). Default 5, at least 1.
    pub max_attempts: u32,
    /// Age from the first attempt, in milliseconds of open gate; `None` is no limit.
    pub max_age_ms: Option<u64>,
    /// Waits between attempts of one write.
    pub backoff: Backoff,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            max_age_ms: None,
            backoff: Backoff::default(),
        }
    }
}

/// Who waits for the answer of a direct send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectMode {
    /// An offset-tracked source holds the message: tried in place until it is accepted or withdrawn.
    Hold,
    /// A live session: the first failure is the answer.
    Answer,
}

/// One lane: the queue of one send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneConfig {
    /// Its number.
    pub id: LaneId,
    /// Its connection, added before it.
    pub connection: ConnectionId,
    /// Names the table, topic or host written to (the plugin's `target_id`, or the send's own
    /// name). Lanes of one connection with the same text are evidence for each other.
    pub target: String,
    /// Its workload class.
    pub class: ClassId,
    /// `Some` makes it a volatile lane of direct sends: nothing is fetched, nothing made durable,
    /// and answers go to the adapter.
    pub direct: Option<DirectMode>,
    /// Order.
    pub order: Order,
    /// After a park.
    pub after_park: AfterPark,
    /// Batches.
    pub batch: BatchConfig,
    /// Writes in flight, or answered and not yet durably settled, at most. Default 2 × `batch.max_writes`.
    pub in_flight_limit: u32,
    /// Writes held as metadata at most, which bounds look-ahead past blocked order keys; raised to
    /// `in_flight_limit` if below.
    pub window_writes: u32,
    /// Bytes of bodies those writes may have at most (the first is always taken).
    pub window_bytes: u64,
    /// When a write is spent.
    pub policy: Policy,
    /// How long one request may take, in milliseconds. Default 30,000.
    pub timeout_ms: u64,
    /// What a repeat comes to.
    pub repeat: Repeat,
    /// Once a resend was ambiguous too.
    pub on_ambiguous: OnAmbiguous,
    /// Whether an error handler is asked before a park.
    pub has_handler: bool,
    /// Whether skipping a write releases its dependents instead of dropping them.
    pub skip_releases_dependents: bool,
    /// Whether the destination is inspected at each gate opening: effectively-once resends wait
    /// for the answer.
    pub inspected: bool,
    /// Whether a person paused it: nothing of it is sent before they resume it. Only read when the lane
    /// is added; a running lane keeps what it was told.
    pub paused: bool,
    /// The durable send frontier: writes up to it may be sent at once. 0 for a new lane.
    pub frontier: u64,
    /// Wall time of that frontier, 0 for none: a clock behind it has gone back. A lane of direct
    /// sends has no frontier: the latest wall time that is durable anywhere in the host.
    pub frontier_wall_unix_ms: u64,
    /// Order keys held by parked writes (`after_park: hold_key`), from Failed messages.
    pub held_keys: Vec<u64>,
    /// Writes that were in flight at three crashes in a row: they park as `suspected_crash`.
    pub crash_suspects: Vec<u64>,
    /// Writes that were in flight at the last crash: each goes alone, so that the next one tells
    /// which of them it was. A sealed batch stays whole.
    pub crash_alone: Vec<u64>,
    /// Writes up to this number belong to another target, one the lane had before a restart: those
    /// that may have been applied there park as `may_have_landed` instead of going to this one.
    /// 0 for a lane that kept its target.
    pub moved_below: u64,
}

impl LaneConfig {
    /// A strict, unbatched, at-least-once lane with the default policy.
    #[must_use]
    pub fn new(id: LaneId, connection: ConnectionId, target: impl Into<String>) -> Self {
        Self {
            id,
            connection,
            target: target.into(),
            class: ClassId(0),
            direct: None,
            order: Order::Strict,
            after_park: AfterPark::Continue,
            batch: BatchConfig::default(),
            in_flight_limit: 2,
            window_writes: 1_024,
            window_bytes: 8 << 20,
            policy: Policy::default(),
            timeout_ms: 30_000,
            repeat: Repeat::SecondCopy,
            on_ambiguous: OnAmbiguous::Hold,
            has_handler: false,
            skip_releases_dependents: false,
            inspected: false,
            paused: false,
            frontier: 0,
            frontier_wall_unix_ms: 0,
            held_keys: Vec::new(),
            crash_suspects: Vec::new(),
            crash_alone: Vec::new(),
            moved_below: 0,
        }
    }

    /// Whether a running lane can take these settings without being removed first: neither where
    /// it writes to, nor what order, batches and repeats mean to it, may differ.
    #[must_use]
    pub fn takes_in_place(&self, new: &Self) -> bool {
        self.id == new.id
            && self.connection == new.connection
            && self.target == new.target
            && self.direct == new.direct
            && self.order == new.order
            && self.after_park == new.after_park
            && self.batch.kind == new.batch.kind
            && self.batch.sealed == new.batch.sealed
            && self.repeat == new.repeat
            && self.inspected == new.inspected
    }

    /// Sets batches of up to `max_writes`, and the in-flight limit that goes with them.
    #[must_use]
    pub fn batched(mut self, kind: BatchKind, max_writes: u32) -> Self {
        self.batch.kind = kind;
        self.batch.max_writes = max_writes.max(1);
        self.in_flight_limit = self.batch.max_writes.saturating_mul(2);
        self
    }
}
