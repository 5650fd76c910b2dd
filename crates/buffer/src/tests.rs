//! The simulation in numbers that fit every test run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::api::{
    Acceptance, Health, LaneId, LaneSpec, NewWrite, Options, Recovery, Settlement, WhenFull,
};
use crate::buffer::Buffer;
use crate::core::{Core, Now};
use crate::error::{BufferError, Full, OpenError};
use crate::handles::{Accepting, Reservation};
use crate::planted::Planted;
use crate::sim::{Scenario, SimFilesystem, run};

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
                        trace: false,
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
    let (found, _) = search(0..60, Some(Planted::LogNotSynced), false);
    let missing = found.iter().filter(|(_, why)| why.contains("missing"));
    // Acknowledged writes are missing, and not on one lucky seed alone.
    assert!(missing.count() >= 3, "{found:?}");
    let (found, _) = search(0..60, None, false);
    assert!(found.is_empty(), "{found:?}");
}

/// A buffer on a simulated disk without faults, stepped by hand.
struct Bench {
    fs: SimFilesystem,
    core: Core,
    buffer: Buffer,
    now: Now,
}

impl Bench {
    fn open(fs: SimFilesystem) -> Bench {
        Bench::open_with(fs, None).unwrap().0
    }

    fn open_with(
        fs: SimFilesystem,
        planted: Option<Planted>,
    ) -> Result<(Bench, Recovery), OpenError> {
        let options = Options {
            log_bytes: 8 * (16 << 10),
            log_segments: 8,
            spill_file_bytes: 32 << 10,
            planted,
            ..Options::default()
        };
        let (core, recovery) =
            crate::recovery::open("/sim".into(), options, Arc::new(fs.clone()), 1_000_000)?;
        let buffer = Buffer::of(&core);
        let now = Now {
            mono_ms: 0,
            unix_ms: 1_000_000,
        };
        let bench = Bench {
            fs,
            core,
            buffer,
            now,
        };
        Ok((bench, recovery))
    }

    fn lane(&self) -> LaneId {
        let spec = LaneSpec {
            id: "a/r/stuck".into(),
            formerly: vec![],
            quota_bytes: 1 << 30,
            in_flight_limit: 64,
            when_full: WhenFull::Block,
        };
        self.buffer.lane(spec).unwrap()
    }

    fn step(&mut self) {
        self.now.mono_ms += 20;
        self.core.step(self.now);
    }

    fn accept(&self, room: Reservation, lane: LaneId, n: u64) -> Accepting {
        let mut key = [0u8; 16];
        key[..8].copy_from_slice(&n.to_le_bytes());
        let write = NewWrite {
            lane,
            key,
            order: 0,
            body: Bytes::from(vec![n as u8; 1000]),
            created_unix_ms: 1,
            expires_unix_ms: None,
            children: vec![],
        };
        self.buffer.accept(
            room,
            Acceptance {
                writes: vec![write],
                ..Acceptance::default()
            },
        )
    }

    /// Accepts until the disk is full; the numbers that were acknowledged.
    fn fill(&mut self, lane: LaneId) -> BTreeSet<u64> {
        let (mut open, mut acknowledged) = (Vec::new(), BTreeSet::new());
        for n in 1..5000 {
            match self.buffer.reserve(&[(lane, 1000)]) {
                Ok(room) => open.push((n, self.accept(room, lane, n))),
                Err(Full::Disk { .. }) => break,
                Err(other) => panic!("{other}"),
            }
            self.step();
        }
        for (n, mut future) in open {
            match future.try_now() {
                Some(Ok(_)) => drop(acknowledged.insert(n)),
                Some(Err(BufferError::DiskFull(_))) => {}
                other => panic!("acceptance {n} hangs or failed: {other:?}"),
            }
        }
        assert!(matches!(self.buffer.health(), Health::Full { .. }));
        acknowledged
    }

    fn pending(&mut self, lane: LaneId) -> BTreeMap<u64, u64> {
        let (mut all, mut after) = (BTreeMap::new(), 0);
        loop {
            let mut future = self.buffer.fetch(lane, after, 100, 1 << 20);
            self.step();
            let got = future.try_now().unwrap().unwrap();
            for write in &got.writes {
                after = write.seq;
                all.insert(crate::sim::id_of(&write.key), write.seq);
            }
            if !got.more {
                return all;
            }
        }
    }
}

/// A full disk with `space` bytes beyond what an empty buffer takes.
fn full(space: u64) -> (Bench, LaneId, Reservation, BTreeSet<u64>) {
    let fs = SimFilesystem::new(7);
    let mut bench = Bench::open(fs);
    let lane = bench.lane();
    let granted = bench.buffer.reserve(&[(lane, 1000)]).unwrap();
    bench.fs.set_space(bench.fs.used() + space);
    let acknowledged = bench.fill(lane);
    (bench, lane, granted, acknowledged)
}

#[test]
fn a_full_disk_refuses_steadily_answers_what_was_granted_and_resumes_when_lanes_drain() {
    for space in [0, 20_000, 100_000] {
        let (mut bench, lane, granted, acknowledged) = full(space);
        let before = bench.buffer.totals().checkpoint_failures;
        let mut room = bench.buffer.watch_room();
        let mut health = bench.buffer.watch_health();
        room.mark_unchanged();
        health.mark_unchanged();
        for _ in 0..500 {
            bench.step();
            let refused = bench.buffer.reserve(&[(lane, 10)]);
            assert!(matches!(refused, Err(Full::Disk { .. })), "{refused:?}");
        }
        assert!(!health.has_changed().unwrap());
        let tries = bench.buffer.totals().checkpoint_failures - before;
        assert!((5..60).contains(&tries), "{tries} attempts in ten seconds");
        let mut late = bench.accept(granted, lane, 9999);
        bench.step();
        let answer = late.try_now();
        assert!(
            matches!(answer, Some(Err(BufferError::DiskFull(_)))),
            "{answer:?}"
        );
        assert_eq!(bench.buffer.stats(lane).unwrap().reserved_bytes, 0);
        let pending = bench.pending(lane);
        assert!(pending.keys().eq(&acknowledged), "space {space}");
        // No space appears; the lane drains.
        for seq in pending.values() {
            let settlement = Settlement {
                lane,
                seq: *seq,
                result: 1,
                release_children: true,
            };
            drop(bench.buffer.settle(vec![settlement]));
            bench.step();
        }
        (0..100).for_each(|_| bench.step());
        assert_eq!(bench.buffer.health(), Health::Running, "space {space}");
        let room = bench.buffer.reserve(&[(lane, 1000)]).unwrap();
        let mut again = bench.accept(room, lane, 10_000);
        bench.step();
        assert!(matches!(again.try_now(), Some(Ok(_))));
    }
}

#[test]
fn a_full_disk_resumes_when_space_appears_and_nothing_accepted_is_lost_in_a_crash() {
    let (mut bench, lane, _granted, acknowledged) = full(30_000);
    bench.fs.set_space(u64::MAX);
    (0..200).for_each(|_| bench.step());
    assert_eq!(bench.buffer.health(), Health::Running);
    bench.buffer.reserve(&[(lane, 1000)]).unwrap();
    let fs = bench.fs.clone();
    fs.reboot(crate::sim::Fault::PowerCut);
    let mut bench = Bench::open(fs);
    assert!(bench.pending(lane).keys().eq(&acknowledged));
    assert!(bench.buffer.lost().is_empty());
}

#[test]
fn dependents_are_read_from_the_log_and_from_a_spill_file() {
    let mut bench = Bench::open(SimFilesystem::new(3));
    let lane = bench.lane();
    let child = |n: u8, children| NewWrite {
        lane,
        key: [n; 16],
        order: u64::from(n),
        body: Bytes::from(vec![n; 40]),
        created_unix_ms: 5,
        expires_unix_ms: Some(9),
        children,
    };
    let parent = child(1, vec![child(2, vec![child(3, vec![])]), child(4, vec![])]);
    let room = bench.buffer.reserve(&[(lane, 40); 4]).unwrap();
    let mut accepted = bench.buffer.accept(
        room,
        Acceptance {
            writes: vec![parent],
            ..Acceptance::default()
        },
    );
    bench.step();
    assert_eq!(accepted.try_now().unwrap().unwrap(), [(lane, 1)]);
    for spilled in [false, true] {
        if spilled {
            bench.core.checkpoint_wanted = true;
            // Only segments behind the active one are spilled.
            assert!(bench.core.rotate());
            (0..20).for_each(|_| bench.step());
            assert_eq!(bench.buffer.stats(lane).unwrap().spill_files, 1);
        }
        let mut future = bench.buffer.children(lane, 1);
        bench.step();
        let children = future.try_now().unwrap().unwrap();
        assert_eq!(children.len(), 2);
        assert_eq!((children[0].key, children[1].key), ([2; 16], [4; 16]));
        assert_eq!(children[0].children[0].body, vec![3; 40]);
        assert_eq!(children[1].expires_unix_ms, Some(9));
    }
    assert!(matches!(
        bench.buffer.children(LaneId(77), 1).try_now(),
        Some(Err(BufferError::UnknownLane(LaneId(77))))
    ));
    let mut none = bench.buffer.children(lane, 2);
    bench.step();
    assert_eq!(none.try_now().unwrap().unwrap().len(), 0);
}

/// Faults put in on purpose, each with a seed that finds it; `buffer-sim --planted all` looks for seeds anew.
const FOUND_BY: &[(Planted, u64)] = &[
    (Planted::LogNotSynced, 1),
    (Planted::AnswerBeforeSync, 9),
    (Planted::FailedSyncRetried, 11),
    (Planted::PayloadUnchecked, 8),
    (Planted::CutIgnoresEpoch, 1),
    (Planted::SpillNotSynced, 4),
    (Planted::SpillDirNotSynced, 5),
    (Planted::CheckpointNotSynced, 1),
    (Planted::LogCutBeforeCheckpoint, 1),
    (Planted::UnlinkBeforeCheckpoint, 172),
    (Planted::CheckpointSameSlot, 50),
    (Planted::CheckpointNotMarked, 1059),
    (Planted::CheckpointForgetsSettled, 1),
    (Planted::CheckpointForgetsFrontier, 24),
    (Planted::CheckpointForgetsKeys, 0),
    (Planted::CheckpointForgetsNotes, 8),
    (Planted::CheckpointForgetsPositions, 1),
    (Planted::FrontierLate, 11),
    (Planted::SettleNotCharged, 0),
    (Planted::CompactionDropsLive, 54),
    (Planted::ChildrenForgottenOnSpill, 1),
    (Planted::CleanMarkEarly, 1),
    (Planted::SeqReused, 1),
    (Planted::LossSilent, 2),
    (Planted::MaybeForgottenOnClean, 8),
    (Planted::TailNotRewritten, 53),
    (Planted::CheckpointNotRewritten, 11),
    (Planted::GarbageKept, 211),
    (Planted::PurgeReplayed, 3883),
    (Planted::RunReplayed, 11),
    (Planted::OneCopyRefuses, 85),
    (Planted::LogFilledWhole, 147),
    (Planted::RemovedLogIsNew, 66),
    (Planted::CutTooFar, 0),
    (Planted::KeysNotSynced, 1),
    (Planted::ReleaseForgotten, 0),
];

#[test]
fn planted_faults_are_found_by_the_seeds_that_are_listed() {
    let listed: Vec<Planted> = FOUND_BY.iter().map(|(planted, _)| *planted).collect();
    assert_eq!(listed, Planted::ALL);
    for &(planted, seed) in FOUND_BY {
        let (found, _) = search(seed..seed + 1, Some(planted), true);
        assert_eq!(found.len(), 1, "{planted:?} is not found by seed {seed}");
    }
}

mod damage;
mod removed;
mod room;
