//! What a person can do to a stopped host's folder is told as damage, never taken for a new buffer or a torn tail.

use std::path::{Path, PathBuf};

use super::*;
use crate::items::Item;
use crate::sim::{Cell, Fault, Odds};
use crate::slots::{read_slot, slot_path};
use crate::state::Applied;

/// A folder with ten pending writes in the log, after a crash.
fn crashed(seed: u64) -> SimFilesystem {
    let fs = SimFilesystem::new(seed);
    let mut bench = Bench::open(fs.clone());
    let lane = bench.lane();
    for n in 1..=10 {
        let room = bench.buffer.reserve(&[(lane, 1000)]).unwrap();
        let mut accepted = bench.accept(room, lane, n);
        bench.step();
        accepted.try_now().unwrap().unwrap();
    }
    drop(bench);
    fs.reboot(Fault::PowerCut);
    fs
}

fn reopen(fs: &SimFilesystem) -> (Bench, Recovery) {
    Bench::open_with(fs.clone(), None).unwrap()
}

/// The checkpoint in force, and the one before it.
fn checkpoints(fs: &SimFilesystem) -> [PathBuf; 2] {
    let dir = Path::new("/sim");
    let generation = |slot| {
        let found = read_slot(fs, dir, slot, None).unwrap();
        found.checkpoint.map_or(0, |(generation, _)| generation)
    };
    let newest = usize::from(generation(1) > generation(0));
    [slot_path(dir, newest), slot_path(dir, 1 - newest)]
}

#[test]
fn a_log_whose_files_were_removed_does_not_pass_for_a_new_one() {
    let fs = crashed(1);
    for (path, _) in fs.files(".log") {
        fs.lose_file(&path);
    }
    let (mut bench, recovery) = reopen(&fs);
    assert_eq!(recovery.lost.files, 8, "{:?}", recovery.lost);
    assert!(recovery.unclean_exit);
    let told = recovery.lost.notes.join("\n");
    assert!(told.contains("/sim/log/0000.log is missing"), "{told}");
    assert!(told.contains("log segment 1 is missing"), "{told}");
    // Told once, by a run that came to its first checkpoint.
    (0..20).for_each(|_| bench.step());
    drop(bench);
    fs.reboot(Fault::Kill);
    assert!(reopen(&fs).1.lost.is_empty());
}

#[test]
fn one_removed_log_file_is_told_even_when_it_is_the_newest() {
    let fs = crashed(2);
    let (path, _) = fs.files(".log").into_iter().next().unwrap();
    fs.lose_file(&path);
    let (_, recovery) = reopen(&fs);
    assert_eq!(recovery.lost.files, 1, "{:?}", recovery.lost);
}

#[test]
fn a_log_file_that_was_cut_short_is_damage_and_no_torn_tail() {
    let fs = crashed(3);
    let (path, len) = fs.files(".log").into_iter().next().unwrap();
    fs.cut_file(&path, 8000);
    let (mut bench, recovery) = reopen(&fs);
    assert_eq!(recovery.lost.files, 1, "{:?}", recovery.lost);
    let told = recovery.lost.notes.join("\n");
    assert!(
        told.contains(&format!("has 8000 of its {len} bytes")),
        "{told}"
    );
    // What is left of it is kept.
    let lane = bench.lane();
    let left = bench.pending(lane).len();
    assert!((1..10).contains(&left), "{left}");
}

#[test]
fn spill_files_without_checkpoints_and_log_are_salvaged() {
    let fs = crashed(4);
    {
        let mut bench = Bench::open(fs.clone());
        bench.core.checkpoint_wanted = true;
        assert!(bench.core.rotate());
        (0..20).for_each(|_| bench.step());
    }
    fs.reboot(Fault::Kill);
    for part in [".log", "checkpoint-"] {
        for (path, _) in fs.files(part) {
            fs.lose_file(&path);
        }
    }
    let (mut bench, recovery) = reopen(&fs);
    assert!(!recovery.lost.is_empty());
    assert_eq!(bench.pending(LaneId(0)).len(), 10);
}

#[test]
fn the_newest_checkpoint_is_missed_when_it_is_gone_and_the_one_before_it_is_not() {
    let [newest, older] = checkpoints(&crashed(5));
    for cut in [false, true] {
        let lose = |fs: &SimFilesystem, path: &Path| match cut {
            false => fs.lose_file(path),
            true => fs.cut_file(path, 30),
        };
        let fs = crashed(5);
        lose(&fs, &newest);
        let (_, recovery) = reopen(&fs);
        let told = recovery.lost.notes.join("\n");
        assert!(told.contains("the newest checkpoint is missing"), "{told}");
        let fs = crashed(5);
        lose(&fs, &older);
        let (mut bench, recovery) = reopen(&fs);
        assert!(recovery.lost.is_empty(), "{:?}", recovery.lost);
        let lane = bench.lane();
        assert_eq!(bench.pending(lane).len(), 10);
    }
}

#[test]
fn what_is_missing_is_told_by_the_opening_that_succeeds_however_many_were_killed_before() {
    for seed in 10..60 {
        let fs = crashed(seed);
        let (path, _) = fs.files(".log").into_iter().next().unwrap();
        fs.lose_file(&path);
        let odds = Odds {
            kill: 40,
            power_cut: 40,
            eio: 60,
            ..Odds::default()
        };
        let mut told = false;
        loop {
            fs.set_odds(odds);
            let opened = Bench::open_with(fs.clone(), None);
            told |= opened.as_ref().is_ok_and(|(_, r)| !r.lost.is_empty());
            match (opened, fs.crashed()) {
                (Ok(_), None) => break,
                (_, crash) => fs.reboot(crash.unwrap_or(Fault::Kill)),
            }
        }
        assert!(told, "seed {seed}");
    }
}

#[test]
fn one_flipped_bit_in_a_version_does_not_make_a_file_a_newer_one() {
    for part in [".log", "checkpoint-"] {
        let fs = crashed(6);
        for (path, _) in fs.files(part) {
            // The version follows eight bytes of magic.
            fs.flip(&path, 8 * 8 + 5);
        }
        let (mut bench, recovery) = reopen(&fs);
        assert!(recovery.lost.is_empty(), "{:?}", recovery.lost);
        let lane = bench.lane();
        assert_eq!(bench.pending(lane).len(), 10);
    }
}

#[test]
fn what_may_have_been_applied_after_a_removed_checkpoint_is_known_to_an_opening_that_finds_all_whole()
 {
    let fs = crashed(7);
    fs.lose_file(&checkpoints(&fs)[0]);
    let (bench, recovery) = reopen(&fs);
    assert!(!recovery.lost.is_empty());
    // Killed before any other checkpoint.
    drop(bench);
    fs.reboot(Fault::PowerCut);
    let (mut bench, recovery) = reopen(&fs);
    // Whether anybody saw what the first said is not known, so it is said again; but nothing is found out anew.
    let told = recovery.lost.notes.join("\n");
    assert!(told.starts_with("damage was found and made good"), "{told}");
    let lane = bench.lane();
    let mut future = bench.buffer.fetch(lane, 0, 100, 1 << 20);
    bench.step();
    let pending = future.try_now().unwrap().unwrap().writes;
    assert_eq!(pending.len(), 10);
    assert!(pending.iter().all(|w| w.maybe_since_unix_ms.is_some()));
}

#[test]
fn writes_that_the_log_still_has_are_not_lost_with_a_spill_file_that_only_a_lost_checkpoint_named()
{
    let (mut bench, _) = reopen(&crashed(8));
    let lane = bench.lane();
    let charged = bench.buffer.stats(lane).unwrap().charged_bytes;
    let lost = Item::Lost {
        lane: lane.0,
        file: 1,
        ranges: vec![(2, 5), (7, 7)],
        writes: 5,
        charge: charged / 2,
        physical: charged / 2,
        held: vec![],
    };
    let at = Applied {
        seq: 99,
        segment: 1,
        payload_offset: 0,
        bodies: &[],
    };
    bench.core.shared.state.lock().apply(vec![lost], &at);
    let stats = bench.buffer.stats(lane).unwrap();
    assert_eq!((stats.pending, stats.charged_bytes), (10, charged));
    let settlements = (1..=10).map(|seq| Settlement {
        lane,
        seq,
        result: 1,
        release_children: true,
    });
    let mut settled = bench.buffer.settle(settlements.collect());
    (0..5).for_each(|_| bench.step());
    settled.try_now().unwrap().unwrap();
    let stats = bench.buffer.stats(lane).unwrap();
    assert_eq!((stats.pending, stats.charged_bytes), (0, 0));
}

#[test]
fn every_cell_is_listed_once() {
    let cells = crate::sim::possible();
    let distinct: std::collections::BTreeSet<Cell> = cells.iter().copied().collect();
    assert_eq!(cells.len(), distinct.len());
}
