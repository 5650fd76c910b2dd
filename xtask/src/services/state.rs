//! What is known of a service instance: `target/services/INSTANCE/state.json`, read by tests too.

use super::process::Pid;
use super::spec::StopSignal;
use crate::error::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The state of one instance. It stays while the instance is stopped with `--keep`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// The instance's name.
    pub instance: String,
    /// The service, as in `tests/services/SERVICE.toml`.
    pub service: String,
    /// The product's name.
    pub title: String,
    /// The server's process; none while it is stopped.
    pub pid: Option<Pid>,
    /// Where to connect.
    pub url: String,
    /// The ports by name.
    pub ports: BTreeMap<String, u16>,
    /// What the server said its version is, first line.
    pub version: String,
    /// Whether that is the version that the service's file pins.
    pub as_pinned: bool,
    /// The data folder.
    pub data: PathBuf,
    /// The log file of the process.
    pub log: PathBuf,
    /// The signal that asks it to end.
    pub stop_signal: StopSignal,
    /// Seconds until it is killed instead.
    pub stop_within_s: u64,
}

/// The folder of all instances.
fn services_folder(target: &Path) -> PathBuf {
    target.join("services")
}

/// The folder of one instance.
pub fn instance_folder(target: &Path, instance: &str) -> PathBuf {
    services_folder(target).join(instance)
}

impl State {
    /// Names of all instances that have a state.
    pub fn instances(target: &Path) -> Vec<String> {
        let Ok(entries) = fs::read_dir(services_folder(target)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter(|entry| entry.path().join("state.json").is_file())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Reads the state of an instance; none when there is no such instance.
    pub fn read(target: &Path, instance: &str) -> Result<Option<Self>> {
        let path = instance_folder(target, instance).join("state.json");
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .context(|| format!("{} is not understood; remove its folder", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Writes the state; readers see the old or the new one, never a part.
    pub fn write(&self, target: &Path) -> Result<()> {
        let path = instance_folder(target, &self.instance).join("state.json");
        let temporary = path.with_extension("json.new");
        let text = serde_json::to_vec_pretty(self).context(|| "cannot write a state".into())?;
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &path))
            .context(|| format!("cannot write {}", path.display()))
    }

    /// The state as `--json` shows it.
    pub fn to_json(&self, running: bool) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(object) = value.as_object_mut() {
            object.insert("running".into(), running.into());
        }
        value
    }

    /// The state in one line.
    pub fn line(&self, running: bool) -> String {
        let state = if running { "running" } else { "stopped" };
        let pid = self
            .pid
            .filter(|_| running)
            .map(|pid| format!(", process {}", pid.id))
            .unwrap_or_default();
        let note = if self.as_pinned {
            ""
        } else {
            " (not the pinned version)"
        };
        format!(
            "{} {state} at {}{pid}, {}{note}",
            self.instance, self.url, self.version
        )
    }
}
