//! A model of the buffer: what is durable, what is only on its way there, and what a crash leaves.

use consign_delivery::{FetchedWrite, SettleResult, WriteNote};
use std::collections::BTreeMap;

/// One pending write.
#[derive(Debug, Clone)]
pub struct Stored {
    pub order: u64,
    pub bytes: u32,
    pub expires_unix_ms: Option<u64>,
    pub note: WriteNote,
    pub maybe_since_unix_ms: Option<u64>,
}

/// The durable state of one lane.
#[derive(Debug, Clone, Default)]
pub struct StoredLane {
    pub pending: BTreeMap<u64, Stored>,
    pub last_seq: u64,
    /// Frontier records in order: number and wall time.
    pub frontiers: Vec<(u64, u64)>,
    pub settled: BTreeMap<u64, SettleResult>,
}

impl StoredLane {
    pub fn frontier(&self) -> u64 {
        self.frontiers
            .iter()
            .map(|(seq, _)| *seq)
            .max()
            .unwrap_or(0)
    }

    pub fn fetch(&self, after: u64, max_writes: u32, max_bytes: u64) -> (Vec<FetchedWrite>, bool) {
        let mut out = Vec::new();
        let mut bytes = 0_u64;
        let mut more = false;
        for (seq, stored) in self.pending.range(after + 1..) {
            bytes += u64::from(stored.bytes);
            if out.len() >= max_writes as usize || (!out.is_empty() && bytes > max_bytes) {
                more = true;
                break;
            }
            out.push(FetchedWrite {
                seq: *seq,
                key: key_of(*seq),
                order: stored.order,
                bytes: stored.bytes,
                expires_unix_ms: stored.expires_unix_ms,
                maybe_since_unix_ms: stored.maybe_since_unix_ms,
                note: stored.note,
            });
        }
        (out, more)
    }
}

fn key_of(seq: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&seq.to_le_bytes());
    key
}

/// Something to make durable.
#[derive(Debug, Clone)]
pub enum Op {
    Frontier {
        lane: u32,
        seq: u64,
        wall: u64,
    },
    Notes {
        lane: u32,
        notes: Vec<(u64, WriteNote)>,
    },
    Settle {
        lane: u32,
        writes: Vec<(u64, SettleResult)>,
    },
}

/// The buffer of the simulated host.
#[derive(Debug, Default)]
pub struct ModelBuffer {
    pub lanes: BTreeMap<u32, StoredLane>,
    /// On their way to disk, in order: ticket, operation.
    pub queue: std::collections::VecDeque<(u64, Op)>,
}

impl ModelBuffer {
    pub fn accept(&mut self, lane: u32, order: u64, bytes: u32, expires: Option<u64>) -> u64 {
        let lane = self.lanes.entry(lane).or_default();
        lane.last_seq += 1;
        lane.pending.insert(
            lane.last_seq,
            Stored {
                order,
                bytes,
                expires_unix_ms: expires,
                note: WriteNote::default(),
                maybe_since_unix_ms: None,
            },
        );
        lane.last_seq
    }

    /// The oldest operation becomes durable.
    pub fn commit_one(&mut self) -> Option<u64> {
        let (ticket, op) = self.queue.pop_front()?;
        match op {
            Op::Frontier { lane, seq, wall } => {
                self.lanes
                    .entry(lane)
                    .or_default()
                    .frontiers
                    .push((seq, wall));
            }
            Op::Notes { lane, notes } => {
                let lane = self.lanes.entry(lane).or_default();
                for (seq, note) in notes {
                    if let Some(stored) = lane.pending.get_mut(&seq) {
                        stored.note = note;
                    }
                }
            }
            Op::Settle { lane, writes } => {
                let lane = self.lanes.entry(lane).or_default();
                for (seq, result) in writes {
                    if lane.pending.remove(&seq).is_some() {
                        lane.settled.insert(seq, result);
                    }
                }
            }
        }
        Some(ticket)
    }

    /// Writes of operations that are not durable yet.
    pub fn undurable(&self) -> Vec<(u32, u64)> {
        let mut out = Vec::new();
        for (_, op) in &self.queue {
            match op {
                Op::Frontier { .. } => {}
                Op::Notes { lane, notes } => {
                    out.extend(notes.iter().map(|(seq, _)| (*lane, *seq)));
                }
                Op::Settle { lane, writes } => {
                    out.extend(writes.iter().map(|(seq, _)| (*lane, *seq)));
                }
            }
        }
        out
    }

    /// Power off: what was queued is gone, what lies below the frontier may have been sent.
    pub fn crash(&mut self) {
        self.queue.clear();
        for lane in self.lanes.values_mut() {
            for (seq, stored) in &mut lane.pending {
                let covered = lane
                    .frontiers
                    .iter()
                    .find(|(frontier, _)| seq <= frontier)
                    .map(|(_, wall)| *wall);
                if let Some(wall) = covered {
                    let known = stored.maybe_since_unix_ms.unwrap_or(u64::MAX);
                    stored.maybe_since_unix_ms = Some(known.min(wall.max(1)));
                }
            }
        }
    }
}
