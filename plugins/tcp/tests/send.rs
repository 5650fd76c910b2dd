//! `tcp.send` against real sockets: framing, order, streams that end, receivers that stall or talk.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod receiver;

use consign_plugin::prelude::*;
use consign_plugin::testing::{self, TestWrite};
use consign_plugin::{Advice, Applied, Scope};
use consign_plugin_tcp::config::{ConnectionConfig, SendConfig};
use consign_plugin_tcp::connection::Tcp;
use consign_plugin_tcp::sink::SendFrames;
use receiver::{Manner, Receiver};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::time::Duration;

fn config(address: &str, change: Value) -> ConnectionConfig {
    let mut config = json!({ "address": address, "timeouts": { "connect": "5s" } });
    config
        .as_object_mut()
        .unwrap()
        .extend(change.as_object().unwrap().clone());
    let config: ConnectionConfig = serde_json::from_value(config).unwrap();
    assert_eq!(config.faults(), Vec::<String>::new());
    config
}

async fn open(address: &str, change: Value) -> (Arc<Tcp>, SendFrames) {
    let tcp = testing::connect::<Tcp>(config(address, change))
        .await
        .unwrap();
    let sink = SendFrames::open(Arc::clone(&tcp), SendConfig {}, &testing::context())
        .await
        .unwrap();
    (tcp, sink)
}

fn batch<T: AsRef<[u8]>>(bodies: &[T]) -> Batch {
    testing::batch(bodies.iter().map(|body| TestWrite::new(body.as_ref())))
}

async fn write<T: AsRef<[u8]>>(sink: &SendFrames, bodies: &[T]) -> Vec<Outcome> {
    testing::write(sink, &batch(bodies)).await
}

/// Whether the outcomes are: so many handed over, then at most one cut in the midst, then none sent.
fn handed_over(outcomes: &[Outcome], cut: Applied) -> usize {
    let sent = outcomes
        .iter()
        .take_while(|outcome| **outcome == Outcome::sent_unconfirmed())
        .count();
    for (place, outcome) in outcomes.iter().enumerate().skip(sent) {
        let expected = if place == sent { cut } else { Applied::No };
        assert!(
            outcome.applied() == expected || outcome.applied() == Applied::No,
            "{place} of {sent}: {outcome:?}"
        );
        assert_eq!(
            (outcome.scope(), outcome.advice()),
            (Scope::Connection, Advice::Now)
        );
    }
    sent
}

#[tokio::test]
async fn each_framing_arrives_byte_for_byte_over_one_stream() {
    let big: Vec<u8> = vec![7; 300_000];
    for (change, expected) in [
        (
            json!({}),
            [b"one\n\ntwo\n".to_vec(), big.clone(), b"\n".to_vec()].concat(),
        ),
        (
            json!({ "framing": "length_prefixed", "length_bytes": 4, "length_order": "little_endian" }),
            [
                b"\x03\0\0\0one\0\0\0\0\x03\0\0\0two".to_vec(),
                300_000_u32.to_le_bytes().to_vec(),
                big.clone(),
            ]
            .concat(),
        ),
    ] {
        let receiver = Receiver::start();
        let (tcp, sink) = open(&receiver.address(), change).await;
        for bodies in [&[b"one".as_slice(), b""][..], &[b"two", &big]] {
            assert_eq!(
                write(&sink, bodies).await,
                [Outcome::sent_unconfirmed(), Outcome::sent_unconfirmed()]
            );
        }
        let streams = receiver.until("all bytes", |streams| {
            streams.concat().len() >= expected.len()
        });
        assert!(
            streams.await == [expected],
            "other bytes, or another stream"
        );
        tcp.close().await;
    }
    let receiver = Receiver::start();
    let (_tcp, sink) = open(&receiver.address(), json!({ "framing": "none" })).await;
    write(&sink, &["on", "e\n"]).await;
    receiver
        .until("the bytes as they are", |streams| {
            streams.concat() == b"one\n"
        })
        .await;
}

#[tokio::test]
async fn a_line_feed_in_a_body_is_refused_by_name_and_stops_what_is_behind_it() {
    let receiver = Receiver::start();
    let (_tcp, sink) = open(&receiver.address(), json!({})).await;
    let outcomes = write(&sink, &["a", "b", "c\nd", "e", "f\ng"]).await;
    let codes: Vec<_> = outcomes.iter().map(Outcome::code).collect();
    assert_eq!(
        codes,
        [
            "",
            "",
            "embedded_newline",
            "behind_refused",
            "behind_refused"
        ]
    );
    assert_eq!(outcomes[2].advice(), Advice::Never);
    assert_eq!(
        (outcomes[3].applied(), outcomes[3].advice()),
        (Applied::No, Advice::Now)
    );
    // A batch of nothing else needs no stream.
    assert_eq!(write(&sink, &["x\ny"]).await[0].code(), "embedded_newline");
    write(&sink, &["e"]).await;
    receiver
        .until("what can be sent", |streams| {
            streams.concat() == b"a\nb\ne\n"
        })
        .await;
}

#[tokio::test]
async fn nobody_there_is_down_and_the_backlog_goes_when_somebody_is() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (tcp, sink) = open(&address, json!({})).await;
    // The stream that was accepted goes with the listener's queue.
    drop(listener);
    let outcomes = write(&sink, &["one", "two"]).await;
    for outcome in &outcomes {
        assert_eq!(
            (outcome.applied(), outcome.scope(), outcome.advice()),
            (Applied::No, Scope::Connection, Advice::Now)
        );
    }
    let failure = testing::connect::<Tcp>(config(&address, json!({})))
        .await
        .err()
        .unwrap();
    assert_eq!(
        (failure.kind, &*failure.code),
        (FailureKind::Down, "refused")
    );
    assert!(failure.message.contains(&address), "{failure}");
    assert!(tcp.probe().await.is_err());

    let receiver = Receiver::on(TcpListener::bind(&address).unwrap());
    // Batches that come soon after a failed dial share its answer.
    tokio::time::sleep(Duration::from_millis(300)).await;
    tcp.probe().await.unwrap();
    assert_eq!(
        write(&sink, &["one", "two"]).await,
        [Outcome::sent_unconfirmed(), Outcome::sent_unconfirmed()]
    );
    receiver
        .until("the backlog", |streams| streams.concat() == b"one\ntwo\n")
        .await;
}

#[tokio::test]
async fn a_receiver_that_closes_between_batches_loses_nothing() {
    let receiver = Receiver::start();
    receiver.treat(Manner::CloseAfter(3));
    let (_tcp, sink) = open(&receiver.address(), json!({})).await;
    for n in 0..20 {
        assert_eq!(
            write(&sink, &[format!("{n:02}")]).await,
            [Outcome::sent_unconfirmed()]
        );
        // Closed by the time of the next batch; without a look the network stack would take that too.
        receiver
            .until("the message", |streams| {
                streams.concat().len() == 3 * (n + 1)
            })
            .await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let streams = receiver.streams();
    assert_eq!(streams.len(), 20);
    let expected: String = (0..20).map(|n| format!("{n:02}\n")).collect();
    assert_eq!(streams.concat(), expected.as_bytes());
}

#[tokio::test]
async fn a_stream_that_is_cut_in_a_batch_says_what_may_have_landed() {
    let bodies: Vec<Vec<u8>> = (0..400)
        .map(|n| vec![b'a' + n as u8 % 26; 50_000])
        .collect();
    for (framing, cut) in [("line", Applied::Maybe), ("length_prefixed", Applied::No)] {
        let receiver = Receiver::start();
        receiver.treat(Manner::CloseAfter(123_456));
        let change = json!({ "framing": framing, "send_buffer": "16KiB" });
        let (_tcp, sink) = open(&receiver.address(), change).await;
        let outcomes = write(&sink, &bodies).await;
        let sent = handed_over(&outcomes, cut);
        assert!((2..400).contains(&sent), "{sent} of 400 handed over");
        let last = outcomes.last().unwrap().code();
        assert!(["reset", "broken_pipe"].contains(&last), "{last}");
        // The next stream begins with a whole message.
        receiver.treat(Manner::ReadAll);
        let rest = write(&sink, &bodies[sent..]).await;
        assert!(rest.iter().all(|o| *o == Outcome::sent_unconfirmed()));
        let wanted: usize = bodies[sent..].iter().map(|b| b.len()).sum();
        let streams = receiver
            .until("the rest", |streams| {
                streams.last().is_some_and(|last| last.len() >= wanted)
            })
            .await;
        let first = if framing == "line" {
            bodies[sent].clone()
        } else {
            50_000_u32.to_be_bytes().to_vec()
        };
        assert!(streams.last().unwrap().starts_with(&first));
    }
}

#[tokio::test]
async fn a_receiver_that_takes_nothing_is_given_up_before_the_deadline() {
    // Accepts by its queue and never reads.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (_tcp, sink) = open(&address, json!({ "send_buffer": "16KiB" })).await;
    let bodies: Vec<Vec<u8>> = (0..400).map(|_| vec![b'x'; 50_000]).collect();
    let outcomes = testing::write_within(&sink, &batch(&bodies), Duration::from_secs(1)).await;
    let sent = handed_over(&outcomes, Applied::Maybe);
    assert!((1..400).contains(&sent), "{sent} of 400 handed over");
    assert_eq!(outcomes[399].code(), "timeout");
    // `timeouts.request` bounds it as well.
    let change = json!({ "send_buffer": "16KiB", "timeouts": { "request": "200ms" } });
    let (_tcp, sink) = open(&address, change).await;
    let from = std::time::Instant::now();
    let outcomes = write(&sink, &bodies).await;
    handed_over(&outcomes, Applied::Maybe);
    assert!(from.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_batch_that_is_cancelled_leaves_no_half_message_for_the_next() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (_tcp, sink) = open(&address, json!({ "send_buffer": "16KiB" })).await;
    let bodies: Vec<Vec<u8>> = (0..400).map(|_| vec![b'x'; 50_000]).collect();
    let cancelled = tokio::time::timeout(Duration::from_millis(300), write(&sink, &bodies)).await;
    assert!(cancelled.is_err(), "20 MB were taken by nobody");
    let receiver = Receiver::on(listener);
    assert_eq!(
        write(&sink, &["whole"]).await,
        [Outcome::sent_unconfirmed()]
    );
    receiver
        .until("a stream of its own", |streams| {
            streams.len() == 2 && streams[1] == b"whole\n"
        })
        .await;
}

#[tokio::test]
async fn what_a_receiver_says_is_thrown_away_and_breaks_nothing() {
    let receiver = Receiver::start();
    receiver.treat(Manner::Chatter(200_000));
    let (tcp, sink) = open(&receiver.address(), json!({})).await;
    let mut expected = Vec::new();
    for n in 0..50 {
        let body = format!("message {n}");
        assert_eq!(write(&sink, &[&body]).await, [Outcome::sent_unconfirmed()]);
        expected.extend_from_slice(format!("{body}\n").as_bytes());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tcp.close().await;
    receiver
        .until("every message, over one stream", |streams| {
            streams == [expected.clone()]
        })
        .await;
}

#[tokio::test]
async fn batches_at_once_share_the_stream_one_after_the_other() {
    let receiver = Receiver::start();
    let (_tcp, sink) = open(&receiver.address(), json!({})).await;
    let sink = Arc::new(sink);
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let sink = Arc::clone(&sink);
            tokio::spawn(async move {
                let bodies: Vec<String> = (0..50).map(|n| format!("{task}-{n}")).collect();
                write(&sink, &bodies).await
            })
        })
        .collect();
    for task in tasks {
        assert!(
            task.await
                .unwrap()
                .iter()
                .all(|o| *o == Outcome::sent_unconfirmed())
        );
    }
    let streams = receiver
        .until("400 lines", |streams| {
            streams.concat().iter().filter(|b| **b == b'\n').count() == 400
        })
        .await;
    assert_eq!(streams.len(), 1);
    let text = String::from_utf8(streams.concat()).unwrap();
    for task in 0..8 {
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with(&format!("{task}-")))
            .collect();
        let expected: Vec<String> = (0..50).map(|n| format!("{task}-{n}")).collect();
        assert_eq!(lines, expected);
    }
}

#[test]
fn the_declaration_is_coherent_and_every_configuration_resolves_to_unconfirmed() {
    assert_eq!(
        consign_manifest::coherence::sink(&SendFrames::declaration()),
        Vec::<String>::new()
    );
    let resolved = SendFrames::resolve(
        &config("collector:6514", json!({ "framing": "none" })),
        &SendConfig {},
    );
    assert_eq!(
        (resolved.promise, resolved.unconfirmed, resolved.repeat),
        (Promise::AtLeastOnce, true, RepeatKind::SecondCopy)
    );
    assert_eq!(resolved.target_id, "collector:6514");
    let manifest = consign_plugin_tcp::plugin().manifest();
    let (connector, operation) = manifest.operation("tcp.send").unwrap();
    assert!(connector.example.contains("tcp.send"));
    for schema in [&connector.config_schema, &operation.config_schema] {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            assert!(field["description"].is_string(), "`{name}` has no doc");
        }
    }
}
