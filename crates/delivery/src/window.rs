//! The lane's window as a whole: when to read on, and what is planted there.

use crate::config::{BatchKind, Order};
use crate::lane::{Lane, MAX_HELD_KEYS};

/// How many windows a lane may hold while all that is in it is stuck: one large write, or one order key, would else
/// keep it from the write that shows whether they or the target are at fault.
const LOOK_PAST_STUCK: u32 = 4;

impl Lane {
    /// After a fetch: released keys of which nothing is left beyond the cursor are as any other.
    pub(crate) fn end_releases(&mut self) {
        for order in std::mem::take(&mut self.released) {
            let beyond = self
                .keys
                .get(&order)
                .and_then(|key| key.seqs.back())
                .is_some_and(|last| *last > self.cursor);
            if beyond && self.more {
                self.released.insert(order);
            }
            self.refresh_key(order);
        }
    }

    /// Whether a batch may hold several writes of one order key.
    pub(crate) fn batches_followers(&self) -> bool {
        self.cfg.order != Order::None && self.cfg.batch.kind != BatchKind::Independent
    }

    /// What to fetch next, if anything: number to start after, writes, bytes.
    pub(crate) fn wants_fetch(&self) -> Option<(u64, u32, u64)> {
        if self.fetching || !self.more || self.removing || self.is_volatile() {
            return None;
        }
        if self.leaving_until_ms.is_some() {
            // Nothing past the frontier was ever sent; below it, a held key hides nothing.
            if self.cursor >= self.frontier {
                return None;
            }
        } else if self.held.len() > MAX_HELD_KEYS || self.is_held_whole() {
            return None;
        }
        let held = u32::try_from(self.writes.len()).unwrap_or(u32::MAX);
        let limit = self.cfg.window_writes;
        // Refill at half: a fetch per write would cost more than it reads.
        let share = if self.needs_more { 1 } else { 2 };
        let full =
            held > limit / share || self.window_bytes > self.cfg.window_bytes / u64::from(share);
        let mut times = 1;
        // What waits for a skipped write to be fetched again does not keep it from being fetched.
        if full && !self.writes.is_empty() && self.released.is_empty() {
            if !self.knows_only_stuck() {
                return None;
            }
            times = LOOK_PAST_STUCK;
        }
        let most = limit.saturating_mul(times);
        let bytes = self.cfg.window_bytes.saturating_mul(u64::from(times));
        if times > 1 && (held >= most || self.window_bytes >= bytes) {
            return None;
        }
        Some((
            self.cursor,
            most.saturating_sub(held).clamp(1, limit.max(1)),
            bytes
                .saturating_sub(self.window_bytes)
                .clamp(1, self.cfg.window_bytes.max(1)),
        ))
    }

    /// Whether nothing in the window can tell what is wrong with its stuck writes.
    fn knows_only_stuck(&self) -> bool {
        !self.stuck.is_empty()
            && self.ready.iter().all(|seq| self.stuck.contains(seq))
            && self.next_untried().is_none()
    }

    /// Planted: takes the write out of its order key while it is on its way.
    pub(crate) fn forget_busy(&mut self, seq: u64) {
        let Some(order) = self.writes.get(&seq).map(|write| write.order) else {
            return;
        };
        if let Some(key) = self.keys.get_mut(&order) {
            key.busy = 0;
            if let Ok(at) = key.seqs.binary_search(&seq) {
                key.seqs.remove(at);
            }
        }
        self.refresh_key(order);
    }
}
