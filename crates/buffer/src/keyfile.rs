//! Accepted keys on disk: a file for each bucket of time, appended to at checkpoints and unlinked whole.
//!
//! A file has the head of a spill file and records of up to [`KEY_ROWS`] rows; a row is a flag, the key, and for a
//! client key the body's digest. How much of a file is believed is what the checkpoint says.

use std::io;
use std::path::{Path, PathBuf};

use crate::codec::{Put, Take};
use crate::core::Core;
use crate::error::OpenError;
use crate::fs::{Filesystem, Open, write_all_at};
use crate::job::Job;
use crate::keys::KeyFile;
use crate::log::FORMAT_VERSION;
use crate::planted::Planted;
use crate::record;
use crate::recovery::At;
use crate::spill::{FILE_HEADER, FileHead, Step, Walk, encode_head};
use crate::state::State;

/// Rows in one record of a key file.
const KEY_ROWS: usize = 16_384;

/// Reads the accepted keys back from their buckets' files. True when some are gone: the next checkpoint writes what is
/// left to new files, and then that is told no more.
pub(crate) fn load_keys(
    fs: &dyn Filesystem,
    dir: &Path,
    state: &mut State,
    at: &At<'_>,
) -> Result<bool, OpenError> {
    let (mut losses, mut places) = (Vec::new(), Vec::new());
    let shown = |path: &Path| path.strip_prefix(dir).unwrap_or(path).to_path_buf();
    for (number, scope) in (0u32..).zip(&mut state.scopes) {
        for i in 0..scope.buckets.len() {
            let Some(file) = scope.buckets.get(i).and_then(|b| b.file) else {
                continue;
            };
            let path = dir
                .join("keys")
                .join(format!("{number:08x}"))
                .join(format!("{:016x}.keys", file.number));
            let handle = match fs.open(&path, Open::Read) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    losses.push(format!("key file {} is missing", path.display()));
                    // What is accepted from now on goes to a new one; appending to this would fail for ever.
                    if let Some(bucket) = scope.buckets.get_mut(i) {
                        bucket.file = None;
                    }
                    continue;
                }
                other => other.map_err(at.io("opening", &path))?,
            };
            let mut walk = Walk::new(handle.as_ref(), file.salt, file.len, FILE_HEADER);
            let told = losses.len();
            while let Some(step) = walk.next().map_err(at.io("reading", &path))? {
                match step {
                    Step::Record { enc, .. } => {
                        let mut take = Take::new(&enc);
                        while let Some(with_body) = take.u8() {
                            let Some(key) = take.array() else { break };
                            let body = if with_body == 1 { take.array() } else { None };
                            scope.restore(i, (key, body));
                        }
                    }
                    Step::Damage { offset, next } => {
                        places.push((shown(&path), offset, next - offset));
                        losses.push(format!(
                            "{} bytes of accepted keys in {} at {offset} are damaged: a redelivery may come through as a copy",
                            next - offset,
                            shown(&path).display()
                        ));
                    }
                }
            }
            if losses.len() > told
                && let Some(bucket) = scope.buckets.get_mut(i)
            {
                bucket.write_anew();
                if bucket.unsaved.is_empty() {
                    // Nothing is left to be written.
                    bucket.file = None;
                    scope.dead_files.push(file.number);
                }
            }
        }
    }
    let lost = !losses.is_empty();
    for loss in losses {
        state.note_loss(loss);
    }
    for (file, offset, bytes) in places {
        state.note_place(file, offset, bytes);
    }
    Ok(lost)
}

impl Core {
    pub(crate) fn key_path(&self, scope: u32, file: u64) -> PathBuf {
        self.dir
            .join("keys")
            .join(format!("{scope:08x}"))
            .join(format!("{file:016x}.keys"))
    }

    /// Appends accepted keys to their buckets' files.
    pub(crate) fn save_keys(&mut self, job: &mut Job) -> io::Result<()> {
        let mut todo = Vec::new();
        {
            let mut state = self.shared.state.lock();
            for (number, scope) in (0u32..).zip(&mut state.scopes) {
                for bucket in &scope.buckets {
                    if !bucket.unsaved.is_empty() {
                        let file = bucket.file.filter(|_| !bucket.rewrite).unwrap_or_else(|| {
                            scope.next_file += 1;
                            KeyFile {
                                number: scope.next_file,
                                salt: 0,
                                len: 0,
                            }
                        });
                        todo.push((number, bucket.start_unix_ms, file, bucket.unsaved.clone()));
                    }
                }
            }
        }
        for (scope, start, mut file, rows) in todo {
            let path = self.key_path(scope, file.number);
            let dir = self.dir.join("keys").join(format!("{scope:08x}"));
            let made = file.len == 0;
            let mut handle = if made {
                self.fs.create_dir(&dir)?;
                file.salt = self.fs.entropy();
                if self.planted != Some(Planted::GarbageKept) {
                    self.garbage.retain(|p| *p != path);
                }
                let mut handle = match self.fs.open(&path, Open::Create) {
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                        self.fs.open(&path, Open::Write)?
                    }
                    other => other?,
                };
                let head = FileHead {
                    version: FORMAT_VERSION,
                    lane: scope,
                    number: file.number,
                    salt: file.salt,
                };
                write_all_at(handle.as_mut(), &encode_head(&head), 0)?;
                file.len = FILE_HEADER;
                handle
            } else {
                self.fs.open(&path, Open::Write)?
            };
            let mut buf = Vec::new();
            for rows in rows.chunks(KEY_ROWS) {
                let mut payload = Vec::new();
                for (key, body) in rows {
                    payload.put_u8(u8::from(body.is_some()));
                    payload.put_raw(key);
                    payload.put_raw(body.as_ref().map_or(&[], |b| &b[..]));
                }
                let crc = crc32c::crc32c(&payload);
                record::append(&mut buf, self.stamp(file.salt, 1), &[], &payload, crc);
            }
            handle.allocate(file.len, buf.len() as u64)?;
            write_all_at(handle.as_mut(), &buf, file.len)?;
            if self.planted != Some(Planted::KeysNotSynced) {
                handle.sync()?;
            }
            if made {
                self.fs.sync_dir(&dir)?;
                self.fs.sync_dir(&self.dir.join("keys"))?;
            }
            file.len += buf.len() as u64;
            self.count_written(buf.len() as u64);
            job.keys.insert((scope, start), (file, rows.len()));
        }
        Ok(())
    }
}
