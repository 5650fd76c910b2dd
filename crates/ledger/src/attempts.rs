//! How often a message failed before it had any write: a processor refused it, or it could not be
//! rendered. A message that is handed over again keeps its id, and with it its count.

use crate::{Ledger, Result};
use rusqlite::params;

/// A message that failed, as the host names it, and its adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedMessageId {
    /// The message's id; names the adapter's message whenever its source hands it over.
    pub id: [u8; 16],
    /// For people who read the file.
    pub adapter: String,
}

/// What is known of a message's failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempts {
    /// How often it failed.
    pub attempts: u32,
    /// The first time.
    pub first_unix_ms: i64,
    /// The last time.
    pub last_unix_ms: i64,
}

impl Ledger {
    /// Counts one more failure of each of these messages, in one transaction, and gives what is known of
    /// them now, in the same order.
    ///
    /// # Errors
    /// As the file's; then none was counted.
    pub fn attempts_failed(
        &self,
        messages: &[FailedMessageId],
        at_unix_ms: i64,
    ) -> Result<Vec<Attempts>> {
        self.write(|db| {
            let mut statement = db.prepare_cached(
                "INSERT INTO attempts (message_id, adapter, attempts, first_unix_ms, last_unix_ms)
                 VALUES (?1, ?2, 1, ?3, ?3)
                 ON CONFLICT (message_id) DO UPDATE SET
                    attempts = min(attempts + 1, 4294967295), last_unix_ms = ?3
                 RETURNING attempts, first_unix_ms, last_unix_ms",
            )?;
            let mut counted = Vec::with_capacity(messages.len());
            for message in messages {
                let row = statement.query_row(
                    params![message.id.as_slice(), message.adapter, at_unix_ms],
                    |row| {
                        Ok(Attempts {
                            attempts: row.get(0)?,
                            first_unix_ms: row.get(1)?,
                            last_unix_ms: row.get(2)?,
                        })
                    },
                )?;
                counted.push(row);
            }
            Ok(counted)
        })
    }

    /// Forgets messages that failed no more: they were accepted, or somebody decided about them.
    ///
    /// # Errors
    /// As the file's.
    pub fn attempts_ended(&self, ids: &[[u8; 16]]) -> Result<()> {
        self.write(|db| {
            let mut statement = db.prepare_cached("DELETE FROM attempts WHERE message_id = ?")?;
            for id in ids {
                statement.execute([id.as_slice()])?;
            }
            Ok(())
        })
    }

    /// Every message that a count is kept of.
    ///
    /// # Errors
    /// As the file's.
    pub fn attempted(&self) -> Result<Vec<[u8; 16]>> {
        self.read(|db| {
            let mut statement = db.prepare_cached("SELECT message_id FROM attempts")?;
            let rows = statement.query_map([], |row| row.get(0))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Forgets messages that have not failed since a time, at most so many, and gives them: their source
    /// has not handed them over any more.
    ///
    /// # Errors
    /// As the file's.
    pub fn delete_attempts_before(&self, unix_ms: i64, at_most: u32) -> Result<Vec<[u8; 16]>> {
        self.write(|db| {
            let mut statement = db.prepare_cached(
                "DELETE FROM attempts WHERE message_id IN
                    (SELECT message_id FROM attempts WHERE last_unix_ms < ?1 LIMIT ?2)
                 RETURNING message_id",
            )?;
            let rows = statement.query_map(params![unix_ms, at_most], |row| row.get(0))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }
}
