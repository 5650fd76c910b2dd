//! Notifications: events of the host go through its own routes, each once, over kills, and one that fails
//! does not make another.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::config::{Config, to_table};
use common::ok;
use consign_e2e::{Host, free_port};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// What the table of notices has: code by event id, in the order of arrival. An id twice fails.
fn notices(folder: &Path) -> BTreeMap<i64, String> {
    let db = rusqlite::Connection::open(folder.join("notices.db")).unwrap();
    let mut rows = db.prepare("SELECT id, code FROM n ORDER BY rowid").unwrap();
    let all: Vec<(i64, String)> = rows
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let ids: Vec<i64> = all.iter().map(|(id, _)| *id).collect();
    assert!(ids.is_sorted(), "out of order: {ids:?}");
    let found: BTreeMap<i64, String> = all.iter().cloned().collect();
    assert_eq!(found.len(), all.len(), "an event came twice: {all:?}");
    found
}

fn host(folder: &Path, port: u16, columns: &str) -> Host {
    let sends = [to_table(
        "t",
        "retry: { max_attempts: 2, backoff: { initial: 50ms, max: 100ms } }",
    )];
    let config = |console: u16| {
        Config::new()
            .database()
            .hooks(port, &sends)
            .connection("own", "events", &format!("endpoint: \"http://127.0.0.1:{console}\""))
            .connection("notices", "sqlite", "path: ./notices.db, busy_timeout: 100ms")
            .adapter(
                "notices",
                ["own", "events.read", "poll_interval: 50ms"],
                &[format!(
                    "{{ id: table, connection: notices, operation: sqlite.write, config: {{ table: n, columns: {columns} }} }}"
                )],
            )
            .text()
    };
    // The console's port is the harness's choice: known once it has written the file.
    let host = Host::new(folder, &config(0));
    let console: u16 = host.url("").rsplit(':').next().unwrap().parse().unwrap();
    let text = std::fs::read_to_string(host.config()).unwrap();
    let text = text.replace("http://127.0.0.1:0", &format!("http://127.0.0.1:{console}"));
    std::fs::write(host.config(), text).unwrap();
    host
}

/// The events that have to have come: all of a level that is worth it and of other adapters.
fn expected(host: &Host) -> BTreeMap<i64, String> {
    let events = ok(host, &["events", "--level", "warn", "--limit", "10000"]);
    let events = events.as_array().unwrap().iter();
    events
        .filter(|event| event["adapter"] != "notices")
        .map(|event| {
            (
                event["id"].as_i64().unwrap(),
                event["code"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

async fn all_arrive(host: &Host, folder: &Path) -> BTreeMap<i64, String> {
    let from = Instant::now();
    loop {
        let (wanted, there) = (expected(host), notices(folder));
        if wanted == there {
            return there;
        }
        assert!(
            from.elapsed() < Duration::from_secs(60),
            "wanted {wanted:?}\nthere {there:?}\n{}",
            host.log()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn post(port: u16, id: &str) {
    common::post(
        &reqwest::Client::new(),
        &format!("http://127.0.0.1:{port}/in"),
        id,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_arrives_once_and_in_order_although_the_host_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let db = rusqlite::Connection::open(folder.path().join("notices.db")).unwrap();
    // With a log of its own, so that this reader never keeps the host from writing.
    db.execute_batch(
        "PRAGMA journal_mode = WAL; CREATE TABLE n (id INTEGER, code TEXT, write_key TEXT UNIQUE)",
    )
    .unwrap();
    // Rows that are refused are parked, each with an event.
    let out = rusqlite::Connection::open(folder.path().join("out.db")).unwrap();
    out.execute_batch("CREATE TABLE t (id TEXT CHECK (id = 'never'), write_key TEXT UNIQUE)")
        .unwrap();
    let columns = r#"{ id: "{{ to_string(.body.id) ?? \"\" }}", code: "{{ .body.code }}" }, write_key_column: write_key"#;
    let mut host = host(folder.path(), port, columns);
    host.start().await;
    for round in 0..3 {
        for n in 0..5 {
            post(port, &format!("{round}-{n}")).await;
        }
        let from = Instant::now();
        while ok(&host, &["failed", "list"]).as_array().unwrap().len() < 5 * (round + 1) {
            assert!(from.elapsed() < Duration::from_secs(60), "{}", host.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        host.kill();
        host.start().await;
    }
    let there = all_arrive(&host, folder.path()).await;
    let count = |code: &str| there.values().filter(|one| *one == code).count();
    assert_eq!(
        (count("refused"), count("unclean_exit")),
        (15, 3),
        "{there:?}"
    );
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_that_fails_is_told_once_and_makes_no_further_notices() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let db = rusqlite::Connection::open(folder.path().join("notices.db")).unwrap();
    db.execute_batch("CREATE TABLE n (id TEXT CHECK (id = 'never'))")
        .unwrap();
    let mut host = host(folder.path(), port, r#"{ id: "{{ .body.code }}" }"#);
    host.start().await;
    host.kill();
    host.start().await;
    let parked = async || {
        let list = ok(&host, &["failed", "list"]);
        list.as_array().unwrap().clone()
    };
    let from = Instant::now();
    while parked().await.is_empty() {
        assert!(from.elapsed() < Duration::from_secs(60), "{}", host.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let list: Vec<Value> = parked().await;
    let notified = expected(&host).len();
    assert!(
        list.len() <= notified,
        "{} parked for {notified} events: {list:#?}",
        list.len()
    );
    assert!(list.iter().all(|one| one["adapter"] == "notices"));
}
