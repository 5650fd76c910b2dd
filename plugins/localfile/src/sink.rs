//! `localfile.write.local`: files that are there whole or not at all, or lines at the end of one.
//!
//! A batch is carried out in order and ends at its first failure. To replace files, all are written
//! and flushed under names of their own, then renamed in order, then their folders are flushed.

use crate::{
    config::{ConnectionConfig, WriteConfig},
    connection::LocalFile,
    files::{below, check_relative, sync_folder},
    outcome::{Step, outcome},
};
use consign_plugin::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions, Permissions},
    io::{self, Read, Write as _},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
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
        } else {
            (
                Promise::EffectivelyOnce,
                RepeatKind::SameTarget,
                "a repeat replaces its own copy under the name",
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
}

/// One write on its way: where it goes, and where its bytes are until then.
struct Job<'a> {
    write: &'a Write,
    folder: PathBuf,
    path: PathBuf,
    /// `None` once it is renamed or removed.
    unfinished: Option<PathBuf>,
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if let Some(path) = &self.unfinished {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Writer {
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
        let locks = self
            .connection
            .lock(jobs.iter().map(|job| job.path.as_path()));
        let mut outcomes = if self.config.append {
            self.append(&jobs, stop)
        } else {
            self.replace(&mut jobs, stop)
        };
        drop(locks);
        if outcomes.len() == jobs.len() {
            outcomes.extend(failed);
        }
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
        let folder = self.folder(relative.parent().unwrap_or(Path::new("")))?;
        self.connection.sweep(&folder);
        let path = folder.join(last);
        Ok(Job {
            write,
            folder,
            path,
            unfinished: None,
        })
    }

    /// The folder below the root, without symlinks; created where that is wanted.
    fn folder(&self, relative: &Path) -> Result<PathBuf, Outcome> {
        let root = self.connection.root();
        let mut folder = root.to_owned();
        let failed = |error: io::Error| outcome(&error, Step::Unseen);
        if let Err(error) = folder.symlink_metadata() {
            return Err(Outcome::down((
                "root_gone",
                format!("{}: {error}", root.display()),
            )));
        }
        for part in relative.components() {
            let parent = folder.clone();
            folder.push(part);
            match folder.symlink_metadata() {
                Ok(found) if found.is_symlink() => {
                    folder = folder.canonicalize().map_err(failed)?;
                    if !folder.starts_with(root) {
                        let what = format!("`{}` leads out of the folder", relative.display());
                        return Err(Outcome::refused(("bad_path", what)));
                    }
                }
                Ok(_) => {}
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && self.config.create_dirs =>
                {
                    match std::fs::create_dir(&folder) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                            return Err(failed(error));
                        }
                        _ => self.flush_folder(&parent).map_err(failed)?,
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(folder)
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

    fn replace(&self, jobs: &mut [Job<'_>], stop: &AtomicBool) -> Vec<Outcome> {
        let mut failed = None;
        let mut ready = 0;
        for job in jobs.iter_mut() {
            match self.prepare(job) {
                Ok(()) => ready += 1,
                Err(error) => {
                    failed = Some(outcome(&error, Step::Unseen));
                    break;
                }
            }
        }
        let mut outcomes = Vec::new();
        let mut folders: BTreeMap<PathBuf, Vec<usize>> = BTreeMap::new();
        for job in jobs.iter_mut().take(ready) {
            if stop.load(Ordering::Relaxed) {
                return outcomes;
            }
            match self.put_in_place(job) {
                Ok(outcome) => {
                    folders
                        .entry(job.folder.clone())
                        .or_default()
                        .push(outcomes.len());
                    outcomes.push(outcome);
                }
                Err(error) => {
                    failed = Some(outcome(&error, Step::Unseen));
                    break;
                }
            }
        }
        for (folder, members) in folders {
            if let Err(error) = self.flush_folder(&folder) {
                fail(&mut outcomes, &members, &error);
            }
        }
        outcomes.extend(failed);
        outcomes
    }

    /// Writes the bytes beside their place, durably, unless they are there already.
    fn prepare(&self, job: &mut Job<'_>) -> io::Result<()> {
        if job.write.may_be_repeat() && self.is_there(&job.path, job.write.body())? {
            return Ok(());
        }
        let path = job.folder.join(self.connection.unfinished(job.write.key()));
        // Only what this process left under the name can be there.
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(self.mode);
        let mut file = options.custom_flags(libc::O_NOFOLLOW).open(&path)?;
        job.unfinished = Some(path);
        // Exactly as configured, whatever the process's umask.
        file.set_permissions(Permissions::from_mode(self.mode))?;
        file.write_all(job.write.body())?;
        if self.config.fsync {
            file.sync_all()
        } else {
            Ok(())
        }
    }

    /// Gives the prepared bytes their name. An error leaves everything as it was.
    fn put_in_place(&self, job: &mut Job<'_>) -> io::Result<Outcome> {
        let Some(unfinished) = job.unfinished.clone() else {
            return Ok(Outcome::delivered_repeat());
        };
        if !self.config.keeps_existing() {
            std::fs::rename(&unfinished, &job.path)?;
            job.unfinished = None;
            return Ok(self.done());
        }
        let variant = variant(&job.path, job.write.key());
        if self.is_there(&variant, job.write.body())? {
            return Ok(Outcome::delivered_repeat());
        }
        match std::fs::hard_link(&unfinished, &job.path) {
            Ok(()) => return Ok(self.done()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        if self.is_there(&job.path, job.write.body())? {
            return Ok(Outcome::delivered_repeat());
        }
        std::fs::rename(&unfinished, variant)?;
        job.unfinished = None;
        Ok(self.done())
    }

    /// Whether the file holds exactly these bytes; if so they are durable afterwards.
    fn is_there(&self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let mut file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            // A link is not our file, and one of this name can't be there.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENAMETOOLONG)) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let found = file.metadata()?;
        if !found.is_file() || found.len() != bytes.len() as u64 {
            return Ok(false);
        }
        let mut rest = bytes;
        let mut chunk = vec![0; rest.len().min(64 << 10)];
        while !rest.is_empty() {
            let read = file.read(&mut chunk)?;
            let same = rest
                .split_at_checked(read)
                .filter(|(part, _)| Some(*part) == chunk.get(..read));
            match same {
                Some((_, after)) if read > 0 => rest = after,
                _ => return Ok(false),
            }
        }
        if self.config.fsync {
            file.sync_all()?;
        }
        Ok(true)
    }

    fn append(&self, jobs: &[Job<'_>], stop: &AtomicBool) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let mut files: BTreeMap<&Path, (File, Vec<usize>)> = BTreeMap::new();
        let mut folders = BTreeSet::new();
        let mut failed = None;
        for job in jobs {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let open = match files.remove(job.path.as_path()) {
                Some((file, members)) => Ok((file, members)),
                None => self.open_to_append(&job.path).map(|(file, new)| {
                    if new {
                        folders.insert(job.folder.clone());
                    }
                    (file, Vec::new())
                }),
            };
            let (mut file, mut members) = match open {
                Ok(open) => open,
                Err(error) => {
                    failed = Some(outcome(&error, Step::Unseen));
                    break;
                }
            };
            let written = self.add(&mut file, job.write.body());
            if written.is_ok() {
                members.push(outcomes.len());
                outcomes.push(self.done());
            }
            files.insert(&job.path, (file, members));
            if let Err((error, step)) = written {
                failed = Some(outcome(&error, step));
                break;
            }
        }
        if self.config.fsync {
            for (file, members) in files.values() {
                if let Err(error) = file.sync_data() {
                    fail(&mut outcomes, members, &error);
                }
            }
            for folder in folders {
                if let Err(error) = sync_folder(&folder) {
                    let all: Vec<usize> = (0..outcomes.len()).collect();
                    fail(&mut outcomes, &all, &error);
                }
            }
        }
        outcomes.extend(failed);
        outcomes
    }

    /// Opens a file to append, and says whether it is new. A line that was cut off, by a crash in
    /// the midst of it, is ended first.
    fn open_to_append(&self, path: &Path) -> io::Result<(File, bool)> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .append(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let (mut file, new) = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = options.create_new(true).mode(self.mode).open(path)?;
                file.set_permissions(Permissions::from_mode(self.mode))?;
                (file, true)
            }
            opened => (opened?, false),
        };
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::from_raw_os_error(libc::ENXIO));
        }
        if self.config.newline != Some(false) && found.len() > 0 {
            let mut last = [0];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut last, found.len() - 1)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok((file, new))
    }

    /// Adds one message. A part of it, left by a full disk, is taken back.
    fn add(&self, file: &mut File, body: &[u8]) -> Result<(), (io::Error, Step)> {
        let before = file.metadata().map_err(|e| (e, Step::Unseen))?.len();
        let mut message = Vec::with_capacity(body.len() + 1);
        message.extend_from_slice(body);
        if self.config.newline != Some(false) {
            message.push(b'\n');
        }
        let Err(error) = file.write_all(&message) else {
            return Ok(());
        };
        let taken_back = file.set_len(before).is_ok();
        Err((error, if taken_back { Step::Unseen } else { Step::Seen }))
    }
}

fn fail(outcomes: &mut [Outcome], members: &[usize], error: &io::Error) {
    for member in members {
        if let Some(one) = outcomes.get_mut(*member) {
            *one = outcome(error, Step::Seen);
        }
    }
}

/// `<stem>.<write key>.<extension>` beside the file.
fn variant(path: &Path, key: WriteKey) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{key}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
#[path = "sink_tests.rs"]
mod tests;
