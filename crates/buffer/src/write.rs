//! How a write is encoded: the same way in the log, in a spill file and inside its parent.
//!
//! `lane u32, key 16, order u64, created u64, expires u64 (0 = never), body length u32, children u16, body`, then each
//! child with a u32 length in front. So a parent moves with all it holds by copying bytes.

use bytes::Bytes;

use crate::api::{LaneId, MAX_CHILD_DEPTH, NewWrite, WRITE_OVERHEAD_BYTES};
use crate::codec::{Put, Take};
use crate::plausible::MAX_LANES;

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
        out.put_framed(|out| encode_write(out, child));
    }
}

/// Reads a write's encoding; `None` when it is not one.
pub(crate) fn parse_write(enc: &[u8]) -> Option<WriteView<'_>> {
    let mut take = Take::new(enc);
    let lane = take.u32().filter(|lane| *lane < MAX_LANES)?;
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
