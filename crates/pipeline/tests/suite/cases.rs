//! `consign test`: cases run, differ field by field, and are blessed.

use crate::common::{lines, program};
use consign_pipeline::{Program, cases};
use insta::assert_snapshot;

/// The time of messages that name none.
const NOW: i64 = 1_700_000_000_000;

fn billing() -> Program {
    program(
        r#"key: .body.type
routes:
  - name: big
    when: 'to_int!(.body.amount) > 100'
    transforms: [{ vrl: '.body.cents = to_int!(.body.amount) * 100' }]
    send:
      - { id: bill, connection: x, operation: x.write, config: { to: 'to.{{ .body.id }}' } }
      - { id: log, connection: x, operation: x.write }
  - name: audit
    match: audit
  - name: broken
    match: broken
    transforms: [{ vrl: 'abort "no"' }]
"#,
    )
}

fn run(source: &str) -> String {
    let program = billing();
    let suite = match cases::read("cases.yaml", source, NOW) {
        Ok(suite) => suite,
        Err(problems) => return lines(&problems),
    };
    match cases::run(&suite, &["billing"], |name| {
        (name == "billing").then_some(&program)
    }) {
        Ok(results) => results
            .iter()
            .map(|result| {
                let differences: String = result
                    .differences
                    .iter()
                    .map(|d| format!("  {d}\n"))
                    .collect();
                format!("{}\n{differences}", result.name)
            })
            .collect(),
        Err(problems) => lines(&problems),
    }
}

const GOOD: &str = r#"# Billing.
- name: a big one
  adapter: billing
  message:
    headers: { a: "1", b: [x, y] }
    body: { amount: 200, id: 123456789012345678901234567890, price: 1.10 }
  expect:
    outcome: matched
    route: big
    headers: { a: "1", b: [x, y] }
    body: { amount: 200, id: 123456789012345678901234567890, price: 1.1, cents: 20000 }
    sends:
      bill: { templates: { /to: "to.123456789012345678901234567890" } }
      log:

- name: an audit
  adapter: billing
  message: { body: { type: audit, amount: 1 } }
  expect:
    outcome: no_send   # nothing leaves
    key: audit

# The rest.
- name: nothing
  adapter: billing
  message: { body: { amount: 1 } }
  expect: { outcome: no_route }
- name: broken
  adapter: billing
  message: { body: { type: broken, amount: 1 } }
  expect: { outcome: transform_failed, route: broken, error: "aborted: no" }
"#;

#[test]
fn cases_that_hold_have_no_difference() {
    assert_eq!(run(GOOD), "a big one\nan audit\nnothing\nbroken\n");
}

#[test]
fn cases_that_do_not_hold_are_told_field_by_field() {
    let bad = GOOD
        .replace(
            "id: 123456789012345678901234567890, price: 1.1,",
            "id: 123456789012345678901234567891, price: 1.2, more: 1,",
        )
        .replace("log:", "mail:")
        .replace(
            "[x, y] }\n    body: { amount: 200, id: 123456789012345678901234567891",
            "[x] }\n    body: { amount: 200, id: 123456789012345678901234567891",
        )
        .replace("outcome: no_send", "outcome: matched")
        .replace("key: audit", "key: [audit]")
        .replace("  expect: { outcome: no_route }\n", "");
    assert_snapshot!(run(&bad));
}

#[test]
fn files_that_are_no_cases() {
    assert_snapshot!(run("a: 1"));
    assert_snapshot!(run(
        "- 1\n- nme: x\n- { name: a, adapter: billing, message: [], expect: 1 }\n- { name: a, adapter: b, message: { bdy: 1, headers: 1, time_unix_ms: x, source: 1, key: {} }, expect: { outcom: x } }\n"
    ));
    assert_snapshot!(run("- { name: a, adapter: biling, message: {} }\n"));
    assert_snapshot!(run("- ["));
}

fn blessed(source: &str) -> Result<String, String> {
    let program = billing();
    let suite = cases::read("cases.yaml", source, NOW).map_err(|p| lines(&p))?;
    let results = cases::run(&suite, &[], |_| Some(&program)).map_err(|p| lines(&p))?;
    cases::bless(source, &suite, &results).map_err(|p| lines(&p))
}

#[test]
fn blessing_writes_what_came_out_and_leaves_the_rest() {
    assert_eq!(blessed(GOOD).unwrap(), GOOD);
    let bad = GOOD
        .replace("price: 1.1,", "price: 1.2,")
        .replace(
            "    outcome: no_send   # nothing leaves\n    key: audit\n",
            "",
        )
        .replace("  expect:\n\n# The rest", "\n# The rest")
        .replace("  expect: { outcome: no_route }\n", "")
        .replace("aborted: no", "aborted: yes");
    let good = blessed(&bad).unwrap();
    assert_snapshot!(good);
    assert_eq!(run(&good), "a big one\nan audit\nnothing\nbroken\n");
    assert_eq!(blessed(&good).unwrap(), good);
    let flow = "- { name: a, adapter: billing, message: {} }\n";
    assert_snapshot!(blessed(flow).unwrap_err());
}

#[test]
fn one_message_alone_is_read_for_explain() {
    let message =
        cases::read_message("m.json", "{\"body\": {\"amount\": 7}, \"key\": \"k\"}", NOW).unwrap();
    assert_eq!(
        (&message.body[..], message.routing_key.as_deref()),
        (&b"{\"amount\":7}"[..], Some("k"))
    );
    assert_eq!(
        message.time_unix_ms, NOW,
        "a message without a time is one of now"
    );
    let dated = cases::read_message("m.json", "{\"time_unix_ms\": 5}", NOW).unwrap();
    assert_eq!(dated.time_unix_ms, 5);
    assert!(cases::read_message("m", "body: {", NOW).is_err());
    assert!(cases::read_message("m", "text", NOW).is_err());
}
