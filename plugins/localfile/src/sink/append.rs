//! Messages at the end of a file.

use super::{At, Job, Writer, fail};
use crate::{files::sync_folder, outcome::Step};
use consign_plugin::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

impl Writer {
    pub(super) fn append(&self, jobs: &[Job<'_>], stop: &AtomicBool) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let mut files: BTreeMap<&Path, (File, Vec<usize>)> = BTreeMap::new();
        let mut folders = BTreeSet::new();
        let mut failed = None;
        for job in jobs {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            self.at(At::Append);
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
                    failed = Some(self.blame(&job.below, &error, Step::Unseen));
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
                failed = Some(self.blame(&job.below, &error, step));
                break;
            }
        }
        if self.config.fsync {
            self.at(At::FlushFile);
            for (file, members) in files.values() {
                if let Err(error) = file.sync_data() {
                    fail(&mut outcomes, members, &error);
                }
            }
            for folder in folders {
                self.at(At::FlushFolder);
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
    pub(super) fn open_to_append(&self, path: &Path) -> io::Result<(File, bool)> {
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
    pub(super) fn add(&self, file: &mut File, body: &[u8]) -> Result<(), (io::Error, Step)> {
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
