//! Dead-letter records, as the official handler `dead_letter` writes them (docs/dead-letter.schema.json),
//! read back as failed messages.
//!
//! Such a record has the message as it was to be written, and not what its send made of it: the running
//! host renders the send's templates and order key anew, as it does for an edit.

use super::acts;
use crate::clock::wall_unix_ms_i64;
use crate::host::Host;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use consign_ledger::{Applied, Diagnosis, Header, History, NewFailed, ParkReason};
use consign_pipeline::{MessageId, StoredWrite, WriteKey};
use serde::Deserialize;

/// Says which format a record has.
pub const FORMAT: &str = "consign.dead_letter/1";

/// One record. Fields that a later version adds are passed over.
#[derive(Debug, Deserialize)]
pub struct DeadLetter {
    write_key: String,
    routing: Routing,
    history: Attempts,
    diagnosis: Cause,
    replayable: bool,
    #[serde(default)]
    headers: Vec<Named>,
    body: Option<Data>,
}

#[derive(Debug, Deserialize)]
struct Routing {
    message_id: String,
    adapter: String,
    route: String,
    send: String,
    connection: String,
    operation: String,
    source: String,
    source_position: String,
    routing_key: Option<String>,
    content_type: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Attempts {
    message_time_unix_ms: i64,
    accepted_unix_ms: i64,
    first_attempt_unix_ms: i64,
    last_attempt_unix_ms: i64,
    attempts: u32,
    host_version: String,
}

#[derive(Debug, Deserialize)]
struct Cause {
    class: String,
    code: String,
    message: String,
    timed_out: bool,
    applied: String,
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
    value: Data,
}

/// Bytes: text where they are UTF-8, else base64.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Data {
    Text(String),
    Base64(String),
}

impl Data {
    fn bytes(self) -> Result<Vec<u8>, String> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Base64(text) => BASE64
                .decode(text)
                .map_err(|error| format!("a value is not base64: {error}")),
        }
    }
}

impl DeadLetter {
    /// As a failed message of this host.
    ///
    /// # Errors
    /// A value that cannot be read, or a send that this host does not have, in one sentence.
    pub fn into_record(self, host: Option<&Host>) -> Result<NewFailed, String> {
        let message_id = message_id(&self.routing.message_id)?;
        let write_key = if self.write_key.is_empty() {
            // It failed before it had writes: named by its message, so that it is added once.
            message_id.0
        } else {
            self.write_key.parse::<WriteKey>()?.0
        };
        let mut headers = Vec::with_capacity(self.headers.len());
        for header in self.headers {
            headers.push(Header {
                value: header.value.bytes()?,
                name: header.name,
            });
        }
        let body = self.body.map_or_else(|| Ok(Vec::new()), Data::bytes)?;
        let mut stored = StoredWrite {
            message_id,
            time_unix_ms: self.history.message_time_unix_ms,
            content_type: self.routing.content_type.clone(),
            routing_key: self.routing.routing_key.clone(),
            source: serde_json::Map::new(),
            headers: headers
                .iter()
                .map(|header| (header.name.clone(), Bytes::from(header.value.clone())))
                .collect(),
            slots: Vec::new(),
            attributes: Vec::new(),
            original: None,
            body: Bytes::from(body.clone()),
        };
        let mut order = 0;
        let routing = self.routing;
        // What cannot be sent again is only read; a message without a send is routed again.
        if self.replayable && !routing.send.is_empty() {
            let host = host.ok_or(
                "a dead letter is made a write by its send, which the running host has: import it there, without --data-dir",
            )?;
            let id = format!("{}/{}/{}", routing.adapter, routing.route, routing.send);
            let rendered = acts::rendered(host, &id, &stored)?;
            order = rendered.order.stored_hash();
            stored.set_slots(&rendered);
        }
        let time = |unix_ms: i64| (unix_ms > 0).then_some(unix_ms);
        Ok(NewFailed {
            write_key,
            adapter: routing.adapter,
            route: routing.route,
            send: routing.send,
            connection: routing.connection,
            operation: routing.operation,
            source: routing.source,
            source_position: Some(routing.source_position).filter(|place| !place.is_empty()),
            message_id: Some(routing.message_id),
            routing_key: routing.routing_key,
            content_type: routing.content_type,
            order,
            headers,
            body,
            envelope: stored.encode().to_vec(),
            history: History {
                accepted_unix_ms: self.history.accepted_unix_ms,
                first_attempt_unix_ms: time(self.history.first_attempt_unix_ms),
                last_attempt_unix_ms: time(self.history.last_attempt_unix_ms),
                attempts: self.history.attempts,
                host_version: self.history.host_version,
                ..History::default()
            },
            diagnosis: Diagnosis {
                reason: match self.diagnosis.class.as_str() {
                    "refused" => ParkReason::Refused,
                    "processor_failed" | "template_failed" => ParkReason::ProcessorFailed,
                    _ => ParkReason::Exhausted,
                },
                class: self.diagnosis.class,
                code: self.diagnosis.code,
                message: self.diagnosis.message,
                timed_out: self.diagnosis.timed_out,
                applied: match self.diagnosis.applied.as_str() {
                    "no" => Applied::No,
                    _ => Applied::Maybe,
                },
                ..Diagnosis::default()
            },
            replayable: self.replayable,
            parked_unix_ms: wall_unix_ms_i64(),
            ..NewFailed::default()
        })
    }
}

fn message_id(text: &str) -> Result<MessageId, String> {
    // The same form as a write key's: 32 hex digits.
    text.parse::<WriteKey>()
        .map(|id| MessageId(id.0))
        .map_err(|_| format!("`{text}` is no message id (32 lower-case hex digits)"))
}
