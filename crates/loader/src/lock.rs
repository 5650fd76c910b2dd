//! `plugins.lock`: the digests of the plugin files an operator trusts.
//!
//! Text, one line per file: 64 hex digits of BLAKE3, two blanks, the file's name. Lines that are
//! empty or begin with `#` are skipped. With a lock, a file that is not in it is refused.

use crate::inspect::PluginFile;
use crate::refusal::Refusal;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The lock's usual name, beside the configuration.
pub const LOCK_FILE: &str = "plugins.lock";

/// The digests of one lock file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    path: PathBuf,
    digests: BTreeMap<String, String>,
}

impl Lock {
    /// Reads a lock; `None` when there is no such file.
    ///
    /// # Errors
    /// The file can't be read, or a line of it.
    pub fn read(path: &Path) -> Result<Option<Self>, Refusal> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Refusal::new(
                    "lock_unreadable",
                    path,
                    format!(
                        "the lock can't be read ({error}): check it with `ls -l {}`",
                        path.display()
                    ),
                ));
            }
        };
        let mut digests = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            match line.split_once("  ") {
                Some((digest, name)) if is_digest(digest) => {
                    digests.insert(name.trim().to_owned(), digest.to_owned());
                }
                _ => {
                    return Err(Refusal::new(
                        "lock_unreadable",
                        path,
                        format!(
                            "line {} is {line:?} and a line holds 64 hex digits, two blanks and a file name: write it anew with `consign plugins lock`",
                            number + 1
                        ),
                    ));
                }
            }
        }
        Ok(Some(Self {
            path: path.to_owned(),
            digests,
        }))
    }

    /// Whether a file is the one the lock names.
    ///
    /// # Errors
    /// It is not in the lock, or has another digest there.
    pub fn check(&self, file: &PluginFile) -> Result<(), Refusal> {
        let name = file_name(&file.path);
        let lock = self.path.display();
        match self.digests.get(&name) {
            Some(digest) if *digest == file.digest => Ok(()),
            Some(digest) => Err(Refusal::new(
                "lock_differs",
                &file.path,
                format!(
                    "its digest is {} and {lock} has {}: put the old file back, or accept this one with `consign plugins lock`",
                    short(&file.digest),
                    short(digest)
                ),
            )),
            None => Err(Refusal::new(
                "lock_lacks",
                &file.path,
                format!(
                    "its digest is {} and {lock} does not name {name}: accept it with `consign plugins lock`",
                    short(&file.digest)
                ),
            )),
        }
    }

    /// The text of a lock for these files.
    #[must_use]
    pub fn text(files: &[PluginFile]) -> String {
        let mut text = "# Plugins this host may load: BLAKE3 and file name. Written by `consign plugins lock`.\n".to_owned();
        let lines: BTreeMap<String, &str> = files
            .iter()
            .map(|f| (file_name(&f.path), f.digest.as_str()))
            .collect();
        for (name, digest) in lines {
            // Writing to a string never fails.
            let _ = writeln!(text, "{digest}  {name}");
        }
        text
    }
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn short(digest: &str) -> &str {
    digest.get(..16).unwrap_or(digest)
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}
