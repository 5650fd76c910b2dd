//! Accepting what an export wrote into an open buffer.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use super::envelope::{self, Parsed};
use super::{Inspection, load};
use crate::api::{Acceptance, LaneId, LaneSpec, NewWrite, WriteState};
use crate::buffer::Buffer;
use crate::core::Core;
use crate::error::{BufferError, OpenError};
use crate::fs::Filesystem;
use crate::handles::{Accepting, Ticket};

/// Acceptances that are on their way at a time: they share flushes.
const IN_FLIGHT: usize = 256;
/// Bytes of bodies that are on their way at a time.
const IN_FLIGHT_BYTES: usize = 8 << 20;
/// Keys read at a time from a lane that has writes.
const KEYS: usize = 4096;
/// Bytes of bodies read with them at a time.
const KEY_BYTES: usize = 4 << 20;

/// What [`import`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Imported {
    /// Writes accepted, without their dependents.
    pub accepted: u64,
    /// Writes whose key is pending in the lane already: passed over.
    pub already_there: u64,
    /// Writes of other lanes than those asked for.
    pub other_lanes: u64,
    /// Accepted writes that were in a sealed batch which may have been applied. They join new batches, so what was
    /// applied can arrive a second time.
    pub unsealed: u64,
}

/// Why an import stopped. What came before the line named was accepted; the same import again passes over it.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A line is not one of an export, or names a lane that no configuration has.
    #[error("line {line}: {why}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
    /// A line is fine and there is no room for it.
    #[error("line {line}: {why}")]
    NoRoom {
        /// Counted from 1.
        line: u64,
        /// What is full.
        why: String,
    },
    /// The input could not be read.
    #[error("line {line} could not be read: {why}")]
    Read {
        /// Counted from 1.
        line: u64,
        /// What the system answered.
        why: String,
    },
    /// The folder that is only looked at cannot be read, or a host runs on it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The buffer failed or was closed.
    #[error(transparent)]
    Buffer(#[from] BufferError),
}

/// Reads what [`export`](super::export) wrote and accepts it into an open buffer whose lanes are claimed. Keys, bodies,
/// dependents, times and what was noted about attempts stay; numbers are new. `only` names the lanes to take, none =
/// all.
///
/// # Errors
/// See [`ImportError`]; `done` says what was accepted before.
pub async fn import(
    buffer: &Buffer,
    input: &mut (dyn BufRead + Send),
    only: &[String],
    done: &mut Imported,
) -> Result<(), ImportError> {
    let claimed = buffer.lanes().into_iter().filter(|(_, s)| s.claimed);
    let lanes: Vec<(LaneId, String)> = claimed.map(|(id, s)| (id, s.id)).collect();
    let mut import = Import {
        buffer,
        keys: BTreeMap::new(),
        flying: VecDeque::new(),
        flying_bytes: 0,
        notes: Vec::new(),
    };
    let mut lines = Lines::new(input, &lanes, only);
    let result = import.all(&mut lines, done).await;
    // What is on its way is durable before anything is said, also after an error.
    let landed = import.land(0, done).await;
    result.and(landed)
}

/// Checks every line as [`import`] would into a stopped host's folder with these lanes, and writes nothing: `accepted`
/// counts what would be accepted if there is room. A folder without a buffer is one where nothing is pending.
///
/// # Errors
/// See [`ImportError`].
pub fn rehearse(
    dir: &Path,
    fs: Arc<dyn Filesystem>,
    lanes: &[LaneSpec],
    input: &mut (dyn BufRead + Send),
    only: &[String],
    done: &mut Imported,
) -> Result<(), ImportError> {
    let mut there = match load(dir, fs) {
        Err(OpenError::NoBuffer { .. }) => None,
        other => Some(other?),
    };
    let ids = (0u32..).zip(lanes);
    let ids: Vec<_> = ids.map(|(n, l)| (LaneId(n), l.id.clone())).collect();
    let mut keys: BTreeMap<LaneId, HashSet<[u8; 16]>> = BTreeMap::new();
    let mut lines = Lines::new(input, &ids, only);
    while let Some((_, parsed)) = lines.next(done)? {
        let lane = parsed.write.lane;
        let pending = match keys.entry(lane) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => {
                let spec = lanes.get(lane.0 as usize);
                let pending = match (&mut there, spec) {
                    (Some((found, core)), Some(spec)) => looked_up_keys(dir, found, core, spec)?,
                    _ => HashSet::new(),
                };
                place.insert(pending)
            }
        };
        if pending.insert(parsed.write.key) {
            done.accepted += 1;
            done.unsealed += u64::from(parsed.was_sealed_and_maybe());
        } else {
            done.already_there += 1;
        }
    }
    Ok(())
}

/// The keys that a lane, or the one it was named after before, has pending.
fn looked_up_keys(
    dir: &Path,
    found: &Inspection,
    core: &mut Core,
    spec: &LaneSpec,
) -> Result<HashSet<[u8; 16]>, OpenError> {
    let mut names = std::iter::once(&spec.id).chain(&spec.formerly);
    let number = names.find_map(|name| found.lanes.iter().position(|l| l.id == *name));
    let Some(number) = number.and_then(|n| u32::try_from(n).ok()) else {
        return Ok(HashSet::new());
    };
    let mut keys = HashSet::new();
    super::each_pending(core, dir, number, 0, |_, write| {
        keys.insert(write.key);
        Ok(())
    })?;
    Ok(keys)
}

/// The lines of an export that are of the lanes asked for.
struct Lines<'a> {
    input: &'a mut (dyn BufRead + Send),
    lanes: &'a [(LaneId, String)],
    only: &'a [String],
    line: u64,
    text: String,
}

impl<'a> Lines<'a> {
    fn new(
        input: &'a mut (dyn BufRead + Send),
        lanes: &'a [(LaneId, String)],
        only: &'a [String],
    ) -> Lines<'a> {
        Lines {
            input,
            lanes,
            only,
            line: 0,
            text: String::new(),
        }
    }

    /// The next write, with the number of its line; none at the end.
    fn next(&mut self, done: &mut Imported) -> Result<Option<(u64, Parsed)>, ImportError> {
        loop {
            self.text.clear();
            self.line += 1;
            let line = self.line;
            let wrong = |why| ImportError::Line { line, why };
            let read = self.input.read_line(&mut self.text);
            let read = read.map_err(|e| ImportError::Read {
                line,
                why: e.to_string(),
            })?;
            if read == 0 {
                return Ok(None);
            }
            if self.text.trim().is_empty() {
                continue;
            }
            let lane = envelope::lane(&self.text).map_err(wrong)?;
            if !self.only.is_empty() && !self.only.contains(&lane) {
                done.other_lanes += 1;
                continue;
            }
            let parsed = envelope::parse(&self.text, self.lanes).map_err(wrong)?;
            return Ok(Some((line, parsed)));
        }
    }
}

struct Flying {
    accepting: Accepting,
    bytes: usize,
    state: Option<WriteState>,
    unsealed: bool,
}

struct Import<'a> {
    buffer: &'a Buffer,
    /// Keys pending in each lane that was written to.
    keys: BTreeMap<LaneId, HashSet<[u8; 16]>>,
    flying: VecDeque<Flying>,
    flying_bytes: usize,
    notes: Vec<Ticket>,
}

impl Import<'_> {
    async fn all(&mut self, lines: &mut Lines<'_>, done: &mut Imported) -> Result<(), ImportError> {
        while let Some((line, parsed)) = lines.next(done)? {
            if self.is_new(&parsed.write).await? {
                self.accept(line, parsed)?;
                self.land(IN_FLIGHT, done).await?;
            } else {
                done.already_there += 1;
            }
        }
        Ok(())
    }

    /// Whether the lane does not have this key pending; it counts as pending from now on.
    async fn is_new(&mut self, write: &NewWrite) -> Result<bool, ImportError> {
        if !self.keys.contains_key(&write.lane) {
            let keys = pending_keys(self.buffer, write.lane).await?;
            self.keys.insert(write.lane, keys);
        }
        let keys = self.keys.entry(write.lane).or_default();
        Ok(keys.insert(write.key))
    }

    fn accept(&mut self, line: u64, parsed: Parsed) -> Result<(), ImportError> {
        let mut wanted = Vec::new();
        rooms(&parsed.write, &mut wanted);
        let no_room = |why| ImportError::NoRoom { line, why };
        let room = self
            .buffer
            .reserve(&wanted)
            .map_err(|e| no_room(e.to_string()))?;
        if !room.dropped().is_empty() {
            return Err(no_room(
                "the lane is full and drops what finds no room".into(),
            ));
        }
        let bytes = wanted.iter().map(|(_, bytes)| *bytes as usize).sum();
        let unsealed = parsed.was_sealed_and_maybe();
        let mut state = parsed.state;
        // The number names a request of the lane it was in; here it could name another one.
        state.sealed = 0;
        let acceptance = Acceptance {
            writes: vec![parsed.write],
            ..Acceptance::default()
        };
        self.flying.push_back(Flying {
            accepting: self.buffer.accept(room, acceptance),
            bytes,
            state: (state != WriteState::default()).then_some(state),
            unsealed,
        });
        self.flying_bytes += bytes;
        Ok(())
    }

    /// Waits until at most so many acceptances are on their way; with 0, for their notes, too.
    async fn land(&mut self, most: usize, done: &mut Imported) -> Result<(), ImportError> {
        while self.flying.len() > most
            || (self.flying_bytes > IN_FLIGHT_BYTES && !self.flying.is_empty())
        {
            let Some(flying) = self.flying.pop_front() else {
                break;
            };
            self.flying_bytes = self.flying_bytes.saturating_sub(flying.bytes);
            let numbers = flying.accepting.await?;
            done.accepted += 1;
            done.unsealed += u64::from(flying.unsealed);
            if let (Some(&(lane, seq)), Some(state)) = (numbers.first(), flying.state) {
                self.notes.push(self.buffer.note(lane, seq, state));
            }
        }
        if most == 0 || self.notes.len() > IN_FLIGHT {
            for note in self.notes.drain(..) {
                note.await?;
            }
        }
        Ok(())
    }
}

async fn pending_keys(buffer: &Buffer, lane: LaneId) -> Result<HashSet<[u8; 16]>, BufferError> {
    let (mut keys, mut after) = (HashSet::new(), 0);
    loop {
        let got = buffer.fetch(lane, after, KEYS, KEY_BYTES).await?;
        let Some(last) = got.writes.last() else {
            return Ok(keys);
        };
        after = last.seq;
        keys.extend(got.writes.iter().map(|write| write.key));
    }
}

fn rooms(write: &NewWrite, out: &mut Vec<(LaneId, u64)>) {
    out.push((write.lane, write.body.len() as u64));
    write.children.iter().for_each(|child| rooms(child, out));
}
