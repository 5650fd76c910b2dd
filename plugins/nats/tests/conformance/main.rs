//! Conformance of the NATS connector against nats-server. Effects are counted over the bare protocol
//! ([`raw`]), by none of the client library's code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod raw;

use async_trait::async_trait;
use consign_testkit::conformance::{
    self, Access, Destination, Effect, Origin, Place, Product, Scenario, Setup, Subjects,
};
use raw::Raw;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The window of the stream whose end is waited for; the others have the server's default.
const SHORT_WINDOW: Duration = Duration::from_secs(3);
const DEFAULT_WINDOW: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    conformance::main("nats", || async {
        let subjects = Subjects::new();
        match Server::find() {
            Some(server) => subjects
                .destination(JetStream(server.clone()))
                .destination(Core {
                    server: server.clone(),
                    heard: Mutex::default(),
                })
                .origin(Consumed(server)),
            None => subjects.skipped("nats"),
        }
    })
}

#[derive(Clone)]
struct Server {
    address: SocketAddr,
    version: String,
}

impl Server {
    fn find() -> Option<Self> {
        let service = consign_testkit::service("nats")?;
        let address = service.url.strip_prefix("nats://").unwrap();
        Some(Self {
            address: address.parse().unwrap(),
            version: service.version,
        })
    }

    fn product(&self) -> Product {
        Product::real("nats-server", &self.version)
    }

    fn access(&self) -> Access {
        Access::Network {
            server: self.address,
            applies: Vec::new(),
            shows_key: true,
        }
    }

    fn setup(place: &Place, config: String) -> Setup {
        let address = place.address.unwrap();
        Setup {
            connection: format!(
                "{{ connector: nats, config: {{ servers: [\"nats://{address}\"], timeouts: {{ connect: 3s, request: 3s }} }} }}"
            ),
            config,
            order: "none".into(),
        }
    }
}

/// Into a stream, which drops repeats by `Nats-Msg-Id`.
struct JetStream(Server);

#[async_trait]
impl Destination for JetStream {
    fn operation(&self) -> &'static str {
        "nats.publish"
    }

    fn case(&self) -> &'static str {
        "jetstream"
    }

    fn product(&self) -> Product {
        self.0.product()
    }

    fn access(&self) -> Access {
        self.0.access()
    }

    fn window(&self) -> Option<Duration> {
        Some(SHORT_WINDOW)
    }

    fn shares_connection(&self) -> bool {
        true
    }

    async fn prepare(&self, place: &Place) -> Setup {
        let window = match place.scenario {
            Scenario::AgainOutsideWindow => SHORT_WINDOW,
            _ => DEFAULT_WINDOW,
        };
        let tag = &place.tag;
        let mut raw = Raw::connect(self.0.address).await;
        raw.create_stream(tag, &format!("conformance.{tag}"), window)
            .await;
        Server::setup(
            place,
            format!("{{ subject: \"conformance.{tag}\", jetstream: true, stream: {tag} }}"),
        )
    }

    async fn effects(&self, place: &Place) -> Vec<Effect> {
        let mut raw = Raw::connect(self.0.address).await;
        let messages = raw.stored(&place.tag).await;
        messages.iter().map(effect).collect()
    }

    async fn clean_up(&self, place: &Place) {
        Raw::connect(self.0.address)
            .await
            .delete_stream(&place.tag)
            .await;
    }
}

/// To whoever listens: here one subscriber, from before the host starts.
struct Core {
    server: Server,
    /// What each scenario's subscriber heard.
    heard: Mutex<BTreeMap<String, Arc<Mutex<Vec<Effect>>>>>,
}

#[async_trait]
impl Destination for Core {
    fn operation(&self) -> &'static str {
        "nats.publish"
    }

    fn case(&self) -> &'static str {
        "core"
    }

    fn product(&self) -> Product {
        self.server.product()
    }

    fn access(&self) -> Access {
        self.server.access()
    }

    async fn prepare(&self, place: &Place) -> Setup {
        let subject = format!("conformance.{}", place.tag);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let mut raw = Raw::connect(self.server.address).await;
        raw.subscribe(&subject).await;
        let kept = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Some(message) = raw.next().await {
                kept.lock().unwrap().push(effect(&message));
            }
        });
        self.heard.lock().unwrap().insert(place.tag.clone(), heard);
        let mut setup = Server::setup(place, format!("{{ subject: \"{subject}\" }}"));
        if place.scenario == Scenario::SentAgainFromFailed {
            // Writes that are on their way together share the connection, and so its lost answers: each
            // would count as another interruption.
            setup.order = "strict".into();
        }
        setup
    }

    async fn effects(&self, place: &Place) -> Vec<Effect> {
        let heard = self.heard.lock().unwrap().get(&place.tag).cloned();
        heard.map_or_else(Vec::new, |heard| heard.lock().unwrap().clone())
    }
}

/// A stream, through a durable consumer.
struct Consumed(Server);

#[async_trait]
impl Origin for Consumed {
    fn operation(&self) -> &'static str {
        "nats.consume"
    }

    fn case(&self) -> &'static str {
        "durable"
    }

    fn product(&self) -> Product {
        self.0.product()
    }

    async fn prepare(&self, place: &Place) -> Setup {
        let tag = &place.tag;
        let mut raw = Raw::connect(self.0.address).await;
        raw.create_stream(tag, &format!("conformance.{tag}"), DEFAULT_WINDOW)
            .await;
        Setup {
            connection: format!(
                "{{ connector: nats, config: {{ servers: [\"nats://{}\"] }} }}",
                self.0.address
            ),
            // A short wait, so that what was not acknowledged comes again within the scenario.
            config: format!("{{ stream: {tag}, consumer: host, ack_wait: 2s }}"),
            order: String::new(),
        }
    }

    async fn offer(&self, place: &Place, ids: &[String]) {
        let bodies: Vec<String> = ids
            .iter()
            .map(|id| format!("{{\"id\": \"{id}\", \"n\": 1}}"))
            .collect();
        let mut raw = Raw::connect(self.0.address).await;
        let subject = format!("conformance.{}", place.tag);
        raw.publish_all(&place.tag, &subject, &bodies).await;
    }

    async fn settled(&self, place: &Place) -> Option<u64> {
        let mut raw = Raw::connect(self.0.address).await;
        Some(raw.acknowledged(&place.tag, "host").await)
    }

    fn shared_by_hosts(&self) -> bool {
        true
    }

    async fn clean_up(&self, place: &Place) {
        Raw::connect(self.0.address)
            .await
            .delete_stream(&place.tag)
            .await;
    }
}

fn effect(message: &raw::Message) -> Effect {
    let body: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
    Effect {
        id: body["id"].as_str().unwrap().to_owned(),
        key: message.header("consign.write-key"),
    }
}
