//! The two clocks of a running host: monotonic for every decision, wall for display and windows.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since this process first asked. Never goes back.
#[must_use]
pub fn monotonic_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Wall-clock time. A clock before 1970 reads as 0.
#[must_use]
pub fn wall_unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// [`wall_unix_ms`] as the ledger counts it.
#[must_use]
pub fn wall_unix_ms_i64() -> i64 {
    i64::try_from(wall_unix_ms()).unwrap_or(i64::MAX)
}
