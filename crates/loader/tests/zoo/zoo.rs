//! A plugin written with the SDK whose every operation misbehaves as its config says.
//!
//! Connector `zoo`; operations `zoo.write`, `zoo.crash`, `zoo.count`; functions `zoo_upper`
//! (processor), `zoo_reject` (transform), `zoo_decide` (error handler). Effects and settlements
//! are appended to files, so that a reader of its own can count them.
#![allow(
    unsafe_code,
    clippy::panic,
    clippy::unwrap_used,
    reason = "misbehaving is its purpose"
)]

mod sinks;
mod sources;

use consign_plugin::prelude::*;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What one step of the zoo does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// What it should.
    #[default]
    Ok,
    /// Says that the other side is down.
    Down,
    /// Says that it is denied.
    Denied,
    /// Panics.
    Panic,
    /// Never finishes, but lets go when dropped.
    Hang,
    /// Blocks its thread for this many milliseconds, deaf to cancels.
    Block(u64),
    /// Takes this many milliseconds.
    Slow(u64),
}

impl Act {
    async fn step(self) -> Result<(), Failure> {
        match self {
            Self::Ok => {}
            Self::Down => return Err(Failure::down(("zoo_down", "the zoo is closed"))),
            Self::Denied => return Err(Failure::denied(("zoo_denied", "no ticket"))),
            Self::Panic => panic!("an animal has escaped"),
            Self::Hang => std::future::pending().await,
            Self::Block(ms) => std::thread::sleep(Duration::from_millis(ms)),
            Self::Slow(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
        }
        Ok(())
    }
}

/// A connection to nothing, which misbehaves on demand.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ZooConfig {
    /// What connecting does.
    connect: Act,
    /// What a probe does.
    probe: Act,
    /// What closing does.
    close: Act,
    /// Panics when it is dropped.
    drop_panics: bool,
    /// Threads that connecting starts and never ends.
    leaks_threads: u32,
    /// A task beside the connection that panics after this many milliseconds.
    task_panics_after_ms: Option<u64>,
}

pub struct Zoo {
    config: ZooConfig,
}

#[async_trait]
impl Connector for Zoo {
    type Config = ZooConfig;
    const NAME: &'static str = "zoo";
    const TITLE: &'static str = "Zoo";

    async fn connect(config: ZooConfig, cx: &ConnectionContext) -> Result<Self, Failure> {
        for _ in 0..config.leaks_threads {
            std::thread::spawn(|| {
                loop {
                    std::thread::park();
                }
            });
        }
        if let Some(ms) = config.task_panics_after_ms {
            cx.spawn(async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                panic!("a task has escaped");
            });
        }
        config.connect.step().await?;
        Ok(Self { config })
    }

    async fn probe(&self) -> Result<(), Failure> {
        self.config.probe.step().await
    }

    async fn close(&self) {
        let _ = self.config.close.step().await;
    }
}

impl Drop for Zoo {
    fn drop(&mut self) {
        if self.config.drop_panics {
            panic!("the gate fell shut");
        }
    }
}

/// Appends a line to a file.
pub fn note(file: Option<&Path>, line: &str) {
    if let Some(file) = file {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create(true).append(true).open(file).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// No settings.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoConfig {}

/// Turns the body to upper case; misbehaves as the body says, see [`change`].
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct UpperConfig {
    /// What opening does.
    open: Act,
    /// A line for each call goes there.
    calls: Option<PathBuf>,
}

struct Upper {
    config: UpperConfig,
}

#[async_trait]
impl Processor for Upper {
    type Config = UpperConfig;
    const NAME: &'static str = "zoo_upper";
    const TITLE: &'static str = "Upper case";

    async fn open(config: UpperConfig, _: &FunctionContext) -> Result<Self, Failure> {
        config.open.step().await?;
        Ok(Self { config })
    }

    async fn process(&self, message: &mut Message) -> Result<(), Detail> {
        let body = String::from_utf8_lossy(&message.body).into_owned();
        note(
            self.config.calls.as_deref(),
            body.lines().next().unwrap_or_default(),
        );
        change(message).await
    }
}

/// The same as a transform.
struct Reject;

#[async_trait]
impl Transform for Reject {
    type Config = NoConfig;
    const NAME: &'static str = "zoo_reject";
    const TITLE: &'static str = "Reject";

    async fn open(_: NoConfig, _: &FunctionContext) -> Result<Self, Failure> {
        Ok(Self)
    }

    async fn transform(&self, message: &mut Message) -> Result<(), Detail> {
        change(message).await
    }
}

async fn change(message: &mut Message) -> Result<(), Detail> {
    match message.body.as_slice() {
        b"bad" => return Err(Detail::new("bad", "the body is bad")),
        b"talks" => return Err(Detail::new("talks", "blah ".repeat(1 << 20))),
        b"huge" => message.body = vec![b'x'; 40 << 20],
        b"panic" => panic!("a processor has escaped"),
        b"hang" => std::future::pending().await,
        _ => {}
    }
    message.body.make_ascii_uppercase();
    message.headers.push(("seen".to_owned(), b"yes".to_vec()));
    Ok(())
}

/// Parks. Misbehaves as the failure's code says, or the message's body: `act: panic` in it.
struct Decide;

#[async_trait]
impl ErrorHandler for Decide {
    type Config = NoConfig;
    const NAME: &'static str = "zoo_decide";
    const TITLE: &'static str = "Decide";

    async fn open(_: NoConfig, _: &FunctionContext) -> Result<Self, Failure> {
        Ok(Self)
    }

    async fn decide(&self, failure: &FailureReport, message: &Message) -> Decision {
        let body = String::from_utf8_lossy(&message.body);
        let act = body
            .split_once("act:")
            .and_then(|(_, rest)| rest.split_whitespace().next())
            .unwrap_or(&failure.code);
        let divert = |target: &str, body: Vec<u8>| Decision::Divert {
            target: target.to_owned(),
            message: Some(Message {
                body,
                ..message.clone()
            }),
        };
        match act {
            "panic" => panic!("a handler has escaped"),
            "hang" => std::future::pending().await,
            "divert" => {
                return divert(
                    "a/r/other",
                    [b"diverted ", message.body.as_slice()].concat(),
                );
            }
            "astray" => return divert("no/such/send", Vec::new()),
            "fat" => {
                let target = failure.divert.first().map_or("a/r/other", String::as_str);
                return divert(target, vec![b'x'; 40 << 20]);
            }
            "talks" => {
                return Decision::Park {
                    reason: "blah ".repeat(1 << 20),
                };
            }
            _ => {}
        }
        Decision::Park {
            reason: format!("{} after {} attempts", failure.code, failure.attempts),
        }
    }
}

fn plugin() -> Plugin {
    Plugin::new("zoo", env!("CARGO_PKG_VERSION"))
        .connector::<Zoo>(|c| {
            c.sink::<sinks::Write>()
                .sink::<sinks::Crash>()
                .source::<sources::Count>()
        })
        .processor::<Upper>()
        .transform::<Reject>()
        .error_handler::<Decide>()
}

export_plugin!(plugin, provides = "zoo zoo_upper zoo_reject zoo_decide");
