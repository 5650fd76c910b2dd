//! What is durably noted about one pending write.

/// The durable part of a write's history. The driver stores it with the write and hands it back
/// with [`crate::FetchedWrite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteNote {
    /// Attempts that count against `max_attempts`.
    pub attempts: u32,
    /// Resends after an attempt that may have been applied, where a repeat is a second copy.
    pub spent_resends: u32,
    /// Wall time of the first send that may have been applied; 0 if none.
    pub first_maybe_unix_ms: u64,
    /// Wall time of the first attempt; 0 if none.
    pub first_attempt_unix_ms: u64,
    /// Time spent failing while the gate was open, in milliseconds.
    pub open_gate_age_ms: u64,
    /// The sealed batch it belongs to; 0 if none. Writes of one batch share it, and it grows
    /// along the lane.
    pub sealed: u64,
    /// See the associated constants; unknown bits are kept.
    pub flags: u32,
}

impl WriteNote {
    /// The resend was answered maybe, too: no further copy without evidence or a person.
    pub const AMBIGUOUS: u32 = 1;
    /// The window has passed: a repeat is a second copy from here on.
    pub const WINDOW_PASSED: u32 = 2;
    /// Every attempt is spent: the next failure that counts is the last.
    pub const SPENT: u32 = 4;
    /// It was sent alone after its batch was refused.
    pub const SPLIT: u32 = 8;

    /// Where the seal's generation stands in the flags: how often the write was sealed anew.
    const GENERATION_SHIFT: u32 = 8;

    /// How often the write was sealed anew, at most 15.
    #[must_use]
    pub fn seal_generation(&self) -> u32 {
        (self.flags >> Self::GENERATION_SHIFT) & 0xf
    }

    /// Takes the write out of its sealed batch: its next batch has another number.
    pub fn unseal(&mut self) {
        let next = (self.seal_generation() + 1).min(0xf);
        self.sealed = 0;
        self.flags =
            (self.flags & !(0xf << Self::GENERATION_SHIFT)) | next << Self::GENERATION_SHIFT;
    }

    /// Whether all bits of `flag` are set.
    #[must_use]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag == flag
    }

    /// Sets or clears the bits of `flag`.
    pub fn set(&mut self, flag: u32, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    /// 48 bytes, little-endian: the form a buffer may store as it is.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0_u8; Self::BYTES];
        let parts = [
            u64::from(self.attempts) | u64::from(self.spent_resends) << 32,
            self.first_maybe_unix_ms,
            self.first_attempt_unix_ms,
            self.open_gate_age_ms,
            self.sealed,
            u64::from(self.flags),
        ];
        for (slot, part) in out.chunks_exact_mut(8).zip(parts) {
            slot.copy_from_slice(&part.to_le_bytes());
        }
        out
    }

    /// Reads [`WriteNote::to_bytes`]; `None` if the length differs.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != Self::BYTES {
            return None;
        }
        let mut parts = [0_u64; 6];
        for (part, chunk) in parts.iter_mut().zip(bytes.chunks_exact(8)) {
            *part = u64::from_le_bytes(chunk.try_into().ok()?);
        }
        let [counts, first_maybe, first_attempt, age, sealed, flags] = parts;
        Some(Self {
            attempts: u32::try_from(counts & u64::from(u32::MAX)).ok()?,
            spent_resends: u32::try_from(counts >> 32).ok()?,
            first_maybe_unix_ms: first_maybe,
            first_attempt_unix_ms: first_attempt,
            open_gate_age_ms: age,
            sealed,
            flags: u32::try_from(flags & u64::from(u32::MAX)).ok()?,
        })
    }

    /// Length of [`WriteNote::to_bytes`].
    pub const BYTES: usize = 48;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_survives_its_bytes() {
        let mut note = WriteNote {
            attempts: 3,
            spent_resends: u32::MAX,
            first_maybe_unix_ms: 1_700_000_000_000,
            first_attempt_unix_ms: 1,
            open_gate_age_ms: u64::MAX,
            sealed: 9 << 16,
            flags: 0,
        };
        note.set(WriteNote::AMBIGUOUS, true);
        assert_eq!(WriteNote::from_bytes(&note.to_bytes()), Some(note));
        assert_eq!(WriteNote::from_bytes(&[0; 47]), None);
        assert_eq!(WriteNote::from_bytes(&[0; 48]), Some(WriteNote::default()));
    }
}
