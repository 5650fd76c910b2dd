//! Seeded randomness: the same seed gives the same webhooks and the same plan on every machine.

/// A small generator (SplitMix64). Not for secrets.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator of its own for each `(seed, stream)`; streams do not depend on each other.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Random(seed ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        // Two steps apart, neighbouring seeds and streams no longer resemble each other.
        let first = mixed.next();
        Random(first ^ mixed.next().rotate_left(17))
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included; `low` when they are the wrong way round.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = high.saturating_sub(low).saturating_add(1);
        // The bias is below span / 2^64, which is nothing for the small spans here.
        low + self.next() % span
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }

    /// One of the items; the default when there are none.
    pub fn pick<T: Copy + Default>(&mut self, items: &[T]) -> T {
        let last = (items.len() as u64).saturating_sub(1);
        let index = usize::try_from(self.between(0, last)).unwrap_or(0);
        items.get(index).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_fixed() {
        let mut random = Random::new(1, 0);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        let mut again = Random::new(1, 0);
        assert_eq!(first, (0..3).map(|_| again.next()).collect::<Vec<_>>());
        assert_ne!(first[0], Random::new(1, 1).next());
        assert_ne!(first[0], Random::new(2, 0).next());
    }

    #[test]
    fn numbers_stay_inside_and_reach_both_ends() {
        let mut random = Random::new(7, 7);
        let seen: std::collections::BTreeSet<u64> =
            (0..500).map(|_| random.between(3, 6)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!(random.between(5, 5), 5);
        assert_eq!(random.pick::<u8>(&[]), 0);
    }
}
