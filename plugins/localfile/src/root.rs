//! Whose fault a path is that can't be reached: the connection's, whose folder went away, or the
//! write's own.
//!
//! A folder can go and come back between any two steps, so that it is there now proves nothing. A
//! write is refused for a missing or wrong folder only if that is seen below a root that is there.

use crate::outcome::{Step, is_about_path, outcome};
use consign_plugin::prelude::*;
use std::{ffi::OsStr, io, path::Path};

/// Whether the connection's folder is there and is one; a symlink to a folder is.
pub fn check(root: &Path) -> io::Result<()> {
    if root.metadata()?.is_dir() {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ENOTDIR))
    }
}

/// The outcome of a write while [`check`] fails: nothing of it was applied.
pub fn gone(root: &Path, error: &io::Error) -> Outcome {
    Outcome::down(("root_gone", format!("{}: {error}", root.display())))
}

/// Where a write's file goes.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The connection's folder.
    pub root: &'a Path,
    /// The file's folder, relative to it.
    pub folder: &'a Path,
    /// Missing folders are made, so that one is missing is not the write's fault.
    pub create_dirs: bool,
}

/// The outcome of a write one of whose steps failed.
pub fn blame(place: Place<'_>, error: &io::Error, step: Step) -> Outcome {
    let root = place.root;
    let said = outcome(error, step);
    if step == Step::Seen || !is_about_path(error) {
        return said;
    }
    if let Err(error) = check(root) {
        return gone(root, &error);
    }
    let unreachable = matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOTDIR | libc::EEXIST)
    );
    if !unreachable || is_blocked(place) {
        return said;
    }
    // What was in the way is no longer: the root was away for a moment, or someone else works here.
    let detail = ("path_changed", error.to_string());
    match step {
        Step::Renaming => Outcome::failed_maybe(detail),
        Step::Unseen | Step::Seen => Outcome::retry(detail),
    }
}

/// Whether something is seen to be missing, or no folder, on the way from the root to the folder.
/// Everything that proves it was read from below the root.
fn is_blocked(place: Place<'_>) -> bool {
    let mut at = place.root.to_owned();
    for part in place.folder.components() {
        let parent = at.clone();
        at.push(part);
        match at.symlink_metadata() {
            Ok(found) if found.is_dir() => {}
            Ok(found) if found.is_symlink() => match at.metadata() {
                Ok(target) if target.is_dir() => {}
                Ok(_) => return true,
                Err(_) => return false,
            },
            Ok(_) => return true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return !place.create_dirs && is_missing(&parent, part.as_os_str());
            }
            Err(_) => return false,
        }
    }
    false
}

/// Whether a folder that can be listed does not have the name. Unlike asking for the name, this
/// can't be fooled by a root that goes away meanwhile: a folder once opened stays the same.
fn is_missing(folder: &Path, name: &OsStr) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    for entry in entries {
        match entry {
            Ok(entry) if entry.file_name() != name => {}
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_plugin::Applied;

    #[test]
    fn a_path_is_at_fault_only_below_a_root_that_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("there")).unwrap();
        std::fs::write(root.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(root.join("there"), root.join("link")).unwrap();
        std::os::unix::fs::symlink(root.join("file"), root.join("file-link")).unwrap();
        let place = |folder| Place {
            root: &root,
            folder: Path::new(folder),
            create_dirs: false,
        };
        let code = |errno, folder: &'static str, step| {
            let error = io::Error::from_raw_os_error(errno);
            let said = blame(place(folder), &error, step);
            (said.code().to_owned(), said.applied())
        };
        let errors = [libc::ENOENT, libc::ENOTDIR, libc::EEXIST];
        for errno in errors {
            for own in ["missing", "there/missing", "file", "file/x", "file-link"] {
                let said = code(errno, own, Step::Unseen).0;
                assert!(
                    ["no_folder", "not_a_folder"].contains(&said.as_str()),
                    "{own}"
                );
            }
            for fine in ["", "there", "link"] {
                let unseen = code(errno, fine, Step::Unseen);
                assert_eq!(unseen, ("path_changed".to_owned(), Applied::No), "{fine}");
                let renaming = code(errno, fine, Step::Renaming);
                assert_eq!(renaming, ("path_changed".to_owned(), Applied::Maybe));
            }
        }
        // What would be made, had the root been there, is no reason to refuse.
        let made = |folder| Place {
            create_dirs: true,
            ..place(folder)
        };
        assert!(is_blocked(place("missing")) && !is_blocked(made("missing")));
        assert!(is_blocked(made("file/x")));
        std::fs::rename(&root, dir.path().join("away")).unwrap();
        let gone = || {
            for errno in [libc::ENOENT, libc::ENOTDIR, libc::EEXIST, libc::ELOOP] {
                for folder in ["", "missing", "file"] {
                    for step in [Step::Unseen, Step::Renaming] {
                        let said = code(errno, folder, step);
                        assert_eq!(said, ("root_gone".to_owned(), Applied::No));
                    }
                }
            }
            assert_eq!(code(libc::ESTALE, "", Step::Unseen).0, "stale_handle");
        };
        gone();
        std::fs::write(&root, "a plain file").unwrap();
        gone();
        assert!(!is_blocked(place("a/b")));
        std::fs::remove_file(&root).unwrap();
        std::os::unix::fs::symlink(dir.path().join("away"), &root).unwrap();
        assert_eq!(code(libc::ENOENT, "there", Step::Unseen).0, "path_changed");
    }
}
