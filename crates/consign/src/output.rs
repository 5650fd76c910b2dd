//! What a command prints: data on stdout, errors on stderr, and the exit code that goes with them.

use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::ExitCode;

/// Why a command failed; the kind decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The work failed, also in part: 1.
    Failed,
    /// The input was wrong: 2.
    Input,
    /// The host was not reachable or refused the login: 3.
    Unreachable,
    /// What was waited for did not come in time: 4.
    TimedOut,
}

/// An error as a person (or, with `--json`, a program) sees it.
#[derive(Debug, Clone)]
pub struct CliError {
    kind: Kind,
    problems: Vec<Value>,
    text: String,
}

impl CliError {
    /// One sentence.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        let text = message.into();
        Self {
            kind,
            problems: vec![json!({ "message": text })],
            text,
        }
    }

    /// The work failed.
    pub fn failed(message: impl ToString) -> Self {
        Self::new(Kind::Failed, message.to_string())
    }

    /// The input was wrong.
    pub fn input(message: impl ToString) -> Self {
        Self::new(Kind::Input, message.to_string())
    }

    /// Several problems of one input: `text` for people, one value each for programs.
    pub fn problems(kind: Kind, text: String, problems: Vec<Value>) -> Self {
        Self {
            kind,
            problems,
            text,
        }
    }

    /// Whether no host answered.
    pub fn is_unreachable(&self) -> bool {
        self.kind == Kind::Unreachable
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.kind {
            Kind::Failed => 1,
            Kind::Input => 2,
            Kind::Unreachable => 3,
            Kind::TimedOut => 4,
        })
    }

    /// Prints to stderr.
    pub fn print(&self, json: bool) {
        if json {
            eprintln!("{}", json!({ "errors": self.problems }));
        } else {
            eprintln!("{}", self.text.trim_end());
        }
    }
}

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text.trim_end())
    }
}

/// One document, or a table for people.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// `--json`.
    pub json: bool,
}

impl Output {
    /// Prints `value` as JSON, or what `table` makes of it. A reader that went away is not an error.
    pub fn show<T: Serialize>(
        self,
        value: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        let text = if self.json {
            serde_json::to_string_pretty(value).map_err(CliError::failed)?
        } else {
            table(value)
        };
        self.text(&text)
    }

    /// Says on standard error that a list ends at its limit, so that nobody takes it for all there is. 0 is
    /// no limit.
    pub fn ends_at(self, shown: usize, limit: u32, next: &str) {
        if limit > 0 && shown >= limit as usize {
            eprintln!("only {shown} are shown: {next}");
        }
    }

    /// Prints text and a final newline; nothing for empty text.
    pub fn text(self, text: &str) -> Result<(), CliError> {
        let text = text.trim_end();
        if text.is_empty() {
            return Ok(());
        }
        match writeln!(std::io::stdout().lock(), "{text}") {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(CliError::failed(
                format!("cannot write to standard output: {error}"),
            )),
            _ => Ok(()),
        }
    }
}

/// Lays rows out in columns; the last column is not padded. An empty table says `empty`.
pub fn table(head: &[&str], rows: &[Vec<String>], empty: &str) -> String {
    if rows.is_empty() {
        return format!("{empty}\n");
    }
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .chain(head.get(column).map(|h| h.chars().count()))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let last = cells.len().saturating_sub(1);
        let padded = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(i, (cell, width))| {
                if i == last {
                    (*cell).to_owned()
                } else {
                    format!("{cell:<width$}")
                }
            });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut out = line(head.to_vec());
    for row in rows {
        out.push('\n');
        out.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_empty_ones_say_so() {
        let rows = vec![
            vec!["nats".into(), "1".into()],
            vec!["x".into(), "two words".into()],
        ];
        assert_eq!(
            table(&["name", "n"], &rows, "none"),
            "name  n\nnats  1\nx     two words\n"
        );
        assert_eq!(table(&["name"], &[], "no plugins"), "no plugins\n");
    }
}
