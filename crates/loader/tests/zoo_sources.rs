//! Sources of the zoo: credits, settlements, revocation, faults and garbage.
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
    Connection, Failure, Incoming, LoadOptions, Names, OpenConnection, Plugins, Settle,
    SettleResult, SourceEvent, SourceEvents, SourceHandle,
};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
/// Long enough to tell that nothing comes.
const A_WHILE: Duration = Duration::from_millis(200);

fn zoo() -> Plugins {
    static ZOO: OnceLock<Plugins> = OnceLock::new();
    ZOO.get_or_init(|| {
        Plugins::load(&LoadOptions {
            folders: vec![library("zoo"), library("zoo_raw")],
            ..LoadOptions::default()
        })
        .unwrap()
    })
    .clone()
}

async fn open(
    connector: &str,
    config: Value,
    position: Option<&str>,
) -> (Connection, SourceHandle, SourceEvents) {
    let request = OpenConnection {
        connector: connector.to_owned(),
        config: json!({}),
        names: Names::default(),
    };
    let connection = zoo().open_connection(request, SOON).await.unwrap();
    let operation = format!("{connector}.count");
    let position = position.map(|p| p.as_bytes().to_vec());
    let (handle, events) = connection
        .open_source(&operation, config, Names::default(), position, SOON)
        .await
        .unwrap();
    (connection, handle, events)
}

async fn messages(events: &mut SourceEvents, count: usize) -> Vec<Incoming> {
    let mut all = Vec::new();
    while all.len() < count {
        match tokio::time::timeout(SOON, events.recv()).await.unwrap() {
            Some(SourceEvent::Messages(more)) => all.extend(more),
            other => panic!("{other:?} after {} messages", all.len()),
        }
    }
    all
}

async fn fault(events: &mut SourceEvents) -> Failure {
    loop {
        match tokio::time::timeout(SOON, events.recv()).await.unwrap() {
            Some(SourceEvent::Fault(failure)) => return failure,
            Some(_) => {}
            None => panic!("ended without a fault"),
        }
    }
}

async fn nothing(events: &mut SourceEvents) {
    let event = tokio::time::timeout(A_WHILE, events.recv()).await;
    assert!(event.is_err(), "{event:?}");
}

fn settle(id: u64, result: SettleResult) -> Settle {
    Settle { id, result }
}

async fn lines(path: &Path, count: usize) -> Vec<String> {
    for _ in 0..200 {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if text.lines().count() >= count {
            return text.lines().map(str::to_owned).collect();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?}", std::fs::read_to_string(path));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_arrives_whole() {
    let (_connection, handle, mut events) = open("zoo", json!({ "to": 1 }), None).await;
    handle.credit(1, 1_000);
    let message = &messages(&mut events, 1).await[0];
    assert_eq!(&message.body()[..], b"1");
    assert_eq!(message.routing_key(), Some("zoo.1"));
    assert_eq!(message.content_type(), Some("text/plain"));
    assert_eq!(
        (message.partition(), message.offset()),
        (Some("cage"), Some(1))
    );
    assert_eq!(message.time_unix_ms(), Some(1_000));
    assert_eq!(message.identity().unwrap(), 1_u64.to_be_bytes().to_vec());
    assert_eq!(message.position().unwrap(), b"1".to_vec());
    assert_eq!(message.source_json(), Some(br#"{"number":1}"#.as_slice()));
    let headers: Vec<_> = message.headers().collect();
    assert_eq!(
        (headers[0].0, &headers[0].1[..]),
        ("number", b"1".as_slice())
    );
    assert_eq!((message.client_key(), message.principal()), (None, None));
    assert_eq!(message.weight(), 8);
    handle.stop(SOON).await.unwrap();
    assert!(events.recv().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credits_bound_count_and_bytes() {
    let config = json!({ "to": 10, "body_bytes": 100 });
    let (_connection, handle, mut events) = open("zoo", config, None).await;
    nothing(&mut events).await;
    handle.credit(3, 1_000_000);
    messages(&mut events, 3).await;
    nothing(&mut events).await;
    handle.credit(100, 0);
    messages(&mut events, 7).await;
    handle.stop(SOON).await.unwrap();

    let config = json!({ "to": 10, "body_bytes": 100 });
    let (_connection, handle, mut events) = open("zoo", config, None).await;
    // The third message overdraws by less than one message; a fourth does not come.
    handle.credit(100, 250);
    messages(&mut events, 3).await;
    nothing(&mut events).await;
    handle.stop(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_settlement_arrives_and_stop_releases_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let config = json!({ "to": 9, "notes": notes });
    let (_connection, handle, mut events) = open("zoo", config, None).await;
    handle.credit(100, 1_000_000);
    let ids: Vec<u64> = messages(&mut events, 9)
        .await
        .iter()
        .map(Incoming::id)
        .collect();
    let reason = || "because".to_owned();
    handle.extend(vec![ids[8], 1_000]);
    lines(&notes, 1).await;
    handle.settle([
        settle(ids[0], SettleResult::Accepted),
        settle(ids[1], SettleResult::Repeat),
        settle(ids[2], SettleResult::Refused { reason: reason() }),
        settle(ids[3], SettleResult::Dropped { reason: reason() }),
        settle(
            ids[4],
            SettleResult::Blocked {
                retry_after_ms: 5,
                reason: reason(),
            },
        ),
        settle(ids[5], SettleResult::Conflict),
        settle(ids[6], SettleResult::InFlight),
        settle(ids[7], SettleResult::Released),
        settle(ids[0], SettleResult::Released),
        settle(1_000, SettleResult::Accepted),
    ]);
    lines(&notes, 9).await;
    handle.stop(SOON).await.unwrap();
    insta::assert_snapshot!(lines(&notes, 11).await.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_resume_seek_and_positions_cross() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let config = json!({ "to": 6, "notes": notes });
    let (_connection, handle, mut events) = open("zoo", config, Some("3")).await;
    handle.pause();
    handle.credit(100, 1_000_000);
    nothing(&mut events).await;
    lines(&notes, 1).await;
    handle.resume();
    let first = messages(&mut events, 3).await;
    assert_eq!(&first[0].body()[..], b"4", "resumed after the position");
    handle.seek(b"2".to_vec());
    lines(&notes, 3).await;
    handle.stop(SOON).await.unwrap();
    let heard = lines(&notes, 7).await;
    assert_eq!(heard[..3], ["pause", "resume", "seek 2"]);
    assert_eq!(heard.last().unwrap(), "stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_returns_what_was_settled_and_releases_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let config = json!({ "to": 3, "notes": notes, "end": "revoke" });
    let (_connection, handle, mut events) = open("zoo", config, None).await;
    handle.credit(100, 1_000_000);
    let ids: Vec<u64> = messages(&mut events, 3)
        .await
        .iter()
        .map(Incoming::id)
        .collect();
    let token = match tokio::time::timeout(SOON, events.recv()).await.unwrap() {
        Some(SourceEvent::Revoked { token, partitions }) => {
            assert_eq!(partitions, ["cage"]);
            token
        }
        other => panic!("{other:?}"),
    };
    handle.settle([settle(ids[0], SettleResult::Accepted)]);
    nothing(&mut events).await;
    assert!(!notes.exists(), "the source waits for the host");
    handle.revoke_done(token);
    assert_eq!(
        lines(&notes, 3).await,
        [
            "revoked 1 Accepted",
            "revoked 2 Released",
            "revoked 3 Released"
        ]
    );
    handle.stop(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_ends_fails_or_panics_is_a_fault() {
    for (end, code) in [
        ("return", "source_ended"),
        ("fail", "zoo_down"),
        ("panic", "plugin_panicked"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let notes = folder.path().join("notes");
        let config = json!({ "to": 1, "end": end, "notes": notes });
        let (connection, handle, mut events) = open("zoo", config, None).await;
        handle.credit(1, 100);
        assert_eq!(fault(&mut events).await.code, code);
        assert!(events.recv().await.is_none());
        handle.settle([settle(1, SettleResult::Accepted)]);
        handle.stop(SOON).await.unwrap();
        assert!(!notes.exists(), "nothing is settled after a fault");
        if end == "panic" {
            let fault = tokio::time::timeout(SOON, connection.faulted())
                .await
                .unwrap();
            assert!(fault.panicked);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_ignores_stop_is_dropped_at_the_deadline() {
    let config = json!({ "to": 1, "end": "ignore_stop" });
    let (_connection, handle, mut events) = open("zoo", config, None).await;
    handle.credit(1, 100);
    messages(&mut events, 1).await;
    let failure = handle.stop(Duration::from_millis(200)).await.unwrap_err();
    assert_eq!(failure.code, "deadline");
    assert!(events.recv().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_every_handle_stops_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let (_connection, handle, events) = open("zoo", json!({ "to": 1, "notes": notes }), None).await;
    drop((handle, events));
    assert_eq!(lines(&notes, 1).await, ["stop"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fencing_and_closing_a_connection_end_its_sources() {
    let (connection, handle, mut events) = open("zoo", json!({ "to": 1 }), None).await;
    connection.fence();
    assert_eq!(fault(&mut events).await.code, "fenced");
    handle.credit(1, 100);
    assert!(events.recv().await.is_none());

    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let (connection, handle, _events) = open("zoo", json!({ "to": 1, "notes": notes }), None).await;
    connection.close(SOON).await.unwrap();
    handle.credit(1, 100);
    handle.settle([settle(1, SettleResult::Accepted)]);
    assert_eq!(handle.stop(SOON).await.unwrap_err().code, "closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_from_a_source_faults_it_and_is_counted() {
    let before = zoo().counts();
    let (_c, _handle, mut events) = open("zoo_raw", json!({ "act": "over_credit" }), None).await;
    assert_eq!(fault(&mut events).await.code, "over_credit");

    let (_c, handle, mut events) = open("zoo_raw", json!({ "act": "ids_fall" }), None).await;
    handle.credit(10, 10);
    assert_eq!(fault(&mut events).await.code, "message_ids");

    let (_c, handle, mut events) = open("zoo_raw", json!({ "act": "foreign" }), None).await;
    handle.credit(10, 10);
    nothing(&mut events).await;

    let (_c, handle, mut events) = open("zoo_raw", json!({ "act": "bad_spans" }), None).await;
    handle.credit(10, 10);
    let message = &messages(&mut events, 1).await[0];
    assert!(message.body().is_empty() && message.headers().next().is_none());
    assert_eq!((message.routing_key(), message.identity()), (None, None));

    let after = zoo().counts();
    assert!(after.over_credit > before.over_credit);
    assert!(after.garbage > before.garbage);
    assert!(after.foreign > before.foreign);
}
