//! What authors of connectors, processors, transforms and error handlers use.
//!
//! Start with `use consign_plugin::prelude::*;`, implement [`Connector`] and one or more of
//! [`Sink`] and [`Source`], put them together in a [`Plugin`], and end with [`export_plugin!`].
//! [`testing`] drives all of it in process, without a `.so`.
//!
//! The SDK owns the runtime (two worker threads per plugin), deadlines, cancellation and panics.
//! The host owns batching, retry, backoff, buffering, templates and secrets: none of that belongs
//! into a connector.

mod batch;
mod blocking;
mod config;
mod context;
mod functions;
pub mod groups;
mod outcome;
mod plugin;
mod shim;
mod source;
mod source_state;
pub mod testing;
mod traits;

pub use batch::{Batch, Headers, Write, WriteKey};
pub use config::{Config, Secret, Template};
pub use consign_manifest::{
    BatchKind, DeliveryType, Identity, Inspection, KeyPlacement, Promise, Repeat, RepeatKind,
    Resolved, ResolvedSource, SinkDeclaration, SourceDeclaration, Verdict, Window,
};
pub use context::{ConnectionContext, WriteContext};
pub use functions::{
    Decision, ErrorHandler, FailureReport, FunctionContext, Message, Processor, Transform,
};
pub use outcome::{Advice, Applied, Detail, Failure, FailureKind, Outcome, Scope};
pub use plugin::{ConnectorBuilder, Plugin};
pub use source::{
    Control, Controls, Deliverer, MessageId, SettleResult, Settled, SourceContext, SourceMessage,
    Stopped,
};
pub use traits::{Connector, Sink, Source};

/// What `export_plugin!` expands to; not for authors.
#[doc(hidden)]
pub mod __private {
    pub use crate::shim::{
        Header, NOTE_ABI, NOTE_HEAD, NOTE_PANIC, NoteRecord, Root, header, root,
    };
}

/// Everything a connector needs, for one `use`.
pub mod prelude {
    pub use crate::groups::{BasicAuth, ByteSize, HumanDuration, Timeouts, Tls};
    pub use crate::{
        Batch, BatchKind, Config, ConnectionContext, Connector, Control, Controls, Decision,
        Deliverer, DeliveryType, Detail, ErrorHandler, Failure, FailureKind, FailureReport,
        FunctionContext, Identity, Inspection, KeyPlacement, Message, MessageId, Outcome, Plugin,
        Processor, Promise, Repeat, RepeatKind, Resolved, ResolvedSource, Secret, SettleResult,
        Settled, Sink, SinkDeclaration, Source, SourceContext, SourceDeclaration, SourceMessage,
        Stopped, Template, Transform, Verdict, Window, Write, WriteContext, WriteKey,
        export_plugin,
    };
    pub use async_trait::async_trait;
    pub use schemars::JsonSchema;
    pub use serde::{Deserialize, Serialize};
    pub use std::sync::Arc;
}
