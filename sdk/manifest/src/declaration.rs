//! Declarations: what an operation promises at its best, and under which condition.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a destination makes of a write that is sent again. Ordered: the first is the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// One effect per write, within the destination's window.
    EffectivelyOnce,
    /// Every write arrives; one that was on its way during an interruption may arrive one extra time.
    AtLeastOnce,
    /// Never buffered and never sent again: a write may be lost, never doubled.
    AtMostOnce,
}

impl Promise {
    /// The words an operator reads.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::EffectivelyOnce => "effectively once",
            Self::AtLeastOnce => "at least once",
            Self::AtMostOnce => "at most once",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// How the destination drops a repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatKind {
    /// The repeat lands on the same row, object or document.
    SameTarget,
    /// The destination recognises the write key.
    WriteKey,
    /// It does not: a repeat is a second copy.
    SecondCopy,
    /// Writes are never repeated (UDP).
    NotApplicable,
}

/// How long the destination recognises a repeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// For ever.
    None,
    /// For this many milliseconds from the first copy.
    DurationMs(u64),
    /// For this many writes.
    Count(u64),
    /// Until the target is written by another write.
    UntilNextWrite,
    /// In words, where the destination's rule is none of these.
    Words(String),
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no window"),
            Self::DurationMs(ms) => write!(f, "window: {}", words_for_ms(*ms)),
            Self::Count(n) => write!(f, "window: the last {n} writes"),
            Self::UntilNextWrite => {
                f.write_str("window: until the target's next write with another key")
            }
            Self::Words(words) => write!(f, "window: {words}"),
        }
    }
}

fn words_for_ms(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "min"),
        (1_000, "s"),
    ];
    for (size, unit) in UNITS {
        if ms >= size && ms.is_multiple_of(size) {
            return format!("{} {unit}", ms / size);
        }
    }
    format!("{ms} ms")
}

/// How a repeat is dropped, under which condition and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeat {
    /// The mechanism.
    pub kind: RepeatKind,
    /// What must hold for it, in words that follow "by the write key, " or "the same target, ".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// How long it holds.
    pub window: Window,
}

/// Where the write key travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyPlacement {
    /// On every copy, at this place ("header <prefix>.write-key").
    On(String),
    /// Nowhere, and why.
    Nowhere(String),
}

/// What one request carries, and what a failure in its midst means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchKind {
    /// All of it or none of it (one transaction).
    Atomic,
    /// In order; a failure fails everything after it.
    Prefix,
    /// Each write stands alone.
    Independent,
}

/// Level one of a sink operation's promise: the best it can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkDeclaration {
    /// The promise when the repeat's condition holds.
    pub promise: Promise,
    /// The destination never confirms; a write the network took is counted apart.
    #[serde(default)]
    pub unconfirmed: bool,
    /// How a repeat is dropped.
    pub repeat: Repeat,
    /// Where the write key is.
    pub key: KeyPlacement,
    /// How a batch fails.
    pub batch: BatchKind,
    /// The dedup token names a request, not a write: batch boundaries are durable before the first send.
    #[serde(default)]
    pub sealed: bool,
    /// What else an operator must know, or empty.
    #[serde(default)]
    pub note: String,
}

/// Whether a source hands over again what was not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryType {
    /// It redelivers what was not acknowledged; positions are cumulative (partition and offset).
    OffsetTrackedCumulative,
    /// It redelivers what was not acknowledged; each message has a token of its own.
    OffsetTrackedIndividual,
    /// Inline on a live session, never again.
    SessionBased,
}

impl DeliveryType {
    /// Whether the source redelivers.
    #[must_use]
    pub fn is_offset_tracked(self) -> bool {
        !matches!(self, Self::SessionBased)
    }
}

/// What names a message across redeliveries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Identity {
    /// The source's own coordinates; the words say which ("stream incarnation and sequence").
    Stable(String),
    /// A field the operator names.
    Expression,
    /// The client's idempotency key, where it sends one.
    ClientKey,
    /// Nothing does: keys differ on redelivery.
    None,
}

/// Level one of a source operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceDeclaration {
    /// Whether and how it redelivers.
    pub delivery: DeliveryType,
    /// What names a message.
    pub identity: Identity,
    /// How long after acceptance the source may still hand a message over again, in milliseconds,
    /// where its acknowledgement cannot be confirmed. `None` for cumulative positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redelivery_bound_ms: Option<u64>,
    /// What else an operator must know, or empty.
    #[serde(default)]
    pub note: String,
}
