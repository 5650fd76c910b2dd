//! The ledger: failed messages and the event log, in one SQLite file. The cold path of the host.
//!
//! # Constraints
//! * WAL, `synchronous=FULL`: what a call answered is on the disk.
//! * Every change is one IMMEDIATE transaction; a failed COMMIT leaves none open behind.
//! * The file and its companions are 0600: they hold whole messages.
//! * Parking is idempotent: the same write of the same lane is parked once, however often it is asked.
//! * A claim has one winner, and says who, when and how often.
//! * A full disk: a preallocated file beside the ledger is given up, so that parks and the event
//!   about it still land; past that, calls answer [`Error::Full`] and the host blocks.
//! * Nothing is ever deleted on its own account: retention is off until somebody sets it.
//!
//! All calls block and may wait for the disk: async callers go through `spawn_blocking`, or, for
//! events, through [`EventSink`], which never blocks.
//!
//! * [`Ledger`]: open, park, list, claim, log, follow.
//! * [`EventSink`]: a bounded queue and a writing thread between delivery and the event log.
//! * [`events`]: the catalogue: every code with its page.
//! * [`Redactor`]: takes secrets out of what people and copies see.

mod attempts;
mod causes;
mod claims;
mod db;
mod episodes;
mod error;
mod event;
mod event_log;
pub mod events;
mod failed;
mod jobs;
mod outages;
mod park;
mod query;
mod redact;
mod reserve;
mod retention;
mod sink;
mod switches;

pub use attempts::{Attempts, FailedMessageId};
pub use causes::Cause;
pub use claims::{Act, Claim, ClaimRecord, Done};
pub use db::{Ledger, Options, SCHEMA_VERSION};
pub use episodes::Episode;
pub use error::Error;
pub use event::{Event, EventFilter, StoredEvent};
pub use events::{Code, Severity};
pub use failed::{
    Applied, Dependent, Diagnosis, FailedFilter, FailedMessage, FailedState, FailedSummary, Header,
    History, NewFailed, ParkReason, Parked,
};
pub use jobs::{Job, JobFailure, JobState, NewJob};
pub use outages::{Outage, OutageReport};
pub use redact::Redactor;
pub use reserve::ReserveState;
pub use sink::{EventSink, SinkOptions, SinkStats};
pub use switches::Switch;

/// The result of every call.
pub type Result<T> = std::result::Result<T, Error>;
