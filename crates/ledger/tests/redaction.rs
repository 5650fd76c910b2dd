//! What is taken out, and what is left.

mod common;
use common::*;
use consign_ledger::*;
use serde_json::json;

fn redactor() -> Redactor {
    Redactor::new(
        [
            "hunter2!".to_owned(),
            "hunter2!longer".to_owned(),
            "abc".to_owned(),
        ],
        &["X-Tenant-Secret".to_owned()],
        &[
            "card.number".to_owned(),
            ".items.pin".to_owned(),
            "map.*.key".to_owned(),
        ],
    )
}

#[test]
fn secrets_go_from_every_text_the_longest_first() {
    let r = redactor();
    assert_eq!(
        r.text("postgres://u:hunter2!longer@h and hunter2!"),
        "postgres://u:[redacted]@h and [redacted]"
    );
    assert_eq!(
        r.text("the abc of it"),
        "the abc of it",
        "too short to look for"
    );
}

#[test]
fn headers_that_authenticate_lose_their_value() {
    let r = redactor();
    let header = |name: &str, value: &str| Header {
        name: name.into(),
        value: value.as_bytes().to_vec(),
    };
    let mut headers = vec![
        header("Authorization", "Bearer x"),
        header("COOKIE", "a=b"),
        header("x-tenant-secret", "t"),
        header("x-note", "uses hunter2! here"),
        header("content-type", "text/plain"),
    ];
    assert!(r.headers(&mut headers));
    let values: Vec<_> = headers
        .iter()
        .map(|h| String::from_utf8_lossy(&h.value).into_owned())
        .collect();
    assert_eq!(
        values,
        [
            "[redacted]",
            "[redacted]",
            "[redacted]",
            "uses [redacted] here",
            "text/plain"
        ]
    );
}

#[test]
fn named_fields_go_wherever_they_stand() {
    let r = redactor();
    let mut body = json!({
        "card": {"number": "4111", "name": "Ann"},
        "items": [{"pin": 1, "n": 2}, {"pin": [3]}],
        "map": {"x": {"key": 1, "other": 2}},
        "text": "hunter2!",
    });
    assert!(r.json(&mut body));
    assert_eq!(
        body,
        json!({
            "card": {"number": "[redacted]", "name": "Ann"},
            "items": [{"pin": "[redacted]", "n": 2}, {"pin": "[redacted]"}],
            "map": {"x": {"key": "[redacted]", "other": 2}},
            "text": "[redacted]",
        })
    );
    assert!(!r.json(&mut json!({"card": "none"})));
}

#[test]
fn bodies_that_need_nothing_are_left_byte_for_byte() {
    let r = redactor();
    let body = br#"{ "a" : 1.10, "a": 2 }"#;
    let (clean, changed) = r.body(body, Some("application/json"));
    assert!(!changed);
    assert_eq!(clean.as_ref(), body);
    let (clean, changed) = Redactor::default().body(&[0, 159, 255], None);
    assert!(!changed);
    assert_eq!(clean.as_ref(), [0, 159, 255]);
}

#[test]
fn a_body_that_cannot_be_read_goes_whole_where_fields_are_named() {
    let (clean, changed) = redactor().body(b"<card><number>4111</number></card>", Some("text/xml"));
    assert!(changed);
    assert_eq!(clean.as_ref(), b"[redacted]");
}

#[test]
fn a_redacted_copy_is_not_replayable_and_a_clean_one_is() {
    let r = redactor();
    let mut clean = record(1);
    clean.body = b"{\"a\":1}".to_vec();
    let before = clean.clone();
    assert!(!r.copy(&mut clean));
    assert_eq!(clean, before);
    let mut secret = record(1);
    secret.body = b"{\"card\":{\"number\":\"4111\"}}".to_vec();
    secret.diagnosis.message = "row (4111, hunter2!)".into();
    assert!(r.copy(&mut secret));
    assert!(!secret.replayable && secret.envelope.is_empty());
    assert_eq!(secret.diagnosis.message, "row (4111, [redacted])");
    assert!(!String::from_utf8_lossy(&secret.body).contains("4111"));
}

#[test]
fn events_lose_secrets_and_the_redactor_shows_none() {
    let r = redactor();
    let mut e = Event::new(Code::Denied, 1)
        .message("login hunter2! failed")
        .field("url", json!(["u:hunter2!@h"]));
    r.event(&mut e);
    assert!(!serde_json::to_string(&e).unwrap().contains("hunter2"));
    assert!(!format!("{r:?}").contains("hunter2"));
}
