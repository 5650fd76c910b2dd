//! `postgres.write`: the rows of a batch in one transaction, each under its write key.
//!
//! BEGIN and every statement go out together; COMMIT follows once each was answered. So a session that
//! ends before COMMIT was sent has applied nothing, and one that ends after it may have applied all:
//! the write is sent again, and its key finds its own rows. An answer to COMMIT does not say whether it
//! committed, so the transaction's own status is asked for with it.

use crate::config::{ConnectionConfig, Mode, WriteConfig};
use crate::connection::{Lease, Postgres};
use crate::outcome::{self, Step, of_failure, outcome};
use crate::table::{Table, list, qualified, quoted};
use crate::value::{self, Parameter, Row, Value};
use consign_plugin::prelude::*;
use futures::future::{join, join_all};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, SimpleQueryMessage};

/// Answers are given this much before the host's deadline: after it, they would count as unknown.
const ANSWER_MARGIN: Duration = Duration::from_millis(50);

/// Statements on their way at a time.
const PIPELINE: usize = 256;

/// A transaction that waits for us longer than it may take is rolled back by the server this much
/// later, so that its locks do not outlive us.
const ABANDONED: Duration = Duration::from_millis(500);

/// The transaction's number where it has changed anything. From here on nothing but COMMIT follows,
/// which is not to be cut short: a commit that waits for a standby would be answered too early.
const LAST: &str =
    "SELECT txid_current_if_assigned()::text, set_config('statement_timeout', '0', true)";

/// What the server calls an ON CONFLICT without a unique index to it (invalid_column_reference).
const NO_UNIQUE_INDEX: &str = "42P10";

/// The sink of one send.
pub struct WriteRows {
    connection: Arc<Postgres>,
    config: WriteConfig,
    /// The table, as it was last inspected.
    table: Mutex<Option<Arc<Table>>>,
}

/// One statement to be carried out, and the write it belongs to.
struct Statement {
    write: usize,
    sql: String,
    parameters: Vec<Parameter>,
}

#[async_trait]
impl Sink for WriteRows {
    type Connector = Postgres;
    type Config = WriteConfig;
    const OPERATION: &'static str = "postgres.write";
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
        use Promise::{AtLeastOnce, EffectivelyOnce};
        let (promise, repeat, reason) = match (config.mode, &config.write_key_column) {
            (Mode::Insert, Some(column)) => (
                EffectivelyOnce,
                RepeatKind::WriteKey,
                format!("column `{column}` receives the write key; its unique index is inspected"),
            ),
            (Mode::Insert, None) => (
                AtLeastOnce,
                RepeatKind::SecondCopy,
                "`write_key_column` is not set".to_owned(),
            ),
            (Mode::Upsert, _) => (
                EffectivelyOnce,
                RepeatKind::SameTarget,
                "a repeat replaces the row with the same `conflict_columns`; their unique index is inspected".to_owned(),
            ),
            (Mode::Statement, _) => (
                AtLeastOnce,
                RepeatKind::SecondCopy,
                "what `statement` makes of a repeat is not known".to_owned(),
            ),
        };
        let target = match &config.statement {
            Some(statement) => statement.trim().to_owned(),
            None => qualified(config),
        };
        let of_target = config.conflict_columns.iter();
        Resolved {
            promise,
            unconfirmed: false,
            repeat,
            window: Window::None,
            reason,
            target_id: format!("{}: {target}", connection.database),
            target_fields: of_target
                .filter(|name| config.columns.contains_key(*name))
                .map(|name| format!("columns.{name}"))
                .collect(),
            faults: [connection.faults(), config.faults()].concat(),
        }
    }

    async fn open(
        connection: Arc<Postgres>,
        config: WriteConfig,
        _: &ConnectionContext,
    ) -> Result<Self, Failure> {
        let table = Mutex::default();
        Ok(Self {
            connection,
            config,
            table,
        })
    }

    async fn write(&self, batch: &Batch, cx: &WriteContext) -> Vec<Outcome> {
        let request = Instant::now() + self.connection.config().timeouts.request.get();
        let deadline = Instant::from_std(cx.deadline()) - ANSWER_MARGIN.min(cx.remaining() / 2);
        let deadline = deadline.min(request);
        let lease = match tokio::time::timeout_at(deadline, self.connection.lease()).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(failure)) => return batch.all(of_failure(failure)),
            Err(_) => {
                let text = "no session was free or could be dialled in time";
                return batch.all(Outcome::down(("timeout", text)));
            }
        };
        let mut step = Step::Statement;
        let done = self.transact(&lease, batch, deadline, &mut step);
        match tokio::time::timeout_at(deadline, done).await {
            Ok(Ok((outcomes, over))) => {
                if over {
                    lease.give_back();
                }
                outcomes
            }
            Ok(Err(rollback)) => rollback.outcomes(batch.len()),
            Err(_) if step == Step::Commit => batch.all(Outcome::unknown((
                "timeout",
                "the server did not answer to COMMIT in time",
            ))),
            // Without a COMMIT the server rolls back.
            Err(_) => batch.all(Outcome::down((
                "timeout",
                "the server did not answer in time; nothing was committed",
            ))),
        }
    }

    async fn inspect(&self) -> Inspection {
        let within = self.connection.config().timeouts.request.get();
        let inspected = tokio::time::timeout(within, self.inspected()).await;
        let mut inspection = match inspected {
            Ok(Ok(inspection)) => inspection,
            Ok(Err(reason)) => Inspection::not_inspected(reason),
            Err(_) => Inspection::not_inspected("the server did not answer in time"),
        };
        let about = self.connection.about();
        inspection.warnings.extend(about.warnings);
        inspection.warnings.extend(about.moved);
        inspection
    }
}

impl WriteRows {
    /// Everything of a batch in one transaction: one outcome for each write, and whether the session may
    /// be used again.
    async fn transact(
        &self,
        lease: &Lease<'_>,
        batch: &Batch,
        deadline: Instant,
        step: &mut Step,
    ) -> Result<(Vec<Outcome>, bool), Rollback> {
        let client = lease.client().map_err(Rollback::of_all)?;
        let statements = match self.statements(client, batch).await {
            Ok(statements) => statements,
            // Nothing was begun, so the session is as good as it was, unless it is the one that failed.
            Err(rollback) => return Ok((rollback.outcomes(batch.len()), !client.is_closed())),
        };
        if statements.is_empty() {
            // Arrays without rows.
            return Ok((batch.all(Outcome::delivered()), true));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let begin = begin(left, self.connection.about().asynchronous);
        match run(client, &begin, &statements, batch.len()).await {
            Ok((counts, transaction)) => {
                *step = Step::Commit;
                commit(client, transaction).await?;
                let outcomes = counts.iter().map(|count| self.applied(count));
                Ok((outcomes.collect(), true))
            }
            Err(rollback) => {
                // A column or table that is not there any more: asked for again at the next attempt. A
                // unique index that is gone is not: without it a repeat would be a second copy, so
                // the target waits until it is back or an inspection has told.
                let code = rollback.outcome().code();
                if code.starts_with("42") && code != NO_UNIQUE_INDEX {
                    self.forget();
                }
                let over = client.batch_execute("ROLLBACK").await.is_ok();
                Ok((rollback.outcomes(batch.len()), over))
            }
        }
    }

    /// Every row of a write was there already: the destination knew its key.
    fn applied(&self, count: &Count) -> Outcome {
        let keyed = self.config.mode == Mode::Insert && self.config.write_key_column.is_some();
        if keyed && count.statements > 0 && count.rows == 0 {
            return Outcome::delivered_repeat();
        }
        if keyed && count.rows > 0 && count.rows < count.statements {
            // One transaction wrote all rows of the key, so somebody deleted some since.
            tracing::warn!(
                table = self.config.table,
                rows = count.statements,
                "rows of a repeated write were missing and are back"
            );
        }
        Outcome::delivered()
    }

    async fn statements(&self, client: &Client, batch: &Batch) -> Result<Vec<Statement>, Rollback> {
        let mut statements = Vec::with_capacity(batch.len());
        if let Some(sql) = &self.config.statement {
            for (index, write) in batch.writes().iter().enumerate() {
                let parameters = self.parameters(write);
                let parameters =
                    parameters.map_err(|detail| Rollback::by(index, Outcome::refused(detail)))?;
                statements.push(Statement {
                    write: index,
                    sql: sql.clone(),
                    parameters,
                });
            }
            return Ok(statements);
        }
        let table = self.table(client).await.map_err(Rollback::of_all)?;
        self.check(&table).map_err(Rollback::of_all)?;
        for (index, write) in batch.writes().iter().enumerate() {
            let refused = |detail: Detail| Rollback::by(index, Outcome::refused(detail));
            for row in self.rows(write).map_err(refused)? {
                statements.push(self.statement(&table, index, row).map_err(refused)?);
            }
        }
        Ok(statements)
    }

    fn parameters(&self, write: &Write) -> Result<Vec<Parameter>, Detail> {
        let mut parameters = Vec::with_capacity(self.config.parameters.len() + 1);
        for template in &self.config.parameters {
            parameters.push(Parameter(Some(write.text(template)?.to_owned())));
        }
        if self.config.write_key_parameter {
            parameters.push(Parameter(Some(write.key().to_string())));
        }
        Ok(parameters)
    }

    /// The rows of one write, its key included.
    fn rows(&self, write: &Write) -> Result<Vec<Row>, Detail> {
        let config = &self.config;
        let mut rows = if config.maps_fields() {
            value::rows_of(write.body()).map_err(|reason| ("body", reason))?
        } else {
            let mut row = Row::new();
            for (column, template) in &config.columns {
                let text = write.text(template)?.to_owned();
                row.push((column.clone(), Value::Text(text)));
            }
            if let Some(column) = &config.body_column {
                row.push((column.clone(), Value::Bytes(write.body().to_vec())));
            }
            vec![row]
        };
        if let Some(column) = &config.write_key_column {
            for (index, row) in rows.iter_mut().enumerate() {
                if row.iter().any(|(name, _)| name == column) {
                    let reason = format!("field `{column}` would replace the write key");
                    return Err(("body", reason).into());
                }
                row.push((column.clone(), Value::Text(write.key().item(index))));
            }
        }
        Ok(rows)
    }

    /// The statement of one row. Values are parameters, and names are quoted.
    fn statement(&self, table: &Table, write: usize, row: Row) -> Result<Statement, Detail> {
        let (mut names, mut parameters) = (Vec::new(), Vec::new());
        for (name, value) in row {
            match table.kind(&name) {
                Some(kind) => {
                    let text = value::text(&value, kind)
                        .map_err(|reason| ("value", format!("column `{name}`: {reason}")))?;
                    names.push(name);
                    parameters.push(Parameter(text));
                }
                None if self.config.ignore_unknown_fields => {}
                None => {
                    let table = qualified(&self.config);
                    let text = format!("table {table} has no column for field `{name}`");
                    return Err(("unknown_field", text).into());
                }
            }
        }
        if let Some(column) = self
            .config
            .conflict_columns
            .iter()
            .find(|c| !names.contains(c))
        {
            let text = format!("the row has no `{column}`, by which it would be recognised");
            return Err(("no_conflict_column", text).into());
        }
        Ok(Statement {
            write,
            sql: self.sql(table, &names),
            parameters,
        })
    }

    fn sql(&self, table: &Table, names: &[String]) -> String {
        let name = qualified(&self.config);
        if names.is_empty() {
            return format!("INSERT INTO {name} DEFAULT VALUES");
        }
        let marks: Vec<String> = (1..=names.len()).map(|n| format!("${n}")).collect();
        let insert = format!(
            "INSERT INTO {name} ({}) VALUES ({})",
            list(names),
            marks.join(", ")
        );
        match (self.config.mode, &self.config.write_key_column) {
            (Mode::Upsert, _) => {
                let conflict = &self.config.conflict_columns;
                let others = names.iter().filter(|name| !conflict.contains(name));
                let set: Vec<String> = others
                    .map(|name| format!("{0} = EXCLUDED.{0}", quoted(name)))
                    .collect();
                let act = if set.is_empty() {
                    "NOTHING".to_owned()
                } else {
                    format!("UPDATE SET {}", set.join(", "))
                };
                format!("{insert} ON CONFLICT ({}) DO {act}", list(conflict))
            }
            (_, Some(column)) if table.keyed => {
                format!("{insert} ON CONFLICT ({}) DO NOTHING", quoted(column))
            }
            _ => insert,
        }
    }

    /// The table as it was last inspected; asked for where it was not.
    async fn table(&self, client: &Client) -> Result<Arc<Table>, Outcome> {
        if let Some(table) = self.known().clone() {
            return Ok(table);
        }
        let read = Table::read(client, &self.config).await;
        match read.map_err(|error| outcome(&error, Step::Statement))? {
            Some(table) => Ok(self.know(table)),
            None => Err(Outcome::denied((
                "no_table",
                format!(
                    "there is no table {}: create it, or change `schema`, `table` or the user's rights",
                    qualified(&self.config)
                ),
            ))),
        }
    }

    fn known(&self) -> MutexGuard<'_, Option<Arc<Table>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn know(&self, table: Table) -> Arc<Table> {
        let table = Arc::new(table);
        *self.known() = Some(Arc::clone(&table));
        table
    }

    fn forget(&self) {
        *self.known() = None;
    }

    /// Whether the configured columns exist; the outcome says what the owner has to do.
    fn check(&self, table: &Table) -> Result<(), Outcome> {
        let config = &self.config;
        let wanted = (config.write_key_column.iter())
            .chain(config.columns.keys())
            .chain(&config.body_column)
            .chain(&config.conflict_columns);
        let mut wanted = wanted;
        match wanted.find(|name| table.kind(name).is_none()) {
            None => Ok(()),
            Some(name) => {
                // It may have been added since.
                self.forget();
                let table = qualified(config);
                let text = format!(
                    "table {table} has no column `{name}` to write to: add it, or change the configuration"
                );
                Err(Outcome::denied(("no_column", text)))
            }
        }
    }

    async fn inspected(&self) -> Result<Inspection, String> {
        if self.config.mode == Mode::Statement {
            return Err("`statement` is not inspected".into());
        }
        let lease = self.connection.lease().await;
        let lease = lease.map_err(|failure| failure.to_string())?;
        let client = lease.client().map_err(|_| "the session is closed")?;
        let table = Table::read(client, &self.config).await;
        let table = table.map_err(|error| outcome::failure(&error).to_string())?;
        lease.give_back();
        let name = qualified(&self.config);
        let Some(table) = table else {
            self.forget();
            return Ok(Inspection::contradicted(format!(
                "there is no table {name}"
            )));
        };
        let table = self.know(table);
        let upsert = self.config.mode == Mode::Upsert;
        let (columns, found): (Vec<&String>, bool) = if upsert {
            (
                self.config.conflict_columns.iter().collect(),
                table.conflict,
            )
        } else {
            (self.config.write_key_column.iter().collect(), table.keyed)
        };
        if columns.is_empty() {
            return Ok(Inspection::not_inspected("`write_key_column` is not set"));
        }
        let columns = list(columns);
        let mut inspection = if found {
            Inspection::verified(format!(
                "a unique index covers exactly {columns} of table {name}"
            ))
        } else {
            Inspection::contradicted(format!(
                "no unique index covers exactly {columns} of table {name}; run: CREATE UNIQUE INDEX CONCURRENTLY ON {name} ({columns});"
            ))
        };
        if table.unlogged {
            inspection.warnings.push(format!(
                "table {name} is UNLOGGED: its rows are gone after a crash of the server"
            ));
        }
        Ok(inspection)
    }
}

/// What a write's statements came to.
#[derive(Debug, Clone, Default)]
struct Count {
    statements: u64,
    rows: u64,
}

/// The first statement: limits that end with the transaction, so that a pooler's session keeps nothing.
fn begin(left: Duration, asynchronous: bool) -> String {
    // A time without an offset is UTC whatever the role or database sets.
    let mut begin = format!(
        "BEGIN; SET LOCAL statement_timeout = {}; SET LOCAL idle_in_transaction_session_timeout = {}; SET LOCAL timezone = 'UTC'",
        left.as_millis().max(1),
        (left + ABANDONED).as_millis(),
    );
    if asynchronous {
        begin.push_str("; SET LOCAL synchronous_commit = on");
    }
    begin
}

/// Runs the statements of a transaction: what each write came to, and the transaction's number.
async fn run(
    client: &Client,
    begin: &str,
    statements: &[Statement],
    writes: usize,
) -> Result<(Vec<Count>, Option<String>), Rollback> {
    let mut counts = vec![Count::default(); writes];
    let failed = |error: &tokio_postgres::Error| outcome(error, Step::Statement);
    let mut begun = false;
    for chunk in statements.chunks(PIPELINE) {
        let first = async {
            match begun {
                true => Ok(()),
                false => client.batch_execute(begin).await,
            }
        };
        let all = join_all(chunk.iter().map(|statement| execute(client, statement)));
        // Sent in this order: each is sent when it is first polled.
        let (first, results) = join(first, all).await;
        first.map_err(|error| Rollback::of_all(failed(&error)))?;
        begun = true;
        for (statement, result) in chunk.iter().zip(results) {
            let rows = result.map_err(|error| at(statement.write, failed(&error)))?;
            if let Some(count) = counts.get_mut(statement.write) {
                count.statements += 1;
                count.rows += rows;
            }
        }
    }
    if !begun {
        return Ok((counts, None));
    }
    let last = client.query_typed_one(LAST, &[]).await;
    let transaction = last.and_then(|row| row.try_get(0));
    let transaction = transaction.map_err(|error| Rollback::of_all(failed(&error)))?;
    Ok((counts, transaction))
}

/// A failure of one statement: an outage is of all writes alike.
fn at(write: usize, outcome: Outcome) -> Rollback {
    match outcome.scope() {
        consign_plugin::Scope::Connection => Rollback::of_all(outcome),
        _ => Rollback::by(write, outcome),
    }
}

async fn execute(client: &Client, statement: &Statement) -> Result<u64, tokio_postgres::Error> {
    let parameters = statement.parameters.iter();
    let parameters: Vec<(&(dyn ToSql + Sync), Type)> = parameters
        .map(|parameter| (parameter as _, Type::UNKNOWN))
        .collect();
    client.execute_typed(&statement.sql, &parameters).await
}

/// Commits, and asks what became of the transaction: the answer to COMMIT alone does not tell a commit
/// from a rollback.
async fn commit(client: &Client, transaction: Option<String>) -> Result<(), Rollback> {
    let text = match &transaction {
        Some(number) => format!("COMMIT; SELECT txid_status({number})"),
        None => "COMMIT".to_owned(),
    };
    let answer = client.simple_query(&text).await;
    let answer = answer.map_err(|error| Rollback::of_all(outcome(&error, Step::Commit)))?;
    let status = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    match (transaction, status) {
        (None, _) | (Some(_), Some("committed")) => Ok(()),
        (Some(_), Some("aborted")) => Err(Rollback::of_all(Outcome::retry((
            "rolled_back",
            "the server answered to COMMIT and had rolled back",
        )))),
        (Some(_), _) => Err(Rollback::of_all(Outcome::unknown((
            "commit_status",
            "the server answered to COMMIT and does not say what became of the transaction",
        )))),
    }
}
