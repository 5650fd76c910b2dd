//! Spill files: what a checkpoint moves out of the log, one lane per folder, in order of numbers.
//!
//! A file is [`FILE_HEADER`] bytes (magic, version, lane, file number, salt) and then records whose sequence number is
//! the write's number in its lane. Every pending write that the books of a file cover is in it, so a number that is
//! missing while reading is a loss, and is counted as one.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;

use crate::codec::{Put, Take};
use crate::core::Core;
use crate::fs::{FileHandle, Open, read_full_at, write_all_at};
use crate::lane::Books;
use crate::lane::SpillFile;
use crate::log::FORMAT_VERSION;
use crate::planted::Planted;
use crate::record;
use crate::write::{Held, parse_write};

/// Bytes at the front of a spill file.
pub(crate) const FILE_HEADER: u64 = 64;
const MAGIC: &[u8; 8] = b"CNSGNSPL";
/// A file is read in pieces of at least this size.
const CHUNK_BYTES: usize = 256 << 10;
/// An index entry is kept for each stretch of this many bytes.
const INDEX_EVERY_BYTES: u64 = 256 << 10;

/// What the front of a spill file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHead {
    pub(crate) version: u32,
    pub(crate) lane: u32,
    pub(crate) number: u64,
    pub(crate) salt: u64,
}

pub(crate) fn encode_head(head: &FileHead) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u32(head.lane);
    body.put_u64(head.number);
    body.put_u64(head.salt);
    let mut out = Vec::new();
    out.put_raw(MAGIC);
    out.put_u32(head.version);
    out.put_u32(crc32c::crc32c(&body));
    out.put_raw(&body);
    out.resize(FILE_HEADER as usize, 0);
    out
}

pub(crate) fn parse_head(buf: &[u8]) -> Option<FileHead> {
    let mut take = Take::new(buf);
    if take.raw(8)? != MAGIC {
        return None;
    }
    let version = take.u32()?;
    let crc = take.u32()?;
    let body = take.raw(20)?;
    let mut fields = Take::new(body);
    let head = FileHead {
        version,
        lane: fields.u32()?,
        number: fields.u64()?,
        salt: fields.u64()?,
    };
    (crc32c::crc32c(body) == crc).then_some(head)
}

/// Pending writes read from spill files.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) writes: Vec<(u64, Bytes)>,
    /// Every pending write up to here was returned (or is lost).
    pub(crate) through: u64,
}

/// One step of a walk over a file's records.
pub(crate) enum Step {
    /// A record that checks, and the offset behind it.
    Record {
        seq: u64,
        enc: Bytes,
        offset: u64,
        next: u64,
    },
    /// Bytes that do not check, up to the next record that does.
    Damage { offset: u64, next: u64 },
}

/// Walks a file's records from an offset, over damage, up to the believed length.
pub(crate) struct Walk<'a> {
    file: &'a dyn FileHandle,
    salt: u64,
    len: u64,
    /// Where the file was found to end, if that is before the believed length.
    end: u64,
    offset: u64,
    buf: Vec<u8>,
    buf_at: u64,
    unchecked: bool,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(file: &'a dyn FileHandle, salt: u64, len: u64, offset: u64) -> Self {
        Walk {
            file,
            salt,
            len,
            end: len,
            offset: offset.max(FILE_HEADER),
            buf: Vec::new(),
            buf_at: 0,
            unchecked: false,
        }
    }

    /// A planted fault: payload sums are not looked at.
    pub(crate) fn unchecked(mut self, unchecked: bool) -> Self {
        self.unchecked = unchecked;
        self
    }

    /// Bytes from `offset` on: at least `want` unless the file ends before. No more memory is taken on the word of a
    /// length than there are bytes.
    fn window(&mut self, offset: u64, want: usize) -> io::Result<&[u8]> {
        let need_end = offset.saturating_add(want as u64).min(self.end);
        if offset < self.buf_at || need_end > self.buf_at + self.buf.len() as u64 {
            self.buf.clear();
            self.buf_at = offset;
            let left = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
            let want = left.min(want.max(CHUNK_BYTES));
            while self.buf.len() < want {
                let have = self.buf.len();
                let more = (want - have).min(CHUNK_BYTES.max(have));
                self.buf.resize(have + more, 0);
                let at = self.buf.get_mut(have..).unwrap_or_default();
                let n = read_full_at(self.file, at, offset + have as u64)?;
                self.buf.truncate(have + n);
                if n < more {
                    self.end = offset + self.buf.len() as u64;
                    break;
                }
            }
        }
        let from = usize::try_from(offset - self.buf_at).unwrap_or(usize::MAX);
        Ok(self.buf.get(from..).unwrap_or_default())
    }

    fn record_at(&mut self, offset: u64) -> io::Result<Option<(u64, Bytes, u64)>> {
        let salt = self.salt;
        let unchecked = self.unchecked;
        let left = self.end.saturating_sub(offset);
        let head = self.window(offset, record::HEADER)?;
        let Some(size) = record::claimed_size(head).filter(|s| *s as u64 <= left) else {
            return Ok(None);
        };
        let window = self.window(offset, size)?;
        let parsed = if unchecked {
            record::parse_unchecked(window, salt)
        } else {
            record::parse(window, salt)
        };
        Ok(parsed.map(|r| {
            (
                r.header.seq,
                Bytes::copy_from_slice(r.payload),
                offset + r.size as u64,
            )
        }))
    }

    pub(crate) fn next(&mut self) -> io::Result<Option<Step>> {
        let offset = self.offset;
        if offset >= self.len {
            return Ok(None);
        }
        if let Some((seq, enc, next)) = self.record_at(offset)? {
            self.offset = next;
            return Ok(Some(Step::Record {
                seq,
                enc,
                offset,
                next,
            }));
        }
        let mut at = offset + record::ALIGN as u64;
        while at < self.end && self.record_at(at)?.is_none() {
            at += record::ALIGN as u64;
        }
        self.offset = if at < self.end { at } else { self.len };
        Ok(Some(Step::Damage {
            offset,
            next: self.offset,
        }))
    }
}

impl Core {
    pub(crate) fn lane_dir(&self, lane: u32) -> PathBuf {
        self.dir.join("lanes").join(format!("{lane:08x}"))
    }

    pub(crate) fn spill_path(&self, lane: u32, file: u64) -> PathBuf {
        self.lane_dir(lane).join(format!("{file:016x}.spill"))
    }

    /// Makes a spill file with its head; not yet durable.
    pub(crate) fn create_spill(
        &mut self,
        lane: u32,
        number: u64,
    ) -> io::Result<(SpillFile, Box<dyn FileHandle>)> {
        let salt = self.fs.entropy();
        self.fs.create_dir(&self.lane_dir(lane))?;
        let path = self.spill_path(lane, number);
        // A name that could not be removed may be given again.
        if self.planted != Some(Planted::GarbageKept) {
            self.garbage.retain(|p| *p != path);
        }
        let mut file = match self.fs.open(&path, Open::Create) {
            // Left by an attempt that failed.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.fs.remove(&path)?;
                self.fs.open(&path, Open::Create)?
            }
            other => other?,
        };
        let head = encode_head(&FileHead {
            version: FORMAT_VERSION,
            lane,
            number,
            salt,
        });
        write_all_at(file.as_mut(), &head, 0)?;
        let spill = SpillFile {
            number,
            salt,
            len: FILE_HEADER,
            ..SpillFile::default()
        };
        Ok((spill, file))
    }

    /// Pending writes after `after` from the lane's spill files: the next that there are, from one file.
    pub(crate) fn read_spill(
        &mut self,
        number: u32,
        after: u64,
        max_writes: usize,
        max_bytes: usize,
    ) -> io::Result<Chunk> {
        let found = {
            let state = self.shared.state.lock();
            state.lanes.get(number as usize).and_then(|lane| {
                let file = lane
                    .files
                    .iter()
                    .find(|f| f.last_seq > after && f.live > 0)?;
                let at = file
                    .index
                    .partition_point(|(seq, _)| *seq <= after.saturating_add(1));
                let (from_seq, offset) = at
                    .checked_sub(1)
                    .and_then(|i| file.index.get(i))
                    .copied()
                    .unwrap_or((file.first_seq, FILE_HEADER));
                let file = SpillFile {
                    index: Vec::new(),
                    held: Default::default(),
                    ..file.clone()
                };
                Some((file, from_seq, offset))
            })
        };
        let Some((file, from_seq, offset)) = found else {
            return Ok(Chunk {
                writes: Vec::new(),
                through: after,
            });
        };
        let mut chunk = Chunk {
            writes: Vec::new(),
            through: after,
        };
        let mut damaged = None;
        let handle = match self
            .fs
            .open(&self.spill_path(number, file.number), Open::Read)
        {
            Ok(handle) => handle,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.lose_in_spill(number, file.number)?;
                chunk.through = file.last_seq;
                return Ok(chunk);
            }
            Err(e) => return Err(e),
        };
        let planted = self.planted;
        let mut walk = Walk::new(handle.as_ref(), file.salt, file.len, offset)
            .unchecked(planted == Some(Planted::PayloadUnchecked));
        let mut bytes = 0usize;
        let mut index: Vec<(u64, u64)> = Vec::new();
        let mut expect = from_seq;
        loop {
            if chunk.writes.len() >= max_writes || bytes >= max_bytes {
                break;
            }
            let step = walk.next()?;
            let state = self.shared.state.lock();
            let settled = |from: u64, to: u64| {
                state
                    .lanes
                    .get(number as usize)
                    .is_none_or(|l| l.settled.count_in(from, to) == to + 1 - from)
            };
            match step {
                None => {
                    if expect <= file.last_seq && !settled(expect, file.last_seq) {
                        damaged = Some(());
                    }
                    chunk.through = chunk.through.max(file.last_seq);
                    break;
                }
                // Only what is missing counts; the same bytes were counted when it was found.
                Some(Step::Damage { .. }) => {}
                Some(Step::Record {
                    seq, enc, offset, ..
                }) => {
                    if seq < expect || seq > file.last_seq {
                        continue;
                    }
                    if seq > expect && !settled(expect, seq - 1) {
                        damaged = Some(());
                    }
                    expect = seq + 1;
                    if index
                        .last()
                        .is_none_or(|(_, at)| offset >= at + INDEX_EVERY_BYTES)
                    {
                        index.push((seq, offset));
                    }
                    if seq > after && !settled(seq, seq) {
                        bytes += parse_write(&enc).map_or(0, |v| v.body.len());
                        chunk.writes.push((seq, enc));
                    }
                    chunk.through = chunk.through.max(seq);
                }
            }
        }
        let mut state = self.shared.state.lock();
        if let Some(f) = state
            .lanes
            .get_mut(number as usize)
            .and_then(|l| l.files.iter_mut().find(|f| f.number == file.number))
        {
            for (seq, offset) in index {
                if f.index
                    .last()
                    .is_none_or(|(_, at)| offset >= at + INDEX_EVERY_BYTES)
                {
                    f.index.push((seq, offset));
                }
            }
        }
        drop(state);
        if damaged.is_some() {
            self.lose_in_spill(number, file.number)?;
        }
        Ok(chunk)
    }

    /// A spill file is damaged: finds what is missing from it and has that recorded as lost.
    pub(crate) fn lose_in_spill(&mut self, number: u32, file_number: u64) -> io::Result<()> {
        if !self.losing.insert((number, file_number)) {
            return Ok(());
        }
        let found = {
            let state = self.shared.state.lock();
            let lane = state.lanes.get(number as usize);
            lane.and_then(|l| l.files.iter().find(|f| f.number == file_number).cloned())
        };
        let Some(file) = found else { return Ok(()) };
        let mut have: Vec<(u64, u64, Held)> = Vec::new();
        let mut bad = Vec::new();
        let mut opened = None;
        match self
            .fs
            .open(&self.spill_path(number, file_number), Open::Read)
        {
            Ok(handle) => {
                let mut walk = Walk::new(handle.as_ref(), file.salt, file.len, FILE_HEADER);
                while let Some(step) = walk.next()? {
                    match step {
                        Step::Record { seq, enc, .. } => {
                            if let Some(view) = parse_write(&enc) {
                                have.push((seq, view.charge(), view.held()));
                            }
                        }
                        Step::Damage { offset, next } => bad.push((offset, next)),
                    }
                }
                opened = Some(handle);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let mut state = self.shared.state.lock();
                state.lost.files += 1;
                state.note_loss(format!(
                    "spill file {file_number} of lane number {number} is missing"
                ));
            }
            Err(e) => {
                self.losing.remove(&(number, file_number));
                return Err(e);
            }
        }
        let state = self.shared.state.lock();
        let Some(lane) = state.lanes.get(number as usize) else {
            return Ok(());
        };
        // The books less what is really there is what the lost writes were charged.
        let mut rest = file.clone();
        let mut there = crate::seqset::SeqSet::default();
        for (seq, charge, held) in have {
            if there.insert(seq)
                && seq >= file.first_seq
                && seq <= file.last_seq
                && !lane.settled.contains(seq)
            {
                rest.take_off(1, charge, &held);
            }
        }
        let mut ranges = Vec::new();
        for (from, to) in there.missing_in(file.first_seq, file.last_seq) {
            ranges.extend(lane.settled.missing_in(from, to));
        }
        drop(state);
        if ranges.is_empty() {
            return Ok(());
        }
        if let Some(handle) = opened {
            for (offset, next) in bad {
                let name = format!("spill-{number:08x}-{file_number:016x}");
                let path = self.spill_path(number, file_number);
                self.quarantine((handle.as_ref(), &path), &name, offset, next);
            }
        }
        let held: Held = rest.held.iter().map(|(l, c)| (*l, *c)).collect();
        let books = Books {
            writes: rest.live,
            charge: rest.live_charge,
            physical: rest.live_physical,
        };
        self.record_loss(number, file_number, ranges, books, held);
        Ok(())
    }
}
