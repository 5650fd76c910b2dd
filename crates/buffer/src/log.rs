//! The commit log: preallocated segment files that are overwritten in turn.
//!
//! A segment begins with [`SEGMENT_HEADER`] bytes that hold two copies of its header (at 0 and at half), so one bad
//! sector does not take the salt and with it the whole segment. The header is durable before the first record is
//! written. A segment is free once a checkpoint's replay point is past it.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use crate::codec::{Put, Take};
use crate::fs::{FileHandle, Filesystem, Open, read_full_at, write_all_at};
use crate::lane::LogPlace;

/// Bytes at the front of a segment. Records follow.
pub(crate) const SEGMENT_HEADER: u64 = 4096;
/// Where the second copy of the header is.
const SECOND_COPY: usize = 2048;
/// The version of every file format in this folder.
pub(crate) const FORMAT_VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"CNSGNLOG";
/// Bytes of one copy of the header.
const COPY_BYTES: usize = 44;
/// Zeros are written in pieces of this size while a segment is preallocated.
const ZERO_BYTES: usize = 1 << 20;
/// Reads of neighbouring writes are joined over gaps up to this size, and up to this much in all.
const RUN_GAP_BYTES: u64 = 16 << 10;
const RUN_BYTES: u64 = 1 << 20;

/// A place in the log: everything before it is not needed to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LogPoint {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    /// The sequence number of the record that begins there.
    pub(crate) seq: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) number: u64,
    pub(crate) salt: u64,
    pub(crate) first_seq: u64,
    pub(crate) epoch: u32,
}

/// What the front of a segment file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderFound {
    Valid(SegmentHeader),
    /// A header that checks, of a version this code does not read.
    Newer(u32),
    /// Nothing was ever written here.
    None,
    /// Something was, and no copy of it checks. A copy lies within a sector, so no torn write leaves that.
    Damaged,
}

pub(crate) fn encode_header(header: &SegmentHeader) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u64(header.number);
    body.put_u64(header.salt);
    body.put_u64(header.first_seq);
    body.put_u32(header.epoch);
    let mut copy = Vec::new();
    copy.put_raw(MAGIC);
    copy.put_u32(FORMAT_VERSION);
    copy.put_u32(header_sum(FORMAT_VERSION, &body));
    copy.put_raw(&body);
    let mut out = copy.clone();
    out.resize(SECOND_COPY, 0);
    out.put_raw(&copy);
    out.resize(SEGMENT_HEADER as usize, 0);
    out
}

/// Over the version and the body; in every later version, too, so that a flipped bit is no newer version.
fn header_sum(version: u32, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&version.to_le_bytes()), body)
}

fn parse_copy(buf: &[u8]) -> Option<HeaderFound> {
    let mut take = Take::new(buf);
    if take.raw(8)? != MAGIC {
        return None;
    }
    let version = take.u32()?;
    let crc = take.u32()?;
    let body = take.raw(28)?;
    if version > FORMAT_VERSION && crc == header_sum(version, body) {
        return Some(HeaderFound::Newer(version));
    }
    // The first segments had no version in the sum.
    if crc != header_sum(FORMAT_VERSION, body) && crc != crc32c::crc32c(body) {
        return None;
    }
    let mut take = Take::new(body);
    let header = SegmentHeader {
        number: take.u64()?,
        salt: take.u64()?,
        first_seq: take.u64()?,
        epoch: take.u32()?,
    };
    crate::plausible::segment(&header).then_some(HeaderFound::Valid(header))
}

pub(crate) fn parse_header(buf: &[u8]) -> HeaderFound {
    let copies = [parse_copy(buf), buf.get(SECOND_COPY..).and_then(parse_copy)];
    // A version is believed to be newer only where no copy has one we read.
    let ours = |found: &&HeaderFound| matches!(found, HeaderFound::Valid(_));
    let found = copies.iter().flatten();
    found
        .clone()
        .find(ours)
        .or_else(|| found.clone().next())
        .copied()
        .unwrap_or_else(|| {
            let used = |at| {
                let copy = buf.get(at..at + COPY_BYTES);
                copy.is_some_and(|copy| copy.iter().any(|b| *b != 0))
            };
            // A process that was killed while it wrote the first header ever leaves a part of the first copy.
            if used(0) && used(SECOND_COPY) {
                HeaderFound::Damaged
            } else {
                HeaderFound::None
            }
        })
}

/// Which of a header's two copies check.
pub(crate) fn header_copies(buf: &[u8]) -> [bool; 2] {
    [Some(buf), buf.get(SECOND_COPY..)].map(|copy| copy.and_then(parse_copy).is_some())
}

pub(crate) struct Slot {
    pub(crate) file: Box<dyn FileHandle>,
    pub(crate) bytes: u64,
    /// There was a segment in it, and neither copy of its header checks.
    pub(crate) damaged: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    pub(crate) header: SegmentHeader,
    pub(crate) slot: usize,
}

/// The log, open for appending.
pub(crate) struct Log {
    pub(crate) slots: Vec<Slot>,
    /// In order of numbers; the last is the one written to.
    pub(crate) live: VecDeque<Live>,
    pub(crate) offset: u64,
    pub(crate) next_seq: u64,
    pub(crate) epoch: u32,
    pub(crate) segment_bytes: u64,
    /// The highest number that any segment was given, one that was begun and given up included.
    pub(crate) last_number: u64,
}

impl Log {
    pub(crate) fn path(dir: &Path, slot: usize) -> PathBuf {
        dir.join("log").join(format!("{slot:04}.log"))
    }

    /// Makes a slot's file, zero-filled, so that later writes change data alone.
    pub(crate) fn create_slot(
        fs: &dyn Filesystem,
        dir: &Path,
        slot: usize,
        bytes: u64,
    ) -> io::Result<Slot> {
        let path = Self::path(dir, slot);
        let mut file = match fs.open(&path, Open::Create) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => fs.open(&path, Open::Write)?,
            other => other?,
        };
        file.set_len(0)?;
        let zeros = vec![0u8; ZERO_BYTES.min(usize::try_from(bytes).unwrap_or(ZERO_BYTES))];
        let mut at = 0;
        while at < bytes {
            let n = zeros
                .len()
                .min(usize::try_from(bytes - at).unwrap_or(ZERO_BYTES));
            write_all_at(file.as_mut(), zeros.get(..n).unwrap_or_default(), at)?;
            at += n as u64;
        }
        file.sync()?;
        Ok(Slot {
            file,
            bytes,
            damaged: false,
        })
    }

    fn active(&self) -> Option<Live> {
        self.live.back().copied()
    }

    pub(crate) fn salt(&self) -> u64 {
        self.active().map_or(0, |l| l.header.salt)
    }

    pub(crate) fn active_number(&self) -> u64 {
        self.active().map_or(0, |l| l.header.number)
    }

    fn capacity(&self) -> u64 {
        self.active()
            .and_then(|l| self.slots.get(l.slot))
            .map_or(0, |s| s.bytes)
    }

    /// Bytes left in the segment being written.
    pub(crate) fn remaining(&self) -> u64 {
        self.capacity().saturating_sub(self.offset)
    }

    fn free_slot(&self) -> Option<usize> {
        let busy = |at| self.live.iter().any(|l| l.slot == at);
        // Begin after the active one, so that segments are used in turn.
        let from = self.active().map_or(0, |l| l.slot + 1);
        let n = self.slots.len();
        (0..n).map(|i| (from + i) % n).find(|at| {
            !busy(*at)
                && self
                    .slots
                    .get(*at)
                    .is_some_and(|s| s.bytes == self.segment_bytes)
        })
    }

    pub(crate) fn free_slots(&self) -> usize {
        let usable = self.slots.iter().enumerate().filter(|(at, slot)| {
            slot.bytes == self.segment_bytes && !self.live.iter().any(|l| l.slot == *at)
        });
        usable.count()
    }

    /// The length of each segment's file; 0 = any, where it is about to be made anew.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let slots = self.slots.iter().enumerate();
        slots
            .map(|(at, s)| if self.is_odd(at) { 0 } else { s.bytes })
            .collect()
    }

    /// Whether a slot holds nothing and has another length than segments have: it was cut short by somebody else, or
    /// the configuration changed, while a segment was in it.
    pub(crate) fn is_odd(&self, at: usize) -> bool {
        let odd = |s: &Slot| s.bytes != self.segment_bytes;
        self.slots.get(at).is_some_and(odd) && !self.live.iter().any(|l| l.slot == at)
    }

    pub(crate) fn point(&self) -> LogPoint {
        LogPoint {
            segment: self.active_number(),
            offset: self.offset,
            seq: self.next_seq,
        }
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        (self.live.len() as u64).saturating_sub(1) * self.segment_bytes + self.offset
    }

    /// Begins the next segment: its header is durable when this returns. False when no segment is free.
    ///
    /// After a failure the header may be found all the same, by a run that comes after more was written to the segment
    /// in use. An opening gives such a segment up, and its number is not given again.
    pub(crate) fn rotate(&mut self, salt: u64) -> io::Result<bool> {
        let Some(slot) = self.free_slot() else {
            return Ok(false);
        };
        let number = self.last_number + 1;
        let header = SegmentHeader {
            number,
            salt,
            first_seq: self.next_seq,
            epoch: self.epoch,
        };
        let Some(target) = self.slots.get_mut(slot) else {
            return Ok(false);
        };
        write_all_at(target.file.as_mut(), &encode_header(&header), 0)?;
        target.file.sync()?;
        self.last_number = number;
        self.live.push_back(Live { header, slot });
        self.offset = SEGMENT_HEADER;
        Ok(true)
    }

    /// Writes a group at the end, without the flush.
    pub(crate) fn write(&mut self, group: &[u8]) -> io::Result<()> {
        let offset = self.offset;
        let slot = self.active().map(|l| l.slot);
        match slot.and_then(|at| self.slots.get_mut(at)) {
            Some(slot) => write_all_at(slot.file.as_mut(), group, offset),
            None => Err(io::Error::other("the log has no segment")),
        }
    }

    /// Makes what was written durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let slot = self.active().map(|l| l.slot);
        match slot.and_then(|at| self.slots.get_mut(at)) {
            Some(slot) => slot.file.sync(),
            None => Ok(()),
        }
    }

    /// A group is durable: the end moves.
    pub(crate) fn advance(&mut self, bytes: u64, records: u64) {
        self.offset += bytes;
        self.next_seq += records;
    }

    /// Gives back the segments before this number.
    pub(crate) fn free_before(&mut self, number: u64) {
        while self.live.len() > 1 && self.live.front().is_some_and(|l| l.header.number < number) {
            self.live.pop_front();
        }
    }

    /// Reads a write's encoding back; an error of kind `InvalidData` when it does not check.
    pub(crate) fn read(&self, place: &LogPlace) -> io::Result<Vec<u8>> {
        let slot = self
            .live
            .iter()
            .find(|l| l.header.number == place.segment)
            .map(|l| l.slot);
        let Some(slot) = slot.and_then(|at| self.slots.get(at)) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the segment is not in the log",
            ));
        };
        let mut buf = vec![0u8; place.len as usize];
        let n = read_full_at(slot.file.as_ref(), &mut buf, place.offset)?;
        if n != buf.len() || crc32c::crc32c(&buf) != place.crc {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the log's bytes do not check",
            ));
        }
        Ok(buf)
    }

    /// Reads many encodings, neighbours together; `None` for one that does not check.
    pub(crate) fn read_many(&self, places: &[LogPlace]) -> io::Result<Vec<Option<Vec<u8>>>> {
        let mut out = Vec::with_capacity(places.len());
        let mut rest = places;
        while let Some(first) = rest.first() {
            let mut end = first.offset + u64::from(first.len);
            let mut run = 1;
            while let Some(next) = rest.get(run) {
                let near = next.segment == first.segment
                    && next.offset >= end
                    && next.offset - end <= RUN_GAP_BYTES;
                if !near || next.offset - first.offset > RUN_BYTES {
                    break;
                }
                end = next.offset + u64::from(next.len);
                run += 1;
            }
            let slot = self
                .live
                .iter()
                .find(|l| l.header.number == first.segment)
                .map(|l| l.slot);
            let mut buf = vec![0u8; usize::try_from(end - first.offset).unwrap_or(0)];
            if let Some(slot) = slot.and_then(|at| self.slots.get(at)) {
                let n = read_full_at(slot.file.as_ref(), &mut buf, first.offset)?;
                buf.truncate(n);
            } else {
                buf.clear();
            }
            let (these, after) = rest.split_at(run);
            for place in these {
                let from = usize::try_from(place.offset - first.offset).unwrap_or(usize::MAX);
                let enc = buf.get(from..).and_then(|b| b.get(..place.len as usize));
                out.push(
                    enc.filter(|enc| crc32c::crc32c(enc) == place.crc)
                        .map(<[u8]>::to_vec),
                );
            }
            rest = after;
        }
        Ok(out)
    }
}
