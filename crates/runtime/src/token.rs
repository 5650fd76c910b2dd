//! The token for commands: made anew at each start, readable by the host's own user alone.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Makes a token, writes it to `path` (0600) and gives it: 64 hex digits. A token of an earlier run is
/// replaced in one step, so that nobody reads half of one.
///
/// # Errors
/// The file cannot be written.
pub fn token(path: &Path) -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    rand::fill(&mut bytes);
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let beside = path.with_extension("new");
    // Left over from a start that was killed here; its mode is not ours to trust.
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    file.write_all(token.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

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
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
