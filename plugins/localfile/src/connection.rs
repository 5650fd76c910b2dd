//! The folder: found or created once, watched over by `probe`, and shared by its sinks and sources.

use crate::{config::ConnectionConfig, outcome::failure, root};
use consign_plugin::prelude::*;
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::{BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime},
};

/// Writes to one file wait for each other; this many files at once do not. More than the blocking
/// jobs a connection has at a time.
const LOCKS: usize = 64;
/// An unfinished file of a host that is gone is removed when it has not changed for this long. A
/// write takes far less, and another host may be writing here.
const LEFT_OVER_AFTER: Duration = Duration::from_secs(3600);
/// Folders remembered as swept, or as durable; past it they are swept, or flushed, again.
const MAX_REMEMBERED: usize = 10_000;
/// Threads that help the batches of a connection to flush files. Flushes at the same time share
/// commits of the file system's journal: 16 threads flush three times as many files as one does, and
/// more gain little.
const HELPERS: usize = 15;
/// How the names of unfinished files begin and end; the write key and this process's tag are between.
const UNFINISHED: (&str, &str) = (".consign-", ".tmp");

/// A folder of this machine.
#[derive(Debug)]
pub struct LocalFile {
    root: PathBuf,
    locks: Vec<Mutex<()>>,
    swept: Mutex<HashSet<PathBuf>>,
    durable: Mutex<HashSet<PathBuf>>,
    helpers: AtomicUsize,
    tag: String,
}

#[async_trait]
impl Connector for LocalFile {
    type Config = ConnectionConfig;
    const NAME: &'static str = "localfile";
    const TITLE: &'static str = "Local File";

    async fn connect(config: ConnectionConfig, _: &ConnectionContext) -> Result<Self, Failure> {
        if let Some(fault) = config.faults().into_iter().next() {
            return Err(Failure::config(("config", fault)));
        }
        blocking(move || {
            if config.create {
                std::fs::create_dir_all(&config.root)?;
            }
            let root = config.root.canonicalize()?;
            root::check(&root)?;
            std::fs::read_dir(&root)?;
            Ok(root)
        })
        .await
        .map(Self::new)
    }

    /// Looks whether the folder is there and can be read.
    async fn probe(&self) -> Result<(), Failure> {
        let root = self.root.clone();
        blocking(move || {
            root::check(&root)?;
            std::fs::read_dir(&root).map(drop)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    job: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(job).await {
        Ok(result) => result.map_err(|error| failure(&error, "the folder can't be used")),
        Err(error) => Err(Failure::other(("panicked", error.to_string()))),
    }
}

impl LocalFile {
    fn new(root: PathBuf) -> Self {
        // Tells this process's unfinished files from those of one that is gone.
        let mut hasher = DefaultHasher::new();
        (std::process::id(), SystemTime::now()).hash(&mut hasher);
        Self {
            root,
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            swept: Mutex::default(),
            durable: Mutex::default(),
            helpers: AtomicUsize::new(0),
            tag: format!("{:016x}", hasher.finish()),
        }
    }

    /// The folder, without symlinks.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Locks these files against other writes of this host, so that a write the host has given up
    /// never ends after the one that came in its place. Blocks.
    pub(crate) fn lock<'a>(
        &self,
        files: impl Iterator<Item = &'a Path>,
    ) -> Vec<MutexGuard<'_, ()>> {
        let places: BTreeSet<u64> = files
            .map(|file| {
                let mut hasher = DefaultHasher::new();
                file.hash(&mut hasher);
                hasher.finish() % LOCKS as u64
            })
            .collect();
        let places = places.into_iter().filter_map(|n| usize::try_from(n).ok());
        places
            .filter_map(|n| self.locks.get(n))
            .map(Mutex::lock)
            .collect()
    }

    /// The name of the unfinished file of a write.
    pub(crate) fn unfinished(&self, key: WriteKey) -> String {
        let (start, end) = UNFINISHED;
        format!("{start}{key}-{}{end}", self.tag)
    }

    /// Whether a file name is one that unfinished files have.
    pub(crate) fn is_unfinished(name: &str) -> bool {
        name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1)
    }

    /// Whether the name of this folder is known to be durable in the one above it.
    pub(crate) fn is_durable(&self, folder: &Path) -> bool {
        self.durable.lock().contains(folder)
    }

    /// Remembers whether it is.
    pub(crate) fn set_durable(&self, folder: &Path, durable: bool) {
        let mut known = self.durable.lock();
        if !durable {
            known.remove(folder);
            return;
        }
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(folder.to_owned());
    }

    /// Takes up to `wanted` of the connection's helping threads; there may be none.
    pub(crate) fn helpers(&self, wanted: usize) -> Helpers<'_> {
        let mut taken = 0;
        let _ = self
            .helpers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |busy| {
                taken = wanted.min(HELPERS.saturating_sub(busy));
                Some(busy + taken)
            });
        Helpers {
            busy: &self.helpers,
            taken,
        }
    }

    /// Removes unfinished files that a stopped process left in a folder; once per folder. What can't
    /// be read or removed stays: it is in nobody's way.
    pub(crate) fn sweep(&self, folder: &Path) {
        {
            let mut swept = self.swept.lock();
            if swept.len() >= MAX_REMEMBERED {
                swept.clear();
            }
            if !swept.insert(folder.to_owned()) {
                return;
            }
        }
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let changed = entry.metadata().and_then(|m| m.modified());
            let old = changed.is_ok_and(|t| t.elapsed().is_ok_and(|age| age > LEFT_OVER_AFTER));
            if Self::is_unfinished(&name) && old && !name.contains(&self.tag) {
                tracing::info!(code = "unfinished_file_removed", file = %entry.path().display(), "left by a process that stopped");
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// Helping threads that a batch may start; given back when dropped.
#[derive(Debug)]
pub(crate) struct Helpers<'a> {
    busy: &'a AtomicUsize,
    /// How many.
    pub(crate) taken: usize,
}

impl Drop for Helpers<'_> {
    fn drop(&mut self) {
        self.busy.fetch_sub(self.taken, Ordering::Relaxed);
    }
}
