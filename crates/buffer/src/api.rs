//! What callers hand in and get back: plain data, no behaviour beyond small helpers.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use crate::error::Full;

/// Bytes charged for a write on top of its body: record header, routing fields and padding.
///
/// The charge is an upper bound of what the write takes in a spill file, so a quota in charges bounds the disk.
pub const WRITE_OVERHEAD_BYTES: u64 = 96;

/// The deepest chain of dependents inside one parent. A chain of sends this long is a configuration mistake.
pub const MAX_CHILD_DEPTH: usize = 16;

/// A lane's number, given by the buffer and stable for the life of its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// Sizes and delays of one buffer.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of the whole preallocated commit log (`buffer.log_size`). Default 256 MiB, minimum 64 KiB.
    pub log_bytes: u64,
    /// Into how many segments the log is divided. Default 8, minimum 4. One record must fit half a segment.
    pub log_segments: u32,
    /// A spill file is closed once it holds this many bytes. Default 16 MiB.
    pub spill_file_bytes: u64,
    /// Bytes of bodies kept in memory. Bodies beyond it are read back from the log. Default 32 MiB.
    pub body_memory_bytes: u64,
    /// A checkpoint is due once this many pending writes are in the log, which bounds the index in memory.
    /// Default 131,072.
    pub log_entries: usize,
    /// The longest time a group waits for as many writers as the last one had. Default 200 µs.
    pub gather: Duration,
    /// The longest time a settlement nobody waits for stays in memory. Default 10 ms.
    pub settle_flush: Duration,
    /// First bytes of a checkpoint slot; 0 = by the size of the log. Small ones let the simulation see slots grow.
    #[cfg(any(test, feature = "simulation"))]
    #[doc(hidden)]
    pub slot_bytes: u64,
    /// A fault put in on purpose, so that the simulation can show that it finds it.
    #[cfg(any(test, feature = "simulation"))]
    #[doc(hidden)]
    pub planted: Option<crate::planted::Planted>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            log_bytes: 256 << 20,
            log_segments: 8,
            spill_file_bytes: 16 << 20,
            body_memory_bytes: 32 << 20,
            log_entries: 131_072,
            gather: Duration::from_micros(200),
            settle_flush: Duration::from_millis(10),
            #[cfg(any(test, feature = "simulation"))]
            slot_bytes: 0,
            #[cfg(any(test, feature = "simulation"))]
            planted: None,
        }
    }
}

/// What [`Buffer::reserve`](crate::Buffer::reserve) does for a lane that has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// The reservation is refused; the source waits or answers 503.
    #[default]
    Block,
    /// The reservation is made without this write, and says so in [`Reservation::dropped`](crate::Reservation::dropped).
    Drop,
}

/// One lane as the configuration describes it.
#[derive(Debug, Clone)]
pub struct LaneSpec {
    /// The stable name, `adapter/route/send`.
    pub id: String,
    /// Earlier names. The first that has a lane gives its backlog to this one, if `id` itself has no lane yet.
    pub formerly: Vec<String>,
    /// Charged bytes of pending writes this lane may hold.
    pub quota_bytes: u64,
    /// How many writes may be in flight: the bound on copies after a crash.
    pub in_flight_limit: u32,
    /// What happens to a write that finds no room.
    pub when_full: WhenFull,
}

/// How long accepted keys of one scope (an adapter) are remembered.
#[derive(Debug, Clone)]
pub struct ScopeSpec {
    /// The adapter's name.
    pub id: String,
    /// How long an individual or client key is remembered, in milliseconds.
    pub window_ms: u64,
    /// Bytes of keys kept, in memory and on disk each: 16 for an individual key, 32 for a client key.
    pub key_quota_bytes: u64,
}

/// What names a message across redeliveries, for the acceptance check.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// Partition and offset of a source whose position is one number per partition.
    Cumulative {
        /// The partition's name.
        partition: String,
        /// Tells a partition from an earlier one with the same name (a file after truncation).
        incarnation: u64,
        /// The message's offset.
        offset: u64,
    },
    /// The identity of one message, hashed to 128 bits by the caller.
    Individual {
        /// The hash.
        id: [u8; 16],
    },
    /// A client's `Idempotency-Key`, scoped by principal and hashed by the caller, with the body's digest.
    ClientKey {
        /// Hash of principal and key.
        key: [u8; 16],
        /// Digest of the body: another body under the same key is a conflict.
        body: [u8; 16],
    },
}

/// The answer of the acceptance check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Never accepted, as far as the window reaches.
    New,
    /// Accepted before.
    Repeat,
    /// The client key was accepted before with another body.
    Conflict,
    /// The same origin is claimed or being committed right now.
    InFlight,
}

/// What [`Buffer::assigned`](crate::Buffer::assigned) found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assigned {
    /// The group's committed offset is where it was left, or further.
    Resumed,
    /// Someone moved the group's committed offset back: what was accepted since is forgotten and will be accepted again.
    Rewound {
        /// The offset that was committed before.
        from: u64,
        /// The offset it was moved to.
        to: u64,
    },
}

/// One write to be made durable.
#[derive(Debug, Clone)]
pub struct NewWrite {
    /// The lane it joins.
    pub lane: LaneId,
    /// The write key.
    pub key: [u8; 16],
    /// Hash of the order key; 0 = strict lane order.
    pub order: u64,
    /// The opaque payload.
    pub body: Bytes,
    /// When the write was made, wall clock.
    pub created_unix_ms: u64,
    /// When it stops being worth sending, wall clock.
    pub expires_unix_ms: Option<u64>,
    /// Dependents, held inside this write until it settles as delivered.
    pub children: Vec<NewWrite>,
}

impl NewWrite {
    /// What this write alone is charged to its lane, in bytes; its children are charged to theirs.
    pub fn charge(&self) -> u64 {
        (self.body.len() as u64).saturating_add(WRITE_OVERHEAD_BYTES)
    }
}

/// Everything one message brings, committed as one record. Every part may be empty.
#[derive(Debug, Clone, Default)]
pub struct Acceptance {
    /// The adapter.
    pub scope: String,
    /// Remembered as accepted, so that a repeat is told.
    pub origin: Option<Origin>,
    /// A host-kept source position: source name and opaque bytes.
    pub position: Option<(String, Bytes)>,
    /// The writes, in the order their lanes get them.
    pub writes: Vec<NewWrite>,
    /// Writes settled by the same record (a divert: settled here, accepted there).
    pub settles: Vec<Settlement>,
}

/// The end of one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The write's lane.
    pub lane: LaneId,
    /// The write's number.
    pub seq: u64,
    /// The caller's outcome code, counted per lane and code. [`LOST`] and [`PURGED`] are the buffer's own.
    pub result: u8,
    /// True: the children join their lanes in the same record. False: they are dropped.
    pub release_children: bool,
}

/// Outcome code of writes that corruption took.
pub const LOST: u8 = 255;
/// Outcome code of writes that a purge took.
pub const PURGED: u8 = 254;

/// What a lane knows about a write beyond its first sending. Durable once noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteState {
    /// Attempts charged.
    pub attempts: u32,
    /// Wall-clock time of the first send that may have been applied.
    pub first_maybe_unix_ms: Option<u64>,
    /// Resends used up where a repeat is a second copy.
    pub spent_resends: u32,
    /// Milliseconds the gate was open since the first attempt.
    pub open_gate_age_ms: u64,
    /// Wall-clock time of the first attempt; 0 = none yet.
    pub first_attempt_unix_ms: u64,
    /// Bits of the caller's own.
    pub flags: u32,
    /// The number of the sealed batch it belongs to; 0 = none.
    pub sealed: u64,
}

/// A write that is not settled.
#[derive(Debug, Clone)]
pub struct Pending {
    /// Its number in the lane.
    pub seq: u64,
    /// The write key.
    pub key: [u8; 16],
    /// Hash of the order key; 0 = strict lane order.
    pub order: u64,
    /// The opaque payload.
    pub body: Bytes,
    /// When the write was made.
    pub created_unix_ms: u64,
    /// When it stops being worth sending.
    pub expires_unix_ms: Option<u64>,
    /// Since when it may have been applied: from its note, or because an unclean exit left it below the send frontier.
    pub maybe_since_unix_ms: Option<u64>,
    /// The last note, or the default.
    pub state: WriteState,
    /// How many dependents it holds.
    pub children: usize,
}

/// One answer to a fetch.
#[derive(Debug, Clone, Default)]
pub struct Fetched {
    /// Pending writes in order of their numbers.
    pub writes: Vec<Pending>,
    /// Whether the lane has pending writes after the last one returned.
    pub more: bool,
}

/// A lane in figures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// The stable name.
    pub id: String,
    /// Writes not settled.
    pub pending: u64,
    /// Charged bytes of pending writes and of dependents held for this lane.
    pub charged_bytes: u64,
    /// Bytes promised to reservations that are still open.
    pub reserved_bytes: u64,
    /// The quota.
    pub quota_bytes: u64,
    /// The number the next write gets.
    pub next_seq: u64,
    /// Every number up to here is settled.
    pub settled_through: u64,
    /// The durable send frontier.
    pub frontier: u64,
    /// Wall-clock time the newest frontier came with; 0 = the lane never had one.
    pub frontier_wall_unix_ms: u64,
    /// Bytes of spill files on disk.
    pub spill_bytes: u64,
    /// Number of spill files.
    pub spill_files: usize,
    /// Settled writes by outcome code, since the lane exists.
    pub outcomes: Vec<(u8, u64)>,
    /// Whether a configuration claimed it in this run.
    pub claimed: bool,
}

/// The whole buffer in figures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BufferStats {
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of the log that a checkpoint has not freed.
    pub log_used_bytes: u64,
    /// Pending writes in the log.
    pub log_entries: usize,
    /// Bytes of bodies in memory.
    pub body_memory_bytes: u64,
    /// Checkpoints made in this run.
    pub checkpoints: u64,
    /// Checkpoint attempts that failed in this run.
    pub checkpoint_failures: u64,
    /// Groups committed in this run: one write and one flush each.
    pub groups: u64,
    /// Records committed in this run.
    pub records: u64,
    /// Bytes written in this run: log, spill, checkpoints and keys.
    pub written_bytes: u64,
    /// This run's owner epoch.
    pub epoch: u32,
}

/// What corruption took, as far as it can be counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lost {
    /// Log records whose sequence numbers are missing.
    pub records: u64,
    /// Writes whose numbers are missing from their lane.
    pub writes: u64,
    /// Bytes set aside in `quarantine/`.
    pub quarantined_bytes: u64,
    /// Files that a checkpoint names and the folder does not have, or has only in part: spill files, log segments,
    /// the other checkpoint.
    pub files: u64,
    /// The bytes that were set aside, place by place; as many as there may be notes.
    pub places: Vec<Place>,
    /// One sentence for each place.
    pub notes: Vec<String>,
}

/// A stretch of a file whose bytes do not check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, from the buffer's folder on.
    pub file: PathBuf,
    /// Where the stretch begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

impl Lost {
    /// Whether nothing was lost.
    pub fn is_empty(&self) -> bool {
        self.records == 0
            && self.writes == 0
            && self.quarantined_bytes == 0
            && self.files == 0
            && self.notes.is_empty()
    }
}

/// What opening found.
#[derive(Debug, Clone, Default)]
pub struct Recovery {
    /// Every lane the folder knows, claimed or not.
    pub lanes: Vec<LaneStats>,
    /// The last run did not close the buffer: pending writes below a send frontier may have been applied.
    pub unclean_exit: bool,
    /// What corruption took.
    pub lost: Lost,
    /// Host-kept source positions.
    pub positions: Vec<(String, Bytes)>,
    /// Log records replayed.
    pub replayed_records: u64,
    /// Bytes of a torn tail that were cut: never acknowledged to anyone.
    pub torn_bytes: u64,
    /// This run's owner epoch.
    pub epoch: u32,
}

/// Whether the buffer works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Accepting and sending.
    Running,
    /// Not accepting because the disk is full; lanes go on draining and it resumes by itself.
    Full {
        /// What the disk answered.
        why: String,
    },
    /// The log failed. Final for this run: nothing is accepted, and nothing should be sent.
    Failed {
        /// What failed.
        why: String,
    },
    /// Closed by its owner.
    Closed,
}

/// Why a reservation was refused, for callers that match on results.
pub type ReserveResult<T> = Result<T, Full>;
