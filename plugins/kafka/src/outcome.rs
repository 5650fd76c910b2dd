//! One table: what became of a record to the outcome of its write.
//!
//! Where the client library says that a record may have been stored, no error code makes that a no. Where
//! it says no (never sent, or refused by the broker), the code says what to do about it.

use crate::raw::Stored;
use consign_plugin::prelude::*;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::time::Duration;

/// How long a topic that takes no writes for the moment is left alone.
const TOPIC_PAUSE: Duration = Duration::from_secs(2);

/// How long a queue that is full is left alone: it empties as fast as the broker answers.
const QUEUE_PAUSE: Duration = Duration::from_millis(100);

/// What became of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// All in-sync replicas have it.
    Stored,
    /// It failed; whether it may have been stored all the same.
    Failed(Code, Stored),
    /// The client library did not take it.
    NotTaken(Code),
    /// It was handed to the client library, and no report came.
    NoReport,
    /// It stands behind one that was not taken.
    NotAttempted,
    /// The rendered topic is none.
    BadTopic,
    /// The rendered partition is no number, or the topic has not so many.
    BadPartition(String),
    /// Longer than the topic takes: its bytes, and the limit.
    TooLarge(usize, u64),
}

/// The outcome of a record for `topic`.
#[must_use]
pub fn outcome(topic: &str, answer: &Answer) -> Outcome {
    match answer {
        Answer::Stored => Outcome::delivered(),
        Answer::Failed(code, Stored::Maybe) => maybe(topic, *code),
        Answer::Failed(code, Stored::No) | Answer::NotTaken(code) => not_stored(topic, *code),
        Answer::NoReport => Outcome::unknown(("no_report", "nothing is known about the record")),
        Answer::NotAttempted => Outcome::throttled(Duration::ZERO).with_detail((
            "not_attempted",
            "it stands behind a record that was not taken",
        )),
        Answer::BadTopic => Outcome::refused(("topic", format!("`{topic}` is not a topic's name"))),
        Answer::BadPartition(text) => Outcome::refused((
            "partition",
            format!("topic `{topic}` has no partition `{text}`"),
        )),
        Answer::TooLarge(bytes, limit) => Outcome::refused((
            "message_too_large",
            format!(
                "the record has {bytes} bytes and topic `{topic}` takes {limit} (max.message.bytes)"
            ),
        )),
    }
}

/// The request left, and its answer is not known.
fn maybe(topic: &str, code: Code) -> Outcome {
    match code {
        // The broker answered: it is there, and its followers are not.
        Code::NotEnoughReplicasAfterAppend => Outcome::target_failed((
            "not_enough_replicas",
            format!("topic `{topic}`: the leader has the record and too few replicas do"),
        )),
        Code::RequestTimedOut => Outcome::target_failed((
            "replication_timeout",
            format!("topic `{topic}`: the replicas did not follow in time"),
        )),
        Code::PurgeInflight
        | Code::PurgeQueue
        | Code::MessageTimedOut
        | Code::OperationTimedOut => {
            Outcome::unknown(("timeout", "the broker did not answer in time"))
        }
        Code::BrokerTransportFailure | Code::AllBrokersDown | Code::NetworkException => {
            Outcome::unknown(("connection_lost", "the connection broke before the answer"))
        }
        other => Outcome::unknown((name(other), other.to_string())),
    }
}

/// The record is not in the topic.
fn not_stored(topic: &str, code: Code) -> Outcome {
    let said = |what: &str| (name(code), format!("topic `{topic}`: {what}"));
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            Outcome::refused((
                "message_too_large",
                format!("topic `{topic}` does not take a record of this size (max.message.bytes)"),
            ))
        }
        Code::InvalidRecord => Outcome::refused(said(
            "the broker refuses the record (a compacted topic needs a key)",
        )),
        Code::InvalidTimestamp => {
            Outcome::refused(said("the record's time is outside of what the topic takes"))
        }
        Code::PolicyViolation | Code::UnsupportedForMessageFormat | Code::InvalidArgument => {
            Outcome::refused(said(&code.to_string()))
        }
        Code::InvalidTopic => {
            Outcome::refused(("topic", format!("`{topic}` is not a topic's name")))
        }
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownTopicId => {
            Outcome::denied(("no_topic", format!("there is no topic `{topic}`")))
        }
        Code::UnknownPartition => Outcome::refused((
            "partition",
            format!("topic `{topic}` has no such partition"),
        )),
        Code::TopicAuthorizationFailed => Outcome::denied((
            "not_permitted",
            format!("the user may not write to topic `{topic}`"),
        )),
        Code::ClusterAuthorizationFailed => Outcome::denied((
            "not_permitted",
            "the user may not write idempotently (IdempotentWrite on the cluster)",
        ))
        .of_connection(),
        Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL => {
            Outcome::denied((name(code), code.to_string())).of_connection()
        }
        Code::QueueFull => Outcome::throttled(QUEUE_PAUSE).with_detail((
            "queue_full",
            "the client's queue is full: the broker is slower than what is written",
        )),
        Code::BrokerTransportFailure | Code::AllBrokersDown | Code::Resolve => {
            Outcome::down(("not_connected", "no broker could be reached"))
        }
        // It waited for its turn until its time was over: nothing of it left.
        Code::PurgeQueue | Code::PurgeInflight | Code::MessageTimedOut => {
            Outcome::throttled(TOPIC_PAUSE).with_detail((
                "not_sent",
                format!("topic `{topic}` took no record in time (no leader, or too few replicas)"),
            ))
        }
        Code::NotLeaderForPartition
        | Code::LeaderNotAvailable
        | Code::NotEnoughReplicas
        | Code::KafkaStorageError
        | Code::ThrottlingQuotaExceeded
        | Code::BrokerNotAvailable
        | Code::ReplicaNotAvailable => {
            Outcome::throttled(TOPIC_PAUSE).with_detail(said(&code.to_string()))
        }
        other => Outcome::retry(said(&other.to_string())),
    }
}

/// A stable name for a code: `MessageSizeTooLarge` is `message_size_too_large`.
#[must_use]
pub fn name(code: Code) -> String {
    let mut out = String::new();
    let mut before_upper = true;
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !before_upper {
            out.push('_');
        }
        before_upper = letter.is_ascii_uppercase();
        out.push(letter.to_ascii_lowercase());
    }
    out
}

/// Why nothing could be asked of the cluster; `reason` is what the client library said last.
#[must_use]
pub fn failure(code: Code, reason: &str) -> Failure {
    let said = if reason.is_empty() {
        code.to_string()
    } else {
        reason.to_owned()
    };
    match code {
        Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState => Failure::denied(("not_authorized", said)),
        Code::SSL => Failure::denied(("tls", said)),
        Code::ClusterAuthorizationFailed
        | Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed => Failure::denied(("not_permitted", said)),
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownTopicId => {
            Failure::denied(("no_topic", said))
        }
        Code::Resolve => Failure::down(("resolve", said)),
        Code::BrokerTransportFailure | Code::AllBrokersDown => Failure::down(("connect", said)),
        Code::OperationTimedOut | Code::MessageTimedOut | Code::TimedOutQueue => {
            Failure::down(("timeout", said))
        }
        other => Failure::other((name(other), said)),
    }
}

/// The outcome of writes whose cluster could not be asked: nothing was sent.
#[must_use]
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
    const RETRY: Axes = (Applied::No, Scope::Write, Advice::Now);
    const THROTTLED: Axes = (Applied::No, Scope::Target, Advice::After);
    const DENIED: Axes = (Applied::No, Scope::Target, Advice::NeverAlone);
    const LOCKED_OUT: Axes = (Applied::No, Scope::Connection, Advice::NeverAlone);
    const TARGET: Axes = (Applied::Maybe, Scope::Target, Advice::Now);
    const UNKNOWN: Axes = (Applied::Maybe, Scope::Connection, Advice::Now);
    const DOWN: Axes = (Applied::No, Scope::Connection, Advice::Now);

    fn axes(outcome: &Outcome) -> Axes {
        (outcome.applied(), outcome.scope(), outcome.advice())
    }

    #[test]
    fn every_answer_has_its_outcome() {
        assert_eq!(outcome("t", &Answer::Stored), Outcome::delivered());
        let failed = |code, stored| Answer::Failed(code, stored);
        for (answer, expected, code) in [
            (Answer::NoReport, UNKNOWN, "no_report"),
            (Answer::NotAttempted, THROTTLED, "not_attempted"),
            (Answer::BadTopic, REFUSED, "topic"),
            (Answer::BadPartition("x".into()), REFUSED, "partition"),
            (Answer::TooLarge(9, 1), REFUSED, "message_too_large"),
            (Answer::NotTaken(Code::QueueFull), THROTTLED, "queue_full"),
            (
                Answer::NotTaken(Code::MessageSizeTooLarge),
                REFUSED,
                "message_too_large",
            ),
            (
                failed(Code::MessageTimedOut, Stored::Maybe),
                UNKNOWN,
                "timeout",
            ),
            (
                failed(Code::MessageTimedOut, Stored::No),
                THROTTLED,
                "not_sent",
            ),
            (
                failed(Code::PurgeInflight, Stored::Maybe),
                UNKNOWN,
                "timeout",
            ),
            // Purged from the queue, but it had been sent before and was to be sent again.
            (failed(Code::PurgeQueue, Stored::Maybe), UNKNOWN, "timeout"),
            (failed(Code::PurgeQueue, Stored::No), THROTTLED, "not_sent"),
            (
                failed(Code::BrokerTransportFailure, Stored::Maybe),
                UNKNOWN,
                "connection_lost",
            ),
            (
                failed(Code::BrokerTransportFailure, Stored::No),
                DOWN,
                "not_connected",
            ),
            (failed(Code::Fatal, Stored::Maybe), UNKNOWN, "fatal"),
            (failed(Code::Fatal, Stored::No), RETRY, "fatal"),
        ] {
            let outcome = outcome("t", &answer);
            assert_eq!(
                (axes(&outcome), outcome.code()),
                (expected, code),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn every_code_of_a_broker_has_its_outcome() {
        use Code::*;
        for (codes, expected) in [
            (
                &[
                    MessageSizeTooLarge,
                    MessageBatchTooLarge,
                    InvalidRecord,
                    InvalidTimestamp,
                    PolicyViolation,
                    InvalidTopic,
                    UnknownPartition,
                ][..],
                REFUSED,
            ),
            (
                &[
                    UnknownTopic,
                    UnknownTopicOrPartition,
                    UnknownTopicId,
                    TopicAuthorizationFailed,
                ],
                DENIED,
            ),
            (
                &[
                    ClusterAuthorizationFailed,
                    Authentication,
                    SaslAuthenticationFailed,
                ],
                LOCKED_OUT,
            ),
            (
                &[
                    NotLeaderForPartition,
                    LeaderNotAvailable,
                    NotEnoughReplicas,
                    KafkaStorageError,
                    ThrottlingQuotaExceeded,
                ],
                THROTTLED,
            ),
            (&[AllBrokersDown, Resolve], DOWN),
            (
                &[OutOfOrderSequenceNumber, UnknownProducerId, InvalidMessage],
                RETRY,
            ),
        ] {
            for code in codes {
                let outcome = outcome("t", &Answer::Failed(*code, Stored::No));
                assert_eq!(axes(&outcome), expected, "{code:?}");
            }
        }
        for code in [NotEnoughReplicasAfterAppend, RequestTimedOut] {
            let outcome = outcome("t", &Answer::Failed(code, Stored::Maybe));
            assert_eq!(axes(&outcome), TARGET, "{code:?}");
        }
        // Whatever the code says, what may have been stored is never called not stored.
        for code in [MessageSizeTooLarge, QueueFull, UnknownTopic, Authentication] {
            let outcome = outcome("t", &Answer::Failed(code, Stored::Maybe));
            assert_eq!(outcome.applied(), Applied::Maybe, "{code:?}");
        }
    }

    #[test]
    fn a_refusal_names_topic_and_size() {
        let outcome = outcome("orders", &Answer::TooLarge(2_000_000, 1_048_588));
        let message = &outcome.detail().unwrap().message;
        assert!(
            ["orders", "2000000", "1048588", "max.message.bytes"]
                .iter()
                .all(|part| message.contains(part)),
            "{message}"
        );
    }

    #[test]
    fn a_cluster_that_cannot_be_asked_sent_nothing() {
        for (code, kind, expected) in [
            (Code::BrokerTransportFailure, FailureKind::Down, DOWN),
            (Code::OperationTimedOut, FailureKind::Down, DOWN),
            (Code::Resolve, FailureKind::Down, DOWN),
            (Code::Authentication, FailureKind::Denied, LOCKED_OUT),
            (Code::SSL, FailureKind::Denied, LOCKED_OUT),
            (Code::Unknown, FailureKind::Other, DOWN),
        ] {
            let failure = failure(code, "why");
            assert_eq!((failure.kind, failure.message.as_str()), (kind, "why"));
            assert_eq!(axes(&of_failure(failure)), expected, "{code:?}");
        }
    }

    #[test]
    fn codes_have_names_of_one_form() {
        assert_eq!(name(Code::MessageSizeTooLarge), "message_size_too_large");
        assert_eq!(name(Code::SSL), "ssl");
        assert_eq!(name(Code::Fatal), "fatal");
    }
}
