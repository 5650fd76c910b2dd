//! The simulated disk as a file system: every call may fail, fall short, or be the process's last.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::cells::Call;
use super::disk::{Disk, Inode, SECTOR, SimFilesystem, copy_sector, eio};
use super::rng::Rng;
use crate::fs::{FileHandle, Filesystem, LockOutcome, Open};

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
        let boot = disk.boot;
        disk.enter(Call::CreateDir, dir, boot)?;
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
        let most = disk.shortened(Call::Read, &self.path, buf.len());
        let inode = disk.inode(self.inode)?;
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|at| inode.bytes.get(at..))
            .unwrap_or_default();
        let n = rest.len().min(most);
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
        } else {
            n = disk.shortened(Call::Write, &self.path, n);
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
        disk.enter(Call::Size, &self.path, self.boot)?;
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
