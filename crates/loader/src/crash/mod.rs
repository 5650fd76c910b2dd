//! Crash notes: which writes were in plugins' hands when native code ended the process.
//!
//! A plugin that segfaults takes the host with it, and so does the next start, if a message did it.
//! So the host keeps a table of the writes that plugins have ([`in_hands`]), and a signal handler
//! ([`watch`]) writes it into a file that was opened long before. The next start reads the file
//! ([`read`]) and knows what to suspect.
//!
//! # Constraints
//!
//! * The handler runs in a process in any state: no allocation, no lock, no formatting machinery;
//!   `write(2)` on an open file and atomics only. It runs on the thread's alternate stack, so that a
//!   stack overflow is noted, too: host threads have one from the standard library, a plugin's
//!   threads from the SDK.
//! * The table has [`TABLE`] places of two words. What finds none is counted; a note says so.
//! * A signal that another process sent (`kill -SEGV`, a watchdog) says nothing about the writes and
//!   leaves no note; SIGKILL and a power cut cannot leave one.
//! * The process ends by the signal all the same, with its core dump.
//!
//! # The file
//!
//! Text, one fact a line, empty while all is well:
//!
//! ```text
//! consign-crash 1
//! run 6f1f0d9a77e30c12        random, so that a note is taken once only
//! at 1700000000000            wall clock, unix milliseconds
//! signal 11
//! thread plugin-nats
//! write 3 4711                lane and number, one line each
//! unlisted 0                  writes that found no place in the table
//! end
//! ```
//!
//! A reader believes whole lines: each write that is named was in flight, whatever is missing.

mod handler;
mod table;

pub use handler::watch;
pub use table::{InHands, TABLE, in_hands};

use std::collections::BTreeSet;

/// The first line of a note.
const MAGIC: &str = "consign-crash 1";

/// What a crash left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CrashNote {
    /// The run that ended.
    pub run: u64,
    /// When, wall clock in unix milliseconds.
    pub at_unix_ms: u64,
    /// The signal's number.
    pub signal: i32,
    /// The thread that got it; a plugin's threads are named after it.
    pub thread: String,
    /// Lane and number of each write that a plugin had.
    pub writes: BTreeSet<(u32, u64)>,
    /// Writes that a plugin had and that found no place in the table.
    pub unlisted: u64,
    /// Whether the note was written to its end.
    pub whole: bool,
}

/// Reads a note. `None` for an empty file.
///
/// # Errors
/// It is no note, or was cut before it named the signal: a sentence that says which.
pub fn read(bytes: &[u8]) -> Result<Option<CrashNote>, String> {
    // Room may have been allocated and never written.
    let end = bytes.iter().position(|byte| *byte == 0);
    let bytes = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or(bytes);
    if bytes.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(bytes);
    // The last line counts only with its end.
    let whole_lines = text
        .rfind('\n')
        .map_or("", |at| text.get(..at).unwrap_or(""));
    let mut lines = whole_lines.lines();
    if lines.next() != Some(MAGIC) {
        return Err("it is no crash note of this version, or was cut in its first line".to_owned());
    }
    let mut note = CrashNote::default();
    for line in lines {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "run" => note.run = u64::from_str_radix(rest, 16).unwrap_or(0),
            "at" => note.at_unix_ms = rest.parse().unwrap_or(0),
            "signal" => note.signal = rest.parse().unwrap_or(0),
            "thread" => note.thread = rest.chars().filter(|c| !c.is_control()).collect(),
            "write" => {
                let parsed = rest
                    .split_once(' ')
                    .and_then(|(lane, seq)| Some((lane.parse().ok()?, seq.parse().ok()?)));
                note.writes.extend(parsed);
            }
            "unlisted" => note.unlisted = rest.parse().unwrap_or(0),
            "end" => note.whole = true,
            // A later version may say more.
            _ => {}
        }
    }
    if note.signal == 0 {
        return Err("it was cut before it named the signal".to_owned());
    }
    Ok(Some(note))
}

/// The signal's name, `SIGSEGV`.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    match signal {
        libc::SIGSEGV => "SIGSEGV".to_owned(),
        libc::SIGABRT => "SIGABRT".to_owned(),
        libc::SIGBUS => "SIGBUS".to_owned(),
        libc::SIGILL => "SIGILL".to_owned(),
        libc::SIGFPE => "SIGFPE".to_owned(),
        other => format!("signal {other}"),
    }
}

#[cfg(test)]
mod tests;
