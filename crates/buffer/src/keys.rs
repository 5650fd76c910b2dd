//! What was accepted: offsets per partition for cumulative sources, keys in buckets of time for the others.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::api::{Assigned, Known, Origin};
use crate::seqset::SeqSet;

/// A window is divided into this many buckets; a bucket is forgotten whole.
const BUCKETS_PER_WINDOW: u64 = 24;
/// Ranges of accepted offsets kept for one partition. Forgetting the oldest lets a redelivery through as a copy with
/// the same write key; it never loses a message.
const MAX_OFFSET_RANGES: usize = 65_536;
/// Until [`Buffer::scope`](crate::Buffer::scope) says otherwise.
pub(crate) const DEFAULT_WINDOW_MS: u64 = 24 * 3600 * 1000;
/// Until [`Buffer::scope`](crate::Buffer::scope) says otherwise.
pub(crate) const DEFAULT_KEY_QUOTA_BYTES: u64 = 64 << 20;

/// A key and, for a client key, the body's digest.
pub(crate) type KeyRow = ([u8; 16], Option<[u8; 16]>);

/// The keys accepted in one span of time.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    pub(crate) start_unix_ms: u64,
    pub(crate) keys: HashMap<[u8; 16], Option<[u8; 16]>>,
    /// Not yet in the bucket's file.
    pub(crate) unsaved: Vec<KeyRow>,
    /// The file, once there is one: its number, salt and believed length.
    pub(crate) file: Option<KeyFile>,
    /// The file must not be appended to any more: a checkpoint that failed may yet name what was appended. All rows
    /// go to a new one; until that is durable the old one is what checkpoints name.
    pub(crate) rewrite: bool,
}

/// A bucket's file as far as a checkpoint vouches for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyFile {
    pub(crate) number: u64,
    pub(crate) salt: u64,
    pub(crate) len: u64,
}

/// What is known of one partition.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Partition {
    /// The source's own committed offset: everything below it is done with.
    pub(crate) committed: u64,
    pub(crate) accepted: SeqSet,
}

#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) id: String,
    pub(crate) window_ms: u64,
    pub(crate) key_quota_bytes: u64,
    pub(crate) partitions: BTreeMap<(String, u64), Partition>,
    /// Oldest first.
    pub(crate) buckets: VecDeque<Bucket>,
    pub(crate) key_bytes: u64,
    /// Claimed or being committed.
    pub(crate) busy: HashMap<Busy, u32>,
    pub(crate) next_file: u64,
    /// Files of forgotten buckets, to be unlinked after the next checkpoint.
    pub(crate) dead_files: Vec<u64>,
}

/// An origin without the body's digest: what two concurrent requests have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Busy {
    Offset(String, u64, u64),
    Key([u8; 16]),
}

pub(crate) fn busy_of(origin: &Origin) -> Busy {
    match origin {
        Origin::Cumulative {
            partition,
            incarnation,
            offset,
        } => Busy::Offset(partition.clone(), *incarnation, *offset),
        Origin::Individual { id } => Busy::Key(*id),
        Origin::ClientKey { key, .. } => Busy::Key(*key),
    }
}

fn row_bytes(body: Option<[u8; 16]>) -> u64 {
    if body.is_some() { 32 } else { 16 }
}

impl Bucket {
    /// All rows go to a new file.
    pub(crate) fn write_anew(&mut self) {
        self.rewrite = true;
        self.unsaved = self.keys.iter().map(|(k, b)| (*k, *b)).collect();
        self.unsaved.sort_unstable();
    }
}

impl Scope {
    pub(crate) fn new(id: String) -> Self {
        Scope {
            id,
            window_ms: DEFAULT_WINDOW_MS,
            key_quota_bytes: DEFAULT_KEY_QUOTA_BYTES,
            partitions: BTreeMap::new(),
            buckets: VecDeque::new(),
            key_bytes: 0,
            busy: HashMap::new(),
            next_file: 1,
            dead_files: Vec::new(),
        }
    }

    /// The acceptance check, without the claims.
    pub(crate) fn known(&self, origin: &Origin) -> Known {
        match origin {
            Origin::Cumulative {
                partition,
                incarnation,
                offset,
            } => {
                let found = self
                    .partitions
                    .get(&(partition.clone(), *incarnation))
                    .is_some_and(|p| *offset < p.committed || p.accepted.contains(*offset));
                if found { Known::Repeat } else { Known::New }
            }
            Origin::Individual { id } => match self.find(id) {
                Some(_) => Known::Repeat,
                None => Known::New,
            },
            Origin::ClientKey { key, body } => match self.find(key) {
                Some(Some(first)) if first != *body => Known::Conflict,
                Some(_) => Known::Repeat,
                None => Known::New,
            },
        }
    }

    fn find(&self, key: &[u8; 16]) -> Option<Option<[u8; 16]>> {
        self.buckets
            .iter()
            .rev()
            .find_map(|b| b.keys.get(key).copied())
    }

    /// Remembers an accepted origin.
    pub(crate) fn remember(&mut self, origin: &Origin, at_unix_ms: u64) {
        let row: KeyRow = match origin {
            Origin::Cumulative {
                partition,
                incarnation,
                offset,
            } => {
                let p = self
                    .partitions
                    .entry((partition.clone(), *incarnation))
                    .or_default();
                p.accepted.insert(*offset);
                if p.accepted.len() > MAX_OFFSET_RANGES {
                    p.accepted.forget_first();
                }
                return;
            }
            Origin::Individual { id } => (*id, None),
            Origin::ClientKey { key, body } => (*key, Some(*body)),
        };
        if self.find(&row.0).is_some() {
            return;
        }
        let width = (self.window_ms / BUCKETS_PER_WINDOW).max(1);
        // A clock that went back puts keys into the newest bucket: they are kept longer, never shorter.
        if self
            .buckets
            .back()
            .is_none_or(|b| at_unix_ms >= b.start_unix_ms.saturating_add(width))
        {
            self.buckets.push_back(Bucket {
                start_unix_ms: at_unix_ms,
                ..Bucket::default()
            });
        }
        if let Some(bucket) = self.buckets.back_mut() {
            bucket.keys.insert(row.0, row.1);
            bucket.unsaved.push(row);
            self.key_bytes += row_bytes(row.1);
        }
    }

    /// Forgets buckets past the window, and the oldest while the quota is exceeded.
    pub(crate) fn expire(&mut self, now_unix_ms: u64) {
        let width = (self.window_ms / BUCKETS_PER_WINDOW).max(1);
        while let Some(first) = self.buckets.front() {
            let past = first
                .start_unix_ms
                .saturating_add(width)
                .saturating_add(self.window_ms)
                <= now_unix_ms;
            let over = self.key_bytes > self.key_quota_bytes && self.buckets.len() > 1;
            if !past && !over {
                return;
            }
            let bytes: u64 = first.keys.values().map(|body| row_bytes(*body)).sum();
            self.key_bytes = self.key_bytes.saturating_sub(bytes);
            if let Some(file) = self.buckets.pop_front().and_then(|b| b.file) {
                self.dead_files.push(file.number);
            }
        }
    }

    /// The window that is really kept: shorter than asked for when the quota forced a bucket out early.
    pub(crate) fn kept_ms(&self, now_unix_ms: u64) -> u64 {
        let full = self
            .key_bytes
            .saturating_add(self.key_quota_bytes / BUCKETS_PER_WINDOW)
            >= self.key_quota_bytes;
        match self.buckets.front() {
            Some(first) if full => now_unix_ms
                .saturating_sub(first.start_unix_ms)
                .min(self.window_ms),
            _ => self.window_ms,
        }
    }

    /// Marks an origin as on its way, once more.
    pub(crate) fn hold(&mut self, busy: Busy) {
        *self.busy.entry(busy).or_default() += 1;
    }

    /// Undoes one [`hold`](Self::hold).
    pub(crate) fn release(&mut self, busy: &Busy) {
        if let Some(n) = self.busy.get_mut(busy) {
            *n -= 1;
            if *n == 0 {
                self.busy.remove(busy);
            }
        }
    }

    /// What an assignment at this committed offset means; changes nothing.
    pub(crate) fn assess(&self, partition: &str, incarnation: u64, committed: u64) -> Assigned {
        match self.partitions.get(&(partition.to_owned(), incarnation)) {
            Some(p) if committed < p.committed => Assigned::Rewound {
                from: p.committed,
                to: committed,
            },
            _ => Assigned::Resumed,
        }
    }

    /// Takes an assignment or a commit into the books.
    pub(crate) fn set_committed(
        &mut self,
        partition: String,
        incarnation: u64,
        committed: u64,
        reset: bool,
    ) {
        let p = self.partitions.entry((partition, incarnation)).or_default();
        if reset {
            *p = Partition {
                committed,
                accepted: SeqSet::default(),
            };
        } else if committed > p.committed {
            p.committed = committed;
            p.accepted.forget_below(committed);
        }
    }

    /// Puts a row that a bucket file holds back into memory.
    pub(crate) fn restore(&mut self, bucket: usize, row: KeyRow) {
        if let Some(bucket) = self.buckets.get_mut(bucket)
            && bucket.keys.insert(row.0, row.1).is_none()
        {
            self.key_bytes += row_bytes(row.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_keys_conflict_repeat_and_expire() {
        let mut scope = Scope::new("a".into());
        scope.window_ms = 24_000;
        let key = |k: u8, b: u8| Origin::ClientKey {
            key: [k; 16],
            body: [b; 16],
        };
        scope.remember(&key(1, 1), 10_000);
        assert_eq!(scope.known(&key(1, 1)), Known::Repeat);
        assert_eq!(scope.known(&key(1, 2)), Known::Conflict);
        scope.expire(10_000 + 24_999);
        assert_eq!(scope.known(&key(1, 1)), Known::Repeat);
        scope.expire(10_000 + 25_000);
        assert_eq!(scope.known(&key(1, 1)), Known::New);
        assert_eq!(scope.key_bytes, 0);
    }

    #[test]
    fn the_quota_shortens_the_window_and_says_so() {
        let mut scope = Scope::new("a".into());
        scope.window_ms = 24_000;
        scope.key_quota_bytes = 160;
        for n in 0..20u8 {
            scope.remember(&Origin::Individual { id: [n; 16] }, u64::from(n) * 1000);
            scope.expire(u64::from(n) * 1000);
        }
        assert!(scope.key_bytes <= 160);
        assert_eq!(
            scope.known(&Origin::Individual { id: [19; 16] }),
            Known::Repeat
        );
        assert_eq!(scope.known(&Origin::Individual { id: [0; 16] }), Known::New);
        assert!(scope.kept_ms(19_000) < 24_000);
    }

    #[test]
    fn an_external_rewind_is_told_from_a_late_commit() {
        let mut scope = Scope::new("a".into());
        let at = |offset| Origin::Cumulative {
            partition: "0".into(),
            incarnation: 1,
            offset,
        };
        for n in 5..9 {
            scope.remember(&at(n), 0);
        }
        assert_eq!(scope.assess("0", 1, 5), Assigned::Resumed);
        scope.set_committed("0".into(), 1, 7, false);
        assert_eq!(scope.known(&at(6)), Known::Repeat);
        assert_eq!(scope.known(&at(8)), Known::Repeat);
        assert_eq!(
            scope.assess("0", 1, 3),
            Assigned::Rewound { from: 7, to: 3 }
        );
        scope.set_committed("0".into(), 1, 3, true);
        assert_eq!(scope.known(&at(6)), Known::New);
        assert_eq!(scope.known(&at(2)), Known::Repeat);
    }
}
