//! `sqlite.write`: the rows of a batch in one transaction, each under its write key.

use crate::config::{ConnectionConfig, WriteConfig};
use crate::connection::{Database, Sqlite};
use crate::outcome::{Step, outcome};
use crate::rows::{self, Row};
use consign_plugin::prelude::*;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A write-ahead log beyond this size means that a long reader keeps it from being checkpointed.
const WAL_WARN_BYTES: u64 = 256 << 20;

/// The sink of one send.
#[derive(Debug)]
pub struct WriteRows {
    connection: Arc<Sqlite>,
    target: Arc<Target>,
}

#[async_trait]
impl Sink for WriteRows {
    type Connector = Sqlite;
    type Config = WriteConfig;
    const OPERATION: &'static str = "sqlite.write";
    const TITLE: &'static str = "Write";

    fn declaration() -> SinkDeclaration {
        SinkDeclaration {
            promise: Promise::EffectivelyOnce,
            unconfirmed: false,
            repeat: Repeat {
                kind: RepeatKind::WriteKey,
                condition: Some(
                    "with `write_key_column` set on a column with a unique index".into(),
                ),
                window: Window::None,
            },
            key: KeyPlacement::On("the `write_key_column` column, <key>#<row>".into()),
            batch: BatchKind::Atomic,
            sealed: false,
            note: String::new(),
        }
    }

    fn resolve(connection: &ConnectionConfig, config: &WriteConfig) -> Resolved {
        let (promise, repeat, reason) = match &config.write_key_column {
            Some(column) => (
                Promise::EffectivelyOnce,
                RepeatKind::WriteKey,
                format!("column `{column}` receives the write key; its unique index is inspected"),
            ),
            None => (
                Promise::AtLeastOnce,
                RepeatKind::SecondCopy,
                "`write_key_column` is not set".to_owned(),
            ),
        };
        Resolved {
            promise,
            unconfirmed: false,
            repeat,
            window: Window::None,
            reason,
            target_id: config.table.clone(),
            target_fields: Vec::new(),
            faults: [connection.faults(), config.faults()].concat(),
        }
    }

    async fn open(
        connection: Arc<Sqlite>,
        config: WriteConfig,
        _cx: &ConnectionContext,
    ) -> Result<Self, Failure> {
        let target = Arc::new(Target { config });
        Ok(Self { connection, target })
    }

    async fn write(&self, batch: &Batch, cx: &WriteContext) -> Vec<Outcome> {
        let count = batch.len();
        let mut writes = Vec::with_capacity(count);
        for (index, write) in batch.writes().iter().enumerate() {
            match self.target.rows(write) {
                Ok(rows) => writes.push(rows),
                Err(reason) => {
                    return Rollback::by(index, Outcome::refused(reason)).outcomes(count);
                }
            }
        }
        let (target, deadline) = (Arc::clone(&self.target), cx.deadline());
        let patience = self.connection.busy_timeout();
        let done = self.connection.run(move |database, wanted| {
            let left = deadline.saturating_duration_since(Instant::now());
            transact(database, &target, &writes, patience.min(left), wanted)
        });
        match done.await {
            Some(Ok(outcomes)) => outcomes,
            Some(Err(rollback)) => rollback.outcomes(count),
            None => batch.all(Outcome::down(("closed", "the connection is closed"))),
        }
    }

    async fn inspect(&self) -> Inspection {
        let (target, wait) = (Arc::clone(&self.target), self.connection.busy_timeout());
        let inspected = self.connection.run(move |database, _| {
            let wal_bytes = database.wal_bytes();
            let mut inspection = match database.handle(wait) {
                Ok(connection) => target.inspect(connection),
                Err(error) => Inspection::not_inspected(error.to_string()),
            };
            if wal_bytes > WAL_WARN_BYTES {
                inspection.warnings.push(format!(
                    "the write-ahead log has {wal_bytes} bytes: a long read transaction keeps it from being checkpointed"
                ));
            }
            inspection
        });
        inspected
            .await
            .unwrap_or_else(|| Inspection::not_inspected("the connection is closed"))
    }
}

/// Inserts the rows of all writes and commits, or leaves the database as it was.
fn transact(
    database: &mut Database,
    target: &Target,
    writes: &[Vec<Row>],
    wait: Duration,
    wanted: &dyn Fn() -> bool,
) -> Result<Vec<Outcome>, Rollback> {
    let begin = |error| Rollback::of_all(outcome(&error, Step::Begin));
    let connection = database.handle(wait).map_err(begin)?;
    connection.execute_batch("BEGIN IMMEDIATE").map_err(begin)?;
    let mut result = target.insert(connection, writes);
    if result.is_ok() && !wanted() {
        result = Err(Rollback::of_all(Outcome::retry((
            "cancelled",
            "rolled back before the commit",
        ))));
    }
    let mut in_doubt = false;
    if result.is_ok()
        && let Err(error) = connection.execute_batch("COMMIT")
    {
        in_doubt = true;
        result = Err(Rollback::of_all(outcome(&error, Step::Commit)));
    }
    // A failed statement or commit may leave the transaction open.
    if !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
        in_doubt |= !connection.is_autocommit();
    }
    if in_doubt {
        database.abandon();
    }
    result
}

/// A table and how rows come into it.
#[derive(Debug)]
struct Target {
    config: WriteConfig,
}

impl Target {
    /// The rows of one write, its key included.
    fn rows(&self, write: &Write) -> Result<Vec<Row>, Detail> {
        let config = &self.config;
        let mut rows = if config.maps_fields() {
            rows::from_json(write.body()).map_err(|reason| ("body", reason))?
        } else {
            let mut row = Row::default();
            for (column, template) in &config.columns {
                row.push(column, Value::Text(write.text(template)?.to_owned()));
            }
            if let Some(column) = &config.body_column {
                row.push(column, rows::whole(write.body()));
            }
            vec![row]
        };
        if let Some(column) = &config.write_key_column {
            for (index, row) in rows.iter_mut().enumerate() {
                if row
                    .columns
                    .iter()
                    .any(|name| name.eq_ignore_ascii_case(column))
                {
                    let reason = format!("field `{column}` would replace the write key");
                    return Err(("body", reason).into());
                }
                row.push(column, Value::Text(write.key().item(index)));
            }
        }
        Ok(rows)
    }

    fn insert(
        &self,
        connection: &Connection,
        writes: &[Vec<Row>],
    ) -> Result<Vec<Outcome>, Rollback> {
        let all = |error: rusqlite::Error| Rollback::of_all(outcome(&error, Step::Insert));
        self.create(connection).map_err(all)?;
        let columns = self.columns(connection).map_err(all)?;
        self.check(&columns).map_err(Rollback::of_all)?;
        let keyed = self.keyed(connection).is_ok();
        let mut outcomes = Vec::with_capacity(writes.len());
        for (index, rows) in writes.iter().enumerate() {
            let mut inserted = 0;
            for row in rows {
                inserted += self
                    .insert_row(connection, &columns, row, keyed)
                    .map_err(|outcome| Rollback::by(index, outcome))?;
            }
            if inserted > 0 && inserted < rows.len() {
                // One transaction wrote all rows of the key, so somebody deleted some since.
                tracing::warn!(
                    table = self.config.table,
                    inserted,
                    rows = rows.len(),
                    "rows of a repeated write were missing and are back"
                );
            }
            let repeat = inserted == 0 && !rows.is_empty();
            outcomes.push(if repeat {
                Outcome::delivered_repeat()
            } else {
                Outcome::delivered()
            });
        }
        Ok(outcomes)
    }

    /// How many rows were inserted: 1, or 0 when the key is there already.
    fn insert_row(
        &self,
        connection: &Connection,
        columns: &[String],
        row: &Row,
        keyed: bool,
    ) -> Result<usize, Outcome> {
        let mut names = Vec::with_capacity(row.columns.len());
        let mut values = Vec::with_capacity(row.values.len());
        for (name, value) in row.columns.iter().zip(&row.values) {
            if columns
                .iter()
                .any(|column| column.eq_ignore_ascii_case(name))
            {
                names.push(name.as_str());
                values.push(value);
            } else if !self.config.ignore_unknown_fields {
                return Err(Outcome::refused((
                    "unknown_field",
                    format!(
                        "table `{}` has no column for field `{name}`",
                        self.config.table
                    ),
                )));
            }
        }
        connection
            .prepare_cached(&self.statement(&names, keyed))
            .and_then(|mut statement| statement.execute(params_from_iter(values)))
            .map_err(|error| outcome(&error, Step::Insert))
    }

    fn statement(&self, names: &[&str], keyed: bool) -> String {
        let table = quoted(&self.config.table);
        let conflict = match &self.config.write_key_column {
            Some(column) if keyed => format!(" ON CONFLICT ({}) DO NOTHING", quoted(column)),
            _ => String::new(),
        };
        if names.is_empty() {
            return format!("INSERT INTO {table} DEFAULT VALUES");
        }
        let columns: Vec<_> = names.iter().map(|name| quoted(name)).collect();
        let marks = vec!["?"; names.len()].join(", ");
        format!(
            "INSERT INTO {table} ({}) VALUES ({marks}){conflict}",
            columns.join(", ")
        )
    }

    /// Creates the table where the configuration asks for it.
    fn create(&self, connection: &Connection) -> rusqlite::Result<()> {
        if !self.config.create_table {
            return Ok(());
        }
        let key = self.config.write_key_column.iter();
        let key = key.map(|name| format!("{} TEXT NOT NULL UNIQUE", quoted(name)));
        let others = self.config.columns.keys().chain(&self.config.body_column);
        let columns: Vec<_> = key.chain(others.map(|name| quoted(name))).collect();
        connection.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS {} ({})",
            quoted(&self.config.table),
            columns.join(", ")
        ))
    }

    /// The columns a row can be inserted into; empty when there is no such table.
    fn columns(&self, connection: &Connection) -> rusqlite::Result<Vec<String>> {
        let mut statement = connection
            .prepare_cached("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden = 0")?;
        statement
            .query_map([&self.config.table], |row| row.get(0))?
            .collect()
    }

    /// Whether the configured table and columns exist; the outcome says what the owner has to do.
    fn check(&self, columns: &[String]) -> Result<(), Outcome> {
        let table = &self.config.table;
        if columns.is_empty() {
            let message =
                format!("there is no table `{table}`: create it, or set `create_table: true`");
            return Err(Outcome::denied(("no_table", message)));
        }
        let config = &self.config;
        let mut wanted = config
            .write_key_column
            .iter()
            .chain(config.columns.keys())
            .chain(&config.body_column);
        match wanted.find(|name| {
            !columns
                .iter()
                .any(|column| column.eq_ignore_ascii_case(name))
        }) {
            Some(name) => Err(Outcome::denied((
                "no_column",
                format!(
                    "table `{table}` has no column `{name}`: add it, or change the configuration"
                ),
            ))),
            None => Ok(()),
        }
    }

    /// Asks SQLite itself: it compiles this only where a unique index, not a partial one, covers
    /// exactly the write-key column. The error is the reason.
    fn keyed(&self, connection: &Connection) -> Result<(), String> {
        let Some(column) = &self.config.write_key_column else {
            return Err("`write_key_column` is not set".into());
        };
        match connection.prepare(&self.statement(&[column], true)) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn inspect(&self, connection: &Connection) -> Inspection {
        let table = &self.config.table;
        let columns = match self
            .create(connection)
            .and_then(|()| self.columns(connection))
        {
            Ok(columns) => columns,
            Err(error) => return Inspection::not_inspected(error.to_string()),
        };
        let Some(column) = &self.config.write_key_column else {
            return Inspection::not_inspected("`write_key_column` is not set");
        };
        if columns.is_empty() {
            return Inspection::contradicted(format!("there is no table `{table}`"));
        }
        if self.keyed(connection).is_ok() {
            return Inspection::verified(format!(
                "a unique index covers exactly `{column}` of table `{table}`"
            ));
        }
        Inspection::contradicted(format!(
            "no unique index covers exactly `{column}` of table `{table}`; run: CREATE UNIQUE INDEX {} ON {} ({});",
            quoted(&format!("{table}_{column}")),
            quoted(table),
            quoted(column)
        ))
    }
}

/// An SQL identifier, whatever is in it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
