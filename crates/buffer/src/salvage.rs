//! What an opening does about damage: takes in spill files that no checkpoint vouches for, sets aside what does not
//! check, and removes what a checkpoint that never became durable left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::core::Core;
use crate::fs::{FileHandle, Filesystem, Open, read_full_at, write_all_at};
use crate::spill::{FILE_HEADER, Step, Walk, parse_head};
use crate::state::State;
use crate::write::parse_write;

/// Bytes that do not check are copied to `quarantine/` up to this much a place.
const MAX_QUARANTINE_BYTES: u64 = 16 << 20;

/// After damage: takes in spill files, or parts of them, that the surviving checkpoint does not vouch for.
pub(crate) fn adopt_spill(fs: &dyn Filesystem, dir: &Path, state: &mut State) {
    let mut charges: Vec<(u32, u64)> = Vec::new();
    let mut notes = Vec::new();
    let folders = fs.list(&dir.join("lanes")).unwrap_or_default();
    for name in folders {
        let Ok(number) = u32::from_str_radix(&name, 16) else {
            continue;
        };
        let folder = dir.join("lanes").join(&name);
        let lane = state.lane_mut(number);
        for file_name in fs.list(&folder).unwrap_or_default() {
            let Some(file_number) = file_name
                .strip_suffix(".spill")
                .and_then(|n| u64::from_str_radix(n, 16).ok())
            else {
                continue;
            };
            lane.next_file = lane.next_file.max(file_number + 1);
            let Ok(handle) = fs.open(&folder.join(&file_name), Open::Read) else {
                continue;
            };
            let mut head = vec![0u8; FILE_HEADER as usize];
            let known = lane
                .files
                .iter()
                .find(|f| f.number == file_number)
                .map(|f| (f.len, f.salt));
            let Ok(_) = read_full_at(handle.as_ref(), &mut head, 0) else {
                continue;
            };
            let Some(head) = parse_head(&head) else {
                continue;
            };
            let (from, salt) = known.unwrap_or((FILE_HEADER, head.salt));
            let len = handle.size().unwrap_or(0);
            let mut walk = Walk::new(handle.as_ref(), salt, len, from);
            let mut found = crate::lane::SpillFile {
                number: file_number,
                salt,
                len: from,
                sealed: true,
                ..Default::default()
            };
            while let Ok(Some(step)) = walk.next() {
                let Step::Record { seq, enc, next, .. } = step else {
                    continue;
                };
                found.len = next;
                // The same number must not be in two files: an entry of the log, or an older file, is as good.
                let wanted = seq > lane.spilled_through
                    && seq > found.last_seq
                    && !lane.settled.contains(seq)
                    && lane
                        .entries
                        .first_key_value()
                        .is_none_or(|(first, _)| seq < *first);
                let Some(view) = parse_write(&enc).filter(|_| wanted) else {
                    continue;
                };
                if found.first_seq == 0 {
                    found.first_seq = seq;
                }
                found.last_seq = seq;
                found.put_on(view.charge(), &view.held());
            }
            if found.live == 0 {
                continue;
            }
            notes.push(format!(
                "lane {}: {} writes were salvaged from {}",
                lane.id, found.live, file_name
            ));
            charges.push((number, found.live_charge));
            charges.extend(found.held.iter().map(|(l, c)| (*l, *c)));
            // What is between and not here was settled, or is lost with the checkpoint that knew.
            lane.settled
                .insert_range(lane.spilled_through + 1, found.first_seq - 1);
            lane.spilled_through = found.last_seq;
            lane.next_seq = lane.next_seq.max(found.last_seq + 1);
            lane.maybe_through = lane.next_seq - 1;
            match lane.files.iter_mut().find(|f| f.number == file_number) {
                Some(old) => {
                    old.last_seq = found.last_seq;
                    old.len = found.len;
                    old.sealed = true;
                    old.live += found.live;
                    old.live_charge += found.live_charge;
                    old.live_physical += found.live_physical;
                    for (lane, charge) in found.held {
                        *old.held.entry(lane).or_default() += charge;
                    }
                }
                None => lane.files.push_back(found),
            }
        }
    }
    for (lane, charge) in charges {
        state.lane_mut(lane).charged += charge;
    }
    for note in notes {
        state.note_loss(note);
    }
}

/// Whether a folder's subfolders hold any file.
pub(crate) fn holds_files(fs: &dyn Filesystem, dir: &Path) -> bool {
    let folders = fs.list(dir).unwrap_or_default();
    folders.iter().any(|name| {
        fs.list(&dir.join(name))
            .is_ok_and(|files| !files.is_empty())
    })
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
    let bytes = to.saturating_sub(from);
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
