//! What of each partition is with the host, and how far its offsets may be committed: up to the first
//! record that is not settled, in the order in which they came. Offsets that no record has (control
//! records of transactions, what compaction removed) are no gap.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A topic and a partition of it.
pub(crate) type Key = (Arc<str>, i32);

/// Where a record stands, tied to it while the host has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub key: Key,
    /// Which assignment of the partition it came with.
    pub assignment: u64,
    pub offset: i64,
}

/// A partition that is assigned to this member.
#[derive(Debug)]
pub(crate) struct Partition {
    pub assignment: u64,
    /// Tells this topic and this run of committed offsets from earlier ones; goes with each commit.
    pub epoch: String,
    /// What the group has committed.
    pub committed: i64,
    /// What may be committed.
    pub settled: i64,
    /// The offset behind the last record that came.
    pub position: i64,
    /// Records that are with the host, in order, and whether they may be acknowledged.
    open: VecDeque<(i64, bool)>,
}

impl Partition {
    /// What the host calls it. The epoch is in the name because a topic that was made again counts from
    /// zero, and the host must not take its records for those it has accepted.
    pub(crate) fn name(&self, key: &Key) -> String {
        format!("{}/{}#{}", key.0, key.1, self.epoch)
    }
}

/// All partitions that are assigned.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    partitions: BTreeMap<Key, Partition>,
    assignments: u64,
}

impl Tracker {
    /// A partition was assigned and begins at `offset`.
    pub(crate) fn assign(&mut self, key: Key, offset: i64, epoch: String) {
        self.assignments += 1;
        let partition = Partition {
            assignment: self.assignments,
            epoch,
            committed: offset,
            settled: offset,
            position: offset,
            open: VecDeque::new(),
        };
        self.partitions.insert(key, partition);
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        self.partitions.remove(key);
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Partition> {
        self.partitions.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Partition)> {
        self.partitions.iter()
    }

    /// A record goes to the host now. None where its partition is not assigned any more.
    pub(crate) fn take(&mut self, key: &Key, offset: i64) -> Option<Place> {
        let partition = self.partitions.get_mut(key)?;
        // The library hands nothing over twice within an assignment.
        if partition
            .open
            .back()
            .is_some_and(|(last, _)| *last >= offset)
        {
            return None;
        }
        partition.open.push_back((offset, false));
        partition.position = partition.position.max(offset + 1);
        Some(Place {
            key: key.clone(),
            assignment: partition.assignment,
            offset,
        })
    }

    /// It did not go to the host after all.
    pub(crate) fn put_back(&mut self, place: &Place) {
        if let Some(partition) = self.of(place)
            && partition
                .open
                .back()
                .is_some_and(|(last, _)| *last == place.offset)
        {
            partition.open.pop_back();
        }
    }

    /// The record may be acknowledged. What belongs to an earlier assignment changes nothing.
    pub(crate) fn acknowledge(&mut self, place: &Place) {
        let Some(partition) = self.of(place) else {
            return;
        };
        let at = partition
            .open
            .binary_search_by_key(&place.offset, |(offset, _)| *offset);
        if let Some(entry) = at.ok().and_then(|at| partition.open.get_mut(at)) {
            entry.1 = true;
        }
        while let Some((offset, true)) = partition.open.front() {
            partition.settled = offset + 1;
            partition.open.pop_front();
        }
    }

    /// The group has committed this.
    pub(crate) fn committed(&mut self, key: &Key, offset: i64) {
        if let Some(partition) = self.partitions.get_mut(key) {
            partition.committed = partition.committed.max(offset);
        }
    }

    /// Partitions with something to commit, and what.
    pub(crate) fn to_commit(&self) -> Vec<(Key, i64, String)> {
        self.partitions
            .iter()
            .filter(|(_, partition)| partition.settled > partition.committed)
            .map(|(key, partition)| (key.clone(), partition.settled, partition.epoch.clone()))
            .collect()
    }

    fn of(&mut self, place: &Place) -> Option<&mut Partition> {
        self.partitions
            .get_mut(&place.key)
            .filter(|partition| partition.assignment == place.assignment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(partition: i32) -> Key {
        ("t".into(), partition)
    }

    fn tracker() -> Tracker {
        let mut tracker = Tracker::default();
        tracker.assign(key(0), 10, "e".into());
        tracker.assign(key(1), 0, "e".into());
        tracker
    }

    fn settled(tracker: &Tracker, partition: i32) -> i64 {
        tracker.get(&key(partition)).unwrap().settled
    }

    #[test]
    fn only_what_is_settled_without_a_gap_may_be_committed() {
        let mut tracker = tracker();
        let places: Vec<Place> = (10..15)
            .map(|offset| tracker.take(&key(0), offset).unwrap())
            .collect();
        for index in [4, 2, 1] {
            tracker.acknowledge(&places[index]);
            assert_eq!(settled(&tracker, 0), 10);
        }
        assert!(tracker.to_commit().is_empty());
        tracker.acknowledge(&places[0]);
        assert_eq!(settled(&tracker, 0), 13, "up to the one that is held");
        tracker.acknowledge(&places[3]);
        assert_eq!(settled(&tracker, 0), 15);
        assert_eq!(tracker.to_commit(), [(key(0), 15, "e".to_owned())]);
        tracker.committed(&key(0), 15);
        assert!(tracker.to_commit().is_empty());
    }

    #[test]
    fn offsets_that_no_record_has_are_no_gap() {
        let mut tracker = tracker();
        let places: Vec<Place> = [10, 17, 18, 400]
            .map(|offset| tracker.take(&key(0), offset).unwrap())
            .to_vec();
        for place in &places {
            tracker.acknowledge(place);
        }
        assert_eq!(settled(&tracker, 0), 401);
    }

    #[test]
    fn one_partition_never_acknowledges_another() {
        let mut tracker = tracker();
        let zero = tracker.take(&key(0), 10).unwrap();
        let one = tracker.take(&key(1), 0).unwrap();
        tracker.acknowledge(&one);
        assert_eq!((settled(&tracker, 0), settled(&tracker, 1)), (10, 1));
        tracker.acknowledge(&zero);
        assert_eq!(settled(&tracker, 0), 11);
    }

    #[test]
    fn what_came_with_an_earlier_assignment_changes_nothing() {
        let mut tracker = tracker();
        let old = tracker.take(&key(0), 10).unwrap();
        tracker.remove(&key(0));
        tracker.acknowledge(&old);
        assert_eq!(tracker.take(&key(0), 11), None);
        tracker.assign(key(0), 10, "e".into());
        let new = tracker.take(&key(0), 10).unwrap();
        tracker.acknowledge(&old);
        assert_eq!(settled(&tracker, 0), 10);
        tracker.acknowledge(&new);
        assert_eq!(settled(&tracker, 0), 11);
    }

    #[test]
    fn a_record_that_is_put_back_can_be_taken_again() {
        let mut tracker = tracker();
        let first = tracker.take(&key(0), 10).unwrap();
        let second = tracker.take(&key(0), 11).unwrap();
        tracker.put_back(&second);
        tracker.acknowledge(&first);
        assert_eq!(settled(&tracker, 0), 11);
        let again = tracker.take(&key(0), 11).unwrap();
        tracker.acknowledge(&again);
        assert_eq!(settled(&tracker, 0), 12);
        assert_eq!(
            tracker.take(&key(0), 11),
            Some(Place {
                offset: 11,
                ..again
            })
        );
    }
}
