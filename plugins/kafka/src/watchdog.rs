//! Tells a consumer that has fallen asleep: its partition grows, and neither a record nor the news that
//! its end was reached comes from the client library.

use crate::tracker::Key;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A partition's end is asked for this long after the last sign of life.
pub(crate) const QUIET: Duration = Duration::from_secs(30);

/// A partition that is seen to be behind has this long to show a sign of life.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was seen of a partition.
#[derive(Debug)]
struct Seen {
    /// Up to here the consumer is known to have read.
    read: i64,
    /// Its end was reached since it was last asked for.
    at_end: bool,
    /// When it was asked for, or a record came, last.
    looked: Instant,
    /// The end that it has not shown to have reached, and since when.
    behind: Option<(i64, Instant)>,
}

/// The signs of life of all partitions.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    partitions: BTreeMap<Key, Seen>,
}

impl Watchdog {
    /// A record came.
    pub(crate) fn record(&mut self, key: &Key, offset: i64, now: Instant) {
        let seen = Seen {
            read: offset + 1,
            at_end: false,
            looked: now,
            behind: None,
        };
        self.partitions.insert(key.clone(), seen);
    }

    /// The end of a partition with this number was reached; of which topic the library does not say.
    pub(crate) fn end(&mut self, partition: i32) {
        for (key, seen) in &mut self.partitions {
            if key.1 == partition {
                seen.at_end = true;
                if let Some((end, _)) = seen.behind.take() {
                    seen.read = seen.read.max(end);
                }
            }
        }
    }

    /// Forgets partitions that are not assigned, and knows those that are.
    pub(crate) fn keep(&mut self, assigned: &[(Key, i64)], now: Instant) {
        self.partitions
            .retain(|key, _| assigned.iter().any(|(known, _)| known == key));
        for (key, position) in assigned {
            self.partitions.entry(key.clone()).or_insert(Seen {
                read: *position,
                at_end: false,
                looked: now,
                behind: None,
            });
        }
    }

    /// Records cannot come: the time does not count.
    pub(crate) fn excuse(&mut self, now: Instant) {
        for seen in self.partitions.values_mut() {
            seen.looked = now;
            seen.behind = None;
        }
    }

    /// A partition whose end should be asked for now.
    pub(crate) fn due(&self, now: Instant) -> Option<Key> {
        self.partitions
            .iter()
            .find(|(_, seen)| now.duration_since(seen.looked) >= QUIET)
            .map(|(key, _)| key.clone())
    }

    /// The partition's end is here. True when the consumer has fallen asleep.
    pub(crate) fn looked(&mut self, key: &Key, end: i64, now: Instant) -> bool {
        let Some(seen) = self.partitions.get_mut(key) else {
            return false;
        };
        seen.looked = now;
        if std::mem::take(&mut seen.at_end) {
            // It had read all there was, control records at the end included.
            seen.read = seen.read.max(end);
            return false;
        }
        if end <= seen.read {
            seen.behind = None;
            return false;
        }
        let (_, since) = *seen.behind.get_or_insert((end, now));
        now.duration_since(since) >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_secs(31);

    fn key() -> Key {
        ("t".into(), 0)
    }

    fn watching(now: Instant) -> Watchdog {
        let mut dog = Watchdog::default();
        dog.keep(&[(key(), 5)], now);
        dog
    }

    #[test]
    fn lag_without_a_sign_of_life_is_told_and_not_at_once() {
        let mut now = Instant::now();
        let mut dog = watching(now);
        assert_eq!(dog.due(now), None);
        let mut told = 0;
        for _ in 0..3 {
            now += STEP;
            assert_eq!(dog.due(now), Some(key()));
            told += usize::from(dog.looked(&key(), 9, now));
        }
        assert_eq!(told, 1);
    }

    #[test]
    fn a_partition_whose_end_was_reached_is_not_behind_however_far_its_last_record_lies() {
        let mut now = Instant::now();
        let mut dog = watching(now);
        dog.record(&key(), 6, now);
        dog.end(0);
        for _ in 0..6 {
            now += STEP;
            // Control records of a transaction follow the last record.
            assert!(!dog.looked(&key(), 9, now));
        }
        // It grows, and the consumer shows that it noticed.
        for _ in 0..6 {
            now += STEP;
            assert!(!dog.looked(&key(), 12, now));
            dog.end(0);
        }
    }

    #[test]
    fn a_record_and_a_pause_start_the_time_anew() {
        let mut now = Instant::now();
        let mut dog = watching(now);
        for step in 0..9 {
            now += STEP;
            assert!(!dog.looked(&key(), 100, now));
            if step % 2 == 0 {
                dog.record(&key(), 6, now);
            } else {
                dog.excuse(now);
            }
        }
        dog.keep(&[], now);
        assert_eq!(dog.due(now + STEP), None);
    }
}
