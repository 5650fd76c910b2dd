//! What an operator writes. Doc comments become the reference page.

use consign_plugin::prelude::*;

/// A connection to one line server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionConfig {
    /// The server, `host:port`.
    pub address: String,
    /// How long connecting, and one exchange, may take.
    #[serde(default)]
    pub timeouts: Timeouts,
}

/// Sends each body as one line behind its write key. The server drops a key that it has seen.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PutConfig {
    /// A word before each line, such as the tenant; `{{ … }}` is rendered once for each write.
    pub tag: Template,
}
