//! What comes from and goes to the buffer: fetched writes, tickets, notes and settlements.

use crate::config::{AfterPark, DirectMode, Order, Repeat};
use crate::ids::{LaneId, Ticket};
use crate::input::{DirectWrite, FetchedWrite};
use crate::lane::Lane;
use crate::machine::{Awaited, Delivery, Timer};
use crate::note::WriteNote;
use crate::output::{DirectResult, Failure, Output, ParkReason, SettleResult};
use crate::planted::Bug;

impl Delivery {
    pub(crate) fn available(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.more = true;
            lane.news = true;
            self.touch(id);
        }
    }

    pub(crate) fn fetched(&mut self, id: LaneId, writes: &[FetchedWrite], more: bool) {
        let now_ms = self.now_ms;
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if !lane.fetching {
            return;
        }
        lane.fetching = false;
        lane.needs_more = false;
        if std::mem::take(&mut lane.stale_fetch) {
            lane.more = true;
            self.touch(id);
            return;
        }
        // News that came while the fetch was out may be about writes it did not see.
        lane.more = more || lane.news;
        lane.news = false;
        let mut known = Vec::new();
        let leaving = lane.leaving_until_ms.is_some();
        for fetched in writes {
            lane.cursor = lane.cursor.max(fetched.seq);
            let maybe =
                fetched.note.first_maybe_unix_ms != 0 || fetched.maybe_since_unix_ms.is_some();
            if leaving && !maybe {
                continue;
            }
            let order = lane.order_of(fetched.order);
            if lane.cfg.order != Order::None
                && let Some(first) = lane.held.get_mut(&order)
            {
                let tried =
                    fetched.note != WriteNote::default() || fetched.maybe_since_unix_ms.is_some();
                if !tried {
                    first.get_or_insert(fetched.seq);
                    continue;
                }
            }
            if lane.insert(fetched, now_ms) {
                known.push(*fetched);
            }
        }
        lane.end_releases();
        for fetched in known {
            self.load_maybe(id, fetched.seq, fetched.maybe_since_unix_ms);
            let suspected = self
                .lanes
                .get_mut(&id)
                .is_some_and(|lane| lane.suspects_at_start.remove(&fetched.seq));
            let by_person = self
                .lanes
                .get_mut(&id)
                .is_some_and(|lane| lane.parks_ahead.remove(&fetched.seq));
            let moved = self.lanes.get(&id).is_some_and(|lane| {
                fetched.seq <= lane.cfg.moved_below
                    && lane
                        .writes
                        .get(&fetched.seq)
                        .is_some_and(crate::lane::Pending::is_maybe)
            });
            if moved {
                self.park(id, fetched.seq, ParkReason::MayHaveLanded);
            } else if suspected {
                self.park(id, fetched.seq, ParkReason::SuspectedCrash);
            } else if by_person {
                self.park(id, fetched.seq, ParkReason::Operator);
            }
        }
        self.check_halt(id);
        self.wake(id);
        self.touch(id);
    }

    /// A direct send joins its volatile lane.
    pub(crate) fn direct(&mut self, id: LaneId, write: &DirectWrite) {
        let now_ms = self.now_ms;
        let Some(lane) = self.lanes.get_mut(&id) else {
            self.out.push_back(Output::DirectAnswer {
                lane: id,
                seq: write.seq,
                result: DirectResult::Failed {
                    failure: Failure {
                        class: "no_lane",
                        ..Failure::default()
                    },
                },
            });
            return;
        };
        if !lane.is_volatile() {
            return;
        }
        let fetched = FetchedWrite {
            seq: write.seq,
            key: write.key,
            order: write.order,
            bytes: write.bytes,
            maybe_since_unix_ms: write.maybe_since_unix_ms,
            ..FetchedWrite::default()
        };
        if !lane.insert(&fetched, now_ms) {
            return;
        }
        lane.cursor = lane.cursor.max(write.seq);
        if let Some(at) = write.give_up_at_ms {
            if let Some(pending) = lane.writes.get_mut(&write.seq) {
                pending.give_up_at_ms = Some(at);
            }
            self.timers.insert((at, Timer::GiveUp(id, write.seq)));
        }
        self.load_maybe(id, write.seq, write.maybe_since_unix_ms);
        let refuses = self.lanes.get(&id).is_some_and(|lane| {
            let closed = lane.cfg.direct == Some(DirectMode::Answer) && self.is_closed(id);
            closed || (lane.cfg.repeat == Repeat::Never && write.maybe_since_unix_ms.is_some())
        });
        if refuses {
            self.answer_failed(id, write.seq);
        }
        self.check_halt(id);
        self.wake(id);
        self.touch(id);
    }

    pub(crate) fn durable(&mut self, ticket: Ticket) {
        let Some(awaited) = self.tickets.remove(&ticket) else {
            return;
        };
        match awaited {
            Awaited::Frontier { lane: id, seq } => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.frontier = lane.frontier.max(seq);
                }
                self.wake(id);
                self.touch(id);
            }
            Awaited::Note { lane: id, seqs } => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    for seq in seqs {
                        if let Some(write) = lane.writes.get_mut(&seq)
                            && write.noting == Some(ticket)
                        {
                            write.noting = None;
                        }
                        lane.refresh(seq);
                    }
                }
                self.wake(id);
                self.touch(id);
            }
            Awaited::Settle { lane: id, seqs } => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    for seq in seqs {
                        lane.settling.remove(&seq);
                    }
                }
                self.wake(id);
                self.touch(id);
            }
        }
    }

    /// Hands out what the touched lanes have to make durable, and what they need to read.
    pub(crate) fn flush(&mut self) {
        for id in self.take_touched() {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.touched = false;
            }
            self.sweep_leaving(id);
            self.end_halt(id);
            self.flush_notes(id);
            self.flush_settlements(id);
            self.flush_fetch(id);
            self.flush_expiry(id);
            if self.lanes.get(&id).is_some_and(Lane::is_gone) {
                self.withdraw_all(id);
                self.drop_lane(id);
            }
        }
        self.check_drained(false);
    }

    fn flush_notes(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if lane.dirty_notes.is_empty() {
            return;
        }
        let seqs: Vec<u64> = std::mem::take(&mut lane.dirty_notes).into_iter().collect();
        let notes: Vec<_> = seqs
            .iter()
            .filter_map(|seq| lane.writes.get(seq).map(|write| (*seq, write.note)))
            .collect();
        let ticket = self.new_ticket(Awaited::Note {
            lane: id,
            seqs: seqs.clone(),
        });
        let early = self.has(Bug::NoteNotAwaited);
        if early {
            self.wake(id);
        }
        if let Some(lane) = self.lanes.get_mut(&id) {
            for seq in seqs {
                if let Some(write) = lane.writes.get_mut(&seq) {
                    write.note_dirty = false;
                    write.noting = (!early).then_some(ticket);
                }
                lane.refresh(seq);
            }
        }
        self.out.push_back(Output::Note {
            lane: id,
            notes,
            ticket,
        });
    }

    fn flush_settlements(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if lane.out.is_empty() {
            return;
        }
        let writes = std::mem::take(&mut lane.out);
        let plain = writes.iter().all(|settled| {
            matches!(
                settled.result,
                SettleResult::Delivered | SettleResult::DeliveredAsRepeat
            )
        });
        // With no slot left the lane stands still until these are durable.
        let urgent = !plain || lane.room() == 0 || lane.removing || self.draining;
        let seqs = writes.iter().map(|settled| settled.seq).collect();
        if self.has(Bug::SlotsBeforeDurable) {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.settling.clear();
            }
            self.wake(id);
        }
        let ticket = self.new_ticket(Awaited::Settle { lane: id, seqs });
        self.out.push_back(Output::Settle {
            lane: id,
            writes,
            urgent,
            ticket,
        });
    }

    fn flush_fetch(&mut self, id: LaneId) {
        if self.draining {
            return;
        }
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if let Some((after_seq, max_writes, max_bytes)) = lane.wants_fetch() {
            lane.fetching = true;
            lane.news = false;
            self.out.push_back(Output::Fetch {
                lane: id,
                after_seq,
                max_writes,
                max_bytes,
            });
        }
    }

    fn flush_expiry(&mut self, id: LaneId) {
        let Some(first) = self
            .lanes
            .get(&id)
            .and_then(|lane| lane.expiries.first())
            .map(|(at, _)| *at)
        else {
            return;
        };
        // Looked at again at the latest within the hour: the wall clock may jump meanwhile.
        let wait = first.saturating_sub(self.wall_unix_ms).clamp(1, 3_600_000);
        let at = self.now_ms.saturating_add(wait);
        let earlier = self
            .lanes
            .get(&id)
            .and_then(|lane| lane.expiry_timer_ms)
            .is_some_and(|set| set > self.now_ms && set <= at);
        if !earlier {
            self.timers.insert((at, Timer::Expiry(id)));
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.expiry_timer_ms = Some(at);
            }
        }
    }
}

impl Lane {
    /// Whether a whole lane waits for a held key: under strict order nothing else may go.
    pub(crate) fn is_held_whole(&self) -> bool {
        self.cfg.order == Order::Strict
            && self.cfg.after_park == AfterPark::HoldKey
            && !self.held.is_empty()
    }
}
