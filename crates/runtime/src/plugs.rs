//! The sink side of connections: opened, probed, inspected and rebuilt as the delivery machine asks.
//!
//! An instance lives from a successful open until it is fenced; what it still says afterwards is
//! counted by the loader and ignored. A sink that cannot be opened fails its own target, not the
//! connection.

use crate::clock::wall_unix_ms_i64;
use crate::drill::{self, Drills};
use crate::engine::{Body, FIRST_DIRECT_LANE};
use crate::events::{Events, of_lane};
use crate::lanes::Lanes;
use crate::templates::Templates;
use consign_delivery::{
    Advice, Applied, ConnectionId, Detail, Input, LaneId, Outcome, ProbeFailure, RequestId, Scope,
    Send as SendBatch, SettleResult, Verdict as MachineVerdict,
};
use consign_ledger::{Code, Event};
use consign_loader::{
    Answer, AnswerEnd, BatchBuilder, Connection, Failure, FailureKind, Names, OpenConnection,
    Plugins, SinkHandle, WriteBatch, WriteParts, crash,
};
use consign_manifest::{Inspection, Verdict, Window};
use consign_pipeline::StoredWrite;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// How long opening a connection or a sink may take. Longer than any sane connect timeout of a
/// connector, so that the connector's own, better worded error comes first.
const OPEN_DEADLINE: Duration = Duration::from_secs(60);
/// How long an inspection may take before the destination counts as not inspected.
const INSPECT_DEADLINE: Duration = Duration::from_secs(30);
/// How long closing an instance may take before it is left to its fence.
const CLOSE_DEADLINE: Duration = Duration::from_secs(10);

/// One connection as configured.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionSpec {
    /// Its name.
    pub name: String,
    /// Its connector.
    pub connector: String,
    /// Its settings, secrets filled in.
    pub config: Value,
    /// How long a probe may take.
    pub probe_timeout: Duration,
    /// What the plugin is told.
    pub names: Names,
}

/// One sink as configured.
#[derive(Debug, Clone, PartialEq)]
pub struct SinkSpec {
    /// Its connection.
    pub connection: ConnectionId,
    /// The operation.
    pub operation: String,
    /// Its settings, templates replaced by slots.
    pub config: Value,
    /// What the plugin is told.
    pub names: Names,
}

struct Link {
    spec: ConnectionSpec,
    open: Mutex<Option<Open>>,
    // One opening at a time; held across awaits, unlike the state above.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Open {
    connection: Connection,
    sinks: BTreeMap<u32, SinkHandle>,
}

/// The sink side of all connections.
pub struct Plugs {
    plugins: RwLock<Plugins>,
    // Numbers are never given twice: a connection whose settings change is another one.
    links: RwLock<BTreeMap<u32, Arc<Link>>>,
    sinks: RwLock<BTreeMap<u32, SinkSpec>>,
    lanes: Arc<Lanes>,
    events: Events,
    inspections: Mutex<BTreeMap<u32, Inspection>>,
    /// Connections that are treated as if their destination were away.
    pub drills: Drills,
}

/// A request under way.
pub struct Submission {
    /// Stops it.
    pub canceller: Canceller,
    /// Ends with its answer.
    pub answer: Pin<Box<dyn Future<Output = Answered> + Send>>,
}

/// Stops a request; the request still ends with an answer.
#[derive(Clone)]
pub struct Canceller(Option<consign_loader::Canceller>);

impl Canceller {
    /// Asks the plugin to stop it.
    pub fn cancel(&self) {
        if let Some(canceller) = &self.0 {
            canceller.cancel();
        }
    }
}

/// How a request ended.
pub enum Answered {
    /// One outcome per write.
    Outcomes(Vec<Outcome>),
    /// A cancel was acknowledged: nothing of it runs any more.
    Cancelled,
}

impl Answered {
    /// What the machine is told.
    #[must_use]
    pub fn into_input(self, request: RequestId) -> Input {
        match self {
            Self::Outcomes(outcomes) => Input::Answered { request, outcomes },
            Self::Cancelled => Input::CancelAcknowledged {
                request,
                applied: Applied::MAYBE,
            },
        }
    }
}

impl Plugs {
    /// Over the lane directory; connections and sinks are put in as the configuration has them.
    pub fn new(plugins: Plugins, lanes: Arc<Lanes>, events: Events) -> Self {
        Self {
            plugins: RwLock::new(plugins),
            links: RwLock::default(),
            sinks: RwLock::default(),
            lanes,
            events,
            inspections: Mutex::default(),
            drills: Drills::default(),
        }
    }

    /// New instances come from these plugins.
    pub fn use_plugins(&self, plugins: Plugins) {
        *self.plugins.write() = plugins;
    }

    /// A connection; ignored where the number is taken.
    pub fn put_connection(&self, id: ConnectionId, spec: ConnectionSpec) {
        let link = || {
            Arc::new(Link {
                spec,
                open: Mutex::new(None),
                opening: tokio::sync::Mutex::new(()),
            })
        };
        self.links.write().entry(id.0).or_insert_with(link);
    }

    /// A connection that no lane uses any more: its instance is closed.
    pub async fn remove_connection(&self, id: ConnectionId) {
        let link = self.links.write().remove(&id.0);
        if let Some(link) = link {
            close_link(&link).await;
        }
    }

    /// What a lane writes with; nothing of it is on its way.
    pub fn put_sink(&self, lane: LaneId, spec: SinkSpec) {
        self.remove_sink(lane);
        self.sinks.write().insert(lane.0, spec);
    }

    /// A lane that is gone, or gets another sink.
    pub fn remove_sink(&self, lane: LaneId) {
        let Some(old) = self.sinks.write().remove(&lane.0) else {
            return;
        };
        self.inspections.lock().remove(&lane.0);
        let handle = self
            .link(old.connection)
            .and_then(|link| link.open.lock().as_mut()?.sinks.remove(&lane.0));
        if let Some(handle) = handle {
            tokio::spawn(async move { drop(handle.close(CLOSE_DEADLINE).await) });
        }
    }

    /// Connections by number, as they are configured.
    pub fn connections(&self) -> Vec<(u32, String, String)> {
        let links = self.links.read();
        links
            .iter()
            .map(|(id, link)| (*id, link.spec.name.clone(), link.spec.connector.clone()))
            .collect()
    }

    /// The lane directory.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// The name of a connection.
    pub fn connection_name(&self, id: ConnectionId) -> Option<String> {
        Some(self.link(id)?.spec.name.clone())
    }

    /// What the last inspection of a lane's destination found.
    pub fn inspection(&self, lane: LaneId) -> Option<Inspection> {
        self.inspections.lock().get(&lane.0).cloned()
    }

    fn link(&self, id: ConnectionId) -> Option<Arc<Link>> {
        self.links.read().get(&id.0).cloned()
    }

    /// Connects where there is no live instance, then makes a cheap round trip.
    pub async fn probe(&self, id: ConnectionId) -> Result<(), ProbeFailure> {
        let Some(link) = self.link(id) else {
            return Err(probe_failure(&fault(
                "no_connection",
                "there is no such connection",
            )));
        };
        if self.drills.keeps_away(id) {
            return Err(probe_failure(&fault("drill", drill::WHY)));
        }
        let open = self
            .open(id, &link)
            .await
            .map_err(|failure| probe_failure(&failure))?;
        match open.connection.probe(link.spec.probe_timeout).await {
            Ok(()) => Ok(()),
            Err(failure) => {
                if failure.hung || failure.panicked {
                    self.drop_instance(&link, failure.panicked, &failure.message);
                }
                Err(probe_failure(&failure))
            }
        }
    }

    async fn open(&self, id: ConnectionId, link: &Link) -> Result<Open, Failure> {
        let opening = link.opening.lock().await;
        let present = link.open.lock().clone();
        if let Some(open) = present {
            return Ok(open);
        }
        let request = OpenConnection {
            connector: link.spec.connector.clone(),
            config: link.spec.config.clone(),
            names: link.spec.names.clone(),
        };
        let plugins = self.plugins.read().clone();
        let connection = plugins.open_connection(request, OPEN_DEADLINE).await?;
        let mut sinks = BTreeMap::new();
        let wanted: Vec<(u32, SinkSpec)> = self
            .sinks
            .read()
            .iter()
            .filter(|(_, spec)| spec.connection == id)
            .map(|(lane, spec)| (*lane, spec.clone()))
            .collect();
        for (lane, spec) in wanted {
            match open_sink(&connection, &spec).await {
                Ok(handle) => drop(sinks.insert(lane, handle)),
                // The lane's first request tries again and fails its target with this reason.
                Err(failure) => tracing::warn!(
                    connection = link.spec.name,
                    operation = spec.operation,
                    code = failure.code,
                    "the sink did not open: {}",
                    failure.message
                ),
            }
        }
        let open = Open { connection, sinks };
        *link.open.lock() = Some(open.clone());
        drop(opening);
        Ok(open)
    }

    /// Fences the instance; the next probe opens a new one.
    pub async fn rebuild(&self, id: ConnectionId) {
        let Some(link) = self.link(id) else { return };
        let Some(open) = link.open.lock().take() else {
            return;
        };
        open.connection.fence();
        if let Err(failure) = open.connection.close(CLOSE_DEADLINE).await {
            tracing::debug!(
                connection = link.spec.name,
                "the fenced instance did not close: {}",
                failure.message
            );
        }
    }

    fn drop_instance(&self, link: &Link, panicked: bool, why: &str) {
        let taken = link.open.lock().take();
        if let Some(open) = taken {
            open.connection.fence();
            if panicked {
                let event = Event::new(Code::PluginPanicked, crate::clock::wall_unix_ms_i64())
                    .connection(link.spec.name.clone())
                    .message(format!(
                        "plugin of connection {} panicked: {why}",
                        link.spec.name
                    ));
                self.events.emit(event);
            }
        }
    }

    /// Inspects a lane's destination and remembers what was found.
    pub async fn inspect(&self, lane: LaneId) -> (MachineVerdict, Option<u64>) {
        let found = match self.sink(lane).await {
            Ok((handle, _)) => handle.inspect(INSPECT_DEADLINE).await,
            Err(failure) => Err(failure),
        };
        let inspection = found.unwrap_or_else(|failure| Inspection::not_inspected(failure.message));
        let verdict = match inspection.verdict {
            Verdict::Verified => MachineVerdict::Verified,
            Verdict::Contradicted => MachineVerdict::Contradicted,
            Verdict::NotInspected => MachineVerdict::NotInspected,
        };
        let window_ms = match inspection.window {
            Some(Window::DurationMs(ms)) => Some(ms),
            _ => None,
        };
        let before = self.inspections.lock().insert(lane.0, inspection.clone());
        if before.as_ref() != Some(&inspection)
            && let Some(info) = self.lanes.get(lane)
        {
            self.events.inspected(&info, &inspection);
        }
        (verdict, window_ms)
    }

    async fn sink(&self, lane: LaneId) -> Result<(SinkHandle, Connection), Failure> {
        let Some(spec) = self.sinks.read().get(&lane.0).cloned() else {
            return Err(fault("no_sink", "the lane has no sink"));
        };
        let Some(link) = self.link(spec.connection) else {
            return Err(fault("no_connection", "the lane has no connection"));
        };
        let open = self.open(spec.connection, &link).await?;
        if let Some(handle) = open.sinks.get(&lane.0) {
            return Ok((handle.clone(), open.connection));
        }
        let handle = open_sink(&open.connection, &spec).await?;
        if let Some(open) = link.open.lock().as_mut() {
            open.sinks.insert(lane.0, handle.clone());
        }
        Ok((handle, open.connection))
    }

    fn present(&self, lane: LaneId) -> Option<SinkHandle> {
        let connection = self.sinks.read().get(&lane.0)?.connection;
        let link = self.link(connection)?;
        link.open.lock().as_ref()?.sinks.get(&lane.0).cloned()
    }

    /// Sends one batch. Never blocks.
    pub fn submit(
        self: &std::sync::Arc<Self>,
        send: &SendBatch,
        writes: &[(Body, bool)],
    ) -> Submission {
        let count = writes.len();
        let deadline = Duration::from_millis(
            send.deadline_ms
                .saturating_sub(crate::clock::monotonic_ms()),
        );
        let lane = send.lane;
        let connection = self.connection_of(lane);
        if connection.is_some_and(|connection| self.drills.keeps_away(connection)) {
            let away = Outcome::down(Detail::new("drill", drill::WHY));
            return answered(vec![away; count]);
        }
        let templates = self.lanes.get(lane).map(|info| info.templates.clone());
        let batch = match batch_of(writes, &templates.unwrap_or_default()) {
            Ok(batch) => batch,
            Err((at, detail)) => return answered(refused_at(at, detail, count)),
        };
        let plugs = std::sync::Arc::clone(self);
        // For the note that is left if the plugin ends the process. A direct send has another number
        // in each run: it could be compared with nothing.
        let listed: Vec<u64> = if lane.0 < FIRST_DIRECT_LANE {
            send.items.iter().map(|item| item.seq).collect()
        } else {
            Vec::new()
        };
        if let Some(handle) = self.present(lane) {
            let hands = crash::in_hands(lane.0, listed);
            let pending = handle.submit(batch, deadline);
            let canceller = Canceller(Some(pending.canceller()));
            let answer = async move {
                let answer = pending.await;
                drop(hands);
                plugs.answer(lane, answer)
            };
            return Submission {
                canceller,
                answer: Box::pin(answer),
            };
        }
        let answer = async move {
            match plugs.sink(lane).await {
                Ok((handle, _)) => {
                    let hands = crash::in_hands(lane.0, listed);
                    let answer = handle.submit(batch, deadline).await;
                    drop(hands);
                    plugs.answer(lane, answer)
                }
                Err(failure) => Answered::Outcomes(vec![not_open(&failure); count]),
            }
        };
        Submission {
            canceller: Canceller(None),
            answer: Box::pin(answer),
        }
    }

    fn answer(&self, lane: LaneId, answer: Answer) -> Answered {
        match answer.end {
            AnswerEnd::Aborted => return Answered::Cancelled,
            AnswerEnd::Panicked => {
                let connection = self.sinks.read().get(&lane.0).map(|spec| spec.connection);
                if let Some(link) = connection.and_then(|id| self.link(id)) {
                    let why = answer
                        .outcomes
                        .first()
                        .map_or("", |outcome| outcome.message.as_str());
                    self.drop_instance(&link, true, why);
                }
            }
            _ => {}
        }
        let connection = self.connection_of(lane);
        if connection.is_some_and(|connection| self.drills.swallows(connection)) {
            let lost = Outcome::unknown(Detail::new("drill", "a drill swallowed the reply"));
            return Answered::Outcomes(vec![lost; answer.outcomes.len()]);
        }
        Answered::Outcomes(answer.outcomes.into_iter().map(outcome_of).collect())
    }

    /// The connection a lane sends over.
    fn connection_of(&self, lane: LaneId) -> Option<ConnectionId> {
        self.sinks.read().get(&lane.0).map(|spec| spec.connection)
    }

    /// Writes an event of the machine into the event log.
    pub fn event(&self, event: consign_delivery::Event) {
        let lane = event.lane.and_then(|lane| self.lanes.get(lane));
        let connection = event.connection.and_then(|id| self.connection_name(id));
        self.events
            .of_machine(&event, lane.as_deref(), connection.as_deref());
    }

    /// A write was recognised as a repeat: where a person had edited it, that edit has not landed.
    pub fn repeat_of_an_edit(&self, lane: LaneId, body: &Body) {
        let Ok(stored) = StoredWrite::decode(body.stored.clone()) else {
            return;
        };
        let edited = stored
            .attributes
            .iter()
            .find(|(id, _)| *id == crate::operator::EDITED)
            .and_then(|(_, bytes)| Some(i64::from_le_bytes(bytes.as_ref().try_into().ok()?)));
        if let Some(failed_id) = edited
            && let Some(info) = self.lanes.get(lane)
        {
            self.events.edit_not_applied(&info, failed_id, body.key);
        }
    }

    /// Dependents of a settled write were dropped with it.
    pub fn dependents_dropped(&self, lane: LaneId, seq: u64, result: SettleResult) {
        if let Some(info) = self.lanes.get(lane) {
            self.events.dependents_dropped(&info, seq, result.name());
        }
    }

    /// An error handler ended a write.
    pub fn handled(&self, lane: LaneId, seq: u64, code: Code, what: &str) {
        if let Some(info) = self.lanes.get(lane) {
            let event = of_lane(Event::new(code, wall_unix_ms_i64()), &info)
                .field("seq", seq)
                .message(format!("{}: {what} write {seq}", info.id));
            self.events.emit(event);
        }
    }

    /// Closes every instance.
    pub async fn close(&self) {
        let links: Vec<Arc<Link>> = self.links.read().values().cloned().collect();
        for link in links {
            close_link(&link).await;
        }
    }
}

async fn close_link(link: &Link) {
    let taken = link.open.lock().take();
    let Some(open) = taken else { return };
    for sink in open.sinks.values() {
        drop(sink.close(CLOSE_DEADLINE).await);
    }
    if let Err(failure) = open.connection.close(CLOSE_DEADLINE).await {
        tracing::warn!(
            connection = link.spec.name,
            "did not close: {}",
            failure.message
        );
        open.connection.fence();
    }
}

async fn open_sink(connection: &Connection, spec: &SinkSpec) -> Result<SinkHandle, Failure> {
    connection
        .open_sink(
            &spec.operation,
            spec.config.clone(),
            spec.names.clone(),
            OPEN_DEADLINE,
        )
        .await
}

fn fault(code: &str, message: &str) -> Failure {
    Failure {
        kind: FailureKind::Other,
        code: code.to_owned(),
        message: message.to_owned(),
        hung: false,
        panicked: false,
    }
}

fn probe_failure(failure: &Failure) -> ProbeFailure {
    ProbeFailure {
        denied: failure.kind == FailureKind::Denied,
        detail: Detail::new(failure.code.clone(), failure.message.clone()),
    }
}

/// Nothing left the host: down where the connection is, a halt of the target where a person must act.
fn not_open(failure: &Failure) -> Outcome {
    let detail = Detail::new(failure.code.clone(), failure.message.clone());
    match failure.kind {
        FailureKind::Down => Outcome::down(detail),
        FailureKind::Denied | FailureKind::Config => Outcome::denied(detail),
        _ => Outcome {
            applied: Applied::NO,
            ..Outcome::target_failed(detail)
        },
    }
}

/// Nothing was sent: one write is refused, and what was with it goes again.
fn refused_at(at: Option<usize>, detail: Detail, count: usize) -> Vec<Outcome> {
    let outcome = |place| match at {
        Some(at) if at != place => Outcome::retry(Detail::new(
            "not_sent",
            "another write of the batch could not be laid out",
        )),
        _ => Outcome::refused(detail.clone()),
    };
    (0..count).map(outcome).collect()
}

fn answered(outcomes: Vec<Outcome>) -> Submission {
    Submission {
        canceller: Canceller(None),
        answer: Box::pin(async move { Answered::Outcomes(outcomes) }),
    }
}

fn outcome_of(outcome: consign_loader::Outcome) -> Outcome {
    let detail = (!outcome.code.is_empty() || !outcome.message.is_empty())
        .then(|| Box::new(Detail::new(outcome.code, outcome.message)));
    Outcome {
        applied: Applied(outcome.applied.code()),
        scope: Scope(outcome.scope.code()),
        advice: Advice(outcome.advice.code()),
        repeat: outcome.repeat,
        after_ms: outcome.after_ms,
        detail,
    }
}

/// Lays the stored writes out for the boundary: one arena, one table.
/// The place of a write that cannot be laid out comes with the reason; without one it is all of them.
fn batch_of(
    writes: &[(Body, bool)],
    templates: &Templates,
) -> Result<WriteBatch, (Option<usize>, Detail)> {
    let bytes = writes.iter().map(|(body, _)| body.stored.len()).sum();
    let mut batch = BatchBuilder::with_capacity(writes.len(), bytes);
    for (at, (body, may_be_repeat)) in writes.iter().enumerate() {
        let mut stored = StoredWrite::decode(body.stored.clone()).map_err(|error| {
            let why = format!("the stored write cannot be read: {error}");
            (Some(at), Detail::new("stored_write", why))
        })?;
        templates.fit(&mut stored).map_err(|why| {
            let why =
                format!("the send has a template that this write was accepted without: {why}");
            (Some(at), Detail::new("template_missing", why))
        })?;
        let parts = WriteParts {
            key: body.key,
            time_unix_ms: stored.time_unix_ms,
            may_be_repeat: *may_be_repeat,
            body: &stored.body,
            content_type: stored.content_type.as_deref(),
            routing_key: stored.routing_key.as_deref(),
            traceparent: None,
        };
        let headers = stored
            .headers
            .iter()
            .map(|(name, value)| (name.as_ref(), value.as_ref()));
        let slots = (0_u32..).zip(stored.slots.iter().map(AsRef::as_ref));
        batch.push(&parts, headers, slots).map_err(|_| {
            let why = "the batch is larger than 4 GiB; lower batch.max_bytes";
            (None, Detail::new("batch_too_large", why))
        })?;
    }
    Ok(batch.finish())
}
