//! What the simulation found broken, each as a walk of its own.

mod rig;

use consign_delivery::{
    Act, BatchKind, ConnectionId, DirectMode, DirectResult, DirectWrite, EventCode, FetchedWrite,
    Input, LaneConfig, LaneId, LaneState, OnAmbiguous, OnWindowPassed, Order, Outcome, ParkReason,
    Repeat, SettleResult, WriteNote,
};
use rig::{Rig, WALL0, detail};

const HOUR: u64 = 3_600_000;

fn strict(id: u32) -> LaneConfig {
    LaneConfig::new(LaneId(id), ConnectionId(0), "table")
}

fn unordered(id: u32) -> LaneConfig {
    LaneConfig {
        order: Order::None,
        ..strict(id)
    }
}

/// Effectively once within an hour.
fn windowed(id: u32) -> LaneConfig {
    LaneConfig {
        repeat: Repeat::Dropped {
            window_ms: Some(HOUR),
            margin_ms: 0,
            on_window_passed: OnWindowPassed::Resend,
        },
        timeout_ms: 10_000,
        ..strict(id)
    }
}

fn attempts(mut cfg: LaneConfig, max_attempts: u32) -> LaneConfig {
    cfg.policy.max_attempts = max_attempts;
    cfg
}

/// A strict lane whose first write failed twice, which spends it.
fn spent(rig: &mut Rig) {
    rig.lane(attempts(strict(0), 2));
    rig.accept(0, 1, 1, None);
    for _ in 0..2 {
        rig.wait_for_request();
        assert_eq!(rig.answer_next(&Outcome::retry(detail())), [1]);
    }
}

/// Seeds 206724 and 208554: the lane still counted the write as spent and tried the one behind it.
#[test]
fn attempts_that_a_reload_gives_back_keep_the_writes_behind_waiting() {
    for raised in [false, true] {
        let mut rig = Rig::connected();
        spent(&mut rig);
        if raised {
            rig.lane(attempts(strict(0), 5));
        }
        rig.accept(0, 2, 2, None);
        rig.wait_for_request();
        let first = rig.answer_next(&Outcome::retry(detail()));
        assert_eq!(first, if raised { [1] } else { [2] }, "raised: {raised}");
    }
}

#[test]
fn a_write_whose_last_try_was_next_has_all_its_attempts_again_after_a_reload() {
    let mut rig = Rig::connected();
    rig.lane(attempts(unordered(0), 2));
    rig.lane(unordered(1));
    rig.accept(0, 1, 1, None);
    let fails = |lane| match lane {
        0 => Outcome::retry(detail()),
        _ => Outcome::delivered(),
    };
    // Two failures, each followed by evidence: the next try is the last.
    for other in 1..=2 {
        rig.wait_for_request();
        assert_eq!(rig.answer_next(&fails(0)), [1]);
        rig.accept(1, other, other, None);
        rig.wait_for_request();
        assert_eq!(rig.answer_next(&fails(1)), [other]);
    }
    assert!(rig.notes[&(0, 1)].has(WriteNote::SPENT));
    rig.lane(attempts(unordered(0), 40));
    assert!(!rig.notes[&(0, 1)].has(WriteNote::SPENT), "durably so");
    for other in 3..=6 {
        rig.accept(1, other, other, None);
        rig.run(rig.now + 60_000, |_, lane, _| fails(lane));
    }
    assert_eq!(rig.parked.get(&(0, 1)), None, "{:?}", rig.notes);
    rig.run(rig.now + HOUR, |_, _, _| Outcome::delivered());
    assert_eq!(rig.result(0, 1), Some(SettleResult::Delivered));
}

/// A strict at-least-once lane whose only write was ambiguous twice.
fn held(rig: &mut Rig) {
    rig.lane(strict(0));
    rig.accept(0, 1, 1, None);
    for _ in 0..2 {
        rig.wait_for_request();
        assert_eq!(rig.answer_next(&Outcome::failed_maybe(detail())), [1]);
    }
    rig.wait(rig.now + HOUR);
    assert!(rig.sent.is_empty());
    let stats = rig.d.lane_stats(LaneId(0));
    assert_eq!(stats.map(|stats| stats.ambiguous), Some(1));
}

#[test]
fn a_held_write_follows_an_on_ambiguous_that_a_reload_changes() {
    let with = |on_ambiguous| LaneConfig {
        on_ambiguous,
        ..strict(0)
    };
    let mut rig = Rig::connected();
    held(&mut rig);
    rig.lane(with(OnAmbiguous::Hold));
    assert!(rig.sent.is_empty(), "nothing changed");
    rig.lane(with(OnAmbiguous::Retry));
    rig.wait_for_request();
    assert_eq!(rig.answer_next(&Outcome::delivered()), [1]);
    assert_eq!(
        rig.d.lane_stats(LaneId(0)).unwrap().state,
        LaneState::Idle,
        "it is halted no longer"
    );

    let mut rig = Rig::connected();
    held(&mut rig);
    rig.lane(with(OnAmbiguous::Park));
    assert_eq!(rig.parked.get(&(0, 1)), Some(&ParkReason::MayHaveLanded));
}

/// Seeds 232290 and 362358: the lane was gone before its maybes were finished, and the next target got them.
#[test]
fn a_lane_that_is_removed_and_leaves_its_target_finishes_there_what_may_have_landed() {
    for leave_first in [false, true] {
        let mut rig = Rig::connected();
        rig.lane(LaneConfig {
            on_ambiguous: OnAmbiguous::Retry,
            ..strict(0)
        });
        rig.accept(0, 1, 1, None);
        let (request, _) = rig.next_seqs();
        let leave = Input::LeaveTarget {
            lane: LaneId(0),
            until_ms: rig.now + HOUR,
        };
        let mut inputs = [Input::RemoveLane { lane: LaneId(0) }, leave];
        if leave_first {
            inputs.reverse();
        }
        inputs.into_iter().for_each(|input| rig.input(input));
        rig.answer(request, vec![Outcome::failed_maybe(detail())]);
        assert!(rig.removed.is_empty(), "leave first: {leave_first}");
        rig.wait_for_request();
        assert_eq!(rig.answer_next(&Outcome::delivered()), [1]);
        assert_eq!(rig.removed, [LaneId(0)]);
    }
}

/// Seeds 309220 and 340832: a write was parked for an outage, because an answer came in it that had
/// been on its way before.
#[test]
fn an_answer_that_left_before_a_failure_is_no_evidence_against_it() {
    let mut rig = Rig::connected();
    rig.lane(attempts(unordered(0), 1));
    rig.lane(unordered(1));
    // Spent, by evidence.
    rig.accept(0, 1, 1, None);
    assert_eq!(rig.answer_next(&Outcome::retry(detail())), [1]);
    rig.accept(1, 1, 2, None);
    assert_eq!(rig.answer_next(&Outcome::delivered()), [1]);
    // Another write is on its way when the last try leaves and meets the outage.
    let (slow, _) = rig.next_seqs();
    assert_eq!(rig.answer_next(&Outcome::retry(detail())), [1]);
    rig.answer(slow, vec![Outcome::delivered()]);
    assert_eq!(rig.parked.get(&(0, 1)), None, "it proves nothing");
    // One that left after the failure does.
    rig.accept(1, 3, 3, None);
    assert_eq!(rig.answer_next(&Outcome::delivered()), [3]);
    assert_eq!(rig.parked.get(&(0, 1)), Some(&ParkReason::AttemptsSpent));
}

/// A resend inside the window, whose answer comes `after_ms` later.
fn resent(after_ms: u64, outcome: Outcome) -> Rig {
    let mut rig = Rig::connected();
    rig.lane(LaneConfig {
        timeout_ms: 2 * HOUR,
        ..windowed(0)
    });
    rig.accept(0, 1, 1, None);
    assert_eq!(rig.answer_next(&Outcome::failed_maybe(detail())), [1]);
    rig.wait_for_request();
    let (request, _) = rig.next_seqs();
    rig.wait(rig.now + after_ms);
    rig.answer(request, vec![outcome]);
    assert!(rig.settled.contains_key(&(0, 1)));
    rig
}

#[test]
fn a_resend_that_is_answered_after_its_window_is_told_unless_the_destination_knew_it() {
    let told = |after_ms, outcome| resent(after_ms, outcome).count(EventCode::WindowPassed);
    assert_eq!(told(HOUR, Outcome::delivered()), 1);
    assert_eq!(told(HOUR / 2, Outcome::delivered()), 0);
    assert_eq!(told(HOUR, Outcome::delivered_repeat()), 0);
}

/// Seed 258494: the copy of a request that did not stop when told came after the window, unseen.
#[test]
fn a_fenced_request_that_delivers_after_the_window_is_told() {
    for resend in [false, true] {
        let mut rig = Rig::connected();
        rig.lane(windowed(0));
        rig.accept(0, 1, 1, None);
        let (ghost, _) = rig.next_seqs();
        rig.probes_pass = resend;
        // Neither the answer nor the end of the cancel comes: the instance is fenced.
        rig.wait(rig.now + 60_000);
        rig.input(Input::Rebuilt {
            connection: ConnectionId(0),
        });
        if resend {
            rig.wait_for_request();
            assert_eq!(rig.answer_next(&Outcome::delivered()), [1]);
        }
        rig.now += HOUR;
        rig.answer(ghost, vec![Outcome::delivered()]);
        // Without a resend its late effect is the only one.
        assert_eq!(rig.count(EventCode::WindowPassed), usize::from(resend));
    }
}

/// Seed 346537: a refused batch with a row too few freed one slot twice.
#[test]
fn a_refused_batch_with_a_missing_row_goes_in_halves_within_the_limit() {
    let mut rig = Rig::connected();
    let mut cfg = unordered(0).batched(BatchKind::Atomic, 3);
    cfg.in_flight_limit = 6;
    rig.lane(cfg);
    rig.accept(0, 1, 12, None);
    let (request, seqs) = rig.next_seqs();
    assert_eq!(seqs, [1, 2, 3]);
    rig.answer(request, vec![Outcome::refused(detail()); 2]);
    let on_their_way: usize = rig.sent.iter().map(|send| send.items.len()).sum();
    assert_eq!(on_their_way, 6, "{:?}", rig.sent);
    assert_eq!(rig.d.lane_stats(LaneId(0)).unwrap().in_flight, 6);
}

#[test]
fn a_sealed_batch_with_a_member_that_may_have_landed_is_not_split() {
    let mut rig = Rig::connected();
    let mut cfg = strict(0).batched(BatchKind::Atomic, 3);
    cfg.batch.sealed = true;
    rig.lane(cfg);
    rig.accept(0, 1, 3, Some(1));
    let (request, seqs) = rig.next_seqs();
    assert_eq!(seqs, [1, 2, 3]);
    // The third row is missing: it may have been applied, under this batch's token.
    rig.answer(request, vec![Outcome::refused(detail()); 2]);
    rig.wait(rig.now + HOUR);
    assert!(rig.sent.is_empty(), "no other token for it: {:?}", rig.sent);
    for seq in 1..=3 {
        assert_eq!(rig.parked.get(&(0, seq)), Some(&ParkReason::MayHaveLanded));
    }
}

/// Seed 251452: two writes had their last try in one outage; when one got through, the other parked.
#[test]
fn a_write_that_gets_through_after_an_outage_is_no_verdict_on_one_that_failed_beside_it() {
    let mut rig = Rig::connected();
    rig.lane(attempts(unordered(0), 1));
    rig.lane(unordered(1));
    rig.accept(0, 1, 2, None);
    // Both are spent once evidence comes.
    for _ in 1..=2 {
        rig.answer_next(&Outcome::retry(detail()));
    }
    rig.accept(1, 1, 1, None);
    assert_eq!(rig.answer_next(&Outcome::delivered()), [1]);
    // Both last tries meet an outage; it ends, and one of the two is the first to get through.
    assert_eq!(rig.answer_next(&Outcome::retry(detail())), [1]);
    assert_eq!(rig.answer_next(&Outcome::retry(detail())), [2]);
    rig.wait_for_request();
    let through = rig.answer_next(&Outcome::delivered());
    assert_eq!(rig.parked.len(), 0, "{through:?} got through");
    rig.run(rig.now + HOUR, |_, _, _| Outcome::delivered());
    assert!(rig.result(0, 1).is_some() && rig.result(0, 2).is_some());
}

/// Seed 241979: the first candidate was part of a sealed batch that waited for a companion, and no other
/// was looked at: the gate stayed half-open.
#[test]
fn a_sealed_batch_that_waits_for_a_companion_does_not_hide_other_canaries() {
    let mut cfg = LaneConfig {
        order: Order::ByKey,
        frontier: 10,
        repeat: windowed(0).repeat,
        ..strict(0)
    }
    .batched(BatchKind::Atomic, 2);
    cfg.batch.sealed = true;
    let mut rig = Rig::connected();
    // Sealed before a restart: 1 with 4, which waits for 2 of its own order key; 2 alone, and tried.
    for (seq, order, sealed) in [
        (1, 7, 1 << 20 | 2),
        (2, 8, 2 << 20 | 1),
        (4, 8, 1 << 20 | 2),
    ] {
        let note = WriteNote {
            sealed,
            first_maybe_unix_ms: if seq == 2 { WALL0 } else { 0 },
            ..WriteNote::default()
        };
        rig.store(
            0,
            FetchedWrite {
                seq,
                order,
                note,
                ..FetchedWrite::default()
            },
        );
    }
    rig.lane(cfg);
    assert_eq!(rig.answer_next(&Outcome::down(detail())), [2]);
    rig.wait_for_request();
    assert_eq!(rig.answer_next(&Outcome::delivered()), [2]);
    assert_eq!(rig.answer_next(&Outcome::delivered()), [1, 4]);
}

/// Seed 298295: a person parked a direct send, which cannot park; it was sent again at every pause from then on.
#[test]
fn a_direct_send_that_a_person_parks_stays_as_it_is() {
    let mut rig = Rig::connected();
    rig.lane(LaneConfig {
        direct: Some(DirectMode::Hold),
        ..strict(0)
    });
    rig.input(Input::Direct {
        lane: LaneId(0),
        write: DirectWrite {
            seq: 1,
            bytes: 1,
            ..DirectWrite::default()
        },
    });
    for _ in 0..2 {
        rig.wait_for_request();
        assert_eq!(rig.answer_next(&Outcome::failed_maybe(detail())), [1]);
    }
    rig.act(Act::Park(LaneId(0), 1));
    rig.wait(rig.now + HOUR);
    assert!(rig.sent.is_empty(), "no third copy");
    assert_eq!(rig.d.lane_stats(LaneId(0)).unwrap().ambiguous, 1);
    rig.act(Act::RetryNow(LaneId(0)));
    assert_eq!(rig.answer_next(&Outcome::delivered()), [1]);
    assert_eq!(
        rig.answers.get(&1),
        Some(&DirectResult::Delivered { repeat: false })
    );
}

/// At a target that never confirms, as raw TCP is, no delivery ever comes: a write cut twice was held
/// until a person came, and the lane behind it went on at one write a backoff cap.
#[test]
fn what_was_cut_twice_where_nothing_confirms_parks_once_the_network_takes_another() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 4, None);
    for _ in 0..2 {
        rig.wait_for_request();
        assert_eq!(rig.answer_next(&Outcome::failed_maybe(detail())), [1]);
    }
    assert_eq!(rig.count(EventCode::AmbiguousHeld), 1);
    let began = rig.now;
    rig.wait_for_request();
    assert_eq!(rig.answer_next(&Outcome::sent_unconfirmed()), [2]);
    assert_eq!(rig.parked.get(&(0, 1)), Some(&ParkReason::MayHaveLanded));
    let trial = rig.now;
    rig.run(trial + 1_000, |_, _, _| Outcome::sent_unconfirmed());
    assert_eq!(
        rig.result(0, 4),
        Some(SettleResult::SentUnconfirmed),
        "the rest flows"
    );
    assert!(trial - began <= HOUR);
}

/// More than half a window was stuck, so nothing else was fetched, and nothing could ever tell.
#[test]
fn a_stuck_write_that_fills_the_window_does_not_keep_what_is_behind_it_from_being_tried() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    let bytes = u32::try_from(LaneConfig::new(LaneId(0), ConnectionId(0), "").window_bytes);
    rig.store(
        0,
        FetchedWrite {
            seq: 1,
            order: 1,
            bytes: bytes.unwrap(),
            ..FetchedWrite::default()
        },
    );
    rig.input(Input::Available { lane: LaneId(0) });
    for _ in 0..2 {
        rig.wait_for_request();
        assert_eq!(rig.answer_next(&Outcome::unknown(detail())), [1]);
    }
    assert_eq!(rig.count(EventCode::HaltedOnOneWrite), 1);
    rig.accept(0, 2, 4, None);
    rig.wait_for_request();
    assert_eq!(rig.answer_next(&Outcome::sent_unconfirmed()), [2]);
    assert_eq!(rig.parked.get(&(0, 1)), Some(&ParkReason::MayHaveLanded));
    assert_eq!(rig.count(EventCode::HaltedOver), 1);
}

/// The same with many writes of one order key, where a parked head holds its key.
#[test]
fn a_window_full_of_one_stuck_order_key_is_looked_past() {
    let mut rig = Rig::connected();
    let mut cfg = strict(0);
    cfg.order = Order::ByKey;
    cfg.after_park = consign_delivery::AfterPark::HoldKey;
    cfg.window_writes = 8;
    cfg.in_flight_limit = 2;
    rig.lane(attempts(cfg, 2));
    rig.accept(0, 1, 20, Some(1));
    rig.accept(0, 21, 21, Some(2));
    rig.run(HOUR, |_, _, seq| match seq {
        21 => Outcome::delivered(),
        _ => Outcome::retry(detail()),
    });
    assert_eq!(rig.result(0, 21), Some(SettleResult::Delivered));
}

/// It charges nothing: a kernel takes writes for a peer that is gone.
#[test]
fn what_the_network_takes_is_no_evidence_against_a_write_that_fails() {
    let mut rig = Rig::connected();
    rig.lane(attempts(unordered(0), 1));
    rig.lane(unordered(1));
    rig.accept(0, 1, 1, None);
    rig.accept(1, 1, 400, None);
    rig.run(HOUR, |_, lane, _| match lane {
        0 => Outcome::retry(detail()),
        _ => Outcome::sent_unconfirmed(),
    });
    assert_eq!(rig.parked.get(&(0, 1)), None);
    assert_eq!(rig.notes.get(&(0, 1)).map_or(0, |note| note.attempts), 0);
}
