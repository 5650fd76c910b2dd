//! `consign schema`: the JSON schema of a configuration.

use crate::commands::load_plugins;
use crate::output::{CliError, Output};
use consign_config::Catalog;
use std::path::PathBuf;

pub fn run(folders: &[PathBuf]) -> Result<(), CliError> {
    let plugins = load_plugins(folders)?;
    let manifests = plugins.manifests().iter().map(|m| (**m).clone()).collect();
    let schema = consign_config::schema(&Catalog::new(manifests, Vec::new()));
    // A schema is a document either way.
    Output { json: true }.show(&schema, |_| String::new())
}
