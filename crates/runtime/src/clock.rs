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
    unix_ms(SystemTime::now())
}

/// [`wall_unix_ms`] as the ledger counts it.
#[must_use]
pub fn wall_unix_ms_i64() -> i64 {
    as_i64(wall_unix_ms())
}

fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

fn as_i64(unix_ms: u64) -> i64 {
    i64::try_from(unix_ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn monotonic_time_passes_and_never_goes_back_on_any_thread() {
        let first = monotonic_ms();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(move || {
                    let mut last = first;
                    for _ in 0..10_000 {
                        let now = monotonic_ms();
                        assert!(now >= last, "{now} after {last}");
                        last = now;
                    }
                    last
                })
            })
            .collect();
        let latest = threads.into_iter().map(|thread| thread.join().unwrap());
        let latest = latest.max().unwrap();
        std::thread::sleep(Duration::from_millis(15));
        let now = monotonic_ms();
        assert!(now >= latest, "all threads share one beginning");
        assert!(now >= first + 15, "{first} and 15 ms later {now}");
    }

    #[test]
    fn wall_time_is_milliseconds_since_1970() {
        assert_eq!(
            unix_ms(UNIX_EPOCH + Duration::from_micros(86_400_001_999)),
            86_400_001
        );
        let (before, now, after) = (
            unix_ms(SystemTime::now()),
            wall_unix_ms(),
            wall_unix_ms_i64(),
        );
        assert!(
            before <= now && as_i64(now) <= after,
            "{before} {now} {after}"
        );
        assert!(
            now > 1_700_000_000_000,
            "seconds or nanoseconds would not fit: {now}"
        );
    }

    #[test]
    fn a_clock_outside_of_what_can_be_counted_reads_as_the_nearest() {
        assert_eq!(
            unix_ms(UNIX_EPOCH - Duration::from_secs(1)),
            0,
            "before 1970"
        );
        assert_eq!(as_i64(u64::MAX), i64::MAX);
        assert_eq!(as_i64(7), 7);
    }
}
