//! The token for commands: made anew at each start, readable by the host's own user alone.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Makes a token, writes it to `path` (0600) and gives it: 64 hex digits. A token of an earlier run is
/// replaced in one step, so that nobody reads half of one; only on a full disk, which has no room for a
/// second file, is it written over in its place: a host has to start there to drain what it has.
///
/// # Errors
/// The file cannot be written.
pub fn token(path: &Path) -> Result<String> {
    let mut bytes = [0_u8; 32];
    rand::fill(&mut bytes);
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match replace(path, &token) {
        Err(error) if error.kind() == ErrorKind::StorageFull => write_over(path, &token, error)?,
        done => done?,
    }
    Ok(token)
}

fn replace(path: &Path, token: &str) -> Result<()> {
    let beside = path.with_extension("new");
    // Left over from a start that was killed here; its mode is not ours to trust.
    remove(&beside)?;
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| {
            file.write_all(token.as_bytes())?;
            file.sync_all()
        });
    if let Err(error) = written {
        remove(&beside)?;
        return Err(error);
    }
    std::fs::rename(&beside, path)
}

/// Puts a token where one of the same length stands; `full` is the answer where none does.
fn write_over(path: &Path, token: &str, full: Error) -> Result<()> {
    let Ok(mut file) = OpenOptions::new().write(true).open(path) else {
        return Err(full);
    };
    if !is_token(&file, token.len() as u64)? {
        return Err(full);
    }
    file.write_all(token.as_bytes())?;
    file.sync_all()
}

/// Whether a file is a token of ours: as long as one, and for its owner alone.
fn is_token(file: &File, len: u64) -> Result<bool> {
    let metadata = file.metadata()?;
    Ok(metadata.is_file() && metadata.len() == len && metadata.permissions().mode() & 0o077 == 0)
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_private_and_new_each_time() {
        let dir = std::env::temp_dir().join(format!("consign-token-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("token");
        std::fs::write(&path, "old").unwrap();
        let first = token(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        assert_eq!(first.len(), 64);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_ne!(token(&path).unwrap(), first);
        // In its place, where there is no room for a second file; never over what is no token of ours.
        let full = || Error::from(ErrorKind::StorageFull);
        write_over(&path, &first, full()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        let other = path.with_extension("other");
        std::fs::write(&other, "something else").unwrap();
        let refused = write_over(&other, &first, full()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StorageFull);
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "something else");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
