//! Connector plugin: NATS, core and JetStream.
//!
//! * [`config`]: the servers, what is published where, what is consumed.
//! * [`connection`]: one connection at a time, dialled again when it is gone.
//! * [`sink`]: `nats.publish`, each write under its key.
//! * [`source`]: `nats.consume`, what a durable pull consumer hands over.
//! * `consumer`: finds or creates that consumer.
//! * [`outcome`]: what the server answered, to the outcome of a write.

pub mod config;
pub mod connection;
mod consumer;
pub mod outcome;
pub mod sink;
pub mod source;

use consign_plugin::prelude::*;

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("nats", env!("CARGO_PKG_VERSION")).connector::<connection::Nats>(|connector| {
        connector
            .sink::<sink::Publish>()
            .source::<source::Consume>()
            .example(include_str!("../example.yaml"))
    })
}

consign_plugin::export_plugin!(plugin);
