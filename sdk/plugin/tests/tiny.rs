//! A complete tiny connector with a sink and two sources, driven in process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test code"
)]

use consign_plugin::prelude::*;
use consign_plugin::testing::{self, SourceDriver, TestWrite};
use std::sync::Mutex;
use std::time::Duration;

/// Keeps everything in memory.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MemoryConfig {
    /// Refuses to connect.
    #[serde(default)]
    down: bool,
}

struct Memory {
    shelf: Mutex<Vec<(String, String, Vec<u8>)>>,
}

#[async_trait]
impl Connector for Memory {
    type Config = MemoryConfig;
    const NAME: &'static str = "memory";
    const TITLE: &'static str = "Memory";

    async fn connect(config: MemoryConfig, _: &ConnectionContext) -> Result<Self, Failure> {
        if config.down {
            return Err(Failure::down(("refused", "memory is switched off")));
        }
        Ok(Self {
            shelf: Mutex::default(),
        })
    }

    async fn probe(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Puts each write on the shelf.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PutConfig {
    /// Name of the place.
    place: Template,
}

struct Put {
    connection: Arc<Memory>,
    config: PutConfig,
}

#[async_trait]
impl Sink for Put {
    type Connector = Memory;
    type Config = PutConfig;
    const OPERATION: &'static str = "memory.put";
    const TITLE: &'static str = "Put";

    fn declaration() -> SinkDeclaration {
        SinkDeclaration {
            promise: Promise::EffectivelyOnce,
            unconfirmed: false,
            repeat: Repeat {
                kind: RepeatKind::WriteKey,
                condition: None,
                window: Window::None,
            },
            key: KeyPlacement::On("the place's label".into()),
            batch: BatchKind::Independent,
            sealed: false,
            note: String::new(),
        }
    }

    fn resolve(_: &MemoryConfig, config: &PutConfig) -> Resolved {
        Resolved {
            promise: Promise::EffectivelyOnce,
            unconfirmed: false,
            repeat: RepeatKind::WriteKey,
            window: Window::None,
            reason: "the shelf remembers every key".into(),
            target_id: config.place.as_written().unwrap_or_default().into(),
            target_fields: Vec::new(),
            faults: Vec::new(),
        }
    }

    async fn open(
        connection: Arc<Memory>,
        config: PutConfig,
        _: &ConnectionContext,
    ) -> Result<Self, Failure> {
        Ok(Self { connection, config })
    }

    async fn write(&self, batch: &Batch, _: &WriteContext) -> Vec<Outcome> {
        batch.writes().iter().map(|write| self.put(write)).collect()
    }
}

impl Put {
    fn put(&self, write: &Write) -> Outcome {
        let place = match write.text(&self.config.place) {
            Ok(place) => place.to_owned(),
            Err(detail) => return Outcome::refused(detail),
        };
        let key = write.key().to_string();
        let mut shelf = self.connection.shelf.lock().unwrap();
        if shelf.iter().any(|(known, ..)| *known == key) {
            return Outcome::delivered_repeat();
        }
        shelf.push((key, place, write.body().to_vec()));
        Outcome::delivered()
    }
}

/// Counts up to a number, then waits for more room.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CountConfig {
    /// The last number.
    to: u64,
}

struct Count;

#[async_trait]
impl Source for Count {
    type Connector = Memory;
    type Config = CountConfig;
    const OPERATION: &'static str = "memory.count";
    const TITLE: &'static str = "Count";

    fn declaration() -> SourceDeclaration {
        SourceDeclaration {
            delivery: DeliveryType::OffsetTrackedIndividual,
            identity: Identity::Stable("the number".into()),
            redelivery_bound_ms: None,
            note: String::new(),
        }
    }

    fn resolve(_: &MemoryConfig, _: &CountConfig) -> ResolvedSource {
        ResolvedSource {
            delivery: DeliveryType::OffsetTrackedIndividual,
            identity: Identity::Stable("the number".into()),
            reason: "numbers never change".into(),
            faults: Vec::new(),
        }
    }

    async fn run(
        connection: Arc<Memory>,
        config: CountConfig,
        cx: SourceContext,
    ) -> Result<(), Failure> {
        let (deliverer, controls) = cx.split();
        // The receiving loop; owned by the connection's context and ended with it.
        controls.connection().spawn(async move {
            for number in 1..=config.to {
                let message = SourceMessage::new(number.to_string())
                    .identity(number.to_be_bytes())
                    .partition("p")
                    .attribute("number", number)
                    // Whatever acknowledges it; here the number itself.
                    .token(number);
                if deliverer.deliver(vec![message]).await.is_err() {
                    return;
                }
            }
        });
        // The settling loop.
        loop {
            match controls.next().await {
                Control::Settle(settled) => {
                    for one in settled {
                        let number = one.token::<u64>().unwrap();
                        let what = if one.result.acknowledges() {
                            "ack"
                        } else {
                            "nack"
                        };
                        let entry = (what.to_owned(), number.to_string(), Vec::new());
                        connection.shelf.lock().unwrap().push(entry);
                    }
                }
                Control::Extend(ids) => {
                    for id in ids {
                        let number = controls.token::<u64>(id).unwrap();
                        let entry = ("extend".to_owned(), number.to_string(), Vec::new());
                        connection.shelf.lock().unwrap().push(entry);
                    }
                }
                Control::Stop => return Ok(()),
                _ => {}
            }
        }
    }
}

/// Hands over one message per call of a client, and answers it.
struct Ask;

#[async_trait]
impl Source for Ask {
    type Connector = Memory;
    type Config = CountConfig;
    const OPERATION: &'static str = "memory.ask";
    const TITLE: &'static str = "Ask";

    fn declaration() -> SourceDeclaration {
        SourceDeclaration {
            delivery: DeliveryType::SessionBased,
            identity: Identity::ClientKey,
            redelivery_bound_ms: None,
            note: String::new(),
        }
    }

    fn resolve(_: &MemoryConfig, _: &CountConfig) -> ResolvedSource {
        ResolvedSource {
            delivery: DeliveryType::SessionBased,
            identity: Identity::ClientKey,
            reason: "clients may send a key".into(),
            faults: Vec::new(),
        }
    }

    async fn run(
        connection: Arc<Memory>,
        config: CountConfig,
        cx: SourceContext,
    ) -> Result<(), Failure> {
        let (deliverer, controls) = cx.split();
        // Sessions that `run` waits for, so that each client still gets its answer at a stop.
        let mut sessions = tokio::task::JoinSet::new();
        for number in 1..=config.to {
            let deliverer = deliverer.clone();
            let connection = Arc::clone(&connection);
            sessions.spawn(async move {
                let message = SourceMessage::new("question").client_key(number.to_string());
                let answer = deliverer.deliver_and_wait(message).await;
                let entry = (format!("{answer:?}"), number.to_string(), Vec::new());
                connection.shelf.lock().unwrap().push(entry);
            });
        }
        controls.stopped().await;
        sessions.join_all().await;
        Ok(())
    }
}

fn plugin() -> Plugin {
    Plugin::new("memory", env!("CARGO_PKG_VERSION"))
        .connector::<Memory>(|c| c.sink::<Put>().source::<Count>().source::<Ask>())
}

export_plugin!(plugin);

const SOON: Duration = Duration::from_secs(5);

fn noted(memory: &Memory) -> Vec<(String, String)> {
    let shelf = memory.shelf.lock().unwrap();
    shelf
        .iter()
        .map(|(a, b, _)| (a.clone(), b.clone()))
        .collect()
}

#[tokio::test]
async fn a_sink_writes_once_per_key_and_renders_its_template() {
    let config = PutConfig {
        place: Template::slot(0),
    };
    let sink = testing::open_sink::<Put>(MemoryConfig::default(), config)
        .await
        .unwrap();
    let batch = testing::batch([
        TestWrite::new("a").key([1; 16]).template(0, "left"),
        TestWrite::new("b").key([1; 16]).template(0, "right"),
        TestWrite::new("c").key([2; 16]),
    ]);
    let outcomes = testing::write(&sink, &batch).await;
    assert_eq!(
        outcomes
            .iter()
            .map(|o| (o.applied(), o.is_repeat(), o.code()))
            .collect::<Vec<_>>(),
        [
            (consign_plugin::Applied::Yes, false, ""),
            (consign_plugin::Applied::Yes, true, ""),
            (consign_plugin::Applied::No, false, "template_missing"),
        ]
    );
    assert_eq!(
        noted(&sink.connection),
        [("01".repeat(16), "left".to_owned())]
    );
}

#[tokio::test]
async fn a_connector_says_that_it_is_down() {
    let failure = testing::connect::<Memory>(MemoryConfig { down: true })
        .await
        .err()
        .unwrap();
    assert_eq!(failure.kind, FailureKind::Down);
}

#[tokio::test]
async fn a_source_delivers_under_credits_and_learns_what_became_of_each() {
    let memory = testing::connect::<Memory>(MemoryConfig::default())
        .await
        .unwrap();
    let mut source = SourceDriver::start::<Count>(Arc::clone(&memory), CountConfig { to: 5 }, None);
    assert!(
        source.receive(Duration::from_millis(50)).await.is_none(),
        "no credit yet"
    );
    source.credit(3, 1 << 20);
    let messages = source.receive_many(4, Duration::from_millis(300)).await;
    assert_eq!(messages.len(), 3, "credits are counted");
    assert_eq!(messages[0].attributes["number"], 1);
    source.extend([messages[2].id]);
    source.accept([messages[0].id]);
    source.settle(messages[1].id, SettleResult::Released);
    source.settle(99, SettleResult::Accepted);
    tokio::time::sleep(Duration::from_millis(100)).await;
    source.stop(SOON).await.unwrap();
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let mut noted = noted(&memory);
    noted.sort();
    assert_eq!(
        noted,
        [
            pair("ack", "1"),
            pair("extend", "3"),
            pair("nack", "2"),
            pair("nack", "3")
        ]
    );
}

#[tokio::test]
async fn a_message_larger_than_its_credit_passes_and_the_next_one_waits() {
    let memory = testing::connect::<Memory>(MemoryConfig::default())
        .await
        .unwrap();
    let mut source = SourceDriver::start::<Count>(memory, CountConfig { to: 5 }, None);
    source.credit(5, 1);
    assert_eq!(
        source
            .receive_many(2, Duration::from_millis(200))
            .await
            .len(),
        1
    );
    source.credit(0, 1);
    assert_eq!(
        source
            .receive_many(2, Duration::from_millis(200))
            .await
            .len(),
        1
    );
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_paused_source_delivers_nothing_until_resumed() {
    let memory = testing::connect::<Memory>(MemoryConfig::default())
        .await
        .unwrap();
    let mut source = SourceDriver::start::<Count>(memory, CountConfig { to: 5 }, None);
    source.pause();
    source.credit(5, 1 << 20);
    assert!(source.receive(Duration::from_millis(100)).await.is_none());
    source.resume();
    assert_eq!(source.receive_many(5, SOON).await.len(), 5);
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_session_waits_for_its_answer_and_is_released_at_stop() {
    let memory = testing::connect::<Memory>(MemoryConfig::default())
        .await
        .unwrap();
    let mut source = SourceDriver::start::<Ask>(Arc::clone(&memory), CountConfig { to: 3 }, None);
    source.credit(2, 1 << 20);
    let messages = source.receive_many(2, SOON).await;
    source.settle(messages[0].id, SettleResult::Conflict);
    tokio::time::sleep(Duration::from_millis(100)).await;
    source.stop(SOON).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut answers: Vec<String> = noted(&memory).into_iter().map(|(a, _)| a).collect();
    answers.sort();
    assert_eq!(answers, ["Conflict", "Released", "Released"]);
}

#[test]
fn the_manifest_carries_doc_comments_schemas_and_declarations() {
    let manifest = plugin().manifest();
    let (connector, put) = manifest.operation("memory.put").unwrap();
    assert_eq!(connector.description, "Keeps everything in memory.");
    assert_eq!(put.description, "Puts each write on the shelf.");
    let place = &put.config_schema["properties"]["place"];
    assert_eq!(place["format"], "consign-template");
    assert_eq!(put.config_schema["additionalProperties"], false);
}
