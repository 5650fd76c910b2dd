//! `sqlite.write` on real files: what lands, what is recognised as a repeat, what each fault does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use consign_plugin::prelude::*;
use consign_plugin::testing::{self, TestWrite};
use consign_plugin::{Advice, Applied, Scope};
use consign_plugin_sqlite::config::{ConnectionConfig, WriteConfig};
use consign_plugin_sqlite::connection::Sqlite;
use consign_plugin_sqlite::sink::WriteRows;
use rusqlite::Connection;
use rusqlite::types::Value as Cell;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const INVOICES: &str =
    "CREATE TABLE invoices (write_key TEXT UNIQUE, invoice INTEGER, note TEXT, amount)";

/// A folder with a database and a second, independent handle on it.
struct Place {
    folder: TempDir,
    reader: Connection,
}

impl Place {
    fn new(sql: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let reader = Connection::open(folder.path().join("ledger.db")).unwrap();
        reader.execute_batch(sql).unwrap();
        Self { folder, reader }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("ledger.db")
    }

    async fn sink(&self, config: Value) -> WriteRows {
        sink(&self.path(), config).await
    }

    fn count(&self) -> i64 {
        self.one("SELECT count(*) FROM invoices")
    }

    fn one<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
        self.reader.query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

fn connection(path: &Path) -> ConnectionConfig {
    serde_json::from_value(json!({ "path": path, "busy_timeout": "200ms" })).unwrap()
}

async fn sink(path: &Path, config: Value) -> WriteRows {
    let config: WriteConfig = serde_json::from_value(config).unwrap();
    testing::open_sink::<WriteRows>(connection(path), config)
        .await
        .unwrap()
}

fn keyed() -> Value {
    json!({ "table": "invoices", "write_key_column": "write_key" })
}

fn write_of(key: u8, body: impl Into<Vec<u8>>) -> TestWrite {
    TestWrite::new(body).key([key; 16])
}

async fn send(sink: &WriteRows, writes: impl IntoIterator<Item = TestWrite>) -> Vec<Outcome> {
    testing::write(sink, &testing::batch(writes)).await
}

async fn send_one(sink: &WriteRows, body: impl Into<Vec<u8>>) -> Outcome {
    send(sink, [write_of(1, body)]).await.remove(0)
}

#[track_caller]
fn denied(outcome: &Outcome, code: &str) {
    assert_eq!(
        (outcome.advice(), outcome.code()),
        (Advice::NeverAlone, code),
        "{outcome:?}"
    );
    assert_eq!(outcome.applied(), Applied::No);
}

#[track_caller]
fn refused(outcome: &Outcome, code: &str) {
    assert_eq!(
        (outcome.advice(), outcome.code()),
        (Advice::Never, code),
        "{outcome:?}"
    );
    assert_eq!(
        (outcome.applied(), outcome.scope()),
        (Applied::No, Scope::Write)
    );
}

#[tokio::test]
async fn a_write_lands_once_and_its_repeat_is_recognised() {
    let place = Place::new(INVOICES);
    let sink = place.sink(keyed()).await;
    let batch = || {
        [
            write_of(1, r#"{"invoice":7}"#),
            write_of(2, r#"{"invoice":8,"note":null}"#),
        ]
    };
    assert_eq!(
        send(&sink, batch()).await,
        [Outcome::delivered(), Outcome::delivered()]
    );
    assert_eq!(
        send(&sink, batch()).await,
        [Outcome::delivered_repeat(), Outcome::delivered_repeat()]
    );
    // A batch with old and new writes tells them apart.
    let mixed = [
        write_of(2, r#"{"invoice":8}"#),
        write_of(3, r#"{"invoice":9}"#),
    ];
    assert_eq!(
        send(&sink, mixed).await,
        [Outcome::delivered_repeat(), Outcome::delivered()]
    );
    assert_eq!(place.count(), 3);
    let key: String = place.one("SELECT write_key FROM invoices WHERE invoice = 7");
    assert_eq!(key, format!("{}#0", "01".repeat(16)));
}

#[tokio::test]
async fn an_array_is_a_row_each_under_key_and_number() {
    let place = Place::new(INVOICES);
    let sink = place.sink(keyed()).await;
    let body = r#"[{"invoice":1},{"invoice":2},{"note":"x"}]"#;
    assert_eq!(send_one(&sink, body).await, Outcome::delivered());
    assert_eq!(send_one(&sink, body).await, Outcome::delivered_repeat());
    let keys: String = place.one("SELECT group_concat(substr(write_key, -2), ' ') FROM invoices");
    assert_eq!(keys, "#0 #1 #2");
    // Somebody deleted one: it comes back, and the write is not called a repeat.
    place
        .reader
        .execute("DELETE FROM invoices WHERE invoice = 2", [])
        .unwrap();
    assert_eq!(send_one(&sink, body).await, Outcome::delivered());
    assert_eq!(place.count(), 3);
    assert_eq!(
        send(&sink, [write_of(9, "[]")]).await,
        [Outcome::delivered()]
    );
    assert_eq!(place.count(), 3);
}

#[tokio::test]
async fn a_trigger_of_the_table_does_not_hide_a_repeat() {
    let place = Place::new(INVOICES);
    let sql = "CREATE TABLE arrivals (count); INSERT INTO arrivals VALUES (0);
        CREATE TRIGGER b BEFORE INSERT ON invoices BEGIN UPDATE arrivals SET count = count + 1; END;
        CREATE TRIGGER a AFTER INSERT ON invoices BEGIN UPDATE arrivals SET count = count + 10; END;";
    place.reader.execute_batch(sql).unwrap();
    let sink = place.sink(keyed()).await;
    assert_eq!(
        send_one(&sink, r#"{"invoice":7}"#).await,
        Outcome::delivered()
    );
    assert_eq!(
        send_one(&sink, r#"{"invoice":7}"#).await,
        Outcome::delivered_repeat()
    );
    assert_eq!(place.one::<i64>("SELECT count FROM arrivals"), 12);
}

#[tokio::test]
async fn without_a_unique_index_a_repeat_is_a_copy_and_inspection_says_so() {
    let place = Place::new("CREATE TABLE invoices (write_key TEXT, invoice INTEGER)");
    let sink = place.sink(keyed()).await;
    let found = sink.inspect().await;
    assert_eq!(found.verdict, Verdict::Contradicted);
    assert_eq!(
        send_one(&sink, r#"{"invoice":7}"#).await,
        Outcome::delivered()
    );
    assert_eq!(
        send_one(&sink, r#"{"invoice":7}"#).await,
        Outcome::delivered()
    );
    assert_eq!(place.count(), 2);
    // The sentence ends with the statement that mends it.
    place.reader.execute("DELETE FROM invoices", []).unwrap();
    let statement = found.detail.split_once("run: ").unwrap().1;
    assert_eq!(
        statement,
        r#"CREATE UNIQUE INDEX "invoices_write_key" ON "invoices" ("write_key");"#
    );
    place.reader.execute_batch(statement).unwrap();
    assert_eq!(sink.inspect().await.verdict, Verdict::Verified);
    assert_eq!(
        send_one(&sink, r#"{"invoice":7}"#).await,
        Outcome::delivered()
    );
    assert_eq!(
        send_one(&sink, r#"{"invoice":7}"#).await,
        Outcome::delivered_repeat()
    );
}

#[tokio::test]
async fn only_a_whole_unique_index_on_that_column_alone_verifies() {
    for (sql, verdict) in [
        (
            "CREATE UNIQUE INDEX i ON invoices (write_key)",
            Verdict::Verified,
        ),
        (
            "CREATE INDEX i ON invoices (write_key)",
            Verdict::Contradicted,
        ),
        (
            "CREATE UNIQUE INDEX i ON invoices (write_key, invoice)",
            Verdict::Contradicted,
        ),
        (
            "CREATE UNIQUE INDEX i ON invoices (write_key) WHERE invoice > 0",
            Verdict::Contradicted,
        ),
        (
            "CREATE UNIQUE INDEX i ON invoices (lower(write_key))",
            Verdict::Contradicted,
        ),
        ("DROP TABLE invoices", Verdict::Contradicted),
        (
            "DROP TABLE invoices; CREATE TABLE invoices (WRITE_KEY TEXT PRIMARY KEY) WITHOUT ROWID",
            Verdict::Verified,
        ),
        (
            "DROP TABLE invoices; CREATE VIEW invoices AS SELECT 'a' AS write_key",
            Verdict::Contradicted,
        ),
    ] {
        let place = Place::new("CREATE TABLE invoices (write_key TEXT, invoice INTEGER)");
        place.reader.execute_batch(sql).unwrap();
        let found = place.sink(keyed()).await.inspect().await;
        assert_eq!(found.verdict, verdict, "{sql}: {}", found.detail);
    }
    let place = Place::new(INVOICES);
    let found = place
        .sink(json!({ "table": "invoices" }))
        .await
        .inspect()
        .await;
    assert_eq!(found.verdict, Verdict::NotInspected);
}

#[tokio::test]
async fn values_keep_what_they_say() {
    let place = Place::new(
        "CREATE TABLE invoices (write_key TEXT UNIQUE, i INTEGER, r REAL, t TEXT, n NUMERIC, x)",
    );
    let sink = place.sink(keyed()).await;
    let body =
        r#"{"i":9223372036854775807,"r":1.10,"t":1.10,"n":12345678901234567890,"x":[1.10,true]}"#;
    assert_eq!(send_one(&sink, body).await, Outcome::delivered());
    let cells: Vec<Cell> = place
        .reader
        .query_row("SELECT i, r, t, n, x FROM invoices", [], |row| {
            (0..5).map(|i| row.get(i)).collect()
        })
        .unwrap();
    assert_eq!(cells[0], Cell::Integer(i64::MAX));
    assert_eq!(cells[1], Cell::Real(1.1));
    assert_eq!(cells[2], Cell::Text("1.10".into()));
    assert_eq!(cells[4], Cell::Text("[1.10,true]".into()));
    // A NUMERIC column is the owner's decision for a double.
    assert!(
        matches!(cells[3], Cell::Real(_) | Cell::Text(_)),
        "{:?}",
        cells[3]
    );
}

#[tokio::test]
async fn a_table_and_its_folder_come_from_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/ledger.db");
    let sink = sink(
        &path,
        json!({
            "table": "odd \"name\"", "write_key_column": "key", "create_table": true,
            "columns": { "order": { "$template": 0 }, "kind": "fixed" }, "body_column": "payload",
        }),
    )
    .await;
    assert_eq!(sink.inspect().await.verdict, Verdict::Verified);
    for (key, body) in [(1, &b"{}"[..]), (2, b""), (3, b"\xff\xfe")] {
        let write = || write_of(key, body).template(0, "4711");
        assert_eq!(send(&sink, [write()]).await, [Outcome::delivered()]);
        assert_eq!(send(&sink, [write()]).await, [Outcome::delivered_repeat()]);
    }
    let reader = Connection::open(&path).unwrap();
    let types: String = reader
        .query_row(
            r#"SELECT group_concat("order" || kind || typeof(payload) || length(payload), ' ') FROM "odd ""name""""#,
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(types, "4711fixedtext2 4711fixedtext0 4711fixedblob2");
}

#[tokio::test]
async fn without_create_a_missing_file_is_down_and_stays_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.db");
    let config = serde_json::from_value(json!({ "path": path, "create": false })).unwrap();
    let failure = testing::connect::<Sqlite>(config).await.err().unwrap();
    assert_eq!(
        (failure.kind, failure.code.as_str()),
        (FailureKind::Down, "cannot_open")
    );
    assert!(!path.exists());
    std::fs::write(
        &path,
        "this is a text file, not a database, and long enough to show",
    )
    .unwrap();
    let failure = testing::connect::<Sqlite>(connection(&path))
        .await
        .err()
        .unwrap();
    assert_eq!(
        (failure.kind, failure.code.as_str()),
        (FailureKind::Denied, "corrupt")
    );
}

#[tokio::test]
async fn one_refused_write_rolls_its_batch_back_and_is_named() {
    let place = Place::new(
        "CREATE TABLE invoices (write_key TEXT UNIQUE, invoice INTEGER UNIQUE NOT NULL CHECK (invoice < 100))",
    );
    let sink = place.sink(keyed()).await;
    for (bad, code) in [
        (r#"{"invoice":1}"#, "constraint"),
        (r#"{"invoice":500}"#, "constraint"),
        (r#"{"invoice":null}"#, "constraint"),
        (r#"{"unknown":1}"#, "unknown_field"),
        (r#"{"WRITE_KEY":"mine","invoice":2}"#, "body"),
        ("[1]", "body"),
        ("not json", "body"),
        ("", "body"),
    ] {
        let outcomes = send(
            &sink,
            [
                write_of(1, r#"{"invoice":1}"#),
                write_of(2, bad),
                write_of(3, r#"{"invoice":3}"#),
            ],
        )
        .await;
        refused(&outcomes[1], code);
        for companion in [&outcomes[0], &outcomes[2]] {
            let found = (companion.applied(), companion.advice(), companion.code());
            assert_eq!(found, (Applied::No, Advice::Now, "batch"), "{bad}");
        }
        assert_eq!(place.count(), 0, "{bad}");
    }
    assert_eq!(
        send_one(&sink, r#"{"invoice":1}"#).await,
        Outcome::delivered()
    );
}

#[tokio::test]
async fn a_missing_table_or_column_waits_for_its_owner() {
    let place = Place::new("CREATE TABLE other (a)");
    let sink = place.sink(keyed()).await;
    let outcome = send_one(&sink, r#"{"invoice":1}"#).await;
    denied(&outcome, "no_table");
    assert_eq!(outcome.scope(), Scope::Target);
    place
        .reader
        .execute_batch("CREATE TABLE invoices (invoice)")
        .unwrap();
    denied(&send_one(&sink, r#"{"invoice":1}"#).await, "no_column");
    place
        .reader
        .execute_batch("ALTER TABLE invoices ADD COLUMN write_key TEXT")
        .unwrap();
    assert_eq!(
        send_one(&sink, r#"{"invoice":1}"#).await,
        Outcome::delivered()
    );
    // A trigger that does not compile is the owner's as well.
    place
        .reader
        .execute_batch(
            "CREATE TRIGGER t AFTER INSERT ON invoices BEGIN INSERT INTO gone VALUES (1); END",
        )
        .unwrap();
    denied(&send_one(&sink, r#"{"invoice":2}"#).await, "statement");
}

#[tokio::test]
async fn fields_without_a_column_are_left_out_where_asked() {
    let place = Place::new(
        "CREATE TABLE invoices (write_key TEXT UNIQUE, invoice, twice AS (invoice * 2))",
    );
    let strict = place.sink(keyed()).await;
    refused(
        &send_one(&strict, r#"{"invoice":1,"twice":3}"#).await,
        "unknown_field",
    );
    let mut config = keyed();
    config["ignore_unknown_fields"] = true.into();
    let lenient = place.sink(config).await;
    assert_eq!(
        send_one(&lenient, r#"{"invoice":1,"twice":3,"x":{}}"#).await,
        Outcome::delivered()
    );
    assert_eq!(place.one::<i64>("SELECT twice FROM invoices"), 2);
    let bare = place
        .sink(json!({ "table": "invoices", "ignore_unknown_fields": true }))
        .await;
    assert_eq!(send_one(&bare, "{}").await, Outcome::delivered());
    assert_eq!(place.count(), 2);
}

#[tokio::test]
async fn a_lock_held_elsewhere_is_down_and_passes() {
    let place = Place::new(INVOICES);
    let sink = place.sink(keyed()).await;
    place.reader.execute_batch("BEGIN IMMEDIATE").unwrap();
    let start = Instant::now();
    let outcome = send_one(&sink, r#"{"invoice":1}"#).await;
    assert_eq!(
        (outcome.applied(), outcome.scope(), outcome.code()),
        (Applied::No, Scope::Connection, "busy")
    );
    assert!(start.elapsed() < Duration::from_secs(5));
    let probed = testing::connect::<Sqlite>(connection(&place.path()))
        .await
        .unwrap();
    assert_eq!(probed.probe().await.unwrap_err().code, "busy");
    place.reader.execute_batch("ROLLBACK").unwrap();
    probed.probe().await.unwrap();
    probed.close().await;
    assert_eq!(probed.probe().await.unwrap_err().code, "closed");
    assert_eq!(
        send_one(&sink, r#"{"invoice":1}"#).await,
        Outcome::delivered()
    );
}

#[tokio::test]
async fn a_write_given_up_at_its_deadline_does_not_land_later() {
    let place = Place::new(INVOICES);
    let path = place.path();
    let config = serde_json::from_value(json!({ "path": path, "busy_timeout": "1m" })).unwrap();
    let sink = testing::open_sink::<WriteRows>(config, serde_json::from_value(keyed()).unwrap())
        .await
        .unwrap();
    place.reader.execute_batch("BEGIN IMMEDIATE").unwrap();
    let batch = testing::batch([write_of(1, r#"{"invoice":1}"#)]);
    let outcomes = testing::write_within(&sink, &batch, Duration::from_millis(300)).await;
    assert_eq!(
        outcomes[0].applied(),
        if outcomes[0].code() == "busy" {
            Applied::No
        } else {
            Applied::Maybe
        }
    );
    place.reader.execute_batch("ROLLBACK").unwrap();
    // The next write runs after the one that was given up.
    assert_eq!(
        send(&sink, [write_of(2, r#"{"invoice":2}"#)]).await,
        [Outcome::delivered()]
    );
    assert_eq!(place.count(), 1);
}

#[tokio::test]
async fn a_long_transaction_given_up_half_way_is_rolled_back() {
    let place = Place::new(INVOICES);
    let sink = place.sink(keyed()).await;
    let rows = vec![r#"{"invoice":1}"#; 100_000].join(",");
    let batch = testing::batch([write_of(1, format!("[{rows}]"))]);
    // Long enough to read the body and to start inserting, too short for all rows.
    let outcomes = testing::write_within(&sink, &batch, Duration::from_millis(150)).await;
    assert_eq!(outcomes[0].code(), "deadline");
    assert_eq!(
        send(&sink, [write_of(2, r#"{"invoice":2}"#)]).await,
        [Outcome::delivered()]
    );
    assert_eq!(place.count(), 1);
}

#[tokio::test]
async fn a_commit_that_fails_leaves_nothing_open() {
    let place = Place::new(
        "CREATE TABLE customers (id INTEGER PRIMARY KEY);
         CREATE TABLE invoices (write_key TEXT UNIQUE, invoice REFERENCES customers DEFERRABLE INITIALLY DEFERRED)",
    );
    let sink = place.sink(keyed()).await;
    refused(&send_one(&sink, r#"{"invoice":1}"#).await, "constraint");
    assert_eq!(place.count(), 0);
    place
        .reader
        .execute_batch("INSERT INTO customers VALUES (1)")
        .unwrap();
    assert_eq!(
        send_one(&sink, r#"{"invoice":1}"#).await,
        Outcome::delivered()
    );
    assert_eq!(place.count(), 1);
}

#[tokio::test]
async fn a_file_that_was_replaced_is_opened_again() {
    let place = Place::new(INVOICES);
    let sink = place.sink(keyed()).await;
    assert_eq!(
        send_one(&sink, r#"{"invoice":1}"#).await,
        Outcome::delivered()
    );
    std::fs::rename(place.path(), place.folder.path().join("moved.db")).unwrap();
    for file in ["ledger.db-wal", "ledger.db-shm"] {
        let _ = std::fs::remove_file(place.folder.path().join(file));
    }
    let fresh = Connection::open(place.path()).unwrap();
    fresh.execute_batch(INVOICES).unwrap();
    assert_eq!(
        send(&sink, [write_of(2, r#"{"invoice":2}"#)]).await,
        [Outcome::delivered()]
    );
    let found: i64 = fresh
        .query_row("SELECT invoice FROM invoices", [], |row| row.get(0))
        .unwrap();
    assert_eq!(found, 2);
}

#[tokio::test]
async fn concurrent_batches_all_land_once() {
    let place = Place::new(INVOICES);
    let sink = Arc::new(place.sink(keyed()).await);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8_u8 {
        let sink = Arc::clone(&sink);
        tasks.spawn(async move {
            for round in 0..20_u8 {
                let writes = (0..5_u8).map(|i| {
                    let mut key = [task; 16];
                    key[1] = round;
                    key[2] = i;
                    TestWrite::new(r#"{"invoice":1}"#).key(key)
                });
                let writes: Vec<_> = writes.collect();
                assert_eq!(
                    send(&sink, writes.clone()).await,
                    vec![Outcome::delivered(); 5]
                );
                assert_eq!(
                    send(&sink, writes).await,
                    vec![Outcome::delivered_repeat(); 5]
                );
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(place.count(), 8 * 20 * 5);
}

#[tokio::test]
async fn a_body_of_100_mb_is_one_row() {
    let place = Place::new("CREATE TABLE invoices (write_key TEXT UNIQUE, body)");
    let mut config = keyed();
    config["body_column"] = "body".into();
    let sink = place.sink(config).await;
    assert_eq!(
        send_one(&sink, vec![b'a'; 100 << 20]).await,
        Outcome::delivered()
    );
    assert_eq!(
        place.one::<i64>("SELECT length(body) FROM invoices"),
        100 << 20
    );
}

#[test]
fn the_declaration_is_coherent_and_resolves_by_configuration() {
    assert_eq!(
        consign_manifest::coherence::sink(&WriteRows::declaration()),
        Vec::<String>::new()
    );
    let resolve = |config: Value| {
        WriteRows::resolve(
            &connection(Path::new("l.db")),
            &serde_json::from_value(config).unwrap(),
        )
    };
    let keyed = resolve(keyed());
    assert_eq!(
        (keyed.promise, keyed.repeat),
        (Promise::EffectivelyOnce, RepeatKind::WriteKey)
    );
    assert_eq!(keyed.target_id, "invoices");
    let plain = resolve(json!({ "table": "invoices" }));
    assert_eq!(
        (plain.promise, plain.repeat),
        (Promise::AtLeastOnce, RepeatKind::SecondCopy)
    );
    assert_eq!(plain.reason, "`write_key_column` is not set");
    for (config, part) in [
        (json!({ "table": "" }), "`table`"),
        (
            json!({ "table": "t", "create_table": true }),
            "`create_table`",
        ),
        (
            json!({ "table": "t", "write_key_column": "a", "columns": { "A": "x" } }),
            "filled twice",
        ),
        (
            json!({ "table": "t", "body_column": "b", "columns": { "b": "x" } }),
            "filled twice",
        ),
    ] {
        let faults = resolve(config).faults;
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }
    for path in [":memory:", "file:x?mode=memory", ""] {
        let config: ConnectionConfig = serde_json::from_value(json!({ "path": path })).unwrap();
        assert_eq!(config.faults().len(), 1, "{path}");
    }
    assert!(serde_json::from_value::<WriteConfig>(json!({ "table": "t", "tabel": 1 })).is_err());
}

#[test]
fn the_plugin_has_a_text_for_every_field() {
    let manifest = consign_plugin_sqlite::plugin().manifest();
    let connector = &manifest.connectors[0];
    for schema in [
        &connector.config_schema,
        &connector.operations[0].config_schema,
    ] {
        for (name, field) in schema["properties"].as_object().unwrap() {
            assert!(
                field["description"].is_string(),
                "`{name}` has no doc comment: {field}"
            );
        }
    }
}
