//! The destination goes away and comes back; the host is asked to stop: what was accepted arrives.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::config::{Config, FAST, send, to_table};
use common::{Poster, assert_ledgers, assert_once, drained, read_stream, read_table};
use consign_e2e::{Host, free_port};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nats_server_that_stops_and_starts_loses_nothing() {
    let Some(nats) = consign_testkit::private_service("nats") else {
        return;
    };
    let url = nats.service().url.clone();
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let client = async_nats::connect(&url).await.unwrap();
    let config = async_nats::jetstream::stream::Config {
        name: "OUT".to_owned(),
        subjects: vec!["out".to_owned()],
        ..Default::default()
    };
    async_nats::jetstream::new(client)
        .create_stream(config)
        .await
        .unwrap();
    let published = send(
        "bus",
        "bus",
        "nats.publish",
        "subject: out, jetstream: true, stream: OUT",
        "batch: { max_writes: 32 }, timeout: 3s",
    );
    let bus = format!("servers: [\"{url}\"], timeouts: {{ connect: 2s, request: 2s }}");
    let config = Config::new()
        .connection("bus", "nats", &bus)
        .hooks(port, &[published]);
    let mut host = Host::new(folder.path(), &config.text());
    host.start().await;
    let poster = Poster::start(&format!("http://127.0.0.1:{port}/in"), 8);
    poster.wait_for(100).await;
    for kill in [false, true] {
        if kill {
            nats.kill().unwrap()
        } else {
            nats.stop().unwrap()
        }
        // The outage does not stop acceptance.
        poster.wait_for(200).await;
        host.until("the gate has closed", |status| {
            status["connections"][0]["gate"] != "open"
        })
        .await;
        nats.start().unwrap();
        host.until("the gate has opened", |status| {
            status["connections"][0]["gate"] == "open"
        })
        .await;
        poster.wait_for(50).await;
    }
    let ids = poster.finish().await;
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_once(&read_stream(&url, "OUT").await, &ids);
    let events = host.get("/api/v1/events?code=gate_closed").await.unwrap();
    assert!(
        events.as_array().is_some_and(|e| e.len() >= 2),
        "each outage is one event or more: {events:#}"
    );
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains_and_what_is_pending_waits_for_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let more = format!("batch: {{ max_writes: 32 }}, {FAST}");
    let config = Config::new()
        .connection("table", "sqlite", "path: ./out.db")
        .hooks(port, &[to_table("orders", &more)]);
    let mut host = Host::new(folder.path(), &config.text());
    host.start().await;
    let poster = Poster::start(&format!("http://127.0.0.1:{port}/in"), 8);
    poster.wait_for(100).await;
    assert_eq!(
        host.stop(),
        Some(0),
        "a drain is a clean end:\n{}",
        host.log()
    );
    host.start().await;
    let status = host.get("/api/v1/status").await.unwrap();
    assert_eq!(status["recovery"]["unclean_exit"], false, "{status:#}");
    poster.wait_for(100).await;
    let ids = poster.finish().await;
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_once(&read_table(&folder.path().join("out.db"), "orders"), &ids);

    // With the destination locked nothing lands, a drain still ends, and the next start delivers.
    let lock = rusqlite::Connection::open(folder.path().join("out.db")).unwrap();
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let client = reqwest::Client::new();
    for n in 0..20 {
        common::post(
            &client,
            &format!("http://127.0.0.1:{port}/in"),
            &format!("late-{n}"),
        )
        .await;
    }
    let code = host.stop();
    assert!(code == Some(0) || code == Some(1), "{code:?}");
    lock.execute_batch("ROLLBACK").unwrap();
    drop(lock);
    host.start().await;
    drained(&host).await;
    let late: Vec<String> = (0..20).map(|n| format!("late-{n}")).collect();
    assert_once(
        &read_table(&folder.path().join("out.db"), "orders"),
        &[ids, late].concat(),
    );
    tokio::time::sleep(Duration::from_millis(1)).await;
    host.kill();
}
