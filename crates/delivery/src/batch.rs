//! Which writes go into the next batch, seen from the lane alone.

use crate::config::Order;
use crate::interruption::RepeatNow;
use crate::lane::Lane;

/// Entries of `ready` looked at beyond the batch's own size, so that a lane full of writes that
/// may not share a batch costs a bounded pass.
const LOOK: usize = 64;

/// What a lane would send next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pick {
    /// Nothing.
    Nothing,
    /// This write is past the durable frontier.
    PastFrontier(u64),
    /// A sealed batch is not complete in the window yet.
    Incomplete(u64),
    /// These, in order.
    Batch {
        seqs: Vec<u64>,
        /// Nothing more would fit.
        full: bool,
    },
}

impl Lane {
    /// The next batch of at most `room` writes.
    pub(crate) fn pick(&self, room: u32, now_ms: u64) -> Pick {
        for first in self.ready.iter().take(LOOK) {
            match self.pick_from(*first, room, now_ms) {
                // A sealed batch that waits for one of its writes holds up no other.
                Pick::Nothing => {}
                pick => return pick,
            }
        }
        Pick::Nothing
    }

    /// The batch that begins with `first`.
    fn pick_from(&self, first: u64, room: u32, now_ms: u64) -> Pick {
        if first > self.frontier {
            return Pick::PastFrontier(first);
        }
        let Some(seed) = self.writes.get(&first) else {
            return Pick::Nothing;
        };
        if self.cfg.batch.sealed && seed.group != 0 {
            return self.pick_sealed(seed.group, room, false);
        }
        if seed.alone {
            return Pick::Batch {
                seqs: vec![first],
                full: true,
            };
        }
        let limit = usize::try_from(self.cfg.batch.max_writes.min(room)).unwrap_or(usize::MAX);
        let max_full = usize::try_from(self.cfg.batch.max_writes).unwrap_or(usize::MAX);
        let mut batch = Builder {
            seqs: Vec::with_capacity(limit.min(self.ready.len().max(1))),
            bytes: 0,
            limit,
            max_bytes: self.cfg.batch.max_bytes,
            full: false,
        };
        for head in self.ready.range(first..).take(limit.saturating_add(LOOK)) {
            if batch.full || *head > self.frontier {
                break;
            }
            let Some(write) = self.writes.get(head) else {
                continue;
            };
            if write.alone || write.group != seed.group {
                continue;
            }
            if !batch.add(*head, write.bytes) {
                break;
            }
            if self.batches_followers() {
                self.add_followers(*head, write.order, seed.group, now_ms, &mut batch);
            }
        }
        let full = batch.full || batch.seqs.len() >= max_full || batch.seqs.len() >= limit;
        Pick::Batch {
            seqs: batch.seqs,
            full,
        }
    }

    /// Writes of the same order key right behind `head` that may share its batch.
    fn add_followers(&self, head: u64, order: u64, group: u64, now_ms: u64, batch: &mut Builder) {
        let Some(key) = self.keys.get(&order) else {
            return;
        };
        let released = self.released.contains(&order);
        for seq in key.seqs.iter().skip_while(|seq| **seq <= head) {
            let fits = self
                .writes
                .get(seq)
                .filter(|write| {
                    write.is_sendable()
                        && !write.alone
                        && write.group == group
                        && *seq <= self.frontier
                        && (!released || *seq <= self.cursor)
                        // What was never sent may follow, and so may a resend that the destination drops;
                        // one that would be a copy is looked at when it is a head.
                        && (!write.is_maybe()
                            || matches!(self.repeat_now(write, now_ms), RepeatNow::Free))
                })
                .is_some_and(|write| batch.add(*seq, write.bytes));
            if !fits {
                return;
            }
        }
    }

    /// A sealed batch goes as it was sealed, whole.
    /// Under a trial it may step over what is stuck before it.
    pub(crate) fn pick_sealed(&self, number: u64, room: u32, trial: bool) -> Pick {
        let seqs: Vec<u64> = self
            .writes
            .iter()
            .filter(|(_, write)| write.group == number)
            .map(|(seq, _)| *seq)
            .collect();
        if seqs.len() < sealed_len(number) {
            return Pick::Incomplete(number);
        }
        let all_ready = seqs.iter().all(|seq| {
            self.writes.get(seq).is_some_and(|write| {
                write.is_sendable() && self.leads_its_key(write.order, number, trial)
            })
        });
        // Sealed under a larger limit than the lane has now, it goes when nothing else is out.
        let at_rest = room == self.cfg.in_flight_limit;
        let fits = at_rest || u32::try_from(seqs.len()).is_ok_and(|len| len <= room);
        match seqs.last().copied() {
            Some(last) if last > self.frontier => Pick::PastFrontier(last),
            Some(_) if all_ready && fits => Pick::Batch { seqs, full: true },
            _ => Pick::Nothing,
        }
    }

    /// Whether an order key is at rest and its head belongs to this sealed batch.
    fn leads_its_key(&self, order: u64, number: u64, trial: bool) -> bool {
        self.is_unordered()
            || self.keys.get(&order).is_some_and(|key| {
                let released = self.released.contains(&order);
                key.busy == 0
                    && key
                        .seqs
                        .front()
                        .filter(|head| !released || **head <= self.cursor)
                        .and_then(|head| self.writes.get(head))
                        .is_some_and(|head| trial || head.group == number)
            })
    }

    /// Whether every write of the lane stands for itself.
    pub(crate) fn is_unordered(&self) -> bool {
        self.cfg.order == Order::None
    }
}

struct Builder {
    seqs: Vec<u64>,
    bytes: u64,
    limit: usize,
    max_bytes: u64,
    full: bool,
}

impl Builder {
    /// `false` when it does not fit; the first write always does.
    fn add(&mut self, seq: u64, bytes: u32) -> bool {
        let bytes = u64::from(bytes);
        if self.seqs.len() >= self.limit
            || (!self.seqs.is_empty() && self.bytes.saturating_add(bytes) > self.max_bytes)
        {
            self.full = true;
            return false;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.seqs.push(seq);
        true
    }
}

/// Number of a sealed batch that begins with `first`, holds `len` writes and is of this
/// generation: distinct for its halves and for a batch sealed anew, and growing along the lane.
pub(crate) fn sealed_number(first: u64, generation: u32, len: usize) -> u64 {
    let len = u64::try_from(len).unwrap_or(SEALED_MAX).min(SEALED_MAX);
    first.saturating_mul(1 << 20) | u64::from(generation & 0xf) << 16 | len
}

/// Writes in a sealed batch at most: its number holds the length in 16 bits.
pub(crate) const SEALED_MAX: u64 = u16::MAX as u64;

/// How many writes the sealed batch of this number holds.
pub(crate) fn sealed_len(number: u64) -> usize {
    usize::try_from(number & SEALED_MAX).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_numbers_tell_halves_and_generations_apart_and_grow() {
        let whole = sealed_number(7, 0, 8);
        assert_eq!(sealed_len(whole), 8);
        let others = [
            sealed_number(7, 0, 4),
            sealed_number(11, 0, 4),
            sealed_number(7, 1, 8),
        ];
        assert!(others.iter().all(|number| *number != whole));
        assert!(sealed_number(15, 0, 1) > sealed_number(14, 15, 65_535));
    }
}
