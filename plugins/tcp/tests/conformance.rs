//! Conformance of the TCP connector. Nothing comes back from a receiver, so what is shown is what the
//! network took: lines, read by sockets of the standard library.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod receiver;

use async_trait::async_trait;
use consign_testkit::conformance::{
    self, Access, Destination, Effect, Kind, Place, Product, Setup, Subjects,
};
use receiver::Receiver;
use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::main("tcp", || async {
        Subjects::new().destination(Lines(Receiver::start()))
    })
}

/// A receiver of lines. Messages of other scenarios have other ids.
struct Lines(Receiver);

#[async_trait]
impl Destination for Lines {
    fn operation(&self) -> &'static str {
        "tcp.send"
    }

    fn case(&self) -> &'static str {
        "lines"
    }

    /// The other side of this connector is any receiver; this one is ours, on the system's sockets.
    fn product(&self) -> Product {
        Product {
            server: "TCP receiver over a plain socket".into(),
            version: "RFC 9293".into(),
            kind: Kind::Real,
        }
    }

    fn access(&self) -> Access {
        Access::Network {
            server: self.0.address().parse().unwrap(),
            applies: Vec::new(),
            shows_key: false,
        }
    }

    fn answers(&self) -> bool {
        false
    }

    async fn prepare(&self, place: &Place) -> Setup {
        let address = place.address.unwrap();
        Setup {
            connection: format!(
                "{{ connector: tcp, config: {{ address: \"{address}\", timeouts: {{ connect: 3s, request: 3s }} }} }}"
            ),
            config: "{}".into(),
            order: "strict".into(),
        }
    }

    /// Each whole line of each stream; what has no end was cut off, and is no message.
    async fn effects(&self, place: &Place) -> Vec<Effect> {
        let mut effects = Vec::new();
        for stream in self.0.streams() {
            let whole = stream
                .iter()
                .rposition(|b| *b == b'\n')
                .map_or(0, |at| at + 1);
            for line in stream[..whole]
                .split(|b| *b == b'\n')
                .filter(|line| !line.is_empty())
            {
                let body: serde_json::Value = serde_json::from_slice(line).unwrap();
                let id = body["id"].as_str().unwrap();
                if id.starts_with(&format!("{}-", place.tag)) {
                    effects.push(Effect {
                        id: id.to_owned(),
                        key: None,
                    });
                }
            }
        }
        effects
    }
}
