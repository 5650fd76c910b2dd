//! One event, and how events are asked for.

use crate::{Code, Severity};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Something that happened, to be appended to the event log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// What kind of thing.
    pub code: Code,
    /// When, wall clock.
    pub at_unix_ms: i64,
    /// The adapter it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// The route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// The send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<String>,
    /// The connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// One sentence: what happened, here and now. Redacted before it comes here.
    pub message: String,
    /// Everything else worth filtering or computing with.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
}

impl Event {
    /// An event with its code's title as message.
    #[must_use]
    pub fn new(code: Code, at_unix_ms: i64) -> Self {
        Self {
            code,
            at_unix_ms,
            adapter: None,
            route: None,
            send: None,
            connection: None,
            message: code.entry().title.to_owned(),
            fields: Map::new(),
        }
    }

    /// Sets the adapter.
    #[must_use]
    pub fn adapter(mut self, name: impl Into<String>) -> Self {
        self.adapter = Some(name.into());
        self
    }

    /// Sets the route.
    #[must_use]
    pub fn route(mut self, name: impl Into<String>) -> Self {
        self.route = Some(name.into());
        self
    }

    /// Sets the send.
    #[must_use]
    pub fn send(mut self, name: impl Into<String>) -> Self {
        self.send = Some(name.into());
        self
    }

    /// Sets the connection.
    #[must_use]
    pub fn connection(mut self, name: impl Into<String>) -> Self {
        self.connection = Some(name.into());
        self
    }

    /// Says what happened in one sentence.
    #[must_use]
    pub fn message(mut self, sentence: impl Into<String>) -> Self {
        self.message = sentence.into();
        self
    }

    /// Adds a field.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.fields.insert(name.into(), value.into());
        self
    }

    /// The code's level.
    #[must_use]
    pub fn level(&self) -> Severity {
        self.code.entry().level
    }
}

/// An event as it stands in the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredEvent {
    /// Its number in the log; grows, never reused.
    pub id: i64,
    /// How bad it is.
    pub level: Severity,
    /// How often it happened; more than one where one event stands for an episode.
    pub times: u64,
    /// When the episode that it opened ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<i64>,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

/// Which events: all conditions hold. The default is every event, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventFilter {
    /// At least this bad.
    pub min_level: Option<Severity>,
    /// One of these codes; empty for any.
    pub codes: Vec<Code>,
    /// Of this adapter.
    pub adapter: Option<String>,
    /// Of this route.
    pub route: Option<String>,
    /// Of this send.
    pub send: Option<String>,
    /// Of this connection.
    pub connection: Option<String>,
    /// At or after this time.
    pub since_unix_ms: Option<i64>,
    /// Before this time.
    pub until_unix_ms: Option<i64>,
    /// With this text in its sentence or fields.
    pub text: Option<String>,
    /// With a greater id than this: what is new since.
    pub after_id: Option<i64>,
    /// The newest first; the limit then keeps the newest.
    pub newest_first: bool,
    /// At most so many; 0 for the default of 1,000.
    pub limit: u32,
}
