//! What the full mix adds to a run: reloads, exits by a signal, and ambushes at rare states.

use super::dest::{Fault, Poison};
use super::hits::{Ambush, GATES, LANES, TARGETS, Watch};
use super::reload::Reconfigure;
use super::rng::SimRng;
use super::scenario::{TROUBLE_MS, lane};
use super::{Ev, LaneSpec, World};
use consign_delivery::{
    Act, AfterPark, Backoff, BatchKind, ClassId, ConnectionConfig, LaneId, LaneState, OnAmbiguous,
    Order,
};

/// Reloads of every kind, at random times.
pub fn reloads(world: &mut World, rng: &mut SimRng) {
    let lanes: Vec<u32> = world.lanes.keys().copied().collect();
    for lane in &lanes {
        for _ in 0..rng.below(3) {
            let ev = reload(world, rng, *lane);
            schedule(world, rng, ev);
        }
    }
    if rng.chance(20) {
        let id = lanes.len() as u32;
        let connection = rng.below(world.connections.len() as u64) as u32;
        let target = rng.pick(&["a", "b", "c"]);
        let spec = lane(rng, id, connection, target);
        world.note_sealed(&spec);
        let at = rng.below(TROUBLE_MS / 2);
        world.at(at, Ev::Reconfigure(Reconfigure::Add(Box::new(spec))));
        // Its traffic comes after it.
        for _ in 0..rng.between(1, 6) {
            let after = rng.between(at + 1, TROUBLE_MS);
            let count = rng.pick(&[1, 3, 20]);
            world.at(after, Ev::Accept { lane: id, count });
        }
    }
}

fn schedule(world: &mut World, rng: &mut SimRng, ev: Ev) {
    let at = rng.below(TROUBLE_MS - 600_000);
    if let Ev::Reconfigure(Reconfigure::Remove(lane)) = &ev {
        let back = at + rng.between(10, 500_000);
        world.at(back, Ev::Reconfigure(Reconfigure::Return(*lane)));
    }
    world.at(at, ev);
}

/// A change of one lane or its connection.
fn reload(world: &World, rng: &mut SimRng, lane: u32) -> Ev {
    let spec = &world.lanes[&lane];
    let connections = world.connections.len() as u64;
    let connection = rng.below(connections) as u32;
    let target = rng.pick(&["a", "b", "c"]).to_owned();
    let within = rng.pick(&[0, 5_000, 60_000, 600_000]);
    let volatile = spec.cfg.direct.is_some();
    Ev::Reconfigure(match rng.below(8) {
        0 | 1 => Reconfigure::Settings(lane, Box::new(settings(rng, spec).cfg)),
        2 => Reconfigure::Order(lane, Box::new(reordered(rng, spec))),
        3 | 4 if !volatile => Reconfigure::Target(lane, connection, target, within),
        5 if !volatile && rng.chance(40) => Reconfigure::TargetCrash(lane, connection, target),
        6 if !volatile => Reconfigure::Remove(lane),
        7 => {
            let mut cfg: ConnectionConfig = world.connections[connection as usize].clone();
            cfg.cancel_grace_ms = rng.pick(&[1_000, 5_000, 10_000]);
            cfg.backoff.max_ms = rng.pick(&[10_000, 60_000, 300_000]);
            Reconfigure::Connection(cfg)
        }
        _ => return Ev::Reload(lane),
    })
}

/// Settings a lane takes while it runs.
fn settings(rng: &mut SimRng, spec: &LaneSpec) -> LaneSpec {
    let mut spec = spec.clone();
    let cfg = &mut spec.cfg;
    cfg.class = ClassId(rng.below(2) as u32);
    cfg.batch.max_writes = rng.pick(&[1, 3, 8]);
    cfg.batch.max_bytes = rng.pick(&[2_500, 1 << 20]);
    cfg.batch.linger_ms = rng.pick(&[0, 5]);
    cfg.in_flight_limit = cfg.batch.max_writes * 2;
    cfg.window_writes = rng.pick(&[16, 64]);
    cfg.policy.max_attempts = rng.pick(&[2, 5]);
    cfg.policy.max_age_ms = rng.pick(&[None, Some(600_000)]);
    cfg.policy.backoff = Backoff {
        initial_ms: 500,
        max_ms: rng.pick(&[10_000, 300_000]),
    };
    cfg.timeout_ms = rng.pick(&[5_000, 10_000]);
    cfg.on_ambiguous = rng.pick(&[OnAmbiguous::Hold, OnAmbiguous::Park, OnAmbiguous::Retry]);
    if cfg.direct.is_none() {
        cfg.has_handler = rng.chance(25);
    }
    spec
}

/// Settings a lane is taken out for.
fn reordered(rng: &mut SimRng, spec: &LaneSpec) -> LaneSpec {
    let mut spec = settings(rng, spec);
    let kind = rng.pick(&[BatchKind::Atomic, BatchKind::Prefix, BatchKind::Independent]);
    spec.cfg.order = rng.pick(&[Order::Strict, Order::ByKey, Order::None]);
    spec.cfg.after_park = rng.pick(&[AfterPark::Continue, AfterPark::HoldKey]);
    spec.cfg.batch.kind = kind;
    spec.cfg.batch.sealed =
        kind == BatchKind::Atomic && rng.chance(30) && spec.cfg.direct.is_none();
    spec.manners.atomic = kind == BatchKind::Atomic;
    spec.manners.prefix = kind == BatchKind::Prefix;
    spec
}

/// A payload on which a plugin takes the process down.
pub fn aborts(world: &mut World, rng: &mut SimRng) {
    if !rng.chance(12) {
        return;
    }
    let lanes: Vec<u32> = world.lanes.keys().copied().collect();
    let lane = rng.pick(&lanes);
    let spec = world.lanes.get_mut(&lane).unwrap();
    if spec.cfg.direct.is_none() {
        spec.poison.insert(rng.between(1, 20), Poison::Abort);
    }
}

/// Happenings that wait for a state most runs never see.
pub fn ambushes(world: &mut World, rng: &mut SimRng) {
    for _ in 0..rng.below(4) {
        let lanes: Vec<u32> = world.lanes.keys().copied().collect();
        let victim = rng.pick(&lanes);
        let connection = world.lanes[&victim].cfg.connection.0;
        let watch = match rng.below(3) {
            0 => Watch::Gate(connection, rng.pick(&GATES)),
            1 => Watch::Target(connection, rng.pick(&TARGETS)),
            // The states that last shortest are waited for most.
            _ if rng.chance(40) => Watch::Lane(victim, LaneState::Draining),
            _ => Watch::Lane(victim, rng.pick(&LANES)),
        };
        let ev = match rng.below(4) {
            0 | 1 => fault(world, rng, connection),
            2 => reload(world, rng, victim),
            _ => disturbance(rng, victim),
        };
        if let Ev::Reconfigure(Reconfigure::Remove(lane)) = &ev {
            world.at(
                TROUBLE_MS - 1_000,
                Ev::Reconfigure(Reconfigure::Return(*lane)),
            );
        }
        if let Ev::Operator(Act::Pause(lane)) = &ev {
            let back = rng.between(TROUBLE_MS / 2, TROUBLE_MS - 1_000);
            world.at(back, Ev::Operator(Act::Resume(*lane)));
        }
        let from = rng.below(TROUBLE_MS / 2);
        world.ambushes.push(Ambush {
            watch,
            from,
            evs: vec![ev],
        });
    }
}

/// A fault that begins now; all faults end when the trouble does, this one maybe before.
fn fault(world: &mut World, rng: &mut SimRng, connection: u32) -> Ev {
    let fault = rng.pick(&Fault::ALL);
    let target = fault.of_target().then(|| rng.pick(&["a", "b"]).to_owned());
    let end = rng.between(TROUBLE_MS / 2, TROUBLE_MS);
    world.at(end, Ev::End(fault, connection, target.clone()));
    Ev::Begin(fault, connection, target)
}

fn disturbance(rng: &mut SimRng, lane: u32) -> Ev {
    match rng.below(6) {
        0 => Ev::Crash,
        1 => Ev::Restart,
        2 => Ev::Jump(rng.pick(&[-86_400_000, -3_600_000, -500])),
        3 => Ev::Jump(rng.pick(&[3_600_000, 86_400_000])),
        4 => Ev::Operator(Act::Pause(LaneId(lane))),
        _ => Ev::Operator(Act::Park(LaneId(lane), rng.between(1, 20))),
    }
}
