//! Reading one log segment back: what is applied, where the torn tail is cut, what counts as damage.
//!
//! A record that does not check is a torn tail when nothing proves that it ever was durable. The proof is a later
//! record whose group began after it (a group is written only once the one before is durable), or a next segment that
//! began after it. Without proof nobody was told that it was accepted, and the log is cut there. With proof it is
//! damage: the gap in sequence numbers is counted as lost, and reading goes on behind it.
//!
//! Bytes of an earlier, torn attempt can follow the cut with the right salt. They carry a lower owner epoch than any
//! record written since, and are not believed.

use crate::error::OpenError;
use crate::fs::{Filesystem, read_full_at};
use crate::items;
use crate::log::{Live, Log, LogPoint, SEGMENT_HEADER, SegmentHeader, Slot};
use crate::planted::Planted;
use crate::record::{self, ALIGN, Record};
use crate::recovery::At;
use crate::salvage::quarantine;
use crate::state::{Applied, State};

/// How far replay has come.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    /// The next record's sequence number.
    pub(crate) expected: u64,
    /// The last applied record's epoch.
    pub(crate) epoch: u32,
    /// The highest epoch of any record that checks, believed or not.
    pub(crate) max_epoch: u32,
    /// Where the segment's believed records end.
    pub(crate) offset: u64,
    /// Where the last group in it begins: the only one whose flush may have failed.
    pub(crate) group_offset: u64,
    pub(crate) replayed: u64,
    pub(crate) torn_bytes: u64,
}

/// The last group of the log, and where it ends.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) group: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) end: u64,
}

/// Replays the live segments from the checkpoint's point on.
///
/// A segment that was begun when fewer records had been written, and that holds none, was given up: the flush of its
/// header failed, and the run went on in the one before. It leaves `live`.
pub(crate) fn replay(
    fs: &dyn Filesystem,
    at: &At<'_>,
    live: &mut Vec<Live>,
    slots: &[Slot],
    point: LogPoint,
    state: &mut State,
    run: &mut Replayed,
) -> Result<Tail, OpenError> {
    let mut tail = Tail {
        group: Vec::new(),
        offset: SEGMENT_HEADER,
        end: SEGMENT_HEADER,
    };
    let mut used = Vec::new();
    for (i, segment) in live.iter().enumerate() {
        let later = live.get(i + 1..).unwrap_or_default().iter();
        let next = later.map(|l| l.header).max_by_key(|h| h.first_seq);
        let Some(slot) = slots.get(segment.slot) else {
            continue;
        };
        let from = if segment.header.number == point.segment {
            point.offset
        } else {
            SEGMENT_HEADER
        };
        let mut buf = vec![0u8; usize::try_from(slot.bytes).unwrap_or(0)];
        let path = Log::path(at.dir, segment.slot);
        let n = read_full_at(slot.file.as_ref(), &mut buf, 0).map_err(at.io("reading", &path))?;
        buf.truncate(n);
        let (before, records) = (run.expected, run.replayed);
        let damaged = replay_segment(&buf, &segment.header, next.as_ref(), from, state, run);
        for (from, to) in damaged {
            let name = format!("log-{}", segment.header.number);
            let file = (slot.file.as_ref(), path.as_path());
            quarantine(fs, at.dir, file, &name, from, to, state);
        }
        if segment.header.first_seq < before && run.replayed == records && from == SEGMENT_HEADER {
            continue;
        }
        used.push(*segment);
        let group = usize::try_from(run.group_offset).unwrap_or(0)
            ..usize::try_from(run.offset).unwrap_or(0);
        tail = Tail {
            group: buf.get(group).unwrap_or_default().to_vec(),
            offset: run.group_offset,
            end: run.offset.max(SEGMENT_HEADER),
        };
    }
    *live = used;
    Ok(tail)
}

fn parse<'a>(buf: &'a [u8], at: usize, salt: u64, planted: Option<Planted>) -> Option<Record<'a>> {
    let rest = buf.get(at..)?;
    match planted {
        Some(Planted::PayloadUnchecked) => record::parse_unchecked(rest, salt),
        _ => record::parse(rest, salt),
    }
}

/// Replays a segment; returns the byte ranges that are damaged.
pub(crate) fn replay_segment(
    buf: &[u8],
    header: &SegmentHeader,
    next: Option<&SegmentHeader>,
    from: u64,
    state: &mut State,
    run: &mut Replayed,
) -> Vec<(u64, u64)> {
    let planted = state.planted;
    let mut damaged = Vec::new();
    if from == SEGMENT_HEADER && header.first_seq > run.expected {
        lose(
            state,
            run,
            header.first_seq,
            &format!("before log segment {}", header.number),
        );
    }
    let mut at = usize::try_from(from).unwrap_or(usize::MAX);
    run.group_offset = from;
    loop {
        let believed = parse(buf, at, header.salt, planted).filter(|r| {
            let stale = r.header.epoch < run.epoch && planted != Some(Planted::CutIgnoresEpoch);
            r.header.seq == run.expected && !stale
        });
        let Some(found) = believed else {
            let Some(to) = resume(buf, at, header, next, run, planted) else {
                break;
            };
            let Some(found) = parse(buf, to, header.salt, planted) else {
                break;
            };
            let lost_to = found.header.seq;
            let place = format!("in log segment {} at {at}", header.number);
            if lose(state, run, lost_to, &place) {
                damaged.push((at as u64, to as u64));
            }
            at = to;
            continue;
        };
        run.epoch = found.header.epoch;
        if found.header.index == 0 {
            run.group_offset = at as u64;
        }
        run.max_epoch = run.max_epoch.max(found.header.epoch);
        run.expected += 1;
        run.replayed += 1;
        match items::parse(found.payload, &found.numbers) {
            Some(items) => {
                let payload_offset = (at + found.payload_at) as u64;
                let applied = Applied {
                    seq: found.header.seq,
                    segment: header.number,
                    payload_offset,
                    bodies: &[],
                };
                state.apply(items, &applied);
            }
            None if state.gaps.insert(found.header.seq) => {
                state.lost.records += 1;
                state.damage(format!(
                    "log record {} says nothing this version understands",
                    found.header.seq
                ));
            }
            None => {}
        }
        at += found.size;
    }
    run.offset = at as u64;
    damaged
}

/// Records up to `to` are missing. True where that is news.
fn lose(state: &mut State, run: &mut Replayed, to: u64, place: &str) -> bool {
    let from = run.expected;
    run.expected = from.max(to);
    let gone = state.gaps.missing_in(from, to.saturating_sub(1));
    if gone.is_empty() || state.planted == Some(Planted::LossSilent) {
        return false;
    }
    for (from, to) in gone {
        state.lost.records += to - from + 1;
        state.gaps.insert_range(from, to);
    }
    state.damage(format!("log records {from} to {} {place} are lost", to - 1));
    true
}

/// Looks behind a record that does not check: the offset where reading goes on, if it was ever durable.
fn resume(
    buf: &[u8],
    at: usize,
    header: &SegmentHeader,
    next: Option<&SegmentHeader>,
    run: &mut Replayed,
    planted: Option<Planted>,
) -> Option<usize> {
    let durable_by_next = next.is_some_and(|n| n.first_seq > run.expected);
    let mut torn_to = at;
    let mut from = None;
    let mut to = at + ALIGN;
    let most = run.expected.saturating_add(most_records(buf.len()));
    // A record's bytes may hold something that looks like a record: step over whole ones.
    while to + record::HEADER <= buf.len() {
        let seq = buf
            .get(to + 16..to + 24)
            .and_then(|b| b.try_into().ok())
            .map_or(0, u64::from_le_bytes);
        let record = if seq == 0 || seq > most {
            None
        } else {
            parse(buf, to, header.salt, planted)
        };
        let Some(record) = record else {
            to += ALIGN;
            continue;
        };
        run.max_epoch = run.max_epoch.max(record.header.epoch);
        torn_to = to + record.size;
        if record.header.epoch >= run.epoch && record.header.seq >= run.expected {
            from = from.or(Some((to, record.header.seq)));
            let group = record.header.seq - u64::from(record.header.index);
            if group > run.expected || durable_by_next {
                return from.map(|(to, _)| to);
            }
        }
        to += record.size;
    }
    if torn_to == at && looks_begun(buf, at, run.expected) {
        torn_to = at + record::HEADER;
    }
    run.torn_bytes += (torn_to - at) as u64;
    None
}

/// Whether a record that does not check was begun here, and is not what the segment held before it was used again:
/// its number is the expected one, give or take a bit. Only the figure of torn bytes depends on it.
fn looks_begun(buf: &[u8], at: usize, expected: u64) -> bool {
    let number = buf.get(at + 16..at + 24).and_then(|b| b.try_into().ok());
    number.is_some_and(|b| (u64::from_le_bytes(b) ^ expected).count_ones() <= 1)
}

/// How many records a buffer can hold.
fn most_records(bytes: usize) -> u64 {
    (bytes / record::HEADER) as u64 + 1
}
