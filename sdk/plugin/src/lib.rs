//! What authors of connectors, processors, transforms and error handlers use.
//!
//! Start with `use consign_plugin::prelude::*;`, implement [`Connector`] and one or more of
//! [`Sink`] and [`Source`], put them together in a [`Plugin`], and end with [`export_plugin!`].
//! [`testing`] drives all of it in process, without a `.so`.
//!
//! The SDK owns the runtime (two worker threads per plugin), deadlines, cancellation and panics.
//! The host owns batching, retry, backoff, buffering, templates and secrets: none of that belongs
//! into a connector.
//!
//! # A small sink
//!
//! ```
//! use consign_plugin::prelude::*;
//! use consign_plugin::testing::{self, TestWrite};
//! use std::collections::BTreeMap;
//! use std::sync::Mutex;
//!
//! /// A shelf in memory.
//! #[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! pub struct ShelfConfig {}
//!
//! /// Puts each write into a box of the shelf; a repeat lands in the same box.
//! #[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! pub struct PutConfig {
//!     /// The box, `{{ … }}` allowed.
//!     name: Template,
//! }
//!
//! #[derive(Default)]
//! pub struct Shelf(Mutex<BTreeMap<String, Vec<u8>>>);
//!
//! #[async_trait]
//! impl Connector for Shelf {
//!     type Config = ShelfConfig;
//!     const NAME: &'static str = "shelf";
//!     const TITLE: &'static str = "Shelf";
//!
//!     async fn connect(_: ShelfConfig, _: &ConnectionContext) -> Result<Self, Failure> {
//!         Ok(Self::default())
//!     }
//!
//!     async fn probe(&self) -> Result<(), Failure> {
//!         Ok(())
//!     }
//! }
//!
//! pub struct Put(Arc<Shelf>, PutConfig);
//!
//! #[async_trait]
//! impl Sink for Put {
//!     type Connector = Shelf;
//!     type Config = PutConfig;
//!     const OPERATION: &'static str = "shelf.put";
//!     const TITLE: &'static str = "Put";
//!
//!     fn declaration() -> SinkDeclaration {
//!         SinkDeclaration {
//!             promise: Promise::EffectivelyOnce,
//!             unconfirmed: false,
//!             repeat: Repeat {
//!                 kind: RepeatKind::SameTarget,
//!                 condition: None,
//!                 window: Window::None,
//!             },
//!             key: KeyPlacement::Nowhere("a box holds bytes and nothing else".into()),
//!             batch: BatchKind::Independent,
//!             sealed: false,
//!             note: String::new(),
//!         }
//!     }
//!
//!     fn resolve(_: &ShelfConfig, _: &PutConfig) -> Resolved {
//!         Resolved {
//!             promise: Promise::EffectivelyOnce,
//!             unconfirmed: false,
//!             repeat: RepeatKind::SameTarget,
//!             window: Window::None,
//!             reason: "a repeat lands in the same box".into(),
//!             target_id: "shelf".into(),
//!             target_fields: vec!["name".into()],
//!             faults: vec![],
//!         }
//!     }
//!
//!     async fn open(
//!         shelf: Arc<Shelf>,
//!         config: PutConfig,
//!         _: &ConnectionContext,
//!     ) -> Result<Self, Failure> {
//!         Ok(Self(shelf, config))
//!     }
//!
//!     async fn write(&self, batch: &Batch, _: &WriteContext) -> Vec<Outcome> {
//!         let mut shelf = self.0.0.lock().unwrap();
//!         let put = |write: &Write| match write.text(&self.1.name) {
//!             Ok(name) => {
//!                 shelf.insert(name.to_owned(), write.body().to_vec());
//!                 Outcome::delivered()
//!             }
//!             Err(detail) => Outcome::refused(detail),
//!         };
//!         batch.writes().iter().map(put).collect()
//!     }
//! }
//!
//! fn plugin() -> Plugin {
//!     Plugin::new("shelf", env!("CARGO_PKG_VERSION")).connector::<Shelf>(|c| c.sink::<Put>())
//! }
//!
//! export_plugin!(plugin);
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Failure> {
//! // In a test: the host would have replaced `box {{ .body.id }}` by slot 0.
//! let config = PutConfig { name: Template::slot(0) };
//! let sink = testing::open_sink::<Put>(ShelfConfig {}, config).await?;
//! let batch = testing::batch([TestWrite::new("bytes").template(0, "box 7")]);
//! assert_eq!(testing::write(&sink, &batch).await, [Outcome::delivered()]);
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]

mod batch;
mod blocking;
mod config;
mod context;
mod functions;
pub mod groups;
mod message;
mod outcome;
mod plugin;
pub mod rows;
mod shim;
mod source;
mod source_state;
pub mod testing;
#[cfg(feature = "tls")]
pub mod tls;
mod traits;

pub use batch::{Batch, Headers, Rollback, Write, WriteKey};
pub use config::{Config, Secret, Template};
pub use consign_manifest::{
    BatchKind, DeliveryType, Identity, Inspection, KeyPlacement, Promise, Repeat, RepeatKind,
    Resolved, ResolvedSource, SinkDeclaration, SourceDeclaration, Verdict, Window,
};
pub use context::{ConnectionContext, WriteContext};
pub use functions::{
    Decision, ErrorHandler, FailureReport, FunctionContext, Message, Processor, Transform,
};
pub use message::SourceMessage;
pub use outcome::{Advice, Applied, Detail, Failure, FailureKind, Outcome, Scope};
pub use plugin::{ConnectorBuilder, Plugin};
pub use source::{
    Control, Controls, Deliverer, MessageId, SettleResult, Settled, SourceContext, Stopped,
};
pub use traits::{Connector, Sink, Source};

/// What `export_plugin!` expands to; not for authors.
#[doc(hidden)]
pub mod __private {
    pub use crate::shim::{
        Header, NOTE_ABI, NOTE_HEAD, NOTE_PANIC, NoteRecord, Root, header, root,
    };
}

/// The snippets of the page for authors compile and hold.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/writing-a-plugin.md")]
struct WritingAPlugin;

/// Everything a connector needs, for one `use`.
pub mod prelude {
    pub use crate::groups::{BasicAuth, ByteSize, HumanDuration, Timeouts, Tls};
    pub use crate::{
        Batch, BatchKind, Config, ConnectionContext, Connector, Control, Controls, Decision,
        Deliverer, DeliveryType, Detail, ErrorHandler, Failure, FailureKind, FailureReport,
        FunctionContext, Identity, Inspection, KeyPlacement, Message, MessageId, Outcome, Plugin,
        Processor, Promise, Repeat, RepeatKind, Resolved, ResolvedSource, Rollback, Secret,
        SettleResult, Settled, Sink, SinkDeclaration, Source, SourceContext, SourceDeclaration,
        SourceMessage, Stopped, Template, Transform, Verdict, Window, Write, WriteContext,
        WriteKey, export_plugin,
    };
    pub use async_trait::async_trait;
    pub use schemars::JsonSchema;
    pub use serde::{Deserialize, Serialize};
    pub use std::sync::Arc;
}
