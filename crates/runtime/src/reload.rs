//! A reload: a new configuration is checked whole, then put in force while messages flow.
//!
//! Lanes keep their backlog and their state. What a lane can take while it runs it takes at once; for
//! anything else it is let finish what is on its way first. A lane that gets another target finishes
//! there what may have landed there, for [`LEAVE_WITHIN`] at the most; what is left then parks as
//! `may_have_landed`. Routes are replaced between two messages. A source is opened anew only when its
//! own settings changed.

use crate::changed;
use crate::clock;
use crate::host::Host;
use crate::operator::replay;
use crate::plan::{Copies, Plan, plan_with};
use crate::plugs::ConnectionSpec;
use crate::settings;
use crate::source::{AdapterState, SourceSpec};
use crate::wire::{Wire, report_orphans, wire};
use consign_config::{Config, Environment, Problem, Severity};
use consign_delivery::{ConnectionId, Input, LaneId};
use consign_ledger::{Code, Event, Switch};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a lane may take to finish at its old target what may have landed there. Longer than a short
/// outage, short enough that a target that is gone for good holds nothing up for long.
const LEAVE_WITHIN: Duration = Duration::from_secs(60);
/// How long the report waits for lanes that change; slower ones change in the background.
const REPORT_WITHIN: Duration = Duration::from_secs(10);
/// How long messages that began under the old routes may take before their lanes are taken away.
const ROUTES_WITHIN: Duration = Duration::from_secs(5);

/// What a reload changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Adapters that are new.
    pub adapters_added: Vec<String>,
    /// Adapters whose source was opened anew.
    pub adapters_changed: Vec<String>,
    /// Adapters that are gone.
    pub adapters_removed: Vec<String>,
    /// Sends that are new, as `adapter/route/send`.
    pub sends_added: Vec<String>,
    /// Sends whose settings changed.
    pub sends_changed: Vec<String>,
    /// Those of them that write to another target.
    pub sends_moved: Vec<String>,
    /// Sends that are gone.
    pub sends_removed: Vec<String>,
    /// Connections that are new or have other settings.
    pub connections_changed: Vec<String>,
    /// Settings of the host, of adapters and of routes that differ, as `failed`, `orders.key`, `orders/eu.when`.
    pub settings_changed: Vec<String>,
    /// Lanes with a backlog and without a send, with their pending writes.
    pub orphans: Vec<(String, u64)>,
    /// Sends that still finish what is on its way; they change as soon as it has ended.
    pub unfinished: Vec<String>,
    /// What differs in the file and needs a restart.
    pub needs_restart: Vec<String>,
    /// What an operator should look at.
    pub warnings: Vec<String>,
}

impl Reloaded {
    /// Adapters, sends, connections and settings that changed.
    #[must_use]
    pub fn changes(&self) -> usize {
        [
            &self.adapters_added,
            &self.adapters_changed,
            &self.adapters_removed,
            &self.sends_added,
            &self.sends_changed,
            &self.sends_removed,
            &self.connections_changed,
            &self.settings_changed,
        ]
        .iter()
        .map(|names| names.len())
        .sum()
    }

    /// In one sentence, for people.
    #[must_use]
    pub fn sentence(&self) -> String {
        let mut parts = vec![format!("{} changes", self.changes())];
        let mut list = |what: &str, names: &[String]| {
            if !names.is_empty() {
                parts.push(format!("{what} {}", names.join(", ")));
            }
        };
        list("adapters added:", &self.adapters_added);
        list("adapters opened anew:", &self.adapters_changed);
        list("adapters removed:", &self.adapters_removed);
        list("sends added:", &self.sends_added);
        list("sends changed:", &self.sends_changed);
        list("with another target:", &self.sends_moved);
        list("sends removed:", &self.sends_removed);
        list("connections changed:", &self.connections_changed);
        list("settings changed:", &self.settings_changed);
        list("still finishing what is on its way:", &self.unfinished);
        list("needs a restart:", &self.needs_restart);
        let orphans: Vec<String> = self
            .orphans
            .iter()
            .map(|(lane, pending)| format!("{lane} ({pending})"))
            .collect();
        list("orphaned:", &orphans);
        format!("the configuration was reloaded: {}", parts.join("; "))
    }
}

/// Where a host reads its configuration again.
pub struct ConfigSource {
    /// The file.
    pub path: PathBuf,
    /// What its secrets are filled in from.
    pub environment: Arc<dyn Environment + Send + Sync>,
    /// Where copies of plugins go.
    pub copies: Copies,
}

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file has errors; each says where.
    #[error("{} errors; the host goes on with the configuration it had", errors_of(.0).count())]
    Rejected(Vec<Problem>),
    /// An earlier reload is not over.
    #[error("an earlier reload is not over: {0}; reload again later")]
    Busy(String),
    /// The buffer has failed or the host stops.
    #[error("{0}")]
    Failed(String),
}

/// Warnings beside them are no reason.
fn errors_of(problems: &[Problem]) -> impl Iterator<Item = &Problem> {
    problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
}

/// What happens to a lane.
struct Change {
    lane: LaneId,
    /// Where there is one: how it is taken out.
    out: Option<Option<Duration>>,
    /// What it becomes.
    next: Option<Wire>,
    name: String,
}

impl Host {
    /// Says where the configuration is read from at a reload. The first one counts.
    pub fn reloads_from(&self, source: ConfigSource) {
        let _ = self.config_source.set(source);
    }

    /// Reads the configuration again and puts it in force. Checked whole first: with an error nothing
    /// changes. Every way it ends is an event.
    ///
    /// # Errors
    /// [`ReloadError`]: nothing has changed.
    pub async fn reload(self: &Arc<Self>) -> Result<Reloaded, ReloadError> {
        let Some(source) = self.config_source.get() else {
            let why = "this host was not started from a file: there is nothing to read again";
            return Err(ReloadError::Failed(why.to_owned()));
        };
        let path = source.path.as_path();
        let ended = self
            .try_reload(path, Arc::clone(&source.environment), source.copies)
            .await;
        let event = |code| {
            Event::new(code, clock::wall_unix_ms_i64()).field("config", path.display().to_string())
        };
        match &ended {
            Ok(report) => {
                self.events.emit(
                    event(Code::ConfigReloaded)
                        .field("changed", report.changes())
                        .field("report", serde_json::to_value(report).unwrap_or_default())
                        .message(report.sentence()),
                );
            }
            Err(error) => {
                let first = match error {
                    ReloadError::Rejected(problems) => {
                        errors_of(problems).next().map(ToString::to_string)
                    }
                    _ => None,
                };
                let first = first.unwrap_or_else(|| error.to_string());
                let errors = match error {
                    ReloadError::Rejected(problems) => errors_of(problems).count(),
                    _ => 1,
                };
                self.events.emit(
                    event(Code::ConfigRejected)
                        .field("errors", errors)
                        .field("first", first.clone())
                        .message(format!("the configuration was not reloaded: {first}")),
                );
            }
        }
        ended
    }

    async fn try_reload(
        self: &Arc<Self>,
        path: &Path,
        environment: Arc<dyn Environment + Send + Sync>,
        copies: Copies,
    ) -> Result<Reloaded, ReloadError> {
        let Ok(mut wiring) = self.wiring.try_lock() else {
            return Err(ReloadError::Busy(
                "it is still being put in force".to_owned(),
            ));
        };
        if let Some((lane, why)) = self.moving.lock().first_key_value() {
            return Err(ReloadError::Busy(format!("{lane} {why}")));
        }
        let old = self.plan();
        let plan = read(path, environment, copies, &old).await?;
        let mut report = Reloaded {
            needs_restart: keep_what_needs_a_restart(&old, plan.as_ref()),
            warnings: plan.warnings.iter().map(ToString::to_string).collect(),
            ..Reloaded::default()
        };
        let plan = Arc::new(keeping(&old, plan));
        report.settings_changed = changed::settings(&old.config, &plan.config);
        let wired = wire(&plan, &self.buffer, &self.events, &mut wiring.numbers)
            .map_err(|error| ReloadError::Failed(error.to_string()))?;

        // From here on nothing fails.
        if !same_plugins(&old, &plan) {
            self.plugins.lock().push(plan.plugins.clone());
        }
        self.plugs.use_plugins(plan.plugins.clone());
        self.handlers.replace(wired.handlers);
        self.events.redact_with(settings::redactor(&plan.config));
        self.engine
            .input(Input::Limits(settings::limits(&plan.config)));
        for (number, (spec, used)) in &wired.connections {
            if !wiring.connections.contains_key(number) {
                report.connections_changed.push(spec.name.clone());
            }
            self.add_connection(&plan.config, *number, spec, *used);
        }
        for (number, (spec, _)) in &wiring.connections {
            let named = |(other, _): &(ConnectionSpec, bool)| other.name == spec.name;
            if !wired.connections.contains_key(number) && !wired.connections.values().any(named) {
                report.connections_changed.push(spec.name.clone());
            }
        }
        self.put_plan(Arc::clone(&plan));
        self.report_overclaims(&plan);
        let changes = self.changes(&wiring.lanes, &wired.lanes, &mut report);
        let (now, later): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(|change| change.out.is_none());
        let paused = self.paused().await;
        for change in now {
            if let Some(wire) = change.next {
                let lane = change.lane;
                let moved_below = self.check_target(lane, &wire).await;
                let held = self.remembered_keys(&wire).await;
                self.add_lane(wire, moved_below, held, &paused);
            }
        }
        wiring.generation = wiring.generation.saturating_add(1);
        let generation = wiring.generation.saturating_add(1);
        let routes = wired.routes;
        let replaced = self
            .replace_routes(&plan, routes, generation, &mut report)
            .await;
        settle_routes(replaced, &later, &self.engine).await;

        let old_connections: BTreeSet<u32> = wiring.connections.keys().copied().collect();
        let kept: BTreeSet<u32> = wired.connections.keys().copied().collect();
        wiring.lanes = wired.lanes;
        wiring.connections = wired.connections;
        let gone: Vec<u32> = old_connections.difference(&kept).copied().collect();
        report.unfinished = self.change_lanes(later, gone).await;
        report.orphans = report_orphans(&self.buffer, &self.events);
        Ok(report)
    }

    /// What becomes of each lane.
    fn changes(
        &self,
        old: &BTreeMap<u32, Wire>,
        new: &BTreeMap<u32, Wire>,
        report: &mut Reloaded,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        let names: BTreeSet<&str> = old.values().map(|wire| wire.info.id.as_str()).collect();
        let kept: BTreeSet<&str> = new.values().map(|wire| wire.info.id.as_str()).collect();
        for (lane, wire) in new {
            let name = wire.info.id.clone();
            let known = old.get(lane);
            match known {
                Some(known) if known == wire => continue,
                None if !names.contains(name.as_str()) => report.sends_added.push(name.clone()),
                _ => report.sends_changed.push(name.clone()),
            }
            let out = known.and_then(|known| {
                let same_sink = known.sink == wire.sink;
                if known.target != wire.target {
                    report.sends_moved.push(name.clone());
                    Some(Some(LEAVE_WITHIN))
                } else if same_sink && known.settings.takes_in_place(&wire.settings) {
                    None
                } else {
                    Some(None)
                }
            });
            changes.push(Change {
                lane: LaneId(*lane),
                out,
                next: Some(wire.clone()),
                name,
            });
        }
        for (lane, wire) in old {
            if new.contains_key(lane) {
                continue;
            }
            let name = wire.info.id.clone();
            if !kept.contains(name.as_str()) {
                report.sends_removed.push(name.clone());
            }
            changes.push(Change {
                lane: LaneId(*lane),
                out: Some(None),
                next: None,
                name,
            });
        }
        changes
    }

    /// Gives every adapter its new routes; stops, starts and restarts sources. Returns the acceptors that
    /// were replaced.
    async fn replace_routes(
        self: &Arc<Self>,
        plan: &Plan,
        routes: Vec<Vec<crate::acceptance::RouteTarget>>,
        generation: u64,
        report: &mut Reloaded,
    ) -> Vec<std::sync::Weak<crate::acceptance::Acceptor>> {
        let before = self.adapters();
        let mut replaced = Vec::new();
        let mut start = Vec::new();
        let mut stopping = Vec::new();
        let adapters = plan.config.adapters.iter().zip(&plan.adapters);
        for ((adapter, planned), routes) in adapters.zip(routes) {
            let name = adapter.name.to_string();
            let spec = SourceSpec::of(&plan.config, adapter, planned);
            let known = before.get(&name);
            let counters = known.map_or_else(Arc::default, |state| Arc::clone(&state.counters));
            let mut routes = routes;
            if let Some(state) = known {
                let before = state.acceptor.borrow();
                for route in &mut routes {
                    // What is counted about a route goes on under its name.
                    if let Some(old) = before.routes.iter().find(|old| old.name == route.name) {
                        route.counts = Arc::clone(&old.counts);
                    }
                }
            }
            let acceptor = self.acceptor(adapter, planned, routes, &counters, generation);
            match known {
                Some(state) if state.spec == spec => {
                    let old = state.acceptor.send_replace(acceptor);
                    replaced.push(Arc::downgrade(&old));
                }
                Some(state) => {
                    replaced.push(Arc::downgrade(&state.acceptor.borrow()));
                    state.tell_stop();
                    stopping.push(Arc::clone(state));
                    let ledger = Arc::clone(&state.ledger);
                    report.adapters_changed.push(name.clone());
                    let paused = *state.paused.borrow();
                    let state = AdapterState::new(spec, acceptor, counters, ledger, paused);
                    start.push((name, state));
                }
                None => {
                    report.adapters_added.push(name.clone());
                    let state = AdapterState::new(spec, acceptor, counters, Arc::default(), false);
                    start.push((name, state));
                }
            }
        }
        let names: BTreeSet<&str> = plan.adapters.iter().map(|a| a.name.as_str()).collect();
        for (name, state) in &before {
            if !names.contains(name.as_str()) {
                replaced.push(Arc::downgrade(&state.acceptor.borrow()));
                state.tell_stop();
                stopping.push(Arc::clone(state));
                report.adapters_removed.push(name.clone());
            }
        }
        // One source at a time on a port, a file or a consumer: the old ones end before the new begin.
        for state in &stopping {
            state.ended().await;
        }
        for name in &report.adapters_removed {
            self.remove_adapter(name);
        }
        let connections = plan.config.connections.iter();
        self.sources
            .keep(
                connections
                    .map(|connection| connection.name.as_str())
                    .collect(),
            )
            .await;
        drop((stopping, before));
        for (name, state) in start {
            self.add_adapter(state);
            self.start_source(&name);
        }
        replaced
    }

    /// Takes lanes out and puts their next form in, each as soon as it may. Returns those that need longer
    /// than the report waits.
    async fn change_lanes(self: &Arc<Self>, changes: Vec<Change>, gone: Vec<u32>) -> Vec<String> {
        {
            let mut moving = self.moving.lock();
            for change in &changes {
                moving.insert(
                    change.name.clone(),
                    "finishes what is on its way".to_owned(),
                );
            }
        }
        let mut tasks = tokio::task::JoinSet::new();
        for change in changes {
            let host = Arc::clone(self);
            tasks.spawn(async move { host.change_lane(change).await });
        }
        let host = Arc::clone(self);
        let all = tokio::spawn(async move {
            while tasks.join_next().await.is_some() {}
            for number in gone {
                let connection = ConnectionId(number);
                host.engine.input(Input::RemoveConnection { connection });
                host.plugs.remove_connection(connection).await;
            }
        });
        // What takes longer goes on by itself.
        drop(tokio::time::timeout(REPORT_WITHIN, all).await);
        self.moving.lock().keys().cloned().collect()
    }

    /// Order keys of a lane that wait for a person. Where the ledger cannot be read, nothing is held: the
    /// ledger's own event says so.
    async fn remembered_keys(&self, wire: &Wire) -> Vec<u64> {
        match self.held_keys(&self.plan().config, wire).await {
            Ok(keys) => keys,
            Err(error) => {
                tracing::error!(lane = wire.info.id, %error, "the held order keys could not be read");
                Vec::new()
            }
        }
    }

    /// What people paused stays so for lanes that are put in, and for connections under another number.
    async fn paused(&self) -> Vec<Switch> {
        let ledger = self.ledger.clone();
        match replay::blocking(move || ledger.paused()).await {
            Ok(paused) => {
                self.pause_connections(&paused);
                paused
            }
            Err(error) => {
                tracing::error!(%error, "what is paused could not be read");
                Vec::new()
            }
        }
    }

    async fn change_lane(&self, change: Change) {
        let lane = change.lane;
        if let Some(leave) = change.out {
            self.engine.remove(lane, leave).await;
        }
        match change.next {
            Some(wire) => {
                // Durable before anything goes there. If it cannot be, the log has failed and nothing is sent.
                match self.record_target(lane, &wire, 0).await {
                    Ok(()) => {
                        let held = self.remembered_keys(&wire).await;
                        let paused = self.paused().await;
                        self.add_lane(wire, 0, held, &paused);
                    }
                    Err(error) => {
                        tracing::error!(lane = change.name, %error, "the lane's target could not be recorded");
                    }
                }
            }
            None => {
                self.plugs.remove_sink(lane);
                self.plugs.lanes().remove(lane);
                self.buffer.release_lane(consign_buffer::LaneId(lane.0));
                if let Some(watcher) = self.watchers.lock().remove(&lane.0) {
                    watcher.abort();
                }
            }
        }
        self.moving.lock().remove(&change.name);
    }
}

/// Direct sends to lanes that go are given back, so that nothing waits for them; then messages that began
/// under the old routes are let finish.
async fn settle_routes(
    replaced: Vec<std::sync::Weak<crate::acceptance::Acceptor>>,
    changes: &[Change],
    engine: &crate::engine::Engine,
) {
    for change in changes.iter().filter(|change| change.next.is_none()) {
        if change.lane.0 >= crate::engine::FIRST_DIRECT_LANE {
            engine.input(Input::RemoveLane { lane: change.lane });
        }
    }
    let deadline = tokio::time::Instant::now() + ROUTES_WITHIN;
    while replaced.iter().any(|old| old.strong_count() > 0)
        && tokio::time::Instant::now() < deadline
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn read(
    path: &Path,
    environment: Arc<dyn Environment + Send + Sync>,
    copies: Copies,
    old: &Plan,
) -> Result<Box<Plan>, ReloadError> {
    let (path, plugins) = (path.to_owned(), old.plugins.clone());
    let checked = tokio::task::spawn_blocking(move || {
        plan_with(&path, environment.as_ref(), copies, Some(&plugins)).map(Box::new)
    })
    .await
    .map_err(|error| ReloadError::Failed(error.to_string()))?;
    let plan = checked.map_err(ReloadError::Rejected)?;
    if plan.unset_secrets.is_empty() {
        Ok(plan)
    } else {
        let unset = plan.unset_secrets.iter();
        let problems = unset.map(|p| Problem::error(&p.place, p.code, p.message.clone()));
        Err(ReloadError::Rejected(problems.collect()))
    }
}

/// What the file says differently and this process cannot take up.
fn keep_what_needs_a_restart(old: &Plan, new: &Plan) -> Vec<String> {
    let mut out = Vec::new();
    let (a, b) = (&old.config, &new.config);
    if a.data_dir() != b.data_dir() {
        out.push("data_dir".to_owned());
    }
    let console = |config: &Config| {
        let console = config.console.as_ref()?;
        Some((
            console.listen.to_string(),
            console.token.as_ref().map(ToString::to_string),
        ))
    };
    if console(a) != console(b) {
        out.push("console".to_owned());
    }
    let buffer = |config: &Config| {
        (
            config.buffer.log_size.as_bytes(),
            config.buffer.memory.as_bytes(),
        )
    };
    if buffer(a) != buffer(b) {
        out.push("buffer".to_owned());
    }
    for file in old.plugins.files() {
        let on_disk = consign_loader::inspect_file(&file.path);
        if on_disk.is_ok_and(|now| now.digest != file.digest) {
            out.push(format!("plugin {}", file.path.display()));
        }
    }
    out
}

/// The new plan, with what needs a restart as it was.
fn keeping(old: &Plan, mut new: Box<Plan>) -> Plan {
    let folder = old.config.data_dir();
    if new.config.data_dir() != folder {
        new.config.data_dir = old.config.data_dir.clone();
    }
    new.config.console = old.config.console.clone();
    new.config.buffer = old.config.buffer.clone();
    *new
}

fn same_plugins(one: &Plan, other: &Plan) -> bool {
    let digests = |plan: &Plan| -> BTreeSet<String> {
        plan.plugins.files().into_iter().map(|f| f.digest).collect()
    };
    digests(one) == digests(other)
}
