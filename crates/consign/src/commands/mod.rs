//! One file per command.

pub mod check;
pub mod events;
pub mod explain;
pub mod generate;
pub mod plugins;
pub mod promises;
pub mod run;
pub mod schema;
pub mod show;
pub mod status;
pub mod vrl;

use crate::output::CliError;
use consign_loader::{LoadOptions, Plugins};
use consign_pipeline::{Message, MessageId};
use serde_json::Value;
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

/// A message from the command line: a JSON document with `body` and optionally `headers`, `key`, `time`,
/// `source`, `content_type`; `-` reads it from standard input; a name of a file reads that.
pub fn message(argument: &str) -> Result<Message, CliError> {
    let text = if argument == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| CliError::input(format!("standard input: {error}")))?;
        text
    } else if argument.trim_start().starts_with('{') {
        argument.to_owned()
    } else {
        std::fs::read_to_string(argument).map_err(|error| {
            CliError::input(format!("{argument}: {error}; give a JSON document, a file that holds one, or - for standard input"))
        })?
    };
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| CliError::input(format!("the message is not JSON: {error}")))?;
    let Value::Object(mut fields) = value else {
        return Err(CliError::input(
            "the message is a JSON object with `body` and optionally `headers`, `key`, `source`",
        ));
    };
    let known = [
        "body",
        "headers",
        "key",
        "source",
        "content_type",
        "time_unix_ms",
    ];
    if let Some(odd) = fields.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(CliError::input(format!(
            "the message has `{odd}`; it may have {}",
            known.join(", ")
        )));
    }
    let text_of = |value: Option<Value>| value.and_then(|v| v.as_str().map(str::to_owned));
    let body = match fields.remove("body") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => text.into_bytes(),
        Some(other) => other.to_string().into_bytes(),
    };
    let headers = match fields.remove("headers") {
        Some(Value::Object(headers)) => headers
            .into_iter()
            .map(|(name, value)| {
                (
                    name,
                    value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned)
                        .into(),
                )
            })
            .collect(),
        _ => Vec::new(),
    };
    let source = match fields.remove("source") {
        Some(Value::Object(source)) => source,
        _ => serde_json::Map::new(),
    };
    Ok(Message {
        id: MessageId([0; 16]),
        body: body.into(),
        content_type: text_of(fields.remove("content_type")),
        headers,
        routing_key: text_of(fields.remove("key")),
        time_unix_ms: fields
            .remove("time_unix_ms")
            .and_then(|v| v.as_i64())
            .unwrap_or(0),
        identity: None,
        source,
    })
}
