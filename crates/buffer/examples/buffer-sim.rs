//! Runs the buffer's simulation over many seeds:
//! `buffer-sim [--from N] [--seeds N] [--actions N] [--planted all|NAME] [--trace 1]`.
//!
//! With `--planted` it looks for the first seed that finds each planted bug, or the one named, instead; with `--trace 1`
//! each run tells what happens in it.
//!
//! Prints each seed that fails, a table of hits per fault and call site, and runs per second. Of 100,000 seeds and more
//! it asks that every cell of the table was hit which can be (see `sim::cells`); whatever the number, none may be hit
//! that cannot.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use consign_buffer::Planted;
use consign_buffer::sim::{Fault, Report, Scenario, possible, run};

/// From this many seeds on a cell that stays at zero fails the run.
const ENOUGH_SEEDS: u64 = 100_000;

fn text(name: &str) -> Option<String> {
    std::env::args().skip_while(|a| a != name).nth(1)
}

fn argument(name: &str, default: u64) -> u64 {
    text(name).and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Prints the first seed that finds each planted bug, or the one named.
fn find_planted(name: &str, from: u64, seeds: u64, actions: u32) {
    let mut missed = 0;
    let named = |planted: &&Planted| name == "all" || format!("{planted:?}") == name;
    for planted in Planted::ALL.iter().filter(named) {
        let found = (from..from + seeds).find_map(|seed| {
            Some((
                seed,
                run(Scenario {
                    seed,
                    actions,
                    planted: Some(*planted),
                    trace: false,
                })
                .err()?,
            ))
        });
        match found {
            Some((seed, why)) => println!(
                "{planted:?}: seed {seed}: {}",
                why.lines().next().unwrap_or_default()
            ),
            None => {
                println!("{planted:?}: not found in {seeds} seeds");
                missed += 1;
            }
        }
    }
    if missed > 0 {
        std::process::exit(1);
    }
}

fn main() {
    let (from, seeds) = (argument("--from", 0), argument("--seeds", 100_000));
    let actions = u32::try_from(argument("--actions", 300)).unwrap_or(300);
    let trace = argument("--trace", 0) == 1;
    if let Some(name) = text("--planted") {
        find_planted(&name, from, seeds, actions);
        return;
    }
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let start = Instant::now();
    let next = AtomicU64::new(from);
    let total: Mutex<(Report, Vec<(u64, String)>)> = Mutex::new(Default::default());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + seeds {
                        return;
                    }
                    let result = run(Scenario {
                        seed,
                        actions,
                        planted: None,
                        trace,
                    });
                    let Ok(mut total) = total.lock() else { return };
                    match result {
                        Ok(report) => {
                            for (site, n) in report.hits {
                                *total.0.hits.entry(site).or_default() += n;
                            }
                            total.0.recoveries += report.recoveries;
                            total.0.checkpoints += report.checkpoints;
                            total.0.damages += report.damages;
                        }
                        Err(why) => {
                            println!("seed {seed}: {why}");
                            total.1.push((seed, why));
                        }
                    }
                }
            });
        }
    });
    let Ok((report, failed)) = total.into_inner() else {
        return;
    };
    print_table(&report);
    let unhit: Vec<String> = possible()
        .iter()
        .filter(|cell| !report.hits.contains_key(cell))
        .map(|cell| format!("{cell:?}"))
        .collect();
    let unknown: Vec<String> = report
        .hits
        .keys()
        .filter(|cell| !possible().contains(cell))
        .map(|cell| format!("{cell:?}"))
        .collect();
    println!(
        "{} of {} cells hit; not hit: {}; hit and not known to be possible: {}",
        possible().len() - unhit.len(),
        possible().len(),
        unhit.join(" "),
        unknown.join(" ")
    );
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds from {from}, {} failed; {} recoveries checked, {} checkpoints, {} files damaged; {:.0} runs/s",
        failed.len(),
        report.recoveries,
        report.checkpoints,
        report.damages,
        seeds as f64 / seconds,
    );
    if !failed.is_empty() || !unknown.is_empty() || seeds >= ENOUGH_SEEDS && !unhit.is_empty() {
        std::process::exit(1);
    }
}

/// Hits by call site and fault; `-` where the fault cannot meet the call.
fn print_table(report: &Report) {
    let possible = possible();
    let faults = [
        Fault::Kill,
        Fault::PowerCut,
        Fault::Eio,
        Fault::Enospc,
        Fault::Short,
    ];
    let sites: BTreeSet<_> = possible
        .iter()
        .chain(report.hits.keys())
        .map(|(_, call, area)| (*call, *area))
        .collect();
    print!("{:<22}", "call site");
    for fault in faults {
        print!("{:>11}", format!("{fault:?}"));
    }
    println!();
    for (call, area) in sites {
        print!("{:<22}", format!("{call:?} {area:?}"));
        for fault in faults {
            let cell = (fault, call, area);
            let text = match report.hits.get(&cell) {
                Some(n) => n.to_string(),
                None if possible.contains(&cell) => "0".into(),
                None => "-".into(),
            };
            print!("{text:>11}");
        }
        println!();
    }
}
