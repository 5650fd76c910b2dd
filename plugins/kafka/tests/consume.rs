//! `kafka.consume` against a real broker: what a record carries, credits, what is committed and when,
//! transactions, rebalances, and topics that change under it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod server;

use consign_plugin::prelude::*;
use consign_plugin::testing::{Received, SourceDriver};
use consign_plugin_kafka::config::ConsumeConfig;
use consign_plugin_kafka::source::Consume;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Value, json};
use server::raw::Record;
use server::{Broker, connection};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
const MANY: u64 = 1 << 30;

fn config(topic: &str, change: Value) -> ConsumeConfig {
    let mut config = json!({
        "topics": [topic], "group": topic, "session_timeout": "3s", "commit_interval": "100ms",
    });
    let change = change.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(change);
    serde_json::from_value(config).unwrap()
}

async fn source(broker: &Broker, topic: &str) -> SourceDriver {
    source_with(broker, topic, json!({})).await
}

async fn source_with(broker: &Broker, topic: &str, change: Value) -> SourceDriver {
    SourceDriver::connect::<Consume>(broker.connection(), config(topic, change))
        .await
        .unwrap()
}

fn record(value: &str) -> Record {
    Record {
        offset: 0,
        key: None,
        value: Some(value.into()),
        headers: Vec::new(),
    }
}

fn numbers(range: std::ops::Range<usize>) -> Vec<Record> {
    range.map(|n| record(&n.to_string())).collect()
}

fn bodies(messages: &[Received]) -> Vec<String> {
    messages
        .iter()
        .map(|message| String::from_utf8(message.body.clone()).unwrap())
        .collect()
}

async fn until_committed(broker: &Broker, topic: &str, partition: i32, offset: i64) {
    let from = Instant::now();
    loop {
        let committed = broker.raw().await.committed(topic, topic, partition).await;
        if committed == Some(offset) {
            return;
        }
        assert!(
            from.elapsed() < SOON,
            "{committed:?} is committed, not {offset}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_carry_identity_key_time_and_whatever_headers_they_have() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(1, &[]).await;
    let full = Record {
        key: Some(b"customer 7".to_vec()),
        headers: vec![
            (b"a".to_vec(), Some(b"1".to_vec())),
            (b"a".to_vec(), Some(vec![0xff, 0])),
            (b"Content-Type".to_vec(), Some(b"text/plain".to_vec())),
            (b"Authorization".to_vec(), Some(b"secret".to_vec())),
            (vec![b'b', 0xff], Some(b"odd name".to_vec())),
            (b"none".to_vec(), None),
        ],
        ..record("x")
    };
    let tombstone = Record {
        key: Some(vec![0xff]),
        value: None,
        ..record("")
    };
    let records = [full, tombstone, record(""), record(&"x".repeat(900_000))];
    broker.raw().await.produce(&topic, 0, &records).await;
    let mut source = source(&broker, &topic).await;
    source.credit(10, MANY);
    let messages = source.receive_many(4, SOON).await;
    assert_eq!(messages.len(), 4);
    let first = &messages[0];
    let time = first.time_unix_ms.unwrap();
    let identity = format!("{topic}/0/0@{time}");
    assert_eq!(first.identity.as_deref(), Some(identity.as_bytes()));
    assert_eq!(first.offset, Some(0));
    assert!(
        first
            .partition
            .as_ref()
            .unwrap()
            .starts_with(&format!("{topic}/0#"))
    );
    assert_eq!(first.routing_key.as_deref(), Some(topic.as_str()));
    assert_eq!(first.content_type.as_deref(), Some("text/plain"));
    let expected = json!({ "topic": topic, "partition": 0, "offset": 0, "key": "customer 7" });
    assert_eq!(first.attributes, expected);
    let headers: Vec<_> = first
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_slice()))
        .collect();
    assert_eq!(
        headers,
        [
            ("a", &b"1"[..]),
            ("a", &[0xff, 0]),
            ("Content-Type", b"text/plain"),
            ("b\u{fffd}", b"odd name"),
            ("none", b""),
        ]
    );
    assert_eq!(messages[1].body, b"");
    assert_eq!(messages[1].attributes["tombstone"], true);
    assert_eq!(messages[1].attributes["key_base64"], "/w==");
    assert_eq!(messages[2].body, b"");
    assert_eq!(messages[2].attributes["tombstone"], Value::Null);
    assert_eq!(messages[3].body.len(), 900_000);
    source.stop(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credits_bound_what_is_handed_over_and_a_member_without_credit_stays_in_its_group() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(2, &[]).await;
    let mut raw = broker.raw().await;
    raw.produce(&topic, 0, &numbers(0..20)).await;
    raw.produce(&topic, 1, &numbers(20..40)).await;
    let mut source = source(&broker, &topic).await;
    assert!(source.receive(Duration::from_secs(1)).await.is_none());
    source.credit(3, MANY);
    assert_eq!(
        source.receive_many(4, Duration::from_secs(5)).await.len(),
        3
    );
    // Longer than the group waits for a sign of life.
    assert!(source.receive(Duration::from_secs(4)).await.is_none());
    source.credit(37, MANY);
    let rest = source.receive_many(38, Duration::from_secs(10)).await;
    assert_eq!(rest.len(), 37, "each once, and none lost by a pause");
    source.stop(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_larger_than_what_is_fetched_at_a_time_comes_all_the_same() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(1, &[("max.message.bytes", "30000000")]).await;
    let mut raw = broker.raw().await;
    for size in [10, 20 << 20, 10] {
        let large = record(&"x".repeat(size));
        raw.produce(&topic, 0, &[large]).await;
    }
    let mut source = source(&broker, &topic).await;
    source.credit(10, MANY);
    let messages = source.receive_many(3, SOON * 2).await;
    let sizes: Vec<usize> = messages.iter().map(|m| m.body.len()).collect();
    assert_eq!(sizes, [10, 20 << 20, 10]);
    source.accept(messages.iter().map(|m| m.id));
    until_committed(&broker, &topic, 0, 3).await;
    source.stop(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_settled_without_a_gap_is_committed_and_each_partition_for_itself() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(2, &[]).await;
    let mut raw = broker.raw().await;
    raw.produce(&topic, 0, &numbers(0..5)).await;
    raw.produce(&topic, 1, &numbers(5..10)).await;
    let mut first = source(&broker, &topic).await;
    first.credit(20, MANY);
    let messages = first.receive_many(10, SOON).await;
    let id = |body: usize| {
        let found = messages
            .iter()
            .find(|m| m.body == body.to_string().as_bytes());
        found.unwrap().id
    };
    first.accept([1, 2, 4].map(id));
    first.accept((5..10).map(id));
    until_committed(&broker, &topic, 1, 5).await;
    assert_eq!(raw.committed(&topic, &topic, 0).await, Some(0));
    first.accept([id(0)]);
    until_committed(&broker, &topic, 0, 3).await;
    first.stop(SOON).await.unwrap();
    assert_eq!(raw.committed(&topic, &topic, 0).await, Some(3));
    // The one that was held and what stands behind it come again, under the names they had.
    let mut second = source(&broker, &topic).await;
    second.credit(20, MANY);
    let again = second.receive_many(3, Duration::from_secs(5)).await;
    assert_eq!(bodies(&again), ["3", "4"]);
    let before = messages.iter().find(|m| m.body == b"3").unwrap();
    assert_eq!(again[0].identity, before.identity);
    assert_eq!(again[0].partition, before.partition);
    second.accept(again.iter().map(|m| m.id));
    second.stop(SOON).await.unwrap();
    assert_eq!(
        raw.committed(&topic, &topic, 0).await,
        Some(5),
        "committed before the source has stopped"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn markers_of_transactions_are_no_gap_and_aborted_records_never_come() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(1, &[]).await;
    let (address, to) = (broker.plain.to_string(), topic.clone());
    tokio::task::spawn_blocking(move || {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", address)
            .set("transactional.id", &to)
            .create()
            .unwrap();
        producer.init_transactions(SOON).unwrap();
        for (round, commit) in [true, false, true, false].into_iter().enumerate() {
            producer.begin_transaction().unwrap();
            for n in 0..3 {
                let body = format!("{round}-{n}");
                let record = BaseRecord::<(), str>::to(&to).payload(&body);
                producer.send(record).map_err(|(error, _)| error).unwrap();
            }
            if commit {
                producer.commit_transaction(SOON).unwrap();
            } else {
                producer.flush(SOON).unwrap();
                producer.abort_transaction(SOON).unwrap();
            }
        }
    })
    .await
    .unwrap();
    let mut source = source(&broker, &topic).await;
    source.credit(20, MANY);
    let messages = source.receive_many(7, Duration::from_secs(5)).await;
    assert_eq!(
        bodies(&messages),
        ["0-0", "0-1", "0-2", "2-0", "2-1", "2-2"]
    );
    let offsets: Vec<_> = messages.iter().map(|m| m.offset.unwrap()).collect();
    assert_eq!(offsets, [0, 1, 2, 8, 9, 10], "markers have offsets too");
    source.accept(messages.iter().map(|m| m.id));
    until_committed(&broker, &topic, 0, 11).await;
    source.stop(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_is_let_go_after_what_is_settled_is_committed_and_nothing_more() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(2, &[]).await;
    let mut raw = broker.raw().await;
    raw.produce(&topic, 0, &numbers(0..4)).await;
    raw.produce(&topic, 1, &numbers(10..14)).await;
    let slow = json!({ "commit_interval": "1h" });
    let mut first = source_with(&broker, &topic, slow.clone()).await;
    first.credit(20, MANY);
    let messages = first.receive_many(8, SOON).await;
    assert_eq!(messages.len(), 8);
    let mut second = source_with(&broker, &topic, slow).await;
    second.credit(20, MANY);
    let (token, going) = first.revoked(SOON).await.expect("a rebalance");
    assert_eq!(going.len(), 1, "cooperatively: {going:?}");
    // While the host settles, nothing of it comes to the other member.
    assert!(second.receive(Duration::from_secs(1)).await.is_none());
    let of_it: Vec<&Received> = messages
        .iter()
        .filter(|m| m.partition.as_ref() == Some(&going[0]))
        .collect();
    first.accept([of_it[0].id, of_it[1].id, of_it[3].id]);
    first.revoke_done(token);
    let again = second
        .receive_many(3, SOON.min(Duration::from_secs(8)))
        .await;
    let expected: Vec<_> = of_it[2..].iter().map(|m| m.identity.clone()).collect();
    let came: Vec<_> = again.iter().map(|m| m.identity.clone()).collect();
    assert_eq!(came, expected, "from the gap on, under the same names");
    // What is accepted late, of a partition that is gone, commits nothing.
    let partition = i32::try_from(of_it[0].attributes["partition"].as_i64().unwrap()).unwrap();
    first.accept([of_it[2].id]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(raw.committed(&topic, &topic, partition).await, Some(2));
    first.stop(SOON).await.unwrap();
    assert_eq!(raw.committed(&topic, &topic, partition).await, Some(2));
    second.stop(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_made_again_ends_the_run_and_begins_under_other_names() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(1, &[]).await;
    let mut raw = broker.raw().await;
    raw.produce(&topic, 0, &numbers(0..3)).await;
    let mut first = source(&broker, &topic).await;
    first.credit(100, MANY);
    let before = first.receive_many(3, SOON).await;
    first.accept(before[..2].iter().map(|m| m.id));
    until_committed(&broker, &topic, 0, 2).await;
    raw.delete_topic(&topic).await;
    raw.create_topic(&topic, 1, &[]).await;
    // More than before, so that the old position exists in the new topic too.
    raw.produce(&topic, 0, &numbers(100..110)).await;
    first.accept([before[2].id]);
    let failure = first.ended(SOON * 3).await.unwrap_err();
    assert!(
        ["offsets_changed", "no_topic", "offset_out_of_range"].contains(&failure.code.as_str()),
        "{failure}"
    );
    let mut second = source(&broker, &topic).await;
    second.credit(100, MANY);
    let after = second.receive_many(10, SOON).await;
    let expected: Vec<String> = (100..110).map(|n| n.to_string()).collect();
    assert_eq!(
        bodies(&after),
        expected,
        "nothing of the new topic is skipped"
    );
    assert_ne!(after[0].partition, before[0].partition);
    assert_ne!(after[0].identity, before[0].identity);
    second.stop(SOON).await.unwrap();
}

/// Has the group's offset set by somebody else.
fn move_group(address: String, topic: String, offset: i64) {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", address)
        .set("group.id", &topic)
        .create()
        .unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets
        .add_partition_offset(&topic, 0, Offset::Offset(offset))
        .unwrap();
    consumer.commit(&offsets, CommitMode::Sync).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_was_moved_goes_on_there_and_one_beyond_the_end_waits_for_a_person() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(1, &[]).await;
    broker.raw().await.produce(&topic, 0, &numbers(0..6)).await;
    let mut first = source(&broker, &topic).await;
    first.credit(100, MANY);
    let before = first.receive_many(6, SOON).await;
    first.accept(before.iter().map(|m| m.id));
    until_committed(&broker, &topic, 0, 6).await;
    first.stop(SOON).await.unwrap();
    for (offset, expected) in [(4, Some(["4", "5"])), (1000, None)] {
        let (address, to) = (broker.plain.to_string(), topic.clone());
        tokio::task::spawn_blocking(move || move_group(address, to, offset))
            .await
            .unwrap();
        let mut next = source(&broker, &topic).await;
        next.credit(100, MANY);
        let Some(expected) = expected else {
            let failure = next.ended(SOON).await.unwrap_err();
            assert_eq!(
                (failure.kind, failure.code.as_str()),
                (FailureKind::Denied, "offset_out_of_range"),
                "{failure}"
            );
            continue;
        };
        let again = next.receive_many(2, SOON).await;
        assert_eq!(bodies(&again), expected);
        assert_eq!(again[0].identity, before[4].identity, "the same keys");
        assert_ne!(
            again[0].partition, before[4].partition,
            "or the host would take them for known"
        );
        next.stop(SOON).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latest_begins_behind_what_is_there_and_stays_there_over_a_restart() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(1, &[]).await;
    let mut raw = broker.raw().await;
    raw.produce(&topic, 0, &numbers(0..3)).await;
    let latest = json!({ "start": "latest" });
    let mut first = source_with(&broker, &topic, latest.clone()).await;
    first.credit(10, MANY);
    assert!(first.receive(Duration::from_secs(2)).await.is_none());
    until_committed(&broker, &topic, 0, 3).await;
    first.stop(SOON).await.unwrap();
    raw.produce(&topic, 0, &numbers(3..5)).await;
    let mut second = source_with(&broker, &topic, latest).await;
    second.credit(10, MANY);
    assert_eq!(bodies(&second.receive_many(2, SOON).await), ["3", "4"]);
    second.stop(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_consumed_says_why() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let failure = source(&broker, "no-such-topic").await.ended(SOON).await;
    let failure = failure.unwrap_err();
    assert_eq!(
        (failure.kind, failure.code.as_str()),
        (FailureKind::Denied, "no_topic")
    );
    assert!(failure.message.contains("no-such-topic"), "{failure}");
    let topic = broker.topic(1, &[]).await;
    let auth = json!({ "auth": { "username": "narrow", "password": "narrow-secret" } });
    let narrow = connection(broker.sasl, auth);
    let narrow = SourceDriver::connect::<Consume>(narrow, config(&topic, json!({}))).await;
    let failure = narrow.unwrap().ended(SOON).await.unwrap_err();
    assert_eq!(
        (failure.kind, failure.code.as_str()),
        (FailureKind::Denied, "not_permitted")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed_ends_the_run_and_the_next_one_loses_nothing() {
    let Some(own) = consign_testkit::private_service("kafka") else {
        return;
    };
    let broker = Broker::of(own.service());
    let topic = broker.topic(1, &[]).await;
    broker.raw().await.produce(&topic, 0, &numbers(0..50)).await;
    // A member that the group gives up before the run ends is another matter.
    let patient = json!({ "session_timeout": "12s" });
    let mut first = source_with(&broker, &topic, patient).await;
    first.credit(20, MANY);
    let before = first.receive_many(20, SOON).await;
    first.accept(before[..10].iter().map(|m| m.id));
    until_committed(&broker, &topic, 0, 10).await;
    let start = Instant::now();
    own.kill().unwrap();
    let failure = first.ended(Duration::from_secs(40)).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Down, "{failure}");
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{:?}",
        start.elapsed()
    );
    own.start().unwrap();
    let mut second = source(&broker, &topic).await;
    second.credit(100, MANY);
    let after = second.receive_many(40, SOON * 2).await;
    second.accept(after.iter().map(|m| m.id));
    let expected: Vec<String> = (10..50).map(|n| n.to_string()).collect();
    assert_eq!(bodies(&after), expected);
    assert_eq!(after[0].identity, before[10].identity);
    until_committed(&broker, &topic, 0, 50).await;
    second.stop(SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_broker_ends_the_run_and_a_thawed_one_is_gone_on_with() {
    let Some(own) = consign_testkit::private_service("kafka") else {
        return;
    };
    let broker = Broker::of(own.service());
    let topic = broker.topic(1, &[]).await;
    broker.raw().await.produce(&topic, 0, &numbers(0..6)).await;
    // A member that the group gives up before the run ends is another matter.
    let patient = json!({ "session_timeout": "45s" });
    let mut first = source_with(&broker, &topic, patient).await;
    first.credit(3, MANY);
    let before = first.receive_many(3, SOON).await;
    first.accept(before.iter().map(|m| m.id));
    until_committed(&broker, &topic, 0, 3).await;
    first.credit(3, MANY);
    let rest = first.receive_many(3, SOON).await;
    own.signal("STOP").unwrap();
    first.accept(rest.iter().map(|m| m.id));
    let failure = first.ended(SOON * 3).await.unwrap_err();
    own.signal("CONT").unwrap();
    assert_eq!(failure.kind, FailureKind::Down, "{failure}");
    let mut second = source(&broker, &topic).await;
    second.credit(10, MANY);
    let again = second.receive_many(3, SOON * 4).await;
    // What was accepted and could not be committed comes again, under the names it had.
    let names = |messages: &[Received]| {
        let all = messages.iter().map(|m| m.identity.clone());
        all.collect::<Vec<_>>()
    };
    assert_eq!(names(&again), names(&rest));
    second.accept(again.iter().map(|m| m.id));
    until_committed(&broker, &topic, 0, 6).await;
    second.stop(SOON).await.unwrap();
}

#[test]
fn the_declaration_is_coherent_and_faults_name_their_field() {
    assert_eq!(
        consign_manifest::coherence::source(&Consume::declaration()),
        Vec::<String>::new()
    );
    let broker = connection("127.0.0.1:9092".parse().unwrap(), json!({}));
    let good = Consume::resolve(&broker, &config("t", json!({})));
    assert_eq!(good.faults, Vec::<String>::new());
    for (change, part) in [
        (json!({ "topics": [] }), "`topics`"),
        (json!({ "topics": ["a b"] }), "`topics`"),
        (json!({ "group": "" }), "`group`"),
        (json!({ "session_timeout": "10ms" }), "`session_timeout`"),
        (json!({ "commit_interval": "1ms" }), "`commit_interval`"),
    ] {
        let faults = Consume::resolve(&broker, &config("t", change)).faults;
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }
}
