//! The log's files at an opening: which are there and hold a segment, which were removed or cut short by hand, which
//! have to be made.

use std::io;
use std::path::Path;

use crate::checkpoint::LOST_SLOT;
use crate::error::OpenError;
use crate::fs::{FileHandle, Filesystem, Open, read_full_at, write_all_at};
use crate::log::{
    FORMAT_VERSION, HeaderFound, Live, Log, SEGMENT_HEADER, SegmentHeader, Slot, encode_header,
    parse_header,
};
use crate::recovery::At;
use crate::replay::Tail;
use crate::state::State;

/// A file of a higher number is none of ours.
const MAX_SLOTS: usize = 1 << 16;

/// The log's files, and the segments in them with the place of their file.
type LogFound = (Vec<Slot>, Vec<(SegmentHeader, usize)>);

/// Opens the log's files and reads their headers, in order of segment numbers.
pub(crate) fn read_log(
    fs: &dyn Filesystem,
    dir: &Path,
    at: &At<'_>,
) -> Result<LogFound, OpenError> {
    let folder = dir.join("log");
    let names = fs.list(&folder).map_err(at.io("listing", &folder))?;
    let count = names
        .iter()
        .filter_map(|n| n.strip_suffix(".log")?.parse::<usize>().ok())
        .filter(|n| *n < MAX_SLOTS)
        .max()
        .map_or(0, |n| n + 1);
    let (mut slots, mut headers): (Vec<Slot>, Vec<_>) = (Vec::new(), Vec::new());
    for slot in 0..count {
        let path = Log::path(dir, slot);
        let file = match fs.open(&path, Open::Write) {
            // A hole in the numbers: its place is filled when slots are made.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                slots.push(Slot::missing());
                continue;
            }
            other => other.map_err(at.io("opening", &path))?,
        };
        let bytes = file.size().map_err(at.io("reading", &path))?;
        let mut head = vec![0u8; SEGMENT_HEADER as usize];
        let n = read_full_at(file.as_ref(), &mut head, 0).map_err(at.io("reading", &path))?;
        head.truncate(n);
        let mut damaged = false;
        match parse_header(&head) {
            HeaderFound::Valid(header) => headers.push((header, slot)),
            HeaderFound::Damaged => damaged = true,
            HeaderFound::Newer(found) => {
                return Err(OpenError::NewerFormat {
                    path,
                    found,
                    supported: FORMAT_VERSION,
                });
            }
            HeaderFound::None => {}
        }
        slots.push(Slot {
            file,
            bytes,
            damaged,
        });
    }
    headers.sort_by_key(|(h, _)| h.number);
    Ok((slots, headers))
}

impl Slot {
    fn missing() -> Slot {
        Slot {
            file: Box::new(Missing),
            bytes: 0,
            damaged: false,
        }
    }
}

/// Stands for a slot whose file is not there.
struct Missing;

impl FileHandle for Missing {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Ok(0)
    }
    fn write_at(&mut self, _: &[u8], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn sync(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn size(&self) -> io::Result<u64> {
        Ok(0)
    }
    fn set_len(&mut self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn allocate(&mut self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Tells of files that are not there or shorter than the checkpoint says, and gives the lengths to write down until
/// that was told: the preallocated log never shrinks by itself, so somebody else removed what is missing.
pub(crate) fn missing(
    dir: &Path,
    recorded: &[u64],
    slots: &[Slot],
    (wanted, segment_bytes): (usize, u64),
    live: &[Live],
    state: &mut State,
) -> Vec<u64> {
    let mut sizes = Vec::new();
    for at in 0..slots.len().max(recorded.len()) {
        let recorded = recorded.get(at).copied().unwrap_or(0);
        let found = slots.get(at).map_or(0, |s| s.bytes);
        let path = Log::path(dir, at);
        let busy = live.iter().any(|l| l.slot == at);
        if slots.get(at).is_some_and(|s| s.damaged) {
            state.lost.files += 1;
            state.damage(format!(
                "log file {}: neither copy of its header checks, and the records that were there are lost",
                path.display()
            ));
            sizes.push(LOST_SLOT);
        } else if recorded == LOST_SLOT || found < recorded {
            let what = match (recorded, found) {
                (LOST_SLOT, _) => "was missing or cut short".to_owned(),
                (_, 0) => "is missing".to_owned(),
                _ => format!("has {found} of its {recorded} bytes"),
            };
            state.lost.files += 1;
            state.damage(format!(
                "log file {} {what}: the records that were there are lost; it was removed or cut by someone else, \
                 since the buffer never shortens it",
                path.display()
            ));
            sizes.push(LOST_SLOT);
        } else if busy || at < wanted && found == segment_bytes && recorded == found {
            sizes.push(found);
        } else {
            // Made anew, or removed: where no checkpoint vouches for the length, the flush that was to make it durable may
            // have failed.
            sizes.push(0);
        }
    }
    sizes
}

/// Writes the newest segment's header and its last group once more.
pub(crate) fn rewrite_tail(live: &[Live], slots: &mut [Slot], tail: &Tail) -> io::Result<()> {
    let Some(last) = live.last() else {
        return Ok(());
    };
    let Some(slot) = slots.get_mut(last.slot) else {
        return Ok(());
    };
    write_all_at(slot.file.as_mut(), &encode_header(&last.header), 0)?;
    write_all_at(slot.file.as_mut(), &tail.group, tail.offset)?;
    slot.file.sync()
}

/// Makes missing slots, and makes those of another size anew that nothing is in.
pub(crate) fn make_slots(
    fs: &dyn Filesystem,
    dir: &Path,
    (wanted, bytes): (usize, u64),
    sizes: &[u64],
    live: &[Live],
    slots: &mut Vec<Slot>,
    at: &At<'_>,
) -> Result<(), OpenError> {
    for slot in 0..slots.len().max(wanted) {
        let path = Log::path(dir, slot);
        let busy = live.iter().any(|l| l.slot == slot);
        let right = sizes.get(slot) == Some(&bytes);
        if busy || (right && slot < wanted) {
            continue;
        }
        if slot >= wanted {
            match fs.remove(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(at.io("removing", &path)(e));
                }
                _ => {}
            }
            if let Some(s) = slots.get_mut(slot) {
                *s = Slot::missing();
            }
            continue;
        }
        let made = Log::create_slot(fs, dir, slot, bytes).map_err(at.io("preallocating", &path))?;
        match slots.get_mut(slot) {
            Some(s) => *s = made,
            None => slots.push(made),
        }
    }
    // Every time: the attempt that made a name may have ended before it was durable.
    for folder in [
        dir.join("log"),
        dir.join("lanes"),
        dir.join("keys"),
        dir.to_path_buf(),
    ] {
        fs.sync_dir(&folder)
            .map_err(at.io("flushing the folder", &folder))?;
    }
    if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs.sync_dir(parent)
            .map_err(at.io("flushing the folder", parent))?;
    }
    Ok(())
}
