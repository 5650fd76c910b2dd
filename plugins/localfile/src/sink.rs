//! `localfile.write.local`: files that are there whole or not at all, or lines at the end of one.
//!
//! A batch is carried out in order and ends at its first failure. To replace files, all are written
//! and flushed under names of their own, several at a time, then renamed in order, then their folders
//! are flushed.

mod append;
mod replace;

use crate::{
    config::{ConnectionConfig, WriteConfig},
    connection::LocalFile,
    files::{below, check_relative, sync_folder},
    outcome::{Step, outcome},
    root,
};
use consign_plugin::prelude::*;
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Longest path below the root, in bytes: what the system allows, less room for the root's own.
const MAX_PATH: usize = 3072;
/// Longest name of a file or folder, in bytes, on the usual file systems.
const MAX_NAME: usize = 255;

/// The sink of one send.
#[derive(Debug)]
pub struct WriteFile(Arc<Writer>);

#[async_trait]
impl Sink for WriteFile {
    type Connector = LocalFile;
    type Config = WriteConfig;
    const OPERATION: &'static str = "localfile.write.local";
    const TITLE: &'static str = "Write File";

    fn declaration() -> SinkDeclaration {
        SinkDeclaration {
            promise: Promise::EffectivelyOnce,
            unconfirmed: false,
            repeat: Repeat {
                kind: RepeatKind::SameTarget,
                condition: Some(
                    "not in append mode: a repeat replaces its own copy, finds its bytes under the \
                     name, or lands on the variant named by its write key"
                        .into(),
                ),
                window: Window::None,
            },
            key: KeyPlacement::Nowhere(
                "a file is the pipeline's bytes under the config's name; there is no field beside \
                 them"
                    .into(),
            ),
            batch: BatchKind::Prefix,
            sealed: false,
            note: String::new(),
        }
    }

    fn resolve(connection: &ConnectionConfig, config: &WriteConfig) -> Resolved {
        let (promise, repeat, reason) = if config.append {
            (
                Promise::AtLeastOnce,
                RepeatKind::SecondCopy,
                "with `append` a write that is sent again is in the file twice",
            )
        } else if !config.fsync {
            (
                Promise::AtLeastOnce,
                RepeatKind::SameTarget,
                "with `fsync: false` nothing confirms that a file is on the disk",
            )
        } else if config.keeps_existing() {
            (
                Promise::EffectivelyOnce,
                RepeatKind::SameTarget,
                "a repeat finds its bytes under the name, or under the variant its write key names",
            )
        } else if config.path.is_dynamic() {
            (
                Promise::EffectivelyOnce,
                RepeatKind::SameTarget,
                "a repeat replaces its own copy under the name",
            )
        } else {
            (
                Promise::EffectivelyOnce,
                RepeatKind::SameTarget,
                "`path` names one file for all messages: each replaces the one before it, and a repeat its own copy",
            )
        };
        Resolved {
            promise,
            unconfirmed: !config.fsync,
            repeat,
            window: Window::None,
            reason: reason.to_owned(),
            target_id: connection.root.to_string_lossy().into_owned(),
            target_fields: vec!["path".to_owned()],
            faults: [connection.faults(), config.faults(connection)].concat(),
        }
    }

    async fn open(
        connection: Arc<LocalFile>,
        config: WriteConfig,
        _: &ConnectionContext,
    ) -> Result<Self, Failure> {
        let mode = config.mode_bits().ok_or_else(|| {
            Failure::config(("config", "`mode`: expected octal digits like \"0640\""))
        })?;
        Ok(Self(Arc::new(Writer {
            connection,
            config,
            mode,
            #[cfg(test)]
            hook: tests::Hook::default(),
        })))
    }

    async fn write(&self, batch: &Batch, _: &WriteContext) -> Vec<Outcome> {
        // When this future is dropped the job stops before its next step that a reader can see; the
        // locks it holds keep a resend waiting until it has.
        let given_up = GivenUp(Arc::default());
        let (writer, jobs, stop) = (Arc::clone(&self.0), batch.clone(), Arc::clone(&given_up.0));
        let job = tokio::task::spawn_blocking(move || writer.run(&jobs, &stop));
        let outcomes = job.await;
        outcomes.unwrap_or_else(|e| batch.all(Outcome::unknown(("panicked", e.to_string()))))
    }

    async fn inspect(&self) -> Inspection {
        Inspection::not_inspected("a file's name is its target, so there is nothing to compare")
    }
}

struct GivenUp(Arc<AtomicBool>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Writer {
    connection: Arc<LocalFile>,
    config: WriteConfig,
    mode: u32,
    #[cfg(test)]
    hook: tests::Hook,
}

/// What is about to be done; tests get in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// The root was there; a folder below it is looked up or made.
    Folder,
    /// An unfinished file is written.
    Prepare,
    /// It has its bytes, and is flushed.
    FlushFile,
    /// It gets its name.
    PutInPlace,
    /// The folder that has the names is flushed.
    FlushFolder,
    /// A file is opened to append.
    Append,
}

/// One write on its way: where it goes, and where its bytes are until then.
struct Job<'a> {
    write: &'a Write,
    /// Relative to the root, as the message names it.
    below: PathBuf,
    folder: PathBuf,
    path: PathBuf,
    /// An earlier write of the batch goes to the same place.
    again: bool,
    /// `None` once it is renamed or removed.
    unfinished: Option<PathBuf>,
}

impl Job<'_> {
    /// Removes what is unfinished. What can't be removed, since the folder is away, is when the
    /// write comes again.
    fn clean(&mut self) {
        if let Some(path) = self.unfinished.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        self.clean();
    }
}

impl Writer {
    fn at(&self, step: At) {
        #[cfg(test)]
        self.hook.reached(step);
        #[cfg(not(test))]
        let _ = (self, step);
    }

    fn run(&self, batch: &Batch, stop: &AtomicBool) -> Vec<Outcome> {
        let mut jobs = Vec::new();
        let mut failed = None;
        for write in batch.writes() {
            match self.place(write) {
                Ok(job) => jobs.push(job),
                Err(outcome) => {
                    failed = Some(outcome);
                    break;
                }
            }
        }
        let mut places = BTreeSet::new();
        for job in &mut jobs {
            job.again = !places.insert(job.path.clone());
        }
        let locks = self
            .connection
            .lock(jobs.iter().map(|job| job.path.as_path()));
        let mut outcomes = if self.config.append {
            self.append(&jobs, stop)
        } else {
            self.replace(&mut jobs, stop)
        };
        if outcomes.len() == jobs.len() {
            outcomes.extend(failed);
        }
        // What is unfinished is removed under the locks: a resend uses the same name for it.
        drop(jobs);
        drop(locks);
        // Not charged as an attempt: nothing was tried.
        let rest = Outcome::throttled(Duration::ZERO)
            .with_detail(("not_attempted", "an earlier write of the batch failed"));
        outcomes.resize(batch.len(), rest);
        outcomes
    }

    /// Where a write goes. Its folder exists afterwards.
    fn place<'a>(&self, write: &'a Write) -> Result<Job<'a>, Outcome> {
        let text = write.text(&self.config.path).map_err(Outcome::refused)?;
        let name = below(self.connection.root(), text);
        check_relative(name).map_err(|e| Outcome::refused(("bad_path", e)))?;
        // Before any folder of it is made.
        if name.len() > MAX_PATH || name.split('/').any(|part| part.len() > MAX_NAME) {
            let what = format!("a path has at most {MAX_PATH} bytes, a name {MAX_NAME}");
            return Err(Outcome::refused(("name_too_long", what)));
        }
        let relative = Path::new(name);
        let last = relative.file_name().unwrap_or_default();
        if LocalFile::is_unfinished(&last.to_string_lossy()) {
            let what = format!("`{name}` is a name of an unfinished file");
            return Err(Outcome::refused(("bad_path", what)));
        }
        let below = relative.parent().unwrap_or(Path::new(""));
        let folder = self.folder(below)?;
        self.connection.sweep(&folder);
        let path = folder.join(last);
        Ok(Job {
            write,
            below: below.to_owned(),
            folder,
            path,
            again: false,
            unfinished: None,
        })
    }

    /// The folder below the root, without symlinks; created where that is wanted.
    fn folder(&self, relative: &Path) -> Result<PathBuf, Outcome> {
        let root = self.connection.root();
        root::check(root).map_err(|error| root::gone(root, &error))?;
        self.at(At::Folder);
        let mut folder = root.to_owned();
        for part in relative.components() {
            let parent = folder.clone();
            folder.push(part);
            let found = self.step_into(&mut folder, &parent);
            if !found.map_err(|error| self.blame(relative, &error, Step::Unseen))? {
                let what = format!("`{}` leads out of the folder", relative.display());
                return Err(Outcome::refused(("bad_path", what)));
            }
        }
        Ok(folder)
    }

    /// Makes one folder on the way, or resolves one that is a symlink: `false` if out of the root.
    fn step_into(&self, folder: &mut PathBuf, parent: &Path) -> io::Result<bool> {
        match folder.symlink_metadata() {
            Ok(found) if found.is_symlink() => {
                *folder = folder.canonicalize()?;
                let root = self.connection.root();
                // The root itself may have become a symlink.
                return Ok(folder.starts_with(root) || folder.starts_with(root.canonicalize()?));
            }
            // Another batch may have made it and not flushed it yet.
            Ok(found) if found.is_dir() && !self.connection.is_durable(folder) => {
                match self.flush_folder(parent) {
                    // A folder to pass through only, not one of ours.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                    flushed => flushed?,
                }
            }
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.config.create_dirs => {
                self.connection.set_durable(folder, false);
                match std::fs::create_dir(&*folder) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error);
                    }
                    _ => self.flush_folder(parent)?,
                }
            }
            Err(error) => return Err(error),
        }
        if self.config.fsync {
            self.connection.set_durable(folder, true);
        }
        Ok(true)
    }

    fn blame(&self, folder: &Path, error: &io::Error, step: Step) -> Outcome {
        let place = root::Place {
            root: self.connection.root(),
            folder,
            create_dirs: self.config.create_dirs,
        };
        root::blame(place, error, step)
    }

    fn flush_folder(&self, folder: &Path) -> io::Result<()> {
        if self.config.fsync {
            sync_folder(folder)
        } else {
            Ok(())
        }
    }

    fn done(&self) -> Outcome {
        if self.config.fsync {
            Outcome::delivered()
        } else {
            Outcome::sent_unconfirmed()
        }
    }
}

fn fail(outcomes: &mut [Outcome], members: &[usize], error: &io::Error) {
    for member in members {
        if let Some(one) = outcomes.get_mut(*member) {
            *one = outcome(error, Step::Seen);
        }
    }
}

#[cfg(test)]
#[path = "sink_tests.rs"]
mod tests;
