//! Shutting plugins down, with calls in flight, and starting them again. Logs and metrics on the way.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test code"
)]

mod common;

use common::library;
use consign_loader::{
    AnswerEnd, BatchBuilder, Connection, LoadOptions, Names, OpenConnection, Plugins, WriteParts,
};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

fn load() -> Plugins {
    Plugins::load(&LoadOptions {
        folders: vec![library("zoo")],
        ..LoadOptions::default()
    })
    .unwrap()
}

async fn connect(plugins: &Plugins) -> Connection {
    let request = OpenConnection {
        connector: "zoo".to_owned(),
        config: json!({}),
        names: Names {
            connection: "cage".to_owned(),
            ..Names::default()
        },
    };
    plugins.open_connection(request, SOON).await.unwrap()
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One test, since all of it is about the one plugin of the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_logs_counts_shuts_down_with_calls_in_flight_and_starts_again() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .json()
        .with_writer(move || writer.clone())
        .init();
    let plugins = load();
    let other_host = load();
    let connection = connect(&plugins).await;
    let config = json!({ "act": { "step": "hang" } });
    let opened = connection.open_sink("zoo.write", config, Names::default(), SOON);
    let sink = opened.await.unwrap();
    let mut batch = BatchBuilder::default();
    batch.push(&WriteParts::default(), [], []).unwrap();
    let reply = sink.submit(batch.finish(), SOON);

    other_host.shutdown(SOON).await;
    connection
        .probe(SOON)
        .await
        .expect("one host's end is not the other's");

    plugins.shutdown(SOON).await;
    let answer = tokio::time::timeout(SOON, reply)
        .await
        .expect("nobody waits for ever");
    assert_eq!(answer.end, AnswerEnd::Aborted);
    let failure = connection.probe(SOON).await.unwrap_err();
    assert_eq!(failure.code, "closed", "{failure}");

    let again = load();
    connect(&again).await.probe(SOON).await.unwrap();

    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let line: Value = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .find(|line: &Value| line["level"] == "WARN")
        .expect(&text);
    assert_eq!(line["target"], "plugin");
    assert_eq!(line["fields"]["plugin"], "zoo");
    assert_eq!(line["fields"]["message"], "opened for ");
    assert_eq!(line["fields"]["from"], "zoo::sinks");
    let fields: Value = serde_json::from_str(line["fields"]["fields"].as_str().unwrap()).unwrap();
    assert_eq!(fields["animal"], "lion");
    assert_eq!(fields["number"], 3);
    let metrics = again.metrics();
    assert_eq!(
        (metrics[0].name.as_str(), metrics[0].value),
        ("opened", 1.0)
    );
    assert!(metrics[0].is_counter && metrics[0].plugin == "zoo");
}
