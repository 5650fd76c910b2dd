//! Reading pending writes: from memory where it can be, else from spill files and the log.

use bytes::Bytes;

use crate::api::{Fetched, NewWrite, Pending};
use crate::core::Core;
use crate::error::BufferError;
use crate::lane::{Lane, SpilledMeta};
use crate::state::State;
use crate::write::{children_of, parse_write};

/// The most writes one fetch returns, whatever was asked for: it bounds what one answer holds in memory.
const MAX_FETCH_WRITES: usize = 65_536;

fn pending(lane: &Lane, seq: u64, enc: &Bytes) -> Option<Pending> {
    let view = parse_write(enc)?;
    let state = lane.states.get(&seq).copied().unwrap_or_default();
    Some(Pending {
        seq,
        key: view.key,
        order: view.order,
        body: enc.slice_ref(view.body),
        created_unix_ms: view.created_unix_ms,
        expires_unix_ms: view.expires_unix_ms,
        maybe_since_unix_ms: lane.maybe_since(seq, &state),
        state,
        children: view.children.len(),
    })
}

impl State {
    /// The answer to a fetch, when memory has it.
    pub(crate) fn fetch_from_memory(
        &mut self,
        number: u32,
        after: u64,
        max_writes: usize,
        max_bytes: usize,
    ) -> Option<Fetched> {
        let lane = self.lanes.get_mut(number as usize)?;
        if lane.spill_after(after) {
            return None;
        }
        let (mut out, mut bytes) = (Fetched::default(), 0usize);
        let mut marks = Vec::new();
        for (&seq, entry) in lane.entries.range(after.saturating_add(1)..) {
            let full = out.writes.len() >= max_writes.clamp(1, MAX_FETCH_WRITES)
                || bytes >= max_bytes.max(1);
            let body = match &entry.body {
                Some(body) if !full => body.clone(),
                None if out.writes.is_empty() => return None,
                _ => {
                    out.more = true;
                    break;
                }
            };
            let state = lane.states.get(&seq).copied().unwrap_or_default();
            bytes = bytes.saturating_add(body.len());
            marks.push(seq);
            out.writes.push(Pending {
                seq,
                key: entry.key,
                order: entry.order,
                body,
                created_unix_ms: entry.created_unix_ms,
                expires_unix_ms: entry.expires_unix_ms,
                maybe_since_unix_ms: lane.maybe_since(seq, &state),
                state,
                children: usize::from(entry.children),
            });
        }
        for seq in marks {
            if let Some(entry) = lane.entries.get_mut(&seq) {
                entry.fetched = true;
            }
        }
        Some(out)
    }
}

impl Core {
    /// The answer to a fetch, with files read as needed.
    pub(crate) fn fetch(
        &mut self,
        number: u32,
        after: u64,
        max_writes: usize,
        max_bytes: usize,
    ) -> Result<Fetched, BufferError> {
        let (mut out, mut bytes) = (Fetched::default(), 0usize);
        let max_writes = max_writes.clamp(1, MAX_FETCH_WRITES);
        let max_bytes = max_bytes.max(1);
        let mut after = after;
        let read = |e: std::io::Error| BufferError::Read(e.to_string());
        while out.writes.len() < max_writes && bytes < max_bytes {
            let spill = self
                .shared
                .state
                .lock()
                .lanes
                .get(number as usize)
                .is_some_and(|l| l.spill_after(after));
            if spill {
                let budget = (max_writes - out.writes.len(), max_bytes - bytes);
                let chunk = self
                    .read_spill(number, after, budget.0, budget.1)
                    .map_err(read)?;
                after = chunk.through;
                let mut state = self.shared.state.lock();
                let Some(lane) = state.lanes.get_mut(number as usize) else {
                    break;
                };
                for (seq, enc) in chunk.writes {
                    let Some(write) = pending(lane, seq, &enc) else {
                        continue;
                    };
                    let held = parse_write(&enc).map(|v| v.held()).unwrap_or_default();
                    let charge = write.body.len() as u64 + crate::api::WRITE_OVERHEAD_BYTES;
                    let held = (!held.is_empty()).then(|| Box::new(held));
                    lane.spilled.insert(seq, SpilledMeta { charge, held });
                    bytes += write.body.len();
                    out.writes.push(write);
                }
                continue;
            }
            let Some((seq, place)) = self.next_in_log(number, after) else {
                break;
            };
            after = seq;
            match self.log.read(&place) {
                Ok(enc) => {
                    let enc = Bytes::from(enc);
                    let mut state = self.shared.state.lock();
                    let Some(lane) = state.lanes.get_mut(number as usize) else {
                        break;
                    };
                    if let Some(write) = pending(lane, seq, &enc) {
                        bytes += write.body.len();
                        out.writes.push(write);
                    }
                    if let Some(entry) = lane.entries.get_mut(&seq) {
                        entry.fetched = true;
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                    self.lose_in_log(number, seq)
                }
                Err(e) => return Err(read(e)),
            }
        }
        let state = self.shared.state.lock();
        out.more = state.lanes.get(number as usize).is_some_and(|l| {
            l.spill_after(after) || l.entries.range(after.saturating_add(1)..).next().is_some()
        });
        Ok(out)
    }

    /// The dependents of one pending write.
    pub(crate) fn children(&mut self, number: u32, seq: u64) -> Result<Vec<NewWrite>, BufferError> {
        if !self.shared.state.lock().is_pending(number, seq) {
            return Ok(Vec::new());
        }
        let enc = self
            .read_write(number, seq)
            .map_err(|e| BufferError::Read(e.to_string()))?;
        enc.as_ref()
            .and_then(children_of)
            .ok_or_else(|| BufferError::Read(format!("write {seq} does not check")))
    }

    fn next_in_log(&self, number: u32, after: u64) -> Option<(u64, crate::lane::LogPlace)> {
        let state = self.shared.state.lock();
        let lane = state.lanes.get(number as usize)?;
        lane.entries
            .range(after.saturating_add(1)..)
            .next()
            .map(|(seq, e)| (*seq, e.place))
    }

    /// The encoding of one pending write, wherever it is; `None` when it is lost.
    pub(crate) fn read_write(&mut self, number: u32, seq: u64) -> std::io::Result<Option<Bytes>> {
        let place = {
            let state = self.shared.state.lock();
            state
                .lanes
                .get(number as usize)
                .and_then(|l| l.entries.get(&seq))
                .map(|e| e.place)
        };
        match place {
            Some(place) => match self.log.read(&place) {
                Ok(enc) => Ok(Some(Bytes::from(enc))),
                Err(e) if e.kind() == std::io::ErrorKind::InvalidData => Ok(None),
                Err(e) => Err(e),
            },
            None => {
                let chunk = self.read_spill(number, seq - 1, 1, 1)?;
                Ok(chunk
                    .writes
                    .into_iter()
                    .find(|(s, _)| *s == seq)
                    .map(|(_, enc)| enc))
            }
        }
    }
}
