//! Parking: the failed write goes into Failed messages first, and only then out of its lane.

use crate::clock::wall_unix_ms_i64;
use crate::engine::Body;
use crate::events::{Events, of_lane};
use crate::lanes::Lanes;
use consign_buffer::{Buffer, NewWrite, Settlement};
use consign_delivery::{Failure, LaneId, ParkReason, SettleResult, WriteNote};
use consign_ledger::{
    Applied, Code, Dependent, Diagnosis, Event, Header, History, Ledger, NewFailed,
    ParkReason as LedgerReason, Parked,
};
use consign_pipeline::StoredWrite;
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

/// Parks writes.
pub struct Parker {
    ledger: Ledger,
    events: Events,
    lanes: Arc<Lanes>,
    host_version: &'static str,
}

impl Parker {
    /// Over the ledger.
    pub fn new(ledger: Ledger, events: Events, lanes: Arc<Lanes>) -> Self {
        Self {
            ledger,
            events,
            lanes,
            host_version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// Parks one write and settles it. A full ledger is waited for: the write stays where it is, and
    /// its lane with it, until there is room.
    pub async fn park(&self, buffer: &Buffer, what: ToPark) -> Result<(), String> {
        let ToPark {
            lane,
            seq,
            body,
            reason,
            failure,
            note,
        } = what;
        let body = body.ok_or_else(|| format!("write {seq} to park is not in memory"))?;
        let mut record = self.record(lane, seq, &body, &reason, &failure, note)?;
        if body.has_dependents {
            // They leave the buffer with their parent, so they have to be in the ledger with it.
            let children = buffer.children(consign_buffer::LaneId(lane.0), seq);
            let children = children.await.map_err(|error| error.to_string())?;
            record.dependents = self.dependents(children)?;
        }
        let id = loop {
            let (ledger, record) = (self.ledger.clone(), record.clone());
            let parked = tokio::task::spawn_blocking(move || ledger.park(&record)).await;
            match parked {
                Ok(Ok(Parked::New(id) | Parked::AlreadyThere(id) | Parked::Again(id))) => break id,
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
        if let Some(info) = self.lanes.get(lane) {
            let code = match reason {
                ParkReason::MayHaveLanded => Code::MayHaveLanded,
                ParkReason::Refused => Code::Refused,
                _ => Code::Parked,
            };
            let detail = &failure.detail;
            let event = of_lane(Event::new(code, wall_unix_ms_i64()), info)
                .connection(info.connection.clone())
                .field("failed_id", id)
                .field("seq", seq)
                .field("reason", reason.name())
                .field("code", detail.code.clone())
                .message(format!(
                    "{}: write {seq} is parked ({}): {}",
                    info.id,
                    reason.name(),
                    detail.message
                ));
            self.events.emit(event);
        }
        let settlement = Settlement {
            lane: consign_buffer::LaneId(lane.0),
            seq,
            result: SettleResult::Parked.code(),
            release_children: false,
        };
        buffer
            .settle(vec![settlement])
            .await
            .map_err(|error| error.to_string())
    }

    /// Dependents of a write, those of dependents among them.
    fn dependents(&self, children: Vec<NewWrite>) -> Result<Vec<Dependent>, String> {
        let mut dependents = Vec::new();
        for child in children {
            let stored =
                StoredWrite::decode(child.body.clone()).map_err(|error| error.to_string())?;
            let info = self.lanes.get(LaneId(child.lane.0));
            dependents.push(Dependent {
                send: info.map_or_else(String::new, |info| info.send.clone()),
                write_key: child.key,
                envelope: child.body.to_vec(),
                body: stored.body.to_vec(),
            });
            dependents.append(&mut self.dependents(child.children)?);
        }
        Ok(dependents)
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
        let info = self.lanes.get(lane).ok_or("the lane has no name")?;
        let stored = StoredWrite::decode(body.stored.clone()).map_err(|error| error.to_string())?;
        let unix = |ms: u64| (ms > 0).then(|| i64::try_from(ms).unwrap_or(i64::MAX));
        Ok(NewFailed {
            write_key: body.key,
            adapter: info.adapter.clone(),
            route: info.route.clone(),
            send: info.send.clone(),
            seq,
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
