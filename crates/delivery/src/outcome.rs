//! What a sink answers for one write: three axes as open `u32` codes, and the reaction they call for.

/// Whether a write took effect. An unknown code reads as [`Applied::MAYBE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied(pub u32);

impl Applied {
    /// The destination confirmed it.
    pub const YES: Self = Self(1);
    /// The network took it; nothing ever confirms.
    pub const HANDED_OVER: Self = Self(2);
    /// It certainly did not take effect.
    pub const NO: Self = Self(3);
    /// It may have taken effect.
    pub const MAYBE: Self = Self(4);
}

/// What a failure says something about. An unknown code reads as [`Scope::WRITE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope(pub u32);

impl Scope {
    /// This write alone.
    pub const WRITE: Self = Self(1);
    /// Every write to the same target.
    pub const TARGET: Self = Self(2);
    /// Every write over the same connection.
    pub const CONNECTION: Self = Self(3);
}

/// When another attempt makes sense. An unknown code reads as [`Advice::NOW`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advice(pub u32);

impl Advice {
    /// Nothing to advise: it succeeded.
    pub const NONE: Self = Self(1);
    /// As soon as the backoff allows.
    pub const NOW: Self = Self(2);
    /// After the time the outcome gives.
    pub const AFTER: Self = Self(3);
    /// Never: the destination refuses this write.
    pub const NEVER: Self = Self(4);
    /// Not until a person acts.
    pub const NEVER_ALONE: Self = Self(5);
}

/// Why a write failed, as the connector put it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detail {
    /// The destination's or connector's own code ("503", "constraint").
    pub code: String,
    /// One sentence, already free of secrets.
    pub message: String,
}

impl Detail {
    /// A detail of `code` and `message`.
    #[must_use]
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
        }
    }
}

/// The answer for one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it took effect.
    pub applied: Applied,
    /// What a failure is about.
    pub scope: Scope,
    /// When to try again.
    pub advice: Advice,
    /// The destination recognised the key and dropped the repeat.
    pub repeat: bool,
    /// With [`Advice::AFTER`]: how long to wait, in milliseconds; 0 leaves it to the backoff.
    pub after_ms: u64,
    /// Why, for a failure.
    pub detail: Option<Box<Detail>>,
}

impl Outcome {
    fn of(applied: Applied, scope: Scope, advice: Advice, detail: Option<Detail>) -> Self {
        Self {
            applied,
            scope,
            advice,
            repeat: false,
            after_ms: 0,
            detail: detail.map(Box::new),
        }
    }

    /// Acknowledged by the destination.
    #[must_use]
    pub fn delivered() -> Self {
        Self::of(Applied::YES, Scope::WRITE, Advice::NONE, None)
    }

    /// Acknowledged as a repeat whose key the destination knew.
    #[must_use]
    pub fn delivered_repeat() -> Self {
        Self {
            repeat: true,
            ..Self::delivered()
        }
    }

    /// Handed to the network; nothing confirms it.
    #[must_use]
    pub fn sent_unconfirmed() -> Self {
        Self::of(Applied::HANDED_OVER, Scope::WRITE, Advice::NONE, None)
    }

    /// The destination asks for a pause of `after_ms`.
    #[must_use]
    pub fn throttled(after_ms: u64) -> Self {
        Self {
            after_ms,
            ..Self::of(Applied::NO, Scope::TARGET, Advice::AFTER, None)
        }
    }

    /// This write failed without effect and may work at once (a lock conflict).
    #[must_use]
    pub fn retry(detail: Detail) -> Self {
        Self::of(Applied::NO, Scope::WRITE, Advice::NOW, Some(detail))
    }

    /// This write failed and may have taken effect (500).
    #[must_use]
    pub fn failed_maybe(detail: Detail) -> Self {
        Self::of(Applied::MAYBE, Scope::WRITE, Advice::NOW, Some(detail))
    }

    /// The target is out of order (502, 504); the write may have taken effect.
    #[must_use]
    pub fn target_failed(detail: Detail) -> Self {
        Self::of(Applied::MAYBE, Scope::TARGET, Advice::NOW, Some(detail))
    }

    /// No answer: a timeout, or cut after sending.
    #[must_use]
    pub fn unknown(detail: Detail) -> Self {
        Self::of(Applied::MAYBE, Scope::CONNECTION, Advice::NOW, Some(detail))
    }

    /// The connection can't be made; nothing was sent.
    #[must_use]
    pub fn down(detail: Detail) -> Self {
        Self::of(Applied::NO, Scope::CONNECTION, Advice::NOW, Some(detail))
    }

    /// The target denies these credentials.
    #[must_use]
    pub fn denied(detail: Detail) -> Self {
        Self::of(
            Applied::NO,
            Scope::TARGET,
            Advice::NEVER_ALONE,
            Some(detail),
        )
    }

    /// The whole connection denies these credentials.
    #[must_use]
    pub fn denied_connection(detail: Detail) -> Self {
        Self {
            scope: Scope::CONNECTION,
            ..Self::denied(detail)
        }
    }

    /// The destination refuses this write for good (400, 422, a constraint).
    #[must_use]
    pub fn refused(detail: Detail) -> Self {
        Self::of(Applied::NO, Scope::WRITE, Advice::NEVER, Some(detail))
    }

    /// The reaction the three axes call for.
    #[must_use]
    pub fn reaction(&self) -> Reaction {
        match (self.applied, self.scope, self.advice) {
            (Applied::YES, _, _) => Reaction::Delivered,
            (Applied::HANDED_OVER, _, _) => Reaction::HandedOver,
            (Applied::NO, _, Advice::AFTER) => Reaction::Throttled,
            (Applied::NO, Scope::TARGET, Advice::NEVER | Advice::NEVER_ALONE) => {
                Reaction::DeniedTarget
            }
            (Applied::NO, Scope::CONNECTION, Advice::NEVER | Advice::NEVER_ALONE) => {
                Reaction::DeniedConnection
            }
            (Applied::NO, Scope::TARGET, _) => Reaction::TargetFailed,
            (Applied::NO, Scope::CONNECTION, _) => Reaction::Down,
            (Applied::NO, _, Advice::NEVER) => Reaction::Refused,
            // A write that only a person can let through, with no word on the target: halting
            // the target is the reading that parks nothing.
            (Applied::NO, _, Advice::NEVER_ALONE) => Reaction::DeniedTarget,
            (Applied::NO, _, _) => Reaction::Failed,
            // Everything else may have taken effect, unknown codes included.
            (_, Scope::TARGET, _) => Reaction::TargetFailed,
            (_, Scope::CONNECTION, _) => Reaction::Unknown,
            (_, _, _) => Reaction::Failed,
        }
    }

    /// Whether the write may have taken effect without a confirmation.
    #[must_use]
    pub fn is_maybe(&self) -> bool {
        !matches!(
            self.applied,
            Applied::YES | Applied::HANDED_OVER | Applied::NO
        )
    }
}

/// How a lane reacts to an outcome. Whether the write may have been applied is a question apart
/// ([`Outcome::is_maybe`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Settle.
    Delivered,
    /// Settle, counted apart; never sent again.
    HandedOver,
    /// Pause the target; nothing is charged.
    Throttled,
    /// Back off this write; charged on evidence.
    Failed,
    /// An outage of the target; charged on evidence.
    TargetFailed,
    /// Silence: the connection's gate closes if nothing was answered meanwhile.
    Unknown,
    /// The gate closes; nothing is charged.
    Down,
    /// The target halts until a person acts; charged on evidence.
    DeniedTarget,
    /// The connection halts until a person acts; charged on evidence.
    DeniedConnection,
    /// Error handler, or park.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail() -> Detail {
        Detail::new("x", "y")
    }

    #[test]
    fn every_shorthand_has_the_reaction_of_the_table() {
        let rows = [
            (Outcome::delivered(), Reaction::Delivered, false),
            (Outcome::delivered_repeat(), Reaction::Delivered, false),
            (Outcome::sent_unconfirmed(), Reaction::HandedOver, false),
            (Outcome::throttled(5), Reaction::Throttled, false),
            (Outcome::retry(detail()), Reaction::Failed, false),
            (Outcome::failed_maybe(detail()), Reaction::Failed, true),
            (
                Outcome::target_failed(detail()),
                Reaction::TargetFailed,
                true,
            ),
            (Outcome::unknown(detail()), Reaction::Unknown, true),
            (Outcome::down(detail()), Reaction::Down, false),
            (Outcome::denied(detail()), Reaction::DeniedTarget, false),
            (
                Outcome::denied_connection(detail()),
                Reaction::DeniedConnection,
                false,
            ),
            (Outcome::refused(detail()), Reaction::Refused, false),
        ];
        for (outcome, reaction, maybe) in rows {
            assert_eq!(outcome.reaction(), reaction, "{outcome:?}");
            assert_eq!(outcome.is_maybe(), maybe, "{outcome:?}");
        }
    }

    #[test]
    fn unknown_codes_read_as_maybe_write_now() {
        let odd = Outcome {
            applied: Applied(77),
            scope: Scope(0),
            advice: Advice(900),
            ..Outcome::delivered()
        };
        assert_eq!(odd.reaction(), Reaction::Failed);
        assert!(odd.is_maybe());
        let never_maybe = Outcome {
            applied: Applied::MAYBE,
            ..Outcome::refused(detail())
        };
        assert_eq!(
            never_maybe.reaction(),
            Reaction::Failed,
            "what may have landed is never refused"
        );
    }
}
