//! Connector plugin: localfile.
