//! `new-connector`: a connector of this workspace that builds, is tested and can be proven, from the template
//! that authors elsewhere get.
//!
//! The template comes from the host's own program (`consign new plugin`), so that there is one of it; what is
//! different inside the workspace is changed here. Nothing has to be registered by hand: the workspace takes
//! its members from the folder, tests and generated pages from the built plugins.

use crate::error::{Context, Error, Result, failed};
use crate::workspace::{Profile, Workspace, cargo_command, run};
use clap::{Args, ValueEnum};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What to make.
#[derive(Debug, Args)]
pub struct Options {
    /// Its name, `snake_case`: what stands after `connector:` in a configuration.
    name: String,
    /// What it begins with; the other can be added beside it.
    #[arg(long, value_enum, default_value = "sink")]
    kind: Kind,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// Carries writes out.
    Sink,
    /// Hands messages over.
    Source,
}

/// Files that only a project of its own needs.
const OUTSIDE_ONLY: [&str; 3] = ["README.md", ".gitignore", ".github"];

/// The manifest, as every connector here has it.
const MANIFEST: &str = r#"[package]
name = "consign-plugin-NAME"
description = "Connector plugin: TITLE."
version.workspace = true
edition.workspace = true
rust-version.workspace = true
license.workspace = true
publish.workspace = true

[lints]
workspace = true

[dependencies]
consign-plugin.workspace = true
async-trait.workspace = true
schemars.workspace = true
serde.workspace = true
tokio.workspace = true

[dev-dependencies]
consign-testkit.workspace = true
serde_json.workspace = true

[lib]
crate-type = ["cdylib", "rlib"]

# Through the real host, with the connection broken on purpose.
[[test]]
name = "conformance"
harness = false
"#;

/// What a test of this workspace begins with, after its head.
const LINTS: &str = r#"#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
"#;

/// Makes the connector and says what comes next.
pub fn make(workspace: &Workspace, options: &Options) -> Result<()> {
    let plugins = workspace.root.join("plugins");
    let folder = plugins.join(&options.name);
    if folder.exists() {
        return Err(Error::Input(format!(
            "{} is there already: choose another name, or remove it",
            workspace.shown(&folder)
        )));
    }
    generate(&host(workspace)?, options, &plugins)?;
    let adapted = adapt(&folder, &options.name);
    if adapted.is_err() {
        // Half a connector would break every build of the workspace.
        let _ = fs::remove_dir_all(&folder);
    }
    adapted?;
    let mut format = cargo_command();
    let package = format!("consign-plugin-{}", options.name);
    run(format
        .current_dir(&workspace.root)
        .args(["fmt", "--package", &package]))?;
    eprintln!(
        "{} is a connector that works, against a small server of its own.\n\
         Its tests:        cargo test --package {package} --lib\n\
         its promises:     cargo xtask conformance {}, and commit the record\n\
         its pages:        cargo xtask gen\n\
         how to go on:     docs/writing-a-plugin.md",
        workspace.shown(&folder),
        options.name
    );
    Ok(())
}

/// The host that has the template: one that is named, or this workspace's own.
fn host(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("CONSIGN_BIN") {
        return Ok(named.into());
    }
    workspace.cargo(&["build", "--package", "consign"])?;
    Ok(workspace.host(Profile::Debug))
}

fn generate(host: &Path, options: &Options, into: &Path) -> Result<()> {
    let kind = options.kind.to_possible_value();
    let kind = kind.as_ref().map_or("sink", |kind| kind.get_name());
    let output = Command::new(host)
        .args(["new", "plugin", &options.name, "--kind", kind, "--into"])
        .arg(into)
        .stdin(Stdio::null())
        .output()
        .context(|| format!("cannot run {}", host.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Input(
        said.trim_start_matches("error: ").trim().to_owned(),
    ))
}

/// From a project of its own to a member of this workspace.
fn adapt(folder: &Path, name: &str) -> Result<()> {
    for outside in OUTSIDE_ONLY {
        let path = folder.join(outside);
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.context(|| format!("cannot remove {}", path.display()))?;
    }
    let title = title_of(&read(&folder.join("Cargo.toml"))?)?;
    let manifest = MANIFEST.replace("NAME", name).replace("TITLE", &title);
    write(&folder.join("Cargo.toml"), &manifest)?;
    let test = folder.join("tests/conformance.rs");
    write(&test, &conformance(&read(&test)?, name)?)
}

/// The title in the template's manifest: `description = "Consign plugin: Acme Queue."`.
fn title_of(manifest: &str) -> Result<String> {
    let description = manifest
        .lines()
        .find_map(|line| line.strip_prefix("description = \"Consign plugin: "));
    match description.and_then(|rest| rest.strip_suffix(".\"")) {
        Some(title) => Ok(title.to_owned()),
        None => failed("the template's Cargo.toml has no description to take the title from"),
    }
}

/// The conformance test of this workspace: its lints, and the plugin from among the host's own.
fn conformance(text: &str, name: &str) -> Result<String> {
    const LIBRARY: &str = ".library(env!(\"CARGO_PKG_NAME\"))";
    let head_ends = text.find("\n\n").map(|at| at + 1);
    let (Some(head_ends), true) = (head_ends, text.contains(LIBRARY)) else {
        return failed("the template's tests/conformance.rs is not what this command knows");
    };
    let (head, rest) = text.split_at(head_ends);
    let all = format!("`cargo xtask conformance {name}`");
    let head = head.replace("`cargo test --test conformance -- --full`", &all);
    Ok(format!("{head}{LINTS}{}", rest.replace(LIBRARY, "")))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_of_a_connector_here_takes_the_hosts_own_plugin_and_has_its_lints() {
        let text =
            "//! Head.\n\nmod server;\n    Subjects::new().library(env!(\"CARGO_PKG_NAME\")).x()\n";
        let here = conformance(text, "x").unwrap();
        assert!(here.starts_with("//! Head.\n#![allow("), "{here}");
        assert!(here.ends_with("Subjects::new().x()\n"), "{here}");
        assert!(conformance("//! Head.\n\nfn main() {}\n", "x").is_err());
    }

    #[test]
    fn the_title_is_the_templates() {
        let manifest = "[package]\ndescription = \"Consign plugin: Acme Queue.\"\n";
        assert_eq!(title_of(manifest).unwrap(), "Acme Queue");
        assert!(title_of("[package]\n").is_err());
    }
}
