//! One table: how far a message got, to the outcome of its write.

use consign_plugin::prelude::*;
use consign_plugin::tls::disagreement;
use std::io;

/// What became of one message of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The network stack took all of it. Nobody says more.
    HandedOver,
    /// The stream ended in the midst of it, and the framing tells the receiver that it has a part.
    CutShort(Detail),
    /// The stream ended in the midst of it, or TLS does not tell, and the receiver may take what it has
    /// for the message.
    InDoubt(Detail),
    /// Nothing of it left.
    NotSent(Detail),
    /// Nothing of it left: a message before it in its batch can never be sent.
    Behind,
    /// It can never be sent over this stream.
    Unsendable(Detail),
}

/// The outcome of one write.
#[must_use]
pub fn outcome(answer: Answer) -> Outcome {
    match answer {
        Answer::HandedOver => Outcome::sent_unconfirmed(),
        // The receiver has no message; it gets the whole one over the next stream.
        Answer::CutShort(why) | Answer::NotSent(why) => Outcome::down(why),
        Answer::InDoubt(why) => Outcome::unknown(why),
        Answer::Behind => Outcome::retry((
            "behind_refused",
            "not sent: a message before it in its batch was refused",
        )),
        Answer::Unsendable(why) => Outcome::refused(why),
    }
}

/// The outcome of writes for which there is no stream.
#[must_use]
pub fn of_failure(failure: &Failure) -> Outcome {
    let detail = Detail::new(failure.code.clone(), failure.message.clone());
    match failure.kind {
        FailureKind::Denied | FailureKind::Config => Outcome::denied(detail).of_connection(),
        _ => Outcome::down(detail),
    }
}

/// Why a dial failed. What TLS says needs a person; everything else may pass.
#[must_use]
pub fn of_dial(address: &str, error: &io::Error) -> Failure {
    match disagreement(error) {
        Some(words) => Failure::denied(("tls", format!("{address}: {words}"))),
        None => {
            let Detail { code, message } = of_io(error);
            Failure::down((code, format!("{address}: {message}")))
        }
    }
}

/// What ended a stream, or kept it from beginning.
#[must_use]
pub fn of_io(error: &io::Error) -> Detail {
    use io::ErrorKind as Kind;
    if let Some(words) = disagreement(error) {
        return Detail::new("tls", words);
    }
    let (code, words) = match error.kind() {
        Kind::ConnectionRefused => ("refused", "nobody listens there"),
        Kind::ConnectionReset | Kind::ConnectionAborted => ("reset", "the receiver cut the stream"),
        Kind::BrokenPipe | Kind::NotConnected => ("broken_pipe", "the stream is gone"),
        Kind::UnexpectedEof | Kind::WriteZero => ("closed", "the receiver closed the stream"),
        Kind::TimedOut => (
            "timeout",
            "the receiver takes nothing, or its machine does not answer",
        ),
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown => {
            ("unreachable", "there is no way to the receiver")
        }
        _ => ("io", "the stream failed"),
    };
    Detail::new(code, format!("{words} ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_plugin::tls::rustls;
    use consign_plugin::{Advice, Applied, Scope};

    type Axes = (Applied, Scope, Advice);
    const DOWN: Axes = (Applied::No, Scope::Connection, Advice::Now);
    const DENIED: Axes = (Applied::No, Scope::Connection, Advice::NeverAlone);

    fn axes(outcome: &Outcome) -> Axes {
        (outcome.applied(), outcome.scope(), outcome.advice())
    }

    #[test]
    fn every_answer_has_its_outcome() {
        let why = || Detail::new("why", "because");
        assert_eq!(outcome(Answer::HandedOver), Outcome::sent_unconfirmed());
        for (answer, expected, code) in [
            (Answer::CutShort(why()), DOWN, "why"),
            (Answer::NotSent(why()), DOWN, "why"),
            (
                Answer::InDoubt(why()),
                (Applied::Maybe, Scope::Connection, Advice::Now),
                "why",
            ),
            (
                Answer::Behind,
                (Applied::No, Scope::Write, Advice::Now),
                "behind_refused",
            ),
            (
                Answer::Unsendable(why()),
                (Applied::No, Scope::Write, Advice::Never),
                "why",
            ),
        ] {
            let outcome = outcome(answer);
            assert_eq!((axes(&outcome), outcome.code()), (expected, code));
        }
    }

    #[test]
    fn a_dial_that_failed_sent_nothing() {
        for (failure, expected) in [
            (Failure::down(("a", "b")), DOWN),
            (Failure::other(("a", "b")), DOWN),
            (Failure::denied(("a", "b")), DENIED),
            (Failure::config(("a", "b")), DENIED),
        ] {
            assert_eq!(axes(&of_failure(&failure)), expected);
        }
    }

    #[test]
    fn every_end_of_a_stream_has_its_code() {
        use io::ErrorKind as Kind;
        for (kinds, code) in [
            (&[Kind::ConnectionRefused][..], "refused"),
            (&[Kind::ConnectionReset, Kind::ConnectionAborted], "reset"),
            (&[Kind::BrokenPipe, Kind::NotConnected], "broken_pipe"),
            (&[Kind::UnexpectedEof, Kind::WriteZero], "closed"),
            (&[Kind::TimedOut], "timeout"),
            (
                &[
                    Kind::HostUnreachable,
                    Kind::NetworkUnreachable,
                    Kind::NetworkDown,
                ],
                "unreachable",
            ),
            (&[Kind::Other, Kind::PermissionDenied], "io"),
        ] {
            for kind in kinds {
                assert_eq!(of_io(&io::Error::from(*kind)).code, code);
                let failure = of_dial("a:1", &io::Error::from(*kind));
                assert_eq!((failure.kind, &*failure.code), (FailureKind::Down, code));
                assert!(failure.message.starts_with("a:1: "), "{failure}");
            }
        }
    }

    #[test]
    fn what_tls_says_needs_a_person() {
        for (error, words) in [
            (
                rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
                "does not speak TLS",
            ),
            (
                rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired),
                "refuses us",
            ),
            (
                rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer),
                "UnknownIssuer",
            ),
        ] {
            let failure = of_dial("a:1", &io::Error::new(io::ErrorKind::InvalidData, error));
            assert_eq!((failure.kind, &*failure.code), (FailureKind::Denied, "tls"));
            assert!(failure.message.contains(words), "{failure}");
        }
    }
}
