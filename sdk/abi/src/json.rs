//! The control plane's JSON. Readers ignore fields they don't know; writers leave out what is absent.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;

/// The place of something in the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Names {
    /// The connection's name in the configuration.
    pub connection: String,
    /// The adapter's name.
    pub adapter: Option<String>,
    /// The route's name.
    pub route: Option<String>,
    /// The send's id.
    pub send: Option<String>,
    /// What the write key travels under; `consign.write-key` when absent.
    pub write_key_name: Option<String>,
    /// A folder for the plugin's own files.
    pub data_dir: Option<PathBuf>,
}

/// Argument of `connection_open`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenConnection {
    /// The connector's name.
    pub connector: String,
    /// The connection's `config`, secrets in place.
    pub config: Value,
    /// Where it is.
    #[serde(default)]
    pub names: Names,
}

/// Argument of `sink_open`, `source_open` and `function_open`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenFunction {
    /// The operation's id; the function's name for `function_open`.
    pub operation: String,
    /// For `function_open`: `processor`, `transform` or `error_handler`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The function's `config`, templates replaced by `{"$template": slot}`.
    pub config: Value,
    /// Where it is.
    #[serde(default)]
    pub names: Names,
}

/// A failure, wherever a call can fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// [`crate::FailureKind`].
    pub kind: u32,
    /// Short, stable.
    pub code: String,
    /// For people.
    pub message: String,
}

/// Answer of `resolve`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The resolved promise.
    Ok(Value),
    /// Why there is none.
    Failure(Failure),
}
