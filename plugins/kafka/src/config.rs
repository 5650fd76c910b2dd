//! What an operator configures: the brokers, what is produced where, and what is consumed.

use consign_plugin::prelude::*;
use std::collections::BTreeMap;

/// A connection to one Kafka cluster.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionConfig {
    /// Brokers to ask for the rest of the cluster, `host:9092`. Minimum: one.
    #[schemars(length(min = 1))]
    pub servers: Vec<String>,
    /// User name and password, shown over SASL. Default: no login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<BasicAuth>,
    /// How `auth` is shown. Default: `plain`, which sends the password as it is: use it over TLS only.
    #[serde(default)]
    pub sasl_mechanism: SaslMechanism,
    /// TLS. Used when set. The certificate is checked against the host in `servers`; `server_name` is not
    /// supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// `connect` bounds the set-up of a connection, `request` one request and its answer.
    #[serde(default)]
    pub timeouts: Timeouts,
}

/// How a user name and password are shown to a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaslMechanism {
    /// `PLAIN`.
    #[default]
    Plain,
    /// `SCRAM-SHA-256`.
    #[serde(rename = "scram_sha_256")]
    ScramSha256,
    /// `SCRAM-SHA-512`.
    #[serde(rename = "scram_sha_512")]
    ScramSha512,
}

/// Produces each message into a topic.
///
/// A write is delivered once all in-sync replicas have it (`acks=all`); how many that must be is the
/// topic's `min.insync.replicas`. The producer is idempotent, so what the client library sends again
/// within a write's time is stored once. Kafka recognises no repeat beyond that: a write that the host
/// sends again after an interruption may be a second record, under the same write key.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProduceConfig {
    /// The topic. It must exist: topics are not created.
    pub topic: Template,
    /// The record's key; records of one key keep their order in one partition. Empty text is no key.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Template>,
    /// The partition, a number from 0. Default: the partitioner's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Template>,
    /// How a partition is chosen from the key. Default: `murmur2`, as Kafka's own clients do.
    #[serde(default)]
    pub partitioner: Partitioner,
    /// The record's time. Default: `message`.
    #[serde(default)]
    pub timestamp: RecordTime,
    /// How records are compressed on their way and at rest. Default: `none`.
    #[serde(default)]
    pub compression: Compression,
    /// Headers to set, name to text. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Template>,
    /// Names of the message's own headers to pass on, case ignored; `*` for all. The write key is never
    /// passed on. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forward_headers: Vec<String>,
    /// Write an empty body as null, which deletes the key in a compacted topic (a tombstone).
    /// Default: `false`.
    #[serde(default)]
    pub empty_as_null: bool,
}

/// How a partition is chosen. Records without a key go to any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Partitioner {
    /// Murmur2 of the key, as the Java client does.
    #[default]
    Murmur2,
    /// CRC32 of the key, as clients built on librdkafka do.
    Crc32,
    /// FNV-1a of the key, as some Go clients do.
    Fnv1a,
    /// Any, key or not.
    Random,
}

/// What time a record carries. A topic with `message.timestamp.type=LogAppendTime` replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordTime {
    /// The message's own, the same on each copy.
    #[default]
    Message,
    /// When it is sent.
    Now,
}

/// How records are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
}

/// Consumes topics as a member of a consumer group. A record's offset is committed once it, and all
/// before it in its partition, are durable in the host.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsumeConfig {
    /// The topics. They must exist. Minimum: one.
    #[schemars(length(min = 1))]
    pub topics: Vec<String>,
    /// The consumer group. Hosts that name the same group share the partitions.
    pub group: String,
    /// Where a partition begins for which the group has no committed offset. Default: `earliest`.
    #[serde(default)]
    pub start: Start,
    /// Also hand over records of transactions that are open or were aborted. Default: `false`.
    #[serde(default)]
    pub read_uncommitted: bool,
    /// How long the group waits for a sign of life before it gives a host's partitions to others.
    /// Default: `45s`, minimum: `1s`; the broker has limits of its own.
    #[serde(default = "session_timeout")]
    pub session_timeout: HumanDuration,
    /// How often offsets are committed; also at each rebalance and stop. Default: `1s`, minimum: `100ms`.
    #[serde(default = "commit_interval")]
    pub commit_interval: HumanDuration,
    /// Names of authenticating headers to pass on all the same: `Authorization`,
    /// `Proxy-Authorization`, `Cookie`, `X-Api-Key`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include_headers: Vec<String>,
}

/// Where a partition begins for which there is no committed offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// With the oldest record.
    #[default]
    Earliest,
    /// With the first record after the first start.
    Latest,
}

fn session_timeout() -> HumanDuration {
    HumanDuration::from_secs(45)
}

fn commit_interval() -> HumanDuration {
    HumanDuration::from_secs(1)
}

impl ConnectionConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.servers.is_empty() {
            faults.push("`servers`: expected at least one address".to_owned());
        }
        for server in &self.servers {
            if server.contains("://") || server.contains('@') || !is_address(server) {
                faults.push(format!("`servers`: expected `host:port`, found `{server}`"));
            }
        }
        if self.auth.is_none() && self.sasl_mechanism != SaslMechanism::Plain {
            faults.push("`sasl_mechanism`: only with `auth`".to_owned());
        }
        if let Some(tls) = &self.tls {
            if tls.server_name.is_some() {
                faults.push(
                    "`tls.server_name`: not supported; the certificate is checked against the host in `servers`"
                        .to_owned(),
                );
            }
            if tls.cert_file.is_some() != tls.key_file.is_some() {
                faults.push("`tls`: `cert_file` and `key_file` belong together".to_owned());
            }
        }
        faults
    }
}

impl ProduceConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let literal = |template: &Template| {
            let text = template.as_written().filter(|_| !template.is_dynamic());
            text.map(str::to_owned)
        };
        if let Some(topic) = literal(&self.topic)
            && !is_topic(&topic)
        {
            faults.push(format!("`topic`: `{topic}` is not a topic's name"));
        }
        if let Some(text) = self.partition.as_ref().and_then(literal)
            && text.parse::<u16>().is_err()
        {
            faults.push(format!(
                "`partition`: expected a number from 0, found `{text}`"
            ));
        }
        for name in self.headers.keys() {
            if !is_header_name(name) {
                faults.push(format!("`headers`: `{name}` is not a header name"));
            }
        }
        faults
    }
}

impl ConsumeConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.topics.is_empty() {
            faults.push("`topics`: expected at least one".to_owned());
        }
        for topic in &self.topics {
            if !is_topic(topic) {
                faults.push(format!("`topics`: `{topic}` is not a topic's name"));
            }
        }
        if self.group.is_empty() || self.group.contains(char::is_control) {
            faults.push("`group`: expected a name".to_owned());
        }
        if self.session_timeout.get().as_millis() < 1000 {
            faults.push("`session_timeout`: expected at least 1s".to_owned());
        }
        if self.commit_interval.get().as_millis() < 100 {
            faults.push("`commit_interval`: expected at least 100ms".to_owned());
        }
        faults
    }
}

/// Whether the text is a topic's name, by the broker's own rule.
#[must_use]
pub fn is_topic(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=249).contains(&text.len()) && text.bytes().all(legal) && text != "." && text != ".."
}

/// Whether the text can name a header: the client library ends names at a zero byte.
#[must_use]
pub fn is_header_name(text: &str) -> bool {
    !text.is_empty() && !text.contains('\0')
}

fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0))
        && !text.contains(|c: char| c.is_whitespace() || c == ',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_and_addresses_are_told_from_other_text() {
        for topic in ["a", "a.b-c_D9", &"x".repeat(249)] {
            assert!(is_topic(topic), "{topic}");
        }
        for topic in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "ä",
            "a\0",
            "^a.*",
            &"x".repeat(250),
        ] {
            assert!(!is_topic(topic), "{topic:?}");
        }
        for address in ["h:1", "127.0.0.1:9092", "[::1]:9092"] {
            assert!(is_address(address), "{address}");
        }
        for address in ["h", ":9092", "h:0", "h:x", "h:99999", "a:1,b:2", "a b:1"] {
            assert!(!is_address(address), "{address}");
        }
    }
}
