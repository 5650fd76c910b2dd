//! A route's promise: the worst of its sends.

use crate::{
    EndToEnd, Inspected, Level, SendPromise, Shortfall, SourceFacts, end_to_end, inspected, require,
};
use consign_manifest::Inspection;
use serde::{Deserialize, Serialize};

/// Levels two to four of one send, for `consign check`, `consign promises` and the console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendLevels {
    /// The send's id.
    pub send: String,
    /// Its operation.
    pub operation: String,
    /// The send it waits for.
    pub after: Option<String>,
    /// Level two, which repeats level one.
    pub resolved: SendPromise,
    /// Level three; `verdict` is `None` before the first inspection.
    pub inspected: Inspected,
    /// Level four.
    pub end_to_end: EndToEnd,
    /// `require:` of the send, or of its route.
    pub require: Option<Level>,
    /// Set where the requirement is not met.
    pub shortfall: Option<Shortfall>,
}

impl SendLevels {
    /// All levels of one send. `inspection` is what the live destination said, where it was asked.
    #[must_use]
    pub fn new(
        send: &str,
        operation: &str,
        source: &SourceFacts,
        resolved: SendPromise,
        inspection: Option<&Inspection>,
        require_level: Option<Level>,
    ) -> Self {
        let inspected = inspected(&resolved, inspection);
        let end_to_end = end_to_end(source, &resolved, Some(&inspected));
        let shortfall = require_level
            .and_then(|level| require(level, &resolved, &inspected, &end_to_end).err());
        Self {
            send: send.to_owned(),
            operation: operation.to_owned(),
            after: None,
            resolved,
            inspected,
            end_to_end,
            require: require_level,
            shortfall,
        }
    }

    /// Marks a dependent: it is sent once `parent` is delivered.
    #[must_use]
    pub fn after(mut self, parent: &str) -> Self {
        self.end_to_end.notes.push(format!(
            "sent once `{parent}` is delivered, and never before"
        ));
        self.after = Some(parent.to_owned());
        self
    }

    /// Every error of the configuration that concerns this send's promise.
    pub fn faults(&self) -> impl Iterator<Item = String> + '_ {
        self.resolved
            .faults
            .iter()
            .cloned()
            .chain(
                self.end_to_end
                    .fault
                    .iter()
                    .filter(|_| self.resolved.faults.is_empty())
                    .cloned(),
            )
            .chain(self.shortfall.iter().map(ToString::to_string))
    }

    /// The send as `consign check` prints it: the promise, then indented why.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{}: {}", self.send, self.resolved.line())];
        lines.extend(self.resolved.reasons().map(|r| format!("  because {r}")));
        lines.extend(self.resolved.caveats.iter().map(|c| format!("  {c}")));
        if self.inspected.verdict.is_some() {
            lines.push(format!("  inspected: {}", self.inspected.line()));
        }
        lines.push(format!("  end to end: {}", self.end_to_end.line()));
        lines.extend(self.end_to_end.notes.iter().map(|n| format!("    {n}")));
        lines.extend(
            self.resolved
                .overclaims
                .iter()
                .map(|o| format!("  plugin at fault: {o}")),
        );
        lines
    }
}

/// Level four of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutePromise {
    /// The worst send's level; `None` for a route that sends nothing.
    pub level: Option<Level>,
    /// That send's id.
    pub worst: Option<String>,
    /// The promise begins at acceptance.
    pub from_acceptance: bool,
    /// All sends, in order.
    pub sends: Vec<SendLevels>,
}

/// A route's promise from its sends; of equally weak sends the first is named.
#[must_use]
pub fn route(sends: Vec<SendLevels>) -> RoutePromise {
    let worst = sends.iter().min_by_key(|s| s.end_to_end.level);
    RoutePromise {
        level: worst.map(|s| s.end_to_end.level),
        worst: worst.map(|s| s.send.clone()),
        from_acceptance: sends.iter().any(|s| s.end_to_end.from_acceptance),
        sends,
    }
}

impl RoutePromise {
    /// On one line: `at least once (send "receipt")`, or that nothing leaves.
    #[must_use]
    pub fn line(&self) -> String {
        let (Some(level), Some(worst)) = (self.level, &self.worst) else {
            return "nothing leaves: the message is acknowledged".to_owned();
        };
        let from = if self.from_acceptance {
            " from acceptance"
        } else {
            ""
        };
        if self.sends.len() == 1 {
            format!("{level}{from}")
        } else {
            format!("{level}{from} (by its weakest send, {worst})")
        }
    }
}
