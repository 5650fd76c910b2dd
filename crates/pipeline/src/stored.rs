//! A rendered write as the buffer keeps it: opaque there, versioned here.
//!
//! Layout, integers as LEB128 varints unless said otherwise, `text` and `bytes` with their length
//! before them:
//!
//! ```text
//! version      u8 = 1
//! message id   16 bytes
//! time         i64 little-endian, unix milliseconds
//! flags        u8: 1 content type, 2 routing key, 4 source, 8 original
//! content type text, if flagged
//! routing key  text, if flagged
//! source       bytes of a JSON object, if flagged
//! headers      count, then name text and value bytes each
//! slots        count, then text each
//! attributes   count, then id varint and bytes each: growth without a new version
//! original     if flagged: flags u8 (1, 2 as above), content type, routing key, headers, body bytes
//! body         bytes, to the very end
//! ```
//!
//! Reading shares the stored memory. A record of a later version, a cut or a stray byte is an error,
//! never a guess; its checksum is the buffer's business.

use crate::{Matched, Message, MessageId, Rendered};
use bytes::{Buf, Bytes};
use serde_json::{Map, Value};
use std::fmt;

/// The version this crate writes. It reads this one and every lower.
pub const STORED_VERSION: u8 = 1;

const CONTENT_TYPE: u8 = 1;
const ROUTING_KEY: u8 = 2;
const SOURCE: u8 = 4;
const ORIGINAL: u8 = 8;

/// A rendered write.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredWrite {
    /// The message it was made from.
    pub message_id: MessageId,
    /// The message's time, unix milliseconds.
    pub time_unix_ms: i64,
    /// The body's media type.
    pub content_type: Option<String>,
    /// After the transforms.
    pub routing_key: Option<String>,
    /// What the source said about the message.
    pub source: Map<String, Value>,
    /// In order.
    pub headers: Vec<(String, Bytes)>,
    /// Rendered templates, in slot order.
    pub slots: Vec<String>,
    /// Room for growth: unknown ids are kept and ignored.
    pub attributes: Vec<(u32, Bytes)>,
    /// The message before the transforms, where one changed it and it is kept.
    pub original: Option<Original>,
    /// What is written.
    pub body: Bytes,
}

/// A message before the transforms of its route.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Original {
    /// The body's media type.
    pub content_type: Option<String>,
    /// The routing key.
    pub routing_key: Option<String>,
    /// In order.
    pub headers: Vec<(String, Bytes)>,
    /// The body.
    pub body: Bytes,
}

/// A stored write that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// Written by a later version of the host: start that one.
    Version(u8),
    /// Damaged: it ends too early, holds a wrong length or a text that is not UTF-8.
    Damaged,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                f,
                "the stored write has format {version} and this host reads up to {STORED_VERSION}: \
                 run the version that wrote it"
            ),
            Self::Damaged => f.write_str("the stored write is damaged"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// The attribute that says which setting each slot is of.
const SLOT_SETTINGS: u32 = 2;
/// Bytes that name one setting: a [`short_digest`](crate::key) of its JSON pointer.
const SETTING_BYTES: usize = 8;

impl StoredWrite {
    /// Takes the texts of a send's templates, each with the setting it is of.
    pub fn set_slots(&mut self, rendered: &Rendered) {
        self.slots.clone_from(&rendered.slots);
        self.attributes.retain(|(id, _)| *id != SLOT_SETTINGS);
        if !rendered.settings.is_empty() {
            let settings = rendered.settings.clone();
            self.attributes.push((SLOT_SETTINGS, settings));
        }
    }

    /// Whether its texts are those of these settings, in this order.
    #[must_use]
    pub fn has_slots_of(&self, settings: &Bytes) -> bool {
        match self.slot_settings() {
            Some(stored) => stored == settings,
            // Without any text there is nothing to name.
            None => self.slots.is_empty() && settings.is_empty(),
        }
    }

    /// The texts for these settings, by name: each setting's own text where the write brought one along,
    /// whatever its place was then.
    #[must_use]
    pub fn slots_for(&self, settings: &[u8]) -> Vec<Option<String>> {
        let stored = self.slot_settings().map_or(&[][..], |stored| stored);
        let stored: Vec<&[u8]> = stored.chunks(SETTING_BYTES).collect();
        let text = |setting: &[u8]| {
            let place = stored.iter().position(|other| *other == setting)?;
            self.slots.get(place).cloned()
        };
        settings.chunks(SETTING_BYTES).map(text).collect()
    }

    fn slot_settings(&self) -> Option<&Bytes> {
        let (_, settings) = self
            .attributes
            .iter()
            .find(|(id, _)| *id == SLOT_SETTINGS)?;
        Some(settings)
    }

    /// The write of one send. `original` is the message as the source handed it over; it is kept
    /// when a transform changed it and the route says so.
    #[must_use]
    pub fn of(
        original: &Message,
        matched: &Matched,
        rendered: &Rendered,
        keep_original: bool,
    ) -> Self {
        let message = &matched.message;
        let mut write = Self {
            message_id: message.id,
            time_unix_ms: message.time_unix_ms,
            content_type: message.content_type.clone(),
            routing_key: message.routing_key.clone(),
            source: message.source.clone(),
            headers: message.headers.clone(),
            slots: Vec::new(),
            attributes: Vec::new(),
            original: (matched.changed && keep_original).then(|| Original {
                content_type: original.content_type.clone(),
                routing_key: original.routing_key.clone(),
                headers: original.headers.clone(),
                body: original.body.clone(),
            }),
            body: message.body.clone(),
        };
        write.set_slots(rendered);
        write
    }

    /// The message it was made from, as it left its route. Shares the memory of the write.
    #[must_use]
    pub fn message(&self) -> Message {
        Message {
            id: self.message_id,
            body: self.body.clone(),
            content_type: self.content_type.clone(),
            headers: self.headers.clone(),
            routing_key: self.routing_key.clone(),
            time_unix_ms: self.time_unix_ms,
            identity: None,
            source: self.source.clone(),
        }
    }

    /// Encodes the write. The body is copied once.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.size_hint());
        out.push(STORED_VERSION);
        out.extend_from_slice(&self.message_id.0);
        out.extend_from_slice(&self.time_unix_ms.to_le_bytes());
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.push(
            flag(self.content_type.is_some(), CONTENT_TYPE)
                | flag(self.routing_key.is_some(), ROUTING_KEY)
                | flag(!self.source.is_empty(), SOURCE)
                | flag(self.original.is_some(), ORIGINAL),
        );
        put_optional(&mut out, self.content_type.as_deref());
        put_optional(&mut out, self.routing_key.as_deref());
        if !self.source.is_empty() {
            // A JSON object of JSON values always serializes.
            put(
                &mut out,
                &serde_json::to_vec(&self.source).unwrap_or_default(),
            );
        }
        put_headers(&mut out, &self.headers);
        put_number(&mut out, self.slots.len() as u64);
        for slot in &self.slots {
            put(&mut out, slot.as_bytes());
        }
        put_number(&mut out, self.attributes.len() as u64);
        for (id, value) in &self.attributes {
            put_number(&mut out, u64::from(*id));
            put(&mut out, value);
        }
        if let Some(original) = &self.original {
            out.push(
                flag(original.content_type.is_some(), CONTENT_TYPE)
                    | flag(original.routing_key.is_some(), ROUTING_KEY),
            );
            put_optional(&mut out, original.content_type.as_deref());
            put_optional(&mut out, original.routing_key.as_deref());
            put_headers(&mut out, &original.headers);
            put(&mut out, &original.body);
        }
        out.extend_from_slice(&self.body);
        Bytes::from(out)
    }

    /// Decodes a write; bodies and header values share the memory of `stored`.
    ///
    /// # Errors
    /// The record is of a later version, or damaged.
    pub fn decode(stored: Bytes) -> Result<Self, DecodeError> {
        let mut from = Reader(stored);
        match from.byte()? {
            STORED_VERSION => {}
            version => return Err(DecodeError::Version(version)),
        }
        let message_id = MessageId(from.array()?);
        let time_unix_ms = i64::from_le_bytes(from.array()?);
        let flags = from.byte()?;
        if flags & !(CONTENT_TYPE | ROUTING_KEY | SOURCE | ORIGINAL) != 0 {
            return Err(DecodeError::Damaged);
        }
        let content_type = from.optional(flags & CONTENT_TYPE != 0)?;
        let routing_key = from.optional(flags & ROUTING_KEY != 0)?;
        let source = match flags & SOURCE {
            0 => Map::new(),
            _ => serde_json::from_slice(&from.bytes()?).map_err(|_| DecodeError::Damaged)?,
        };
        let headers = from.headers()?;
        let slots = from.many(|from| from.text())?;
        let attributes = from.many(|from| {
            let id = u32::try_from(from.number()?).map_err(|_| DecodeError::Damaged)?;
            Ok((id, from.bytes()?))
        })?;
        let original = match flags & ORIGINAL {
            0 => None,
            _ => Some(from.original()?),
        };
        Ok(Self {
            message_id,
            time_unix_ms,
            content_type,
            routing_key,
            source,
            headers,
            slots,
            attributes,
            original,
            body: from.0,
        })
    }

    /// About how long the encoded write will be; what [`Self::encode`] allocates.
    #[must_use]
    pub fn size_hint(&self) -> usize {
        const FIXED: usize = 64;
        const PER_ITEM: usize = 16;
        let headers = |headers: &[(String, Bytes)]| -> usize {
            headers
                .iter()
                .map(|(name, value)| name.len() + value.len() + PER_ITEM)
                .sum()
        };
        let text = |text: &Option<String>| text.as_ref().map_or(0, |t| t.len() + PER_ITEM);
        FIXED
            + text(&self.content_type)
            + text(&self.routing_key)
            + self.source.len() * 4 * PER_ITEM
            + headers(&self.headers)
            + self.slots.iter().map(|s| s.len() + PER_ITEM).sum::<usize>()
            + self
                .attributes
                .iter()
                .map(|(_, value)| value.len() + PER_ITEM)
                .sum::<usize>()
            + self.original.as_ref().map_or(0, |original| {
                FIXED
                    + text(&original.content_type)
                    + text(&original.routing_key)
                    + headers(&original.headers)
                    + original.body.len()
            })
            + self.body.len()
    }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_optional(out: &mut Vec<u8>, text: Option<&str>) {
    if let Some(text) = text {
        put(out, text.as_bytes());
    }
}

fn put_headers(out: &mut Vec<u8>, headers: &[(String, Bytes)]) {
    put_number(out, headers.len() as u64);
    for (name, value) in headers {
        put(out, name.as_bytes());
        put(out, value);
    }
}

struct Reader(Bytes);

impl Reader {
    fn byte(&mut self) -> Result<u8, DecodeError> {
        self.0.try_get_u8().map_err(|_| DecodeError::Damaged)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        self.0
            .try_copy_to_slice(&mut array)
            .map_err(|_| DecodeError::Damaged)?;
        Ok(array)
    }

    fn number(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << shift;
            if shifted >> shift != bits {
                return Err(DecodeError::Damaged);
            }
            number |= shifted;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(DecodeError::Damaged)
    }

    fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let length = usize::try_from(self.number()?).map_err(|_| DecodeError::Damaged)?;
        if length > self.0.len() {
            return Err(DecodeError::Damaged);
        }
        Ok(self.0.split_to(length))
    }

    fn text(&mut self) -> Result<String, DecodeError> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| DecodeError::Damaged)
    }

    fn optional(&mut self, is_there: bool) -> Result<Option<String>, DecodeError> {
        is_there.then(|| self.text()).transpose()
    }

    fn many<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.number()?;
        // Nothing is allocated on the word of a count: each item takes at least a byte.
        if count > self.0.len() as u64 {
            return Err(DecodeError::Damaged);
        }
        (0..count).map(|_| one(self)).collect()
    }

    fn headers(&mut self) -> Result<Vec<(String, Bytes)>, DecodeError> {
        self.many(|from| Ok((from.text()?, from.bytes()?)))
    }

    fn original(&mut self) -> Result<Original, DecodeError> {
        let flags = self.byte()?;
        if flags & !(CONTENT_TYPE | ROUTING_KEY) != 0 {
            return Err(DecodeError::Damaged);
        }
        Ok(Original {
            content_type: self.optional(flags & CONTENT_TYPE != 0)?,
            routing_key: self.optional(flags & ROUTING_KEY != 0)?,
            headers: self.headers()?,
            body: self.bytes()?,
        })
    }
}
