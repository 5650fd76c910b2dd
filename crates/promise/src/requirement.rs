//! `require:` of a send or route: met, or the level that falls short and why.

use crate::{EndToEnd, Inspected, Level, SendPromise};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A requirement that is not met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortfall {
    /// What was asked for.
    pub required: Level,
    /// What there is.
    pub level: Level,
    /// Where it falls short: `declared`, `resolved`, `inspected` or `end_to_end`.
    pub at: String,
    /// Why, a sentence each.
    pub reasons: Vec<String>,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.at.as_str() {
            "declared" => "the operation can be",
            "resolved" => "this configuration is",
            "inspected" => "the destination as it stands is",
            _ => "from this source it is",
        };
        write!(
            f,
            "requires {}, but {who} {} at best",
            self.required, self.level
        )?;
        if !self.reasons.is_empty() {
            write!(f, ": {}", self.reasons.join("; "))?;
        }
        Ok(())
    }
}

/// Whether a send keeps what is required of it, end to end.
///
/// # Errors
/// Names the first level that falls short, so that an operator mends the cause and not a consequence.
pub fn require(
    required: Level,
    resolved: &SendPromise,
    inspected: &Inspected,
    end_to_end: &EndToEnd,
) -> Result<(), Shortfall> {
    let short = |at: &str, level: Level, reasons: Vec<String>| {
        Err(Shortfall {
            required,
            level,
            at: at.to_owned(),
            reasons,
        })
    };
    if resolved.declared < required {
        return short("declared", resolved.declared, Vec::new());
    }
    if resolved.level < required {
        let reasons = resolved.reasons().map(str::to_owned).collect();
        return short("resolved", resolved.level, reasons);
    }
    if inspected.level < required {
        return short("inspected", inspected.level, vec![inspected.detail.clone()]);
    }
    if end_to_end.level < required {
        return short("end_to_end", end_to_end.level, end_to_end.notes.clone());
    }
    Ok(())
}
