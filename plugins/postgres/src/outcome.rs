//! One table: what the server answered, and at which step, to the outcome of the writes.
//!
//! The server's five-character codes are those of its documentation, appendix A ("PostgreSQL Error
//! Codes"); the first two are the class. A transaction whose COMMIT was not sent is never applied.

use consign_plugin::prelude::*;
use consign_plugin::tls::disagreement;
use std::error::Error as _;
use std::io;
use tokio_postgres::Error;

/// Where in a transaction it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Opening it, or one of its statements.
    Statement,
    /// COMMIT was sent.
    Commit,
}

/// The outcome of the write whose step failed.
pub fn outcome(error: &Error, step: Step) -> Outcome {
    if let Some(db) = error.as_db_error() {
        return of_code(db.code().code(), step, &words(error));
    }
    // More than the protocol can carry, found before anything was sent.
    let refused = error.to_string().starts_with("error encoding");
    match step {
        Step::Commit => Outcome::unknown(("connection_lost", words(error))),
        Step::Statement if refused => Outcome::refused(("value", words(error))),
        Step::Statement => Outcome::down(("connection_lost", words(error))),
    }
}

/// The outcome of a server's error code.
pub fn of_code(code: &str, step: Step, message: &str) -> Outcome {
    let detail = (code, message);
    let class = code.get(..2).unwrap_or_default();
    if step == Step::Commit {
        match (code, class) {
            // The server ends, or cannot say what became of the transaction.
            (_, "57" | "08" | "58" | "XX") | ("40003", _) => return Outcome::unknown(detail),
            _ => {}
        }
    }
    match code {
        // A trigger or constraint that the transaction's end runs into, a data or check violation, a
        // value for a column that always generates its own, a value that is too large.
        "40002" | "428C9" => Outcome::refused(detail),
        // A standby, or a server that was made read-only: the next one in the list may take writes.
        "25006" => Outcome::down(detail),
        // The session waited for us too long, or the server ends it.
        "25P03" | "57P05" | "25P04" => Outcome::down(detail),
        "40003" | "08007" => Outcome::unknown(detail),
        // Cancelled while it waited, by its own timeout or by a person; a lock that was not to be had.
        "57014" | "55P03" | "55006" => Outcome::retry(detail),
        "57P04" => Outcome::denied(detail).of_connection(),
        "XX001" | "XX002" => Outcome::denied(detail).of_connection(),
        _ => match class {
            // Integrity constraints, data exceptions, cardinality, WITH CHECK OPTION, program limits,
            // and what a function raises.
            "23" | "22" | "21" | "44" | "54" | "P0" => Outcome::refused(detail),
            // Serialization failures and deadlocks, invalid transaction states.
            "40" | "25" | "2D" | "3B" => Outcome::retry(detail),
            // The connection; a disk that is full, memory or connections that are used up; operator
            // intervention; the system below the server.
            "08" | "53" | "57" | "58" => Outcome::down(detail),
            // Who we are.
            "28" | "3D" => Outcome::denied(detail).of_connection(),
            // A missing table, column, schema, function or grant; SQL that is wrong; a feature or an
            // object state that is not there: every write of the table is alike, its owner has to act.
            "42" | "3F" | "0A" | "55" | "2B" | "34" | "26" => Outcome::denied(detail),
            // A foreign table may have written elsewhere, where no transaction takes it back.
            "HV" => Outcome::failed_maybe(detail),
            // Internal errors and codes of later versions: rolled back, try again.
            _ => Outcome::retry(detail),
        },
    }
}

/// Why a session could not be opened, or did not answer a probe.
pub fn failure(error: &Error) -> Failure {
    let message = words(error);
    if let Some(db) = error.as_db_error() {
        let code = db.code().code();
        return match of_code(code, Step::Statement, &message).advice() {
            consign_plugin::Advice::NeverAlone => Failure::denied((code, message)),
            _ => Failure::down((code, message)),
        };
    }
    let text = error.to_string();
    if is_tls(error) {
        Failure::denied(("tls", message))
    } else if text.contains("authentication") || text.contains("configuration") {
        // A way to authenticate that is not supported, or a password that is missing.
        Failure::denied(("authentication", message))
    } else if text.contains("timeout") {
        Failure::down(("timeout", message))
    } else {
        Failure::down(("connect", message))
    }
}

/// Whether the two sides could not agree on TLS, or the server has none; a stream that broke meanwhile
/// is an outage.
fn is_tls(error: &Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|io| disagreement(io).is_none())
    };
    error.to_string().contains("TLS") && !error.source().is_some_and(io)
}

/// The outcome of writes for which there is no session: nothing was sent.
pub fn of_failure(failure: Failure) -> Outcome {
    let detail = (failure.code, failure.message);
    match failure.kind {
        FailureKind::Denied | FailureKind::Config => Outcome::denied(detail).of_connection(),
        _ => Outcome::down(detail),
    }
}

/// What the server said, its detail and hint included, or what broke.
fn words(error: &Error) -> String {
    if let Some(db) = error.as_db_error() {
        let more = [db.detail(), db.hint()];
        let more = more.into_iter().flatten().map(|text| format!("; {text}"));
        return format!("{}{}", db.message(), more.collect::<String>());
    }
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_plugin::{Advice, Applied, Scope};

    type Axes = (Applied, Scope, Advice);
    const DOWN: Axes = (Applied::No, Scope::Connection, Advice::Now);
    const RETRY: Axes = (Applied::No, Scope::Write, Advice::Now);
    const UNKNOWN: Axes = (Applied::Maybe, Scope::Connection, Advice::Now);
    const MAYBE: Axes = (Applied::Maybe, Scope::Write, Advice::Now);
    const DENIED: Axes = (Applied::No, Scope::Target, Advice::NeverAlone);
    const DENIED_ALL: Axes = (Applied::No, Scope::Connection, Advice::NeverAlone);
    const REFUSED: Axes = (Applied::No, Scope::Write, Advice::Never);

    fn axes(code: &str, step: Step) -> Axes {
        let outcome = of_code(code, step, "words");
        assert_eq!(outcome.code(), code);
        (outcome.applied(), outcome.scope(), outcome.advice())
    }

    #[test]
    fn every_class_has_its_outcome() {
        for (codes, expected) in [
            (
                &[
                    "23505", "23514", "23502", "23503", "22P02", "22003", "22021", "21000",
                    "44000", "54000", "P0001", "40002", "428C9",
                ][..],
                REFUSED,
            ),
            (
                &[
                    "40001", "40P01", "55P03", "57014", "25P02", "25001", "XX000", "99999", "",
                ],
                RETRY,
            ),
            (
                &[
                    "08006", "53100", "53200", "53300", "57P01", "57P02", "57P03", "58030",
                    "25006", "25P03",
                ],
                DOWN,
            ),
            (
                &[
                    "42P01", "42703", "42501", "42601", "42P10", "3F000", "0A000", "55000",
                ],
                DENIED,
            ),
            (&["28P01", "28000", "3D000", "57P04", "XX001"], DENIED_ALL),
            (&["40003", "08007"], UNKNOWN),
            (&["HV00N"], MAYBE),
        ] {
            for code in codes {
                assert_eq!(axes(code, Step::Statement), expected, "{code}");
            }
        }
    }

    #[test]
    fn at_the_commit_only_an_answer_that_says_so_means_rolled_back() {
        for (codes, expected) in [
            (&["23505", "23503", "P0001"][..], REFUSED),
            (&["40001", "40P01"], RETRY),
            (
                &[
                    "57P01", "57P02", "57014", "08006", "58030", "XX000", "40003",
                ],
                UNKNOWN,
            ),
            (&["53100"], DOWN),
        ] {
            for code in codes {
                assert_eq!(axes(code, Step::Commit), expected, "{code}");
            }
        }
    }

    #[test]
    fn a_dial_that_failed_sent_nothing() {
        let axes = |failure| {
            let outcome = of_failure(failure);
            (outcome.applied(), outcome.scope(), outcome.advice())
        };
        assert_eq!(axes(Failure::down(("a", "b"))), DOWN);
        assert_eq!(axes(Failure::other(("a", "b"))), DOWN);
        assert_eq!(axes(Failure::denied(("a", "b"))), DENIED_ALL);
        assert_eq!(axes(Failure::config(("a", "b"))), DENIED_ALL);
    }
}
