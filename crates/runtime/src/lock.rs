//! The lock of a data folder: one host, or one command that works on a stopped host's files.
//!
//! The folder itself is locked, not only a file in it: whoever removes files under a running host does not let a
//! second one start beside it. The buffer's own lock stays, for what opens a buffer alone, and names the process.

use crate::offline::buffer_dir;
use consign_buffer::{Filesystem as _, LockOutcome, OpenError, RealFilesystem};
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// Keeps a host from starting on the folder until it is dropped.
pub struct FolderLock {
    _folder: File,
    _buffer: Option<Box<dyn Send + Sync>>,
}

/// Takes the folder for a host, which takes the buffer's own lock as it opens that; `None` where another has it.
pub(crate) fn hold(data_dir: &Path) -> io::Result<Option<FolderLock>> {
    let folder = File::open(data_dir)?;
    match folder.try_lock() {
        Ok(()) => Ok(Some(FolderLock {
            _folder: folder,
            _buffer: None,
        })),
        Err(TryLockError::WouldBlock) => Ok(None),
        // Some network file systems lock files only; the buffer's own lock is left there.
        Err(TryLockError::Error(error)) => {
            tracing::debug!(
                "{} cannot be locked as a folder: {error}",
                data_dir.display()
            );
            Ok(Some(FolderLock {
                _folder: folder,
                _buffer: None,
            }))
        }
    }
}

/// What says that another has the folder, with its process number where the buffer's lock still has it.
pub(crate) fn held_by_another(data_dir: &Path) -> OpenError {
    let pid = match RealFilesystem.lock_to_look(&buffer_dir(data_dir).join("lock")) {
        Ok(LockOutcome::HeldBy(pid)) => pid,
        _ => 0,
    };
    OpenError::Locked {
        dir: data_dir.to_path_buf(),
        pid,
    }
}

/// Takes the lock that a host holds while it runs.
///
/// # Errors
/// A host runs on the folder, or the folder is not one of a host.
pub fn lock(data_dir: &Path) -> Result<FolderLock, String> {
    let buffer = buffer_dir(data_dir);
    if !buffer.is_dir() {
        return Err(format!(
            "{}: there is no buffer in it; is this a host's data_dir?",
            data_dir.display()
        ));
    }
    let failed = |error: io::Error| format!("{}: {error}", data_dir.display());
    let folder = hold(data_dir).map_err(failed)?;
    match (RealFilesystem.lock(&buffer.join("lock")), folder) {
        (Ok(LockOutcome::Held(held)), Some(folder)) => Ok(FolderLock {
            _buffer: Some(held),
            ..folder
        }),
        // What only looks into the folder leaves no number.
        (Ok(LockOutcome::HeldBy(0) | LockOutcome::Held(_)), _) => Err(format!(
            "{}: another process is at it; wait until it has ended",
            data_dir.display()
        )),
        (Ok(LockOutcome::HeldBy(pid)), _) => Err(format!(
            "{}: a host runs on it (process {pid}): leave --data-dir out, so that the host does it",
            data_dir.display()
        )),
        (Err(error), _) => Err(failed(error)),
    }
}
