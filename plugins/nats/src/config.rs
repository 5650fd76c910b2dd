//! What an operator configures: the servers, what is published where, and what is consumed.

use consign_plugin::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A connection to one NATS server or cluster. It uses one server at a time; when that one goes away
/// the next dial tries them all.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionConfig {
    /// Server addresses, `nats://host:4222` or `tls://host:4222`. Minimum: one.
    #[schemars(length(min = 1))]
    pub servers: Vec<String>,
    /// User name and password. At most one of `auth`, `token`, `nkey_seed` and `credentials_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<BasicAuth>,
    /// Authentication token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// Seed of an nkey (`SU…`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nkey_seed: Option<Secret>,
    /// A `.creds` file, as `nsc` writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "path"))]
    pub credentials_file: Option<PathBuf>,
    /// TLS. Used when set, and with `tls://` addresses. The certificate is checked against the host
    /// in `servers`; `server_name` is not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// `connect` bounds a dial, `request` a JetStream management request and an acknowledgement.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// How often the server is pinged; after two pings without an answer the connection is given up.
    /// Default: `10s`, minimum: `1s`.
    #[serde(default = "ping_interval")]
    pub ping_interval: HumanDuration,
    /// First part of the subjects on which answers arrive; the user must be allowed to subscribe to
    /// `<prefix>.>`. Default: `_INBOX`.
    #[serde(default = "inbox_prefix")]
    pub inbox_prefix: String,
    /// JetStream domain, where the streams live behind a leaf node. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jetstream_domain: Option<String>,
}

/// Publishes each message to a subject.
///
/// With `jetstream: true` a write is delivered once its stream has acknowledged it; the write key is
/// its `Nats-Msg-Id`, so the stream drops a repeat within its duplicates window. A single server
/// acknowledges before it flushes to disk (its `sync_interval`): against a power cut a stream needs
/// replicas or `sync: always`. Without `jetstream` the server passes the message to whoever listens at
/// that moment, and nobody confirms it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishConfig {
    /// The subject, usually with a template in it (`"orders.{{ .body.region }}"`). A rendered
    /// subject with spaces, wildcards or an empty token is refused.
    pub subject: Template,
    /// Publish into a JetStream stream. Default: `false`.
    #[serde(default)]
    pub jetstream: bool,
    /// The stream that must receive it; another one refuses the message. Needed to inspect the
    /// duplicates window when `subject` is a template. Only with `jetstream`. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// Headers to set, name to text. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Template>,
    /// Names of the message's own headers to pass on, case ignored; `*` for all. `Nats-…` headers
    /// and the write key are never passed on. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forward_headers: Vec<String>,
}

/// Consumes a JetStream stream through a durable pull consumer. A message is acknowledged once it is
/// durable in the host, and its lease is extended until then.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsumeConfig {
    /// The stream. It must exist.
    pub stream: String,
    /// The durable consumer's name. Hosts that name the same consumer share its messages.
    pub consumer: String,
    /// Create the consumer when it is missing, with the settings below; one that exists is used as it
    /// is. Default: `true`.
    #[serde(default = "yes")]
    pub create: bool,
    /// Only messages with this subject; wildcards `*` and `>` allowed. Default: all of the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter_subject: Option<String>,
    /// Where a new consumer starts. Default: `all`.
    #[serde(default)]
    pub deliver: Deliver,
    /// How long the server waits for an acknowledgement, or for a sign of life, before it hands a
    /// message over again. Default: `30s`, minimum: `1s`.
    #[serde(default = "ack_wait")]
    pub ack_wait: HumanDuration,
    /// Messages handed over and not acknowledged, over all hosts; at this number the server pauses.
    /// Default: 1000, minimum: 1.
    #[serde(default = "max_ack_pending")]
    #[schemars(range(min = 1))]
    pub max_ack_pending: u32,
    /// Messages asked for at a time, and never more than the host has room for.
    /// Default: 256, minimum: 1.
    #[serde(default = "pull_messages")]
    #[schemars(range(min = 1))]
    pub pull_messages: u32,
    /// Names of authenticating headers to pass on all the same: `Authorization`,
    /// `Proxy-Authorization`, `Cookie`, `X-Api-Key`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include_headers: Vec<String>,
}

/// Where a new consumer starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Deliver {
    /// With the oldest message of the stream.
    #[default]
    All,
    /// With the last message of the stream.
    Last,
    /// With the last message of each subject.
    LastPerSubject,
    /// With the first message after its creation.
    New,
}

fn yes() -> bool {
    true
}

fn ping_interval() -> HumanDuration {
    HumanDuration::from_secs(10)
}

fn inbox_prefix() -> String {
    "_INBOX".to_owned()
}

fn ack_wait() -> HumanDuration {
    HumanDuration::from_secs(30)
}

fn max_ack_pending() -> u32 {
    1000
}

fn pull_messages() -> u32 {
    256
}

impl ConnectionConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.servers.is_empty() {
            faults.push("`servers`: expected at least one address".to_owned());
        }
        if self.servers.iter().any(|server| server.contains('@')) {
            faults.push(
                "`servers`: an address holds a user or token; put it under `auth` or `token`, where it is kept secret"
                    .to_owned(),
            );
        }
        let ways = [
            self.auth.is_some(),
            self.token.is_some(),
            self.nkey_seed.is_some(),
            self.credentials_file.is_some(),
        ];
        if ways.into_iter().filter(|set| *set).count() > 1 {
            faults.push(
                "`auth`, `token`, `nkey_seed`, `credentials_file`: expected at most one of them"
                    .to_owned(),
            );
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
        if self.ping_interval.get().as_millis() < 1000 {
            faults.push("`ping_interval`: expected at least 1s".to_owned());
        }
        if !is_subject(&self.inbox_prefix, false) {
            faults.push("`inbox_prefix`: expected a subject without wildcards".to_owned());
        }
        faults
    }
}

impl PublishConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if let Some(subject) = self.subject.as_written()
            && !self.subject.is_dynamic()
            && !is_subject(subject, false)
        {
            faults.push(format!(
                "`subject`: `{subject}` is not a subject to publish to"
            ));
        }
        if self.stream.is_some() && !self.jetstream {
            faults.push("`stream`: only with `jetstream: true`".to_owned());
        }
        for (name, value) in &self.headers {
            if !is_header_name(name) {
                faults.push(format!("`headers`: `{name}` is not a header name"));
            }
            if !value.is_dynamic()
                && value
                    .as_written()
                    .is_some_and(|text| text.contains(['\r', '\n']))
            {
                faults.push(format!(
                    "`headers.{name}`: a header cannot hold a line break"
                ));
            }
        }
        faults
    }

    /// Whether the function replaces the id under which JetStream recognises a repeat.
    #[must_use]
    pub fn overrides_message_id(&self) -> bool {
        self.headers
            .keys()
            .any(|name| name.eq_ignore_ascii_case("Nats-Msg-Id"))
    }
}

impl ConsumeConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (field, name) in [("stream", &self.stream), ("consumer", &self.consumer)] {
            if name.is_empty() || name.contains(|c: char| c.is_whitespace() || ".*>/\\".contains(c))
            {
                faults.push(format!(
                    "`{field}`: expected a name without dots, spaces, slashes and wildcards"
                ));
            }
        }
        if self
            .filter_subject
            .as_ref()
            .is_some_and(|subject| !is_subject(subject, true))
        {
            faults.push("`filter_subject`: expected a subject".to_owned());
        }
        if self.ack_wait.get().as_millis() < 1000 {
            faults.push("`ack_wait`: expected at least 1s".to_owned());
        }
        if self.max_ack_pending == 0 || self.pull_messages == 0 {
            faults.push("`max_ack_pending`, `pull_messages`: expected at least 1".to_owned());
        }
        faults
    }
}

/// Whether the text is a subject: tokens between dots, none empty, nothing that breaks the protocol.
#[must_use]
pub fn is_subject(text: &str, wildcards: bool) -> bool {
    let plain = |token: &str| {
        !token.is_empty() && !token.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    let tokens = text.split('.').count();
    text.split('.')
        .enumerate()
        .all(|(index, token)| match token {
            "*" => wildcards,
            ">" => wildcards && index + 1 == tokens,
            token => plain(token),
        })
}

fn is_header_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_told_from_other_text() {
        for subject in ["a", "a.b-c_d", "ä.日本", "$JS.x", "a.b*c", "a.>b"] {
            assert!(is_subject(subject, false), "{subject}");
        }
        for subject in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a b",
            "a\tb",
            "a\r\nPUB x",
            "a.\u{0}",
            "*",
            "a.*",
            ">",
        ] {
            assert!(!is_subject(subject, false), "{subject:?}");
        }
        for subject in ["*", ">", "a.*", "a.*.b", "a.>"] {
            assert!(is_subject(subject, true), "{subject}");
        }
        assert!(!is_subject("a.>.b", true));
    }
}
