//! A file system that keeps every write in memory and passes reads through: opening works as always, and the folder
//! stays as it is.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fs::{FileHandle, Filesystem, LockOutcome, Open, read_full_at};

/// Pieces written over a file, by offset, and the file's length.
#[derive(Default)]
struct Written {
    pieces: Vec<(u64, Vec<u8>)>,
    len: u64,
}

type Memory = Arc<Mutex<std::collections::BTreeMap<PathBuf, Written>>>;

/// See the module's head.
pub(super) struct Overlay {
    below: Arc<dyn Filesystem>,
    held: Mutex<Option<Box<dyn Send + Sync>>>,
    memory: Memory,
}

impl Overlay {
    /// Over `below`, whose lock is held.
    pub(super) fn new(below: Arc<dyn Filesystem>, held: Box<dyn Send + Sync>) -> Overlay {
        Overlay {
            below,
            held: Mutex::new(Some(held)),
            memory: Arc::default(),
        }
    }
}

impl Filesystem for Overlay {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn FileHandle>> {
        if path
            .components()
            .any(|part| part.as_os_str() == "quarantine")
        {
            // Notes about damage must not name a copy that nobody will find.
            return Err(io::Error::other("nothing is written while looking"));
        }
        let below = match (how, self.below.open(path, Open::Read)) {
            (_, Ok(file)) => Some(file),
            (Open::Create, Err(_)) => None,
            (_, Err(e)) if !self.memory.lock().contains_key(path) => return Err(e),
            (_, Err(_)) => None,
        };
        let len = below.as_ref().map_or(Ok(0), |f| f.size())?;
        let mut memory = self.memory.lock();
        let written = memory.entry(path.to_owned()).or_default();
        written.len = written.len.max(len);
        drop(memory);
        Ok(Box::new(OverlayFile {
            below,
            path: path.to_owned(),
            memory: self.memory.clone(),
        }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.below.list(dir)
    }
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn remove(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn lock(&self, _: &Path) -> io::Result<LockOutcome> {
        let held = self.held.lock().take();
        Ok(held.map_or(LockOutcome::HeldBy(0), LockOutcome::Held))
    }
    fn entropy(&self) -> u64 {
        self.below.entropy()
    }
}

struct OverlayFile {
    below: Option<Box<dyn FileHandle>>,
    path: PathBuf,
    memory: Memory,
}

impl FileHandle for OverlayFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let memory = self.memory.lock();
        let written = memory.get(&self.path);
        let len = written.map_or(0, |w| w.len);
        let n = usize::try_from(len.saturating_sub(offset))
            .unwrap_or(usize::MAX)
            .min(buf.len());
        let Some(out) = buf.get_mut(..n) else {
            return Ok(0);
        };
        out.fill(0);
        if let Some(below) = &self.below {
            read_full_at(below.as_ref(), out, offset)?;
        }
        for (at, bytes) in written.map_or(&[][..], |w| &w.pieces) {
            let (from, to) = (
                (*at).max(offset),
                (at + bytes.len() as u64).min(offset + n as u64),
            );
            if from < to {
                let source = bytes.get((from - at) as usize..(to - at) as usize);
                let target = out.get_mut((from - offset) as usize..(to - offset) as usize);
                if let (Some(source), Some(target)) = (source, target) {
                    target.copy_from_slice(source);
                }
            }
        }
        Ok(n)
    }
    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut memory = self.memory.lock();
        let written = memory.entry(self.path.clone()).or_default();
        written.len = written.len.max(offset + buf.len() as u64);
        written.pieces.push((offset, buf.to_vec()));
        Ok(buf.len())
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn size(&self) -> io::Result<u64> {
        Ok(self.memory.lock().get(&self.path).map_or(0, |w| w.len))
    }
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.memory.lock().entry(self.path.clone()).or_default().len = len;
        Ok(())
    }
    fn allocate(&mut self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}
