//! What may be asked of a host, as the API and the command line write it.

use consign_ledger::{FailedFilter, FailedState};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Ids that are acted on at once; a greater selection is a job.
pub const DIRECT_MAX: usize = 100;

/// One thing that is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Failed messages, a page of them.
    FailedList {
        /// Which.
        filter: FailedFilter,
    },
    /// Failed messages, grouped by cause.
    FailedCauses {
        /// Those with none waiting, too.
        #[serde(default)]
        all: bool,
    },
    /// One failed message with its history, redacted.
    FailedShow {
        /// Its id.
        id: i64,
    },
    /// The body of one failed message, whole, in base64.
    FailedBody {
        /// Its id.
        id: i64,
        /// The message as its source handed it over, instead of what was to be written.
        #[serde(default)]
        original: bool,
    },
    /// Acts on failed messages.
    FailedAct {
        /// What to do.
        act: Bulk,
        /// To which.
        selection: Selection,
        /// Only say what would be done.
        #[serde(default)]
        dry_run: bool,
        /// At most so many a second, for a job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate_per_s: Option<f64>,
        /// Where to, for a move: `ADAPTER/ROUTE/SEND`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// Another body or other headers for a failed message; it stays parked.
    FailedEdit {
        /// Its id.
        id: i64,
        /// The new body, in base64; left out: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body: Option<String>,
        /// Headers to set; null takes one out.
        #[serde(default)]
        headers: std::collections::BTreeMap<String, Option<String>>,
        /// Which key it is sent with; has to be said for one that may have landed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<KeyChoice>,
    },
    /// Records of failed messages, whole unless `redacted`, one page.
    FailedExport {
        /// Which.
        filter: FailedFilter,
        /// Without secrets, auth headers and configured fields; such a record cannot be sent.
        #[serde(default)]
        redacted: bool,
    },
    /// Adds records that were exported.
    FailedImport {
        /// As they were exported.
        records: Vec<Value>,
    },
    /// The newest jobs.
    Jobs {
        /// At most so many; 0 for 1,000.
        #[serde(default)]
        limit: u32,
    },
    /// One job with what it could not do.
    Job {
        /// Its id.
        id: i64,
    },
    /// Pauses, goes on with or cancels a job.
    JobSwitch {
        /// Its id.
        id: i64,
        /// What to do.
        to: JobChange,
    },
    /// Outage reports, newest first.
    Outages {
        /// Only of this connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connection: Option<String>,
        /// At most so many; 0 for 1,000.
        #[serde(default)]
        limit: u32,
    },
    /// Pauses an adapter's source, a connection or a lane.
    Pause {
        /// Its name: an adapter, a connection, or `ADAPTER/ROUTE/SEND`.
        subject: String,
    },
    /// Goes on with what was paused; a lane tries its waiting writes now.
    Resume {
        /// Its name.
        subject: String,
    },
    /// Reads the configuration file again and puts it in force.
    Reload,
    /// Treats a connection as if its destination were away.
    Drill {
        /// The connection.
        connection: String,
        /// For how long, in milliseconds.
        for_ms: u64,
        /// Requests go out, and their answers are thrown away.
        #[serde(default)]
        swallow_replies: bool,
    },
    /// What became of a message or a write.
    Trace {
        /// Message id, write key, a client's idempotency key, or an identity.
        what: String,
    },
}

/// What is done with failed messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bulk {
    /// The stored write with its key, to the end of its lane.
    SendAgain,
    /// The original message through today's routes, with new keys.
    RouteAgain,
    /// Give it up.
    Skip,
    /// Take a skip back.
    Restore,
    /// It had landed: settle it as delivered.
    Confirm,
    /// To another send, with a derived key.
    Move,
    /// Delete it.
    Purge,
}

impl Bulk {
    /// The name in jobs and events.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SendAgain => "send_again",
            Self::RouteAgain => "route_again",
            Self::Skip => "skip",
            Self::Restore => "restore",
            Self::Confirm => "confirm",
            Self::Move => "move",
            Self::Purge => "purge",
        }
    }

    /// The states whose messages a filter without states selects.
    #[must_use]
    pub fn states(self) -> Vec<FailedState> {
        match self {
            Self::Restore => vec![FailedState::Skipped],
            // What was sent, routed or moved is only a record by then.
            Self::Purge => FailedState::ALL
                .into_iter()
                .filter(|state| *state != FailedState::Claimed)
                .collect(),
            _ => vec![FailedState::Parked],
        }
    }
}

/// Which failed messages are acted on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// These.
    Ids(Vec<i64>),
    /// All that this filter finds at this moment; always a job.
    Filter(Box<FailedFilter>),
}

/// The key of an edited write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyChoice {
    /// The one it has.
    Same,
    /// A new one.
    New,
}

/// What is done with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobChange {
    /// Go on.
    Resume,
    /// Stop until resumed.
    Pause,
    /// End it; what is done stays done.
    Cancel,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Whose fault it is.
    pub kind: FaultKind,
    /// In one sentence, with what to do.
    pub message: String,
}

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// What was asked cannot be done to anything.
    Input,
    /// It was right to ask, and could not be done.
    Failed,
}

impl Fault {
    /// What was asked is wrong.
    pub fn input(message: impl ToString) -> Self {
        Self {
            kind: FaultKind::Input,
            message: message.to_string(),
        }
    }

    /// It could not be done.
    pub fn failed(message: impl ToString) -> Self {
        Self {
            kind: FaultKind::Failed,
            message: message.to_string(),
        }
    }
}

impl From<consign_ledger::Error> for Fault {
    fn from(error: consign_ledger::Error) -> Self {
        match error {
            consign_ledger::Error::NotFound(_) => Self::input(error),
            _ => Self::failed(error),
        }
    }
}
