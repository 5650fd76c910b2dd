//! Levels two and three: what a declaration comes to for one configuration, and what is really there.

use crate::{DeliveryType, Identity, Promise, RepeatKind, Window};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Asks a plugin what one function of one connection comes to. Pure: nothing is contacted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResolveRequest {
    /// Operation id.
    pub operation: String,
    /// The connection's `config`, secrets replaced by their placeholders.
    pub connection: Value,
    /// The function's `config`, templates as the operator wrote them.
    pub function: Value,
}

/// Level two for a sink: the promise this configuration gets, before the host's own rules
/// (order, `when_full`, nondeterministic templates) narrow it further.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// Never better than declared; the host clamps and reports a plugin that tries.
    pub promise: Promise,
    /// Never acknowledged.
    #[serde(default)]
    pub unconfirmed: bool,
    /// How a repeat is dropped here.
    pub repeat: RepeatKind,
    /// How long.
    pub window: Window,
    /// Why, in one sentence that starts with a lower-case letter ("`write_key_column` is not set").
    pub reason: String,
    /// Names the table, topic or host the function writes to, never a per-write part. Writes of
    /// one target are evidence for each other.
    pub target_id: String,
    /// Dotted names of template fields that name the target of a write (an object key, a file
    /// path): rendered differently on a second rendering, the same write would land elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_fields: Vec<String>,
    /// Faults of the configuration that the schema cannot express; each is an error of `check`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

/// Level two for a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedSource {
    /// As declared, or narrower.
    pub delivery: DeliveryType,
    /// As configured: `Expression` becomes `None` while the operator names no field.
    pub identity: Identity,
    /// Why, in one sentence.
    pub reason: String,
    /// Faults of the configuration that the schema cannot express.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

/// A source's answer to a [`ResolveRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceAnswer {
    /// Level two.
    #[serde(flatten)]
    pub resolved: ResolvedSource,
    /// What no other adapter of the same connection may claim too, as people say it
    /// (`POST /payments`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
}

/// What an inspection of the live destination found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The condition holds.
    Verified,
    /// It does not: the promise falls to at least once, with an event.
    Contradicted,
    /// The destination cannot be asked.
    NotInspected,
}

/// Level three, at each opening of a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// What was found.
    pub verdict: Verdict,
    /// In one sentence ("no unique index covers only `write_key` of table `invoices`").
    pub detail: String,
    /// The window the destination really has, where it can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Things an operator should know that do not touch the promise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Inspection {
    /// The condition holds, because of `detail`.
    #[must_use]
    pub fn verified(detail: impl Into<String>) -> Self {
        Self::of(Verdict::Verified, detail)
    }

    /// The condition does not hold, because of `detail`.
    #[must_use]
    pub fn contradicted(detail: impl Into<String>) -> Self {
        Self::of(Verdict::Contradicted, detail)
    }

    /// The destination cannot be asked, because of `detail`.
    #[must_use]
    pub fn not_inspected(detail: impl Into<String>) -> Self {
        Self::of(Verdict::NotInspected, detail)
    }

    fn of(verdict: Verdict, detail: impl Into<String>) -> Self {
        Self {
            verdict,
            detail: detail.into(),
            window: None,
            warnings: Vec::new(),
        }
    }
}
