//! Connector plugin: files of this machine, read and written.
//!
//! * [`config`]: the folder, what is read and how, and where writes go.
//! * [`connection`]: the folder.
//! * [`source`]: reading, by `tail` (lines; a `cursor` per file) or `whole` (files).
//! * [`sink`]: writing, whole files or lines at the end of one.
//! * [`outcome`]: what the operating system answered, to the outcome of a write.

pub mod config;
pub mod connection;
mod cursor;
mod files;
pub mod outcome;
mod root;
pub mod sink;
pub mod source;
mod tail;
mod whole;

use consign_plugin::prelude::*;

/// The plugin and all it contains.
#[must_use]
pub fn plugin() -> Plugin {
    Plugin::new("localfile", env!("CARGO_PKG_VERSION")).connector::<connection::LocalFile>(
        |connector| {
            connector
                .sink::<sink::WriteFile>()
                .source::<source::ReadFiles>()
                .example(include_str!("../example.yaml"))
        },
    )
}

consign_plugin::export_plugin!(plugin);
