//! Where things are: the workspace, its target folder, the built host and plugins; and running cargo.

use crate::error::{Context, Error, Result, failed};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A build profile, as cargo's target folder names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// `cargo build`.
    Debug,
    /// `cargo build --release`.
    Release,
}

impl Profile {
    /// The folder under `target`.
    pub fn folder(self) -> &'static str {
        match self {
            Profile::Debug => "debug",
            Profile::Release => "release",
        }
    }

    /// Picks by the `--release` flag.
    pub fn from_release(release: bool) -> Self {
        if release {
            Profile::Release
        } else {
            Profile::Debug
        }
    }
}

/// The workspace this automation belongs to.
#[derive(Debug, Clone)]
pub struct Workspace {
    /// The folder with the top level Cargo.toml.
    pub root: PathBuf,
    /// Cargo's target folder; `CARGO_TARGET_DIR` and cargo's own config are respected.
    pub target: PathBuf,
    /// Packages in `plugins/`, by name, in order.
    pub plugins: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    workspace_root: PathBuf,
    target_directory: PathBuf,
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
}

impl Workspace {
    /// Asks cargo where the workspace and its target folder are.
    pub fn find() -> Result<Self> {
        let output = cargo_command()
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .stderr(Stdio::inherit())
            .output()
            .context(|| "cannot run cargo".into())?;
        if !output.status.success() {
            return failed("`cargo metadata` failed: run this inside the workspace");
        }
        let metadata: Metadata = serde_json::from_slice(&output.stdout)
            .context(|| "`cargo metadata` printed something unexpected".into())?;
        let folder = metadata.workspace_root.join("plugins");
        let mut plugins: Vec<String> = metadata
            .packages
            .into_iter()
            .filter(|package| package.manifest_path.starts_with(&folder))
            .map(|package| package.name)
            .collect();
        plugins.sort();
        Ok(Self {
            root: metadata.workspace_root,
            target: metadata.target_directory,
            plugins,
        })
    }

    /// The host binary of a profile; it need not exist yet.
    pub fn host(&self, profile: Profile) -> PathBuf {
        self.target.join(profile.folder()).join("consign")
    }

    /// The folder where `build` collects the plugins of a profile.
    pub fn plugin_folder(&self, profile: Profile) -> PathBuf {
        self.target.join(profile.folder()).join("plugins")
    }

    /// A path as a person would type it: relative to the workspace where that is shorter.
    pub fn shown<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    /// Runs cargo in the workspace root with its output passed through.
    pub fn cargo(&self, args: &[&str]) -> Result<()> {
        let mut command = cargo_command();
        command.current_dir(&self.root).args(args);
        run(&mut command)
    }
}

/// A command for the cargo that runs this, or the one on PATH.
pub fn cargo_command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo run` describes xtask itself in these; build scripts of other packages must not see them.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        }) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end with its output passed through; an unsuccessful end is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .context(|| format!("cannot run {}", spelled(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::Failed(format!(
            "`{}` ended with {status}",
            spelled(command)
        )))
    }
}

/// A command as one would type it.
fn spelled(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy()
        .into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}
