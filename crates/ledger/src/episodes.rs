//! Episodes: one event for something that lasts, with its end and how often it happened.
//!
//! An episode is named by its opening code and a subject (`payments`, `connection/ledger`). It
//! outlives the process: one that was open when the host ended is open when it starts again.

use crate::{Code, Event, Ledger, Result, db::Inside, event_log::append, query::integer};
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};

/// Something that lasts, or lasted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Episode {
    /// The opening event's code.
    pub code: Code,
    /// What it is about.
    pub subject: String,
    /// The opening event's id.
    pub event_id: i64,
    /// When it opened.
    pub opened_unix_ms: i64,
    /// How often it happened until now.
    pub times: u64,
}

impl Ledger {
    /// Opens an episode with its event; true when it was not open yet. Otherwise it is counted once
    /// more and no event is added.
    ///
    /// # Errors
    /// As the file's.
    pub fn episode_open(&self, subject: &str, event: &Event) -> Result<bool> {
        self.write(|connection| open(connection, subject, event))
    }

    /// Closes an episode, adds `times_more` to its count and appends the closing event; `None` when
    /// none was open, and then nothing is appended.
    ///
    /// # Errors
    /// As the file's.
    pub fn episode_close(
        &self,
        subject: &str,
        opened: Code,
        times_more: u64,
        closing: Option<&Event>,
        at_unix_ms: i64,
    ) -> Result<Option<Episode>> {
        self.write(|connection| close(connection, subject, opened, times_more, closing, at_unix_ms))
    }

    /// All episodes that are not over.
    ///
    /// # Errors
    /// As the file's.
    pub fn open_episodes(&self) -> Result<Vec<Episode>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT p.subject, p.code, p.event, p.opened_unix_ms, coalesce(e.times, 1)
                 FROM episodes p LEFT JOIN events e ON e.id = p.event ORDER BY p.event",
            )?;
            let mut rows = statement.query([])?;
            let mut episodes = Vec::new();
            while let Some(row) = rows.next()? {
                let code: String = row.get(1)?;
                episodes.push(Episode {
                    // An episode of a version that knew more codes is closed by that version.
                    code: code.parse().unwrap_or(Code::Unrecognised),
                    subject: row.get(0)?,
                    event_id: row.get(2)?,
                    opened_unix_ms: row.get(3)?,
                    times: row.get::<_, i64>(4)?.unsigned_abs(),
                });
            }
            Ok(episodes)
        })
    }
}

pub(crate) fn open(connection: &Connection, subject: &str, event: &Event) -> Inside<bool> {
    let there: Option<i64> = connection
        .prepare_cached("SELECT event FROM episodes WHERE subject = ?1 AND code = ?2")?
        .query_row(params![subject, event.code.name()], |row| row.get(0))
        .optional()?;
    if let Some(id) = there {
        connection
            .prepare_cached("UPDATE events SET times = times + 1 WHERE id = ?")?
            .execute([id])?;
        return Ok(false);
    }
    let id = append(connection, event)?;
    connection
        .prepare_cached(
            "INSERT INTO episodes (subject, code, event, opened_unix_ms) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![subject, event.code.name(), id, event.at_unix_ms])?;
    Ok(true)
}

pub(crate) fn close(
    connection: &Connection,
    subject: &str,
    opened: Code,
    times_more: u64,
    closing: Option<&Event>,
    at_unix_ms: i64,
) -> Inside<Option<Episode>> {
    let there: Option<(i64, i64)> = connection
        .prepare_cached(
            "DELETE FROM episodes WHERE subject = ?1 AND code = ?2 RETURNING event, opened_unix_ms",
        )?
        .query_row(params![subject, opened.name()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let Some((event_id, opened_unix_ms)) = there else {
        return Ok(None);
    };
    let times: Option<i64> = connection
        .prepare_cached(
            "UPDATE events SET times = times + ?2, ended_unix_ms = ?3 WHERE id = ?1 RETURNING times",
        )?
        .query_row(params![event_id, integer(times_more), at_unix_ms], |row| {
            row.get(0)
        })
        .optional()?;
    let times = times.map_or(1, i64::unsigned_abs);
    if let Some(closing) = closing {
        let mut closing = closing.clone();
        closing
            .fields
            .insert("opened_by".to_owned(), event_id.into());
        closing.fields.insert("times".to_owned(), times.into());
        let lasted_ms = at_unix_ms.saturating_sub(opened_unix_ms);
        closing
            .fields
            .insert("lasted_ms".to_owned(), lasted_ms.into());
        append(connection, &closing)?;
    }
    Ok(Some(Episode {
        code: opened,
        subject: subject.to_owned(),
        event_id,
        opened_unix_ms,
        times,
    }))
}
