//! One table: what the server, or the client, answered to a publish, to the outcome of the write.

use async_nats::client::{PublishErrorKind, RequestErrorKind};
use async_nats::{ConnectErrorKind, client};
use consign_plugin::prelude::*;
use serde::Deserialize;
use std::time::Duration;

/// How long a stream that is full, or for the moment without a leader, is left alone.
const STREAM_PAUSE: Duration = Duration::from_secs(2);

/// What became of one publish.
#[derive(Debug)]
pub enum Answer {
    /// JetStream, or whoever listens on the subject, answered with this body.
    Reply(Vec<u8>),
    /// The server has read a core publish.
    Read,
    /// Nobody listens on the subject: no stream covers it.
    NoResponders,
    /// No answer within the time.
    TimedOut,
    /// The connection went away after the message was handed to it.
    Lost,
    /// The connection was gone before.
    NotSent,
    /// The user may not publish to the subject.
    NotPermitted,
    /// Message and headers are larger than the server's `max_payload`; the client's own words.
    TooLarge(String),
    /// The rendered subject is none.
    BadSubject,
}

/// A JetStream answer to a publish.
#[derive(Debug, Deserialize)]
struct PublishAck {
    #[serde(default)]
    stream: String,
    #[serde(default)]
    duplicate: bool,
    error: Option<ApiError>,
}

#[derive(Debug, Deserialize)]
struct ApiError {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    err_code: u32,
    #[serde(default)]
    description: String,
}

/// The outcome of a publish to `subject`.
pub fn outcome(subject: &str, answer: Answer) -> Outcome {
    match answer {
        Answer::Reply(body) => acknowledged(subject, &body),
        Answer::Read => Outcome::sent_unconfirmed(),
        Answer::NoResponders => Outcome::denied((
            "no_stream",
            format!("no JetStream stream covers subject `{subject}`"),
        )),
        Answer::TimedOut => Outcome::unknown(("timeout", "the server did not answer in time")),
        Answer::Lost => {
            Outcome::unknown(("connection_lost", "the connection broke before the answer"))
        }
        Answer::NotSent => Outcome::down(("not_connected", "the connection is gone")),
        Answer::NotPermitted => Outcome::denied((
            "not_permitted",
            format!("the user may not publish to `{subject}`"),
        )),
        Answer::TooLarge(message) => Outcome::refused(("max_payload", message)),
        Answer::BadSubject => Outcome::refused((
            "subject",
            format!("`{subject}` is not a subject to publish to"),
        )),
    }
}

/// The stream named in a positive acknowledgement.
pub fn stream_of(body: &[u8]) -> Option<String> {
    let ack: PublishAck = serde_json::from_slice(body).ok()?;
    (ack.error.is_none() && !ack.stream.is_empty()).then_some(ack.stream)
}

fn acknowledged(subject: &str, body: &[u8]) -> Outcome {
    match serde_json::from_slice::<PublishAck>(body) {
        Ok(PublishAck {
            error: Some(error), ..
        }) => refused_by_stream(&error),
        Ok(ack) if ack.stream.is_empty() => not_an_ack(subject),
        Ok(ack) if ack.duplicate => Outcome::delivered_repeat(),
        Ok(_) => Outcome::delivered(),
        Err(_) => not_an_ack(subject),
    }
}

/// A service answered. A stream may have stored the message all the same.
fn not_an_ack(subject: &str) -> Outcome {
    Outcome::failed_maybe((
        "not_an_ack",
        format!("what answers on `{subject}` is not a JetStream stream"),
    ))
}

/// The server's own error numbers (errors.json of nats-server); none of these stored the message.
fn refused_by_stream(error: &ApiError) -> Outcome {
    let detail = (
        format!("jetstream_{}", error.err_code),
        format!("{} ({})", error.description, error.code),
    );
    match error.err_code {
        // Too large for the stream, headers over 64 KiB, an expectation of the headers not met.
        10054 | 10097 | 10063 | 10070 | 10071 | 10111 | 10003 => Outcome::refused(detail),
        // Account, memory or storage limits; the stream is full and discards the new.
        10002 | 10023 | 10028 | 10047 | 10077 | 10122 => {
            Outcome::throttled(STREAM_PAUSE).with_detail(detail)
        }
        // No leader, no quorum, offline, for now.
        10004 | 10006..=10009 | 10041 | 10118 => {
            Outcome::throttled(STREAM_PAUSE).with_detail(detail)
        }
        // JetStream is off or not for this account; the stream is gone, sealed, or not the one that
        // `stream` names.
        10035 | 10039 | 10056 | 10059 | 10060 | 10076 | 10109 => Outcome::denied(detail),
        // Numbers of later versions: their class decides.
        _ if (400..500).contains(&error.code) => Outcome::refused(detail),
        _ => Outcome::failed_maybe(detail),
    }
}

/// What the client says when a JetStream publish has no answer.
pub fn of_request(error: &client::RequestError) -> Answer {
    match error.kind() {
        RequestErrorKind::TimedOut => Answer::TimedOut,
        RequestErrorKind::NoResponders => Answer::NoResponders,
        RequestErrorKind::InvalidSubject => Answer::BadSubject,
        RequestErrorKind::MaxPayloadExceeded => Answer::TooLarge(error.to_string()),
        RequestErrorKind::Other => Answer::Lost,
    }
}

/// What the client says when it does not take a core publish.
pub fn of_publish(error: &client::PublishError) -> Answer {
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => Answer::TooLarge(error.to_string()),
        PublishErrorKind::InvalidSubject => Answer::BadSubject,
        PublishErrorKind::Send => Answer::NotSent,
    }
}

/// Why a dial failed.
pub fn failure(error: &async_nats::ConnectError) -> Failure {
    let message = error.to_string();
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            Failure::denied(("not_authorized", message))
        }
        ConnectErrorKind::Tls => Failure::denied(("tls", message)),
        ConnectErrorKind::ServerParse => Failure::config(("servers", message)),
        _ => Failure::down(("connect", message)),
    }
}

/// The outcome of writes whose connection could not be dialled: nothing was sent.
pub fn of_failure(failure: Failure) -> Outcome {
    let detail = (failure.code, failure.message);
    match failure.kind {
        FailureKind::Denied | FailureKind::Config => Outcome::denied(detail).of_connection(),
        _ => Outcome::down(detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_plugin::{Advice, Applied, Scope};

    type Axes = (Applied, Scope, Advice);
    const REFUSED: Axes = (Applied::No, Scope::Write, Advice::Never);
    const THROTTLED: Axes = (Applied::No, Scope::Target, Advice::After);
    const DENIED: Axes = (Applied::No, Scope::Target, Advice::NeverAlone);
    const MAYBE: Axes = (Applied::Maybe, Scope::Write, Advice::Now);
    const UNKNOWN: Axes = (Applied::Maybe, Scope::Connection, Advice::Now);
    const DOWN: Axes = (Applied::No, Scope::Connection, Advice::Now);

    fn axes(outcome: &Outcome) -> Axes {
        (outcome.applied(), outcome.scope(), outcome.advice())
    }

    fn reply(body: &str) -> Outcome {
        outcome("a", Answer::Reply(body.into()))
    }

    #[test]
    fn every_answer_has_its_outcome() {
        for (answer, expected, code) in [
            (Answer::NoResponders, DENIED, "no_stream"),
            (Answer::TimedOut, UNKNOWN, "timeout"),
            (Answer::Lost, UNKNOWN, "connection_lost"),
            (Answer::NotSent, DOWN, "not_connected"),
            (Answer::NotPermitted, DENIED, "not_permitted"),
            (Answer::TooLarge("x".into()), REFUSED, "max_payload"),
            (Answer::BadSubject, REFUSED, "subject"),
        ] {
            let outcome = outcome("a", answer);
            assert_eq!((axes(&outcome), outcome.code()), (expected, code));
        }
        assert_eq!(outcome("a", Answer::Read), Outcome::sent_unconfirmed());
    }

    #[test]
    fn every_acknowledgement_has_its_outcome() {
        assert_eq!(reply(r#"{"stream":"A","seq":1}"#), Outcome::delivered());
        assert_eq!(
            reply(r#"{"stream":"A","seq":1,"duplicate":true}"#),
            Outcome::delivered_repeat()
        );
        for body in [
            "",
            "thanks",
            "{}",
            "[]",
            r#"{"stream":""}"#,
            r#"{"stream":7}"#,
            r#"{"ok":true}"#,
        ] {
            let outcome = reply(body);
            assert_eq!(
                (axes(&outcome), outcome.code()),
                (MAYBE, "not_an_ack"),
                "{body}"
            );
        }
        assert_eq!(stream_of(br#"{"stream":"A","seq":1}"#), Some("A".into()));
        assert_eq!(stream_of(br#"{"stream":"A","error":{}}"#), None);
    }

    #[test]
    fn every_stream_error_has_its_outcome() {
        for (codes, status, expected) in [
            (
                &[10054, 10097, 10063, 10070, 10071, 10111, 10003][..],
                400,
                REFUSED,
            ),
            (&[10002, 10023, 10028, 10047, 10077, 10122], 503, THROTTLED),
            (
                &[10004, 10006, 10007, 10008, 10009, 10041, 10118],
                503,
                THROTTLED,
            ),
            (
                &[10035, 10039, 10056, 10059, 10060, 10076, 10109],
                400,
                DENIED,
            ),
            (&[10999], 400, REFUSED),
            (&[10999, 0], 500, MAYBE),
        ] {
            for code in codes {
                let body = format!(
                    r#"{{"error":{{"code":{status},"err_code":{code},"description":"d"}},"stream":"A","seq":0}}"#
                );
                let outcome = reply(&body);
                assert_eq!(
                    (axes(&outcome), outcome.code()),
                    (expected, &*format!("jetstream_{code}"))
                );
                assert_eq!(outcome.detail().unwrap().message, format!("d ({status})"));
            }
        }
        assert_eq!(axes(&reply(r#"{"error":{}}"#)), MAYBE);
    }

    #[test]
    fn a_dial_that_failed_sent_nothing() {
        for (failure, expected) in [
            (Failure::down(("a", "b")), DOWN),
            (Failure::other(("a", "b")), DOWN),
            (
                Failure::denied(("a", "b")),
                (Applied::No, Scope::Connection, Advice::NeverAlone),
            ),
            (
                Failure::config(("a", "b")),
                (Applied::No, Scope::Connection, Advice::NeverAlone),
            ),
        ] {
            assert_eq!(axes(&of_failure(failure)), expected);
        }
    }
}
