//! What came of a scenario, for the table, for records and for the person who has to mend something.

use super::{Allowed, Scenario};
use serde_json::{Value, json};
use std::fmt;
use std::path::PathBuf;

/// The kit's result: a scenario that ran, or why it proves nothing.
pub type Result<T> = std::result::Result<T, Failure>;

/// A scenario that failed. Its text teaches: what happened, what was seen and allowed, which line
/// of the declaration that contradicts, where the transcript is, and how to run it alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The effects contradict the declaration.
    Contradicted(String),
    /// The fault did not happen as the scenario says, so nothing was proven.
    NeverFired(String),
    /// The scenario could not be carried out.
    Broken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contradicted(what) => write!(f, "the declaration is contradicted: {what}"),
            Self::NeverFired(what) => {
                write!(f, "the fault never fired, so nothing is proven: {what}")
            }
            Self::Broken(what) => write!(f, "the scenario could not be carried out: {what}"),
        }
    }
}

/// How a scenario ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// As promised.
    Kept {
        /// The fewest and the most effects of an interrupted message.
        effects: (usize, usize),
        /// What the promise allowed.
        allowed: Allowed,
        /// How it was seen that the fault fired.
        evidence: String,
    },
    /// Not as promised, or not shown.
    Failed {
        /// Why.
        failure: Failure,
        /// The operation's line of the promise table.
        declaration: String,
        /// The folder with transcript and log.
        saved: PathBuf,
        /// The command that runs it alone.
        rerun: String,
    },
    /// Does not apply, or cannot be run yet.
    NotRun(String),
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    /// The operation.
    pub operation: String,
    /// The configuration.
    pub case: String,
    /// The scenario.
    pub scenario: Scenario,
    /// What came of it.
    pub verdict: Verdict,
    /// How long it took.
    pub seconds: f64,
}

impl Ran {
    /// Whether it ran and failed.
    pub fn failed(&self) -> bool {
        matches!(self.verdict, Verdict::Failed { .. })
    }

    /// Whether it ran and passed.
    pub fn kept(&self) -> bool {
        matches!(self.verdict, Verdict::Kept { .. })
    }

    /// As the report file has it.
    pub fn to_json(&self) -> Value {
        let (verdict, detail, effects, allowed) = match &self.verdict {
            Verdict::Kept {
                effects,
                allowed,
                evidence,
            } => (
                "kept",
                evidence.clone(),
                words(*effects),
                allowed.to_string(),
            ),
            Verdict::Failed { failure, .. } => {
                ("failed", failure.to_string(), String::new(), String::new())
            }
            Verdict::NotRun(reason) => ("not_run", reason.clone(), String::new(), String::new()),
        };
        json!({
            "operation": self.operation, "case": self.case, "scenario": self.scenario.name(),
            "verdict": verdict, "effects": effects, "allowed": allowed, "detail": detail,
        })
    }
}

fn words((fewest, most): (usize, usize)) -> String {
    if fewest == most {
        most.to_string()
    } else {
        format!("{fewest}..{most}")
    }
}

impl fmt::Display for Ran {
    /// One line of the table; a failure is followed by what it teaches.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:24} {:14} {:24} ",
            self.operation,
            self.case,
            self.scenario.name()
        )?;
        match &self.verdict {
            Verdict::Kept {
                effects,
                allowed,
                evidence,
            } => write!(
                f,
                "{:>5} / {:<5} kept     {:5.1} s  {evidence}",
                words(*effects),
                allowed.to_string(),
                self.seconds
            ),
            Verdict::NotRun(reason) => write!(f, "    -         not run           {reason}"),
            Verdict::Failed {
                failure,
                declaration,
                saved,
                rerun,
            } => {
                writeln!(f, "    -         FAILED   {:5.1} s", self.seconds)?;
                writeln!(f, "    {}", self.scenario.sentence())?;
                writeln!(f, "    {failure}")?;
                writeln!(f, "    declared:   {declaration}")?;
                writeln!(f, "    transcript: {}", saved.display())?;
                write!(f, "    rerun:      {rerun}")
            }
        }
    }
}
