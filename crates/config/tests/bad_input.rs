//! Every mistake is told with its place, what was expected, and the nearest known name.

mod common;

use common::{EXAMPLE, PUBLISH, told, with_send, with_sends};
use insta::assert_snapshot;

#[test]
fn unknown_keys() {
    let source = EXAMPLE
        .replace("retry: {", "retires: {")
        .replace("class: critical", "klass: critical")
        .replace("data_dir:", "datadir:")
        .replace("table: invoices", "tabel: invoices");
    assert_snapshot!(told(&source));
}

#[test]
fn wrong_types_all_at_once() {
    let source = EXAMPLE
        .replace("max_attempts: 5", "max_attempts: five")
        .replace("max_age: 1h", "max_age: 3600")
        .replace("quota: 2GiB", "quota: big")
        .replace("order: { by_key: .body.invoice }", "order: strickt")
        .replace("jetstream: true", "jetstream: maybe")
        .replace("class: critical\n", "class: [critical]\n")
        .replace("table: invoices", "table: 12")
        .replace("max_in_flight: 8", "max_in_flight: 0")
        .replace("when: '(to_int(.body.amount) ?? 0) > 0'", "when: true")
        .replace("servers: [\"nats://127.0.0.1:4222\"]", "servers: []")
        .replace(
            "transforms:\n          - vrl:",
            "transforms:\n          - vrll:",
        );
    assert_snapshot!(told(&source));
}

#[test]
fn missing_keys() {
    assert_snapshot!(told(
        "connections:
  hooks: { config: {} }
  bus: { connector: nats }
adapters:
  a: { routes: [{ send: [{ id: x }] }] }
"
    ));
}

#[test]
fn what_is_no_yaml() {
    assert_snapshot!(told("adapters:\n  a: [1, 2\n  b: }\n"));
    assert_snapshot!(told("a: b\n---\nc: d\n"));
    assert_snapshot!(told("- 1\n- 2\n"));
    assert_snapshot!(told("just a text"));
    assert_snapshot!(told("? [a, b]\n: c\n"));
    assert_snapshot!(told("\u{0}"));
}

#[test]
fn an_empty_file_is_an_empty_host() {
    assert_eq!(told(""), "");
}

#[test]
fn duplicate_adapter_names() {
    assert_snapshot!(told(
        "adapters:\n  payments: {}\n  orders: {}\n  payments: {}\n"
    ));
}

#[test]
fn duplicate_routes_and_sends() {
    let source = with_sends(&format!(
        "          - {{ id: a, {flat} }}\n          - {{ id: a, {flat} }}\n      - name: all\n",
        flat = PUBLISH.replace('\n', ", ")
    ));
    assert_snapshot!(told(&source));
}

#[test]
fn a_send_after_itself() {
    assert_snapshot!(told(&with_send(&format!("id: a\nafter: a\n{PUBLISH}"))));
}

#[test]
fn sends_in_a_circle() {
    let send = |id: &str, after: &str| {
        format!(
            "          - {{ id: {id}, after: {after}, {} }}\n",
            PUBLISH.replace('\n', ", ")
        )
    };
    let source =
        with_sends(&(send("a", "b") + &send("b", "c") + &send("c", "b") + &send("d", "e")));
    assert_snapshot!(told(&source));
}

#[test]
fn parents_that_cannot_be_waited_for() {
    let flat = PUBLISH.replace('\n', ", ");
    let source = with_sends(&format!(
        "          - {{ id: a, {flat} }}
          - {{ id: b, after: a, delivery: direct, {flat} }}
          - {{ id: c, connection: log, operation: syslog.send }}
          - {{ id: d, after: c, {flat} }}
"
    ));
    assert_snapshot!(told(&source));
}

#[test]
fn unknown_names() {
    let source = EXAMPLE
        .replace("connection: ledger", "connection: leger")
        .replace("connection: hooks", "connection: web")
        .replace("class: critical", "class: critcal")
        .replace("handler: isolate_poison", "handler: isolate")
        .replace("operation: nats.publish", "operation: nats.publsh")
        .replace("after: billing", "after: bilings");
    assert_snapshot!(told(&source));
}

#[test]
fn unknown_connector_names_the_folders() {
    assert_snapshot!(told(
        "connections:\n  a: { connector: kafka }\n  b: { connector: natz, config: { servers: [a] } }\n"
    ));
}

#[test]
fn operations_of_the_wrong_kind_or_connector() {
    let source = EXAMPLE
        .replace(
            "operation: http.receive, config: { path: /payments }",
            "operation: nats.consume",
        )
        .replace("operation: nats.publish", "operation: nats.consume");
    assert_snapshot!(told(&source));
}

#[test]
fn templates_and_secrets_where_they_may_not_be() {
    let source = EXAMPLE
        .replace("table: invoices", "table: \"t_{{ .body.x }}\"")
        .replace(
            "receipts.{{ .body.invoice }}",
            "${env:PREFIX}.{{ .body.invoice }}",
        )
        .replace("path: ./ledger.db", "path: \"${vault:x}\"")
        .replace("listen: \"127.0.0.1:8080\"", "listen: \"${env:\"");
    assert_snapshot!(told(&source));
}

#[test]
fn tagged_settings_are_judged_by_their_kind() {
    let source = |auth: &str| {
        format!("connections:\n  a: {{ connector: http, config: {{ listen: x, auth: {auth} }} }}\n")
    };
    assert_snapshot!(told(&source("{ type: bearer, tokn: x }")));
    assert_snapshot!(told(&source("{ type: kerberos }")));
    assert_snapshot!(told(&source("none")));
    assert_snapshot!(told(&source("{ type: basic, username: a, password: b }")));
}

#[test]
fn values_that_contradict_each_other() {
    assert_snapshot!(told(&with_send(&format!(
        "id: a\nretry: {{ backoff: {{ initial: 2m, max: 1m }} }}\ntimeout: 0\nrequire: effectively_once\nwhen_full: drop\n{PUBLISH}"
    ))));
    assert_snapshot!(told(&with_send(&format!(
        "id: a\ndelivery: direct\nwhen_full: drop\nexpires_after: 1h\nformerly: [b]\n{PUBLISH}"
    ))));
}

#[test]
fn the_host_as_a_whole() {
    assert_snapshot!(told(
        "console: { listen: \"0.0.0.0:8640\" }
max_in_flight: 4
classes: { a: { reserved: 3, max_in_flight: 2 }, b: {}, c: {} }
buffer: { log_size: 1MiB }
write_key: { prefix: \"no spaces\" }
"
    ));
    assert_snapshot!(told("console: { listen: here }\n"));
}

#[test]
fn names_that_cannot_be_lane_ids() {
    assert_snapshot!(told(&with_send(&format!("id: a/b\n{PUBLISH}"))));
    assert_snapshot!(told("adapters: { \"\": {}, \"ü\": {} }\n"));
}

#[test]
fn lanes_that_two_sends_claim() {
    let flat = PUBLISH.replace('\n', ", ");
    let source = with_sends(&format!(
        "          - {{ id: a, formerly: [old, x/y], {flat} }}\n          - {{ id: b, formerly: [payments/all/old, a], {flat} }}\n"
    ));
    assert_snapshot!(told(&source));
}

#[test]
fn diverts() {
    let flat = PUBLISH.replace('\n', ", ");
    let divert = |to: &str| format!("on_failure: {{ handler: isolate_poison, divert: [{to}] }}");
    let source = with_sends(&format!(
        "          - {{ id: a, {flat}, {} }}
          - {{ id: b, {flat}, {} }}
          - {{ id: c, {flat}, delivery: direct }}
",
        divert("payments/all/b"),
        divert("payments/all/a, payments/all/c, payments/all/zz, x")
    ));
    assert_snapshot!(told(&source));
}

#[test]
fn a_route_behind_one_that_claims_all() {
    let source = with_send(&format!("id: a\n{PUBLISH}")) + "      - { name: never, match: x }\n";
    assert_snapshot!(told(&source));
}

#[test]
fn what_unfolds_without_end_is_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let before = format!("*a{}", i - 1);
        bomb.push_str(&format!("a{i}: &a{i} [{}]\n", vec![before; 10].join(", ")));
    }
    let begun = std::time::Instant::now();
    assert!(
        told(&bomb).contains("more than 2000000 values"),
        "{}",
        told(&bomb).len()
    );
    assert!(begun.elapsed().as_secs() < 20);
    let deep = format!("a: {}{}", "[".repeat(200), "]".repeat(200));
    assert!(
        told(&deep).contains("nested more than 64 levels"),
        "{}",
        told(&deep)
    );
    let deep: String = (0..250).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    assert!(told(&deep).contains("nested"), "{}", told(&deep));
}
