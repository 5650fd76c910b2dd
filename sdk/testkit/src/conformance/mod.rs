//! Conformance: each operation of a connector through the real host, with the connection broken on
//! purpose, and the effects counted at the destination by somebody else.
//!
//! A connector's `tests/conformance.rs` describes its [`Destination`]s and hands them to [`main()`].
//! For each scenario the kit starts a host with a data folder of its own, hands messages in over HTTP,
//! breaks something, waits until no write is pending, and judges: how many effects each message has,
//! how many the operation's promise allows in this configuration, whether each copy carries the write
//! key, and whether the fault really fired. What cannot be shown is a failure, never a pass.
//!
//! Without a network there is no connection to cut: such a destination ([`Access::Local`]) is held
//! back instead, and the interruption is at the process (`kill -9`, a data folder of a moment ago).

#![allow(
    clippy::indexing_slicing,
    reason = "a field that a JSON document lacks is null, and null matches nothing"
)]

mod destination;
mod judge;
mod local;
mod network;
mod origin;
mod parked;
mod poison;
mod report;
mod run;
mod shared;
mod stage;

pub use destination::{Access, Destination, Effect, Kind, Place, Product, Setup};
pub use judge::{Allowed, Level};
pub use origin::Origin;
pub use report::{Failure, Ran, Result, Verdict};
pub use run::{Subjects, main, run_one, run_source};

use std::fmt;

/// What is done to the connection or the process, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// Nothing is broken.
    Clean,
    /// The connection is cut before the request is whole at the server.
    CutBeforeRequest,
    /// The server applied the request and its answer is lost with the connection.
    ReplySwallowed,
    /// The connection is cut in the midst of a batch.
    CutMidBatch,
    /// Every answer takes its time, less than the send's timeout.
    Slow,
    /// The answer comes after the send's timeout has passed.
    LateAnswer,
    /// The peer is gone without a word: nothing passes, nothing is refused.
    SilentPeer,
    /// The server is away for a while and refuses connections.
    ServerAway,
    /// The host is killed while a request is on its way whose effect has landed.
    HostKilledInFlight,
    /// The host is killed before the write could land.
    KilledBeforeTheWrite,
    /// The same write again: the data folder is put back to before the answer.
    SameWriteAgain,
    /// The same write again after the destination's window has passed.
    AgainOutsideWindow,
    /// A parked write is sent again from Failed messages.
    SentAgainFromFailed,
    /// Of a source: more is offered than the host can take, and the rest must wait unacknowledged.
    AcknowledgedAfterAcceptance,
    /// Of a source: the host is killed again and again while messages come in.
    KilledInProcess,
    /// Of a source: the host is asked to stop while messages come in.
    StoppedInProcess,
    /// Of a source that several hosts share: another one joins, leaves and is killed while messages come in.
    SharedAmongHosts,
    /// Of a source that hands over again: one message cannot pass, and nobody says what to do about it.
    PoisonHeld,
    /// The same with the error handler that sets such a message aside.
    PoisonIsolated,
}

impl Scenario {
    /// All of them, in the order of the table.
    pub const ALL: [Scenario; 19] = [
        Scenario::Clean,
        Scenario::CutBeforeRequest,
        Scenario::ReplySwallowed,
        Scenario::CutMidBatch,
        Scenario::Slow,
        Scenario::LateAnswer,
        Scenario::SilentPeer,
        Scenario::ServerAway,
        Scenario::HostKilledInFlight,
        Scenario::KilledBeforeTheWrite,
        Scenario::SameWriteAgain,
        Scenario::AgainOutsideWindow,
        Scenario::SentAgainFromFailed,
        Scenario::AcknowledgedAfterAcceptance,
        Scenario::KilledInProcess,
        Scenario::StoppedInProcess,
        Scenario::SharedAmongHosts,
        Scenario::PoisonHeld,
        Scenario::PoisonIsolated,
    ];

    /// Its name on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::CutBeforeRequest => "cut_before_request",
            Self::ReplySwallowed => "reply_swallowed",
            Self::CutMidBatch => "cut_mid_batch",
            Self::Slow => "slow",
            Self::LateAnswer => "late_answer",
            Self::SilentPeer => "silent_peer",
            Self::ServerAway => "server_away",
            Self::HostKilledInFlight => "host_killed_in_flight",
            Self::KilledBeforeTheWrite => "killed_before_the_write",
            Self::SameWriteAgain => "same_write_again",
            Self::AgainOutsideWindow => "again_outside_window",
            Self::SentAgainFromFailed => "sent_again_from_failed",
            Self::AcknowledgedAfterAcceptance => "acked_after_acceptance",
            Self::KilledInProcess => "killed_in_process",
            Self::StoppedInProcess => "stopped_in_process",
            Self::SharedAmongHosts => "shared_among_hosts",
            Self::PoisonHeld => "poison_held",
            Self::PoisonIsolated => "poison_isolated",
        }
    }

    /// The scenario of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// What happens, in one sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Clean => "Twenty messages are delivered and nothing is broken.",
            Self::CutBeforeRequest => {
                "The connection is cut before the request is whole at the server."
            }
            Self::ReplySwallowed => {
                "The server applies the request, its answer never arrives, and the connection breaks."
            }
            Self::CutMidBatch => {
                "The connection is cut after four of the eight writes of a batch have passed."
            }
            Self::Slow => "Every answer takes its time, and none is too late.",
            Self::LateAnswer => {
                "The server's answer comes after the host has stopped waiting for it."
            }
            Self::SilentPeer => {
                "From the request on nothing passes in either direction, and nothing is refused."
            }
            Self::ServerAway => {
                "The server refuses connections while messages come in, and is back later."
            }
            Self::HostKilledInFlight => {
                "The host is killed with SIGKILL while requests are on their way whose effects have landed."
            }
            Self::KilledBeforeTheWrite => {
                "The host is killed with SIGKILL while the destination keeps the write from landing."
            }
            Self::SameWriteAgain => {
                "The host's data folder is put back to before the answer, so the delivered write is sent once more."
            }
            Self::AgainOutsideWindow => {
                "The host is killed after the write has landed, and comes back when the destination's window has passed."
            }
            Self::SentAgainFromFailed => {
                "A write parks (its answers never came, or it was refused) and a person sends it again."
            }
            Self::AcknowledgedAfterAcceptance => {
                "A thousand messages are offered while the destination is held and its lane has no room for them."
            }
            Self::KilledInProcess => {
                "The host is killed with SIGKILL three times while messages come in."
            }
            Self::StoppedInProcess => {
                "The host is asked to stop with SIGTERM while messages come in, and started again."
            }
            Self::SharedAmongHosts => {
                "A second host joins while messages come in, is stopped, joins again and is killed with SIGKILL."
            }
            Self::PoisonHeld => {
                "The destination refuses one message, which is sent directly and has no error handler; later it takes it."
            }
            Self::PoisonIsolated => {
                "The destination refuses one message, which is sent directly, and its error handler sets it aside."
            }
        }
    }

    /// Whether it is about a source.
    pub fn is_of_source(self) -> bool {
        matches!(
            self,
            Self::AcknowledgedAfterAcceptance
                | Self::KilledInProcess
                | Self::StoppedInProcess
                | Self::SharedAmongHosts
                | Self::PoisonHeld
                | Self::PoisonIsolated
        )
    }

    /// Whether it says something about this destination.
    pub fn applies_to(self, destination: &dyn Destination) -> bool {
        let needs_the_other = matches!(
            (self, destination.access()),
            (Self::KilledBeforeTheWrite, Access::Network { .. })
                | (
                    Self::CutBeforeRequest
                        | Self::ReplySwallowed
                        | Self::CutMidBatch
                        | Self::LateAnswer
                        | Self::SilentPeer
                        | Self::ServerAway,
                    Access::Local,
                )
        );
        let without_answers = matches!(
            self,
            Self::Clean | Self::CutBeforeRequest | Self::CutMidBatch | Self::ServerAway
        );
        !self.is_of_source() && !needs_the_other && (destination.answers() || without_answers)
    }

    /// Whether the quick run, which is a part of every test run, has it.
    pub fn is_quick(self, destination: &dyn Destination) -> bool {
        match destination.access() {
            Access::Network { .. } if !destination.answers() => self == Self::CutMidBatch,
            Access::Network { .. } => {
                matches!(self, Self::ReplySwallowed | Self::HostKilledInFlight)
            }
            Access::Local => self == Self::SameWriteAgain,
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
