//! What each handler decides, and the published schema.

use crate::dead_letter::{DeadLetter, DeadLetterConfig};
use crate::isolate_poison::{IsolatePoison, IsolatePoisonConfig};
use crate::record::{Data, Record, schema};
use consign_plugin::prelude::*;

fn failure() -> FailureReport {
    let json = serde_json::json!({
        "write_key": "00112233445566778899aabbccddeeff", "adapter": "a", "route": "r", "send": "s",
        "operation": "x.write", "class": "refused", "code": "http_422", "message": "no such account",
        "attempts": 1, "divert": ["a/dead/letters", "a/dead/other"]
    });
    serde_json::from_value(json).unwrap()
}

fn message(body: &[u8]) -> Message {
    Message {
        body: body.to_vec(),
        headers: vec![("h".to_owned(), vec![0xff, 0])],
        routing_key: Some("payment.failed".to_owned()),
        ..Message::default()
    }
}

async fn dead_letter(config: DeadLetterConfig, failure: &FailureReport, body: &[u8]) -> Decision {
    let handler = DeadLetter::open(config, &FunctionContext::default())
        .await
        .unwrap();
    handler.decide(failure, &message(body)).await
}

fn record_of(decision: Decision) -> (String, Record) {
    let Decision::Divert {
        target,
        message: Some(message),
    } = decision
    else {
        panic!("{decision:?}");
    };
    assert_eq!(message.routing_key.as_deref(), Some("payment.failed"));
    (target, serde_json::from_slice(&message.body).unwrap())
}

#[tokio::test]
async fn a_dead_letter_holds_any_body_and_header_byte_for_byte() {
    for body in [
        &b""[..],
        b"{\"amount\": 1.10}",
        &[0xff, 0x00, 0xfe],
        "\u{0}\u{1F4A9}".as_bytes(),
    ] {
        let (target, record) =
            record_of(dead_letter(DeadLetterConfig::default(), &failure(), body).await);
        assert_eq!(target, "a/dead/letters");
        assert_eq!(record.body.unwrap().bytes().unwrap(), body);
        assert_eq!(record.headers[0].value.bytes().unwrap(), [0xff, 0]);
        assert!(record.replayable);
    }
}

#[tokio::test]
async fn a_dead_letter_without_its_body_is_not_replayable() {
    let config = DeadLetterConfig {
        without_body: true,
        target: Some("a/dead/other".to_owned()),
    };
    let (target, record) = record_of(dead_letter(config, &failure(), b"x").await);
    assert_eq!(
        (target.as_str(), record.replayable),
        ("a/dead/other", false)
    );
    assert_eq!((record.body, record.headers.len()), (None, 0));
}

#[tokio::test]
async fn a_dead_letter_without_a_listed_target_parks() {
    let config = DeadLetterConfig {
        target: Some("a/r/typo".to_owned()),
        ..DeadLetterConfig::default()
    };
    for (config, failure) in [
        (config, failure()),
        (DeadLetterConfig::default(), FailureReport::default()),
    ] {
        let decision = dead_letter(config, &failure, b"x").await;
        assert!(
            matches!(&decision, Decision::Park { reason } if reason.contains("divert")),
            "{decision:?}"
        );
    }
}

#[tokio::test]
async fn poison_is_tried_until_its_attempts_are_spent_and_a_refused_write_never() {
    let config = IsolatePoisonConfig {
        attempts: 3,
        ..IsolatePoisonConfig::default()
    };
    let handler = IsolatePoison::open(config, &FunctionContext::default())
        .await
        .unwrap();
    let mut failure = failure();
    let refused = handler.decide(&failure, &message(b"x")).await;
    assert!(
        matches!(&refused, Decision::Divert { target, message: None } if target == "a/dead/letters"),
        "{refused:?}"
    );
    failure.send.clear();
    failure.divert.clear();
    for (attempts, again) in [(1, true), (2, true), (3, false), (4, false)] {
        failure.attempts = attempts;
        let decision = handler.decide(&failure, &message(b"x")).await;
        assert_eq!(
            matches!(decision, Decision::Retry { .. }),
            again,
            "{attempts}: {decision:?}"
        );
        assert_eq!(
            matches!(decision, Decision::Park { .. }),
            !again,
            "{attempts}"
        );
    }
    let none = IsolatePoisonConfig {
        attempts: 0,
        ..IsolatePoisonConfig::default()
    };
    assert!(
        IsolatePoison::open(none, &FunctionContext::default())
            .await
            .is_err()
    );
}

#[test]
fn data_that_is_no_base64_is_an_error() {
    assert!(Data::Base64("!".to_owned()).bytes().is_err());
}

#[test]
fn the_published_schema_is_the_records() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/dead-letter.schema.json"
    );
    let mut now = serde_json::to_string_pretty(&schema()).unwrap();
    now.push('\n');
    if std::env::var_os("CONSIGN_BLESS").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let published = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        published == now,
        "docs/dead-letter.schema.json is out of date: CONSIGN_BLESS=1 cargo test -p consign-plugin-handlers"
    );
}
