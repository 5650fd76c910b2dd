//! A failed message: what is parked, and how it is listed.

use serde::{Deserialize, Serialize};

/// Whether the destination has applied the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Applied {
    /// It has not: sending again makes no copy.
    No,
    /// It may have: what to assume where nothing is known.
    #[default]
    Maybe,
}

/// Why a write was parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkReason {
    /// The destination refused it.
    Refused,
    /// Its attempts or its age were spent, and other writes of the target went through.
    #[default]
    Exhausted,
    /// It may have landed, and a repeat would be a second copy.
    MayHaveLanded,
    /// It may have landed, and the window in which a repeat is recognised has passed.
    WindowPassed,
    /// It was in flight at several crashes of the host.
    SuspectedCrash,
    /// The error handler said so.
    Handler,
    /// The error handler failed, panicked or did not answer.
    HandlerFailed,
    /// A processor failed on it.
    ProcessorFailed,
    /// Its parent was parked.
    Parent,
}

/// Where a failed message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailedState {
    /// It waits for a person.
    Parked,
    /// Somebody's act on it is under way.
    Claimed,
    /// It went back to its lane with the same key.
    SentAgain,
    /// Its original message went through today's routes.
    RoutedAgain,
    /// It went to another send.
    Moved,
    /// A person gave it up; it can be restored.
    Skipped,
    /// A person said that it had landed.
    Confirmed,
}

impl FailedState {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Parked,
        Self::Claimed,
        Self::SentAgain,
        Self::RoutedAgain,
        Self::Moved,
        Self::Skipped,
        Self::Confirmed,
    ];

    /// The name in the file, in filters and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::Claimed => "claimed",
            Self::SentAgain => "sent_again",
            Self::RoutedAgain => "routed_again",
            Self::Moved => "moved",
            Self::Skipped => "skipped",
            Self::Confirmed => "confirmed",
        }
    }

    /// From its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl ParkReason {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Refused,
        Self::Exhausted,
        Self::MayHaveLanded,
        Self::WindowPassed,
        Self::SuspectedCrash,
        Self::Handler,
        Self::HandlerFailed,
        Self::ProcessorFailed,
        Self::Parent,
    ];

    /// The name in the file, in filters and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Exhausted => "exhausted",
            Self::MayHaveLanded => "may_have_landed",
            Self::WindowPassed => "window_passed",
            Self::SuspectedCrash => "suspected_crash",
            Self::Handler => "handler",
            Self::HandlerFailed => "handler_failed",
            Self::ProcessorFailed => "processor_failed",
            Self::Parent => "parent",
        }
    }

    /// From its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// One header of a message; values are bytes and need not be text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Vec<u8>,
}

/// What was tried, and when.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct History {
    /// When the message was accepted.
    pub accepted_unix_ms: i64,
    /// The first attempt.
    pub first_attempt_unix_ms: Option<i64>,
    /// The last attempt.
    pub last_attempt_unix_ms: Option<i64>,
    /// Attempts that were charged.
    pub attempts: u32,
    /// Times of the last attempts, oldest first, as far as they were kept.
    #[serde(default)]
    pub schedule_unix_ms: Vec<i64>,
    /// The host's version.
    pub host_version: String,
    /// The plugin's name and version.
    pub plugin_version: String,
    /// The trace it belongs to.
    pub trace_id: Option<String>,
}

/// Why it failed. All text is redacted before it comes here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Why it was parked.
    pub reason: ParkReason,
    /// The outcome's shorthand (`refused`, `failed_maybe`).
    pub class: String,
    /// The plugin's or server's code (`23505`, `http_422`); the cause under which it is counted.
    pub code: String,
    /// Who said so: the connector's title, or `consign`.
    pub provider: String,
    /// What was said.
    pub message: String,
    /// The destination's answer, where there was one.
    pub response: Option<String>,
    /// Nothing was answered in time.
    pub timed_out: bool,
    /// Whether it has landed.
    pub applied: Applied,
}

/// A write that waits for this one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Dependent {
    /// Its send's id.
    pub send: String,
    /// Its key.
    pub write_key: [u8; 16],
    /// Everything needed to send it; opaque here.
    pub envelope: Vec<u8>,
    /// Its body.
    pub body: Vec<u8>,
    /// Its order key's hash; 0 for strict order.
    pub order: u64,
    /// The place in the list of the dependent it waits for itself; `None` when it waits for the
    /// failed write.
    pub parent: Option<u32>,
}

/// A write to park. The default has every field empty and is not replayable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewFailed {
    /// Its key.
    pub write_key: [u8; 16],
    /// The adapter.
    pub adapter: String,
    /// The route.
    pub route: String,
    /// The send.
    pub send: String,
    /// The write's number in its lane; with the lane and the key it names one parking.
    pub seq: u64,
    /// The connection's name.
    pub connection: String,
    /// The sink operation.
    pub operation: String,
    /// The source operation.
    pub source: String,
    /// Where the source had it, in words.
    pub source_position: Option<String>,
    /// The message's id, as the source or the body names it.
    pub message_id: Option<String>,
    /// Its event type, where one is known.
    pub event_type: Option<String>,
    /// Its schema version, where one is known.
    pub schema_version: Option<String>,
    /// Its tenant, where one is known.
    pub tenant: Option<String>,
    /// The routing key it arrived with.
    pub routing_key: Option<String>,
    /// Its order key's hash; 0 for strict order.
    pub order: u64,
    /// The body's content type.
    pub content_type: Option<String>,
    /// Its headers.
    pub headers: Vec<Header>,
    /// The body, whole.
    pub body: Vec<u8>,
    /// Everything else needed to send it; opaque here.
    pub envelope: Vec<u8>,
    /// The original message, where a transform changed it.
    pub original: Option<Vec<u8>>,
    /// Writes that wait for it.
    pub dependents: Vec<Dependent>,
    /// What was tried.
    pub history: History,
    /// Why it failed.
    pub diagnosis: Diagnosis,
    /// False for a copy from which something was taken out: it can be read, never sent.
    pub replayable: bool,
    /// When it is parked.
    pub parked_unix_ms: i64,
}

/// What became of a parking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parked {
    /// It is there now.
    New(i64),
    /// This very parking was there already; nothing changed.
    AlreadyThere(i64),
    /// The message had been sent again and failed again; it waits again, with the new diagnosis.
    Again(i64),
}

impl Parked {
    /// The failed message's id.
    #[must_use]
    pub fn id(self) -> i64 {
        match self {
            Self::New(id) | Self::AlreadyThere(id) | Self::Again(id) => id,
        }
    }
}

/// A failed message, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedMessage {
    /// Its id in the ledger.
    pub id: i64,
    /// Where it stands.
    pub state: FailedState,
    /// How often it was claimed.
    pub claims: u32,
    /// How often it was parked.
    pub parkings: u32,
    /// When its state last changed.
    pub changed_unix_ms: i64,
    /// Who changed it, where a person did.
    pub changed_by: Option<String>,
    /// As it was parked last.
    pub record: NewFailed,
}

/// A line of a list: no bodies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedSummary {
    /// Its id.
    pub id: i64,
    /// Its write key, hex.
    pub write_key: String,
    /// Where it stands.
    pub state: FailedState,
    /// The adapter.
    pub adapter: String,
    /// The route.
    pub route: String,
    /// The send.
    pub send: String,
    /// The connection.
    pub connection: String,
    /// The sink operation.
    pub operation: String,
    /// The message's id.
    pub message_id: Option<String>,
    /// Why it was parked.
    pub reason: ParkReason,
    /// The cause's code.
    pub code: String,
    /// What was said.
    pub message: String,
    /// Whether it has landed.
    pub applied: Applied,
    /// Charged attempts.
    pub attempts: u32,
    /// When it was parked last.
    pub parked_unix_ms: i64,
    /// When its state changed last.
    pub changed_unix_ms: i64,
    /// Who changed it.
    pub changed_by: Option<String>,
    /// Bytes of the body.
    pub body_bytes: u64,
    /// Whether it can be sent again.
    pub replayable: bool,
    /// How many writes wait for it.
    pub dependents: u32,
}

/// Which failed messages: all conditions hold. The default is every message, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FailedFilter {
    /// In one of these states; empty for any.
    pub states: Vec<FailedState>,
    /// Of this adapter.
    pub adapter: Option<String>,
    /// Of this route.
    pub route: Option<String>,
    /// Of this send.
    pub send: Option<String>,
    /// Over this connection.
    pub connection: Option<String>,
    /// With this cause's code.
    pub code: Option<String>,
    /// Of the cause with this id.
    pub cause: Option<i64>,
    /// Parked for this reason.
    pub reason: Option<ParkReason>,
    /// Landed or not.
    pub applied: Option<Applied>,
    /// With this key.
    pub write_key: Option<[u8; 16]>,
    /// With this message id.
    pub message_id: Option<String>,
    /// Parked at or after this time.
    pub since_unix_ms: Option<i64>,
    /// Parked before this time.
    pub until_unix_ms: Option<i64>,
    /// Whose diagnosis contains this text.
    pub text: Option<String>,
    /// With a greater id than this: the next page.
    pub after_id: Option<i64>,
    /// At most so many; 0 for the default of 1,000.
    pub limit: u32,
}
