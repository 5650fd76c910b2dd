//! Making a group: which waiting operations go into the next write and flush, and what follows once it is durable.

use std::ops::Range;

use bytes::Bytes;

use crate::api::LaneId;
use crate::core::Core;
use crate::error::BufferError;
use crate::items::{self, Item};
use crate::keys::Busy;
use crate::planted::Planted;
use crate::record;
use crate::room::is_full;
use crate::settle::SettleItems;
use crate::shared::{Answer, Op};
use crate::state::{Applied, LIVE, State};

/// The most bytes one group holds: beyond it, waiting longer costs more than another flush.
pub(crate) const MAX_GROUP_BYTES: u64 = 4 << 20;

/// Bytes at the end of the last free segment that only a run's first and last record may use. A dozen of each fit.
const BEGIN_ROOM_BYTES: u64 = 1024;

/// Who is told that a record is durable.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Accept {
        answer: Answer<Vec<(LaneId, u64)>>,
        reserved: Vec<(LaneId, u64)>,
        busy: Option<(u32, Busy)>,
        writes: Vec<(LaneId, u64)>,
    },
    Plain(Answer<()>),
    Purge(Answer<u64>, u64),
}

impl Done {
    /// Gives reservations and claims back.
    pub(crate) fn give_back(&self, state: &mut State) {
        if let Done::Accept { reserved, busy, .. } = self {
            for (lane, charge) in reserved {
                let lane = state.lane_mut(lane.0);
                lane.reserved = lane.reserved.saturating_sub(*charge);
            }
            if let Some((scope, busy)) = busy {
                state.scope_mut(*scope).release(busy);
            }
        }
    }

    pub(crate) fn answer(self) {
        match self {
            Done::Nothing => {}
            Done::Accept { answer, writes, .. } => drop(answer.send(Ok(writes))),
            Done::Plain(answer) => drop(answer.send(Ok(()))),
            Done::Purge(answer, n) => drop(answer.send(Ok(n))),
        }
    }

    pub(crate) fn refuse(self, why: &BufferError) {
        match self {
            Done::Nothing => {}
            Done::Accept { answer, .. } => drop(answer.send(Err(why.clone()))),
            Done::Plain(answer) => drop(answer.send(Err(why.clone()))),
            Done::Purge(answer, _) => drop(answer.send(Err(why.clone()))),
        }
    }
}

/// A record without its numbers.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) payload: Vec<u8>,
    pub(crate) payload_crc: u32,
    /// The lane of each write, in order.
    pub(crate) lanes: Vec<LaneId>,
    pub(crate) bodies: Vec<Bytes>,
    pub(crate) releases: Vec<(u32, u64)>,
    pub(crate) done: Done,
}

impl Prepared {
    pub(crate) fn items(payload: Vec<u8>, done: Done) -> Self {
        let payload_crc = crc32c::crc32c(&payload);
        Prepared {
            payload,
            payload_crc,
            lanes: Vec::new(),
            bodies: Vec::new(),
            releases: Vec::new(),
            done,
        }
    }

    pub(crate) fn made(made: SettleItems, done: Done) -> Self {
        let SettleItems {
            payload,
            lanes,
            bodies,
            releases,
            ..
        } = made;
        Prepared {
            payload_crc: crc32c::crc32c(&payload),
            payload,
            lanes,
            bodies,
            releases,
            done,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        record::size(self.lanes.len(), self.payload.len()) as u64
    }
}

/// A record in a group.
#[derive(Debug)]
pub(crate) struct GroupRecord {
    /// The payload's place in the group's bytes.
    pub(crate) payload: Range<usize>,
    pub(crate) numbers: Vec<u64>,
    pub(crate) bodies: Vec<Bytes>,
    pub(crate) releases: Vec<(u32, u64)>,
    pub(crate) done: Done,
}

/// What one write and one flush make durable.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: Vec<GroupRecord>,
    pub(crate) accepts: usize,
}

impl Core {
    /// Commits one group of what waits; returns how many acceptances were in it, or 1 for a group without any.
    pub(crate) fn commit_group(&mut self) -> usize {
        if let Some(group) = self.stalled.take() {
            return self.write_group(group);
        }
        let group = self.make_group();
        if self.failed || group.records.is_empty() {
            return 0;
        }
        self.write_group(group)
    }

    /// Writes, flushes and applies.
    pub(crate) fn write_group(&mut self, group: Group) -> usize {
        let count = group.accepts.max(1);
        let (bytes, records) = (group.bytes.len() as u64, group.records.len() as u64);
        if let Err(e) = self.log.write(&group.bytes) {
            if is_full(&e) {
                // A file system that needs space even to overwrite. Nothing was flushed, so the same bytes may be
                // written again once there is room.
                self.stalled = Some(group);
                self.stalled_why = Some(format!("writing the log: {e}"));
                return 0;
            }
            self.refuse_group(group, "writing the log", &e);
            return 0;
        }
        if self.planted == Some(Planted::AnswerBeforeSync) {
            let base = self.log.offset;
            self.log.advance(bytes, records);
            self.apply_group(group, base);
            if let Err(e) = self.log.sync() {
                self.fail("flushing the log", &e);
            }
            return count;
        }
        let flush = match self.planted {
            Some(Planted::LogNotSynced) => Ok(()),
            Some(Planted::FailedSyncRetried) => self.log.sync().or_else(|_| self.log.sync()),
            _ => self.log.sync(),
        };
        if let Err(e) = flush {
            self.refuse_group(group, "flushing the log", &e);
            return 0;
        }
        let base = self.log.offset;
        self.log.advance(bytes, records);
        self.apply_group(group, base);
        count
    }

    fn refuse_group(&mut self, group: Group, what: &str, why: &std::io::Error) {
        self.stalled = Some(group);
        self.fail(what, why);
    }

    fn make_group(&mut self) -> Group {
        let mut group = Group::default();
        if let Some(prepared) = self.prepared.take()
            && !self.place(&mut group, prepared, false)
        {
            return group;
        }
        while let Some(op) = self.others.pop_front() {
            if let Some(prepared) = self.prepare_other(op)
                && !self.place(&mut group, prepared, false)
            {
                return group;
            }
            if self.failed {
                return group;
            }
        }
        while let Some(op) = self.accepts.front().filter(|_| self.full.is_none()) {
            // Settled writes with dependents may add to the record; half a segment bounds that, too.
            let size = record::size(op.lanes.len(), op.payload.len()) as u64
                + op.settles.len() as u64 * 64;
            if !self.make_room(&mut group, size, true) {
                break;
            }
            let Some(op) = self.accepts.pop_front() else {
                break;
            };
            let prepared = self.prepare_accept(op);
            if let Some(prepared) = prepared {
                if !self.place(&mut group, prepared, false) {
                    return group;
                }
                group.accepts += 1;
            }
        }
        group
    }

    /// Adds a record, or keeps it for the next group.
    fn place(&mut self, group: &mut Group, prepared: Prepared, accept: bool) -> bool {
        let limit = self
            .log
            .segment_bytes
            .saturating_sub(crate::log::SEGMENT_HEADER);
        if prepared.size() > limit {
            let mut state = self.shared.state.lock();
            prepared.done.give_back(&mut state);
            drop(state);
            for parent in &prepared.releases {
                self.releasing.remove(parent);
            }
            let bytes = prepared.size();
            prepared
                .done
                .refuse(&BufferError::TooLarge { bytes, limit });
            return true;
        }
        if self.make_room(group, prepared.size(), accept) {
            self.put(group, prepared);
            return true;
        }
        self.prepared = Some(prepared);
        false
    }

    /// Whether a record of this size may join the group. Begins the next segment when the group is empty and it must.
    ///
    /// The last free segments are the reserve: an acceptance may neither begin one nor go on when one is used, so that
    /// settlements, parks and frontiers have room while the disk is full.
    fn make_room(&mut self, group: &mut Group, size: u64, accept: bool) -> bool {
        let used = group.bytes.len() as u64;
        if accept && self.log.free_slots() < self.reserve_slots() {
            return false;
        }
        if used > 0 && used + size > MAX_GROUP_BYTES {
            return false;
        }
        if used + size + self.kept_room() <= self.log.remaining() {
            return true;
        }
        if used > 0 || accept && self.log.free_slots() <= self.reserve_slots() {
            return false;
        }
        self.rotate() && size + self.kept_room() <= self.log.remaining()
    }

    /// The very end of the log is kept for the first and the last record of a run: a log that is full to the last
    /// byte could not be opened again.
    fn kept_room(&self) -> u64 {
        if self.log.free_slots() == 0 && self.planted != Some(Planted::LogFilledWhole) {
            BEGIN_ROOM_BYTES
        } else {
            0
        }
    }

    /// Gives the record its numbers and appends it.
    pub(crate) fn put(&mut self, group: &mut Group, prepared: Prepared) {
        let Prepared {
            payload,
            payload_crc,
            lanes,
            bodies,
            releases,
            mut done,
        } = prepared;
        let mut numbers = Vec::with_capacity(lanes.len());
        for lane in &lanes {
            let at = lane.0 as usize;
            if self.assign.len() <= at {
                self.assign.resize(at + 1, 1);
            }
            if let Some(next) = self.assign.get_mut(at) {
                numbers.push(*next);
                *next += 1;
            }
        }
        if let Done::Accept { writes, .. } = &mut done {
            *writes = lanes.into_iter().zip(numbers.iter().copied()).collect();
        }
        let index = group.records.len() as u64;
        let start = group.bytes.len() + record::HEADER + numbers.len() * 8;
        record::append(
            &mut group.bytes,
            record::Stamp {
                salt: self.log.salt(),
                seq: self.log.next_seq + index,
                epoch: self.log.epoch,
                index: u32::try_from(index).unwrap_or(u32::MAX),
            },
            &numbers,
            &payload,
            payload_crc,
        );
        let payload = start..start + payload.len();
        group.records.push(GroupRecord {
            payload,
            numbers,
            bodies,
            releases,
            done,
        });
    }

    fn prepare_accept(&mut self, op: crate::shared::AcceptOp) -> Option<Prepared> {
        let mut p = Prepared {
            payload: op.payload,
            payload_crc: op.payload_crc,
            lanes: op.lanes,
            bodies: op.bodies,
            releases: Vec::new(),
            done: Done::Accept {
                answer: op.answer,
                reserved: op.reserved,
                busy: op.busy,
                writes: Vec::new(),
            },
        };
        if op.settles.is_empty() {
            return Some(p);
        }
        let mut made = SettleItems {
            payload: std::mem::take(&mut p.payload),
            lanes: std::mem::take(&mut p.lanes),
            bodies: std::mem::take(&mut p.bodies),
            ..SettleItems::default()
        };
        match self.settle_items(&op.settles, &mut made) {
            Ok(()) => Some(Prepared::made(made, p.done)),
            Err(e) => {
                let mut state = self.shared.state.lock();
                p.done.give_back(&mut state);
                drop(state);
                p.done.refuse(&BufferError::Read(e.to_string()));
                None
            }
        }
    }

    fn prepare_other(&mut self, op: Op) -> Option<Prepared> {
        match op {
            Op::Items {
                payload,
                mut answer,
            } => {
                if self.planted == Some(Planted::FrontierLate)
                    && let Some(answer) = answer.take()
                {
                    let _ = answer.send(Ok(()));
                }
                Some(Prepared::items(
                    payload,
                    answer.map_or(Done::Nothing, Done::Plain),
                ))
            }
            Op::Settle {
                settlements,
                answer,
            } => {
                let limit = usize::try_from(self.shared.state.lock().record_limit / 8)
                    .unwrap_or(usize::MAX);
                let mut made = SettleItems::default();
                let mut rest = settlements.into_iter();
                while made.payload.len() < limit
                    && let Some(one) = rest.next()
                {
                    if let Err(e) = self.settle_items(&[one], &mut made) {
                        let _ = answer.send(Err(BufferError::Read(e.to_string())));
                        // Those before it are settled all the same.
                        return (!made.payload.is_empty())
                            .then(|| Prepared::made(made, Done::Nothing));
                    }
                }
                let rest: Vec<_> = rest.collect();
                if !rest.is_empty() {
                    // The answer goes with the last part.
                    self.others.push_front(Op::Settle {
                        settlements: rest,
                        answer,
                    });
                    return Some(Prepared::made(made, Done::Nothing));
                }
                if made.payload.is_empty() && !made.passed_over {
                    // All were settled before, durably.
                    let _ = answer.send(Ok(()));
                    return None;
                }
                // Where all are on their way in another record an empty one follows it, so that the answer does too.
                Some(Prepared::made(made, Done::Plain(answer)))
            }
            Op::Purge { lane, answer } => {
                let found = {
                    let state = self.shared.state.lock();
                    state.lane(lane).map(|l| (l.next_seq - 1, l.pending()))
                };
                let Some((through, pending)) = found else {
                    let _ = answer.send(Err(BufferError::UnknownLane(lane)));
                    return None;
                };
                let mut payload = Vec::new();
                items::put_item(
                    &mut payload,
                    &Item::Purge {
                        lane: lane.0,
                        through,
                    },
                );
                self.checkpoint_wanted = true;
                Some(Prepared::items(payload, Done::Purge(answer, pending)))
            }
            Op::Accept(_) | Op::Fetch { .. } | Op::Children { .. } | Op::Close { .. } => None,
        }
    }

    /// Makes the records of a durable group take effect and answers their callers.
    pub(crate) fn apply_group(&mut self, group: Group, base_offset: u64) {
        let mut state = self.shared.state.lock();
        let segment = self.log.active_number();
        state.totals.groups += 1;
        state.totals.written_bytes += group.bytes.len() as u64;
        let mut settled = false;
        for record in &group.records {
            state.totals.records += 1;
            let payload = group.bytes.get(record.payload.clone()).unwrap_or_default();
            let Some(items) = items::parse(payload, &record.numbers) else {
                continue;
            };
            settled |= items.iter().any(|i| {
                matches!(
                    i,
                    Item::Settle { .. } | Item::Purge { .. } | Item::Lost { .. }
                )
            });
            let at = Applied {
                seq: LIVE,
                segment,
                payload_offset: base_offset + record.payload.start as u64,
                bodies: &record.bodies,
            };
            state.apply(items, &at);
            record.done.give_back(&mut state);
        }
        if settled {
            state.room_appeared();
        }
        drop(state);
        for record in group.records {
            for parent in &record.releases {
                self.releasing.remove(parent);
            }
            record.done.answer();
        }
    }
}
