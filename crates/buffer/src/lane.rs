//! One lane in memory: what is pending in the log, which spill files hold the rest, what is settled.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use tokio::sync::watch;

use crate::api::{LaneStats, WhenFull, WriteState};
use crate::seqset::SeqSet;
use crate::write::Held;

/// Steps of the send frontier kept with their times. Older ones are joined, which only makes a time earlier.
const MAX_FRONTIER_STEPS: usize = 64;

/// Where a write's encoding stands in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogPlace {
    /// The segment's number (not its slot).
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// crc32c of the encoding, so that what is read back is checked.
    pub(crate) crc: u32,
}

/// A pending write that is in the log.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: [u8; 16],
    pub(crate) order: u64,
    pub(crate) created_unix_ms: u64,
    pub(crate) expires_unix_ms: Option<u64>,
    /// The body, where the byte budget allowed to keep it.
    pub(crate) body: Option<Bytes>,
    pub(crate) place: LogPlace,
    pub(crate) charge: u64,
    pub(crate) held: Option<Box<Held>>,
    pub(crate) children: u16,
    pub(crate) fetched: bool,
}

/// What settling a spilled write needs to know.
#[derive(Debug, Clone)]
pub(crate) struct SpilledMeta {
    pub(crate) charge: u64,
    pub(crate) held: Option<Box<Held>>,
}

/// One spill file as far as a checkpoint vouches for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SpillFile {
    pub(crate) number: u64,
    pub(crate) salt: u64,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    /// Bytes that are believed.
    pub(crate) len: u64,
    /// Nothing is appended any more.
    pub(crate) sealed: bool,
    /// Pending writes in it.
    pub(crate) live: u64,
    /// Their charges to this lane.
    pub(crate) live_charge: u64,
    /// Their bytes in the file, dependents included, by charge.
    pub(crate) live_physical: u64,
    /// Charges of dependents inside them, by lane.
    pub(crate) held: BTreeMap<u32, u64>,
    /// Sparse index: numbers and offsets, in order; not stored.
    pub(crate) index: Vec<(u64, u64)>,
}

impl SpillFile {
    /// Takes one write (or several) off the file's books.
    pub(crate) fn take_off(&mut self, writes: u64, charge: u64, held: &Held) {
        self.live = self.live.saturating_sub(writes);
        self.live_charge = self.live_charge.saturating_sub(charge);
        self.live_physical = self.live_physical.saturating_sub(physical(charge, held));
        for (lane, charge) in held {
            if let Some(have) = self.held.get_mut(lane) {
                *have = have.saturating_sub(*charge);
                if *have == 0 {
                    self.held.remove(lane);
                }
            }
        }
    }

    /// Puts one write on the file's books.
    pub(crate) fn put_on(&mut self, charge: u64, held: &Held) {
        self.live += 1;
        self.live_charge += charge;
        self.live_physical += physical(charge, held);
        for (lane, charge) in held {
            *self.held.entry(*lane).or_default() += charge;
        }
    }

    /// Whether under a quarter of the file is still wanted.
    pub(crate) fn is_sparse(&self) -> bool {
        self.live_physical.saturating_mul(4) < self.len
    }
}

/// What lost writes stood for on their file's books.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Books {
    pub(crate) writes: u64,
    pub(crate) charge: u64,
    pub(crate) physical: u64,
}

impl Books {
    /// Takes one write off, and what it holds.
    pub(crate) fn take_off(&mut self, charge: u64, inside: &Held, held: &mut BTreeMap<u32, u64>) {
        self.writes = self.writes.saturating_sub(1);
        self.charge = self.charge.saturating_sub(charge);
        self.physical = self.physical.saturating_sub(physical(charge, inside));
        for (lane, charge) in inside {
            if let Some(have) = held.get_mut(lane) {
                *have = have.saturating_sub(*charge);
            }
        }
    }
}

/// What a write takes in a file, by charge.
pub(crate) fn physical(charge: u64, held: &Held) -> u64 {
    held.iter()
        .fold(charge, |sum, (_, c)| sum.saturating_add(*c))
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) id: String,
    pub(crate) quota_bytes: u64,
    pub(crate) in_flight_limit: u32,
    pub(crate) when_full: WhenFull,
    pub(crate) claimed: bool,
    pub(crate) next_seq: u64,
    pub(crate) settled: SeqSet,
    /// Every pending write up to here is in a spill file, every later one in the log.
    pub(crate) spilled_through: u64,
    /// In order of numbers.
    pub(crate) files: VecDeque<SpillFile>,
    pub(crate) next_file: u64,
    pub(crate) entries: BTreeMap<u64, Entry>,
    pub(crate) spilled: HashMap<u64, SpilledMeta>,
    pub(crate) states: BTreeMap<u64, WriteState>,
    pub(crate) frontier: u64,
    pub(crate) frontier_steps: VecDeque<(u64, u64)>,
    pub(crate) maybe_through: u64,
    pub(crate) charged: u64,
    pub(crate) reserved: u64,
    pub(crate) outcomes: BTreeMap<u8, u64>,
    pub(crate) watch: watch::Sender<u64>,
}

impl Lane {
    pub(crate) fn new(id: String) -> Self {
        Lane {
            id,
            quota_bytes: u64::MAX,
            in_flight_limit: 1,
            when_full: WhenFull::Block,
            claimed: false,
            next_seq: 1,
            settled: SeqSet::default(),
            spilled_through: 0,
            files: VecDeque::new(),
            next_file: 1,
            entries: BTreeMap::new(),
            spilled: HashMap::new(),
            states: BTreeMap::new(),
            frontier: 0,
            frontier_steps: VecDeque::new(),
            maybe_through: 0,
            charged: 0,
            reserved: 0,
            outcomes: BTreeMap::new(),
            watch: watch::Sender::new(0),
        }
    }

    /// Writes not settled.
    pub(crate) fn pending(&self) -> u64 {
        self.files.iter().map(|f| f.live).sum::<u64>() + self.entries.len() as u64
    }

    /// Every number up to here is settled.
    pub(crate) fn settled_through(&self) -> u64 {
        self.settled.end_of(1).unwrap_or(0)
    }

    /// The file that vouches for this number.
    pub(crate) fn file_of(&mut self, seq: u64) -> Option<&mut SpillFile> {
        let at = self.files.partition_point(|f| f.last_seq < seq);
        self.files.get_mut(at).filter(|f| f.first_seq <= seq)
    }

    /// Takes lost writes off the books of their file, or, where an older checkpoint does not know it, of those that
    /// had its writes before. Returns what was on the books: no more was charged.
    pub(crate) fn take_off_files(
        &mut self,
        number: u64,
        gone: &[(u64, u64)],
        mut books: Books,
        mut held: BTreeMap<u32, u64>,
    ) -> (u64, Held) {
        let named = self.files.iter().any(|f| f.number == number);
        let (mut charge, mut off) = (0, Held::new());
        for file in &mut self.files {
            let meets = |(from, to): &(u64, u64)| *from <= file.last_seq && *to >= file.first_seq;
            if named && file.number != number || !named && !gone.iter().any(meets) {
                continue;
            }
            let writes = books.writes.min(file.live);
            let own = books.charge.min(file.live_charge);
            let mut inside = Held::new();
            for (lane, left) in &mut held {
                let part = file.held.get(lane).map_or(0, |have| (*left).min(*have));
                *left -= part;
                inside.extend((part > 0).then_some((*lane, part)));
            }
            let before = file.live_physical;
            file.take_off(writes, own, &inside);
            // The books may have said more about the file than its charges do.
            let after = before.saturating_sub(books.physical);
            file.live_physical = file.live_physical.min(after);
            books.writes -= writes;
            books.charge -= own;
            books.physical = books.physical.saturating_sub(before - file.live_physical);
            charge += own;
            off.extend(inside);
        }
        (charge, off)
    }

    /// Whether a fetch after `after` has to read spill files.
    pub(crate) fn spill_after(&self, after: u64) -> bool {
        after < self.spilled_through
            && self
                .files
                .iter()
                .rev()
                .any(|f| f.last_seq > after && f.live > 0)
    }

    /// Since when a write may have been applied.
    pub(crate) fn maybe_since(&self, seq: u64, state: &WriteState) -> Option<u64> {
        let by_exit = (seq <= self.maybe_through).then(|| {
            let at = self
                .frontier_steps
                .partition_point(|(through, _)| *through < seq);
            self.frontier_steps.get(at).map_or(1, |(_, wall)| *wall)
        });
        match (state.first_maybe_unix_ms, by_exit) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(crate) fn advance_frontier(&mut self, seq: u64, wall_unix_ms: u64) {
        if seq <= self.frontier {
            return;
        }
        self.frontier = seq;
        let floor = self.settled_through();
        while self
            .frontier_steps
            .front()
            .is_some_and(|(through, _)| *through <= floor)
        {
            self.frontier_steps.pop_front();
        }
        if self.frontier_steps.len() >= MAX_FRONTIER_STEPS
            && let (Some((_, wall)), Some(second)) = (
                self.frontier_steps.pop_front(),
                self.frontier_steps.front_mut(),
            )
        {
            second.1 = second.1.min(wall);
        }
        self.frontier_steps.push_back((seq, wall_unix_ms));
    }

    pub(crate) fn count_outcome(&mut self, result: u8, writes: u64) {
        *self.outcomes.entry(result).or_default() += writes;
    }

    pub(crate) fn stats(&self) -> LaneStats {
        LaneStats {
            id: self.id.clone(),
            pending: self.pending(),
            charged_bytes: self.charged,
            reserved_bytes: self.reserved,
            quota_bytes: self.quota_bytes,
            next_seq: self.next_seq,
            settled_through: self.settled_through(),
            frontier: self.frontier,
            frontier_wall_unix_ms: self.frontier_steps.back().map_or(0, |(_, wall)| *wall),
            spill_bytes: self.files.iter().map(|f| f.len).sum(),
            spill_files: self.files.len(),
            outcomes: self.outcomes.iter().map(|(&c, &n)| (c, n)).collect(),
            claimed: self.claimed,
        }
    }
}
