//! Walks: what happens, step by step, in the situations an operator meets.

mod rig;

use consign_delivery::{
    AfterPark, Applied, BatchKind, ConnectionId, DirectMode, DirectResult, DirectWrite, EventCode,
    GateState, Input, LaneConfig, LaneId, LaneState, OnAmbiguous, Order, Outcome, ParkReason,
    Repeat, SettleResult,
};
use rig::{Rig, detail};

const HOUR: u64 = 3_600_000;

fn strict(id: u32) -> LaneConfig {
    LaneConfig::new(LaneId(id), ConnectionId(0), "table")
}

fn effectively_once(mut cfg: LaneConfig) -> LaneConfig {
    cfg.repeat = Repeat::Dropped {
        window_ms: None,
        margin_ms: 0,
        on_window_passed: consign_delivery::OnWindowPassed::Resend,
    };
    cfg
}

#[test]
fn one_pending_write_and_a_long_outage_parks_nothing() {
    let failures = [
        Outcome::down(detail()),
        Outcome::unknown(detail()),
        Outcome::target_failed(detail()),
        Outcome::failed_maybe(detail()),
        Outcome::retry(detail()),
        Outcome::denied(detail()),
        Outcome::throttled(0),
    ];
    for failure in failures {
        let mut rig = Rig::connected();
        rig.lane(effectively_once(strict(0)));
        rig.accept(0, 1, 1, None);
        rig.run(6 * HOUR, |_, _, _| failure.clone());
        assert!(rig.parked.is_empty(), "{failure:?}");
        assert!(
            rig.requests < 400,
            "{} requests in six hours of {failure:?}",
            rig.requests
        );
        rig.run(7 * HOUR, |_, _, _| Outcome::delivered());
        assert_eq!(
            rig.result(0, 1),
            Some(SettleResult::Delivered),
            "{failure:?}"
        );
    }
}

#[test]
fn a_lane_with_one_failing_write_says_that_it_is_halted_on_it() {
    let mut rig = Rig::connected();
    rig.lane(effectively_once(strict(0)));
    rig.accept(0, 1, 1, None);
    rig.run(HOUR, |_, _, _| Outcome::failed_maybe(detail()));
    assert_eq!(rig.count(EventCode::HaltedOnOneWrite), 1, "told once");
    let stats = rig.d.lane_stats(LaneId(0)).unwrap();
    assert_eq!(stats.state, LaneState::HaltedOnOneWrite);
    // A second write is tried at once, and tells.
    rig.accept(0, 2, 2, None);
    rig.run(2 * HOUR, |_, _, seq| match seq {
        1 => Outcome::failed_maybe(detail()),
        _ => Outcome::delivered(),
    });
    assert_eq!(rig.result(0, 2), Some(SettleResult::Delivered));
    assert_eq!(rig.count(EventCode::HaltedOver), 1);
    rig.accept(0, 3, 3, None);
    rig.run(3 * HOUR, |_, _, seq| match seq {
        1 => Outcome::failed_maybe(detail()),
        _ => Outcome::delivered(),
    });
    assert_eq!(
        rig.parked.get(&(0, 1)),
        Some(&ParkReason::AttemptsSpent),
        "it failed again between two deliveries"
    );
}

#[test]
fn a_strict_lane_with_a_poison_head_parks_it_and_goes_on_in_order() {
    let poisons = [
        Outcome::failed_maybe(detail()),
        Outcome::unknown(detail()),
        Outcome::target_failed(detail()),
        Outcome::denied(detail()),
        Outcome::retry(detail()),
    ];
    for poison in poisons {
        let mut rig = Rig::connected();
        rig.lane(effectively_once(strict(0)));
        rig.accept(0, 1, 20, None);
        let mut delivered = Vec::new();
        rig.run(2 * HOUR, |_, _, seq| {
            if seq == 1 {
                return poison.clone();
            }
            delivered.push(seq);
            Outcome::delivered()
        });
        assert_eq!(
            rig.parked.get(&(0, 1)),
            Some(&ParkReason::AttemptsSpent),
            "{poison:?}"
        );
        assert_eq!(delivered, (2..=20).collect::<Vec<_>>(), "{poison:?}");
    }
}

#[test]
fn under_hold_key_a_poison_head_halts_its_lane_and_nothing_overtakes_it() {
    let mut rig = Rig::connected();
    let mut cfg = effectively_once(strict(0));
    cfg.after_park = AfterPark::HoldKey;
    rig.lane(cfg);
    rig.accept(0, 1, 20, None);
    rig.run(2 * HOUR, |_, _, seq| {
        assert_eq!(seq, 1, "nothing overtakes");
        Outcome::failed_maybe(detail())
    });
    assert!(rig.parked.is_empty());
    assert_eq!(rig.count(EventCode::HaltedOnOneWrite), 1);
}

#[test]
fn two_hours_of_bad_gateway_to_everything_park_nothing() {
    let mut rig = Rig::connected();
    for id in 0..3 {
        let mut cfg = effectively_once(strict(id));
        cfg.order = [Order::Strict, Order::ByKey, Order::None][id as usize];
        rig.lane(cfg.batched(BatchKind::Atomic, 10));
        rig.accept(id, 1, 500, None);
    }
    rig.run(2 * HOUR, |_, _, _| Outcome::target_failed(detail()));
    assert!(rig.parked.is_empty());
    assert!(rig.requests < 100, "{} requests", rig.requests);
    assert_eq!(
        rig.count(EventCode::TargetClosed),
        1,
        "one outage, one event"
    );
    let mut last = [0; 3];
    rig.run(3 * HOUR, |_, lane, seq| {
        if lane == 0 {
            assert!(seq > last[0], "{seq} after {}", last[0]);
            last[0] = seq;
        }
        Outcome::delivered()
    });
    assert!(rig.parked.is_empty());
    assert_eq!(rig.settled.len(), 1_500);
}

#[test]
fn two_hours_of_internal_errors_to_everything_park_nothing_and_try_few_writes() {
    let mut rig = Rig::connected();
    let mut cfg = strict(0);
    cfg.order = Order::None;
    cfg.in_flight_limit = 50;
    rig.lane(cfg);
    rig.accept(0, 1, 10_000, None);
    rig.run(2 * HOUR, |_, _, _| Outcome::failed_maybe(detail()));
    assert!(rig.parked.is_empty());
    assert!(rig.requests < 200, "{} requests", rig.requests);
    rig.run(3 * HOUR, |_, _, _| Outcome::delivered());
    let landed_twice = rig
        .parked
        .values()
        .all(|why| *why == ParkReason::MayHaveLanded);
    assert!(landed_twice, "{:?}", rig.parked);
    assert_eq!(rig.settled.len() + rig.parked.len(), 10_000);
}

#[test]
fn one_payload_that_is_always_refused_parks_at_once_and_touches_no_other() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 100, None);
    rig.run(60_000, |_, _, seq| match seq {
        42 => Outcome::refused(detail()),
        _ => Outcome::delivered(),
    });
    assert_eq!(rig.parked.len(), 1);
    assert_eq!(rig.parked.get(&(0, 42)), Some(&ParkReason::Refused));
    assert_eq!(rig.settled.len(), 99);
    assert_eq!(rig.requests, 100, "each was sent once");
}

#[test]
fn a_refused_atomic_batch_is_bisected_to_the_one_write_at_fault() {
    let mut rig = Rig::connected();
    rig.lane(strict(0).batched(BatchKind::Atomic, 64));
    rig.accept(0, 1, 64, None);
    let mut requests = 0;
    while !rig.sent.is_empty() {
        let (request, seqs) = rig.next_seqs();
        requests += 1;
        let outcome = if seqs.contains(&37) {
            Outcome::refused(detail())
        } else {
            Outcome::delivered()
        };
        rig.answer(request, vec![outcome; seqs.len()]);
    }
    assert_eq!(rig.parked.keys().collect::<Vec<_>>(), [&(0, 37)]);
    assert_eq!(rig.settled.len(), 63);
    assert!(requests <= 2 * 6 + 1, "{requests} requests");
}

#[test]
fn a_prefix_batch_charges_only_the_write_that_failed_first() {
    let mut rig = Rig::connected();
    rig.lane(strict(0).batched(BatchKind::Prefix, 4));
    rig.accept(0, 1, 4, None);
    let (request, seqs) = rig.next_seqs();
    assert_eq!(seqs, [1, 2, 3, 4]);
    let mut outcomes = vec![Outcome::delivered(), Outcome::refused(detail())];
    outcomes.extend(vec![Outcome::retry(detail()); 2]);
    rig.answer(request, outcomes);
    assert_eq!(rig.result(0, 1), Some(SettleResult::Delivered));
    assert_eq!(rig.parked.get(&(0, 2)), Some(&ParkReason::Refused));
    let (_, seqs) = rig.next_seqs();
    assert_eq!(seqs, [3, 4], "the others go again at once");
}

#[test]
fn a_probe_that_passes_while_writes_vanish_costs_one_extra_copy_at_most() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 5, None);
    let mut copies = [0; 10];
    rig.run(2 * HOUR, |_, _, seq| {
        copies[seq as usize] += 1;
        Outcome::unknown(detail())
    });
    assert!(rig.parked.is_empty(), "{:?}", rig.parked);
    assert!(copies.iter().all(|n| *n <= 2), "{copies:?}");
    assert!(rig.count(EventCode::AmbiguousHeld) > 0);
    rig.accept(0, 6, 9, None);
    rig.run(4 * HOUR, |_, _, seq| {
        copies[seq as usize] += 1;
        Outcome::delivered()
    });
    assert!(copies.iter().all(|n| *n <= 3), "{copies:?}");
    assert!(
        rig.parked
            .values()
            .all(|why| *why == ParkReason::MayHaveLanded)
    );
    assert_eq!(rig.settled.len() + rig.parked.len(), 9);
}

#[test]
fn denied_halts_only_its_target_with_one_event_and_a_canary_at_the_cap() {
    let mut rig = Rig::connected();
    rig.lane(effectively_once(strict(0)));
    let mut other = effectively_once(strict(1));
    other.target = "other table".into();
    rig.lane(other);
    rig.accept(0, 1, 10, None);
    rig.accept(1, 1, 10, None);
    let mut tries = Vec::new();
    rig.run(HOUR, |now, lane, _| match lane {
        0 => {
            tries.push(now);
            Outcome::denied(detail())
        }
        _ => Outcome::delivered(),
    });
    assert_eq!(rig.settled.len(), 10, "the other target goes on");
    assert!(rig.parked.is_empty());
    assert_eq!(rig.count(EventCode::Denied), 1);
    assert!(
        tries.windows(2).all(|pair| pair[1] - pair[0] >= 300_000),
        "{tries:?}"
    );
    let stats = rig.d.lane_stats(LaneId(0)).unwrap();
    assert!(matches!(
        stats.state,
        LaneState::Halted | LaneState::HaltedOnOneWrite
    ));
    rig.run(2 * HOUR, |_, _, _| Outcome::delivered());
    assert_eq!(rig.settled.len(), 20, "the credentials were mended");
    assert_eq!(rig.count(EventCode::DeniedOver), 1);
}

#[test]
fn a_pause_that_is_asked_for_is_clamped_to_an_hour_and_charges_nothing() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 1, None);
    rig.answer_next(&Outcome::throttled(48 * HOUR));
    assert_eq!(
        rig.d.lane_stats(LaneId(0)).unwrap().state,
        LaneState::Throttled
    );
    rig.wait(HOUR - 1);
    assert!(rig.sent.is_empty());
    rig.wait(HOUR + 1);
    rig.answer_next(&Outcome::delivered());
    assert_eq!(rig.result(0, 1), Some(SettleResult::Delivered));
    assert_eq!(rig.notes.get(&(0, 1)), None, "no attempt was noted");
}

#[test]
fn a_direct_send_blocked_far_beyond_ack_wait_is_answered_once_and_copied_at_most_once() {
    let mut rig = Rig::connected();
    let mut cfg = strict(0);
    cfg.direct = Some(DirectMode::Hold);
    rig.lane(cfg);
    rig.input(Input::Direct {
        lane: LaneId(0),
        write: DirectWrite {
            seq: 1,
            bytes: 10,
            ..DirectWrite::default()
        },
    });
    let mut copies = 0;
    rig.run(3 * HOUR, |now, _, _| {
        if copies == 0 {
            copies += 1;
            Outcome::unknown(detail())
        } else if now < 2 * HOUR {
            Outcome::down(detail())
        } else {
            copies += 1;
            Outcome::delivered()
        }
    });
    assert_eq!(copies, 2, "one extra copy for the one interruption");
    let answer = DirectResult::Delivered { repeat: false };
    assert_eq!(rig.answers.get(&1), Some(&answer));
    assert!(rig.requests < 120, "{} requests", rig.requests);
}

/// It was tried again without a word: nobody heard why nothing went on.
#[test]
fn a_direct_send_that_is_refused_and_held_says_so_once() {
    let mut rig = Rig::connected();
    let mut cfg = strict(0);
    cfg.direct = Some(DirectMode::Hold);
    rig.lane(cfg);
    let write = DirectWrite {
        seq: 1,
        bytes: 10,
        ..DirectWrite::default()
    };
    rig.input(Input::Direct {
        lane: LaneId(0),
        write,
    });
    let mut refused = 0;
    rig.run(3 * HOUR, |now, _, _| {
        if now < 2 * HOUR {
            refused += 1;
            Outcome::refused(detail())
        } else {
            Outcome::delivered()
        }
    });
    assert!(refused > 2, "it is tried again: {refused}");
    assert_eq!(rig.count(EventCode::DirectHeld), 1);
    let answer = DirectResult::Delivered { repeat: false };
    assert_eq!(rig.answers.get(&1), Some(&answer));
}

#[test]
fn a_session_is_told_at_once_and_a_maybe_is_never_sent_again() {
    let mut rig = Rig::connected();
    let mut cfg = strict(0);
    cfg.direct = Some(DirectMode::Answer);
    cfg.repeat = Repeat::Never;
    rig.lane(cfg);
    let direct = |seq| Input::Direct {
        lane: LaneId(0),
        write: DirectWrite {
            seq,
            ..DirectWrite::default()
        },
    };
    rig.input(direct(1));
    rig.answer_next(&Outcome::unknown(detail()));
    match rig.answers.get(&1) {
        Some(DirectResult::Failed { failure }) => assert!(failure.maybe_applied),
        other => panic!("{other:?}"),
    }
    rig.probes_pass = false;
    rig.input(direct(2));
    assert!(
        matches!(rig.answers.get(&2), Some(DirectResult::Failed { failure }) if !failure.maybe_applied),
        "the gate is closed: {:?}",
        rig.answers.get(&2)
    );
    assert_eq!(rig.requests, 1);
}

#[test]
fn a_plugin_that_never_completes_is_fenced_and_its_late_answer_settles() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 1, None);
    let (request, _) = rig.next_seqs();
    rig.wait(29_999);
    assert!(rig.cancelled.is_empty());
    rig.wait(30_000);
    assert_eq!(rig.cancelled, [request]);
    rig.wait(39_999);
    assert!(
        rig.rebuilds.is_empty() && rig.sent.is_empty(),
        "one live request"
    );
    rig.wait(40_000);
    assert_eq!(rig.rebuilds.len(), 1);
    assert!(rig.sent.is_empty());
    rig.probes_pass = false;
    rig.input(Input::Rebuilt {
        connection: ConnectionId(0),
    });
    assert!(rig.sent.is_empty(), "its gate is closed");
    rig.answer(request, vec![Outcome::delivered()]);
    assert_eq!(rig.result(0, 1), Some(SettleResult::Delivered));
    assert_eq!(rig.count(EventCode::LateAnswer), 1);
}

#[test]
fn a_late_answer_after_the_resend_changes_nothing() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 1, None);
    let (request, _) = rig.next_seqs();
    rig.wait(40_000);
    rig.input(Input::Rebuilt {
        connection: ConnectionId(0),
    });
    rig.wait(60_000);
    let again = rig.next_sent();
    assert!(again.items[0].may_be_repeat);
    rig.answer(request, vec![Outcome::delivered()]);
    assert_eq!(rig.result(0, 1), None);
    rig.answer(again.request, vec![Outcome::delivered_repeat()]);
    assert_eq!(rig.result(0, 1), Some(SettleResult::DeliveredAsRepeat));
}

#[test]
fn a_third_fenced_instance_halts_the_connection_until_restart() {
    let mut rig = Rig::connected();
    rig.lane(effectively_once(strict(0)));
    rig.accept(0, 1, 1, None);
    for _ in 0..3 {
        rig.wait(rig.now + 10 * 60_000);
        if !rig.rebuilds.is_empty() {
            rig.rebuilds.clear();
            rig.input(Input::Rebuilt {
                connection: ConnectionId(0),
            });
        }
        rig.sent.clear();
    }
    rig.wait(rig.now + HOUR);
    assert_eq!(rig.count(EventCode::ConnectionFenced), 3);
    assert_eq!(rig.count(EventCode::ConnectionHalted), 1);
    let stats = rig.d.connection_stats(ConnectionId(0)).unwrap();
    assert_eq!(stats.gate, GateState::Halted);
}

#[test]
fn the_resend_waits_for_the_acknowledged_cancel() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 2, None);
    let (request, _) = rig.next_seqs();
    rig.wait(35_000);
    assert!(rig.sent.is_empty());
    rig.acknowledge(request, Applied::MAYBE);
    rig.wait(60_000);
    let again = rig.next_sent();
    assert!(again.items[0].may_be_repeat || again.items[0].seq == 2);
}

#[test]
fn on_ambiguous_park_parks_and_retry_goes_on() {
    for on_ambiguous in [OnAmbiguous::Park, OnAmbiguous::Retry] {
        let mut rig = Rig::connected();
        let mut cfg = strict(0);
        cfg.on_ambiguous = on_ambiguous;
        rig.lane(cfg);
        rig.accept(0, 1, 1, None);
        rig.run(2 * HOUR, |_, _, _| Outcome::failed_maybe(detail()));
        match on_ambiguous {
            OnAmbiguous::Park => {
                assert_eq!(rig.parked.get(&(0, 1)), Some(&ParkReason::MayHaveLanded));
                assert_eq!(rig.requests, 2);
            }
            _ => {
                assert!(rig.parked.is_empty());
                assert!(rig.requests > 10);
            }
        }
    }
}
