//! The one seam through which every file is touched: a real implementation and a simulated one.

use std::io;
use std::path::Path;

mod real;

pub use real::RealFilesystem;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// An existing file, for reading only.
    Read,
    /// An existing file, for reading and writing.
    Write,
    /// A new file with mode 0600, for reading and writing; fails when it exists.
    Create,
}

/// What trying to lock a folder found.
pub enum LockOutcome {
    /// Ours until the guard is dropped.
    Held(Box<dyn Send + Sync>),
    /// Another process has it: its id, or 0 where the file does not say.
    HeldBy(u32),
}

/// A folder of files. Called from one thread at a time; every call may block.
pub trait Filesystem: Send + Sync {
    /// Opens a file. A created file is durable only after [`FileHandle::sync`] and [`sync_dir`](Self::sync_dir).
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn FileHandle>>;
    /// The names in a folder, sorted. A missing folder is an error of kind `NotFound`.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Makes a folder (mode 0700) and those above it; fine when it exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the folder's lock file without waiting, and writes our process id into it.
    fn lock(&self, path: &Path) -> io::Result<LockOutcome>;
    /// As [`lock`](Self::lock), for looking only: writes nothing, and a lock file that is missing counts as held.
    fn lock_to_look(&self, path: &Path) -> io::Result<LockOutcome> {
        self.lock(path)
    }
    /// A number nobody can guess: salts and nothing else.
    fn entropy(&self) -> u64;
}

/// An open file.
pub trait FileHandle: Send {
    /// Reads at an offset; 0 = the end. May read less than asked.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes at an offset. May write less than asked.
    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<usize>;
    /// Makes the file's bytes durable (fdatasync).
    fn sync(&mut self) -> io::Result<()>;
    /// The file's length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Sets the length.
    fn set_len(&mut self, len: u64) -> io::Result<()>;
    /// Makes sure that the bytes from `offset` can be written without running out of space; may extend the file.
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()>;
}

/// Writes all of `buf`, however short the single writes are.
pub(crate) fn write_all_at(
    file: &mut dyn FileHandle,
    mut buf: &[u8],
    mut offset: u64,
) -> io::Result<()> {
    while !buf.is_empty() {
        match file.write_at(buf, offset) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::WriteZero,
                    "the file takes no more bytes",
                ));
            }
            Ok(n) => {
                buf = buf.get(n..).unwrap_or_default();
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads until `buf` is full or the file ends; returns how much was read.
pub(crate) fn read_full_at(
    file: &dyn FileHandle,
    buf: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
