//! Whether numbers that were read can be true. Sums guard against disks, not against numbers that some program put there
//! with the right sums: those must not end in an overflow, an endless loop or memory without bound.

use crate::items::Item;
use crate::lane::{Lane, SpillFile};
use crate::log::{LogPoint, SegmentHeader};
use crate::record;
use crate::state::State;

/// No sequence number, offset or count comes near: at a million a second it is reached after 146,000 years.
pub(crate) const MAX_NUMBER: u64 = 1 << 62;
/// Runs of a host.
pub(crate) const MAX_EPOCH: u32 = 1 << 31;
/// Lanes, and scopes: each costs some hundred bytes of memory.
pub(crate) const MAX_LANES: u32 = 1 << 16;
/// Bytes of one file, and the charges in it.
const MAX_FILE_BYTES: u64 = 1 << 44;

fn number(n: u64) -> bool {
    (1..=MAX_NUMBER).contains(&n)
}

/// A record's header.
pub(crate) fn record(header: &record::Header) -> bool {
    number(header.seq) && header.epoch <= MAX_EPOCH && u64::from(header.index) < header.seq
}

/// A segment's header.
pub(crate) fn segment(header: &SegmentHeader) -> bool {
    number(header.number) && number(header.first_seq) && header.epoch <= MAX_EPOCH
}

/// What a checkpoint said, after it was read.
pub(crate) fn checkpoint(state: &State, point: &LogPoint, epoch: u32) -> bool {
    let many = MAX_LANES as usize;
    let scopes = state.scopes.iter().all(|scope| {
        scope.window_ms > 0
            && scope.next_file <= MAX_NUMBER
            && scope
                .buckets
                .iter()
                .filter_map(|b| b.file)
                .all(|f| f.len <= MAX_FILE_BYTES)
    });
    state.lanes.len() <= many
        && state.scopes.len() <= many
        && epoch <= MAX_EPOCH
        && number(point.segment)
        && number(point.seq)
        && point.offset <= MAX_FILE_BYTES
        && scopes
        && state.lanes.iter().all(lane)
}

fn lane(lane: &Lane) -> bool {
    let mut last = 0;
    let mut files = lane.files.iter().all(|file| {
        let follows = file.first_seq > last;
        last = file.last_seq;
        follows && spill_file(file)
    });
    files &= last <= lane.spilled_through;
    number(lane.next_seq)
        && lane.spilled_through < lane.next_seq
        // A frontier runs ahead of what there is to be sent.
        && lane.maybe_through <= MAX_NUMBER
        && lane.frontier <= MAX_NUMBER
        && lane.next_file <= MAX_NUMBER + 1
        && lane
            .settled
            .iter()
            .all(|(from, to)| from > 0 && to < lane.next_seq)
        && lane.outcomes.values().all(|n| *n <= MAX_NUMBER)
        && files
}

fn spill_file(file: &SpillFile) -> bool {
    let bytes = [file.len, file.live_charge, file.live_physical];
    number(file.number)
        && file.first_seq <= file.last_seq
        && file.live <= file.last_seq - file.first_seq + 1
        && bytes.into_iter().all(|n| n <= MAX_FILE_BYTES)
        && held(file.held.iter().map(|(lane, charge)| (*lane, *charge)))
}

fn held(mut held: impl Iterator<Item = (u32, u64)>) -> bool {
    held.all(|(lane, charge)| lane < MAX_LANES && charge <= MAX_FILE_BYTES)
}

/// One thing a record says.
pub(crate) fn item(item: &Item<'_>) -> bool {
    match item {
        Item::Write { seq, view, .. } => {
            number(*seq) && view.lane < MAX_LANES && held(view.held().into_iter())
        }
        Item::Settle {
            lane,
            seq,
            charge,
            held: inside,
            ..
        } => {
            *lane < MAX_LANES
                && number(*seq)
                && *charge <= MAX_FILE_BYTES
                && held(inside.iter().copied())
        }
        Item::Frontier { lane, seq, .. } | Item::Note { lane, seq, .. } => {
            *lane < MAX_LANES && *seq <= MAX_NUMBER
        }
        // Nothing purged is through 0.
        Item::Purge { lane, through } => *lane < MAX_LANES && *through <= MAX_NUMBER,
        Item::Known { scope, .. } | Item::Assigned { scope, .. } => *scope < MAX_LANES,
        Item::Scope { number, .. } | Item::Lane { number, .. } => *number < MAX_LANES,
        Item::Session { epoch, .. } => *epoch <= MAX_EPOCH,
        Item::Lost {
            lane,
            ranges,
            writes,
            charge,
            physical,
            held: inside,
            ..
        } => {
            let counts = [*writes, *charge, *physical];
            *lane < MAX_LANES
                && counts.into_iter().all(|n| n <= MAX_FILE_BYTES)
                && ranges
                    .iter()
                    .all(|(from, to)| number(*from) && from <= to && *to <= MAX_NUMBER)
                && held(inside.iter().copied())
        }
        Item::Position { .. } | Item::Clean => true,
    }
}
