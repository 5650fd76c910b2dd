//! `kafka.produce` against a real broker: what a record carries, what is refused and by what name, who may
//! write, and a broker that goes away.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod server;

use consign_plugin::testing::{self, TestWrite};
use consign_plugin::{Advice, Applied, Scope, prelude::*};
use consign_plugin_kafka::connection::Kafka;
use consign_plugin_kafka::sink::Produce;
use serde_json::{Value, json};
use server::{Broker, connection};
use std::time::{Duration, Instant};

async fn sink(broker: &Broker, config: Value) -> Produce {
    let config = serde_json::from_value(config).unwrap();
    testing::open_sink::<Produce>(broker.connection(), config)
        .await
        .unwrap()
}

async fn send(sink: &Produce, writes: impl IntoIterator<Item = TestWrite>) -> Vec<Outcome> {
    testing::write(sink, &testing::batch(writes)).await
}

#[track_caller]
fn is(outcome: &Outcome, applied: Applied, scope: Scope, advice: Advice, code: &str) {
    let axes = (outcome.applied(), outcome.scope(), outcome.advice());
    assert_eq!(
        (axes, outcome.code()),
        ((applied, scope, advice), code),
        "{outcome:?}"
    );
}

#[track_caller]
fn refused(outcome: &Outcome, code: &str) {
    is(outcome, Applied::No, Scope::Write, Advice::Never, code);
}

#[track_caller]
fn denied(outcome: &Outcome, code: &str) {
    is(
        outcome,
        Applied::No,
        Scope::Target,
        Advice::NeverAlone,
        code,
    );
}

/// Bytes that no compression makes shorter.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[tokio::test]
async fn a_record_carries_key_headers_partition_and_write_key_in_order() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(3, &[]).await;
    let config = json!({
        "topic": topic, "key": "k", "partition": { "$template": 0 },
        "headers": { "region": "eu" }, "forward_headers": ["*"],
    });
    let sink = sink(&broker, config).await;
    let writes = (0..50).map(|n| {
        TestWrite::new(n.to_string())
            .template(0, "2")
            .header("raw", vec![0xff, 0])
            .content_type("text/plain")
    });
    let outcomes = send(&sink, writes).await;
    assert_eq!(outcomes, vec![Outcome::delivered(); 50]);
    let records = broker.raw().await.records(&topic, 2).await;
    let values = records.iter().map(|r| r.value.clone().unwrap());
    let expected = (0..50).map(|n: i32| n.to_string().into_bytes());
    assert!(values.eq(expected), "the order of the batch");
    let second = &records[1];
    assert_eq!(second.key.as_deref(), Some(&b"k"[..]));
    assert_eq!(second.header("region").as_deref(), Some("eu"));
    assert_eq!(second.header("content-type").as_deref(), Some("text/plain"));
    let key = second.header("consign.write-key");
    assert_eq!(key, Some(format!("{:032x}", 2)));
    let raw = second.headers.iter().find(|(name, _)| name == b"raw");
    assert_eq!(raw.unwrap().1.as_deref(), Some(&[0xff, 0][..]));
}

#[tokio::test]
async fn an_empty_body_is_empty_or_null_as_asked() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(1, &[("cleanup.policy", "compact")]).await;
    for (asked, expected) in [(false, Some(Vec::new())), (true, None)] {
        let config = json!({ "topic": topic, "key": "k", "empty_as_null": asked });
        let sink = sink(&broker, config).await;
        assert_eq!(
            send(&sink, [TestWrite::new("")]).await,
            [Outcome::delivered()]
        );
        let records = broker.raw().await.records(&topic, 0).await;
        assert_eq!(records.last().unwrap().value, expected);
    }
    // A compacted topic refuses a record without a key, and takes those around it.
    let sink = sink(
        &broker,
        json!({ "topic": topic, "key": { "$template": 0 } }),
    )
    .await;
    let outcomes = send(&sink, [TestWrite::new("x").template(0, "")]).await;
    refused(&outcomes[0], "invalid_record");
    let outcomes = send(&sink, [TestWrite::new("x").template(0, "k")]).await;
    assert_eq!(outcomes, [Outcome::delivered()]);
}

#[tokio::test]
async fn what_is_too_large_is_refused_by_name_and_nothing_else_with_it() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(1, &[("max.message.bytes", "20000")]).await;
    // Before the broker: the topic's limit is known.
    let known = sink(&broker, json!({ "topic": topic })).await;
    let writes = [noise(100), noise(30_000), noise(100)].map(TestWrite::new);
    let outcomes = send(&known, writes).await;
    assert_eq!(
        (&outcomes[0], &outcomes[2]),
        (&Outcome::delivered(), &Outcome::delivered())
    );
    refused(&outcomes[1], "message_too_large");
    let said = &outcomes[1].detail().unwrap().message;
    assert!(said.contains(&topic) && said.contains("20000"), "{said}");
    // By the broker: which topic it is shows with each record, and so does what it takes.
    let slot = json!({ "$template": 0 });
    let unknown = sink(&broker, json!({ "topic": slot })).await;
    let write = |bytes| TestWrite::new(noise(bytes)).template(0, topic.as_str());
    let first = send(&unknown, [write(30_000)]).await;
    is(
        &first[0],
        Applied::No,
        Scope::Write,
        Advice::Now,
        "request_too_large",
    );
    refused(
        &send(&unknown, [write(30_000)]).await[0],
        "message_too_large",
    );
    // Many that are small alone and too large together.
    let many = sink(&broker, json!({ "topic": slot })).await;
    let mut open: Vec<usize> = (0..20).collect();
    for _ in 0..3 {
        let writes = open.iter().map(|_| write(5_000));
        let outcomes = send(&many, writes).await;
        let failed = outcomes.iter().filter(|o| o.applied() != Applied::Yes);
        open.truncate(failed.count());
        if open.is_empty() {
            break;
        }
    }
    assert!(open.is_empty(), "{} never went through", open.len());
    let records = broker.raw().await.records(&topic, 0).await;
    assert_eq!(records.len(), 2 + 20, "no record twice");
    // Larger than any broker's default, and than the client's.
    let large = sink(&broker, json!({ "topic": slot })).await;
    let roomy = broker.topic(1, &[("max.message.bytes", "9000000")]).await;
    let write = TestWrite::new(noise(8 << 20)).template(0, roomy.as_str());
    assert_eq!(send(&large, [write]).await, [Outcome::delivered()]);
}

#[tokio::test]
async fn what_has_no_place_to_go_is_told_at_once() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(2, &[]).await;
    let config = json!({ "topic": { "$template": 0 }, "partition": { "$template": 1 } });
    let sink = sink(&broker, config).await;
    let to = |topic: &str, partition: &str| {
        TestWrite::new("x")
            .template(0, topic)
            .template(1, partition)
    };
    let start = Instant::now();
    let outcomes = send(
        &sink,
        [
            to(&topic, "1"),
            to(&topic, "2"),
            to("no-such-topic", "0"),
            to("a b", "0"),
            to(&topic, "0"),
        ],
    )
    .await;
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(outcomes[0], Outcome::delivered());
    refused(&outcomes[1], "partition");
    denied(&outcomes[2], "no_topic");
    refused(&outcomes[3], "topic");
    assert_eq!(outcomes[4], Outcome::delivered());
}

#[tokio::test]
async fn logins_and_permissions_are_told_apart() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(1, &[]).await;
    let user = |name: &str, password: &str, mechanism: &str| {
        let auth = json!({ "username": name, "password": password });
        connection(
            broker.sasl,
            json!({ "auth": auth, "sasl_mechanism": mechanism }),
        )
    };
    let config = || serde_json::from_value(json!({ "topic": topic })).unwrap();
    for (name, password, mechanism) in [
        ("full", "full-secret", "plain"),
        ("scram", "scram-secret", "scram_sha_256"),
        ("scram", "scram-secret", "scram_sha_512"),
    ] {
        let sink = testing::open_sink::<Produce>(user(name, password, mechanism), config())
            .await
            .unwrap();
        let outcomes = send(&sink, [TestWrite::new("x")]).await;
        assert_eq!(outcomes, [Outcome::delivered()], "{mechanism}");
    }
    for mechanism in ["plain", "scram_sha_512"] {
        let start = Instant::now();
        let failure = testing::connect::<Kafka>(user("full", "wrong-password", mechanism))
            .await
            .err()
            .unwrap();
        assert_eq!(
            (failure.kind, failure.code.as_str()),
            (FailureKind::Denied, "not_authorized"),
            "{failure}"
        );
        assert!(!failure.message.contains("wrong-password"), "{failure}");
        assert!(start.elapsed() < Duration::from_secs(4));
    }
    let narrow = testing::open_sink::<Produce>(user("narrow", "narrow-secret", "plain"), config())
        .await
        .unwrap();
    denied(
        &send(&narrow, [TestWrite::new("x")]).await[0],
        "not_permitted",
    );
    assert_eq!(narrow.inspect().await.verdict, Verdict::NotInspected);
}

#[tokio::test]
async fn a_certificate_is_checked_against_its_authority_and_its_host() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(1, &[]).await;
    let over_tls = |host: &str, tls: Value| {
        let servers = json!([format!("{host}:{}", broker.tls_port)]);
        connection(broker.plain, json!({ "servers": servers, "tls": tls }))
    };
    let trusted = json!({ "ca_file": broker.ca_file });
    let config = serde_json::from_value(json!({ "topic": topic })).unwrap();
    let sink = testing::open_sink::<Produce>(over_tls("localhost", trusted), config)
        .await
        .unwrap();
    let outcomes = send(&sink, [TestWrite::new("x")]).await;
    assert_eq!(outcomes, [Outcome::delivered()]);
    // The system's authorities do not know it.
    let failure = testing::connect::<Kafka>(over_tls("localhost", json!({})))
        .await
        .err()
        .unwrap();
    assert_eq!(
        (failure.kind, failure.code.as_str()),
        (FailureKind::Denied, "tls"),
        "{failure}"
    );
    let missing = json!({ "ca_file": "/no/such/ca.pem" });
    let failure = testing::connect::<Kafka>(over_tls("localhost", missing))
        .await
        .err()
        .unwrap();
    assert_eq!(failure.kind, FailureKind::Config, "{failure}");
    assert!(failure.message.contains("/no/such/ca.pem"), "{failure}");
}

#[tokio::test]
async fn a_topic_is_inspected_and_one_that_is_missing_contradicts() {
    let Some(broker) = Broker::shared() else {
        return;
    };
    let topic = broker.topic(2, &[("max.message.bytes", "12345")]).await;
    let found = sink(&broker, json!({ "topic": topic }))
        .await
        .inspect()
        .await;
    assert_eq!(found.verdict, Verdict::Verified, "{found:?}");
    assert!(
        found.detail.contains("2 partitions") && found.detail.contains("12345"),
        "{}",
        found.detail
    );
    assert!(
        found.warnings.iter().any(|w| w.contains("one replica")),
        "{found:?}"
    );
    let missing = sink(&broker, json!({ "topic": "no-such-topic" })).await;
    assert_eq!(missing.inspect().await.verdict, Verdict::Contradicted);
    let template = sink(&broker, json!({ "topic": { "$template": 0 } })).await;
    assert_eq!(template.inspect().await.verdict, Verdict::NotInspected);
}

#[tokio::test]
async fn an_address_where_nobody_listens_is_down_at_once() {
    let nobody = "127.0.0.1:9".parse().unwrap();
    let start = Instant::now();
    let failure = testing::connect::<Kafka>(connection(nobody, json!({})))
        .await
        .err()
        .unwrap();
    assert_eq!(failure.kind, FailureKind::Down, "{failure}");
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_broker_that_is_killed_under_produce_loses_nothing() {
    let Some(own) = consign_testkit::private_service("kafka") else {
        return;
    };
    let broker = Broker::of(own.service());
    let topic = broker.topic(1, &[]).await;
    let sink = sink(&broker, json!({ "topic": topic })).await;
    assert_eq!(
        send(&sink, [TestWrite::new("warm")]).await,
        [Outcome::delivered()]
    );
    let own = Arc::new(own);
    let (mut open, mut next, mut failed): (Vec<u32>, u32, usize) = (Vec::new(), 0, 0);
    let from = Instant::now();
    for _ in 0..2 {
        let killing = tokio::task::spawn_blocking({
            let own = Arc::clone(&own);
            move || own.kill().unwrap()
        });
        // Batch after batch, until the kill meets one.
        while open.is_empty() {
            let late = from.elapsed() > Duration::from_secs(90);
            assert!(!late, "no kill hit a write");
            open.extend(next..next + 50);
            next += 50;
            open = write_numbers(&sink, open).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        failed += open.len();
        killing.await.unwrap();
        own.start().unwrap();
    }
    let from = Instant::now();
    while !open.is_empty() {
        let late = from.elapsed() > Duration::from_secs(60);
        assert!(!late, "{} writes never landed", open.len());
        open = write_numbers(&sink, open).await;
    }
    assert!(failed > 0);
    let records = broker.raw().await.records(&topic, 0).await;
    let mut copies = std::collections::BTreeMap::<Vec<u8>, usize>::new();
    for record in records {
        *copies.entry(record.value.unwrap()).or_default() += 1;
    }
    for n in 0..next {
        let found = copies.get(n.to_string().as_bytes()).copied();
        assert!(
            (1..=3).contains(&found.unwrap_or_default()),
            "write {n}: {found:?}"
        );
    }
}

#[tokio::test]
async fn a_frozen_broker_is_unknown_in_time_and_down_before_anything_is_sent() {
    let Some(own) = consign_testkit::private_service("kafka") else {
        return;
    };
    let broker = Broker::of(own.service());
    let topic = broker.topic(1, &[]).await;
    let kafka = testing::connect::<Kafka>(broker.connection())
        .await
        .unwrap();
    let config = serde_json::from_value(json!({ "topic": topic })).unwrap();
    let sink = Produce::open(Arc::clone(&kafka), config, &testing::context())
        .await
        .unwrap();
    let batch = |body: &str| testing::batch([TestWrite::new(body)]);
    let second = Duration::from_secs(1);
    let delivered = [Outcome::delivered()];
    assert_eq!(testing::write(&sink, &batch("a")).await, delivered);
    own.signal("STOP").unwrap();
    let start = Instant::now();
    let outcomes = testing::write_within(&sink, &batch("b"), second * 2).await;
    is(
        &outcomes[0],
        Applied::Maybe,
        Scope::Connection,
        Advice::Now,
        "timeout",
    );
    assert!(start.elapsed() < second * 2, "{:?}", start.elapsed());
    assert_eq!(kafka.probe().await.unwrap_err().kind, FailureKind::Down);
    // A new producer, which never reaches the broker.
    let outcomes = testing::write_within(&sink, &batch("c"), second * 3).await;
    assert_eq!(outcomes[0].applied(), Applied::No, "{outcomes:?}");
    own.signal("CONT").unwrap();
    kafka.probe().await.unwrap();
    assert_eq!(testing::write(&sink, &batch("d")).await, delivered);
    let records = broker.raw().await.records(&topic, 0).await;
    let values: Vec<_> = records.into_iter().map(|r| r.value.unwrap()).collect();
    // The frozen broker may have had "b" in its buffers; "c" was taken back for good.
    assert!(
        values == [b"a", b"d"] || values == [b"a", b"b", b"d"],
        "{values:?}"
    );
}

/// Writes numbers as the host would; those that were not delivered.
async fn write_numbers(sink: &Produce, numbers: Vec<u32>) -> Vec<u32> {
    let writes = numbers.iter().map(|n| {
        let key = [n.to_be_bytes(); 4].concat().try_into().unwrap();
        TestWrite::new(n.to_string()).key(key)
    });
    let batch = testing::batch(writes.collect::<Vec<_>>());
    let outcomes = testing::write_within(sink, &batch, Duration::from_secs(3)).await;
    for outcome in outcomes.iter().filter(|o| o.applied() != Applied::Yes) {
        assert_ne!(outcome.advice(), Advice::Never, "{outcome:?}");
    }
    let open = numbers.into_iter().zip(outcomes);
    open.filter(|(_, outcome)| outcome.applied() != Applied::Yes)
        .map(|(n, _)| n)
        .collect()
}

#[test]
fn the_declaration_is_coherent_and_faults_name_their_field() {
    assert_eq!(
        consign_manifest::coherence::sink(&Produce::declaration()),
        Vec::<String>::new()
    );
    let broker = connection("127.0.0.1:9092".parse().unwrap(), json!({}));
    let resolve =
        |config: Value| Produce::resolve(&broker, &serde_json::from_value(config).unwrap());
    let good = resolve(json!({ "topic": "t" }));
    assert_eq!(
        (good.promise, good.repeat, good.faults),
        (Promise::AtLeastOnce, RepeatKind::SecondCopy, Vec::new())
    );
    for (config, part) in [
        (json!({ "topic": "a b" }), "`topic`"),
        (json!({ "topic": "t", "partition": "x" }), "`partition`"),
        (json!({ "topic": "t", "headers": { "": "x" } }), "`headers`"),
    ] {
        let faults = resolve(config).faults;
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }
    for (more, part) in [
        (json!({ "servers": [] }), "`servers`"),
        (json!({ "servers": ["kafka://h:9092"] }), "`servers`"),
        (json!({ "servers": ["h"] }), "`servers`"),
        (
            json!({ "sasl_mechanism": "scram_sha_256" }),
            "`sasl_mechanism`",
        ),
        (
            json!({ "tls": { "server_name": "x" } }),
            "`tls.server_name`",
        ),
        (json!({ "tls": { "cert_file": "x" } }), "belong together"),
    ] {
        let faults = connection("127.0.0.1:9092".parse().unwrap(), more).faults();
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }
}
