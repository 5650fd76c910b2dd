//! A plugin for the tests of the kit itself: one honest operation, and others that lie about what they
//! do. They write to the kit's keyed server, a connection per request.

use consign_plugin::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A keyed server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Address and port.
    address: String,
}

/// Puts the body's `id` under the write key.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PutConfig {}

pub struct Server(ServerConfig);

impl Server {
    async fn dial(&self) -> Result<BufReader<TcpStream>, Failure> {
        let stream = TcpStream::connect(&self.0.address).await;
        let stream = stream.map_err(|error| Failure::down(("connect", error.to_string())))?;
        Ok(BufReader::new(stream))
    }
}

#[async_trait]
impl Connector for Server {
    type Config = ServerConfig;
    const NAME: &'static str = "liars";
    const TITLE: &'static str = "Liars";

    async fn connect(config: ServerConfig, _: &ConnectionContext) -> Result<Self, Failure> {
        let server = Self(config);
        server.dial().await?;
        Ok(server)
    }

    async fn probe(&self) -> Result<(), Failure> {
        self.dial().await.map(drop)
    }
}

/// How an operation differs from what it declares.
trait Lie: Send + Sync + 'static {
    const OPERATION: &'static str;
    const PROMISE: Promise = Promise::EffectivelyOnce;
    /// The line that is sent.
    fn line(write: &Write, id: &str) -> String {
        format!("PUT {} {id}\n", write.key())
    }
    /// Whether it answers before the server has.
    const EARLY: bool = false;
}

struct Put<L> {
    server: Arc<Server>,
    lie: std::marker::PhantomData<L>,
}

#[async_trait]
impl<L: Lie> Sink for Put<L> {
    type Connector = Server;
    type Config = PutConfig;
    const OPERATION: &'static str = L::OPERATION;
    const TITLE: &'static str = "Put";

    fn declaration() -> SinkDeclaration {
        SinkDeclaration {
            promise: L::PROMISE,
            unconfirmed: false,
            repeat: Repeat {
                kind: repeat::<L>(),
                condition: None,
                window: Window::None,
            },
            key: KeyPlacement::On("the first word".into()),
            batch: BatchKind::Independent,
            sealed: false,
            note: String::new(),
        }
    }

    fn resolve(_: &ServerConfig, _: &PutConfig) -> Resolved {
        Resolved {
            promise: L::PROMISE,
            unconfirmed: false,
            repeat: repeat::<L>(),
            window: Window::None,
            reason: "as declared".into(),
            target_id: "server".into(),
            target_fields: Vec::new(),
            faults: Vec::new(),
        }
    }

    async fn open(
        server: Arc<Server>,
        _: PutConfig,
        _: &ConnectionContext,
    ) -> Result<Self, Failure> {
        Ok(Self {
            server,
            lie: std::marker::PhantomData,
        })
    }

    async fn write(&self, batch: &Batch, _: &WriteContext) -> Vec<Outcome> {
        let mut stream = match self.server.dial().await {
            Ok(stream) => stream,
            Err(failure) => return batch.all(Outcome::down((failure.code, failure.message))),
        };
        let mut outcomes = Vec::new();
        for write in batch.writes() {
            outcomes.push(put::<L>(&mut stream, write).await);
        }
        outcomes
    }
}

fn repeat<L: Lie>() -> RepeatKind {
    match L::PROMISE {
        Promise::EffectivelyOnce => RepeatKind::WriteKey,
        _ => RepeatKind::SecondCopy,
    }
}

async fn put<L: Lie>(stream: &mut BufReader<TcpStream>, write: &Write) -> Outcome {
    let body: serde_json::Value = serde_json::from_slice(write.body()).unwrap_or_default();
    let id = body.get("id").and_then(serde_json::Value::as_str);
    let line = L::line(write, id.unwrap_or_default());
    if let Err(error) = stream.get_mut().write_all(line.as_bytes()).await {
        return Outcome::unknown(("cut", error.to_string()));
    }
    if L::EARLY {
        return Outcome::delivered();
    }
    let mut answer = String::new();
    match stream.read_line(&mut answer).await {
        Ok(1..) if answer == "STORED\n" => Outcome::delivered(),
        Ok(1..) if answer == "REPEAT\n" => Outcome::delivered_repeat(),
        Ok(_) => Outcome::unknown(("cut", "the server closed before it answered")),
        Err(error) => Outcome::unknown(("cut", error.to_string())),
    }
}

/// Does what it declares.
struct Honest;
impl Lie for Honest {
    const OPERATION: &'static str = "liars.honest";
}

/// Declares effectively once, and sends another key each time.
struct OtherKey;
impl Lie for OtherKey {
    const OPERATION: &'static str = "liars.other_key";
    fn line(_: &Write, id: &str) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("PUT {:08x}{count:024x} {id}\n", std::process::id())
    }
}

/// Declares the key on every copy, and leaves it out of a resend.
struct KeylessResend;
impl Lie for KeylessResend {
    const OPERATION: &'static str = "liars.keyless_resend";
    const PROMISE: Promise = Promise::AtLeastOnce;
    fn line(write: &Write, id: &str) -> String {
        if write.may_be_repeat() {
            format!("PUT - {id}\n")
        } else {
            format!("PUT {} {id}\n", write.key())
        }
    }
}

/// Says delivered before the server has answered.
struct Early;
impl Lie for Early {
    const OPERATION: &'static str = "liars.early";
    const EARLY: bool = true;
}

/// Honest, but nothing on the wire tells which message it is: a fault that waits for it never fires.
struct Unreadable;
impl Lie for Unreadable {
    const OPERATION: &'static str = "liars.unreadable";
    fn line(write: &Write, id: &str) -> String {
        let hex: String = id.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("PUT {} hex:{hex}\n", write.key())
    }
}

/// Takes messages from a folder.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeConfig {
    /// The folder with `offered`, one id a line; `settled` is written beside it.
    folder: std::path::PathBuf,
}

/// Acknowledges each message when it hands it over, not when the host has accepted it.
struct Eager;

#[async_trait]
impl Source for Eager {
    type Connector = Server;
    type Config = TakeConfig;
    const OPERATION: &'static str = "liars.eager";
    const TITLE: &'static str = "Take";

    fn declaration() -> SourceDeclaration {
        SourceDeclaration {
            delivery: DeliveryType::OffsetTrackedIndividual,
            identity: Identity::Stable("the id".into()),
            redelivery_bound_ms: Some(60_000),
            note: String::new(),
        }
    }

    fn resolve(_: &ServerConfig, _: &TakeConfig) -> ResolvedSource {
        ResolvedSource {
            delivery: DeliveryType::OffsetTrackedIndividual,
            identity: Identity::Stable("the id".into()),
            reason: "as declared".into(),
            faults: Vec::new(),
        }
    }

    async fn run(_: Arc<Server>, config: TakeConfig, cx: SourceContext) -> Result<(), Failure> {
        let (deliverer, controls) = cx.split();
        let feed = async {
            let offered = loop {
                match std::fs::read_to_string(config.folder.join("offered")) {
                    Ok(text) => break text,
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
                }
            };
            for (number, id) in offered.lines().enumerate() {
                let body = format!("{{\"id\": \"{id}\", \"n\": 1}}");
                let message = SourceMessage::new(body)
                    .identity(id)
                    .content_type("application/json")
                    .token(number);
                if deliverer.deliver(vec![message]).await.is_err() {
                    return;
                }
                // The lie: nobody has accepted it yet.
                let settled = (number + 1).to_string();
                let _ = std::fs::write(config.folder.join("settled"), settled);
            }
            std::future::pending::<()>().await;
        };
        let listen = async { while !matches!(controls.next().await, Control::Stop) {} };
        tokio::select! {
            () = feed => {}
            () = listen => {}
        }
        Ok(())
    }
}

fn plugin() -> Plugin {
    Plugin::new("liars", env!("CARGO_PKG_VERSION")).connector::<Server>(|c| {
        c.sink::<Put<Honest>>()
            .sink::<Put<OtherKey>>()
            .sink::<Put<KeylessResend>>()
            .sink::<Put<Early>>()
            .sink::<Put<Unreadable>>()
            .source::<Eager>()
    })
}

export_plugin!(plugin, provides = "liars");
