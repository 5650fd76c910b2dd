//! What a running host shows of itself: the status document, readiness, and the trait that gives them.
//!
//! The types are the API: `GET /api/v1/status` answers [`Status`] as JSON. Fields are only added.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::future::Future;

/// Everything at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The host's version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// When it started, wall clock.
    pub started_unix_ms: u64,
    /// Whether it makes progress, and what keeps it from that.
    pub readiness: Readiness,
    /// What the start found.
    pub recovery: RecoveryStatus,
    /// The buffer.
    pub buffer: BufferStatus,
    /// One per adapter, by name.
    pub adapters: Vec<AdapterStatus>,
    /// One per send.
    pub lanes: Vec<LaneStatus>,
    /// One per connection that sends.
    pub connections: Vec<ConnectionStatus>,
}

/// Whether the host makes progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// It accepts messages and could send what it accepts.
    pub ready: bool,
    /// Why not, one sentence each.
    pub reasons: Vec<String>,
}

/// What the start found in the data folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryStatus {
    /// The run before did not stop cleanly.
    pub unclean_exit: bool,
    /// Writes that were pending.
    pub pending: u64,
    /// Of those, the ones that may have been on their way.
    pub maybe_in_flight: u64,
    /// Records read back from the log.
    pub replayed_records: u64,
    /// Writes that damage took.
    pub lost_writes: u64,
}

/// The buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferStatus {
    /// `running`, `full`, `failed` or `closed`.
    pub health: String,
    /// Why, unless it runs.
    pub why: Option<String>,
    /// Bytes of the log, and of those the used ones.
    pub log_bytes: u64,
    /// Bytes that no checkpoint has freed.
    pub log_used_bytes: u64,
    /// Bodies in memory.
    pub body_memory_bytes: u64,
    /// Flushes in this run.
    pub groups: u64,
    /// Records in this run.
    pub records: u64,
    /// Bytes written in this run.
    pub written_bytes: u64,
    /// Checkpoints in this run.
    pub checkpoints: u64,
    /// Checkpoints that failed in this run.
    pub checkpoint_failures: u64,
}

/// An adapter and its message ledger: received = outcomes + in process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterStatus {
    /// Its name.
    pub name: String,
    /// The source operation.
    pub source: String,
    /// `opening`, `running`, `held` (a message cannot be accepted now), `failed` or `stopped`.
    pub state: String,
    /// Why, when it is held or failed.
    pub why: Option<String>,
    /// Messages since the host started.
    pub received: u64,
    /// Messages without an outcome yet.
    pub in_process: u64,
    /// Messages by outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// Conditions and identity expressions that failed.
    pub condition_errors: u64,
    /// Writes left out because `when_full: drop` found no room.
    pub dropped_writes: u64,
    /// When the last message ended; 0 before the first.
    pub last_progress_unix_ms: u64,
    /// The promise of each route, levels two to four.
    pub routes: Vec<RouteStatus>,
}

/// A route's promise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// Its name.
    pub name: String,
    /// On one line.
    pub promise: String,
    /// Levels two to four of each send.
    pub sends: Vec<serde_json::Value>,
    /// The same for people, lines as `consign check` prints them.
    pub lines: Vec<String>,
    /// Messages since the host started: `claimed`, and of those `transform_failed` and `no_send`, which
    /// were discarded; `condition_errors`, which were not claimed.
    #[serde(default)]
    pub counts: BTreeMap<String, u64>,
}

/// A lane and its write ledger: accepted = outcomes + pending, over all runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStatus {
    /// `adapter/route/send`.
    pub id: String,
    /// The connection it sends over.
    pub connection: String,
    /// The operation.
    pub operation: String,
    /// Whether its writes are durable; `false` for direct sends.
    pub buffered: bool,
    /// What it is doing (`sending`, `gate_closed`, `halted_on_one_write` …).
    pub state: String,
    /// Writes without an outcome.
    pub pending: u64,
    /// Bytes of those, and the quota.
    pub pending_bytes: u64,
    /// The most it may hold.
    pub quota_bytes: u64,
    /// Writes on their way.
    pub in_flight: u64,
    /// Writes that failed and wait.
    pub retrying: u64,
    /// Maybe-applied writes held for a person or evidence.
    pub ambiguous: u64,
    /// Requests in this run.
    pub requests: u64,
    /// Attempts of writes that may have landed before, in this run.
    pub resends: u64,
    /// Writes ever accepted into the lane.
    pub accepted: u64,
    /// Writes by outcome, over all runs (direct sends: this run).
    pub outcomes: BTreeMap<String, u64>,
    /// Bytes of spill files.
    pub spill_bytes: u64,
}

/// A connection's gate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Its name.
    pub name: String,
    /// Its connector.
    pub connector: String,
    /// `open`, `half_open`, `closed`, `denied` or `halted`.
    pub gate: String,
    /// For how long, in milliseconds.
    pub since_ms: u64,
    /// Until the next probe or canary, in milliseconds.
    pub next_try_ms: Option<u64>,
    /// Requests in flight.
    pub in_flight: u64,
    /// Instances fenced in this run.
    pub fenced: u64,
    /// Interruptions in this run.
    pub interruptions: u64,
}

/// Which events to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventQuery {
    /// Only this code.
    pub code: Option<String>,
    /// This level or worse: debug, info, warn, error.
    pub level: Option<String>,
    /// Only this adapter.
    pub adapter: Option<String>,
    /// Only after this id.
    pub after_id: Option<i64>,
    /// Newest first.
    #[serde(default)]
    pub newest_first: bool,
    /// At most so many; 0 or none is 1,000.
    #[serde(default)]
    pub limit: u32,
}

/// What the HTTP side needs of a host. Every method is cheap and may be called often.
pub trait HostView: Send + Sync + 'static {
    /// The status document.
    fn status(&self) -> impl Future<Output = Status> + Send;

    /// Events as JSON values, in the order asked for.
    ///
    /// # Errors
    /// One sentence: an unknown code or level, or a ledger that cannot be read.
    fn events(
        &self,
        query: EventQuery,
    ) -> impl Future<Output = Result<Vec<serde_json::Value>, String>> + Send;

    /// Carries out what a person asks: one JSON document in, one out. `who` is how they name
    /// themselves.
    ///
    /// # Errors
    /// Why it was not done.
    fn command(
        &self,
        command: serde_json::Value,
        who: String,
    ) -> impl Future<Output = Result<serde_json::Value, CommandError>> + Send;
}

/// Why a command was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandError {
    /// What was asked is wrong: 400.
    Input(String),
    /// It was right to ask, and could not be done: 409.
    Failed(String),
}
