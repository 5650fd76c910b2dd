//! Reading every byte that a checkpoint vouches for, and saying which do not check.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Inspection, io_error, load, shown};
use crate::core::Core;
use crate::error::OpenError;
use crate::fs::{Filesystem, Open, read_full_at};
use crate::lane::Lane;
use crate::seqset::SeqSet;
use crate::spill::{FILE_HEADER, Step, Walk, parse_head};

/// A stretch of a file that does not check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file, from the buffer's folder on.
    pub file: PathBuf,
    /// Where it begins.
    pub offset: u64,
    /// How long it is; 0 = the whole file is missing.
    pub bytes: u64,
    /// Nothing that is still needed was there.
    pub harmless: bool,
}

/// What [`verify`] found.
#[derive(Debug, Clone, Default)]
pub struct Verified {
    /// As [`inspect`](super::inspect), with `lost` complete.
    pub found: Inspection,
    /// Every stretch that does not check, in the order of files.
    pub damage: Vec<Damage>,
    /// Pending writes that were read and check.
    pub writes: u64,
    /// Bytes of spill files that were read.
    pub spill_bytes: u64,
}

impl Verified {
    /// Whether every byte checks.
    pub fn is_whole(&self) -> bool {
        self.damage.is_empty() && self.found.lost.is_empty() && self.found.healed.is_empty()
    }
}

/// Reads everything the folder holds.
///
/// # Errors
/// As [`inspect`](super::inspect).
pub fn verify(dir: &Path, fs: Arc<dyn Filesystem>) -> Result<Verified, OpenError> {
    let (found, mut core) = load(dir, fs.clone())?;
    let mut out = Verified {
        found,
        ..Verified::default()
    };
    let lanes = u32::try_from(out.found.lanes.len()).unwrap_or(u32::MAX);
    for lane in 0..lanes {
        spill(&mut core, dir, lane, &mut out)?;
        // The spill files were walked already; what follows them is in the log.
        let after = {
            let state = core.shared.state.lock();
            let lane = state.lanes.get(lane as usize);
            lane.map_or(0, |l| l.spilled_through)
        };
        super::each_pending(&mut core, dir, lane, after, |_, _| {
            out.writes += 1;
            Ok(())
        })?;
    }
    core.settle_losses();
    let state = core.shared.state.lock();
    out.found.lost = state.lost.clone();
    out.found.lanes = state.lanes.iter().map(Lane::stats).collect();
    drop(state);
    // What opening and the losses set aside, and what only this walk saw.
    let known: BTreeSet<(PathBuf, u64)> = out
        .found
        .lost
        .places
        .iter()
        .map(|p| (p.file.clone(), p.offset))
        .collect();
    out.damage
        .retain(|d| !known.contains(&(d.file.clone(), d.offset)));
    out.damage
        .extend(out.found.lost.places.iter().map(|place| Damage {
            file: place.file.clone(),
            offset: place.offset,
            bytes: place.bytes,
            harmless: false,
        }));
    out.damage
        .sort_by(|a, b| (&a.file, a.offset).cmp(&(&b.file, b.offset)));
    Ok(out)
}

/// Walks the spill files of a lane, over every record, settled or not.
fn spill(core: &mut Core, dir: &Path, number: u32, out: &mut Verified) -> Result<(), OpenError> {
    let files: Vec<_> = {
        let state = core.shared.state.lock();
        let lane = state.lanes.get(number as usize);
        lane.into_iter().flat_map(|l| l.files.clone()).collect()
    };
    for file in files {
        let path = core.spill_path(number, file.number);
        let failed = |e| io_error(&path, e);
        let handle = match core.fs.open(&path, Open::Read) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let damage = damage(dir, &path, 0, 0, file.live == 0);
                out.damage.push(damage);
                core.lose_in_spill(number, file.number).map_err(failed)?;
                continue;
            }
            other => other.map_err(failed)?,
        };
        let mut head = vec![0u8; FILE_HEADER as usize];
        read_full_at(handle.as_ref(), &mut head, 0).map_err(failed)?;
        // The checkpoint knows what it says; it is needed only where that is lost, too.
        if parse_head(&head).is_none_or(|h| h.salt != file.salt || h.number != file.number) {
            out.damage.push(damage(dir, &path, 0, FILE_HEADER, true));
        }
        let mut there = SeqSet::default();
        let mut bad = Vec::new();
        let mut walk = Walk::new(handle.as_ref(), file.salt, file.len, FILE_HEADER);
        while let Some(step) = walk.next().map_err(failed)? {
            match step {
                Step::Record { seq, .. } => drop(there.insert(seq)),
                Step::Damage { offset, next } => bad.push((offset, next)),
            }
        }
        out.spill_bytes += file.len;
        let (lost, whole) = {
            let state = core.shared.state.lock();
            let settled = state.lanes.get(number as usize).map(|l| &l.settled);
            let pending = |from, to| settled.map_or(0, |s| to + 1 - from - s.count_in(from, to));
            let missing = there.missing_in(file.first_seq, file.last_seq);
            let lost: u64 = missing.iter().map(|&(from, to)| pending(from, to)).sum();
            let all = pending(file.first_seq, file.last_seq);
            (lost, all.saturating_sub(lost))
        };
        out.writes += whole;
        for (offset, next) in bad {
            let damage = damage(dir, &path, offset, next - offset, lost == 0);
            out.damage.push(damage);
        }
        if lost > 0 {
            core.lose_in_spill(number, file.number).map_err(failed)?;
        }
    }
    Ok(())
}

fn damage(dir: &Path, path: &Path, offset: u64, bytes: u64, harmless: bool) -> Damage {
    Damage {
        file: shown(dir, path),
        offset,
        bytes,
        harmless,
    }
}
