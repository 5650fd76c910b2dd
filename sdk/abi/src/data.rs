//! Data that crosses: one byte arena and flat tables per batch, owned by whoever holds the struct.
//!
//! A [`Span`] points into the arena, or into a table of the same batch. Readers check every span:
//! one that points outside reads as absent, never as a panic. Sizes: an arena holds at most 4 GiB
//! (spans are `u32`). Every struct here is frozen for ABI major 1; it grows through attributes.

use abi_stable::StableAbi;
use abi_stable::std_types::RVec;

/// A range of an arena or of a table: `len` items from `start`.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First item.
    pub start: u32,
    /// How many.
    pub len: u32,
}

impl Span {
    /// Nothing at all, as opposed to something empty.
    pub const ABSENT: Self = Self {
        start: u32::MAX,
        len: 0,
    };
    /// An empty range.
    pub const EMPTY: Self = Self { start: 0, len: 0 };

    /// Whether there is a value.
    #[must_use]
    pub fn is_present(self) -> bool {
        self != Self::ABSENT
    }

    /// What the span points at, or `None` when absent or outside `items`.
    #[must_use]
    pub fn of<T>(self, items: &[T]) -> Option<&[T]> {
        if !self.is_present() {
            return None;
        }
        let start = usize::try_from(self.start).ok()?;
        let end = start.checked_add(usize::try_from(self.len).ok()?)?;
        items.get(start..end)
    }

    /// The text the span points at, or `None` when absent, outside, or not UTF-8.
    #[must_use]
    pub fn text(self, arena: &[u8]) -> Option<&str> {
        std::str::from_utf8(self.of(arena)?).ok()
    }

    /// Appends `bytes` to the arena and returns where they are; [`Span::ABSENT`] when the arena
    /// would pass 4 GiB.
    pub fn push(arena: &mut RVec<u8>, bytes: &[u8]) -> Self {
        let (Ok(start), Ok(len)) = (u32::try_from(arena.len()), u32::try_from(bytes.len())) else {
            return Self::ABSENT;
        };
        if start.checked_add(len).is_none_or(|end| end == u32::MAX) {
            return Self::ABSENT;
        }
        arena.extend_from_slice(bytes);
        Self { start, len }
    }

    /// The range of a table from `start` to its present end.
    #[must_use]
    pub fn since(start: usize, end: usize) -> Self {
        match (
            u32::try_from(start),
            u32::try_from(end.saturating_sub(start)),
        ) {
            (Ok(start), Ok(len)) => Self { start, len },
            _ => Self::ABSENT,
        }
    }
}

/// A header: name and value in the arena.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct HeaderRow {
    /// UTF-8.
    pub name: Span,
    /// Any bytes.
    pub value: Span,
}

/// A template's text for one write.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct TemplateRow {
    /// The slot number the function config holds in place of the template.
    pub slot: u32,
    /// Rendered text, UTF-8.
    pub text: Span,
}

/// How a frozen struct grows: a number and bytes. Readers skip numbers they don't know.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct AttributeRow {
    /// Which.
    pub id: u32,
    /// Its value, in the arena.
    pub value: Span,
}

/// One write of a batch.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct WriteRow {
    /// The write key.
    pub key: [u8; 16],
    /// The message's time, unix milliseconds.
    pub time_unix_ms: i64,
    /// [`crate::flags`]`::WRITE_*`.
    pub flags: u32,
    /// Arena: the body.
    pub body: Span,
    /// Arena: content type, or absent.
    pub content_type: Span,
    /// Arena: routing key, or absent.
    pub routing_key: Span,
    /// Table `headers`.
    pub headers: Span,
    /// Table `templates`.
    pub templates: Span,
    /// Table `attributes`.
    pub attributes: Span,
}

/// Writes for one request, host to plugin.
#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct WriteBatch {
    /// All bytes.
    pub arena: RVec<u8>,
    /// The writes, in order.
    pub rows: RVec<WriteRow>,
    /// Headers of all writes.
    pub headers: RVec<HeaderRow>,
    /// Rendered templates of all writes.
    pub templates: RVec<TemplateRow>,
    /// Attributes of all writes.
    pub attributes: RVec<AttributeRow>,
}

impl WriteBatch {
    /// No writes.
    #[must_use]
    pub fn new() -> Self {
        Self {
            arena: RVec::new(),
            rows: RVec::new(),
            headers: RVec::new(),
            templates: RVec::new(),
            attributes: RVec::new(),
        }
    }
}

impl Default for WriteBatch {
    fn default() -> Self {
        Self::new()
    }
}

/// One message of a batch.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct MessageRow {
    /// The plugin's number for it, unique within one opened source.
    pub id: u64,
    /// Its time, unix milliseconds, when `MESSAGE_HAS_TIME` is set.
    pub time_unix_ms: i64,
    /// Its offset within the partition, when `MESSAGE_HAS_OFFSET` is set.
    pub offset: u64,
    /// [`crate::flags`]`::MESSAGE_*`.
    pub flags: u32,
    /// Arena: the body.
    pub body: Span,
    /// Arena: content type, or absent.
    pub content_type: Span,
    /// Arena: routing key, or absent.
    pub routing_key: Span,
    /// Arena: what names it across redeliveries, or absent.
    pub identity: Span,
    /// Arena: partition of a cumulative position, or absent.
    pub partition: Span,
    /// Arena: the client's idempotency key, or absent.
    pub client_key: Span,
    /// Arena: who sent it, or absent.
    pub principal: Span,
    /// Arena: position for the host to keep, or absent.
    pub position: Span,
    /// Arena: a JSON object for `.source`, or absent.
    pub source: Span,
    /// Table `headers`.
    pub headers: Span,
    /// Table `attributes`.
    pub attributes: Span,
}

/// Messages from a source, plugin to host; also what functions take and give back.
#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct MessageBatch {
    /// All bytes.
    pub arena: RVec<u8>,
    /// The messages, in order.
    pub rows: RVec<MessageRow>,
    /// Headers of all messages.
    pub headers: RVec<HeaderRow>,
    /// Attributes of all messages.
    pub attributes: RVec<AttributeRow>,
}

impl MessageBatch {
    /// No messages.
    #[must_use]
    pub fn new() -> Self {
        Self {
            arena: RVec::new(),
            rows: RVec::new(),
            headers: RVec::new(),
            attributes: RVec::new(),
        }
    }
}

impl Default for MessageBatch {
    fn default() -> Self {
        Self::new()
    }
}

/// What became of one write. Codes: [`crate::Applied`], [`crate::Scope`], [`crate::Advice`].
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct OutcomeRow {
    /// Which write of the batch, from 0.
    pub index: u32,
    /// Whether it took effect.
    pub applied: u32,
    /// What a failure says something about.
    pub scope: u32,
    /// When to try again.
    pub advice: u32,
    /// [`crate::flags`]`::OUTCOME_*`.
    pub flags: u32,
    /// With advice "after": milliseconds.
    pub after_ms: u64,
    /// Arena: stable code of the failure, or absent.
    pub code: Span,
    /// Arena: a sentence for people, or absent.
    pub message: Span,
    /// Table `attributes`.
    pub attributes: Span,
}

/// The answer to one asynchronous call.
#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct Reply {
    /// [`crate::Status`].
    pub status: u32,
    /// A handle the call opened, or 0.
    pub handle: u64,
    /// Of a submit: the outcomes. Of a function call: one row per message.
    pub outcomes: RVec<OutcomeRow>,
    /// Attributes of all outcomes.
    pub attributes: RVec<AttributeRow>,
    /// Arena of the outcomes; of other calls, the answer as JSON (a failure, an inspection).
    pub bytes: RVec<u8>,
    /// Of a function call: the messages as they are now.
    pub messages: MessageBatch,
}

impl Reply {
    /// A reply with nothing but its status.
    #[must_use]
    pub fn of(status: crate::Status) -> Self {
        Self {
            status: status.code(),
            handle: 0,
            outcomes: RVec::new(),
            attributes: RVec::new(),
            bytes: RVec::new(),
            messages: MessageBatch::new(),
        }
    }
}

/// What became of one message, host to plugin.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct SettleRow {
    /// The message.
    pub id: u64,
    /// [`crate::SettleCode`].
    pub result: u32,
    /// With `Blocked`: milliseconds until another try makes sense.
    pub retry_after_ms: u64,
    /// Arena of the call: the reason, or absent.
    pub reason: Span,
}
