//! From problems with a place to what the command line prints, and how a configuration is read.

use crate::output::{CliError, Kind};
use consign_config::{Environment, Problem};
use consign_runtime::{Copies, Plan};
use serde_json::{Value, json};
use std::path::Path;

/// Problems of an input, one paragraph each.
pub fn error(problems: &[Problem]) -> CliError {
    CliError::problems(Kind::Input, text(problems), values(problems))
}

/// As people read them.
pub fn text(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

/// As programs read them.
pub fn values(problems: &[Problem]) -> Vec<Value> {
    problems
        .iter()
        .map(|problem| {
            serde_json::to_value(problem)
                .unwrap_or_else(|_| json!({ "message": problem.to_string() }))
        })
        .collect()
}

/// Reads, checks and compiles a configuration, for a look at it.
pub fn plan(file: &Path) -> Result<Plan, CliError> {
    plan_with(file, Copies::Temporary)
}

/// The same, with a place for the copies of plugins.
pub fn plan_with(file: &Path, copies: Copies) -> Result<Plan, CliError> {
    consign_runtime::plan(file, &Surroundings, copies).map_err(|problems| error(&problems))
}

/// The process's environment variables and files.
pub struct Surroundings;

impl Environment for Surroundings {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &Path) -> Result<String, String> {
        // A final newline is the editor's, not the secret's.
        std::fs::read_to_string(path)
            .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
            .map_err(|error| error.to_string())
    }
}
