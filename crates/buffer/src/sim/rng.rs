//! The simulation's own random numbers.

/// A small, fast generator (SplitMix64): the simulation must not depend on anything that may change.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.draw() % n }
    }
    /// True once in `n`; never for 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }
    /// One of the choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        choices
            .get(self.below(choices.len() as u64) as usize)
            .copied()
    }
}
