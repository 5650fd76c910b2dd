//! The two vtables: what the host calls of a plugin, and what a plugin calls of the host.
//!
//! Rules. Handles and tokens are numbers; no pointer but the vtables themselves crosses. Every
//! function returns at once: work happens on the plugin's own threads, and an asynchronous call is
//! answered by exactly one [`Host::complete`] with the call's token and generation. Control-plane
//! arguments and answers are JSON. Both structs grow only at their end, and only after the field
//! marked as the last of the prefix; a method the other side lacks is absent.

use crate::data::{MessageBatch, Reply, SettleRow, WriteBatch};
use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RStr, RString, RVec};

/// One asynchronous call.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Names the call; unique in the host process, never reused, never 0.
    pub token: u64,
    /// The instance it belongs to; comes back unchanged.
    pub generation: u64,
    /// Milliseconds from now until the plugin must have dropped the work and answered.
    pub deadline_ms: u64,
}

/// What a plugin calls of the host. Every function may be called from any thread, at any time
/// after `init`, also after `shutdown`; none blocks.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = HostRef)))]
#[sabi(missing_field(option))]
pub struct Host {
    /// Answers a call: token, generation, reply. Late, double and foreign ones are ignored.
    pub complete: extern "C" fn(u64, u64, Reply),
    /// Hands messages over: the `source_open` call's token and generation, the messages.
    pub deliver: extern "C" fn(u64, u64, MessageBatch),
    /// Partitions are going: the `source_open` call's token and generation, a number for
    /// `source_revoke_done`, the partitions.
    pub revoked: extern "C" fn(u64, u64, u64, RVec<RString>),
    /// A connection or source is faulted: the token and generation of the call that opened it,
    /// the failure as JSON. Nothing comes from it any more.
    pub fault: extern "C" fn(u64, u64, RVec<u8>),
    /// A log line: plugin number from `init`, level (1 error … 5 trace), target, message, fields
    /// as a JSON object.
    pub log: extern "C" fn(u64, u32, RStr<'_>, RStr<'_>, RStr<'_>),
    /// A metric: plugin number, kind (1 adds to a counter, 2 sets a gauge), name, value.
    #[sabi(last_prefix_field)]
    pub metric: extern "C" fn(u64, u32, RStr<'_>, f64),
}

/// What the host calls of a plugin.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginRef)))]
#[sabi(missing_field(option))]
pub struct Plugin {
    /// The manifest as JSON. Pure; called before `init`. Empty when it could not be made.
    pub manifest: extern "C" fn() -> RVec<u8>,
    /// Called before everything below, and once more after a `shutdown`: the plugin's number and
    /// the host, both the same each time. Answers a [`crate::Status`] code.
    pub init: extern "C" fn(u64, HostRef) -> u32,
    /// Pure: a `ResolveRequest` as JSON in; `{"ok": …}` or `{"failure": …}` out.
    pub resolve: extern "C" fn(RVec<u8>) -> RVec<u8>,
    /// Opens a connection: an [`crate::json::OpenConnection`]. The reply's handle is the connection.
    pub connection_open: extern "C" fn(Call, RVec<u8>),
    /// A cheap round trip.
    pub connection_probe: extern "C" fn(Call, u64),
    /// Closes it and everything opened on it.
    pub connection_close: extern "C" fn(Call, u64),
    /// Opens a sink on a connection: an [`crate::json::OpenFunction`]. The reply's handle is the sink.
    pub sink_open: extern "C" fn(Call, u64, RVec<u8>),
    /// Carries a batch out.
    pub sink_submit: extern "C" fn(Call, u64, WriteBatch),
    /// Compares the promise with the destination; the reply's bytes are an `Inspection`.
    pub sink_inspect: extern "C" fn(Call, u64),
    /// Closes a sink; what it still had in flight is aborted.
    pub sink_close: extern "C" fn(Call, u64),
    /// Asks to drop a call: token, generation. The call itself is then answered as aborted, or
    /// with its result when that was there first.
    pub cancel: extern "C" fn(u64, u64),
    /// Opens a source on a connection: an [`crate::json::OpenFunction`] and the position the host
    /// has kept. The reply's handle is the source.
    pub source_open: extern "C" fn(Call, u64, RVec<u8>, ROption<RVec<u8>>),
    /// Grants credits: source, messages, bytes; on top of what is left.
    pub source_credit: extern "C" fn(u64, u64, u64),
    /// Settles messages: source, rows, arena of the reasons.
    pub source_settle: extern "C" fn(u64, RVec<SettleRow>, RVec<u8>),
    /// Asks to extend the lease on messages.
    pub source_extend: extern "C" fn(u64, RVec<u64>),
    /// A [`crate::ControlKind`] code.
    pub source_control: extern "C" fn(u64, u32),
    /// Go to a position.
    pub source_seek: extern "C" fn(u64, RVec<u8>),
    /// Everything of a revocation is settled or released.
    pub source_revoke_done: extern "C" fn(u64, u64),
    /// Stops a source; answered when it has ended. What was not settled is released.
    pub source_stop: extern "C" fn(Call, u64),
    /// The host is going: drop everything.
    #[sabi(last_prefix_field)]
    pub shutdown: extern "C" fn(Call),
    /// Opens a processor, transform or error handler: an [`crate::json::OpenFunction`].
    pub function_open: extern "C" fn(Call, RVec<u8>),
    /// Calls it: function, messages, details as JSON (a failure report for each message of an
    /// error handler).
    pub function_call: extern "C" fn(Call, u64, MessageBatch, RVec<u8>),
    /// Closes it.
    pub function_close: extern "C" fn(Call, u64),
}
