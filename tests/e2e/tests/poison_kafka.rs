//! A poison message in a Kafka partition: what is held, what flows, and what a handler does about it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;
#[path = "../../../plugins/kafka/tests/conformance/raw.rs"]
#[allow(dead_code, reason = "the connector's own tests use the rest")]
mod raw;

use common::poison::Scene;
use common::{assert_ledgers, ok};
use consign_e2e::free_port;
use raw::{Raw, Record};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Shorter than any test waits: a member that holds a message must stay in its group.
const SESSION: Duration = Duration::from_secs(3);

/// What is in the two partitions; the table refuses one of them, sent there directly.
const FIRST: [&str; 5] = ["one", "two", "bad-3", "four", "five"];
const SECOND: [&str; 2] = ["six", "seven"];

struct Poison {
    scene: Scene,
    broker: SocketAddr,
    topic: String,
}

impl Poison {
    /// None where there is no broker.
    async fn new(on_failure: &str) -> Option<Self> {
        let kafka = consign_testkit::service("kafka")?;
        let broker = kafka.url.split('#').next().unwrap().parse().unwrap();
        let topic = format!("e2e-poison-{}", free_port());
        let mut raw = Raw::connect(broker).await;
        raw.create_topic(&topic, 2, &[]).await;
        for (partition, ids) in [(0, &FIRST[..]), (1, &SECOND[..])] {
            let records: Vec<Record> = ids.iter().map(|id| record(id)).collect();
            raw.produce(&topic, partition, &records).await;
        }
        let session = SESSION.as_secs();
        let scene = Scene::new(
            &format!("{{ connector: kafka, config: {{ servers: [\"{broker}\"] }} }}"),
            &format!(
                "operation: kafka.consume, config: {{ topics: [{topic}], group: {topic}, session_timeout: {session}s }}"
            ),
            on_failure,
        );
        Some(Self {
            scene,
            broker,
            topic,
        })
    }

    /// What the broker itself says that the group has committed.
    async fn committed(&self) -> [i64; 2] {
        let mut raw = Raw::connect(self.broker).await;
        let mut all = [0; 2];
        for (partition, committed) in (0..).zip(&mut all) {
            let found = raw.committed(&self.topic, &self.topic, partition).await;
            *committed = found.unwrap_or_default();
        }
        all
    }

    async fn until_committed(&self, expected: [i64; 2]) {
        let from = Instant::now();
        while self.committed().await != expected {
            let committed = self.committed().await;
            assert!(from.elapsed() < Duration::from_secs(60), "{committed:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn record(id: &str) -> Record {
    Record {
        offset: 0,
        key: None,
        value: Some(format!("{{\"id\": \"{id}\"}}").into_bytes()),
        headers: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_handler_a_partition_stalls_at_the_message_and_the_other_flows() {
    let Some(mut poison) = Poison::new("").await else {
        return;
    };
    poison.scene.host.start().await;
    poison.scene.until_rows(4).await;
    poison.until_committed([2, 2]).await;
    // Far beyond what the group waits for a sign of life.
    tokio::time::sleep(SESSION * 3).await;
    assert_eq!(poison.scene.rows(), 4, "nothing overtakes in the partition");
    assert_eq!(poison.committed().await, [2, 2]);
    poison.scene.assert_told().await;

    // The table takes it after all: the partition goes on by itself.
    poison.scene.mend();
    poison.scene.until_rows(7).await;
    poison.until_committed([5, 2]).await;
    assert_ledgers(&ok(&poison.scene.host, &["status"]));
    assert_eq!(poison.scene.host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolated_poison_is_set_aside_and_its_partition_flows_on() {
    let Some(mut poison) = Poison::new("on_failure: { handler: isolate_poison }").await else {
        return;
    };
    poison.scene.host.start().await;
    poison.scene.until_rows(6).await;
    poison.until_committed([5, 2]).await;
    poison.scene.assert_set_aside();
    assert_eq!(poison.scene.host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_of_poison_is_kept_while_its_destination_is_down_too() {
    let on_failure = "on_failure: { handler: dead_letter, divert: [orders/dead/letters] }";
    let Some(mut poison) = Poison::new(on_failure).await else {
        return;
    };
    let lock = poison.scene.close_the_dead_letters();
    poison.scene.host.start().await;
    poison.scene.until_rows(6).await;
    poison.scene.until_the_letter_waits().await;
    poison.until_committed([5, 2]).await;
    poison.scene.assert_the_letter_outlives_kills(lock).await;
    assert_eq!(poison.scene.rows(), 6);
    assert_eq!(poison.scene.host.stop(), Some(0));
}
