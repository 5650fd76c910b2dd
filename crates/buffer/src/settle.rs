//! Settlements on their way into a record, and losses, which are settlements that nobody asked for.

use std::io;

use bytes::Bytes;

use crate::api::{LOST, LaneId, Settlement};
use crate::core::Core;
use crate::items::{self, Item};
use crate::lane::Books;
use crate::planted::Planted;
use crate::shared::Op;
use crate::write::{self, Held};

/// Groups in which a verification takes the losses it found into its books.
const MAX_LOSS_STEPS: usize = 10_000;

/// Settlements on their way into a record.
#[derive(Debug, Default)]
pub(crate) struct SettleItems {
    pub(crate) payload: Vec<u8>,
    /// The lane of each released write, in order.
    pub(crate) lanes: Vec<LaneId>,
    pub(crate) bodies: Vec<Bytes>,
    /// Parents whose dependents are in this.
    pub(crate) releases: Vec<(u32, u64)>,
    /// Some are being settled by a record that is not durable yet.
    pub(crate) passed_over: bool,
}

impl Core {
    /// Makes settle items for the writes that are still pending, and the releases that go with them. What could not
    /// be read leaves nothing behind.
    pub(crate) fn settle_items(
        &mut self,
        settlements: &[Settlement],
        made: &mut SettleItems,
    ) -> io::Result<()> {
        let before = made.releases.len();
        for s in settlements {
            if let Err(e) = self.settle_one(s, made) {
                for parent in made.releases.drain(before..) {
                    self.releasing.remove(&parent);
                }
                return Err(e);
            }
        }
        Ok(())
    }

    fn settle_one(&mut self, s: &Settlement, made: &mut SettleItems) -> io::Result<()> {
        let (lane, seq) = (s.lane.0, s.seq);
        let meta = {
            let state = self.shared.state.lock();
            if !state.is_pending(lane, seq) {
                return Ok(());
            }
            state.meta(lane, seq)
        };
        let mut enc = None;
        let (charge, held) = match meta {
            Some(meta) => (meta.charge, meta.held.map(|h| *h).unwrap_or_default()),
            None => {
                enc = self.read_write(lane, seq)?;
                let Some(view) = enc.as_deref().and_then(write::parse_write) else {
                    // Lost: that is recorded by what found it.
                    made.passed_over = true;
                    return Ok(());
                };
                (view.charge(), view.held())
            }
        };
        let releases = s.release_children
            && !held.is_empty()
            && self.planted != Some(Planted::ReleaseForgotten);
        if releases && enc.is_none() {
            enc = self.read_write(lane, seq)?;
        }
        if !held.is_empty() {
            if !self.releasing.insert((lane, seq)) {
                made.passed_over = true;
                return Ok(());
            }
            made.releases.push((lane, seq));
        }
        let charge = if self.planted == Some(Planted::SettleNotCharged) {
            0
        } else {
            charge
        };
        items::put_item(
            &mut made.payload,
            &Item::Settle {
                lane,
                seq,
                result: s.result,
                charge,
                held,
            },
        );
        let Some(enc) = enc.filter(|_| releases) else {
            return Ok(());
        };
        for child in write::parse_write(&enc)
            .map(|v| v.children)
            .unwrap_or_default()
        {
            if let Some(view) = write::parse_write(child) {
                items::put_write_enc(&mut made.payload, child);
                made.lanes.push(LaneId(view.lane));
                made.bodies.push(enc.slice_ref(view.body));
            }
        }
        Ok(())
    }

    /// A pending write in the log cannot be read back: it is settled as lost.
    pub(crate) fn lose_in_log(&mut self, lane: u32, seq: u64) {
        if !self.losing_in_log.insert((lane, seq)) {
            return;
        }
        {
            let mut state = self.shared.state.lock();
            state.lost.writes += 1;
            let id = state
                .lanes
                .get(lane as usize)
                .map(|l| l.id.clone())
                .unwrap_or_default();
            state.note_loss(format!(
                "lane {id}: write {seq} does not check in the log and is lost"
            ));
        }
        let settlements = vec![Settlement {
            lane: LaneId(lane),
            seq,
            result: LOST,
            release_children: false,
        }];
        let (answer, _) = tokio::sync::oneshot::channel();
        self.others.push_front(Op::Settle {
            settlements,
            answer,
        });
    }

    /// Has losses in a spill file made durable.
    pub(crate) fn record_loss(
        &mut self,
        lane: u32,
        file: u64,
        ranges: Vec<(u64, u64)>,
        books: Books,
        held: Held,
    ) {
        if ranges.is_empty() {
            return;
        }
        let Books {
            writes,
            charge,
            physical,
        } = books;
        let mut payload = Vec::new();
        items::put_item(
            &mut payload,
            &Item::Lost {
                lane,
                file,
                ranges,
                writes,
                charge,
                physical,
                held,
            },
        );
        // Before anything that waits, so that no settlement of a lost write comes between.
        self.others.push_front(Op::Items {
            payload,
            answer: None,
        });
    }

    /// Takes recorded losses into the books without a flush: for looking at a folder that is never written.
    pub(crate) fn settle_losses(&mut self) {
        for _ in 0..MAX_LOSS_STEPS {
            self.commit_group();
            if self.others.is_empty() && self.prepared.is_none() {
                return;
            }
        }
    }
}
