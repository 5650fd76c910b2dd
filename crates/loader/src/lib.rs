//! Finds, checks and loads plugins, and calls them.
//!
//! Nothing of a plugin runs before its file was read and checked ([`inspect_file`]). A loaded
//! plugin is never unloaded. All calls are asynchronous: a call carries a token and a generation,
//! the plugin's completion brings both back, and whatever comes late, twice or from nowhere is
//! counted and ignored.
//!
//! **Invariant**: this crate knows no policy. It sets no timer on a submitted batch, resends
//! nothing, and decides nothing from an outcome.
#![deny(missing_docs)]
#![allow(
    unsafe_code,
    reason = "dlopen and reading an exported symbol need it, see `library`; and a signal handler, see `crash`"
)]

mod answer;
mod batch;
mod call;
mod check;
mod connection;
pub mod crash;
mod elf;
mod function;
mod host;
mod incoming;
mod inspect;
mod library;
mod lock;
mod plugins;
mod refusal;
mod registry;
mod sink;
mod source;
mod text;

pub use answer::{Answer, AnswerEnd, Outcome};
pub use batch::{BatchBuilder, BatchFull, WriteBatch, WriteParts};
pub use call::Failure;
pub use connection::Connection;
pub use consign_abi::json::{Names, OpenConnection};
pub use consign_abi::note::{ABI_MAJOR, ABI_VERSION};
pub use consign_abi::{Advice, Applied, FailureKind, Scope};
pub use consign_manifest::{Inspection, Manifest, ResolveRequest, Resolved, ResolvedSource};
pub use function::{FunctionAnswer, FunctionHandle, FunctionMessage, OpenFunction};
pub use host::PluginMetric;
pub use incoming::Incoming;
pub use inspect::{Note, PluginFile, inspect_file};
pub use lock::{LOCK_FILE, Lock};
pub use plugins::{LoadOptions, Plugins, Resolution, ResolvedOperation, verify_file};
pub use refusal::{LoadError, Refusal};
pub use registry::CompletionCounts;
pub use sink::{Canceller, PendingReply, SinkHandle};
pub use source::{Settle, SettleResult, SourceEvent, SourceEvents, SourceHandle};
pub use text::{TEXT_MAX_BYTES, shortened};
