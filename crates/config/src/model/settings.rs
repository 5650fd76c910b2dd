//! A plugin's own settings: checked against the plugin's schema, kept as JSON with places.

use crate::node::{Data, Node};
use crate::read::FromNode;
use crate::{Place, Problem, Text};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::borrow::Cow;

/// A plugin's own settings.
///
/// `value` holds paths already resolved, templates as they were written and secrets as
/// placeholders (`${env:NAME}`) until [`crate::Config::with_secrets`] fills them in.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A JSON object.
    pub value: Value,
    /// Strings that hold `{{ … }}`, where the plugin's schema allows templates.
    pub templates: Vec<TemplateText>,
    /// Placeholders for secrets.
    pub secrets: Vec<Secret>,
    /// JSON pointers of strings that the schema marks as passwords: never shown.
    pub passwords: Vec<String>,
    /// Where the settings begin.
    pub place: Place,
    /// JSON pointers of paths that begin with a secret: resolved once that is filled in.
    pub(crate) open_paths: Vec<String>,
    pub(crate) node: Node,
}

/// A string of a function's settings that holds at least one `{{ … }}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateText {
    /// JSON pointer of the string in the settings (`/subject`).
    pub pointer: String,
    /// The string as it was written.
    pub text: Text,
}

/// One use of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    /// JSON pointer of the string in the settings; empty for the host's own fields.
    pub pointer: String,
    /// Where the secret is kept.
    pub kind: SecretKind,
    /// The variable's name, or the file's path relative to the configuration file's folder.
    pub name: String,
    /// The placeholder's place.
    pub place: Place,
    /// The string is this placeholder alone and the schema wants a number or a boolean.
    pub coerce: bool,
}

/// Where a secret is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretKind {
    /// An environment variable.
    Env,
    /// A file; one line feed at its end is not part of the secret.
    File,
}

impl Settings {
    /// The place of the value at this JSON pointer, or of its nearest parent that was written.
    #[must_use]
    pub fn place_of(&self, pointer: &str) -> &Place {
        let mut node = &self.node;
        for part in pointer.split('/').skip(1) {
            let name = part.replace("~1", "/").replace("~0", "~");
            let next = match &node.data {
                Data::Map(_) => node.get(&name),
                Data::List(items) => name.parse::<usize>().ok().and_then(|i| items.get(i)),
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        &node.place
    }

    /// Settings made in a program rather than read from a file.
    #[must_use]
    pub fn of(value: Value) -> Self {
        Self {
            value,
            ..Self::default()
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            value: Value::Object(serde_json::Map::new()),
            templates: Vec::new(),
            secrets: Vec::new(),
            passwords: Vec::new(),
            place: Place::default(),
            open_paths: Vec::new(),
            node: Node {
                place: Place::default(),
                data: Data::Map(Vec::new()),
            },
        }
    }
}

impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl FromNode for Settings {
    fn from_node(node: &Node) -> Result<Self, Problem> {
        Ok(Self {
            value: node.to_json(),
            place: node.place.clone(),
            node: node.clone(),
            ..Self::default()
        })
    }
}

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl JsonSchema for Settings {
    fn schema_name() -> Cow<'static, str> {
        "Settings".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }

    fn inline_schema() -> bool {
        true
    }
}
