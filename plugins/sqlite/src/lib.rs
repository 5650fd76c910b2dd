//! Connector plugin: rows into a SQLite database file.
//!
//! * [`config`]: the file, the table, its columns.
//! * [`connection`]: the database on its own thread.
//! * [`sink`]: `sqlite.write`, one transaction per batch.
//! * [`rows`]: from a body to rows.
//! * [`outcome`]: what SQLite answered, to the outcome of a write.

pub mod config;
pub mod connection;
pub mod outcome;
pub mod rows;
pub mod sink;

use consign_plugin::prelude::*;

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("sqlite", env!("CARGO_PKG_VERSION")).connector::<connection::Sqlite>(|connector| {
        connector
            .sink::<sink::WriteRows>()
            .example(include_str!("../example.yaml"))
    })
}

consign_plugin::export_plugin!(plugin);
