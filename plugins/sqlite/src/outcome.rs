//! One table: what SQLite answered, and at which step, to the outcome of the writes.

use consign_plugin::prelude::*;
use rusqlite::{Error, ErrorCode};

/// Where in a transaction SQLite answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Opening the file or taking the write lock.
    Begin,
    /// Inserting a row.
    Insert,
    /// Making the transaction durable.
    Commit,
}

/// The outcome of the write whose step failed. The transaction is rolled back, so everything but an
/// I/O error at commit was not applied: there a WAL frame may be complete though its flush failed.
pub fn outcome(error: &Error, step: Step) -> Outcome {
    use ErrorCode as E;
    let detail = |code: &str| (code.to_owned(), error.to_string());
    let Some(code) = error.sqlite_error_code() else {
        // The driver refused the value before SQLite saw it.
        return Outcome::refused(detail("value"));
    };
    match code {
        // Another program holds the lock: nothing about this write is wrong.
        E::DatabaseBusy | E::FileLockingProtocolFailed => Outcome::down(detail("busy")),
        E::DatabaseLocked => Outcome::retry(detail("locked")),
        E::SchemaChanged | E::OperationInterrupted | E::OperationAborted => {
            Outcome::retry(detail("interrupted"))
        }
        E::DiskFull => Outcome::down(detail("disk_full")),
        E::SystemIoFailure if step == Step::Commit => Outcome::unknown(detail("commit_io")),
        E::SystemIoFailure => Outcome::down(detail("io")),
        E::CannotOpen | E::NoLargeFileSupport => Outcome::down(detail("cannot_open")),
        E::OutOfMemory => Outcome::down(detail("out_of_memory")),
        E::ReadOnly | E::PermissionDenied | E::AuthorizationForStatementDenied => {
            Outcome::denied(detail("read_only")).of_connection()
        }
        E::DatabaseCorrupt | E::NotADatabase => Outcome::denied(detail("corrupt")).of_connection(),
        E::ConstraintViolation => Outcome::refused(detail("constraint")),
        E::TypeMismatch | E::TooBig | E::ParameterOutOfRange => Outcome::refused(detail("value")),
        // A statement that does not compile, a trigger's function that is missing: the table's
        // owner has to act, and every write of the table is alike.
        E::Unknown | E::NotFound => Outcome::denied(detail("statement")),
        // ApiMisuse, InternalMalfunction and codes of later versions: rolled back, try again.
        _ => Outcome::retry(detail("sqlite")),
    }
}

/// The same, for opening or probing a connection.
pub fn failure(error: &Error) -> Failure {
    use ErrorCode as E;
    let message = error.to_string();
    match error.sqlite_error_code() {
        Some(E::ReadOnly | E::PermissionDenied | E::AuthorizationForStatementDenied) => {
            Failure::denied(("read_only", message))
        }
        Some(E::DatabaseCorrupt | E::NotADatabase) => Failure::denied(("corrupt", message)),
        Some(E::DatabaseBusy) => Failure::down(("busy", message)),
        _ => Failure::down(("cannot_open", message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_plugin::{Advice, Applied, Scope};
    use rusqlite::{Connection, OpenFlags, ffi};

    type Axes = (Applied, Scope, Advice);
    const DOWN: Axes = (Applied::No, Scope::Connection, Advice::Now);
    const RETRY: Axes = (Applied::No, Scope::Write, Advice::Now);
    const UNKNOWN: Axes = (Applied::Maybe, Scope::Connection, Advice::Now);
    const DENIED: Axes = (Applied::No, Scope::Target, Advice::NeverAlone);
    const DENIED_ALL: Axes = (Applied::No, Scope::Connection, Advice::NeverAlone);
    const REFUSED: Axes = (Applied::No, Scope::Write, Advice::Never);

    fn axes(outcome: &Outcome) -> Axes {
        (outcome.applied(), outcome.scope(), outcome.advice())
    }

    #[test]
    fn every_code_has_its_outcome() {
        for (codes, step, expected, name) in [
            (
                &[
                    ffi::SQLITE_BUSY,
                    ffi::SQLITE_BUSY_SNAPSHOT,
                    ffi::SQLITE_PROTOCOL,
                ][..],
                Step::Begin,
                DOWN,
                "busy",
            ),
            (
                &[ffi::SQLITE_LOCKED, ffi::SQLITE_LOCKED_SHAREDCACHE],
                Step::Insert,
                RETRY,
                "locked",
            ),
            (
                &[ffi::SQLITE_SCHEMA, ffi::SQLITE_INTERRUPT, ffi::SQLITE_ABORT],
                Step::Insert,
                RETRY,
                "interrupted",
            ),
            (&[ffi::SQLITE_FULL], Step::Insert, DOWN, "disk_full"),
            (&[ffi::SQLITE_FULL], Step::Commit, DOWN, "disk_full"),
            (
                &[ffi::SQLITE_IOERR, ffi::SQLITE_IOERR_WRITE],
                Step::Insert,
                DOWN,
                "io",
            ),
            (
                &[ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_WRITE],
                Step::Commit,
                UNKNOWN,
                "commit_io",
            ),
            (
                &[ffi::SQLITE_CANTOPEN, ffi::SQLITE_NOLFS],
                Step::Begin,
                DOWN,
                "cannot_open",
            ),
            (&[ffi::SQLITE_NOMEM], Step::Insert, DOWN, "out_of_memory"),
            (
                &[ffi::SQLITE_READONLY, ffi::SQLITE_PERM, ffi::SQLITE_AUTH],
                Step::Begin,
                DENIED_ALL,
                "read_only",
            ),
            (
                &[ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB],
                Step::Begin,
                DENIED_ALL,
                "corrupt",
            ),
            (
                &[
                    ffi::SQLITE_CONSTRAINT_UNIQUE,
                    ffi::SQLITE_CONSTRAINT_TRIGGER,
                ],
                Step::Insert,
                REFUSED,
                "constraint",
            ),
            (
                &[ffi::SQLITE_MISMATCH, ffi::SQLITE_TOOBIG, ffi::SQLITE_RANGE],
                Step::Insert,
                REFUSED,
                "value",
            ),
            (
                &[ffi::SQLITE_ERROR, ffi::SQLITE_NOTFOUND],
                Step::Insert,
                DENIED,
                "statement",
            ),
            (
                &[ffi::SQLITE_MISUSE, ffi::SQLITE_INTERNAL],
                Step::Insert,
                RETRY,
                "sqlite",
            ),
        ] {
            for code in codes {
                let error = Error::SqliteFailure(ffi::Error::new(*code), None);
                let outcome = outcome(&error, step);
                assert_eq!((axes(&outcome), outcome.code()), (expected, name), "{code}");
            }
        }
    }

    #[test]
    fn real_errors_arrive_at_the_rows_meant_for_them() {
        let memory = Connection::open_in_memory().unwrap();
        memory
            .execute_batch("CREATE TABLE t (i INTEGER PRIMARY KEY, b)")
            .unwrap();
        let code = |result: rusqlite::Result<()>| {
            outcome(&result.unwrap_err(), Step::Insert)
                .code()
                .to_owned()
        };
        assert_eq!(
            code(memory.execute_batch("INSERT INTO t VALUES ('x', 1)")),
            "value"
        );
        assert_eq!(
            code(memory.execute_batch("INSERT INTO gone VALUES (1)")),
            "statement"
        );
        memory.pragma_update(None, "max_page_count", 3).unwrap();
        assert_eq!(
            code(memory.execute_batch("INSERT INTO t VALUES (1, zeroblob(100000))")),
            "disk_full"
        );
        let long = memory.execute_batch("INSERT INTO t VALUES (2, zeroblob(2000000000))");
        assert_eq!(code(long), "value");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        Connection::open(&path)
            .unwrap()
            .execute_batch("CREATE TABLE t (a)")
            .unwrap();
        let reader = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        assert_eq!(
            code(reader.execute_batch("INSERT INTO t VALUES (1)")),
            "read_only"
        );
    }
}
