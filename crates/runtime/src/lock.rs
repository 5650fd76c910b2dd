//! The lock of a data folder, for commands that work on a stopped host's files.

use crate::offline::buffer_dir;
use consign_buffer::{Filesystem as _, LockOutcome, RealFilesystem};
use std::path::Path;

/// Keeps a host from starting on the folder until it is dropped.
pub struct FolderLock {
    _held: Box<dyn Send + Sync>,
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
    match RealFilesystem.lock(&buffer.join("lock")) {
        Ok(LockOutcome::Held(held)) => Ok(FolderLock { _held: held }),
        // What only looks into the folder leaves no number.
        Ok(LockOutcome::HeldBy(0)) => Err(format!(
            "{}: another process is at it; wait until it has ended",
            data_dir.display()
        )),
        Ok(LockOutcome::HeldBy(pid)) => Err(format!(
            "{}: a host runs on it (process {pid}): leave --data-dir out, so that the host does it",
            data_dir.display()
        )),
        Err(error) => Err(format!("{}: {error}", data_dir.display())),
    }
}
