//! The seeded simulation: a thousand runs in the tests, any number with the example `delivery-sim`.

mod world;

use consign_delivery::Bug;
use world::scenario::{self, Mix};

#[test]
fn a_thousand_seeds_keep_every_promise() {
    let mut failed = Vec::new();
    for seed in 0..1_000 {
        // The full mix holds everything but lanes that are never confirmed; the plain one reaches deeper into
        // outages.
        let mix = match seed % 8 {
            0 | 4 => Mix::Plain,
            7 => Mix::Unconfirmed,
            _ => Mix::Full,
        };
        let world = scenario::run(seed, mix, None, false);
        if !world.violations.is_empty() {
            failed.push((seed, mix, world.violations));
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
const MENDED: [(Mix, u64, &str); 41] = [
    (
        Mix::Plain,
        22,
        "a write below the frontier passed a parked one whose key was held",
    ),
    (
        Mix::Plain,
        76,
        "a canary that was part of a sealed batch was never sent",
    ),
    (
        Mix::Plain,
        91,
        "a key was released while a fetch was out, and a later write overtook",
    ),
    (
        Mix::Plain,
        106,
        "a sealed canary went over the in-flight limit",
    ),
    (
        Mix::Plain,
        209,
        "a held direct send stayed ready and was sent again and again",
    ),
    (
        Mix::Plain,
        260,
        "a write was parked for failures that all fell into one outage",
    ),
    (
        Mix::Plain,
        312,
        "a half of a sealed batch was sent beside the other",
    ),
    (
        Mix::Plain,
        3_206,
        "a member of a sealed batch parked alone and left the rest stuck",
    ),
    (
        Mix::Plain,
        7_728,
        "a batch that was sealed anew had the number of the old one",
    ),
    (
        Mix::Plain,
        12_650,
        "a write of a batch was forgotten when a companion parked first",
    ),
    (
        Mix::Plain,
        26_681,
        "companions of a canary went out past their window",
    ),
    (
        Mix::Plain,
        43_086,
        "a write parked by a person beyond the window did not hold its key",
    ),
    (
        Mix::Plain,
        492,
        "a lane went on saying that it halted on a write that another lane's evidence had parked",
    ),
    (
        Mix::Full,
        4_971,
        "two parks in one fetch: a later write skipped for the held key hid an earlier one for good",
    ),
    (Mix::Full, 5_670, "the same, with another key"),
    (Mix::Full, 6_936, "the same, after an exit by a signal"),
    (Mix::Full, 8_059, "the same, in sealed batches"),
    (
        Mix::Full,
        10_593,
        "a lane that was leaving its target was taken out before its maybes were finished",
    ),
    (
        Mix::Full,
        55_677,
        "the clock went back while a lane was away, and its window seemed to be open still",
    ),
    (
        Mix::Full,
        56_880,
        "a person spoke of a write that was not there yet (a fault of the check)",
    ),
    (
        Mix::Full,
        254_873,
        "a released key sent what it had in the window before what it had skipped",
    ),
    (Mix::Full, 276_421, "the same, under by_key"),
    (
        Mix::Full,
        276_441,
        "a halted connection with nothing to send (a fault of the check)",
    ),
    (
        Mix::Full,
        206_724,
        "attempts that a reload gave back, and a trial went past the write all the same",
    ),
    (
        Mix::Full,
        207_211,
        "the same, found by another order of events",
    ),
    (Mix::Full, 208_554, "the same, under by_key"),
    (
        Mix::Full,
        304_108,
        "the same, over and over through an outage",
    ),
    (
        Mix::Full,
        366_210,
        "the same, with a limit that was lowered first",
    ),
    (
        Mix::Full,
        232_290,
        "a lane on its way out was told to leave its target, and was gone before its maybes were finished",
    ),
    (
        Mix::Full,
        258_494,
        "a request that did not stop when told delivered after the window, and nothing said so",
    ),
    (
        Mix::Full,
        309_220,
        "an answer from before an outage was evidence against a write that the outage had failed",
    ),
    (Mix::Full, 340_832, "the same, at a last try"),
    (
        Mix::Full,
        346_537,
        "a refused batch with a row too few freed a slot twice",
    ),
    (
        Mix::Full,
        220_586,
        "a person spoke to a host that had drained (a fault of the model)",
    ),
    (
        Mix::Full,
        334_765,
        "a lane left for the target it has (a fault of the model)",
    ),
    (
        Mix::Full,
        241_979,
        "a sealed batch that waited for a companion hid every other canary, and the gate stayed half-open",
    ),
    (
        Mix::Full,
        251_452,
        "two writes failed in one outage, and the first to get through was evidence against the other",
    ),
    (
        Mix::Full,
        298_295,
        "a person parked a direct send, and it was sent again at every pause from then on",
    ),
    (
        Mix::Full,
        271_800,
        "a clock that went back and caught up hid the age of a direct send (a fault of the model)",
    ),
    (
        Mix::Full,
        273_387,
        "more held direct sends than a person had looks for (a fault of the check)",
    ),
    (
        Mix::Plain,
        142_708,
        "a trial past a direct send that was handed over again after a crash was taken for an overtaking",
    ),
];

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    for (mix, seed, what) in MENDED {
        let world = scenario::run(seed, mix, None, false);
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

/// The wall clock decides about expiry and windows only; everything else is monotonic.
#[test]
fn a_clock_that_jumps_changes_nothing_where_nothing_expires_and_no_window_runs() {
    let mut compared = 0;
    for seed in 0..600 {
        let calm = scenario::run(seed, Mix::Full, None, false);
        let timed = calm.lanes.values().any(|spec| {
            spec.cfg.id.0 % 7 == 6
                || matches!(
                    spec.cfg.repeat,
                    consign_delivery::Repeat::Dropped {
                        window_ms: Some(_),
                        ..
                    }
                )
        });
        if timed {
            continue;
        }
        let jumpy = scenario::run_with(seed, Mix::Full, None, false, |world| {
            for (at, by) in [
                (1_000_000, -86_400_000),
                (3_000_000, 259_200_000),
                (5_000_000, -500),
            ] {
                world.at(at, world::Ev::Jump(by));
            }
        });
        compared += 1;
        assert_eq!(jumpy.violations, Vec::<String>::new(), "seed {seed}");
        assert_eq!(
            jumpy.sends, calm.sends,
            "seed {seed}: the same requests at the same times"
        );
        assert_eq!(jumpy.parked, calm.parked, "seed {seed}");
    }
    assert!(compared > 100, "only {compared} runs without windows");
}

#[test]
fn every_planted_bug_is_found() {
    let missed: Vec<Bug> = PLANTED
        .into_iter()
        .filter(|(bug, seed)| {
            let at_seed = |seed| {
                !scenario::run(seed, Mix::Plain, Some(*bug), false)
                    .violations
                    .is_empty()
            };
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
        let world = scenario::run(seed, Mix::Full, None, false);
        (world.sends, world.events, world.parked.len(), world.now)
    };
    assert_eq!(outcome(7), outcome(7));
}
