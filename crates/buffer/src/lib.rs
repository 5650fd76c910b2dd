//! The durable buffer: one commit log, and a spill per lane.
//!
//! # Constraints, as numbers
//!
//! | what | bound |
//! |---|---|
//! | the log | [`Options::log_bytes`] (256 MiB), preallocated, in [`Options::log_segments`] (8) segments that are overwritten in turn |
//! | one record | half a segment less its 4 KiB header (16 MiB by default); more is refused |
//! | one group | 4 MiB; one `write` and one `fdatasync`; waits at most [`Options::gather`] (200 µs) for as many as the last had |
//! | a settlement nobody waits for | durable within [`Options::settle_flush`] (10 ms) |
//! | kept free for settlements, parks, frontiers | a quarter of the log; acceptance stops before it |
//! | bodies in memory | [`Options::body_memory_bytes`] (32 MiB); the rest is read back from the log |
//! | index in memory | pending writes in the log (a checkpoint is due beyond [`Options::log_entries`], 131,072) and what is in flight; a spilled write costs nothing |
//! | disk | four times the quota and two files: a spill file under a quarter live is copied forward |
//! | accepted keys | the scope's key quota, in memory and on disk each |
//!
//! # Layout
//!
//! ```text
//! lock                      held by the running host; its process id
//! checkpoint-0, -1          overwritten in turn; each holds its checkpoint twice, and what the other has reached
//! log/NNNN.log              segments: 4 KiB with two copies of the header, then records
//! lanes/<lane>/<n>.spill    pending writes of one lane, in order
//! keys/<scope>/<n>.keys     accepted keys of one span of time
//! quarantine/               bytes that did not check, for a person
//! ```
//!
//! All integers are little-endian. A record has a header of 32 bytes with its length, two crc32c sums (over the header
//! with the file's salt, and over the payload), a sequence number, the owner epoch and its index in its group; see
//! `record`. Files have mode 0600. The format version is in the first bytes of each file, under a sum; a newer one is
//! refused, and numbers that cannot be true are damage whatever their sums say (see `plausible`).
//!
//! # Write
//!
//! [`Buffer::reserve`] takes room from the lanes' quotas, all or none. [`Buffer::accept`] encodes the record on the
//! caller's thread and queues it; the order of calls is the order of the log. One thread gathers what waits, gives each
//! write its lane number, writes, flushes, lets the record take effect in memory (by the code that recovery uses) and
//! answers. A record takes effect whole: writes, dependents, a position, an accepted key, settlements.
//!
//! # Settle
//!
//! Settlements come out of order: a lane keeps a set of ranges whose first is the watermark. A settlement carries what
//! its write was charged, so a spilled write comes off the books without being read. Dependents are in their parent's
//! bytes, charged to their own lanes; the record that settles the parent holds those that are released.
//!
//! # Checkpoint
//!
//! Begun when half the log is used, and when spill files can be given back. In small pieces between groups: writes
//! still pending in old segments go to their lanes' files, sparse files are copied forward, accepted keys go to theirs,
//! files and folders are flushed; then the checkpoint is written to the older slot and flushed, and the newer slot is
//! marked with it (see `slots`). Only then is anything cut or unlinked. Nothing beyond what a durable checkpoint vouches
//! for is believed. A failed checkpoint leaves the last one in force, and whatever the failed one may name is not
//! touched until another is durable.
//!
//! A full disk: once a checkpoint has failed and the log is down to its reserve, [`Health::Full`] and [`Full::Disk`]
//! stand until a checkpoint goes through or half the log is free; what was reserved before is answered with
//! [`BufferError::DiskFull`], in order, so that nothing passes an earlier acceptance. Settlements go on out of the
//! reserve, and attempts are repeated after 100 ms to 800 ms. Space for a part of what must be spilled ends it only
//! once lanes have drained to that.
//!
//! A failed write or flush of the *log* is final: nothing is tried again, nothing more is accepted, health says so.
//!
//! # Recover
//!
//! The newest checkpoint that checks, then the log from its replay point. Replaying is idempotent, since a checkpoint may
//! know effects of records behind that point. A record that does not check is a torn tail unless something later proves
//! that it was durable (see `replay`); a torn tail is cut, damage is copied to quarantine, counted and passed over. What
//! the last run wrote last, and the checkpoint that was read, are written again in place, because their flush may have
//! failed and no later flush would repeat it. Then the new run's first record is committed under a higher owner epoch.
//! After an unclean exit pending writes below a lane's send frontier may have been applied, and stay so through later
//! clean exits.
//!
//! # Damage
//!
//! What a person or a disk took is told, never passed over:
//!
//! | gone | known by |
//! |---|---|
//! | log records | their numbers are dense |
//! | a log file, or its end | the log never shrinks by itself, and a checkpoint holds the length of each file |
//! | both headers of a segment | a torn write leaves one |
//! | the newest checkpoint | the other slot's mark is above every generation there is |
//! | writes | the numbers of a lane are dense |
//!
//! Then the books are believed no more. Every spill file is read whole, named or not, and what is pending is found out
//! anew (see `rebuild`): all that is left counts, the rest is counted as lost, and charges are exact again. All of it may
//! have been applied. Damage in one spill file alone is found when the file is read, and its writes leave the books;
//! damaged accepted keys cost copies and no writes.
//!
//! An opening notes that it found damage before it makes anything good, and fails where it cannot write down what it made
//! of it. So damage is told by each opening until a run that told it has come to its first checkpoint.
//!
//! A kilobyte at the end of the last free segment is kept for the first and last records of runs, and a run that finds
//! the log full to its last byte takes one segment more: a full disk keeps no host from starting.
//!
//! One limit is inherent: damage of the very last group cannot be told from a torn write. It is cut, and shows only in
//! [`Recovery::torn_bytes`].
//!
//! # Tested by
//!
//! The simulation (`sim`): the code above unchanged on a disk that tears, loses, reorders and fails, against a model,
//! with planted bugs that it must find. `cargo run --example buffer-sim --features simulation` runs it for long. A fuzz
//! target (`fuzz/` at the top, `fuzz` here) opens folders with arbitrary bytes in them.

mod admission;
mod api;
mod begin;
mod buffer;
mod checkpoint;
mod codec;
mod compact;
mod core;
mod error;
mod fetch;
mod finish;
mod fs;
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
#[allow(clippy::indexing_slicing, clippy::missing_panics_doc)]
pub mod fuzz;
mod group;
mod handles;
pub mod inspect;
mod items;
mod job;
mod keyfile;
mod keys;
mod lane;
mod log;
mod planted;
mod plausible;
mod rebuild;
mod record;
mod recovery;
mod replay;
mod room;
mod salvage;
mod segments;
mod seqset;
mod settle;
mod shared;
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
#[allow(clippy::indexing_slicing, clippy::missing_panics_doc)]
pub mod sim;
mod slots;
mod spill;
mod spilling;
mod state;
mod thread;
mod write;

pub use api::*;
pub use buffer::Buffer;
pub use error::{BufferError, Full, OpenError};
pub use fs::{FileHandle, Filesystem, LockOutcome, Open, RealFilesystem};
pub use handles::{Accepting, Claim, Fetching, Holding, Purging, Reservation, Ticket};
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
pub use planted::Planted;

#[cfg(test)]
mod tests;
