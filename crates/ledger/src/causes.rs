//! Grouping by cause, with counts that are kept on write.
//!
//! A cause is a code on one send over one connection. `waiting` follows every change of state in
//! the same transaction, so a list of causes never counts rows.

use crate::{FailedState, Ledger, NewFailed, Result, db::Inside};
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

/// Failed messages of one cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Its id, for filters.
    pub id: i64,
    /// The code.
    pub code: String,
    /// The connection.
    pub connection: String,
    /// The adapter.
    pub adapter: String,
    /// The route.
    pub route: String,
    /// The send.
    pub send: String,
    /// Messages that wait: parked, or claimed at this moment.
    pub waiting: u64,
    /// Messages ever parked for it.
    pub total: u64,
    /// When the first one was parked.
    pub first_unix_ms: i64,
    /// When the last one was parked.
    pub last_unix_ms: i64,
    /// What was said of the last one.
    pub last_message: String,
}

impl Ledger {
    /// All causes, the one with the most waiting first; `waiting_only` leaves out those with none.
    ///
    /// # Errors
    /// As the file's.
    pub fn causes(&self, waiting_only: bool) -> Result<Vec<Cause>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, code, connection, adapter, route, send, waiting, total,
                        first_unix_ms, last_unix_ms, last_message
                 FROM causes WHERE waiting > 0 OR NOT ?1
                 ORDER BY waiting DESC, last_unix_ms DESC, id",
            )?;
            let rows = statement.query_map([waiting_only], |row| {
                Ok(Cause {
                    id: row.get(0)?,
                    code: row.get(1)?,
                    connection: row.get(2)?,
                    adapter: row.get(3)?,
                    route: row.get(4)?,
                    send: row.get(5)?,
                    waiting: row.get::<_, i64>(6)?.unsigned_abs(),
                    total: row.get::<_, i64>(7)?.unsigned_abs(),
                    first_unix_ms: row.get(8)?,
                    last_unix_ms: row.get(9)?,
                    last_message: row.get(10)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }
}

/// Whether a message in this state counts as waiting.
fn waits(state: FailedState) -> bool {
    matches!(state, FailedState::Parked | FailedState::Claimed)
}

/// Counts a new parking, and gives its cause.
pub(crate) fn count_parked(connection: &Connection, record: &NewFailed) -> Inside<i64> {
    Ok(connection
        .prepare_cached(
            "INSERT INTO causes (code, connection, adapter, route, send, waiting, total,
                                 first_unix_ms, last_unix_ms, last_message)
             VALUES (?1, ?2, ?3, ?4, ?5, 1, 1, ?6, ?6, ?7)
             ON CONFLICT (code, connection, adapter, route, send) DO UPDATE SET
                waiting = waiting + 1, total = total + 1,
                last_unix_ms = max(last_unix_ms, excluded.last_unix_ms),
                last_message = excluded.last_message
             RETURNING id",
        )?
        .query_row(
            params![
                record.diagnosis.code,
                record.connection,
                record.adapter,
                record.route,
                record.send,
                record.parked_unix_ms,
                record.diagnosis.message,
            ],
            |row| row.get(0),
        )?)
}

/// Counts a change of state.
pub(crate) fn count_moved(
    connection: &Connection,
    cause: i64,
    from: FailedState,
    to: Option<FailedState>,
) -> Inside<()> {
    let change = i64::from(to.is_some_and(waits)) - i64::from(waits(from));
    if change != 0 {
        connection
            .prepare_cached("UPDATE causes SET waiting = waiting + ?2 WHERE id = ?1")?
            .execute(params![cause, change])?;
    }
    Ok(())
}
