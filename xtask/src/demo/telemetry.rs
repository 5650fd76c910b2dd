//! What the host says about itself, from its status document. Nothing here decides whether webhooks
//! were lost or copied: the destinations are read for that. Names of the document's fields are known
//! in this file alone.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The outcome of a write that the destination recognised as one it has.
const REPEAT: &str = "delivered_as_repeat";

/// The outcomes of writes that left their lane without being delivered.
const UNDELIVERED: [&str; 4] = ["parked", "skipped", "expired", "dropped_dependent"];

/// The parts of the status document that the demo shows.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Status {
    recovery: Recovery,
    lanes: Vec<Lane>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Recovery {
    maybe_in_flight: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Lane {
    id: String,
    pending: u64,
    outcomes: BTreeMap<String, u64>,
}

impl Status {
    /// Asks the host; none when it does not answer or says something else.
    pub fn ask(console: SocketAddr) -> Option<Self> {
        let answer = crate::http::get(&format!("http://{console}/api/v1/status")).ok()?;
        if answer.status != 200 {
            return None;
        }
        serde_json::from_slice(&answer.body).ok()
    }

    /// Writes that may have been on their way when the process before ended.
    pub fn in_flight_at_last_exit(&self) -> u64 {
        self.recovery.maybe_in_flight
    }

    /// Writes without an outcome yet.
    pub fn pending(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.pending).sum()
    }

    /// Writes that a destination recognised as repeats, over all runs of the host.
    pub fn repeats(&self) -> u64 {
        self.count(REPEAT)
    }

    /// Writes that ended without being delivered, in words; empty when there are none.
    pub fn undelivered(&self) -> String {
        let mut found = Vec::new();
        for lane in &self.lanes {
            for outcome in UNDELIVERED {
                match lane.outcomes.get(outcome) {
                    None | Some(0) => {}
                    Some(count) => found.push(format!("{}: {count} {outcome}", lane.id)),
                }
            }
        }
        found.join(", ")
    }

    fn count(&self, outcome: &str) -> u64 {
        let counts = self.lanes.iter().map(|lane| lane.outcomes.get(outcome));
        counts.flatten().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_found_in_the_document() {
        let status: Status = serde_json::from_str(
            r#"{"version": "1", "recovery": {"unclean_exit": true, "pending": 40, "maybe_in_flight": 7},
                "lanes": [
                  {"id": "a/r/one", "pending": 2, "outcomes": {"delivered": 9, "delivered_as_repeat": 3}},
                  {"id": "a/r/two", "pending": 3, "outcomes": {"delivered_as_repeat": 1, "parked": 4, "skipped": 0}}
                ]}"#,
        )
        .unwrap();
        assert_eq!(status.in_flight_at_last_exit(), 7);
        assert_eq!((status.pending(), status.repeats()), (5, 4));
        assert_eq!(status.undelivered(), "a/r/two: 4 parked");
    }
}
