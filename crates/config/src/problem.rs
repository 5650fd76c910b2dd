//! What is wrong with a configuration, and where.

use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// A place in a file. Lines and columns count from 1; columns count characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Place {
    /// The file as it was named on the command line.
    pub file: Arc<str>,
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

impl Place {
    /// A place in `file`.
    #[must_use]
    pub fn new(file: &str, line: u32, column: u32) -> Self {
        Self {
            file: Arc::from(file),
            line,
            column,
        }
    }

    /// Whether it names a real line: values that stand for a default have no place.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.line > 0
    }

    pub(crate) fn at(&self, line: u32, column: u32) -> Self {
        Self {
            file: Arc::clone(&self.file),
            line,
            column,
        }
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new("", 0, 0)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_known() {
            write!(f, "{}:{}:{}", self.file, self.line, self.column)
        } else {
            f.write_str(&self.file)
        }
    }
}

/// Whether a problem keeps the host from running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The configuration cannot run.
    Error,
    /// It can, but an operator should know; an error under `--strict`.
    Warning,
}

/// One problem, complete on its own: where, what was found and expected, what to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
    /// Whether it is fatal.
    pub severity: Severity,
    /// A stable name for its kind (`unknown_key`).
    pub code: &'static str,
    /// What was found and what was expected, one sentence that starts with a lower-case letter.
    pub message: String,
    /// What to do about it, where that is not plain from the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl Problem {
    /// A fatal problem.
    pub fn error(place: &Place, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            place: place.clone(),
            severity: Severity::Error,
            code,
            message: message.into(),
            help: None,
        }
    }

    /// A problem that does not keep the host from running.
    pub fn warning(place: &Place, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(place, code, message)
        }
    }

    /// The same problem with a sentence on what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The same problem with a sentence on what to do, where there is one.
    #[must_use]
    pub fn maybe_help(mut self, help: Option<String>) -> Self {
        self.help = help.or(self.help);
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{}: {severity}: {}", self.place, self.message)?;
        match &self.help {
            Some(help) => write!(f, "\n  help: {help}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Problem {}

/// Orders problems by place and drops repeats, so that a reader goes through the file once.
pub fn in_order(problems: &mut Vec<Problem>) {
    problems.sort();
    problems.dedup();
}
