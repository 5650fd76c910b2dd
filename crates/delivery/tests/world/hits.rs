//! Hits: which happening met which state. A run that is long enough must leave no possible cell at
//! zero; an ambush waits for a rare state, so that it does not take for ever.

use super::dest::Fault;
use super::reload::Reconfigure;
use super::{Ev, World};
use consign_delivery::{Act, ConnectionId, GateState, LaneId, LaneState};
use std::collections::BTreeMap;

/// Happenings that are not faults of a destination.
pub const DISTURBANCES: [&str; 17] = [
    "Crash",
    "Abort",
    "Restart",
    "ClockBack",
    "ClockForward",
    "LateAnswer",
    "ReloadLane",
    "ReloadSettings",
    "ReloadOrder",
    "ReloadTarget",
    "ReloadTargetCrash",
    "ReloadConnection",
    "LaneAdded",
    "LaneRemoved",
    "LaneReturned",
    "Pause",
    "SkipOrPark",
];

pub const GATES: [GateState; 5] = [
    GateState::Open,
    GateState::HalfOpen,
    GateState::Closed,
    GateState::Denied,
    GateState::Halted,
];

/// A target's gate is never halted: that is a connection's.
pub const TARGETS: [GateState; 4] = [
    GateState::Open,
    GateState::HalfOpen,
    GateState::Closed,
    GateState::Denied,
];

pub const LANES: [LaneState; 10] = [
    LaneState::Paused,
    LaneState::Draining,
    LaneState::HaltedOnOneWrite,
    LaneState::Halted,
    LaneState::GateClosed,
    LaneState::TargetClosed,
    LaneState::Throttled,
    LaneState::Waiting,
    LaneState::Sending,
    LaneState::Idle,
];

/// Counted by happening and state.
pub type Hits = BTreeMap<(String, String), u64>;

/// Every row of the table.
pub fn rows() -> Vec<String> {
    let faults = Fault::ALL.iter().map(|fault| format!("{fault:?}"));
    faults
        .chain(DISTURBANCES.iter().map(|name| (*name).to_owned()))
        .collect()
}

/// Every column of the table.
pub fn columns() -> Vec<String> {
    let gates = GATES.iter().map(|state| format!("gate {}", state.name()));
    let targets = TARGETS
        .iter()
        .map(|state| format!("target {}", state.name()));
    let lanes = LANES.iter().map(|state| format!("lane {}", state.name()));
    gates.chain(targets).chain(lanes).collect()
}

/// Whether a happening can meet a state at all.
pub fn possible(row: &str, column: &str) -> bool {
    match (row, column) {
        // The plugin crashes on a write it was just given: the gates it went through are open or
        // half-open (its target's may be waiting for this very canary), and its lane is sending.
        ("Abort", "gate closed" | "gate denied" | "gate halted") => false,
        ("Abort", "target closed" | "target denied") => false,
        ("Abort", column) if column.starts_with("lane ") => true,
        // A lane that is not there has no state; those beside it do, and all of them occur.
        _ => true,
    }
}

/// Cells that are possible and were not hit.
pub fn missing(hits: &Hits) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for row in rows() {
        for column in columns() {
            let hit = hits.contains_key(&(row.clone(), column.clone()));
            if possible(&row, &column) && !hit {
                out.push((row.clone(), column));
            }
        }
    }
    out
}

/// What an ambush waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    Gate(u32, GateState),
    Target(u32, GateState),
    Lane(u32, LaneState),
}

/// Something that happens as soon as a state is entered.
#[derive(Debug, Clone)]
pub struct Ambush {
    pub watch: Watch,
    /// Not before this time.
    pub from: u64,
    pub evs: Vec<Ev>,
}

impl World {
    fn is_there(&self, watch: Watch) -> bool {
        match watch {
            Watch::Gate(connection, state) => self.gate_of(connection) == state,
            Watch::Target(connection, state) => self
                .d
                .connection_stats(ConnectionId(connection))
                .is_some_and(|stats| stats.targets.iter().any(|(_, gate)| *gate == state)),
            Watch::Lane(lane, state) => self
                .d
                .lane_stats(LaneId(lane))
                .is_some_and(|stats| stats.state == state),
        }
    }

    pub fn spring_ambushes(&mut self) {
        if self.ambushes.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.ambushes);
        for ambush in waiting {
            if self.now >= ambush.from && self.is_there(ambush.watch) {
                self.say(|| format!("ambush at {:?}", ambush.watch));
                ambush.evs.into_iter().for_each(|ev| self.happen(ev));
            } else {
                self.ambushes.push(ambush);
            }
        }
    }

    pub fn count_event(&mut self, ev: &Ev) {
        let all: Vec<u32> = self.connections.iter().map(|cfg| cfg.id.0).collect();
        match ev {
            Ev::Begin(fault, connection, _) => {
                self.count_place(&format!("{fault:?}"), *connection, None);
            }
            Ev::Crash => self.count_all("Crash", &all),
            Ev::Restart => self.count_all("Restart", &all),
            Ev::Jump(by) if *by < 0 => self.count_all("ClockBack", &all),
            Ev::Jump(_) => self.count_all("ClockForward", &all),
            Ev::Abort(lane, _) => {
                let connection = self.lanes[lane].cfg.connection.0;
                self.count_place("Abort", connection, None);
            }
            Ev::Reload(lane) => self.count_lane("ReloadLane", *lane),
            Ev::Reconfigure(what) => match what {
                Reconfigure::Settings(lane, _) => self.count_lane("ReloadSettings", *lane),
                Reconfigure::Order(lane, _) => self.count_lane("ReloadOrder", *lane),
                Reconfigure::Target(lane, ..) => self.count_lane("ReloadTarget", *lane),
                Reconfigure::TargetCrash(..) => self.count_all("ReloadTargetCrash", &all),
                Reconfigure::Connection(cfg) => {
                    self.count_place("ReloadConnection", cfg.id.0, None);
                }
                Reconfigure::Add(_) => self.count_all("LaneAdded", &all),
                Reconfigure::Remove(lane) => self.count_lane("LaneRemoved", *lane),
                Reconfigure::Return(lane) => {
                    let connection = self.lanes[lane].cfg.connection.0;
                    self.count_place("LaneReturned", connection, None);
                }
            },
            Ev::Operator(Act::Pause(lane)) => self.count_lane("Pause", lane.0),
            Ev::Operator(Act::Skip(lane, _) | Act::Purge(lane, _) | Act::Park(lane, _)) => {
                self.count_lane("SkipOrPark", lane.0);
            }
            _ => {}
        }
    }

    fn count_all(&mut self, what: &str, connections: &[u32]) {
        for connection in connections {
            self.count_place(what, *connection, None);
        }
    }

    fn count_lane(&mut self, what: &str, lane: u32) {
        let connection = self.lanes[&lane].cfg.connection.0;
        self.count_place(what, connection, Some(lane));
    }

    /// Counts a happening against the gate, the targets, and one lane or all lanes of a connection.
    pub fn count_place(&mut self, what: &str, connection: u32, lane: Option<u32>) {
        let Some(stats) = self.d.connection_stats(ConnectionId(connection)) else {
            return;
        };
        let mut states = vec![format!("gate {}", stats.gate.name())];
        for (_, gate) in &stats.targets {
            states.push(format!("target {}", gate.name()));
        }
        let lanes: Vec<u32> = match lane {
            Some(lane) => vec![lane],
            None => self
                .lanes
                .values()
                .filter(|spec| spec.cfg.connection.0 == connection)
                .map(|spec| spec.cfg.id.0)
                .collect(),
        };
        for lane in lanes {
            if let Some(stats) = self.d.lane_stats(LaneId(lane)) {
                states.push(format!("lane {}", stats.state.name()));
            }
        }
        for state in states {
            *self.hits.entry((what.to_owned(), state)).or_default() += 1;
        }
    }
}
