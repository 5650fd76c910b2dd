//! Conformance of the HTTP connector's source: clients that post over plain sockets, each message under
//! its own idempotency key, again and again until it is answered 2xx.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use async_trait::async_trait;
use consign_testkit::conformance::{self, Kind, Origin, Place, Product, Setup, Subjects};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Clients that post at the same time.
const CLIENTS: usize = 8;

/// After a refusal, an error or no answer.
const PAUSE: Duration = Duration::from_millis(30);

/// An answer that takes longer counts as none.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    conformance::main("http", || async {
        Subjects::new().origin(Clients::default())
    })
}

/// Clients of one address per scenario.
#[derive(Default)]
struct Clients {
    places: Mutex<BTreeMap<String, Of>>,
}

/// One scenario's: where they post, and how many messages were answered 2xx.
#[derive(Clone)]
struct Of {
    port: u16,
    answered: Arc<AtomicU64>,
}

impl Clients {
    fn of(&self, place: &Place) -> Of {
        self.places.lock().unwrap().get(&place.tag).unwrap().clone()
    }
}

#[async_trait]
impl Origin for Clients {
    fn operation(&self) -> &'static str {
        "http.receive"
    }

    fn case(&self) -> &'static str {
        "client_key"
    }

    /// The other side of this connector is any client; this one is ours.
    fn product(&self) -> Product {
        Product {
            server: "HTTP/1.1 client over a plain socket".into(),
            version: "RFC 9112".into(),
            kind: Kind::Real,
        }
    }

    async fn prepare(&self, place: &Place) -> Setup {
        let port = consign_testkit::host::free_port();
        let answered = Arc::default();
        let mut places = self.places.lock().unwrap();
        places.insert(place.tag.clone(), Of { port, answered });
        Setup {
            connection: format!(
                "{{ connector: http, config: {{ listen: \"127.0.0.1:{port}\" }} }}"
            ),
            config: "{ path: /in }".into(),
            order: String::new(),
        }
    }

    async fn offer(&self, place: &Place, ids: &[String]) {
        let of = self.of(place);
        let ids: Arc<[String]> = ids.into();
        for client in 0..CLIENTS {
            let (of, ids) = (of.clone(), Arc::clone(&ids));
            tokio::spawn(async move {
                for id in ids.iter().skip(client).step_by(CLIENTS) {
                    while !post(of.port, id).await {
                        tokio::time::sleep(PAUSE).await;
                    }
                    of.answered.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    }

    async fn settled(&self, place: &Place) -> Option<u64> {
        Some(self.of(place).answered.load(Ordering::SeqCst))
    }
}

/// Posts one message on a connection of its own; whether the answer was 2xx.
async fn post(port: u16, id: &str) -> bool {
    let body = format!("{{\"id\": \"{id}\", \"n\": 1}}");
    let request = format!(
        "POST /in HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nIdempotency-Key: {id}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        Some(answer.starts_with(b"HTTP/1.1 2"))
    };
    let answered = tokio::time::timeout(PATIENCE, exchange).await;
    answered.ok().flatten().unwrap_or(false)
}
