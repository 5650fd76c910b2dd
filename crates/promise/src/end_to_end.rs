//! Level four: what a message gets from this source through this send. The table of
//! docs/architecture.md, "Promises", one arm per cell.

use crate::{DeliveryMode, Inspected, Level, SendPromise};
use consign_manifest::{DeliveryType, Identity, RepeatKind, ResolvedSource, Window};
use serde::{Deserialize, Serialize};

/// A source as far as the promise depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFacts {
    /// As resolved.
    pub delivery: DeliveryType,
    /// As resolved, so `Expression` only where the operator named a field.
    pub identity: Identity,
    /// How long a client's key is kept, in milliseconds; for [`Identity::ClientKey`].
    pub idempotency_window_ms: Option<u64>,
}

impl SourceFacts {
    /// From the plugin's answer and the host's `idempotency_window`.
    #[must_use]
    pub fn new(resolved: &ResolvedSource, idempotency_window_ms: Option<u64>) -> Self {
        Self {
            delivery: resolved.delivery,
            identity: resolved.identity.clone(),
            idempotency_window_ms,
        }
    }
}

/// Whether a message that comes again has the write keys it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyAcross {
    /// It has.
    Same,
    /// New ones each time it is handed over.
    Differ,
    /// A client that sends its key again gets them again; one that does not gets new ones.
    ByClientKey,
}

/// Level four of one send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndToEnd {
    /// What a message gets.
    pub level: Level,
    /// The promise begins when the message was accepted; before that the client must repeat.
    pub from_acceptance: bool,
    /// Whether keys survive a redelivery.
    pub keys: KeyAcross,
    /// All windows inside which the level holds, in words; empty for ever.
    pub windows: Vec<String>,
    /// Why, and what is true besides, a sentence each.
    pub notes: Vec<String>,
    /// Set where source and send do not go together at all: an error of the configuration.
    pub fault: Option<String>,
}

/// The five columns of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    ByKey,
    SameTarget,
    Alo,
    Unconfirmed,
    Amo,
}

/// Level four of a send: from level two, or from level three once there is one.
#[must_use]
pub fn end_to_end(
    source: &SourceFacts,
    send: &SendPromise,
    inspected: Option<&Inspected>,
) -> EndToEnd {
    let (level, repeat, window) = match inspected {
        Some(i) => (i.level.min(send.level), i.repeat, &i.window),
        None => (send.level, send.repeat, &send.window),
    };
    let keys = match (&source.identity, source.delivery.is_offset_tracked()) {
        (Identity::Stable(_) | Identity::Expression, true) => KeyAcross::Same,
        (Identity::ClientKey, false) => KeyAcross::ByClientKey,
        _ => KeyAcross::Differ,
    };
    let column = match level {
        Level::EffectivelyOnce if repeat == RepeatKind::SameTarget => Column::SameTarget,
        Level::EffectivelyOnce => Column::ByKey,
        Level::AtLeastOnce => Column::Alo,
        Level::AtLeastOnceUnconfirmed => Column::Unconfirmed,
        Level::AtMostOnce | Level::BestEffort => Column::Amo,
    };
    let mut result = if source.delivery.is_offset_tracked() {
        offset_tracked(column, keys, send)
    } else {
        match send.delivery {
            DeliveryMode::Buffered => session_buffered(column, keys, source, send),
            DeliveryMode::Direct => session_direct(),
        }
    };
    result.keys = keys;
    if result.level == Level::EffectivelyOnce && *window != Window::None {
        result.windows.push(format!("the destination's {window}"));
    }
    if column == Column::Amo && send.delivery == DeliveryMode::Buffered {
        result.fault = Some(
            "a write that is never repeated cannot be buffered: set `delivery: direct`".to_owned(),
        );
    }
    result
}

fn cell(level: Level, notes: &[&str]) -> EndToEnd {
    EndToEnd {
        level,
        from_acceptance: false,
        keys: KeyAcross::Same,
        windows: Vec::new(),
        notes: notes.iter().map(|&note| note.to_owned()).collect(),
        fault: None,
    }
}

fn offset_tracked(column: Column, keys: KeyAcross, send: &SendPromise) -> EndToEnd {
    const KEYS_DIFFER: &str =
        "the source does not name its messages, so one that is handed over again has another key";
    let same = keys == KeyAcross::Same;
    match column {
        Column::ByKey if same => cell(Level::EffectivelyOnce, &[]),
        Column::ByKey => cell(Level::AtLeastOnce, &[KEYS_DIFFER]),
        Column::SameTarget if same => cell(Level::EffectivelyOnce, &[]),
        Column::SameTarget if send.key_names_target => cell(
            Level::AtLeastOnce,
            &[KEYS_DIFFER, "the message's `.id` names the target"],
        ),
        Column::SameTarget => cell(Level::EffectivelyOnce, &[]),
        Column::Alo if same => cell(
            Level::AtLeastOnce,
            &["every copy has the same write key, so the receiver can tell a repeat"],
        ),
        Column::Alo => cell(Level::AtLeastOnce, &[KEYS_DIFFER]),
        Column::Unconfirmed => cell(
            Level::AtLeastOnceUnconfirmed,
            &["the destination never confirms"],
        ),
        Column::Amo => cell(
            Level::BestEffort,
            &["a write may be lost on its way, and the source may hand its message over again"],
        ),
    }
}

fn session_buffered(
    column: Column,
    keys: KeyAcross,
    source: &SourceFacts,
    send: &SendPromise,
) -> EndToEnd {
    let (level, note) = match column {
        Column::ByKey | Column::SameTarget => (Level::EffectivelyOnce, None),
        Column::Alo => (Level::AtLeastOnce, None),
        Column::Unconfirmed => (
            Level::AtLeastOnceUnconfirmed,
            Some("the destination never confirms"),
        ),
        Column::Amo => (Level::AtMostOnce, None),
    };
    let mut result = cell(level, note.as_slice());
    result.from_acceptance = true;
    // A client's repeat lands on the same target whatever its key, unless the key names the target.
    if column == Column::ByKey || (column == Column::SameTarget && send.key_names_target) {
        if keys == KeyAcross::ByClientKey {
            result.windows.push(match source.idempotency_window_ms {
                Some(ms) => format!("the client key's window: {}", crate::resolve::duration(ms)),
                None => "the client key's window: `idempotency_window`".to_owned(),
            });
            result
                .notes
                .push("a client's own retry without its key is a new message".to_owned());
        } else {
            result
                .notes
                .push("a client's own retry is a new message".to_owned());
        }
    }
    result
}

fn session_direct() -> EndToEnd {
    cell(
        Level::AtMostOnce,
        &["nothing is kept, and a write that may have landed is never resent"],
    )
}

impl EndToEnd {
    /// On one line: `effectively once from acceptance, inside: …`.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = self.level.to_string();
        if self.from_acceptance {
            line.push_str(" from acceptance");
        }
        if !self.windows.is_empty() {
            line.push_str(" (inside ");
            line.push_str(&self.windows.join(" and "));
            line.push(')');
        }
        line
    }
}
