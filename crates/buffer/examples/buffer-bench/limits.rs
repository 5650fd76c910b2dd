//! What a load was limited by: the time of the committing thread at the disk, and what all threads used of the
//! processors and waited for them.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use consign_buffer::{FileHandle, Filesystem, LockOutcome, Open, RealFilesystem};

use crate::Outcome;

/// Time spent in the calls of a file system.
#[derive(Default)]
struct Spent {
    write_ns: AtomicU64,
    sync_ns: AtomicU64,
}

/// The real file system with a clock beside it.
#[derive(Clone, Default)]
pub struct Timed(Arc<Spent>);

fn timed<T>(into: &AtomicU64, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = call();
    let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    into.fetch_add(nanos, Ordering::Relaxed);
    result
}

impl Filesystem for Timed {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn FileHandle>> {
        let file = RealFilesystem.open(path, how)?;
        Ok(Box::new(TimedFile {
            file,
            spent: Arc::clone(&self.0),
        }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFilesystem.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealFilesystem.create_dir(dir)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealFilesystem.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        timed(&self.0.sync_ns, || RealFilesystem.sync_dir(dir))
    }
    fn lock(&self, path: &Path) -> io::Result<LockOutcome> {
        RealFilesystem.lock(path)
    }
    fn entropy(&self) -> u64 {
        RealFilesystem.entropy()
    }
}

struct TimedFile {
    file: Box<dyn FileHandle>,
    spent: Arc<Spent>,
}

impl FileHandle for TimedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<usize> {
        timed(&self.spent.write_ns, || self.file.write_at(buf, offset))
    }
    fn sync(&mut self) -> io::Result<()> {
        timed(&self.spent.sync_ns, || self.file.sync())
    }
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        timed(&self.spent.write_ns, || self.file.allocate(offset, len))
    }
}

/// A reading of all clocks.
#[derive(Clone, Copy)]
pub struct Reading {
    at: Instant,
    write_ns: u64,
    sync_ns: u64,
    ran_ns: u64,
    waited_ns: u64,
}

impl Reading {
    /// Now.
    pub fn take(fs: &Timed) -> Outcome<Reading> {
        let (mut ran_ns, mut waited_ns) = (0, 0);
        for task in std::fs::read_dir("/proc/self/task")? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let mut numbers = text.split_whitespace().map(str::parse::<u64>);
            ran_ns += numbers.next().ok_or("no time")??;
            waited_ns += numbers.next().ok_or("no time")??;
        }
        Ok(Reading {
            at: Instant::now(),
            write_ns: fs.0.write_ns.load(Ordering::Relaxed),
            sync_ns: fs.0.sync_ns.load(Ordering::Relaxed),
            ran_ns,
            waited_ns,
        })
    }

    /// What was spent since.
    pub fn until(self, later: Reading) -> Limits {
        let wall = later.at - self.at;
        let share = |from: u64, to: u64| {
            Duration::from_nanos(to.saturating_sub(from)).as_secs_f64() / wall.as_secs_f64()
        };
        Limits {
            write: share(self.write_ns, later.write_ns),
            sync: share(self.sync_ns, later.sync_ns),
            ran: share(self.ran_ns, later.ran_ns),
            waited: share(self.waited_ns, later.waited_ns),
        }
    }
}

/// Shares of the wall time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// The committing thread was in a write.
    pub write: f64,
    /// It was in a flush.
    pub sync: f64,
    /// Processors that all threads used.
    pub ran: f64,
    /// Threads that could run and had no processor: other processes had them.
    pub waited: f64,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "in write {:.0} %, in flush {:.0} %, processors used {:.2}, waited for {:.2}",
            100.0 * self.write,
            100.0 * self.sync,
            self.ran,
            self.waited
        )
    }
}
