//! The dead-letter record: what was tried, why it failed, and whether it can be sent again without
//! repeating an effect. Its JSON schema is published as docs/dead-letter.schema.json.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use consign_plugin::prelude::*;

/// What `format` says. A reader that knows this one may be given later ones with more fields.
pub const FORMAT: &str = "consign.dead_letter/1";

/// A write, or a message, that failed. Times are Unix milliseconds; 0 stands for never.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// `consign.dead_letter/1`.
    pub format: String,
    /// What names the write at its destination, 32 hex digits: sent again under this key, a repeat is
    /// recognised there.
    pub write_key: String,
    /// What it was trying to do.
    pub routing: Routing,
    /// What was tried.
    pub history: History,
    /// Why it failed.
    pub diagnosis: Diagnosis,
    /// False where something was taken out of body or headers: it can be read, never sent.
    pub replayable: bool,
    /// The headers, in order; absent when the handler leaves them out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderRecord>,
    /// The body; absent when the handler leaves it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Data>,
}

/// What it was trying to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Routing {
    /// The message's id in the host.
    pub message_id: String,
    /// The adapter.
    pub adapter: String,
    /// The route.
    pub route: String,
    /// The send; empty for a message that failed before its writes were made.
    pub send: String,
    /// The connection of the send.
    pub connection: String,
    /// The operation of the send.
    pub operation: String,
    /// The source's operation.
    pub source: String,
    /// Where the source had it, in words.
    pub source_position: String,
    /// The routing key it arrived with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    /// The body's media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The workload class; empty for the default.
    pub workload_class: String,
    /// What the send promises (`effectively_once`).
    pub promise: String,
}

/// What was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// The message's own time.
    pub message_time_unix_ms: i64,
    /// When it was accepted.
    pub accepted_unix_ms: i64,
    /// First attempt.
    pub first_attempt_unix_ms: i64,
    /// Last attempt.
    pub last_attempt_unix_ms: i64,
    /// Attempts that counted.
    pub attempts: u32,
    /// The host's version.
    pub host_version: String,
}

/// Why it failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// What kind of failure (`refused`, `attempts_spent`, `processor_failed`, …).
    pub class: String,
    /// The connector's code.
    pub code: String,
    /// The sentence that came with it, without secrets.
    pub message: String,
    /// Whether the last attempt ended without an answer.
    pub timed_out: bool,
    /// Whether it may have taken effect: `no` or `maybe`.
    pub applied: String,
}

/// One header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeaderRecord {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Data,
}

/// Bytes: as text where they are UTF-8, else in base64, so that nothing is lost either way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// UTF-8 text, byte for byte.
    Text(String),
    /// Anything else, base64 with padding (RFC 4648, section 4).
    Base64(String),
}

impl Data {
    /// From bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Base64(STANDARD.encode(bytes)),
        }
    }

    /// The bytes.
    ///
    /// # Errors
    /// It is not base64.
    pub fn bytes(&self) -> Result<Vec<u8>, base64::DecodeError> {
        match self {
            Self::Text(text) => Ok(text.as_bytes().to_vec()),
            Self::Base64(text) => STANDARD.decode(text),
        }
    }
}

impl Record {
    /// What is known about a failure.
    #[must_use]
    pub fn of(failure: &FailureReport, message: &Message, without_body: bool) -> Self {
        let headers = message.headers.iter().map(|(name, value)| HeaderRecord {
            name: name.clone(),
            value: Data::of(value),
        });
        Self {
            format: FORMAT.to_owned(),
            write_key: failure.write_key.clone(),
            routing: Routing {
                message_id: failure.message_id.clone(),
                adapter: failure.adapter.clone(),
                route: failure.route.clone(),
                send: failure.send.clone(),
                connection: failure.connection.clone(),
                operation: failure.operation.clone(),
                source: failure.source.clone(),
                source_position: failure.position.clone(),
                routing_key: message.routing_key.clone(),
                content_type: message.content_type.clone(),
                workload_class: failure.workload_class.clone(),
                promise: failure.promise.clone(),
            },
            history: History {
                message_time_unix_ms: message.time_unix_ms,
                accepted_unix_ms: failure.accepted_unix_ms,
                first_attempt_unix_ms: failure.first_attempt_unix_ms,
                last_attempt_unix_ms: failure.last_attempt_unix_ms,
                attempts: failure.attempts,
                host_version: failure.host_version.clone(),
            },
            diagnosis: Diagnosis {
                class: failure.class.clone(),
                code: failure.code.clone(),
                message: failure.message.clone(),
                timed_out: failure.timed_out,
                applied: if failure.may_have_landed {
                    "maybe"
                } else {
                    "no"
                }
                .to_owned(),
            },
            replayable: !failure.redacted && !without_body,
            headers: if without_body {
                Vec::new()
            } else {
                headers.collect()
            },
            body: (!without_body).then(|| Data::of(&message.body)),
        }
    }
}

/// The published schema.
#[must_use]
pub fn schema() -> schemars::Schema {
    let mut schema = schemars::schema_for!(Record);
    schema.insert("title".to_owned(), "Consign dead-letter record".into());
    schema
}
