//! Wall-clock times and durations as people read them.

/// `2026-11-30 14:53:54` in UTC.
pub(crate) fn utc(unix_ms: i64) -> String {
    let seconds = unix_ms.div_euclid(1_000);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        rest / 3_600,
        rest / 60 % 60,
        rest % 60
    )
}

/// The civil date of a day since 1970-01-01, by counting in eras of 400 years from March on.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The two greatest units: `3 min 20 s`.
pub(crate) fn duration(ms: u64) -> String {
    const UNITS: [(u64, &str); 5] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "min"),
        (1_000, "s"),
        (1, "ms"),
    ];
    let mut left = ms;
    let mut parts = Vec::new();
    for (size, unit) in UNITS {
        let count = left / size;
        left %= size;
        if count > 0 {
            parts.push(format!("{count} {unit}"));
        }
        if parts.len() == 2 || (unit == "s" && !parts.is_empty()) {
            break;
        }
    }
    if parts.is_empty() {
        "0 s".to_owned()
    } else {
        parts.join(" ")
    }
}

/// Bytes in the unit that leaves one to four digits.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count;
    let mut unit = 0;
    while value >= 10_000 && unit + 1 < UNITS.len() {
        value /= 1_024;
        unit += 1;
    }
    format!("{value} {}", UNITS.get(unit).unwrap_or(&"B"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(-1), "1969-12-31 23:59:59");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(utc(4_107_542_399_999), "2100-02-28 23:59:59");
        assert_eq!(utc(1_796_050_434_000), "2026-11-30 14:53:54");
    }

    #[test]
    fn durations_and_bytes_are_short() {
        assert_eq!(duration(0), "0 s");
        assert_eq!(duration(5), "5 ms");
        assert_eq!(duration(200_500), "3 min 20 s");
        assert_eq!(duration(3_600_000), "1 h");
        assert_eq!(duration(90_061_000), "1 d 1 h");
        assert_eq!(bytes(9_999), "9999 B");
        assert_eq!(bytes(1 << 30), "1024 MiB");
    }
}
