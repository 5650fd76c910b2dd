//! `postgres.write` against a real server: values, repeats, transactions, and what each failure comes
//! to. What was written is read by psql.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[allow(dead_code, reason = "the version is for the conformance test")]
mod server;

use consign_plugin::prelude::*;
use consign_plugin::testing::{self, TestWrite};
use consign_plugin::{Advice, Applied, Scope};
use consign_plugin_postgres::config::{ConnectionConfig, WriteConfig};
use consign_plugin_postgres::connection::Postgres;
use consign_plugin_postgres::sink::WriteRows;
use consign_testkit::proxy::{Action, Fault, Proxy, Trigger};
use serde_json::{Value, json};
use server::Server;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A table of this test's own.
struct Table {
    server: Server,
    name: String,
}

impl Table {
    fn new(columns: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = Server::find()?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{}_{count}", std::process::id());
        server.sql(&format!("CREATE TABLE {name} ({columns})"));
        Some(Self { server, name })
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(&sql.replace("%t", &self.name))
    }

    async fn sink(&self, config: Value) -> WriteRows {
        self.sink_at(self.server.address(), config).await.unwrap()
    }

    async fn sink_at(&self, address: SocketAddr, change: Value) -> Result<WriteRows, Failure> {
        let mut config = match change["mode"] == "statement" {
            true => json!({}),
            false => json!({ "table": self.name }),
        };
        config
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        open(connection(address), config).await
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        drop(
            self.server
                .try_sql(&format!("DROP TABLE IF EXISTS {} CASCADE", self.name)),
        );
    }
}

fn connection(address: SocketAddr) -> ConnectionConfig {
    serde_json::from_value(json!({
        "servers": [address.to_string()], "database": "postgres",
        "auth": { "username": "postgres", "password": "" },
        "timeouts": { "connect": "5s", "request": "5s" },
    }))
    .unwrap()
}

async fn open(connection: ConnectionConfig, config: Value) -> Result<WriteRows, Failure> {
    let config: WriteConfig = serde_json::from_value(config).unwrap();
    let resolved = WriteRows::resolve(&connection, &config);
    assert!(resolved.faults.is_empty(), "{:?}", resolved.faults);
    testing::open_sink::<WriteRows>(connection, config).await
}

fn axes(outcome: &Outcome) -> (Applied, Scope, Advice, &str) {
    (
        outcome.applied(),
        outcome.scope(),
        outcome.advice(),
        outcome.code(),
    )
}

async fn write(sink: &WriteRows, bodies: &[(&str, u8)]) -> Vec<Outcome> {
    let writes = bodies
        .iter()
        .map(|(body, key)| TestWrite::new(*body).key([*key; 16]));
    testing::write(sink, &testing::batch(writes)).await
}

#[tokio::test]
async fn every_value_arrives_without_loss() {
    let Some(table) = Table::new(
        "k text UNIQUE, n numeric, d double precision, i bigint, t timestamptz, p timestamp, j jsonb, o json, a numeric[], \
         s text[], m int[][], b bytea, u uuid, f boolean, x text, v varchar(3), e date, r int4range, g jsonb[]",
    ) else {
        return;
    };
    let sink = table.sink(json!({ "write_key_column": "k" })).await;
    let number =
        "1234567890123456789012345678901234567890.1234567890123456789012345678901234567890";
    let body = format!(
        r#"{{"n": {number}, "d": 0.1, "i": 9223372036854775807, "t": "2026-11-30T23:59:59.123456+05:30",
            "p": "2026-11-30 01:02:03.000001", "j": {{"n": {number}, "a": [1.10, null, "ü"]}}, "o": {{ "a" : 1.10, "a": 2 }},
            "a": [1.10, null, {number}], "s": ["a\"b", "c\\d", "NULL", "", "{{,}}", null], "m": [[1, 2], [3, 4]],
            "b": "\\xDEADBEEF00", "u": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "f": true, "x": {number},
            "v": "äöü", "e": "2026-02-28", "r": "[1,5)", "g": [{{"a": 1}}, [2], "t"]}}"#
    );
    assert_eq!(write(&sink, &[(&body, 1)]).await, [Outcome::delivered()]);
    let one = |expression: &str| {
        table.sql(&format!(
            "SET timezone = 'UTC'; SELECT {expression} FROM %t"
        ))
    };
    assert_eq!(one("k"), format!("{}#0", "01".repeat(16)));
    assert_eq!(one("n"), number);
    assert_eq!(one("x"), number);
    assert_eq!(one("d"), "0.1");
    assert_eq!(one("i"), "9223372036854775807");
    assert_eq!(one("t"), "2026-11-30 18:29:59.123456+00");
    assert_eq!(one("p"), "2026-11-30 01:02:03.000001");
    assert_eq!(one("j->>'n'"), number);
    assert_eq!(one("j->'a'"), r#"[1.10, null, "ü"]"#);
    assert_eq!(one("o"), r#"{ "a" : 1.10, "a": 2 }"#);
    assert_eq!(one("a"), format!("{{1.10,NULL,{number}}}"));
    assert_eq!(one("s"), r#"{"a\"b","c\\d","NULL","","{,}",NULL}"#);
    assert_eq!(one("m[2][1]"), "3");
    assert_eq!(one("b"), "\\xdeadbeef00");
    assert_eq!(one("u"), "6ba7b810-9dad-11d1-80b4-00c04fd430c8");
    assert_eq!(one("f"), "t");
    assert_eq!(one("v"), "äöü");
    assert_eq!(one("e"), "2026-02-28");
    assert_eq!(one("r"), "[1,5)");
    assert_eq!(one("g[2]"), "[2]");
}

#[tokio::test]
async fn a_body_of_any_bytes_and_templates_fill_their_columns() {
    let Some(table) = Table::new("k text UNIQUE, id bigint, at timestamptz, raw bytea") else {
        return;
    };
    let config = json!({
        "write_key_column": "k", "body_column": "raw",
        "columns": { "id": {"$template": 0}, "at": {"$template": 1} },
    });
    let config: WriteConfig = {
        let mut config = config;
        config["table"] = table.name.clone().into();
        serde_json::from_value(config).unwrap()
    };
    let sink = testing::open_sink::<WriteRows>(connection(table.server.address()), config).await;
    let body: Vec<u8> = (0..=255).collect();
    let batch = testing::batch([TestWrite::new(body)
        .key([2; 16])
        .template(0, "42")
        .template(1, "2026-11-30 12:00:00")]);
    assert_eq!(
        testing::write(&sink.unwrap(), &batch).await,
        [Outcome::delivered()]
    );
    assert_eq!(
        table.sql("SELECT id, length(raw), get_byte(raw, 255) FROM %t"),
        "42|256|255"
    );
    let at = table.sql("SELECT at AT TIME ZONE 'UTC' FROM %t");
    assert_eq!(at, "2026-11-30 12:00:00", "without an offset it is UTC");
}

#[tokio::test]
async fn a_repeat_changes_nothing_and_rows_have_keys_of_their_own() {
    let Some(table) = Table::new("k text UNIQUE, n int") else {
        return;
    };
    let sink = table.sink(json!({ "write_key_column": "k" })).await;
    let body = r#"[{"n": 1}, {"n": 2}, {"n": 3}]"#;
    assert_eq!(
        write(&sink, &[(body, 1), ("[]", 2)]).await,
        [Outcome::delivered(), Outcome::delivered()]
    );
    assert_eq!(
        write(&sink, &[(body, 1), (r#"{"n": 4}"#, 3)]).await,
        [Outcome::delivered_repeat(), Outcome::delivered()]
    );
    assert_eq!(
        table.sql("SELECT count(*), count(DISTINCT k), sum(n) FROM %t"),
        "4|4|10"
    );
    table.sql("DELETE FROM %t WHERE n = 2");
    assert_eq!(write(&sink, &[(body, 1)]).await, [Outcome::delivered()]);
    assert_eq!(table.sql("SELECT count(*) FROM %t"), "4");
    assert_eq!(sink.inspect().await.verdict, Verdict::Verified);
}

#[tokio::test]
async fn without_a_unique_index_a_repeat_is_a_second_copy_and_the_inspection_says_so() {
    let Some(table) = Table::new("k text, n int") else {
        return;
    };
    let sink = table.sink(json!({ "write_key_column": "k" })).await;
    for index in [
        "",
        "CREATE UNIQUE INDEX ON %t (k) WHERE n > 5",
        "CREATE UNIQUE INDEX ON %t (k, n)",
        "CREATE UNIQUE INDEX ON %t (lower(k))",
    ] {
        table.sql(index);
        let inspection = sink.inspect().await;
        assert_eq!(inspection.verdict, Verdict::Contradicted, "{index}");
        assert!(
            inspection
                .detail
                .contains("CREATE UNIQUE INDEX CONCURRENTLY"),
            "{}",
            inspection.detail
        );
    }
    table.sql("DROP INDEX %t_k_n_idx, %t_lower_idx");
    for _ in 0..2 {
        assert_eq!(
            write(&sink, &[(r#"{"n": 1}"#, 1)]).await,
            [Outcome::delivered()]
        );
    }
    assert_eq!(table.sql("SELECT count(*) FROM %t"), "2");
    table.sql("DELETE FROM %t; CREATE UNIQUE INDEX whole ON %t (k) INCLUDE (n)");
    assert_eq!(sink.inspect().await.verdict, Verdict::Verified);
    for expected in [Outcome::delivered(), Outcome::delivered_repeat()] {
        assert_eq!(write(&sink, &[(r#"{"n": 1}"#, 1)]).await, [expected]);
    }
    // Gone while the host runs: nothing is written without it until an inspection has told.
    table.sql("DROP INDEX whole");
    let outcomes = write(&sink, &[(r#"{"n": 1}"#, 2)]).await;
    assert_eq!(
        axes(&outcomes[0]),
        (Applied::No, Scope::Target, Advice::NeverAlone, "42P10")
    );
    assert_eq!(sink.inspect().await.verdict, Verdict::Contradicted);
    assert_eq!(
        write(&sink, &[(r#"{"n": 1}"#, 2)]).await,
        [Outcome::delivered()]
    );
    table.sql("ALTER TABLE %t SET UNLOGGED");
    assert!(sink.inspect().await.warnings[0].contains("UNLOGGED"));
}

#[tokio::test]
async fn an_upsert_replaces_what_the_row_has_and_leaves_the_rest() {
    let Some(table) = Table::new("id int, part int, a text, b text DEFAULT 'kept', k text") else {
        return;
    };
    let config =
        json!({ "mode": "upsert", "conflict_columns": ["part", "id"], "write_key_column": "k" });
    let sink = table.sink(config).await;
    assert_eq!(sink.inspect().await.verdict, Verdict::Contradicted);
    table.sql("ALTER TABLE %t ADD PRIMARY KEY (id, part)");
    assert_eq!(sink.inspect().await.verdict, Verdict::Verified);
    for (body, key) in [
        (r#"{"id": 1, "part": 1, "a": "one"}"#, 1),
        (r#"{"id": 1, "part": 1, "a": "two"}"#, 2),
        (r#"[{"id": 1, "part": 2}, {"id": 1, "part": 2}]"#, 3),
    ] {
        assert_eq!(write(&sink, &[(body, key)]).await, [Outcome::delivered()]);
    }
    assert_eq!(
        table.sql("SELECT a, b, left(k, 2) FROM %t WHERE part = 1"),
        "two|kept|02"
    );
    assert_eq!(table.sql("SELECT count(*) FROM %t"), "2");
    let outcomes = write(&sink, &[(r#"{"id": 1}"#, 4)]).await;
    assert_eq!(outcomes[0].code(), "no_conflict_column");
}

#[tokio::test]
async fn a_statement_gets_its_parameters_and_the_key_as_the_last() {
    let Some(table) = Table::new("n int, k text") else {
        return;
    };
    let statement = format!(
        "INSERT INTO {} SELECT n + $1, $2 FROM generate_series(1, 2) AS n",
        table.name
    );
    let sink = table.sink(json!({ "mode": "statement", "statement": statement, "parameters": ["10"], "write_key_parameter": true })).await;
    assert_eq!(write(&sink, &[("x", 7)]).await, [Outcome::delivered()]);
    assert_eq!(
        table.sql("SELECT sum(n), min(k) FROM %t"),
        format!("23|{}", "07".repeat(16))
    );
    assert_eq!(sink.inspect().await.verdict, Verdict::NotInspected);
}

#[tokio::test]
async fn one_refused_write_rolls_its_batch_back_and_is_named() {
    let Some(table) = Table::new("k text UNIQUE, n int CHECK (n < 10), z text") else {
        return;
    };
    let sink = table.sink(json!({ "write_key_column": "k" })).await;
    for (bad, code) in [
        (r#"{"n": 10}"#, "23514"),
        (r#"{"n": "x"}"#, "22P02"),
        (r#"{"n": 99999999999}"#, "22003"),
        (r#"{"n": 1.5}"#, "22P02"),
        (r#"{"z": "a\u0000b"}"#, "22021"),
        (r#"{"q": 1}"#, "unknown_field"),
        (r#"{"k": "mine"}"#, "body"),
        (r#"{"n": 1, "n": 2}"#, "body"),
        ("7", "body"),
        ("", "body"),
    ] {
        let outcomes = write(&sink, &[(r#"{"n": 1}"#, 1), (bad, 2), (r#"{"n": 3}"#, 3)]).await;
        assert_eq!(
            axes(&outcomes[1]),
            (Applied::No, Scope::Write, Advice::Never, code),
            "{bad}: {:?}",
            outcomes[1]
        );
        for companion in [0, 2] {
            assert_eq!(
                axes(&outcomes[companion]),
                (Applied::No, Scope::Write, Advice::Now, "batch")
            );
        }
    }
    assert_eq!(table.sql("SELECT count(*) FROM %t"), "0");
    assert_eq!(
        write(&sink, &[(r#"{"n": 1}"#, 1)]).await,
        [Outcome::delivered()]
    );
}

#[tokio::test]
async fn a_constraint_that_the_commit_runs_into_is_a_refusal_and_nothing_stays() {
    let Some(table) = Table::new("k text UNIQUE, n int UNIQUE DEFERRABLE INITIALLY DEFERRED")
    else {
        return;
    };
    let sink = table.sink(json!({ "write_key_column": "k" })).await;
    let outcomes = write(&sink, &[(r#"[{"n": 1}, {"n": 1}]"#, 1)]).await;
    assert_eq!(
        axes(&outcomes[0]),
        (Applied::No, Scope::Write, Advice::Never, "23505")
    );
    assert_eq!(table.sql("SELECT count(*) FROM %t"), "0");
}

#[tokio::test]
async fn what_the_tables_owner_has_to_mend_is_denied_and_mended_without_a_restart() {
    let Some(table) = Table::new("k text UNIQUE") else {
        return;
    };
    let denied = |code| (Applied::No, Scope::Target, Advice::NeverAlone, code);
    let sink = table
        .sink(json!({ "write_key_column": "k", "columns": { "n": "1" } }))
        .await;
    let outcomes = write(&sink, &[("x", 1)]).await;
    assert_eq!(axes(&outcomes[0]), denied("no_column"));
    table.sql("ALTER TABLE %t ADD COLUMN n int");
    assert_eq!(write(&sink, &[("x", 1)]).await, [Outcome::delivered()]);
    table.sql("ALTER TABLE %t RENAME COLUMN n TO m");
    let outcomes = write(&sink, &[("x", 2)]).await;
    assert_eq!(axes(&outcomes[0]), denied("42703"));
    table.sql("ALTER TABLE %t RENAME COLUMN m TO n");
    assert_eq!(write(&sink, &[("x", 2)]).await, [Outcome::delivered()]);
    table.sql("DROP TABLE %t");
    assert_eq!(axes(&write(&sink, &[("x", 3)]).await[0]), denied("42P01"));
    assert_eq!(
        axes(&write(&sink, &[("x", 3)]).await[0]),
        denied("no_table")
    );
    assert_eq!(sink.inspect().await.verdict, Verdict::Contradicted);
}

#[tokio::test]
async fn who_may_not_come_in_is_denied_and_a_missing_server_is_down() {
    let Some(server) = Server::find() else {
        return;
    };
    let kind = |change: Value| async move {
        let mut config = serde_json::to_value(connection(server.address())).unwrap();
        config["auth"]["password"] = "".into();
        config
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let config = serde_json::from_value(config).unwrap();
        let failed = testing::connect::<Postgres>(config).await.err().unwrap();
        (failed.kind, failed.code)
    };
    let kind = &kind;
    let nobody = json!({ "auth": { "username": "nobody_of_this_name", "password": "x" } });
    let refused = consign_testkit::host::free_port();
    for (change, expected) in [
        (nobody, (FailureKind::Denied, "28000")),
        (
            json!({ "database": "no_database_of_this_name" }),
            (FailureKind::Denied, "3D000"),
        ),
        (
            json!({ "servers": [format!("127.0.0.1:{refused}")] }),
            (FailureKind::Down, "connect"),
        ),
        // The server of the tests has no certificate: a plain session instead would be silent.
        (json!({ "tls": {} }), (FailureKind::Denied, "tls")),
    ] {
        let found = (kind.clone())(change.clone()).await;
        assert_eq!((found.0, found.1.as_str()), expected, "{change}");
    }
}

#[tokio::test]
async fn a_lock_that_is_held_is_waited_for_and_then_tried_again() {
    let Some(table) = Table::new("k text UNIQUE, n int") else {
        return;
    };
    let sink = table.sink(json!({ "write_key_column": "k" })).await;
    assert_eq!(
        write(&sink, &[(r#"{"n": 1}"#, 1)]).await,
        [Outcome::delivered()]
    );
    let holder = table.server.clone();
    let sql = format!(
        "BEGIN; LOCK TABLE {} IN EXCLUSIVE MODE; SELECT pg_sleep(8); COMMIT",
        table.name
    );
    let held = tokio::task::spawn_blocking(move || holder.sql(&sql));
    let locked = "SELECT count(*) FROM pg_locks WHERE relation = '%t'::regclass AND mode = 'ExclusiveLock' AND granted";
    while table.sql(locked) == "0" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let batch = testing::batch([TestWrite::new(r#"{"n": 2}"#).key([2; 16])]);
    let from = Instant::now();
    let outcomes = testing::write_within(&sink, &batch, Duration::from_millis(800)).await;
    assert!(from.elapsed() < Duration::from_secs(2));
    assert_eq!(outcomes[0].applied(), Applied::No, "{:?}", outcomes[0]);
    held.await.unwrap();
    assert_eq!(testing::write(&sink, &batch).await, [Outcome::delivered()]);
}

#[tokio::test]
async fn an_answer_that_is_lost_is_maybe_only_once_commit_was_sent() {
    let Some(table) = Table::new("k text UNIQUE, n int") else {
        return;
    };
    let proxy = Proxy::start(table.server.address()).await.unwrap();
    let sink = table
        .sink_at(proxy.address(), json!({ "write_key_column": "k" }))
        .await
        .unwrap();
    let one =
        |key: u8| testing::batch([TestWrite::new(format!("{{\"n\": {key}}}")).key([key; 16])]);
    assert_eq!(testing::write(&sink, &one(1)).await, [Outcome::delivered()]);
    let short = Duration::from_millis(1_500);

    proxy.arm(Fault::once(Trigger::text("INSERT"), Action::HalfOpen));
    let outcomes = testing::write_within(&sink, &one(2), short).await;
    assert_eq!(
        axes(&outcomes[0]),
        (Applied::No, Scope::Connection, Advice::Now, "timeout")
    );

    proxy.arm(Fault::once(Trigger::text("COMMIT"), Action::SwallowReplies));
    let outcomes = testing::write_within(&sink, &one(3), short).await;
    assert_eq!(
        axes(&outcomes[0]),
        (Applied::Maybe, Scope::Connection, Advice::Now, "timeout")
    );
    proxy.cut();
    let outcomes = testing::write(&sink, &one(3)).await;
    assert_eq!(outcomes, [Outcome::delivered_repeat()]);

    proxy.arm(Fault::once(Trigger::text("COMMIT"), Action::CutAfter));
    let outcomes = testing::write(&sink, &one(4)).await;
    assert_eq!(
        axes(&outcomes[0]),
        (
            Applied::Maybe,
            Scope::Connection,
            Advice::Now,
            "connection_lost"
        )
    );

    proxy.arm(Fault::once(Trigger::text("INSERT"), Action::CutBefore));
    let outcomes = testing::write(&sink, &one(5)).await;
    assert_eq!(
        axes(&outcomes[0]),
        (
            Applied::No,
            Scope::Connection,
            Advice::Now,
            "connection_lost"
        )
    );
    for key in 2..=5 {
        let outcomes = testing::write(&sink, &one(key)).await;
        assert_eq!(
            outcomes[0].applied(),
            Applied::Yes,
            "{key}: {:?}",
            outcomes[0]
        );
    }
    assert_eq!(
        table.sql("SELECT count(*), count(DISTINCT k) FROM %t"),
        "5|5"
    );
}

/// A silent peer leaves the server with an open transaction that holds the key: it must end by itself,
/// or the same write could not be sent again.
#[tokio::test]
async fn a_transaction_whose_client_is_gone_without_a_word_gives_its_locks_back() {
    let Some(table) = Table::new("k text UNIQUE, n int") else {
        return;
    };
    let proxy = Proxy::start(table.server.address()).await.unwrap();
    let sink = table
        .sink_at(proxy.address(), json!({ "write_key_column": "k" }))
        .await
        .unwrap();
    let batch = testing::batch([TestWrite::new(r#"{"n": 1}"#).key([1; 16])]);
    proxy.arm(Fault::once(Trigger::text("COMMIT"), Action::HalfOpen));
    let outcomes = testing::write_within(&sink, &batch, Duration::from_millis(1_500)).await;
    assert_eq!(outcomes[0].applied(), Applied::Maybe);
    // The proxy keeps the server's side open: only the server's own limit ends the transaction.
    let outcomes = testing::write_within(&sink, &batch, Duration::from_secs(4)).await;
    assert_eq!(outcomes, [Outcome::delivered()]);
    assert_eq!(table.sql("SELECT count(*) FROM %t"), "1");
}

#[tokio::test]
async fn a_server_that_is_stopped_is_down_and_a_new_session_is_dialled_when_it_is_back() {
    let Some(private) = consign_testkit::private_service("postgresql") else {
        return;
    };
    let server = Server::of(private.service());
    server.sql("CREATE TABLE t (k text UNIQUE, n int)");
    let config = json!({ "table": "t", "write_key_column": "k" });
    let sink = open(connection(server.address()), config).await.unwrap();
    assert_eq!(
        write(&sink, &[(r#"{"n": 1}"#, 1)]).await,
        [Outcome::delivered()]
    );
    private.stop().unwrap();
    for _ in 0..2 {
        let outcomes = write(&sink, &[(r#"{"n": 2}"#, 2)]).await;
        let axes = axes(&outcomes[0]);
        assert_eq!(
            (axes.0, axes.1),
            (Applied::No, Scope::Connection),
            "{:?}",
            outcomes[0]
        );
    }
    private.start().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        write(&sink, &[(r#"{"n": 2}"#, 2)]).await,
        [Outcome::delivered()]
    );
    for setting in [
        "synchronous_commit = off",
        "default_transaction_read_only = on",
    ] {
        server.sql(&format!("ALTER SYSTEM SET {setting}"));
    }
    server.sql("SELECT pg_reload_conf()");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let outcomes = write(&sink, &[(r#"{"n": 3}"#, 3)]).await;
    assert_eq!(
        axes(&outcomes[0]),
        (Applied::No, Scope::Connection, Advice::Now, "25006")
    );
}
