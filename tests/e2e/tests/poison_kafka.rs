//! A poison message in a Kafka partition: what is held, what flows, and what a handler does about it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;
#[path = "../../../plugins/kafka/tests/conformance/raw.rs"]
#[allow(dead_code, reason = "the connector's own tests use the rest")]
mod raw;

use common::{assert_ledgers, drained, ok, read_table, rebuild_table};
use consign_e2e::{Host, free_port};
use raw::{Raw, Record};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Shorter than any test waits: a member that holds a message must stay in its group.
const SESSION: Duration = Duration::from_secs(3);

/// What is in the two partitions; the table refuses one of them, sent there directly.
const FIRST: [&str; 5] = ["one", "two", "bad-3", "four", "five"];
const SECOND: [&str; 2] = ["six", "seven"];

struct Poison {
    folder: tempfile::TempDir,
    host: Host,
    broker: SocketAddr,
    topic: String,
}

impl Poison {
    /// None where there is no broker.
    async fn new(on_failure: &str) -> Option<Self> {
        let kafka = consign_testkit::service("kafka")?;
        let broker = kafka.url.split('#').next().unwrap().parse().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let topic = format!("e2e-poison-{}", free_port());
        let mut raw = Raw::connect(broker).await;
        raw.create_topic(&topic, 2, &[]).await;
        for (partition, ids) in [(0, &FIRST[..]), (1, &SECOND[..])] {
            let records: Vec<Record> = ids.iter().map(|id| record(id)).collect();
            raw.produce(&topic, partition, &records).await;
        }
        let db = rusqlite::Connection::open(folder.path().join("out.db")).unwrap();
        db.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE t (id TEXT CHECK (id NOT LIKE 'bad%'), write_key TEXT UNIQUE)",
        )
        .unwrap();
        let host = Host::new(
            folder.path(),
            &format!(
                r#"
connections:
  cluster: {{ connector: kafka, config: {{ servers: ["{broker}"] }} }}
  table: {{ connector: sqlite, config: {{ path: ./out.db, busy_timeout: 100ms }} }}
  dead: {{ connector: sqlite, config: {{ path: ./dead.db, busy_timeout: 100ms }} }}
adapters:
  orders:
    source: {{ connection: cluster, operation: kafka.consume, config: {{ topics: [{topic}], group: {topic}, session_timeout: {session}s }} }}
    routes:
      - name: dead
        match: never.matches
        send:
          - id: letters
            connection: dead
            operation: sqlite.write
            config: {{ table: letters, create_table: true, body_column: body, write_key_column: write_key }}
      - name: all
        {on_failure}
        send:
          - id: table
            connection: table
            operation: sqlite.write
            delivery: direct
            order: none
            retry: {{ backoff: {{ initial: 50ms, max: 500ms }} }}
            config: {{ table: t, columns: {{ id: "{{{{ .body.id }}}}" }}, write_key_column: write_key }}
"#,
                session = SESSION.as_secs(),
            ),
        );
        Some(Self {
            folder,
            host,
            broker,
            topic,
        })
    }

    fn rows(&self) -> usize {
        read_table(&self.folder.path().join("out.db"), "t").len()
    }

    async fn until_rows(&self, count: usize) {
        common::wait_until(&format!("{count} rows"), || self.rows() >= count).await;
        assert_eq!(self.rows(), count);
    }

    /// What the broker itself says that the group has committed.
    async fn committed(&self) -> [i64; 2] {
        let mut raw = Raw::connect(self.broker).await;
        let mut all = [0; 2];
        for (partition, committed) in (0..).zip(&mut all) {
            let found = raw.committed(&self.topic, &self.topic, partition).await;
            *committed = found.unwrap_or_default();
        }
        all
    }

    async fn until_committed(&self, expected: [i64; 2]) {
        let from = Instant::now();
        while self.committed().await != expected {
            let committed = self.committed().await;
            assert!(from.elapsed() < Duration::from_secs(60), "{committed:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn record(id: &str) -> Record {
    Record {
        offset: 0,
        key: None,
        value: Some(format!("{{\"id\": \"{id}\"}}").into_bytes()),
        headers: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_handler_a_partition_stalls_at_the_message_and_the_other_flows() {
    let Some(mut poison) = Poison::new("").await else {
        return;
    };
    poison.host.start().await;
    poison.until_rows(4).await;
    poison.until_committed([2, 2]).await;
    // Far beyond what the group waits for a sign of life.
    tokio::time::sleep(SESSION * 3).await;
    assert_eq!(poison.rows(), 4, "nothing overtakes in the partition");
    assert_eq!(poison.committed().await, [2, 2]);
    let held = common::wait_for_event(&poison.host, "message_held").await;
    assert_eq!(held.len(), 1, "said once: {held:#?}");
    let said = held[0].to_string();
    assert!(
        said.contains("orders/all/table") && said.contains("CHECK"),
        "{said}"
    );

    // The table takes it after all: the partition goes on by itself.
    let db = rusqlite::Connection::open(poison.folder.path().join("out.db")).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    rebuild_table(&db, "id TEXT");
    poison.until_rows(7).await;
    poison.until_committed([5, 2]).await;
    assert_ledgers(&ok(&poison.host, &["status"]));
    assert_eq!(poison.host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolated_poison_is_set_aside_and_its_partition_flows_on() {
    let Some(mut poison) = Poison::new("on_failure: { handler: isolate_poison }").await else {
        return;
    };
    poison.host.start().await;
    poison.until_rows(6).await;
    poison.until_committed([5, 2]).await;
    let list = ok(&poison.host, &["failed", "list", "--state", "parked"]);
    assert_eq!(list.as_array().unwrap().len(), 1, "{list:#}");
    let shown = ok(
        &poison.host,
        &["failed", "show", &list[0]["id"].to_string()],
    );
    assert!(shown.to_string().contains("bad-3"), "{shown:#}");
    assert_ledgers(&ok(&poison.host, &["status"]));
    assert_eq!(poison.host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_of_poison_is_kept_while_its_destination_is_down_too() {
    let on_failure = "on_failure: { handler: dead_letter, divert: [orders/dead/letters] }";
    let Some(mut poison) = Poison::new(on_failure).await else {
        return;
    };
    let dead = poison.folder.path().join("dead.db");
    let lock = rusqlite::Connection::open(&dead).unwrap();
    lock.execute_batch("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE")
        .unwrap();
    poison.host.start().await;
    poison.until_rows(6).await;
    poison
        .host
        .until("the letter waits in its lane", |status| {
            common::lane(status, "orders/dead/letters")["pending"] == 1
        })
        .await;
    poison.until_committed([5, 2]).await;
    for _ in 0..2 {
        poison.host.kill();
        poison.host.start().await;
    }
    drop(lock);
    let status = drained(&poison.host).await;
    assert_ledgers(&status);
    let db = rusqlite::Connection::open(&dead).unwrap();
    let letters: Vec<String> = db
        .prepare("SELECT body FROM letters")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(letters.len(), 1, "{letters:#?}");
    let letter: Value = serde_json::from_str(&letters[0]).unwrap();
    assert_eq!(letter["format"], "consign.dead_letter/1");
    assert!(letter["body"].to_string().contains("bad-3"), "{letter:#}");
    assert_eq!(poison.rows(), 6);
    assert_eq!(poison.host.stop(), Some(0));
}
