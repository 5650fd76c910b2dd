//! `consign plugins`: what is there, and what is wrong with a file.

use crate::commands::{load_plugins, reference};
use crate::output::{CliError, Kind, Output, table};
use consign_config::Catalog;
use consign_loader::{ABI_MAJOR, ABI_VERSION, Lock};
use consign_manifest::{Manifest, OperationDeclaration, needs};
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
    /// The oldest glibc it runs on, from the symbols it asks for.
    glibc: Option<String>,
    /// The plugin ABI of the oldest host that can use all of it, from what it contains.
    oldest_host_abi: String,
    connectors: Vec<String>,
    operations: Vec<String>,
    functions: Vec<String>,
    /// What only a later host can use.
    of_later_hosts: Vec<String>,
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
                    compiler(&row.rustc),
                    row.glibc.clone().unwrap_or_default(),
                    row.oldest_host_abi.clone(),
                    row.digest.chars().take(12).collect(),
                    row.path.clone(),
                    row.contents(),
                ]
            })
            .collect();
        let rows = table(
            &[
                "plugin", "version", "sdk", "rustc", "glibc", "abi", "digest", "path", "contents",
            ],
            &cells,
            "no plugins",
        );
        if cells.is_empty() {
            return rows;
        }
        format!(
            "{rows}\n\nThis host speaks plugin ABI {ABI_VERSION}. glibc and abi are the oldest that the plugin needs."
        )
    })
}

pub fn verify(out: Output, file: &Path) -> Result<(), CliError> {
    match consign_loader::verify_file(file) {
        Ok((found, manifest)) => {
            let mut faults = consign_manifest::lint::faults(&manifest);
            faults.extend(examples(&manifest));
            if !faults.is_empty() {
                let path = file.display();
                let text = faults
                    .iter()
                    .map(|fault| format!("{path}: {fault}"))
                    .collect::<Vec<_>>()
                    .join("\n");
                let values = faults
                    .iter()
                    .map(|fault| json!({ "code": "manifest", "path": path.to_string(), "message": fault }))
                    .collect();
                return Err(CliError::problems(Kind::Input, text, values));
            }
            let row = row(&found, &manifest);
            out.show(&row, |row| {
                format!(
                    "{} is a plugin: {} {} with {}",
                    row.path,
                    row.name,
                    row.version,
                    row.contents()
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

/// Examples that do not check with this plugin alone. What they use of other plugins is passed over.
fn examples(manifest: &Manifest) -> Vec<String> {
    let catalog = Catalog::new(vec![manifest.clone()], Vec::new());
    let foreign = ["unknown_plugin", "unknown_operation"];
    let mut faults = Vec::new();
    for connector in manifest.connectors.iter().filter(|c| !c.example.is_empty()) {
        let file = PathBuf::from(format!("example of {}", connector.name));
        if let Err(problems) = consign_config::parse(&file, &connector.example, &catalog) {
            let ours = problems.iter().filter(|p| !foreign.contains(&p.code));
            faults.extend(ours.map(ToString::to_string));
        }
    }
    faults
}

/// The reference pages.
pub fn docs(out: Output, folders: &[PathBuf], name: Option<&str>) -> Result<(), CliError> {
    let plugins = load_plugins(folders)?;
    let mut pages: Vec<Page> = plugins
        .manifests()
        .iter()
        .filter(|manifest| name.is_none_or(|name| manifest.name == name))
        .map(|manifest| Page {
            plugin: manifest.name.clone(),
            markdown: reference::page(manifest),
        })
        .collect();
    pages.sort_by(|a, b| a.plugin.cmp(&b.plugin));
    if let (true, Some(name)) = (pages.is_empty(), name) {
        let mut known: Vec<String> = plugins.manifests().iter().map(|m| m.name.clone()).collect();
        known.sort();
        return Err(CliError::input(format!(
            "there is no plugin {name}; there are {}",
            known.join(", ")
        )));
    }
    out.show(&pages, |pages| {
        let texts: Vec<&str> = pages.iter().map(|page| page.markdown.as_str()).collect();
        texts.join("\n").trim_end().to_owned()
    })
}

#[derive(Debug, Serialize)]
struct Page {
    plugin: String,
    markdown: String,
}

/// Writes the lock, whole or not at all.
pub fn lock(out: Output, folders: &[PathBuf], file: &Path) -> Result<(), CliError> {
    let plugins = load_plugins(folders)?;
    let files = plugins.files();
    let fail = |error: std::io::Error| {
        CliError::failed(format!(
            "{}: {error}; the lock is as it was",
            file.display()
        ))
    };
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, Lock::text(&files)).map_err(fail)?;
    std::fs::rename(&new, file).map_err(fail)?;
    let mut names: Vec<String> = files
        .iter()
        .filter_map(|file| Some(file.path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    let locked = json!({ "lock": file.display().to_string(), "plugins": names });
    out.show(&locked, |_| {
        format!("{} names {}", file.display(), names.join(", "))
    })
}

/// `1.95.0` of `rustc 1.95.0 (59807616e 2026-04-14)`.
fn compiler(rustc: &str) -> String {
    let version = rustc.split_whitespace().nth(1);
    version.unwrap_or(rustc).to_owned()
}

fn row(file: &consign_loader::PluginFile, manifest: &Manifest) -> Row {
    let operation = |o: &consign_manifest::OperationManifest| {
        let kind = match o.declaration {
            OperationDeclaration::Sink(_) => "sink",
            OperationDeclaration::Source(_) => "source",
        };
        format!("{} ({kind})", o.id)
    };
    let names: Vec<&str> = manifest
        .connectors
        .iter()
        .map(|c| c.name.as_str())
        .chain(manifest.functions.iter().map(|f| f.name.as_str()))
        .collect();
    let later: Vec<String> = file
        .note
        .provides
        .iter()
        .filter(|name| !names.contains(&name.as_str()))
        .cloned()
        .collect();
    Row {
        name: manifest.name.clone(),
        version: manifest.version.clone(),
        path: file.path.display().to_string(),
        digest: file.digest.clone(),
        sdk: file.note.sdk.clone(),
        rustc: file.note.rustc.clone(),
        glibc: file.glibc.clone(),
        oldest_host_abi: if later.is_empty() {
            format!("{ABI_MAJOR}.{}", needs::oldest_minor(manifest))
        } else {
            file.note.abi.clone()
        },
        connectors: manifest.connectors.iter().map(|c| c.name.clone()).collect(),
        operations: manifest
            .connectors
            .iter()
            .flat_map(|c| c.operations.iter().map(operation))
            .collect(),
        functions: manifest
            .functions
            .iter()
            .map(|f| format!("{} ({})", f.name, reference::kind_word(f.kind)))
            .collect(),
        of_later_hosts: later,
    }
}

impl Row {
    fn contents(&self) -> String {
        let later = self.of_later_hosts.iter();
        let later: Vec<String> = later
            .map(|name| format!("{name} (only in later hosts)"))
            .collect();
        let all = [&self.operations, &self.functions, &later];
        all.map(|part| part.as_slice()).concat().join(", ")
    }
}
