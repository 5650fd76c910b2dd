//! Connector plugin: the event log of a Consign host, as messages. A notification is an event that a
//! route sends somewhere.
//!
//! * [`config`]: which host, and which of its events.
//! * [`connection`]: its API.
//! * [`source`]: reading on from where the last accepted event was.

pub mod config;
pub mod connection;
pub mod source;

use consign_plugin::prelude::*;

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("events", env!("CARGO_PKG_VERSION")).connector::<connection::Host>(|connector| {
        connector
            .source::<source::ReadEvents>()
            .example(include_str!("../example.yaml"))
    })
}

consign_plugin::export_plugin!(plugin);
