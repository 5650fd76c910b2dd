//! What passed through a proxy, for people and for the checks of a scenario.

use super::Action;
use super::link::find;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::{Duration, Instant};

/// Bytes of traffic that are kept; what comes later is only counted. A scenario sends a few messages.
const KEPT_BYTES: usize = 8 << 20;

/// Bytes of one entry that a person is shown.
const SHOWN_BYTES: usize = 600;

/// One thing that happened on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A client has connected.
    Opened,
    /// The server could not be reached.
    NoServer(String),
    /// Forwarded to the server.
    ToServer(Vec<u8>),
    /// Read from the client and not forwarded.
    Withheld(Vec<u8>),
    /// Forwarded to the client.
    ToClient(Vec<u8>),
    /// Read from the server and not forwarded.
    Swallowed(Vec<u8>),
    /// What comes next was held back for so long.
    Delayed(Duration),
    /// The armed fault fired here.
    Fired(Action),
    /// Both sides were closed by the proxy.
    Cut,
    /// The client has closed.
    ClientClosed,
    /// The server has closed.
    ServerClosed,
}

/// One line of the transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Since the proxy was started.
    pub at: Duration,
    /// Which connection, counted from 1.
    pub connection: u64,
    /// What happened.
    pub what: What,
}

/// Everything in order.
#[derive(Debug, Clone)]
pub struct Transcript {
    started: Instant,
    entries: Vec<Entry>,
    kept_bytes: usize,
    dropped_bytes: usize,
}

impl Transcript {
    pub(super) fn begin() -> Self {
        Self {
            started: Instant::now(),
            entries: Vec::new(),
            kept_bytes: 0,
            dropped_bytes: 0,
        }
    }

    pub(super) fn add(&mut self, connection: u64, mut what: What) {
        if let What::ToServer(bytes)
        | What::Withheld(bytes)
        | What::ToClient(bytes)
        | What::Swallowed(bytes) = &mut what
        {
            if self.kept_bytes + bytes.len() > KEPT_BYTES {
                self.dropped_bytes += bytes.len();
                bytes.clear();
            }
            self.kept_bytes += bytes.len();
        }
        self.entries.push(Entry {
            at: self.started.elapsed(),
            connection,
            what,
        });
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// How often a text was sent towards the server, withheld copies included.
    pub fn sent(&self, text: &str) -> usize {
        self.streams(|what| match what {
            What::ToServer(bytes) | What::Withheld(bytes) => Some(bytes),
            _ => None,
        })
        .values()
        .map(|stream| count(stream, text.as_bytes()))
        .sum()
    }

    /// How often a text reached the server.
    pub fn arrived(&self, text: &str) -> usize {
        self.streams(|what| match what {
            What::ToServer(bytes) => Some(bytes),
            _ => None,
        })
        .values()
        .map(|stream| count(stream, text.as_bytes()))
        .sum()
    }

    /// The chosen bytes of each connection in one piece, so that what lies across two reads is found.
    fn streams<'a>(
        &'a self,
        choose: impl Fn(&'a What) -> Option<&'a Vec<u8>>,
    ) -> BTreeMap<u64, Vec<u8>> {
        let mut streams: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for entry in &self.entries {
            if let Some(bytes) = choose(&entry.what) {
                streams
                    .entry(entry.connection)
                    .or_default()
                    .extend_from_slice(bytes);
            }
        }
        streams
    }
}

fn count(bytes: &[u8], text: &[u8]) -> usize {
    let mut rest = bytes;
    let mut times = 0;
    while let Some(at) = find(rest, text) {
        times += 1;
        rest = rest.get(at + text.len().max(1)..).unwrap_or_default();
    }
    times
}

impl fmt::Display for Transcript {
    /// A line per entry: when, which connection, what, and the bytes as text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.entries {
            write!(
                f,
                "{:9.3} s  #{}  ",
                entry.at.as_secs_f64(),
                entry.connection
            )?;
            match &entry.what {
                What::Opened => writeln!(f, "opened")?,
                What::NoServer(error) => writeln!(f, "the server could not be reached: {error}")?,
                What::ToServer(bytes) => writeln!(f, "-> {}", shown(bytes))?,
                What::Withheld(bytes) => writeln!(f, "-| withheld: {}", shown(bytes))?,
                What::ToClient(bytes) => writeln!(f, "<- {}", shown(bytes))?,
                What::Swallowed(bytes) => writeln!(f, "|- swallowed: {}", shown(bytes))?,
                What::Delayed(delay) => writeln!(f, "   held back for {delay:?}")?,
                What::Fired(action) => writeln!(f, "!! the fault fired: {action:?}")?,
                What::Cut => writeln!(f, "!! cut")?,
                What::ClientClosed => writeln!(f, "the client closed")?,
                What::ServerClosed => writeln!(f, "the server closed")?,
            }
        }
        if self.dropped_bytes > 0 {
            writeln!(f, "({} more bytes were not kept)", self.dropped_bytes)?;
        }
        Ok(())
    }
}

/// Bytes as text, with escapes, cut to what a person reads.
fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(SHOWN_BYTES) {
        match byte {
            b'\r' => {}
            b'\n' => text.push('⏎'),
            b' '..=b'~' => text.push(char::from(*byte)),
            // Writing to a String cannot fail.
            other => drop(write!(text, "\\x{other:02x}")),
        }
    }
    if bytes.len() > SHOWN_BYTES {
        let _ = write!(text, " … {} bytes in all", bytes.len());
    }
    text
}
