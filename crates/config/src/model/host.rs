//! What belongs to the host as a whole: folders, console, connections, classes, limits.

use super::{Adapter, Settings, as_table};
use crate::read::read_struct;
use crate::{ByteSize, HumanDuration, Place, Text};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A Consign host: where it keeps its data, what it connects to, and what it carries.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Config {
    /// Where the host keeps the buffer, failed messages and the event log. One host per folder.
    /// Relative to this file. Default `./data`.
    pub data_dir: Text,
    /// Folders of plugins (.so files), relative to this file. Default `[./plugins]`.
    pub plugins: Vec<Text>,
    /// The web console and HTTP API. Left out: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console: Option<Console>,
    /// Systems to connect to, by name. Adapters and sends share a connection by naming it.
    #[serde(serialize_with = "as_table")]
    #[schemars(with = "BTreeMap<String, Connection>")]
    pub connections: Vec<Connection>,
    /// Workload classes, by name. A send without a class shares what is left.
    #[serde(serialize_with = "as_table")]
    #[schemars(with = "BTreeMap<String, Class>")]
    pub classes: Vec<Class>,
    /// Adapters, by name: one source and its routes each.
    #[serde(serialize_with = "as_table")]
    #[schemars(with = "BTreeMap<String, Adapter>")]
    pub adapters: Vec<Adapter>,
    /// How the write key is named on the wire.
    pub write_key: WriteKeyOptions,
    /// The buffer's sizes.
    pub buffer: BufferOptions,
    /// The store of failed messages.
    pub failed: FailedOptions,
    /// The event log.
    pub events: EventOptions,
    /// Writes in flight at a time, over all sends. Default 256, at least 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_in_flight: u32,
    /// How long a cancelled request may take to acknowledge before its connection is rebuilt.
    /// Default 5s.
    pub cancel_grace: HumanDuration,
    /// How long a client's idempotency key is remembered once accepted. Default 24h.
    pub idempotency_window: HumanDuration,
    /// Space for remembered identities and client keys, per adapter. When it is full the oldest
    /// are forgotten early, and the shorter window is shown. Default 1GiB.
    pub key_quota: ByteSize,
    /// Order keys held back or looked past at a time, per send; beyond, look-ahead stops.
    /// Default 1000000.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_held_keys: u32,
    /// Names of headers and dotted names of body fields that never show in events, logs, views or
    /// dead-letter copies (`authorization`, `body.card.number`).
    pub redact: Vec<Text>,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
    /// The folder relative paths start from: the configuration file's own.
    #[serde(skip)]
    #[schemars(skip)]
    pub folder: PathBuf,
    /// Warnings found while parsing; none of them keeps the host from running.
    #[serde(skip)]
    #[schemars(skip)]
    pub warnings: Vec<crate::Problem>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: "./data".into(),
            plugins: vec!["./plugins".into()],
            console: None,
            connections: Vec::new(),
            classes: Vec::new(),
            adapters: Vec::new(),
            write_key: WriteKeyOptions::default(),
            buffer: BufferOptions::default(),
            failed: FailedOptions::default(),
            events: EventOptions::default(),
            max_in_flight: 256,
            cancel_grace: HumanDuration::from_ms(5_000),
            idempotency_window: HumanDuration::from_ms(86_400_000),
            key_quota: ByteSize::from_bytes(1 << 30),
            max_held_keys: 1_000_000,
            redact: Vec::new(),
            place: Place::default(),
            folder: PathBuf::new(),
            warnings: Vec::new(),
        }
    }
}

read_struct!(Config {
    data_dir = "data_dir" value,
    plugins = "plugins" list,
    console = "console" value,
    connections = "connections" table,
    classes = "classes" table,
    adapters = "adapters" table,
    write_key = "write_key" value,
    buffer = "buffer" value,
    failed = "failed" value,
    events = "events" value,
    max_in_flight = "max_in_flight" value,
    cancel_grace = "cancel_grace" value,
    idempotency_window = "idempotency_window" value,
    key_quota = "key_quota" value,
    max_held_keys = "max_held_keys" value,
    redact = "redact" list,
});

impl Config {
    /// `data_dir`, relative to the configuration file's folder.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.folder.join(self.data_dir.as_str())
    }

    /// The plugin folders, relative to the configuration file's folder.
    #[must_use]
    pub fn plugin_folders(&self) -> Vec<PathBuf> {
        self.plugins
            .iter()
            .map(|folder| self.folder.join(folder.as_str()))
            .collect()
    }

    /// The connection with this name.
    #[must_use]
    pub fn connection(&self, name: &str) -> Option<&Connection> {
        self.connections.iter().find(|c| c.name == name)
    }

    /// The class with this name.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<&Class> {
        self.classes.iter().find(|c| c.name == name)
    }

    /// The adapter with this name.
    #[must_use]
    pub fn adapter(&self, name: &str) -> Option<&Adapter> {
        self.adapters.iter().find(|a| a.name == name)
    }
}

/// The web console and HTTP API.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Console {
    /// Address and port. Default `127.0.0.1:8640`.
    pub listen: Text,
    /// What a client must present as a bearer token; may be a secret (`${env:CONSIGN_TOKEN}`).
    /// Left out: only a loopback address may be listened on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "password"))]
    pub token: Option<Text>,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for Console {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8640".into(),
            token: None,
            place: Place::default(),
        }
    }
}

read_struct!(Console {
    listen = "listen" value,
    token = "token" value,
});

/// A system to connect to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields, extend("required" = ["connector"]))]
pub struct Connection {
    #[serde(skip)]
    #[schemars(skip)]
    pub name: Text,
    /// The connector, as its plugin names it (`nats`).
    pub connector: Text,
    /// The connector's own settings.
    pub config: Settings,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

read_struct!(Connection {
    connector = "connector" value,
    config = "config" value,
});

/// A workload class: what its sends are guaranteed and allowed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Class {
    #[serde(skip)]
    #[schemars(skip)]
    pub name: Text,
    /// Slots of the host's `max_in_flight` kept for this class. Default and minimum 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub reserved: Option<u32>,
    /// Writes of this class in flight at a time. Left out: as many as the host has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_in_flight: Option<u32>,
    /// Writes a second. Left out: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001))]
    pub rate_per_s: Option<f64>,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

read_struct!(Class {
    reserved = "reserved" value,
    max_in_flight = "max_in_flight" value,
    rate_per_s = "rate_per_s" value,
});

impl Class {
    /// Slots kept for this class, at least one.
    #[must_use]
    pub fn reserved_slots(&self) -> u32 {
        self.reserved.unwrap_or(1).max(1)
    }
}

/// How the write key is named on the wire.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct WriteKeyOptions {
    /// Stands before `.write-key` in its name. Default `consign`.
    #[schemars(regex(pattern = "^[A-Za-z][A-Za-z0-9._-]{0,62}$"))]
    pub prefix: Text,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for WriteKeyOptions {
    fn default() -> Self {
        Self {
            prefix: "consign".into(),
            place: Place::default(),
        }
    }
}

read_struct!(WriteKeyOptions { prefix = "prefix" value });

impl WriteKeyOptions {
    /// The name on the wire: `consign.write-key`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}.write-key", self.prefix)
    }
}

/// The buffer's sizes.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct BufferOptions {
    /// The commit log, allocated in advance. Default 256MiB, at least 16MiB.
    pub log_size: ByteSize,
    /// Bodies kept in memory. Default 256MiB, at least 1MiB.
    pub memory: ByteSize,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for BufferOptions {
    fn default() -> Self {
        Self {
            log_size: ByteSize::from_bytes(256 << 20),
            memory: ByteSize::from_bytes(256 << 20),
            place: Place::default(),
        }
    }
}

read_struct!(BufferOptions {
    log_size = "log_size" value,
    memory = "memory" value,
});

/// The store of failed messages.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct FailedOptions {
    /// Its size; when it is full, lanes that would park a write wait. Default 10GiB.
    pub quota: ByteSize,
    /// How long a failed message is kept. Left out: until a person acts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<HumanDuration>,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for FailedOptions {
    fn default() -> Self {
        Self {
            quota: ByteSize::from_bytes(10 << 30),
            retention: None,
            place: Place::default(),
        }
    }
}

read_struct!(FailedOptions {
    quota = "quota" value,
    retention = "retention" value,
});

/// The event log.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct EventOptions {
    /// How long an event is kept. Default 30d.
    pub retention: HumanDuration,
    /// Events kept at most; the oldest go first. Default 1000000.
    #[schemars(range(min = 1_000))]
    pub max_events: u64,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for EventOptions {
    fn default() -> Self {
        Self {
            retention: HumanDuration::from_ms(30 * 86_400_000),
            max_events: 1_000_000,
            place: Place::default(),
        }
    }
}

read_struct!(EventOptions {
    retention = "retention" value,
    max_events = "max_events" value,
});
