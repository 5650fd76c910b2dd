//! Level three: a resolved promise beside what an inspection of the live destination found.

use crate::{Level, SendPromise, resolve};
use consign_manifest::{Inspection, RepeatKind, Verdict, Window};
use serde::{Deserialize, Serialize};

/// Level three of a send, as of the last opening of its gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspected {
    /// Never stronger than level two.
    pub level: Level,
    /// How a repeat is dropped.
    pub repeat: RepeatKind,
    /// The window the destination really has, where it said so.
    pub window: Window,
    /// `None` until the first inspection.
    pub verdict: Option<Verdict>,
    /// What was found, one sentence; empty until then.
    pub detail: String,
    /// What an operator should know besides.
    pub warnings: Vec<String>,
    /// The destination contradicts level two: an event is due, and a send that requires
    /// effectively once must not go on as if nothing were.
    pub lowered: bool,
}

/// Level three from level two. `inspection` is `None` before the gate opened for the first time.
#[must_use]
pub fn inspected(promise: &SendPromise, inspection: Option<&Inspection>) -> Inspected {
    let mut result = Inspected {
        level: promise.level,
        repeat: promise.repeat,
        window: promise.window.clone(),
        verdict: inspection.map(|i| i.verdict),
        detail: inspection.map_or_else(String::new, |i| i.detail.clone()),
        warnings: inspection.map_or_else(Vec::new, |i| i.warnings.clone()),
        lowered: false,
    };
    let Some(inspection) = inspection else {
        return result;
    };
    if !resolve::drops(promise.repeat) {
        // Nothing is recognised here, so there is nothing an inspection could take away.
        return result;
    }
    match inspection.verdict {
        Verdict::Contradicted => {
            result.level = promise.level.min(Level::AtLeastOnce);
            result.repeat = RepeatKind::SecondCopy;
            result.window = Window::None;
            result.lowered = result.level < promise.level;
        }
        Verdict::Verified => {
            if let Some(window) = &inspection.window {
                result.window = window.clone();
            }
        }
        Verdict::NotInspected => {}
    }
    result
}

impl Inspected {
    /// On one line: the promise, then how far it is known.
    #[must_use]
    pub fn line(&self) -> String {
        let known = match self.verdict {
            None => "not inspected yet",
            Some(Verdict::Verified) => "verified",
            Some(Verdict::Contradicted) => "contradicted",
            Some(Verdict::NotInspected) => "cannot be inspected",
        };
        let promise = resolve::line(self.level, self.repeat, &self.window);
        if self.detail.is_empty() {
            format!("{promise} ({known})")
        } else {
            format!("{promise} ({known}: {})", self.detail)
        }
    }
}
