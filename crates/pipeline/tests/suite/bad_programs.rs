//! Faults of patterns, expressions and templates point into the YAML.

use crate::common::told;
use insta::assert_snapshot;

fn when(vrl: &str) -> String {
    told(&format!("routes:\n  - name: r\n    when: {vrl}"))
}

#[test]
fn conditions_must_be_boolean() {
    assert_snapshot!(when("'to_int(.body.amount) ?? 0 > 0'"));
    assert_snapshot!(when("'to_int(.body.amount) ?? 0'"));
    assert_snapshot!(when("'length(.headers)'"));
    assert_snapshot!(when("'.body.flag'"));
    assert_snapshot!(when("'.key'"));
    assert_snapshot!(when("'kind = .key'"));
    assert_eq!(when("'bool(.body.flag) ?? false'"), "");
    assert_eq!(when("'kind = .key; kind == \"a\"'"), "");
    assert_eq!(when("'.key == \"a\" && starts_with(.key, \"b\")'"), "");
}

#[test]
fn bad_vrl_is_told_with_its_place() {
    assert_snapshot!(when("'to_int(.body.amount) > 0'"));
    assert_snapshot!(when("'.body.amount >'"));
    assert_snapshot!(when("'amount > 0'"));
    assert_snapshot!(when("'strat_with(.key, \"a\")'"));
    assert_snapshot!(when("'.body.a = true'"));
    assert_snapshot!(when("'get_env_var!(\"HOME\") == \"x\"'"));
    assert_snapshot!(when("''"));
}

#[test]
fn a_block_scalar_points_at_its_own_line() {
    assert_snapshot!(told(
        "routes:\n  - name: r\n    transforms:\n      - vrl: |\n          .body.a = 1\n\n          if .body.b == 2 {\n            .body.c = to_int(.body.d)\n          }\n      - vrl: >\n          .body.a = 1;\n          .body.b = nope(1)\n"
    ));
}

#[test]
fn fields_a_message_does_not_have() {
    assert_snapshot!(when("'.amount == 1'"));
    assert_snapshot!(when("'.body.amount == 1 && .header.x == 1'"));
    assert_snapshot!(when("'%meta == 1'"));
    assert_snapshot!(told(
        "routes:\n  - name: r\n    transforms:\n      - vrl: .total = 1\n      - vrl: .time = 1\n"
    ));
    assert_snapshot!(told(
        "routes:\n  - name: r\n    transforms:\n      - vrl: .source.x = 1\n"
    ));
    assert_snapshot!(told(
        "routes:\n  - name: r\n    transforms:\n      - vrl: '. = {}'\n"
    ));
}

#[test]
fn bad_patterns() {
    assert_snapshot!(told(
        "routes:\n  - name: r\n    match: [\"a..b\", ok.*, \"pay*\"]\n"
    ));
}

#[test]
fn bad_templates() {
    let to = |template: &str| {
        told(&format!(
            "routes:\n  - name: r\n    send:\n      - {{ id: s, connection: x, operation: x.write, config: {{ to: \"{template}\" }} }}\n"
        ))
    };
    assert_snapshot!(to("a.{{ .body.id"));
    assert_snapshot!(to("a.{{ }}"));
    assert_snapshot!(to("a.{{ .body.id }}.{{ to_int(.body.x) }}"));
    assert_snapshot!(to("{{ null }}"));
    assert_eq!(to("{{ {'a': {}} }}"), to("{{ {'a': {}} }}"));
}

#[test]
fn keys_and_order_keys() {
    assert_snapshot!(told(
        "key: .typo\nidentity: .nothing.\nroutes:\n  - name: r\n    send: [{ id: s, connection: x, operation: x.write, order: { by_key: to_int(.body.a) } }]\n"
    ));
}

#[test]
fn all_faults_of_an_adapter_come_at_once() {
    let all = told(
        "key: 1 +\nroutes:\n  - { name: a, match: \"*x\", when: .body.a }\n  - { name: b, when: nope() }\n",
    );
    assert_eq!(all.matches(": error: ").count(), 4, "{all}");
}
