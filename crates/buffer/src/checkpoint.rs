//! The checkpoint: everything that is not a pending write in the log, and where replay begins. The files it is kept in
//! are a matter of `slots`.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::codec::{Put, Take};
use crate::items::{put_state, take_state};
use crate::keys::{Bucket, KeyFile, Partition};
use crate::lane::SpillFile;
use crate::log::LogPoint;
use crate::planted::Planted;
use crate::plausible;
use crate::seqset::SeqSet;
use crate::state::State;

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
    /// What an opening found and may not have told.
    pub(crate) untold: Untold,
    rebuilt_at: u64,
    /// Bytes before the lengths.
    body: usize,
}

/// Damage that an opening found, as the next opening has to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Untold {
    #[default]
    Nothing,
    /// It is to be found out anew what is pending.
    Found,
    /// The checkpoint says what was found out. The first checkpoint of the run that tells it takes this away.
    MadeGood,
}

impl Untold {
    fn code(self) -> u8 {
        match self {
            Untold::Nothing => 0,
            Untold::Found => 1,
            Untold::MadeGood => 2,
        }
    }

    fn of(code: u8) -> Option<Untold> {
        let all = [Untold::Nothing, Untold::Found, Untold::MadeGood];
        all.into_iter().find(|u| u.code() == code)
    }
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
    untold: Untold,
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
    let mut gaps = state.gaps.clone();
    gaps.forget_below(point.seq);
    put_tail(&mut out, sizes, untold, &gaps, state.rebuilt_at);
    out
}

/// What stands behind the state: it changes while an opening finds out what is missing.
fn put_tail(out: &mut Vec<u8>, sizes: &[u64], untold: Untold, gaps: &SeqSet, rebuilt_at: u64) {
    put_len(out, sizes.len());
    sizes.iter().for_each(|bytes| out.put_u64(*bytes));
    out.put_u8(untold.code());
    put_set(out, gaps);
    out.put_u64(rebuilt_at);
}

/// The same checkpoint with other lengths of the log's files, and with what an opening found out noted as untold.
/// `gaps` are the missing log records that were told before.
pub(crate) fn amended(
    payload: &[u8],
    found: &Decoded,
    sizes: &[u64],
    untold: Untold,
    gaps: &SeqSet,
) -> Vec<u8> {
    let mut out = payload.get(..found.body).unwrap_or(payload).to_vec();
    put_tail(&mut out, sizes, untold, gaps, found.rebuilt_at);
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
    let lanes = take.u32().filter(|n| *n <= plausible::MAX_LANES)?;
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
        lane.watch.send_replace(lane.next_seq.saturating_sub(1));
    }
    let scopes = take.u32().filter(|n| *n <= plausible::MAX_LANES)?;
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
    if !plausible::checkpoint(state, &point, epoch) {
        return None;
    }
    charge_spilled(state);
    // A checkpoint is made while a run is going.
    state.clean = false;
    state.run_epoch = epoch;
    let body = take.position();
    // Absent from what was written before the lengths were kept.
    let count = if take.is_empty() { 0 } else { take.u32()? };
    let sizes = (0..count).map(|_| take.u64()).collect::<Option<_>>()?;
    // So are these.
    let mut untold = Untold::Nothing;
    if !take.is_empty() {
        untold = Untold::of(take.u8()?)?;
        state.gaps = take_set(take)?;
        state.rebuilt_at = take.u64()?;
    }
    let told = state.rebuilt_at <= plausible::MAX_NUMBER;
    (take.is_empty() && told).then_some(Decoded {
        point,
        epoch,
        sizes,
        untold,
        rebuilt_at: state.rebuilt_at,
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
