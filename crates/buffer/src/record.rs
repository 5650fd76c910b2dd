//! One record as it stands in the log, in a spill file and in a key file.
//!
//! ```text
//!  0  u32  length of what follows the header (number table and payload), without padding
//!  4  u32  crc32c over salt, bytes 8..32 and the number table
//!  8  u32  crc32c over the payload
//! 12  u32  entries in the number table
//! 16  u64  sequence number: dense in the log; the lane's number in a spill file
//! 24  u32  owner epoch
//! 28  u32  index in its group: everything before `sequence - index` was durable when this was written
//! 32  ..   number table: u64 each, the lane numbers that the writes of the payload got
//!     ..   payload, then zeros up to a multiple of 8
//! ```
//!
//! The salt is the file's own and is drawn anew each time a log segment is used again, so bytes left from its last
//! use never check. The payload's sum is taken by the caller's thread, the header's by the committing thread.

use crate::codec::{Put, Take};

/// Bytes of a record header.
pub(crate) const HEADER: usize = 32;
/// Records begin at multiples of this.
pub(crate) const ALIGN: usize = 8;

/// A record's header, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) len: u32,
    pub(crate) payload_crc: u32,
    pub(crate) numbers: u32,
    pub(crate) seq: u64,
    pub(crate) epoch: u32,
    pub(crate) index: u32,
}

/// A record that checks, inside a larger buffer.
#[derive(Debug, Clone)]
pub(crate) struct Record<'a> {
    pub(crate) header: Header,
    pub(crate) numbers: Vec<u64>,
    pub(crate) payload: &'a [u8],
    /// Where the payload begins, counted from the record's first byte.
    pub(crate) payload_at: usize,
    /// The record's whole size with padding.
    pub(crate) size: usize,
}

/// What the committing side puts on a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) salt: u64,
    pub(crate) seq: u64,
    pub(crate) epoch: u32,
    pub(crate) index: u32,
}

/// Size on disk of a record.
pub(crate) fn size(numbers: usize, payload: usize) -> usize {
    (HEADER + numbers * 8 + payload).next_multiple_of(ALIGN)
}

/// Appends a record whose payload sum is known already.
pub(crate) fn append(
    out: &mut Vec<u8>,
    stamp: Stamp,
    numbers: &[u64],
    payload: &[u8],
    payload_crc: u32,
) {
    let Stamp {
        salt,
        seq,
        epoch,
        index,
    } = stamp;
    let mut head = Vec::with_capacity(HEADER - 8 + numbers.len() * 8);
    head.put_u32(payload_crc);
    head.put_u32(u32::try_from(numbers.len()).unwrap_or(u32::MAX));
    head.put_u64(seq);
    head.put_u32(epoch);
    head.put_u32(index);
    for n in numbers {
        head.put_u64(*n);
    }
    let len = numbers.len() * 8 + payload.len();
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    out.put_u32(len);
    out.put_u32(header_crc(salt, len, &head));
    out.put_raw(&head);
    out.put_raw(payload);
    out.resize(out.len().next_multiple_of(ALIGN), 0);
}

fn header_crc(salt: u64, len: u32, rest: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&salt.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &len.to_le_bytes());
    crc32c::crc32c_append(crc, rest)
}

/// The record at the front of `buf`, if there is one that checks with this salt.
pub(crate) fn parse(buf: &[u8], salt: u64) -> Option<Record<'_>> {
    let record = parse_unchecked(buf, salt)?;
    (crc32c::crc32c(record.payload) == record.header.payload_crc).then_some(record)
}

/// As [`parse`], with only the header's sum checked: for a planted fault and for callers that check the payload later.
pub(crate) fn parse_unchecked(buf: &[u8], salt: u64) -> Option<Record<'_>> {
    let mut take = Take::new(buf);
    let len = take.u32()?;
    let crc = take.u32()?;
    let payload_crc = take.u32()?;
    let numbers = take.u32()?;
    let seq = take.u64()?;
    let epoch = take.u32()?;
    let index = take.u32()?;
    let total = usize::try_from(len).ok()?;
    let table = usize::try_from(numbers).ok()?.checked_mul(8)?;
    let payload_len = total.checked_sub(table)?;
    if seq == 0 || HEADER.checked_add(total)? > buf.len() {
        return None;
    }
    if crc != header_crc(salt, len, buf.get(8..HEADER + table)?) {
        return None;
    }
    let mut list = Vec::with_capacity(table / 8);
    for _ in 0..numbers {
        list.push(take.u64()?);
    }
    let payload = take.raw(payload_len)?;
    let header = Header {
        len,
        payload_crc,
        numbers,
        seq,
        epoch,
        index,
    };
    crate::plausible::record(&header).then_some(Record {
        header,
        numbers: list,
        payload,
        payload_at: HEADER + table,
        size: (HEADER + total).next_multiple_of(ALIGN),
    })
}

/// The size a record at the front of `buf` claims to have, checked or not: how much to read.
pub(crate) fn claimed_size(buf: &[u8]) -> Option<usize> {
    let len = Take::new(buf).u32()?;
    Some((HEADER.checked_add(usize::try_from(len).ok()?)?).next_multiple_of(ALIGN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_every_flipped_bit_is_noticed() {
        let mut buf = Vec::new();
        let payload = b"thirteen byte";
        append(
            &mut buf,
            Stamp {
                salt: 7,
                seq: 9,
                epoch: 3,
                index: 1,
            },
            &[5, 6],
            payload,
            crc32c::crc32c(payload),
        );
        assert_eq!(buf.len(), size(2, payload.len()));
        let record = parse(&buf, 7).unwrap();
        assert_eq!(
            (record.header.seq, record.header.epoch, record.header.index),
            (9, 3, 1)
        );
        assert_eq!(record.numbers, [5, 6]);
        assert_eq!(record.payload, payload);
        assert!(parse(&buf, 8).is_none(), "another salt");
        for bit in 0..(HEADER + 16 + payload.len()) * 8 {
            let mut bad = buf.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bad, 7).is_none(), "bit {bit}");
        }
        for cut in 0..HEADER + 16 + payload.len() {
            assert!(parse(&buf[..cut], 7).is_none(), "cut at {cut}");
        }
    }
}
