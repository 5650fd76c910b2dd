//! Connector plugin: nats.
