//! A message as VRL sees it: `.body`, `.headers`, `.id`, `.key`, `.source`, `.time`.
//!
//! Each field is loaded when the first program that names it runs; the body is parsed then, once.
//! Every change is noted, so that what was not changed leaves as it came.

use crate::Message;
use crate::json::{self, Document};
use bytes::Bytes;
use chrono::DateTime;
use std::borrow::Cow;
use vrl::compiler::{SecretTarget, Target};
use vrl::path::{OwnedSegment, OwnedTargetPath, PathPrefix};
use vrl::value::{KeyString, ObjectMap, Value};

/// The fields of a message in VRL, in alphabetical order.
pub(crate) const FIELDS: [&str; 6] = ["body", "headers", "id", "key", "source", "time"];
/// Header in which the content type shows and can be changed.
const CONTENT_TYPE: &str = "content-type";

/// Headers in their order.
type Headers = Vec<(String, Bytes)>;

/// A set of [`FIELDS`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fields(u8);

impl Fields {
    pub(crate) const ALL: Self = Self(0b11_1111);
    const BODY: u8 = 1;
    const HEADERS: u8 = 1 << 1;
    const ID: u8 = 1 << 2;
    const KEY: u8 = 1 << 3;
    const SOURCE: u8 = 1 << 4;
    const TIME: u8 = 1 << 5;

    pub(crate) fn add(&mut self, name: &str) {
        if let Some(i) = FIELDS.iter().position(|field| *field == name) {
            self.0 |= 1 << i;
        }
    }
}

/// A message while VRL programs run over it.
#[derive(Debug)]
pub(crate) struct Event<'m> {
    message: Cow<'m, Message>,
    value: Value,
    metadata: Value,
    loaded: Fields,
    document: Option<Document>,
    body_paths: Vec<Vec<OwnedSegment>>,
    headers_changed: bool,
    key_changed: bool,
    /// A routing key computed from the message, instead of the source's.
    key: Option<Option<String>>,
}

impl<'m> Event<'m> {
    pub(crate) fn new(message: Cow<'m, Message>) -> Self {
        Self {
            message,
            value: Value::Object(ObjectMap::new()),
            metadata: Value::Object(ObjectMap::new()),
            loaded: Fields::default(),
            document: None,
            body_paths: Vec::new(),
            headers_changed: false,
            key_changed: false,
            key: None,
        }
    }

    /// Makes sure that the fields a program names are there.
    pub(crate) fn load(&mut self, fields: Fields) {
        let missing = fields.0 & !self.loaded.0;
        if missing == 0 {
            return;
        }
        self.loaded.0 |= missing;
        if missing & Fields::BODY != 0 {
            let body = self.body();
            self.put("body", body);
        }
        if missing & Fields::HEADERS != 0 {
            let headers = headers_value(&self.message);
            self.put("headers", headers);
        }
        if missing & Fields::ID != 0 {
            self.put("id", Value::from(self.message.id.to_string()));
        }
        if missing & Fields::KEY != 0 {
            let key = Value::from(self.routing_key().unwrap_or_default());
            self.put("key", key);
        }
        if missing & Fields::SOURCE != 0 {
            let source = serde_json::Value::Object(self.message.source.clone());
            self.put("source", Value::from(source));
        }
        if missing & Fields::TIME != 0 {
            let time = DateTime::from_timestamp_millis(self.message.time_unix_ms);
            self.put("time", time.map_or(Value::Null, Value::Timestamp));
        }
    }

    /// The routing key as the source or the adapter's `key` gave it.
    pub(crate) fn routing_key(&self) -> Option<&str> {
        match &self.key {
            Some(key) => key.as_deref(),
            None => self.message.routing_key.as_deref(),
        }
    }

    /// Sets the routing key that the adapter's `key` computed, before any route looks at it.
    pub(crate) fn set_routing_key(&mut self, key: Option<String>) {
        if self.loaded.0 & Fields::KEY != 0 {
            self.put("key", Value::from(key.as_deref().unwrap_or_default()));
        }
        self.key = Some(key);
    }

    /// The digits that floats stand for, where the body was parsed.
    pub(crate) fn document(&self) -> Option<&Document> {
        self.document.as_ref()
    }

    pub(crate) fn is_changed(&self) -> bool {
        !self.body_paths.is_empty() || self.headers_changed || self.key_changed
    }

    /// The message as the programs left it. An error names what could not be written.
    pub(crate) fn message(&self) -> Result<Message, String> {
        let mut message = self.message.clone().into_owned();
        if let Some(key) = &self.key {
            message.routing_key.clone_from(key);
        }
        let Value::Object(fields) = &self.value else {
            return Err("the message is no longer an object".to_owned());
        };
        if self.headers_changed {
            let headers = fields.get("headers").unwrap_or(&Value::Null);
            (message.headers, message.content_type) = self.headers(headers)?;
        }
        if self.key_changed {
            message.routing_key = match fields.get("key") {
                None | Some(Value::Null) => None,
                Some(value) => Some(self.text(value).map_err(|why| format!("`.key` {why}"))?),
            };
        }
        if !self.body_paths.is_empty() {
            self.write_body(fields.get("body").unwrap_or(&Value::Null), &mut message)?;
        }
        Ok(message)
    }

    /// A value as text: a template's result, a key.
    pub(crate) fn text(&self, value: &Value) -> Result<String, String> {
        match value {
            Value::Null => Err("is null, and a text is needed".to_owned()),
            Value::Bytes(bytes) => std::str::from_utf8(bytes)
                .map(str::to_owned)
                .map_err(|_| "is not UTF-8".to_owned()),
            Value::String(text) => Ok(text.to_string()),
            Value::Boolean(value) => Ok(value.to_string()),
            Value::Integer(value) => Ok(value.to_string()),
            Value::Float(value) => json::float_text(value.into_inner(), self.document()),
            Value::Timestamp(time) => Ok(json::timestamp_text(time)),
            Value::Regex(regex) => Ok(regex.as_str().to_owned()),
            Value::Array(_) | Value::Object(_) => {
                let mut out = Vec::new();
                json::write(value, self.document(), &mut out, 0)?;
                String::from_utf8(out).map_err(|_| "is not UTF-8".to_owned())
            }
        }
    }

    fn put(&mut self, name: &str, value: Value) {
        if let Value::Object(fields) = &mut self.value {
            fields.insert(KeyString::from(name), value);
        }
    }

    /// The body for VRL: parsed when it is a JSON object or array, or any JSON where the content
    /// type says JSON; else a text, which VRL holds as bytes whether or not they are UTF-8.
    fn body(&mut self) -> Value {
        let says_json = self.message.content_type.as_deref().is_some_and(is_json);
        let may_be_json = says_json
            || matches!(
                self.message.body.trim_ascii_start().first(),
                Some(b'{' | b'[')
            );
        self.document = may_be_json
            .then(|| Document::parse(&self.message.body))
            .flatten()
            .filter(|document| says_json || document.is_container());
        match &self.document {
            Some(document) => document.to_value(),
            None => Value::Bytes(self.message.body.clone()),
        }
    }

    fn write_body(&self, body: &Value, message: &mut Message) -> Result<(), String> {
        let text = match body {
            Value::Bytes(bytes) => Some(bytes.clone()),
            Value::String(text) => Some(text.as_bytes().clone()),
            _ => None,
        };
        if let (Some(text), false) = (
            text,
            self.document.as_ref().is_some_and(Document::is_string),
        ) {
            message.body = text;
            return Ok(());
        }
        let written = match &self.document {
            Some(document) => document.emit(body, &self.body_paths)?,
            None => {
                let mut out = Vec::new();
                json::write(body, None, &mut out, 0)?;
                out
            }
        };
        if written != self.message.body {
            message.body = Bytes::from(written);
        }
        let says_json = message.content_type.as_deref().is_some_and(is_json);
        if self.document.is_none() && !says_json {
            message.content_type = Some("application/json".to_owned());
        }
        Ok(())
    }

    fn headers(&self, headers: &Value) -> Result<(Headers, Option<String>), String> {
        let Value::Object(map) = headers else {
            return Err("`.headers` is no longer an object".to_owned());
        };
        // Names that were there keep their place; new ones follow.
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in &self.message.headers {
            if map.contains_key(name.as_str()) && !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        for name in map.keys() {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let had_one = has_content_type(&self.message);
        let mut out = Vec::new();
        let mut content_type = None;
        for name in names {
            let values = match map.get(name) {
                None | Some(Value::Null) => continue,
                Some(Value::Array(values)) => values.as_slice(),
                Some(value) => std::slice::from_ref(value),
            };
            for value in values {
                let bytes = match value {
                    Value::Bytes(bytes) => bytes.clone(),
                    value => self
                        .text(value)
                        .map(Bytes::from)
                        .map_err(|why| format!("`.headers.{name}` {why}"))?,
                };
                if name.eq_ignore_ascii_case(CONTENT_TYPE) {
                    content_type = String::from_utf8(bytes.to_vec()).ok();
                    if !had_one {
                        continue;
                    }
                }
                out.push((name.to_owned(), bytes));
            }
        }
        Ok((out, content_type))
    }

    /// Notes what a change reaches. `compact` is set for a removal: whether emptied parents go too.
    fn note(&mut self, path: &OwnedTargetPath, compact: Option<bool>) {
        let Some((OwnedSegment::Field(field), below)) = path.path.segments.split_first() else {
            return;
        };
        match field.as_str() {
            "headers" => self.headers_changed = true,
            "key" => self.key_changed = true,
            "body" => {
                // A negative index may name any item, and a removed item moves those behind it:
                // such an array counts as changed.
                let is_unsure = |segment: &OwnedSegment, is_last: bool| match segment {
                    OwnedSegment::Index(i) => {
                        *i < 0 || compact == Some(true) || compact.is_some() && is_last
                    }
                    OwnedSegment::Field(_) => false,
                };
                let end = (0..below.len())
                    .zip(below)
                    .find(|(i, segment)| is_unsure(segment, i + 1 == below.len()))
                    .map_or(below.len(), |(i, _)| i);
                self.body_paths
                    .push(below.iter().take(end).cloned().collect());
            }
            _ => {}
        }
    }
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
}

fn has_content_type(message: &Message) -> bool {
    message
        .headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case(CONTENT_TYPE))
}

/// Headers as an object: a text each, or an array where a name stands several times.
fn headers_value(message: &Message) -> Value {
    let mut map = ObjectMap::new();
    for (name, bytes) in &message.headers {
        let value = Value::Bytes(bytes.clone());
        match map.get_mut(name.as_str()) {
            None => {
                map.insert(KeyString::from(name.as_str()), value);
            }
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.clone(), value]),
        }
    }
    if let (Some(content_type), false) = (&message.content_type, has_content_type(message)) {
        map.insert(
            KeyString::from(CONTENT_TYPE),
            Value::from(content_type.as_str()),
        );
    }
    Value::Object(map)
}

impl Target for Event<'_> {
    fn target_insert(&mut self, path: &OwnedTargetPath, value: Value) -> Result<(), String> {
        match path.prefix {
            PathPrefix::Event => {
                self.note(path, None);
                self.value.insert(&path.path, value);
            }
            PathPrefix::Metadata => {
                self.metadata.insert(&path.path, value);
            }
        }
        Ok(())
    }

    fn target_get(&self, path: &OwnedTargetPath) -> Result<Option<&Value>, String> {
        Ok(match path.prefix {
            PathPrefix::Event => self.value.get(&path.path),
            PathPrefix::Metadata => self.metadata.get(&path.path),
        })
    }

    fn target_get_mut(&mut self, path: &OwnedTargetPath) -> Result<Option<&mut Value>, String> {
        Ok(match path.prefix {
            PathPrefix::Event => {
                self.note(path, None);
                self.value.get_mut(&path.path)
            }
            PathPrefix::Metadata => self.metadata.get_mut(&path.path),
        })
    }

    fn target_remove(
        &mut self,
        path: &OwnedTargetPath,
        compact: bool,
    ) -> Result<Option<Value>, String> {
        Ok(match path.prefix {
            PathPrefix::Event => {
                self.note(path, Some(compact));
                self.value.remove(&path.path, compact)
            }
            PathPrefix::Metadata => self.metadata.remove(&path.path, compact),
        })
    }
}

/// Secrets never reach VRL.
impl SecretTarget for Event<'_> {
    fn get_secret(&self, _: &str) -> Option<&str> {
        None
    }

    fn insert_secret(&mut self, _: &str, _: &str) {}

    fn remove_secret(&mut self, _: &str) {}
}
