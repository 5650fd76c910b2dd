//! The finished library in the host, against the small server, with the connection broken on purpose: what
//! `acme_lines.put` declares is held against what lands. `cargo test` runs a part of it;
//! `cargo test --test conformance -- --full` all, which takes some minutes.
//!
//! Keep this file when the small server gives way to your system: then `product` names it, and `effects`
//! counts with another client than the plugin's own.

#[allow(dead_code)]
#[path = "../src/server.rs"]
mod server;

use consign_plugin::prelude::async_trait;
use consign_testkit::conformance::{
    self, Access, Destination, Effect, Kind, Place, Product, Setup, Subjects,
};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

fn main() -> ExitCode {
    conformance::main("acme_lines", || async {
        let (address, shelf) = server::start().await;
        let shelf = LineServer {
            address: address.parse().unwrap(),
            shelf,
        };
        Subjects::new()
            .library(env!("CARGO_PKG_NAME"))
            .destination(shelf)
    })
}

/// One server for all scenarios: each has ids of its own.
struct LineServer {
    address: SocketAddr,
    shelf: Arc<Mutex<server::Lines>>,
}

#[async_trait]
impl Destination for LineServer {
    fn operation(&self) -> &'static str {
        "acme_lines.put"
    }

    fn case(&self) -> &'static str {
        "lines"
    }

    fn product(&self) -> Product {
        Product {
            server: "the small server of its tests".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            kind: Kind::Own,
        }
    }

    /// The kit's proxy stands between the plugin and this server.
    fn access(&self) -> Access {
        Access::Network {
            server: self.address,
            applies: Vec::new(),
            shows_key: true,
        }
    }

    async fn prepare(&self, place: &Place) -> Setup {
        let proxy = place.address.unwrap();
        Setup {
            connection: format!("{{ connector: acme_lines, config: {{ address: \"{proxy}\" }} }}"),
            config: "{ tag: left }".into(),
            order: "none".into(),
        }
    }

    /// Of this scenario alone: the ids of its messages begin with its tag.
    async fn effects(&self, place: &Place) -> Vec<Effect> {
        let shelf = self.shelf.lock().unwrap();
        let effect = |(key, (_, body)): (&String, &(String, String))| {
            let body: serde_json::Value = serde_json::from_str(body).ok()?;
            Some(Effect {
                id: body["id"].as_str()?.to_owned(),
                key: Some(key.clone()),
            })
        };
        let effects = shelf.kept.iter().filter_map(effect);
        effects
            .filter(|effect| effect.id.starts_with(&place.tag))
            .collect()
    }
}
