//! Numbers that name lanes, connections, classes, requests and tickets, and small shared values.

/// A lane, as the buffer numbers it; stable for the life of a data_dir.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LaneId(pub u32);

/// A connection, numbered by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ConnectionId(pub u32);

/// A workload class, numbered by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClassId(pub u32);

/// One request to a sink: a batch on its way. Never reused within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RequestId(pub u64);

/// Names one thing the driver makes durable; it comes back in [`crate::Input::Durable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ticket(pub u64);

/// Exponential backoff with full jitter: a random time up to `initial_ms * 2^n`, at most `max_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Upper bound of the first wait, in milliseconds. Default 500.
    pub initial_ms: u64,
    /// The cap, in milliseconds. Default 300,000 (5 minutes).
    pub max_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial_ms: 500,
            max_ms: 300_000,
        }
    }
}

impl Backoff {
    /// The upper bound of wait number `step` (0 is the first).
    #[must_use]
    pub fn bound_ms(&self, step: u32) -> u64 {
        // A shift past 63 would wrap; 2^40 half-milliseconds is far beyond any cap.
        let factor = 1_u64 << step.min(40);
        self.initial_ms
            .max(1)
            .saturating_mul(factor)
            .min(self.max_ms.max(1))
    }

    /// Whether wait number `step` has reached the cap.
    #[must_use]
    pub fn at_cap(&self, step: u32) -> bool {
        self.bound_ms(step) >= self.max_ms.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_cap_and_never_wraps() {
        let backoff = Backoff {
            initial_ms: 500,
            max_ms: 3_000,
        };
        assert_eq!(
            (0..5).map(|n| backoff.bound_ms(n)).collect::<Vec<_>>(),
            [500, 1_000, 2_000, 3_000, 3_000]
        );
        assert!(!backoff.at_cap(2) && backoff.at_cap(3));
        assert_eq!(backoff.bound_ms(u32::MAX), 3_000);
        let silly = Backoff {
            initial_ms: u64::MAX,
            max_ms: u64::MAX,
        };
        assert_eq!(silly.bound_ms(63), u64::MAX);
    }
}
