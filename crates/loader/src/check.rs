//! Whether a manifest holds together: run on every plugin that is loaded.

use crate::inspect::PluginFile;
use crate::refusal::Refusal;
use consign_manifest::{
    MANIFEST_FORMAT, Manifest, OperationDeclaration, OperationManifest, PluginKind, coherence,
};
use serde::Deserialize as _;
use serde_json::Value;
use std::collections::BTreeSet;

/// Reads and checks a manifest.
pub(crate) fn manifest(file: &PluginFile, bytes: &[u8]) -> Result<Manifest, Vec<Refusal>> {
    let mut value: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let format = value.get("format").and_then(Value::as_u64);
    if format.is_some_and(|format| format > u64::from(MANIFEST_FORMAT)) {
        return Err(vec![Refusal::new(
            "manifest_format",
            &file.path,
            format!(
                "its manifest has format {} and this host reads up to {MANIFEST_FORMAT}: update the host, or run `cargo update -p consign-plugin --precise {}` and `cargo build --release` in its crate",
                format.unwrap_or_default(),
                env!("CARGO_PKG_VERSION")
            ),
        )]);
    }
    let later = leave_out_later_kinds(&mut value);
    let manifest: Manifest = serde_json::from_value(value).map_err(|error| {
        vec![Refusal::new(
            "manifest_unreadable",
            &file.path,
            format!(
                "its manifest can't be read ({error}) and the host needs one of format {MANIFEST_FORMAT}: run `cargo test` in its crate"
            ),
        )]
    })?;
    let faults = faults(file, &manifest, &later);
    if faults.is_empty() {
        return Ok(manifest);
    }
    let fix = "correct it and run `cargo build --release` in its crate";
    Err(faults
        .into_iter()
        .map(|fault| Refusal::new("manifest_lies", &file.path, format!("{fault}: {fix}")))
        .collect())
}

/// Functions of a kind that a later SDK has and this host does not: a plugin loads without them, and a
/// configuration that uses one is told that there is none. Gives their names.
fn leave_out_later_kinds(manifest: &mut Value) -> Vec<String> {
    let Some(functions) = manifest.get_mut("functions").and_then(Value::as_array_mut) else {
        return Vec::new();
    };
    let mut left_out = Vec::new();
    functions.retain(|function| {
        let kind = function.get("kind").filter(|kind| kind.is_string());
        let is_known = kind.is_none_or(|kind| PluginKind::deserialize(kind).is_ok());
        if !is_known {
            let name = function.get("name").and_then(Value::as_str);
            left_out.extend(name.map(str::to_owned));
        }
        is_known
    });
    left_out
}

/// Each fault as a clause with both sides.
fn faults(file: &PluginFile, manifest: &Manifest, later: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut names = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for connector in &manifest.connectors {
        let name = &connector.name;
        if !is_snake_case(name) {
            faults.push(format!(
                "connector {name:?} is not snake_case and every connector's name is"
            ));
        }
        if !names.insert(name.as_str()) {
            faults.push(format!(
                "connector {name} is there twice and a name stands for one"
            ));
        }
        if !connector.config_schema.is_object() {
            faults.push(format!(
                "connector {name} has no config schema and the host checks every config against one"
            ));
        }
        for operation in &connector.operations {
            if !ids.insert(operation.id.as_str()) {
                faults.push(format!(
                    "operation {} is there twice and an id stands for one",
                    operation.id
                ));
            }
            faults.extend(operation_faults(name, operation));
        }
    }
    let mut functions = BTreeSet::new();
    for function in &manifest.functions {
        names.insert(function.name.as_str());
        let kind = kind_word(function.kind);
        if !functions.insert((kind, function.name.as_str())) {
            faults.push(format!(
                "{kind} {} is there twice and a name stands for one",
                function.name
            ));
        }
        if !function.config_schema.is_object() {
            faults.push(format!(
                "{kind} {} has no config schema and the host checks every config against one",
                function.name
            ));
        }
        if !is_snake_case(&function.name) {
            faults.push(format!(
                "function {:?} is not snake_case and every function's name is",
                function.name
            ));
        }
    }
    for provided in &file.note.provides {
        if !names.contains(provided.as_str()) && !later.contains(provided) {
            let has: Vec<&str> = names.iter().copied().collect();
            faults.push(format!(
                "its note provides {provided} and its manifest has {}; write the names into `export_plugin!(plugin, provides = \"…\")`",
                if has.is_empty() { "nothing".to_owned() } else { has.join(", ") }
            ));
        }
    }
    for name in names {
        if !file.note.provides.iter().any(|p| p == name) {
            faults.push(format!(
                "its manifest has {name} and its note provides {}; write the names into `export_plugin!(plugin, provides = \"…\")`",
                file.note.provides.join(", ")
            ));
        }
    }
    faults
}

fn operation_faults(connector: &str, operation: &OperationManifest) -> Vec<String> {
    let id = &operation.id;
    let mut faults = Vec::new();
    match id.split_once('.') {
        Some((prefix, rest)) if prefix == connector && !rest.is_empty() => {}
        _ => faults.push(format!(
            "operation {id} belongs to connector {connector} and its id begins with \"{connector}.\""
        )),
    }
    if !operation.config_schema.is_object() {
        faults.push(format!(
            "operation {id} has no config schema and the host checks every config against one"
        ));
    }
    let incoherent = match &operation.declaration {
        OperationDeclaration::Sink(declaration) => coherence::sink(declaration),
        OperationDeclaration::Source(declaration) => coherence::source(declaration),
    };
    faults.extend(
        incoherent
            .into_iter()
            .map(|fault| format!("the declaration of {id} does not hold together ({fault})")),
    );
    faults
}

fn kind_word(kind: PluginKind) -> &'static str {
    match kind {
        PluginKind::Processor => "processor",
        PluginKind::Transform => "transform",
        PluginKind::ErrorHandler => "error handler",
        PluginKind::Source | PluginKind::Sink => "function",
    }
}

fn is_snake_case(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}
