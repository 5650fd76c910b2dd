//! What a connector's author says about a destination: how to set it up, and how to count.

use super::Scenario;
use async_trait::async_trait;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What the server of a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Kind {
    /// The product itself.
    #[serde(rename = "R")]
    Real,
    /// Somebody else's emulator.
    #[serde(rename = "E")]
    Emulator,
    /// A mock driven by the vendor's published description.
    #[serde(rename = "S")]
    Mock,
    /// A fake of our own: contract-tested, not run against the product.
    #[serde(rename = "N")]
    Own,
}

/// The server of a run, as the table names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Product {
    /// As its maker writes it.
    pub server: String,
    /// Its version.
    pub version: String,
    /// What it is.
    pub kind: Kind,
}

impl Product {
    /// A product whose version stands somewhere in what it says of itself (`nats-server: v2.9.10`):
    /// the first word with a digit and a dot.
    pub fn real(server: &str, says: &str) -> Self {
        let version = says
            .split(|c: char| c.is_whitespace() || "(),".contains(c))
            .map(|word| word.trim_start_matches('v'))
            .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
            .unwrap_or(says);
        Self {
            server: server.to_owned(),
            version: version.to_owned(),
            kind: Kind::Real,
        }
    }
}

/// How the destination is reached, and so how it can be broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Over TCP, through the fault proxy.
    Network {
        /// The server.
        server: SocketAddr,
        /// Texts that follow a message's id on the wire and make the server apply the request
        /// (`COMMIT`); empty where the request itself does.
        applies: Vec<&'static str>,
        /// Whether the write key can be read on the wire. Then every copy that was sent is checked
        /// for it, those that the destination dropped included.
        shows_key: bool,
    },
    /// Without a network (a file): [`Destination::hold`] keeps writes from landing.
    Local,
}

/// One scenario's own place: nothing is shared between two of them.
#[derive(Debug, Clone)]
pub struct Place {
    /// What is about to happen.
    pub scenario: Scenario,
    /// An empty folder; the host runs in it.
    pub folder: PathBuf,
    /// A name for streams, tables and the like: a letter, then letters and digits.
    pub tag: String,
    /// Where the connector connects: the proxy. None for [`Access::Local`].
    pub address: Option<SocketAddr>,
}

/// How the host is configured for one scenario.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The connection's entry, YAML in one line: `{ connector: nats, config: { … } }`.
    pub connection: String,
    /// The send's `config`, YAML in one line.
    pub config: String,
    /// The send's `order`: `none`, `strict` or `{ by_key: … }`.
    pub order: String,
}

/// One effect at the destination: a message, a row, a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The `id` of the body that made it.
    pub id: String,
    /// The write key it carries, as it stands there (`<key>` or `<key>#0`).
    pub key: Option<String>,
}

/// One operation in one configuration, at one destination. Bodies are `{"id": "…", "n": 1}`.
///
/// Counting is independent of the connector: another client where one exists, and never the
/// connector's own code. Methods panic where the destination cannot be used: that fails the scenario.
#[async_trait]
pub trait Destination: Send + Sync {
    /// The operation's id.
    fn operation(&self) -> &'static str;

    /// A short name of this configuration (`jetstream`), `snake_case`.
    fn case(&self) -> &'static str;

    /// What runs there.
    fn product(&self) -> Product;

    /// How it is reached.
    fn access(&self) -> Access;

    /// Where the proxy has to listen: for a server that tells its clients where it is. None where any port
    /// will do.
    fn proxy_address(&self) -> Option<SocketAddr> {
        None
    }

    /// How long the destination recognises a repeat; none where that has no end or never begins.
    fn window(&self) -> Option<Duration> {
        None
    }

    /// Whether this configuration does without the write key that the declaration places (a column
    /// that is not set): its promise is then less, and copies are not checked for keys.
    fn without_key(&self) -> bool {
        false
    }

    /// Whether the destination answers at all. Where it does not, a write is settled once the network has
    /// taken it, and scenarios about answers and resends say nothing.
    fn answers(&self) -> bool {
        true
    }

    /// Makes an empty destination for this scenario and says how the host gets there.
    async fn prepare(&self, place: &Place) -> Setup;

    /// Every effect there is, in any order.
    async fn effects(&self, place: &Place) -> Vec<Effect>;

    /// Keeps writes from landing, for as long as the value lives. [`Access::Local`] only.
    async fn hold(&self, place: &Place) -> Box<dyn Send> {
        let _ = place;
        Box::new(())
    }

    /// Why nothing can make this destination refuse a message, where that is so; a scenario without a network
    /// that needs a refusal is then not run. None where [`Destination::refuse`] does it.
    fn refuses_nothing(&self) -> Option<&'static str> {
        None
    }

    /// Whether requests share one connection, so that a fault that loses one answer loses every later one too.
    /// [`Access::Network`] only.
    fn shares_connection(&self) -> bool {
        false
    }

    /// Has the destination refuse the message with this id for what it is (a constraint, a name that is
    /// taken), for as long as the value lives. [`Access::Local`] only.
    async fn refuse(&self, place: &Place, id: &str) -> Box<dyn Send> {
        let (_, _) = (place, id);
        Box::new(())
    }

    /// Removes what was made.
    async fn clean_up(&self, place: &Place) {
        let _ = place;
    }
}
