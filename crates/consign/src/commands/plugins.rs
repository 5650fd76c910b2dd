//! `consign plugins`: what is there, and what is wrong with a file.

use crate::commands::load_plugins;
use crate::output::{CliError, Kind, Output, table};
use consign_manifest::{Manifest, OperationDeclaration};
use serde::Serialize;
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    version: String,
    path: String,
    digest: String,
    sdk: String,
    rustc: String,
    glibc: Option<String>,
    connectors: Vec<String>,
    operations: Vec<String>,
}

pub fn list(out: Output, folders: &[PathBuf]) -> Result<(), CliError> {
    let plugins = load_plugins(folders)?;
    let mut rows: Vec<Row> = plugins
        .files()
        .into_iter()
        .zip(plugins.manifests())
        .map(|(file, manifest)| row(&file, &manifest))
        .collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    out.show(&rows, |rows| {
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                vec![
                    row.name.clone(),
                    row.version.clone(),
                    row.sdk.clone(),
                    row.glibc.clone().unwrap_or_default(),
                    row.digest.chars().take(12).collect(),
                    row.operations.join(", "),
                ]
            })
            .collect();
        table(
            &["plugin", "version", "sdk", "glibc", "digest", "operations"],
            &cells,
            "no plugins",
        )
    })
}

pub fn verify(out: Output, file: &Path) -> Result<(), CliError> {
    match consign_loader::verify_file(file) {
        Ok((found, manifest)) => {
            let row = row(&found, &manifest);
            out.show(&row, |row| {
                format!(
                    "{} is a plugin: {} {} with {}",
                    row.path,
                    row.name,
                    row.version,
                    row.operations.join(", ")
                )
            })
        }
        Err(refusals) => {
            let text = refusals
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n");
            let values = refusals
                .iter()
                .map(|r| json!({ "code": r.code, "path": r.path.display().to_string(), "message": r.message }))
                .collect();
            Err(CliError::problems(Kind::Input, text, values))
        }
    }
}

fn row(file: &consign_loader::PluginFile, manifest: &Manifest) -> Row {
    let operation = |o: &consign_manifest::OperationManifest| {
        let kind = match o.declaration {
            OperationDeclaration::Sink(_) => "sink",
            OperationDeclaration::Source(_) => "source",
        };
        format!("{} ({kind})", o.id)
    };
    Row {
        name: manifest.name.clone(),
        version: manifest.version.clone(),
        path: file.path.display().to_string(),
        digest: file.digest.clone(),
        sdk: file.note.sdk.clone(),
        rustc: file.note.rustc.clone(),
        glibc: file.glibc.clone(),
        connectors: manifest.connectors.iter().map(|c| c.name.clone()).collect(),
        operations: manifest
            .connectors
            .iter()
            .flat_map(|c| c.operations.iter().map(operation))
            .collect(),
    }
}
