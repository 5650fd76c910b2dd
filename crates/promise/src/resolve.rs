//! Level two: what a declaration comes to for one send of one configuration.
//!
//! The plugin answers for its own configuration ([`Resolved`]); the host then narrows that by what
//! it does with the send: delivery, order, what it may drop, how it treats an ambiguous write.
//! Nothing here widens: a plugin that answers better than it declared is cut back and reported.

use crate::Level;
use consign_manifest::{Promise, RepeatKind, Resolved, SinkDeclaration, Window};
use serde::{Deserialize, Serialize};

/// How a send is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryMode {
    /// Sent before the source is acknowledged; nothing is kept.
    Direct,
    /// Committed to a lane, then sent.
    Buffered,
}

/// A send's order, as far as its promise depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One after the other.
    Strict,
    /// One after the other for each order key.
    ByKey {
        /// Two writes to the same target always have the same order key: the target fields have
        /// no template, or only the order key's own expression.
        serialises_target: bool,
    },
    /// Side by side.
    None,
}

impl Order {
    /// Whether two writes to one target can never overtake each other.
    #[must_use]
    pub fn serialises_target(self) -> bool {
        match self {
            Self::Strict => true,
            Self::ByKey { serialises_target } => serialises_target,
            Self::None => false,
        }
    }
}

/// What becomes of a write that may have landed where a repeat is a second copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnAmbiguous {
    /// It waits for a person after one resend.
    #[default]
    Hold,
    /// It is parked after one resend.
    Park,
    /// It is resent as often as needed.
    Retry,
}

/// What the lane does past a parked write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterPark {
    /// Goes on.
    #[default]
    Continue,
    /// Holds the writes with the same order key.
    HoldKey,
}

/// What the host does with a send, as far as its promise depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendFacts {
    /// `delivery:`.
    pub delivery: DeliveryMode,
    /// `order:`.
    pub order: Order,
    /// `when_full: drop`.
    pub drops_when_full: bool,
    /// `expires_after:`, in milliseconds.
    pub expires_after_ms: Option<u64>,
    /// An error handler that may skip a write.
    pub may_skip: bool,
    /// `on_ambiguous:`.
    pub on_ambiguous: OnAmbiguous,
    /// `on_window_passed: park` (otherwise resend).
    pub parks_past_window: bool,
    /// `after_park:`.
    pub after_park: AfterPark,
    /// Names of target fields whose template gives another text each time it is rendered (`now()`).
    pub nondeterministic_target_fields: Vec<String>,
    /// A template of a target field contains the message's name (`.id`), so that a message which its
    /// source does not name lands elsewhere each time it is handed over.
    pub key_names_target: bool,
    /// The host keeps this send's batch boundaries durable before the first send.
    pub sealed_batches: bool,
}

impl Default for SendFacts {
    /// A send that sets nothing: buffered, strict order, nothing dropped.
    fn default() -> Self {
        Self {
            delivery: DeliveryMode::Buffered,
            order: Order::Strict,
            drops_when_full: false,
            expires_after_ms: None,
            may_skip: false,
            on_ambiguous: OnAmbiguous::Hold,
            parks_past_window: false,
            after_park: AfterPark::Continue,
            nondeterministic_target_fields: Vec::new(),
            key_names_target: false,
            sealed_batches: false,
        }
    }
}

/// Level two of a send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendPromise {
    /// Level one, for comparison.
    pub declared: Level,
    /// What this configuration gets.
    pub level: Level,
    /// How a repeat is dropped.
    pub repeat: RepeatKind,
    /// How long a repeat is recognised; meaningful where one is dropped.
    pub window: Window,
    /// The plugin's own reason, one sentence.
    pub reason: String,
    /// Why the host gives less than the plugin's answer, a sentence each; empty where it does not.
    pub narrowed: Vec<String>,
    /// What is true besides the level ("unless your rule drops it: `when_full: drop`").
    pub caveats: Vec<String>,
    /// Another write key names another target.
    pub key_names_target: bool,
    /// Errors of the configuration.
    pub faults: Vec<String>,
    /// Where the plugin answered better than it declared. It was cut back; the plugin is at fault.
    pub overclaims: Vec<String>,
    /// `delivery:`, kept for level four.
    pub delivery: DeliveryMode,
}

/// Level one: what the operation is at its best.
#[must_use]
pub fn declared_level(declaration: &SinkDeclaration) -> Level {
    Level::of(declaration.promise, declaration.unconfirmed)
}

/// Level two of a send, from the plugin's answer and the host's own rules.
#[must_use]
pub fn resolve(
    declaration: &SinkDeclaration,
    resolved: &Resolved,
    facts: &SendFacts,
) -> SendPromise {
    let mut promise = clamp(declaration, resolved, facts);
    narrow(&mut promise, declaration, resolved, facts);
    promise.caveats = caveats(&promise, facts);
    promise
}

/// The plugin's answer, cut back to its declaration.
fn clamp(declaration: &SinkDeclaration, resolved: &Resolved, facts: &SendFacts) -> SendPromise {
    let declared = declared_level(declaration);
    let answered = Level::of(resolved.promise, resolved.unconfirmed);
    let mut overclaims = Vec::new();
    if resolved.promise == Promise::EffectivelyOnce && resolved.unconfirmed {
        overclaims.push("the plugin answers effectively once for what nobody confirms".to_owned());
    }
    if answered > declared {
        overclaims.push(format!(
            "the plugin declares {declared} and answers {answered}"
        ));
    }
    if rank(resolved.repeat) > rank(declaration.repeat.kind) {
        overclaims.push(format!(
            "the plugin declares that {} and answers that {}",
            repeat_words(declaration.repeat.kind),
            repeat_words(resolved.repeat)
        ));
    }
    let mut level = answered.min(declared);
    let mut repeat = if rank(resolved.repeat) > rank(declaration.repeat.kind) {
        declaration.repeat.kind
    } else {
        resolved.repeat
    };
    if level == Level::EffectivelyOnce && !drops(repeat) {
        overclaims.push(format!(
            "the plugin answers effectively once although {}",
            repeat_words(repeat)
        ));
        level = Level::AtLeastOnce;
    }
    if level != Level::EffectivelyOnce && drops(repeat) {
        // A drop that the plugin itself does not stand by is worth no more than none.
        repeat = RepeatKind::SecondCopy;
    }
    let mut window = resolved.window.clone();
    if drops(repeat) && longer(&resolved.window, &declaration.repeat.window) {
        overclaims.push(format!(
            "the plugin declares \"{}\" and answers \"{}\"",
            declaration.repeat.window, resolved.window
        ));
        window = declaration.repeat.window.clone();
    }
    if !drops(repeat) {
        window = Window::None;
    }
    SendPromise {
        declared,
        level,
        repeat,
        window,
        reason: resolved.reason.trim().trim_end_matches('.').to_owned(),
        narrowed: Vec::new(),
        caveats: Vec::new(),
        key_names_target: facts.key_names_target,
        faults: resolved.faults.clone(),
        overclaims,
        delivery: facts.delivery,
    }
}

/// The host's own rules, each with its sentence.
fn narrow(
    promise: &mut SendPromise,
    declaration: &SinkDeclaration,
    resolved: &Resolved,
    facts: &SendFacts,
) {
    if promise.level == Level::AtMostOnce && facts.delivery == DeliveryMode::Buffered {
        promise.faults.push(
            "at most once is never repeated, so it cannot be buffered: set `delivery: direct`"
                .to_owned(),
        );
    }
    if promise.level == Level::EffectivelyOnce {
        let mut reasons = Vec::new();
        if declaration.sealed && !facts.sealed_batches {
            reasons.push(match facts.delivery {
                DeliveryMode::Buffered => {
                    "the key names a whole request and this send's batches are not sealed"
                        .to_owned()
                }
                DeliveryMode::Direct => {
                    "the key names a whole request and a direct send's requests are not durable"
                        .to_owned()
                }
            });
        }
        if promise.repeat == RepeatKind::SameTarget && !facts.order.serialises_target() {
            reasons.push(match facts.order {
                Order::ByKey { .. } => {
                    "an older write may replace a newer: writes to one target can have different \
                     order keys (order by what names the target, or `order: strict`)"
                        .to_owned()
                }
                _ => {
                    "an older write may replace a newer: `order: none` sends writes to one target side by side"
                        .to_owned()
                }
            });
        }
        let unstable: Vec<String> = facts
            .nondeterministic_target_fields
            .iter()
            .filter(|field| names_target(&resolved.target_fields, field))
            .map(|field| format!("`{field}`"))
            .collect();
        if !unstable.is_empty() {
            reasons.push(format!(
                "{} is different each time it is rendered, so a message that is handed over again goes to another target",
                unstable.join(", ")
            ));
        }
        if !reasons.is_empty() {
            promise.level = Level::AtLeastOnce;
            promise.repeat = RepeatKind::SecondCopy;
            promise.window = Window::None;
            promise.narrowed = reasons;
        }
    }
}

/// An empty list from the plugin means that it named none, so that every reported field counts.
fn names_target(target_fields: &[String], field: &str) -> bool {
    target_fields.is_empty() || target_fields.iter().any(|name| name == field)
}

fn caveats(promise: &SendPromise, facts: &SendFacts) -> Vec<String> {
    let mut caveats = Vec::new();
    let mut rules = Vec::new();
    if facts.drops_when_full {
        rules.push("`when_full: drop`".to_owned());
    }
    if let Some(ms) = facts.expires_after_ms {
        rules.push(format!("`expires_after: {}`", duration(ms)));
    }
    if facts.may_skip {
        rules.push("an error handler that skips".to_owned());
    }
    if !rules.is_empty() {
        caveats.push(format!("unless your rule drops it: {}", rules.join(", ")));
    }
    if promise.repeat == RepeatKind::SecondCopy && facts.delivery == DeliveryMode::Buffered {
        caveats.push(match facts.on_ambiguous {
            OnAmbiguous::Retry => "may arrive several times: `on_ambiguous: retry`".to_owned(),
            OnAmbiguous::Hold | OnAmbiguous::Park => {
                "at most one extra copy for each interruption".to_owned()
            }
        });
    }
    if drops(promise.repeat) && promise.window != Window::None {
        caveats.push(if facts.parks_past_window {
            "a write that may have landed and whose window has passed is parked".to_owned()
        } else {
            "a write that may have landed and whose window has passed is sent again, and may then be a second copy".to_owned()
        });
    }
    if promise.repeat == RepeatKind::SameTarget
        && facts.delivery == DeliveryMode::Buffered
        && facts.after_park == AfterPark::Continue
    {
        caveats.push(
            "a parked write that is sent again later may replace a newer one: `after_park: continue`"
                .to_owned(),
        );
    }
    caveats
}

impl SendPromise {
    /// The level with how repeats are dropped, on one line: `effectively once, by the write key, no window`.
    #[must_use]
    pub fn line(&self) -> String {
        line(self.level, self.repeat, &self.window)
    }

    /// Why it is what it is: the plugin's reason, then the host's.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.reason.as_str())
            .filter(|reason| !reason.is_empty())
            .chain(self.narrowed.iter().map(String::as_str))
    }
}

pub(crate) fn line(level: Level, repeat: RepeatKind, window: &Window) -> String {
    match (level, repeat) {
        (Level::EffectivelyOnce, RepeatKind::WriteKey) => {
            format!("{level}, by the write key, {window}")
        }
        (Level::EffectivelyOnce, RepeatKind::SameTarget) => {
            format!("{level}, the same target, {window}")
        }
        _ => level.to_string(),
    }
}

/// Whether a repeat is dropped at all.
pub(crate) fn drops(repeat: RepeatKind) -> bool {
    matches!(repeat, RepeatKind::SameTarget | RepeatKind::WriteKey)
}

/// How much a mechanism asks of the host: a drop by key needs nothing, one by target needs order.
pub(crate) fn rank(repeat: RepeatKind) -> u8 {
    match repeat {
        RepeatKind::WriteKey => 2,
        RepeatKind::SameTarget => 1,
        RepeatKind::SecondCopy | RepeatKind::NotApplicable => 0,
    }
}

fn repeat_words(repeat: RepeatKind) -> &'static str {
    match repeat {
        RepeatKind::WriteKey => "a repeat is dropped by the write key",
        RepeatKind::SameTarget => "a repeat lands on the same target",
        RepeatKind::SecondCopy => "a repeat is a second copy",
        RepeatKind::NotApplicable => "nothing is repeated",
    }
}

/// Whether `a` is longer than `b`, as far as two windows can be compared.
pub(crate) fn longer(a: &Window, b: &Window) -> bool {
    match (a, b) {
        (Window::DurationMs(a), Window::DurationMs(b)) => a > b,
        (Window::Count(a), Window::Count(b)) => a > b,
        (Window::None, b) => *b != Window::None,
        _ => false,
    }
}

/// A duration as an operator writes it.
pub(crate) fn duration(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
    ];
    UNITS
        .iter()
        .find(|(size, _)| ms >= *size && ms.is_multiple_of(*size))
        .map_or_else(
            || format!("{ms}ms"),
            |(size, unit)| format!("{}{unit}", ms / size),
        )
}
