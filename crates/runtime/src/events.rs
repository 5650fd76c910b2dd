//! From what happens in delivery and adapters to entries of the event log.

use crate::clock::wall_unix_ms_i64;
use crate::lanes::LaneInfo;
use consign_delivery::EventCode;
use consign_ledger::{Code, Event, EventSink, Redactor};
use consign_manifest::{Inspection, Verdict};
use parking_lot::RwLock;
use std::sync::Arc;

/// Writes events, without the secrets a server may have echoed; never blocks. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    sink: EventSink,
    redactor: Arc<RwLock<Arc<Redactor>>>,
}

impl Events {
    /// Over the ledger's sink.
    pub fn new(sink: EventSink, redactor: Arc<Redactor>) -> Self {
        let redactor = Arc::new(RwLock::new(redactor));
        Self { sink, redactor }
    }

    /// What takes secrets out of texts.
    pub fn redactor(&self) -> Arc<Redactor> {
        Arc::clone(&self.redactor.read())
    }

    /// A reload may have brought other secrets.
    pub fn redact_with(&self, redactor: Redactor) {
        *self.redactor.write() = Arc::new(redactor);
    }

    /// The same, to keep.
    pub fn shared_redactor(&self) -> Arc<Redactor> {
        Arc::clone(&self.redactor.read())
    }

    /// Writes one event.
    pub fn emit(&self, event: Event) {
        self.sink.emit(self.redacted(event));
    }

    /// An event without secrets, for whoever writes it together with what it tells of.
    pub fn redacted(&self, mut event: Event) -> Event {
        self.redactor().event(&mut event);
        event
    }

    /// The first of an episode is written, repeats are counted.
    pub fn open(&self, subject: &str, mut event: Event) -> bool {
        self.redactor().event(&mut event);
        self.sink.open(subject, event)
    }

    /// Ends an episode that `opened` began, if there is one.
    pub fn close(&self, subject: &str, opened: Code, closing: Option<Event>) -> bool {
        self.sink
            .close(subject, opened, closing, wall_unix_ms_i64())
    }

    /// The sink itself, for shutdown and figures.
    pub fn sink(&self) -> &EventSink {
        &self.sink
    }

    /// An event of the delivery machine.
    pub fn of_machine(
        &self,
        event: &consign_delivery::Event,
        lane: Option<&LaneInfo>,
        connection: Option<&str>,
    ) {
        // What the driver reports with more detail when it inspects.
        let Some(code) = code_of(event.code) else {
            return;
        };
        let mut entry = Event::new(code, wall_unix_ms_i64());
        if let Some(lane) = lane {
            entry = of_lane(entry, lane);
        }
        let connection = connection.or(lane.map(|lane| lane.connection.as_str()));
        if let Some(connection) = connection {
            entry = entry.connection(connection.to_owned());
        }
        if let Some(seq) = event.seq {
            entry = entry.field("seq", seq);
        }
        if !event.detail.code.is_empty() {
            entry = entry.field("code", event.detail.code.clone());
        }
        if !event.detail.message.is_empty() {
            let subject = match (connection, lane) {
                (_, Some(lane)) => lane.id.as_str(),
                (Some(connection), None) => connection,
                (None, None) => "delivery",
            };
            entry = entry.message(format!("{subject}: {}", event.detail.message));
        }
        self.emit(entry);
    }

    /// What an inspection found, when it differs from the one before.
    pub fn inspected(&self, lane: &LaneInfo, inspection: &Inspection) {
        let event = |code: Code, text: &str| {
            of_lane(Event::new(code, wall_unix_ms_i64()), lane)
                .connection(lane.connection.clone())
                .message(format!("{}: {text}", lane.id))
        };
        if inspection.verdict == Verdict::Contradicted {
            self.emit(event(Code::InspectionContradicted, &inspection.detail));
        }
        for warning in &inspection.warnings {
            self.emit(event(Code::InspectionWarning, warning));
        }
    }

    /// A destination kept what it had instead of an edited write.
    pub fn edit_not_applied(&self, lane: &LaneInfo, failed_id: i64, key: [u8; 16]) {
        let event = of_lane(Event::new(Code::EditNotApplied, wall_unix_ms_i64()), lane)
            .connection(lane.connection.clone())
            .field("failed_id", failed_id)
            .field("write_key", consign_pipeline::WriteKey(key).to_string())
            .message(format!(
                "{}: your edit of failed message {failed_id} was not applied: the destination has its first copy and recognised the key",
                lane.id
            ));
        self.emit(event);
    }

    /// Dependents of a write were dropped with it.
    pub fn dependents_dropped(&self, lane: &LaneInfo, seq: u64, result: &str) {
        let event = of_lane(Event::new(Code::DependentDropped, wall_unix_ms_i64()), lane)
            .field("seq", seq)
            .message(format!(
                "{}: what waits for write {seq} was dropped: the write ended as {result}",
                lane.id
            ));
        self.emit(event);
    }
}

/// Names a send in an event.
pub fn of_lane(event: Event, lane: &LaneInfo) -> Event {
    event
        .adapter(lane.adapter.clone())
        .route(lane.route.clone())
        .send(lane.send.clone())
}

fn code_of(code: EventCode) -> Option<Code> {
    Some(match code {
        EventCode::GateClosed => Code::GateClosed,
        EventCode::GateOpened => Code::GateOpened,
        EventCode::TargetClosed => Code::TargetClosed,
        EventCode::TargetOpened => Code::TargetOpened,
        EventCode::Denied => Code::Denied,
        EventCode::DeniedOver => Code::DeniedEnded,
        EventCode::Throttled => Code::Throttled,
        EventCode::HaltedOnOneWrite => Code::HaltedOnOneWrite,
        EventCode::HaltedOver => Code::HaltEnded,
        EventCode::AmbiguousHeld => Code::WriteHeld,
        EventCode::DirectHeld => Code::MessageHeld,
        EventCode::HandlerBlocked => Code::HandlerBlocked,
        EventCode::WindowPassed => Code::WindowPassed,
        EventCode::ConnectionFenced => Code::ConnectionFenced,
        EventCode::ConnectionHalted => Code::ConnectionHalted,
        EventCode::OddAnswer => Code::PluginMisbehaved,
        EventCode::LateAnswer => Code::LateAnswer,
        EventCode::Expired => Code::WriteExpired,
        EventCode::HeldKeysFull => Code::HeldKeysFull,
        EventCode::ClockWentBack => Code::ClockWentBack,
        EventCode::BatchSplit => Code::BatchSplit,
        EventCode::TargetLeft => Code::MayHaveLanded,
        EventCode::PromiseContradicted => return None,
    })
}
