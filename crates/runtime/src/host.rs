//! A running host: opens what is durable, wires the parts, runs the adapters, and takes all of it down
//! in the order that loses nothing.

use crate::acceptance::Acceptor;
use crate::adapter::{AdapterSpec, Ended};
use crate::clock;
use crate::counters::MessageLedger;
use crate::engine::{Engine, Parts, engine};
use crate::events::Events;
use crate::park::Parker;
use crate::plan::Plan;
use crate::plugs::Plugs;
use crate::recovered::{report_lost_ledger, report_recovery};
use crate::settings;
use crate::steps::Steps;
use crate::wire::wire;
use consign_buffer::{Buffer, Recovery};
use consign_config::{Adapter, Config};
use consign_delivery::{Delivery as Machine, Input, LaneId};
use consign_ledger::{Code, Event, EventSink, Ledger, SinkOptions};
use consign_loader::{Connection, Names, OpenConnection, Plugins};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long a drain waits for requests in flight.
const DRAIN: Duration = Duration::from_secs(30);
/// How long a source may take to open.
const OPEN_DEADLINE: Duration = Duration::from_secs(60);
/// Waits before a failed source is opened again: doubled from the first to the second.
const SOURCE_BACKOFF_MS: (u64, u64) = (500, 30_000);
/// How long plugins may take to shut down.
const PLUGIN_SHUTDOWN: Duration = Duration::from_secs(5);

/// Why a host did not start. Nothing was accepted.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder cannot be used: in use by another host, of a newer format, unreadable.
    #[error("data_dir {}: {message}", dir.display())]
    DataDir {
        /// The folder.
        dir: PathBuf,
        /// What is wrong and what to do.
        message: String,
    },
    /// A lane could not be made.
    #[error("lane {id}: {message}")]
    Lane {
        /// The lane.
        id: String,
        /// What is wrong.
        message: String,
    },
}

/// A running host.
pub struct Host {
    /// Facts about it that never change.
    pub plan: Arc<Plan>,
    /// The buffer.
    pub buffer: Buffer,
    /// The driver.
    pub engine: Engine,
    /// Connections and lanes.
    pub plugs: Arc<Plugs>,
    /// The event log and failed messages.
    pub ledger: Ledger,
    /// Writes events.
    pub events: Events,
    /// Adapters by name.
    pub adapters: BTreeMap<String, Arc<AdapterState>>,
    /// What opening the buffer found.
    pub recovery: Recovery,
    /// Wall-clock time of the start.
    pub started_unix_ms: u64,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    watchers: Mutex<Vec<JoinHandle<()>>>,
    driver: Mutex<Option<JoinHandle<()>>>,
}

/// What others may see of an adapter.
pub struct AdapterState {
    /// Its message ledger.
    pub ledger: Arc<MessageLedger>,
    /// Counters of its acceptance.
    pub acceptor: Arc<Acceptor>,
    /// What its source is doing.
    pub source: Mutex<SourceState>,
    /// Why its messages are held, while any are.
    pub held: Arc<Mutex<Option<String>>>,
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
    /// Opens what is durable and starts everything. Sources start last.
    ///
    /// # Errors
    /// [`StartError`]; nothing was accepted then.
    pub async fn start(plan: Plan) -> Result<Arc<Self>, StartError> {
        let dir = plan.config.data_dir();
        let fail = |message: String| StartError::DataDir {
            dir: dir.clone(),
            message,
        };
        make_private(&dir).map_err(|error| {
            fail(format!(
                "cannot be made: {error}; check the path and its permissions"
            ))
        })?;
        let (buffer, recovery) = Buffer::open(
            dir.join("buffer"),
            settings::buffer_options(&plan.config),
            Arc::new(consign_buffer::RealFilesystem),
        )
        .await
        .map_err(|error| fail(error.to_string()))?;
        let path = dir.join("ledger.db");
        let ledger_path = path.clone();
        let (had_ledger, ledger) = tokio::task::spawn_blocking(move || {
            let had = path.exists();
            Ledger::open(&path, consign_ledger::Options::default()).map(|ledger| (had, ledger))
        })
        .await
        .map_err(|error| fail(error.to_string()))?
        .map_err(|error| fail(error.to_string()))?;
        let events = Events::new(
            EventSink::start(ledger.clone(), SinkOptions::default())
                .map_err(|error| fail(error.to_string()))?,
            Arc::new(settings::redactor(&plan.config)),
        );
        let plan = Arc::new(plan);
        let wired = wire(&plan, &buffer, &events)?;
        report_recovery(&events, &recovery, &buffer);
        if !had_ledger {
            report_lost_ledger(&events, &ledger_path, &buffer);
        }

        let mut seed = [0_u8; 8];
        rand::fill(&mut seed);
        let machine = Machine::new(settings::limits(&plan.config), u64::from_le_bytes(seed));
        let lanes = Arc::new(wired.lanes);
        let plugs = Arc::new(Plugs::new(
            plan.plugins.clone(),
            wired.connections.clone(),
            wired.sinks,
            Arc::clone(&lanes),
            events.clone(),
        ));
        let parker = Arc::new(Parker::new(ledger.clone(), events.clone(), lanes));
        let parts = Parts {
            buffer: buffer.clone(),
            plugs: Arc::clone(&plugs),
            parker: Arc::clone(&parker),
            handlers: Arc::new(wired.handlers),
            events: events.clone(),
        };
        let (engine, driver) = engine(machine, parts);
        let driver = tokio::spawn(driver);
        for input in wired.inputs {
            engine.input(input);
        }

        let watchers = plugs
            .lanes()
            .iter()
            .filter(|(_, info)| info.buffered)
            .filter_map(|(lane, _)| watch_lane(&buffer, &engine, lane))
            .collect();
        let mut adapters = BTreeMap::new();
        for ((adapter, plan_of), routes) in plan
            .config
            .adapters
            .iter()
            .zip(&plan.adapters)
            .zip(wired.routes)
        {
            let acceptor = Acceptor {
                adapter: adapter.name.to_string(),
                program: Arc::clone(&plan_of.program),
                routes,
                steps: Steps::of(adapter, &plan.plugins, &events),
                buffer: buffer.clone(),
                engine: engine.clone(),
                epoch: settings::epoch(&buffer, adapter),
                position_name: settings::position_name(adapter),
                parker: Arc::clone(&parker),
                events: events.clone(),
                condition_errors: AtomicU64::new(0),
                dropped_writes: AtomicU64::new(0),
            };
            let state = AdapterState {
                ledger: Arc::new(MessageLedger::default()),
                acceptor: Arc::new(acceptor),
                source: Mutex::new(SourceState::Opening),
                held: Arc::default(),
            };
            adapters.insert(adapter.name.to_string(), Arc::new(state));
        }
        let (stop, stopped) = watch::channel(false);
        let host = Arc::new(Self {
            plan,
            buffer,
            engine,
            plugs,
            ledger,
            events,
            adapters,
            recovery,
            started_unix_ms: clock::wall_unix_ms(),
            stop,
            tasks: Mutex::default(),
            watchers: Mutex::new(watchers),
            driver: Mutex::new(Some(driver)),
        });
        host.events.emit(
            Event::new(Code::HostStarted, clock::wall_unix_ms_i64())
                .field("version", env!("CARGO_PKG_VERSION"))
                .field("adapters", host.adapters.len()),
        );
        Host::start_sources(&host, &stopped);
        Ok(host)
    }

    fn start_sources(host: &Arc<Self>, stopped: &watch::Receiver<bool>) {
        let sources = Arc::new(Sources {
            plugins: host.plan.plugins.clone(),
            open: tokio::sync::Mutex::default(),
        });
        let mut tasks = host.tasks.lock();
        for index in 0..host.plan.config.adapters.len() {
            let (host, sources, stopped) =
                (Arc::clone(host), Arc::clone(&sources), stopped.clone());
            tasks.push(tokio::spawn(async move {
                host.supervise(index, &sources, stopped).await
            }));
        }
    }

    /// Keeps one adapter's source open until the host stops.
    async fn supervise(&self, index: usize, sources: &Sources, mut stop: watch::Receiver<bool>) {
        let Some(adapter) = self.plan.config.adapters.get(index) else {
            return;
        };
        let name = adapter.name.as_str();
        let Some(state) = self.adapters.get(name) else {
            return;
        };
        let Some(plan) = self.plan.adapters.get(index) else {
            return;
        };
        let subject = format!("source {name}");
        let mut wait_ms = SOURCE_BACKOFF_MS.0;
        loop {
            *state.source.lock() = SourceState::Opening;
            let opened = tokio::select! {
                opened = self.open_source(adapter, sources) => opened,
                () = crate::adapter::stopped(&mut stop) => break,
            };
            let why = match opened {
                Ok((source, events)) => {
                    *state.source.lock() = SourceState::Running;
                    tracing::info!(adapter = name, operation = %adapter.source.operation, "the source runs");
                    self.events.close(
                        &subject,
                        Code::SourceFault,
                        Some(event(Code::SourceRecovered, name)),
                    );
                    let began = clock::monotonic_ms();
                    let spec = AdapterSpec {
                        acceptor: Arc::clone(&state.acceptor),
                        ledger: Arc::clone(&state.ledger),
                        events: self.events.clone(),
                        offset_tracked: plan.source.delivery.is_offset_tracked(),
                        cumulative: plan.source.delivery
                            == consign_manifest::DeliveryType::OffsetTrackedCumulative,
                        max_in_process: adapter.max_in_process,
                        held: Arc::clone(&state.held),
                    };
                    let ended = crate::adapter::run(&spec, source, events, stop.clone()).await;
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
            sources.forget_broken(&adapter.source.connection).await;
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
        adapter: &Adapter,
        sources: &Sources,
    ) -> Result<(consign_loader::SourceHandle, consign_loader::SourceEvents), consign_loader::Failure>
    {
        let config = &self.plan.config;
        let connection = sources
            .connection(config, &adapter.source.connection)
            .await?;
        let position = self
            .buffer
            .position(&settings::position_name(adapter))
            .map(|bytes| bytes.to_vec());
        let names = Names {
            adapter: Some(adapter.name.to_string()),
            ..names(config, &adapter.source.connection)
        };
        let settings = adapter.source.config.value.clone();
        connection
            .open_source(
                &adapter.source.operation,
                settings,
                names,
                position,
                OPEN_DEADLINE,
            )
            .await
    }

    /// Stops sources, finishes what is in flight, and closes the buffer with its clean mark. What is still
    /// pending stays there. Returns whether every request in flight was answered.
    pub async fn stop(&self) -> bool {
        // Without a receiver no source runs any more.
        let _ = self.stop.send(true);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            drop(task.await);
        }
        let unfinished = self.engine.drain(DRAIN).await;
        let driver = self.driver.lock().take();
        if let Some(driver) = driver {
            drop(driver.await);
        }
        for watcher in std::mem::take(&mut *self.watchers.lock()) {
            watcher.abort();
        }
        self.plugs.close().await;
        self.plan.plugins.shutdown(PLUGIN_SHUTDOWN).await;
        if unfinished > 0 {
            self.events.emit(
                Event::new(Code::DrainTimeout, clock::wall_unix_ms_i64())
                    .field("requests", unfinished)
                    .message(format!("{unfinished} requests were not answered in time; their writes may have landed")),
            );
        }
        self.events
            .emit(Event::new(Code::HostStopped, clock::wall_unix_ms_i64()));
        let sink = self.events.sink().clone();
        drop(tokio::task::spawn_blocking(move || sink.shutdown()).await);
        // With requests unanswered this was no clean exit: their writes have to count as maybe.
        if unfinished == 0
            && let Err(error) = self.buffer.close().await
        {
            tracing::error!(%error, "the buffer did not close cleanly");
            return false;
        }
        unfinished == 0
    }
}

/// The source side of connections: one instance per connection, shared by its sources.
struct Sources {
    plugins: Plugins,
    open: tokio::sync::Mutex<BTreeMap<String, Connection>>,
}

impl Sources {
    async fn connection(
        &self,
        config: &Config,
        name: &str,
    ) -> Result<Connection, consign_loader::Failure> {
        let mut open = self.open.lock().await;
        if let Some(connection) = open.get(name) {
            return Ok(connection.clone());
        }
        let request = open_request(config, name);
        let connection = self.plugins.open_connection(request, OPEN_DEADLINE).await?;
        open.insert(name.to_owned(), connection.clone());
        Ok(connection)
    }

    /// After a source failed: an instance that no longer answers is given up, a healthy one is kept for
    /// the other sources on it.
    async fn forget_broken(&self, name: &str) {
        let mut open = self.open.lock().await;
        if let Some(connection) = open.get(name)
            && connection.probe(Duration::from_secs(5)).await.is_err()
        {
            connection.fence();
            open.remove(name);
        }
    }
}

fn open_request(config: &Config, name: &str) -> OpenConnection {
    let connection = config.connection(name);
    OpenConnection {
        connector: connection
            .map(|c| c.connector.to_string())
            .unwrap_or_default(),
        config: connection
            .map(|c| c.config.value.clone())
            .unwrap_or_default(),
        names: names(config, name),
    }
}

/// What a plugin is told about a connection of this host.
pub fn names(config: &Config, connection: &str) -> Names {
    Names {
        connection: connection.to_owned(),
        write_key_name: Some(config.write_key.name()),
        data_dir: Some(config.data_dir().join("plugins")),
        ..Names::default()
    }
}

fn event(code: Code, adapter: &str) -> Event {
    Event::new(code, clock::wall_unix_ms_i64()).adapter(adapter)
}

/// Tells the machine whenever writes have joined a lane: accepted, released by their parent, or sent again.
fn watch_lane(buffer: &Buffer, engine: &Engine, lane: LaneId) -> Option<JoinHandle<()>> {
    let mut joined = buffer.watch_lane(consign_buffer::LaneId(lane.0))?;
    let engine = engine.clone();
    Some(tokio::spawn(async move {
        while joined.changed().await.is_ok() {
            engine.input(Input::Available { lane });
        }
    }))
}

fn make_private(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    // Refuses a path that is a file, and one that cannot be entered.
    let meta = std::fs::metadata(dir)?;
    if !meta.is_dir() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::NotADirectory,
            "it is not a folder",
        ));
    }
    if meta.permissions().mode() & 0o077 != 0 {
        tracing::info!(dir = %dir.display(), "the data folder can be read by others; its files cannot");
    }
    Ok(())
}
