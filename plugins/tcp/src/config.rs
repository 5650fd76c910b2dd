//! What an operator configures: the receiver, and how it tells one message from the next.

use consign_plugin::prelude::*;

/// A TCP stream to one receiver, plain or over TLS. All sends of a connection share the stream, one
/// batch after the other.
///
/// What the receiver sends back is read and thrown away. A receiver that closes its side counts as
/// gone, and the next batch goes over a new stream.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionConfig {
    /// The receiver: `host:port`, `[::1]:9000`. A host name is looked up at each dial, and its
    /// addresses are tried in turn.
    pub address: String,
    /// How the receiver tells one message from the next. Default: `line`.
    #[serde(default)]
    pub framing: Framing,
    /// Bytes of the length before each message: 1, 2, 4 or 8. Only with `length_prefixed`.
    /// Default: 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_bytes: Option<u8>,
    /// Which byte of the length comes first. Only with `length_prefixed`. Default: `big_endian`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_order: Option<LengthOrder>,
    /// TLS. The certificate is checked against the host in `address`, or `server_name`. Default: none,
    /// a plain stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// `connect` bounds a dial with its TLS handshake, `request` the handing over of one batch; the
    /// send's `timeout` bounds that, too.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// How long the stream may be idle before the receiver's machine is asked for a sign of life; three
    /// questions without an answer, 10 s apart, end the stream. Default: `30s`, minimum: `1s`.
    #[serde(default = "keepalive")]
    pub keepalive: HumanDuration,
    /// How long the receiver's machine may leave sent bytes without acknowledgement, or without taking
    /// any, before the stream counts as broken. What is lost when a receiver vanishes is at most what
    /// was sent in this time. Default: `20s`, minimum: `1s`.
    #[serde(default = "unacknowledged")]
    pub unacknowledged: HumanDuration,
    /// Bytes that may be handed over and not yet acknowledged by the receiver's machine: what is lost
    /// when it vanishes is at most that. The system doubles the number for its own needs. Default: the
    /// system's (a few MiB), minimum: `4KiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<ByteSize>,
}

/// How a receiver tells one message from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Framing {
    /// By the line feed that ends each message. A message with a line feed in it is refused.
    #[default]
    Line,
    /// By the length that stands before each message.
    LengthPrefixed,
    /// Not at all: the stream is the messages, one after the other.
    None,
}

/// Which byte of a length comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LengthOrder {
    /// The highest (network byte order).
    #[default]
    BigEndian,
    /// The lowest.
    LittleEndian,
}

/// Sends each message as one frame, body only, byte for byte.
///
/// Nobody confirms it: a write whose last byte the system's network stack took is *sent, not
/// confirmed*, counted apart and never sent again. While the receiver cannot be reached, writes wait in
/// their lane. What the network stack held when the receiver died may be lost; `unacknowledged` and
/// `send_buffer` bound it. A stream that breaks in the midst of a message: with `length_prefixed` the
/// receiver cannot take the part for the whole, and the message is sent again; with `line` and `none`
/// it may, so the message counts as possibly landed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SendConfig {}

fn keepalive() -> HumanDuration {
    HumanDuration::from_secs(30)
}

fn unacknowledged() -> HumanDuration {
    HumanDuration::from_secs(20)
}

/// The smallest send buffer that the system does not round up.
const MIN_SEND_BUFFER: u64 = 4 << 10;

impl ConnectionConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.host().is_none() {
            faults.push(
                "`address`: expected a host and a port, `collector.internal:6514` or `[::1]:6514`"
                    .to_owned(),
            );
        }
        if self.framing != Framing::LengthPrefixed {
            for (field, set) in [
                ("length_bytes", self.length_bytes.is_some()),
                ("length_order", self.length_order.is_some()),
            ] {
                if set {
                    faults.push(format!("`{field}`: only with `framing: length_prefixed`"));
                }
            }
        }
        if !matches!(self.length_bytes, None | Some(1 | 2 | 4 | 8)) {
            faults.push("`length_bytes`: expected 1, 2, 4 or 8".to_owned());
        }
        for (field, time) in [
            ("keepalive", self.keepalive),
            ("unacknowledged", self.unacknowledged),
        ] {
            if time.get().as_millis() < 1000 {
                faults.push(format!("`{field}`: expected at least 1s"));
            }
        }
        if self
            .send_buffer
            .is_some_and(|size| size.bytes() < MIN_SEND_BUFFER)
        {
            faults.push("`send_buffer`: expected at least 4KiB".to_owned());
        }
        if let Some(tls) = &self.tls {
            faults.extend(tls.client_faults());
        }
        faults
    }

    /// The host of `address`, without the brackets of an IPv6 address. `None`: it is no address.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        let (host, port) = self.address.rsplit_once(':')?;
        let port: u16 = port.parse().ok()?;
        let inner = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']')?,
            // Without brackets it cannot be told where the host ends.
            None if host.contains(':') => return None,
            None => host,
        };
        (port != 0 && !inner.is_empty() && !inner.contains(char::is_whitespace)).then_some(inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_plugin::tls::rustls::pki_types::ServerName;

    fn config(change: serde_json::Value) -> ConnectionConfig {
        let mut config = serde_json::json!({ "address": "localhost:9000" });
        config
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn faults_name_the_field() {
        use serde_json::json;
        for (change, field) in [
            (json!({ "address": "localhost" }), "`address`"),
            (json!({ "address": "::1:9000" }), "`address`"),
            (json!({ "address": "[::1:9000" }), "`address`"),
            (json!({ "address": "a:0" }), "`address`"),
            (json!({ "address": ":9000" }), "`address`"),
            (json!({ "address": "tcp://a:9000" }), "`address`"),
            (json!({ "length_bytes": 4 }), "`length_bytes`"),
            (
                json!({ "framing": "none", "length_order": "big_endian" }),
                "`length_order`",
            ),
            (
                json!({ "framing": "length_prefixed", "length_bytes": 3 }),
                "`length_bytes`",
            ),
            (json!({ "keepalive": "10ms" }), "`keepalive`"),
            (json!({ "unacknowledged": "0s" }), "`unacknowledged`"),
            (json!({ "send_buffer": "1KiB" }), "`send_buffer`"),
            (json!({ "tls": { "cert_file": "a" } }), "`tls`"),
            (
                json!({ "tls": { "server_name": "a b" } }),
                "`tls.server_name`",
            ),
        ] {
            let faults = config(change.clone()).faults();
            assert!(
                faults.len() == 1 && faults[0].starts_with(field),
                "{change}: {faults:?}"
            );
        }
        assert!(config(json!({})).faults().is_empty());
    }

    #[test]
    fn the_host_is_what_the_certificate_is_checked_against() {
        let host = |address: &str| {
            let config = config(serde_json::json!({ "address": address }));
            config.host().map(str::to_owned)
        };
        assert_eq!(host("a.b:1").as_deref(), Some("a.b"));
        assert_eq!(host("127.0.0.1:1").as_deref(), Some("127.0.0.1"));
        assert_eq!(host("[::1]:1").as_deref(), Some("::1"));
        assert!(ServerName::try_from("::1").is_ok());
    }
}
