//! Configuration: YAML with places, checked against a schema.
//!
//! Two phases, since plugins are configured in the file they are named in:
//! 1. [`first_look`] reads the plugin folders and the names of connectors and functions, and no more.
//! 2. [`parse`] checks everything against the host's schema and each configured plugin's own, and
//!    reports every fault at once, with file, line and column.
//!
//! Pure except for [`Environment`], which is injected: nothing here opens a file.

mod catalog;
mod check;
mod first_look;
mod model;
mod nearest;
mod node;
mod problem;
mod read;
mod rules;
mod schema;
mod secrets;
mod text;
mod units;

/// YAML as a tree with places, for other files that are read as configurations are.
pub mod yaml {
    pub use crate::node::{Data, Node, read};
}

pub use catalog::Catalog;
pub use first_look::{FirstLook, NamedAt, first_look};
pub use model::{
    Adapter, AfterPark, Backoff, Batch, BufferOptions, Class, Config, Connection, Console,
    Delivery, EventOptions, FailedOptions, OnAmbiguous, OnFailure, OnWindowPassed, Order,
    ParentSkipped, Processor, Require, Retry, Route, Secret, SecretKind, Send, Settings,
    SourceConfig, TemplateText, Transform, WhenFull, WriteKeyOptions,
};
pub use nearest::{did_you_mean, nearest, one_of};
pub use problem::{Place, Problem, Severity, in_order};
pub use schema::schema;
pub use secrets::{Environment, NoEnvironment};
pub use text::Text;
pub use units::{ByteSize, DURATION_FORMAT, HumanDuration, MAX_DURATION_MS, SIZE_FORMAT};

use read::FromNode;
use std::path::Path;

/// Reads and checks a whole configuration.
///
/// `file` is named in every place and its folder is where relative paths start; it is not opened:
/// `source` is its text. Secrets stay placeholders ([`Config::with_secrets`]).
///
/// # Errors
/// Every fault that could be found, in the order of the file. After a YAML syntax error nothing else
/// is checked, and after a value of the wrong type names are not, since they would only report its
/// consequences.
pub fn parse(file: &Path, source: &str, catalog: &Catalog) -> Result<Config, Vec<Problem>> {
    let name = file.display().to_string();
    let (root, mut problems) = node::read(&name, source).map_err(|problem| vec![problem])?;
    check::host(&root, &mut problems);
    let mut config = match Config::from_node(&root) {
        Ok(config) => config,
        Err(problem) => {
            if problems.is_empty() {
                problems.push(problem);
            }
            // Faults of the plugins' settings are found all the same, so that one run shows them.
            rules::loose(&root, catalog, &mut problems);
            in_order(&mut problems);
            return Err(problems);
        }
    };
    config.folder = file.parent().unwrap_or(Path::new("")).to_path_buf();
    rules::check(&mut config, catalog, &mut problems);
    // What was left out has no place; that it is missing has been told where it belongs.
    problems.retain(|problem| problem.place.is_known());
    in_order(&mut problems);
    if problems.iter().any(|p| p.severity == Severity::Error) {
        return Err(problems);
    }
    config.warnings = problems;
    Ok(config)
}
