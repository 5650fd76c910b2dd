//! Which route claims a message, what its transforms and sends make of it.

use crate::common::{matched, message, program, told};
use bytes::Bytes;
use consign_pipeline::{Claim, Message, MessageId, OrderKey, Outcome, Program, Progress, Step};
use serde_json::json;

const ROUTES: &str = r##"
key: .body.type
routes:
  - name: big
    match: ["payment.*", "refund.#"]
    when: '(to_int(.body.amount) ?? 0) > 100'
    transforms:
      - vrl: |
          .body.cents = to_int!(.body.amount) * 100
          .headers.seen = "yes"
    send:
      - { id: strict, connection: x, operation: x.write, config: { to: "fixed" } }
      - id: keyed
        connection: x
        operation: x.write
        order: { by_key: .body.invoice }
        config: { to: "to.{{ .body.invoice }}.{{ .key }}", nested: { names: [ "{{ .body.cents }}", "plain" ] } }
      - { id: loose, connection: x, operation: x.write, order: none }
  - name: errors
    when: 'to_int!(.body.amount) == 7'
    send: []
  - name: rest
    match: "#"
"##;

fn at(program: &Program, body: &str) -> (Option<String>, usize) {
    let verdict = program.evaluate(&message(body.to_owned()));
    let route = match verdict.outcome {
        Outcome::Matched(m) => Some(program.route(m.route).unwrap().name.clone()),
        _ => None,
    };
    (route, verdict.condition_errors.len())
}

#[test]
fn the_first_route_whose_conditions_match_claims() {
    let program = program(ROUTES);
    let to = |name: &str, errors| (Some(name.to_owned()), errors);
    assert_eq!(
        at(&program, r#"{"type":"payment.completed","amount":101}"#),
        to("big", 0)
    );
    assert_eq!(
        at(&program, r#"{"type":"refund.a.b","amount":"500"}"#),
        to("big", 0)
    );
    assert_eq!(
        at(&program, r#"{"type":"payment.completed","amount":7}"#),
        to("errors", 0)
    );
    assert_eq!(
        at(&program, r#"{"type":"order","amount":101}"#),
        to("rest", 0)
    );
    // A condition that errors does not match, and is counted.
    assert_eq!(
        at(&program, r#"{"type":"order","amount":{}}"#),
        to("rest", 1)
    );
    assert_eq!(at(&program, "no json at all"), to("rest", 0));
}

#[test]
fn without_a_route_there_is_no_outcome_but_no_route() {
    let program = program("routes: [{ name: r, match: a }]");
    assert_eq!(program.evaluate(&message("")).outcome, Outcome::NoRoute);
    let keyed = Message {
        routing_key: Some("a".into()),
        ..message("")
    };
    assert!(matches!(
        program.evaluate(&keyed).outcome,
        Outcome::Matched(_)
    ));
}

#[test]
fn sends_are_rendered_once_with_order_keys_and_slots() {
    let program = program(ROUTES);
    let source = message(r#"{"type":"payment.completed","amount":200,"invoice":"i 1"}"#);
    let verdict = matched(&program, &source);
    assert!(verdict.changed);
    assert_eq!(
        verdict.message.routing_key.as_deref(),
        Some("payment.completed")
    );
    assert_eq!(
        verdict.message.headers,
        [("seen".to_owned(), Bytes::from("yes"))]
    );
    assert_eq!(
        verdict.message.body,
        r#"{"type":"payment.completed","amount":200,"invoice":"i 1","cents":20000}"#
    );
    let sends: Vec<_> = verdict.sends.iter().map(|s| s.as_ref().unwrap()).collect();
    assert_eq!(sends[0].order, OrderKey::Strict);
    assert!(sends[0].slots.is_empty());
    assert_eq!(sends[1].slots, ["to.i 1.payment.completed", "20000"]);
    let OrderKey::Key(key) = sends[1].order else {
        panic!()
    };
    assert_eq!(sends[2].order, OrderKey::None);
    let function = &program.route(0).unwrap().sends[1].function;
    assert_eq!(
        function,
        &json!({ "to": { "$template": 0 }, "nested": { "names": [{ "$template": 1 }, "plain"] } })
    );

    let other = message(r#"{"type":"payment.completed","amount":300,"invoice":"i 2"}"#);
    let OrderKey::Key(second) = matched(&program, &other).sends[1].as_ref().unwrap().order else {
        panic!()
    };
    assert_ne!(key, second);
    assert_eq!(
        key.get(),
        291482214376692631,
        "order keys are stored: their hash never changes"
    );
}

#[test]
fn a_send_that_cannot_be_rendered_fails_alone() {
    let program = program(ROUTES);
    let verdict = matched(
        &program,
        &message(r#"{"type":"payment.completed","amount":200}"#),
    );
    assert!(verdict.sends[0].is_ok() && verdict.sends[2].is_ok());
    let told = verdict.sends[1].as_ref().unwrap_err();
    assert_eq!(
        told.message,
        "the template `{{ .body.invoice }}` is null, and a text is needed"
    );
    assert_eq!((told.place.line, told.place.column), (21, 27));
}

#[test]
fn a_transform_that_errors_discards() {
    let program = program(
        "routes:\n  - name: r\n    transforms:\n      - vrl: '.body.a = 1'\n      - vrl: '.body.b = to_int!(.body.x)'\n      - vrl: 'abort \"no\"'",
    );
    let Outcome::TransformFailed {
        route,
        transform,
        message: told,
        place,
    } = program.evaluate(&message("{\"x\":[]}")).outcome
    else {
        panic!()
    };
    assert_eq!((route, transform, place.line), (0, 1, 9));
    assert!(told.contains("to_int"), "{told}");
    let Outcome::TransformFailed {
        transform,
        message: told,
        ..
    } = program.evaluate(&message("{\"x\":1}")).outcome
    else {
        panic!()
    };
    assert_eq!((transform, told.as_str()), (2, "aborted: no"));
}

#[test]
fn headers_key_and_content_type_can_be_changed() {
    let program = program(
        "routes:\n  - name: r\n    transforms:\n      - vrl: |\n          .headers.b = [\"1\", 2, true]\n          del(.headers.gone)\n          .key = .key + \".x\"\n          .headers.\"content-type\" = \"text/plain\"",
    );
    let source = Message {
        headers: vec![
            ("z".into(), Bytes::from_static(b"\xff")),
            ("gone".into(), Bytes::from("x")),
            ("a".into(), Bytes::from("1")),
            ("z".into(), Bytes::from("2")),
        ],
        content_type: Some("application/json".into()),
        routing_key: Some("k".into()),
        ..message("{ }")
    };
    let after = matched(&program, &source).message;
    let headers: Vec<(&str, &[u8])> = after
        .headers
        .iter()
        .map(|(n, v)| (n.as_str(), &v[..]))
        .collect();
    assert_eq!(
        headers,
        [
            ("z", &b"\xff"[..]),
            ("z", b"2"),
            ("a", b"1"),
            ("b", b"1"),
            ("b", b"2"),
            ("b", b"true")
        ]
    );
    assert_eq!(after.content_type.as_deref(), Some("text/plain"));
    assert_eq!(after.routing_key.as_deref(), Some("k.x"));
    assert_eq!(after.body, "{ }");
}

#[test]
fn time_and_source_are_there_to_read() {
    let program = program(
        "routes: [{ name: r, when: '.source.partition == 3 && format_timestamp!(.time, \"%Y\") == \"2023\"', send: [{ id: s, connection: x, operation: x.write, config: { to: '{{ .time }}/{{ .source }}' } }] }]",
    );
    let source = Message {
        time_unix_ms: 1_700_000_000_123,
        source: json!({ "partition": 3 }).as_object().unwrap().clone(),
        ..message("")
    };
    assert_eq!(
        matched(&program, &source).sends[0].as_ref().unwrap().slots,
        ["2023-11-14T22:13:20.123Z/{\"partition\":3}"]
    );
    let far = Message {
        time_unix_ms: i64::MAX,
        ..source
    };
    assert!(matches!(program.evaluate(&far).outcome, Outcome::NoRoute));
}

#[test]
fn a_message_has_a_name_for_templates_that_nothing_changes() {
    let named = program(
        "routes: [{ name: r, transforms: [{ vrl: '.body.copy = .id' }], send: [{ id: s, connection: x, operation: x.write, config: { to: '{{ .id }}.json', nested: { names: ['{{ .body.copy }}', '{{ .body.x }}'] } } }] }]",
    );
    let source = Message {
        id: MessageId([0xab; 16]),
        ..message("{\"x\":1}")
    };
    let name = "ab".repeat(16);
    assert_eq!(
        matched(&named, &source).sends[0].as_ref().unwrap().slots,
        [format!("{name}.json"), name, "1".to_owned()]
    );
    let templates = &named.route(0).unwrap().sends[0].templates;
    let reads: Vec<bool> = templates.iter().map(|t| t.reads_id).collect();
    assert_eq!(reads, [true, true, false], "also through a transform");
    assert!(templates.iter().all(|t| t.nondeterministic.is_empty()));
    let changed = told("routes: [{ name: r, transforms: [{ vrl: '.id = \"x\"' }] }]");
    assert!(changed.contains("read-only"), "{changed}");
}

#[test]
fn the_key_expression_may_fail_and_is_counted() {
    let program =
        program("key: string!(.body.type)\nroutes: [{ name: typed, match: '*' }, { name: rest }]");
    let verdict = program.evaluate(&Message {
        routing_key: Some("from source".into()),
        ..message("{}")
    });
    assert!(verdict.key_error.is_some());
    let Outcome::Matched(m) = verdict.outcome else {
        panic!()
    };
    assert_eq!((m.route, m.message.routing_key), (1, None));
}

#[test]
fn identity_is_the_expression_or_the_sources_own() {
    let own = Message {
        identity: Some(Bytes::from("0/42")),
        ..message("{\"id\":\"m1\",\"none\":\"\"}")
    };
    assert_eq!(
        program("routes: []").identity(&own),
        Ok(Some(Bytes::from("0/42")))
    );
    let of = |vrl: &str| program(&format!("identity: '{vrl}'\nroutes: []")).identity(&own);
    assert_eq!(of(".body.id"), Ok(Some(Bytes::from("m1"))));
    assert_eq!(of(".headers.message_id"), Ok(None));
    assert_eq!(of(".body.none"), Ok(None));
    assert_eq!(of("[.body.id, 1]"), Ok(Some(Bytes::from("[\"m1\",1]"))));
    assert!(of("to_int!(.body.id)").is_err());
}

#[test]
fn explain_tells_why_each_route_does_or_does_not_claim() {
    let program = program(ROUTES);
    let claims = program.explain(&message(r#"{"type":"payment.completed","amount":{}}"#));
    assert_eq!(claims[0], Claim::ConditionFalse);
    assert!(matches!(&claims[1], Claim::ConditionError(why) if why.contains("to_int")));
    assert_eq!(claims[2], Claim::Claimed);
    let claims = program.explain(&message(r#"{"type":"order","amount":7}"#));
    assert_eq!(
        claims,
        [Claim::PatternMismatch, Claim::Claimed, Claim::NotReached]
    );
}

#[test]
fn plugins_take_their_turn_in_order() {
    let program = program(
        "routes:\n  - name: r\n    transforms:\n      - vrl: '.body.n = 1'\n      - transform: shout\n      - vrl: '.body.n = int!(.body.n) + 1'\n    processors:\n      - { processor: audit }\n    send: [{ id: s, connection: x, operation: x.write, config: { to: '{{ .body.n }}' } }]",
    );
    let source = message("{}");
    let Progress::Call(call) = program.start(&source) else {
        panic!()
    };
    assert_eq!(
        (call.step, &call.message.body[..]),
        (Step::Transform(1), &b"{\"n\":1}"[..])
    );
    let answer = message("{\"n\":41}");
    let Progress::Call(call) = program.resume(*call, Ok(answer)) else {
        panic!()
    };
    assert_eq!(
        (call.step, &call.message.body[..]),
        (Step::Processor(0), &b"{\"n\":42}"[..])
    );
    let unchanged = call.message.clone();
    let Progress::Done(verdict) = program.resume(*call, Ok(unchanged)) else {
        panic!()
    };
    let Outcome::Matched(m) = verdict.outcome else {
        panic!()
    };
    assert!(m.changed);
    assert_eq!(m.sends[0].as_ref().unwrap().slots, ["42"]);

    let Progress::Call(call) = program.start(&source) else {
        panic!()
    };
    let Progress::Done(verdict) = program.resume(*call, Err("bad".into())) else {
        panic!()
    };
    assert!(matches!(
        verdict.outcome,
        Outcome::TransformFailed { transform: 1, .. }
    ));
    let Progress::Call(call) = program.start(&source) else {
        panic!()
    };
    let Progress::Call(call) = program.resume(*call, Ok(message("{\"n\":1}"))) else {
        panic!()
    };
    let Progress::Done(verdict) = program.resume(*call, Err("down".into())) else {
        panic!()
    };
    assert!(matches!(
        verdict.outcome,
        Outcome::ProcessorFailed { processor: 0, .. }
    ));
}

#[test]
fn nondeterminism_is_found_through_transforms_too() {
    let program = program(
        "routes:\n  - name: r\n    transforms:\n      - vrl: '.body.at = to_unix_timestamp(now())'\n      - vrl: '.body.copy = .body.at; .body.fixed = 1'\n    send:\n      - { id: s, connection: x, operation: x.write, config: { to: '{{ uuid_v4() }}', nested: { names: ['{{ .body.copy }}', '{{ .body.id }}', '{{ .body }}', '{{ \"now()\" }}'] } } }",
    );
    let found: Vec<_> = program.route(0).unwrap().sends[0]
        .templates
        .iter()
        .map(|t| (t.pointer.as_str(), t.nondeterministic.clone()))
        .collect();
    assert_eq!(
        found,
        [
            ("/to", vec!["uuid_v4"]),
            ("/nested/names/0", vec!["now"]),
            ("/nested/names/1", vec![]),
            ("/nested/names/2", vec!["now"]),
            ("/nested/names/3", vec![]),
        ]
    );
}

/// A program is shared by all tasks of the host.
#[test]
fn programs_are_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&program(ROUTES));
}
