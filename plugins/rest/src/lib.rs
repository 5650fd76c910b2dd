//! Connector plugin: requests to HTTP services.
//!
//! * [`config`]: the service, how we show who we are, and the request of each write.
//! * [`connection`]: the client, and access tokens that are renewed when they are refused.
//! * [`dial`]: TCP, a proxy between, and TLS.
//! * [`sink`]: `rest.post`, `rest.put` and `rest.patch`.
//! * [`outcome`]: the status, or what broke, to the outcome of a write.

pub mod config;
pub mod connection;
pub mod dial;
pub mod outcome;
pub mod sink;

use consign_plugin::prelude::*;

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("rest", env!("CARGO_PKG_VERSION")).connector::<connection::Rest>(|connector| {
        connector
            .sink::<sink::Request<sink::Post>>()
            .sink::<sink::Request<sink::Put>>()
            .sink::<sink::Request<sink::Patch>>()
            .example(include_str!("../example.yaml"))
    })
}

consign_plugin::export_plugin!(plugin);
