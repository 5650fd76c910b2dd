//! Redaction: what people, logs and copies never see.
//!
//! Three things are taken out: the secrets of the configuration wherever they stand in a text, the
//! headers that authenticate, and the body fields that the operator names. The ledger's own record
//! keeps the write whole (0600), or it could not be sent again.

use crate::{Event, Header, NewFailed};
use serde_json::Value;
use std::borrow::Cow;

/// Stands where something was taken out.
pub const REDACTED: &str = "[redacted]";

/// A secret shorter than this is not looked for: it would be found inside ordinary words.
const SECRET_MIN_BYTES: usize = 4;

/// Headers that authenticate, in lower case.
const AUTH_HEADERS: [&str; 9] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
    "x-auth-token",
    "x-amz-security-token",
    "x-csrf-token",
    "www-authenticate",
];

/// Knows what to take out.
#[derive(Clone, Default)]
pub struct Redactor {
    secrets: Vec<String>,
    headers: Vec<String>,
    fields: Vec<Vec<String>>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor")
            .field("secrets", &self.secrets.len())
            .field("headers", &self.headers)
            .field("fields", &self.fields)
            .finish()
    }
}

impl Redactor {
    /// From the configuration's secrets, header names besides those that authenticate, and dotted
    /// names of body fields (`card.number`; a `*` stands for any one name or place in a list).
    #[must_use]
    pub fn new(
        secrets: impl IntoIterator<Item = String>,
        headers: &[String],
        fields: &[String],
    ) -> Self {
        let mut secrets: Vec<String> = secrets
            .into_iter()
            .filter(|s| s.len() >= SECRET_MIN_BYTES)
            .collect();
        // The longest first, or a secret that contains another would be left in part.
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Self {
            secrets,
            headers: headers.iter().map(|h| h.to_lowercase()).collect(),
            fields: fields
                .iter()
                .map(|f| {
                    f.trim_start_matches('.')
                        .split('.')
                        .map(str::to_owned)
                        .collect()
                })
                .collect(),
        }
    }

    /// A text without the secrets.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut result = Cow::Borrowed(text);
        for secret in &self.secrets {
            if result.contains(secret.as_str()) {
                result = Cow::Owned(result.replace(secret.as_str(), REDACTED));
            }
        }
        result
    }

    /// Whether a header's value is never shown.
    #[must_use]
    pub fn header_is_secret(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        AUTH_HEADERS.contains(&name.as_str()) || self.headers.contains(&name)
    }

    /// Takes the values of secret headers out; true when there was one.
    pub fn headers(&self, headers: &mut [Header]) -> bool {
        let mut changed = false;
        for header in headers {
            if self.header_is_secret(&header.name) {
                header.value = REDACTED.as_bytes().to_vec();
                changed = true;
            } else if let Ok(text) = std::str::from_utf8(&header.value)
                && let Cow::Owned(clean) = self.text(text)
            {
                header.value = clean.into_bytes();
                changed = true;
            }
        }
        changed
    }

    /// Takes fields and secrets out of a JSON value; true when something was.
    pub fn json(&self, value: &mut Value) -> bool {
        let mut changed = false;
        for field in &self.fields {
            changed |= take_out(value, field);
        }
        changed | self.secrets_in(value)
    }

    fn secrets_in(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => match self.text(text) {
                Cow::Owned(clean) => {
                    *text = clean;
                    true
                }
                Cow::Borrowed(_) => false,
            },
            Value::Array(items) => {
                let mut changed = false;
                for item in items {
                    changed |= self.secrets_in(item);
                }
                changed
            }
            Value::Object(map) => {
                let mut changed = false;
                for item in map.values_mut() {
                    changed |= self.secrets_in(item);
                }
                changed
            }
            _ => false,
        }
    }

    /// A body as people may see it, and whether something was taken out. JSON loses its fields and
    /// is then written anew; other text loses its secrets; where fields are to be taken out and the
    /// body cannot be read as JSON, all of it is, since nobody can tell what is in it.
    #[must_use]
    pub fn body<'a>(&self, body: &'a [u8], content_type: Option<&str>) -> (Cow<'a, [u8]>, bool) {
        let json = content_type.is_none_or(|t| t.contains("json"));
        if json && let Ok(mut value) = serde_json::from_slice::<Value>(body) {
            if self.json(&mut value) {
                return (Cow::Owned(value.to_string().into_bytes()), true);
            }
            return (Cow::Borrowed(body), false);
        }
        if !self.fields.is_empty() && !body.is_empty() {
            return (Cow::Owned(REDACTED.as_bytes().to_vec()), true);
        }
        match std::str::from_utf8(body) {
            Ok(text) => match self.text(text) {
                Cow::Owned(clean) => (Cow::Owned(clean.into_bytes()), true),
                Cow::Borrowed(_) => (Cow::Borrowed(body), false),
            },
            Err(_) => (Cow::Borrowed(body), false),
        }
    }

    /// Takes secrets out of an event.
    pub fn event(&self, event: &mut Event) {
        if let Cow::Owned(clean) = self.text(&event.message) {
            event.message = clean;
        }
        for value in event.fields.values_mut() {
            self.secrets_in(value);
        }
    }

    /// Makes a copy of a failed message fit to be seen; true when something was taken out, and then
    /// it is no longer `replayable`. The envelope is opaque, so
    /// a redacted copy goes without.
    pub fn copy(&self, record: &mut NewFailed) -> bool {
        let mut changed = self.headers(&mut record.headers);
        let content_type = record.content_type.clone();
        changed |= self.replace(&mut record.body, content_type.as_deref());
        if let Some(original) = &mut record.original {
            changed |= self.replace(original, content_type.as_deref());
        }
        for dependent in &mut record.dependents {
            changed |= self.replace(&mut dependent.body, None);
        }
        for text in
            std::iter::once(&mut record.diagnosis.message).chain(record.diagnosis.response.as_mut())
        {
            if let Cow::Owned(clean) = self.text(text) {
                *text = clean;
            }
        }
        if changed {
            record.replayable = false;
            record.envelope.clear();
            for dependent in &mut record.dependents {
                dependent.envelope.clear();
            }
        }
        changed
    }

    fn replace(&self, body: &mut Vec<u8>, content_type: Option<&str>) -> bool {
        let (clean, changed) = self.body(body, content_type);
        if changed {
            *body = clean.into_owned();
        }
        changed
    }
}

/// Takes the field at `path` out, wherever the path leads.
fn take_out(value: &mut Value, path: &[String]) -> bool {
    let Some((name, rest)) = path.split_first() else {
        *value = Value::String(REDACTED.to_owned());
        return true;
    };
    let mut changed = false;
    match value {
        Value::Object(map) if name == "*" => {
            for item in map.values_mut() {
                changed |= take_out(item, rest);
            }
        }
        Value::Object(map) => {
            if let Some(item) = map.get_mut(name) {
                changed = take_out(item, rest);
            }
        }
        Value::Array(items) => {
            // A list in between is walked through, whether the path names its places or not.
            let path = if name == "*" { rest } else { path };
            for item in items {
                changed |= take_out(item, path);
            }
        }
        _ => {}
    }
    changed
}
