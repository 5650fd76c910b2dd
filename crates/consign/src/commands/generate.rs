//! The hidden `consign gen`: every generated page, into a folder, for `cargo xtask gen`.

use crate::commands::{load_plugins, reference};
use crate::output::CliError;
use consign_promise::proven::ProvenFile;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub fn run(
    folder: &Path,
    plugins: &[PathBuf],
    proven: Option<&Path>,
    sources: Option<&Path>,
) -> Result<(), CliError> {
    let plugins = load_plugins(plugins)?;
    let manifests: Vec<_> = plugins.manifests().iter().map(|m| (**m).clone()).collect();
    let digests = sources.map(read_digests).transpose()?.unwrap_or_default();
    let records = proven.map(read_proven).transpose()?.unwrap_or_default();
    let table =
        consign_promise::table::render(&manifests, &records, &digests).map_err(|errors| {
            CliError::failed(
                errors
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join("\n"),
            )
        })?;
    write(&folder.join("promises.md"), &table)?;
    for manifest in &manifests {
        let page = reference::page(manifest);
        write(
            &folder
                .join("connectors")
                .join(format!("{}.md", manifest.name)),
            &page,
        )?;
    }
    for (name, page) in consign_ledger::events::pages() {
        write(&folder.join("events").join(name), &page)?;
    }
    Ok(())
}

/// Digests of the plugins' sources by connector: a record stays valid when the same sources are built
/// again, and a plugin's file does not.
fn read_digests(path: &Path) -> Result<BTreeMap<String, String>, CliError> {
    let fail = |error: String| CliError::input(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| fail(error.to_string()))
}

fn read_proven(folder: &Path) -> Result<Vec<ProvenFile>, CliError> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Ok(Vec::new());
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let text = std::fs::read_to_string(path)
                .map_err(|error| CliError::input(format!("{}: {error}", path.display())))?;
            ProvenFile::parse(&text)
                .map_err(|error| CliError::input(format!("{}: {error}", path.display())))
        })
        .collect()
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let fail = |error: std::io::Error| CliError::failed(format!("{}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(fail)?;
    }
    std::fs::write(path, text).map_err(fail)
}
