//! The broker of the tests, and topics of a test's own on it.
#![allow(dead_code, reason = "not every test file needs all of it")]

#[path = "../conformance/raw.rs"]
pub mod raw;

use consign_plugin_kafka::config::ConnectionConfig;
use consign_testkit::Service;
use raw::Raw;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where a broker listens.
#[derive(Clone)]
pub struct Broker {
    pub plain: SocketAddr,
    pub sasl: SocketAddr,
    /// Of the listener for TLS, at `localhost`.
    pub tls_port: u16,
    /// Who has signed its certificate.
    pub ca_file: String,
}

impl Broker {
    /// The broker that all tests share; none where it cannot be had.
    pub fn shared() -> Option<Self> {
        consign_testkit::service("kafka").map(|service| Self::of(&service))
    }

    pub fn of(service: &Service) -> Self {
        let (plain, ports) = service.url.split_once('#').unwrap();
        let find = |name: &str| {
            let found = ports.split('&').find_map(|pair| pair.strip_prefix(name));
            found.unwrap()
        };
        Self {
            plain: plain.parse().unwrap(),
            sasl: format!("127.0.0.1:{}", find("sasl=")).parse().unwrap(),
            tls_port: find("tls=").parse().unwrap(),
            ca_file: find("ca=").to_owned(),
        }
    }

    pub async fn raw(&self) -> Raw {
        Raw::connect(self.plain).await
    }

    /// A new topic under a name of its own.
    pub async fn topic(&self, partitions: i32, settings: &[(&str, &str)]) -> String {
        let name = name();
        self.raw()
            .await
            .create_topic(&name, partitions, settings)
            .await;
        name
    }

    pub fn connection(&self) -> ConnectionConfig {
        connection(self.plain, json!({}))
    }
}

/// A name that no other test uses.
pub fn name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("t{}x{count}", std::process::id())
}

/// A connection to this address, with more settings.
pub fn connection(address: SocketAddr, more: Value) -> ConnectionConfig {
    let mut config = json!({
        "servers": [address.to_string()],
        "timeouts": { "connect": "5s", "request": "5s" },
    });
    let more = more.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(more);
    serde_json::from_value(config).unwrap()
}
