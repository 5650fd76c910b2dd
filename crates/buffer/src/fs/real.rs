//! The real file system: plain blocking calls.

use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use super::{FileHandle, Filesystem, LockOutcome, Open};

/// The file system the host runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFilesystem;

impl Filesystem for RealFilesystem {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn FileHandle>> {
        let mut options = OpenOptions::new();
        options.read(true);
        match how {
            Open::Read => {}
            Open::Write => {
                options.write(true);
            }
            Open::Create => {
                options.write(true).create_new(true).mode(0o600);
            }
        }
        Ok(Box::new(RealFile(options.open(path)?)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<LockOutcome> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                file.write_all(std::process::id().to_string().as_bytes())?;
                Ok(LockOutcome::Held(Box::new(file)))
            }
            Err(TryLockError::WouldBlock) => Ok(LockOutcome::HeldBy(holder(&mut file))),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    fn lock_to_look(&self, path: &Path) -> io::Result<LockOutcome> {
        let mut file = match File::open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(LockOutcome::Held(Box::new(())));
            }
            other => other?,
        };
        match file.try_lock() {
            Ok(()) => Ok(LockOutcome::Held(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(LockOutcome::HeldBy(holder(&mut file))),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    fn entropy(&self) -> u64 {
        // RandomState is seeded by the operating system; two of them make the per-thread counter irrelevant.
        RandomState::new().build_hasher().finish()
            ^ RandomState::new().build_hasher().finish().rotate_left(32)
    }
}

/// The process that a lock file names, or 0: one that only looks takes the lock and leaves the last host's number.
fn holder(file: &mut File) -> u32 {
    let mut text = String::new();
    let _ = file.read_to_string(&mut text);
    let pid: u32 = text.trim().parse().unwrap_or(0);
    let alive = Path::new("/proc").join(pid.to_string()).exists();
    if alive || !Path::new("/proc/self").exists() {
        pid
    } else {
        0
    }
}

struct RealFile(File);

impl FileHandle for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, rustix::fs::FallocateFlags::empty(), offset, len) {
            // A file system without it finds out while writing; that is handled as well, only later.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            other => Ok(other?),
        }
    }
}
