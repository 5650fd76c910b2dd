//! Connector plugin: sqlite.
