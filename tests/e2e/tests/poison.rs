//! A poison message on JetStream: what is held, what flows, and what a handler does about it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use async_nats::jetstream::consumer::Info;
use common::poison::Scene;
use common::{assert_ledgers, make_stream, ok};
use consign_e2e::free_port;
use std::time::{Duration, Instant};

/// Shorter than any test waits: what is held must be kept from being handed over again.
const ACK_WAIT: Duration = Duration::from_secs(2);

/// A stream of five messages whose third a table refuses, sent there directly.
struct Poison {
    scene: Scene,
    url: String,
    stream: String,
}

impl Poison {
    /// None where there is no server.
    async fn new(on_failure: &str) -> Option<Self> {
        let nats = consign_testkit::service("nats")?;
        let tag = free_port();
        let (stream, subject) = (format!("E2E_POISON_{tag}"), format!("e2e.poison.{tag}"));
        make_stream(&nats.url, &stream, &subject).await;
        let client = async_nats::connect(&nats.url).await.unwrap();
        let jetstream = async_nats::jetstream::new(client);
        for id in ["one", "two", "bad-3", "four", "five"] {
            let body = format!("{{\"id\": \"{id}\"}}");
            let ack = jetstream.publish(subject.clone(), body.into()).await;
            ack.unwrap().await.unwrap();
        }
        let wait = ACK_WAIT.as_secs();
        let scene = Scene::new(
            &format!(
                "{{ connector: nats, config: {{ servers: [\"{}\"] }} }}",
                nats.url
            ),
            &format!(
                "operation: nats.consume, config: {{ stream: {stream}, consumer: consign, ack_wait: {wait}s }}"
            ),
            on_failure,
        );
        Some(Self {
            scene,
            url: nats.url,
            stream,
        })
    }

    /// What the server itself says about the consumer.
    async fn consumer(&self) -> Info {
        let client = async_nats::connect(&self.url).await.unwrap();
        let jetstream = async_nats::jetstream::new(client);
        let stream = jetstream.get_stream(&self.stream).await.unwrap();
        stream.consumer_info("consign").await.unwrap()
    }

    /// Waits until the server has nothing left for the consumer.
    async fn until_acknowledged(&self) {
        let from = Instant::now();
        loop {
            let info = self.consumer().await;
            if info.num_ack_pending == 0 && info.num_pending == 0 {
                return;
            }
            assert!(from.elapsed() < Duration::from_secs(60), "{info:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_handler_the_message_alone_is_held_and_its_deliveries_are_not_burnt() {
    let Some(mut poison) = Poison::new("").await else {
        return;
    };
    poison.scene.host.start().await;
    poison.scene.until_rows(4).await;
    // Far beyond the acknowledgement's wait.
    tokio::time::sleep(ACK_WAIT * 3).await;
    let info = poison.consumer().await;
    assert_eq!(info.num_ack_pending, 1, "the third alone is held: {info:?}");
    assert_eq!(info.num_redelivered, 0, "it is kept, not handed over again");
    assert_eq!(info.ack_floor.stream_sequence, 2);
    poison.scene.assert_told().await;

    // The table takes it after all: it goes on by itself.
    poison.scene.mend();
    poison.scene.until_rows(5).await;
    poison.until_acknowledged().await;
    assert_ledgers(&ok(&poison.scene.host, &["status"]));
    assert_eq!(poison.scene.host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolated_poison_is_set_aside_and_acknowledged() {
    let Some(mut poison) = Poison::new("on_failure: { handler: isolate_poison }").await else {
        return;
    };
    poison.scene.host.start().await;
    poison.scene.until_rows(4).await;
    poison.until_acknowledged().await;
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
    poison.scene.until_rows(4).await;
    poison.scene.until_the_letter_waits().await;
    poison.until_acknowledged().await;
    poison.scene.assert_the_letter_outlives_kills(lock).await;
    assert_eq!(poison.scene.rows(), 4);
    assert_eq!(poison.scene.host.stop(), Some(0));
}
