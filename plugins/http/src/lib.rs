//! Connector plugin: http.
