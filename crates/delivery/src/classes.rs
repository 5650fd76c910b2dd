//! Workload classes: who may take the next request slot.

use crate::config::{ClassConfig, HostLimits};
use crate::ids::{ClassId, LaneId};
use std::collections::{BTreeMap, VecDeque};

/// One class.
#[derive(Debug)]
pub(crate) struct Class {
    reserved: u32,
    max_in_flight: Option<u32>,
    rate_per_s: Option<u32>,
    used: u32,
    /// Writes it may send now, in thousandths; full after one idle second. A batch may overdraw
    /// it: a sealed one can't be cut, and the wait afterwards keeps the rate.
    tokens_milli: i64,
    refilled_ms: u64,
    /// Lanes that may have something to send.
    pub(crate) queue: VecDeque<LaneId>,
}

/// All classes and the slots they share.
#[derive(Debug)]
pub(crate) struct Classes {
    map: BTreeMap<ClassId, Class>,
    max_in_flight: u32,
    /// The class that sent last: the next one in order is asked first.
    last: ClassId,
}

impl Classes {
    pub(crate) fn new(limits: &HostLimits) -> Self {
        let mut classes = Self {
            map: BTreeMap::new(),
            max_in_flight: 1,
            last: ClassId(u32::MAX),
        };
        classes.configure(limits, 0);
        classes
    }

    /// Takes new limits; what is in flight and queued stays.
    pub(crate) fn configure(&mut self, limits: &HostLimits, now_ms: u64) {
        let default = ClassConfig {
            id: ClassId(0),
            reserved: 1,
            max_in_flight: None,
            rate_per_s: None,
        };
        let has_default = limits.classes.iter().any(|class| class.id == ClassId(0));
        let configs: Vec<&ClassConfig> = limits
            .classes
            .iter()
            .chain((!has_default).then_some(&default))
            .collect();
        for (id, class) in &mut self.map {
            if !configs.iter().any(|config| config.id == *id) {
                // A class that is gone keeps what is in flight, and one slot to end it.
                class.reserved = 1;
                class.max_in_flight = None;
                class.rate_per_s = None;
            }
        }
        for config in configs {
            let class = self.map.entry(config.id).or_insert_with(|| Class {
                reserved: 1,
                max_in_flight: None,
                rate_per_s: None,
                used: 0,
                tokens_milli: i64::from(config.rate_per_s.unwrap_or(0)) * 1_000,
                refilled_ms: now_ms,
                queue: VecDeque::new(),
            });
            class.reserved = config.reserved.max(1);
            class.max_in_flight = config.max_in_flight.map(|limit| limit.max(1));
            class.rate_per_s = config.rate_per_s.map(|rate| rate.max(1));
        }
        let reserved: u32 = self
            .map
            .values()
            .map(|class| class.reserved)
            .fold(0, u32::saturating_add);
        self.max_in_flight = limits.max_in_flight.max(reserved);
    }

    /// The class a lane falls into.
    pub(crate) fn resolve(&self, id: ClassId) -> ClassId {
        if self.map.contains_key(&id) {
            id
        } else {
            ClassId(0)
        }
    }

    pub(crate) fn enqueue(&mut self, id: ClassId, lane: LaneId) {
        if let Some(class) = self.map.get_mut(&id) {
            class.queue.push_back(lane);
        }
    }

    pub(crate) fn pop(&mut self, id: ClassId) -> Option<LaneId> {
        self.map.get_mut(&id)?.queue.pop_front()
    }

    /// Whether this class has a slot and a token for one more request.
    pub(crate) fn may_send(&mut self, id: ClassId, now_ms: u64) -> bool {
        let shared: u32 = self
            .max_in_flight
            .saturating_sub(self.map.values().map(|class| class.reserved).sum());
        let shared_used: u32 = self
            .map
            .values()
            .map(|class| class.used.saturating_sub(class.reserved))
            .sum();
        let Some(class) = self.map.get_mut(&id) else {
            return false;
        };
        if class.used >= class.reserved && shared_used >= shared {
            return false;
        }
        if class.max_in_flight.is_some_and(|limit| class.used >= limit) {
            return false;
        }
        class.refill(now_ms);
        class.rate_per_s.is_none() || class.tokens_milli >= 1_000
    }

    /// When a class that waits for tokens has one again.
    pub(crate) fn token_at(&self, id: ClassId, now_ms: u64) -> Option<u64> {
        let class = self.map.get(&id)?;
        let rate = u64::from(class.rate_per_s?);
        if class.tokens_milli >= 1_000 || class.queue.is_empty() {
            return None;
        }
        let missing = (1_000 - class.tokens_milli).unsigned_abs();
        Some(now_ms.saturating_add(missing.div_ceil(rate.max(1)).max(1)))
    }

    /// A request of `writes` writes leaves.
    pub(crate) fn take(&mut self, id: ClassId, writes: u32) {
        self.last = id;
        if let Some(class) = self.map.get_mut(&id) {
            class.used = class.used.saturating_add(1);
            if class.rate_per_s.is_some() {
                class.tokens_milli = class
                    .tokens_milli
                    .saturating_sub(i64::from(writes).saturating_mul(1_000));
            }
        }
    }

    /// A request ended.
    pub(crate) fn give_back(&mut self, id: ClassId) {
        if let Some(class) = self.map.get_mut(&id) {
            class.used = class.used.saturating_sub(1);
        }
    }

    /// Class ids, beginning after the one that sent last.
    pub(crate) fn in_turn(&self) -> Vec<ClassId> {
        let after = self.map.keys().filter(|id| **id > self.last);
        let before = self.map.keys().filter(|id| **id <= self.last);
        after.chain(before).copied().collect()
    }
}

impl Class {
    fn refill(&mut self, now_ms: u64) {
        if let Some(rate) = self.rate_per_s {
            let elapsed = now_ms.saturating_sub(self.refilled_ms);
            let full = i64::from(rate).saturating_mul(1_000);
            let gained = i64::try_from(elapsed.saturating_mul(u64::from(rate))).unwrap_or(i64::MAX);
            self.tokens_milli = self.tokens_milli.saturating_add(gained).min(full);
        }
        self.refilled_ms = now_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(id: u32, reserved: u32) -> ClassConfig {
        ClassConfig {
            id: ClassId(id),
            reserved,
            max_in_flight: None,
            rate_per_s: None,
        }
    }

    #[test]
    fn a_reserved_slot_is_there_however_much_bulk_has_taken() {
        let mut classes = Classes::new(&HostLimits {
            max_in_flight: 8,
            classes: vec![class(1, 4), class(2, 1)],
        });
        let mut bulk = 0;
        while classes.may_send(ClassId(2), 0) {
            classes.take(ClassId(2), 1);
            bulk += 1;
        }
        assert_eq!(bulk, 3, "its own one and the two nobody reserved");
        for _ in 0..4 {
            assert!(classes.may_send(ClassId(1), 0));
            classes.take(ClassId(1), 1);
        }
        assert!(!classes.may_send(ClassId(1), 0));
    }

    #[test]
    fn a_rate_spends_tokens_and_says_when_the_next_comes() {
        let mut classes = Classes::new(&HostLimits {
            max_in_flight: 8,
            classes: vec![ClassConfig {
                rate_per_s: Some(10),
                ..class(1, 1)
            }],
        });
        assert!(classes.may_send(ClassId(1), 0));
        classes.take(ClassId(1), 15);
        classes.give_back(ClassId(1));
        classes.enqueue(ClassId(1), LaneId(0));
        assert!(!classes.may_send(ClassId(1), 50));
        assert_eq!(
            classes.token_at(ClassId(1), 50),
            Some(600),
            "the overdraft is paid first"
        );
        assert!(classes.may_send(ClassId(1), 600));
    }
}
