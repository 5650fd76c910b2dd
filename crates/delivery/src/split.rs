//! What becomes of the writes of a batch that was refused as a whole, or stopped by a person.

use crate::event::EventCode;
use crate::ids::LaneId;
use crate::lane::Doom;
use crate::machine::Delivery;
use crate::output::{Dependents, DirectResult, ParkReason, SettleResult};
use std::collections::BTreeSet;

impl Delivery {
    /// A refused atomic batch goes again in halves; a sealed one only if no attempt was maybe.
    /// `seqs` are those of it that were refused: all, unless its sink answers carelessly.
    pub(crate) fn split(&mut self, id: LaneId, seqs: &[u64]) {
        for seq in seqs {
            self.land(id, *seq);
        }
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        // What a careless sink answered otherwise has left the lane by now.
        let seqs: Vec<u64> = seqs
            .iter()
            .copied()
            .filter(|seq| lane.writes.contains_key(seq))
            .collect();
        let sealed = lane.cfg.batch.sealed;
        let groups: BTreeSet<u64> = seqs
            .iter()
            .filter_map(|seq| lane.writes.get(seq).map(|write| write.group))
            .collect();
        let any_maybe = lane
            .writes
            .values()
            .any(|write| groups.contains(&write.group) && write.is_maybe());
        if sealed && any_maybe {
            for seq in seqs {
                self.finish(id, seq, ParkReason::MayHaveLanded);
            }
            return;
        }
        let half = seqs.len().div_ceil(2);
        let (first, second) = seqs.split_at(half);
        for part in [first, second] {
            let Some(head) = part.first().copied() else {
                continue;
            };
            let generation = lane
                .writes
                .get(&head)
                .map_or(0, |write| write.note.seal_generation());
            let number = crate::batch::sealed_number(head, generation, part.len());
            for seq in part {
                let Some(write) = lane.writes.get_mut(seq) else {
                    continue;
                };
                write.group = number;
                if sealed {
                    write.note.sealed = number;
                    lane.mark_note(*seq);
                } else {
                    write.alone |= part.len() == 1;
                }
            }
        }
        if sealed {
            self.touch(id);
        }
        let first = seqs.first().copied().unwrap_or(0);
        self.lane_event(
            EventCode::BatchSplit,
            id,
            first,
            "a refused batch goes again in halves, to find the write that is at fault",
        );
    }

    /// What a person decided about a write in flight, now that its request has ended.
    pub(crate) fn carry_out(&mut self, id: LaneId, seq: u64, doom: Doom) {
        let maybe_applied = self
            .lanes
            .get(&id)
            .and_then(|lane| lane.writes.get(&seq))
            .is_some_and(crate::lane::Pending::is_maybe);
        match doom {
            Doom::Skip => self.skip(id, seq),
            Doom::Purge => self.settle(id, seq, SettleResult::Purged, Dependents::Drop),
            Doom::Park => self.park(id, seq, ParkReason::Operator),
            Doom::Confirm => self.settle(
                id,
                seq,
                SettleResult::ConfirmedByOperator,
                Dependents::Release,
            ),
            Doom::Withdraw => {
                self.answer_direct(id, seq, DirectResult::Withdrawn { maybe_applied });
            }
            Doom::GiveUp => self.answer_direct(id, seq, DirectResult::GaveUp { maybe_applied }),
        }
    }
}
