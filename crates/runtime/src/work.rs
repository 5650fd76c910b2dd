//! One message on its way to acceptance, and what is kept about it while it is held.

use crate::counters::{Entry, MessageOutcome};
use crate::handlers::Diversion;
use bytes::Bytes;
use consign_buffer::{Claim, LaneId, Origin};
use consign_ledger::Attempts;
use consign_pipeline::Message;
use std::collections::BTreeSet;

/// A message in process.
#[derive(Debug)]
pub struct Work {
    /// The source's number for it.
    pub source_id: u64,
    /// What it was charged against the source's credit.
    pub bytes: u64,
    /// The message itself.
    pub message: Message,
    /// What names it for the acceptance check.
    pub origin: Option<Origin>,
    /// What names it for its write keys; `None` makes them random.
    pub key_identity: Option<Bytes>,
    /// Messages of one group are accepted in order; a held one blocks the rest of its group.
    pub group: Option<String>,
    /// A position the host keeps, committed with the message.
    pub position: Option<Bytes>,
    /// Where the source has it, in words; empty where it has no place.
    pub place: String,
    /// Held so that nobody else accepts the same origin meanwhile.
    pub claim: Option<Claim>,
    /// Its line in the message ledger.
    pub entry: Entry,
    /// Monotonic milliseconds when it came in.
    pub received_ms: u64,
    /// What the routes made of it: evaluated and rendered once, also when it is held for long.
    pub evaluated: Option<Evaluated>,
    /// Which acceptor's routes that was.
    pub generation: u64,
    /// What the client or the source calls it, for `consign trace`.
    pub names: Vec<String>,
    /// Conditions that failed on it, and why it ended where it did.
    pub notes: Notes,
    /// Direct sends (`route/send`) that accepted; not repeated while the message is held.
    pub direct_done: BTreeSet<String>,
    /// Sends (`route/send`) whose direct parent was given up or set aside: they are not made.
    pub excluded: BTreeSet<String>,
    /// Writes that an error handler diverted; committed with the message.
    pub diverted: Vec<Diversion>,
    /// An error handler skipped, parked or diverted it, or one of its direct writes.
    pub handled: bool,
    /// How often it failed in a processor or could not be rendered, since it came in.
    pub failures: u32,
    /// The same over restarts, where its handler was asked and its source can name it.
    pub attempts: Option<Attempts>,
    /// Monotonic milliseconds before which it is not tried again.
    pub not_before_ms: u64,
}

impl Work {
    /// How it ends once it is durable.
    pub fn outcome(&self) -> MessageOutcome {
        match self.evaluated {
            _ if self.handled => MessageOutcome::Handled,
            Some(Evaluated::Ends(outcome)) => outcome,
            _ => MessageOutcome::Accepted,
        }
    }
}

/// What was noticed about a message on its way through the routes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notes {
    /// The route that claimed it, by index.
    pub route: Option<usize>,
    /// Why it ended there.
    pub why: Option<String>,
    /// Conditions that failed: index of the route, what went wrong.
    pub condition_errors: Vec<(usize, String)>,
}

/// What the routes made of a message.
#[derive(Debug, Clone)]
pub enum Evaluated {
    /// It ends here, without writes.
    Ends(MessageOutcome),
    /// It is claimed by a route and has these writes.
    Writes {
        /// Index of the route.
        route: usize,
        /// One per send, in the route's order.
        writes: Vec<Write>,
    },
    /// A processor failed, or a template could not be rendered: a delivery failure of this message.
    Failed(MessageFailure),
}

/// Why a message has no writes although a route claimed it.
#[derive(Debug, Clone)]
pub struct MessageFailure {
    /// Index of the route.
    pub route: usize,
    /// `template_failed`, or the processor's own.
    pub code: String,
    /// In one sentence.
    pub message: String,
    /// It may go away by itself: the message goes through its route again.
    pub passes: bool,
}

/// One rendered write.
#[derive(Debug, Clone)]
pub struct Write {
    /// Index of its send in the route.
    pub send: usize,
    /// Its write key.
    pub key: [u8; 16],
    /// Hash of its order key; 0 where the lane is strict or unordered.
    pub order: u64,
    /// Its stored form.
    pub stored: Bytes,
}

/// Why a message could not be accepted now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// No room, or the log has failed: the source waits or answers 503.
    Blocked {
        /// The full lane, when it is one.
        lane: Option<LaneId>,
        /// In one sentence.
        reason: String,
    },
    /// It can never be accepted as it is (larger than the buffer takes).
    Impossible(String),
    /// A template failed for this very message; nothing of it has left.
    Unrenderable(String),
    /// A direct send failed.
    Failed(String),
}

impl Trouble {
    /// In one sentence.
    pub fn reason(&self) -> &str {
        match self {
            Self::Blocked { reason, .. }
            | Self::Impossible(reason)
            | Self::Unrenderable(reason)
            | Self::Failed(reason) => reason,
        }
    }
}
