//! The simulation in numbers that fit every test run.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::planted::Planted;
use crate::sim::{Scenario, run};

/// Runs `seeds` on every processor; what each found wrong, in order of seeds.
fn search(
    seeds: std::ops::Range<u64>,
    planted: Option<Planted>,
    first_only: bool,
) -> (Vec<(u64, String)>, u64) {
    let next = AtomicU64::new(seeds.start);
    let found: Mutex<Vec<(u64, String)>> = Mutex::default();
    let recoveries = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || first_only && !found.lock().unwrap().is_empty() {
                        return;
                    }
                    match run(Scenario {
                        seed,
                        actions: 300,
                        planted,
                    }) {
                        Ok(report) => {
                            recoveries.fetch_add(report.recoveries, Ordering::Relaxed);
                        }
                        Err(why) => found.lock().unwrap().push((seed, why)),
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort();
    (found, recoveries.into_inner())
}

#[test]
fn a_thousand_seeds_keep_what_was_promised() {
    let (found, recoveries) = search(0..1000, None, false);
    let some: Vec<String> = found
        .iter()
        .take(5)
        .map(|(seed, why)| format!("seed {seed}: {why}"))
        .collect();
    assert!(
        found.is_empty(),
        "{} seeds\n{}",
        found.len(),
        some.join("\n")
    );
    assert!(recoveries > 2000, "{recoveries}");
}

#[test]
fn the_simulation_notices_when_the_flush_of_the_log_is_left_out() {
    let (found, _) = search(0..200, Some(Planted::LogNotSynced), true);
    assert!(
        found.iter().any(|(_, why)| why.contains("missing")),
        "{found:?}"
    );
}
