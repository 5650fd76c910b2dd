//! What became of a write, and why something failed.

pub use consign_abi::{Advice, Applied, FailureKind, Scope};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Why: a stable code for machines and a sentence for people.
///
/// Anything `(code, message)` becomes one: `Outcome::refused(("constraint", "duplicate invoice"))`.
/// A plain string becomes a detail with the code `error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detail {
    /// Short, stable, `snake_case`: the driver's or the server's own code where it has one.
    pub code: String,
    /// What happened, for a person. Never contains a secret.
    pub message: String,
}

impl Detail {
    /// A detail from its two parts.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl<C: Into<String>, M: Into<String>> From<(C, M)> for Detail {
    fn from((code, message): (C, M)) -> Self {
        Self::new(code, message)
    }
}

impl From<&str> for Detail {
    fn from(message: &str) -> Self {
        Self::new("error", message)
    }
}

impl From<String> for Detail {
    fn from(message: String) -> Self {
        Self::new("error", message)
    }
}

/// What became of one write, on three axes: did it apply, what does it say something about, when
/// does another try make sense. Use the shorthands; the rules behind them are in
/// docs/architecture.md, "Delivery".
///
/// ```
/// use consign_plugin::{Advice, Applied, Outcome, Scope};
/// use std::time::Duration;
///
/// fn of_status(status: u16, retry_after: Option<Duration>) -> Outcome {
///     match (status, retry_after) {
///         (200..300, _) => Outcome::delivered(),
///         (429 | 503, Some(after)) => Outcome::throttled(after),
///         (401 | 403, _) => Outcome::denied(("denied", format!("it said {status}"))),
///         (400..500, _) => Outcome::refused(("refused", format!("it said {status}"))),
///         // Never "not applied": the server may have failed after it stored the write.
///         _ => Outcome::failed_maybe(("failed", format!("it said {status}"))),
///     }
/// }
///
/// assert_eq!(of_status(422, None).advice(), Advice::Never);
/// assert_eq!(of_status(403, None).scope(), Scope::Target);
/// assert_eq!(of_status(500, None).applied(), Applied::Maybe);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    applied: Applied,
    scope: Scope,
    advice: Advice,
    repeat: bool,
    after: Option<Duration>,
    detail: Option<Detail>,
}

impl Outcome {
    fn new(applied: Applied, scope: Scope, advice: Advice, detail: Option<Detail>) -> Self {
        Self {
            applied,
            scope,
            advice,
            repeat: false,
            after: None,
            detail,
        }
    }

    /// The destination acknowledged it. The lane settles.
    #[must_use]
    pub fn delivered() -> Self {
        Self::new(Applied::Yes, Scope::Write, Advice::None, None)
    }

    /// The destination acknowledged it and said that it knew the key: no second effect.
    #[must_use]
    pub fn delivered_repeat() -> Self {
        let mut outcome = Self::delivered();
        outcome.repeat = true;
        outcome
    }

    /// The network took it and nothing ever confirms (raw TCP, syslog). Never sent again.
    #[must_use]
    pub fn sent_unconfirmed() -> Self {
        Self::new(Applied::HandedOver, Scope::Write, Advice::None, None)
    }

    /// Not applied: the target asks for a pause of `after` (429, 503 with Retry-After). The host
    /// clamps it to one hour. No attempt is charged.
    #[must_use]
    pub fn throttled(after: Duration) -> Self {
        let detail = Detail::new("throttled", "the destination asks for a pause");
        let mut outcome = Self::new(Applied::No, Scope::Target, Advice::After, Some(detail));
        outcome.after = Some(after);
        outcome
    }

    /// Not applied, another try soon makes sense (lock conflict, optimistic failure).
    pub fn retry(detail: impl Into<Detail>) -> Self {
        Self::failed(Applied::No, Scope::Write, Advice::Now, detail)
    }

    /// It may have been applied; the failure is about this write (500).
    pub fn failed_maybe(detail: impl Into<Detail>) -> Self {
        Self::failed(Applied::Maybe, Scope::Write, Advice::Now, detail)
    }

    /// It may have been applied; the target is in trouble (502, 504, 503 without a date).
    pub fn target_failed(detail: impl Into<Detail>) -> Self {
        Self::failed(Applied::Maybe, Scope::Target, Advice::Now, detail)
    }

    /// It may have been applied: the answer never came (timeout, cut after sending).
    pub fn unknown(detail: impl Into<Detail>) -> Self {
        Self::failed(Applied::Maybe, Scope::Connection, Advice::Now, detail)
    }

    /// Certainly not applied: the connection is down (connect refused).
    pub fn down(detail: impl Into<Detail>) -> Self {
        Self::failed(Applied::No, Scope::Connection, Advice::Now, detail)
    }

    /// Not applied: the target says no to who we are (403, a missing grant). A person must act.
    /// See [`Outcome::of_connection`].
    pub fn denied(detail: impl Into<Detail>) -> Self {
        Self::failed(Applied::No, Scope::Target, Advice::NeverAlone, detail)
    }

    /// Not applied: the destination refuses this write for what it is (400, 422, a constraint).
    pub fn refused(detail: impl Into<Detail>) -> Self {
        Self::failed(Applied::No, Scope::Write, Advice::Never, detail)
    }

    fn failed(applied: Applied, scope: Scope, advice: Advice, detail: impl Into<Detail>) -> Self {
        Self::new(applied, scope, advice, Some(detail.into()))
    }

    /// Says that the failure is about the whole connection: `Outcome::denied(d).of_connection()`
    /// for credentials that are no longer accepted at all.
    #[must_use]
    pub fn of_connection(mut self) -> Self {
        self.scope = Scope::Connection;
        self
    }

    /// Adds or replaces the detail, of any outcome.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Detail>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Whether it took effect.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.applied
    }

    /// What the failure says something about.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// When another try makes sense.
    #[must_use]
    pub fn advice(&self) -> Advice {
        self.advice
    }

    /// Whether the destination recognised the key.
    #[must_use]
    pub fn is_repeat(&self) -> bool {
        self.repeat
    }

    /// The pause the target asks for, with [`Outcome::throttled`].
    #[must_use]
    pub fn after(&self) -> Option<Duration> {
        self.after
    }

    /// The failure's code and message.
    #[must_use]
    pub fn detail(&self) -> Option<&Detail> {
        self.detail.as_ref()
    }

    /// The failure's code, or "".
    #[must_use]
    pub fn code(&self) -> &str {
        self.detail.as_ref().map_or("", |d| d.code.as_str())
    }
}

/// The outcome of writes for which there is no connection (it could not be dialled, there is no session, no
/// token): certainly not applied, and about the whole connection. Where a person must act, nothing is tried
/// by itself.
///
/// ```
/// use consign_plugin::{Advice, Applied, Failure, Outcome};
///
/// let outcome = Outcome::from(Failure::denied(("auth", "the server does not know this user")));
/// assert_eq!((outcome.applied(), outcome.advice()), (Applied::No, Advice::NeverAlone));
/// assert_eq!(Outcome::from(Failure::down("gone")).advice(), Advice::Now);
/// ```
impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        let detail = Detail::new(failure.code, failure.message);
        match failure.kind {
            FailureKind::Denied | FailureKind::Config => Self::denied(detail).of_connection(),
            _ => Self::down(detail),
        }
    }
}

/// Why connecting, probing, opening or running failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What the host does with it: [`FailureKind::Down`] is tried again with backoff;
    /// [`FailureKind::Denied`] waits for a person (and tries at the backoff cap);
    /// [`FailureKind::Config`] halts until the configuration changes; [`FailureKind::Other`] is
    /// tried again with backoff.
    pub kind: FailureKind,
    /// Short, stable, `snake_case`.
    pub code: String,
    /// What happened, for a person. Never contains a secret.
    pub message: String,
}

impl Failure {
    /// The other side can't be reached.
    pub fn down(detail: impl Into<Detail>) -> Self {
        Self::new(FailureKind::Down, detail)
    }

    /// It says no to these credentials.
    pub fn denied(detail: impl Into<Detail>) -> Self {
        Self::new(FailureKind::Denied, detail)
    }

    /// The configuration is wrong.
    pub fn config(detail: impl Into<Detail>) -> Self {
        Self::new(FailureKind::Config, detail)
    }

    /// Anything else.
    pub fn other(detail: impl Into<Detail>) -> Self {
        Self::new(FailureKind::Other, detail)
    }

    /// A failure of this kind.
    pub fn new(kind: FailureKind, detail: impl Into<Detail>) -> Self {
        let Detail { code, message } = detail.into();
        Self {
            kind,
            code,
            message,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Failure {}
