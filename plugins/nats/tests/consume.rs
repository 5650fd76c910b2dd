//! `nats.consume` against a real server: credits, identities, leases, acknowledgements, restarts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod server;

use async_nats::jetstream::{self, consumer, stream};
use consign_plugin::prelude::*;
use consign_plugin::testing::{self, Received, SourceDriver};
use consign_plugin_nats::config::{ConnectionConfig, ConsumeConfig};
use consign_plugin_nats::source::Consume;
use serde_json::{Value, json};
use server::Server;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);
const MANY: u64 = 1 << 30;

async fn jetstream_of(server: &Server) -> jetstream::Context {
    jetstream::new(async_nats::connect(server.url()).await.unwrap())
}

/// Stream `S` on `s.>` with this many messages, bodies `0`, `1`, …
async fn stream(server: &Server, messages: usize) -> stream::Stream {
    let jetstream = jetstream_of(server).await;
    let config = stream::Config {
        name: "S".into(),
        subjects: vec!["s.>".into()],
        ..Default::default()
    };
    let stream = jetstream.create_stream(config).await.unwrap();
    publish(server, 0..messages).await;
    stream
}

async fn publish(server: &Server, numbers: std::ops::Range<usize>) {
    let jetstream = jetstream_of(server).await;
    for number in numbers {
        let ack = jetstream
            .publish(format!("s.{number}"), number.to_string().into())
            .await
            .unwrap();
        ack.await.unwrap();
    }
}

async fn info(server: &Server) -> consumer::Info {
    let stream = jetstream_of(server).await.get_stream("S").await.unwrap();
    stream.consumer_info("c").await.unwrap()
}

async fn eventually(
    server: &Server,
    what: &str,
    holds: impl Fn(&consumer::Info) -> bool,
) -> consumer::Info {
    let start = Instant::now();
    loop {
        let info = info(server).await;
        if holds(&info) {
            return info;
        }
        assert!(start.elapsed() < SOON, "{what}: {info:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn connection(server: &Server) -> ConnectionConfig {
    let timeouts = json!({ "connect": "2s", "request": "2s" });
    serde_json::from_value(
        json!({ "servers": [server.url()], "timeouts": timeouts, "ping_interval": "1s" }),
    )
    .unwrap()
}

fn config(change: Value) -> ConsumeConfig {
    let mut config = json!({ "stream": "S", "consumer": "c", "ack_wait": "1s" });
    config
        .as_object_mut()
        .unwrap()
        .extend(change.as_object().unwrap().clone());
    serde_json::from_value(config).unwrap()
}

async fn source(server: &Server, change: Value) -> SourceDriver {
    SourceDriver::connect::<Consume>(connection(server), config(change))
        .await
        .unwrap()
}

async fn fails(server: &Server, change: Value) -> (FailureKind, String) {
    let failure = source(server, change).await.ended(SOON).await.unwrap_err();
    (failure.kind, failure.code)
}

fn bodies(messages: &[Received]) -> Vec<String> {
    messages
        .iter()
        .map(|message| String::from_utf8(message.body.clone()).unwrap())
        .collect()
}

#[tokio::test]
async fn messages_carry_identity_subject_time_and_headers() {
    let Some(server) = Server::start("") else {
        return;
    };
    let stream = stream(&server, 0).await;
    let mut headers = async_nats::HeaderMap::new();
    headers.append("a", "1");
    headers.append("a", "2");
    headers.append("Content-Type", "text/plain");
    let jetstream = jetstream_of(&server).await;
    let body = bytes::Bytes::from_static(b"\xff\x00");
    jetstream
        .publish_with_headers("s.x.y", headers, body)
        .await
        .unwrap()
        .await
        .unwrap();
    jetstream
        .publish("s.empty", "".into())
        .await
        .unwrap()
        .await
        .unwrap();
    let mut source = source(&server, json!({})).await;
    source.credit(10, MANY);
    let messages = source.receive_many(2, SOON).await;
    let first = &messages[0];
    let created = stream.cached_info().created.unix_timestamp_nanos();
    assert_eq!(
        first.identity.as_deref(),
        Some(format!("S@{created}#1").as_bytes())
    );
    assert_eq!(first.body, b"\xff\x00");
    assert_eq!(first.routing_key.as_deref(), Some("s.x.y"));
    assert_eq!(first.content_type.as_deref(), Some("text/plain"));
    let a: Vec<_> = first
        .headers
        .iter()
        .filter(|(name, _)| name == "a")
        .map(|(_, value)| value.clone())
        .collect();
    assert_eq!(a, [b"1".to_vec(), b"2".to_vec()]);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis();
    let age = i64::try_from(now).unwrap() - first.time_unix_ms.unwrap();
    assert!((0..60_000).contains(&age), "{age}");
    let expected = json!({ "subject": "s.x.y", "stream": "S", "consumer": "c", "sequence": 1, "delivered": 1 });
    assert_eq!(first.attributes, expected);
    assert_eq!(messages[1].body, b"");
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn credits_bound_what_is_taken_from_the_server() {
    let Some(server) = Server::start("") else {
        return;
    };
    stream(&server, 20).await;
    let mut source = source(&server, json!({})).await;
    assert!(source.receive(Duration::from_millis(300)).await.is_none());
    assert_eq!(
        info(&server).await.num_ack_pending,
        0,
        "nothing is fetched without credit"
    );
    source.credit(3, MANY);
    assert_eq!(
        bodies(&source.receive_many(4, Duration::from_millis(500)).await),
        ["0", "1", "2"]
    );
    assert_eq!(info(&server).await.num_ack_pending, 3);
    source.pause();
    source.credit(5, MANY);
    assert!(source.receive(Duration::from_millis(300)).await.is_none());
    source.resume();
    assert_eq!(
        source
            .receive_many(6, Duration::from_millis(500))
            .await
            .len(),
        5
    );
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_held_message_is_one_delivery_however_long_it_is_held() {
    let Some(server) = Server::start("") else {
        return;
    };
    let stream = stream(&server, 3).await;
    let limited = consumer::pull::Config {
        durable_name: Some("c".into()),
        ack_wait: Duration::from_secs(1),
        max_deliver: 2,
        ..Default::default()
    };
    stream.create_consumer(limited).await.unwrap();
    let mut source = source(&server, json!({})).await;
    source.credit(3, MANY);
    let messages = source.receive_many(3, SOON).await;
    source.extend(messages.iter().map(|message| message.id));
    assert!(
        source.receive(Duration::from_millis(3500)).await.is_none(),
        "no second delivery in three ack_waits"
    );
    let held = info(&server).await;
    assert_eq!(
        (
            held.num_redelivered,
            held.num_ack_pending,
            held.delivered.consumer_sequence
        ),
        (0, 3, 3)
    );
    source.accept(messages.iter().map(|message| message.id));
    eventually(&server, "all acknowledged", |info| {
        info.ack_floor.stream_sequence == 3
    })
    .await;
    source.stop(SOON).await.unwrap();
    assert_eq!(info(&server).await.num_ack_pending, 0);
}

#[tokio::test]
async fn acknowledgements_are_through_when_the_source_has_stopped() {
    let Some(server) = Server::start("") else {
        return;
    };
    stream(&server, 300).await;
    let mut source = source(&server, json!({ "pull_messages": 100 })).await;
    source.credit(300, MANY);
    let messages = source.receive_many(300, SOON).await;
    assert_eq!(messages.len(), 300);
    source.accept(messages.iter().map(|message| message.id));
    source.stop(SOON).await.unwrap();
    let info = info(&server).await;
    assert_eq!(
        (info.num_ack_pending, info.ack_floor.stream_sequence),
        (0, 300)
    );
}

#[tokio::test]
async fn what_is_released_comes_again_soon_with_the_same_identity() {
    let Some(server) = Server::start("") else {
        return;
    };
    stream(&server, 2).await;
    let change = json!({ "ack_wait": "1m" });
    let mut first = source(&server, change.clone()).await;
    first.credit(2, MANY);
    let before = first.receive_many(2, SOON).await;
    first.accept([before[0].id]);
    first.stop(SOON).await.unwrap();
    let mut second = source(&server, change).await;
    second.credit(2, MANY);
    let again = second.receive(SOON).await.expect("long before ack_wait");
    assert_eq!(
        (again.identity, &again.body),
        (before[1].identity.clone(), &before[1].body)
    );
    assert_eq!(again.attributes["delivered"], 2);
    assert!(
        second.receive(Duration::from_millis(1500)).await.is_none(),
        "the accepted one stays away"
    );
    second.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn each_settlement_has_its_answer() {
    let Some(server) = Server::start("") else {
        return;
    };
    stream(&server, 6).await;
    let mut source = source(&server, json!({ "ack_wait": "1m" })).await;
    source.credit(6, MANY);
    let ids: Vec<_> = source
        .receive_many(6, SOON)
        .await
        .iter()
        .map(|message| message.id)
        .collect();
    let reason = || "because".to_owned();
    source.settle(ids[0], SettleResult::Accepted);
    source.settle(ids[1], SettleResult::Repeat);
    source.settle(ids[2], SettleResult::Refused { reason: reason() });
    source.settle(ids[3], SettleResult::Dropped { reason: reason() });
    source.settle(ids[4], SettleResult::InFlight);
    source.settle(
        ids[5],
        SettleResult::Blocked {
            retry_after_ms: 500,
            reason: reason(),
        },
    );
    let left = eventually(&server, "four are done", |info| {
        info.ack_floor.stream_sequence == 4
    })
    .await;
    assert_eq!(left.num_ack_pending, 2);
    source.credit(1, MANY);
    let again = source.receive(SOON).await.unwrap();
    assert_eq!(
        (again.body, &again.attributes["delivered"]),
        (b"5".to_vec(), &json!(2))
    );
    assert!(source.receive(Duration::from_millis(300)).await.is_none());
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_killed_server_ends_the_run_and_the_next_one_loses_nothing() {
    let Some(mut server) = Server::start("") else {
        return;
    };
    stream(&server, 50).await;
    let nats = testing::connect(connection(&server)).await.unwrap();
    let mut first = SourceDriver::start::<Consume>(Arc::clone(&nats), config(json!({})), None);
    first.credit(20, MANY);
    let before = first.receive_many(20, SOON).await;
    first.accept(before[..10].iter().map(|message| message.id));
    eventually(&server, "ten acknowledged", |info| {
        info.ack_floor.stream_sequence == 10
    })
    .await;
    let start = Instant::now();
    server.kill();
    let failure = first.ended(SOON).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Down, "{failure}");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    server.restart();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut second = SourceDriver::start::<Consume>(nats, config(json!({})), None);
    second.credit(100, MANY);
    let mut after = Vec::new();
    while let Some(message) = second.receive(Duration::from_secs(3)).await {
        second.accept([message.id]);
        after.push(message);
    }
    for message in &before[10..] {
        assert!(
            after.iter().any(|again| again.identity == message.identity),
            "{message:?} is lost"
        );
    }
    // A kill may take back acknowledgements the server had not written; identities tell repeats.
    let mut identities: Vec<_> = before
        .iter()
        .chain(&after)
        .map(|m| m.identity.clone())
        .collect();
    identities.sort();
    identities.dedup();
    assert_eq!(identities.len(), 50);
    second.stop(SOON).await.unwrap();
    assert_eq!(info(&server).await.num_ack_pending, 0);
}

#[tokio::test]
async fn a_frozen_server_ends_the_run() {
    let Some(server) = Server::start("") else {
        return;
    };
    stream(&server, 1).await;
    let mut source = source(&server, json!({})).await;
    source.credit(1, MANY);
    assert!(source.receive(SOON).await.is_some());
    source.credit(1, MANY);
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.signal("STOP");
    let failure = source.ended(Duration::from_secs(20)).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Down, "{failure}");
    server.signal("CONT");
}

#[tokio::test]
async fn a_message_larger_than_a_pull_comes_alone() {
    let Some(server) = Server::start("max_payload: 20MB") else {
        return;
    };
    stream(&server, 1).await;
    let jetstream = jetstream_of(&server).await;
    jetstream
        .publish("s.big", vec![b'x'; 12 << 20].into())
        .await
        .unwrap()
        .await
        .unwrap();
    publish(&server, 2..3).await;
    let mut source = source(&server, json!({ "ack_wait": "30s" })).await;
    source.credit(10, MANY);
    let sizes: Vec<_> = source
        .receive_many(3, SOON)
        .await
        .iter()
        .map(|message| message.body.len())
        .collect();
    assert_eq!(sizes, [1, 12 << 20, 1]);
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_stream_made_again_gives_other_identities() {
    let Some(server) = Server::start("") else {
        return;
    };
    stream(&server, 1).await;
    let mut first = source(&server, json!({})).await;
    first.credit(1, MANY);
    let before = first.receive(SOON).await.unwrap();
    first.credit(1, MANY);
    tokio::time::sleep(Duration::from_millis(200)).await;
    jetstream_of(&server)
        .await
        .delete_stream("S")
        .await
        .unwrap();
    let failure = first.ended(Duration::from_secs(20)).await.unwrap_err();
    assert!(
        ["pull_ended", "no_consumer"].contains(&failure.code.as_str()),
        "{failure}"
    );
    stream(&server, 1).await;
    let mut second = source(&server, json!({})).await;
    second.credit(1, MANY);
    let after = second.receive(SOON).await.unwrap();
    assert_eq!(before.body, after.body);
    assert_ne!(before.identity, after.identity);
    second.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_consumed_says_why() {
    let Some(server) = Server::start("") else {
        return;
    };
    assert_eq!(
        fails(&server, json!({})).await,
        (FailureKind::Denied, "no_stream".into())
    );
    let stream = stream(&server, 3).await;
    assert_eq!(
        fails(&server, json!({ "create": false })).await,
        (FailureKind::Denied, "no_consumer".into())
    );
    let push = consumer::push::Config {
        durable_name: Some("push".into()),
        deliver_subject: "d".into(),
        ..Default::default()
    };
    stream.create_consumer(push).await.unwrap();
    assert_eq!(
        fails(&server, json!({ "consumer": "push" })).await,
        (FailureKind::Config, "push_consumer".into())
    );
    let silent = consumer::pull::Config {
        durable_name: Some("silent".into()),
        ack_policy: consumer::AckPolicy::All,
        ..Default::default()
    };
    stream.create_consumer(silent).await.unwrap();
    assert_eq!(
        fails(&server, json!({ "consumer": "silent" })).await,
        (FailureKind::Config, "ack_policy".into())
    );
    let mut last = source(
        &server,
        json!({ "consumer": "l", "deliver": "last", "filter_subject": "s.1" }),
    )
    .await;
    last.credit(5, MANY);
    assert_eq!(
        bodies(&last.receive_many(2, Duration::from_secs(1)).await),
        ["1"]
    );
    last.stop(SOON).await.unwrap();
}

#[test]
fn the_declaration_is_coherent_and_faults_name_their_field() {
    assert_eq!(
        consign_manifest::coherence::source(&Consume::declaration()),
        Vec::<String>::new()
    );
    let nats: ConnectionConfig =
        serde_json::from_value(json!({ "servers": ["nats://h:4222"] })).unwrap();
    let good = Consume::resolve(&nats, &config(json!({})));
    assert_eq!(
        (good.faults, good.delivery),
        (Vec::new(), DeliveryType::OffsetTrackedIndividual)
    );
    for (change, part) in [
        (json!({ "stream": "a.b" }), "`stream`"),
        (json!({ "consumer": "" }), "`consumer`"),
        (json!({ "filter_subject": "a..b" }), "`filter_subject`"),
        (json!({ "ack_wait": "10ms" }), "`ack_wait`"),
        (
            json!({ "pull_messages": 0 }),
            "`max_ack_pending`, `pull_messages`",
        ),
    ] {
        let faults = Consume::resolve(&nats, &config(change)).faults;
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }
}

#[test]
fn the_plugin_has_both_operations_and_a_text_for_every_field() {
    let manifest = consign_plugin_nats::plugin().manifest();
    assert!(manifest.operation("nats.publish").is_some());
    let connector = &manifest.connectors[0];
    let mut schemas = vec![&connector.config_schema];
    schemas.extend(
        connector
            .operations
            .iter()
            .map(|operation| &operation.config_schema),
    );
    for schema in schemas {
        for (name, field) in schema["properties"].as_object().unwrap() {
            assert!(
                field["description"].is_string(),
                "`{name}` has no doc comment: {field}"
            );
        }
    }
}
