//! An adapter: one source and its ordered routes.

use super::{Require, Send, Settings};
use crate::node::Node;
use crate::read::{FromNode, read_struct, wrong};
use crate::{HumanDuration, Place, Problem, Text};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use std::borrow::Cow;

/// One source and its routes; the unit that is started, paused and failed over.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields, extend("required" = ["source"]))]
pub struct Adapter {
    #[serde(skip)]
    #[schemars(skip)]
    pub name: Text,
    /// Where messages come from.
    pub source: SourceConfig,
    /// The routing key, a VRL expression, where the source does not fill it in itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Text>,
    /// What names a message across redeliveries, a VRL expression (`.headers.message_id`), where
    /// the source cannot tell. Null or an empty text: this message has no identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<Text>,
    /// In order; the first whose conditions match claims the message.
    pub routes: Vec<Route>,
    /// Decides what becomes of a message that cannot be accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// Log a message that no route claims, or whose transform failed. Default false.
    pub log_discards: bool,
    /// Instead of the host's `idempotency_window`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_window: Option<HumanDuration>,
    /// Messages taken from the source and not yet accepted. Default 1024.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_in_process: u32,
    /// Names this adapter had before: their backlog is taken over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub formerly: Vec<Text>,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for Adapter {
    fn default() -> Self {
        Self {
            name: Text::default(),
            source: SourceConfig::default(),
            key: None,
            identity: None,
            routes: Vec::new(),
            on_failure: None,
            log_discards: false,
            idempotency_window: None,
            max_in_process: 1_024,
            formerly: Vec::new(),
            place: Place::default(),
        }
    }
}

impl Adapter {
    /// The route with this name.
    #[must_use]
    pub fn route(&self, name: &str) -> Option<&Route> {
        self.routes.iter().find(|r| r.name == name)
    }
}

read_struct!(Adapter {
    source = "source" value,
    key = "key" value,
    identity = "identity" value,
    routes = "routes" list,
    on_failure = "on_failure" value,
    log_discards = "log_discards" value,
    idempotency_window = "idempotency_window" value,
    max_in_process = "max_in_process" value,
    formerly = "formerly" list,
});

/// Where an adapter's messages come from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields, extend("required" = ["connection", "operation"]))]
pub struct SourceConfig {
    /// A connection's name.
    pub connection: Text,
    /// A source operation of its connector (`http.receive`).
    pub operation: Text,
    /// The operation's own settings.
    pub config: Settings,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

read_struct!(SourceConfig {
    connection = "connection" value,
    operation = "operation" value,
    config = "config" value,
});

/// Conditions, transforms, processors and sends.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields, extend("required" = ["name"]))]
pub struct Route {
    /// Unique in its adapter, and part of the lanes' identity.
    pub name: Text,
    /// Topic patterns on the routing key, one or a list: words are split by `.`; `*` is one word,
    /// `#` any number of them. One that matches is enough. Left out: every message.
    #[serde(rename = "match", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "OneOrMany")]
    pub patterns: Vec<Text>,
    /// A VRL expression that must compile to a boolean. Left out: every message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Text>,
    /// In order. One that returns an error discards the message.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transforms: Vec<Transform>,
    /// In order, after the transforms. One that fails is handled as a failed delivery.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<Processor>,
    /// What leaves. None: the message is acknowledged and nothing leaves.
    pub send: Vec<Send>,
    /// Decides what becomes of a write of this route that cannot be delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// The least promise every send of this route must keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require: Option<Require>,
    /// Keep the original message with its writes when a transform changed it, so that it can be
    /// routed again. Default true.
    pub keep_original: bool,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for Route {
    fn default() -> Self {
        Self {
            name: Text::default(),
            patterns: Vec::new(),
            when: None,
            transforms: Vec::new(),
            processors: Vec::new(),
            send: Vec::new(),
            on_failure: None,
            require: None,
            keep_original: true,
            place: Place::default(),
        }
    }
}

read_struct!(Route {
    name = "name" value,
    patterns = "match" one_or_many,
    when = "when" value,
    transforms = "transforms" list,
    processors = "processors" list,
    send = "send" list,
    on_failure = "on_failure" value,
    require = "require" value,
    keep_original = "keep_original" value,
});

/// One text or a list of them.
struct OneOrMany;

impl JsonSchema for OneOrMany {
    fn schema_name() -> Cow<'static, str> {
        "OneOrMany".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }]
        })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// Changes a message.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(deny_unknown_fields)]
#[allow(
    clippy::large_enum_variant,
    reason = "a configuration holds a few, and boxes would show in every match on them"
)]
pub enum Transform {
    /// A VRL program that changes `.body`, `.headers` or `.key`.
    Vrl {
        /// The program.
        vrl: Text,
    },
    /// A transform of a plugin.
    Plugin {
        /// Its name in the plugin.
        transform: Text,
        /// Its own settings.
        #[schemars(default)]
        config: Settings,
    },
}

impl FromNode for Transform {
    fn from_node(node: &Node) -> Result<Self, Problem> {
        if let Some(vrl) = node.get("vrl") {
            return Text::from_node(vrl).map(|vrl| Self::Vrl { vrl });
        }
        let Some(name) = node.get("transform") else {
            return Err(wrong(node, "a transform: `vrl: …` or `transform: NAME`"));
        };
        Ok(Self::Plugin {
            transform: Text::from_node(name)?,
            config: node
                .get("config")
                .map_or_else(|| Ok(Settings::default()), Settings::from_node)?,
        })
    }
}

/// Enriches, records or checks a message.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields, extend("required" = ["processor"]))]
pub struct Processor {
    /// A processor of a plugin.
    pub processor: Text,
    /// Its own settings.
    pub config: Settings,
    /// How long it may take. Default 30s.
    pub timeout: HumanDuration,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for Processor {
    fn default() -> Self {
        Self {
            processor: Text::default(),
            config: Settings::default(),
            timeout: HumanDuration::from_ms(30_000),
            place: Place::default(),
        }
    }
}

read_struct!(Processor {
    processor = "processor" value,
    config = "config" value,
    timeout = "timeout" value,
});

/// Who decides what becomes of an exhausted or refused write, or of a message that cannot be
/// accepted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields, extend("required" = ["handler"]))]
pub struct OnFailure {
    /// An error handler of a plugin.
    pub handler: Text,
    /// Its own settings.
    pub config: Settings,
    /// Sends (`adapter/route/send`) it may divert to. No circles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub divert: Vec<Text>,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

read_struct!(OnFailure {
    handler = "handler" value,
    config = "config" value,
    divert = "divert" list,
});
