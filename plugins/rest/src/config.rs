//! What an operator configures: the service, how we show who we are, and the request of each write.

use consign_plugin::prelude::*;
use hyper::header::{HeaderName, HeaderValue};
use std::collections::BTreeMap;
use url::Url;

/// An HTTP service, over HTTP/1.1. A redirect is never followed: it is told, since a write that is
/// passed on may become another one.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionConfig {
    /// The service's address, `https://api.internal/v1`; each request's path is put behind it.
    pub endpoint: String,
    /// User name and password (HTTP Basic). At most one of `auth`, `bearer_token` and `oauth2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<BasicAuth>,
    /// A token to be sent as `Authorization: Bearer …`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearer_token: Option<Secret>,
    /// Access tokens by OAuth 2.0 client credentials. A token is renewed before it ends, and once when
    /// the service answers 401.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oauth2: Option<OAuth2>,
    /// A key to be sent in a header of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKey>,
    /// TLS of an `https` address. `cert_file` and `key_file` are shown to a service that asks for a
    /// client certificate. Default: the system's authorities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// A proxy between, `http://proxy.internal:3128`. Default: none; the environment is not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// User name and password for the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_auth: Option<BasicAuth>,
    /// `connect` bounds a dial, `request` a request with its answer; the send's `timeout` bounds both.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// A path that is asked for with GET to see whether the service is there; any answer but 502, 503
    /// and 504 says yes. Default: only a connection is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_path: Option<String>,
}

/// OAuth 2.0 client credentials (RFC 6749, section 4.4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OAuth2 {
    /// Where tokens are had, `https://login.internal/oauth2/token`.
    pub token_endpoint: String,
    /// Our name there.
    pub client_id: String,
    /// Our secret there.
    pub client_secret: Secret,
    /// What is asked for. Default: whatever the server gives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// The service that the token is for, where the server wants to know. Default: not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
}

/// A key in a header of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    /// The header's name, such as `X-Api-Key`.
    pub header: String,
    /// The key.
    pub value: Secret,
}

/// Sends each message as one request, its body as it is.
///
/// 2xx is delivered. 408, 409, 423 and 425 are tried again, 429 and 503 with `Retry-After` wait as long
/// as they say. 500 may have been applied, so may what was not answered; 502, 503 and 504 are an outage
/// of the target. 401 and 407 halt the connection, 403, a redirect, and 404 or 405 of a path without a
/// template the target, until a person has acted. Every other 4xx refuses the write.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestConfig {
    /// The path behind the connection's `endpoint`, usually with a template in it
    /// (`"/orders/{{ .body.id }}"`). A rendered path with `?`, `#`, an empty segment or `..` is refused.
    pub path: Template,
    /// Parameters behind the path, name to text; encoded as they must be. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, Template>,
    /// Headers to set, name to text. Default: none; the content type is the message's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Template>,
    /// Send the write key as `Idempotency-Key`, the same on every copy. A header of that name under
    /// `headers` wins. Default: `true`.
    #[serde(default = "yes")]
    pub idempotency_key: bool,
}

fn yes() -> bool {
    true
}

/// The header under which a service recognises a repeat.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Headers that belong to the connection or to the framing of a request.
const OURS: [&str; 6] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "proxy-authorization",
];

/// An address with a host, `http` or `https`, and nothing secret in it.
pub fn address(field: &str, text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("`{field}`: `{text}`: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(format!(
            "`{field}`: expected `http://…` or `https://…`, found `{text}`"
        ));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!(
            "`{field}`: the address holds a user; put it under `auth`, where it is kept secret"
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(format!(
            "`{field}`: expected an address without `?` and `#`"
        ));
    }
    Ok(url)
}

impl ConnectionConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        faults.extend(address("endpoint", &self.endpoint).err());
        let ways = [
            self.auth.is_some(),
            self.bearer_token.is_some(),
            self.oauth2.is_some(),
        ];
        if ways.into_iter().filter(|set| *set).count() > 1 {
            faults
                .push("`auth`, `bearer_token`, `oauth2`: expected at most one of them".to_owned());
        }
        if let Some(oauth2) = &self.oauth2 {
            faults.extend(address("oauth2.token_endpoint", &oauth2.token_endpoint).err());
        }
        if let Some(key) = &self.api_key
            && HeaderName::from_bytes(key.header.as_bytes()).is_err()
        {
            faults.push(format!(
                "`api_key.header`: `{}` is not a header name",
                key.header
            ));
        }
        if let Some(proxy) = &self.proxy {
            match address("proxy", proxy) {
                Ok(url) if url.scheme() != "http" => {
                    faults.push("`proxy`: expected `http://…`".to_owned());
                }
                Ok(_) => {}
                Err(fault) => faults.push(fault),
            }
        }
        if self.proxy_auth.is_some() && self.proxy.is_none() {
            faults.push("`proxy_auth`: only with `proxy`".to_owned());
        }
        if let Some(path) = &self.probe_path
            && !path.starts_with('/')
        {
            faults.push("`probe_path`: expected a path that begins with `/`".to_owned());
        }
        if let Some(tls) = &self.tls {
            faults.extend(tls.client_faults());
        }
        faults
    }
}

impl RequestConfig {
    /// Faults that the schema cannot express, each a sentence that names the field.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if let Some(path) = self.path.as_written() {
            if !path.starts_with('/') && !path.is_empty() {
                faults.push("`path`: expected a path that begins with `/`".to_owned());
            } else if !self.path.is_dynamic()
                && let Err(fault) = check_path(path)
            {
                faults.push(format!("`path`: {fault}"));
            }
        }
        for (name, value) in &self.headers {
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                faults.push(format!("`headers`: `{name}` is not a header name"));
            } else if OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
                faults.push(format!("`headers`: `{name}` is set by the connection"));
            }
            if let Some(text) = value.as_written()
                && !value.is_dynamic()
                && HeaderValue::from_str(text).is_err()
            {
                faults.push(format!("`headers.{name}`: a header cannot hold this text"));
            }
        }
        faults
    }

    /// Whether the function replaces the key under which the service recognises a repeat.
    #[must_use]
    pub fn overrides_key(&self) -> bool {
        let mut names = self.headers.keys();
        names.any(|name| name.eq_ignore_ascii_case(IDEMPOTENCY_KEY))
    }
}

/// Whether a rendered path names what its template says, and nothing above or beside it.
pub fn check_path(path: &str) -> Result<(), String> {
    if let Some(c) = path.chars().find(|c| "?#\\".contains(*c) || c.is_control()) {
        return Err(format!("`{path}` holds {c:?}"));
    }
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let plain = segment.replace("%2e", ".").replace("%2E", ".");
        // A slash at the end is some services' habit.
        let empty = segment.is_empty() && segments.peek().is_some();
        if empty || plain == "." || plain == ".." {
            return Err(format!("`{path}` has an empty segment, or one of dots"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_rendered_path_stays_below_its_template() {
        for path in [
            "", "/", "/a", "/a/", "/a/b c", "/a/ü", "/a/%2F", "/a/..b", "/a:b@c",
        ] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
        for path in [
            "/a/../b",
            "/a/.",
            "/..",
            "//a",
            "/a//b",
            "/a?x",
            "/a#x",
            "/a\\b",
            "/a\nb",
            "/%2e%2E/b",
        ] {
            assert!(check_path(path).is_err(), "{path}");
        }
    }

    #[test]
    fn faults_name_the_field() {
        let login = json!({ "username": "u", "password": "p" });
        for (change, field) in [
            (json!({ "endpoint": "api.internal" }), "`endpoint`"),
            (json!({ "endpoint": "ftp://a" }), "`endpoint`"),
            (json!({ "endpoint": "https://u:p@a" }), "`endpoint`"),
            (json!({ "endpoint": "https://a/?x=1" }), "`endpoint`"),
            (json!({ "auth": login, "bearer_token": "t" }), "`auth`"),
            (
                json!({ "oauth2": { "token_endpoint": "x", "client_id": "i", "client_secret": "s" } }),
                "`oauth2.token_endpoint`",
            ),
            (
                json!({ "api_key": { "header": "a b", "value": "v" } }),
                "`api_key.header`",
            ),
            (json!({ "proxy": "https://p:1" }), "`proxy`"),
            (json!({ "proxy_auth": login }), "`proxy_auth`"),
            (json!({ "probe_path": "up" }), "`probe_path`"),
            (json!({ "tls": { "key_file": "k" } }), "`tls`"),
        ] {
            let mut config = json!({ "endpoint": "https://a" });
            config
                .as_object_mut()
                .unwrap()
                .extend(change.as_object().unwrap().clone());
            let faults = serde_json::from_value::<ConnectionConfig>(config)
                .unwrap()
                .faults();
            assert!(
                faults.len() == 1 && faults[0].starts_with(field),
                "{change}: {faults:?}"
            );
        }
        for (config, field) in [
            (json!({ "path": "a" }), "`path`"),
            (json!({ "path": "/a?b" }), "`path`"),
            (
                json!({ "path": "/", "headers": { "a b": "" } }),
                "`headers`",
            ),
            (
                json!({ "path": "/", "headers": { "Host": "x" } }),
                "`headers`",
            ),
            (
                json!({ "path": "/", "headers": { "x": "a\nb" } }),
                "`headers.x`",
            ),
        ] {
            let faults = serde_json::from_value::<RequestConfig>(config.clone())
                .unwrap()
                .faults();
            assert!(
                faults.len() == 1 && faults[0].starts_with(field),
                "{config}: {faults:?}"
            );
        }
    }
}
