//! Config groups that mean the same in every connector. Flatten none of them: each is one named
//! field (`tls:`, `auth:`, `timeouts:`), so that the same thing has the same name everywhere.

use crate::Secret;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// TLS of a connection. As a server, `cert_file` and `key_file` are the server's own; as a client
/// they are the client certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// PEM file of the authorities to trust; default: the system's.
    #[schemars(extend("format" = "path"))]
    pub ca_file: Option<PathBuf>,
    /// PEM file of the certificate chain.
    #[schemars(extend("format" = "path"))]
    pub cert_file: Option<PathBuf>,
    /// PEM file of the certificate's private key.
    #[schemars(extend("format" = "path"))]
    pub key_file: Option<PathBuf>,
    /// Name to expect in the server's certificate, when it is not the host connected to.
    pub server_name: Option<String>,
}

/// User name and password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BasicAuth {
    /// User name.
    pub username: String,
    /// Password.
    pub password: Secret,
}

/// Timeouts of a connection. The host's own deadline for each write comes on top.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// For connecting, including TLS and login. Default `10s`.
    pub connect: HumanDuration,
    /// For one request and its answer. Default `30s`.
    pub request: HumanDuration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: HumanDuration::from_secs(10),
            request: HumanDuration::from_secs(30),
        }
    }
}

/// A duration as people write it: `250ms`, `30s`, `5m`, `24h`, `7d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HumanDuration(Duration);

const DURATION_UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

impl HumanDuration {
    /// This many milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// This many seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// As the standard library has it.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl From<HumanDuration> for Duration {
    fn from(value: HumanDuration) -> Self {
        value.0
    }
}

impl From<Duration> for HumanDuration {
    fn from(value: Duration) -> Self {
        Self(value)
    }
}

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        number_and_unit(text)
            .and_then(|(number, unit)| {
                let (_, size) = DURATION_UNITS.iter().find(|(name, _)| *name == unit)?;
                Some(Self::from_millis(number.checked_mul(*size)?))
            })
            .ok_or_else(|| {
                format!("expected a duration like 250ms, 30s, 5m, 24h or 7d, found {text:?}")
            })
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let (unit, size) = largest_unit(ms, &DURATION_UNITS);
        write!(f, "{}{unit}", ms / size)
    }
}

/// A size as people write it: `512B`, `64KiB`, `1MiB`, `2GiB`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(u64);

const SIZE_UNITS: [(&str, u64); 5] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl ByteSize {
    /// This many bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// This many MiB.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        number_and_unit(text)
            .and_then(|(number, unit)| {
                let (_, size) = SIZE_UNITS.iter().find(|(name, _)| *name == unit)?;
                Some(Self(number.checked_mul(*size)?))
            })
            .ok_or_else(|| format!("expected a size like 512B, 64KiB or 1MiB, found {text:?}"))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = largest_unit(self.0, &SIZE_UNITS);
        write!(f, "{}{unit}", self.0 / size)
    }
}

fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, unit.trim_start()))
}

/// The largest unit that divides `value`; the first one otherwise.
fn largest_unit(value: u64, units: &[(&'static str, u64)]) -> (&'static str, u64) {
    units
        .iter()
        .rev()
        .find(|(_, size)| value > 0 && value.is_multiple_of(*size))
        .or(units.first())
        .copied()
        .unwrap_or(("", 1))
}

macro_rules! text_form {
    ($type:ident, $pattern:literal, $example:literal) => {
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern, "examples": [$example] })
            }
        }
    };
}

text_form!(HumanDuration, "^[0-9]+ ?(ms|s|m|h|d)$", "30s");
text_form!(ByteSize, "^[0-9]+ ?(B|KiB|MiB|GiB|TiB)$", "1MiB");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_read_back_as_written() {
        for text in ["250ms", "30s", "5m", "24h", "7d", "0ms"] {
            let shown = text.parse::<HumanDuration>().unwrap().to_string();
            assert!(shown == text || (text == "24h" && shown == "1d"), "{shown}");
        }
        for text in ["0B", "512B", "64KiB", "1MiB", "2GiB"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused_with_examples() {
        for text in [
            "",
            "5",
            "s",
            "5 weeks",
            "-1s",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            let error = text.parse::<HumanDuration>().unwrap_err();
            assert!(error.contains("250ms"), "{error}");
        }
        assert!("1MB".parse::<ByteSize>().unwrap_err().contains("1MiB"));
    }
}
