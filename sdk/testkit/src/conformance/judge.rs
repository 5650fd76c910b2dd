//! How many effects a promise allows, and what the effects that were found come to.

use super::{Effect, Scenario};
use std::collections::BTreeMap;
use std::fmt;

/// What the host says that a send promises in its configuration (level two).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// One effect per write.
    EffectivelyOnce,
    /// One effect, and one extra per interruption.
    AtLeastOnce,
    /// The same, and nobody confirms: it may also be lost on its way.
    AtLeastOnceUnconfirmed,
    /// One effect or none.
    AtMostOnce,
    /// Anything.
    BestEffort,
}

impl Level {
    /// As `consign check --json` spells it.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "effectively_once" => Self::EffectivelyOnce,
            "at_least_once" => Self::AtLeastOnce,
            "at_least_once_unconfirmed" => Self::AtLeastOnceUnconfirmed,
            "at_most_once" => Self::AtMostOnce,
            "best_effort" => Self::BestEffort,
            _ => return None,
        })
    }

    /// Whether a write that may have landed is sent again.
    pub fn resends(self) -> bool {
        !matches!(self, Self::AtMostOnce | Self::BestEffort)
    }
}

/// How many effects one message may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// At least.
    pub least: usize,
    /// At most.
    pub most: usize,
}

impl Allowed {
    /// Exactly one.
    pub const ONE: Self = Self { least: 1, most: 1 };

    /// What the promise allows a message whose write was interrupted once.
    ///
    /// A fault that kept the request from the server leaves no room for a copy, whatever the promise.
    pub fn after(level: Level, scenario: Scenario, window: bool) -> Self {
        let untouched = matches!(scenario, Scenario::Clean | Scenario::Slow);
        let nothing_landed = matches!(
            scenario,
            Scenario::CutBeforeRequest
                | Scenario::SilentPeer
                | Scenario::ServerAway
                | Scenario::KilledBeforeTheWrite
        );
        if untouched {
            return Self::ONE;
        }
        let least = match level {
            Level::EffectivelyOnce | Level::AtLeastOnce => 1,
            _ => 0,
        };
        let copies = match level {
            Level::EffectivelyOnce => scenario == Scenario::AgainOutsideWindow && window,
            Level::AtMostOnce => false,
            _ => !nothing_landed,
        };
        Self {
            least,
            most: if copies { 2 } else { 1 },
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.most {
            write!(f, "{}", self.least)
        } else {
            write!(f, "{}..{}", self.least, self.most)
        }
    }
}

/// Where the declaration says that the write key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// On every copy.
    Everywhere,
    /// Nowhere.
    Nowhere,
}

/// What was found at the destination for the messages that were sent.
#[derive(Debug, Default)]
pub(crate) struct Count {
    effects: BTreeMap<String, Vec<Option<String>>>,
}

impl Count {
    pub(crate) fn of(effects: Vec<Effect>) -> Self {
        let mut count = Self::default();
        for effect in effects {
            count.effects.entry(effect.id).or_default().push(effect.key);
        }
        count
    }

    /// Effects of one message.
    pub(crate) fn times(&self, id: &str) -> usize {
        self.effects.get(id).map_or(0, Vec::len)
    }

    /// All effects.
    pub(crate) fn total(&self) -> usize {
        self.effects.values().map(Vec::len).sum()
    }

    /// The key that a message's effects carry, without the item's number.
    pub(crate) fn key(&self, id: &str) -> Option<String> {
        let key = self.effects.get(id)?.first()?.as_ref()?;
        Some(key.split('#').next().unwrap_or_default().to_owned())
    }

    /// Judges: the fewest and the most effects that a message has, or what is wrong in one sentence.
    pub(crate) fn judge(
        &self,
        expected: &[(String, Allowed)],
        keys: Keys,
    ) -> Result<(usize, usize), String> {
        let (mut fewest, mut most) = (usize::MAX, 0);
        for (id, allowed) in expected {
            let times = self.times(id);
            if times < allowed.least {
                return Err(format!(
                    "message {id} has {times} effects and must have at least {}: it is lost",
                    allowed.least
                ));
            }
            if times > allowed.most {
                return Err(format!(
                    "message {id} has {times} effects; allowed: {allowed}"
                ));
            }
            (fewest, most) = (fewest.min(times), most.max(times));
        }
        for (id, found) in &self.effects {
            if !expected.iter().any(|(known, _)| known == id) {
                return Err(format!("an effect of {id:?}, which nobody sent"));
            }
            if keys == Keys::Everywhere {
                one_key(id, found)?;
            }
        }
        Ok((fewest.min(most), most))
    }
}

/// Every copy carries the key, the same one.
fn one_key(id: &str, found: &[Option<String>]) -> Result<(), String> {
    let mut first: Option<&String> = None;
    for (index, key) in found.iter().enumerate() {
        let Some(key) = key else {
            return Err(format!(
                "copy {} of message {id} carries no write key, and the declaration places it on every copy",
                index + 1
            ));
        };
        let digits = key.split('#').next().unwrap_or_default();
        if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!(
                "message {id} carries {key:?}, which is no write key"
            ));
        }
        match first {
            Some(first) if first != key => {
                return Err(format!(
                    "two copies of message {id} carry different write keys, {first} and {key}"
                ));
            }
            _ => first = Some(key),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "00112233445566778899aabbccddeeff";

    fn count(effects: &[(&str, Option<&str>)]) -> Count {
        Count::of(
            effects
                .iter()
                .map(|(id, key)| Effect {
                    id: (*id).to_owned(),
                    key: key.map(str::to_owned),
                })
                .collect(),
        )
    }

    fn judge(effects: &[(&str, Option<&str>)], most: usize) -> Result<(usize, usize), String> {
        let allowed = Allowed { least: 1, most };
        count(effects).judge(&[("a".to_owned(), allowed)], Keys::Everywhere)
    }

    #[test]
    fn lost_copied_foreign_keyless_and_differently_keyed_effects_are_told_apart() {
        assert_eq!(judge(&[("a", Some(KEY))], 1), Ok((1, 1)));
        assert_eq!(judge(&[("a", Some(KEY)), ("a", Some(KEY))], 2), Ok((2, 2)));
        let other = KEY.replace('0', "1");
        for (effects, most, part) in [
            (&[][..], 1, "lost"),
            (&[("a", Some(KEY)), ("a", Some(KEY))][..], 1, "allowed: 1"),
            (&[("a", Some(KEY)), ("b", Some(KEY))][..], 1, "nobody sent"),
            (&[("a", Some(KEY)), ("a", None)][..], 2, "copy 2"),
            (&[("a", Some(KEY)), ("a", Some(&other))][..], 2, "different"),
            (&[("a", Some("x"))][..], 1, "no write key"),
        ] {
            let error = judge(effects, most).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_promise_allows_what_it_says_and_no_more() {
        use Scenario::{AgainOutsideWindow, Clean, CutBeforeRequest, ReplySwallowed};
        let most = |level, scenario| Allowed::after(level, scenario, true).most;
        assert_eq!(most(Level::EffectivelyOnce, ReplySwallowed), 1);
        assert_eq!(most(Level::EffectivelyOnce, AgainOutsideWindow), 2);
        assert_eq!(
            Allowed::after(Level::EffectivelyOnce, AgainOutsideWindow, false),
            Allowed::ONE
        );
        assert_eq!(most(Level::AtLeastOnce, ReplySwallowed), 2);
        assert_eq!(
            Allowed::after(Level::AtLeastOnce, CutBeforeRequest, false),
            Allowed::ONE
        );
        assert_eq!(
            Allowed::after(Level::AtLeastOnceUnconfirmed, Clean, false),
            Allowed::ONE
        );
        assert_eq!(
            Allowed::after(Level::AtLeastOnceUnconfirmed, ReplySwallowed, false).least,
            0
        );
        assert_eq!(most(Level::AtMostOnce, ReplySwallowed), 1);
    }
}
