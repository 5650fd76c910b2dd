//! The errors of this crate, each with what a caller should do about it.

use std::path::PathBuf;

use crate::api::LaneId;

/// Why a buffer could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the folder. Stop it, or give this host a folder of its own.
    #[error("{} is in use by {}; stop it or give this host another data_dir", dir.display(), holder(*pid))]
    Locked {
        /// The folder.
        dir: PathBuf,
        /// The other process, or 0 where the lock file does not say.
        pid: u32,
    },
    /// A file was written by a newer version. Nothing was changed; start that version, or an even newer one.
    #[error("{} has format version {found}, this version reads up to {supported}; start a newer consign", path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version this code reads.
        supported: u32,
    },
    /// There is no buffer in the folder. Name a host's data_dir.
    #[error("{} has no buffer", dir.display())]
    NoBuffer {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder has no lane of this name. Name one that it has.
    #[error("there is no lane {lane:?}; there are {}", known.join(", "))]
    NoLane {
        /// The name that was asked for.
        lane: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// The options make no buffer. Fix the configuration.
    #[error("{0}")]
    Options(String),
    /// The file system answered with an error. Nothing was accepted.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system answered.
        #[source]
        source: std::io::Error,
    },
}

fn holder(pid: u32) -> String {
    match pid {
        0 => "another process".into(),
        _ => format!("process {pid}"),
    }
}

/// Why a buffer did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// The log failed, which is final: stop accepting and sending, turn readiness red, let a person look at the disk.
    #[error("the buffer has failed: {0}")]
    Failed(String),
    /// The disk is full and the log has come down to its reserve. Nothing was accepted; wait for room (see
    /// [`watch_room`](crate::Buffer::watch_room)) and try again.
    #[error("the disk is full and nothing was accepted: {0}")]
    DiskFull(String),
    /// The buffer was closed. Nothing was done.
    #[error("the buffer is closed")]
    Closed,
    /// The lane's number was not given by this buffer. A programming error of the caller.
    #[error("there is no lane number {}", .0.0)]
    UnknownLane(LaneId),
    /// The writes need more than was reserved. A programming error of the caller.
    #[error("the reservation does not cover the writes for lane number {}", .0.0)]
    NotReserved(LaneId),
    /// The record does not fit half a log segment. Refuse the message.
    #[error(
        "{bytes} bytes do not fit one record of the log, which takes {limit}: raise `buffer.log_size`"
    )]
    TooLarge {
        /// What the record would take.
        bytes: u64,
        /// The most one record may take.
        limit: u64,
    },
    /// A dependent holds dependents deeper than [`MAX_CHILD_DEPTH`](crate::MAX_CHILD_DEPTH).
    #[error("dependents are nested too deeply")]
    TooDeep,
    /// Reading a pending write back failed. Try again; the write is still there.
    #[error("reading pending writes failed: {0}")]
    Read(String),
}

/// Why room could not be reserved. Nothing was reserved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// The lane's quota is used up. Wait for room, or answer 503.
    #[error("lane {id} is full: {charged} of {quota} bytes are used and {needed} are needed")]
    Lane {
        /// The lane.
        lane: LaneId,
        /// Its name.
        id: String,
        /// Charged and reserved bytes.
        charged: u64,
        /// The quota.
        quota: u64,
        /// What was asked for.
        needed: u64,
    },
    /// The disk is full and the log has come down to its reserve. Wait for room, or answer 503.
    #[error("the disk is full: {why}")]
    Disk {
        /// What the disk answered.
        why: String,
    },
    /// It can never fit: the message is larger than the quota or than one log record. Refuse the message.
    #[error("{needed} bytes can never fit {into}, which takes {limit}: raise {setting}")]
    Never {
        /// What was asked for.
        needed: u64,
        /// What is too small: a lane or a record.
        into: String,
        /// The quota or the record limit.
        limit: u64,
        /// The setting that has to be larger.
        setting: &'static str,
    },
    /// The buffer failed or is closed.
    #[error(transparent)]
    Buffer(#[from] BufferError),
}
