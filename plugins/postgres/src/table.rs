//! What the server's catalog says of a table: its columns, what each takes, and which unique indexes
//! it has.

use crate::config::WriteConfig;
use crate::value::Kind;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

/// The columns that a row can fill, with the type that decides, and with that of the elements where
/// it is an array. A domain is what it is made of.
const COLUMNS: &str = "
SELECT a.attname::text, b.typname::text, e.typname::text
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE a.attrelid = to_regclass($1)::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum";

/// Whether a unique index covers exactly these columns: not partial, not over expressions, valid, and
/// checked at once, as ON CONFLICT asks for.
const UNIQUE: &str = "
SELECT EXISTS (
  SELECT FROM pg_index i
  WHERE i.indrelid = to_regclass($1)::oid AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = cardinality($2)
    AND NOT EXISTS (
      SELECT FROM unnest($2) AS wanted(name)
      WHERE wanted.name NOT IN (
        SELECT a.attname::text FROM pg_attribute a
        WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))))";

const UNLOGGED: &str = "SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass($1)::oid";

/// A table as it is.
#[derive(Debug, Clone)]
pub struct Table {
    /// Name and kind of each column that a row can fill.
    pub columns: Vec<(String, Kind)>,
    /// Whether a unique index covers exactly the write-key column.
    pub keyed: bool,
    /// Whether one covers exactly the conflict columns.
    pub conflict: bool,
    /// Its rows are gone after a crash of the server.
    pub unlogged: bool,
}

impl Table {
    /// Asks the server. `None`: there is no such table.
    ///
    /// # Errors
    /// The server could not be asked.
    pub async fn read(client: &Client, config: &WriteConfig) -> Result<Option<Self>, Error> {
        let name = qualified(config);
        let asked = [(&name as _, Type::TEXT)];
        let rows = client.query_typed(COLUMNS, &asked).await?;
        let mut columns = Vec::with_capacity(rows.len());
        for row in rows {
            let name: String = row.try_get(0)?;
            let kind: String = row.try_get(1)?;
            let element: Option<String> = row.try_get(2)?;
            columns.push((name, Kind::of(&kind, element.as_deref())));
        }
        if columns.is_empty() {
            return Ok(None);
        }
        let key: Vec<String> = config.write_key_column.iter().cloned().collect();
        let unlogged = client.query_typed_one(UNLOGGED, &asked).await?;
        Ok(Some(Self {
            columns,
            keyed: unique(client, &name, &key).await?,
            conflict: unique(client, &name, &config.conflict_columns).await?,
            unlogged: unlogged.try_get(0)?,
        }))
    }

    /// What a column takes. `None`: there is no such column, or it makes its own values.
    #[must_use]
    pub fn kind(&self, column: &str) -> Option<Kind> {
        let found = self.columns.iter().find(|(name, _)| name == column);
        found.map(|(_, kind)| *kind)
    }
}

async fn unique(client: &Client, table: &str, columns: &[String]) -> Result<bool, Error> {
    if columns.is_empty() {
        return Ok(false);
    }
    let asked = [(&table as _, Type::TEXT), (&columns as _, Type::TEXT_ARRAY)];
    let row = client.query_typed_one(UNIQUE, &asked).await?;
    row.try_get(0)
}

/// The table as SQL names it.
#[must_use]
pub fn qualified(config: &WriteConfig) -> String {
    let table = quoted(config.table.as_deref().unwrap_or_default());
    match &config.schema {
        Some(schema) => format!("{}.{table}", quoted(schema)),
        None => table,
    }
}

/// An SQL identifier, whatever is in it.
#[must_use]
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Identifiers with commas between them.
#[must_use]
pub fn list<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| quoted(name)).collect();
    names.join(", ")
}
