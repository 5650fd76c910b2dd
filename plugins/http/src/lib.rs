//! Connector plugin: HTTP requests as messages.
//!
//! * [`config`]: the address, and the requests each function takes.
//! * [`connection`]: the listener and its sessions.
//! * [`request`]: one request, from its head to its answer.
//! * [`source`]: receiving, the functions that share a listener.
//! * [`outcome`]: what became of a message, to the answer.

pub mod config;
pub mod connection;
pub mod outcome;
mod port;
pub mod request;
pub mod source;

use consign_plugin::prelude::*;

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("http", env!("CARGO_PKG_VERSION")).connector::<connection::Http>(|connector| {
        connector
            .source::<source::Receive>()
            .example(include_str!("../example.yaml"))
    })
}

consign_plugin::export_plugin!(plugin);
