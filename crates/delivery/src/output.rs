//! What the machine asks of the driver.

use crate::event::Event;
use crate::ids::{ConnectionId, LaneId, RequestId, Ticket};
use crate::note::WriteNote;
use crate::outcome::Detail;

/// One output of [`crate::Delivery::outputs`]; carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Read pending writes after `after_seq`; answered by [`crate::Input::Fetched`]. One at a time
    /// per lane.
    Fetch {
        /// Which lane.
        lane: LaneId,
        /// Exclusive.
        after_seq: u64,
        /// At most so many.
        max_writes: u32,
        /// At most so many bytes of bodies, but at least one write.
        max_bytes: u64,
    },
    /// Make the send frontier durable, then [`crate::Input::Durable`]. Nothing past the durable
    /// frontier is sent.
    Frontier {
        /// Which lane.
        lane: LaneId,
        /// Writes up to this number may be sent once it is durable.
        seq: u64,
        /// Wall time to store with it.
        wall_unix_ms: u64,
        /// Comes back.
        ticket: Ticket,
    },
    /// Make these notes durable, all of them, then [`crate::Input::Durable`]. Their writes are not
    /// sent before.
    Note {
        /// Which lane.
        lane: LaneId,
        /// Write numbers and what to note.
        notes: Vec<(u64, WriteNote)>,
        /// Comes back.
        ticket: Ticket,
    },
    /// Send one batch; answered by [`crate::Input::Answered`] or, after a cancel,
    /// [`crate::Input::CancelAcknowledged`].
    Send(Send),
    /// Stop this request. It still ends in one of the two answers.
    Cancel {
        /// Which.
        request: RequestId,
    },
    /// Make a cheap round trip, connecting first where there is no live instance; answered by
    /// [`crate::Input::Probed`].
    Probe {
        /// Which connection.
        connection: ConnectionId,
        /// Monotonic time after which its answer no longer counts.
        deadline_ms: u64,
    },
    /// Fence the connection's instance and build a new one; answered by [`crate::Input::Rebuilt`].
    Rebuild {
        /// Which connection.
        connection: ConnectionId,
    },
    /// Inspect the destination of this lane; answered by [`crate::Input::Inspected`].
    Inspect {
        /// Which lane.
        lane: LaneId,
    },
    /// Settle these writes in the lane. Once durable: [`crate::Input::Durable`]; their slots are
    /// held until then.
    Settle {
        /// Which lane.
        lane: LaneId,
        /// The writes.
        writes: Vec<Settled>,
        /// Flush at once; otherwise within 10 ms.
        urgent: bool,
        /// Comes back.
        ticket: Ticket,
    },
    /// Ask the send's, route's or adapter's error handler; answered by [`crate::Input::Decided`].
    AskHandler {
        /// Which lane.
        lane: LaneId,
        /// Which write.
        seq: u64,
        /// What happened.
        failure: Failure,
    },
    /// Put the write and its dependents into Failed messages, then settle it as parked, then
    /// [`crate::Input::Durable`].
    Park {
        /// Which lane.
        lane: LaneId,
        /// Which write.
        seq: u64,
        /// Why.
        reason: ParkReason,
        /// What happened.
        failure: Failure,
        /// Its history.
        note: WriteNote,
        /// Comes back.
        ticket: Ticket,
    },
    /// Hand the write to another target and settle it as diverted, in one record, then
    /// [`crate::Input::Durable`].
    Divert {
        /// Which lane.
        lane: LaneId,
        /// Which write.
        seq: u64,
        /// The target the handler named.
        target: String,
        /// What happened.
        failure: Failure,
        /// Comes back.
        ticket: Ticket,
    },
    /// The answer of a direct send.
    DirectAnswer {
        /// Which lane.
        lane: LaneId,
        /// Which write.
        seq: u64,
        /// The answer.
        result: DirectResult,
    },
    /// For the event log.
    Event(Event),
    /// A removed lane has nothing left in flight.
    LaneRemoved {
        /// Which.
        lane: LaneId,
    },
    /// The drain is over.
    Drained {
        /// Requests that never ended: their writes are maybe. 0 is a clean end.
        unfinished: u32,
    },
}

/// One batch to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Send {
    /// Names it.
    pub request: RequestId,
    /// The lane.
    pub lane: LaneId,
    /// The lane's connection.
    pub connection: ConnectionId,
    /// The writes, in order.
    pub items: Vec<SendItem>,
    /// Number of the sealed batch; 0 if batches are not sealed.
    pub sealed: u64,
    /// Monotonic time of its deadline. The machine cancels by itself; the plugin is told.
    pub deadline_ms: u64,
}

/// One write of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendItem {
    /// Its number.
    pub seq: u64,
    /// An earlier attempt may have landed.
    pub may_be_repeat: bool,
}

/// One settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Which write.
    pub seq: u64,
    /// What became of it.
    pub result: SettleResult,
    /// What becomes of writes that wait for it (`after:`), in the same record.
    pub dependents: Dependents,
}

/// What became of a write. [`SettleResult::code`] is the durable number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettleResult {
    /// The destination acknowledged it.
    Delivered,
    /// The destination recognised its key.
    DeliveredAsRepeat,
    /// The network took it; nothing confirms.
    SentUnconfirmed,
    /// In Failed messages.
    Parked,
    /// Given up by a person or handler.
    Skipped,
    /// Handed to another target.
    Diverted,
    /// Removed by a person.
    Purged,
    /// Past its `expires_after`.
    Expired,
    /// A person says that it landed.
    ConfirmedByOperator,
}

impl SettleResult {
    /// Stable number.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Delivered => 1,
            Self::DeliveredAsRepeat => 2,
            Self::SentUnconfirmed => 3,
            Self::Parked => 4,
            Self::Skipped => 5,
            Self::Diverted => 6,
            Self::Purged => 7,
            Self::Expired => 8,
            // 9 is `dropped_dependent`, which the driver settles by itself.
            Self::ConfirmedByOperator => 10,
        }
    }

    /// The name in ledgers and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::DeliveredAsRepeat => "delivered_as_repeat",
            Self::SentUnconfirmed => "sent_unconfirmed",
            Self::Parked => "parked",
            Self::Skipped => "skipped",
            Self::Diverted => "diverted",
            Self::Purged => "purged",
            Self::Expired => "expired",
            Self::ConfirmedByOperator => "confirmed_by_operator",
        }
    }
}

/// What becomes of dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependents {
    /// They join their lanes.
    Release,
    /// They are dropped, each with an event.
    Drop,
    /// They go where the parent goes (parked as one; a divert holds them for a person).
    Keep,
}

/// Why a write parks. [`ParkReason::name`] is what people and files see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParkReason {
    /// The destination refused it for good.
    Refused,
    /// Its attempts are spent while other writes of the target got through.
    AttemptsSpent,
    /// Its age is spent while other writes of the target got through.
    AgeSpent,
    /// Two attempts may have landed and a third would be one copy too many.
    MayHaveLanded,
    /// The destination may no longer recognise a repeat (`require: effectively_once`).
    WindowPassed,
    /// It was in flight at three crashes in a row.
    SuspectedCrash,
    /// The error handler said so.
    Handler(String),
    /// The error handler failed.
    HandlerFailed,
    /// A person said so.
    Operator,
}

impl ParkReason {
    /// Stable name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::AttemptsSpent => "attempts_spent",
            Self::AgeSpent => "age_spent",
            Self::MayHaveLanded => "may_have_landed",
            Self::WindowPassed => "window_passed",
            Self::SuspectedCrash => "suspected_crash",
            Self::Handler(_) => "handler",
            Self::HandlerFailed => "handler_failed",
            Self::Operator => "operator",
        }
    }
}

/// What an error handler and a person are told about a write that failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    /// `refused`, `attempts_spent`, …: the name of the reason it would park for.
    pub class: &'static str,
    /// Whether it may have taken effect.
    pub maybe_applied: bool,
    /// Whether the last attempt ended without an answer.
    pub timed_out: bool,
    /// Attempts that counted.
    pub attempts: u32,
    /// Attempts in all since this host started.
    pub tries: u32,
    /// Wall time of the first attempt, 0 for none.
    pub first_attempt_unix_ms: u64,
    /// Wall time of the last attempt, 0 for none.
    pub last_attempt_unix_ms: u64,
    /// The connector's words for the last failure.
    pub detail: Detail,
}

/// The answer of a direct send. Accepted is [`DirectResult::Delivered`] or
/// [`DirectResult::HandedOver`]; everything else is a failure of acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectResult {
    /// The destination answered delivered.
    Delivered {
        /// It recognised the key.
        repeat: bool,
    },
    /// The network took it, where nothing ever confirms.
    HandedOver,
    /// The error handler, or the absence of one, ends it: skip counts as handled.
    Skipped,
    /// The error handler parks the message.
    Parked {
        /// Why.
        reason: ParkReason,
        /// What happened.
        failure: Failure,
    },
    /// The error handler diverts it.
    Diverted {
        /// To this target.
        target: String,
        /// What happened.
        failure: Failure,
    },
    /// It failed; nobody tries again here.
    Failed {
        /// What happened.
        failure: Failure,
    },
    /// The adapter stopped waiting while it was not answered.
    GaveUp {
        /// Whether it may have taken effect.
        maybe_applied: bool,
    },
    /// Withdrawn before it was answered.
    Withdrawn {
        /// Whether it may have taken effect.
        maybe_applied: bool,
    },
}
