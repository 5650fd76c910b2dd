//! What an operator configures: the database file, and per write the table and its columns.

use consign_plugin::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A SQLite database file, opened by this host in WAL mode with `synchronous = FULL`: a row is on
/// disk before the write counts as delivered. Other programs may read and write the file meanwhile.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionConfig {
    /// The database file. A relative path starts at the configuration file's folder.
    #[schemars(extend("format" = "path"))]
    pub path: PathBuf,
    /// Create the file, and its folder, when they are missing. Set `false` where a wrong path must
    /// be an error instead of a new, empty database. Default: `true`.
    #[serde(default = "yes")]
    pub create: bool,
    /// How long a write waits for another program's lock before the connection counts as down; never
    /// longer than the send's `timeout`. Default: `5s`, minimum: `0s`.
    #[serde(default = "busy_timeout")]
    pub busy_timeout: HumanDuration,
}

/// Inserts rows into one table. A batch is one transaction.
///
/// The body is a JSON object (one row) or an array of objects (a row each); each top-level field goes
/// into the column of that name. Integers of 64 bits are stored as INTEGER, other numbers so that no
/// digit is lost, booleans as 1 and 0, objects and arrays as their JSON text. `columns` or
/// `body_column` replace this mapping and store one row per message.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteConfig {
    /// The table, without a schema prefix.
    pub table: String,
    /// A text column that receives `<write key>#<row>`, rows counted from 0. With a unique index on
    /// exactly this column a write that is sent again changes nothing, and the promise is effectively
    /// once. Default: none; a write that is sent again then adds its rows again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_key_column: Option<String>,
    /// Columns and the text each receives, usually a template (`"{{ .body.invoice }}"`). Numbers in
    /// such text are converted by the column's type. Default: none; the body's fields are the columns.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, Template>,
    /// A column that receives the whole body: TEXT when it is UTF-8, else BLOB. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_column: Option<String>,
    /// Leave out fields of the body that the table has no column for, instead of refusing the write.
    /// Default: `false`.
    #[serde(default)]
    pub ignore_unknown_fields: bool,
    /// Create the table when it is missing, with `write_key_column` unique and the columns named by
    /// `columns` and `body_column`, all without a type. Default: `false`.
    #[serde(default)]
    pub create_table: bool,
}

fn yes() -> bool {
    true
}

fn busy_timeout() -> HumanDuration {
    HumanDuration::from_secs(5)
}

impl ConnectionConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let path = self.path.to_string_lossy();
        if path.is_empty() || path.contains('\0') {
            faults.push("`path`: expected the path of a file".to_owned());
        }
        if path.starts_with(":memory:") || path.starts_with("file:") {
            faults.push(
                "`path`: expected a file; a database in memory or a URI keeps nothing when the host stops"
                    .to_owned(),
            );
        }
        faults
    }
}

impl WriteConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut names = vec![("table", self.table.as_str())];
        names.extend(
            self.write_key_column
                .iter()
                .map(|n| ("write_key_column", n.as_str())),
        );
        names.extend(self.body_column.iter().map(|n| ("body_column", n.as_str())));
        names.extend(self.columns.keys().map(|n| ("columns", n.as_str())));
        for (field, name) in &names {
            if name.is_empty() || name.contains('\0') {
                faults.push(format!(
                    "`{field}`: a name is empty or holds a NUL character"
                ));
            }
        }
        let columns = names.get(1..).unwrap_or_default();
        for (index, (field, name)) in columns.iter().enumerate() {
            if columns
                .iter()
                .take(index)
                .any(|(_, other)| other.eq_ignore_ascii_case(name))
            {
                faults.push(format!(
                    "`{field}`: column `{name}` is filled twice (names ignore case)"
                ));
            }
        }
        if self.create_table && self.columns.is_empty() && self.body_column.is_none() {
            faults.push(
                "`create_table`: name the table's columns with `columns` or `body_column`; the fields of future bodies are not known"
                    .to_owned(),
            );
        }
        faults
    }

    /// Whether the body's fields are the columns.
    #[must_use]
    pub fn maps_fields(&self) -> bool {
        self.columns.is_empty() && self.body_column.is_none()
    }
}
