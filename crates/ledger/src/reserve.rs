//! The reserve for a full disk: a file beside the ledger that is given up when room runs out.
//!
//! What happens on a full disk: a call fails inside SQLite and changes nothing; the reserve file is
//! removed; the call runs once more in the room that this made, and lands. So the parks and events
//! of the first minutes are kept. When that room is spent too, calls answer `Full`, parks wait in
//! their lanes and the host blocks. Once there is room for twice the reserve it is taken back.
//!
//! The file holds noise and not zeros, since file systems that compress would store zeros in nothing.

use crate::db::beside;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Bytes written at a time.
const CHUNK: usize = 64 * 1024;

/// Whether the reserve is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReserveState {
    /// It is.
    Held,
    /// It was given up, or there was no room for it.
    Released,
    /// None is configured.
    Off,
}

#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
    state: ReserveState,
}

impl Reserve {
    pub(crate) fn new(ledger: &Path, bytes: u64) -> Self {
        Self {
            path: beside(ledger, ".reserve"),
            bytes,
            state: if bytes == 0 {
                ReserveState::Off
            } else {
                ReserveState::Released
            },
        }
    }

    pub(crate) fn state(&self) -> ReserveState {
        self.state
    }

    /// Takes the reserve where it is not there yet.
    pub(crate) fn hold(&mut self) {
        if self.state == ReserveState::Off {
            return;
        }
        // A process that was killed while it made the reserve left this behind.
        let _ = fs::remove_file(beside(&self.path, ".new"));
        let there = || fs::metadata(&self.path).is_ok_and(|m| m.len() >= self.bytes);
        // Asked once more at the end: another process may have made it at the same moment.
        self.state = if there() || self.make(self.bytes).is_ok() || there() {
            ReserveState::Held
        } else {
            ReserveState::Released
        };
    }

    /// Gives it up; true when that made room.
    pub(crate) fn release(&mut self) -> bool {
        if self.state != ReserveState::Held {
            return false;
        }
        self.state = ReserveState::Released;
        fs::remove_file(&self.path).is_ok()
    }

    /// Takes it back if twice its size fits: taking the very last room would only be given up again.
    pub(crate) fn refill(&mut self) -> bool {
        if self.make(self.bytes.saturating_mul(2)).is_ok() {
            self.state = ReserveState::Held;
            return true;
        }
        false
    }

    /// Writes `room` bytes, and keeps the reserve's own size of them.
    fn make(&self, room: u64) -> io::Result<()> {
        let temporary = beside(&self.path, ".new");
        let made = (|| {
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            let mut left = room;
            let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
            while left > 0 {
                let chunk: Vec<u8> = noise.chunk();
                let part = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
                file.write_all(chunk.get(..part).unwrap_or(&chunk))?;
                left -= part as u64;
            }
            file.sync_all()?;
            file.set_len(self.bytes)?;
            fs::rename(&temporary, &self.path)
        })();
        if made.is_err() {
            // What was written of it is just what is missing elsewhere.
            let _ = fs::remove_file(&temporary);
        }
        made
    }
}

/// Bytes that do not compress (xorshift64).
struct Noise(u64);

impl Noise {
    fn chunk(&mut self) -> Vec<u8> {
        let mut chunk = Vec::with_capacity(CHUNK);
        while chunk.len() < CHUNK {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            chunk.extend_from_slice(&self.0.to_le_bytes());
        }
        chunk
    }
}
