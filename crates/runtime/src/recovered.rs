//! What a start says of the run before it: how it ended, what the disk kept, what is gone.

use crate::clock;
use crate::events::Events;
use crate::watch::corruption;
use consign_buffer::{Buffer, Lost, Recovery};
use consign_delivery::SettleResult;
use consign_ledger::{Code, Event};
use std::path::Path;

/// Reports an unclean exit, a cut tail, what the buffer found damaged, and the second copies that stood in.
pub(crate) fn report_recovery(
    events: &Events,
    recovery: &Recovery,
    healed: &[String],
    buffer: &Buffer,
) {
    let at = clock::wall_unix_ms_i64();
    if recovery.unclean_exit {
        let lanes = buffer.lanes();
        let maybe = maybe_in_flight(lanes.iter().map(|(_, lane)| lane));
        let pending: u64 = lanes.iter().map(|(_, lane)| lane.pending).sum();
        events.emit(
            Event::new(Code::UncleanExit, at)
                .field("pending", pending)
                .field("maybe_in_flight", maybe)
                .field("replayed_records", recovery.replayed_records)
                .message(format!(
                    "the last run did not stop cleanly: {pending} writes are pending, up to {maybe} of them may have been on their way"
                )),
        );
    }
    if recovery.torn_bytes > 0 {
        events.emit(Event::new(Code::BufferTailCut, at).field("bytes", recovery.torn_bytes));
    }
    if let Some(event) = corruption(&Lost::default(), &recovery.lost) {
        events.emit(event);
    }
    if !healed.is_empty() {
        events.emit(
            Event::new(Code::BufferHealed, at)
                .field("copies", healed.len())
                .message(format!(
                    "nothing is lost, but the disk is to be looked at: {}",
                    healed.join("; ")
                )),
        );
    }
}

/// A buffer that had to be made although the ledger has events of earlier runs: what they left pending is gone.
pub(crate) fn report_lost_buffer(events: &Events, path: &Path, last_event: i64) {
    if last_event > 0 {
        events.emit(
            Event::new(Code::BufferCorruption, clock::wall_unix_ms_i64())
                .field("path", path.display().to_string())
                .message(format!(
                    "{} was gone and was made anew, and earlier runs are in the event log: what was accepted and not \
                     delivered then is lost; stop the host and put the old folder back",
                    path.display()
                )),
        );
    }
}

/// A ledger that had to be made although the lanes say that writes were parked: what was parked was in another one.
pub(crate) fn report_lost_ledger(events: &Events, path: &Path, buffer: &Buffer) {
    let parked = parked(buffer.lanes().iter().map(|(_, lane)| lane));
    if parked > 0 {
        events.emit(
            Event::new(Code::LedgerLost, clock::wall_unix_ms_i64())
                .field("path", path.display().to_string())
                .field("parked", parked)
                .message(format!(
                    "{} was gone and was made anew: the buffer counts {parked} parked writes, and none of them is in it; \
                     stop the host and put the old file back",
                    path.display()
                )),
        );
    }
}

/// Writes that were parked since their lanes exist.
fn parked<'a>(lanes: impl IntoIterator<Item = &'a consign_buffer::LaneStats>) -> u64 {
    let code = SettleResult::Parked.code();
    let outcomes = lanes.into_iter().flat_map(|lane| &lane.outcomes);
    outcomes
        .filter(|(result, _)| *result == code)
        .map(|(_, writes)| writes)
        .sum()
}

/// Writes below their lane's send frontier that are not settled: after an unclean exit they may have landed.
pub(crate) fn maybe_in_flight<'a>(
    lanes: impl IntoIterator<Item = &'a consign_buffer::LaneStats>,
) -> u64 {
    lanes
        .into_iter()
        .map(|lane| {
            lane.frontier
                .saturating_sub(lane.settled_through)
                .min(lane.pending)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_buffer::LaneStats;

    #[test]
    fn parked_writes_are_counted_over_all_lanes_and_nothing_else_is() {
        let lane = |outcomes: &[(SettleResult, u64)]| LaneStats {
            outcomes: outcomes.iter().map(|(r, n)| (r.code(), *n)).collect(),
            ..LaneStats::default()
        };
        let lanes = [
            lane(&[(SettleResult::Delivered, 9), (SettleResult::Parked, 2)]),
            lane(&[(SettleResult::Skipped, 4)]),
            lane(&[(SettleResult::Parked, 3)]),
        ];
        assert_eq!(parked(&lanes), 5);
        assert_eq!(parked(&lanes[1..2]), 0);
    }
}
