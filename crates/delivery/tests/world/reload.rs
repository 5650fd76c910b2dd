//! Reloads of the simulated host, and exits by a signal of its own making (rule 11).

use super::{LaneSpec, World};
use consign_delivery::{ConnectionConfig, ConnectionId, Input, LaneConfig, LaneId, OnAmbiguous};
use std::collections::{BTreeMap, BTreeSet};

/// A change of the configuration.
#[derive(Debug, Clone)]
pub enum Reconfigure {
    /// Settings a running lane takes in place.
    Settings(u32, Box<LaneConfig>),
    /// Settings it is taken out for: order, batches, what a park means.
    Order(u32, Box<LaneSpec>),
    /// It writes to another target from now on; the old one gets this long.
    Target(u32, u32, String, u64),
    /// The host is down while its configuration changes: the lane starts with another target.
    TargetCrash(u32, u32, String),
    Connection(ConnectionConfig),
    Add(Box<LaneSpec>),
    Remove(u32),
    Return(u32),
}

/// What becomes of a lane once it is removed.
#[derive(Debug, Clone)]
pub enum After {
    /// As it is now configured.
    PutBack,
    /// With these settings.
    As(Box<LaneSpec>),
    /// It stays away: its backlog is orphaned.
    Gone,
}

/// The reloads' books.
#[derive(Debug, Default)]
pub struct Reloads {
    pub awaits: BTreeMap<u32, After>,
    /// Lanes no send has at the moment.
    pub absent: BTreeSet<u32>,
    /// Where the configuration says a lane writes to, where that differs from where it does.
    pub configured: BTreeMap<u32, (u32, String)>,
    /// Writes up to this number belong to a target from before a restart.
    pub moved_below: BTreeMap<u32, u64>,
    /// Where each write was sent last.
    pub sent_to: BTreeMap<(u32, u64), (u32, String)>,
    pub ever_sealed: BTreeSet<u32>,
    pub done: u64,
}

/// The bound on copies is looked at once, at the end: one that was lifted stays lifted.
fn no_stricter(old: OnAmbiguous, new: OnAmbiguous) -> OnAmbiguous {
    if old == OnAmbiguous::Retry { old } else { new }
}

impl World {
    /// Whether a lane is there and not on its way out.
    pub fn is_settled_in(&self, lane: u32) -> bool {
        !self.reloads.absent.contains(&lane) && !self.reloads.awaits.contains_key(&lane)
    }

    /// Whether it finishes at its old target what may have landed there. Order serialises a target:
    /// what it leaves to the next one is not ordered with what it finishes here.
    pub fn is_leaving(&self, lane: u32) -> bool {
        self.reloads.awaits.contains_key(&lane) && self.reloads.configured.contains_key(&lane)
    }

    pub fn reconfigure(&mut self, what: Reconfigure) {
        self.say(|| format!("=== {what:?}"));
        match what {
            Reconfigure::Settings(lane, new) => {
                let old = &self.lanes[&lane].cfg;
                // Another change came first: the settings are of a lane that is no more.
                if self.is_settled_in(lane) && old.takes_in_place(&new) {
                    let mut cfg = *new;
                    cfg.on_ambiguous = no_stricter(old.on_ambiguous, cfg.on_ambiguous);
                    cfg.held_keys = self.held_keys(lane);
                    self.lanes.get_mut(&lane).unwrap().cfg = cfg.clone();
                    self.input(Input::AddLane(Box::new(cfg)));
                }
            }
            Reconfigure::Order(lane, mut spec) => {
                if self.is_settled_in(lane) {
                    let old = &self.lanes[&lane].cfg;
                    let loose = no_stricter(old.on_ambiguous, spec.cfg.on_ambiguous);
                    spec.cfg.on_ambiguous = loose;
                    spec.cfg.connection = old.connection;
                    spec.cfg.target = old.target.clone();
                    self.reloads.awaits.insert(lane, After::As(spec));
                    self.input(Input::RemoveLane { lane: LaneId(lane) });
                }
            }
            Reconfigure::Target(lane, connection, target, within) => {
                let cfg = &self.lanes[&lane].cfg;
                let same = cfg.connection.0 == connection && cfg.target == target;
                if self.is_settled_in(lane) && !same {
                    self.reloads.configured.insert(lane, (connection, target));
                    self.reloads.awaits.insert(lane, After::PutBack);
                    let until_ms = self.now + within;
                    self.input(Input::LeaveTarget {
                        lane: LaneId(lane),
                        until_ms,
                    });
                }
            }
            Reconfigure::TargetCrash(lane, connection, target) => {
                self.reloads.configured.insert(lane, (connection, target));
                self.crash();
            }
            Reconfigure::Connection(cfg) => {
                let at = self.connections.iter().position(|old| old.id == cfg.id);
                self.connections[at.unwrap()] = cfg.clone();
                self.input(Input::AddConnection(cfg));
            }
            Reconfigure::Add(spec) => {
                if !self.lanes.contains_key(&spec.cfg.id.0) {
                    self.add_lane(*spec);
                }
            }
            Reconfigure::Remove(lane) => {
                if self.is_settled_in(lane) {
                    self.reloads.awaits.insert(lane, After::Gone);
                    self.input(Input::RemoveLane { lane: LaneId(lane) });
                }
            }
            Reconfigure::Return(lane) => {
                if self.reloads.absent.remove(&lane) {
                    self.put_back(lane);
                } else if let Some(after) = self.reloads.awaits.get_mut(&lane)
                    && matches!(after, After::Gone)
                {
                    *after = After::PutBack;
                }
            }
        }
    }

    /// The machine has let go of a lane.
    pub fn lane_removed(&mut self, lane: u32) {
        self.reloads.done += 1;
        match self.reloads.awaits.remove(&lane) {
            Some(After::Gone) => {
                self.reloads.absent.insert(lane);
            }
            Some(After::As(spec)) => {
                self.note_sealed(&spec);
                self.lanes.insert(lane, *spec);
                self.put_back(lane);
            }
            Some(After::PutBack) | None => {
                // Nothing that may have landed at the old target is left: no cut is needed.
                if let Some((connection, target)) = self.reloads.configured.remove(&lane) {
                    self.move_to(lane, connection, target);
                    self.reloads.moved_below.remove(&lane);
                }
                self.put_back(lane);
            }
        }
    }

    pub fn note_sealed(&mut self, spec: &LaneSpec) {
        if spec.cfg.batch.sealed {
            self.reloads.ever_sealed.insert(spec.cfg.id.0);
        }
    }

    fn move_to(&mut self, lane: u32, connection: u32, target: String) {
        let cfg = &mut self.lanes.get_mut(&lane).unwrap().cfg;
        cfg.connection = ConnectionId(connection);
        cfg.target = target;
    }

    /// A new process reads its configuration: a lane may have another target than its pending
    /// writes were sent to.
    pub fn take_up_configured(&mut self, lane: u32) {
        if let Some((connection, target)) = self.reloads.configured.remove(&lane) {
            self.move_to(lane, connection, target);
            let frontier = self.buffer.lanes[&lane].frontier();
            self.reloads.moved_below.insert(lane, frontier);
        }
    }

    /// A plugin's native code ends the process while it has this write.
    pub fn abort(&mut self, lane: u32, seq: u64) {
        let out: BTreeSet<(u32, u64)> = self
            .live
            .values()
            .flat_map(|live| live.seqs.iter().map(|seq| (live.lane, *seq)))
            .collect();
        if !out.contains(&(lane, seq)) {
            return;
        }
        self.say(|| format!("=== abort on {lane}/{seq}"));
        self.aborts.push(out);
        if self.aborts.len() > 3 {
            self.aborts.remove(0);
        }
        if self.aborts.len() == 3 {
            let mut suspects = self.aborts[0].clone();
            for out in &self.aborts[1..] {
                suspects.retain(|id| out.contains(id));
            }
            self.suspects.extend(suspects);
        }
        self.crash();
    }
}
