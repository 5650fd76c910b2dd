//! `consign show config`: what the host makes of a file.

use crate::output::{CliError, Output};
use crate::problems;
use std::path::Path;

pub fn config(out: Output, file: &Path) -> Result<(), CliError> {
    let plan = problems::plan(file)?;
    let value = plan.config.redacted();
    out.show(&value, |value| {
        // YAML reads JSON, but people read YAML better.
        serde_saphyr::to_string(value).unwrap_or_else(|_| value.to_string())
    })
}
