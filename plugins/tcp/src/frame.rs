//! A batch as bytes for the stream, and where each message ends in them.

use crate::config::{ConnectionConfig, Framing, LengthOrder};
use consign_plugin::prelude::*;

/// The framing of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frames {
    /// A line feed after each message.
    Lines,
    /// The length before each message, in so many bytes.
    Lengths(usize, LengthOrder),
    /// Nothing between messages.
    Bare,
}

impl Frames {
    /// As configured.
    #[must_use]
    pub fn of(config: &ConnectionConfig) -> Self {
        match config.framing {
            Framing::Line => Self::Lines,
            Framing::LengthPrefixed => Self::Lengths(
                config.length_bytes.unwrap_or(4).into(),
                config.length_order.unwrap_or_default(),
            ),
            Framing::None => Self::Bare,
        }
    }

    /// Whether a receiver that got only a part of a frame knows that it has no message.
    #[must_use]
    pub fn shows_a_cut(self) -> bool {
        matches!(self, Self::Lengths(..))
    }

    /// Adds one message to the bytes of a batch.
    ///
    /// # Errors
    /// Why this message can never be sent over this stream; nothing was added.
    pub fn push(self, bytes: &mut Vec<u8>, body: &[u8]) -> Result<(), Detail> {
        match self {
            Self::Lines => {
                if let Some(at) = body.iter().position(|byte| *byte == b'\n') {
                    return Err(Detail::new(
                        "embedded_newline",
                        format!(
                            "the body has a line feed at byte {at}, where the receiver would see the end of the message: use `framing: length_prefixed`, or take it out with a transform"
                        ),
                    ));
                }
                bytes.extend_from_slice(body);
                bytes.push(b'\n');
            }
            Self::Lengths(width, order) => {
                let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
                bytes.extend_from_slice(&prefix(length, width, order)?);
                bytes.extend_from_slice(body);
            }
            Self::Bare => {
                if body.is_empty() {
                    return Err(Detail::new(
                        "empty_body",
                        "the body is empty, so that without framing nothing would be sent",
                    ));
                }
                bytes.extend_from_slice(body);
            }
        }
        Ok(())
    }
}

fn prefix(length: u64, width: usize, order: LengthOrder) -> Result<Vec<u8>, Detail> {
    let all = length.to_be_bytes();
    let (high, low) = all.split_at(all.len().saturating_sub(width));
    if high.iter().any(|byte| *byte != 0) {
        return Err(Detail::new(
            "too_long",
            format!("the body has {length} bytes, more than `length_bytes: {width}` can say"),
        ));
    }
    let mut prefix = low.to_vec();
    if order == LengthOrder::LittleEndian {
        prefix.reverse();
    }
    Ok(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(frames: Frames, bodies: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for body in bodies {
            frames.push(&mut bytes, body).unwrap();
        }
        bytes
    }

    fn refused(frames: Frames, body: &[u8]) -> Detail {
        let mut bytes = b"before".to_vec();
        let detail = frames.push(&mut bytes, body).unwrap_err();
        assert_eq!(bytes, b"before", "a refused message leaves nothing behind");
        detail
    }

    #[test]
    fn each_framing_is_byte_for_byte() {
        let bodies: &[&[u8]] = &[b"ab", b"", b"c\r"];
        assert_eq!(framed(Frames::Lines, bodies), b"ab\n\nc\r\n");
        let big = LengthOrder::BigEndian;
        let little = LengthOrder::LittleEndian;
        assert_eq!(
            framed(Frames::Lengths(1, big), bodies),
            b"\x02ab\x00\x02c\r"
        );
        assert_eq!(
            framed(Frames::Lengths(2, big), bodies),
            b"\x00\x02ab\x00\x00\x00\x02c\r"
        );
        assert_eq!(
            framed(Frames::Lengths(4, little), bodies),
            b"\x02\0\0\0ab\0\0\0\0\x02\0\0\0c\r"
        );
        assert_eq!(
            framed(Frames::Lengths(8, big), &[b"\n\0"]),
            b"\0\0\0\0\0\0\0\x02\n\0"
        );
        assert_eq!(framed(Frames::Bare, &[b"ab", b"c\n"]), b"abc\n");
    }

    #[test]
    fn what_a_framing_cannot_carry_is_refused_by_name() {
        let newline = refused(Frames::Lines, b"{\n}");
        assert_eq!(newline.code, "embedded_newline");
        assert!(
            newline.message.contains("at byte 1") && newline.message.contains("length_prefixed"),
            "{newline}"
        );
        for (width, length) in [(1, 256), (2, 65_536)] {
            let body = vec![b'x'; length];
            let frames = Frames::Lengths(width, LengthOrder::BigEndian);
            assert_eq!(refused(frames, &body).code, "too_long");
            frames.push(&mut Vec::new(), &body[1..]).unwrap();
        }
        assert_eq!(refused(Frames::Bare, b"").code, "empty_body");
    }
}
