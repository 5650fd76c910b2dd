//! Durations and sizes as people write them: `30s`, `500ms`, `2GiB`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration in milliseconds, written as a number and a unit: ms, s, m, h, d. Several parts add
/// up (`1h30m`); `0` needs no unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HumanDuration {
    ms: u64,
}

/// The longest duration accepted, a thousand years: far enough for "never", and every sum of a
/// few of them still fits in 64 bits.
pub const MAX_DURATION_MS: u64 = 1_000 * 366 * 86_400_000;

impl HumanDuration {
    /// Of this many milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self { ms }
    }

    /// In milliseconds.
    #[must_use]
    pub const fn as_ms(self) -> u64 {
        self.ms
    }
}

impl From<HumanDuration> for Duration {
    fn from(duration: HumanDuration) -> Self {
        Self::from_millis(duration.ms)
    }
}

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected a duration such as 30s, 500ms or 1h30m, got `{text}`");
        if text == "0" {
            return Ok(Self { ms: 0 });
        }
        let mut rest = text;
        let mut total: u64 = 0;
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let (number, after) = leading_digits(rest).ok_or_else(wrong)?;
            let letters = after
                .find(|c: char| !c.is_ascii_alphabetic())
                .unwrap_or(after.len());
            let (unit, tail) = after.split_at_checked(letters).ok_or_else(wrong)?;
            let factor = match unit {
                "ms" => 1,
                "s" => 1_000,
                "m" | "min" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return Err(wrong()),
            };
            total = number
                .checked_mul(factor)
                .and_then(|part| total.checked_add(part))
                .filter(|sum| *sum <= MAX_DURATION_MS)
                .ok_or_else(|| format!("the duration `{text}` is longer than a thousand years"))?;
            rest = tail;
        }
        Ok(Self { ms: total })
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ms == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.ms;
        for (size, unit) in [
            (86_400_000, "d"),
            (3_600_000, "h"),
            (60_000, "m"),
            (1_000, "s"),
            (1, "ms"),
        ] {
            let count = rest / size;
            rest %= size;
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        Ok(())
    }
}

/// A size in bytes, written as a number and a unit: B, KiB, MiB, GiB, TiB, or kB, MB, GB, TB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize {
    bytes: u64,
}

impl ByteSize {
    /// Of this many bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self { bytes }
    }

    /// In bytes.
    #[must_use]
    pub const fn as_bytes(self) -> u64 {
        self.bytes
    }
}

const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected a size such as 64KiB, 16MiB or 2GiB, got `{text}`");
        if text == "0" {
            return Ok(Self { bytes: 0 });
        }
        let (number, unit) = leading_digits(text).ok_or_else(wrong)?;
        let unit = unit.trim_start();
        let (_, factor) = SIZE_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(wrong)?;
        number
            .checked_mul(*factor)
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .map(|bytes| Self { bytes })
            .ok_or_else(|| format!("the size `{text}` does not fit in 63 bits"))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in SIZE_UNITS {
            if self.bytes >= factor && self.bytes.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.bytes / factor);
            }
        }
        f.write_str("0B")
    }
}

fn leading_digits(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at_checked(end)?;
    Some((digits.parse().ok()?, rest))
}

/// The schema format of a [`HumanDuration`].
pub const DURATION_FORMAT: &str = "consign-duration";
/// The schema format of a [`ByteSize`].
pub const SIZE_FORMAT: &str = "consign-size";

macro_rules! as_string {
    ($type:ty, $name:literal, $format:expr, $pattern:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": $format, "pattern": $pattern })
            }

            fn inline_schema() -> bool {
                true
            }
        }
    };
}

as_string!(
    HumanDuration,
    "HumanDuration",
    DURATION_FORMAT,
    "^(0|([0-9]+(ms|s|m|min|h|d))+)$"
);
as_string!(
    ByteSize,
    "ByteSize",
    SIZE_FORMAT,
    "^(0|[0-9]+ ?(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB))$"
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_and_sizes_read_as_written() {
        let ms = |text: &str| text.parse::<HumanDuration>().map(HumanDuration::as_ms);
        assert_eq!(ms("30s"), Ok(30_000));
        assert_eq!(ms("1h30m"), Ok(5_400_000));
        assert_eq!(ms("0"), Ok(0));
        for wrong in [
            "",
            "30",
            "s",
            "30 s",
            "-1s",
            "1.5s",
            "1w",
            "99999999999999999999s",
            "400000000000d",
            "é",
        ] {
            assert!(ms(wrong).is_err(), "{wrong}");
        }
        let bytes = |text: &str| text.parse::<ByteSize>().map(ByteSize::as_bytes);
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("1 MB"), Ok(1_000_000));
        for wrong in ["", "2", "2gib", "2G", "-1B", "9999999999TiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(ms in 0..=MAX_DURATION_MS, bytes in 0..=i64::MAX as u64) {
            let duration = HumanDuration::from_ms(ms);
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
            let size = ByteSize::from_bytes(bytes);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }
    }
}
