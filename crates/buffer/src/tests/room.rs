//! Room on the disk: a log that is nearly full, spill files that are nearly empty, a disk with space for a part.

use super::*;
use crate::api::WriteState;
use crate::sim::Fault;

/// Spills everything that is pending and waits for what follows.
fn spill(bench: &mut Bench) {
    bench.core.checkpoint_wanted = true;
    bench.core.rotate();
    (0..60).for_each(|_| bench.step());
}

fn accept_many(bench: &mut Bench, lane: LaneId, from: u64, to: u64) {
    for n in from..to {
        let room = bench.buffer.reserve(&[(lane, 1000)]).unwrap();
        let mut accepted = bench.accept(room, lane, n);
        bench.step();
        accepted.try_now().unwrap().unwrap();
    }
}

/// A log that notes have filled to its end while the disk is full: nothing can be spilled, nothing freed.
fn crammed() -> (SimFilesystem, BTreeSet<u64>) {
    let (mut bench, lane, _granted, acknowledged) = full(0);
    let seq = *bench.pending(lane).values().next().unwrap();
    let mut stuck = 0;
    for n in 1..20_000 {
        let state = WriteState {
            attempts: n,
            ..WriteState::default()
        };
        let mut noted = bench.buffer.note(lane, seq, state);
        bench.step();
        stuck += u32::from(noted.try_now().is_none());
        if stuck > 3 {
            break;
        }
    }
    assert!(stuck > 3, "the log never fills");
    assert_eq!(bench.core.log.free_slots(), 0);
    (bench.fs.clone(), acknowledged)
}

#[test]
fn a_log_that_is_full_to_its_end_is_opened_again_and_again() {
    let (fs, acknowledged) = crammed();
    for _ in 0..8 {
        fs.reboot(Fault::PowerCut);
        let (mut bench, recovery) = Bench::open_with(fs.clone(), None).unwrap();
        assert!(recovery.lost.is_empty(), "{:?}", recovery.lost);
        let lane = bench.lane();
        assert!(bench.pending(lane).keys().eq(&acknowledged));
    }
    // Each start takes a little of the end. Once that is used up a start takes one segment more, and that takes space.
    fs.set_space(u64::MAX);
    for _ in 0..40 {
        fs.reboot(Fault::PowerCut);
        let (mut bench, _) = Bench::open_with(fs.clone(), None).unwrap();
        let lane = bench.lane();
        assert!(bench.pending(lane).keys().eq(&acknowledged));
    }
}

#[test]
fn a_spill_that_runs_out_of_space_keeps_the_files_it_completed() {
    let (bench, lane, _granted, acknowledged) = full(45_000);
    let stats = bench.buffer.stats(lane).unwrap();
    assert!(stats.spill_files >= 1, "{stats:?}");
    bench.fs.reboot(Fault::PowerCut);
    let (mut bench, recovery) = Bench::open_with(bench.fs.clone(), None).unwrap();
    assert!(recovery.lost.is_empty(), "{:?}", recovery.lost);
    assert!(bench.pending(lane).keys().eq(&acknowledged));
}

/// Bytes on the disk for files of which each keeps few pending writes; and the bound.
fn sparse(planted: Option<Planted>) -> (u64, u64) {
    let fs = SimFilesystem::new(9);
    let (mut bench, _) = Bench::open_with(fs, planted).unwrap();
    let lane = bench.lane();
    let mut kept = 0;
    for round in 0..24u64 {
        let from = 1 + round * 30;
        accept_many(&mut bench, lane, from, from + 30);
        spill(&mut bench);
        let pending = bench.pending(lane);
        // Every fourth file is just dense enough to stay, so that the sparse ones are no single run of neighbours.
        let keep = if round % 4 == 0 { 8 } else { 1 };
        for n in from + keep..from + 30 {
            let settlement = Settlement {
                lane,
                seq: pending[&n],
                result: 1,
                release_children: true,
            };
            drop(bench.buffer.settle(vec![settlement]));
        }
        kept += keep;
        (0..120).for_each(|_| bench.step());
    }
    let stats = bench.buffer.stats(lane).unwrap();
    assert_eq!(stats.pending, kept);
    (stats.spill_bytes, 4 * stats.charged_bytes + 2 * (32 << 10))
}

#[test]
fn the_disk_holds_at_most_four_times_what_is_pending_and_two_files() {
    let (bytes, most) = sparse(None);
    assert!(bytes <= most, "{bytes} of {most}");
    let (bytes, most) = sparse(Some(Planted::CompactionLeftOut));
    assert!(bytes > most, "the test shows nothing: {bytes} of {most}");
}
