//! Failed messages as people and files see them, and what needs no running host: lists, edits,
//! export and import.

use super::dead_letter::{self, DeadLetter};
use super::request::{Fault, KeyChoice};
use crate::clock::wall_unix_ms_i64;
use crate::host::Host;
use crate::lanes::Lanes;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use consign_ledger::{
    Act, Applied, Claim, Dependent, Diagnosis, Done, FailedFilter, FailedMessage, Header, History,
    Ledger, NewFailed, ParkReason, Parked, Redactor,
};
use consign_pipeline::{Original, StoredWrite, WriteKey};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Says which format an exported record has.
const EXPORT_FORMAT: &str = "consign.failed/1";
/// Records in one page of an export: bodies may be large.
const EXPORT_PAGE: u32 = 100;
/// The attribute of a stored write that was edited and kept its key: the failed message's id.
pub const EDITED: u32 = 1;

/// Failed messages of one ledger. Blocking calls.
#[derive(Clone)]
pub struct Records {
    /// The ledger.
    pub ledger: Ledger,
    /// What takes secrets out of what is shown.
    pub redactor: Arc<Redactor>,
}

impl Records {
    /// A page of failed messages, redacted.
    pub fn list(&self, filter: &FailedFilter) -> Result<Value, Fault> {
        let mut page = self.ledger.failed(filter)?;
        for line in &mut page {
            line.message = self.redactor.text(&line.message).into_owned();
        }
        Ok(json!(page))
    }

    /// Failed messages by cause.
    pub fn causes(&self, all: bool) -> Result<Value, Fault> {
        Ok(json!(self.ledger.causes(!all)?))
    }

    fn message(&self, id: i64) -> Result<FailedMessage, Fault> {
        self.ledger
            .failed_message(id)?
            .ok_or_else(|| Fault::input(format!("no failed message {id}")))
    }

    /// One failed message with its history, redacted.
    pub fn show(&self, id: i64) -> Result<Value, Fault> {
        let message = self.message(id)?;
        let claims = self.ledger.claim_history(id)?;
        let mut record = message.record;
        let replayable = record.replayable;
        let redacted = self.redactor.copy(&mut record);
        let content_type = record.content_type.clone();
        let diagnosis = &record.diagnosis;
        let dependents: Vec<Value> = record
            .dependents
            .iter()
            .map(|dependent| {
                json!({
                    "send": dependent.send,
                    "write_key": WriteKey(dependent.write_key).to_string(),
                    "body": shown(&dependent.body),
                })
            })
            .collect();
        let headers: Vec<Value> = record
            .headers
            .iter()
            .map(|header| json!({ "name": header.name, "value": shown(&header.value) }))
            .collect();
        Ok(json!({
            "id": message.id,
            "state": message.state,
            "write_key": WriteKey(record.write_key).to_string(),
            "message_id": record.message_id,
            "adapter": record.adapter,
            "route": record.route,
            "send": record.send,
            "seq": record.seq,
            "connection": record.connection,
            "operation": record.operation,
            "source": record.source,
            "source_position": record.source_position,
            "event_type": record.event_type,
            "schema_version": record.schema_version,
            "tenant": record.tenant,
            "routing_key": record.routing_key,
            "content_type": content_type,
            "headers": headers,
            "body": shown(&record.body),
            "original": record.original.as_deref().map(shown),
            "dependents": dependents,
            "history": record.history,
            "diagnosis": diagnosis,
            "replayable": replayable,
            "redacted": redacted,
            "parkings": message.parkings,
            "parked_unix_ms": record.parked_unix_ms,
            "changed_unix_ms": message.changed_unix_ms,
            "changed_by": message.changed_by,
            "claims": claims,
        }))
    }

    /// A body, whole.
    pub fn body(&self, id: i64, original: bool) -> Result<Value, Fault> {
        let record = self.message(id)?.record;
        let body = if original {
            record.original.unwrap_or(record.body)
        } else {
            record.body
        };
        Ok(json!({ "content_type": record.content_type, "base64": BASE64.encode(body) }))
    }

    /// Whole records, a page of them; the last id is where the next page begins.
    pub fn export(&self, filter: &FailedFilter, redacted: bool) -> Result<Value, Fault> {
        let mut filter = filter.clone();
        if filter.limit == 0 || filter.limit > EXPORT_PAGE {
            filter.limit = EXPORT_PAGE;
        }
        let mut records = Vec::new();
        for id in self.ledger.failed_ids(&filter)? {
            // One that was purged meanwhile is not part of the export.
            let Some(message) = self.ledger.failed_message(id)? else {
                continue;
            };
            let mut record = message.record;
            if redacted {
                self.redactor.copy(&mut record);
            }
            records.push(json!(Exported::of(id, message.state.name(), record)));
        }
        Ok(Value::Array(records))
    }

    /// Adds exported records and dead letters; those that are there already stay as they are.
    pub fn import(&self, records: &[Value], host: Option<&Host>) -> Result<Value, Fault> {
        let mut new = Vec::with_capacity(records.len());
        for (number, value) in (1_usize..).zip(records) {
            let record = if value.get("format").and_then(Value::as_str) == Some(dead_letter::FORMAT)
            {
                DeadLetter::deserialize(value)
                    .map_err(|error| error.to_string())
                    .and_then(|letter| letter.into_record(host))
            } else {
                Exported::deserialize(value)
                    .map_err(|error| error.to_string())
                    .and_then(Exported::into_record)
            };
            new.push(record.map_err(|why| Fault::input(format!("record {number}: {why}")))?);
        }
        let parked = self.ledger.park_all(&new)?;
        let added: Vec<i64> = parked
            .iter()
            .filter(|parked| matches!(parked, Parked::New(_)))
            .map(|parked| parked.id())
            .collect();
        Ok(json!({ "added": added, "already_there": parked.len() - added.len() }))
    }

    /// Edits a parked message. Its dependents become failed messages of their own.
    pub fn edit(
        &self,
        id: i64,
        body: Option<&str>,
        headers: &BTreeMap<String, Option<String>>,
        key: Option<KeyChoice>,
        who: &str,
        host: Option<&Host>,
    ) -> Result<Value, Fault> {
        if body.is_none() && headers.is_empty() && key != Some(KeyChoice::New) {
            return Err(Fault::input(
                "nothing to edit: give a body (--body-file FILE) or headers (--header NAME=VALUE)",
            ));
        }
        if let Some(name) = headers
            .keys()
            .find(|name| name.trim() != name.as_str() || name.is_empty())
        {
            return Err(Fault::input(format!(
                "`{name}` is no header's name: it is empty, or begins or ends with a space"
            )));
        }
        let body = body
            .map(|text| BASE64.decode(text))
            .transpose()
            .map_err(|error| Fault::input(format!("the body is not base64: {error}")))?;
        let message = self.message(id)?;
        let key = key_for(&message, key)?;
        let now = wall_unix_ms_i64();
        let claim = self.ledger.claim(id, Act::Edit, who, now)?;
        match edited(&claim, body, headers, key, host) {
            Ok((done, split)) => {
                let dependents = split.as_ref().map_or(0, Vec::len);
                let nth = claim.nth;
                self.ledger.finish_all(&[(claim, done, split)], now)?;
                Ok(json!({ "id": id, "nth": nth, "split_dependents": dependents }))
            }
            Err(why) => {
                self.ledger.release(&claim, &why, now)?;
                Err(Fault::failed(why))
            }
        }
    }
}

/// How many records an import added.
pub fn added(imported: &Value) -> usize {
    let list = imported.get("added").and_then(Value::as_array);
    list.map_or(0, Vec::len)
}

/// Which key an edited write gets; for one that may have landed a person has to say.
fn key_for(message: &FailedMessage, key: Option<KeyChoice>) -> Result<KeyChoice, Fault> {
    match (message.record.diagnosis.applied, key) {
        (_, Some(key)) => Ok(key),
        (Applied::No, None) => Ok(KeyChoice::Same),
        (Applied::Maybe, None) => Err(Fault::input(format!(
            "failed message {} may have landed as it was. With --same-key, a destination that drops repeats keeps the old body if it landed, and your edit is not applied; with --new-key the edited body is a further write, beside the old one if that landed. Say which",
            message.id
        ))),
    }
}

type Edited = (Done, Option<Vec<NewFailed>>);

fn edited(
    claim: &Claim,
    body: Option<Vec<u8>>,
    headers: &BTreeMap<String, Option<String>>,
    key: KeyChoice,
    host: Option<&Host>,
) -> Result<Edited, String> {
    let record = &claim.message.record;
    if !record.replayable {
        return Err(format!(
            "failed message {} is a redacted copy (replayable: false): it can be read, not edited",
            claim.failed_id
        ));
    }
    let mut stored = StoredWrite::decode(Bytes::from(record.envelope.clone()))
        .map_err(|error| error.to_string())?;
    if stored.original.is_none() {
        // Route again starts from what the source handed over, not from the edit.
        stored.original = Some(Original {
            content_type: stored.content_type.clone(),
            routing_key: stored.routing_key.clone(),
            headers: stored.headers.clone(),
            body: stored.body.clone(),
        });
    }
    if let Some(body) = body {
        stored.body = Bytes::from(body);
    }
    for (name, value) in headers {
        stored
            .headers
            .retain(|(there, _)| !there.eq_ignore_ascii_case(name));
        if let Some(value) = value {
            stored
                .headers
                .push((name.clone(), Bytes::from(value.clone())));
        }
    }
    if !stored.slots.is_empty() {
        // A column or a subject that is made from the body follows the body.
        let host = host.ok_or(
            "its send has templates, which the running host renders: edit it there, without --data-dir",
        )?;
        let id = format!("{}/{}/{}", record.adapter, record.route, record.send);
        let rendered = super::acts::rendered(host, &id, &stored)?;
        stored.set_slots(&rendered);
    }
    stored.attributes.retain(|(id, _)| *id != EDITED);
    let write_key = match key {
        KeyChoice::Same => {
            let id = Bytes::copy_from_slice(&claim.failed_id.to_le_bytes());
            stored.attributes.push((EDITED, id));
            None
        }
        KeyChoice::New => {
            let mut fresh = [0; 16];
            rand::fill(&mut fresh);
            Some(fresh)
        }
    };
    let split = (!record.dependents.is_empty())
        .then(|| split(record, host.map(|host| host.plugs.lanes()), "edited"));
    let done = Done::Edited {
        body: stored.body.to_vec(),
        headers: stored
            .headers
            .iter()
            .map(|(name, value)| Header {
                name: name.clone(),
                value: value.to_vec(),
            })
            .collect(),
        envelope: stored.encode().to_vec(),
        write_key,
    };
    Ok((done, split))
}

/// A record's dependents as failed messages of their own, which a person decides about: their parent
/// was `what` and is no longer what they waited for.
pub fn split(record: &NewFailed, lanes: Option<&Lanes>, what: &str) -> Vec<NewFailed> {
    let tops = (0_u32..)
        .zip(&record.dependents)
        .filter(|(_, d)| d.parent.is_none());
    tops.map(|(place, dependent)| {
        let id = format!("{}/{}/{}", record.adapter, record.route, dependent.send);
        let info = lanes
            .and_then(|lanes| lanes.by_id(&id))
            .map(|(_, info)| info);
        NewFailed {
            write_key: dependent.write_key,
            adapter: record.adapter.clone(),
            route: record.route.clone(),
            send: dependent.send.clone(),
            seq: 0,
            // On a stopped host nobody knows what the send was configured to.
            connection: info
                .as_ref()
                .map_or_else(String::new, |info| info.connection.clone()),
            operation: info.map_or_else(String::new, |info| info.operation.clone()),
            source: record.source.clone(),
            source_position: record.source_position.clone(),
            message_id: record.message_id.clone(),
            event_type: record.event_type.clone(),
            schema_version: record.schema_version.clone(),
            tenant: record.tenant.clone(),
            routing_key: record.routing_key.clone(),
            order: dependent.order,
            content_type: record.content_type.clone(),
            headers: record.headers.clone(),
            body: dependent.body.clone(),
            envelope: dependent.envelope.clone(),
            original: record.original.clone(),
            dependents: below(&record.dependents, place),
            history: History {
                accepted_unix_ms: record.history.accepted_unix_ms,
                host_version: record.history.host_version.clone(),
                ..History::default()
            },
            diagnosis: Diagnosis {
                reason: ParkReason::Parent,
                class: "parent".to_owned(),
                code: "parent".to_owned(),
                provider: "consign".to_owned(),
                message: format!(
                    "the write it waited for ({} of send {}) was {what}",
                    WriteKey(record.write_key),
                    record.send
                ),
                applied: Applied::No,
                ..Diagnosis::default()
            },
            replayable: true,
            parked_unix_ms: wall_unix_ms_i64(),
        }
    })
    .collect()
}

/// The dependents of the dependent at `root`, with their places counted anew.
fn below(all: &[Dependent], root: u32) -> Vec<Dependent> {
    let mut places: BTreeMap<u32, Option<u32>> = BTreeMap::from([(root, None)]);
    let mut found = Vec::new();
    // A parent always stands before its dependents.
    for (place, dependent) in (0_u32..).zip(all) {
        let Some(parent) = dependent.parent.and_then(|parent| places.get(&parent)) else {
            continue;
        };
        let mut dependent = dependent.clone();
        dependent.parent = *parent;
        places.insert(place, u32::try_from(found.len()).ok());
        found.push(dependent);
    }
    found
}

/// Bytes as people see them: text where they are text.
fn shown(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": BASE64.encode(bytes) }),
    }
}

/// A record in a file. Bytes are base64, so that bodies come back bit for bit.
#[derive(Debug, Serialize, Deserialize)]
struct Exported {
    format: String,
    id: i64,
    state: String,
    write_key: String,
    adapter: String,
    route: String,
    send: String,
    connection: String,
    operation: String,
    source: String,
    source_position: Option<String>,
    message_id: Option<String>,
    event_type: Option<String>,
    schema_version: Option<String>,
    tenant: Option<String>,
    routing_key: Option<String>,
    /// 64 bits, as text: most readers of JSON would round the number.
    order: String,
    content_type: Option<String>,
    headers: Vec<ExportedHeader>,
    body: String,
    envelope: String,
    original: Option<String>,
    dependents: Vec<ExportedDependent>,
    history: History,
    diagnosis: Diagnosis,
    replayable: bool,
    parked_unix_ms: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct ExportedHeader {
    name: String,
    value: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct ExportedDependent {
    send: String,
    write_key: String,
    envelope: String,
    body: String,
    order: String,
    parent: Option<u32>,
}

impl Exported {
    fn of(id: i64, state: &str, record: NewFailed) -> Self {
        Self {
            format: EXPORT_FORMAT.to_owned(),
            id,
            state: state.to_owned(),
            write_key: WriteKey(record.write_key).to_string(),
            adapter: record.adapter,
            route: record.route,
            send: record.send,
            connection: record.connection,
            operation: record.operation,
            source: record.source,
            source_position: record.source_position,
            message_id: record.message_id,
            event_type: record.event_type,
            schema_version: record.schema_version,
            tenant: record.tenant,
            routing_key: record.routing_key,
            order: record.order.to_string(),
            content_type: record.content_type,
            headers: record
                .headers
                .into_iter()
                .map(|header| ExportedHeader {
                    name: header.name,
                    value: BASE64.encode(header.value),
                })
                .collect(),
            body: BASE64.encode(record.body),
            envelope: BASE64.encode(record.envelope),
            original: record.original.map(|original| BASE64.encode(original)),
            dependents: record
                .dependents
                .into_iter()
                .map(|dependent| ExportedDependent {
                    send: dependent.send,
                    write_key: WriteKey(dependent.write_key).to_string(),
                    envelope: BASE64.encode(dependent.envelope),
                    body: BASE64.encode(dependent.body),
                    order: dependent.order.to_string(),
                    parent: dependent.parent,
                })
                .collect(),
            history: record.history,
            diagnosis: record.diagnosis,
            replayable: record.replayable,
            parked_unix_ms: record.parked_unix_ms,
        }
    }

    fn into_record(self) -> Result<NewFailed, String> {
        if self.format != EXPORT_FORMAT {
            return Err(format!(
                "its format is `{}`, this version reads `{EXPORT_FORMAT}` and `{}`",
                self.format,
                dead_letter::FORMAT
            ));
        }
        let bytes = |what: &str, text: &str| {
            BASE64
                .decode(text)
                .map_err(|error| format!("{what} is not base64: {error}"))
        };
        let key = |text: &str| text.parse::<WriteKey>().map(|key| key.0);
        let number = |text: &str| {
            text.parse::<u64>()
                .map_err(|_| format!("`{text}` is no order key"))
        };
        let envelope = bytes("envelope", &self.envelope)?;
        if self.replayable {
            StoredWrite::decode(Bytes::from(envelope.clone()))
                .map_err(|error| error.to_string())?;
        }
        let mut headers = Vec::with_capacity(self.headers.len());
        for header in self.headers {
            headers.push(Header {
                value: bytes("a header", &header.value)?,
                name: header.name,
            });
        }
        let mut dependents = Vec::with_capacity(self.dependents.len());
        for (place, dependent) in (0_u32..).zip(self.dependents) {
            if dependent.parent.is_some_and(|parent| parent >= place) {
                return Err("a dependent stands before what it waits for".to_owned());
            }
            dependents.push(Dependent {
                write_key: key(&dependent.write_key)?,
                envelope: bytes("a dependent's envelope", &dependent.envelope)?,
                body: bytes("a dependent's body", &dependent.body)?,
                order: number(&dependent.order)?,
                parent: dependent.parent,
                send: dependent.send,
            });
        }
        Ok(NewFailed {
            write_key: key(&self.write_key)?,
            // The number of another host's lane means nothing here; 0 is below every number, so
            // that a parking of this write by this host is never taken for this record.
            seq: 0,
            order: number(&self.order)?,
            body: bytes("body", &self.body)?,
            envelope,
            original: self
                .original
                .as_deref()
                .map(|original| bytes("original", original))
                .transpose()?,
            headers,
            dependents,
            adapter: self.adapter,
            route: self.route,
            send: self.send,
            connection: self.connection,
            operation: self.operation,
            source: self.source,
            source_position: self.source_position,
            message_id: self.message_id,
            event_type: self.event_type,
            schema_version: self.schema_version,
            tenant: self.tenant,
            routing_key: self.routing_key,
            content_type: self.content_type,
            history: self.history,
            diagnosis: self.diagnosis,
            replayable: self.replayable,
            parked_unix_ms: self.parked_unix_ms,
        })
    }
}
