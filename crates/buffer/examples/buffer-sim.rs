//! Runs the buffer's simulation over many seeds: `buffer-sim [--from N] [--seeds N] [--actions N] [--planted 1]`.
//!
//! With `--planted 1` it looks for the first seed that finds each planted bug instead.
//!
//! Prints each seed that fails, a table of hits per fault and call site, and runs per second.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use consign_buffer::Planted;
use consign_buffer::sim::{Report, Scenario, run};

fn argument(name: &str, default: u64) -> u64 {
    let mut args = std::env::args().skip_while(|a| a != name).skip(1);
    args.next().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Prints the first seed that finds each planted bug.
fn find_planted(from: u64, seeds: u64, actions: u32) {
    let mut missed = 0;
    for planted in Planted::ALL {
        let found = (from..from + seeds).find_map(|seed| {
            Some((
                seed,
                run(Scenario {
                    seed,
                    actions,
                    planted: Some(*planted),
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
    if argument("--planted", 0) == 1 {
        find_planted(from, seeds, actions);
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
                    });
                    let Ok(mut total) = total.lock() else { return };
                    match result {
                        Ok(report) => {
                            for (site, n) in report.hits {
                                *total.0.hits.entry(site).or_default() += n;
                            }
                            total.0.recoveries += report.recoveries;
                            total.0.checkpoints += report.checkpoints;
                            total.0.flips += report.flips;
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
    let mut table: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for ((fault, call, area), n) in &report.hits {
        *table
            .entry(format!("{call:?} {area:?}"))
            .or_default()
            .entry(format!("{fault:?}"))
            .or_default() += n;
    }
    let faults = ["Kill", "PowerCut", "Eio", "Enospc", "Short"];
    println!(
        "{:<22}{}",
        "call site",
        faults.map(|f| format!("{f:>11}")).concat()
    );
    for (site, hits) in &table {
        println!(
            "{site:<22}{}",
            faults
                .map(|f| format!("{:>11}", hits.get(f).copied().unwrap_or(0)))
                .concat()
        );
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds from {from}, {} failed; {} recoveries checked, {} checkpoints, {} bits flipped; {:.0} runs/s",
        failed.len(),
        report.recoveries,
        report.checkpoints,
        report.flips,
        seeds as f64 / seconds,
    );
    if !failed.is_empty() {
        std::process::exit(1);
    }
}
