//! One table: what the operating system answered, and at which step, to the outcome of a write.

use consign_plugin::prelude::*;
use std::io;

/// Whether a reader could have seen anything of the write when the error came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing is under the file's name yet.
    Unseen,
    /// The step that gives it that name failed. It has no effect then, unless the file system is one
    /// that can't say so.
    Renaming,
    /// It is, or may be, but is not known to be durable.
    Seen,
}

/// What an error says about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    /// The disk or the file system: every write of the connection meets it.
    Disk,
    /// Permissions on this path; a person must act.
    Access,
    /// Permissions on all of the file system.
    ReadOnly,
    /// This path or body; it will never do.
    Write,
    /// A passing state.
    Moment,
}

/// Error number, its stable code, and what it says about.
const TABLE: [(i32, &str, About); 27] = [
    (libc::ENOSPC, "disk_full", About::Disk),
    (libc::EDQUOT, "quota_exceeded", About::Disk),
    (libc::EIO, "io", About::Disk),
    (libc::ENOMEM, "out_of_memory", About::Disk),
    (libc::EMFILE, "too_many_open_files", About::Disk),
    (libc::ENFILE, "too_many_open_files", About::Disk),
    (libc::ESTALE, "stale_handle", About::Disk),
    (libc::ETIMEDOUT, "timeout", About::Disk),
    (libc::EHOSTDOWN, "host_down", About::Disk),
    (libc::ENOTCONN, "not_connected", About::Disk),
    (libc::ENODEV, "no_device", About::Disk),
    (libc::EACCES, "access_denied", About::Access),
    (libc::EPERM, "not_permitted", About::Access),
    (libc::EROFS, "read_only", About::ReadOnly),
    (libc::ENOENT, "no_folder", About::Write),
    (libc::ENOTDIR, "not_a_folder", About::Write),
    (libc::EISDIR, "is_a_folder", About::Write),
    (libc::ENOTEMPTY, "is_a_folder", About::Write),
    (libc::EEXIST, "not_a_folder", About::Write),
    (libc::ENAMETOOLONG, "name_too_long", About::Write),
    (libc::EINVAL, "bad_name", About::Write),
    (libc::ELOOP, "is_a_link", About::Write),
    (libc::ENXIO, "not_a_file", About::Write),
    (libc::EFBIG, "file_too_large", About::Write),
    (libc::EBUSY, "busy", About::Moment),
    (libc::ETXTBSY, "busy", About::Moment),
    (libc::EMLINK, "too_many_links", About::Moment),
];

fn look_up(error: &io::Error) -> (&'static str, About) {
    let number = error.raw_os_error();
    let row = TABLE.iter().find(|(errno, ..)| Some(*errno) == number);
    row.map_or(("io", About::Moment), |(_, code, about)| (*code, *about))
}

/// Whether the error is about a path, and so perhaps about a root that went away.
pub fn is_about_path(error: &io::Error) -> bool {
    look_up(error).1 == About::Write
}

/// Whether something ran out before anything was done.
fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM | libc::EMFILE | libc::ENFILE)
    )
}

/// The outcome of the write whose step failed.
pub fn outcome(error: &io::Error, step: Step) -> Outcome {
    let (code, about) = look_up(error);
    let detail = (code, error.to_string());
    match (about, step) {
        // A server may have renamed and not said so.
        (About::Disk, Step::Renaming) if !is_shortage(error) => Outcome::unknown(detail),
        // Whatever failed after it became visible: it may be there, and may go with a power cut.
        (About::Moment, Step::Seen) => Outcome::failed_maybe(detail),
        (_, Step::Seen) => Outcome::unknown(detail),
        (About::Disk, _) => Outcome::down(detail),
        (About::Access, _) => Outcome::denied(detail),
        (About::ReadOnly, _) => Outcome::denied(detail).of_connection(),
        (About::Write, _) => Outcome::refused(detail),
        (About::Moment, _) => Outcome::retry(detail),
    }
}

/// The same, for opening, probing or reading below a folder.
pub fn failure(error: &io::Error, what: &str) -> Failure {
    let (code, about) = look_up(error);
    let code = if code == "no_folder" {
        "not_found"
    } else {
        code
    };
    let detail = (code, format!("{what}: {error}"));
    match about {
        About::Access | About::ReadOnly => Failure::denied(detail),
        _ => Failure::down(detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row of the table, and an error that is in none, at both steps.
    #[test]
    fn each_error_has_its_outcome() {
        let no = |errno| outcome(&io::Error::from_raw_os_error(errno), Step::Unseen);
        let maybe = |errno| outcome(&io::Error::from_raw_os_error(errno), Step::Seen);
        for (errno, code, about) in TABLE {
            let detail = (code, io::Error::from_raw_os_error(errno).to_string());
            let (unseen, seen) = match about {
                About::Disk => (Outcome::down(detail.clone()), Outcome::unknown(detail)),
                About::Access => (Outcome::denied(detail.clone()), Outcome::unknown(detail)),
                About::ReadOnly => (
                    Outcome::denied(detail.clone()).of_connection(),
                    Outcome::unknown(detail),
                ),
                About::Write => (Outcome::refused(detail.clone()), Outcome::unknown(detail)),
                About::Moment => (
                    Outcome::retry(detail.clone()),
                    Outcome::failed_maybe(detail),
                ),
            };
            assert_eq!((no(errno), maybe(errno)), (unseen, seen), "{code}");
        }
        assert_eq!(no(libc::EINTR).code(), "io");
        assert_eq!(maybe(libc::EINTR).applied(), consign_plugin::Applied::Maybe);
    }

    #[test]
    fn the_errors_an_operator_meets_are_told_apart() {
        let about = |errno| look_up(&io::Error::from_raw_os_error(errno)).1;
        assert_eq!(about(libc::ENOSPC), About::Disk);
        assert_eq!(about(libc::EACCES), About::Access);
        assert_eq!(about(libc::EROFS), About::ReadOnly);
        assert_eq!(about(libc::ENAMETOOLONG), About::Write);
        let missing = failure(&io::Error::from_raw_os_error(libc::ENOENT), "/mnt/out");
        assert_eq!(
            (missing.kind, missing.code.as_str()),
            (FailureKind::Down, "not_found")
        );
        let locked = failure(&io::Error::from_raw_os_error(libc::EACCES), "/mnt/out");
        assert_eq!(locked.kind, FailureKind::Denied);
    }

    #[test]
    fn a_rename_that_a_server_may_have_done_is_unknown() {
        let said = |errno| outcome(&io::Error::from_raw_os_error(errno), Step::Renaming).applied();
        for errno in [libc::ESTALE, libc::EIO, libc::ETIMEDOUT] {
            assert_eq!(said(errno), consign_plugin::Applied::Maybe, "{errno}");
        }
        for errno in [libc::ENOSPC, libc::EISDIR, libc::EACCES, libc::EBUSY] {
            assert_eq!(said(errno), consign_plugin::Applied::No, "{errno}");
        }
    }

    #[test]
    fn no_error_stands_in_the_table_twice() {
        let mut numbers: Vec<_> = TABLE.iter().map(|row| row.0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), TABLE.len());
    }
}
