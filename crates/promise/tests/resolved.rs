//! Level two: clamping a plugin's answer, and the host's own rules, one test each.

mod common;
use common::*;
use consign_manifest::*;
use consign_promise::*;

#[test]
fn a_send_that_meets_its_condition_gets_what_is_declared() {
    let d = sqlite_write();
    let p = resolve(&d, &as_declared(&d), &SendFacts::default());
    assert_eq!(p.level, Level::EffectivelyOnce);
    assert_eq!(p.line(), "effectively once, by the write key, no window");
    assert!(p.narrowed.is_empty() && p.overclaims.is_empty() && p.faults.is_empty());
}

#[test]
fn an_unmet_condition_is_at_least_once_with_the_plugins_reason() {
    let d = sqlite_write();
    let mut answer = as_declared(&d);
    answer.promise = Promise::AtLeastOnce;
    answer.repeat = RepeatKind::SecondCopy;
    answer.reason = "`write_key_column` is not set.".into();
    let p = resolve(&d, &answer, &SendFacts::default());
    assert_eq!(p.level, Level::AtLeastOnce);
    assert_eq!(p.declared, Level::EffectivelyOnce);
    assert_eq!(
        p.reasons().collect::<Vec<_>>(),
        ["`write_key_column` is not set"]
    );
    assert_eq!(p.caveats, ["at most one extra copy for each interruption"]);
}

#[test]
fn a_plugin_that_promises_more_is_cut_back_and_reported() {
    let d = second_copy();
    let mut answer = as_declared(&d);
    answer.promise = Promise::EffectivelyOnce;
    answer.repeat = RepeatKind::WriteKey;
    let p = resolve(&d, &answer, &SendFacts::default());
    assert_eq!(
        (p.level, p.repeat),
        (Level::AtLeastOnce, RepeatKind::SecondCopy)
    );
    assert_eq!(p.overclaims.len(), 2, "{:?}", p.overclaims);
    assert!(p.overclaims[0].contains("declares at least once and answers effectively once"));
}

#[test]
fn a_better_mechanism_than_declared_is_cut_back_to_the_weaker_one() {
    let d = localfile_write();
    let mut answer = as_declared(&d);
    answer.repeat = RepeatKind::WriteKey;
    let facts = SendFacts {
        order: Order::None,
        ..SendFacts::default()
    };
    let p = resolve(&d, &answer, &facts);
    assert_eq!(p.overclaims.len(), 1);
    assert_eq!(
        p.level,
        Level::AtLeastOnce,
        "order must count as for the same target"
    );
}

#[test]
fn an_effectively_once_answer_without_a_drop_is_a_fault_of_the_plugin() {
    let d = sqlite_write();
    let mut answer = as_declared(&d);
    answer.repeat = RepeatKind::SecondCopy;
    let p = resolve(&d, &answer, &SendFacts::default());
    assert_eq!(p.level, Level::AtLeastOnce);
    assert_eq!(p.overclaims.len(), 1);
}

#[test]
fn a_longer_window_than_declared_is_cut_back() {
    let mut d = sqlite_write();
    d.repeat.window = Window::DurationMs(300_000);
    let mut answer = as_declared(&d);
    for wide in [Window::DurationMs(600_000), Window::None] {
        answer.window = wide;
        let p = resolve(&d, &answer, &SendFacts::default());
        assert_eq!(p.window, Window::DurationMs(300_000));
        assert_eq!(p.overclaims.len(), 1);
    }
    answer.window = Window::DurationMs(60_000);
    let p = resolve(&d, &answer, &SendFacts::default());
    assert_eq!(p.window, Window::DurationMs(60_000));
    assert!(p.overclaims.is_empty());
}

#[test]
fn never_acknowledged_is_at_least_once_not_confirmed() {
    let d = unconfirmed();
    let mut answer = as_declared(&d);
    answer.unconfirmed = false;
    let p = resolve(&d, &answer, &SendFacts::default());
    assert_eq!(
        p.level,
        Level::AtLeastOnceUnconfirmed,
        "the declaration is the ceiling"
    );
    let d = nats_publish();
    let mut answer = as_declared(&d);
    (answer.promise, answer.unconfirmed, answer.repeat) =
        (Promise::AtLeastOnce, true, RepeatKind::SecondCopy);
    let p = resolve(&d, &answer, &SendFacts::default());
    assert_eq!(p.level, Level::AtLeastOnceUnconfirmed, "core NATS");
    assert!(p.overclaims.is_empty());
}

#[test]
fn a_token_for_a_request_needs_sealed_batches() {
    let mut d = sqlite_write();
    d.sealed = true;
    let answer = as_declared(&d);
    let p = resolve(&d, &answer, &SendFacts::default());
    assert_eq!(p.level, Level::AtLeastOnce);
    assert!(p.narrowed[0].contains("not sealed"), "{:?}", p.narrowed);
    let sealed = SendFacts {
        sealed_batches: true,
        ..SendFacts::default()
    };
    assert_eq!(resolve(&d, &answer, &sealed).level, Level::EffectivelyOnce);
}

#[test]
fn the_same_target_needs_an_order_that_serialises_it() {
    let d = localfile_write();
    let answer = as_declared(&d);
    let with = |order| {
        resolve(
            &d,
            &answer,
            &SendFacts {
                order,
                ..SendFacts::default()
            },
        )
    };
    assert_eq!(with(Order::Strict).level, Level::EffectivelyOnce);
    assert_eq!(
        with(Order::ByKey {
            serialises_target: true
        })
        .level,
        Level::EffectivelyOnce
    );
    for order in [
        Order::None,
        Order::ByKey {
            serialises_target: false,
        },
    ] {
        let p = with(order);
        assert_eq!(p.level, Level::AtLeastOnce);
        assert!(p.narrowed[0].starts_with("an older write may replace a newer"));
    }
}

#[test]
fn a_drop_by_key_needs_no_order() {
    let d = sqlite_write();
    let facts = SendFacts {
        order: Order::None,
        ..SendFacts::default()
    };
    assert_eq!(
        resolve(&d, &as_declared(&d), &facts).level,
        Level::EffectivelyOnce
    );
}

#[test]
fn a_target_that_changes_at_each_rendering_is_at_least_once() {
    let d = localfile_write();
    let mut answer = as_declared(&d);
    answer.target_fields = vec!["name".into()];
    let facts = |field: &str| SendFacts {
        nondeterministic_target_fields: vec![field.into()],
        ..SendFacts::default()
    };
    let p = resolve(&d, &answer, &facts("name"));
    assert_eq!(p.level, Level::AtLeastOnce);
    assert!(p.narrowed[0].starts_with("`name` is different each time"));
    let p = resolve(&d, &answer, &facts("comment"));
    assert_eq!(p.level, Level::EffectivelyOnce, "no target field");
}

#[test]
fn at_most_once_cannot_be_buffered() {
    let d = at_most_once();
    let p = resolve(&d, &as_declared(&d), &SendFacts::default());
    assert_eq!(p.faults.len(), 1);
    let direct = SendFacts {
        delivery: DeliveryMode::Direct,
        ..SendFacts::default()
    };
    let p = resolve(&d, &as_declared(&d), &direct);
    assert!(p.faults.is_empty());
    assert_eq!(p.level, Level::AtMostOnce);
}

#[test]
fn what_your_own_rules_drop_is_said() {
    let d = sqlite_write();
    let facts = SendFacts {
        drops_when_full: true,
        expires_after_ms: Some(3_600_000),
        may_skip: true,
        ..SendFacts::default()
    };
    let p = resolve(&d, &as_declared(&d), &facts);
    assert_eq!(p.level, Level::EffectivelyOnce);
    assert_eq!(
        p.caveats,
        [
            "unless your rule drops it: `when_full: drop`, `expires_after: 1h`, an error handler that skips"
        ]
    );
}

#[test]
fn retrying_what_is_ambiguous_may_arrive_several_times() {
    let d = second_copy();
    let facts = SendFacts {
        on_ambiguous: OnAmbiguous::Retry,
        ..SendFacts::default()
    };
    let p = resolve(&d, &as_declared(&d), &facts);
    assert_eq!(
        p.caveats,
        ["may arrive several times: `on_ambiguous: retry`"]
    );
    let d = sqlite_write();
    let p = resolve(&d, &as_declared(&d), &facts);
    assert!(p.caveats.is_empty(), "a dropped repeat arrives once");
}

#[test]
fn a_passed_window_is_said_for_both_policies() {
    let d = nats_publish();
    let p = resolve(&d, &as_declared(&d), &SendFacts::default());
    assert!(p.caveats[0].contains("is sent again"));
    let facts = SendFacts {
        parks_past_window: true,
        ..SendFacts::default()
    };
    let p = resolve(&d, &as_declared(&d), &facts);
    assert!(p.caveats[0].ends_with("is parked"));
}

#[test]
fn inspections_narrow_and_never_widen() {
    let d = sqlite_write();
    let p = resolve(&d, &as_declared(&d), &SendFacts::default());
    let none = inspected(&p, None);
    assert_eq!((none.level, none.verdict), (Level::EffectivelyOnce, None));

    let found = Inspection::verified("index `u` covers only `write_key`");
    let i = inspected(&p, Some(&found));
    assert_eq!((i.level, i.lowered), (Level::EffectivelyOnce, false));

    let found = Inspection::contradicted("no unique index covers only `write_key`");
    let i = inspected(&p, Some(&found));
    assert_eq!((i.level, i.lowered), (Level::AtLeastOnce, true));
    assert_eq!(
        i.line(),
        "at least once (contradicted: no unique index covers only `write_key`)"
    );

    let found = Inspection::not_inspected("the server cannot be asked");
    let i = inspected(&p, Some(&found));
    assert_eq!((i.level, i.lowered), (Level::EffectivelyOnce, false));

    let d = second_copy();
    let p = resolve(&d, &as_declared(&d), &SendFacts::default());
    for found in [
        Inspection::verified("all is well"),
        Inspection::contradicted("nothing is well"),
    ] {
        let i = inspected(&p, Some(&found));
        assert_eq!((i.level, i.lowered), (Level::AtLeastOnce, false));
    }
}

#[test]
fn the_destinations_real_window_is_shown() {
    let d = nats_publish();
    let p = resolve(&d, &as_declared(&d), &SendFacts::default());
    let mut found = Inspection::verified("stream `orders`");
    found.window = Some(Window::DurationMs(120_000));
    let i = inspected(&p, Some(&found));
    assert_eq!(
        i.line(),
        "effectively once, by the write key, window: 2 min (verified: stream `orders`)"
    );
}
