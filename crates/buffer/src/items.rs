//! What a log record says: a list of items that take effect together.
//!
//! A write is encoded the same way in the log, in a spill file and inside its parent:
//! `lane u32, key 16, order u64, created u64, expires u64 (0 = never), body length u32, children u16, body`, then each
//! child with a u32 length in front.

use bytes::Bytes;

use crate::api::{LaneId, MAX_CHILD_DEPTH, NewWrite, Origin, WRITE_OVERHEAD_BYTES, WriteState};
use crate::codec::{Put, Take};

const WRITE: u8 = 1;
const SETTLE: u8 = 2;
const FRONTIER: u8 = 3;
const NOTE: u8 = 4;
const POSITION: u8 = 5;
const KNOWN: u8 = 6;
const SCOPE: u8 = 7;
const LANE: u8 = 8;
const SESSION: u8 = 9;
const CLEAN: u8 = 10;
const PURGE: u8 = 11;
const LOST: u8 = 12;
const ASSIGNED: u8 = 13;

/// Charges of dependents: lane number and bytes.
pub(crate) type Held = Vec<(u32, u64)>;

/// A write's fields, with where its body and children lie in the encoding.
#[derive(Debug, Clone)]
pub(crate) struct WriteView<'a> {
    pub(crate) lane: u32,
    pub(crate) key: [u8; 16],
    pub(crate) order: u64,
    pub(crate) created_unix_ms: u64,
    pub(crate) expires_unix_ms: Option<u64>,
    pub(crate) body: &'a [u8],
    /// The children's own encodings.
    pub(crate) children: Vec<&'a [u8]>,
}

impl WriteView<'_> {
    /// What the write alone is charged.
    pub(crate) fn charge(&self) -> u64 {
        self.body.len() as u64 + WRITE_OVERHEAD_BYTES
    }

    /// What all its dependents are charged, by lane.
    pub(crate) fn held(&self) -> Held {
        let mut held = Vec::new();
        collect_held(&self.children, 0, &mut held);
        held
    }
}

fn collect_held(children: &[&[u8]], depth: usize, held: &mut Held) {
    if depth >= MAX_CHILD_DEPTH {
        return;
    }
    for child in children {
        if let Some(view) = parse_write(child) {
            held.push((view.lane, view.charge()));
            collect_held(&view.children, depth + 1, held);
        }
    }
}

/// Appends a write's encoding.
pub(crate) fn encode_write(out: &mut Vec<u8>, write: &NewWrite) {
    out.put_u32(write.lane.0);
    out.put_raw(&write.key);
    out.put_u64(write.order);
    out.put_u64(write.created_unix_ms);
    out.put_u64(write.expires_unix_ms.unwrap_or(0));
    out.put_u32(u32::try_from(write.body.len()).unwrap_or(u32::MAX));
    out.put_u16(u16::try_from(write.children.len()).unwrap_or(u16::MAX));
    out.put_raw(&write.body);
    for child in &write.children {
        let at = out.len();
        out.put_u32(0);
        encode_write(out, child);
        let len = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
        if let Some(slot) = out.get_mut(at..at + 4) {
            slot.copy_from_slice(&len.to_le_bytes());
        }
    }
}

/// Reads a write's encoding; `None` when it is not one.
pub(crate) fn parse_write(enc: &[u8]) -> Option<WriteView<'_>> {
    let mut take = Take::new(enc);
    let lane = take.u32()?;
    let key = take.array()?;
    let order = take.u64()?;
    let created_unix_ms = take.u64()?;
    let expires = take.u64()?;
    let body_len = take.u32()?;
    let count = take.u16()?;
    let body = take.raw(usize::try_from(body_len).ok()?)?;
    let mut children = Vec::new();
    for _ in 0..count {
        children.push(take.bytes()?);
    }
    take.is_empty().then_some(WriteView {
        lane,
        key,
        order,
        created_unix_ms,
        expires_unix_ms: (expires != 0).then_some(expires),
        body,
        children,
    })
}

/// The dependents of an encoded write as they were accepted, bodies in the encoding's own memory.
pub(crate) fn children_of(enc: &Bytes) -> Option<Vec<NewWrite>> {
    owned(enc, enc, 0).map(|write| write.children)
}

fn owned(all: &Bytes, enc: &[u8], depth: usize) -> Option<NewWrite> {
    if depth > MAX_CHILD_DEPTH {
        return None;
    }
    let view = parse_write(enc)?;
    let children = view.children.iter();
    Some(NewWrite {
        lane: LaneId(view.lane),
        key: view.key,
        order: view.order,
        body: all.slice_ref(view.body),
        created_unix_ms: view.created_unix_ms,
        expires_unix_ms: view.expires_unix_ms,
        children: children
            .map(|child| owned(all, child, depth + 1))
            .collect::<Option<_>>()?,
    })
}

/// One thing a record says.
#[derive(Debug, Clone)]
pub(crate) enum Item<'a> {
    /// A write joins its lane. `at` is where its encoding begins in the payload.
    Write {
        seq: u64,
        at: usize,
        enc: &'a [u8],
        view: WriteView<'a>,
    },
    /// A write ends. The charges let a spilled write be taken off the books without reading it.
    Settle {
        lane: u32,
        seq: u64,
        result: u8,
        charge: u64,
        held: Held,
    },
    Frontier {
        lane: u32,
        seq: u64,
        wall_unix_ms: u64,
    },
    Note {
        lane: u32,
        seq: u64,
        state: WriteState,
    },
    Position {
        source: String,
        value: Bytes,
    },
    Known {
        scope: u32,
        origin: Origin,
        at_unix_ms: u64,
    },
    Scope {
        number: u32,
        id: String,
    },
    /// A lane is made, or renamed when the number is known.
    Lane {
        number: u32,
        id: String,
    },
    Session {
        epoch: u32,
        wall_unix_ms: u64,
    },
    Clean,
    /// Everything pending up to `through` is taken away.
    Purge {
        lane: u32,
        through: u64,
    },
    /// Writes that corruption took from a spill file, with what the books still said about them.
    Lost {
        lane: u32,
        file: u64,
        ranges: Vec<(u64, u64)>,
        writes: u64,
        charge: u64,
        physical: u64,
        held: Held,
    },
    Assigned {
        scope: u32,
        partition: String,
        incarnation: u64,
        committed: u64,
        reset: bool,
    },
}

fn put_held(out: &mut Vec<u8>, held: &Held) {
    out.put_u16(u16::try_from(held.len()).unwrap_or(u16::MAX));
    for (lane, charge) in held {
        out.put_u32(*lane);
        out.put_u64(*charge);
    }
}

fn take_held(take: &mut Take<'_>) -> Option<Held> {
    let n = take.u16()?;
    (0..n).map(|_| Some((take.u32()?, take.u64()?))).collect()
}

/// Appends a write item around an encoding; returns where the encoding begins.
pub(crate) fn put_write_enc(out: &mut Vec<u8>, enc: &[u8]) {
    out.put_u8(WRITE);
    out.put_bytes(enc);
}

/// Appends a write item.
pub(crate) fn put_write(out: &mut Vec<u8>, write: &NewWrite) {
    out.put_u8(WRITE);
    let at = out.len();
    out.put_u32(0);
    encode_write(out, write);
    let len = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    if let Some(slot) = out.get_mut(at..at + 4) {
        slot.copy_from_slice(&len.to_le_bytes());
    }
}

/// Appends any item but a write.
pub(crate) fn put_item(out: &mut Vec<u8>, item: &Item<'_>) {
    match item {
        Item::Write { enc, .. } => put_write_enc(out, enc),
        Item::Settle {
            lane,
            seq,
            result,
            charge,
            held,
        } => {
            out.put_u8(SETTLE);
            out.put_u32(*lane);
            out.put_u64(*seq);
            out.put_u8(*result);
            out.put_u64(*charge);
            put_held(out, held);
        }
        Item::Frontier {
            lane,
            seq,
            wall_unix_ms,
        } => {
            out.put_u8(FRONTIER);
            out.put_u32(*lane);
            out.put_u64(*seq);
            out.put_u64(*wall_unix_ms);
        }
        Item::Note { lane, seq, state } => {
            out.put_u8(NOTE);
            out.put_u32(*lane);
            out.put_u64(*seq);
            put_state(out, state);
        }
        Item::Position { source, value } => {
            out.put_u8(POSITION);
            out.put_bytes(source.as_bytes());
            out.put_bytes(value);
        }
        Item::Known {
            scope,
            origin,
            at_unix_ms,
        } => {
            out.put_u8(KNOWN);
            out.put_u32(*scope);
            out.put_u64(*at_unix_ms);
            put_origin(out, origin);
        }
        Item::Scope { number, id } => {
            out.put_u8(SCOPE);
            out.put_u32(*number);
            out.put_bytes(id.as_bytes());
        }
        Item::Lane { number, id } => {
            out.put_u8(LANE);
            out.put_u32(*number);
            out.put_bytes(id.as_bytes());
        }
        Item::Session {
            epoch,
            wall_unix_ms,
        } => {
            out.put_u8(SESSION);
            out.put_u32(*epoch);
            out.put_u64(*wall_unix_ms);
        }
        Item::Clean => out.put_u8(CLEAN),
        Item::Purge { lane, through } => {
            out.put_u8(PURGE);
            out.put_u32(*lane);
            out.put_u64(*through);
        }
        Item::Lost {
            lane,
            file,
            ranges,
            writes,
            charge,
            physical,
            held,
        } => {
            out.put_u8(LOST);
            out.put_u32(*lane);
            out.put_u64(*file);
            out.put_u64(*writes);
            out.put_u64(*charge);
            out.put_u64(*physical);
            put_held(out, held);
            out.put_u32(u32::try_from(ranges.len()).unwrap_or(u32::MAX));
            for (from, to) in ranges {
                out.put_u64(*from);
                out.put_u64(*to);
            }
        }
        Item::Assigned {
            scope,
            partition,
            incarnation,
            committed,
            reset,
        } => {
            out.put_u8(ASSIGNED);
            out.put_u32(*scope);
            out.put_bytes(partition.as_bytes());
            out.put_u64(*incarnation);
            out.put_u64(*committed);
            out.put_u8(u8::from(*reset));
        }
    }
}

pub(crate) fn put_state(out: &mut Vec<u8>, state: &WriteState) {
    out.put_u32(state.attempts);
    out.put_u64(state.first_maybe_unix_ms.unwrap_or(0));
    out.put_u32(state.spent_resends);
    out.put_u64(state.open_gate_age_ms);
    out.put_u64(state.first_attempt_unix_ms);
    out.put_u32(state.flags);
    out.put_u64(state.sealed);
}

pub(crate) fn take_state(take: &mut Take<'_>) -> Option<WriteState> {
    Some(WriteState {
        attempts: take.u32()?,
        first_maybe_unix_ms: Some(take.u64()?).filter(|&ms| ms != 0),
        spent_resends: take.u32()?,
        open_gate_age_ms: take.u64()?,
        first_attempt_unix_ms: take.u64()?,
        flags: take.u32()?,
        sealed: take.u64()?,
    })
}

pub(crate) fn put_origin(out: &mut Vec<u8>, origin: &Origin) {
    match origin {
        Origin::Cumulative {
            partition,
            incarnation,
            offset,
        } => {
            out.put_u8(1);
            out.put_bytes(partition.as_bytes());
            out.put_u64(*incarnation);
            out.put_u64(*offset);
        }
        Origin::Individual { id } => {
            out.put_u8(2);
            out.put_raw(id);
        }
        Origin::ClientKey { key, body } => {
            out.put_u8(3);
            out.put_raw(key);
            out.put_raw(body);
        }
    }
}

pub(crate) fn take_origin(take: &mut Take<'_>) -> Option<Origin> {
    match take.u8()? {
        1 => Some(Origin::Cumulative {
            partition: take.text()?,
            incarnation: take.u64()?,
            offset: take.u64()?,
        }),
        2 => Some(Origin::Individual { id: take.array()? }),
        3 => Some(Origin::ClientKey {
            key: take.array()?,
            body: take.array()?,
        }),
        _ => None,
    }
}

/// Reads a record's items; `None` when the payload is not a list of items this version knows.
pub(crate) fn parse<'a>(payload: &'a [u8], numbers: &[u64]) -> Option<Vec<Item<'a>>> {
    let mut take = Take::new(payload);
    let mut numbers = numbers.iter();
    let mut items = Vec::with_capacity(2);
    while !take.is_empty() {
        items.push(match take.u8()? {
            WRITE => {
                let seq = *numbers.next()?;
                let at = take.position() + 4;
                let enc = take.bytes()?;
                Item::Write {
                    seq,
                    at,
                    enc,
                    view: parse_write(enc)?,
                }
            }
            SETTLE => Item::Settle {
                lane: take.u32()?,
                seq: take.u64()?,
                result: take.u8()?,
                charge: take.u64()?,
                held: take_held(&mut take)?,
            },
            FRONTIER => Item::Frontier {
                lane: take.u32()?,
                seq: take.u64()?,
                wall_unix_ms: take.u64()?,
            },
            NOTE => Item::Note {
                lane: take.u32()?,
                seq: take.u64()?,
                state: take_state(&mut take)?,
            },
            POSITION => Item::Position {
                source: take.text()?,
                value: Bytes::copy_from_slice(take.bytes()?),
            },
            KNOWN => {
                let (scope, at_unix_ms) = (take.u32()?, take.u64()?);
                Item::Known {
                    scope,
                    at_unix_ms,
                    origin: take_origin(&mut take)?,
                }
            }
            SCOPE => Item::Scope {
                number: take.u32()?,
                id: take.text()?,
            },
            LANE => Item::Lane {
                number: take.u32()?,
                id: take.text()?,
            },
            SESSION => Item::Session {
                epoch: take.u32()?,
                wall_unix_ms: take.u64()?,
            },
            CLEAN => Item::Clean,
            PURGE => Item::Purge {
                lane: take.u32()?,
                through: take.u64()?,
            },
            LOST => {
                let (lane, file) = (take.u32()?, take.u64()?);
                let (writes, charge, physical) = (take.u64()?, take.u64()?, take.u64()?);
                let held = take_held(&mut take)?;
                let n = take.u32()?;
                let ranges = (0..n)
                    .map(|_| Some((take.u64()?, take.u64()?)))
                    .collect::<Option<Vec<_>>>()?;
                Item::Lost {
                    lane,
                    file,
                    ranges,
                    writes,
                    charge,
                    physical,
                    held,
                }
            }
            ASSIGNED => Item::Assigned {
                scope: take.u32()?,
                partition: take.text()?,
                incarnation: take.u64()?,
                committed: take.u64()?,
                reset: take.u8()? != 0,
            },
            _ => return None,
        });
    }
    Some(items)
}

/// What a write and its dependents are charged, by lane, for the reservation check.
pub(crate) fn charges(write: &NewWrite, depth: usize, out: &mut Vec<(LaneId, u64)>) -> bool {
    out.push((write.lane, write.charge()));
    write.children.is_empty()
        || depth < MAX_CHILD_DEPTH
            && write
                .children
                .iter()
                .all(|child| charges(child, depth + 1, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(lane: u32, body: &[u8], children: Vec<NewWrite>) -> NewWrite {
        NewWrite {
            lane: LaneId(lane),
            key: [lane as u8; 16],
            order: 3,
            body: Bytes::copy_from_slice(body),
            created_unix_ms: 11,
            expires_unix_ms: Some(12),
            children,
        }
    }

    #[test]
    fn a_write_with_nested_dependents_is_read_back_and_fits_its_charge() {
        let w = write(
            1,
            b"parent",
            vec![
                write(2, b"child", vec![write(3, b"", vec![])]),
                write(2, b"b", vec![]),
            ],
        );
        let mut payload = Vec::new();
        put_write(&mut payload, &w);
        let items = parse(&payload, &[77]).unwrap();
        let [
            Item::Write {
                seq: 77, enc, view, ..
            },
        ] = &items[..]
        else {
            panic!("{items:?}")
        };
        assert_eq!(view.body, b"parent");
        assert_eq!(view.held(), [(2, 5 + 96), (3, 96), (2, 1 + 96)]);
        let mut all = Vec::new();
        assert!(charges(&w, 0, &mut all));
        let charged: u64 = all.iter().map(|(_, c)| c).sum();
        assert!(crate::record::size(0, enc.len()) as u64 <= charged);
        for cut in 1..payload.len() {
            assert!(parse(&payload[..cut], &[77]).is_none());
        }
        assert!(parse(&payload, &[]).is_none(), "a write without a number");
    }
}
