//! A poison message on JetStream: what is held, what flows, and what a handler does about it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use async_nats::jetstream::consumer::Info;
use common::{assert_ledgers, drained, make_stream, ok, read_table, rebuild_table};
use consign_e2e::{Host, free_port};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// Shorter than any test waits: what is held must be kept from being handed over again.
const ACK_WAIT: Duration = Duration::from_secs(2);

/// A stream of five messages whose third a table refuses, sent there directly.
struct Poison {
    folder: tempfile::TempDir,
    host: Host,
    url: String,
    stream: String,
}

impl Poison {
    /// None where there is no server.
    async fn new(on_failure: &str) -> Option<Self> {
        let nats = consign_testkit::service("nats")?;
        let folder = tempfile::tempdir().unwrap();
        let tag = free_port();
        let (stream, subject) = (format!("E2E_POISON_{tag}"), format!("e2e.poison.{tag}"));
        make_stream(&nats.url, &stream, &subject).await;
        let client = async_nats::connect(&nats.url).await.unwrap();
        let jetstream = async_nats::jetstream::new(client);
        for id in ["one", "two", "bad-3", "four", "five"] {
            let body = format!("{{\"id\": \"{id}\"}}");
            let ack = jetstream.publish(subject.clone(), body.into()).await;
            ack.unwrap().await.unwrap();
        }
        table(folder.path(), "out.db", "CHECK (id NOT LIKE 'bad%')");
        let host = Host::new(
            folder.path(),
            &format!(
                r#"
connections:
  bus: {{ connector: nats, config: {{ servers: ["{url}"] }} }}
  table: {{ connector: sqlite, config: {{ path: ./out.db, busy_timeout: 100ms }} }}
  dead: {{ connector: sqlite, config: {{ path: ./dead.db, busy_timeout: 100ms }} }}
adapters:
  orders:
    source: {{ connection: bus, operation: nats.consume, config: {{ stream: {stream}, consumer: consign, ack_wait: {wait}s }} }}
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
                url = nats.url,
                wait = ACK_WAIT.as_secs(),
            ),
        );
        Some(Self {
            folder,
            host,
            url: nats.url,
            stream,
        })
    }

    /// What the server itself says about the consumer.
    async fn consumer(&self) -> Info {
        let client = async_nats::connect(&self.url).await.unwrap();
        let jetstream = async_nats::jetstream::new(client);
        let stream = jetstream.get_stream(&self.stream).await.unwrap();
        stream.consumer_info("consign").await.unwrap()
    }

    fn rows(&self) -> usize {
        read_table(&self.folder.path().join("out.db"), "t").len()
    }

    async fn until_rows(&self, count: usize) {
        common::wait_until(&format!("{count} rows"), || self.rows() >= count).await;
        assert_eq!(self.rows(), count);
    }

    /// Waits until the server has nothing left for the consumer.
    async fn until_acknowledged(&self) {
        let from = Instant::now();
        loop {
            let info = self.consumer().await;
            if info.num_ack_pending == 0 && info.num_pending == 0 {
                return;
            }
            assert!(from.elapsed() < Duration::from_secs(60), "{info:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn table(folder: &Path, file: &str, check: &str) {
    let db = rusqlite::Connection::open(folder.join(file)).unwrap();
    db.execute_batch(&format!(
        "PRAGMA journal_mode = WAL; CREATE TABLE t (id TEXT {check}, write_key TEXT UNIQUE)"
    ))
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_handler_the_message_alone_is_held_and_its_deliveries_are_not_burnt() {
    let Some(mut poison) = Poison::new("").await else {
        return;
    };
    poison.host.start().await;
    poison.until_rows(4).await;
    // Far beyond the acknowledgement's wait.
    tokio::time::sleep(ACK_WAIT * 3).await;
    let info = poison.consumer().await;
    assert_eq!(info.num_ack_pending, 1, "the third alone is held: {info:?}");
    assert_eq!(info.num_redelivered, 0, "it is kept, not handed over again");
    assert_eq!(info.ack_floor.stream_sequence, 2);
    let held = common::wait_for_event(&poison.host, "message_held").await;
    assert_eq!(held.len(), 1, "said once: {held:#?}");
    let said = held[0].to_string();
    assert!(
        said.contains("orders/all/table") && said.contains("CHECK"),
        "{said}"
    );

    // The table takes it after all: it goes on by itself.
    let db = rusqlite::Connection::open(poison.folder.path().join("out.db")).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    rebuild_table(&db, "id TEXT");
    poison.until_rows(5).await;
    poison.until_acknowledged().await;
    assert_ledgers(&ok(&poison.host, &["status"]));
    assert_eq!(poison.host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolated_poison_is_set_aside_and_acknowledged() {
    let Some(mut poison) = Poison::new("on_failure: { handler: isolate_poison }").await else {
        return;
    };
    poison.host.start().await;
    poison.until_rows(4).await;
    poison.until_acknowledged().await;
    let list = ok(&poison.host, &["failed", "list", "--state", "parked"]);
    assert_eq!(list.as_array().unwrap().len(), 1, "{list:#}");
    let shown = ok(
        &poison.host,
        &["failed", "show", &list[0]["id"].to_string()],
    );
    assert!(shown.to_string().contains("bad-3"), "{shown:#}");
    let status = ok(&poison.host, &["status"]);
    assert_eq!(
        status["adapters"][0]["outcomes"]["handled"], 1,
        "{status:#}"
    );
    assert_ledgers(&status);
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
    poison.until_rows(4).await;
    poison
        .host
        .until("the letter waits in its lane", |status| {
            common::lane(status, "orders/dead/letters")["pending"] == 1
        })
        .await;
    poison.until_acknowledged().await;
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
    assert_eq!(poison.rows(), 4);
    assert_eq!(poison.host.stop(), Some(0));
}
