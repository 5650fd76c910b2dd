//! The lane's window as a whole: when to read on, and how new settings sort it anew.

use crate::config::{BatchKind, LaneConfig, Order};
use crate::lane::{Lane, MAX_HELD_KEYS, Phase, normalise};

impl Lane {
    /// New settings; what is pending is ordered anew.
    pub(crate) fn reconfigure(&mut self, mut cfg: LaneConfig) {
        normalise(&mut cfg);
        let reorder = cfg.order != self.cfg.order;
        for key in &cfg.held_keys {
            self.held.entry(*key).or_insert(None);
        }
        self.removing = false;
        self.cfg = cfg;
        if reorder {
            self.rekey();
        }
    }

    /// Sorts what is pending into order keys anew.
    fn rekey(&mut self) {
        self.keys.clear();
        self.ready.clear();
        let seqs: Vec<u64> = self.writes.keys().copied().collect();
        for seq in &seqs {
            let given = self.writes.get(seq).map_or(0, |write| write.given_order);
            let order = self.order_of(given);
            let Some(write) = self.writes.get_mut(seq) else {
                continue;
            };
            write.order = order;
            if self.cfg.order != Order::None {
                let key = self.keys.entry(order).or_default();
                key.seqs.push_back(*seq);
                if matches!(write.phase, Phase::InFlight(_)) {
                    key.busy = key.busy.saturating_add(1);
                }
            }
        }
        for seq in seqs {
            self.refresh(seq);
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
        if self.held.len() > MAX_HELD_KEYS || self.is_held_whole() {
            return None;
        }
        let held = u32::try_from(self.writes.len()).unwrap_or(u32::MAX);
        let limit = self.cfg.window_writes;
        // Refill at half: a fetch per write would cost more than it reads.
        let share = if self.needs_more { 1 } else { 2 };
        let full =
            held > limit / share || self.window_bytes > self.cfg.window_bytes / u64::from(share);
        if full && !self.writes.is_empty() {
            return None;
        }
        Some((
            self.cursor,
            limit.saturating_sub(held).max(1),
            self.cfg
                .window_bytes
                .saturating_sub(self.window_bytes)
                .max(1),
        ))
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
