//! A simulated world around the machine: lanes, a buffer that forgets what was not synced,
//! destinations that misbehave, crashes. Virtual time; everything from one seed.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "shared by several test binaries, none of which uses all of it; tests may panic"
)]

pub mod check;
pub mod dest;
pub mod extra;
pub mod hits;
pub mod host;
pub mod model;
pub mod reload;
pub mod rng;
pub mod scenario;

use consign_delivery::{
    Act, ConnectionConfig, ConnectionId, Decision, Delivery, DirectResult, EventCode, HostLimits,
    Input, LaneConfig, LaneId, Order, Output, ParkReason, RequestId, Ticket,
};
use dest::{Effects, Fault, Manners, Plan, Poison};
use hits::{Ambush, Hits};
use model::ModelBuffer;
use reload::{Reconfigure, Reloads};
use rng::SimRng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Wall time at the start.
pub const WALL0: u64 = 1_800_000_000_000;

/// A lane and its destination.
#[derive(Debug, Clone)]
pub struct LaneSpec {
    pub cfg: LaneConfig,
    pub manners: Manners,
    pub poison: BTreeMap<u64, Poison>,
}

/// A request at its destination.
#[derive(Debug, Clone)]
pub struct Live {
    pub lane: u32,
    pub connection: u32,
    pub target: String,
    pub seqs: Vec<u64>,
    pub plan: Plan,
    pub applied: bool,
    pub fenced: bool,
    pub canary: bool,
    /// The lane's order when it was sent: a reload may change it meanwhile.
    pub order: Order,
}

/// What happens at a moment.
#[derive(Debug, Clone)]
pub enum Ev {
    Apply(RequestId),
    Reply(RequestId),
    CancelAck(RequestId),
    Commit,
    Fetched {
        lane: u32,
        after: u64,
        writes: u32,
        bytes: u64,
    },
    Probed(u32),
    Rebuilt(u32),
    Decided {
        lane: u32,
        seq: u64,
    },
    Accept {
        lane: u32,
        count: u32,
    },
    Begin(Fault, u32, Option<String>),
    End(Fault, u32, Option<String>),
    Crash,
    Restart,
    Jump(i64),
    Inspected(LaneId),
    /// The lane is taken out and put back as it was.
    Reload(u32),
    /// The host crashes by a signal of its own making, with this write on its way.
    Abort(u32, u64),
    /// New settings of a lane or connection.
    Reconfigure(Reconfigure),
    Operator(Act),
}

/// The world.
pub struct World {
    pub d: Delivery,
    pub now: u64,
    pub wall_shift: i64,
    pub rng: SimRng,
    pub limits: HostLimits,
    pub connections: Vec<ConnectionConfig>,
    pub lanes: BTreeMap<u32, LaneSpec>,
    pub buffer: ModelBuffer,
    pub effects: Effects,
    pub live: BTreeMap<RequestId, Live>,
    pub faults: BTreeMap<(u32, Option<String>), BTreeSet<Fault>>,
    pub epoch: u64,
    queue: BTreeMap<(u64, u64), (Option<u64>, Ev)>,
    next_event: u64,
    last_commit: u64,
    tickets: VecDeque<u64>,
    pub drained: Option<u32>,
    pub handler: Option<Decision>,
    pub bug: Option<consign_delivery::Bug>,
    // What the checks keep.
    pub violations: Vec<String>,
    pub interruptions: BTreeMap<(u32, u64), BTreeSet<(u32, u64)>>,
    pub interrupted: BTreeMap<(u32, String), (bool, u64)>,
    pub failures: BTreeMap<(u32, u64), u32>,
    pub maybes: BTreeMap<(u32, u64), u32>,
    pub resends: BTreeMap<(u32, u64), u32>,
    pub pardoned: BTreeMap<(u32, u64), u32>,
    /// Parked writes a person has dealt with.
    pub resolved: BTreeSet<(u32, u64)>,
    pub order_broken: BTreeSet<(u32, u64)>,
    /// Writes sent as trials, past one that may be poison.
    pub trials: BTreeSet<(u32, u64)>,
    pub parked: BTreeMap<(u32, u64), ParkReason>,
    pub events: BTreeMap<EventCode, u64>,
    pub lane_events: BTreeSet<(u32, EventCode)>,
    pub sealed: BTreeMap<(u32, u64), Vec<u64>>,
    pub direct: BTreeMap<(u32, u64), Option<DirectResult>>,
    /// Direct sends that were on their way, and since when.
    pub direct_sent: BTreeMap<(u32, u64), u64>,
    pub sends: Vec<(u64, u32, Vec<u64>)>,
    pub hits: Hits,
    /// Happenings that wait for a gate or lane to be in a certain state.
    pub ambushes: Vec<Ambush>,
    pub reloads: Reloads,
    /// The writes in flight at the last exits by a signal.
    pub aborts: Vec<BTreeSet<(u32, u64)>>,
    pub suspects: BTreeSet<(u32, u64)>,
    /// Settlements handed out since a lane was last added, by lane and result.
    pub handed_out: BTreeMap<(u32, consign_delivery::SettleResult), u64>,
    pub crashes: u64,
    /// Writes that met a destination that fails some requests and answers others.
    pub browned: BTreeSet<(u32, u64)>,
    pub orders: BTreeMap<(u32, u64), u64>,
    /// The latest wall time the host's event log holds.
    pub logged_wall: u64,
    /// Wall time of the last input.
    pub last_wall: u64,
    /// Writes an instance that was fenced still carried out as the host died: no answer of them
    /// ever came, and `connection_fenced` is all that could be told.
    pub fenced_unheard: BTreeSet<(u32, u64)>,
    pub trace: Option<Vec<String>>,
}

impl World {
    pub fn new(seed: u64, limits: HostLimits) -> Self {
        Self {
            d: Delivery::new(limits.clone(), seed),
            now: 1,
            wall_shift: 0,
            rng: SimRng(seed ^ 0x5eed),
            limits,
            connections: Vec::new(),
            lanes: BTreeMap::new(),
            buffer: ModelBuffer::default(),
            effects: Effects::default(),
            live: BTreeMap::new(),
            faults: BTreeMap::new(),
            epoch: 0,
            queue: BTreeMap::new(),
            next_event: 0,
            last_commit: 0,
            tickets: VecDeque::new(),
            drained: None,
            handler: None,
            bug: None,
            violations: Vec::new(),
            interruptions: BTreeMap::new(),
            interrupted: BTreeMap::new(),
            failures: BTreeMap::new(),
            maybes: BTreeMap::new(),
            resends: BTreeMap::new(),
            pardoned: BTreeMap::new(),
            resolved: BTreeSet::new(),
            order_broken: BTreeSet::new(),
            trials: BTreeSet::new(),
            parked: BTreeMap::new(),
            events: BTreeMap::new(),
            lane_events: BTreeSet::new(),
            sealed: BTreeMap::new(),
            direct: BTreeMap::new(),
            direct_sent: BTreeMap::new(),
            sends: Vec::new(),
            hits: Hits::default(),
            ambushes: Vec::new(),
            reloads: Reloads::default(),
            aborts: Vec::new(),
            suspects: BTreeSet::new(),
            handed_out: BTreeMap::new(),
            crashes: 0,
            browned: BTreeSet::new(),
            orders: BTreeMap::new(),
            logged_wall: 0,
            last_wall: 0,
            fenced_unheard: BTreeSet::new(),
            trace: None,
        }
    }

    pub fn wall(&self) -> u64 {
        (WALL0 + self.now).saturating_add_signed(self.wall_shift)
    }

    pub fn say(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now:>9} {}", what()));
        }
    }

    pub fn violate(&mut self, what: String) {
        self.say(|| format!("VIOLATION {what}"));
        let now = self.now;
        self.violations.push(format!("at {now}: {what}"));
    }

    pub fn add_connection(&mut self, cfg: ConnectionConfig) {
        self.connections.push(cfg.clone());
        self.input(Input::AddConnection(cfg));
    }

    pub fn add_lane(&mut self, spec: LaneSpec) {
        let id = spec.cfg.id.0;
        self.buffer.lanes.entry(id).or_default();
        self.lanes.insert(id, spec.clone());
        self.input(Input::AddLane(Box::new(spec.cfg)));
    }

    /// Schedules something that belongs to this process: a crash takes it along.
    pub fn later(&mut self, at: u64, ev: Ev) {
        let epoch = self.epoch;
        self.push(at, Some(epoch), ev);
    }

    /// Schedules something that happens whatever the host does.
    pub fn at(&mut self, at: u64, ev: Ev) {
        self.push(at, None, ev);
    }

    fn push(&mut self, at: u64, epoch: Option<u64>, ev: Ev) {
        self.next_event += 1;
        self.queue
            .insert((at.max(self.now), self.next_event), (epoch, ev));
    }

    /// Gives the machine one input and carries out what it wants.
    pub fn input(&mut self, input: Input) {
        self.say(|| format!("-> {input:?}"));
        let wall = self.wall();
        self.d.handle(self.now, wall, input);
        let outputs: Vec<Output> = self.d.outputs().collect();
        for output in outputs {
            self.say(|| format!("     {output:?}"));
            self.carry_out(output);
        }
        self.last_wall = wall;
    }

    /// The next moment at which something happens.
    pub fn next_at(&self) -> Option<u64> {
        let event = self.queue.keys().next().map(|(at, _)| *at);
        let wake = self.d.next_wakeup();
        match (event, wake) {
            (Some(event), Some(wake)) => Some(event.min(wake)),
            (event, wake) => event.or(wake),
        }
    }

    /// Lets the next thing happen; `false` when nothing will before `until`.
    pub fn step(&mut self, until: u64) -> bool {
        let Some(at) = self.next_at() else {
            return false;
        };
        if at > until {
            self.now = self.now.max(until);
            return false;
        }
        self.now = self.now.max(at);
        let due = self.queue.keys().next().copied();
        match due.filter(|(time, _)| *time <= self.now) {
            Some(key) => {
                let (epoch, ev) = self.queue.remove(&key).unwrap();
                if epoch.is_none_or(|epoch| epoch == self.epoch) {
                    self.happen(ev);
                }
            }
            None => self.input(Input::Tick),
        }
        self.spring_ambushes();
        true
    }

    pub fn run_until(&mut self, until: u64) {
        while self.step(until) {}
    }

    pub fn happen(&mut self, ev: Ev) {
        self.count_event(&ev);
        match ev {
            Ev::Apply(id) => self.apply(id),
            Ev::Reply(id) => self.reply(id),
            Ev::CancelAck(id) => self.acknowledge_cancel(id),
            Ev::Commit => {
                if let Some(ticket) = self.buffer.commit_one() {
                    self.input(Input::Durable {
                        ticket: Ticket(ticket),
                    });
                }
            }
            Ev::Fetched {
                lane,
                after,
                writes,
                bytes,
            } => {
                let (writes, more) = self.buffer.lanes[&lane].fetch(after, writes, bytes);
                self.input(Input::Fetched {
                    lane: LaneId(lane),
                    writes,
                    more,
                });
            }
            Ev::Probed(connection) => {
                let result = self.probe(connection);
                self.input(Input::Probed {
                    connection: ConnectionId(connection),
                    result,
                });
            }
            Ev::Rebuilt(connection) => self.rebuilt(connection),
            Ev::Decided { lane, seq } => {
                let decision = self.decide();
                self.input(Input::Decided {
                    lane: LaneId(lane),
                    seq,
                    decision,
                });
            }
            Ev::Accept { lane, count } => self.accept(lane, count),
            Ev::Begin(fault, connection, target) => {
                self.faults
                    .entry((connection, target))
                    .or_default()
                    .insert(fault);
            }
            Ev::End(fault, connection, target) => {
                if let Some(set) = self.faults.get_mut(&(connection, target)) {
                    set.remove(&fault);
                }
            }
            Ev::Crash => self.crash(),
            Ev::Restart => {
                let deadline_ms = self.now + 5_000;
                self.drained = None;
                self.input(Input::Drain { deadline_ms });
                let epoch = self.epoch;
                for _ in 0..100_000 {
                    if self.drained.is_some() || self.epoch != epoch || !self.step(u64::MAX) {
                        break;
                    }
                }
                match self.drained {
                    Some(0) if self.epoch == epoch => {
                        // A buffer that closes writes what was handed to it.
                        while self.buffer.commit_one().is_some() {}
                        self.start_again();
                    }
                    _ if self.epoch == epoch => self.crash(),
                    _ => {}
                }
            }
            Ev::Reload(lane) => {
                if self.is_settled_in(lane) {
                    self.input(Input::RemoveLane { lane: LaneId(lane) });
                }
            }
            Ev::Abort(lane, seq) => self.abort(lane, seq),
            Ev::Reconfigure(what) => self.reconfigure(what),
            Ev::Inspected(lane) => self.input(Input::Inspected {
                lane,
                verdict: consign_delivery::Verdict::Verified,
                window_ms: None,
            }),
            Ev::Jump(by) => self.wall_shift += by,
            Ev::Operator(act) => {
                // A host that has drained takes no more orders: its buffer is closed.
                if self.drained.is_none() {
                    self.input(Input::Operator(act));
                }
            }
        }
    }

    /// Commits writes to a lane, or hands direct sends to it.
    pub fn accept(&mut self, lane: u32, count: u32) {
        if self.reloads.absent.contains(&lane) {
            return;
        }
        let spec = &self.lanes[&lane];
        let (direct, keys) = (spec.cfg.direct.is_some(), 5);
        let expires = (!direct && spec.cfg.id.0 % 7 == 6).then(|| self.wall() + 1_800_000);
        for _ in 0..count {
            let order = self.rng.below(keys) + 1;
            let bytes = self.rng.between(1, 2_000) as u32;
            let seq = self.buffer.accept(lane, order, bytes, expires);
            self.orders.insert((lane, seq), order);
            if direct {
                self.direct.insert((lane, seq), None);
                self.hand_over_direct(lane, seq, None);
            }
        }
        if !direct {
            self.input(Input::Available { lane: LaneId(lane) });
        }
    }

    pub fn faults_of(&self, connection: u32, target: &str) -> BTreeSet<Fault> {
        let mut faults = self
            .faults
            .get(&(connection, None))
            .cloned()
            .unwrap_or_default();
        if let Some(more) = self.faults.get(&(connection, Some(target.to_owned()))) {
            faults.extend(more);
        }
        faults
    }
}
