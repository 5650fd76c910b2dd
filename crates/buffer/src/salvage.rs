//! What lies in the folder and belongs to nothing: bytes that do not check are set aside, files of a checkpoint that
//! never became durable are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::core::Core;
use crate::fs::{FileHandle, Filesystem, Open, read_full_at, write_all_at};
use crate::state::State;

/// Bytes that do not check are copied to `quarantine/` up to this much a place.
const MAX_QUARANTINE_BYTES: u64 = 16 << 20;

/// Whether a folder's subfolders hold any file.
pub(crate) fn holds_files(fs: &dyn Filesystem, dir: &Path) -> io::Result<bool> {
    for name in list(fs, dir)? {
        if !list(fs, &dir.join(name))?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The names in a folder; none where there is no folder.
pub(crate) fn list(fs: &dyn Filesystem, dir: &Path) -> io::Result<Vec<String>> {
    match fs.list(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

impl Core {
    /// Removes spill and key files that no checkpoint names: left by a checkpoint that never became durable.
    pub(crate) fn remove_unknown(&mut self) {
        let mut wanted: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
        {
            let state = self.shared.state.lock();
            for (number, lane) in (0u32..).zip(&state.lanes) {
                let names = lane
                    .files
                    .iter()
                    .map(|f| format!("{:016x}.spill", f.number))
                    .collect();
                wanted.insert(self.lane_dir(number), names);
            }
            for (number, scope) in (0u32..).zip(&state.scopes) {
                let names = scope.buckets.iter().filter_map(|b| b.file);
                let names = names.map(|f| format!("{:016x}.keys", f.number)).collect();
                wanted.insert(self.dir.join("keys").join(format!("{number:08x}")), names);
            }
        }
        for top in ["lanes", "keys"] {
            let top = self.dir.join(top);
            for folder in self.fs.list(&top).unwrap_or_default() {
                let folder = top.join(folder);
                let none = BTreeSet::new();
                let keep = wanted.get(&folder).unwrap_or(&none);
                for name in self.fs.list(&folder).unwrap_or_default() {
                    if !keep.contains(&name) && self.fs.remove(&folder.join(&name)).is_err() {
                        self.garbage.push(folder.join(&name));
                    }
                }
            }
        }
    }
}

/// Copies bytes that do not check to `quarantine/`, for a person, and counts them.
pub(crate) fn quarantine(
    fs: &dyn Filesystem,
    dir: &Path,
    (file, path): (&dyn FileHandle, &Path),
    name: &str,
    from: u64,
    to: u64,
    state: &mut State,
) {
    // As far as there are any: a length may have been believed that the file does not have.
    let end = file.size().map_or(to, |len| to.min(len));
    let bytes = end.saturating_sub(from);
    if bytes == 0 {
        return;
    }
    state.lost.quarantined_bytes += bytes;
    let place = path.strip_prefix(dir).unwrap_or(path).to_path_buf();
    let shown = place.display().to_string();
    state.note_place(place, from, bytes);
    let folder = dir.join("quarantine");
    let path = folder.join(format!("{name}-{from}.bin"));
    let copy = || -> io::Result<()> {
        fs.create_dir(&folder)?;
        let mut buf = vec![0u8; usize::try_from(bytes.min(MAX_QUARANTINE_BYTES)).unwrap_or(0)];
        let n = read_full_at(file, &mut buf, from)?;
        buf.truncate(n);
        let mut out = fs.open(&path, Open::Create)?;
        write_all_at(out.as_mut(), &buf, 0)?;
        out.sync()
    };
    let copied = match copy() {
        Ok(()) => format!("a copy is in {}", path.display()),
        Err(e) => format!("no copy could be made: {e}"),
    };
    state.note_loss(format!(
        "{bytes} bytes of {shown} at {from} do not check; {copied}"
    ));
}
