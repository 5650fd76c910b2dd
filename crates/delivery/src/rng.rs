//! The injected source of randomness: SplitMix64, so that a seed means the same on every build.

/// A seeded generator.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Full jitter: uniform from 1 to `bound_ms`.
    pub(crate) fn jitter(&mut self, bound_ms: u64) -> u64 {
        1 + self.next() % bound_ms.max(1)
    }
}
