//! A running host: opens what is durable, wires the parts, runs the adapters, and takes all of it down
//! in the order that loses nothing.

use crate::acceptance::{Acceptor, Counters, RouteTarget};
use crate::attempts::Attempts;
use crate::clock;
use crate::crashes::Crashes;
use crate::engine::{Engine, Parts, engine};
use crate::events::Events;
use crate::handlers::Handlers;
use crate::lanes::Lanes;
use crate::lock::FolderLock;
use crate::offline::{OfflineError, Opened, buffer_dir, open_buffer};
use crate::operator::{Operator, control, replay};
use crate::outages::{Outages, UPDATE_EVERY};
use crate::park::Parker;
use crate::plan::{AdapterPlan, Plan};
use crate::plugs::{ConnectionSpec, Plugs};
use crate::recent::Recent;
use crate::recovered::{report_lost_buffer, report_lost_ledger, report_recovery};
use crate::reload::ConfigSource;
use crate::retention;
use crate::settings;
use crate::source::{AdapterState, SourceSpec, Sources};
use crate::steps::Steps;
use crate::watch;
use crate::wire::{Numbers, Wire, wire};
use consign_buffer::{Buffer, Recovery};
use consign_config::{Adapter, Config};
use consign_delivery::{ConnectionId, Delivery as Machine, Input, LaneConfig, LaneId};
use consign_ledger::{Code, Event, EventSink, Ledger, SinkOptions, Switch};
use consign_loader::{Names, Plugins};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long a drain waits for requests in flight.
const DRAIN: Duration = Duration::from_secs(30);
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
    plan: RwLock<Arc<Plan>>,
    /// The buffer.
    pub buffer: Buffer,
    /// The driver.
    pub engine: Engine,
    /// Connections and lanes.
    pub plugs: Arc<Plugs>,
    /// Failed messages, as delivery and acceptance put them there.
    pub(crate) parker: Arc<Parker>,
    pub(crate) attempts: Arc<Attempts>,
    /// Error handlers of the sends.
    pub(crate) handlers: Arc<Handlers>,
    /// The event log and failed messages.
    pub ledger: Ledger,
    /// Writes events.
    pub events: Events,
    /// What became of the last messages.
    pub recent: Arc<Recent>,
    adapters: RwLock<BTreeMap<String, Arc<AdapterState>>>,
    /// What opening the buffer found.
    pub recovery: Recovery,
    /// What ended the runs before this one.
    crashes: Arc<Crashes>,
    /// Wall-clock time of the start.
    pub started_unix_ms: u64,
    /// What is wired; locked while it changes.
    pub(crate) wiring: tokio::sync::Mutex<Wiring>,
    /// Lanes that are on their way to other settings, and why they are not there yet.
    pub(crate) moving: Mutex<BTreeMap<String, String>>,
    pub(crate) sources: Sources,
    /// Every set of plugins that was loaded; told to shut down at the end.
    pub(crate) plugins: Mutex<Vec<Plugins>>,
    pub(crate) watchers: Mutex<BTreeMap<u32, JoinHandle<()>>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    driver: Mutex<Option<JoinHandle<()>>>,
    operator: OnceLock<Operator>,
    pub(crate) config_source: OnceLock<ConfigSource>,
    /// Of the data folder, until the buffer is closed.
    lock: Mutex<Option<FolderLock>>,
}

/// What is wired at the moment, by number.
#[derive(Default)]
pub(crate) struct Wiring {
    pub(crate) numbers: Numbers,
    pub(crate) lanes: BTreeMap<u32, Wire>,
    pub(crate) connections: BTreeMap<u32, (ConnectionSpec, bool)>,
    /// How often the routes were replaced.
    pub(crate) generation: u64,
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
        let had_buffer = buffer_dir(&dir).is_dir();
        let opened = open_buffer(&plan.config).await;
        let Opened {
            buffer,
            recovery,
            healed,
            lock,
        } = opened.map_err(|error| match error {
            OfflineError::DataDir { source, .. } => fail(format!(
                "cannot be made: {source}; check the path and its permissions"
            )),
            error => fail(error.to_string()),
        })?;
        // Only now: the folder is locked, so no other host's note is taken.
        let of = dir.clone();
        let crashes = tokio::task::spawn_blocking(move || Crashes::take(&of))
            .await
            .map_err(|error| fail(error.to_string()))?;
        let crashes = Arc::new(crashes);
        let path = dir.join("ledger.db");
        let options = settings::ledger_options(&plan.config);
        let ledger_path = path.clone();
        let (had_ledger, ledger) = tokio::task::spawn_blocking(move || {
            let had = path.exists();
            Ledger::open(&path, options).map(|ledger| (had, ledger))
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
        let mut numbers = Numbers::default();
        let wired = wire(&plan, &buffer, &events, &mut numbers)?;
        crate::wire::report_orphans(&buffer, &events);
        let lanes = Arc::new(Lanes::new(
            wired
                .lanes
                .iter()
                .map(|(lane, wire)| (LaneId(*lane), wire.info.clone())),
        ));
        if recovery.unclean_exit {
            replay::settle_parked(&buffer, &ledger, &lanes)
                .await
                .map_err(fail)?;
        }
        replay::recover(&buffer, &ledger).await.map_err(fail)?;
        let of = ledger.clone();
        let paused = replay::blocking(move || of.paused()).await.map_err(fail)?;
        report_recovery(&events, &recovery, &healed, &buffer);
        crashes.report(&events);
        if had_ledger && !had_buffer {
            let of = ledger.clone();
            let last = replay::blocking(move || of.last_event_id()).await;
            report_lost_buffer(&events, &buffer_dir(&dir), last.map_err(fail)?);
        }
        // Durable before anything is sent: this start may end as the last run did.
        let told = events.sink().clone();
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || told.flush()).await {
            tracing::error!(%error, "how the last run ended could not be logged");
        }
        if !had_ledger {
            report_lost_ledger(&events, &ledger_path, &buffer);
        }

        let mut seed = [0_u8; 8];
        rand::fill(&mut seed);
        let machine = Machine::new(settings::limits(&plan.config), u64::from_le_bytes(seed));
        let plugs = Arc::new(Plugs::new(
            plan.plugins.clone(),
            Arc::clone(&lanes),
            events.clone(),
        ));
        let parker = Arc::new(Parker::new(
            ledger.clone(),
            events.clone(),
            Arc::clone(&lanes),
            Arc::clone(&crashes),
        ));
        let handlers = Arc::new(Handlers::default());
        handlers.replace(wired.handlers);
        let of = ledger.clone();
        let open = replay::blocking(move || of.open_outages()).await;
        let outages = Arc::new(Outages::new(
            ledger.clone(),
            events.clone(),
            buffer.clone(),
            lanes,
            open.map_err(fail)?,
        ));
        let attempts = Attempts::open(ledger.clone()).await.map_err(fail)?;
        let recent = Arc::new(Recent::default());
        let parts = Parts {
            buffer: buffer.clone(),
            plugs: Arc::clone(&plugs),
            parker: Arc::clone(&parker),
            handlers: Arc::clone(&handlers),
            events: events.clone(),
            outages: Arc::clone(&outages),
            recent: Arc::clone(&recent),
        };
        let (engine, driver) = engine(machine, parts);
        let driver = tokio::spawn(driver);
        let host = Arc::new(Self {
            plan: RwLock::new(Arc::clone(&plan)),
            buffer,
            engine,
            plugs,
            parker,
            attempts: Arc::new(attempts),
            handlers,
            ledger,
            events,
            recent,
            adapters: RwLock::default(),
            recovery,
            crashes,
            started_unix_ms: clock::wall_unix_ms(),
            wiring: tokio::sync::Mutex::default(),
            moving: Mutex::default(),
            sources: Sources::default(),
            plugins: Mutex::new(vec![plan.plugins.clone()]),
            watchers: Mutex::default(),
            tasks: Mutex::default(),
            driver: Mutex::new(Some(driver)),
            operator: OnceLock::new(),
            config_source: OnceLock::new(),
            lock: Mutex::new(Some(lock)),
        });
        for (number, (spec, used)) in &wired.connections {
            host.add_connection(&plan.config, *number, spec, *used);
        }
        for switch in &paused {
            tracing::warn!(
                "{} was paused by {} and stays so: consign resume",
                switch.subject,
                switch.who
            );
        }
        host.pause_connections(&paused);
        for (lane, wire) in &wired.lanes {
            let moved_below = host.check_target(LaneId(*lane), wire).await;
            let held = host.held_keys(&plan.config, wire).await.map_err(fail)?;
            host.add_lane(wire.clone(), moved_below, held, &paused);
        }
        {
            let mut wiring = host.wiring.lock().await;
            wiring.numbers = numbers;
            wiring.lanes = wired.lanes;
            wiring.connections = wired.connections;
        }
        let adapters = plan.config.adapters.iter().zip(&plan.adapters);
        for ((adapter, planned), routes) in adapters.zip(wired.routes) {
            let counters = Arc::default();
            let acceptor = host.acceptor(adapter, planned, routes, &counters, 1);
            let spec = SourceSpec::of(&plan.config, adapter, planned);
            let is_paused = control::is_paused(&paused, &adapter.name);
            let state = AdapterState::new(spec, acceptor, counters, Arc::default(), is_paused);
            host.add_adapter(state);
        }
        let names: Vec<String> = host.adapters().into_keys().collect();
        let operator = Operator::new(&host);
        let _ = host.operator.set(operator.clone());
        host.events.emit(
            Event::new(Code::HostStarted, clock::wall_unix_ms_i64())
                .field("version", env!("CARGO_PKG_VERSION"))
                .field("adapters", names.len()),
        );
        host.report_overclaims(&plan);
        operator.resume_jobs().await;
        let (of, reports) = (Arc::clone(&host), Arc::clone(&outages));
        host.own(tokio::spawn(report_outages(of, reports)));
        host.own(tokio::spawn(retention::keep(Arc::clone(&host), operator)));
        host.own(tokio::spawn(watch::watch(
            host.buffer.clone(),
            host.events.clone(),
            plan.config.data_dir(),
            host.recovery.lost.clone(),
        )));
        for name in names {
            host.start_source(&name);
        }
        Ok(host)
    }

    /// What people ask of it. `None` only while it starts.
    pub fn operator(&self) -> Option<&Operator> {
        self.operator.get()
    }

    /// Keeps a task that ends with the host.
    pub(crate) fn own(&self, task: JoinHandle<()>) {
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    /// Order keys of a lane that wait for a person: their heads are in Failed messages.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub(crate) async fn held_keys(&self, config: &Config, wire: &Wire) -> Result<Vec<u64>, String> {
        if !wire.info.holds_keys {
            return Ok(Vec::new());
        }
        replay::held_keys(&self.ledger, &wire.info, config.max_held_keys).await
    }

    /// The configuration that is in force, with what it comes to.
    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.plan.read())
    }

    /// What plugins claimed beyond their declarations and did not get.
    pub(crate) fn report_overclaims(&self, plan: &Plan) {
        let routes = plan.adapters.iter().flat_map(|adapter| &adapter.routes);
        let sends = routes.flat_map(|route| &route.sends);
        let claims: std::collections::BTreeSet<&String> =
            sends.flat_map(|send| &send.promise.overclaims).collect();
        for claim in claims {
            let event = Event::new(Code::PluginOverclaims, clock::wall_unix_ms_i64());
            self.events.emit(event.message(claim.clone()));
        }
    }

    pub(crate) fn put_plan(&self, plan: Arc<Plan>) {
        *self.plan.write() = plan;
    }

    /// Adapters by name.
    pub fn adapters(&self) -> BTreeMap<String, Arc<AdapterState>> {
        self.adapters.read().clone()
    }

    pub(crate) fn add_adapter(&self, state: AdapterState) {
        let name = state.spec.adapter.clone();
        self.adapters.write().insert(name, Arc::new(state));
    }

    pub(crate) fn remove_adapter(&self, name: &str) {
        self.adapters.write().remove(name);
    }

    pub(crate) fn add_connection(
        &self,
        config: &Config,
        number: u32,
        spec: &ConnectionSpec,
        used: bool,
    ) {
        let id = ConnectionId(number);
        if used {
            self.plugs.put_connection(id, spec.clone());
            let settings = settings::connection(config, id);
            self.engine.input(Input::AddConnection(settings));
        }
    }

    /// Pauses the connections that a person paused, before a lane on them is put in.
    pub(crate) fn pause_connections(&self, paused: &[Switch]) {
        for pause in control::paused_connections(paused, &self.plugs) {
            self.engine.input(pause);
        }
    }

    /// Puts a lane in: directory, sink, machine, and what tells of new writes. One that a person paused
    /// sends nothing from the first moment on.
    pub(crate) fn add_lane(
        &self,
        wire: Wire,
        moved_below: u64,
        held_keys: Vec<u64>,
        paused: &[Switch],
    ) {
        let lane = wire.settings.id;
        let buffered = wire.info.buffered;
        let is_paused = control::is_lane_paused(paused, &wire.info.id);
        self.plugs.lanes().put(lane, wire.info);
        self.plugs.put_sink(lane, wire.sink);
        let stats = self.buffer.stats(consign_buffer::LaneId(lane.0));
        let stats = stats.filter(|_| buffered);
        // A direct send has another number in each run.
        let (crash_suspects, crash_alone) = if buffered {
            (self.crashes.suspects(lane), self.crashes.alone(lane))
        } else {
            (Vec::new(), Vec::new())
        };
        self.engine.input(Input::AddLane(Box::new(LaneConfig {
            frontier: stats.as_ref().map_or(0, |stats| stats.frontier),
            frontier_wall_unix_ms: stats.map_or(0, |stats| stats.frontier_wall_unix_ms),
            moved_below,
            held_keys,
            paused: is_paused,
            crash_suspects,
            crash_alone,
            ..wire.settings
        })));
        if buffered {
            let mut watchers = self.watchers.lock();
            if !watchers.contains_key(&lane.0)
                && let Some(task) = watch_lane(&self.buffer, &self.engine, lane)
            {
                watchers.insert(lane.0, task);
            }
        }
    }

    pub(crate) fn acceptor(
        &self,
        adapter: &Adapter,
        planned: &AdapterPlan,
        routes: Vec<RouteTarget>,
        counters: &Arc<Counters>,
        generation: u64,
    ) -> Arc<Acceptor> {
        Arc::new(Acceptor {
            adapter: adapter.name.to_string(),
            program: Arc::clone(&planned.program),
            routes,
            buffer: self.buffer.clone(),
            engine: self.engine.clone(),
            epoch: settings::epoch(&self.buffer, adapter),
            position_name: settings::position_name(adapter),
            steps: Steps::of(adapter, &self.plan().plugins, &self.events),
            parker: Arc::clone(&self.parker),
            attempts: Arc::clone(&self.attempts),
            events: self.events.clone(),
            counters: Arc::clone(counters),
            generation,
        })
    }

    /// Stops sources, finishes what is in flight, and closes the buffer with its clean mark. What is still
    /// pending stays there. Returns whether every request in flight was answered.
    pub async fn stop(&self) -> bool {
        // A batch of acts is let end, so that nothing of it has to be looked up at the next start.
        if let Some(operator) = self.operator.get() {
            operator.close().await;
        }
        // A reload that is under way is let finish: it is bounded, and half of one is no state to stop in.
        let wiring = self.wiring.lock().await;
        let adapters = self.adapters();
        for state in adapters.values() {
            state.tell_stop();
        }
        for state in adapters.values() {
            state.ended().await;
        }
        let unfinished = self.engine.drain(DRAIN).await;
        let driver = self.driver.lock().take();
        if let Some(driver) = driver {
            drop(driver.await);
        }
        for watcher in std::mem::take(&mut *self.watchers.lock()).into_values() {
            watcher.abort();
        }
        for task in std::mem::take(&mut *self.tasks.lock()) {
            task.abort();
        }
        self.plugs.close().await;
        let plugins = std::mem::take(&mut *self.plugins.lock());
        for plugins in plugins {
            plugins.shutdown(PLUGIN_SHUTDOWN).await;
        }
        drop(wiring);
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
        if unfinished > 0 {
            return false;
        }
        if let Err(error) = self.buffer.close().await {
            tracing::error!(%error, "the buffer did not close cleanly");
            return false;
        }
        self.lock.lock().take();
        true
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

/// Keeps outage reports up to date while there are any.
async fn report_outages(host: Arc<Host>, outages: Arc<Outages>) {
    loop {
        tokio::time::sleep(UPDATE_EVERY).await;
        if !outages.busy() {
            continue;
        }
        let snapshot = host.engine.snapshot().await;
        let outages = Arc::clone(&outages);
        let updated = tokio::task::spawn_blocking(move || outages.update(&snapshot)).await;
        if let Ok(Err(error)) = updated {
            tracing::warn!(%error, "an outage report could not be begun");
        }
    }
}

pub(crate) fn make_private(dir: &Path) -> std::io::Result<()> {
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
