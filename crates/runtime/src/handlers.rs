//! Error handlers: what they are asked, what their answer comes to, and where a diverted message goes.
//!
//! A handler decides once per failure and knows nothing but the failure, so a crash between its decision
//! and the record that carries it out only means that it is asked again.

use crate::clock;
use crate::events::{Events, of_lane};
use crate::functions::{CALL_TIMEOUT, Function, UsedBy, from_function, to_function};
use crate::lanes::LaneInfo;
use crate::plan::Plan;
use consign_buffer::{Buffer, Full, LaneId, NewWrite};
use consign_config::{Adapter, OnFailure, Route, Send as SendConfig};
use consign_ledger::{Code, Event};
use consign_loader::{FunctionMessage, shortened};
use consign_manifest::PluginKind;
use consign_pipeline::{Matched, Message, Program, StoredWrite, WriteKey, key};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a handler is told. The SDK's `FailureReport`, as JSON.
#[derive(Debug, Clone, Default, Serialize)]
#[allow(
    missing_docs,
    reason = "each field is described in the SDK, where authors read it"
)]
pub struct Report {
    pub write_key: String,
    pub adapter: String,
    pub route: String,
    pub send: String,
    pub connection: String,
    pub operation: String,
    pub source: String,
    pub message_id: String,
    pub class: String,
    pub code: String,
    pub message: String,
    pub may_have_landed: bool,
    pub timed_out: bool,
    pub attempts: u32,
    pub accepted_unix_ms: i64,
    pub first_attempt_unix_ms: i64,
    pub last_attempt_unix_ms: i64,
    pub promise: String,
    pub workload_class: String,
    pub offset_tracked: bool,
    pub buffered: bool,
    pub position: String,
    pub divert: Vec<String>,
    pub redacted: bool,
    pub host_version: &'static str,
}

/// What a handler answered, as JSON.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Retry { after: Duration },
    Block,
    Skip,
    Park { reason: String },
    Divert { target: String },
}

/// What is to be done.
#[derive(Debug, Clone)]
pub enum Decided {
    /// Try again, not before this many milliseconds from now.
    Retry(u64),
    /// Keep it and let it block what is behind it.
    Block,
    /// Give it up.
    Skip,
    /// Put it into Failed messages.
    Park(String),
    /// Commit this write instead.
    Divert(Diversion),
    /// The handler failed.
    Failed(String),
}

impl Decided {
    /// A diversion that the buffer could never take, whatever room there is, is a failure of the handler:
    /// waiting for room would hold the write for ever.
    pub fn checked(self, buffer: &Buffer) -> Self {
        let Self::Divert(diversion) = self else {
            return self;
        };
        match buffer.reserve(&[diversion.wanted()]) {
            Err(full @ Full::Never { .. }) => Self::Failed(format!(
                "it diverts to {}, and there {full}",
                diversion.target
            )),
            _ => Self::Divert(diversion),
        }
    }
}

/// A write in the lane that a handler named.
#[derive(Debug, Clone)]
pub struct Diversion {
    /// `adapter/route/send`.
    pub target: String,
    /// The write.
    pub write: NewWrite,
}

impl Diversion {
    /// The room it needs.
    pub fn wanted(&self) -> (LaneId, u64) {
        let bytes = u64::try_from(self.write.body.len()).unwrap_or(u64::MAX);
        (self.write.lane, bytes)
    }
}

/// A send that handlers may divert to.
#[derive(Debug, Clone)]
pub struct Target {
    /// `adapter/route/send`.
    pub id: String,
    /// Its lane.
    pub lane: LaneId,
    program: Arc<Program>,
    route: usize,
    send: usize,
    expires_after_ms: Option<u64>,
    keep_original: bool,
}

/// One handler where it is used.
#[derive(Clone)]
pub struct Handler {
    function: Arc<Function>,
    targets: Vec<Target>,
    events: Events,
    /// What is the same in each report.
    report: Report,
}

/// The handler of a route or an adapter, for messages that have no writes.
pub type RouteHandler = Handler;

/// The handlers of the sends, by lane; a reload replaces them all.
#[derive(Default)]
pub struct Handlers {
    lanes: RwLock<BTreeMap<u32, Arc<Handler>>>,
}

impl Handlers {
    /// Puts these in the place of all others.
    pub fn replace(&self, handlers: Vec<(consign_delivery::LaneId, Handler)>) {
        *self.lanes.write() = handlers
            .into_iter()
            .map(|(lane, handler)| (lane.0, Arc::new(handler)))
            .collect();
    }

    /// The handler of a send's writes.
    pub fn of_lane(&self, lane: consign_delivery::LaneId) -> Option<Arc<Handler>> {
        self.lanes.read().get(&lane.0).cloned()
    }
}

/// Makes the handlers once every lane has its number.
pub struct HandlerMaker<'a> {
    plan: &'a Plan,
    events: &'a Events,
    targets: BTreeMap<String, Target>,
    made: BTreeMap<String, Arc<Function>>,
}

impl<'a> HandlerMaker<'a> {
    /// Over the buffered lanes, by `adapter/route/send`.
    pub fn new(plan: &'a Plan, events: &'a Events, lanes: &BTreeMap<String, LaneId>) -> Self {
        let mut targets = BTreeMap::new();
        for (adapter, planned) in plan.config.adapters.iter().zip(&plan.adapters) {
            for (r, route) in adapter.routes.iter().enumerate() {
                for (s, send) in route.send.iter().enumerate() {
                    let id = format!("{}/{}/{}", adapter.name, route.name, send.id);
                    let Some(lane) = lanes.get(&id) else { continue };
                    let target = Target {
                        id: id.clone(),
                        lane: *lane,
                        program: Arc::clone(&planned.program),
                        route: r,
                        send: s,
                        expires_after_ms: send.expires_after.map(|after| after.as_ms()),
                        keep_original: route.keep_original,
                    };
                    targets.insert(id, target);
                }
            }
        }
        Self {
            plan,
            events,
            targets,
            made: BTreeMap::new(),
        }
    }

    /// The handler of a send: its own, its route's or its adapter's.
    pub fn send(
        &mut self,
        adapter: &Adapter,
        route: &Route,
        send: &SendConfig,
        info: &LaneInfo,
        promise: &str,
    ) -> Option<Handler> {
        let mut handler = self.nearest(adapter, route, Some(send))?;
        handler.report = Report {
            send: info.send.clone(),
            connection: info.connection.clone(),
            operation: info.operation.clone(),
            buffered: info.buffered,
            promise: promise.to_owned(),
            workload_class: send
                .class
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            ..handler.report
        };
        Some(handler)
    }

    /// The handler of a route's messages: its own or its adapter's.
    pub fn route(&mut self, adapter: &Adapter, route: &Route) -> Option<RouteHandler> {
        self.nearest(adapter, route, None)
    }

    fn nearest(
        &mut self,
        adapter: &Adapter,
        route: &Route,
        send: Option<&SendConfig>,
    ) -> Option<Handler> {
        let (place, on_failure) = [
            send.and_then(|send| {
                Some((
                    format!("{}/{}/{}", adapter.name, route.name, send.id),
                    send.on_failure.as_ref()?,
                ))
            }),
            route
                .on_failure
                .as_ref()
                .map(|one| (format!("{}/{}", adapter.name, route.name), one)),
            adapter
                .on_failure
                .as_ref()
                .map(|one| (adapter.name.to_string(), one)),
        ]
        .into_iter()
        .flatten()
        .next()?;
        let function = self.function(place, adapter, route, on_failure);
        let offset_tracked = self.plan.adapters.iter().any(|planned| {
            planned.name == adapter.name.as_str() && planned.source.delivery.is_offset_tracked()
        });
        let targets: Vec<Target> = on_failure
            .divert
            .iter()
            .filter_map(|name| self.targets.get(name.as_str()).cloned())
            .collect();
        let report = Report {
            adapter: adapter.name.to_string(),
            route: route.name.to_string(),
            source: adapter.source.operation.to_string(),
            offset_tracked,
            divert: targets.iter().map(|target| target.id.clone()).collect(),
            host_version: env!("CARGO_PKG_VERSION"),
            ..Report::default()
        };
        Some(Handler {
            function,
            targets,
            events: self.events.clone(),
            report,
        })
    }

    /// One opened function per place in the configuration, however many sends it serves.
    fn function(
        &mut self,
        place: String,
        adapter: &Adapter,
        route: &Route,
        on_failure: &OnFailure,
    ) -> Arc<Function> {
        let (plan, events) = (self.plan, self.events);
        let made = self.made.entry(place).or_insert_with(|| {
            Arc::new(Function::new(
                &plan.plugins,
                events,
                PluginKind::ErrorHandler,
                on_failure.handler.as_str(),
                on_failure.config.value.clone(),
                UsedBy {
                    adapter: adapter.name.as_str(),
                    route: route.name.as_str(),
                },
                CALL_TIMEOUT,
            ))
        });
        Arc::clone(made)
    }
}

impl Handler {
    /// Its name.
    pub fn name(&self) -> &str {
        self.function.name()
    }

    /// A report with what is always the same filled in.
    pub fn report(&self) -> Report {
        self.report.clone()
    }

    /// Asks it. What it may not do, or cannot be carried out, is a failure of the handler.
    pub async fn decide(&self, mut report: Report, message: &Message, key: WriteKey) -> Decided {
        let (seen, redacted) = self.redacted(message);
        report.redacted = redacted;
        // A report of texts and numbers always serializes.
        let json = serde_json::to_value(&report).unwrap_or_default();
        let (answer, changed) = match self.function.decide(&json, &seen).await {
            Ok(answer) => answer,
            Err(failure) => return Decided::Failed(failure.to_string()),
        };
        match serde_json::from_value(answer.clone()) {
            Ok(Answer::Retry { after }) => {
                Decided::Retry(u64::try_from(after.as_millis()).unwrap_or(u64::MAX))
            }
            Ok(Answer::Block) => Decided::Block,
            Ok(Answer::Skip) => Decided::Skip,
            Ok(Answer::Park { reason }) => Decided::Park(shortened(reason)),
            Ok(Answer::Divert { target }) => match self.divert(&target, message, changed, key) {
                Ok(diversion) => Decided::Divert(diversion),
                Err(why) => Decided::Failed(why),
            },
            Err(_) => Decided::Failed(format!(
                "it answered {}, which this host does not know",
                shortened(answer.to_string())
            )),
        }
    }

    /// What people may see of a message, and whether that is less than there is.
    fn redacted(&self, message: &Message) -> (FunctionMessage, bool) {
        let redactor = self.events.redactor();
        let mut seen = to_function(message);
        let (body, mut less) = redactor.body(&message.body, message.content_type.as_deref());
        if less {
            seen.body = body.into_owned();
        }
        let all = seen.headers.len();
        seen.headers
            .retain(|(name, _)| !redactor.header_is_secret(name));
        less |= seen.headers.len() < all;
        (seen, less)
    }

    fn divert(
        &self,
        target: &str,
        message: &Message,
        changed: Option<FunctionMessage>,
        key: WriteKey,
    ) -> Result<Diversion, String> {
        let Some(to) = self.targets.iter().find(|one| one.id == target) else {
            return Err(format!(
                "it diverts to {target}, which `divert:` does not list"
            ));
        };
        let new = match changed {
            Some(changed) => from_function(message, changed),
            None => message.clone(),
        };
        let rendered = to
            .program
            .render_send(to.route, to.send, &new)
            .map_err(|error| format!("it diverts to {target}, and there {}", error.message))?;
        let matched = Matched {
            route: to.route,
            changed: new != *message,
            message: new,
            sends: Vec::new(),
        };
        let order = rendered.order.stored_hash();
        let now = clock::wall_unix_ms();
        Ok(Diversion {
            target: target.to_owned(),
            write: NewWrite {
                lane: to.lane,
                key: key::diverted(key, target).0,
                order,
                body: StoredWrite::of(message, &matched, &rendered, to.keep_original).encode(),
                created_unix_ms: now,
                expires_unix_ms: to.expires_after_ms.map(|after| now.saturating_add(after)),
                children: Vec::new(),
            },
        })
    }
}

/// Says that a handler failed.
pub fn failed_event(info: Option<&LaneInfo>, handler: &str, why: &str) -> Event {
    let event = Event::new(Code::HandlerFailed, clock::wall_unix_ms_i64())
        .field("handler", handler)
        .message(format!("error handler {handler} failed: {why}"));
    match info {
        Some(info) => of_lane(event, info),
        None => event,
    }
}
