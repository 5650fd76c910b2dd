//! The seeded simulation: a thousand runs in the tests, any number with the example `delivery-sim`.

mod world;

use consign_delivery::Bug;
use world::scenario;

#[test]
fn a_thousand_seeds_keep_every_promise() {
    let mut failed = Vec::new();
    for seed in 0..1_000 {
        let world = scenario::run(seed, None, false);
        if !world.violations.is_empty() {
            failed.push((seed, world.violations));
        }
    }
    assert!(
        failed.is_empty(),
        "{} seeds failed, first {:#?}",
        failed.len(),
        failed.iter().take(3).collect::<Vec<_>>()
    );
}

/// Seeds that failed once, each with what was wrong.
const MENDED: [(u64, &str); 12] = [
    (
        22,
        "a write below the frontier passed a parked one whose key was held",
    ),
    (
        76,
        "a canary that was part of a sealed batch was never sent",
    ),
    (
        91,
        "a key was released while a fetch was out, and a later write overtook",
    ),
    (106, "a sealed canary went over the in-flight limit"),
    (
        209,
        "a held direct send stayed ready and was sent again and again",
    ),
    (
        260,
        "a write was parked for failures that all fell into one outage",
    ),
    (312, "a half of a sealed batch was sent beside the other"),
    (
        3_206,
        "a member of a sealed batch parked alone and left the rest stuck",
    ),
    (
        7_728,
        "a batch that was sealed anew had the number of the old one",
    ),
    (
        12_650,
        "a write of a batch was forgotten when a companion parked first",
    ),
    (26_681, "companions of a canary went out past their window"),
    (
        43_086,
        "a write parked by a person beyond the window did not hold its key",
    ),
];

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    for (seed, what) in MENDED {
        let world = scenario::run(seed, None, false);
        assert!(
            world.violations.is_empty(),
            "seed {seed} ({what}): {:?}",
            world.violations
        );
    }
}

/// A seed that finds each planted bug; `cargo run -p consign-delivery --example delivery-sim bugs`
/// lists them anew.
const PLANTED: [(Bug, u64); 15] = [
    (Bug::FrontierNotAwaited, 0),
    (Bug::NoteNotAwaited, 18),
    (Bug::ChargesWithoutEvidence, 0),
    (Bug::ResendsWithoutBound, 5),
    (Bug::KeyNotBusy, 0),
    (Bug::ResendsBeforeCancel, 18),
    (Bug::IgnoresWindow, 2),
    (Bug::SlotsBeforeDurable, 0),
    (Bug::ForgetsOnDown, 2),
    (Bug::NoTrials, 76),
    (Bug::NoCanary, 2),
    (Bug::SealsAnew, 44),
    (Bug::SilenceIsDelivery, 2),
    (Bug::ParksOnOutage, 5),
    (Bug::IgnoresHeldKeys, 21),
];

#[test]
fn every_planted_bug_is_found() {
    let missed: Vec<Bug> = PLANTED
        .into_iter()
        .filter(|(bug, seed)| {
            let at_seed = |seed| !scenario::run(seed, Some(*bug), false).violations.is_empty();
            // Seeds move when the machine draws its randomness differently: look around then.
            !at_seed(*seed) && !(0..200).any(at_seed)
        })
        .map(|(bug, _)| bug)
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
    assert_eq!(PLANTED.len(), Bug::ALL.len());
}

#[test]
fn a_run_is_the_same_every_time() {
    let outcome = |seed| {
        let world = scenario::run(seed, None, false);
        (world.sends, world.events, world.parked.len(), world.now)
    };
    assert_eq!(outcome(7), outcome(7));
}
