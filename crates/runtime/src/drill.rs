//! Drills: for a while, a connection behaves as if its destination were away. The destination itself is
//! not touched.
//!
//! A plain drill answers every request and probe of the connection as refused, before it leaves. With
//! swallowed replies requests go out and what is answered is thrown away, so that writes land and
//! nobody knows: what follows shows whether the destination drops the repeats.

use crate::clock::monotonic_ms;
use consign_delivery::ConnectionId;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// What a request hears in a drill.
pub const WHY: &str = "a drill keeps the destination away";

/// Drills under way.
#[derive(Debug, Default)]
pub struct Drills {
    running: Mutex<BTreeMap<u32, Drill>>,
}

/// One drill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Drill {
    until_ms: u64,
    swallow: bool,
}

impl Drills {
    /// Starts one; false while another runs on the connection.
    pub fn start(&self, connection: ConnectionId, for_ms: u64, swallow: bool) -> bool {
        let mut running = self.running.lock();
        let now = monotonic_ms();
        if running
            .get(&connection.0)
            .is_some_and(|drill| drill.until_ms > now)
        {
            return false;
        }
        let until_ms = now.saturating_add(for_ms);
        running.insert(connection.0, Drill { until_ms, swallow });
        true
    }

    fn get(&self, connection: ConnectionId) -> Option<Drill> {
        let running = self.running.lock();
        let drill = running.get(&connection.0).copied()?;
        // Its end does not wait for a timer.
        (drill.until_ms > monotonic_ms()).then_some(drill)
    }

    /// Whether a drill runs on it.
    pub fn is_on(&self, connection: ConnectionId) -> bool {
        self.get(connection).is_some()
    }

    /// Whether requests are answered as refused.
    pub fn keeps_away(&self, connection: ConnectionId) -> bool {
        self.get(connection).is_some_and(|drill| !drill.swallow)
    }

    /// Whether answers are thrown away.
    pub fn swallows(&self, connection: ConnectionId) -> bool {
        self.get(connection).is_some_and(|drill| drill.swallow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_ends_by_itself_and_only_one_runs_on_a_connection() {
        let drills = Drills::default();
        let (one, other) = (ConnectionId(1), ConnectionId(2));
        assert!(drills.start(one, 60_000, false));
        assert!(!drills.start(one, 1, true));
        assert!(drills.start(other, 60_000, true));
        assert!(drills.keeps_away(one) && !drills.swallows(one));
        assert!(!drills.keeps_away(other) && drills.swallows(other));
        let short = ConnectionId(3);
        assert!(drills.start(short, 0, false));
        assert!(!drills.is_on(short));
    }
}
