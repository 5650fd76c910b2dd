//! Configuration types: what any config struct must be, templates and secrets.

use crate::{Detail, Write};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// What a config struct must be: derive `Debug, Clone, Serialize, Deserialize, JsonSchema` and set
/// `#[serde(deny_unknown_fields)]`. Doc comments become the reference page. Implemented for every
/// type that fits; never implement it by hand.
pub trait Config:
    Serialize + DeserializeOwned + JsonSchema + Clone + Send + Sync + 'static
{
}

impl<T: Serialize + DeserializeOwned + JsonSchema + Clone + Send + Sync + 'static> Config for T {}

/// The key of the object that stands in a config where the host has put a template's slot.
pub(crate) const SLOT_KEY: &str = "$template";

/// A config string that may hold `{{ … }}`. The host renders it once per write, at acceptance;
/// read the text with [`Write::text`].
///
/// ```
/// use consign_plugin::Template;
///
/// // In `resolve` the text is as the operator wrote it.
/// let subject: Template = "orders.{{ .body.region }}".into();
/// assert!(subject.is_dynamic());
/// assert_eq!(subject.as_written(), Some("orders.{{ .body.region }}"));
/// // In an opened sink it is a slot, which each write has its own text for.
/// assert_eq!(Template::slot(0).as_written(), None);
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Template(Inner);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Inner {
    Literal(String),
    Slot(u32),
}

impl Template {
    /// A template without `{{ … }}`: every write has this text.
    pub fn literal(text: impl Into<String>) -> Self {
        Self(Inner::Literal(text.into()))
    }

    /// The template whose text each write carries in this slot. For tests; the host numbers them.
    #[must_use]
    pub fn slot(slot: u32) -> Self {
        Self(Inner::Slot(slot))
    }

    /// Whether the text differs from write to write. In `resolve` the config holds the text as
    /// the operator wrote it, so `{{` decides.
    #[must_use]
    pub fn is_dynamic(&self) -> bool {
        match &self.0 {
            Inner::Literal(text) => text.contains("{{"),
            Inner::Slot(_) => true,
        }
    }

    /// The text as the operator wrote it, or `None` in an opened sink when it is dynamic.
    #[must_use]
    pub fn as_written(&self) -> Option<&str> {
        match &self.0 {
            Inner::Literal(text) => Some(text),
            Inner::Slot(_) => None,
        }
    }

    pub(crate) fn render<'a>(&'a self, write: &'a Write) -> Result<&'a str, Detail> {
        match &self.0 {
            Inner::Literal(text) => Ok(text),
            Inner::Slot(slot) => write.template(*slot).ok_or_else(|| {
                Detail::new(
                    "template_missing",
                    format!("the write has no text for template slot {slot}"),
                )
            }),
        }
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::Literal(text) => write!(f, "{text:?}"),
            Inner::Slot(slot) => write!(f, "template slot {slot}"),
        }
    }
}

impl From<&str> for Template {
    fn from(text: &str) -> Self {
        Self::literal(text)
    }
}

impl From<String> for Template {
    fn from(text: String) -> Self {
        Self::literal(text)
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Inner::Literal(text) => serializer.serialize_str(text),
            Inner::Slot(slot) => serializer.collect_map([(SLOT_KEY, slot)]),
        }
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self::literal(text)),
            Value::Object(map) if map.len() == 1 => map
                .get(SLOT_KEY)
                .and_then(Value::as_u64)
                .and_then(|slot| u32::try_from(slot).ok())
                .map(Self::slot)
                .ok_or_else(|| D::Error::custom("expected a string")),
            _ => Err(D::Error::custom("expected a string")),
        }
    }
}

impl JsonSchema for Template {
    fn schema_name() -> Cow<'static, str> {
        "Template".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "consign-template" })
    }
}

/// A secret of a configuration. Shown as `<redacted>` by `Debug` and when serialised.
///
/// ```
/// use consign_plugin::Secret;
///
/// let secret: Secret = serde_json::from_str("\"hunter2\"")?;
/// assert_eq!(secret.expose(), "hunter2");
/// assert!(!format!("{secret:?}").contains("hunter2"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps the text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. Never log it, never put it into a [`Detail`].
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("<redacted>")
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "password" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_template_arrives_as_text_or_as_a_slot_and_as_nothing_else() {
        let read = |value| serde_json::from_value::<Template>(value).map_err(|e| e.to_string());
        assert_eq!(read(json!("a")).unwrap(), Template::literal("a"));
        assert_eq!(read(json!({"$template": 3})).unwrap(), Template::slot(3));
        for wrong in [
            json!(1),
            json!({"$template": -1}),
            json!({"$template": 1, "x": 2}),
            json!({"$other": 1}),
            json!(null),
        ] {
            assert_eq!(read(wrong).unwrap_err(), "expected a string");
        }
    }

    #[test]
    fn a_secret_never_shows() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?}"), "<redacted>");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"<redacted>\"");
        assert_eq!(secret.expose(), "hunter2");
    }
}
