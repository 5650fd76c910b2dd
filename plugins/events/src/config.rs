//! What an operator configures: the host whose events are read, and which of them.

use consign_plugin::prelude::*;

/// The API of a host: this one's own, or another's.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionConfig {
    /// Its `console.listen` as an address: `http://127.0.0.1:8640`.
    pub endpoint: String,
    /// Its `console.token`, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// Limits for connecting and for one answer.
    #[serde(default)]
    pub timeouts: Timeouts,
}

/// Which events become messages. The body is the event as `consign events --json` shows it, and the
/// routing key its level and code: `error.parked`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadConfig {
    /// Only these codes; `consign explain` lists all. Default: every code.
    #[serde(default)]
    pub codes: Vec<String>,
    /// This level or worse. Default: `warn`.
    #[serde(default)]
    pub min_level: Level,
    /// Events of these adapters are passed over. Those of adapters that read events always are, so that a
    /// notification that fails is not one more notification. Default: no others.
    #[serde(default)]
    pub skip_adapters: Vec<String>,
    /// How far back the very first start reads; later ones go on after the last event that was accepted.
    /// Default: `1h`.
    #[serde(default = "look_back")]
    pub look_back: HumanDuration,
    /// How often the host is asked. Default: `1s`, minimum: `10ms`.
    #[serde(default = "poll_interval")]
    pub poll_interval: HumanDuration,
}

/// How bad an event is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Details.
    Debug,
    /// What happens in the normal course.
    Info,
    /// What a person should know.
    #[default]
    Warn,
    /// What a person must act on.
    Error,
}

impl Level {
    /// As the API names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

fn look_back() -> HumanDuration {
    HumanDuration::from_secs(3_600)
}

fn poll_interval() -> HumanDuration {
    HumanDuration::from_secs(1)
}

impl ConnectionConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let rest = self.endpoint.strip_prefix("http://");
        let rest = rest.or_else(|| self.endpoint.strip_prefix("https://"));
        match rest.map(|rest| rest.trim_end_matches('/')) {
            Some(authority) if !authority.is_empty() && !authority.contains('/') => Vec::new(),
            _ => vec![
                "`endpoint`: expected the address of a host's console, like http://127.0.0.1:8640"
                    .to_owned(),
            ],
        }
    }
}

impl ReadConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.poll_interval.get().as_millis() < 10 {
            faults.push("`poll_interval`: expected at least 10ms".to_owned());
        }
        faults
    }
}
