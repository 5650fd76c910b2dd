//! One file per command.

pub mod buffer;
pub mod check;
pub mod control;
pub mod events;
pub mod explain;
pub mod failed;
pub mod generate;
pub mod jobs;
pub mod new;
pub mod plugins;
pub mod promises;
mod reference;
pub mod run;
pub mod schema;
pub mod show;
pub mod status;
pub mod test;
pub mod vrl;

use crate::output::CliError;
use crate::problems;
use consign_loader::{LoadOptions, Plugins};
use consign_pipeline::Message;
use std::io::Read as _;
use std::path::PathBuf;

/// Loads every plugin of these folders; with none named, of `./plugins`, else of the folder beside the
/// program.
pub fn load_plugins(folders: &[PathBuf]) -> Result<Plugins, CliError> {
    let folders = if folders.is_empty() {
        default_folders()
    } else {
        folders.to_vec()
    };
    let options = LoadOptions {
        folders,
        wanted: Vec::new(),
        lock: None,
        cache_dir: None,
    };
    Plugins::load(&options).map_err(|error| CliError::input(error.to_string()))
}

fn default_folders() -> Vec<PathBuf> {
    let here = PathBuf::from("plugins");
    if here.is_dir() {
        return vec![here];
    }
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join("plugins")));
    vec![beside.filter(|folder| folder.is_dir()).unwrap_or(here)]
}

/// A message from the command line: a document (JSON or YAML) with `body` and optionally `headers`, `key`,
/// `source` …; `-` reads it from standard input, and anything that is no document is the name of a file.
pub fn message(argument: &str) -> Result<Message, CliError> {
    let (name, text) = if argument == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| CliError::input(format!("standard input: {error}")))?;
        ("standard input", text)
    } else if argument.trim_start().starts_with('{') {
        ("message", argument.to_owned())
    } else {
        let text = std::fs::read_to_string(argument).map_err(|error| {
            CliError::input(format!("{argument}: {error}; give a JSON document, a file that holds one, or - for standard input"))
        })?;
        (argument, text)
    };
    consign_pipeline::cases::read_message(name, &text, now_unix_ms())
        .map_err(|problems| problems::error(&problems))
}

/// The time of a message that names none.
fn now_unix_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}
