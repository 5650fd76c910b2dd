//! Messages as they came: slices of the batch the plugin handed over.

use bytes::Bytes;
use consign_abi::{AttributeRow, HeaderRow, MessageBatch, MessageRow, Span, attributes, flags};
use std::fmt;
use std::sync::Arc;

/// One message from a source. Cheap to clone; bytes are shared with its batch, never copied.
#[derive(Clone)]
pub struct Incoming {
    batch: Arc<Shared>,
    row: MessageRow,
}

struct Shared {
    arena: Bytes,
    headers: Vec<HeaderRow>,
    attributes: Vec<AttributeRow>,
}

impl Incoming {
    pub(crate) fn all(batch: MessageBatch) -> Vec<Self> {
        let shared = Arc::new(Shared {
            arena: Bytes::from_owner(batch.arena),
            headers: batch.headers.into_vec(),
            attributes: batch.attributes.into_vec(),
        });
        batch
            .rows
            .into_iter()
            .map(|row| Self {
                batch: Arc::clone(&shared),
                row,
            })
            .collect()
    }

    fn bytes(&self, span: Span) -> Option<Bytes> {
        Some(self.batch.arena.slice_ref(span.of(&self.batch.arena)?))
    }

    fn text(&self, span: Span) -> Option<&str> {
        span.text(&self.batch.arena)
    }

    /// The plugin's number for it, for settling.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.row.id
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.bytes(self.row.body).unwrap_or_default()
    }

    /// Headers in order; a name may come twice. A header whose name is not UTF-8 is left out.
    pub fn headers(&self) -> impl Iterator<Item = (&str, Bytes)> {
        self.row
            .headers
            .of(&self.batch.headers)
            .unwrap_or_default()
            .iter()
            .filter_map(|row| Some((self.text(row.name)?, self.bytes(row.value)?)))
    }

    /// The body's content type.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.text(self.row.content_type)
    }

    /// The routing key.
    #[must_use]
    pub fn routing_key(&self) -> Option<&str> {
        self.text(self.row.routing_key)
    }

    /// What names it across redeliveries.
    #[must_use]
    pub fn identity(&self) -> Option<Bytes> {
        self.bytes(self.row.identity)
    }

    /// Partition of a cumulative position.
    #[must_use]
    pub fn partition(&self) -> Option<&str> {
        self.text(self.row.partition)
    }

    /// Offset within the partition.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        (self.row.flags & flags::MESSAGE_HAS_OFFSET != 0).then_some(self.row.offset)
    }

    /// The client's idempotency key.
    #[must_use]
    pub fn client_key(&self) -> Option<&str> {
        self.text(self.row.client_key)
    }

    /// Who sent it.
    #[must_use]
    pub fn principal(&self) -> Option<&str> {
        self.text(self.row.principal)
    }

    /// Position for the host to keep.
    #[must_use]
    pub fn position(&self) -> Option<Bytes> {
        self.bytes(self.row.position)
    }

    /// When it came into being, unix milliseconds.
    #[must_use]
    pub fn time_unix_ms(&self) -> Option<i64> {
        (self.row.flags & flags::MESSAGE_HAS_TIME != 0).then_some(self.row.time_unix_ms)
    }

    /// A JSON object for `.source`.
    #[must_use]
    pub fn source_json(&self) -> Option<&[u8]> {
        self.row.source.of(&self.batch.arena)
    }

    /// W3C trace context.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        let rows = self.row.attributes.of(&self.batch.attributes)?;
        let row = rows.iter().find(|row| row.id == attributes::TRACEPARENT)?;
        self.text(row.value)
    }

    /// Bytes it took of the credits: body and headers.
    #[must_use]
    pub fn weight(&self) -> u64 {
        let headers = self.row.headers.of(&self.batch.headers).unwrap_or_default();
        let headers: u64 = headers
            .iter()
            .map(|h| u64::from(h.name.len) + u64::from(h.value.len))
            .sum();
        headers + u64::from(self.row.body.len)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("id", &self.row.id)
            .field("routing_key", &self.routing_key())
            .field("partition", &self.partition())
            .field("offset", &self.offset())
            .field("bytes", &self.row.body.len)
            .finish_non_exhaustive()
    }
}
