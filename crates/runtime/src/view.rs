//! The host as its HTTP side and the command line see it.

use crate::acceptance::RouteCounts;
use crate::clock;
use crate::counters::MessageOutcome;
use crate::engine::Snapshot;
use crate::host::Host;
use crate::lanes::LaneInfo;
use crate::operator::{FaultKind, Request};
use crate::plan::{AdapterPlan, Plan};
use crate::promises;
use crate::source::{AdapterState, SourceState};
use crate::states::{self, RESULTS};
use consign_buffer::Health;
use consign_console::{
    AdapterStatus, BufferStatus, CommandError, ConnectionStatus, EventQuery, HostView, LaneStatus,
    Readiness, RecoveryStatus, RouteStatus, Status,
};
use consign_delivery::{LaneId, LaneState, SettleResult};
use consign_ledger::events::Code;
use consign_ledger::{EventFilter, Severity};
use consign_promise::SendLevels;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A running host, to look at.
pub struct View {
    host: Arc<Host>,
}

impl View {
    /// Of this host.
    pub fn new(host: Arc<Host>) -> Self {
        Self { host }
    }
}

impl HostView for View {
    async fn status(&self) -> Status {
        let host = &self.host;
        let snapshot = host.engine.snapshot().await;
        let lanes: Vec<LaneStatus> = host
            .plugs
            .lanes()
            .all()
            .into_iter()
            .map(|(id, info)| lane(host, &snapshot, id, &info))
            .collect();
        let lanes: Vec<LaneStatus> = lanes
            .into_iter()
            .chain(host.buffer.orphans().iter().map(orphan))
            .collect();
        let plan = host.plan();
        let running = host.adapters();
        let by_name = host.plugs.lanes().by_name();
        let adapters = plan
            .config
            .adapters
            .iter()
            .zip(&plan.adapters)
            .filter_map(|(config, planned)| {
                let state = running.get(planned.name.as_str())?;
                let routes = routes(host, &plan, config, planned, &by_name, state);
                Some(adapter(config, planned, state, routes))
            })
            .collect::<Vec<_>>();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_unix_ms: host.started_unix_ms,
            readiness: readiness(host, &adapters, &lanes),
            recovery: recovery(host),
            buffer: buffer(host),
            adapters,
            lanes,
            connections: connections(host, &snapshot),
        }
    }

    async fn events(&self, query: EventQuery) -> Result<Vec<serde_json::Value>, String> {
        let filter = EventFilter {
            codes: match &query.code {
                Some(code) => vec![code.parse::<Code>().map_err(|error| error.to_string())?],
                None => Vec::new(),
            },
            min_level: query.level.as_deref().map(severity).transpose()?,
            adapter: query.adapter,
            after_id: query.after_id,
            newest_first: query.newest_first,
            limit: query.limit,
            ..EventFilter::default()
        };
        let (ledger, sink) = (self.host.ledger.clone(), self.host.events.sink().clone());
        let read = move || {
            // What was emitted before the question is part of the answer; where it cannot be written, the
            // ledger's own answer says why.
            drop(sink.flush());
            ledger.events(&filter)
        };
        let events = tokio::task::spawn_blocking(read)
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())?;
        events
            .iter()
            .map(|event| serde_json::to_value(event).map_err(|error| error.to_string()))
            .collect()
    }

    async fn command(
        &self,
        command: serde_json::Value,
        who: String,
    ) -> Result<serde_json::Value, CommandError> {
        self.asked(command, who).await
    }
}

impl View {
    async fn asked(
        &self,
        command: serde_json::Value,
        who: String,
    ) -> Result<serde_json::Value, CommandError> {
        let request: Request = serde_json::from_value(command)
            .map_err(|error| CommandError::Input(error.to_string()))?;
        let operator = self
            .host
            .operator()
            .ok_or_else(|| CommandError::Failed("the host is starting: try again".to_owned()))?;
        operator
            .call(request, &who)
            .await
            .map_err(|fault| match fault.kind {
                FaultKind::Input => CommandError::Input(fault.message),
                FaultKind::Failed => CommandError::Failed(fault.message),
            })
    }
}

fn severity(word: &str) -> Result<Severity, String> {
    [
        Severity::Debug,
        Severity::Info,
        Severity::Warn,
        Severity::Error,
    ]
    .into_iter()
    .find(|severity| severity.name() == word)
    .ok_or_else(|| format!("there is no level `{word}`; it is debug, info, warn or error"))
}

fn lane(host: &Host, snapshot: &Snapshot, id: LaneId, info: &LaneInfo) -> LaneStatus {
    let mut status = LaneStatus {
        id: info.id.clone(),
        connection: info.connection.clone(),
        operation: info.operation.clone(),
        buffered: info.buffered,
        state: states::LANE_STOPPED.to_owned(),
        ..LaneStatus::default()
    };
    if let Some(stats) = snapshot.lanes.get(&id.0) {
        status.state = stats.state.name().to_owned();
        status.in_flight = u64::from(stats.in_flight);
        status.retrying = u64::from(stats.retrying);
        status.ambiguous = u64::from(stats.ambiguous);
        status.requests = stats.counts.requests;
        status.resends = stats.counts.resends;
        if !info.buffered {
            status.outcomes = RESULTS
                .iter()
                .map(|r| (r.name().to_owned(), stats.counts.of(*r)))
                .collect();
            status.accepted = status.outcomes.values().sum();
        }
    }
    if info.buffered
        && let Some(stats) = host.buffer.stats(consign_buffer::LaneId(id.0))
    {
        status.pending = stats.pending;
        status.pending_bytes = stats.charged_bytes;
        status.quota_bytes = stats.quota_bytes;
        status.spill_bytes = stats.spill_bytes;
        status.accepted = stats.next_seq.saturating_sub(1);
        status.outcomes = stats
            .outcomes
            .iter()
            .map(|(code, count)| (result_name(*code), *count))
            .collect();
    }
    status
}

/// A lane that no send of this configuration has: its writes wait until a send has its name again.
fn orphan(stats: &consign_buffer::LaneStats) -> LaneStatus {
    LaneStatus {
        id: stats.id.clone(),
        buffered: true,
        state: states::LANE_ORPHANED.to_owned(),
        pending: stats.pending,
        pending_bytes: stats.charged_bytes,
        quota_bytes: stats.quota_bytes,
        spill_bytes: stats.spill_bytes,
        accepted: stats.next_seq.saturating_sub(1),
        outcomes: stats
            .outcomes
            .iter()
            .map(|(code, count)| (result_name(*code), *count))
            .collect(),
        ..LaneStatus::default()
    }
}

/// What a settlement's code is called.
#[must_use]
pub fn result_name(code: u8) -> String {
    match code {
        consign_buffer::LOST => states::LOST.to_owned(),
        consign_buffer::PURGED => SettleResult::Purged.name().to_owned(),
        _ => RESULTS
            .iter()
            .find(|result| result.code() == code)
            .map_or_else(|| format!("code_{code}"), |result| result.name().to_owned()),
    }
}

fn adapter(
    config: &consign_config::Adapter,
    plan: &AdapterPlan,
    state: &AdapterState,
    routes: Vec<RouteStatus>,
) -> AdapterStatus {
    let paused = *state.paused.borrow();
    let (word, why) = match (&*state.source.lock(), &*state.held.lock()) {
        (SourceState::Running, _) if paused => (
            states::SOURCE_PAUSED,
            Some("an operator paused it: consign resume".to_owned()),
        ),
        (SourceState::Running, Some(why)) => (states::SOURCE_HELD, Some(why.clone())),
        (failed @ SourceState::Failed(why), _) => (states::source(failed), Some(why.clone())),
        (other, _) => (states::source(other), None),
    };
    let ledger = &state.ledger;
    // Outcomes first: what ends while this is read is then still in process, never missing.
    let outcomes: BTreeMap<String, u64> = MessageOutcome::ALL
        .iter()
        .map(|outcome| (outcome.name().to_owned(), ledger.ended(*outcome)))
        .collect();
    let received = ledger.received();
    let ended: u64 = outcomes.values().sum();
    AdapterStatus {
        name: plan.name.clone(),
        source: config.source.operation.to_string(),
        state: word.to_owned(),
        why,
        received,
        in_process: received.saturating_sub(ended),
        outcomes,
        condition_errors: state
            .counters
            .condition_errors
            .load(std::sync::atomic::Ordering::Relaxed),
        dropped_writes: state
            .counters
            .dropped_writes
            .load(std::sync::atomic::Ordering::Relaxed),
        last_progress_unix_ms: ledger.last_progress_unix_ms(),
        routes,
    }
}

fn routes(
    host: &Host,
    plan: &Plan,
    config: &consign_config::Adapter,
    planned: &AdapterPlan,
    lanes: &BTreeMap<String, LaneId>,
    state: &AdapterState,
) -> Vec<RouteStatus> {
    let facts = promises::source_facts(&plan.config, config, &planned.source);
    let adapter = &planned.name;
    let acceptor = Arc::clone(&state.acceptor.borrow());
    config
        .routes
        .iter()
        .zip(&planned.routes)
        .zip(&acceptor.routes)
        .map(|((route, planned), target)| {
            let levels = planned.promise.sends.iter().map(|send| {
                let id = format!("{adapter}/{}/{}", route.name, send.send);
                let inspection = lanes.get(&id).and_then(|lane| host.plugs.inspection(*lane));
                promises::inspected(&facts, send, inspection.as_ref())
            });
            let promise = consign_promise::route(levels.collect());
            RouteStatus {
                name: planned.name.clone(),
                promise: promise.line(),
                sends: promise
                    .sends
                    .iter()
                    .filter_map(|send| serde_json::to_value(send).ok())
                    .collect(),
                lines: promise.sends.iter().flat_map(SendLevels::lines).collect(),
                counts: counts(&target.counts),
            }
        })
        .collect()
}

fn counts(counts: &RouteCounts) -> BTreeMap<String, u64> {
    [
        ("claimed", &counts.claimed),
        ("transform_failed", &counts.transform_failed),
        ("no_send", &counts.no_send),
        ("condition_errors", &counts.condition_errors),
    ]
    .into_iter()
    .map(|(name, count)| (name.to_owned(), count.load(Ordering::Relaxed)))
    .collect()
}

fn connections(host: &Host, snapshot: &Snapshot) -> Vec<ConnectionStatus> {
    let now = clock::monotonic_ms();
    host.plugs
        .connections()
        .into_iter()
        .filter_map(|(number, name, connector)| {
            let stats = snapshot.connections.get(&number)?;
            Some(ConnectionStatus {
                name,
                connector,
                gate: stats.gate.name().to_owned(),
                since_ms: now.saturating_sub(stats.since_ms),
                next_try_ms: stats.next_try_ms.map(|at| at.saturating_sub(now)),
                in_flight: u64::from(stats.in_flight),
                fenced: u64::from(stats.fenced),
                interruptions: stats.interruptions,
            })
        })
        .collect()
}

fn buffer(host: &Host) -> BufferStatus {
    let totals = host.buffer.totals();
    let health = host.buffer.health();
    let word = states::buffer(&health);
    let why = match health {
        Health::Full { why } | Health::Failed { why } => Some(why),
        Health::Running | Health::Closed => None,
    };
    BufferStatus {
        health: word.to_owned(),
        why,
        log_bytes: totals.log_bytes,
        log_used_bytes: totals.log_used_bytes,
        body_memory_bytes: totals.body_memory_bytes,
        groups: totals.groups,
        records: totals.records,
        written_bytes: totals.written_bytes,
        checkpoints: totals.checkpoints,
        checkpoint_failures: totals.checkpoint_failures,
    }
}

fn recovery(host: &Host) -> RecoveryStatus {
    let recovery = &host.recovery;
    RecoveryStatus {
        unclean_exit: recovery.unclean_exit,
        pending: recovery.lanes.iter().map(|lane| lane.pending).sum(),
        maybe_in_flight: if recovery.unclean_exit {
            crate::recovered::maybe_in_flight(&recovery.lanes)
        } else {
            0
        },
        replayed_records: recovery.replayed_records,
        lost_writes: recovery.lost.writes,
    }
}

/// Ready means progress: sources run, the buffer takes writes, and no lane stands still until a person acts.
fn readiness(host: &Host, adapters: &[AdapterStatus], lanes: &[LaneStatus]) -> Readiness {
    let mut reasons = Vec::new();
    match host.buffer.health() {
        Health::Running => {}
        Health::Full { why } => reasons.push(format!("the buffer's disk is full: {why}")),
        Health::Failed { why } => reasons.push(format!(
            "the buffer has failed: {why}; mend the disk and restart"
        )),
        Health::Closed => reasons.push("the host is stopping".to_owned()),
    }
    for adapter in adapters.iter().filter(|adapter| adapter.state != "running") {
        let why = adapter
            .why
            .as_ref()
            .map(|why| format!(": {why}"))
            .unwrap_or_default();
        reasons.push(format!(
            "the source of adapter {} is {}{why}",
            adapter.name, adapter.state
        ));
    }
    let stuck = [LaneState::HaltedOnOneWrite.name(), LaneState::Halted.name()];
    for lane in lanes
        .iter()
        .filter(|lane| stuck.contains(&lane.state.as_str()))
    {
        reasons.push(format!(
            "lane {} stands still ({}) with {} writes",
            lane.id, lane.state, lane.pending
        ));
    }
    for lane in lanes.iter().filter(|lane| {
        lane.buffered
            && lane.state != states::LANE_ORPHANED
            && lane.pending_bytes >= lane.quota_bytes
    }) {
        reasons.push(format!("lane {} is full: its source is held back", lane.id));
    }
    Readiness {
        ready: reasons.is_empty(),
        reasons,
    }
}
