//! A send: one target operation of a route, with its order, retries, batches and limits.

use super::{OnFailure, Settings};
use crate::node::Node;
use crate::read::{FromNode, read_struct, wrong};
use crate::{ByteSize, HumanDuration, Place, Problem, Text};
use schemars::JsonSchema;
use serde::Serialize;

/// One target operation of a route.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields, extend("required" = ["id", "connection", "operation"]))]
pub struct Send {
    /// Unique in its route, and part of the lane's identity: it outlives restarts.
    pub id: Text,
    /// A connection's name.
    pub connection: Text,
    /// A sink operation of its connector (`nats.publish`).
    pub operation: Text,
    /// The operation's own settings. `{{ … }}` in a field that takes templates is a VRL expression,
    /// rendered once, when the message is accepted.
    pub config: Settings,
    /// `buffered` (default): durable before the source is acknowledged. `direct`: sent while the
    /// source waits.
    pub delivery: Delivery,
    /// `strict` (default): one at a time, as they came. `by_key`: so per value of a VRL
    /// expression. `none`: as fast as they go.
    pub order: Order,
    /// When to try again.
    pub retry: Retry,
    /// What one request carries.
    pub batch: Batch,
    /// How long one request may take. Default 30s.
    pub timeout: HumanDuration,
    /// Writes in flight at a time. Left out: twice `batch.max_writes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_in_flight: Option<u32>,
    /// Decides what becomes of a write that is exhausted or refused. Left out: the route's, the
    /// adapter's, or Failed messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// A class's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Text>,
    /// Space for pending writes. Default 1GiB.
    pub quota: ByteSize,
    /// `block` (default): a full quota blocks the source. `drop`: newer writes are lost.
    pub when_full: WhenFull,
    /// The least promise this send must keep, else the configuration is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require: Option<Require>,
    /// The id of a send of this route that must be delivered first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Text>,
    /// What a parent's skip does to its dependents: `drop` them (default) or `release` them.
    pub when_parent_skipped: ParentSkipped,
    /// A pending write this old is given up, by the wall clock: an explicit loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<HumanDuration>,
    /// What becomes of a write that may have been applied where a repeat would be a second copy,
    /// after its one resend: `hold` (default), `park`, or `retry`, which may deliver several times.
    pub on_ambiguous: OnAmbiguous,
    /// Once the destination may no longer recognise a repeat: `resend` or `park`. Left out:
    /// `resend`, or `park` under `require: effectively_once`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_window_passed: Option<OnWindowPassed>,
    /// After a write parks: `continue` (default) with the next, or `hold_key`, which holds back
    /// what has the same order key.
    pub after_park: AfterPark,
    /// Lanes (`adapter/route/send`) or ids in this route that this send had before: their backlog
    /// is taken over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub formerly: Vec<Text>,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for Send {
    fn default() -> Self {
        Self {
            id: Text::default(),
            connection: Text::default(),
            operation: Text::default(),
            config: Settings::default(),
            delivery: Delivery::default(),
            order: Order::default(),
            retry: Retry::default(),
            batch: Batch::default(),
            timeout: HumanDuration::from_ms(30_000),
            max_in_flight: None,
            on_failure: None,
            class: None,
            quota: ByteSize::from_bytes(1 << 30),
            when_full: WhenFull::default(),
            require: None,
            after: None,
            when_parent_skipped: ParentSkipped::default(),
            expires_after: None,
            on_ambiguous: OnAmbiguous::default(),
            on_window_passed: None,
            after_park: AfterPark::default(),
            formerly: Vec::new(),
            place: Place::default(),
        }
    }
}

read_struct!(Send {
    id = "id" value,
    connection = "connection" value,
    operation = "operation" value,
    config = "config" value,
    delivery = "delivery" value,
    order = "order" value,
    retry = "retry" value,
    batch = "batch" value,
    timeout = "timeout" value,
    max_in_flight = "max_in_flight" value,
    on_failure = "on_failure" value,
    class = "class" value,
    quota = "quota" value,
    when_full = "when_full" value,
    require = "require" value,
    after = "after" value,
    when_parent_skipped = "when_parent_skipped" value,
    expires_after = "expires_after" value,
    on_ambiguous = "on_ambiguous" value,
    on_window_passed = "on_window_passed" value,
    after_park = "after_park" value,
    formerly = "formerly" list,
});

impl Send {
    /// Writes in flight at a time, the default filled in.
    #[must_use]
    pub fn in_flight_limit(&self) -> u32 {
        self.max_in_flight
            .unwrap_or_else(|| self.batch.max_writes.saturating_mul(2))
            .max(1)
    }

    /// What happens once the window has passed, the default filled in.
    #[must_use]
    pub fn window_passed(&self, route_requires: Option<Require>) -> OnWindowPassed {
        let strict = [self.require, route_requires].contains(&Some(Require::EffectivelyOnce));
        self.on_window_passed.unwrap_or(if strict {
            OnWindowPassed::Park
        } else {
            OnWindowPassed::Resend
        })
    }
}

/// When to try a write again.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Retry {
    /// Attempts of one write, charged on evidence that the write and not its target is at fault.
    /// Default 5, at least 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_attempts: u32,
    /// How long after the first attempt, counted while the gate is open. Left out: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<HumanDuration>,
    /// Waits between attempts: exponential with full jitter.
    pub backoff: Backoff,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            max_age: None,
            backoff: Backoff::default(),
            place: Place::default(),
        }
    }
}

read_struct!(Retry {
    max_attempts = "max_attempts" value,
    max_age = "max_age" value,
    backoff = "backoff" value,
});

/// Waits between attempts.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Backoff {
    /// The first wait. Default 500ms, at least 1ms.
    pub initial: HumanDuration,
    /// The longest wait. Default 1m, at least `initial`.
    pub max: HumanDuration,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial: HumanDuration::from_ms(500),
            max: HumanDuration::from_ms(60_000),
            place: Place::default(),
        }
    }
}

read_struct!(Backoff {
    initial = "initial" value,
    max = "max" value,
});

/// What one request carries.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(default, deny_unknown_fields)]
pub struct Batch {
    /// Writes in one request. Default 100, at least 1.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_writes: u32,
    /// Bytes in one request; a single larger write still goes alone. Default 4MiB.
    pub max_bytes: ByteSize,
    /// How long to wait for more. Default 0: what is there goes.
    pub linger: HumanDuration,
    #[serde(skip)]
    #[schemars(skip)]
    pub place: Place,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            max_writes: 100,
            max_bytes: ByteSize::from_bytes(4 << 20),
            linger: HumanDuration::default(),
            place: Place::default(),
        }
    }
}

read_struct!(Batch {
    max_writes = "max_writes" value,
    max_bytes = "max_bytes" value,
    linger = "linger" value,
});

/// In which order writes of a send go out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One at a time, as they came.
    #[default]
    Strict,
    /// As fast as they go.
    None,
    /// One at a time per value of this VRL expression.
    ByKey(Text),
}

impl FromNode for Order {
    fn from_node(node: &Node) -> Result<Self, Problem> {
        if let Some(expression) = node.get("by_key") {
            return Text::from_node(expression).map(Self::ByKey);
        }
        match node.text().map(Text::as_str) {
            Some("strict") => Ok(Self::Strict),
            Some("none") => Ok(Self::None),
            _ => Err(wrong(node, "`strict`, `none` or `{ by_key: EXPRESSION }`")),
        }
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)*
        }

        impl FromNode for $type {
            fn from_node(node: &Node) -> Result<Self, Problem> {
                match node.text().map(Text::as_str) {
                    $(Some($word) => Ok(Self::$variant),)*
                    _ => Err(wrong(node, &crate::nearest::one_of([$($word),*]))),
                }
            }
        }
    };
    ($(#[$doc:meta])* $type:ident = $default:ident { $($body:tt)* }) => {
        words!($(#[$doc])* $type { $($body)* });

        impl Default for $type {
            fn default() -> Self {
                Self::$default
            }
        }
    };
}

words!(
    /// Whether a write is made durable first.
    Delivery = Buffered {
        /// Durable before the source is acknowledged.
        Buffered = "buffered",
        /// Sent while the source waits.
        Direct = "direct",
    }
);
words!(
    /// What a full quota does.
    WhenFull = Block {
        /// Blocks the source, and so its sibling sends.
        Block = "block",
        /// Drops newer writes: an explicit loss.
        Drop = "drop",
    }
);
words!(
    /// The least promise that must be kept.
    Require {
        /// One effect per write.
        EffectivelyOnce = "effectively_once",
        /// No loss.
        AtLeastOnce = "at_least_once",
    }
);
words!(
    /// What becomes of a write that may have been applied, after its one resend.
    OnAmbiguous = Hold {
        /// Waits for evidence.
        Hold = "hold",
        /// Parks as `may_have_landed`.
        Park = "park",
        /// Sends again: may arrive several times.
        Retry = "retry",
    }
);
words!(
    /// What becomes of a maybe-applied write once the destination may not recognise a repeat.
    OnWindowPassed {
        /// Sends again, as at least once, with an event.
        Resend = "resend",
        /// Parks it.
        Park = "park",
    }
);
words!(
    /// What follows a parked write.
    AfterPark = Continue {
        /// The next write.
        Continue = "continue",
        /// Nothing of the same order key, until a person acts.
        HoldKey = "hold_key",
    }
);
words!(
    /// What a skipped parent means for its dependents.
    ParentSkipped = Drop {
        /// They are dropped, with an event.
        Drop = "drop",
        /// They are released.
        Release = "release",
    }
);
