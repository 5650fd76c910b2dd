//! The numbers that cross the boundary and what each means. Unknown numbers are tolerated: a newer
//! plugin may send them, and each type says what they are read as.

/// Declares a code type: an enum inside either side, a `u32` between them.
macro_rules! codes {
    ($(#[$meta:meta])* $name:ident, unknown = $unknown:ident { $($(#[$vmeta:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$vmeta])* $variant,)* }

        impl $name {
            /// The number that crosses.
            #[must_use]
            pub fn code(self) -> u32 {
                match self { $(Self::$variant => $code,)* }
            }

            /// What a number means; a number this build does not know is read as the safe one.
            #[must_use]
            pub fn from_code(code: u32) -> Self {
                match code { $($code => Self::$variant,)* _ => Self::$unknown }
            }

            /// Whether this build knows the number.
            #[must_use]
            pub fn is_known(code: u32) -> bool {
                [$($code),*].contains(&code)
            }
        }
    };
}

codes! {
    /// Whether a write took effect. Unknown numbers read as [`Applied::Maybe`].
    Applied, unknown = Maybe {
        /// The destination confirmed it.
        Yes = 1,
        /// The network took it; nothing ever confirms.
        HandedOver = 2,
        /// It certainly did not.
        No = 3,
        /// It may have.
        Maybe = 4,
    }
}

codes! {
    /// What a failure says something about. Unknown numbers read as [`Scope::Write`].
    Scope, unknown = Write {
        /// This write alone.
        Write = 1,
        /// Every write to the same target.
        Target = 2,
        /// Every write over the same connection.
        Connection = 3,
    }
}

codes! {
    /// When another attempt makes sense. Unknown numbers read as [`Advice::Now`].
    Advice, unknown = Now {
        /// Nothing to advise: it succeeded.
        None = 1,
        /// As soon as the host's backoff allows.
        Now = 2,
        /// After the time the row gives.
        After = 3,
        /// Never: the destination refuses this write.
        Never = 4,
        /// Not until a person acts.
        NeverAlone = 5,
    }
}

codes! {
    /// How a call ended. Unknown numbers read as [`Status::Failed`].
    Status, unknown = Failed {
        /// It did what it should; the reply's fields hold the result.
        Ok = 1,
        /// It failed; the reply's bytes hold the failure as JSON.
        Failed = 2,
        /// It was cancelled, or its deadline passed, and the plugin has dropped it: nothing of
        /// it runs any more.
        Aborted = 3,
        /// The plugin panicked inside it.
        Panicked = 4,
        /// The handle is unknown to the plugin (closed, or never opened).
        NoSuchHandle = 5,
    }
}

codes! {
    /// Why something failed as a whole. Unknown numbers read as [`FailureKind::Other`].
    FailureKind, unknown = Other {
        /// The other side can't be reached.
        Down = 1,
        /// It says no to these credentials.
        Denied = 2,
        /// The configuration is wrong.
        Config = 3,
        /// Anything else.
        Other = 4,
    }
}

codes! {
    /// What became of a message. Unknown numbers read as [`SettleCode::Released`].
    SettleCode, unknown = Released {
        /// Durable in the host: acknowledge it.
        Accepted = 1,
        /// Known already: acknowledge it.
        Repeat = 2,
        /// The host will never take it (4xx).
        Refused = 3,
        /// Lost on purpose or by rule, with an event: never counted as delivered.
        Dropped = 4,
        /// No room now (503).
        Blocked = 5,
        /// Another body came under the same client key (422).
        Conflict = 6,
        /// The first message with this client key is still being accepted (409).
        InFlight = 7,
        /// Given back: it will come again.
        Released = 8,
    }
}

codes! {
    /// What the host asks a source for besides settling. Unknown numbers are ignored by the plugin.
    ControlKind, unknown = Nothing {
        /// Ignored.
        Nothing = 0,
        /// Deliver nothing more for now.
        Pause = 1,
        /// Deliver again.
        Resume = 2,
    }
}

/// Bits of the `flags` fields. Unknown bits are ignored.
pub mod flags {
    /// Outcome: the destination recognised the key.
    pub const OUTCOME_REPEAT: u32 = 1;
    /// Write: an earlier attempt may have landed.
    pub const WRITE_MAY_BE_REPEAT: u32 = 1;
    /// Message: `offset` holds a value.
    pub const MESSAGE_HAS_OFFSET: u32 = 1;
    /// Message: `time_unix_ms` holds a value.
    pub const MESSAGE_HAS_TIME: u32 = 2;
}

/// Numbers of attributes. Unknown ones are skipped.
pub mod attributes {
    /// Of a write or message: W3C `traceparent`, text.
    pub const TRACEPARENT: u32 = 1;
}
