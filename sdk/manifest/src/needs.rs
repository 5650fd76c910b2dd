//! The oldest host that can do all that a plugin offers, from what it contains and not from the SDK it was
//! built with: a plugin that uses nothing new runs in old hosts, whatever built it.

use crate::{Manifest, OperationDeclaration, PluginKind};

/// The ABI minor with which a host could use each kind of thing. A kind that is added later gets its line
/// here, with the minor that brings it.
const fn since(kind: PluginKind) -> u32 {
    match kind {
        PluginKind::Source
        | PluginKind::Sink
        | PluginKind::Processor
        | PluginKind::Transform
        | PluginKind::ErrorHandler => 0,
    }
}

/// The least ABI minor of a host that can use all of it.
#[must_use]
pub fn oldest_minor(manifest: &Manifest) -> u32 {
    let operations = manifest.connectors.iter().flat_map(|c| &c.operations);
    let kinds = operations.map(|operation| match operation.declaration {
        OperationDeclaration::Sink(_) => PluginKind::Sink,
        OperationDeclaration::Source(_) => PluginKind::Source,
    });
    let functions = manifest.functions.iter().map(|function| function.kind);
    kinds.chain(functions).map(since).max().unwrap_or(0)
}
