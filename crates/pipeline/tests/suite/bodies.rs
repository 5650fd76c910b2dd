//! Bodies that no transform touched leave byte for byte, and so does what a transform left alone.

use crate::common::{body_after, matched, message, program, transform};
use bytes::Bytes;
use consign_pipeline::{Outcome, StoredWrite};
use proptest::prelude::*;
use serde_json::{Value, json};

const ODD: &str = "{ \"id\" : 123456789012345678901234567890, \"price\":1.10,\n\t\"dup\": 1, \"dup\":2, \"e\":1E+2, \"neg\":-0.0,\"s\":\"\\u00e9\\/\", \"list\":[ 1.50 , {\"deep\": 0.1000000000000000055511151231257827} ] }";

#[test]
fn a_body_that_was_only_read_leaves_as_it_came() {
    let all = program(
        "key: .body.type\nroutes:\n  - name: r\n    when: exists(.body)\n    transforms: [{ vrl: 'x = .body.id' }]\n    send: [{ id: s, connection: x, operation: x.write, config: { to: 'k{{ .body.price }}' }, order: { by_key: .body.id } }]",
    );
    for body in [
        ODD,
        "",
        "no json",
        "{\"a\":",
        "[1,2",
        "\u{feff}{}",
        "\"text\"",
        " {} ",
        "nul",
    ] {
        let verdict = matched(&all, &message(body));
        assert_eq!(verdict.message.body, body);
        assert!(!verdict.changed);
    }
    let bytes: &[u8] = b"\xff\xfe{\"a\":1}";
    assert_eq!(matched(&all, &message(bytes)).message.body, bytes);
}

#[test]
fn what_a_transform_left_alone_leaves_as_it_came() {
    let add = transform(".body.new = true");
    assert_eq!(
        body_after(&add, ODD),
        "{\"id\":123456789012345678901234567890,\"price\":1.10,\"dup\":1,\"dup\":2,\"e\":1E+2,\"neg\":-0.0,\"s\":\"\\u00e9\\/\",\"list\":[ 1.50 , {\"deep\": 0.1000000000000000055511151231257827} ],\"new\":true}"
    );
    let inside = transform(".body.list[1].x = null");
    assert!(
        body_after(&inside, ODD).ends_with(
            "\"list\":[1.50,{\"deep\":0.1000000000000000055511151231257827,\"x\":null}]}"
        )
    );
    let gone = transform("del(.body.dup)");
    assert!(!body_after(&gone, ODD).contains("dup"));
    let changed = transform(".body.dup = 3");
    assert!(body_after(&changed, ODD).contains("\"price\":1.10,\"dup\":3,\"e\":1E+2"));
    let same = transform(".body.price = .body.price");
    assert_eq!(body_after(&same, ODD), ODD);
}

#[test]
fn numbers_that_do_not_fit_keep_their_digits_wherever_they_go() {
    let moved = transform(".body.copy = .body.id\n.body = { \"wrapped\": .body }");
    let body = body_after(
        &moved,
        r#"{"id":18446744073709551617,"d":0.12345678901234567890}"#,
    );
    assert_eq!(
        body,
        r#"{"wrapped":{"copy":18446744073709551617,"d":0.12345678901234567890,"id":18446744073709551617}}"#
    );
    let shifted = transform("del(.body[0])");
    assert_eq!(
        body_after(&shifted, "[1,9223372036854775808,9007199254740993.5]"),
        "[9223372036854775808,9007199254740993.5]"
    );
    let negative = transform(".body[-1] = 0");
    assert_eq!(
        body_after(&negative, "[1,9223372036854775808,2]"),
        "[1,9223372036854775808,0]"
    );
    let huge = transform(".body.x = [.body.a]");
    assert_eq!(
        body_after(&huge, r#"{"a":1e999}"#),
        r#"{"a":1e999,"x":[1e999]}"#
    );
}

/// Two long numbers that are the same double: in place they stay; once moved, nothing tells them
/// apart, and a guess would be silent corruption.
#[test]
fn numbers_that_cannot_be_told_apart_are_an_error_never_a_guess() {
    let twins = r#"{"a":12345678901234567890,"b":12345678901234567891,"c":1}"#;
    let beside = transform(".body.c = 2");
    assert_eq!(body_after(&beside, twins), twins.replace(":1}", ":2}"));
    for vrl in [
        ".body.c = .body.a",
        ".body.a = .body.b",
        ".body = [.body.a]",
    ] {
        let outcome = transform(vrl).evaluate(&message(twins)).outcome;
        let Outcome::TransformFailed { message, .. } = outcome else {
            panic!("{vrl}: {outcome:?}")
        };
        assert!(message.contains("cannot be told"), "{message}");
    }
    let template = program(
        "routes: [{ name: r, send: [{ id: s, connection: x, operation: x.write, config: { to: '{{ .body.a }}' } }] }]",
    );
    let told = matched(&template, &message(twins)).sends[0]
        .clone()
        .unwrap_err();
    assert!(told.message.contains("cannot be told"), "{told:?}");
    let alone = r#"{"a":12345678901234567890}"#;
    assert_eq!(
        matched(&template, &message(alone)).sends[0]
            .as_ref()
            .unwrap()
            .slots,
        ["12345678901234567890"]
    );
}

#[test]
fn texts_and_bytes_stay_texts_and_bytes() {
    let upper = transform(".body = upcase(string!(.body))");
    assert_eq!(body_after(&upper, "plain"), "PLAIN");
    assert_eq!(body_after(&upper, ""), "");
    let mut json_text = message("\"quoted\"");
    json_text.content_type = Some("application/json; charset=utf-8".into());
    assert_eq!(matched(&upper, &json_text).message.body, "\"QUOTED\"");
    let bytes: &[u8] = b"\xff\x00\xfe";
    let other = transform(".headers.a = \"b\"");
    assert_eq!(matched(&other, &message(bytes)).message.body, bytes);
    let keep = transform(".body = .body");
    assert_eq!(matched(&keep, &message(bytes)).message.body, bytes);
    // A text of JSON is a text until something says that it is JSON.
    assert_eq!(body_after(&upper, "true"), "TRUE");
    let encoded = transform(".body = encode_json(.body)");
    assert_eq!(
        body_after(&encoded, r#"{"b":1,"a":[]}"#),
        r#"{"a":[],"b":1}"#
    );
    let wrapped = transform(".body = { \"raw\": .body }");
    let after = matched(&wrapped, &message("plain")).message;
    assert_eq!(
        (&after.body[..], after.content_type.as_deref()),
        (&b"{\"raw\":\"plain\"}"[..], Some("application/json"))
    );
    let Outcome::TransformFailed { message: told, .. } = wrapped.evaluate(&message(bytes)).outcome
    else {
        panic!()
    };
    assert!(told.contains("not UTF-8"), "{told}");
}

#[test]
fn json_with_faults_is_a_text() {
    let kind = transform(".headers.kind = if is_string(.body) { \"text\" } else { \"json\" }");
    let kind_of = |body: &str| {
        let after = matched(&kind, &message(body.to_owned())).message;
        assert_eq!(after.body, body);
        String::from_utf8(after.headers[0].1.to_vec()).unwrap()
    };
    for json in [
        "{}",
        " [ ] \n",
        "[1e5,-0,0.5]",
        "{\"\":{\"a\\n\":\"\\ud83d\\ude00\"}}",
    ] {
        assert_eq!(kind_of(json), "json", "{json}");
        assert!(serde_json::from_str::<Value>(json).is_ok());
    }
    assert_eq!(kind_of(&nested(128)), "json");
    for text in [
        "",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "[01]",
        "[+1]",
        "[.5]",
        "[1.]",
        "[1e]",
        "[nul]",
        "[\"\t\"]",
        "[\"\\x\"]",
        "[\"\\ud83d\"]",
        "{a:1}",
        "[1] 2",
        "['a']",
        "[\"a",
        "[\"a\\",
        "{\"a\" 1}",
        "[NaN]",
        "\u{feff}{}",
        "7",
        "\"x\"",
        &nested(129),
    ] {
        assert_eq!(kind_of(text), "text", "{text}");
    }
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let all = transform(".body = .body");
    let deep = nested(1_000_000);
    // A thread with the smallest stack a task gets.
    std::thread::Builder::new()
        .stack_size(512 * 1024)
        .spawn(move || {
            assert_eq!(body_after(&all, &deep), deep);
            assert_eq!(body_after(&all, &nested(128)), nested(128));
            let wrap = transform(".body = [[.body]]");
            assert_eq!(body_after(&wrap, &nested(128)), nested(130));
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn a_hundred_megabytes_that_nobody_reads_are_never_copied_before_they_are_stored() {
    let program = program(
        "routes: [{ name: r, match: 'a.*', when: '.key == \"a.b\"', send: [{ id: s, connection: x, operation: x.write, config: { to: '{{ .key }}' } }] }]",
    );
    let body = Bytes::from(vec![b'{'; 100 << 20]);
    let mut large = message(body.clone());
    large.routing_key = Some("a.b".into());
    let begun = std::time::Instant::now();
    let verdict = matched(&program, &large);
    // The same memory, not equal memory.
    assert_eq!(verdict.message.body.as_ptr(), body.as_ptr());
    let write = StoredWrite::of(&large, &verdict, verdict.sends[0].as_ref().unwrap(), true);
    assert_eq!(write.body.as_ptr(), body.as_ptr());
    assert!(write.original.is_none());
    let stored = write.encode();
    assert!(stored.len() < body.len() + 200);
    let read = StoredWrite::decode(stored.clone()).unwrap();
    assert!(stored.as_ptr_range().contains(&read.body.as_ptr()));
    assert_eq!(read.body.len(), body.len());
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
}

/// The same value with integers of 64 bits written out: `1.2946544716074654e19` and `12946544716074654000` are
/// one number in two notations, and serde_json reads the first as a float and the second as an integer.
fn plain(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(plain).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, field)| (name, plain(field)))
            .collect(),
        Value::Number(number) if number.is_f64() => {
            let shortest = format!("{:e}", number.as_f64().unwrap());
            let (digits, exponent) = shortest.split_once('e').unwrap();
            let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
            let zeros = exponent
                .parse::<usize>()
                .ok()
                .and_then(|e| e.checked_sub(fraction.len()));
            let written = zeros
                .filter(|zeros| *zeros < 20)
                .map(|zeros| format!("{whole}{fraction}{}", "0".repeat(zeros)));
            written
                .and_then(|text| text.parse::<u64>().ok())
                // Below that both readings are integers, and a float that became one would be a change.
                .filter(|wide| i64::try_from(*wide).is_err())
                .map_or(Value::Number(number), Value::from)
        }
        other => other,
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("finite", |f| f.is_finite())
            .prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::hash_map("[a-c]|.{0,3}", inner, 0..5)
                .prop_map(|m| m.into_iter().collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn adding_a_field_changes_nothing_else(value in prop::collection::hash_map("[a-z]{1,4}", any_json(), 0..6), pretty: bool) {
        let value: Value = value.into_iter().collect();
        // What comes out is compared as it is read: serde_json rounds some numbers in reading.
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let text = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
        let after = body_after(&transform(".body.ADDED = 1"), &text);
        let mut expected = read(&text);
        expected["ADDED"] = json!(1);
        prop_assert_eq!(read(&after), expected);
        let back = body_after(&transform("del(.body.ADDED)"), &after);
        prop_assert_eq!(read(&back), read(&text));
    }

    #[test]
    fn rewriting_the_whole_body_keeps_every_value(value in prop::collection::vec(any_json(), 0..6)) {
        let text = Value::from(value).to_string();
        let wrapped = body_after(&transform(".body = { \"a\": .body }"), &text);
        let read = |text: &str| plain(serde_json::from_str::<Value>(text).unwrap());
        prop_assert_eq!(read(&wrapped)["a"].clone(), read(&text));
    }
}
