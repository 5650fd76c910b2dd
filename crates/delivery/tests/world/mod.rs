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
pub mod model;
pub mod rng;
pub mod scenario;

use consign_delivery::{
    Act, Applied, ConnectionConfig, ConnectionId, Decision, Delivery, Detail, DirectResult,
    DirectWrite, EventCode, HostLimits, Input, LaneConfig, LaneId, Order, Outcome, Output,
    ParkReason, ProbeFailure, RequestId, SettleResult, Ticket,
};
use dest::{Effects, Fault, Manners, Plan, Poison};
use model::{ModelBuffer, Op};
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
    Reload(u32),
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
    pub hits: BTreeMap<(String, String), u64>,
    pub crashes: u64,
    /// Writes that met a destination that fails some requests and answers others.
    pub browned: BTreeSet<(u32, u64)>,
    pub orders: BTreeMap<(u32, u64), u64>,
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
            hits: BTreeMap::new(),
            crashes: 0,
            browned: BTreeSet::new(),
            orders: BTreeMap::new(),
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
    fn later(&mut self, at: u64, ev: Ev) {
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
        true
    }

    pub fn run_until(&mut self, until: u64) {
        while self.step(until) {}
    }

    fn happen(&mut self, ev: Ev) {
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
                self.count_hit(fault, connection);
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
                    Some(0) if self.epoch == epoch => self.start_again(),
                    _ if self.epoch == epoch => self.crash(),
                    _ => {}
                }
            }
            Ev::Reload(lane) => self.input(Input::RemoveLane { lane: LaneId(lane) }),
            Ev::Inspected(lane) => self.input(Input::Inspected {
                lane,
                verdict: consign_delivery::Verdict::Verified,
                window_ms: None,
            }),
            Ev::Jump(by) => self.wall_shift += by,
            Ev::Operator(act) => self.input(Input::Operator(act)),
        }
    }

    /// Commits writes to a lane, or hands direct sends to it.
    pub fn accept(&mut self, lane: u32, count: u32) {
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

    fn hand_over_direct(&mut self, lane: u32, seq: u64, maybe: Option<u64>) {
        let stored = self.buffer.lanes[&lane].pending[&seq].clone();
        self.input(Input::Direct {
            lane: LaneId(lane),
            write: DirectWrite {
                seq,
                order: stored.order,
                bytes: stored.bytes,
                maybe_since_unix_ms: maybe,
                ..DirectWrite::default()
            },
        });
    }

    fn decide(&mut self) -> Decision {
        if let Some(decision) = &self.handler {
            return decision.clone();
        }
        match self.rng.below(12) {
            0 => Decision::Retry { after_ms: 1_000 },
            1 => Decision::Failed,
            2 | 3 => Decision::Skip,
            4 => Decision::Divert {
                target: "elsewhere".into(),
            },
            _ => Decision::Park {
                reason: "by the handler".into(),
            },
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

    fn probe(&mut self, connection: u32) -> Result<(), ProbeFailure> {
        let faults = self.faults_of(connection, "");
        let detail = Detail::new("probe", "simulated");
        if faults.contains(&Fault::DeniedConnection) {
            return Err(ProbeFailure {
                denied: true,
                detail,
            });
        }
        let silent = [Fault::Down, Fault::RepliesLost, Fault::RequestsLost];
        if silent.iter().any(|fault| faults.contains(fault)) {
            return Err(ProbeFailure {
                denied: false,
                detail,
            });
        }
        Ok(())
    }

    /// Something joins the queue to the disk.
    fn enqueue(&mut self, ticket: Ticket, op: Op) {
        self.buffer.queue.push_back((ticket.0, op));
        let at = (self.now + self.rng.between(1, 12)).max(self.last_commit);
        self.last_commit = at;
        self.later(at, Ev::Commit);
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Fetch {
                lane,
                after_seq,
                max_writes,
                max_bytes,
            } => {
                let at = self.now + self.rng.between(0, 3);
                self.later(
                    at,
                    Ev::Fetched {
                        lane: lane.0,
                        after: after_seq,
                        writes: max_writes,
                        bytes: max_bytes,
                    },
                );
            }
            Output::Frontier {
                lane,
                seq,
                wall_unix_ms,
                ticket,
            } => self.enqueue(
                ticket,
                Op::Frontier {
                    lane: lane.0,
                    seq,
                    wall: wall_unix_ms,
                },
            ),
            Output::Note {
                lane,
                notes,
                ticket,
            } => self.enqueue(
                ticket,
                Op::Notes {
                    lane: lane.0,
                    notes,
                },
            ),
            Output::Settle {
                lane,
                writes,
                ticket,
                ..
            } => {
                let writes = writes
                    .iter()
                    .map(|settled| (settled.seq, settled.result))
                    .collect();
                self.enqueue(
                    ticket,
                    Op::Settle {
                        lane: lane.0,
                        writes,
                    },
                );
            }
            Output::Park {
                lane,
                seq,
                reason,
                ticket,
                ..
            } => {
                self.parked.insert((lane.0, seq), reason);
                let writes = vec![(seq, SettleResult::Parked)];
                self.enqueue(
                    ticket,
                    Op::Settle {
                        lane: lane.0,
                        writes,
                    },
                );
            }
            Output::Divert {
                lane, seq, ticket, ..
            } => {
                let writes = vec![(seq, SettleResult::Diverted)];
                self.enqueue(
                    ticket,
                    Op::Settle {
                        lane: lane.0,
                        writes,
                    },
                );
            }
            Output::Send(send) => self.take_request(send),
            Output::Cancel { request } => {
                let cancellable = self
                    .live
                    .get(&request)
                    .is_some_and(|live| live.plan.cancellable);
                if cancellable {
                    let at = self.now + self.rng.between(1, 500);
                    self.later(at, Ev::CancelAck(request));
                }
            }
            Output::Probe { connection, .. } => {
                let at = self.now + self.rng.between(1, 50);
                self.later(at, Ev::Probed(connection.0));
            }
            Output::Rebuild { connection } => {
                let at = self.now + self.rng.between(1, 2_000);
                self.later(at, Ev::Rebuilt(connection.0));
            }
            Output::Inspect { lane } => {
                let at = self.now + self.rng.between(0, 50);
                self.later(at, Ev::Inspected(lane));
            }
            Output::AskHandler { lane, seq, .. } => {
                let at = self.now + self.rng.between(1, 100);
                self.later(at, Ev::Decided { lane: lane.0, seq });
            }
            Output::DirectAnswer { lane, seq, result } => self.direct_answered(lane.0, seq, result),
            Output::Event(event) => {
                *self.events.entry(event.code).or_default() += 1;
                if let Some(lane) = event.lane {
                    self.lane_events.insert((lane.0, event.code));
                }
            }
            Output::LaneRemoved { lane } => {
                // A reload takes the lane out and puts it back with its backlog.
                self.put_back(lane.0);
            }
            Output::Drained { unfinished } => self.drained = Some(unfinished),
        }
    }

    fn take_request(&mut self, send: consign_delivery::Send) {
        let lane = send.lane.0;
        let seqs: Vec<u64> = send.items.iter().map(|item| item.seq).collect();
        self.check_send(&send, &seqs);
        let spec = &self.lanes[&lane];
        let target = spec.cfg.target.clone();
        let (manners, poison) = (spec.manners, spec.poison.clone());
        let faults = self.faults_of(send.connection.0, &target);
        let plan = dest::plan(
            &mut self.rng,
            self.now,
            send.request,
            &seqs,
            manners,
            &faults,
            |seq| poison.get(&seq).copied(),
        );
        let canary = self.is_canary(send.connection.0);
        if faults.iter().any(|fault| fault.is_partial()) {
            self.browned.extend(seqs.iter().map(|seq| (lane, *seq)));
        }
        let apply_at = plan.apply_at;
        self.later(apply_at, Ev::Apply(send.request));
        if let Some((at, _)) = plan.reply {
            self.later(at, Ev::Reply(send.request));
        }
        self.sends.push((self.now, lane, seqs.clone()));
        self.live.insert(
            send.request,
            Live {
                lane,
                connection: send.connection.0,
                target,
                seqs,
                plan,
                applied: false,
                fenced: false,
                canary,
            },
        );
    }

    fn apply(&mut self, id: RequestId) {
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        if live.applied {
            return;
        }
        live.applied = true;
        let (lane, seqs, fenced) = (live.lane, live.plan.apply.clone(), live.fenced);
        let dedup = self.lanes[&lane].manners.dedup_ms;
        for seq in seqs {
            self.check_order(lane, seq, fenced);
            let repeat = self.effects.apply(lane, seq, dedup, self.now);
            self.say(|| {
                format!(
                    "   * {lane}/{seq} takes effect{}",
                    if repeat { " (dropped)" } else { "" }
                )
            });
        }
    }

    fn reply(&mut self, id: RequestId) {
        self.apply(id);
        let Some(live) = self.live.remove(&id) else {
            return;
        };
        let outcomes = live.plan.reply.clone().map(|(_, o)| o).unwrap_or_default();
        if !live.fenced {
            self.count_answer(&live, &outcomes);
        } else if outcomes.iter().any(|o| o.applied == Applied::YES) {
            self.target_delivered(&live);
        }
        self.input(Input::Answered {
            request: id,
            outcomes,
        });
    }

    fn acknowledge_cancel(&mut self, id: RequestId) {
        let Some(live) = self.live.remove(&id) else {
            return;
        };
        let applied = if live.applied && live.plan.apply.len() == live.seqs.len() {
            if self.faults_of(live.connection, &live.target).is_empty() && self.rng.chance(5) {
                Applied::YES
            } else {
                Applied::MAYBE
            }
        } else if live.plan.apply.is_empty() && self.rng.chance(10) {
            Applied::NO
        } else {
            Applied::MAYBE
        };
        let outcome = match applied {
            Applied::YES => Outcome::delivered(),
            Applied::NO => Outcome::retry(Detail::default()),
            _ => Outcome::unknown(Detail::default()),
        };
        let outcomes = vec![outcome; live.seqs.len()];
        self.count_answer(&live, &outcomes);
        self.input(Input::CancelAcknowledged {
            request: id,
            applied,
        });
    }

    fn rebuilt(&mut self, connection: u32) {
        let fenced: Vec<RequestId> = self
            .live
            .iter()
            .filter(|(_, live)| live.connection == connection && !live.fenced)
            .map(|(id, _)| *id)
            .collect();
        for id in fenced {
            let live = self.live.get_mut(&id).unwrap();
            live.fenced = true;
            let live = live.clone();
            for seq in &live.seqs {
                self.order_broken.insert((live.lane, *seq));
            }
            let outcomes = vec![Outcome::unknown(Detail::default()); live.seqs.len()];
            self.count_answer(&live, &outcomes);
        }
        self.input(Input::Rebuilt {
            connection: ConnectionId(connection),
        });
    }

    fn direct_answered(&mut self, lane: u32, seq: u64, result: DirectResult) {
        let id = (lane, seq);
        match self.direct.get(&id) {
            Some(None) => {}
            other => self.violate(format!("direct {lane}/{seq} answered twice: {other:?}")),
        }
        let accepted = matches!(result, DirectResult::Delivered { .. });
        if accepted && self.effects.copies_of(lane, seq) == 0 {
            self.violate(format!("direct {lane}/{seq} accepted and not there"));
        }
        let code = if accepted {
            SettleResult::Delivered
        } else {
            SettleResult::Skipped
        };
        let stored = self.buffer.lanes.get_mut(&lane).unwrap();
        stored.pending.remove(&seq);
        stored.settled.insert(seq, code);
        self.direct.insert(id, Some(result));
    }

    /// The host dies; what was not synced is gone.
    pub fn crash(&mut self) {
        self.say(|| "=== crash".into());
        self.crashes += 1;
        let crash = (u32::MAX, self.crashes);
        // Some of what was on its way to disk got there.
        let durable = self.rng.below(self.buffer.queue.len() as u64 + 1);
        for _ in 0..durable {
            self.buffer.commit_one();
        }
        let mut struck: BTreeSet<(u32, u64)> = self.buffer.undurable().into_iter().collect();
        for (_, live) in std::mem::take(&mut self.live) {
            struck.extend(live.seqs.iter().map(|seq| (live.lane, *seq)));
            if !live.applied && self.rng.chance(50) {
                let dedup = self.lanes[&live.lane].manners.dedup_ms;
                for seq in &live.plan.apply {
                    self.check_order(live.lane, *seq, live.fenced);
                    self.effects.apply(live.lane, *seq, dedup, self.now);
                    self.say(|| format!("   * {}/{seq} takes effect", live.lane));
                }
            }
        }
        for id in struck {
            self.interruptions.entry(id).or_default().insert(crash);
        }
        self.buffer.crash();
        self.start_again();
    }

    /// A new process on the durable state.
    fn start_again(&mut self) {
        self.epoch += 1;
        // A source hands over again what was not accepted: for a direct send that is one more
        // interruption, whatever kind of exit it was.
        let exit = (u32::MAX - 1, self.epoch);
        let open: Vec<(u32, u64)> = self.direct_sent.keys().copied().collect();
        for id in open {
            if self.direct.get(&id) == Some(&None) {
                self.interruptions.entry(id).or_default().insert(exit);
            }
        }
        self.live.clear();
        self.last_commit = self.now;
        let seed = self.rng.next();
        self.d = Delivery::new(self.limits.clone(), seed);
        self.plant();
        for cfg in self.connections.clone() {
            self.input(Input::AddConnection(cfg));
        }
        let ids: Vec<u32> = self.lanes.keys().copied().collect();
        for id in ids {
            self.put_back(id);
        }
    }

    pub fn plant(&mut self) {
        if let Some(bug) = self.bug {
            self.d.plant(bug);
        }
    }

    fn put_back(&mut self, id: u32) {
        let mut cfg = self.lanes[&id].cfg.clone();
        let stored = &self.buffer.lanes[&id];
        cfg.frontier = stored.frontier();
        cfg.frontier_wall_unix_ms = stored.frontiers.iter().map(|(_, w)| *w).max().unwrap_or(0);
        cfg.held_keys = self.held_keys(id);
        let direct = cfg.direct.is_some();
        self.input(Input::AddLane(Box::new(cfg)));
        if direct {
            let open: Vec<u64> = self.buffer.lanes[&id].pending.keys().copied().collect();
            for seq in open {
                let maybe = self.direct_sent.get(&(id, seq)).copied();
                self.hand_over_direct(id, seq, maybe);
            }
        }
    }

    /// Order keys of parked writes nobody has resolved.
    pub fn held_keys(&self, id: u32) -> Vec<u64> {
        let spec = &self.lanes[&id];
        if spec.cfg.after_park != consign_delivery::AfterPark::HoldKey
            || spec.cfg.order == Order::None
        {
            return Vec::new();
        }
        self.parked
            .keys()
            .filter(|(lane, seq)| {
                *lane == id
                    && self.buffer.lanes[&id].settled.get(seq) == Some(&SettleResult::Parked)
                    && !self.resolved.contains(&(id, *seq))
            })
            .map(|(_, seq)| match spec.cfg.order {
                Order::ByKey => self.order_of(id, *seq),
                _ => 0,
            })
            .collect()
    }
}
