//! Reloads: what a lane takes while it runs, what it is taken out for, and how it leaves its target.

mod rig;

use consign_delivery::{
    BatchKind, ClassId, ConnectionId, EventCode, FetchedWrite, Input, LaneConfig, LaneId,
    OnAmbiguous, Order, Outcome, ParkReason, Repeat, SettleResult,
};
use rig::{Rig, WALL0, detail};

fn strict(id: u32) -> LaneConfig {
    LaneConfig::new(LaneId(id), ConnectionId(0), "table")
}

/// A strict lane of two writes, the first of which may have landed.
fn with_a_maybe(rig: &mut Rig) {
    rig.lane(LaneConfig {
        on_ambiguous: OnAmbiguous::Retry,
        ..strict(0)
    });
    rig.accept(0, 1, 2, None);
    assert_eq!(rig.answer_next(&Outcome::failed_maybe(detail())), [1]);
}

fn leave(rig: &mut Rig, within_ms: u64) {
    let until_ms = rig.now + within_ms;
    rig.input(Input::LeaveTarget {
        lane: LaneId(0),
        until_ms,
    });
}

#[test]
fn a_lane_finishes_at_its_old_target_what_may_have_landed_there_and_nothing_else() {
    let mut rig = Rig::connected();
    with_a_maybe(&mut rig);
    leave(&mut rig, 60_000);
    assert!(rig.removed.is_empty(), "a maybe-applied write is left");
    rig.wait(rig.now + 30_000);
    assert_eq!(rig.answer_next(&Outcome::delivered()), [1]);
    assert!(
        rig.sent.is_empty(),
        "the untried one waits for the new target"
    );
    assert_eq!(rig.removed, [LaneId(0)]);

    rig.pending.get_mut(&0).unwrap().remove(&1);
    rig.lane(LaneConfig {
        target: "other".into(),
        ..strict(0)
    });
    assert_eq!(rig.answer_next(&Outcome::delivered()), [2]);
    assert_eq!(rig.result(0, 2), Some(SettleResult::Delivered));
}

#[test]
fn what_the_old_target_does_not_answer_in_time_parks_as_may_have_landed() {
    let mut rig = Rig::connected();
    with_a_maybe(&mut rig);
    leave(&mut rig, 5_000);
    rig.run(60_000, |_, _, _| Outcome::failed_maybe(detail()));
    assert_eq!(rig.parked.get(&(0, 1)), Some(&ParkReason::MayHaveLanded));
    assert_eq!(rig.count(EventCode::TargetLeft), 1);
    assert_eq!(rig.removed, [LaneId(0)]);
    assert_eq!(rig.result(0, 2), None, "the untried one stays pending");
}

#[test]
fn after_a_restart_with_another_target_maybes_park_and_the_rest_goes_on() {
    let mut rig = Rig::connected();
    for seq in 1..=3 {
        rig.store(
            0,
            FetchedWrite {
                seq,
                bytes: 1,
                // The frontier was 2: what lies below it may have been on its way.
                maybe_since_unix_ms: (seq <= 2).then_some(WALL0),
                ..FetchedWrite::default()
            },
        );
    }
    rig.lane(LaneConfig {
        frontier: 2,
        moved_below: 2,
        ..strict(0)
    });
    let parked: Vec<_> = rig.parked.iter().collect();
    assert_eq!(
        parked,
        [
            (&(0, 1), &ParkReason::MayHaveLanded),
            (&(0, 2), &ParkReason::MayHaveLanded)
        ]
    );
    assert_eq!(rig.answer_next(&Outcome::delivered()), [3]);
}

#[test]
fn a_running_lane_takes_another_class_and_waits_for_that_ones_slots() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 3, None);
    rig.lane(LaneConfig {
        class: ClassId(0),
        timeout_ms: 1_000,
        ..strict(0)
    });
    assert_eq!(rig.answer_next(&Outcome::delivered()), [1]);
    let send = rig.next_sent();
    assert_eq!(
        send.deadline_ms,
        rig.now + 1_000,
        "the next request has the new timeout"
    );
}

#[test]
fn a_sealed_batch_larger_than_a_lowered_limit_goes_whole_when_nothing_else_is_out() {
    let mut cfg = strict(0).batched(BatchKind::Atomic, 4);
    cfg.batch.sealed = true;
    let mut rig = Rig::connected();
    rig.lane(cfg.clone());
    rig.accept(0, 1, 4, Some(1));
    assert_eq!(rig.answer_next(&Outcome::throttled(1_000)), [1, 2, 3, 4]);
    cfg.batch.max_writes = 1;
    cfg.in_flight_limit = 2;
    rig.lane(cfg);
    rig.wait(rig.now + 3_600_000);
    assert_eq!(
        rig.answer_next(&Outcome::delivered()),
        [1, 2, 3, 4],
        "its boundaries are durable"
    );
}

#[test]
fn settings_that_mean_another_order_or_other_repeats_are_not_taken_in_place() {
    let base = strict(0);
    let takes = |change: fn(&mut LaneConfig)| {
        let mut new = base.clone();
        change(&mut new);
        base.takes_in_place(&new)
    };
    assert!(takes(|cfg| cfg.timeout_ms = 1));
    assert!(takes(|cfg| cfg.policy.max_attempts = 9));
    assert!(takes(|cfg| cfg.batch.max_writes = 100));
    assert!(!takes(|cfg| cfg.order = Order::None));
    assert!(!takes(|cfg| cfg.target = "other".into()));
    assert!(!takes(|cfg| cfg.connection = ConnectionId(1)));
    assert!(!takes(|cfg| cfg.repeat = Repeat::Never));
    assert!(!takes(|cfg| cfg.batch.kind = BatchKind::Atomic));
}

#[test]
fn a_clock_that_goes_back_while_a_lane_is_away_ages_what_it_left_behind() {
    let windowed = || LaneConfig {
        repeat: Repeat::Dropped {
            window_ms: Some(3_600_000),
            margin_ms: 0,
            on_window_passed: consign_delivery::OnWindowPassed::Park,
        },
        ..strict(0)
    };
    let mut rig = Rig::connected();
    rig.now = 10_000_000;
    rig.lane(windowed());
    rig.accept(0, 1, 1, None);
    assert_eq!(rig.answer_next(&Outcome::failed_maybe(detail())), [1]);
    let note = rig.notes.get(&(0, 1)).copied().unwrap();
    rig.input(Input::RemoveLane { lane: LaneId(0) });
    assert_eq!(rig.removed, [LaneId(0)]);
    // Two hours pass; then the clock goes back, so that the write seems to be half an hour old.
    rig.now += 2 * 3_600_000;
    rig.input(Input::Tick);
    rig.wall_shift = -5_400_000;
    rig.input(Input::Tick);
    assert_eq!(rig.count(EventCode::ClockWentBack), 1);
    rig.pending.get_mut(&0).unwrap().get_mut(&1).unwrap().note = note;
    rig.lane(windowed());
    rig.wait(rig.now + 1_000);
    assert_eq!(rig.parked.get(&(0, 1)), Some(&ParkReason::WindowPassed));
}
