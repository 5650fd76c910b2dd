//! Direct sends, and sends that wait for another: what the source is told, and when.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::config::{Config, send, to_table};
use common::{drained, read_table, wait_for_event, wait_until};
use consign_e2e::{Host, free_port};
use std::path::Path;
use std::time::Duration;

/// Holds a table's database so that nobody else can write.
fn lock(path: &Path) -> rusqlite::Connection {
    let lock = rusqlite::Connection::open(path).unwrap();
    lock.busy_timeout(Duration::from_secs(10)).unwrap();
    lock.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS t (id TEXT, write_key TEXT UNIQUE); BEGIN IMMEDIATE")
        .unwrap();
    lock
}

/// Tries again soon, for tests that wait for it.
const SOON: &str = "retry: { backoff: { initial: 100ms, max: 1s } }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_send_of_a_session_is_answered_by_its_destination() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let config = Config::new()
        .database()
        .hooks(port, &[to_table("t", "delivery: direct")]);
    let mut host = Host::new(folder.path(), &config.text());
    let out = folder.path().join("out.db");
    host.start().await;
    let client = reqwest::Client::new();
    let url = format!("http://127.0.0.1:{port}/in");
    common::post(&client, &url, "first").await;
    assert_eq!(read_table(&out, "t").len(), 1, "2xx means that it is there");
    let held = lock(&out);
    let response = client
        .post(&url)
        .header("content-type", "application/json")
        .body(r#"{"id": "second"}"#)
        .send()
        .await
        .unwrap();
    assert!(
        response.status().is_server_error(),
        "a client must not read success: {}",
        response.status()
    );
    drop(held);
    let status = host.get("/api/v1/status").await.unwrap();
    common::assert_ledgers(&status);
    assert_eq!(
        status["adapters"][0]["outcomes"]["dropped"], 1,
        "{status:#}"
    );
    let events = host
        .get("/api/v1/events?code=message_dropped")
        .await
        .unwrap();
    assert_eq!(
        events.as_array().unwrap().len(),
        1,
        "one event names the message: {events:#}"
    );
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_send_blocked_far_beyond_ack_wait_is_held_and_not_redelivered() {
    let Some(nats) = consign_testkit::service("nats") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let tag = free_port();
    let (name, subject) = (format!("E2E_DIRECT_{tag}"), format!("e2e.direct.{tag}"));
    let client = async_nats::connect(&nats.url).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let config = async_nats::jetstream::stream::Config {
        name: name.clone(),
        subjects: vec![subject.clone()],
        ..Default::default()
    };
    let stream = jetstream.create_stream(config).await.unwrap();
    let out = folder.path().join("out.db");
    let held = lock(&out);
    let source = format!("stream: {name}, consumer: consign, ack_wait: 12s");
    let direct = to_table("t", &format!("delivery: direct, {SOON}"));
    let config = Config::new()
        .connection("bus", "nats", &format!("servers: [\"{}\"]", nats.url))
        .database()
        .adapter("orders", ["bus", "nats.consume", &source], &[direct]);
    let mut host = Host::new(folder.path(), &config.text());
    host.start().await;
    for n in 0..3 {
        jetstream
            .publish(subject.clone(), format!("{{\"id\": \"d{n}\"}}").into())
            .await
            .unwrap()
            .await
            .unwrap();
    }
    // More than twice the time after which the server would hand the messages over again.
    tokio::time::sleep(Duration::from_secs(26)).await;
    assert_eq!(read_table(&out, "t").len(), 0);
    let status = host.get("/api/v1/status").await.unwrap();
    common::assert_ledgers(&status);
    assert_eq!(status["adapters"][0]["in_process"], 3, "{status:#}");
    drop(held);
    wait_until("the rows", || read_table(&out, "t").len() == 3).await;
    assert!(read_table(&out, "t").values().all(|keys| keys.len() == 1));
    let mut consumer: async_nats::jetstream::consumer::PullConsumer =
        stream.get_consumer("consign").await.unwrap();
    host.until("accepted", |status| {
        status["adapters"][0]["outcomes"]["accepted"] == 3
    })
    .await;
    let mut pending = 1;
    for _ in 0..100 {
        let info = consumer.info().await.unwrap();
        pending = info.num_ack_pending;
        assert_eq!(info.num_redelivered, 0, "the lease was extended");
        if pending == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(pending, 0, "each is acknowledged once it is there");
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receipt_waits_for_its_bill_over_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let out = folder.path().join("out.db");
    let held = lock(&out);
    let files = send(
        "receipt",
        "files",
        "localfile.write.local",
        "path: \"{{ .body.id }}.json\"",
        "after: table",
    );
    let config = Config::new()
        .database()
        .connection("files", "localfile", "root: ./receipts")
        .hooks(port, &[to_table("t", SOON), files]);
    let mut host = Host::new(folder.path(), &config.text());
    let receipts = || {
        std::fs::read_dir(folder.path().join("receipts")).map_or(0, |files| {
            files
                .filter(|f| {
                    f.as_ref()
                        .unwrap()
                        .path()
                        .extension()
                        .is_some_and(|e| e == "json")
                })
                .count()
        })
    };
    host.start().await;
    let client = reqwest::Client::new();
    for n in 0..5 {
        common::post(
            &client,
            &format!("http://127.0.0.1:{port}/in"),
            &format!("b{n}"),
        )
        .await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (read_table(&out, "t").len(), receipts()),
        (0, 0),
        "no receipt before its bill"
    );
    host.kill();
    host.start().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(receipts(), 0, "a kill releases nothing");
    drop(held);
    wait_until("the receipts", || receipts() == 5).await;
    let status = drained(&host).await;
    common::assert_ledgers(&status);
    assert_eq!(read_table(&out, "t").len(), 5);
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_lane_holds_an_offset_tracked_source_back_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    let out = folder.path().join("out.db");
    let held = lock(&out);
    let source = "path: app.log, content_type: application/json, poll_interval: 20ms";
    let sends = [
        to_table(
            "t",
            &format!("quota: 64KiB, batch: {{ max_writes: 50 }}, {SOON}"),
        ),
        send(
            "file",
            "files",
            "localfile.write.local",
            "path: \"{{ .body.id }}.json\"",
            "batch: { max_writes: 50 }",
        ),
    ];
    let config = Config::new()
        .connection("logs", "localfile", "root: ./logs")
        .database()
        .connection("files", "localfile", "root: ./files")
        .adapter("lines", ["logs", "localfile.read", source], &sends);
    let mut host = Host::new(folder.path(), &config.text());
    let lines: Vec<String> = (0..2_000)
        .map(|n| format!("{{\"id\": \"l{n}\"}}\n"))
        .collect();
    std::fs::write(logs.join("app.log"), lines.concat()).unwrap();
    host.start().await;
    let status = host
        .until("the lane is full", |status| {
            status["adapters"][0]["in_process"].as_u64() > Some(0)
                && status["lanes"][0]["pending"].as_u64() > Some(100)
        })
        .await;
    common::assert_ledgers(&status);
    wait_for_event(&host, "source_blocked").await;
    assert!(read_table(&out, "t").is_empty());
    // A kill while the source is held back changes nothing.
    host.kill();
    host.start().await;
    drop(held);
    wait_until("every row", || read_table(&out, "t").len() == 2_000).await;
    let status = drained(&host).await;
    common::assert_ledgers(&status);
    let rows = read_table(&out, "t");
    assert!(rows.values().all(|keys| keys.len() == 1));
    // Temporary files of the killed host are swept once they are old.
    let files = std::fs::read_dir(folder.path().join("files")).unwrap();
    let files = files.filter(|file| {
        file.as_ref()
            .unwrap()
            .path()
            .extension()
            .is_some_and(|e| e == "json")
    });
    assert_eq!(
        files.count(),
        2_000,
        "one lane's backlog doubles nothing in another"
    );
    assert_eq!(host.stop(), Some(0));
}
