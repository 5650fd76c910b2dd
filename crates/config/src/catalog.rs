//! What the loaded plugins offer, as the configuration is checked against it.

use consign_manifest::{
    ConnectorManifest, FunctionManifest, Manifest, OperationDeclaration, OperationManifest,
    PluginKind,
};

/// The manifests of the loaded plugins and the folders they were looked for in.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// One per plugin.
    pub manifests: Vec<Manifest>,
    /// The folders that were searched, as an operator would name them; shown when a connector or
    /// function is unknown.
    pub searched: Vec<String>,
}

impl Catalog {
    /// A catalog of these manifests.
    #[must_use]
    pub fn new(manifests: Vec<Manifest>, searched: Vec<String>) -> Self {
        Self {
            manifests,
            searched,
        }
    }

    /// The connector with this name.
    #[must_use]
    pub fn connector(&self, name: &str) -> Option<&ConnectorManifest> {
        self.connectors().find(|c| c.name == name)
    }

    /// All connectors.
    pub fn connectors(&self) -> impl Iterator<Item = &ConnectorManifest> {
        self.manifests.iter().flat_map(|m| &m.connectors)
    }

    /// The operation with this id.
    #[must_use]
    pub fn operation(&self, id: &str) -> Option<&OperationManifest> {
        self.connectors()
            .flat_map(|c| &c.operations)
            .find(|o| o.id == id)
    }

    /// The function of this kind with this name.
    #[must_use]
    pub fn function(&self, kind: PluginKind, name: &str) -> Option<&FunctionManifest> {
        self.functions(kind).find(|f| f.name == name)
    }

    /// All functions of this kind.
    pub fn functions(&self, kind: PluginKind) -> impl Iterator<Item = &FunctionManifest> {
        self.manifests
            .iter()
            .flat_map(|m| &m.functions)
            .filter(move |f| f.kind == kind)
    }

    pub(crate) fn searched_folders(&self) -> String {
        if self.searched.is_empty() {
            "no plugin folder is configured".to_owned()
        } else {
            format!("searched {}", self.searched.join(", "))
        }
    }
}

/// Whether an operation is a sink or a source.
pub(crate) fn kind_of(operation: &OperationManifest) -> PluginKind {
    match operation.declaration {
        OperationDeclaration::Sink(_) => PluginKind::Sink,
        OperationDeclaration::Source(_) => PluginKind::Source,
    }
}
