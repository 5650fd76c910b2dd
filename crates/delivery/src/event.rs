//! Events of delivery: one stable code per kind, for the event log.

use crate::ids::{ConnectionId, LaneId};
use crate::outcome::Detail;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub code: EventCode,
    /// To which lane, where it is about one.
    pub lane: Option<LaneId>,
    /// To which connection, where it is about one.
    pub connection: Option<ConnectionId>,
    /// To which write, where it is about one.
    pub seq: Option<u64>,
    /// Why.
    pub detail: Detail,
}

macro_rules! event_codes {
    ($($(#[$meta:meta])* $variant:ident = $name:literal, $level:ident;)*) => {
        /// Kinds of events. [`EventCode::name`] is the stable code; each has a page of its own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventCode { $($(#[$meta])* $variant,)* }

        impl EventCode {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable code.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// How loud it is.
            #[must_use]
            pub fn level(self) -> Level {
                match self { $(Self::$variant => Level::$level,)* }
            }
        }
    };
}

/// How loud an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing to do.
    Info,
    /// Look at it.
    Warning,
    /// A person must act.
    Error,
}

event_codes! {
    /// A connection's gate closed: an outage began.
    GateClosed = "gate_closed", Warning;
    /// It opened again.
    GateOpened = "gate_opened", Info;
    /// A target's gate closed while its connection works.
    TargetClosed = "target_closed", Warning;
    /// It opened again.
    TargetOpened = "target_opened", Info;
    /// Credentials are denied: target or connection halts until a person acts.
    Denied = "denied", Error;
    /// They are accepted again.
    DeniedOver = "denied_over", Info;
    /// The destination asked for a pause.
    Throttled = "throttled", Info;
    /// A lane can tell neither poison nor outage: one write fails, no other can be tried.
    HaltedOnOneWrite = "halted_on_one_write", Error;
    /// It goes on.
    HaltedOver = "halted_over", Info;
    /// A write whose resend was ambiguous too is held.
    AmbiguousHeld = "ambiguous_held", Warning;
    /// A direct send is refused or spent, and its source keeps the message.
    DirectHeld = "direct_held", Warning;
    /// A maybe-applied write outlived its window: a repeat may be a second copy.
    WindowPassed = "window_passed", Warning;
    /// A refused atomic batch is split.
    BatchSplit = "batch_split", Info;
    /// A connection's instance did not stop in time and was fenced.
    ConnectionFenced = "connection_fenced", Warning;
    /// Fenced too often: halted until restart.
    ConnectionHalted = "connection_halted", Error;
    /// An inspection contradicts the declaration: at least once from here on.
    PromiseContradicted = "promise_contradicted", Warning;
    /// A sink gave too few, too many or unknown answers.
    OddAnswer = "odd_answer", Warning;
    /// A late answer settled a write.
    LateAnswer = "late_answer", Info;
    /// A write passed its `expires_after` and was dropped.
    Expired = "expired", Warning;
    /// Too many held order keys: the lane looks no further ahead.
    HeldKeysFull = "held_keys_full", Error;
    /// An error handler blocks a write.
    HandlerBlocked = "handler_blocked", Warning;
    /// A lane went to another target; writes that may have landed at the old one are parked.
    TargetLeft = "target_left", Warning;
    /// The wall clock went back: windows of maybe-applied writes count as passed.
    ClockWentBack = "clock_went_back", Warning;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn event_codes_are_distinct_snake_case() {
        let names: BTreeSet<_> = EventCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), EventCode::ALL.len());
        assert!(names.iter().all(|name| {
            name.chars().all(|c| c.is_ascii_lowercase() || c == '_') && !name.is_empty()
        }));
    }
}
