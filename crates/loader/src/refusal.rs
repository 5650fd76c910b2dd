//! Why a plugin is not used: one sentence with both sides and what mends it.

use std::fmt;
use std::path::{Path, PathBuf};

/// One reason why one file is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Stable, `snake_case`, for machines.
    pub code: &'static str,
    /// The file, or the folder it was looked for in.
    pub path: PathBuf,
    /// One sentence: what the plugin is, what the host needs, and the command that mends it.
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(code: &'static str, path: &Path, message: impl Into<String>) -> Self {
        Self {
            code,
            path: path.to_owned(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.message)
    }
}

impl std::error::Error for Refusal {}

/// Loading failed; nothing was started. Shown as one line per refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    refusals: Vec<Refusal>,
}

impl LoadError {
    pub(crate) fn new(refusals: Vec<Refusal>) -> Self {
        Self { refusals }
    }

    /// All reasons, at least one.
    #[must_use]
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, refusal) in self.refusals.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            refusal.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}
