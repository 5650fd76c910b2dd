//! What an operator configures: the servers and the database, and per write the table and its columns.

use consign_plugin::prelude::*;
use std::collections::BTreeMap;

/// A PostgreSQL database, version 12 or later. Rows are committed with `synchronous_commit` on, so that
/// a write that counts as delivered is on the server's disk.
///
/// Without `tls` the connection is plain; with it, TLS is required and the server's certificate is
/// checked: there is no mode in between that falls back without a word. Nothing is kept in a session
/// between two transactions and no statement is prepared by name, so a pooler in transaction mode may
/// stand between.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionConfig {
    /// The servers, `host:port` or `[::1]:5432`, tried in this order; the first that takes writes is
    /// used, a standby is passed over. Minimum: one.
    #[schemars(length(min = 1))]
    pub servers: Vec<String>,
    /// The database.
    pub database: String,
    /// User name and password. A password that the server does not ask for is not sent.
    pub auth: BasicAuth,
    /// TLS. The certificate is checked against the host in `servers`, or `server_name`. Default: none,
    /// a plain connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// `connect` bounds the dial of one server, `request` one transaction; the send's `timeout` bounds
    /// both, too.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Sessions at a time, over all sends of the connection. Default: 4, minimum: 1.
    #[serde(default = "max_sessions")]
    #[schemars(range(min = 1))]
    pub max_sessions: u16,
    /// How the sessions are named in the server's activity view. Default: `consign`.
    #[serde(default = "application_name")]
    pub application_name: String,
}

/// Writes rows into one table, or runs one statement. A batch is one transaction.
///
/// The body is a JSON object (one row) or an array of objects (a row each); each top-level field goes
/// into the column of that name. `columns` or `body_column` replace this mapping and store one row per
/// message. Every value travels as text and is read by the column's own type, so numerics, timestamps
/// and uuids keep every digit: a number goes as it is written; an array fills an array column element
/// by element; any value fills a `json` or `jsonb` column as it stands (JSON null becomes NULL); text
/// for a `bytea` column is its bytes, or what follows `\x` as hexadecimal digits. A time without an
/// offset is UTC.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteConfig {
    /// What is done with a row. Default: `insert`.
    #[serde(default)]
    pub mode: Mode,
    /// The table's schema. Default: the first of the user's search path that has the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// The table. Required with `insert` and `upsert`, not used with `statement`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// A text column that receives `<write key>#<row>`, rows counted from 0. With `insert` and a unique
    /// index on exactly this column a write that is sent again changes nothing, and the promise is
    /// effectively once; without the index it is at least once, with an event. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_key_column: Option<String>,
    /// With `upsert`: the columns by which a row is recognised and replaced. They need a unique index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflict_columns: Vec<String>,
    /// Columns and the text each receives, usually a template (`"{{ .body.invoice }}"`), read by the
    /// column's type. Default: none; the body's fields are the columns.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, Template>,
    /// A column that receives the whole body: any bytes where it is `bytea`, else text. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_column: Option<String>,
    /// Leave out fields of the body that the table has no column for, instead of refusing the write.
    /// Default: `false`.
    #[serde(default)]
    pub ignore_unknown_fields: bool,
    /// With `statement`: one SQL statement with parameters `$1`, `$2`, … Nobody but you knows what it
    /// makes of a repeat, so the promise is at least once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<String>,
    /// With `statement`: the text of each parameter, usually a template. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<Template>,
    /// With `statement`: adds the write key as one more parameter, the last. Default: `false`.
    #[serde(default)]
    pub write_key_parameter: bool,
}

/// What is done with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It is inserted.
    #[default]
    Insert,
    /// It is inserted, or replaces the columns it has of the row with the same `conflict_columns`.
    Upsert,
    /// Nothing: `statement` is run once for each message.
    Statement,
}

fn max_sessions() -> u16 {
    4
}

fn application_name() -> String {
    "consign".to_owned()
}

impl ConnectionConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.servers.is_empty() {
            faults.push("`servers`: expected at least one address".to_owned());
        }
        for server in &self.servers {
            if host_and_port(server).is_none() {
                faults.push(format!(
                    "`servers`: expected a host and a port, `db.internal:5432` or `[::1]:5432`, found `{server}`"
                ));
            }
        }
        for (field, text) in [
            ("database", &self.database),
            ("auth.username", &self.auth.username),
        ] {
            if text.is_empty() || text.contains('\0') {
                faults.push(format!("`{field}`: expected a name"));
            }
        }
        if self.max_sessions == 0 {
            faults.push("`max_sessions`: expected at least 1".to_owned());
        }
        if let Some(tls) = &self.tls {
            faults.extend(tls.client_faults());
        }
        faults
    }
}

/// Host, without the brackets of an IPv6 address, and port. `None`: it is no address.
#[must_use]
pub fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
    let inner = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        // Without brackets it cannot be told where the host ends.
        None if host.contains([':', '/', '@', ',']) => return None,
        None => host,
    };
    (!inner.is_empty() && !inner.contains(char::is_whitespace)).then_some((inner, port))
}

impl WriteConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let set = [
            ("schema", self.schema.is_some(), true),
            ("table", self.table.is_some(), true),
            ("write_key_column", self.write_key_column.is_some(), true),
            ("columns", !self.columns.is_empty(), true),
            ("body_column", self.body_column.is_some(), true),
            ("ignore_unknown_fields", self.ignore_unknown_fields, true),
            ("statement", self.statement.is_some(), false),
            ("parameters", !self.parameters.is_empty(), false),
            ("write_key_parameter", self.write_key_parameter, false),
        ];
        let rows = self.mode != Mode::Statement;
        for (field, set, of_rows) in set {
            if set && of_rows != rows {
                let modes = if of_rows {
                    "insert and upsert"
                } else {
                    "statement"
                };
                faults.push(format!("`{field}`: only with mode {modes}"));
            }
        }
        let upsert = self.mode == Mode::Upsert;
        if upsert == self.conflict_columns.is_empty() {
            let only = "`conflict_columns`: required with mode upsert, and only there";
            faults.push(only.to_owned());
        }
        if rows && self.table.is_none() {
            faults.push("`table`: required with modes insert and upsert".to_owned());
        }
        if !rows && self.statement.as_ref().is_none_or(|s| s.trim().is_empty()) {
            faults.push("`statement`: required with mode statement".to_owned());
        }
        faults.extend(self.name_faults());
        faults
    }

    fn name_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let filled = (self.columns.keys().map(|name| ("columns", name)))
            .chain(
                self.write_key_column
                    .iter()
                    .map(|n| ("write_key_column", n)),
            )
            .chain(self.body_column.iter().map(|name| ("body_column", name)));
        let filled: Vec<(&str, &String)> = filled.collect();
        let others = (self.schema.iter().map(|name| ("schema", name)))
            .chain(self.table.iter().map(|name| ("table", name)))
            .chain(
                self.conflict_columns
                    .iter()
                    .map(|n| ("conflict_columns", n)),
            );
        for (field, name) in filled.iter().copied().chain(others) {
            if name.is_empty() || name.contains('\0') {
                faults.push(format!(
                    "`{field}`: a name is empty or holds a NUL character"
                ));
            }
        }
        for (index, (field, name)) in filled.iter().enumerate() {
            if filled.iter().take(index).any(|(_, other)| other == name) {
                faults.push(format!("`{field}`: column `{name}` is filled twice"));
            }
        }
        for name in &self.conflict_columns {
            let known = filled.iter().any(|(_, column)| *column == name);
            if !known && !self.maps_fields() {
                faults.push(format!("`conflict_columns`: nothing fills column `{name}`"));
            }
        }
        faults
    }

    /// Whether the body's fields are the columns.
    #[must_use]
    pub fn maps_fields(&self) -> bool {
        self.columns.is_empty() && self.body_column.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_are_told_from_other_text() {
        for (text, host) in [
            ("a.b:1", "a.b"),
            ("127.0.0.1:5432", "127.0.0.1"),
            ("[::1]:5", "::1"),
        ] {
            assert_eq!(host_and_port(text).unwrap().0, host);
        }
        for text in [
            "a",
            "::1:5432",
            "[::1:5",
            "a:0",
            ":1",
            "postgres://a:1",
            "u@a:1",
            "a b:1",
            "a,b:1",
        ] {
            assert_eq!(host_and_port(text), None, "{text}");
        }
    }

    #[test]
    fn faults_name_the_field() {
        let cases = [
            (json!({}), "`table`"),
            (json!({ "table": "" }), "`table`"),
            (
                json!({ "table": "t", "statement": "SELECT 1" }),
                "`statement`",
            ),
            (
                json!({ "table": "t", "write_key_parameter": true }),
                "`write_key_parameter`",
            ),
            (
                json!({ "table": "t", "conflict_columns": ["id"] }),
                "`conflict_columns`",
            ),
            (
                json!({ "table": "t", "mode": "upsert" }),
                "`conflict_columns`",
            ),
            (
                json!({ "table": "t", "columns": {"a": "1"}, "body_column": "a" }),
                "`body_column`",
            ),
            (
                json!({ "table": "t", "mode": "upsert", "conflict_columns": ["id"], "body_column": "a" }),
                "`conflict_columns`",
            ),
            (json!({ "mode": "statement" }), "`statement`"),
            (
                json!({ "mode": "statement", "statement": "SELECT 1", "table": "t" }),
                "`table`",
            ),
        ];
        for (config, field) in cases {
            let read: WriteConfig = serde_json::from_value(config.clone()).unwrap();
            let faults = read.faults();
            assert!(
                faults.len() == 1 && faults[0].starts_with(field),
                "{config}: {faults:?}"
            );
        }
        for config in [
            json!({ "table": "t", "write_key_column": "k" }),
            json!({ "table": "t", "mode": "upsert", "conflict_columns": ["id"], "columns": {"id": "1"} }),
            json!({ "mode": "statement", "statement": "CALL f($1)", "parameters": ["1"] }),
        ] {
            let read: WriteConfig = serde_json::from_value(config.clone()).unwrap();
            assert!(read.faults().is_empty(), "{config}: {:?}", read.faults());
        }
    }

    #[test]
    fn a_connections_faults_name_the_field() {
        let base = json!({ "servers": ["a:1"], "database": "d", "auth": { "username": "u", "password": "p" } });
        for (field, change) in [
            ("`servers`", json!({ "servers": [] })),
            ("`servers`", json!({ "servers": ["a"] })),
            ("`database`", json!({ "database": "" })),
            (
                "`auth.username`",
                json!({ "auth": { "username": "", "password": "" } }),
            ),
            ("`max_sessions`", json!({ "max_sessions": 0 })),
            ("`tls`", json!({ "tls": { "key_file": "k" } })),
        ] {
            let mut config = base.clone();
            let map = config.as_object_mut().unwrap();
            map.extend(change.as_object().unwrap().clone());
            let faults = serde_json::from_value::<ConnectionConfig>(config)
                .unwrap()
                .faults();
            assert!(
                faults.len() == 1 && faults[0].starts_with(field),
                "{change}: {faults:?}"
            );
        }
    }
}
