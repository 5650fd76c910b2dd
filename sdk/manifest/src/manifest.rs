//! The manifest: the first thing the host asks a loaded plugin for.

use crate::{SinkDeclaration, SourceDeclaration};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The manifest format this crate writes. A reader accepts this and every lower number.
pub const MANIFEST_FORMAT: u32 = 1;

/// Everything a plugin contains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`MANIFEST_FORMAT`] at build time.
    pub format: u32,
    /// The plugin's name, `snake_case`.
    pub name: String,
    /// Its version, semver.
    pub version: String,
    /// Connectors: one per system.
    #[serde(default)]
    pub connectors: Vec<ConnectorManifest>,
    /// Processors, transforms and error handlers.
    #[serde(default)]
    pub functions: Vec<FunctionManifest>,
}

/// One system a plugin connects to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnectorManifest {
    /// What stands after `connector:` in a config, `snake_case`; also the prefix of its operations.
    pub name: String,
    /// The system's name as its maker writes it.
    pub title: String,
    /// Reference text, Markdown, from the doc comment.
    pub description: String,
    /// JSON schema of a connection's `config`.
    pub config_schema: Value,
    /// What it can do.
    pub operations: Vec<OperationManifest>,
    /// A complete host configuration (YAML) that shows it; checked by the kit.
    #[serde(default)]
    pub example: String,
}

/// One operation of a connector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationManifest {
    /// Its id (`kafka.produce`); fixed for ever.
    pub id: String,
    /// A title for people ("Produce").
    pub title: String,
    /// Reference text, Markdown, from the doc comment.
    pub description: String,
    /// JSON schema of the function's `config`. A string field that takes `{{ … }}` has
    /// `"format": "consign-template"`.
    pub config_schema: Value,
    /// What it promises.
    pub declaration: OperationDeclaration,
}

/// A sink's or a source's declaration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationDeclaration {
    /// Writes to a destination.
    Sink(SinkDeclaration),
    /// Reads from a source.
    Source(SourceDeclaration),
}

/// The five kinds of things a plugin can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PluginKind {
    /// Hands messages over.
    Source,
    /// Carries writes out.
    Sink,
    /// Enriches, records or checks a message; a failure is a delivery failure.
    Processor,
    /// Changes a message; an error discards it.
    Transform,
    /// Decides what becomes of an exhausted or refused write.
    ErrorHandler,
}

/// A processor, transform or error handler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionManifest {
    /// Which of the three.
    pub kind: PluginKind,
    /// What stands after `handler:`, `processor:` or `transform:` in a config.
    pub name: String,
    /// A title for people.
    pub title: String,
    /// Reference text, Markdown.
    pub description: String,
    /// JSON schema of its `config`.
    pub config_schema: Value,
}

impl Manifest {
    /// The operation with this id, and its connector.
    #[must_use]
    pub fn operation(&self, id: &str) -> Option<(&ConnectorManifest, &OperationManifest)> {
        self.connectors
            .iter()
            .find_map(|c| c.operations.iter().find(|o| o.id == id).map(|o| (c, o)))
    }
}
