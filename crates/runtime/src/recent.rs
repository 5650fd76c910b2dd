//! What became of the last messages: kept in memory, bounded, for `consign trace`.
//!
//! A write that was delivered leaves nothing behind on disk, so without this nobody could say of a
//! message that it has arrived. It costs one entry a message, and counts from the start of the process.

use consign_pipeline::WriteKey;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};

/// Messages remembered; the oldest goes first. At a few hundred bytes each this is some megabytes.
pub const REMEMBERED: usize = 10_000;
/// Bytes of a name (a client's key) that are kept.
const NAME_MAX_BYTES: usize = 256;

/// Ends kept for messages that are not there yet.
const EARLY: usize = 4_096;

/// A message that came in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Its id in this host.
    pub message_id: String,
    /// The adapter.
    pub adapter: String,
    /// What else names it: a client's key, an identity.
    pub names: Vec<String>,
    /// When it ended.
    pub at_unix_ms: i64,
    /// How it ended.
    pub outcome: &'static str,
    /// The route that claimed it.
    pub route: Option<String>,
    /// Why it ended so.
    pub why: Option<String>,
    /// Conditions that failed on it.
    pub condition_errors: Vec<String>,
    /// Its writes.
    pub writes: Vec<SeenWrite>,
}

/// A write of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SeenWrite {
    /// The send.
    pub send: String,
    /// Its key.
    pub write_key: String,
    /// How it ended, once it has.
    pub ended: Option<&'static str>,
    /// When.
    pub ended_unix_ms: Option<i64>,
    /// The same key, in bytes.
    #[serde(skip)]
    pub key: [u8; 16],
}

impl SeenWrite {
    /// One that is on its way.
    pub fn new(send: &str, key: [u8; 16]) -> Self {
        Self {
            send: send.to_owned(),
            write_key: WriteKey(key).to_string(),
            ended: None,
            ended_unix_ms: None,
            key,
        }
    }
}

/// The last messages.
#[derive(Debug, Default)]
pub struct Recent {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    messages: VecDeque<Seen>,
    /// The number of the first of them; numbers are never used again.
    first: u64,
    /// The message of a write that has not ended.
    open: HashMap<[u8; 16], u64>,
    /// Writes that ended before their message was added: both are told at the same time.
    early: HashMap<[u8; 16], (&'static str, i64)>,
}

impl Recent {
    /// Remembers a message.
    pub fn add(&self, mut seen: Seen) {
        for name in &mut seen.names {
            let end = (0..=NAME_MAX_BYTES.min(name.len()))
                .rev()
                .find(|at| name.is_char_boundary(*at));
            name.truncate(end.unwrap_or(0));
        }
        let mut inner = self.inner.lock();
        let number = inner
            .first
            .saturating_add(u64::try_from(inner.messages.len()).unwrap_or(u64::MAX));
        for write in &mut seen.writes {
            match inner.early.remove(&write.key) {
                Some((how, at_unix_ms)) => {
                    write.ended = Some(how);
                    write.ended_unix_ms = Some(at_unix_ms);
                }
                None if write.ended.is_none() => drop(inner.open.insert(write.key, number)),
                None => {}
            }
        }
        inner.messages.push_back(seen);
        if inner.messages.len() > REMEMBERED
            && let Some(gone) = inner.messages.pop_front()
        {
            let first = inner.first;
            for write in gone.writes {
                if inner.open.get(&write.key) == Some(&first) {
                    inner.open.remove(&write.key);
                }
            }
            inner.first = first.saturating_add(1);
        }
    }

    /// A write ended.
    pub fn ended(&self, key: [u8; 16], how: &'static str, at_unix_ms: i64) {
        let mut inner = self.inner.lock();
        let Some(number) = inner.open.remove(&key) else {
            // Most of these are writes of an earlier run, which nobody will add.
            if inner.early.len() >= EARLY {
                inner.early.clear();
            }
            inner.early.insert(key, (how, at_unix_ms));
            return;
        };
        let place = number
            .checked_sub(inner.first)
            .and_then(|place| usize::try_from(place).ok());
        let message = place.and_then(|place| inner.messages.get_mut(place));
        for write in message.into_iter().flat_map(|seen| &mut seen.writes) {
            if write.key == key {
                write.ended = Some(how);
                write.ended_unix_ms = Some(at_unix_ms);
            }
        }
    }

    /// Messages with this id, name or write key, oldest first.
    pub fn find(&self, what: &str) -> Vec<Seen> {
        let inner = self.inner.lock();
        let fits = |seen: &&Seen| {
            seen.message_id == what
                || seen.names.iter().any(|name| name == what)
                || seen.writes.iter().any(|write| write.write_key == what)
        };
        inner.messages.iter().filter(fits).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(number: u128, name: &str) -> Seen {
        let key = number.to_be_bytes();
        Seen {
            message_id: format!("m{number}"),
            adapter: "a".to_owned(),
            names: vec![name.to_owned()],
            at_unix_ms: 1,
            outcome: "accepted",
            route: None,
            why: None,
            condition_errors: Vec::new(),
            writes: vec![SeenWrite::new("s", key)],
        }
    }

    #[test]
    fn a_message_is_found_by_each_of_its_names_and_its_writes_end() {
        let recent = Recent::default();
        recent.add(seen(1, "order-7"));
        recent.add(seen(2, "order-8"));
        let key = WriteKey(1_u128.to_be_bytes()).to_string();
        for name in ["m1", "order-7", key.as_str()] {
            assert_eq!(recent.find(name).len(), 1, "{name}");
        }
        recent.ended(1_u128.to_be_bytes(), "delivered", 9);
        recent.ended(77_u128.to_be_bytes(), "delivered", 9);
        assert_eq!(recent.find("m1")[0].writes[0].ended, Some("delivered"));
        assert_eq!(recent.find("m2")[0].writes[0].ended, None);
        assert_eq!(recent.find("m3"), []);
    }

    #[test]
    fn an_end_that_is_told_before_its_message_is_not_lost() {
        let recent = Recent::default();
        recent.ended(5_u128.to_be_bytes(), "delivered", 9);
        recent.add(seen(5, "x"));
        assert_eq!(recent.find("m5")[0].writes[0].ended, Some("delivered"));
    }

    #[test]
    fn the_oldest_goes_and_numbers_stay_right() {
        let recent = Recent::default();
        for number in 0..u128::try_from(REMEMBERED + 5).unwrap() {
            recent.add(seen(number, "é".repeat(300).as_str()));
        }
        assert_eq!(recent.find("m4"), []);
        let last = u128::try_from(REMEMBERED + 4).unwrap();
        recent.ended(last.to_be_bytes(), "expired", 3);
        let found = recent.find(&format!("m{last}"));
        assert_eq!(found[0].writes[0].ended, Some("expired"));
        assert!(found[0].names[0].len() <= NAME_MAX_BYTES);
        recent.ended(4_u128.to_be_bytes(), "delivered", 3);
        assert_eq!(recent.inner.lock().open.len(), REMEMBERED - 1);
    }
}
