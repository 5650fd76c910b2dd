//! Connector plugin: Apache Kafka.
//!
//! * [`config`]: the brokers, what is produced where, what is consumed.
//! * [`connection`]: the client library set up, and what it says about its connections.
//! * [`sink`]: `kafka.produce`; `producer` is one idempotent producer of it, `record` what a write becomes.
//! * [`source`]: `kafka.consume`; `group` is the consumer on its own thread, `member` its part in rebalances
//!   and what it commits, `tracker` how far that may go, `incoming` what the host gets of a record, and
//!   `watchdog` tells a consumer that has fallen asleep.
//! * [`outcome`]: what became of a record, to the outcome of a write.
//! * `raw`: two calls that the client library's Rust side lacks.

pub mod config;
pub mod connection;
mod group;
mod incoming;
mod inspect;
mod member;
pub mod outcome;
mod producer;
mod raw;
mod record;
pub mod sink;
pub mod source;
mod tracker;
mod watchdog;

use consign_plugin::prelude::*;

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("kafka", env!("CARGO_PKG_VERSION")).connector::<connection::Kafka>(|connector| {
        connector
            .sink::<sink::Produce>()
            .source::<source::Consume>()
            .example(include_str!("../example.yaml"))
    })
}

consign_plugin::export_plugin!(plugin);
