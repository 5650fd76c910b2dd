//! A message on its way to the host, and how it is laid into a batch.

use crate::source::{MessageId, SettleResult};
use crate::source_state::Token;
use consign_abi::{HeaderRow, MessageBatch, MessageRow, Span, flags};
use serde_json::{Map, Value};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A message for the host. Build it up: what names it, where it stands, and what acknowledges it.
///
/// ```
/// use consign_plugin::SourceMessage;
///
/// /// What acknowledges a message of this queue.
/// struct Receipt(String);
///
/// let message = SourceMessage::new("body")
///     // The same each time the message is handed over.
///     .identity(b"orders-3/1042")
///     .content_type("text/plain")
///     .header("tenant", "acme")
///     // A field of `.source`.
///     .attribute("queue", "orders-3")
///     // Comes back with `Control::Settle`.
///     .token(Receipt("r-77".into()));
/// # drop(message);
/// ```
pub struct SourceMessage {
    body: Vec<u8>,
    headers: Vec<(String, Vec<u8>)>,
    content_type: Option<String>,
    routing_key: Option<String>,
    time_unix_ms: Option<i64>,
    identity: Option<Vec<u8>>,
    partition: Option<String>,
    offset: Option<u64>,
    client_key: Option<String>,
    principal: Option<String>,
    position: Option<Vec<u8>>,
    attributes: Map<String, Value>,
    pub(crate) token: Option<Token>,
    pub(crate) waiter: Option<oneshot::Sender<SettleResult>>,
}

impl SourceMessage {
    /// A message with this body and nothing else.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            headers: Vec::new(),
            content_type: None,
            routing_key: None,
            time_unix_ms: None,
            identity: None,
            partition: None,
            offset: None,
            client_key: None,
            principal: None,
            position: None,
            attributes: Map::new(),
            token: None,
            waiter: None,
        }
    }

    /// Adds a header; a name may come twice. Inbound auth headers do not belong here.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The body's content type.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// The subject, topic or path patterns match on.
    #[must_use]
    pub fn routing_key(mut self, key: impl Into<String>) -> Self {
        self.routing_key = Some(key.into());
        self
    }

    /// When the message came into being, unix milliseconds. Default: when the host received it.
    #[must_use]
    pub fn time_unix_ms(mut self, time_unix_ms: i64) -> Self {
        self.time_unix_ms = Some(time_unix_ms);
        self
    }

    /// What names it across redeliveries, when the declaration says `stable`. Never a receipt, a
    /// delivery tag, a receive time or the body alone.
    #[must_use]
    pub fn identity(mut self, identity: impl Into<Vec<u8>>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// The partition of a cumulative position.
    #[must_use]
    pub fn partition(mut self, partition: impl Into<String>) -> Self {
        self.partition = Some(partition.into());
        self
    }

    /// The offset within the partition; rises with delivery.
    #[must_use]
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// The client's idempotency key (session-based sources).
    #[must_use]
    pub fn client_key(mut self, key: impl Into<String>) -> Self {
        self.client_key = Some(key.into());
        self
    }

    /// Who sent it: client keys are kept apart by principal.
    #[must_use]
    pub fn principal(mut self, principal: impl Into<String>) -> Self {
        self.principal = Some(principal.into());
        self
    }

    /// The position to resume from once this message is accepted, for the host to keep; comes
    /// back from [`crate::SourceContext::position`].
    #[must_use]
    pub fn position(mut self, position: impl Into<Vec<u8>>) -> Self {
        self.position = Some(position.into());
        self
    }

    /// A field of `.source` in conditions and templates.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// Adds fields of `.source`.
    #[must_use]
    pub fn attributes(mut self, attributes: Map<String, Value>) -> Self {
        self.attributes.extend(attributes);
        self
    }

    /// Ties something of the source's own to the message (a broker's acknowledgement handle); it
    /// comes back in [`crate::Settled::token`] and from [`crate::Controls::token`]. So no map from ids to
    /// handles is needed, and a settlement can't overtake it.
    #[must_use]
    pub fn token<T: Any + Send + Sync>(mut self, token: T) -> Self {
        self.token = Some(Arc::new(token));
        self
    }

    /// Bytes it takes of the credits.
    pub(crate) fn weight(&self) -> i64 {
        let headers: usize = self.headers.iter().map(|(n, v)| n.len() + v.len()).sum();
        i64::try_from(self.body.len() + headers).unwrap_or(i64::MAX)
    }

    /// Whether it would not fit into an arena together with what may be there already.
    pub(crate) fn is_too_large(&self) -> bool {
        const AT_MOST: i64 = 2 << 30;
        self.weight() > AT_MOST
    }

    pub(crate) fn partition_name(&self) -> Option<String> {
        self.partition.clone()
    }

    pub(crate) fn encode(self, id: MessageId, batch: &mut MessageBatch) {
        let arena = &mut batch.arena;
        let first_header = batch.headers.len();
        for (name, value) in &self.headers {
            batch.headers.push(HeaderRow {
                name: Span::push(arena, name.as_bytes()),
                value: Span::push(arena, value),
            });
        }
        let mut text = |text: &Option<String>| match text {
            Some(text) => Span::push(arena, text.as_bytes()),
            None => Span::ABSENT,
        };
        let content_type = text(&self.content_type);
        let routing_key = text(&self.routing_key);
        let partition = text(&self.partition);
        let client_key = text(&self.client_key);
        let principal = text(&self.principal);
        let mut bytes = |bytes: &Option<Vec<u8>>| match bytes {
            Some(bytes) => Span::push(arena, bytes),
            None => Span::ABSENT,
        };
        let identity = bytes(&self.identity);
        let position = bytes(&self.position);
        let source = if self.attributes.is_empty() {
            Span::ABSENT
        } else {
            Span::push(arena, Value::Object(self.attributes).to_string().as_bytes())
        };
        let mut set = 0;
        if self.offset.is_some() {
            set |= flags::MESSAGE_HAS_OFFSET;
        }
        if self.time_unix_ms.is_some() {
            set |= flags::MESSAGE_HAS_TIME;
        }
        batch.rows.push(MessageRow {
            id: id.get(),
            time_unix_ms: self.time_unix_ms.unwrap_or_default(),
            offset: self.offset.unwrap_or_default(),
            flags: set,
            body: Span::push(arena, &self.body),
            content_type,
            routing_key,
            identity,
            partition,
            client_key,
            principal,
            position,
            source,
            headers: Span::since(first_header, batch.headers.len()),
            attributes: Span::EMPTY,
        });
    }
}

impl fmt::Debug for SourceMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceMessage")
            .field("bytes", &self.body.len())
            .field("routing_key", &self.routing_key)
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}
