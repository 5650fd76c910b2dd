//! A small plugin for the walks: each write is one HTTP request to a server of the test's own, and what
//! the server answers, or does not answer, becomes its outcome. It exists so that a destination can
//! misbehave in every way over real sockets; it is not a connector to use.

use consign_plugin::prelude::*;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The test's server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// `127.0.0.1:8080`.
    address: String,
}

/// Posts each write.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostConfig {
    /// The path; one target.
    #[serde(default = "root")]
    path: String,
}

fn root() -> String {
    "/".to_owned()
}

struct Server(ServerConfig);

#[async_trait]
impl Connector for Server {
    type Config = ServerConfig;
    const NAME: &'static str = "post";
    const TITLE: &'static str = "Post";

    async fn connect(config: ServerConfig, _: &ConnectionContext) -> Result<Self, Failure> {
        let server = Self(config);
        server.probe().await?;
        Ok(server)
    }

    /// Somebody listens, which says nothing about writes.
    async fn probe(&self) -> Result<(), Failure> {
        match TcpStream::connect(&self.0.address).await {
            Ok(_) => Ok(()),
            Err(error) => Err(Failure::down(("connect", error.to_string()))),
        }
    }
}

struct Post(Arc<Server>, PostConfig);

#[async_trait]
impl Sink for Post {
    type Connector = Server;
    type Config = PostConfig;
    const OPERATION: &'static str = "post.write";
    const TITLE: &'static str = "Post";

    fn declaration() -> SinkDeclaration {
        SinkDeclaration {
            promise: Promise::AtLeastOnce,
            unconfirmed: false,
            repeat: Repeat {
                kind: RepeatKind::SecondCopy,
                condition: None,
                window: Window::None,
            },
            key: KeyPlacement::On("header Idempotency-Key".into()),
            batch: BatchKind::Independent,
            sealed: false,
            note: String::new(),
        }
    }

    fn resolve(_: &ServerConfig, config: &PostConfig) -> Resolved {
        Resolved {
            promise: Promise::AtLeastOnce,
            unconfirmed: false,
            repeat: RepeatKind::SecondCopy,
            window: Window::None,
            reason: "the test's server counts every copy".into(),
            target_id: config.path.clone(),
            target_fields: Vec::new(),
            faults: Vec::new(),
        }
    }

    async fn open(
        server: Arc<Server>,
        config: PostConfig,
        _: &ConnectionContext,
    ) -> Result<Self, Failure> {
        Ok(Self(server, config))
    }

    async fn write(&self, batch: &Batch, _: &WriteContext) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for write in batch.writes() {
            outcomes.push(self.post(write).await);
        }
        outcomes
    }
}

impl Post {
    async fn post(&self, write: &Write) -> Outcome {
        let mut stream = match TcpStream::connect(&self.0.0.address).await {
            Ok(stream) => stream,
            Err(error) => return Outcome::down(("connect", error.to_string())),
        };
        match self.ask(&mut stream, write).await {
            Ok(answer) => outcome(&answer),
            Err(error) => Outcome::unknown(("cut", error.to_string())),
        }
    }

    async fn ask(&self, stream: &mut TcpStream, write: &Write) -> io::Result<String> {
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: test\r\nidempotency-key: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            self.1.path,
            write.key(),
            write.body().len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(write.body()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        if answer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(answer)
    }
}

/// As a REST connector would read it.
fn outcome(answer: &str) -> Outcome {
    let status = answer.split(' ').nth(1).unwrap_or_default();
    let after = answer
        .lines()
        .find_map(|line| line.strip_prefix("retry-after: "))
        .and_then(|seconds| seconds.trim().parse().ok())
        .map(Duration::from_secs);
    let detail = (status.to_owned(), format!("the server answered {status}"));
    match (status, after) {
        ("200" | "201" | "204", _) => Outcome::delivered(),
        ("429" | "503", Some(after)) => Outcome::throttled(after).with_detail(detail),
        ("400" | "422", _) => Outcome::refused(detail),
        ("401" | "403", _) => Outcome::denied(detail),
        ("502" | "503" | "504", _) => Outcome::target_failed(detail),
        _ => Outcome::failed_maybe(detail),
    }
}

fn plugin() -> Plugin {
    Plugin::new("post", env!("CARGO_PKG_VERSION"))
        .connector::<Server>(|connector| connector.sink::<Post>())
}

consign_plugin::export_plugin!(plugin, provides = "post");
