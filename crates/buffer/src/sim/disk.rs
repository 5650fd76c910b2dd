//! A simulated disk: what was not flushed may be lost, in part and out of order, and any call may fail.
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

use crate::fs::{FileHandle, Filesystem, LockOutcome, Open};

/// A sector is written whole or not at all; that is the one thing disks do promise.
const SECTOR: usize = 512;

/// A small, fast generator (SplitMix64): the simulation must not depend on anything that may change.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.draw() % n }
    }
    /// True once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }
}

/// What a call is, for the table of hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// Opening an existing file.
    Open,
    /// Making a file.
    Create,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Flushing a file.
    Sync,
    /// Flushing a folder.
    SyncDir,
    /// Reserving space.
    Allocate,
    /// Setting a length.
    SetLen,
    /// Removing a name.
    Remove,
    /// Listing a folder.
    List,
}

/// What kind of file it happens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Area {
    /// A log segment.
    Log,
    /// A spill file.
    Spill,
    /// A checkpoint slot.
    Checkpoint,
    /// A file of accepted keys.
    Keys,
    /// Anything else.
    Other,
}

/// What is done to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The process is killed before the call.
    Kill,
    /// The power goes: as a kill, and unflushed bytes and names may be lost.
    PowerCut,
    /// An I/O error.
    Eio,
    /// No space.
    Enospc,
    /// Less is written than was asked.
    Short,
}

/// How often things go wrong: once in so many calls, 0 = never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odds {
    /// A kill.
    pub kill: u64,
    /// A power cut.
    pub power_cut: u64,
    /// An I/O error of the log.
    pub eio_log: u64,
    /// An I/O error elsewhere.
    pub eio: u64,
    /// No space, at a call that needs some.
    pub enospc: u64,
    /// A short write.
    pub short: u64,
}

#[derive(Debug, Default, Clone)]
struct Inode {
    /// As programs see it.
    bytes: Vec<u8>,
    /// As the disk has it.
    disk: Vec<u8>,
    /// Sectors that differ because nothing flushed them yet.
    dirty: BTreeSet<usize>,
    /// The length is not flushed.
    len_dirty: bool,
}

#[derive(Debug, Default)]
struct Disk {
    inodes: Vec<Inode>,
    /// Names as programs see them.
    names: BTreeMap<PathBuf, usize>,
    /// Names as the disk has them.
    disk_names: BTreeMap<PathBuf, usize>,
    dirs: BTreeSet<PathBuf>,
    locked: bool,
    /// Raised at each crash: handles from before are dead.
    boot: u64,
    crashed: Option<Fault>,
    rng: u64,
    odds: Odds,
    /// Bytes that may be allocated in all; `u64::MAX` = no limit.
    space: u64,
    hits: BTreeMap<(Fault, Call, Area), u64>,
    calls: u64,
    /// Bytes flipped on purpose: by path.
    flipped: u64,
}

/// The simulated file system. Clones share one disk.
#[derive(Debug, Clone, Default)]
pub struct SimFilesystem {
    disk: Arc<Mutex<Disk>>,
}

fn area(path: &Path) -> Area {
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

fn eio() -> io::Error {
    io::Error::other("simulated I/O error")
}

impl Disk {
    fn roll(&mut self, n: u64) -> bool {
        let mut rng = Rng(self.rng);
        let hit = rng.one_in(n);
        self.rng = rng.0;
        hit
    }

    fn hit(&mut self, fault: Fault, call: Call, area: Area) {
        *self.hits.entry((fault, call, area)).or_default() += 1;
    }

    /// Decides what happens to a call; `Err` when it does not take place.
    fn enter(&mut self, call: Call, path: &Path, boot: u64) -> io::Result<()> {
        if self.crashed.is_some() || boot != self.boot {
            return Err(eio());
        }
        self.calls += 1;
        let area = area(path);
        let odds = self.odds;
        for (fault, n) in [(Fault::Kill, odds.kill), (Fault::PowerCut, odds.power_cut)] {
            if self.roll(n) {
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
        if self.roll(n) {
            self.hit(Fault::Eio, call, area);
            return Err(eio());
        }
        let grows = matches!(call, Call::Create | Call::Allocate)
            || (call == Call::Write && area != Area::Checkpoint);
        if grows && self.roll(odds.enospc) {
            self.hit(Fault::Enospc, call, area);
            return Err(io::ErrorKind::StorageFull.into());
        }
        if call == Call::Sync && area != Area::Log && self.roll(odds.enospc) {
            self.hit(Fault::Enospc, call, area);
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .filter_map(|i| self.inodes.get(*i))
            .map(|i| i.bytes.len() as u64)
            .sum()
    }

    fn inode(&mut self, at: usize) -> io::Result<&mut Inode> {
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
    pub fn hits(&self) -> BTreeMap<(Fault, Call, Area), u64> {
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
        disk.flipped += 1;
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

fn copy_sector(from: &[u8], to: &mut Vec<u8>, sector: usize) {
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

impl Filesystem for SimFilesystem {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn FileHandle>> {
        let mut disk = self.disk.lock();
        let boot = disk.boot;
        let call = if how == Open::Create {
            Call::Create
        } else {
            Call::Open
        };
        disk.enter(call, path, boot)?;
        let found = disk.names.get(path).copied();
        let inode = match (how, found) {
            (Open::Create, Some(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Open::Create, None) => {
                disk.inodes.push(Inode::default());
                let at = disk.inodes.len() - 1;
                disk.names.insert(path.to_owned(), at);
                at
            }
            (_, Some(at)) => at,
            (_, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Box::new(SimFile {
            disk: self.disk.clone(),
            path: path.to_owned(),
            inode,
            boot,
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut disk = self.disk.lock();
        let boot = disk.boot;
        disk.enter(Call::List, dir, boot)?;
        if !disk.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let paths = disk.names.keys().chain(disk.dirs.iter());
        let names: BTreeSet<String> = paths
            .filter(|p| p.parent() == Some(dir))
            .filter_map(|p| Some(p.file_name()?.to_string_lossy().into_owned()))
            .collect();
        Ok(names.into_iter().collect())
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        if disk.crashed.is_some() {
            return Err(eio());
        }
        // Folders are taken to be durable; what is lost is names in them.
        disk.dirs.extend(dir.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let boot = disk.boot;
        disk.enter(Call::Remove, path, boot)?;
        disk.names
            .remove(path)
            .map(|_| ())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let boot = disk.boot;
        disk.enter(Call::SyncDir, dir, boot)?;
        let inside = |p: &PathBuf| p.parent() == Some(dir);
        let mut durable: BTreeMap<PathBuf, usize> = disk
            .disk_names
            .iter()
            .filter(|(p, _)| !inside(p))
            .map(|(p, i)| (p.clone(), *i))
            .collect();
        durable.extend(
            disk.names
                .iter()
                .filter(|(p, _)| inside(p))
                .map(|(p, i)| (p.clone(), *i)),
        );
        disk.disk_names = durable;
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<LockOutcome> {
        let mut disk = self.disk.lock();
        if disk.locked {
            return Ok(LockOutcome::HeldBy(1));
        }
        disk.locked = true;
        let guard = Guard {
            disk: self.disk.clone(),
            boot: disk.boot,
        };
        Ok(LockOutcome::Held(Box::new(guard)))
    }

    fn entropy(&self) -> u64 {
        let mut disk = self.disk.lock();
        let mut rng = Rng(disk.rng);
        let n = rng.draw();
        disk.rng = rng.0;
        n
    }
}

struct Guard {
    disk: Arc<Mutex<Disk>>,
    boot: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        if disk.boot == self.boot {
            disk.locked = false;
        }
    }
}

struct SimFile {
    disk: Arc<Mutex<Disk>>,
    path: PathBuf,
    inode: usize,
    boot: u64,
}

impl FileHandle for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.disk.lock();
        disk.enter(Call::Read, &self.path, self.boot)?;
        let inode = disk.inode(self.inode)?;
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|at| inode.bytes.get(at..))
            .unwrap_or_default();
        let n = rest.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), rest.get(..n)) {
            to.copy_from_slice(from);
        }
        Ok(n)
    }

    fn write_at(&mut self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.disk.lock();
        let before = disk.crashed;
        let entered = disk.enter(Call::Write, &self.path, self.boot);
        let died = before.is_none() && disk.crashed.is_some();
        let mut n = buf.len();
        if entered.is_err() {
            if !died {
                return entered.map(|()| 0);
            }
            // Killed in the middle of the call: some of it was taken.
            let mut rng = Rng(disk.rng);
            n = usize::try_from(rng.below(buf.len() as u64 + 1)).unwrap_or(0);
            disk.rng = rng.0;
        } else if n > 1 {
            let short = disk.odds.short;
            if disk.roll(short) {
                let a = area(&self.path);
                disk.hit(Fault::Short, Call::Write, a);
                n /= 2;
            }
        }
        let (used, space) = (disk.used(), disk.space);
        let inode = disk.inode(self.inode)?;
        let at = usize::try_from(offset).map_err(|_| eio())?;
        let grow = (at + n).saturating_sub(inode.bytes.len());
        if used.saturating_add(grow as u64) > space && grow > 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if inode.bytes.len() < at + n {
            inode.bytes.resize(at + n, 0);
            inode.len_dirty = true;
        }
        if let (Some(to), Some(from)) = (inode.bytes.get_mut(at..at + n), buf.get(..n)) {
            to.copy_from_slice(from);
        }
        if n > 0 {
            inode.dirty.extend(at / SECTOR..=(at + n - 1) / SECTOR);
        }
        entered.map(|()| n)
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let result = disk.enter(Call::Sync, &self.path, self.boot);
        if disk.crashed.is_some() || self.boot != disk.boot {
            return Err(eio());
        }
        let mut rng = Rng(disk.rng);
        let inode = disk.inode(self.inode)?;
        let dirty = std::mem::take(&mut inode.dirty);
        for sector in dirty {
            // After a failure nobody knows which sectors made it, and no later flush will try again.
            if result.is_ok() || rng.one_in(2) {
                copy_sector(&inode.bytes, &mut inode.disk, sector);
            }
        }
        if result.is_ok() {
            inode.disk.resize(inode.bytes.len(), 0);
            inode.len_dirty = false;
        }
        disk.rng = rng.0;
        result
    }

    fn size(&self) -> io::Result<u64> {
        let mut disk = self.disk.lock();
        if disk.crashed.is_some() || self.boot != disk.boot {
            return Err(eio());
        }
        Ok(disk.inode(self.inode)?.bytes.len() as u64)
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.enter(Call::SetLen, &self.path, self.boot)?;
        let inode = disk.inode(self.inode)?;
        inode
            .bytes
            .resize(usize::try_from(len).map_err(|_| eio())?, 0);
        inode.len_dirty = true;
        Ok(())
    }

    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.enter(Call::Allocate, &self.path, self.boot)?;
        let (used, space) = (disk.used(), disk.space);
        let inode = disk.inode(self.inode)?;
        let end = usize::try_from(offset.saturating_add(len)).map_err(|_| eio())?;
        let grow = end.saturating_sub(inode.bytes.len());
        if used.saturating_add(grow as u64) > space && grow > 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if grow > 0 {
            inode.bytes.resize(end, 0);
            inode.len_dirty = true;
        }
        Ok(())
    }
}
