//! Runs the simulation over a range of seeds: `delivery-sim FIRST COUNT`, or one with its trace:
//! `delivery-sim trace SEED`, or the first seed that finds each planted bug: `delivery-sim bugs`.

#[path = "../tests/world/mod.rs"]
mod world;

use std::collections::BTreeMap;
use world::scenario;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        args.get(at)
            .and_then(|arg| arg.parse().ok())
            .unwrap_or(default)
    };
    if args.first().is_some_and(|arg| arg == "trace") {
        let world = scenario::run(number(1, 0), None, true);
        for (id, spec) in &world.lanes {
            println!("lane {id}: {spec:?}");
        }
        for line in world.trace.iter().flatten() {
            println!("{line}");
        }
        println!("{:#?}", world.violations);
        return;
    }
    if args.first().is_some_and(|arg| arg == "bugs") {
        for bug in consign_delivery::Bug::ALL {
            let found = (0..number(1, 400)).find_map(|seed| {
                let world = scenario::run(seed, Some(bug), false);
                let first = world.violations.first().cloned();
                first.map(|what| (seed, what))
            });
            match found {
                Some((seed, what)) => println!("(Bug::{bug:?}, {seed}), // {what}"),
                None => println!("{bug:?}: NOT FOUND"),
            }
        }
        return;
    }
    let (first, count) = (number(0, 0), number(1, 1_000));
    let mut hits: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut events: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut failed, mut crashes, mut sends) = (0_u64, 0_u64, 0_u64);
    for seed in first..first + count {
        let world = scenario::run(seed, None, false);
        if !world.violations.is_empty() {
            failed += 1;
            println!("seed {seed}: {:?}", world.violations.first());
        }
        for (key, n) in world.hits {
            *hits.entry(key).or_default() += n;
        }
        for (code, n) in world.events {
            *events.entry(code.name()).or_default() += n;
        }
        crashes += world.crashes;
        sends += world.sends.len() as u64;
    }
    println!("{count} seeds from {first}: {failed} failed; {sends} requests, {crashes} crashes");
    for ((fault, state), n) in hits {
        println!("{fault:<18} {state:<18} {n}");
    }
    for (event, n) in events {
        println!("event {event:<24} {n}");
    }
}
