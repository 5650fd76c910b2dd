//! Connector plugin: Acme Lines.
//!
//! * [`config`]: what an operator writes.
//! * [`connection`]: one connection, and one exchange over it.
//! * [`sink`]: the operation `acme_lines.put`.
//! * [`outcome`]: what the server answered, to the outcome of a write.

pub mod config;
pub mod connection;
pub mod outcome;
#[cfg(test)]
mod server;
pub mod sink;
#[cfg(test)]
mod tests;

use consign_plugin::prelude::*;

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("acme_lines", env!("CARGO_PKG_VERSION")).connector::<connection::AcmeLines>(
        |connector| {
            connector
                .sink::<sink::Put>()
                .example(include_str!("../example.yaml"))
        },
    )
}

consign_plugin::export_plugin!(plugin);
