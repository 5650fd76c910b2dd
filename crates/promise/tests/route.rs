//! Routes, requirements, and what a person and a program read.

mod common;
use common::*;
use consign_manifest::*;
use consign_promise::*;

fn levels(
    send: &str,
    d: &SinkDeclaration,
    source: &SourceFacts,
    require: Option<Level>,
) -> SendLevels {
    let p = resolve(d, &as_declared(d), &SendFacts::default());
    SendLevels::new(send, "x.write", source, p, None, require)
}

#[test]
fn a_route_is_as_good_as_its_weakest_send() {
    let r = route(vec![
        levels("billing", &sqlite_write(), &stable(), None),
        levels("receipt", &second_copy(), &stable(), None).after("billing"),
    ]);
    assert_eq!(r.level, Some(Level::AtLeastOnce));
    assert_eq!(r.worst.as_deref(), Some("receipt"));
    assert_eq!(r.line(), "at least once (by its weakest send, receipt)");
    assert_eq!(r.sends[1].after.as_deref(), Some("billing"));
}

#[test]
fn a_route_without_sends_promises_nothing() {
    let r = route(vec![]);
    assert_eq!(r.level, None);
    assert_eq!(r.line(), "nothing leaves: the message is acknowledged");
}

#[test]
fn a_requirement_names_the_level_that_falls_short() {
    let eo = Some(Level::EffectivelyOnce);
    let met = levels("a", &sqlite_write(), &stable(), eo);
    assert_eq!(met.shortfall, None);
    assert_eq!(met.faults().count(), 0);

    let s = levels("a", &second_copy(), &stable(), eo);
    assert_eq!(s.shortfall.as_ref().unwrap().at, "declared");
    assert_eq!(
        s.faults().collect::<Vec<_>>(),
        ["requires effectively once, but the operation can be at least once at best"]
    );

    let s = levels("a", &sqlite_write(), &nameless(), eo);
    assert_eq!(s.shortfall.as_ref().unwrap().at, "end_to_end");
    assert_eq!(
        s.shortfall.unwrap().to_string(),
        "requires effectively once, but from this source it is at least once at best: \
         the source does not name its messages, so one that is handed over again has another key"
    );

    let d = localfile_write();
    let facts = SendFacts {
        order: Order::None,
        ..SendFacts::default()
    };
    let p = resolve(&d, &as_declared(&d), &facts);
    let s = SendLevels::new("a", "x", &stable(), p, None, eo);
    assert_eq!(s.shortfall.unwrap().at, "resolved");

    let d = sqlite_write();
    let p = resolve(&d, &as_declared(&d), &SendFacts::default());
    let found = Inspection::contradicted("no unique index");
    let s = SendLevels::new("a", "x", &stable(), p, Some(&found), eo);
    assert_eq!(
        s.shortfall.unwrap().to_string(),
        "requires effectively once, but the destination as it stands is at least once at best: no unique index"
    );
}

#[test]
fn a_weaker_requirement_is_met_by_a_stronger_promise() {
    for required in [Level::AtLeastOnce, Level::EffectivelyOnce] {
        assert_eq!(
            levels("a", &sqlite_write(), &stable(), Some(required)).shortfall,
            None
        );
    }
    let s = levels("a", &unconfirmed(), &stable(), Some(Level::AtLeastOnce));
    assert!(s.shortfall.is_some());
}

#[test]
fn an_impossible_send_is_one_fault_and_not_two() {
    let s = levels("a", &at_most_once(), &stable(), None);
    assert_eq!(s.faults().count(), 1);
}

#[test]
fn what_a_person_reads() {
    let d = nats_publish();
    let mut answer = as_declared(&d);
    answer.reason = "`jetstream: true`".into();
    let p = resolve(&d, &answer, &SendFacts::default());
    let mut found = Inspection::verified("stream `receipts` keeps message ids");
    found.window = Some(Window::DurationMs(120_000));
    let nats = SendLevels::new(
        "receipt",
        "nats.publish",
        &with_client_key(),
        p,
        Some(&found),
        None,
    )
    .after("billing");
    let d = localfile_write();
    let facts = SendFacts {
        order: Order::None,
        drops_when_full: true,
        ..SendFacts::default()
    };
    let mut answer = as_declared(&d);
    answer.reason = "`mode: file`".into();
    let p = resolve(&d, &answer, &facts);
    let file = SendLevels::new("copy", "localfile.write.local", &stable(), p, None, None);
    let text = nats
        .lines()
        .into_iter()
        .chain(file.lines())
        .collect::<Vec<_>>()
        .join("\n");
    insta::assert_snapshot!(text);
}

#[test]
fn what_a_program_reads() {
    let s = levels(
        "billing",
        &sqlite_write(),
        &stable(),
        Some(Level::EffectivelyOnce),
    );
    insta::assert_json_snapshot!(route(vec![s]));
}
