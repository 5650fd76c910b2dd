//! What a log record says: a list of items that take effect together.

use bytes::Bytes;

use crate::api::{NewWrite, Origin, WriteState};
use crate::codec::{Put, Take};
use crate::plausible;
use crate::write::{Held, WriteView, encode_write, parse_write};

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
    out.put_framed(|out| encode_write(out, write));
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
    items.iter().all(plausible::item).then_some(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::LaneId;
    use crate::write::charges;

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
