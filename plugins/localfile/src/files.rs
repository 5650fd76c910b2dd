//! The folder a connection may touch: which files match a pattern, what names a file for its whole
//! life, and names from a configuration or a message that must not lead out of the folder.

use std::{
    fs::{File, Metadata, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Component, Path, PathBuf},
    time::UNIX_EPOCH,
};

/// What names a file while it exists, whatever it is called. A device and inode number may be used
/// again once a file is gone; the time of birth, where the file system keeps one, tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Time of birth in nanoseconds since 1970; 0 where the file system has none.
    pub born_ns: u64,
}

impl FileId {
    /// The id of the file this metadata was read from.
    pub fn of(metadata: &Metadata) -> Self {
        let born = metadata.created().ok();
        let born = born.and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            born_ns: born.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(0)),
        }
    }
}

/// A file that matches a pattern.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Where it is now.
    pub path: PathBuf,
    /// The same, relative to the connection's folder: the name messages carry.
    pub name: String,
    /// What names it.
    pub id: FileId,
    /// Its metadata.
    pub metadata: Metadata,
}

/// Which files of a folder a source reads.
#[derive(Debug, Clone)]
pub struct Selection {
    root: PathBuf,
    pattern: String,
    exclude: Vec<glob::Pattern>,
}

/// `*` stops at a `/`, and hidden files (our own unfinished ones among them) are never matched.
const MATCH: glob::MatchOptions = glob::MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

impl Selection {
    /// The files under `root` that match `pattern`, which is relative to it, save those whose last
    /// name matches one of `exclude`. The error says what is wrong with a pattern.
    pub fn new(root: &Path, pattern: &str, exclude: &[String]) -> Result<Self, String> {
        check_relative(pattern)?;
        let base = glob::Pattern::escape(&root.to_string_lossy());
        let whole = format!("{}/{pattern}", base.trim_end_matches('/'));
        glob::Pattern::new(&whole).map_err(|e| format!("`{pattern}` is not a pattern: {e}"))?;
        let exclude = exclude.iter().map(|p| {
            glob::Pattern::new(p).map_err(|e| format!("`{p}` in `exclude` is not a pattern: {e}"))
        });
        Ok(Self {
            root: root.to_owned(),
            pattern: whole,
            exclude: exclude.collect::<Result<_, _>>()?,
        })
    }

    /// Regular files that match now, by name. A symlink counts where `follow` says so and it stays
    /// inside the folder. Files that vanish meanwhile are left out.
    pub fn list(&self, follow: bool) -> io::Result<Vec<Listed>> {
        // A folder that is gone would look like an empty one: its files would seem deleted.
        std::fs::read_dir(&self.root)?;
        let paths = glob::glob_with(&self.pattern, MATCH).map_err(io::Error::other)?;
        let mut found = Vec::new();
        for path in paths {
            let path = path.map_err(io::Error::from)?;
            let last = path.file_name().unwrap_or_default().to_string_lossy();
            if self.exclude.iter().any(|p| p.matches(&last)) {
                continue;
            }
            let Ok(mut metadata) = path.symlink_metadata() else {
                continue;
            };
            if metadata.is_symlink() && follow {
                match path.canonicalize() {
                    Ok(real) if real.starts_with(&self.root) => match real.metadata() {
                        Ok(m) => metadata = m,
                        Err(_) => continue,
                    },
                    _ => continue,
                }
            }
            if metadata.is_file() {
                let name = path.strip_prefix(&self.root).unwrap_or(&path);
                let name = name.to_string_lossy().into_owned();
                found.push(Listed {
                    name,
                    id: FileId::of(&metadata),
                    path,
                    metadata,
                });
            }
        }
        Ok(found)
    }
}

/// Opens for reading, without waiting for a writer should the file have become a pipe.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    options.open(path)
}

/// Makes the names in a folder (new, renamed, removed) durable.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Whether a name stays inside the folder it is joined to; the error is a sentence.
pub fn check_relative(name: &str) -> Result<(), String> {
    if name.is_empty() || name.ends_with('/') {
        return Err(format!("`{name}` does not name a file"));
    }
    if name.contains('\0') {
        return Err("a file name cannot hold a NUL byte".to_owned());
    }
    for part in Path::new(name).components() {
        match part {
            Component::Normal(_) => {}
            Component::CurDir => return Err(format!("`{name}` has a part `.`")),
            Component::ParentDir => {
                return Err(format!(
                    "`{name}` leads out of the folder: it has a part `..`"
                ));
            }
            Component::RootDir | Component::Prefix(_) => {
                return Err(format!(
                    "`{name}` is absolute: paths are relative to `root`"
                ));
            }
        }
    }
    if name.split('/').any(|part| part == "." || part.is_empty()) {
        return Err(format!("`{name}` has an empty part or a part `.`"));
    }
    Ok(())
}

/// An absolute path below `root`, made relative; every other name as it is.
pub fn below<'a>(root: &Path, name: &'a str) -> &'a str {
    match root.to_str().and_then(|root| name.strip_prefix(root)) {
        Some(rest) if rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_the_folder_are_refused() {
        for bad in [
            "",
            "a/",
            "/etc/passwd",
            "../a",
            "a/../b",
            "a/./b",
            "./a",
            "a//b",
            "a\0b",
            "..",
        ] {
            assert!(check_relative(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "a/b.json", "..a", "a..", "ä ö", "a\\b"] {
            assert_eq!(check_relative(good), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn absolute_names_below_the_folder_become_relative() {
        let root = Path::new("/srv/out");
        assert_eq!(below(root, "/srv/out/a/b"), "a/b");
        assert_eq!(below(root, "/srv/outside/b"), "/srv/outside/b");
        assert_eq!(below(root, "a"), "a");
    }

    #[test]
    fn hidden_excluded_and_foreign_files_are_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret.log"), "x").unwrap();
        for name in ["a.log", "b.log", ".c.log", "d.log.gz"] {
            std::fs::write(root.join(name), "x").unwrap();
        }
        std::fs::create_dir(root.join("e.log")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret.log"), root.join("s.log")).unwrap();
        std::os::unix::fs::symlink(root.join("a.log"), root.join("t.log")).unwrap();
        let selection = Selection::new(&root, "*.log*", &["*.gz".into()]).unwrap();
        let names = |follow| {
            let listed = selection.list(follow).unwrap().into_iter();
            listed.map(|l| l.name).collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["a.log", "b.log"]);
        assert_eq!(names(true), ["a.log", "b.log", "t.log"]);
        assert!(Selection::new(&root, "../*", &[]).is_err());
        assert!(Selection::new(&root, "a[", &[]).is_err());
    }

    #[test]
    fn a_folder_that_is_gone_is_an_error_not_an_empty_folder() {
        let dir = tempfile::tempdir().unwrap();
        let selection = Selection::new(&dir.path().join("gone"), "*", &[]).unwrap();
        assert!(selection.list(false).is_err());
    }
}
