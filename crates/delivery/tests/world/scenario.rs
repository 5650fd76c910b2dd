//! One random run: lanes, traffic, faults, crashes; then everything is mended and must end.

use super::dest::{Fault, Manners, Poison};
use super::reload::Reconfigure;
use super::rng::SimRng;
use super::{Ev, LaneSpec, World, extra};
use consign_delivery::{
    Act, AfterPark, Backoff, BatchConfig, BatchKind, Bug, ClassConfig, ClassId, ConnectionConfig,
    ConnectionId, DirectMode, HostLimits, Input, LaneConfig, LaneId, OnAmbiguous, OnWindowPassed,
    Order, Policy, Repeat,
};
use std::collections::{BTreeMap, BTreeSet};

/// Virtual time in which things go wrong.
pub const TROUBLE_MS: u64 = 2 * 3_600_000;

/// What a run is made of. Seeds mean something together with their mix only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Outages, poison, crashes, clock jumps.
    Plain,
    /// Those, and reloads of every kind, exits by a signal, and happenings that wait for rare states.
    Full,
    /// The full mix, with lanes whose destination never confirms.
    Unconfirmed,
}

/// Runs one seed to its end and checks everything.
pub fn run(seed: u64, mix: Mix, bug: Option<Bug>, trace: bool) -> World {
    run_with(seed, mix, bug, trace, |_| {})
}

/// As [`run`]; `more` schedules what is wanted besides.
pub fn run_with(
    seed: u64,
    mix: Mix,
    bug: Option<Bug>,
    trace: bool,
    more: impl FnOnce(&mut World),
) -> World {
    let mut rng = SimRng(seed);
    let limits = HostLimits {
        max_in_flight: rng.pick(&[4, 8, 256]),
        classes: vec![ClassConfig {
            id: ClassId(1),
            reserved: 1,
            max_in_flight: rng.pick(&[None, Some(2)]),
            rate_per_s: rng.pick(&[None, None, Some(20)]),
        }],
    };
    let mut world = World::new(seed, limits);
    world.bug = bug;
    world.plant();
    if trace {
        world.trace = Some(Vec::new());
    }
    build(&mut world, &mut rng, mix);
    traffic(&mut world, &mut rng);
    faults(&mut world, &mut rng);
    disturbances(&mut world, &mut rng);
    if mix != Mix::Plain {
        extra::reloads(&mut world, &mut rng);
        extra::aborts(&mut world, &mut rng);
        extra::ambushes(&mut world, &mut rng);
    }
    more(&mut world);
    world.run_until(TROUBLE_MS + 1);
    settle_down(&mut world);
    world.check_end();
    world.check_ledgers();
    world.check_direct();
    world
}

fn build(world: &mut World, rng: &mut SimRng, mix: Mix) {
    let connections = rng.between(1, 2) as u32;
    for id in 0..connections {
        world.add_connection(ConnectionConfig {
            backoff: Backoff {
                initial_ms: 500,
                max_ms: rng.pick(&[10_000, 60_000, 300_000]),
            },
            cancel_grace_ms: 5_000,
            ..ConnectionConfig::new(ConnectionId(id))
        });
    }
    for id in 0..rng.between(1, 4) as u32 {
        let connection = rng.below(u64::from(connections)) as u32;
        let target = rng.pick(&["a", "b"]);
        let mut spec = lane(rng, id, connection, target);
        if mix == Mix::Unconfirmed && rng.chance(60) {
            never_confirms(&mut spec);
        }
        world.note_sealed(&spec);
        world.add_lane(spec);
    }
}

/// Its destination says of nothing that it is there, so it knows no repeat either.
fn never_confirms(spec: &mut LaneSpec) {
    spec.manners.unconfirmed = true;
    spec.manners.dedup_ms = None;
    spec.cfg.repeat = Repeat::SecondCopy;
    spec.cfg.inspected = false;
}

pub fn lane(rng: &mut SimRng, id: u32, connection: u32, target: &str) -> LaneSpec {
    let mut cfg = LaneConfig::new(LaneId(id), ConnectionId(connection), target);
    cfg.class = ClassId(rng.below(2) as u32);
    cfg.order = rng.pick(&[Order::Strict, Order::ByKey, Order::None]);
    cfg.after_park = rng.pick(&[AfterPark::Continue, AfterPark::Continue, AfterPark::HoldKey]);
    let kind = rng.pick(&[BatchKind::Atomic, BatchKind::Prefix, BatchKind::Independent]);
    cfg.batch = BatchConfig {
        kind,
        sealed: kind == BatchKind::Atomic && rng.chance(30),
        max_writes: rng.pick(&[1, 1, 3, 8]),
        max_bytes: rng.pick(&[2_500, 1 << 20]),
        linger_ms: rng.pick(&[0, 5]),
    };
    cfg.in_flight_limit = cfg.batch.max_writes * 2;
    cfg.window_writes = rng.pick(&[16, 64]);
    cfg.policy = Policy {
        max_attempts: rng.pick(&[2, 5]),
        max_age_ms: rng.pick(&[None, None, Some(600_000)]),
        backoff: Backoff {
            initial_ms: 500,
            max_ms: rng.pick(&[10_000, 300_000]),
        },
    };
    cfg.timeout_ms = 10_000;
    let mut dedup_ms = None;
    if rng.chance(50) {
        let window_ms = rng.pick(&[None, Some(120_000), Some(1_200_000)]);
        dedup_ms = Some(window_ms.unwrap_or(u64::MAX));
        cfg.repeat = Repeat::Dropped {
            window_ms,
            margin_ms: 20_000,
            on_window_passed: rng.pick(&[OnWindowPassed::Resend, OnWindowPassed::Park]),
        };
        cfg.inspected = rng.chance(50);
    }
    cfg.on_ambiguous = rng.pick(&[
        OnAmbiguous::Hold,
        OnAmbiguous::Hold,
        OnAmbiguous::Park,
        OnAmbiguous::Retry,
    ]);
    cfg.has_handler = rng.chance(25);
    if rng.chance(12) {
        cfg.direct = Some(DirectMode::Hold);
        cfg.batch.sealed = false;
        cfg.has_handler = false;
    }
    let mut poison = BTreeMap::new();
    if rng.chance(40) && cfg.direct.is_none() {
        for _ in 0..rng.between(1, 2) {
            let kinds = [
                Poison::Refused,
                Poison::Refused,
                Poison::ServerError,
                Poison::BadGateway,
                Poison::Denied,
                Poison::Silent,
            ];
            poison.insert(rng.between(1, 30), rng.pick(&kinds));
        }
    }
    LaneSpec {
        manners: Manners {
            atomic: kind == BatchKind::Atomic,
            prefix: kind == BatchKind::Prefix,
            dedup_ms,
            latency_ms: rng.pick(&[5, 50, 2_000]),
            unconfirmed: false,
        },
        cfg,
        poison,
    }
}

fn traffic(world: &mut World, rng: &mut SimRng) {
    let lanes: Vec<u32> = world.lanes.keys().copied().collect();
    for lane in lanes {
        for _ in 0..rng.between(1, 12) {
            let at = rng.below(TROUBLE_MS);
            let count = rng.pick(&[1, 1, 3, 20]);
            world.at(at, Ev::Accept { lane, count });
        }
    }
}

fn faults(world: &mut World, rng: &mut SimRng) {
    for _ in 0..rng.between(1, 6) {
        let fault = rng.pick(&Fault::ALL);
        let connection = rng.below(world.connections.len() as u64) as u32;
        let target = fault.of_target().then(|| rng.pick(&["a", "b"]).to_owned());
        let at = rng.below(TROUBLE_MS);
        let long = rng.pick(&[2_000, 60_000, 600_000, 3_600_000]);
        let until = (at + rng.between(500, long)).min(TROUBLE_MS);
        world.at(at, Ev::Begin(fault, connection, target.clone()));
        world.at(until, Ev::End(fault, connection, target));
    }
}

fn disturbances(world: &mut World, rng: &mut SimRng) {
    if rng.chance(50) {
        for _ in 0..rng.between(1, 3) {
            world.at(rng.below(TROUBLE_MS), Ev::Crash);
        }
    }
    if rng.chance(25) {
        world.at(rng.below(TROUBLE_MS), Ev::Restart);
    }
    if rng.chance(30) {
        let by = rng.pick(&[-86_400_000, -3_600_000, -500, 3_600_000, 86_400_000]);
        world.at(rng.below(TROUBLE_MS), Ev::Jump(by));
    }
    let lanes: Vec<u32> = world.lanes.keys().copied().collect();
    for lane in lanes {
        let id = LaneId(lane);
        if world.lanes[&lane].cfg.direct.is_some() {
            continue;
        }
        if rng.chance(15) {
            let at = rng.below(TROUBLE_MS - 60_000);
            world.at(at, Ev::Operator(Act::Pause(id)));
            world.at(at + 60_000, Ev::Operator(Act::Resume(id)));
        }
        if rng.chance(20) {
            let seq = rng.between(1, 20);
            let act = rng.pick(&[0, 1, 2]);
            let act = match act {
                0 => Act::Skip(id, seq),
                1 => Act::Purge(id, seq),
                _ => Act::Park(id, seq),
            };
            world.at(rng.below(TROUBLE_MS), Ev::Operator(act));
        }
        if rng.chance(15) {
            world.at(rng.below(TROUBLE_MS), Ev::Reload(lane));
        }
    }
}

/// How often a person looks, at most: of a strict lane of direct sends past their window each one
/// takes a look or two.
const ROUNDS: u32 = 200;
/// During these looks there are new messages: evidence.
const TRAFFIC_ROUNDS: u32 = 40;

/// Everything is mended. What cannot end by itself must say so, and ends once a person acts.
fn settle_down(world: &mut World) {
    world.faults.clear();
    world.ambushes.clear();
    let absent: Vec<u32> = world.reloads.absent.iter().copied().collect();
    for lane in absent {
        world.happen(Ev::Reconfigure(Reconfigure::Return(lane)));
    }
    for lane in world.lanes.keys().copied().collect::<Vec<u32>>() {
        world.input(Input::Operator(Act::Resume(LaneId(lane))));
    }
    let halted = |world: &World| {
        world
            .connections
            .iter()
            .any(|cfg| world.gate_of(cfg.id.0) == consign_delivery::GateState::Halted)
    };
    if halted(world) {
        world.at(world.now, Ev::Restart);
    }
    for cfg in world.connections.clone() {
        world.at(world.now + 1_000, Ev::Operator(Act::ProbeNow(cfg.id)));
    }
    for round in 0..ROUNDS {
        let lanes: Vec<u32> = world.lanes.keys().copied().collect();
        for lane in lanes.iter().filter(|_| round < TRAFFIC_ROUNDS) {
            world.at(
                world.now + 2_000,
                Ev::Accept {
                    lane: *lane,
                    count: 1,
                },
            );
        }
        let until = world.now + 2 * 3_600_000;
        world.run_until(until);
        if halted(world) {
            world.at(world.now, Ev::Restart);
            continue;
        }
        let mut open = false;
        for lane in lanes {
            let stored = &world.buffer.lanes[&lane];
            if stored.pending.is_empty() {
                continue;
            }
            open = true;
            if round > 2 && world.next_at().is_none() {
                world.check_rest(lane);
            }
            help(world, lane, round);
        }
        if !open {
            return;
        }
    }
}

/// What a person does about a lane that stands still.
fn help(world: &mut World, lane: u32, round: u32) {
    let last = world.buffer.lanes[&lane].pending.keys().next().copied();
    if round > 6
        && let Some(first) = last
    {
        // Whatever can't be told by evidence, a person takes out.
        world.input(Input::Operator(Act::Skip(LaneId(lane), first)));
    }
    let held: BTreeSet<u64> = world.held_keys(lane).into_iter().collect();
    let resolved: Vec<(u32, u64)> = world
        .parked
        .keys()
        .copied()
        .filter(|(other, seq)| {
            *other == lane
                && world.buffer.lanes[&lane].settled.get(seq)
                    == Some(&consign_delivery::SettleResult::Parked)
        })
        .collect();
    world.resolved.extend(resolved);
    for key in held {
        world.input(Input::Operator(Act::ReleaseKey(LaneId(lane), key)));
    }
    let pending: Vec<u64> = world.buffer.lanes[&lane].pending.keys().copied().collect();
    let mut held = 0;
    for seq in pending {
        let note = world.buffer.lanes[&lane].pending[&seq].note;
        if note.has(consign_delivery::WriteNote::AMBIGUOUS)
            || world.direct_sent.contains_key(&(lane, seq))
        {
            held += 1;
            *world.pardoned.entry((lane, seq)).or_default() += 1;
        }
    }
    if held > 0 || world.next_at().is_none() {
        world.input(Input::Operator(Act::RetryNow(LaneId(lane))));
    }
}
