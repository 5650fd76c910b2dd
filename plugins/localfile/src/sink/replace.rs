//! Whole files: written and flushed beside their places, then renamed, then their folders flushed.

use super::{At, Job, Writer, fail};
use crate::{files::FileId, outcome::Step};
use consign_plugin::prelude::*;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions, Permissions},
    io::{self, Read, Write as _},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// The writes of a batch that go to one folder: which they are, and what the folder was.
struct Members {
    folder: FileId,
    writes: Vec<usize>,
}

/// What is at a file's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Nothing, or it can't be reached.
    Nothing,
    /// A file with the bytes looked for.
    Same,
    /// Something else.
    Other,
}

impl Writer {
    pub(super) fn replace(&self, jobs: &mut [Job<'_>], stop: &AtomicBool) -> Vec<Outcome> {
        let (ready, mut failed) = self.prepare_all(jobs, stop);
        let mut outcomes = Vec::new();
        let mut folders: BTreeMap<PathBuf, Members> = BTreeMap::new();
        for job in jobs.iter_mut().take(ready) {
            if stop.load(Ordering::Relaxed) {
                return outcomes;
            }
            let mut place = || {
                self.at(At::PutInPlace);
                if !folders.contains_key(&job.folder) {
                    let found = job.folder.metadata().map_err(|e| (e, Step::Unseen))?;
                    let members = Members {
                        folder: FileId::of(&found),
                        writes: Vec::new(),
                    };
                    folders.insert(job.folder.clone(), members);
                }
                self.put_in_place(job).map_err(|e| (e, Step::Renaming))
            };
            match place() {
                Ok(outcome) => {
                    // Also where the bytes are under the file's name besides, or were there before.
                    job.clean();
                    if let Some(members) = folders.get_mut(&job.folder) {
                        members.writes.push(outcomes.len());
                    }
                    outcomes.push(outcome);
                }
                Err((error, step)) => {
                    failed = Some(self.blame(&job.below, &error, step));
                    break;
                }
            }
        }
        for (path, members) in folders {
            self.at(At::FlushFolder);
            if let Err(error) = self.flush_names(&path, members.folder) {
                fail(&mut outcomes, &members.writes, &error);
            }
        }
        outcomes.extend(failed);
        outcomes
    }

    /// Flushes the folder that has the names, not another one that has come in its place.
    fn flush_names(&self, path: &Path, folder: FileId) -> io::Result<()> {
        if !self.config.fsync {
            return Ok(());
        }
        let open = File::open(path)?;
        if FileId::of(&open.metadata()?) != folder {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        open.sync_all()
    }

    /// Prepares the jobs, several at a time. Returns how many from the first on are ready, and what
    /// the next one failed with; of those after it some may be prepared too.
    fn prepare_all(&self, jobs: &mut [Job<'_>], stop: &AtomicBool) -> (usize, Option<Outcome>) {
        let count = jobs.len();
        // Without a flush there is nothing to wait for together.
        let wanted = if self.config.fsync {
            count.saturating_sub(1)
        } else {
            0
        };
        let helpers = self.connection.helpers(wanted);
        let queue = Mutex::new(jobs.iter_mut().enumerate());
        let failed: Mutex<Option<(usize, Outcome)>> = Mutex::new(None);
        // Jobs are taken in order, so all before a failed one are done when the threads have ended.
        let work = || {
            while !stop.load(Ordering::Relaxed) && failed.lock().is_none() {
                let Some((number, job)) = queue.lock().next() else {
                    return;
                };
                if let Err(error) = self.prepare(job) {
                    let outcome = self.blame(&job.below, &error, Step::Unseen);
                    let mut first = failed.lock();
                    if first.as_ref().is_none_or(|(other, _)| number < *other) {
                        *first = Some((number, outcome));
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..helpers.taken {
                let thread = thread::Builder::new().name("localfile-flush".to_owned());
                // Without more threads this one does the work.
                if thread.spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        if stop.load(Ordering::Relaxed) {
            return (0, None);
        }
        match failed.into_inner() {
            Some((number, outcome)) => (number, Some(outcome)),
            None => (count, None),
        }
    }

    /// Writes the bytes beside their place, durably, unless they are there already.
    fn prepare(&self, job: &mut Job<'_>) -> io::Result<()> {
        self.at(At::Prepare);
        // What is there now says nothing if an earlier write of the batch will replace it.
        let may_be_there = job.write.may_be_repeat() && !job.again;
        let path = job.folder.join(self.connection.unfinished(job.write.key()));
        if may_be_there && self.find(&job.path, job.write.body())? == Found::Same {
            // Left if the folder was away when the first try ended.
            let _ = std::fs::remove_file(path);
            return Ok(());
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(self.mode);
        let mut file = match options.open(&path) {
            // Only what this process left under the name can be there. Its bytes may have got
            // another name too, so it is removed and not written to.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::remove_file(&path)?;
                options.open(&path)?
            }
            opened => opened?,
        };
        job.unfinished = Some(path);
        // Exactly as configured, whatever the process's umask.
        file.set_permissions(Permissions::from_mode(self.mode))?;
        file.write_all(job.write.body())?;
        self.at(At::FlushFile);
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
        if self.find(&variant, job.write.body())? == Found::Same {
            return Ok(Outcome::delivered_repeat());
        }
        match std::fs::hard_link(&unfinished, &job.path) {
            Ok(()) => return Ok(self.done()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        match self.find(&job.path, job.write.body())? {
            Found::Same => return Ok(Outcome::delivered_repeat()),
            Found::Other => {}
            // The folder may be away; what was there may well be ours.
            Found::Nothing => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
        std::fs::rename(&unfinished, variant)?;
        job.unfinished = None;
        Ok(self.done())
    }

    /// Compares what is at a place with these bytes; if it is the same it is durable afterwards.
    fn find(&self, path: &Path, bytes: &[u8]) -> io::Result<Found> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let mut file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Found::Nothing);
            }
            // A link is not our file, and one of this name can't be there.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENAMETOOLONG)) =>
            {
                return Ok(Found::Other);
            }
            Err(error) => return Err(error),
        };
        let found = file.metadata()?;
        if !found.is_file() || found.len() != bytes.len() as u64 {
            return Ok(Found::Other);
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
                _ => return Ok(Found::Other),
            }
        }
        if self.config.fsync {
            file.sync_all()?;
        }
        Ok(Found::Same)
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
