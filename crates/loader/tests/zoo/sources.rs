//! The source of the zoo.

use crate::{Zoo, note};
use consign_plugin::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

/// How `zoo.count` ends after its last number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CountEnd {
    /// Waits for more to do.
    #[default]
    Wait,
    /// Returns unasked.
    Return,
    /// Fails.
    Fail,
    /// Panics.
    Panic,
    /// Waits, and ignores being stopped.
    IgnoreStop,
    /// Revokes its partition, then waits.
    Revoke,
}

/// Counts from 1, or from the position the host has kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CountConfig {
    /// The last number.
    to: u64,
    /// Bytes of each body, filled up with blanks.
    body_bytes: usize,
    /// Milliseconds between messages.
    interval_ms: u64,
    /// What it does then.
    end: CountEnd,
    /// File of what it hears: `settle 3 Accepted`, `extend 4`, `pause`, `stop`, …
    notes: Option<PathBuf>,
}

pub struct Count;

#[async_trait]
impl Source for Count {
    type Connector = Zoo;
    type Config = CountConfig;
    const OPERATION: &'static str = "zoo.count";
    const TITLE: &'static str = "Count";

    fn declaration() -> SourceDeclaration {
        SourceDeclaration {
            delivery: DeliveryType::OffsetTrackedCumulative,
            identity: Identity::Stable("the number".into()),
            redelivery_bound_ms: None,
            note: String::new(),
        }
    }

    fn resolve(_: &crate::ZooConfig, _: &CountConfig) -> ResolvedSource {
        ResolvedSource {
            delivery: DeliveryType::OffsetTrackedCumulative,
            identity: Identity::Stable("the number".into()),
            reason: "numbers never change".into(),
            faults: Vec::new(),
        }
    }

    async fn run(_: Arc<Zoo>, config: CountConfig, cx: SourceContext) -> Result<(), Failure> {
        let kept = cx.position().and_then(|p| String::from_utf8(p).ok());
        let first = kept.and_then(|p| p.parse::<u64>().ok()).unwrap_or(0) + 1;
        let (deliverer, controls) = cx.split();
        let (over, mut is_over) = tokio::sync::watch::channel(false);
        let feed = {
            let config = config.clone();
            async move {
                for number in first..=config.to {
                    if deliverer
                        .deliver(vec![message(number, &config)])
                        .await
                        .is_err()
                    {
                        return;
                    }
                    if config.interval_ms > 0 {
                        tokio::time::sleep(Duration::from_millis(config.interval_ms)).await;
                    }
                }
                over.send_replace(true);
                std::future::pending::<()>().await;
            }
        };
        let listen = listen(&config, &controls);
        let end = async {
            if is_over.wait_for(|over| *over).await.is_err() {
                std::future::pending::<()>().await;
            }
            match config.end {
                CountEnd::Wait | CountEnd::IgnoreStop => std::future::pending().await,
                CountEnd::Return => Ok(()),
                CountEnd::Fail => Err(Failure::down(("zoo_down", "the zoo has closed"))),
                CountEnd::Panic => panic!("a source has escaped"),
                CountEnd::Revoke => {
                    for settled in controls.revoke(vec!["cage".to_owned()]).await {
                        let line = format!("revoked {} {:?}", settled.id, settled.result);
                        note(config.notes.as_deref(), &line);
                    }
                    std::future::pending().await
                }
            }
        };
        tokio::select! {
            () = feed => {
                // Stopped while it was feeding: hear the rest.
                listen_to_the_end(&config, &controls).await;
                Ok(())
            }
            () = listen => Ok(()),
            result = end => result,
        }
    }
}

fn message(number: u64, config: &CountConfig) -> SourceMessage {
    let mut body = number.to_string().into_bytes();
    if body.len() < config.body_bytes {
        body.resize(config.body_bytes, b' ');
    }
    SourceMessage::new(body)
        .identity(number.to_be_bytes())
        .partition("cage")
        .offset(number)
        .position(number.to_string())
        .routing_key(format!("zoo.{number}"))
        .content_type("text/plain")
        .time_unix_ms(1_000)
        .header("number", number.to_string())
        .attribute("number", number)
        .token(number)
}

async fn listen_to_the_end(config: &CountConfig, controls: &Controls) {
    listen(config, controls).await;
}

async fn listen(config: &CountConfig, controls: &Controls) {
    let file = config.notes.as_deref();
    loop {
        match controls.next().await {
            Control::Settle(all) => {
                for settled in all {
                    let number = settled.token::<u64>().unwrap();
                    note(file, &format!("settle {number} {:?}", settled.result));
                }
            }
            Control::Extend(ids) => {
                for id in ids {
                    note(
                        file,
                        &format!("extend {}", controls.token::<u64>(id).unwrap()),
                    );
                }
            }
            Control::Pause => note(file, "pause"),
            Control::Resume => note(file, "resume"),
            Control::Seek(to) => note(file, &format!("seek {}", String::from_utf8_lossy(&to))),
            Control::Stop if config.end == CountEnd::IgnoreStop => {
                std::future::pending::<()>().await;
            }
            Control::Stop => {
                note(file, "stop");
                return;
            }
            _ => {}
        }
    }
}
