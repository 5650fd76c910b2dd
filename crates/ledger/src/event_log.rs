//! The event log: append, ask, follow.

use crate::{
    Code, Event, EventFilter, Ledger, Result, Severity, StoredEvent,
    db::Inside,
    park::bad,
    query::{Conditions, limit},
};
use rusqlite::{Connection, Row, params, params_from_iter, types::Value};
use serde_json::Map;
use std::borrow::Cow;

/// A sentence is cut here, so that a server's page-long answer does not fill the log.
const MESSAGE_MAX_BYTES: usize = 4 * 1024;

/// Fields that are longer in all are replaced by a note that says so.
const FIELDS_MAX_BYTES: usize = 16 * 1024;

impl Ledger {
    /// Appends events in one transaction and gives the last one's id.
    ///
    /// # Errors
    /// As the file's; nothing was appended then.
    pub fn append(&self, events: &[Event]) -> Result<i64> {
        self.write(|connection| {
            let mut last = 0;
            for event in events {
                last = append(connection, event)?;
            }
            Ok(last)
        })
    }

    /// A page of events. To follow the log, ask with `after_id` set to the last id seen.
    ///
    /// # Errors
    /// As the file's.
    pub fn events(&self, filter: &EventFilter) -> Result<Vec<StoredEvent>> {
        let mut conditions = Conditions::default();
        conditions
            .add("level >= ?", filter.min_level.map(|l| l as i64))
            .any("code", filter.codes.iter().map(|c| c.name().to_owned()))
            .add("adapter = ?", filter.adapter.clone())
            .add("route = ?", filter.route.clone())
            .add("send = ?", filter.send.clone())
            .add("connection = ?", filter.connection.clone())
            .add("at_unix_ms >= ?", filter.since_unix_ms)
            .add("at_unix_ms < ?", filter.until_unix_ms)
            .add("id > ?", filter.after_id)
            .text(&["message", "fields"], filter.text.as_deref());
        let sql = format!(
            "SELECT id, at_unix_ms, level, code, adapter, route, send, connection, message, fields,
                    times, ended_unix_ms
             FROM events{} ORDER BY id {} LIMIT ?",
            conditions.sql(),
            if filter.newest_first { "DESC" } else { "ASC" }
        );
        conditions.params.push(Value::Integer(limit(filter.limit)));
        self.read(|connection| {
            let mut statement = connection.prepare(&sql)?;
            let mut rows = statement.query(params_from_iter(&conditions.params))?;
            let mut page = Vec::new();
            while let Some(row) = rows.next()? {
                page.push(stored(row)?);
            }
            Ok(page)
        })
    }

    /// The id of the newest event, 0 for an empty log: where to follow from.
    ///
    /// # Errors
    /// As the file's.
    pub fn last_event_id(&self) -> Result<i64> {
        self.read(|connection| {
            Ok(
                connection.query_row("SELECT coalesce(max(id), 0) FROM events", [], |row| {
                    row.get(0)
                })?,
            )
        })
    }
}

pub(crate) fn append(connection: &Connection, event: &Event) -> Inside<i64> {
    let fields = serde_json::to_string(&event.fields).map_err(|e| bad("event", &e))?;
    let fields = if fields.len() > FIELDS_MAX_BYTES {
        format!("{{\"omitted\":\"{} bytes of fields\"}}", fields.len())
    } else {
        fields
    };
    Ok(connection
        .prepare_cached(
            "INSERT INTO events (at_unix_ms, level, code, adapter, route, send, connection,
                                 message, fields)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) RETURNING id",
        )?
        .query_row(
            params![
                event.at_unix_ms,
                event.level() as i64,
                event.code.name(),
                event.adapter,
                event.route,
                event.send,
                event.connection,
                cut(&event.message),
                fields,
            ],
            |row| row.get(0),
        )?)
}

/// At most [`MESSAGE_MAX_BYTES`], at a character's boundary, with a mark where something is missing.
fn cut(message: &str) -> Cow<'_, str> {
    if message.len() <= MESSAGE_MAX_BYTES {
        return Cow::Borrowed(message);
    }
    let mut end = MESSAGE_MAX_BYTES;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{} …", message.get(..end).unwrap_or_default()))
}

pub(crate) fn stored(row: &Row<'_>) -> Inside<StoredEvent> {
    let name: String = row.get(3)?;
    let fields: String = row.get(9)?;
    let mut fields: Map<String, serde_json::Value> =
        serde_json::from_str(&fields).map_err(|e| bad("event", &e))?;
    // Another version may know codes that this one does not; its events are still shown.
    let code = name.parse::<Code>().unwrap_or_else(|_| {
        fields.insert("code".to_owned(), name.into());
        Code::Unrecognised
    });
    let level: i64 = row.get(2)?;
    Ok(StoredEvent {
        id: row.get(0)?,
        level: Severity::ALL
            .into_iter()
            .find(|l| *l as i64 == level)
            .unwrap_or(Severity::Error),
        times: row.get::<_, i64>(10)?.unsigned_abs(),
        ended_unix_ms: row.get(11)?,
        event: Event {
            code,
            at_unix_ms: row.get(1)?,
            adapter: row.get(4)?,
            route: row.get(5)?,
            send: row.get(6)?,
            connection: row.get(7)?,
            message: row.get(8)?,
            fields,
        },
    })
}
