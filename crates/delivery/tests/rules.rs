//! Rules one by one: fan-out, windows, classes, operators, drains, durability.

mod rig;

use consign_delivery::{
    Act, AfterPark, Applied, BatchKind, ClassConfig, ClassId, ConnectionConfig, ConnectionId,
    Decision, Delivery, Dependents, EventCode, FetchedWrite, HostLimits, Input, LaneConfig, LaneId,
    OnWindowPassed, Order, Outcome, Output, ParkReason, Repeat, SettleResult, Verdict, WriteNote,
};
use rig::{Rig, WALL0, detail, seqs};

const HOUR: u64 = 3_600_000;

fn strict(id: u32) -> LaneConfig {
    LaneConfig::new(LaneId(id), ConnectionId(0), "table")
}

fn windowed(id: u32, on_window_passed: OnWindowPassed) -> LaneConfig {
    let mut cfg = strict(id);
    cfg.repeat = Repeat::Dropped {
        window_ms: Some(HOUR),
        margin_ms: 60_000,
        on_window_passed,
    };
    cfg
}

#[test]
fn dependents_are_released_with_a_delivered_parent_and_with_no_other() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 4, None);
    rig.answer_next(&Outcome::delivered());
    rig.answer_next(&Outcome::refused(detail()));
    rig.act(Act::Skip(LaneId(0), 4));
    let (request, _) = rig.next_seqs();
    rig.act(Act::Confirm(LaneId(0), 3));
    rig.acknowledge(request, Applied::MAYBE);
    let of = |seq: u64| {
        let settled = rig.settled.get(&(0, seq)).unwrap();
        (settled.result, settled.dependents)
    };
    assert_eq!(of(1), (SettleResult::Delivered, Dependents::Release));
    assert_eq!(
        of(3),
        (SettleResult::ConfirmedByOperator, Dependents::Release)
    );
    assert_eq!(of(4), (SettleResult::Skipped, Dependents::Drop));
    assert_eq!(
        rig.parked.get(&(0, 2)),
        Some(&ParkReason::Refused),
        "a refused parent parks, its dependents with it"
    );
}

#[test]
fn past_its_window_a_maybe_counts_as_at_least_once_or_parks() {
    for policy in [OnWindowPassed::Resend, OnWindowPassed::Park] {
        let mut rig = Rig::connected();
        rig.lane(windowed(0, policy));
        rig.accept(0, 1, 1, None);
        rig.answer_next(&Outcome::unknown(detail()));
        rig.run(2 * HOUR, |now, _, _| {
            if now < 2 * HOUR - 60_000 {
                Outcome::unknown(detail())
            } else {
                Outcome::delivered()
            }
        });
        assert_eq!(rig.count(EventCode::WindowPassed), 1);
        match policy {
            OnWindowPassed::Park => {
                assert_eq!(rig.parked.get(&(0, 1)), Some(&ParkReason::WindowPassed));
            }
            OnWindowPassed::Resend => {
                assert!(rig.parked.is_empty());
                let note = rig.notes.get(&(0, 1)).unwrap();
                assert!(note.has(WriteNote::WINDOW_PASSED) && note.spent_resends > 0);
            }
        }
    }
}

#[test]
fn the_window_runs_across_a_restart_and_a_clock_that_went_back_counts_as_passed() {
    let young = WALL0 - HOUR / 2;
    let rows = [
        (young, 0, false),
        (WALL0 - 2 * HOUR, 0, true),
        (WALL0 + HOUR, 0, true),
        (young, WALL0 + 5 * HOUR, true),
    ];
    for (since, frontier_wall, passed) in rows {
        let mut rig = Rig::connected();
        let mut cfg = windowed(0, OnWindowPassed::Park);
        cfg.frontier = 10;
        cfg.frontier_wall_unix_ms = frontier_wall;
        rig.store(
            0,
            FetchedWrite {
                seq: 1,
                maybe_since_unix_ms: Some(since),
                ..FetchedWrite::default()
            },
        );
        rig.lane(cfg);
        assert_eq!(
            rig.parked.contains_key(&(0, 1)),
            passed,
            "{since} {frontier_wall}"
        );
        assert_eq!(rig.sent.is_empty(), passed);
    }
}

#[test]
fn a_wall_clock_jump_while_running_changes_no_window() {
    let mut rig = Rig::connected();
    rig.lane(windowed(0, OnWindowPassed::Park));
    rig.accept(0, 1, 1, None);
    rig.answer_next(&Outcome::failed_maybe(detail()));
    for shift in [-86_400_000, 86_400_000] {
        rig.wall_shift = shift;
        rig.wait(rig.now + 1_000);
        rig.answer_next(&Outcome::failed_maybe(detail()));
    }
    assert!(rig.parked.is_empty());
    assert_eq!(rig.count(EventCode::ClockWentBack), 1);
    let note = rig.notes.get(&(0, 1)).unwrap();
    assert!(
        note.first_maybe_unix_ms < WALL0 - 80_000_000,
        "the durable time follows the clock that went back"
    );
}

#[test]
fn nothing_goes_past_the_durable_frontier_nor_again_before_its_note() {
    let mut rig = Rig::connected();
    rig.disk = false;
    rig.lane(strict(0));
    rig.accept(0, 1, 2, None);
    assert!(rig.sent.is_empty(), "the frontier is not durable");
    let ticket = rig.tickets.pop_front().unwrap();
    rig.input(Input::Durable { ticket });
    rig.answer_next(&Outcome::failed_maybe(detail()));
    rig.wait(60_000);
    assert!(rig.sent.is_empty(), "the note is not durable");
    while let Some(ticket) = rig.tickets.pop_front() {
        rig.input(Input::Durable { ticket });
    }
    let again = rig.next_sent();
    assert!(again.items[0].may_be_repeat);
}

#[test]
fn answered_and_not_durable_counts_against_the_in_flight_limit() {
    let mut rig = Rig::connected();
    let mut cfg = strict(0);
    cfg.order = Order::None;
    cfg.in_flight_limit = 3;
    cfg.frontier = 100;
    rig.lane(cfg);
    rig.disk = false;
    rig.accept(0, 1, 10, None);
    assert_eq!(rig.sent.len(), 3);
    for _ in 0..3 {
        rig.answer_next(&Outcome::delivered());
    }
    assert!(rig.sent.is_empty(), "three are answered, none is durable");
    while let Some(ticket) = rig.tickets.pop_front() {
        rig.input(Input::Durable { ticket });
    }
    assert_eq!(rig.sent.len(), 3);
}

#[test]
fn skipping_one_write_in_flight_stops_its_request_and_marks_its_companions_maybe() {
    let mut rig = Rig::connected();
    rig.lane(strict(0).batched(BatchKind::Atomic, 3));
    rig.accept(0, 1, 3, None);
    let (request, batch) = rig.next_seqs();
    assert_eq!(batch, [1, 2, 3]);
    rig.act(Act::Skip(LaneId(0), 2));
    assert_eq!(rig.cancelled, [request]);
    assert_eq!(rig.result(0, 2), None, "not before its request has ended");
    rig.acknowledge(request, Applied::MAYBE);
    assert_eq!(rig.result(0, 2), Some(SettleResult::Skipped));
    rig.wait(60_000);
    let again = rig.next_sent();
    assert_eq!(seqs(&again), [1]);
    assert!(again.items[0].may_be_repeat);
    assert_eq!(rig.count(EventCode::GateClosed), 0, "no outage");
}

#[test]
fn the_error_handler_is_asked_once_and_each_decision_is_carried_out() {
    let decisions = [
        Decision::Skip,
        Decision::Park {
            reason: "mine".into(),
        },
        Decision::Divert {
            target: "other".into(),
        },
        Decision::Failed,
        Decision::Retry { after_ms: 5_000 },
        Decision::Block,
    ];
    for decision in decisions {
        let mut rig = Rig::connected();
        let mut cfg = strict(0);
        cfg.has_handler = true;
        rig.lane(cfg);
        rig.accept(0, 1, 1, None);
        rig.answer_next(&Outcome::refused(detail()));
        assert_eq!(rig.asked, [(0, 1)]);
        rig.input(Input::Decided {
            lane: LaneId(0),
            seq: 1,
            decision: decision.clone(),
        });
        rig.input(Input::Decided {
            lane: LaneId(0),
            seq: 1,
            decision: Decision::Skip,
        });
        match decision {
            Decision::Skip => assert_eq!(rig.result(0, 1), Some(SettleResult::Skipped)),
            Decision::Park { reason } => {
                assert_eq!(rig.parked.get(&(0, 1)), Some(&ParkReason::Handler(reason)));
            }
            Decision::Divert { .. } => assert!(rig.pending[&0].is_empty()),
            Decision::Failed => {
                assert_eq!(rig.parked.get(&(0, 1)), Some(&ParkReason::HandlerFailed));
            }
            Decision::Retry { .. } | Decision::Block => {
                rig.wait(300_000);
                rig.answer_next(&Outcome::refused(detail()));
                assert_eq!(rig.asked.len(), 2, "asked again when that failed");
            }
        }
    }
}

#[test]
fn a_critical_lane_beside_a_bulk_backlog_waits_for_no_bulk_request() {
    let class = |id, reserved| ClassConfig {
        id: ClassId(id),
        reserved,
        max_in_flight: None,
        rate_per_s: None,
    };
    let mut rig = Rig::new(HostLimits {
        max_in_flight: 4,
        classes: vec![class(1, 1), class(2, 1)],
    });
    rig.connect(0);
    let mut bulk = strict(2);
    bulk.class = ClassId(2);
    bulk.order = Order::None;
    bulk.in_flight_limit = 1_000;
    bulk.frontier = u64::MAX / 2;
    rig.lane(bulk);
    let mut critical = strict(1);
    critical.class = ClassId(1);
    critical.frontier = u64::MAX / 2;
    rig.lane(critical);
    rig.accept(2, 1, 3_500, None);
    let mut delivered = [0_u32; 3];
    // Every request takes 10 ms; a critical write comes every 10 ms, for ever.
    for next in 1..=2_000 {
        rig.accept(1, next, next, None);
        assert!(
            rig.sent.iter().any(|send| send.lane == LaneId(1)),
            "the critical write left at once"
        );
        rig.now += 10;
        let out: Vec<_> = rig.sent.drain(..).collect();
        for send in out {
            delivered[send.lane.0 as usize] += send.items.len() as u32;
            rig.answer(send.request, vec![Outcome::delivered(); send.items.len()]);
        }
    }
    assert_eq!(delivered[1], 2_000);
    assert_eq!(
        delivered[2], 3_500,
        "bulk drained under endless critical load"
    );
}

#[test]
fn a_contradicted_inspection_makes_a_lane_at_least_once_and_resends_wait_for_it() {
    let mut rig = Rig::connected();
    let mut cfg = windowed(0, OnWindowPassed::Resend);
    cfg.inspected = true;
    rig.lane(cfg);
    let inspect = |verdict| Input::Inspected {
        lane: LaneId(0),
        verdict,
        window_ms: None,
    };
    rig.input(inspect(Verdict::Verified));
    rig.accept(0, 1, 1, None);
    rig.answer_next(&Outcome::unknown(detail()));
    rig.wait(10_000);
    assert!(rig.sent.is_empty(), "the resend waits for the inspection");
    rig.input(inspect(Verdict::Contradicted));
    rig.wait(20_000);
    assert_eq!(rig.count(EventCode::PromiseContradicted), 1);
    assert_eq!(rig.notes.get(&(0, 1)).unwrap().spent_resends, 1);
    rig.answer_next(&Outcome::unknown(detail()));
    rig.wait(HOUR / 2);
    assert!(rig.sent.is_empty(), "one resend, then held");
}

#[test]
fn a_drain_waits_for_what_is_on_its_way_and_counts_what_never_ends() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 3, None);
    rig.input(Input::Drain { deadline_ms: 5_000 });
    assert_eq!(rig.drained, None);
    rig.answer_next(&Outcome::delivered());
    assert_eq!(rig.drained, Some(0));
    assert!(rig.sent.is_empty(), "nothing new is sent");

    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 1, None);
    rig.input(Input::Drain { deadline_ms: 5_000 });
    rig.wait(5_000);
    assert_eq!(rig.cancelled.len(), 1);
    rig.wait(20_000);
    assert_eq!(rig.drained, Some(1));
}

#[test]
fn crash_suspects_park_and_expired_writes_are_dropped_with_an_event() {
    let mut rig = Rig::connected();
    let mut cfg = strict(0);
    cfg.crash_suspects = vec![2];
    rig.lane(cfg);
    rig.store(
        0,
        FetchedWrite {
            seq: 3,
            expires_unix_ms: Some(WALL0 + 10_000),
            ..FetchedWrite::default()
        },
    );
    rig.accept(0, 1, 2, None);
    rig.act(Act::Pause(LaneId(0)));
    rig.answer_next(&Outcome::delivered());
    assert_eq!(rig.parked.get(&(0, 2)), Some(&ParkReason::SuspectedCrash));
    rig.wait(20_000);
    assert_eq!(rig.result(0, 3), Some(SettleResult::Expired));
    assert_eq!(rig.count(EventCode::Expired), 1);
}

#[test]
fn a_removed_lane_ends_what_is_on_its_way_and_comes_back_with_its_backlog() {
    let mut rig = Rig::connected();
    rig.lane(strict(0));
    rig.accept(0, 1, 3, None);
    rig.input(Input::RemoveLane { lane: LaneId(0) });
    assert!(rig.removed.is_empty());
    rig.answer_next(&Outcome::delivered());
    assert_eq!(rig.removed, [LaneId(0)]);
    assert!(rig.sent.is_empty());
    let mut cfg = strict(0);
    cfg.frontier = 3;
    rig.lane(cfg);
    assert_eq!(rig.answer_next(&Outcome::delivered()), [2]);
}

#[test]
fn a_key_released_after_a_park_goes_on_in_order() {
    let mut rig = Rig::connected();
    let mut cfg = strict(0);
    cfg.order = Order::ByKey;
    cfg.after_park = AfterPark::HoldKey;
    rig.lane(cfg);
    rig.accept(0, 1, 3, Some(7));
    rig.accept(0, 4, 4, Some(8));
    rig.run(1_000, |_, _, seq| match seq {
        1 => Outcome::refused(detail()),
        _ => Outcome::delivered(),
    });
    assert_eq!(rig.settled.len(), 1, "only the other key went on");
    assert_eq!(rig.d.lane_stats(LaneId(0)).unwrap().held_keys, 1);
    rig.act(Act::ReleaseKey(LaneId(0), 7));
    let mut order = Vec::new();
    rig.run(2_000, |_, _, seq| {
        order.push(seq);
        Outcome::delivered()
    });
    assert_eq!(order, [2, 3]);
}

#[test]
fn an_unfilled_batch_lingers_and_a_full_one_does_not() {
    let mut rig = Rig::connected();
    let mut cfg = strict(0).batched(BatchKind::Atomic, 4);
    cfg.batch.linger_ms = 50;
    rig.lane(cfg);
    rig.accept(0, 1, 2, None);
    assert!(rig.sent.is_empty());
    rig.wait(50);
    assert_eq!(rig.answer_next(&Outcome::delivered()), [1, 2]);
    rig.accept(0, 3, 6, None);
    assert_eq!(rig.answer_next(&Outcome::delivered()), [3, 4, 5, 6]);
}

#[test]
fn a_sealed_batch_goes_again_as_it_was_and_under_the_same_number() {
    let mut rig = Rig::connected();
    let mut cfg = strict(0).batched(BatchKind::Atomic, 3);
    cfg.batch.sealed = true;
    cfg.repeat = windowed(0, OnWindowPassed::Resend).repeat;
    rig.lane(cfg);
    rig.accept(0, 1, 2, None);
    let first = rig.next_sent();
    assert_eq!(seqs(&first), [1, 2]);
    assert_ne!(first.sealed, 0);
    rig.accept(0, 3, 5, None);
    rig.answer(first.request, vec![Outcome::unknown(detail()); 2]);
    rig.wait(5_000);
    let again = rig.next_sent();
    assert_eq!((seqs(&again), again.sealed), (vec![1, 2], first.sealed));
    rig.answer(again.request, vec![Outcome::delivered(); 2]);
    let next = rig.next_sent();
    assert_eq!(seqs(&next), [3, 4, 5]);
    assert!(next.sealed > first.sealed, "numbers grow along the lane");
}

#[test]
fn a_million_pending_writes_cost_one_window_and_a_stuck_lane_costs_nothing() {
    let mut rig = Rig::connected();
    for id in 0..1_000 {
        let mut cfg = strict(id);
        cfg.target = "stuck".into();
        rig.lane(cfg);
        rig.accept(id, 1, 3, None);
    }
    let mut busy = strict(1_000);
    busy.target = "busy".into();
    rig.lane(busy);
    rig.accept(1_000, 1, 3_000, None);
    let window = rig.d.lane_stats(LaneId(1_000)).unwrap().window;
    assert!(window <= 1_024, "{window}");
    rig.run(60_000, |_, lane, _| match lane {
        1_000 => Outcome::delivered(),
        _ => Outcome::target_failed(detail()),
    });
    assert_eq!(rig.settled.len(), 3_000);
    assert!(rig.requests < 3_500, "{}", rig.requests);
}

#[test]
fn resends_that_the_destination_drops_share_batches_behind_their_head() {
    let limits = HostLimits::default();
    let mut machine = Delivery::new(limits, 1);
    machine.handle(
        0,
        1_000_000,
        Input::AddConnection(ConnectionConfig::new(ConnectionId(1))),
    );
    let mut lane = LaneConfig::new(LaneId(1), ConnectionId(1), "t").batched(BatchKind::Atomic, 10);
    lane.repeat = Repeat::Dropped {
        window_ms: None,
        margin_ms: 0,
        on_window_passed: OnWindowPassed::Resend,
    };
    lane.frontier = 30;
    machine.handle(0, 1_000_000, Input::AddLane(Box::new(lane)));
    let mut sizes = Vec::new();
    let mut landed = 0_usize;
    for step in 0..200_u64 {
        let outputs: Vec<Output> = machine.outputs().collect();
        for output in outputs {
            let input = match output {
                Output::Probe { connection, .. } => Input::Probed {
                    connection,
                    result: Ok(()),
                },
                Output::Fetch {
                    lane, after_seq, ..
                } => Input::Fetched {
                    lane,
                    // An unclean exit left all of them below the frontier.
                    writes: (after_seq + 1..=30)
                        .map(|seq| FetchedWrite {
                            seq,
                            bytes: 10,
                            maybe_since_unix_ms: Some(900_000),
                            ..FetchedWrite::default()
                        })
                        .collect(),
                    more: false,
                },
                Output::Frontier { ticket, .. }
                | Output::Note { ticket, .. }
                | Output::Settle { ticket, .. } => Input::Durable { ticket },
                Output::Send(send) => {
                    sizes.push(send.items.len());
                    landed += send.items.len();
                    assert!(send.items.iter().all(|item| item.may_be_repeat));
                    Input::Answered {
                        request: send.request,
                        outcomes: vec![Outcome::delivered_repeat(); send.items.len()],
                    }
                }
                _ => continue,
            };
            machine.handle(step, 1_000_000 + step, input);
        }
        machine.handle(step, 1_000_000 + step, Input::Tick);
    }
    assert_eq!(landed, 30);
    assert_eq!(sizes, [10, 10, 10], "full batches, not one request each");
}
