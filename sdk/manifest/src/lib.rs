//! What a plugin says about itself, as versioned JSON: its manifest, the declaration of each
//! operation, and the answers to "what does this configuration make of it" and "what is really there".
//!
//! Host and SDK share these types. Everything here is data and pure functions: no I/O, no runtime.
//! * [`Manifest`]: what the plugin contains, with a JSON schema for every configuration.
//! * [`SinkDeclaration`], [`SourceDeclaration`]: level one of a promise.
//! * [`Resolved`], [`ResolvedSource`]: level two, for one configuration.
//! * [`Inspection`]: level three, from the live destination.
//! * [`coherence`]: the rules a declaration must keep to be loaded at all; [`lint`]: what readers miss;
//!   [`needs`]: the oldest host.

#![deny(missing_docs)]

pub mod coherence;
mod declaration;
pub mod lint;
mod manifest;
pub mod needs;
mod resolved;

pub use declaration::{
    BatchKind, DeliveryType, Identity, KeyPlacement, Promise, Repeat, RepeatKind, SinkDeclaration,
    SourceDeclaration, Window,
};
pub use manifest::{
    ConnectorManifest, FunctionManifest, MANIFEST_FORMAT, Manifest, OperationDeclaration,
    OperationManifest, PluginKind,
};
pub use resolved::{Inspection, ResolveRequest, Resolved, ResolvedSource, SourceAnswer, Verdict};
