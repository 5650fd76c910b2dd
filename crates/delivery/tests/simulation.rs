//! The seeded simulation: a thousand runs in the tests, any number with the example `delivery-sim`.

mod world;

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
