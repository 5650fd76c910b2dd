//! The checkpoint: everything that is not a pending write in the log, and where replay begins.
//!
//! Two slot files are overwritten in turn, in place, so a checkpoint needs no new space on a full disk and a torn one
//! leaves the other slot whole. Each slot holds its checkpoint twice, at 0 and at half the file, so one flipped bit
//! costs nothing.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::codec::{Put, Take};
use crate::fs::{FileHandle, Filesystem, Open, read_full_at, write_all_at};
use crate::items::{put_state, take_state};
use crate::keys::{Bucket, KeyFile, Partition};
use crate::lane::SpillFile;
use crate::log::{FORMAT_VERSION, LogPoint};
use crate::planted::Planted;
use crate::seqset::SeqSet;
use crate::state::State;

const MAGIC: &[u8; 8] = b"CNSGNCKP";
const HEAD: usize = 64;
/// A slot's first size is a thousandth of the log, within these. It is written out when the slot is made, so that
/// checkpoints of that size never need space.
pub(crate) const MIN_SLOT_BYTES: u64 = 16 << 10;
pub(crate) const FIRST_SLOT_BYTES: u64 = 1 << 20;
/// A checkpoint larger than this is not one.
pub(crate) const MAX_SLOT_BYTES: u64 = 4 << 30;

/// What a checkpoint changes in the state once it is durable.
#[derive(Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) lanes: BTreeMap<u32, LaneOverride>,
    /// By scope and bucket start: the file, and how many unsaved rows it now has.
    pub(crate) keys: BTreeMap<(u32, u64), (KeyFile, usize)>,
}

#[derive(Debug, Default)]
pub(crate) struct LaneOverride {
    pub(crate) files: VecDeque<SpillFile>,
    pub(crate) through: u64,
    pub(crate) next_file: u64,
}

fn put_set(out: &mut Vec<u8>, set: &SeqSet) {
    out.put_u32(u32::try_from(set.len()).unwrap_or(u32::MAX));
    for (from, to) in set.iter() {
        out.put_u64(from);
        out.put_u64(to);
    }
}

fn take_set(take: &mut Take<'_>) -> Option<SeqSet> {
    let mut set = SeqSet::default();
    for _ in 0..take.u32()? {
        let (from, to) = (take.u64()?, take.u64()?);
        set.insert_range(from, to);
    }
    Some(set)
}

fn put_len(out: &mut Vec<u8>, n: usize) {
    out.put_u32(u32::try_from(n).unwrap_or(u32::MAX));
}

fn put_file(out: &mut Vec<u8>, f: &SpillFile) {
    for v in [
        f.number,
        f.salt,
        f.first_seq,
        f.last_seq,
        f.len,
        f.live,
        f.live_charge,
        f.live_physical,
    ] {
        out.put_u64(v);
    }
    out.put_u8(u8::from(f.sealed));
    put_len(out, f.held.len());
    for (lane, charge) in &f.held {
        out.put_u32(*lane);
        out.put_u64(*charge);
    }
}

fn take_file(take: &mut Take<'_>) -> Option<SpillFile> {
    let mut f = SpillFile {
        number: take.u64()?,
        salt: take.u64()?,
        first_seq: take.u64()?,
        last_seq: take.u64()?,
        len: take.u64()?,
        live: take.u64()?,
        live_charge: take.u64()?,
        live_physical: take.u64()?,
        sealed: take.u8()? != 0,
        ..SpillFile::default()
    };
    for _ in 0..take.u32()? {
        f.held.insert(take.u32()?, take.u64()?);
    }
    Some(f)
}

/// What a checkpoint says besides the state.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) point: LogPoint,
    /// The epoch of the run that wrote it; 0 = no run has begun.
    pub(crate) epoch: u32,
    /// The length each of the log's files must have; 0 = any, [`LOST_SLOT`] = a loss that is yet to be told.
    pub(crate) sizes: Vec<u64>,
    /// Bytes before the lengths.
    body: usize,
}

/// Stands for the length of a log file that was found missing or cut short, until an opening has told so.
pub(crate) const LOST_SLOT: u64 = u64::MAX;

/// Writes the state down as it will be once the overrides hold.
pub(crate) fn encode(
    state: &State,
    over: &Overrides,
    point: LogPoint,
    epoch: u32,
    sizes: &[u64],
    planted: Option<Planted>,
) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u32(epoch);
    for v in [point.segment, point.offset, point.seq] {
        out.put_u64(v);
    }
    put_len(&mut out, state.lanes.len());
    for (number, lane) in (0u32..).zip(&state.lanes) {
        out.put_bytes(lane.id.as_bytes());
        out.put_u64(lane.next_seq);
        let forgotten = SeqSet::default();
        let forget = planted == Some(Planted::CheckpointForgetsSettled);
        put_set(&mut out, if forget { &forgotten } else { &lane.settled });
        let (files, through, next_file) = match over.lanes.get(&number) {
            Some(o) => (&o.files, o.through, o.next_file),
            None => (&lane.files, lane.spilled_through, lane.next_file),
        };
        out.put_u64(through);
        out.put_u64(next_file);
        put_len(&mut out, files.len());
        for file in files {
            put_file(&mut out, file);
        }
        let forget = planted == Some(Planted::CheckpointForgetsNotes);
        put_len(&mut out, if forget { 0 } else { lane.states.len() });
        for (seq, state) in lane.states.iter().filter(|_| !forget) {
            out.put_u64(*seq);
            put_state(&mut out, state);
        }
        let forget = planted == Some(Planted::CheckpointForgetsFrontier);
        out.put_u64(if forget { 0 } else { lane.frontier });
        put_len(&mut out, lane.frontier_steps.len());
        for (through, wall) in &lane.frontier_steps {
            out.put_u64(*through);
            out.put_u64(*wall);
        }
        out.put_u64(lane.maybe_through);
        put_len(&mut out, lane.outcomes.len());
        for (code, n) in &lane.outcomes {
            out.put_u8(*code);
            out.put_u64(*n);
        }
    }
    put_len(&mut out, state.scopes.len());
    for (number, scope) in (0u32..).zip(&state.scopes) {
        out.put_bytes(scope.id.as_bytes());
        out.put_u64(scope.window_ms);
        out.put_u64(scope.key_quota_bytes);
        out.put_u64(scope.next_file);
        put_len(&mut out, scope.partitions.len());
        for ((partition, incarnation), p) in &scope.partitions {
            out.put_bytes(partition.as_bytes());
            out.put_u64(*incarnation);
            out.put_u64(p.committed);
            put_set(&mut out, &p.accepted);
        }
        let forget = planted == Some(Planted::CheckpointForgetsKeys);
        put_len(&mut out, if forget { 0 } else { scope.buckets.len() });
        for bucket in scope.buckets.iter().filter(|_| !forget) {
            let file = over
                .keys
                .get(&(number, bucket.start_unix_ms))
                .map(|(f, _)| *f)
                .or(bucket.file);
            out.put_u64(bucket.start_unix_ms);
            let file = file.unwrap_or(KeyFile {
                number: 0,
                salt: 0,
                len: 0,
            });
            for v in [file.number, file.salt, file.len] {
                out.put_u64(v);
            }
        }
    }
    let forget = planted == Some(Planted::CheckpointForgetsPositions);
    put_len(&mut out, if forget { 0 } else { state.positions.len() });
    for (source, value) in state.positions.iter().filter(|_| !forget) {
        out.put_bytes(source.as_bytes());
        out.put_bytes(value);
    }
    put_sizes(&mut out, sizes);
    out
}

fn put_sizes(out: &mut Vec<u8>, sizes: &[u64]) {
    put_len(out, sizes.len());
    sizes.iter().for_each(|bytes| out.put_u64(*bytes));
}

/// The same checkpoint with other lengths of the log's files.
pub(crate) fn with_sizes(payload: &[u8], found: &Decoded, sizes: &[u64]) -> Vec<u8> {
    let mut out = payload.get(..found.body).unwrap_or(payload).to_vec();
    put_sizes(&mut out, sizes);
    out
}

/// Reads a checkpoint into an empty state. Bucket rows are in files of their own, read by the caller.
pub(crate) fn decode(payload: &[u8], state: &mut State) -> Option<Decoded> {
    let mut take = Take::new(payload);
    let take = &mut take;
    let epoch = take.u32()?;
    let point = LogPoint {
        segment: take.u64()?,
        offset: take.u64()?,
        seq: take.u64()?,
    };
    let lanes = take.u32()?;
    for number in 0..lanes {
        let id = take.text()?;
        state.name_lane(number, id);
        let lane = state.lane_mut(number);
        lane.next_seq = take.u64()?;
        lane.settled = take_set(take)?;
        lane.spilled_through = take.u64()?;
        lane.next_file = take.u64()?;
        for _ in 0..take.u32()? {
            lane.files.push_back(take_file(take)?);
        }
        for _ in 0..take.u32()? {
            lane.states.insert(take.u64()?, take_state(take)?);
        }
        lane.frontier = take.u64()?;
        for _ in 0..take.u32()? {
            lane.frontier_steps.push_back((take.u64()?, take.u64()?));
        }
        lane.maybe_through = take.u64()?;
        for _ in 0..take.u32()? {
            lane.outcomes.insert(take.u8()?, take.u64()?);
        }
        lane.watch.send_replace(lane.next_seq - 1);
    }
    let scopes = take.u32()?;
    for number in 0..scopes {
        let id = take.text()?;
        state.name_scope(number, id);
        let scope = state.scope_mut(number);
        scope.window_ms = take.u64()?;
        scope.key_quota_bytes = take.u64()?;
        scope.next_file = take.u64()?;
        for _ in 0..take.u32()? {
            let key = (take.text()?, take.u64()?);
            let partition = Partition {
                committed: take.u64()?,
                accepted: take_set(take)?,
            };
            scope.partitions.insert(key, partition);
        }
        for _ in 0..take.u32()? {
            let start_unix_ms = take.u64()?;
            let file = KeyFile {
                number: take.u64()?,
                salt: take.u64()?,
                len: take.u64()?,
            };
            let file = (file.number != 0).then_some(file);
            scope.buckets.push_back(Bucket {
                start_unix_ms,
                file,
                ..Bucket::default()
            });
        }
    }
    for _ in 0..take.u32()? {
        let source = take.text()?;
        state
            .positions
            .insert(source, Bytes::copy_from_slice(take.bytes()?));
    }
    charge_spilled(state);
    // A checkpoint is made while a run is going.
    state.clean = false;
    state.run_epoch = epoch;
    let body = take.position();
    // Absent from what was written before the lengths were kept.
    let count = if take.is_empty() { 0 } else { take.u32()? };
    let sizes = (0..count).map(|_| take.u64()).collect::<Option<_>>()?;
    take.is_empty().then_some(Decoded {
        point,
        epoch,
        sizes,
        body,
    })
}

/// Puts what the spill files hold onto their lanes' quotas.
fn charge_spilled(state: &mut State) {
    let mut charges: Vec<(u32, u64)> = Vec::new();
    for (number, lane) in (0u32..).zip(&state.lanes) {
        for file in &lane.files {
            charges.push((number, file.live_charge));
            charges.extend(file.held.iter().map(|(l, c)| (*l, *c)));
        }
    }
    for (number, charge) in charges {
        state.lane_mut(number).charged += charge;
    }
}

/// What one slot file holds.
#[derive(Debug)]
pub(crate) enum SlotFound {
    Valid {
        generation: u64,
        payload: Vec<u8>,
    },
    Newer(u32),
    /// The file is there, and neither copy checks.
    None,
    Missing,
}

fn parse_copy(buf: &[u8]) -> SlotFound {
    fn fields(buf: &[u8]) -> Option<(u32, u32, u64, &[u8])> {
        let mut take = Take::new(buf);
        if take.raw(8)? != MAGIC {
            return None;
        }
        let (version, crc, generation, len) = (take.u32()?, take.u32()?, take.u64()?, take.u64()?);
        let payload = buf.get(HEAD..)?.get(..usize::try_from(len).ok()?)?;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&generation.to_le_bytes()), payload);
        (sum == crc).then_some((version, crc, generation, payload))
    }
    match fields(buf) {
        Some((version, ..)) if version > FORMAT_VERSION => SlotFound::Newer(version),
        Some((_, _, generation, payload)) => SlotFound::Valid {
            generation,
            payload: payload.to_vec(),
        },
        None => SlotFound::None,
    }
}

/// The generation of one copy, if it checks.
pub(crate) fn copy_generation(buf: &[u8]) -> Option<u64> {
    match parse_copy(buf) {
        SlotFound::Valid { generation, .. } => Some(generation),
        // Refused by opening, with the version.
        SlotFound::Newer(_) => Some(u64::MAX),
        SlotFound::None | SlotFound::Missing => None,
    }
}

pub(crate) fn parse_slot(buf: &[u8], planted: Option<Planted>) -> SlotFound {
    let second = || parse_copy(buf.get(buf.len() / 2..).unwrap_or_default());
    match parse_copy(buf) {
        SlotFound::None => second(),
        // As with a segment's header: one flipped bit must not pass for a newer version.
        SlotFound::Newer(found) if planted == Some(Planted::OneCopyRefuses) => {
            SlotFound::Newer(found)
        }
        SlotFound::Newer(found) => match second() {
            valid @ SlotFound::Valid { .. } => valid,
            _ => SlotFound::Newer(found),
        },
        found => found,
    }
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
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(SlotFound::Missing),
        other => other?,
    };
    let len = file.size()?.min(MAX_SLOT_BYTES);
    let mut buf = vec![0u8; usize::try_from(len).unwrap_or(0)];
    let n = read_full_at(file.as_ref(), &mut buf, 0)?;
    buf.truncate(n);
    Ok(parse_slot(&buf, planted))
}

/// The two slots, and which of them holds the last durable checkpoint.
pub(crate) struct Slots {
    files: [Box<dyn FileHandle>; 2],
    pub(crate) generation: u64,
    pub(crate) current: usize,
    pub(crate) planted: Option<Planted>,
}

impl Slots {
    /// Opens the slots, making those that are missing. The caller makes their names durable.
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
            if len == 0 {
                write_all_at(
                    file.as_mut(),
                    &vec![0; usize::try_from(bytes).unwrap_or(0)],
                    0,
                )?;
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

    /// Writes a checkpoint into the other slot; it is durable when this returns. Returns the bytes written.
    pub(crate) fn write(&mut self, payload: &[u8]) -> io::Result<u64> {
        let generation = self.generation + 1;
        let target = if self.planted == Some(Planted::CheckpointSameSlot) {
            self.current
        } else {
            1 - self.current
        };
        let mut copy = Vec::with_capacity(HEAD + payload.len());
        copy.put_raw(MAGIC);
        copy.put_u32(FORMAT_VERSION);
        copy.put_u32(crc32c::crc32c_append(
            crc32c::crc32c(&generation.to_le_bytes()),
            payload,
        ));
        copy.put_u64(generation);
        copy.put_u64(payload.len() as u64);
        copy.resize(HEAD, 0);
        copy.put_raw(payload);
        let [first, second] = &mut self.files;
        let file = if target == 0 { first } else { second };
        let mut len = file.size()?;
        if copy.len() as u64 > len / 2 {
            let wanted = (copy.len() as u64).next_power_of_two() * 2;
            file.allocate(len, wanted - len)?;
            file.set_len(wanted)?;
            len = wanted;
        }
        // Counted up even if the rest fails: what a failed flush left behind may turn out to be durable.
        self.generation = generation;
        write_all_at(file.as_mut(), &copy, 0)?;
        write_all_at(file.as_mut(), &copy, len / 2)?;
        if self.planted != Some(Planted::CheckpointNotSynced) {
            file.sync()?;
        }
        self.current = target;
        Ok(copy.len() as u64 * 2)
    }
}
