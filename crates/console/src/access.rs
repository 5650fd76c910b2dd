//! Who may ask: loopback, a bearer token, or the token as a password.

use axum::http::{HeaderMap, Uri, header};
use std::net::SocketAddr;

/// Whether listening at this address needs a token: everywhere but on loopback.
#[must_use]
pub fn token_needed(address: &SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// Who may do what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// Needed for everything, where it is set.
    pub token: Option<String>,
    /// Needed to act and to read bodies, also on loopback; made at each first start of a host whose
    /// operator set no token. `None`: `token` is what is needed, and without one nobody may act.
    pub acting: Option<String>,
    /// The file that has `acting`, for commands of the same user on the same machine.
    pub token_file: Option<std::path::PathBuf>,
}

impl From<Option<String>> for Login {
    fn from(token: Option<String>) -> Self {
        Self {
            token: token.filter(|token| !token.is_empty()),
            ..Self::default()
        }
    }
}

/// How much of a path is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    /// Says nothing about the host (`/health/live`, `/health/ready` without reasons).
    Always,
    /// Open on loopback, token or not (`/metrics`).
    OnLoopback,
    /// Open on loopback while no token is set.
    Never,
    /// Never open: it acts, or shows whole bodies.
    Acting,
}

/// The rules of one listener.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    /// The tokens.
    pub(crate) login: Login,
    /// The listener is on loopback.
    pub(crate) loopback: bool,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No token, or a wrong one: 401.
    Token,
    /// A name that is not this machine's own: 403.
    Host,
}

impl Access {
    /// Whether a request may have what is `open` so far.
    pub(crate) fn check(&self, open: Open, headers: &HeaderMap, uri: &Uri) -> Result<(), Refused> {
        let free = match open {
            Open::Always => return Ok(()),
            Open::OnLoopback => self.loopback,
            Open::Never => self.loopback && self.login.token.is_none(),
            Open::Acting => false,
        };
        if free {
            return own_name(headers, uri).then_some(()).ok_or(Refused::Host);
        }
        let Some(given) = presented(headers) else {
            return Err(Refused::Token);
        };
        let tokens = self.login.token.iter().chain(&self.login.acting);
        // All of them are compared, so that the time taken tells nothing.
        if tokens.fold(false, |fits, token| same(&given, token) | fits) {
            Ok(())
        } else {
            Err(Refused::Token)
        }
    }
}

/// Whether the request was made for this machine by one of its own names. A page in a browser can
/// make any name point here, and would then read the answer; it cannot choose this header.
fn own_name(headers: &HeaderMap, uri: &Uri) -> bool {
    let named = headers
        .get(header::HOST)
        .and_then(|v| v.to_str().ok())
        .or_else(|| uri.authority().map(|a| a.as_str()));
    let Some(named) = named else {
        // HTTP/1.0, which no browser speaks.
        return true;
    };
    let name = match named.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => named.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// The token a request presents: `Bearer TOKEN`, or the password of `Basic`, as a browser sends it.
fn presented(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let space = value.iter().position(|&b| b == b' ')?;
    let (scheme, rest) = value.split_at_checked(space)?;
    let given = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(given.to_vec());
    }
    if scheme.eq_ignore_ascii_case(b"basic") {
        let pair = base64(given)?;
        let colon = pair.iter().position(|&b| b == b':')?;
        return pair.get(colon + 1..).map(<[u8]>::to_vec);
    }
    None
}

/// Compares without stopping at the first difference, so that the time taken tells nothing but
/// whether the lengths are the same.
fn same(given: &[u8], token: &str) -> bool {
    let token = token.as_bytes();
    if given.len() != token.len() {
        return false;
    }
    let difference = given
        .iter()
        .zip(token)
        .fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    difference == 0
}

/// Reads standard base64; `None` for anything else.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text
        .strip_suffix(b"==")
        .or_else(|| text.strip_suffix(b"="))
        .unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0_u32);
    for &letter in text {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn loopback_needs_no_token_and_everything_else_does() {
        for (address, needed) in [
            ("127.0.0.1:1", false),
            ("127.9.9.9:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("10.0.0.1:1", true),
        ] {
            assert_eq!(token_needed(&address.parse().unwrap()), needed, "{address}");
        }
    }

    #[test]
    fn a_token_is_read_from_bearer_and_basic() {
        let given = |value| presented(&headers(header::AUTHORIZATION, value));
        assert_eq!(given("Bearer abc").unwrap(), b"abc");
        assert_eq!(given("bearer  abc ").unwrap(), b"abc");
        // "ann:s3:cret"
        assert_eq!(given("Basic YW5uOnMzOmNyZXQ=").unwrap(), b"s3:cret");
        for bad in ["abc", "Digest abc", "Basic !!!", "Basic YWJj"] {
            assert_eq!(given(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_the_whole_token_is_the_token() {
        assert!(same(b"secret", "secret"));
        for wrong in [&b"secre"[..], b"secrets", b"Secret", b""] {
            assert!(!same(wrong, "secret"));
        }
    }

    #[test]
    fn a_foreign_name_is_not_ours() {
        let own = |host| own_name(&headers(header::HOST, host), &Uri::from_static("/"));
        for name in [
            "localhost",
            "LOCALHOST:8640",
            "127.0.0.1:8640",
            "[::1]:8640",
            "127.0.0.2",
        ] {
            assert!(own(name), "{name}");
        }
        for name in [
            "evil.example",
            "evil.example:8640",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "",
        ] {
            assert!(!own(name), "{name}");
        }
    }
}
