//! A set of numbers kept as ranges: settled writes of a lane, accepted offsets of a partition.

use std::collections::BTreeMap;

/// Numbers as disjoint, never adjacent, inclusive ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SeqSet {
    ranges: BTreeMap<u64, u64>,
}

impl SeqSet {
    pub(crate) fn contains(&self, n: u64) -> bool {
        self.ranges
            .range(..=n)
            .next_back()
            .is_some_and(|(_, &end)| n <= end)
    }

    /// Adds one number; false when it was there.
    pub(crate) fn insert(&mut self, n: u64) -> bool {
        if self.contains(n) {
            return false;
        }
        self.insert_range(n, n);
        true
    }

    /// Adds `from..=to`.
    pub(crate) fn insert_range(&mut self, from: u64, to: u64) {
        if from > to {
            return;
        }
        let (mut start, mut end) = (from, to);
        if let Some((&s, &e)) = self.ranges.range(..=from).next_back()
            && e.saturating_add(1) >= from
        {
            start = s;
            end = end.max(e);
        }
        while let Some((&s, &e)) = self.ranges.range(start..=end.saturating_add(1)).next() {
            self.ranges.remove(&s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
    }

    /// Removes every number below `floor`.
    pub(crate) fn forget_below(&mut self, floor: u64) {
        while let Some((&s, &e)) = self.ranges.first_key_value() {
            if s >= floor {
                return;
            }
            self.ranges.remove(&s);
            if e >= floor {
                self.ranges.insert(floor, e);
                return;
            }
        }
    }

    /// Forgets the lowest range.
    pub(crate) fn forget_first(&mut self) {
        self.ranges.pop_first();
    }

    /// The end of the range that `from` begins or lies in.
    pub(crate) fn end_of(&self, from: u64) -> Option<u64> {
        self.ranges
            .range(..=from)
            .next_back()
            .map(|(_, &e)| e)
            .filter(|&e| e >= from)
    }

    /// How many numbers of `from..=to` are in the set.
    pub(crate) fn count_in(&self, from: u64, to: u64) -> u64 {
        if from > to {
            return 0;
        }
        let before = self.ranges.range(..from).next_back().map(|(&s, &e)| (s, e));
        before
            .into_iter()
            .chain(self.ranges.range(from..=to).map(|(&s, &e)| (s, e)))
            .map(|(s, e)| (s.max(from), e.min(to)))
            .filter(|(s, e)| s <= e)
            .map(|(s, e)| e - s + 1)
            .sum()
    }

    /// The parts of `from..=to` that are not in the set.
    pub(crate) fn missing_in(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = from;
        while at <= to {
            if let Some(end) = self.end_of(at) {
                match end.checked_add(1) {
                    Some(next) => at = next,
                    None => break,
                }
                continue;
            }
            let next = self.ranges.range(at..).next().map_or(u64::MAX, |(&s, _)| s);
            let end = to.min(next.saturating_sub(1));
            gaps.push((at, end));
            match end.checked_add(1) {
                Some(next) => at = next,
                None => break,
            }
        }
        gaps
    }

    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&s, &e)| (s, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_whichever_order_they_come_in() {
        let mut set = SeqSet::default();
        for n in [5, 1, 3, 2, 4] {
            assert!(set.insert(n));
            assert!(!set.insert(n));
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [(1, 5)]);
        set.insert_range(8, 9);
        set.insert_range(3, 20);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(1, 20)]);
        set.forget_below(7);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(7, 20)]);
        set.insert(30);
        assert_eq!(set.missing_in(1, 31), [(1, 6), (21, 29), (31, 31)]);
        assert_eq!(set.count_in(5, 8), 2);
        assert_eq!(set.count_in(20, 40), 2);
        set.insert(u64::MAX);
        assert!(set.contains(u64::MAX));
    }
}
