//! Write keys: 128 bits that name a write for its whole life, and the ids by which a repeat of a
//! message is recognised at acceptance.
//!
//! Every derived value is BLAKE3 over a domain, a version and length-prefixed parts (u64
//! little-endian), cut to 16 bytes. There is no secret of the installation in it: the same message
//! through the same configuration has the same key on every machine. The golden vectors in the
//! tests are part of the format; a change of them is a change of every key.

use std::fmt;
use std::str::FromStr;

/// The version of the derivation; part of what is hashed.
pub const KEY_VERSION: u8 = 1;

/// A write's identity: the same on the first attempt, every resend and every replay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteKey(pub [u8; 16]);

impl fmt::Display for WriteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for WriteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for WriteKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected a write key of 32 lower-case hex digits, got `{text}`");
        if text.len() != 32 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(wrong());
        }
        u128::from_str_radix(text, 16)
            .map(|bits| Self(bits.to_be_bytes()))
            .map_err(|_| wrong())
    }
}

/// The digest of a source body, computed once per message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BodyDigest(pub [u8; 32]);

impl BodyDigest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(body: &[u8]) -> Self {
        Self(*blake3::hash(body).as_bytes())
    }

    /// Its first half, enough to tell two bodies under one client key apart.
    #[must_use]
    pub fn short(&self) -> [u8; 16] {
        first(&self.0)
    }
}

/// What a derived write key is made of.
#[derive(Debug, Clone, Copy)]
pub struct KeyParts<'a> {
    /// The adapter's name.
    pub adapter: &'a str,
    /// The route's name.
    pub route: &'a str,
    /// The send's id.
    pub send: &'a str,
    /// Zero, and one more with every deliberate rewind that asks for new keys.
    pub epoch: u64,
    /// What names the message across redeliveries.
    pub identity: &'a [u8],
    /// The digest of the body as the source handed it over.
    pub body: &'a BodyDigest,
}

/// The write key of a message that has an identity.
#[must_use]
pub fn derive(parts: &KeyParts<'_>) -> WriteKey {
    WriteKey(digest(
        b"consign write",
        &[
            parts.adapter.as_bytes(),
            parts.route.as_bytes(),
            parts.send.as_bytes(),
            &parts.epoch.to_le_bytes(),
            parts.identity,
            &parts.body.0,
        ],
    ))
}

/// A key for a message without an identity, from an injected source of randomness.
pub fn random(fill: &mut dyn FnMut(&mut [u8])) -> WriteKey {
    let mut bytes = [0; 16];
    fill(&mut bytes);
    WriteKey(bytes)
}

/// The key of a write that an error handler diverted to another lane.
#[must_use]
pub fn diverted(parent: WriteKey, lane: &str) -> WriteKey {
    WriteKey(digest(b"consign divert", &[&parent.0, lane.as_bytes()]))
}

/// What a client's idempotency key is remembered under: scoped by adapter and principal, so that
/// two clients may use the same key.
#[must_use]
pub fn client_scope(adapter: &str, principal: Option<&str>, client_key: &str) -> [u8; 16] {
    digest(
        b"consign client key",
        &[adapter.as_bytes(), &client_identity(principal, client_key)],
    )
}

/// The identity of a message that came with a client's idempotency key.
#[must_use]
pub fn client_identity(principal: Option<&str>, client_key: &str) -> Vec<u8> {
    // An absent principal is not the empty one.
    let mut identity = vec![u8::from(principal.is_some())];
    put(&mut identity, principal.unwrap_or_default().as_bytes());
    put(&mut identity, client_key.as_bytes());
    identity
}

/// What a message with a token of its own is remembered under.
#[must_use]
pub fn individual(adapter: &str, epoch: u64, identity: &[u8]) -> [u8; 16] {
    digest(
        b"consign individual",
        &[adapter.as_bytes(), &epoch.to_le_bytes(), identity],
    )
}

/// The name of a message that has an identity: the same each time it is handed over.
#[must_use]
pub fn message(adapter: &str, epoch: u64, identity: &[u8]) -> [u8; 16] {
    digest(
        b"consign message",
        &[adapter.as_bytes(), &epoch.to_le_bytes(), identity],
    )
}

fn digest(domain: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &[u8]| {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    };
    add(domain);
    add(&[KEY_VERSION]);
    parts.iter().for_each(|part| add(part));
    first(hasher.finalize().as_bytes())
}

fn put(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&(part.len() as u64).to_le_bytes());
    out.extend_from_slice(part);
}

/// Eight bytes that stand for a text inside one host: enough to tell texts apart, not to name them.
pub(crate) fn short_digest(text: &str) -> [u8; 8] {
    first(blake3::hash(text.as_bytes()).as_bytes())
}

/// The first bytes of a digest.
fn first<const N: usize>(digest: &[u8; 32]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes
        .iter_mut()
        .zip(digest)
        .for_each(|(to, from)| *to = *from);
    bytes
}

pub(crate) fn hex(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{:032x}", u128::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(identity: &'a [u8], body: &'a BodyDigest) -> KeyParts<'a> {
        KeyParts {
            adapter: "payments",
            route: "completed",
            send: "billing",
            epoch: 0,
            identity,
            body,
        }
    }

    /// These never change: keys of a released version are in destinations for ever.
    #[test]
    fn golden_vectors() {
        let body = BodyDigest::of(b"{\"amount\":1.10}");
        let empty = BodyDigest::of(b"");
        let shown = [
            derive(&parts(b"0/42", &body)).to_string(),
            derive(&parts(b"", &empty)).to_string(),
            derive(&KeyParts {
                epoch: 1,
                ..parts(b"0/42", &body)
            })
            .to_string(),
            diverted(WriteKey([7; 16]), "payments/completed/dead").to_string(),
            WriteKey(client_scope("payments", Some("anna"), "k-1")).to_string(),
            WriteKey(client_scope("payments", None, "k-1")).to_string(),
            WriteKey(individual("payments", 0, b"0/42")).to_string(),
            WriteKey(body.short()).to_string(),
            WriteKey(message("payments", 0, b"0/42")).to_string(),
        ];
        assert_eq!(shown, GOLDEN);
    }

    const GOLDEN: [&str; 9] = [
        "9e4273d76a43438a3b8d770ff854f9da",
        "a787f27c9a71fc793ec0b9a7ac265b0c",
        "51167538b7b8514270291cc27cedb12c",
        "38aaa983357cb8df1674744dfad7ff31",
        "67fa552f46cbf8ccbaaa343ebcf7c8a5",
        "265545ed859190dcc434a1ed05131751",
        "7b8e97a03c628ae225f453d5a1dcea75",
        "7f841684c07e967550c66a9e8f8d5ba8",
        "a1710ef0e48036124cd9d47a4997b4e4",
    ];

    #[test]
    fn every_part_matters_and_borders_between_parts_too() {
        let body = BodyDigest::of(b"x");
        let other = BodyDigest::of(b"y");
        let base = parts(b"id", &body);
        let keys = [
            derive(&base),
            derive(&KeyParts {
                adapter: "payment",
                ..base
            }),
            derive(&KeyParts {
                adapter: "paymentsc",
                route: "ompleted",
                ..base
            }),
            derive(&KeyParts {
                route: "rest",
                ..base
            }),
            derive(&KeyParts { send: "b", ..base }),
            derive(&KeyParts { epoch: 1, ..base }),
            derive(&KeyParts {
                identity: b"ie",
                ..base
            }),
            derive(&KeyParts {
                body: &other,
                ..base
            }),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "key {i} repeats an earlier one");
        }
        assert_ne!(client_identity(None, "a"), client_identity(Some(""), "a"));
        assert_ne!(
            client_identity(Some("ab"), "c"),
            client_identity(Some("a"), "bc")
        );
    }

    #[test]
    fn keys_read_back_and_nothing_else_does() {
        let key = random(&mut |bytes| bytes.iter_mut().zip(200..).for_each(|(b, i)| *b = i));
        assert_eq!(key.to_string().parse(), Ok(key));
        for wrong in [
            "",
            "0",
            "0123456789abcdef0123456789abcdeF",
            "0123456789abcdef0123456789abcdef0",
            "+123456789abcdef0123456789abcdef",
        ] {
            assert!(wrong.parse::<WriteKey>().is_err(), "{wrong}");
        }
    }
}
