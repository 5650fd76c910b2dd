//! Connector plugin: rows into PostgreSQL tables.
//!
//! * [`config`]: the servers, the table, its columns.
//! * [`connection`]: sessions, dialled when needed and given up when in doubt.
//! * [`tls`]: what the driver needs for TLS.
//! * [`sink`]: `postgres.write`, one transaction per batch.
//! * [`table`]: what the server's catalog says of the table.
//! * [`value`]: from JSON and text to what the server reads.
//! * [`outcome`]: what the server answered, and at which step, to the outcome of a write.

pub mod config;
pub mod connection;
pub mod outcome;
pub mod sink;
pub mod table;
mod tls;
pub mod value;

use consign_plugin::prelude::*;

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("postgres", env!("CARGO_PKG_VERSION")).connector::<connection::Postgres>(
        |connector| {
            connector
                .sink::<sink::WriteRows>()
                .example(include_str!("../example.yaml"))
        },
    )
}

consign_plugin::export_plugin!(plugin);
