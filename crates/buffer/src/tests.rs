//! The simulation in numbers that fit every test run.

use crate::sim::{Scenario, run};

#[test]
fn a_thousand_seeds() {
    let mut recoveries = 0;
    let mut bad = Vec::new();
    for seed in 0..1000 {
        match run(Scenario {
            seed,
            actions: 300,
            planted: None,
        }) {
            Ok(report) => recoveries += report.recoveries,
            Err(why) => bad.push(format!("seed {seed}: {why}")),
        }
    }
    assert!(
        bad.is_empty(),
        "{} seeds\n{}",
        bad.len(),
        bad[..bad.len().min(20)].join("\n")
    );
    assert!(recoveries > 2000, "{recoveries}");
}
