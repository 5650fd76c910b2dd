//! Parking a write, and reading failed messages.

use crate::{
    Applied, Dependent, Diagnosis, Error, Event, FailedFilter, FailedMessage, FailedState,
    FailedSummary, Header, History, Ledger, NewFailed, ParkReason, Parked, Result, causes,
    db::{Fault, Inside},
    event_log::append,
    query::{Conditions, integer, limit},
};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter, types::Value};
use serde::{Deserialize, Serialize};

/// The parts of a record that nothing filters by.
#[derive(Serialize, Deserialize)]
struct Rest {
    source: String,
    source_position: Option<String>,
    event_type: Option<String>,
    schema_version: Option<String>,
    tenant: Option<String>,
    routing_key: Option<String>,
    #[serde(with = "order_text")]
    order: u64,
    content_type: Option<String>,
    headers: Vec<Header>,
    history: History,
    class: String,
    provider: String,
    response: Option<String>,
    timed_out: bool,
}

/// An order hash fills 64 bits, which SQLite's JSON cannot hold as a number.
mod order_text {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(order: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(order)
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        match Either::deserialize(from)? {
            // As the first schema wrote it.
            Either::Number(order) => Ok(order),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl Ledger {
    /// Parks a write. Once this has answered, the record is durable and the lane may settle.
    /// Asked again for the same write of the same lane (after a crash in between), nothing changes.
    ///
    /// # Errors
    /// [`Error::Full`]: nothing was parked; keep the write pending and try again.
    pub fn park(&self, record: &NewFailed) -> Result<Parked> {
        self.write(|connection| park(connection, record))
    }

    /// As [`Ledger::park`], with the event that tells of it in the same transaction: whoever finds the
    /// write parked finds the event, a kill between the two or not. `event` makes it of the failed
    /// message's id. Nothing is told of a write that was there already.
    ///
    /// # Errors
    /// As [`Ledger::park`].
    pub fn park_and_tell(
        &self,
        record: &NewFailed,
        event: impl Fn(i64) -> Event,
    ) -> Result<Parked> {
        self.write(|connection| {
            let parked = park(connection, record)?;
            if !matches!(parked, Parked::AlreadyThere(_)) {
                append(connection, &event(parked.id()))?;
            }
            Ok(parked)
        })
    }

    /// Parks several writes in one transaction: all of them or none.
    ///
    /// # Errors
    /// As [`Ledger::park`].
    pub fn park_all(&self, records: &[NewFailed]) -> Result<Vec<Parked>> {
        self.write(|connection| records.iter().map(|r| park(connection, r)).collect())
    }

    /// A page of failed messages, by id.
    ///
    /// # Errors
    /// As the file's.
    pub fn failed(&self, filter: &FailedFilter) -> Result<Vec<FailedSummary>> {
        let mut conditions = conditions(filter);
        conditions.add("id > ?", filter.after_id);
        let sql = format!(
            "SELECT id, write_key, state, adapter, route, send, connection, operation, message_id,
                    reason, code, message, applied, attempts, parked_unix_ms, changed_unix_ms,
                    changed_by, length(body), replayable, dependents
             FROM failed{} ORDER BY id LIMIT ?",
            conditions.sql()
        );
        conditions.params.push(Value::Integer(limit(filter.limit)));
        self.read(|connection| {
            let mut statement = connection.prepare(&sql)?;
            let mut rows = statement.query(params_from_iter(&conditions.params))?;
            let mut page = Vec::new();
            while let Some(row) = rows.next()? {
                page.push(summary(row)?);
            }
            Ok(page)
        })
    }

    /// How many failed messages there are; page and limit are passed over.
    ///
    /// # Errors
    /// As the file's.
    pub fn failed_count(&self, filter: &FailedFilter) -> Result<u64> {
        let conditions = conditions(filter);
        let sql = format!("SELECT count(*) FROM failed{}", conditions.sql());
        self.read(|connection| {
            let count: i64 =
                connection.query_row(&sql, params_from_iter(&conditions.params), |r| r.get(0))?;
            Ok(count.unsigned_abs())
        })
    }

    /// The ids of all failed messages of a filter: a selection for bulk work. The limit counts only
    /// where it is set.
    ///
    /// # Errors
    /// As the file's.
    pub fn failed_ids(&self, filter: &FailedFilter) -> Result<Vec<i64>> {
        let mut conditions = conditions(filter);
        conditions.add("id > ?", filter.after_id);
        let sql = format!(
            "SELECT id FROM failed{} ORDER BY id LIMIT ?",
            conditions.sql()
        );
        let most = if filter.limit == 0 {
            -1
        } else {
            i64::from(filter.limit)
        };
        conditions.params.push(Value::Integer(most));
        self.read(|connection| {
            let mut statement = connection.prepare(&sql)?;
            let rows = statement.query_map(params_from_iter(&conditions.params), |r| r.get(0))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// One failed message, whole.
    ///
    /// # Errors
    /// As the file's, and [`Error::BadRecord`].
    pub fn failed_message(&self, id: i64) -> Result<Option<FailedMessage>> {
        self.read(|connection| load(connection, id))
    }

    /// All failed messages with this write key: one for each lane that parked it.
    ///
    /// # Errors
    /// As the file's, and [`Error::BadRecord`].
    pub fn failed_by_key(&self, write_key: [u8; 16]) -> Result<Vec<FailedMessage>> {
        self.read(|connection| {
            let mut statement = connection
                .prepare_cached("SELECT id FROM failed WHERE write_key = ? ORDER BY id")?;
            let ids: Vec<i64> = statement
                .query_map([write_key.as_slice()], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            let mut messages = Vec::new();
            for id in ids {
                messages.extend(load(connection, id)?);
            }
            Ok(messages)
        })
    }

    /// All failed messages made from this message.
    ///
    /// # Errors
    /// As the file's, and [`Error::BadRecord`].
    pub fn failed_by_message(&self, message_id: &str) -> Result<Vec<FailedMessage>> {
        self.read(|connection| {
            let mut statement = connection
                .prepare_cached("SELECT id FROM failed WHERE message_id = ? ORDER BY id")?;
            let ids: Vec<i64> = statement
                .query_map([message_id], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            let mut messages = Vec::new();
            for id in ids {
                messages.extend(load(connection, id)?);
            }
            Ok(messages)
        })
    }

    /// Numbers above `after_seq` that writes of a lane had when they were parked, whatever became
    /// of them since, at most `most`, in order.
    ///
    /// # Errors
    /// As the file's.
    pub fn parked_seqs(
        &self,
        (adapter, route, send): (&str, &str, &str),
        after_seq: u64,
        most: u32,
    ) -> Result<Vec<u64>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT seq FROM failed
                 WHERE adapter = ?1 AND route = ?2 AND send = ?3 AND seq > ?4 ORDER BY seq LIMIT ?5",
            )?;
            let rows = statement.query_map(
                params![adapter, route, send, integer(after_seq), limit(most)],
                |row| Ok(row.get::<_, i64>(0)?.unsigned_abs()),
            )?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Order keys (hashes) of a lane's writes that wait for a person, at most `most`.
    ///
    /// # Errors
    /// As the file's.
    pub fn held_orders(
        &self,
        (adapter, route, send): (&str, &str, &str),
        most: u32,
    ) -> Result<Vec<u64>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT DISTINCT json_extract(record, '$.order') FROM failed
                 WHERE adapter = ?1 AND route = ?2 AND send = ?3 AND state IN ('parked', 'claimed')
                 LIMIT ?4",
            )?;
            let rows = statement.query_map(params![adapter, route, send, limit(most)], |row| {
                whole_number(row, 0)
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Whether a write with this order key of a lane still waits for a person.
    ///
    /// # Errors
    /// As the file's.
    pub fn order_waits(
        &self,
        (adapter, route, send): (&str, &str, &str),
        order: u64,
    ) -> Result<bool> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT json_extract(record, '$.order') FROM failed
                 WHERE adapter = ?1 AND route = ?2 AND send = ?3 AND state IN ('parked', 'claimed')",
            )?;
            let mut rows = statement.query(params![adapter, route, send])?;
            while let Some(row) = rows.next()? {
                if whole_number(row, 0)? == order {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }
}

/// A u64 out of JSON: SQLite reads one beyond 2^63 as a float, which would be another number, so
/// records keep such orders as text.
fn whole_number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: rusqlite::types::Value = row.get(column)?;
    Ok(match value {
        Value::Integer(number) => number.unsigned_abs(),
        Value::Text(text) => text.parse().unwrap_or(0),
        _ => 0,
    })
}

pub(crate) fn park(connection: &Connection, record: &NewFailed) -> Inside<Parked> {
    let there = connection
        .prepare_cached(
            "SELECT id, seq, state, cause FROM failed
             WHERE write_key = ?1 AND adapter = ?2 AND route = ?3 AND send = ?4",
        )?
        .query_row(
            params![
                record.write_key.as_slice(),
                record.adapter,
                record.route,
                record.send
            ],
            |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, i64>(1)?,
                    row.get::<_, String>(2)?,
                    row.get::<_, i64>(3)?,
                ))
            },
        )
        .optional()?;
    let Some((id, seq, state, cause)) = there else {
        let cause = causes::count_parked(connection, record)?;
        let id = insert(connection, record, cause)?;
        insert_dependents(connection, id, record)?;
        return Ok(Parked::New(id));
    };
    let state = state_of(&state)?;
    let new_seq = integer(record.seq);
    if new_seq <= seq {
        return Ok(Parked::AlreadyThere(id));
    }
    if state == FailedState::Parked {
        // The source handed the same message over once more while its write waits here: still one.
        connection
            .prepare_cached("UPDATE failed SET seq = ?2 WHERE id = ?1")?
            .execute(params![id, new_seq])?;
        return Ok(Parked::AlreadyThere(id));
    }
    // It had been sent again, perhaps by a claim that is still open, and failed again.
    causes::count_moved(connection, cause, state, None)?;
    let cause = causes::count_parked(connection, record)?;
    replace(connection, id, record, cause)?;
    connection
        .prepare_cached("DELETE FROM dependents WHERE failed = ?")?
        .execute([id])?;
    insert_dependents(connection, id, record)?;
    connection
        .prepare_cached(
            "UPDATE claims SET finished_unix_ms = ?2, result = 'sent_again'
             WHERE failed = ?1 AND finished_unix_ms IS NULL",
        )?
        .execute(params![id, record.parked_unix_ms])?;
    Ok(Parked::Again(id))
}

fn insert(connection: &Connection, record: &NewFailed, cause: i64) -> Inside<i64> {
    let rest = rest_json(record)?;
    Ok(connection
        .prepare_cached(
            "INSERT INTO failed (write_key, adapter, route, send, seq, state, cause, connection,
                operation, message_id, reason, code, message, applied, attempts, replayable,
                parked_unix_ms, changed_unix_ms, dependents, record, body, envelope, original)
             VALUES (?1, ?2, ?3, ?4, ?5, 'parked', ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
                     ?16, ?16, ?17, ?18, ?19, ?20, ?21)
             RETURNING id",
        )?
        .query_row(
            params![
                record.write_key.as_slice(),
                record.adapter,
                record.route,
                record.send,
                integer(record.seq),
                cause,
                record.connection,
                record.operation,
                record.message_id,
                record.diagnosis.reason.name(),
                record.diagnosis.code,
                record.diagnosis.message,
                applied_name(record.diagnosis.applied),
                record.history.attempts,
                record.replayable,
                record.parked_unix_ms,
                integer(record.dependents.len() as u64),
                rest,
                record.body,
                record.envelope,
                record.original,
            ],
            |row| row.get(0),
        )?)
}

fn replace(connection: &Connection, id: i64, record: &NewFailed, cause: i64) -> Inside<()> {
    let rest = rest_json(record)?;
    connection
        .prepare_cached(
            "UPDATE failed SET seq = ?2, state = 'parked', cause = ?3, connection = ?4,
                operation = ?5, message_id = ?6, reason = ?7, code = ?8, message = ?9, applied = ?10,
                attempts = ?11, replayable = ?12, parked_unix_ms = ?13, changed_unix_ms = ?13,
                changed_by = NULL, parkings = parkings + 1, dependents = ?14, record = ?15,
                body = ?16, envelope = ?17, original = ?18
             WHERE id = ?1",
        )?
        .execute(params![
            id,
            integer(record.seq),
            cause,
            record.connection,
            record.operation,
            record.message_id,
            record.diagnosis.reason.name(),
            record.diagnosis.code,
            record.diagnosis.message,
            applied_name(record.diagnosis.applied),
            record.history.attempts,
            record.replayable,
            record.parked_unix_ms,
            integer(record.dependents.len() as u64),
            rest,
            record.body,
            record.envelope,
            record.original,
        ])?;
    Ok(())
}

fn insert_dependents(connection: &Connection, id: i64, record: &NewFailed) -> Inside<()> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO dependents (failed, nth, send, write_key, envelope, body, order_hash, parent)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    for (nth, dependent) in (0_i64..).zip(&record.dependents) {
        statement.execute(params![
            id,
            nth,
            dependent.send,
            dependent.write_key.as_slice(),
            dependent.envelope,
            dependent.body,
            // SQLite's integers are signed: the same 64 bits.
            dependent.order.cast_signed(),
            dependent.parent,
        ])?;
    }
    Ok(())
}

fn rest_json(record: &NewFailed) -> Inside<String> {
    let rest = Rest {
        source: record.source.clone(),
        source_position: record.source_position.clone(),
        event_type: record.event_type.clone(),
        schema_version: record.schema_version.clone(),
        tenant: record.tenant.clone(),
        routing_key: record.routing_key.clone(),
        order: record.order,
        content_type: record.content_type.clone(),
        headers: record.headers.clone(),
        history: record.history.clone(),
        class: record.diagnosis.class.clone(),
        provider: record.diagnosis.provider.clone(),
        response: record.diagnosis.response.clone(),
        timed_out: record.diagnosis.timed_out,
    };
    serde_json::to_string(&rest).map_err(|e| bad("failed message", &e))
}

/// One failed message, whole; used by claims inside their own transaction.
pub(crate) fn load(connection: &Connection, id: i64) -> Inside<Option<FailedMessage>> {
    let mut statement = connection.prepare_cached(
        "SELECT write_key, adapter, route, send, seq, state, connection, operation, message_id,
                reason, code, message, applied, replayable, parked_unix_ms, changed_unix_ms,
                changed_by, claims, parkings, record, body, envelope, original
         FROM failed WHERE id = ?",
    )?;
    let mut rows = statement.query([id])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let rest: String = row.get(19)?;
    let rest: Rest =
        serde_json::from_str(&rest).map_err(|e| bad(&format!("failed message {id}"), &e))?;
    let record = NewFailed {
        write_key: row.get(0)?,
        adapter: row.get(1)?,
        route: row.get(2)?,
        send: row.get(3)?,
        seq: row.get::<_, i64>(4)?.unsigned_abs(),
        connection: row.get(6)?,
        operation: row.get(7)?,
        source: rest.source,
        source_position: rest.source_position,
        message_id: row.get(8)?,
        event_type: rest.event_type,
        schema_version: rest.schema_version,
        tenant: rest.tenant,
        routing_key: rest.routing_key,
        order: rest.order,
        content_type: rest.content_type,
        headers: rest.headers,
        body: row.get(20)?,
        envelope: row.get(21)?,
        original: row.get(22)?,
        dependents: load_dependents(connection, id)?,
        history: rest.history,
        diagnosis: Diagnosis {
            reason: reason_of(row, 9)?,
            class: rest.class,
            code: row.get(10)?,
            provider: rest.provider,
            message: row.get(11)?,
            response: rest.response,
            timed_out: rest.timed_out,
            applied: applied_of(row, 12)?,
        },
        replayable: row.get(13)?,
        parked_unix_ms: row.get(14)?,
    };
    Ok(Some(FailedMessage {
        id,
        state: state_of(&row.get::<_, String>(5)?)?,
        claims: row.get(17)?,
        parkings: row.get(18)?,
        changed_unix_ms: row.get(15)?,
        changed_by: row.get(16)?,
        record,
    }))
}

fn load_dependents(connection: &Connection, id: i64) -> Inside<Vec<Dependent>> {
    let mut statement = connection.prepare_cached(
        "SELECT send, write_key, envelope, body, order_hash, parent
         FROM dependents WHERE failed = ? ORDER BY nth",
    )?;
    let rows = statement.query_map([id], |row| {
        Ok(Dependent {
            send: row.get(0)?,
            write_key: row.get(1)?,
            envelope: row.get(2)?,
            body: row.get(3)?,
            order: row.get::<_, i64>(4)?.cast_unsigned(),
            parent: row.get(5)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn conditions(filter: &FailedFilter) -> Conditions {
    let mut conditions = Conditions::default();
    conditions
        .any("state", filter.states.iter().map(|s| s.name().to_owned()))
        .add("adapter = ?", filter.adapter.clone())
        .add("route = ?", filter.route.clone())
        .add("send = ?", filter.send.clone())
        .add("connection = ?", filter.connection.clone())
        .add("code = ?", filter.code.clone())
        .add("cause = ?", filter.cause)
        .add("reason = ?", filter.reason.map(|r| r.name().to_owned()))
        .add(
            "applied = ?",
            filter.applied.map(|a| applied_name(a).to_owned()),
        )
        .add("write_key = ?", filter.write_key.map(|k| k.to_vec()))
        .add("message_id = ?", filter.message_id.clone())
        .add("parked_unix_ms >= ?", filter.since_unix_ms)
        .add("parked_unix_ms < ?", filter.until_unix_ms)
        .text(&["message", "code", "message_id"], filter.text.as_deref());
    conditions
}

fn summary(row: &Row<'_>) -> Inside<FailedSummary> {
    let write_key: [u8; 16] = row.get(1)?;
    Ok(FailedSummary {
        id: row.get(0)?,
        write_key: hex(&write_key),
        state: state_of(&row.get::<_, String>(2)?)?,
        adapter: row.get(3)?,
        route: row.get(4)?,
        send: row.get(5)?,
        connection: row.get(6)?,
        operation: row.get(7)?,
        message_id: row.get(8)?,
        reason: reason_of(row, 9)?,
        code: row.get(10)?,
        message: row.get(11)?,
        applied: applied_of(row, 12)?,
        attempts: row.get(13)?,
        parked_unix_ms: row.get(14)?,
        changed_unix_ms: row.get(15)?,
        changed_by: row.get(16)?,
        body_bytes: row.get::<_, i64>(17)?.unsigned_abs(),
        replayable: row.get(18)?,
        dependents: row.get(19)?,
    })
}

/// Lower-case hex, as write keys are shown.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn state_of(name: &str) -> Inside<FailedState> {
    FailedState::from_name(name).ok_or_else(|| bad("state", &format!("`{name}` is none")))
}

fn reason_of(row: &Row<'_>, column: usize) -> Inside<ParkReason> {
    let name: String = row.get(column)?;
    ParkReason::from_name(&name).ok_or_else(|| bad("park reason", &format!("`{name}` is none")))
}

fn applied_name(applied: Applied) -> &'static str {
    match applied {
        Applied::No => "no",
        Applied::Maybe => "maybe",
    }
}

fn applied_of(row: &Row<'_>, column: usize) -> Inside<Applied> {
    let name: String = row.get(column)?;
    match name.as_str() {
        "no" => Ok(Applied::No),
        "maybe" => Ok(Applied::Maybe),
        _ => Err(bad("applied", &format!("`{name}` is neither no nor maybe"))),
    }
}

pub(crate) fn bad(what: &str, detail: &impl ToString) -> Fault {
    Fault::Own(Error::BadRecord {
        what: what.to_owned(),
        detail: detail.to_string(),
    })
}
