//! Conformance of the REST connector. POST and PATCH go to httpbin, which keeps nothing: its server's
//! own access log, a line for each request it has carried out, is what is counted. PUT needs a service
//! that stores what it is sent: that is the kit's own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use async_trait::async_trait;
use consign_testkit::conformance::{
    self, Access, Destination, Effect, Kind, Place, Product, Setup, Subjects,
};
use consign_testkit::http_server::HttpServer;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::main("rest", || async {
        let subjects = match Httpbin::find() {
            Some(httpbin) => Subjects::new()
                .destination(Requests(httpbin.clone(), "rest.post", "httpbin_post"))
                .destination(Requests(httpbin, "rest.patch", "httpbin_patch")),
            None => Subjects::new().skipped("httpbin"),
        };
        subjects.destination(Documents(HttpServer::start().await.unwrap()))
    })
}

/// `-` in an id is `~` in a path: each copy then has the id itself once, in its body.
const PATH_ID: &str = r#"{{ replace(string!(.body.id), \"-\", \"~\") }}"#;

fn setup(place: &Place, path: &str) -> Setup {
    let address = place.address.unwrap();
    Setup {
        connection: format!(
            "{{ connector: rest, config: {{ endpoint: \"http://{address}\", timeouts: {{ connect: 3s, request: 3s }} }} }}"
        ),
        config: format!("{{ path: \"{path}\" }}"),
        order: "strict".into(),
    }
}

#[derive(Clone)]
struct Httpbin {
    address: SocketAddr,
    log: PathBuf,
    version: String,
}

impl Httpbin {
    fn find() -> Option<Self> {
        let service = consign_testkit::service("httpbin")?;
        let (url, log) = service.url.split_once("/#").unwrap();
        Some(Self {
            address: url.strip_prefix("http://").unwrap().parse().unwrap(),
            log: log.into(),
            version: service.version,
        })
    }
}

/// Requests that httpbin has answered.
struct Requests(Httpbin, &'static str, &'static str);

#[async_trait]
impl Destination for Requests {
    fn operation(&self) -> &'static str {
        self.1
    }

    fn case(&self) -> &'static str {
        self.2
    }

    fn product(&self) -> Product {
        Product::real("httpbin", &self.0.version)
    }

    fn access(&self) -> Access {
        Access::Network {
            server: self.0.address,
            applies: Vec::new(),
            shows_key: true,
        }
    }

    async fn prepare(&self, place: &Place) -> Setup {
        setup(place, &format!("/anything/{}/{PATH_ID}", place.tag))
    }

    /// Lines `METHOD PATH STATUS KEY` of this scenario.
    async fn effects(&self, place: &Place) -> Vec<Effect> {
        let log = std::fs::read_to_string(&self.0.log).unwrap();
        let prefix = format!("/anything/{}/", place.tag);
        let lines = log.lines().filter_map(|line| {
            let mut words = line.split(' ');
            let path = words.nth(1)?;
            let (status, key) = (words.next()?, words.next()?);
            let id = path.strip_prefix(&prefix)?.replace('~', "-");
            (status == "200").then(|| Effect {
                id,
                key: Some(key.to_owned()),
            })
        });
        lines.collect()
    }
}

/// Documents that the kit's own server stores, one for each path.
struct Documents(HttpServer);

#[async_trait]
impl Destination for Documents {
    fn operation(&self) -> &'static str {
        "rest.put"
    }

    fn case(&self) -> &'static str {
        "documents"
    }

    fn product(&self) -> Product {
        Product {
            server: "the kit's own HTTP server".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            kind: Kind::Own,
        }
    }

    fn access(&self) -> Access {
        Access::Network {
            server: self.0.address(),
            applies: Vec::new(),
            shows_key: true,
        }
    }

    async fn prepare(&self, place: &Place) -> Setup {
        setup(place, &format!("/{}/{PATH_ID}", place.tag))
    }

    async fn effects(&self, place: &Place) -> Vec<Effect> {
        let prefix = format!("/{}/", place.tag);
        let stored = self.0.effects();
        let stored = stored.iter().filter_map(|document| {
            let id = document.path.strip_prefix(&prefix)?;
            Some(Effect {
                id: id.replace('~', "-"),
                key: document.header("idempotency-key").map(str::to_owned),
            })
        });
        stored.collect()
    }
}
