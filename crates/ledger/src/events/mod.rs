//! The catalogue of events: one stable code per kind, each with a page that says what happened,
//! why, and what to do.
//!
//! Codes are words and never change; levels and texts may. Pages are generated from here, for
//! `consign explain CODE` and for docs/events/.

/// One entry: code, level, title, what, why, fix, fields.
macro_rules! entry {
    ($code:ident, $level:ident, $title:literal, $what:literal, $why:literal, $fix:literal,
     [$($name:literal: $meaning:literal),* $(,)?]) => {
        $crate::events::Entry {
            code: $crate::events::Code::$code,
            level: $crate::events::Severity::$level,
            title: $title,
            what: $what,
            why: $why,
            fix: $fix,
            fields: &[$(($name, $meaning)),*],
        }
    };
}

mod buffer;
mod codes;
mod delivery;
mod host;
mod pages;
mod source;
mod writes;

pub use codes::Code;
pub use pages::{nearest, page, pages};

use serde::{Deserialize, Serialize};
use std::fmt;

/// How bad an event is. The log keeps it by its place in this list, which never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// For somebody who looks into one thing.
    Debug,
    /// The course of things.
    Info,
    /// It mends itself, or will get worse.
    Warn,
    /// Somebody must act, or something was lost.
    Error,
}

impl Severity {
    /// All, mildest first.
    pub const ALL: [Self; 4] = [Self::Debug, Self::Info, Self::Warn, Self::Error];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }

    /// From its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One kind of event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its code.
    pub code: Code,
    /// How bad it is.
    pub level: Severity,
    /// A short title; the message of an event that says no more.
    pub title: &'static str,
    /// What happened, and what it means for messages.
    pub what: &'static str,
    /// What usually leads to it.
    pub why: &'static str,
    /// What to do, with the commands.
    pub fix: &'static str,
    /// Its fields: name and meaning.
    pub fields: &'static [(&'static str, &'static str)],
}

/// All entries, in the order of the pages.
pub fn catalogue() -> impl Iterator<Item = &'static Entry> {
    host::ENTRIES
        .iter()
        .chain(source::ENTRIES)
        .chain(delivery::ENTRIES)
        .chain(writes::ENTRIES)
        .chain(buffer::ENTRIES)
}
