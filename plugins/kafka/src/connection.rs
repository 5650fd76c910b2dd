//! The client library, set up: one client per connection for questions, and what a producer or consumer
//! of that connection is set up with.
//!
//! * The library dials again by itself; what it waits for is bounded by whoever asks.
//! * It reports trouble beside the calls that fail: [`Signals`] keeps the last, which says why.
//! * Making and dropping a client takes a while and blocks: never on the plugin's async threads. A client
//!   that is dropped goes through [`Disposals`].

use crate::config::{ConnectionConfig, SaslMechanism};
use crate::outcome;
use crate::producer::Ticket;
use consign_plugin::prelude::*;
use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::metadata::Metadata;
use rdkafka::producer::{Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A question that takes longer than this counts as no answer.
const PROBE_WAIT: Duration = Duration::from_secs(3);

/// How long one try of a question may take, so that trouble which is told meanwhile is noticed.
const SLICE: Duration = Duration::from_millis(500);

/// Every cluster has, or will have, this topic; asking for it creates nothing.
const SOME_TOPIC: &str = "__consumer_offsets";

/// Longest wait between two dials of the library: the host's probes should find a broker that is back.
const REDIAL_MS: &str = "1000";

/// How long closing a connection waits for clients that are being dropped.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// A client that answers questions and carries records.
pub(crate) type Client = ThreadedProducer<Events>;

/// A Kafka cluster.
pub struct Kafka {
    config: ConnectionConfig,
    name: String,
    client: Option<Arc<Client>>,
    signals: Arc<Signals>,
    disposals: Arc<Disposals>,
}

/// What a client says about its connections.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// The last trouble: its code, and the library's words.
    trouble: Mutex<Option<(Code, String)>>,
    /// Something was wrong since a broker answered last.
    suspect: AtomicBool,
    /// The client can do nothing any more.
    fatal: AtomicBool,
}

/// Hears what a client says.
pub(crate) struct Events(pub(crate) Arc<Signals>);

/// Clients that are being dropped, each on a thread of its own.
#[derive(Debug, Default)]
pub(crate) struct Disposals(Mutex<Vec<JoinHandle<()>>>);

#[async_trait]
impl Connector for Kafka {
    type Config = ConnectionConfig;
    const NAME: &'static str = "kafka";
    const TITLE: &'static str = "Apache Kafka";

    async fn connect(config: ConnectionConfig, cx: &ConnectionContext) -> Result<Self, Failure> {
        let name = format!("consign-{}", cx.connection());
        blocking(move || {
            look_for_files(&config)?;
            let signals = Arc::<Signals>::default();
            let client = base(&config, &name)
                .create_with_context::<_, Client>(Events(Arc::clone(&signals)))
                .map_err(|error| of_creation(&error))?;
            let connection = Self {
                client: Some(Arc::new(client)),
                signals,
                disposals: Arc::default(),
                config,
                name,
            };
            connection.ask(None, connection.config.timeouts.connect.get())?;
            Ok(connection)
        })
        .await
    }

    /// Asks a broker for the cluster's metadata.
    async fn probe(&self) -> Result<(), Failure> {
        let Some(client) = self.client.clone() else {
            return Err(Failure::down(("closed", "the connection is closed")));
        };
        let signals = Arc::clone(&self.signals);
        blocking(move || ask(&client, &signals, None, PROBE_WAIT).map(drop)).await
    }

    async fn close(&self) {
        let disposals = Arc::clone(&self.disposals);
        // Clients that take longer to end than this end with the process.
        drop(tokio::time::timeout(CLOSE_WAIT, blocking(move || disposals.wait())).await);
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            self.disposals.drop_later(client);
        }
    }
}

impl Kafka {
    /// What every client of this connection is set up with.
    pub(crate) fn client_config(&self) -> ClientConfig {
        base(&self.config, &self.name)
    }

    /// Asks a broker about a topic, or only whether it is there. Blocks.
    pub(crate) fn ask(&self, topic: Option<&str>, within: Duration) -> Result<Metadata, Failure> {
        match &self.client {
            Some(client) => ask(client, &self.signals, topic, within),
            None => Err(Failure::down(("closed", "the connection is closed"))),
        }
    }

    pub(crate) fn disposals(&self) -> &Arc<Disposals> {
        &self.disposals
    }

    /// How long setting a connection up may take.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.config.timeouts.connect.get()
    }
}

impl Signals {
    /// Notes trouble. A login or certificate that is refused says more than the cut that follows it.
    pub(crate) fn note(&self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else {
            return;
        };
        if code == Code::Fatal {
            self.fatal.store(true, Ordering::Release);
        }
        let mut trouble = self.trouble.lock();
        let known_better = trouble.as_ref().is_some_and(|(known, _)| tells_why(*known));
        if !known_better || tells_why(code) {
            *trouble = Some((code, reason.to_owned()));
        }
        drop(trouble);
        self.suspect.store(true, Ordering::Release);
        tracing::debug!(code = ?code, "{reason}");
    }

    /// A broker has answered.
    pub(crate) fn clear(&self) {
        *self.trouble.lock() = None;
        self.suspect.store(false, Ordering::Release);
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Acquire)
    }

    pub(crate) fn is_fatal(&self) -> bool {
        self.fatal.load(Ordering::Acquire)
    }

    pub(crate) fn trouble(&self) -> Option<(Code, String)> {
        self.trouble.lock().clone()
    }
}

/// Trouble that names its cause.
fn tells_why(code: Code) -> bool {
    matches!(
        code,
        Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedSASLMechanism
            | Code::SSL
            | Code::Resolve
    )
}

impl ClientContext for Events {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        log(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.note(&error, reason);
    }
}

impl ProducerContext for Events {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        if result.is_ok() {
            self.0.clear();
        }
        ticket.report(result);
    }
}

/// The library logs each failed dial as an error; the host's own events tell of outages.
pub(crate) fn log(level: RDKafkaLogLevel, facility: &str, text: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::warn!("{facility}: {text}");
        }
        _ => tracing::debug!("{facility}: {text}"),
    }
}

impl Disposals {
    /// Drops a client, which blocks until its threads have ended.
    pub(crate) fn drop_later<T: Send + 'static>(&self, client: T) {
        let mut threads = self.0.lock();
        threads.retain(|thread| !thread.is_finished());
        let thread = std::thread::Builder::new().name("kafka-drop".to_owned());
        // Without a thread it is dropped here, which blocks: better than to leak it.
        if let Ok(thread) = thread.spawn(move || drop(client)) {
            threads.push(thread);
        }
    }

    fn wait(&self) {
        let threads = std::mem::take(&mut *self.0.lock());
        for thread in threads {
            // A panic in it has been told, and the client is gone all the same.
            drop(thread.join());
        }
    }
}

/// Runs blocking work beside the async threads.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is ending: so is whoever waits here.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Asks a broker; tries again until the time is over, or until the client says what is wrong. Blocks.
pub(crate) fn ask(
    client: &Client,
    signals: &Signals,
    topic: Option<&str>,
    within: Duration,
) -> Result<Metadata, Failure> {
    let until = Instant::now() + within;
    let before = signals.trouble();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let topic = topic.unwrap_or(SOME_TOPIC);
        let asked = client
            .client()
            .fetch_metadata(Some(topic), left.min(SLICE).max(Duration::from_millis(1)));
        let error = match asked {
            Ok(metadata) => {
                signals.clear();
                return Ok(metadata);
            }
            Err(error) => error,
        };
        let trouble = signals.trouble();
        let over = Instant::now() >= until;
        if let Some((code, reason)) = trouble
            && (over || before.as_ref() != Some(&(code, reason.clone())))
        {
            return Err(outcome::failure(code, &reason));
        }
        if over {
            let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
            return Err(outcome::failure(code, "no broker answers"));
        }
    }
}

/// Reads the files that the configuration names: the library does not say which one it cannot read.
fn look_for_files(config: &ConnectionConfig) -> Result<(), Failure> {
    let tls = config.tls.iter();
    for file in tls.flat_map(|tls| [&tls.ca_file, &tls.cert_file, &tls.key_file]) {
        if let Some(file) = file
            && let Err(error) = std::fs::read(file)
        {
            let what = format!("{}: {error}", file.display());
            return Err(Failure::config(("tls", what)));
        }
    }
    Ok(())
}

/// A client that cannot be made: the library refuses a setting, or cannot read a file.
pub(crate) fn of_creation(error: &KafkaError) -> Failure {
    Failure::config(("client", error.to_string()))
}

fn base(config: &ConnectionConfig, name: &str) -> ClientConfig {
    let ms = |duration: HumanDuration| duration.get().as_millis().max(1000).to_string();
    let mut client = ClientConfig::new();
    client
        .set("bootstrap.servers", config.servers.join(","))
        .set("client.id", name)
        .set("security.protocol", protocol(config))
        .set(
            "socket.connection.setup.timeout.ms",
            ms(config.timeouts.connect),
        )
        .set("socket.timeout.ms", ms(config.timeouts.request))
        .set("socket.keepalive.enable", "true")
        .set("reconnect.backoff.max.ms", REDIAL_MS)
        .set("allow.auto.create.topics", "false")
        .set("log.connection.close", "false");
    if let Some(tls) = &config.tls {
        // Where the system keeps its authorities differs; the library's own guess is OpenSSL's.
        let ca = tls.ca_file.as_ref().map(|path| path.display().to_string());
        client.set("ssl.ca.location", ca.as_deref().unwrap_or("probe"));
        for (setting, file) in [
            ("ssl.certificate.location", &tls.cert_file),
            ("ssl.key.location", &tls.key_file),
        ] {
            if let Some(file) = file {
                client.set(setting, file.display().to_string());
            }
        }
    }
    if let Some(auth) = &config.auth {
        client
            .set("sasl.mechanism", mechanism(config.sasl_mechanism))
            .set("sasl.username", &auth.username)
            .set("sasl.password", auth.password.expose());
    }
    client
}

fn protocol(config: &ConnectionConfig) -> &'static str {
    match (config.tls.is_some(), config.auth.is_some()) {
        (false, false) => "plaintext",
        (true, false) => "ssl",
        (false, true) => "sasl_plaintext",
        (true, true) => "sasl_ssl",
    }
}

fn mechanism(mechanism: SaslMechanism) -> &'static str {
    match mechanism {
        SaslMechanism::Plain => "PLAIN",
        SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
        SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: serde_json::Value) -> ConnectionConfig {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn tls_and_login_choose_the_protocol_and_authorities_are_probed() {
        let set = |json, setting: &str| base(&config(json), "c").get(setting).map(str::to_owned);
        let servers = serde_json::json!(["h:9092"]);
        let auth = serde_json::json!({ "username": "u", "password": "p" });
        let plain = serde_json::json!({ "servers": servers });
        assert_eq!(
            set(plain.clone(), "security.protocol").as_deref(),
            Some("plaintext")
        );
        assert_eq!(set(plain, "ssl.ca.location"), None);
        let tls = serde_json::json!({ "servers": servers, "tls": {} });
        assert_eq!(
            set(tls.clone(), "security.protocol").as_deref(),
            Some("ssl")
        );
        assert_eq!(set(tls, "ssl.ca.location").as_deref(), Some("probe"));
        let both = serde_json::json!({
            "servers": servers, "tls": { "ca_file": "/ca.pem" }, "auth": auth,
            "sasl_mechanism": "scram_sha_512",
        });
        assert_eq!(
            set(both.clone(), "security.protocol").as_deref(),
            Some("sasl_ssl")
        );
        assert_eq!(
            set(both.clone(), "ssl.ca.location").as_deref(),
            Some("/ca.pem")
        );
        assert_eq!(
            set(both, "sasl.mechanism").as_deref(),
            Some("SCRAM-SHA-512")
        );
    }

    #[test]
    fn a_refused_login_is_not_hidden_by_the_cut_that_follows() {
        let signals = Signals::default();
        let error = |code| KafkaError::Global(code);
        signals.note(&error(Code::BrokerTransportFailure), "refused");
        signals.note(&error(Code::Authentication), "wrong password");
        signals.note(&error(Code::AllBrokersDown), "1/1 brokers are down");
        assert!(signals.is_suspect() && !signals.is_fatal());
        assert_eq!(
            signals.trouble(),
            Some((Code::Authentication, "wrong password".to_owned()))
        );
        signals.clear();
        assert!(!signals.is_suspect() && signals.trouble().is_none());
        signals.note(&error(Code::Fatal), "fenced");
        signals.clear();
        assert!(signals.is_fatal(), "a fatal client stays fatal");
    }
}
