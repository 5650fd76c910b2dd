//! The two files that hold checkpoints.
//!
//! They are overwritten in turn, in place, so a checkpoint needs no new space on a full disk and a torn one leaves the
//! other slot whole. Each slot holds its checkpoint twice, at 0 and at half the file, so one flipped bit costs nothing.
//!
//! ```text
//!  0  magic 8
//!  8  u32  format version
//! 12  u32  crc32c over the generation and the payload
//! 16  u64  generation: one more with each checkpoint
//! 24  u64  length of the payload
//! 32  u32  crc32c over bytes 0..32; in every later version, too, so that a flipped bit is no newer version
//! 40  u64  mark: the other slot has held a durable checkpoint of this generation
//! 48  u32  crc32c over the mark
//! 64  ..   payload
//! ```
//!
//! A checkpoint is in force once it is durable *and* the other slot bears its mark. So an opening knows when the newest
//! one is gone: the mark is above every generation there is. Without one the older checkpoint would pass for the newest,
//! and what was cut and unlinked since would be missing in silence.

use std::io;
use std::path::{Path, PathBuf};

use crate::codec::{Put, Take};
use crate::fs::{FileHandle, Filesystem, Open, read_full_at, write_all_at};
use crate::log::FORMAT_VERSION;
use crate::planted::Planted;
use crate::plausible::MAX_NUMBER;

const MAGIC: &[u8; 8] = b"CNSGNCKP";
const HEAD: usize = 64;
/// Bytes of the head that its own sum covers.
const SUMMED: usize = 32;
const MARK_AT: usize = 40;
/// A slot's first size is a thousandth of the log, within these. It is written out when the slot is made, so that
/// checkpoints of that size never need space.
pub(crate) const MIN_SLOT_BYTES: u64 = 16 << 10;
pub(crate) const FIRST_SLOT_BYTES: u64 = 1 << 20;
/// A checkpoint larger than this is not one.
pub(crate) const MAX_SLOT_BYTES: u64 = 4 << 30;

/// A checkpoint as it was found.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) generation: u64,
    pub(crate) slot: usize,
    pub(crate) payload: Vec<u8>,
}

/// What one slot file holds.
#[derive(Debug, Default)]
pub(crate) struct SlotFound {
    /// Generation and payload, where a copy checks.
    pub(crate) checkpoint: Option<(u64, Vec<u8>)>,
    /// Neither copy is one of ours, and one is of this later version.
    pub(crate) newer: Option<u32>,
    /// The generation that the other slot has reached.
    pub(crate) mark: u64,
}

enum Copy {
    Valid(u64, Vec<u8>),
    Newer(u32),
}

fn parse_copy(buf: &[u8], planted: Option<Planted>) -> Option<Copy> {
    let mut take = Take::new(buf);
    if take.raw(8)? != MAGIC {
        return None;
    }
    let (version, crc, generation, len) = (take.u32()?, take.u32()?, take.u64()?, take.u64()?);
    let summed = take.u32()? == crc32c::crc32c(buf.get(..SUMMED)?);
    if version > FORMAT_VERSION && (summed || planted == Some(Planted::OneCopyRefuses)) {
        return Some(Copy::Newer(version));
    }
    let payload = buf.get(HEAD..)?.get(..usize::try_from(len).ok()?)?;
    let sum = crc32c::crc32c_append(crc32c::crc32c(&generation.to_le_bytes()), payload);
    // One more must not overflow.
    (sum == crc && generation <= MAX_NUMBER).then(|| Copy::Valid(generation, payload.to_vec()))
}

/// The generation of one copy, if it checks.
pub(crate) fn copy_generation(buf: &[u8]) -> Option<u64> {
    match parse_copy(buf, None)? {
        Copy::Valid(generation, _) => Some(generation),
        // Refused by opening, with the version.
        Copy::Newer(_) => Some(u64::MAX),
    }
}

fn parse_mark(copy: &[u8]) -> Option<u64> {
    let mut take = Take::new(copy.get(MARK_AT..)?);
    let generation = take.u64()?;
    let sum = crc32c::crc32c(&generation.to_le_bytes());
    let plausible = (1..=MAX_NUMBER).contains(&generation);
    (take.u32()? == sum && plausible).then_some(generation)
}

pub(crate) fn parse_slot(buf: &[u8], planted: Option<Planted>) -> SlotFound {
    let half = buf.get(buf.len() / 2..).unwrap_or_default();
    let copies = [buf, half];
    let mut found = SlotFound {
        mark: copies.into_iter().filter_map(parse_mark).max().unwrap_or(0),
        ..SlotFound::default()
    };
    for copy in copies {
        match parse_copy(copy, planted) {
            Some(Copy::Valid(generation, payload)) if found.checkpoint.is_none() => {
                found.checkpoint = Some((generation, payload));
            }
            Some(Copy::Newer(version)) => found.newer = Some(version),
            _ => {}
        }
    }
    if found.checkpoint.is_some() && planted != Some(Planted::OneCopyRefuses) {
        // As with a segment's header: one copy of ours is proof enough.
        found.newer = None;
    }
    found
}

pub(crate) fn slot_path(dir: &Path, slot: usize) -> PathBuf {
    dir.join(format!("checkpoint-{slot}"))
}

pub(crate) fn read_slot(
    fs: &dyn Filesystem,
    dir: &Path,
    slot: usize,
    planted: Option<Planted>,
) -> io::Result<SlotFound> {
    let file = match fs.open(&slot_path(dir, slot), Open::Read) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(SlotFound::default()),
        other => other?,
    };
    let len = file.size()?.min(MAX_SLOT_BYTES);
    let mut buf = vec![0u8; usize::try_from(len).unwrap_or(0)];
    let n = read_full_at(file.as_ref(), &mut buf, 0)?;
    buf.truncate(n);
    Ok(parse_slot(&buf, planted))
}

fn encode_copy(generation: u64, payload: &[u8]) -> Vec<u8> {
    let mut copy = Vec::with_capacity(HEAD + payload.len());
    copy.put_raw(MAGIC);
    copy.put_u32(FORMAT_VERSION);
    copy.put_u32(crc32c::crc32c_append(
        crc32c::crc32c(&generation.to_le_bytes()),
        payload,
    ));
    copy.put_u64(generation);
    copy.put_u64(payload.len() as u64);
    copy.put_u32(crc32c::crc32c(&copy));
    copy.resize(HEAD, 0);
    copy.put_raw(payload);
    copy
}

fn encode_mark(generation: u64) -> Vec<u8> {
    let mut mark = Vec::new();
    mark.put_u64(generation);
    mark.put_u32(crc32c::crc32c(&generation.to_le_bytes()));
    mark
}

/// The two slots, and which of them holds the checkpoint in force.
pub(crate) struct Slots {
    files: [Box<dyn FileHandle>; 2],
    pub(crate) generation: u64,
    pub(crate) current: usize,
    pub(crate) planted: Option<Planted>,
}

impl Slots {
    /// Opens the slots, making those that are missing. The caller makes their names durable before anything is written.
    /// `generation` is the highest that was ever seen.
    pub(crate) fn open(
        fs: &dyn Filesystem,
        dir: &Path,
        generation: u64,
        current: usize,
        bytes: u64,
    ) -> io::Result<Slots> {
        let open = |slot| -> io::Result<Box<dyn FileHandle>> {
            let path = slot_path(dir, slot);
            let mut file = match fs.open(&path, Open::Write) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => fs.open(&path, Open::Create)?,
                other => other?,
            };
            let len = file.size()?;
            if len < 2 * HEAD as u64 {
                // New, or cut short by somebody else so far that nothing is left.
                let zeros = vec![0; usize::try_from(bytes).unwrap_or(0)];
                write_all_at(file.as_mut(), &zeros, 0)?;
                file.sync()?;
            }
            Ok(file)
        };
        Ok(Slots {
            files: [open(0)?, open(1)?],
            generation,
            current,
            planted: None,
        })
    }

    fn file(&mut self, slot: usize) -> &mut dyn FileHandle {
        let [first, second] = &mut self.files;
        if slot == 0 {
            first.as_mut()
        } else {
            second.as_mut()
        }
    }

    /// Writes a checkpoint into the other slot, and the mark of it into this one; it is in force when this returns.
    /// Returns the bytes written.
    pub(crate) fn write(&mut self, payload: &[u8]) -> io::Result<u64> {
        let target = if self.planted == Some(Planted::CheckpointSameSlot) {
            self.current
        } else {
            1 - self.current
        };
        let copy = encode_copy(self.generation + 1, payload);
        // Counted up even if the rest fails: what a failed flush left behind may turn out to be durable.
        self.generation += 1;
        self.put(target, &copy)?;
        // Not to be overwritten by the next, whether or not the mark goes through: it may be found.
        self.current = target;
        if self.planted != Some(Planted::CheckpointNotMarked) {
            self.mark(1 - target)?;
        }
        Ok(copy.len() as u64 * 2)
    }

    /// Writes what was read from a slot to the same place. It may be in the system's cache alone, its flush having
    /// failed, and the other slot must not be touched before it is durable.
    pub(crate) fn rewrite(&mut self, found: &Stored, mark: u64) -> io::Result<()> {
        let mut copy = encode_copy(found.generation, &found.payload);
        let mark = encode_mark(mark);
        if let Some(place) = copy.get_mut(MARK_AT..MARK_AT + mark.len()) {
            place.copy_from_slice(&mark);
        }
        self.put(found.slot, &copy)
    }

    /// Both copies, and a flush.
    fn put(&mut self, slot: usize, copy: &[u8]) -> io::Result<()> {
        let not_synced = self.planted == Some(Planted::CheckpointNotSynced);
        let file = self.file(slot);
        let mut len = file.size()?;
        if copy.len() as u64 > len / 2 {
            let wanted = (copy.len() as u64).next_power_of_two() * 2;
            file.allocate(len, wanted - len)?;
            file.set_len(wanted)?;
            len = wanted;
        }
        write_all_at(file, copy, 0)?;
        write_all_at(file, copy, len / 2)?;
        if not_synced { Ok(()) } else { file.sync() }
    }

    /// Says in a slot what the other has reached. Within a sector, which is written whole or not at all, so a
    /// checkpoint that is there stays whole.
    fn mark(&mut self, slot: usize) -> io::Result<()> {
        let mark = encode_mark(self.generation);
        let file = self.file(slot);
        let half = file.size()? / 2;
        for copy in [0, half] {
            write_all_at(file, &mark, copy + MARK_AT as u64)?;
        }
        file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_of_a_version_is_damage_of_one_copy_and_a_newer_version_is_refused() {
        let mut slot = encode_copy(7, b"state");
        slot.resize(256, 0);
        let second = encode_copy(7, b"state");
        slot[128..128 + second.len()].copy_from_slice(&second);
        for bit in 64..96 {
            let mut bad = slot.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // The other copy is gone as well.
            bad[128..].fill(0);
            let found = parse_slot(&bad, None);
            assert_eq!(found.newer, None, "bit {bit}");
            assert_eq!(found.checkpoint, Some((7, b"state".to_vec())), "bit {bit}");
        }
        let mut newer = slot;
        for at in [0, 128] {
            newer[at + 8] = 2;
            let sum = crc32c::crc32c(&newer[at..at + SUMMED]);
            newer[at + SUMMED..at + SUMMED + 4].copy_from_slice(&sum.to_le_bytes());
        }
        let found = parse_slot(&newer, None);
        assert_eq!((found.newer, found.checkpoint), (Some(2), None));
    }
}
