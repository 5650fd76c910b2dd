//! Connector plugin: messages as frames on a TCP stream, plain or over TLS.
//!
//! * [`config`]: the receiver, and how it tells one message from the next.
//! * [`frame`]: a batch as bytes, and the end of each message in them.
//! * [`connection`]: one stream at a time, dialled again when it is gone.
//! * [`sink`]: `tcp.send`, sent and not confirmed.
//! * [`outcome`]: how far a message got, to the outcome of its write.

pub mod config;
pub mod connection;
pub mod frame;
pub mod outcome;
pub mod sink;

use consign_plugin::prelude::*;

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("tcp", env!("CARGO_PKG_VERSION")).connector::<connection::Tcp>(|connector| {
        connector
            .sink::<sink::SendFrames>()
            .example(include_str!("../example.yaml"))
    })
}

consign_plugin::export_plugin!(plugin);
