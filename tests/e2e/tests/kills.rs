//! kill -9 in a loop under load: nothing lost, no copy where the destination drops repeats, and each
//! effect carries one key. Effects are read with other clients than the connectors'.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::config::{Config, FAST, send, to_table};
use common::{Poster, assert_ledgers, assert_once, drained, make_stream, read_stream, read_table};
use consign_e2e::{Host, free_port};
use std::io::Write as _;
use std::time::Duration;

/// How often each host is killed.
const KILLS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_to_jetstream_survives_kills_under_load() {
    let Some(nats) = consign_testkit::service("nats") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let name = format!("E2E_HTTP_{port}");
    make_stream(&nats.url, &name, &format!("e2e.http.{port}")).await;
    let published = send(
        "bus",
        "bus",
        "nats.publish",
        &format!("subject: \"e2e.http.{port}\", jetstream: true, stream: {name}"),
        &format!("batch: {{ max_writes: 64 }}, require: effectively_once, {FAST}"),
    );
    let config = Config::new()
        .connection("bus", "nats", &format!("servers: [\"{}\"]", nats.url))
        .hooks(port, &[published]);
    let mut host = Host::new(folder.path(), &config.text());
    host.start().await;
    let poster = Poster::start(&format!("http://127.0.0.1:{port}/in"), 16);
    for _ in 0..KILLS {
        poster.wait_for(150).await;
        host.kill();
        host.start().await;
    }
    poster.wait_for(50).await;
    let ids = poster.finish().await;
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_once(&read_stream(&nats.url, &name).await, &ids);
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_to_sqlite_survives_kills_and_keeps_keys() {
    let Some(nats) = consign_testkit::service("nats") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let tag = free_port();
    let (name, subject) = (format!("E2E_SRC_{tag}"), format!("e2e.src.{tag}"));
    make_stream(&nats.url, &name, &subject).await;
    let client = async_nats::connect(&nats.url).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    const MESSAGES: usize = 1_500;
    for n in 0..MESSAGES {
        let ack = jetstream
            .publish(subject.clone(), format!("{{\"id\": \"m{n}\"}}").into())
            .await
            .unwrap();
        ack.await.unwrap();
    }
    let source = format!("stream: {name}, consumer: consign, ack_wait: 2s");
    let more = format!("batch: {{ max_writes: 20 }}, require: effectively_once, {FAST}");
    let config = Config::new()
        .connection("bus", "nats", &format!("servers: [\"{}\"]", nats.url))
        .database()
        .adapter(
            "orders",
            ["bus", "nats.consume", &source],
            &[to_table("orders", &more)],
        );
    let mut host = Host::new(folder.path(), &config.text());
    let out = folder.path().join("out.db");
    let rows = || read_table(&out, "orders").len();
    for kill in 1..=KILLS {
        host.start().await;
        let goal = (MESSAGES / (KILLS + 2) * kill).min(MESSAGES);
        let from = std::time::Instant::now();
        while rows() < goal && from.elapsed() < Duration::from_secs(30) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        host.kill();
    }
    host.start().await;
    let ids: Vec<String> = (0..MESSAGES).map(|n| format!("m{n}")).collect();
    let from = std::time::Instant::now();
    while rows() < MESSAGES {
        assert!(
            from.elapsed() < Duration::from_secs(60),
            "{} of {MESSAGES} rows\n{}",
            rows(),
            host.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_once(&read_table(&out, "orders"), &ids);
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tailed_lines_become_files_once_each_over_kills() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    let source = "path: app.log, mode: tail, content_type: application/json, poll_interval: 20ms";
    let each = send(
        "each",
        "out",
        "localfile.write.local",
        "path: \"{{ .body.id }}.json\", overwrite_existing: false",
        &format!("batch: {{ max_writes: 32 }}, require: effectively_once, {FAST}"),
    );
    let config = Config::new()
        .connection("logs", "localfile", "root: ./logs")
        .connection("out", "localfile", "root: ./out")
        .adapter("lines", ["logs", "localfile.read", source], &[each]);
    let mut host = Host::new(folder.path(), &config.text());
    let mut log = std::fs::File::create(logs.join("app.log")).unwrap();
    let mut written = 0;
    for _ in 0..KILLS {
        host.start().await;
        for _ in 0..300 {
            writeln!(log, "{{\"id\": \"l{written}\", \"amount\": 1.10}}").unwrap();
            written += 1;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        host.kill();
    }
    host.start().await;
    let out = folder.path().join("out");
    let count = || {
        std::fs::read_dir(&out).map_or(0, |files| {
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
    let from = std::time::Instant::now();
    while count() < written {
        assert!(
            from.elapsed() < Duration::from_secs(60),
            "{} of {written} files\n{}",
            count(),
            host.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(count(), written, "a copy lies beside its original");
    for n in 0..written {
        let body = std::fs::read_to_string(out.join(format!("l{n}.json"))).unwrap();
        assert_eq!(
            body,
            format!("{{\"id\": \"l{n}\", \"amount\": 1.10}}"),
            "an untouched body leaves byte for byte"
        );
    }
    assert_eq!(host.stop(), Some(0));
}
