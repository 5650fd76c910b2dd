//! Parking, lists, causes and claims.

mod common;
use common::*;
use consign_ledger::*;

#[test]
fn a_parked_write_is_read_back_whole() {
    let (_dir, ledger) = ledger();
    let mut record = record(7);
    record.original = Some(b"{\"amount\": 1.10}".to_vec());
    record.dependents = vec![Dependent {
        send: "receipt".into(),
        write_key: key(8),
        envelope: vec![1],
        body: vec![0, 200],
        order: u64::MAX - 1,
        parent: Some(0),
    }];
    record.order = u64::MAX;
    record.diagnosis.response = Some("é \0 end".into());
    let parked = ledger.park(&record).unwrap();
    assert!(matches!(parked, Parked::New(_)));
    let message = ledger.failed_message(parked.id()).unwrap().unwrap();
    assert_eq!(message.record, record);
    assert_eq!(message.state, FailedState::Parked);
    assert_eq!((message.claims, message.parkings), (0, 1));
    assert_eq!(ledger.failed_by_key(key(7)).unwrap(), [message]);
    assert_eq!(ledger.failed_message(99).unwrap(), None);
}

#[test]
fn a_parking_and_the_event_that_tells_of_it_are_one() {
    let (_dir, ledger) = ledger();
    let tell = |id: i64| Event::new(Code::Parked, 5).field("failed_id", id);
    let id = ledger.park_and_tell(&record(1), tell).unwrap().id();
    // After a crash before the lane noted it: the same once more.
    let again = ledger.park_and_tell(&record(1), tell).unwrap();
    assert_eq!(again, Parked::AlreadyThere(id));
    let events = ledger.events(&EventFilter::default()).unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].event.fields["failed_id"], id);
    // What cannot be parked is not told.
    let mut large = record(2);
    large.body = vec![0; 80 << 20];
    if ledger.park_and_tell(&large, tell).is_err() {
        assert_eq!(ledger.events(&EventFilter::default()).unwrap().len(), 1);
    }
}

#[test]
fn parking_the_same_write_twice_changes_nothing() {
    let (dir, ledger) = ledger();
    let id = ledger.park(&record(1)).unwrap().id();
    assert_eq!(ledger.park(&record(1)).unwrap(), Parked::AlreadyThere(id));
    drop(ledger);
    let ledger = Ledger::open(&file(&dir), options()).unwrap();
    assert_eq!(ledger.park(&record(1)).unwrap(), Parked::AlreadyThere(id));
    assert_eq!(ledger.failed_count(&FailedFilter::default()).unwrap(), 1);
    assert_eq!(ledger.causes(true).unwrap()[0].waiting, 1);
}

#[test]
fn one_key_in_two_lanes_is_two_failed_messages() {
    let (_dir, ledger) = ledger();
    ledger.park(&record(1)).unwrap();
    let mut other = record(1);
    other.send = "audit".into();
    assert!(matches!(ledger.park(&other).unwrap(), Parked::New(_)));
    assert_eq!(ledger.failed_by_key(key(1)).unwrap().len(), 2);
}

#[test]
fn a_write_that_was_sent_again_and_failed_again_waits_again() {
    let (_dir, ledger) = ledger();
    let id = ledger.park(&record(1)).unwrap().id();
    let claim = ledger.claim(id, Act::SendAgain, "ann", 20_000).unwrap();
    ledger.finish(&claim, &Done::SentAgain, 20_001).unwrap();
    // The host crashed before it settled the first parking: it asks once more for that one.
    assert_eq!(ledger.park(&record(1)).unwrap(), Parked::AlreadyThere(id));
    let mut again = record(1);
    (again.seq, again.parked_unix_ms) = (50, 30_000);
    again.diagnosis.code = "locked".into();
    again.diagnosis.reason = ParkReason::Exhausted;
    assert_eq!(ledger.park(&again).unwrap(), Parked::Again(id));
    assert_eq!(ledger.park(&again).unwrap(), Parked::AlreadyThere(id));
    let message = ledger.failed_message(id).unwrap().unwrap();
    assert_eq!(message.record, again);
    assert_eq!((message.claims, message.parkings), (1, 2));
    let causes = ledger.causes(false).unwrap();
    let counts: Vec<_> = causes
        .iter()
        .map(|c| (c.code.as_str(), c.waiting, c.total))
        .collect();
    assert_eq!(counts, [("locked", 1, 1), ("constraint", 0, 1)]);
}

#[test]
fn a_write_that_fails_again_before_its_claim_is_finished_waits_again() {
    let (_dir, ledger) = ledger();
    let id = ledger.park(&record(1)).unwrap().id();
    let claim = ledger.claim(id, Act::SendAgain, "ann", 20_000).unwrap();
    let mut again = record(1);
    again.seq = 2;
    assert_eq!(ledger.park(&again).unwrap(), Parked::Again(id));
    ledger.finish(&claim, &Done::SentAgain, 20_001).unwrap();
    assert_eq!(
        ledger.failed_message(id).unwrap().unwrap().state,
        FailedState::Parked
    );
    assert!(matches!(
        ledger.finish(&claim, &Done::Skipped, 20_002),
        Err(Error::ClaimClosed(_))
    ));
    assert_eq!(ledger.causes(true).unwrap()[0].waiting, 1);
}

#[test]
fn a_message_handed_over_again_while_its_write_waits_is_still_one() {
    let (_dir, ledger) = ledger();
    let id = ledger.park(&record(1)).unwrap().id();
    let mut again = record(1);
    again.seq = 9;
    assert_eq!(ledger.park(&again).unwrap(), Parked::AlreadyThere(id));
    assert_eq!(ledger.causes(true).unwrap()[0].total, 1);
}

#[test]
fn several_are_parked_together_or_not_at_all() {
    let (_dir, ledger) = ledger();
    let parked = ledger.park_all(&[record(1), record(2), record(1)]).unwrap();
    assert_eq!(parked[2], Parked::AlreadyThere(parked[0].id()));
    assert_eq!(ledger.failed_count(&FailedFilter::default()).unwrap(), 2);
}

#[test]
fn counts_by_cause_are_kept_on_every_change() {
    let (_dir, ledger) = ledger();
    let records: Vec<NewFailed> = (1..=6).map(record).collect();
    let ids: Vec<i64> = ledger
        .park_all(&records)
        .unwrap()
        .iter()
        .map(|p| p.id())
        .collect();
    let waiting = || ledger.causes(false).unwrap()[0].waiting;
    assert_eq!(waiting(), 6);
    let claim = |i: usize, act| ledger.claim(ids[i], act, "ann", 1).unwrap();
    let sent = claim(0, Act::SendAgain);
    assert_eq!(waiting(), 6, "a claim is still waiting");
    ledger.finish(&sent, &Done::SentAgain, 2).unwrap();
    assert_eq!(waiting(), 5);
    ledger
        .release(&claim(1, Act::RouteAgain), "no such route", 2)
        .unwrap();
    assert_eq!(waiting(), 5);
    ledger
        .finish(&claim(2, Act::Skip), &Done::Skipped, 2)
        .unwrap();
    assert_eq!(waiting(), 4);
    let restore = claim(2, Act::Restore);
    ledger.release(&restore, "changed my mind", 3).unwrap();
    assert_eq!(waiting(), 4, "released to skipped");
    ledger
        .finish(&claim(2, Act::Restore), &Done::Restored, 4)
        .unwrap();
    assert_eq!(waiting(), 5);
    ledger
        .finish(&claim(3, Act::Confirm), &Done::Confirmed, 2)
        .unwrap();
    ledger
        .finish(&claim(4, Act::Move), &Done::Moved, 2)
        .unwrap();
    assert_eq!(waiting(), 3);
    assert_eq!(ledger.purge(&[ids[5], ids[0], 999], None).unwrap(), 2);
    let cause = &ledger.causes(false).unwrap()[0];
    assert_eq!((cause.waiting, cause.total), (2, 6));
    let parked = FailedFilter {
        states: vec![FailedState::Parked],
        ..FailedFilter::default()
    };
    assert_eq!(ledger.failed_count(&parked).unwrap(), cause.waiting);
}

#[test]
fn a_claim_says_who_when_and_how_often() {
    let (_dir, ledger) = ledger();
    let id = ledger.park(&record(1)).unwrap().id();
    let first = ledger.claim(id, Act::SendAgain, "ann", 100).unwrap();
    assert_eq!(first.nth, 1);
    let error = ledger.claim(id, Act::Skip, "bob", 101).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("failed message {id} is claimed (by ann): nothing was done")
    );
    ledger.release(&first, "the lane is full", 102).unwrap();
    let second = ledger.claim(id, Act::Skip, "bob", 103).unwrap();
    assert_eq!(second.nth, 2);
    ledger.finish(&second, &Done::Skipped, 104).unwrap();
    let history = ledger.claim_history(id).unwrap();
    let told: Vec<_> = history
        .iter()
        .map(|c| (c.who.as_str(), c.act, c.result.as_deref()))
        .collect();
    assert_eq!(
        told,
        [
            ("ann", Act::SendAgain, Some("released: the lane is full")),
            ("bob", Act::Skip, Some("skipped")),
        ]
    );
    let message = ledger.failed_message(id).unwrap().unwrap();
    assert_eq!(
        (message.changed_by.as_deref(), message.changed_unix_ms),
        (Some("bob"), 104)
    );
    assert!(matches!(
        ledger.claim(77, Act::Skip, "bob", 1),
        Err(Error::NotFound(_))
    ));
}

#[test]
fn a_claim_outlives_its_process_and_is_taken_over() {
    let (dir, ledger) = ledger();
    let id = ledger.park(&record(1)).unwrap().id();
    let claim = ledger.claim(id, Act::SendAgain, "ann", 100).unwrap();
    drop(ledger);
    let ledger = Ledger::open(&file(&dir), options()).unwrap();
    let open = ledger.open_claims().unwrap();
    assert_eq!(open.len(), 1);
    let again = ledger.reopen_claim(open[0].id).unwrap();
    assert_eq!((again.id, again.act), (claim.id, Act::SendAgain));
    ledger.finish(&again, &Done::SentAgain, 200).unwrap();
    assert!(ledger.open_claims().unwrap().is_empty());
    ledger.finish(&again, &Done::SentAgain, 201).unwrap();
    assert!(ledger.release(&again, "late", 202).is_err());
    assert!(matches!(
        ledger.reopen_claim(claim.id),
        Err(Error::ClaimClosed(_))
    ));
}

#[test]
fn a_redacted_copy_is_never_sent() {
    let (_dir, ledger) = ledger();
    let mut copy = record(1);
    copy.replayable = false;
    let id = ledger.park(&copy).unwrap().id();
    for act in [Act::SendAgain, Act::RouteAgain, Act::Move] {
        let error = ledger.claim(id, act, "ann", 1).unwrap_err();
        assert!(error.to_string().contains("replayable: false"), "{error}");
    }
    assert!(ledger.claim(id, Act::Skip, "ann", 1).is_ok());
}

#[test]
fn an_edit_changes_the_body_and_keeps_or_changes_the_key() {
    let (_dir, ledger) = ledger();
    let id = ledger.park(&record(1)).unwrap().id();
    let edit = |write_key| Done::Edited {
        body: b"mended".to_vec(),
        headers: vec![],
        envelope: vec![4],
        write_key,
    };
    let claim = ledger.claim(id, Act::Edit, "ann", 1).unwrap();
    ledger.finish(&claim, &edit(None), 2).unwrap();
    let message = ledger.failed_message(id).unwrap().unwrap();
    assert_eq!(message.state, FailedState::Parked);
    assert_eq!(message.record.body, b"mended");
    assert_eq!(message.record.write_key, key(1));
    assert!(message.record.headers.is_empty());
    assert_eq!(message.record.history, record(1).history);
    let claim = ledger.claim(id, Act::Edit, "ann", 3).unwrap();
    ledger.finish(&claim, &edit(Some(key(9))), 4).unwrap();
    assert!(ledger.failed_by_key(key(1)).unwrap().is_empty());
    assert_eq!(ledger.failed_by_key(key(9)).unwrap()[0].id, id);
}

#[test]
fn filters_choose_and_pages_follow() {
    let (_dir, ledger) = ledger();
    for n in 1..=10 {
        let mut r = record(n);
        if n % 2 == 0 {
            r.send = "audit".into();
            r.diagnosis.code = "50%_off".into();
            r.diagnosis.message = "100% wrong_".into();
            r.diagnosis.applied = Applied::Maybe;
            r.diagnosis.reason = ParkReason::MayHaveLanded;
        }
        ledger.park(&r).unwrap();
    }
    let count = |change: &dyn Fn(&mut FailedFilter)| {
        let mut filter = FailedFilter::default();
        change(&mut filter);
        let count = ledger.failed_count(&filter).unwrap();
        assert_eq!(ledger.failed(&filter).unwrap().len() as u64, count);
        assert_eq!(ledger.failed_ids(&filter).unwrap().len() as u64, count);
        count
    };
    assert_eq!(count(&|_| {}), 10);
    assert_eq!(count(&|f| f.send = Some("audit".into())), 5);
    assert_eq!(count(&|f| f.adapter = Some("other".into())), 0);
    assert_eq!(count(&|f| f.applied = Some(Applied::Maybe)), 5);
    assert_eq!(count(&|f| f.reason = Some(ParkReason::Refused)), 5);
    assert_eq!(count(&|f| f.code = Some("constraint".into())), 5);
    assert_eq!(count(&|f| f.text = Some("0% wrong_".into())), 5);
    assert_eq!(
        count(&|f| f.text = Some("1_0%".into())),
        0,
        "taken literally"
    );
    assert_eq!(
        count(&|f| f.text = Some("'; DROP TABLE failed; --".into())),
        0
    );
    assert_eq!(count(&|f| f.message_id = Some("m-3".into())), 1);
    assert_eq!(count(&|f| f.write_key = Some(key(3))), 1);
    assert_eq!(count(&|f| f.since_unix_ms = Some(10_009)), 2);
    assert_eq!(count(&|f| f.until_unix_ms = Some(10_009)), 8);
    assert_eq!(
        count(&|f| f.states = vec![FailedState::Parked, FailedState::Skipped]),
        10
    );
    assert_eq!(count(&|f| f.states = vec![FailedState::Skipped]), 0);
    let causes = ledger.causes(true).unwrap();
    assert_eq!(causes.len(), 2);
    assert_eq!(count(&|f| f.cause = Some(causes[0].id)), 5);
    let mut filter = FailedFilter {
        limit: 4,
        ..FailedFilter::default()
    };
    let mut pages = Vec::new();
    loop {
        let page = ledger.failed(&filter).unwrap();
        let Some(last) = page.last() else { break };
        filter.after_id = Some(last.id);
        pages.push(page.len());
    }
    assert_eq!(pages, [4, 4, 2]);
}

#[test]
fn jobs_keep_their_selection_and_progress() {
    let (dir, ledger) = ledger();
    let id = ledger
        .job_create(&NewJob {
            kind: "send_again".into(),
            who: "ann".into(),
            selection: vec![3, 1, 2],
            settings: serde_json::json!({"rate_per_s": 10}),
            at_unix_ms: 5,
        })
        .unwrap();
    assert_eq!(
        ledger
            .job_switch(id, &[JobState::Running], JobState::Paused, 6)
            .unwrap(),
        JobState::Paused
    );
    // Progress that was under way when somebody paused does not undo the pause.
    assert_eq!(ledger.job_progress(id, 2, 1, 6).unwrap(), JobState::Paused);
    ledger.job_failed(id, 2, "the lane is full", 6).unwrap();
    drop(ledger);
    let ledger = Ledger::open(&file(&dir), options()).unwrap();
    let jobs = ledger.jobs(0).unwrap();
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].selection, [3, 1, 2]);
    assert_eq!(
        (jobs[0].done, jobs[0].failed, jobs[0].state),
        (2, 1, JobState::Paused)
    );
    assert!(ledger.job_progress(99, 0, 0, 7).is_err());
}

#[test]
fn a_file_of_the_first_schema_is_migrated_and_read() {
    let dir = tempfile::TempDir::new().unwrap();
    let db = rusqlite::Connection::open(file(&dir)).unwrap();
    db.execute_batch(include_str!("../src/schema_1.sql"))
        .unwrap();
    db.execute_batch(
        r#"PRAGMA application_id = 1129206604; PRAGMA user_version = 1;
        INSERT INTO causes VALUES (1, 'http_422', 'bus', 'a', 'r', 's', 1, 1, 5, 5, 'no');
        INSERT INTO failed (id, write_key, adapter, route, send, seq, state, cause, connection, operation,
            reason, code, message, applied, attempts, replayable, parked_unix_ms, changed_unix_ms,
            dependents, record, body, envelope)
        VALUES (1, zeroblob(16), 'a', 'r', 's', 3, 'parked', 1, 'bus', 'nats.publish', 'refused',
            'http_422', 'no', 'no', 1, 1, 5, 5, 1,
            '{"source":"http.receive","source_position":null,"event_type":null,"schema_version":null,"tenant":null,"routing_key":null,"order":18446744073709551614,"content_type":null,"headers":[],"history":{"accepted_unix_ms":1,"first_attempt_unix_ms":null,"last_attempt_unix_ms":null,"attempts":1,"host_version":"0.1.0","plugin_version":"","trace_id":null},"class":"refused","provider":"x","response":null,"timed_out":false}',
            x'0001', x'02');
        INSERT INTO dependents VALUES (1, 0, 'receipt', zeroblob(16), x'03', x'04');"#,
    )
    .unwrap();
    drop(db);
    let ledger = Ledger::open(&file(&dir), options()).unwrap();
    let message = ledger.failed_message(1).unwrap().unwrap();
    assert_eq!(message.record.order, u64::MAX - 1);
    assert_eq!(message.record.dependents[0].parent, None);
    assert_eq!(ledger.outages(None, 0).unwrap(), []);
    assert!(ledger.attempted().unwrap().is_empty());
}

#[test]
fn a_message_that_fails_is_counted_over_openings_until_it_ends_or_is_forgotten() {
    let (dir, ledger) = ledger();
    let message = |n: u64| FailedMessageId {
        id: key(n),
        adapter: "orders".into(),
    };
    let counts = |ledger: &Ledger, of: &[u64], at| {
        let messages: Vec<FailedMessageId> = of.iter().map(|n| message(*n)).collect();
        let counted = ledger.attempts_failed(&messages, at).unwrap();
        counted
            .iter()
            .map(|c| (c.attempts, c.first_unix_ms, c.last_unix_ms))
            .collect::<Vec<_>>()
    };
    assert_eq!(counts(&ledger, &[1, 2], 5), [(1, 5, 5), (1, 5, 5)]);
    // Twice in one call is twice.
    assert_eq!(counts(&ledger, &[1, 1], 6), [(2, 5, 6), (3, 5, 6)]);
    drop(ledger);
    let ledger = Ledger::open(&file(&dir), options()).unwrap();
    assert_eq!(ledger.attempted().unwrap(), [key(1), key(2)]);
    assert_eq!(counts(&ledger, &[1], 9), [(4, 5, 9)]);
    assert_eq!(ledger.delete_attempts_before(6, 10).unwrap(), [key(2)]);
    assert!(ledger.delete_attempts_before(9, 10).unwrap().is_empty());
    ledger.attempts_ended(&[key(1), key(7)]).unwrap();
    assert!(ledger.attempted().unwrap().is_empty());
    assert_eq!(counts(&ledger, &[1], 10), [(1, 10, 10)], "it begins anew");
}

#[test]
fn of_a_batch_of_claims_each_has_its_own_answer() {
    let (_dir, ledger) = ledger();
    let ids: Vec<i64> = (1..=3)
        .map(|n| ledger.park(&record(n)).unwrap().id())
        .collect();
    ledger.claim(ids[1], Act::Skip, "ann", 1).unwrap();
    let mut wanted = ids.clone();
    wanted.push(99);
    // The same one twice in a batch is won once.
    wanted.push(ids[0]);
    let claims = ledger.claim_all(&wanted, Act::SendAgain, "bob", 2).unwrap();
    assert!(claims[0].is_ok() && claims[2].is_ok());
    assert!(matches!(&claims[1], Err(Error::NotClaimable { by: Some(by), .. }) if by == "ann"));
    assert!(matches!(claims[3], Err(Error::NotFound(_))));
    assert!(matches!(claims[4], Err(Error::NotClaimable { .. })));
    let ends: Vec<_> = claims
        .into_iter()
        .flatten()
        .map(|claim| (claim, Done::SentAgain, None))
        .collect();
    assert!(!ledger.was_done_by(ids[0], "bob").unwrap());
    ledger.finish_all(&ends, 3).unwrap();
    assert!(ledger.was_done_by(ids[0], "bob").unwrap());
    assert!(!ledger.was_done_by(ids[1], "bob").unwrap());
    assert_eq!(ledger.causes(true).unwrap()[0].waiting, 1);
}

#[test]
fn dependents_that_are_split_off_wait_by_themselves() {
    let (_dir, ledger) = ledger();
    let mut parent = record(1);
    parent.dependents = vec![Dependent {
        send: "receipt".into(),
        write_key: key(8),
        ..Dependent::default()
    }];
    let id = ledger.park(&parent).unwrap().id();
    let claim = ledger.claim(id, Act::Edit, "ann", 1).unwrap();
    let child = NewFailed {
        write_key: key(8),
        send: "receipt".into(),
        seq: 0,
        ..record(8)
    };
    let done = Done::Edited {
        body: b"new".to_vec(),
        headers: Vec::new(),
        envelope: vec![1],
        write_key: None,
    };
    ledger
        .finish_all(&[(claim, done, Some(vec![child]))], 2)
        .unwrap();
    let edited = ledger.failed_message(id).unwrap().unwrap();
    assert_eq!(edited.record.body, b"new");
    assert_eq!(edited.record.dependents, []);
    let split = ledger.failed_by_key(key(8)).unwrap();
    assert_eq!(split.len(), 1);
    assert_eq!(split[0].state, FailedState::Parked);
}

#[test]
fn a_pause_stays_with_who_made_it_until_it_is_taken_back() {
    let (dir, ledger) = ledger();
    assert!(ledger.pause("adapter payments", "ann", 5).unwrap());
    assert!(!ledger.pause("adapter payments", "bob", 6).unwrap());
    drop(ledger);
    let ledger = Ledger::open(&file(&dir), options()).unwrap();
    let paused = ledger.paused().unwrap();
    assert_eq!((paused.len(), paused[0].who.as_str()), (1, "ann"));
    assert!(ledger.resume("adapter payments").unwrap());
    assert!(!ledger.resume("adapter payments").unwrap());
}

#[test]
fn an_outage_is_open_until_it_is_settled() {
    let (_dir, ledger) = ledger();
    let mut report = OutageReport {
        code: "refused".into(),
        ..OutageReport::default()
    };
    let id = ledger.outage_began("bus", None, 5, &report).unwrap();
    let mut outage = ledger.open_outages().unwrap().remove(0);
    assert_eq!((outage.id, outage.to_unix_ms), (id, None));
    report.held = 7;
    outage.report = report;
    outage.to_unix_ms = Some(9);
    outage.settled_unix_ms = Some(11);
    ledger.outage_update(&outage).unwrap();
    assert_eq!(ledger.open_outages().unwrap(), []);
    assert_eq!(ledger.outages(Some("bus"), 10).unwrap(), [outage]);
    assert_eq!(ledger.outages(Some("other"), 10).unwrap(), []);
}
