//! What is deleted because somebody said how long it is kept. Each call deletes a bounded number, so
//! that parking and events never wait long for it.

use crate::{FailedState, Ledger, Result, db::Inside, park::state_of};

impl Ledger {
    /// Failed messages whose state has not changed since a time, oldest first, at most so many. Those
    /// under a claim are not among them.
    ///
    /// # Errors
    /// As the file's.
    pub fn failed_unchanged_since(
        &self,
        unix_ms: i64,
        at_most: u32,
    ) -> Result<Vec<(i64, FailedState)>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                // The first condition follows from the second and has an index.
                "SELECT id, state FROM failed
                 WHERE parked_unix_ms < ?1 AND changed_unix_ms < ?1 AND state <> 'claimed'
                 ORDER BY id LIMIT ?2",
            )?;
            let mut rows = statement.query((unix_ms, at_most))?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let state: String = row.get(1)?;
                found.push((row.get(0)?, state_of(&state)?));
            }
            Ok(found)
        })
    }

    /// Deletes events older than a time, oldest first and at most so many, and gives how many went. An
    /// event of an episode that is not over stays.
    ///
    /// # Errors
    /// As the file's.
    pub fn delete_events_before(&self, unix_ms: i64, at_most: u32) -> Result<u64> {
        self.write(|connection| delete_events(connection, unix_ms, u64::from(at_most)))
    }

    /// Deletes the oldest events beyond a number, at most so many, and gives how many went. An event of
    /// an episode that is not over stays.
    ///
    /// # Errors
    /// As the file's.
    pub fn delete_events_beyond(&self, kept: u64, at_most: u32) -> Result<u64> {
        self.write(|connection| {
            let count: i64 =
                connection.query_row("SELECT count(*) FROM events", [], |row| row.get(0))?;
            let surplus = count.unsigned_abs().saturating_sub(kept);
            if surplus == 0 {
                return Ok(0);
            }
            delete_events(connection, i64::MAX, surplus.min(u64::from(at_most)))
        })
    }
}

fn delete_events(
    connection: &rusqlite::Connection,
    before_unix_ms: i64,
    at_most: u64,
) -> Inside<u64> {
    let deleted = connection.execute(
        "DELETE FROM events WHERE id IN (
             SELECT id FROM events
             WHERE at_unix_ms < ?1 AND id NOT IN (SELECT event FROM episodes)
             ORDER BY id LIMIT ?2)",
        (before_unix_ms, i64::try_from(at_most).unwrap_or(i64::MAX)),
    )?;
    Ok(deleted as u64)
}
