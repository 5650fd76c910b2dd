//! The durable buffer: one commit log, and a spill per lane.

mod api;
mod buffer;
mod checkpoint;
mod codec;
mod core;
mod envelope;
mod error;
mod fetch;
mod fs;
mod group;
pub mod inspect;
mod items;
mod job;
mod keys;
mod lane;
mod log;
mod planted;
mod record;
mod recovery;
mod replay;
mod seqset;
mod shared;
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
#[allow(clippy::indexing_slicing, clippy::missing_panics_doc)]
pub mod sim;
mod spill;
mod state;
mod thread;

pub use api::*;
pub use buffer::{Accepting, Buffer, Claim, Fetching, Purging, Reservation, Ticket};
pub use error::{BufferError, Full, OpenError};
pub use fs::{FileHandle, Filesystem, LockOutcome, Open, RealFilesystem};
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
pub use planted::Planted;

#[cfg(test)]
mod tests;
