//! Building a batch of writes: everything goes into one arena, nothing is allocated per write.

pub use consign_abi::WriteBatch;
use consign_abi::{AttributeRow, HeaderRow, Span, TemplateRow, WriteRow, attributes, flags};
use std::fmt;

/// One write, borrowed.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteParts<'a> {
    /// The write key.
    pub key: [u8; 16],
    /// The message's time, unix milliseconds.
    pub time_unix_ms: i64,
    /// Whether an earlier attempt may have landed.
    pub may_be_repeat: bool,
    /// The rendered body.
    pub body: &'a [u8],
    /// Its content type.
    pub content_type: Option<&'a str>,
    /// The message's routing key.
    pub routing_key: Option<&'a str>,
    /// W3C trace context.
    pub traceparent: Option<&'a str>,
}

/// The batch would pass 4 GiB: send what it holds first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchFull;

impl fmt::Display for BatchFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a batch holds at most 4 GiB")
    }
}

impl std::error::Error for BatchFull {}

/// Largest arena: spans are 32 bits wide.
const ARENA_AT_MOST: usize = u32::MAX as usize - 1;

/// Builds a [`WriteBatch`].
#[derive(Debug, Default)]
pub struct BatchBuilder {
    batch: WriteBatch,
}

impl BatchBuilder {
    /// A builder with room for this many writes and bytes.
    #[must_use]
    pub fn with_capacity(writes: usize, bytes: usize) -> Self {
        let mut batch = WriteBatch::new();
        batch.rows.reserve(writes);
        batch.arena.reserve(bytes.min(ARENA_AT_MOST));
        Self { batch }
    }

    /// How many writes it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.batch.rows.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batch.rows.is_empty()
    }

    /// Adds a write with its headers (in order, names may repeat) and rendered templates by slot.
    ///
    /// # Errors
    /// The batch is full; it is left as it was, but for unused bytes.
    pub fn push<'a>(
        &mut self,
        write: &WriteParts<'_>,
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        templates: impl IntoIterator<Item = (u32, &'a str)>,
    ) -> Result<(), BatchFull> {
        let batch = &mut self.batch;
        let (first_header, first_template, first_attribute) = (
            batch.headers.len(),
            batch.templates.len(),
            batch.attributes.len(),
        );
        let row = Self::row(batch, write, headers, templates);
        match row {
            Some(row) => {
                batch.rows.push(row);
                Ok(())
            }
            None => {
                batch.headers.truncate(first_header);
                batch.templates.truncate(first_template);
                batch.attributes.truncate(first_attribute);
                Err(BatchFull)
            }
        }
    }

    fn row<'a>(
        batch: &mut WriteBatch,
        write: &WriteParts<'_>,
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        templates: impl IntoIterator<Item = (u32, &'a str)>,
    ) -> Option<WriteRow> {
        let first_header = batch.headers.len();
        for (name, value) in headers {
            let name = put(batch, name.as_bytes())?;
            let value = put(batch, value)?;
            batch.headers.push(HeaderRow { name, value });
        }
        let first_template = batch.templates.len();
        for (slot, text) in templates {
            let text = put(batch, text.as_bytes())?;
            batch.templates.push(TemplateRow { slot, text });
        }
        let first_attribute = batch.attributes.len();
        if let Some(traceparent) = write.traceparent {
            let value = put(batch, traceparent.as_bytes())?;
            let id = attributes::TRACEPARENT;
            batch.attributes.push(AttributeRow { id, value });
        }
        let mut optional = |text: Option<&str>| match text {
            Some(text) => put(batch, text.as_bytes()),
            None => Some(Span::ABSENT),
        };
        let content_type = optional(write.content_type)?;
        let routing_key = optional(write.routing_key)?;
        Some(WriteRow {
            key: write.key,
            time_unix_ms: write.time_unix_ms,
            flags: if write.may_be_repeat {
                flags::WRITE_MAY_BE_REPEAT
            } else {
                0
            },
            body: put(batch, write.body)?,
            content_type,
            routing_key,
            headers: Span::since(first_header, batch.headers.len()),
            templates: Span::since(first_template, batch.templates.len()),
            attributes: Span::since(first_attribute, batch.attributes.len()),
        })
    }

    /// The batch.
    #[must_use]
    pub fn finish(self) -> WriteBatch {
        self.batch
    }
}

fn put(batch: &mut WriteBatch, bytes: &[u8]) -> Option<Span> {
    let span = Span::push(&mut batch.arena, bytes);
    span.is_present().then_some(span)
}
