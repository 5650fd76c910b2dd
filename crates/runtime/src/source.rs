//! The sources of a running host: opened, watched, opened again when they fail, and stopped.

use crate::acceptance::{Acceptor, Counters};
use crate::adapter::{AdapterSpec, Ended};
use crate::clock;
use crate::counters::MessageLedger;
use crate::host::{Host, names};
use crate::plan::AdapterPlan;
use crate::plugs::ConnectionSpec;
use crate::settings;
use consign_config::{Adapter, Config};
use consign_ledger::{Code, Event};
use consign_loader::{Connection, Names, OpenConnection, Plugins};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long a source may take to open.
const OPEN_DEADLINE: Duration = Duration::from_secs(60);
/// How long a source that had failed has to run before it counts as mended.
const STEADY: Duration = Duration::from_secs(3);
/// Waits before a failed source is opened again: doubled from the first to the second.
const SOURCE_BACKOFF_MS: (u64, u64) = (500, 30_000);

/// What others may see of an adapter.
pub struct AdapterState {
    /// Its message ledger.
    pub ledger: Arc<MessageLedger>,
    /// Counters of its acceptance.
    pub counters: Arc<Counters>,
    /// What its source is doing.
    pub source: Mutex<SourceState>,
    /// Why its messages are held, while any are.
    pub held: Arc<Mutex<Option<String>>>,
    /// Whether an operator paused it.
    pub paused: watch::Sender<bool>,
    pub(crate) acceptor: watch::Sender<Arc<Acceptor>>,
    pub(crate) spec: SourceSpec,
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) task: Mutex<Option<JoinHandle<()>>>,
}

/// What a source is opened with. When any of it changes, the source is opened anew.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SourceSpec {
    pub(crate) adapter: String,
    operation: String,
    connection: ConnectionSpec,
    settings: serde_json::Value,
    position_name: String,
    offset_tracked: bool,
    cumulative: bool,
    max_in_process: u32,
    log_discards: bool,
}

impl SourceSpec {
    pub(crate) fn of(config: &Config, adapter: &Adapter, planned: &AdapterPlan) -> Self {
        let name = adapter.source.connection.as_str();
        let connection = config.connection(name);
        Self {
            adapter: adapter.name.to_string(),
            operation: adapter.source.operation.to_string(),
            connection: ConnectionSpec {
                name: name.to_owned(),
                connector: connection
                    .map(|c| c.connector.to_string())
                    .unwrap_or_default(),
                config: connection
                    .map(|c| c.config.value.clone())
                    .unwrap_or_default(),
                probe_timeout: settings::PROBE_TIMEOUT,
                names: names(config, name),
            },
            settings: adapter.source.config.value.clone(),
            position_name: settings::position_name(adapter),
            offset_tracked: planned.source.delivery.is_offset_tracked(),
            cumulative: planned.source.delivery
                == consign_manifest::DeliveryType::OffsetTrackedCumulative,
            max_in_process: adapter.max_in_process,
            log_discards: adapter.log_discards,
        }
    }
}

/// What a source is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceState {
    /// Being opened.
    Opening,
    /// Handing messages over.
    Running,
    /// Failed; it is opened again.
    Failed(String),
    /// Stopped with the host.
    Stopped,
}

impl Host {
    /// Keeps an adapter's source open from here on.
    pub(crate) fn start_source(self: &Arc<Self>, name: &str) {
        let Some(state) = self.adapters().remove(name) else {
            return;
        };
        let (host, running) = (Arc::clone(self), Arc::clone(&state));
        let task = tokio::spawn(async move { host.supervise(&running).await });
        *state.task.lock() = Some(task);
    }

    /// Keeps one adapter's source open until it is told to stop.
    async fn supervise(&self, state: &AdapterState) {
        let spec = &state.spec;
        let name = spec.adapter.as_str();
        let mut stop = state.stop.subscribe();
        let subject = format!("source {name}");
        let mut wait_ms = SOURCE_BACKOFF_MS.0;
        loop {
            *state.source.lock() = SourceState::Opening;
            let opened = tokio::select! {
                opened = self.open_source(spec) => opened,
                () = crate::adapter::stopped(&mut stop) => break,
            };
            let why = match opened {
                Ok((source, events)) => {
                    tracing::info!(adapter = name, operation = %spec.operation, "the source runs");
                    let began = clock::monotonic_ms();
                    let running = AdapterSpec {
                        acceptor: state.acceptor.subscribe(),
                        ledger: Arc::clone(&state.ledger),
                        events: self.events.clone(),
                        offset_tracked: spec.offset_tracked,
                        cumulative: spec.cumulative,
                        max_in_process: spec.max_in_process,
                        held: Arc::clone(&state.held),
                        paused: state.paused.subscribe(),
                        recent: Arc::clone(&self.recent),
                        log_discards: spec.log_discards,
                    };
                    // Said to run once it can take a message.
                    crate::adapter::begin(&running, &source);
                    *state.source.lock() = SourceState::Running;
                    let run = crate::adapter::run(&running, source, events, stop.clone());
                    let mut run = std::pin::pin!(run);
                    // One that fails at its first request would else be told as mended each time.
                    let ended = tokio::select! {
                        ended = &mut run => ended,
                        () = tokio::time::sleep(STEADY) => {
                            let recovered = event(Code::SourceRecovered, name);
                            self.events.close(&subject, Code::SourceFault, Some(recovered));
                            run.await
                        }
                    };
                    // A source that ran for a while starts over with short waits.
                    if clock::monotonic_ms().saturating_sub(began) > SOURCE_BACKOFF_MS.1 {
                        wait_ms = SOURCE_BACKOFF_MS.0;
                    }
                    match ended {
                        Ended::Stopped => break,
                        Ended::Fault(why) => why,
                    }
                }
                Err(failure) => failure.message,
            };
            tracing::warn!(adapter = name, "the source failed: {why}");
            *state.source.lock() = SourceState::Failed(why.clone());
            let fault =
                event(Code::SourceFault, name).message(format!("source of adapter {name}: {why}"));
            self.events.open(&subject, fault);
            self.sources.forget_broken(&spec.connection.name).await;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
                () = crate::adapter::stopped(&mut stop) => break,
            }
            wait_ms = wait_ms.saturating_mul(2).min(SOURCE_BACKOFF_MS.1);
        }
        *state.source.lock() = SourceState::Stopped;
    }

    async fn open_source(
        &self,
        spec: &SourceSpec,
    ) -> Result<(consign_loader::SourceHandle, consign_loader::SourceEvents), consign_loader::Failure>
    {
        let plugins = self.plan().plugins.clone();
        let connection = self.sources.connection(&plugins, &spec.connection).await?;
        let position = self
            .buffer
            .position(&spec.position_name)
            .map(|bytes| bytes.to_vec());
        let names = Names {
            adapter: Some(spec.adapter.clone()),
            ..spec.connection.names.clone()
        };
        connection
            .open_source(
                &spec.operation,
                spec.settings.clone(),
                names,
                position,
                OPEN_DEADLINE,
            )
            .await
    }
}

impl AdapterState {
    pub(crate) fn new(
        spec: SourceSpec,
        acceptor: Arc<Acceptor>,
        counters: Arc<Counters>,
        ledger: Arc<MessageLedger>,
        paused: bool,
    ) -> Self {
        Self {
            paused: watch::Sender::new(paused),
            ledger,
            counters,
            source: Mutex::new(SourceState::Opening),
            held: Arc::default(),
            acceptor: watch::Sender::new(acceptor),
            spec,
            stop: watch::Sender::new(false),
            task: Mutex::default(),
        }
    }

    /// Tells its source to stop.
    pub(crate) fn tell_stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until its source has stopped.
    pub(crate) async fn ended(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            drop(task.await);
        }
    }
}

/// The source side of connections: one instance per connection, shared by its sources.
#[derive(Default)]
pub(crate) struct Sources {
    open: tokio::sync::Mutex<BTreeMap<String, (ConnectionSpec, Connection)>>,
}

impl Sources {
    async fn connection(
        &self,
        plugins: &Plugins,
        spec: &ConnectionSpec,
    ) -> Result<Connection, consign_loader::Failure> {
        let mut open = self.open.lock().await;
        if let Some((of, connection)) = open.get(&spec.name)
            && of == spec
        {
            return Ok(connection.clone());
        }
        let request = OpenConnection {
            connector: spec.connector.clone(),
            config: spec.config.clone(),
            names: spec.names.clone(),
        };
        let connection = plugins.open_connection(request, OPEN_DEADLINE).await?;
        let entry = (spec.clone(), connection.clone());
        if let Some((_, old)) = open.insert(spec.name.clone(), entry) {
            // Its sources have stopped: their settings name another connection now.
            tokio::spawn(async move { drop(old.close(OPEN_DEADLINE).await) });
        }
        Ok(connection)
    }

    /// Closes the instances of connections that are gone.
    pub(crate) async fn keep(&self, names: std::collections::BTreeSet<&str>) {
        let mut open = self.open.lock().await;
        let gone: Vec<String> = open
            .keys()
            .filter(|name| !names.contains(name.as_str()))
            .cloned()
            .collect();
        for name in gone {
            if let Some((_, connection)) = open.remove(&name) {
                tokio::spawn(async move { drop(connection.close(OPEN_DEADLINE).await) });
            }
        }
    }

    /// After a source failed: an instance that no longer answers is given up, a healthy one is kept for
    /// the other sources on it.
    async fn forget_broken(&self, name: &str) {
        let mut open = self.open.lock().await;
        if let Some((_, connection)) = open.get(name)
            && connection.probe(Duration::from_secs(5)).await.is_err()
        {
            connection.fence();
            open.remove(name);
        }
    }
}

fn event(code: Code, adapter: &str) -> Event {
    Event::new(code, clock::wall_unix_ms_i64()).adapter(adapter)
}
