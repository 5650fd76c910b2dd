//! Conformance of the Kafka connector against a Kafka broker. Effects and committed offsets are read over
//! the bare protocol ([`raw`]), by no client library at all.
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
    self, Access, Destination, Effect, Origin, Place, Product, Setup, Subjects,
};
use raw::{Raw, Record};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

/// Partitions of the topic that is consumed: one that stands still must not hold the others.
const PARTITIONS: i32 = 4;

fn main() -> ExitCode {
    conformance::main("kafka", || async {
        let subjects = Subjects::new();
        match Broker::find() {
            Some(broker) => subjects
                .destination(Produced(broker.clone()))
                .origin(Consumed(broker)),
            None => subjects.skipped("kafka"),
        }
    })
}

#[derive(Clone)]
struct Broker {
    plain: SocketAddr,
    /// Where the broker listens for those who come through the proxy, and where it says that it is.
    proxied: SocketAddr,
    proxy: SocketAddr,
    version: String,
}

impl Broker {
    fn find() -> Option<Self> {
        let service = consign_testkit::service("kafka")?;
        let (plain, ports) = service.url.split_once('#').unwrap();
        let port = |name: &str| {
            let found = ports.split('&').find_map(|pair| pair.strip_prefix(name));
            SocketAddr::from((Ipv4Addr::LOCALHOST, found.unwrap().parse().unwrap()))
        };
        Some(Self {
            plain: plain.parse().unwrap(),
            proxied: port("proxied="),
            proxy: port("proxy="),
            version: service.version,
        })
    }

    fn product(&self) -> Product {
        Product::real("Apache Kafka", &self.version)
    }
}

/// Into a topic of one partition.
struct Produced(Broker);

#[async_trait]
impl Destination for Produced {
    fn operation(&self) -> &'static str {
        "kafka.produce"
    }

    fn case(&self) -> &'static str {
        "topic"
    }

    fn product(&self) -> Product {
        self.0.product()
    }

    fn access(&self) -> Access {
        Access::Network {
            server: self.0.proxied,
            applies: Vec::new(),
            shows_key: true,
        }
    }

    fn proxy_address(&self) -> Option<SocketAddr> {
        Some(self.0.proxy)
    }

    async fn prepare(&self, place: &Place) -> Setup {
        let mut raw = Raw::connect(self.0.plain).await;
        raw.create_topic(&place.tag, 1, &[]).await;
        let address = place.address.unwrap();
        Setup {
            connection: format!(
                "{{ connector: kafka, config: {{ servers: [\"{address}\"], timeouts: {{ connect: 3s, request: 3s }} }} }}"
            ),
            config: format!("{{ topic: {}, key: \"{{{{ .body.n }}}}\" }}", place.tag),
            order: "strict".into(),
        }
    }

    async fn effects(&self, place: &Place) -> Vec<Effect> {
        let mut raw = Raw::connect(self.0.plain).await;
        let records = raw.records(&place.tag, 0).await;
        records.iter().map(effect).collect()
    }

    async fn clean_up(&self, place: &Place) {
        Raw::connect(self.0.plain)
            .await
            .delete_topic(&place.tag)
            .await;
    }
}

/// A topic of several partitions, through a consumer group.
struct Consumed(Broker);

#[async_trait]
impl Origin for Consumed {
    fn operation(&self) -> &'static str {
        "kafka.consume"
    }

    fn case(&self) -> &'static str {
        "group"
    }

    fn product(&self) -> Product {
        self.0.product()
    }

    async fn prepare(&self, place: &Place) -> Setup {
        let tag = &place.tag;
        let mut raw = Raw::connect(self.0.plain).await;
        raw.create_topic(tag, PARTITIONS, &[]).await;
        Setup {
            connection: format!(
                "{{ connector: kafka, config: {{ servers: [\"{}\"] }} }}",
                self.0.plain
            ),
            // A host that was killed keeps its partitions for this long.
            config: format!("{{ topics: [{tag}], group: {tag}, session_timeout: 3s }}"),
            order: String::new(),
        }
    }

    async fn offer(&self, place: &Place, ids: &[String]) {
        let mut raw = Raw::connect(self.0.plain).await;
        for partition in 0..PARTITIONS {
            let share = ids.iter().skip(partition as usize);
            let records: Vec<Record> = share
                .step_by(PARTITIONS as usize)
                .map(|id| Record {
                    offset: 0,
                    key: None,
                    value: Some(format!("{{\"id\": \"{id}\", \"n\": 1}}").into_bytes()),
                    headers: Vec::new(),
                })
                .collect();
            if !records.is_empty() {
                raw.produce(&place.tag, partition, &records).await;
            }
        }
    }

    async fn settled(&self, place: &Place) -> Option<u64> {
        let mut raw = Raw::connect(self.0.plain).await;
        let mut settled = 0;
        for partition in 0..PARTITIONS {
            let committed = raw.committed(&place.tag, &place.tag, partition).await;
            settled += committed.unwrap_or_default();
        }
        Some(settled as u64)
    }

    fn shared_by_hosts(&self) -> bool {
        true
    }

    async fn clean_up(&self, place: &Place) {
        Raw::connect(self.0.plain)
            .await
            .delete_topic(&place.tag)
            .await;
    }
}

fn effect(record: &Record) -> Effect {
    let value = record.value.as_deref().unwrap();
    let body: serde_json::Value = serde_json::from_slice(value).unwrap();
    Effect {
        id: body["id"].as_str().unwrap().to_owned(),
        key: record.header("consign.write-key"),
    }
}
