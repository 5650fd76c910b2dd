//! The five promises as one ordered type.

use consign_manifest::Promise;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A promise, weakest first, so that `a < b` reads "a is weaker than b" and the worst of several
/// is their minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// May be lost and may be repeated.
    BestEffort,
    /// May be lost, never repeated.
    AtMostOnce,
    /// Sent at least once; nobody confirms that it arrived.
    AtLeastOnceUnconfirmed,
    /// Arrives; may arrive more than once.
    AtLeastOnce,
    /// One effect, within the window that is stated beside it.
    EffectivelyOnce,
}

impl Level {
    /// All, weakest first.
    pub const ALL: [Self; 5] = [
        Self::BestEffort,
        Self::AtMostOnce,
        Self::AtLeastOnceUnconfirmed,
        Self::AtLeastOnce,
        Self::EffectivelyOnce,
    ];

    /// The level of a declared or resolved promise.
    #[must_use]
    pub fn of(promise: Promise, unconfirmed: bool) -> Self {
        match (promise, unconfirmed) {
            // Nobody can know of one effect where nothing is ever confirmed.
            (Promise::EffectivelyOnce | Promise::AtLeastOnce, true) => Self::AtLeastOnceUnconfirmed,
            (Promise::EffectivelyOnce, false) => Self::EffectivelyOnce,
            (Promise::AtLeastOnce, false) => Self::AtLeastOnce,
            (Promise::AtMostOnce, _) => Self::AtMostOnce,
        }
    }

    /// The name in configuration and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BestEffort => "best_effort",
            Self::AtMostOnce => "at_most_once",
            Self::AtLeastOnceUnconfirmed => "at_least_once_unconfirmed",
            Self::AtLeastOnce => "at_least_once",
            Self::EffectivelyOnce => "effectively_once",
        }
    }

    /// The words a person reads.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::BestEffort => "best effort",
            Self::AtMostOnce => "at most once",
            Self::AtLeastOnceUnconfirmed => "at least once, not confirmed",
            Self::AtLeastOnce => "at least once",
            Self::EffectivelyOnce => "effectively once",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())
    }
}

impl FromStr for Level {
    type Err = String;

    /// Reads a name as it stands in configuration; the error lists what is allowed.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|level| level.name() == text)
            .ok_or_else(|| {
                let names: Vec<&str> = Self::ALL.iter().rev().map(|l| l.name()).collect();
                format!(
                    "`{text}` is no promise: expected one of {}",
                    names.join(", ")
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_from_weak_to_strong() {
        assert!(Level::EffectivelyOnce > Level::AtLeastOnce);
        assert!(Level::AtLeastOnce > Level::AtLeastOnceUnconfirmed);
        assert!(Level::AtLeastOnceUnconfirmed > Level::AtMostOnce);
        assert!(Level::AtMostOnce > Level::BestEffort);
        assert!(Level::ALL.is_sorted());
    }

    #[test]
    fn names_are_read_back_and_the_error_lists_them() {
        for level in Level::ALL {
            assert_eq!(level.name().parse(), Ok(level));
            let json = serde_json::to_value(level).unwrap();
            assert_eq!(json, level.name());
        }
        let error = "exactly_once".parse::<Level>().unwrap_err();
        assert!(error.contains("effectively_once, at_least_once"), "{error}");
    }

    #[test]
    fn what_nobody_confirms_is_never_effectively_once() {
        assert_eq!(
            Level::of(Promise::EffectivelyOnce, true),
            Level::AtLeastOnceUnconfirmed
        );
        assert_eq!(Level::of(Promise::AtMostOnce, true), Level::AtMostOnce);
    }
}
