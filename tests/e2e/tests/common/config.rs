//! One builder for the hosts' configurations, so that a test says only what it is about.

use std::fmt::Write as _;

/// Short pauses between attempts, for tests that wait for the next one.
pub const FAST: &str = "retry: { backoff: { initial: 50ms, max: 500ms } }";

/// A configuration without its head, which [`consign_e2e::Host`] writes.
#[derive(Debug, Clone, Default)]
pub struct Config {
    head: String,
    connections: String,
    adapters: String,
}

impl Config {
    pub fn new() -> Self {
        Self::default()
    }

    /// Settings of the host (`classes: …`), one line of YAML each.
    pub fn host(mut self, yaml: &str) -> Self {
        self.head.push_str(yaml);
        self.head.push('\n');
        self
    }

    /// A connection; `config` without its braces.
    pub fn connection(mut self, name: &str, connector: &str, config: &str) -> Self {
        writeln!(
            self.connections,
            "  {name}: {{ connector: {connector}, config: {{ {config} }} }}"
        )
        .unwrap();
        self
    }

    /// An adapter with one route that claims everything; `source` is connection, operation and config.
    pub fn adapter(mut self, name: &str, source: [&str; 3], sends: &[String]) -> Self {
        let [connection, operation, config] = source;
        writeln!(
            self.adapters,
            "  {name}:\n    source: {{ connection: {connection}, operation: {operation}, config: {{ {config} }} }}\n    routes:\n      - name: all\n        send:"
        )
        .unwrap();
        for send in sends {
            writeln!(self.adapters, "          - {send}").unwrap();
        }
        self
    }

    /// Webhooks at `/in` of this port, taken by the adapter `hooks`.
    pub fn hooks(self, port: u16, sends: &[String]) -> Self {
        self.connection("hooks", "http", &format!("listen: \"127.0.0.1:{port}\""))
            .adapter("hooks", ["hooks", "http.receive", "path: /in"], sends)
    }

    /// The connection `table`: the SQLite file `out.db`, which waits only a moment for a lock.
    pub fn database(self) -> Self {
        self.connection("table", "sqlite", "path: ./out.db, busy_timeout: 100ms")
    }

    pub fn text(&self) -> String {
        format!(
            "{}connections:\n{}adapters:\n{}",
            self.head, self.connections, self.adapters
        )
    }
}

/// A send; `more` are its other settings (`order: none, quota: 64KiB`), or nothing.
pub fn send(id: &str, connection: &str, operation: &str, config: &str, more: &str) -> String {
    let more = if more.is_empty() {
        String::new()
    } else {
        format!(", {more}")
    };
    format!(
        "{{ id: {id}, connection: {connection}, operation: {operation}, config: {{ {config} }}{more} }}"
    )
}

/// A send into a table of the connection `table`, one row a message, under its write key.
pub fn to_table(table: &str, more: &str) -> String {
    let config = format!(
        "table: {table}, create_table: true, columns: {{ id: \"{{{{ .body.id }}}}\" }}, write_key_column: write_key"
    );
    send("table", "table", "sqlite.write", &config, more)
}
