//! What an operator configures: the address to listen on, and per function the requests it takes.

use consign_plugin::prelude::*;
use hyper::{Method, StatusCode, header::HeaderName};

/// An address of this machine on which HTTP/1.1 requests arrive. Functions of several adapters share
/// it, each with paths of its own.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionConfig {
    /// Address and port, `127.0.0.1:8080` or `[::]:8443`; port 0 takes any that is free.
    pub listen: String,
    /// TLS: `cert_file` and `key_file` are this server's own. With `ca_file`, clients must show a
    /// certificate of one of its authorities. `server_name` is not used. Default: none, plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Connections at a time; more wait until one ends. Default: 1024, minimum: 1.
    #[serde(default = "max_connections")]
    #[schemars(range(min = 1))]
    pub max_connections: u32,
    /// Bytes of bodies in memory at a time, over all connections; beyond, requests are answered 503.
    /// Default: `256MiB`, minimum: the largest `max_body` of its functions.
    #[serde(default = "max_buffered")]
    pub max_buffered: ByteSize,
    /// How long a TLS handshake, and then the head of each request, may take; also how long an idle
    /// connection is kept. Default: `30s`, minimum: `1s`.
    #[serde(default = "header_timeout")]
    pub header_timeout: HumanDuration,
    /// How long the body of a request may take; then 408. Default: `60s`, minimum: `1s`.
    #[serde(default = "body_timeout")]
    pub body_timeout: HumanDuration,
    /// How long requests under way may take to finish when the host stops. Default: `10s`.
    #[serde(default = "shutdown_grace")]
    pub shutdown_grace: HumanDuration,
}

/// Takes requests on a path and answers each once the host has made it safe.
///
/// A 2xx means that the host has taken charge of the message: it is durable there, or was before
/// (`"result": "repeat"`), or no route wants it and it is discarded. 503
/// with `Retry-After`: no room, or the host stops. 409: the first request with this idempotency key
/// is still under way. 422: the key came with another body before. 400: the host refuses the message:
/// it is larger than the buffer takes, or a template of its route fails for it. 502: the host could not
/// deliver it and has dropped it. 504: no answer within `accept_timeout`; the message may still be
/// accepted. Each error has a JSON body with `error` and `reason`.
///
/// The body arrives byte for byte. Headers become the message's, save those that authenticate or
/// belong to the connection. `.source` has `method`, `path`, `query`, `remote` and `principal`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveConfig {
    /// The path, exactly (`/payments`), or all below one (`/hooks/*`). The longest that fits takes
    /// the request. It is compared as it was sent, without decoding.
    pub path: String,
    /// Methods. Default: `[POST]`.
    #[serde(default = "methods")]
    pub methods: Vec<String>,
    /// Largest body; a larger one is answered 413. Default: `10MiB`, minimum: `1B`.
    #[serde(default = "max_body")]
    pub max_body: ByteSize,
    /// Who may send. Default: everyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// Status that says that a message was accepted, 200 to 299. The default says what has happened:
    /// taken, not yet delivered. Default: 202.
    #[serde(default = "accepted_status")]
    #[schemars(range(min = 200, max = 299))]
    pub accepted_status: u16,
    /// The request header with the client's idempotency key: a request with a known key is not
    /// taken again. Some senders have one of their own (`webhook-id`). Default: `Idempotency-Key`.
    #[serde(default = "client_key_header")]
    pub client_key_header: String,
    /// Answer 400 to a request without an idempotency key. Default: `false`.
    #[serde(default)]
    pub require_client_key: bool,
    /// The request header that becomes the routing key. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_key_header: Option<String>,
    /// With a path that ends in `/*`: what the `*` stands for becomes the routing key, with `.` for
    /// `/`. Default: `false`.
    #[serde(default)]
    pub routing_key_from_path: bool,
    /// Names of authenticating headers to pass on all the same: `Authorization`,
    /// `Proxy-Authorization`, `Cookie`, `X-Api-Key`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include_headers: Vec<String>,
    /// How long the host may take to accept a message. Default: `30s`, minimum: `100ms`.
    #[serde(default = "accept_timeout")]
    pub accept_timeout: HumanDuration,
}

/// Who may send: any of these. The name is the message's principal, which keeps the idempotency
/// keys of senders apart.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// Senders with a token (`Authorization: Bearer …`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bearer: Vec<Bearer>,
    /// Senders with user name and password (`Authorization: Basic …`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub basic: Vec<BasicAuth>,
}

/// A sender with a token.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bearer {
    /// Who it is.
    pub principal: String,
    /// Its token.
    pub token: Secret,
}

fn max_connections() -> u32 {
    1024
}

fn max_buffered() -> ByteSize {
    ByteSize::from_mib(256)
}

fn header_timeout() -> HumanDuration {
    HumanDuration::from_secs(30)
}

fn body_timeout() -> HumanDuration {
    HumanDuration::from_secs(60)
}

fn shutdown_grace() -> HumanDuration {
    HumanDuration::from_secs(10)
}

fn methods() -> Vec<String> {
    vec!["POST".to_owned()]
}

fn max_body() -> ByteSize {
    ByteSize::from_mib(10)
}

fn accepted_status() -> u16 {
    202
}

fn client_key_header() -> String {
    "Idempotency-Key".to_owned()
}

fn accept_timeout() -> HumanDuration {
    HumanDuration::from_secs(30)
}

impl ConnectionConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let port = self
            .listen
            .rsplit_once(':')
            .map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(_))) {
            faults.push("`listen`: expected an address and a port, `127.0.0.1:8080`".to_owned());
        }
        if let Some(tls) = &self.tls {
            if tls.cert_file.is_none() || tls.key_file.is_none() {
                faults.push("`tls`: a server needs `cert_file` and `key_file`".to_owned());
            }
            if tls.server_name.is_some() {
                faults.push("`tls.server_name`: not used by a server".to_owned());
            }
        }
        if self.max_connections == 0 {
            faults.push("`max_connections`: expected at least 1".to_owned());
        }
        for (field, time) in [
            ("header_timeout", self.header_timeout),
            ("body_timeout", self.body_timeout),
        ] {
            if time.get().as_millis() < 1000 {
                faults.push(format!("`{field}`: expected at least 1s"));
            }
        }
        faults
    }
}

impl ReceiveConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self, connection: &ConnectionConfig) -> Vec<String> {
        let mut faults = Vec::new();
        let plain = self.path.strip_suffix("/*").unwrap_or(&self.path);
        let odd = |c: char| c.is_whitespace() || c.is_control() || "*?#".contains(c);
        if !self.path.starts_with('/') || plain.contains(odd) {
            faults.push(
                "`path`: expected `/` and then a path, or one that ends in `/*`; no query"
                    .to_owned(),
            );
        }
        if self.methods.is_empty() {
            faults.push("`methods`: expected at least one".to_owned());
        }
        for method in &self.methods {
            let upper = method.bytes().all(|b| b.is_ascii_uppercase());
            if !upper || Method::from_bytes(method.as_bytes()).is_err() {
                faults.push(format!("`methods`: `{method}` is not a method, like POST"));
            }
        }
        if self.max_body.bytes() == 0 {
            faults.push("`max_body`: expected at least 1B".to_owned());
        }
        if self.max_body > connection.max_buffered {
            faults.push(format!(
                "`max_body`: {} is more than the connection's `max_buffered` of {}",
                self.max_body, connection.max_buffered
            ));
        }
        if !(200..300).contains(&self.accepted_status) || self.status() == StatusCode::NO_CONTENT {
            faults.push(
                "`accepted_status`: expected 200 to 299, and not 204: the answer has a body"
                    .to_owned(),
            );
        }
        let names = [("client_key_header", &self.client_key_header)];
        let routing = self
            .routing_key_header
            .iter()
            .map(|name| ("routing_key_header", name));
        let include = self
            .include_headers
            .iter()
            .map(|name| ("include_headers", name));
        for (field, name) in names.into_iter().chain(routing).chain(include) {
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                faults.push(format!("`{field}`: `{name}` is not a header name"));
            }
        }
        if self.routing_key_from_path && !self.path.ends_with("/*") {
            faults.push("`routing_key_from_path`: only with a `path` that ends in `/*`".to_owned());
        }
        if self.routing_key_from_path && self.routing_key_header.is_some() {
            faults.push(
                "`routing_key_from_path`, `routing_key_header`: expected at most one".to_owned(),
            );
        }
        if self.accept_timeout.get().as_millis() < 100 {
            faults.push("`accept_timeout`: expected at least 100ms".to_owned());
        }
        if let Some(auth) = &self.auth {
            faults.extend(auth.faults());
        }
        faults
    }

    /// The status of an accepted message.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.accepted_status).unwrap_or(StatusCode::ACCEPTED)
    }
}

impl Auth {
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.bearer.is_empty() && self.basic.is_empty() {
            faults
                .push("`auth`: nobody may send; name senders under `bearer` or `basic`".to_owned());
        }
        if self
            .bearer
            .iter()
            .any(|b| b.token.expose().is_empty() || b.principal.is_empty())
        {
            faults.push("`auth.bearer`: a principal or a token is empty".to_owned());
        }
        let bad = |b: &BasicAuth| {
            b.username.is_empty() || b.username.contains(':') || b.password.expose().is_empty()
        };
        if self.basic.iter().any(bad) {
            faults.push(
                "`auth.basic`: a user name or password is empty, or a name has a `:`".to_owned(),
            );
        }
        faults
    }
}
