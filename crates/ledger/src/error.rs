//! Everything that can go wrong with the ledger, each with what a caller should do.

use std::path::PathBuf;

/// Why a call failed. The sentences are for operators: what is so, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk, or the ledger's own limit, is full, and the reserve is spent. The caller blocks
    /// what it wanted to park and tries again; nothing was changed.
    #[error("the ledger {path} is full and its reserve is spent: make room on its disk; what should be parked waits until then", path = .path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// Another process holds the write lock for longer than the busy timeout. Try again.
    #[error("the ledger {path} is locked by another process: if `consign` runs twice on this data_dir, stop one", path = .path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged, or is none of ours. Nothing was changed.
    #[error("the ledger {path} cannot be read ({detail}): stop the host, keep a copy, move the file away (mv {path} {path}.damaged) and start again with an empty ledger; buffered writes are not in it and are not lost", path = .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        detail: String,
    },
    /// A newer version of the host wrote the file. Nothing was changed.
    #[error("the ledger {path} has schema {found}, this version reads up to {known}: start the newer version again, or point data_dir at another folder", path = .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The file or its folder cannot be made, opened or kept private.
    #[error("the ledger {path} cannot be opened: {source}", path = .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// No failed message with this id or key: it was purged, or never parked.
    #[error("no failed message {0}")]
    NotFound(String),
    /// Somebody else won the claim, or the message is past what was asked.
    #[error("failed message {id} is {state}{by}: nothing was done", by = .by.as_ref().map_or_else(String::new, |by| format!(" (by {by})")))]
    NotClaimable {
        /// The message.
        id: i64,
        /// Its state, in words.
        state: String,
        /// Who acted on it last.
        by: Option<String>,
    },
    /// Something was taken out of the record, so that what would be sent is not what failed.
    #[error("failed message {0} is a redacted copy (replayable: false): it can be read, not sent")]
    NotReplayable(i64),
    /// The claim was finished or taken back already. Nothing was changed.
    #[error("claim {0} is not open any more: nothing was done")]
    ClaimClosed(i64),
    /// A record in the file does not read as what it should be; the file was written by hand or damaged.
    #[error("the ledger's {what} cannot be read: {detail}")]
    BadRecord {
        /// Which record.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The event sink's thread has ended.
    #[error("the event log is closed")]
    Closed,
    /// Anything else SQLite or the disk said.
    #[error("the ledger {path} failed: {detail}", path = .path.display())]
    Storage {
        /// The file.
        path: PathBuf,
        /// What was said.
        detail: String,
    },
}
