//! A simulated disk: what was not flushed may be lost, in part and out of order.
//!
//! A file has bytes as programs see them and, sector by sector, bytes as the disk has them. A crash keeps of every
//! unflushed sector either the old or the new bytes, and of every unflushed name (made or removed) either state. A
//! flush that fails leaves its sectors in between for good: the next flush reports success without writing them, as
//! real kernels do.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::cells::{Area, Call, Cell, Fault, needs_space};
use super::rng::Rng;
use super::swarm::Odds;

/// A sector is written whole or not at all; that is the one thing disks do promise.
pub(super) const SECTOR: usize = 512;

#[derive(Debug, Default, Clone)]
pub(super) struct Inode {
    /// As programs see it.
    pub(super) bytes: Vec<u8>,
    /// As the disk has it.
    pub(super) disk: Vec<u8>,
    /// Sectors that differ because nothing flushed them yet.
    pub(super) dirty: BTreeSet<usize>,
    /// The length is not flushed.
    pub(super) len_dirty: bool,
}

#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) inodes: Vec<Inode>,
    /// Names as programs see them.
    pub(super) names: BTreeMap<PathBuf, usize>,
    /// Names as the disk has them.
    pub(super) disk_names: BTreeMap<PathBuf, usize>,
    pub(super) dirs: BTreeSet<PathBuf>,
    pub(super) locked: bool,
    /// Raised at each crash: handles from before are dead.
    pub(super) boot: u64,
    pub(super) crashed: Option<Fault>,
    pub(super) rng: u64,
    pub(super) odds: Odds,
    /// Bytes that may be allocated in all; `u64::MAX` = no limit.
    pub(super) space: u64,
    pub(super) hits: BTreeMap<Cell, u64>,
    pub(super) calls: u64,
}

/// The simulated file system. Clones share one disk.
#[derive(Debug, Clone, Default)]
pub struct SimFilesystem {
    pub(super) disk: Arc<Mutex<Disk>>,
}

pub(super) fn area(path: &Path) -> Area {
    let text = path.to_string_lossy();
    if text.ends_with(".log") || text.ends_with("/log") {
        Area::Log
    } else if text.ends_with(".spill") || text.contains("/lanes") {
        Area::Spill
    } else if text.contains("/checkpoint-") {
        Area::Checkpoint
    } else if text.contains("/keys") {
        Area::Keys
    } else {
        Area::Other
    }
}

pub(super) fn eio() -> io::Error {
    io::Error::other("simulated I/O error")
}

impl Disk {
    pub(super) fn roll(&mut self, n: u64) -> bool {
        let mut rng = Rng(self.rng);
        let hit = rng.one_in(n);
        self.rng = rng.0;
        hit
    }

    fn focused(&mut self, focus: Option<(Fault, u64)>, fault: Fault) -> bool {
        focus.is_some_and(|(f, often)| f == fault && self.roll(often))
    }

    /// How much of `n` bytes a read or a write takes.
    pub(super) fn shortened(&mut self, call: Call, path: &Path, n: usize) -> usize {
        let area = area(path);
        let focus = self
            .odds
            .focus
            .filter(|(cell, _)| *cell == (Fault::Short, call, area));
        let often = focus.map_or(self.odds.short, |(_, often)| often);
        if n > 1 && self.roll(often) {
            self.hit(Fault::Short, call, area);
            return n / 2;
        }
        n
    }

    pub(super) fn hit(&mut self, fault: Fault, call: Call, area: Area) {
        *self.hits.entry((fault, call, area)).or_default() += 1;
    }

    /// Decides what happens to a call; `Err` when it does not take place.
    pub(super) fn enter(&mut self, call: Call, path: &Path, boot: u64) -> io::Result<()> {
        if self.crashed.is_some() || boot != self.boot {
            return Err(eio());
        }
        self.calls += 1;
        let area = area(path);
        let odds = self.odds;
        let focus = odds
            .focus
            .filter(|((_, c, a), _)| (*c, *a) == (call, area))
            .map(|((fault, ..), often)| (fault, often));
        for (fault, n) in [(Fault::Kill, odds.kill), (Fault::PowerCut, odds.power_cut)] {
            if self.roll(n) || self.focused(focus, fault) {
                self.hit(fault, call, area);
                self.crashed = Some(fault);
                return Err(eio());
            }
        }
        let n = if area == Area::Log {
            odds.eio_log
        } else {
            odds.eio
        };
        if self.roll(n) || self.focused(focus, Fault::Eio) {
            self.hit(Fault::Eio, call, area);
            return Err(eio());
        }
        // A flush of the log that finds no space ends the run, so it comes as rarely as other errors of the log.
        let n = if area == Area::Log && call == Call::Sync {
            odds.eio_log.saturating_mul(u64::from(odds.enospc > 0))
        } else {
            odds.enospc
        };
        if needs_space(call) && (self.roll(n) || self.focused(focus, Fault::Enospc)) {
            self.hit(Fault::Enospc, call, area);
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    pub(super) fn used(&self) -> u64 {
        self.names
            .values()
            .filter_map(|i| self.inodes.get(*i))
            .map(|i| i.bytes.len() as u64)
            .sum()
    }

    pub(super) fn inode(&mut self, at: usize) -> io::Result<&mut Inode> {
        self.inodes.get_mut(at).ok_or_else(eio)
    }
}

impl SimFilesystem {
    /// An empty disk.
    pub fn new(seed: u64) -> Self {
        let disk = Disk {
            rng: seed,
            space: u64::MAX,
            boot: 1,
            ..Disk::default()
        };
        SimFilesystem {
            disk: Arc::new(Mutex::new(disk)),
        }
    }

    /// Sets how often things go wrong from now on.
    pub fn set_odds(&self, odds: Odds) {
        self.disk.lock().odds = odds;
    }

    /// Limits the bytes of all files.
    pub fn set_space(&self, bytes: u64) {
        self.disk.lock().space = bytes;
    }

    /// Bytes of all files.
    pub fn used(&self) -> u64 {
        self.disk.lock().used()
    }

    /// Whether a fault ended the process.
    pub fn crashed(&self) -> Option<Fault> {
        self.disk.lock().crashed
    }

    /// How often each fault met each call.
    pub fn hits(&self) -> BTreeMap<Cell, u64> {
        self.disk.lock().hits.clone()
    }

    /// Calls made so far.
    pub fn calls(&self) -> u64 {
        self.disk.lock().calls
    }

    /// Ends the process, and with a power cut loses of what was not flushed as much as chance decides.
    pub fn reboot(&self, fault: Fault) {
        let mut disk = self.disk.lock();
        disk.crashed = None;
        disk.locked = false;
        disk.boot += 1;
        if fault != Fault::PowerCut {
            return;
        }
        let mut rng = Rng(disk.rng);
        // One cut in four loses everything unflushed: the hardest test of a missing flush.
        let lose_all = rng.one_in(4);
        let paths: BTreeSet<PathBuf> = disk
            .names
            .keys()
            .chain(disk.disk_names.keys())
            .cloned()
            .collect();
        for path in paths {
            let (seen, durable) = (
                disk.names.get(&path).copied(),
                disk.disk_names.get(&path).copied(),
            );
            if seen == durable {
                continue;
            }
            let keep_new = !lose_all && rng.one_in(2);
            let now = if keep_new { seen } else { durable };
            match now {
                Some(inode) => {
                    disk.names.insert(path.clone(), inode);
                    disk.disk_names.insert(path, inode);
                }
                None => {
                    disk.names.remove(&path);
                    disk.disk_names.remove(&path);
                }
            }
        }
        for inode in &mut disk.inodes {
            if inode.len_dirty {
                let new = lose_all || rng.one_in(2);
                if !new {
                    inode.disk.resize(inode.bytes.len(), 0);
                }
            }
            let dirty = std::mem::take(&mut inode.dirty);
            for sector in dirty {
                if !lose_all && rng.one_in(2) {
                    copy_sector(&inode.bytes, &mut inode.disk, sector);
                }
            }
            inode.len_dirty = false;
            inode.bytes = inode.disk.clone();
        }
        disk.rng = rng.0;
    }

    /// Flips one bit of a file, on the disk and as programs see it.
    pub fn flip(&self, path: &Path, bit: u64) {
        let mut disk = self.disk.lock();
        let Some(at) = disk.names.get(path).copied() else {
            return;
        };
        let Some(inode) = disk.inodes.get_mut(at) else {
            return;
        };
        let (byte, mask) = ((bit / 8) as usize, 1u8 << (bit % 8));
        for bytes in [&mut inode.bytes, &mut inode.disk] {
            if let Some(b) = bytes.get_mut(byte) {
                *b ^= mask;
            }
        }
    }

    /// Puts a file there, flushed, with its name and its folders.
    pub fn add_file(&self, path: &Path, bytes: Vec<u8>) {
        let mut disk = self.disk.lock();
        let parents = path.ancestors().skip(1).map(Path::to_owned);
        disk.dirs.extend(parents);
        disk.inodes.push(Inode {
            disk: bytes.clone(),
            bytes,
            ..Inode::default()
        });
        let at = disk.inodes.len() - 1;
        disk.names.insert(path.to_owned(), at);
        disk.disk_names.insert(path.to_owned(), at);
    }

    /// Removes a file for good, as a person would.
    pub fn lose_file(&self, path: &Path) {
        let mut disk = self.disk.lock();
        disk.names.remove(path);
        disk.disk_names.remove(path);
    }

    /// Cuts a file short, as a person would.
    pub fn cut_file(&self, path: &Path, len: u64) {
        let mut disk = self.disk.lock();
        let Some(at) = disk.names.get(path).copied() else {
            return;
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if let Some(inode) = disk.inodes.get_mut(at) {
            inode.bytes.truncate(len);
            inode.disk.truncate(len);
        }
    }

    /// The files whose names contain `part`, with their lengths.
    pub fn files(&self, part: &str) -> Vec<(PathBuf, u64)> {
        let disk = self.disk.lock();
        disk.names
            .iter()
            .filter(|(p, _)| p.to_string_lossy().contains(part))
            .map(|(p, i)| {
                (
                    p.clone(),
                    disk.inodes.get(*i).map_or(0, |i| i.bytes.len() as u64),
                )
            })
            .collect()
    }
}

pub(super) fn copy_sector(from: &[u8], to: &mut Vec<u8>, sector: usize) {
    let start = sector * SECTOR;
    let end = (start + SECTOR).min(from.len());
    let Some(bytes) = from.get(start..end) else {
        return;
    };
    if to.len() < end {
        to.resize(end, 0);
    }
    if let Some(target) = to.get_mut(start..end) {
        target.copy_from_slice(bytes);
    }
}
