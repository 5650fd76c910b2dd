//! A message as the pipeline sees it.

use bytes::Bytes;
use serde_json::{Map, Value};
use std::fmt;

/// Names a message: the same each time it is handed over where the source names it, else given at
/// receipt. Shown as 32 lower-case hex digits; `.id` in VRL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MessageId(pub [u8; 16]);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::key::hex(&self.0, f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a source hands over. Cloning shares the body and the header values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// Its name.
    pub id: MessageId,
    /// The body, byte for byte.
    pub body: Bytes,
    /// The body's media type, where the source knows it.
    pub content_type: Option<String>,
    /// In the order they came; a name may stand several times.
    pub headers: Vec<(String, Bytes)>,
    /// What topic patterns are matched against.
    pub routing_key: Option<String>,
    /// When it was made, or received where the source has no such time. Unix milliseconds.
    pub time_unix_ms: i64,
    /// What names it across redeliveries, where the source itself can tell.
    pub identity: Option<Bytes>,
    /// What else the source says about it (partition, offset, principal): `.source` in VRL.
    pub source: Map<String, Value>,
}
