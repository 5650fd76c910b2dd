//! Runs the simulation over a range of seeds: `delivery-sim FIRST COUNT [MIX]`, or one with its
//! trace: `delivery-sim trace SEED [MIX]`, or the first seed that finds each planted bug:
//! `delivery-sim bugs [SEEDS] [MIX]`. The mix is `plain`, `full` (the default) or `unconfirmed`.
//!
//! A run over [`LONG`] seeds or more fails when a happening never met a state it can meet.

#[path = "../tests/world/mod.rs"]
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use world::hits::{self, Hits};
use world::scenario::{self, Mix};

/// From so many seeds on every possible cell of the table must be hit.
const LONG: u64 = 100_000;

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut mix = Mix::Full;
    args.retain(|arg| {
        mix = match arg.as_str() {
            "plain" => Mix::Plain,
            "full" => Mix::Full,
            "unconfirmed" => Mix::Unconfirmed,
            _ => return true,
        };
        false
    });
    let number = |at: usize, default: u64| {
        args.get(at)
            .and_then(|arg| arg.parse().ok())
            .unwrap_or(default)
    };
    match args.first().map(String::as_str) {
        Some("trace") => trace(number(1, 0), mix),
        Some("bugs") => bugs(number(1, 400), mix),
        _ => range(number(0, 0), number(1, 1_000), mix),
    }
}

fn trace(seed: u64, mix: Mix) -> ExitCode {
    let world = scenario::run(seed, mix, None, true);
    for (id, spec) in &world.lanes {
        println!("lane {id}: {spec:?}");
    }
    for line in world.trace.iter().flatten() {
        println!("{line}");
    }
    println!("{:#?}", world.violations);
    ExitCode::SUCCESS
}

fn bugs(seeds: u64, mix: Mix) -> ExitCode {
    let mut missed = false;
    for bug in consign_delivery::Bug::ALL {
        let found = (0..seeds).find_map(|seed| {
            let world = scenario::run(seed, mix, Some(bug), false);
            let first = world.violations.first().cloned();
            first.map(|what| (seed, what))
        });
        match found {
            Some((seed, what)) => println!("(Bug::{bug:?}, {seed}), // {what}"),
            None => {
                missed = true;
                println!("{bug:?}: NOT FOUND");
            }
        }
    }
    ExitCode::from(u8::from(missed))
}

/// What a range of seeds came to.
#[derive(Default)]
struct Sum {
    hits: Hits,
    events: BTreeMap<&'static str, u64>,
    failed: u64,
    crashes: u64,
    requests: u64,
    writes: u64,
    copies: u64,
    interruptions: u64,
    parked: BTreeMap<&'static str, u64>,
}

impl Sum {
    fn add(&mut self, world: world::World) {
        for (key, n) in world.hits {
            *self.hits.entry(key).or_default() += n;
        }
        for (code, n) in world.events {
            *self.events.entry(code.name()).or_default() += n;
        }
        for reason in world.parked.values() {
            *self.parked.entry(reason.name()).or_default() += 1;
        }
        self.crashes += world.crashes;
        self.requests += world.sends.len() as u64;
        self.writes += world
            .buffer
            .lanes
            .values()
            .map(|lane| lane.last_seq)
            .sum::<u64>();
        let more = |copies: &u32| u64::from(copies.saturating_sub(1));
        self.copies += world.effects.copies.values().map(more).sum::<u64>();
        self.interruptions += world
            .interruptions
            .values()
            .map(|set| set.len() as u64)
            .sum::<u64>();
    }
}

fn range(first: u64, count: u64, mix: Mix) -> ExitCode {
    let mut sum = Sum::default();
    for seed in first..first + count {
        let world = scenario::run(seed, mix, None, false);
        if let Some(what) = world.violations.first() {
            sum.failed += 1;
            println!("seed {seed}: {what}");
        }
        sum.add(world);
    }
    println!(
        "{count} seeds from {first}, {mix:?} mix: {} failed; {} writes, {} requests, {} crashes",
        sum.failed, sum.writes, sum.requests, sum.crashes
    );
    println!(
        "{} interruptions of writes as counted by the injector, {} second copies",
        sum.interruptions, sum.copies
    );
    table(&sum.hits);
    for (reason, n) in &sum.parked {
        println!("parked {reason:<24} {n}");
    }
    for (event, n) in &sum.events {
        println!("event {event:<24} {n}");
    }
    let missing = hits::missing(&sum.hits);
    if mix == Mix::Full {
        println!(
            "{} possible cells without a hit: {missing:?}",
            missing.len()
        );
    }
    let thin = mix == Mix::Full && count >= LONG && !missing.is_empty();
    ExitCode::from(u8::from(sum.failed > 0 || thin))
}

/// Rows are happenings, columns states; a cell that is impossible shows a dash.
fn table(hits: &Hits) {
    let columns = hits::columns();
    for (at, column) in columns.iter().enumerate() {
        println!("column {at:>2} {column}");
    }
    print!("{:<18}", "");
    for at in 0..columns.len() {
        print!("{at:>8}");
    }
    println!();
    for row in hits::rows() {
        print!("{row:<18}");
        for column in &columns {
            let n = hits.get(&(row.clone(), column.clone())).copied();
            match n {
                None if !hits::possible(&row, column) => print!("{:>8}", "-"),
                n => print!("{:>8}", n.unwrap_or(0)),
            }
        }
        println!();
    }
}
