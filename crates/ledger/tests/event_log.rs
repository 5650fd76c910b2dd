//! The event log, its episodes and the sink before it.

mod common;
use common::*;
use consign_ledger::*;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

fn event(code: Code, at: i64) -> Event {
    Event::new(code, at)
}

#[test]
fn events_are_read_back_with_their_level_and_fields() {
    let (_dir, ledger) = ledger();
    let e = event(Code::Parked, 5)
        .adapter("payments")
        .route("completed")
        .send("billing")
        .connection("ledger")
        .message("write 7 was parked")
        .field("failed_id", 7)
        .field("nested", serde_json::json!({"a": [1, null]}));
    let id = ledger.append(std::slice::from_ref(&e)).unwrap();
    let stored = ledger.events(&EventFilter::default()).unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].event, e);
    assert_eq!(
        (stored[0].id, stored[0].level, stored[0].times),
        (id, Severity::Error, 1)
    );
    let json = serde_json::to_value(&stored[0]).unwrap();
    assert_eq!(json["code"], "parked");
    assert_eq!(json["level"], "error");
    assert_eq!(json["fields"]["failed_id"], 7);
    let back: StoredEvent = serde_json::from_value(json).unwrap();
    assert_eq!(back, stored[0]);
}

#[test]
fn events_are_filtered_and_followed() {
    let (_dir, ledger) = ledger();
    for n in 0..10 {
        let code = if n % 2 == 0 {
            Code::GateClosed
        } else {
            Code::GateOpened
        };
        let e = event(code, 100 + n)
            .connection(if n < 5 { "bus" } else { "ledger" })
            .adapter("a")
            .field("error", format!("refused {n}"));
        ledger.append(&[e]).unwrap();
    }
    let ask = |change: &dyn Fn(&mut EventFilter)| {
        let mut filter = EventFilter::default();
        change(&mut filter);
        ledger.events(&filter).unwrap()
    };
    assert_eq!(ask(&|f| f.codes = vec![Code::GateClosed]).len(), 5);
    assert_eq!(
        ask(&|f| f.codes = vec![Code::GateClosed, Code::GateOpened]).len(),
        10
    );
    assert_eq!(ask(&|f| f.min_level = Some(Severity::Warn)).len(), 5);
    assert_eq!(ask(&|f| f.min_level = Some(Severity::Error)).len(), 0);
    assert_eq!(ask(&|f| f.connection = Some("bus".into())).len(), 5);
    assert_eq!(ask(&|f| f.adapter = Some("b".into())).len(), 0);
    assert_eq!(ask(&|f| f.since_unix_ms = Some(108)).len(), 2);
    assert_eq!(ask(&|f| f.until_unix_ms = Some(108)).len(), 8);
    assert_eq!(ask(&|f| f.text = Some("refused 3".into())).len(), 1);
    assert_eq!(ask(&|f| f.text = Some("REFUSED 3".into())).len(), 1);
    assert_eq!(ask(&|f| f.text = Some("refused%3".into())).len(), 0);
    assert_eq!(ask(&|f| f.text = Some("x".repeat(200_000))).len(), 0);
    let newest = ask(&|f| {
        f.newest_first = true;
        f.limit = 3;
    });
    assert_eq!(
        newest
            .iter()
            .map(|e| e.event.at_unix_ms)
            .collect::<Vec<_>>(),
        [109, 108, 107]
    );
    let last = ledger.last_event_id().unwrap();
    assert_eq!(last, newest[0].id);
    assert!(ask(&|f| f.after_id = Some(last)).is_empty());
    ledger.append(&[event(Code::HostStopped, 200)]).unwrap();
    assert_eq!(ask(&|f| f.after_id = Some(last)).len(), 1);
}

#[test]
fn ids_are_never_used_again_after_retention() {
    let (dir, ledger) = ledger();
    let last = ledger
        .append(&[event(Code::HostStarted, 1), event(Code::HostStopped, 2)])
        .unwrap();
    assert_eq!(ledger.delete_events_before(100, 1_000).unwrap(), 2);
    drop(ledger);
    let ledger = Ledger::open(&file(&dir), options()).unwrap();
    assert!(ledger.append(&[event(Code::HostStarted, 3)]).unwrap() > last);
}

#[test]
fn retention_keeps_what_is_not_over() {
    let (_dir, ledger) = ledger();
    ledger
        .episode_open("payments", &event(Code::SourceBlocked, 1))
        .unwrap();
    ledger.append(&[event(Code::HostStarted, 2)]).unwrap();
    assert_eq!(ledger.delete_events_before(100, 1_000).unwrap(), 1);
    assert_eq!(
        ledger.events(&EventFilter::default()).unwrap()[0]
            .event
            .code,
        Code::SourceBlocked
    );
}

#[test]
fn retention_deletes_the_oldest_first_and_a_bounded_number() {
    let (_dir, ledger) = ledger();
    ledger
        .episode_open("payments", &event(Code::SourceBlocked, 1))
        .unwrap();
    let events: Vec<Event> = (2..12).map(|at| event(Code::HostStarted, at)).collect();
    ledger.append(&events).unwrap();
    assert_eq!(ledger.delete_events_before(100, 3).unwrap(), 3);
    assert_eq!(ledger.delete_events_beyond(6, 1_000).unwrap(), 2);
    assert_eq!(ledger.delete_events_beyond(6, 1_000).unwrap(), 0);
    let kept = ledger.events(&EventFilter::default()).unwrap();
    let times: Vec<i64> = kept.iter().map(|e| e.event.at_unix_ms).collect();
    assert_eq!(times, [1, 7, 8, 9, 10, 11]);
}

#[test]
fn a_page_long_answer_is_cut_and_a_flood_of_fields_left_out() {
    let (_dir, ledger) = ledger();
    let e = event(Code::Refused, 1)
        .message("é".repeat(10_000))
        .field("big", "x".repeat(100_000));
    ledger.append(&[e]).unwrap();
    let stored = &ledger.events(&EventFilter::default()).unwrap()[0];
    assert!(stored.event.message.len() < 5_000 && stored.event.message.ends_with(" …"));
    assert!(stored.event.fields.contains_key("omitted"));
}

#[test]
fn an_episode_is_one_event_with_its_end_and_count() {
    let (dir, ledger) = ledger();
    let opening = |at| event(Code::SourceBlocked, at).adapter("payments");
    assert!(ledger.episode_open("payments", &opening(10)).unwrap());
    assert!(!ledger.episode_open("payments", &opening(11)).unwrap());
    assert!(ledger.episode_open("orders", &opening(12)).unwrap());
    drop(ledger);
    let ledger = Ledger::open(&file(&dir), options()).unwrap();
    assert!(!ledger.episode_open("payments", &opening(13)).unwrap());
    assert_eq!(ledger.open_episodes().unwrap().len(), 2);
    let closing = event(Code::SourceUnblocked, 50).adapter("payments");
    let over = ledger
        .episode_close("payments", Code::SourceBlocked, 4, Some(&closing), 50)
        .unwrap()
        .unwrap();
    assert_eq!((over.opened_unix_ms, over.times), (10, 7));
    let none = ledger
        .episode_close("payments", Code::SourceBlocked, 0, Some(&closing), 60)
        .unwrap();
    assert_eq!(none, None);
    let events = ledger.events(&EventFilter::default()).unwrap();
    assert_eq!(events.len(), 3, "two openings, one end");
    assert_eq!((events[0].times, events[0].ended_unix_ms), (7, Some(50)));
    assert_eq!(events[2].event.fields["lasted_ms"], 40);
    assert_eq!(events[2].event.fields["times"], 7);
    assert_eq!(events[2].event.fields["opened_by"], events[0].id);
}

#[test]
fn the_sink_writes_in_order_and_tells_followers() {
    let (_dir, ledger) = ledger();
    let told = Arc::new(AtomicI64::new(0));
    let seen = Arc::clone(&told);
    let sink = EventSink::start(
        ledger.clone(),
        SinkOptions {
            on_written: Some(Box::new(move |id| {
                seen.fetch_max(id, Ordering::Relaxed);
            })),
            ..SinkOptions::default()
        },
    )
    .unwrap();
    for n in 0..3_000 {
        sink.emit(event(Code::LateAnswer, n));
    }
    sink.flush().unwrap();
    let events = ledger
        .events(&EventFilter {
            limit: 10_000,
            ..EventFilter::default()
        })
        .unwrap();
    let times: Vec<i64> = events.iter().map(|e| e.event.at_unix_ms).collect();
    assert_eq!(times, (0..3_000).collect::<Vec<_>>());
    sink.shutdown().unwrap();
    assert_eq!(
        told.load(Ordering::Relaxed),
        ledger.last_event_id().unwrap()
    );
    assert_eq!(sink.stats().written, 3_000);
}

#[test]
fn the_sink_writes_one_event_for_an_episode() {
    let (dir, ledger) = ledger();
    let sink = EventSink::start(ledger.clone(), SinkOptions::default()).unwrap();
    let opened: Vec<bool> = (0..100)
        .map(|n| sink.open("bus", event(Code::GateClosed, n)))
        .collect();
    assert_eq!(opened.iter().filter(|&&o| o).count(), 1);
    assert!(sink.is_open("bus", Code::GateClosed));
    sink.shutdown().unwrap();
    drop((sink, ledger));

    let ledger = Ledger::open(&file(&dir), options()).unwrap();
    let sink = EventSink::start(ledger.clone(), SinkOptions::default()).unwrap();
    assert!(
        !sink.open("bus", event(Code::GateClosed, 200)),
        "still the same outage"
    );
    assert!(sink.close(
        "bus",
        Code::GateClosed,
        Some(event(Code::GateOpened, 300)),
        300
    ));
    assert!(!sink.close(
        "bus",
        Code::GateClosed,
        Some(event(Code::GateOpened, 301)),
        301
    ));
    assert!(sink.open("bus", event(Code::GateClosed, 400)), "a new one");
    sink.flush().unwrap();
    let events = ledger.events(&EventFilter::default()).unwrap();
    let codes: Vec<&str> = events.iter().map(|e| e.event.code.name()).collect();
    assert_eq!(codes, ["gate_closed", "gate_opened", "gate_closed"]);
    assert_eq!(events[1].event.fields["lasted_ms"], 300);
}

#[test]
fn a_full_queue_never_blocks_and_says_what_it_dropped() {
    let (dir, ledger) = ledger();
    let sink = EventSink::start(
        ledger.clone(),
        SinkOptions {
            capacity: 100,
            ..SinkOptions::default()
        },
    )
    .unwrap();
    // Somebody else holds the write lock, so the thread cannot write.
    let blocker = rusqlite::Connection::open(file(&dir)).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let started = Instant::now();
    for n in 0..10_000 {
        sink.emit(event(Code::LateAnswer, n));
    }
    for n in 0..10_000 {
        sink.emit(event(Code::Parked, n));
    }
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    let stats = sink.stats();
    assert!(stats.queued <= 100, "{stats:?}");
    assert_eq!(stats.dropped, 20_000 - stats.queued - stats.written);
    blocker.execute_batch("ROLLBACK").unwrap();
    sink.flush().unwrap();
    sink.shutdown().unwrap();
    let count = |code| {
        ledger
            .events(&EventFilter {
                codes: vec![code],
                limit: 30_000,
                ..EventFilter::default()
            })
            .unwrap()
    };
    let dropped = count(Code::EventsDropped);
    assert_eq!(dropped.len(), 1);
    let written = (count(Code::LateAnswer).len() + count(Code::Parked).len()) as u64;
    assert!(
        !count(Code::Parked).is_empty(),
        "errors have room that mild events have not"
    );
    let fields = &dropped[0].event.fields;
    assert_eq!(fields["total"].as_u64().unwrap() + written, 20_000);
    assert_eq!(
        fields["error"].as_u64().unwrap() + fields["info"].as_u64().unwrap(),
        fields["total"].as_u64().unwrap()
    );
}

#[test]
fn what_comes_after_shutdown_is_dropped_and_not_lost_silently() {
    let (_dir, ledger) = ledger();
    let sink = EventSink::start(ledger, SinkOptions::default()).unwrap();
    sink.emit(event(Code::HostStopped, 1));
    sink.shutdown().unwrap();
    sink.emit(event(Code::HostStopped, 2));
    assert_eq!((sink.stats().written, sink.stats().dropped), (1, 1));
    sink.shutdown().unwrap();
}

#[test]
fn a_sink_that_is_let_go_writes_what_waits_and_ends() {
    let (_dir, ledger) = ledger();
    let sink = EventSink::start(ledger.clone(), SinkOptions::default()).unwrap();
    let other = sink.clone();
    sink.emit(event(Code::HostStarted, 1));
    drop(sink);
    other.emit(event(Code::HostStopped, 2));
    drop(other);
    let started = Instant::now();
    while ledger.events(&EventFilter::default()).unwrap().len() < 2 {
        assert!(started.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_end_after_shutdown_changes_nothing() {
    let (_dir, ledger) = ledger();
    let sink = EventSink::start(ledger.clone(), SinkOptions::default()).unwrap();
    sink.open("bus", event(Code::GateClosed, 1));
    sink.shutdown().unwrap();
    assert!(sink.close("bus", Code::GateClosed, None, 2));
    sink.shutdown().unwrap();
    assert_eq!(
        ledger.open_episodes().unwrap().len(),
        1,
        "it is open when the host starts again"
    );
}
