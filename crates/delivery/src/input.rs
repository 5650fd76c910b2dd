//! What the driver tells the machine.

use crate::config::{ConnectionConfig, HostLimits, LaneConfig};
use crate::ids::{ConnectionId, LaneId, RequestId, Ticket};
use crate::note::WriteNote;
use crate::outcome::{Applied, Detail, Outcome};

/// One input of [`crate::Delivery::handle`].
#[derive(Debug, Clone)]
pub enum Input {
    /// New host limits and classes.
    Limits(HostLimits),
    /// A connection, or new settings of one that exists. Its gate starts closed with a probe.
    AddConnection(ConnectionConfig),
    /// The last lane of a connection is gone and so is the connection. Ignored while it has lanes.
    RemoveConnection {
        /// Which.
        connection: ConnectionId,
    },
    /// A lane, or new settings of one that exists (what is in flight ends under the old ones).
    /// Settings that [`LaneConfig::takes_in_place`] does not allow are ignored for a lane that
    /// exists: remove it first, or let it leave its target, then add it.
    AddLane(Box<LaneConfig>),
    /// Stop sending; [`crate::Output::LaneRemoved`] follows once nothing of it is in flight or
    /// waits for durability. What is pending stays in the buffer. A lane that leaves its target
    /// goes as [`Input::LeaveTarget`] says.
    RemoveLane {
        /// Which.
        lane: LaneId,
    },
    /// The lane is to write to another target: what may have been applied is finished at the old
    /// one, everything else waits for the new one. [`crate::Output::LaneRemoved`] follows once no
    /// maybe-applied write is left. From `until_ms` on those that are left park as
    /// `may_have_landed`: the old target may be gone for good. A lane of direct sends is removed.
    LeaveTarget {
        /// Which.
        lane: LaneId,
        /// Monotonic milliseconds.
        until_ms: u64,
    },
    /// Writes were committed to the lane.
    Available {
        /// Which.
        lane: LaneId,
    },
    /// Answers [`crate::Output::Fetch`]; in ascending order of `seq`.
    Fetched {
        /// Which lane.
        lane: LaneId,
        /// Pending writes after the asked-for number.
        writes: Vec<FetchedWrite>,
        /// Whether more are pending beyond the last one.
        more: bool,
    },
    /// What this ticket stood for is durable.
    Durable {
        /// Which.
        ticket: Ticket,
    },
    /// A sink answered. Missing outcomes read as maybe, surplus ones are ignored; both are events.
    Answered {
        /// Which request.
        request: RequestId,
        /// One per write, in the order of the request.
        outcomes: Vec<Outcome>,
    },
    /// A cancelled request is over: nothing of it runs any more. Also for a request the plugin
    /// dropped of its own accord.
    CancelAcknowledged {
        /// Which request.
        request: RequestId,
        /// Whether it took effect, for all its writes.
        applied: Applied,
    },
    /// Answers [`crate::Output::Probe`].
    Probed {
        /// Which connection.
        connection: ConnectionId,
        /// How it went.
        result: Result<(), ProbeFailure>,
    },
    /// Answers [`crate::Output::Rebuild`]: the fenced instance is gone, whatever of it still ran is
    /// cut off from the host.
    Rebuilt {
        /// Which connection.
        connection: ConnectionId,
    },
    /// Answers [`crate::Output::Inspect`].
    Inspected {
        /// Which lane.
        lane: LaneId,
        /// What was found.
        verdict: Verdict,
        /// The window the destination really has, in milliseconds, where it can be read.
        window_ms: Option<u64>,
    },
    /// Answers [`crate::Output::AskHandler`].
    Decided {
        /// Which lane.
        lane: LaneId,
        /// Which write.
        seq: u64,
        /// What the error handler decided.
        decision: Decision,
    },
    /// A direct send, to a volatile lane. The driver numbers them densely per lane from 1, in order.
    Direct {
        /// Which lane.
        lane: LaneId,
        /// The write.
        write: DirectWrite,
    },
    /// The message of a direct send was given back (revoked, client gone): its answer is
    /// [`crate::DirectResult::Withdrawn`], or the real one where it has landed by then.
    Withdraw {
        /// Which lane.
        lane: LaneId,
        /// Which write.
        seq: u64,
    },
    /// A person acts.
    Operator(Act),
    /// Send nothing new; [`crate::Output::Drained`] follows once all is answered and durable, or,
    /// after `deadline_ms` and the connections' `cancel_grace`, with what is left.
    Drain {
        /// Monotonic milliseconds.
        deadline_ms: u64,
    },
    /// Time has passed.
    Tick,
}

/// One pending write, as metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FetchedWrite {
    /// Its number in the lane.
    pub seq: u64,
    /// Its write key.
    pub key: [u8; 16],
    /// Hash of its order key; ignored under strict and none.
    pub order: u64,
    /// Size of its body.
    pub bytes: u32,
    /// Wall time after which it is dropped as expired.
    pub expires_unix_ms: Option<u64>,
    /// `Some` when an unclean exit may have cut it off: wall time of the frontier record that
    /// first covered it.
    pub maybe_since_unix_ms: Option<u64>,
    /// The last durable note on it; the default if there is none.
    pub note: WriteNote,
}

/// One direct send, as metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectWrite {
    /// Its number in the volatile lane, from 1.
    pub seq: u64,
    /// Its write key.
    pub key: [u8; 16],
    /// Hash of its order key; ignored under strict and none.
    pub order: u64,
    /// Size of its body.
    pub bytes: u32,
    /// The client may already have handed this message over once, so an earlier send may have landed.
    pub maybe_since_unix_ms: Option<u64>,
    /// Monotonic time at which the adapter stops waiting; `None` waits for ever.
    pub give_up_at_ms: Option<u64>,
}

/// A probe that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeFailure {
    /// The credentials are denied: the connection halts until a person acts.
    pub denied: bool,
    /// Why.
    pub detail: Detail,
}

/// What an inspection found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The declared condition holds.
    Verified,
    /// It does not: the lane counts as at least once, with an event.
    Contradicted,
    /// The destination cannot be asked.
    NotInspected,
}

/// What an error handler decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Try again, not before `after_ms` from now; asked again if that fails.
    Retry {
        /// Milliseconds.
        after_ms: u64,
    },
    /// Keep it, try at the backoff cap, let it block its order key.
    Block,
    /// Settle as skipped.
    Skip,
    /// Park for this reason.
    Park {
        /// In the handler's words.
        reason: String,
    },
    /// Hand it to another target of the config.
    Divert {
        /// The target's name.
        target: String,
    },
    /// The handler failed, panicked or hung.
    Failed,
}

/// What a person may do to lanes and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Send nothing more of this lane.
    Pause(LaneId),
    /// Go on.
    Resume(LaneId),
    /// Send nothing more over this connection.
    PauseConnection(ConnectionId),
    /// Go on.
    ResumeConnection(ConnectionId),
    /// Probe now; a halt by `denied` is lifted (credentials were mended), one by fencing is not.
    ProbeNow(ConnectionId),
    /// Try this lane's waiting writes now; one that is held as ambiguous may be sent once more.
    RetryNow(LaneId),
    /// Settle a write as skipped, also one in flight (its request is stopped, its companions are maybe).
    Skip(LaneId, u64),
    /// Settle as purged, in the same way.
    Purge(LaneId, u64),
    /// Park, in the same way (a move starts with this). Ignored for a direct send: its source has it.
    Park(LaneId, u64),
    /// Settle a write that may have landed as delivered; its dependents are released.
    Confirm(LaneId, u64),
    /// A parked write of this order key is resolved: later ones go on (`after_park: hold_key`).
    ReleaseKey(LaneId, u64),
}
