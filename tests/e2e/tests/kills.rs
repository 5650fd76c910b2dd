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

use common::{Poster, assert_ledgers, assert_once, drained, read_stream, read_table};
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
    let mut host = Host::new(
        folder.path(),
        &format!(
            r#"
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{port}" }} }}
  bus:   {{ connector: nats, config: {{ servers: ["{url}"] }} }}
adapters:
  hooks:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: all
        send:
          - id: bus
            connection: bus
            operation: nats.publish
            config: {{ subject: "e2e.http.{port}", jetstream: true, stream: {name} }}
            batch: {{ max_writes: 64 }}
            retry: {{ backoff: {{ initial: 50ms, max: 500ms }} }}
            require: effectively_once
"#,
            url = nats.url
        ),
    );
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
    let mut host = Host::new(
        folder.path(),
        &format!(
            r#"
connections:
  bus:   {{ connector: nats, config: {{ servers: ["{url}"] }} }}
  table: {{ connector: sqlite, config: {{ path: ./out.db }} }}
adapters:
  orders:
    source: {{ connection: bus, operation: nats.consume, config: {{ stream: {name}, consumer: consign, ack_wait: 2s }} }}
    routes:
      - name: all
        send:
          - id: table
            connection: table
            operation: sqlite.write
            config: {{ table: orders, create_table: true, columns: {{ id: "{{{{ .body.id }}}}" }}, write_key_column: write_key }}
            batch: {{ max_writes: 20 }}
            retry: {{ backoff: {{ initial: 50ms, max: 500ms }} }}
            require: effectively_once
"#,
            url = nats.url
        ),
    );
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
    let mut host = Host::new(
        folder.path(),
        r#"
connections:
  logs: { connector: localfile, config: { root: ./logs } }
  out:  { connector: localfile, config: { root: ./out } }
adapters:
  lines:
    source: { connection: logs, operation: localfile.read, config: { path: app.log, mode: tail, content_type: application/json, poll_interval: 20ms } }
    routes:
      - name: all
        send:
          - id: each
            connection: out
            operation: localfile.write.local
            config: { path: "{{ .body.id }}.json", overwrite_existing: false }
            batch: { max_writes: 32 }
            retry: { backoff: { initial: 50ms, max: 500ms } }
            require: effectively_once
"#,
    );
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

async fn make_stream(url: &str, name: &str, subject: &str) {
    let client = async_nats::connect(url).await.unwrap();
    let config = async_nats::jetstream::stream::Config {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        duplicate_window: Duration::from_secs(120),
        ..Default::default()
    };
    async_nats::jetstream::new(client)
        .create_stream(config)
        .await
        .unwrap();
}
