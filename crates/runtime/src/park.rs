//! Parking: the failed write goes into Failed messages first, and only then out of its lane.

use crate::clock::wall_unix_ms_i64;
use crate::crashes::{CRASHES, Crashes};
use crate::engine::Body;
use crate::events::{Events, of_lane};
use crate::handlers::{Diversion, Report};
use crate::lanes::{LaneInfo, Lanes};
use bytes::Bytes;
use consign_buffer::{Acceptance, Buffer, NewWrite, Settlement};
use consign_delivery::{Detail, Failure, LaneId, ParkReason, SettleResult, WriteNote};
use consign_ledger::{
    Applied, Code, Dependent, Diagnosis, Event, Header, History, Ledger, NewFailed,
    ParkReason as LedgerReason,
};
use consign_pipeline::{Matched, Message, Rendered, StoredWrite, WriteKey};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait before a full ledger is tried again. The write keeps its place in the lane.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A write to park, and why.
pub struct ToPark {
    /// Its lane.
    pub lane: LaneId,
    /// Its number there.
    pub seq: u64,
    /// Its stored form.
    pub body: Option<Body>,
    /// Why it parks.
    pub reason: ParkReason,
    /// What happened.
    pub failure: Failure,
    /// Its history.
    pub note: WriteNote,
}

/// A write that leaves its lane for another one.
pub struct ToDivert {
    /// Its lane.
    pub lane: LaneId,
    /// Its number there.
    pub seq: u64,
    /// Its stored form.
    pub body: Body,
    /// What is committed instead.
    pub diversion: Diversion,
    /// What happened.
    pub failure: Failure,
}

/// A direct write that was not delivered.
pub struct ParkedWrite {
    /// Its volatile lane.
    pub lane: LaneId,
    /// Its stored form.
    pub body: Body,
    /// Why it parks.
    pub reason: ParkReason,
    /// What happened.
    pub failure: Failure,
    /// Park only what waits for it, each by itself: it went elsewhere.
    pub dependents_only: bool,
}

/// Why a lane that the configuration does not have cannot be written about.
const NO_NAME: &str = "the lane has no name";

/// A message that has no writes.
pub struct ParkedMessage<'a> {
    /// What its handler was told.
    pub report: Report,
    /// The message.
    pub message: &'a Message,
    /// What names it.
    pub key: WriteKey,
    /// In the handler's words.
    pub reason: String,
}

/// Parks writes.
pub struct Parker {
    ledger: Ledger,
    events: Events,
    lanes: Arc<Lanes>,
    crashes: Arc<Crashes>,
    host_version: &'static str,
    /// Failed messages whose lane does not know yet, durably, that they left it. None of them may be
    /// sent again: a crash would then find the write in its lane twice.
    settling: Arc<Mutex<HashSet<i64>>>,
}

impl Parker {
    /// Over the ledger.
    pub fn new(ledger: Ledger, events: Events, lanes: Arc<Lanes>, crashes: Arc<Crashes>) -> Self {
        Self {
            ledger,
            events,
            lanes,
            crashes,
            host_version: env!("CARGO_PKG_VERSION"),
            settling: Arc::default(),
        }
    }

    /// Those of these failed messages whose lane has not noted yet that they left. Blocks while a
    /// write is being parked.
    pub fn settling_among(&self, ids: &[i64]) -> Vec<i64> {
        let settling = self.settling.lock();
        ids.iter()
            .filter(|id| settling.contains(id))
            .copied()
            .collect()
    }

    /// Parks one write and settles it. A full ledger is waited for: the write stays where it is, and
    /// its lane with it, until there is room.
    pub async fn park(&self, buffer: &Buffer, what: ToPark) -> Result<(), String> {
        let ToPark {
            lane,
            seq,
            body,
            reason,
            mut failure,
            note,
        } = what;
        if reason == ParkReason::SuspectedCrash {
            failure.detail = self.why_suspected(lane);
        }
        let body = body.ok_or_else(|| format!("write {seq} to park is not in memory"))?;
        let mut record = self.record(lane, seq, &body, &reason, &failure, note)?;
        if body.has_dependents {
            // They leave the buffer with their parent, so they have to be in the ledger with it.
            let children = buffer.children(consign_buffer::LaneId(lane.0), seq);
            let children = children.await.map_err(|error| error.to_string())?;
            self.dependents(children, None, &mut record.dependents)?;
        }
        let event = self.parked(lane, seq, &reason, &failure)?;
        let id = self.keep_settling(record, event).await?;
        let settlement = Settlement {
            lane: consign_buffer::LaneId(lane.0),
            seq,
            result: SettleResult::Parked.code(),
            release_children: false,
        };
        buffer
            .settle(vec![settlement])
            .await
            .map_err(|error| error.to_string())?;
        self.settling.lock().remove(&id);
        Ok(())
    }

    /// Puts a record into the ledger, of a write that no lane has.
    async fn keep(&self, record: NewFailed, event: Event) -> Result<(), String> {
        let id = self.keep_settling(record, event).await?;
        self.settling.lock().remove(&id);
        Ok(())
    }

    /// Puts a record into the ledger, and its event with it. A full ledger is waited for. From before it
    /// can be seen it counts as settling, until its lane has noted durably that the write left.
    async fn keep_settling(&self, record: NewFailed, event: Event) -> Result<i64, String> {
        let event = self.events.redacted(event);
        let id = loop {
            let (ledger, record, event) = (self.ledger.clone(), record.clone(), event.clone());
            let settling = Arc::clone(&self.settling);
            let parked = tokio::task::spawn_blocking(move || {
                let mut settling = settling.lock();
                let id = ledger
                    .park_and_tell(&record, |id| with_id(&event, id))?
                    .id();
                settling.insert(id);
                Ok::<_, consign_ledger::Error>(id)
            })
            .await;
            match parked {
                Ok(Ok(id)) => break id,
                Ok(Err(error)) => {
                    let event = Event::new(Code::LedgerFull, wall_unix_ms_i64()).message(format!(
                        "a write cannot be parked and stays in its lane: {error}"
                    ));
                    self.events.open("ledger", event);
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                Err(_) => return Err("the host stops".to_owned()),
            }
        };
        self.events.close("ledger", Code::LedgerFull, None);
        Ok(id)
    }

    /// What says that a write is parked.
    fn parked(
        &self,
        lane: LaneId,
        seq: u64,
        reason: &ParkReason,
        failure: &Failure,
    ) -> Result<Event, String> {
        let info = self.lanes.get(lane).ok_or(NO_NAME)?;
        let code = match reason {
            ParkReason::MayHaveLanded => Code::MayHaveLanded,
            ParkReason::Refused => Code::Refused,
            ParkReason::SuspectedCrash => Code::SuspectedCrash,
            _ => Code::Parked,
        };
        let detail = &failure.detail;
        // What a handler gives as its reason is said with what it was asked about.
        let because = match reason {
            ParkReason::Handler(said) if !said.is_empty() => format!("handler: {said}"),
            other => other.name().to_owned(),
        };
        let mut event = of_lane(Event::new(code, wall_unix_ms_i64()), &info)
            .connection(info.connection.clone())
            .field("seq", seq)
            .field("reason", reason.name())
            .field("code", detail.code.clone())
            .message(format!(
                "{}: write {seq} is parked ({because}): {}",
                info.id, detail.message
            ));
        if code == Code::SuspectedCrash {
            event = event
                .field("crashes", CRASHES)
                .field("signal", self.crashes.signal())
                .field("plugin", plugin_of(&info.operation));
        }
        Ok(event)
    }

    /// What a person reads about a write that is suspected.
    fn why_suspected(&self, lane: LaneId) -> Detail {
        let operation = self
            .lanes
            .get(lane)
            .map_or_else(String::new, |info| info.operation.clone());
        let signal = self.crashes.signal();
        Detail::new(
            "suspected_crash",
            format!(
                "the plugin `{}` ({operation}) had it at each of the last {CRASHES} crashes of the host, the last by {signal} in thread {:?}. \
                 It is kept here and was not sent again: `consign failed show` has its body for the plugin's author; \
                 once the plugin withstands it, `consign failed send-again`",
                plugin_of(&operation),
                self.crashes.thread(),
            ),
        )
    }

    /// The send behind a lane.
    pub fn lane(&self, lane: LaneId) -> Option<Arc<LaneInfo>> {
        self.lanes.get(lane)
    }

    /// A text without the secrets a server may have echoed.
    pub fn redacted(&self, text: &str) -> String {
        self.events.redactor().text(text).into_owned()
    }

    /// Commits a diverted write and settles the one it was made of, in one record. What waits for that one is
    /// put into Failed messages first: whoever diverts a write decides nothing about them. A full target is
    /// waited for, and the lane waits with it.
    pub async fn divert(&self, buffer: &Buffer, what: ToDivert) -> Result<(), String> {
        let ToDivert {
            lane,
            seq,
            body,
            diversion,
            failure,
        } = what;
        if body.has_dependents {
            let children = buffer.children(consign_buffer::LaneId(lane.0), seq);
            for child in children.await.map_err(|error| error.to_string())? {
                let of = LaneId(child.lane.0);
                let waiting = Body {
                    key: child.key,
                    stored: child.body,
                    created_unix_ms: child.created_unix_ms,
                    order: child.order,
                    has_dependents: false,
                };
                let mut dependents = Vec::new();
                self.dependents(child.children, None, &mut dependents)?;
                self.park_waiting(of, &waiting, &failure, dependents)
                    .await?;
            }
        }
        loop {
            match buffer.reserve(&[diversion.wanted()]) {
                Ok(reservation) => {
                    let found_room = reservation.dropped().is_empty();
                    let acceptance = Acceptance {
                        scope: String::new(),
                        origin: None,
                        position: None,
                        writes: if found_room {
                            vec![diversion.write.clone()]
                        } else {
                            Vec::new()
                        },
                        settles: vec![Settlement {
                            lane: consign_buffer::LaneId(lane.0),
                            seq,
                            result: SettleResult::Diverted.code(),
                            release_children: false,
                        }],
                    };
                    let accepted = buffer.accept(reservation, acceptance).await;
                    let event = Event::new(Code::LaneHasRoom, wall_unix_ms_i64())
                        .field("lane", diversion.target.clone());
                    self.events
                        .close(&diversion.target, Code::LaneFull, Some(event));
                    return accepted.map(drop).map_err(|error| error.to_string());
                }
                Err(full) => {
                    let event = Event::new(Code::LaneFull, wall_unix_ms_i64()).message(format!(
                        "a write cannot be diverted to {} and stays in its lane: {full}",
                        diversion.target
                    ));
                    let event = event.field("lane", diversion.target.clone());
                    self.events.open(&diversion.target, event);
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// Parks a direct write with those that wait for it.
    pub async fn park_direct(
        &self,
        what: ParkedWrite,
        waiting: Vec<(LaneId, crate::work::Write)>,
    ) -> Result<(), String> {
        if what.dependents_only {
            for (lane, write) in waiting {
                let body = Body {
                    key: write.key,
                    stored: write.stored,
                    created_unix_ms: what.body.created_unix_ms,
                    order: write.order,
                    has_dependents: false,
                };
                self.park_waiting(lane, &body, &what.failure, Vec::new())
                    .await?;
            }
            return Ok(());
        }
        let note = WriteNote::default();
        let mut record =
            self.record(what.lane, 0, &what.body, &what.reason, &what.failure, note)?;
        for (lane, write) in waiting {
            record.dependents.push(Dependent {
                order: write.order,
                ..self.dependent(lane, write.key, &write.stored)?
            });
        }
        let event = self.parked(what.lane, 0, &what.reason, &what.failure)?;
        self.keep(record, event).await
    }

    /// Parks a write whose parent went elsewhere.
    async fn park_waiting(
        &self,
        lane: LaneId,
        body: &Body,
        failure: &Failure,
        dependents: Vec<Dependent>,
    ) -> Result<(), String> {
        let reason = ParkReason::Operator;
        let failure = Failure {
            class: "parent_diverted",
            detail: consign_delivery::Detail {
                code: "parent_diverted".to_owned(),
                message: format!("what it waits for was diverted: {}", failure.detail.message),
            },
            ..Failure::default()
        };
        let mut record = self.record(lane, 0, body, &reason, &failure, WriteNote::default())?;
        record.diagnosis.reason = LedgerReason::Parent;
        record.dependents = dependents;
        let event = self.parked(lane, 0, &reason, &failure)?;
        self.keep(record, event).await
    }

    /// Parks a message that has no writes: it can be routed again.
    pub async fn park_message(&self, what: ParkedMessage<'_>) -> Result<(), String> {
        let ParkedMessage {
            report,
            message,
            key,
            reason,
        } = what;
        let matched = Matched {
            route: 0,
            changed: false,
            message: message.clone(),
            sends: Vec::new(),
        };
        let rendered = Rendered {
            order: consign_pipeline::OrderKey::Strict,
            slots: Vec::new(),
            settings: bytes::Bytes::new(),
        };
        let info = LaneInfo {
            id: format!("{}/{}", report.adapter, report.route),
            adapter: report.adapter,
            route: report.route,
            send: String::new(),
            connection: String::new(),
            operation: String::new(),
            source: report.source,
            ..LaneInfo::default()
        };
        let body = Body {
            key: key.0,
            stored: StoredWrite::of(message, &matched, &rendered, false).encode(),
            created_unix_ms: u64::try_from(message.time_unix_ms).unwrap_or(0),
            order: 0,
            has_dependents: false,
        };
        let failure = Failure {
            class: "processor_failed",
            attempts: report.attempts,
            detail: consign_delivery::Detail {
                code: report.code,
                message: report.message,
            },
            ..Failure::default()
        };
        let parked = ParkReason::Handler(reason.clone());
        let mut record =
            self.record_of(&info, 0, &body, &parked, &failure, WriteNote::default())?;
        record.diagnosis.reason = LedgerReason::ProcessorFailed;
        record.history.attempts = report.attempts;
        let unix = |ms: i64| (ms > 0).then_some(ms);
        record.history.first_attempt_unix_ms = unix(report.first_attempt_unix_ms);
        record.history.last_attempt_unix_ms = unix(report.last_attempt_unix_ms);
        let event = of_lane(Event::new(Code::Parked, wall_unix_ms_i64()), &info)
            .field("message_id", message.id.to_string())
            .field("code", failure.detail.code.clone())
            .message(format!(
                "{}: message {} is parked ({reason}): {}",
                info.id, message.id, failure.detail.message
            ));
        self.keep(record, event).await
    }

    /// Dependents of a write, those of dependents among them, each after what it waits for.
    fn dependents(
        &self,
        children: Vec<NewWrite>,
        parent: Option<u32>,
        dependents: &mut Vec<Dependent>,
    ) -> Result<(), String> {
        for child in children {
            let place = u32::try_from(dependents.len()).ok();
            dependents.push(Dependent {
                order: child.order,
                parent,
                ..self.dependent(LaneId(child.lane.0), child.key, &child.body)?
            });
            self.dependents(child.children, place, dependents)?;
        }
        Ok(())
    }

    fn dependent(&self, lane: LaneId, key: [u8; 16], stored: &Bytes) -> Result<Dependent, String> {
        let info = self.lanes.get(lane);
        let write = StoredWrite::decode(stored.clone()).map_err(|error| error.to_string())?;
        Ok(Dependent {
            send: info.map_or_else(String::new, |info| info.send.clone()),
            write_key: key,
            envelope: stored.to_vec(),
            body: write.body.to_vec(),
            ..Dependent::default()
        })
    }

    fn record(
        &self,
        lane: LaneId,
        seq: u64,
        body: &Body,
        reason: &ParkReason,
        failure: &Failure,
        note: WriteNote,
    ) -> Result<NewFailed, String> {
        let info = self.lanes.get(lane).ok_or(NO_NAME)?;
        self.record_of(&info, seq, body, reason, failure, note)
    }

    fn record_of(
        &self,
        info: &LaneInfo,
        seq: u64,
        body: &Body,
        reason: &ParkReason,
        failure: &Failure,
        note: WriteNote,
    ) -> Result<NewFailed, String> {
        let stored = StoredWrite::decode(body.stored.clone()).map_err(|error| error.to_string())?;
        let unix = |ms: u64| (ms > 0).then(|| i64::try_from(ms).unwrap_or(i64::MAX));
        Ok(NewFailed {
            write_key: body.key,
            adapter: info.adapter.clone(),
            route: info.route.clone(),
            send: info.send.clone(),
            seq,
            order: body.order,
            connection: info.connection.clone(),
            operation: info.operation.clone(),
            source: info.source.clone(),
            message_id: Some(stored.message_id.to_string()),
            routing_key: stored.routing_key.as_ref().map(ToString::to_string),
            content_type: stored.content_type.as_ref().map(ToString::to_string),
            headers: stored
                .headers
                .iter()
                .map(|(name, value)| Header {
                    name: name.to_string(),
                    value: value.to_vec(),
                })
                .collect(),
            body: stored.body.to_vec(),
            envelope: body.stored.to_vec(),
            original: stored
                .original
                .as_ref()
                .map(|original| original.body.to_vec()),
            history: History {
                accepted_unix_ms: i64::try_from(body.created_unix_ms).unwrap_or(i64::MAX),
                first_attempt_unix_ms: unix(failure.first_attempt_unix_ms),
                last_attempt_unix_ms: unix(failure.last_attempt_unix_ms),
                attempts: note.attempts.max(failure.tries),
                host_version: self.host_version.to_owned(),
                ..History::default()
            },
            diagnosis: Diagnosis {
                reason: ledger_reason(reason),
                class: failure.class.to_owned(),
                code: failure.detail.code.clone(),
                provider: info.operation.clone(),
                message: self
                    .events
                    .redactor()
                    .text(&failure.detail.message)
                    .into_owned(),
                response: None,
                timed_out: failure.timed_out,
                applied: if failure.maybe_applied {
                    Applied::Maybe
                } else {
                    Applied::No
                },
            },
            replayable: true,
            parked_unix_ms: wall_unix_ms_i64(),
            ..NewFailed::default()
        })
    }
}

/// The event of a parked write, once the ledger has given the failed message its number.
fn with_id(event: &Event, id: i64) -> Event {
    let event = event.clone().field("failed_id", id);
    if event.code == Code::SuspectedCrash {
        return event.field("next", format!("consign failed show {id}"));
    }
    event
}

fn ledger_reason(reason: &ParkReason) -> LedgerReason {
    match reason {
        ParkReason::Refused => LedgerReason::Refused,
        ParkReason::AttemptsSpent | ParkReason::AgeSpent => LedgerReason::Exhausted,
        ParkReason::MayHaveLanded => LedgerReason::MayHaveLanded,
        ParkReason::WindowPassed => LedgerReason::WindowPassed,
        ParkReason::SuspectedCrash => LedgerReason::SuspectedCrash,
        ParkReason::Handler(_) | ParkReason::Operator => LedgerReason::Handler,
        ParkReason::HandlerFailed => LedgerReason::HandlerFailed,
    }
}
/// The plugin that carries out an operation: operations are named after it.
fn plugin_of(operation: &str) -> &str {
    operation
        .split_once('.')
        .map_or(operation, |(plugin, _)| plugin)
}
