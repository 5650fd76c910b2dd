//! One request, from its head to its answer. What can be refused by the head alone is refused before
//! the body is read, so that a client that asked (`Expect: 100-continue`) does not send it.

use crate::{
    config::ReceiveConfig,
    connection::Shared,
    outcome::{Answer, answer},
    source::{Endpoint, Found},
};
use base64::Engine;
use blake3::Hash;
use bytes::Bytes;
use consign_plugin::prelude::*;
use http_body_util::BodyExt;
use hyper::{
    HeaderMap, Request, StatusCode,
    body::{Body, Incoming},
    header::{self, HeaderName, HeaderValue},
    http::request::Parts,
};
use std::{net::SocketAddr, time::Duration};
use tokio::{sync::OwnedSemaphorePermit, time::timeout};

/// Longest idempotency key, in bytes: it is kept for as long as the host remembers it.
const MAX_CLIENT_KEY: usize = 255;
/// While the host starts, adapters come one after the other: a path nobody has claimed yet may be
/// claimed in a moment, and some senders give up for good on a 404.
const STARTING: Duration = Duration::from_secs(5);
/// What a sender is asked to wait while the host starts, stops or is paused.
const SOON_MS: u64 = 1000;

/// Headers that belong to the connection or to the framing: never part of a message.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Headers that authenticate: part of a message only where the operator says so.
const AUTHENTICATING: [&str; 4] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-api-key",
];

/// Answers a request.
pub(crate) async fn handle(
    shared: &Shared,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Answer {
    let (head, body) = request.into_parts();
    match take(shared, peer, head, body).await {
        Ok(answer) | Err(answer) => answer,
    }
}

async fn take<B>(shared: &Shared, peer: SocketAddr, head: Parts, body: B) -> Result<Answer, Answer>
where
    B: Body<Data = Bytes> + Unpin,
{
    let endpoint = match shared.places.find(head.uri.path(), &head.method) {
        Found::Endpoint(endpoint) => endpoint,
        Found::NotAllowed(methods) => return Err(Answer::not_allowed(&methods)),
        Found::Stopped => {
            let reason = "nothing takes requests on this path now";
            return Err(Answer::busy("stopped", reason, SOON_MS));
        }
        Found::Unknown if shared.since.elapsed() < STARTING => {
            return Err(Answer::busy("starting", "the host starts", SOON_MS));
        }
        Found::Unknown => {
            let reason = "nothing takes requests on this path";
            return Err(Answer::error(StatusCode::NOT_FOUND, "not_found", reason));
        }
    };
    let config = &endpoint.config;
    let principal = endpoint.senders.check(&head.headers)?;
    let client_key = client_key(config, &head.headers)?;
    let max = usize::try_from(config.max_body.bytes()).unwrap_or(usize::MAX);
    if body.size_hint().lower() > config.max_body.bytes() {
        return Err(too_large(config));
    }
    if endpoint.deliverer.is_paused() {
        return Err(Answer::busy("paused", "this path is paused", SOON_MS));
    }
    let ready = timeout(config.accept_timeout.get(), endpoint.deliverer.ready()).await;
    match ready {
        Ok(Ok(_)) => {}
        Ok(Err(Stopped)) => return Err(Answer::busy("stopping", "the host stops", SOON_MS)),
        Err(_) => return Err(Answer::busy("blocked", "the host has no room", SOON_MS)),
    }
    let reading = read(body, max, shared, config);
    let (body, _room) = match timeout(shared.config.body_timeout.get(), reading).await {
        Ok(read) => read?,
        Err(_) => {
            let reason = "the body did not arrive in time";
            return Err(Answer::error(
                StatusCode::REQUEST_TIMEOUT,
                "body_timeout",
                reason,
            ));
        }
    };
    let message = message(&endpoint, peer, &head, body, principal, client_key)?;
    let waiting = endpoint.deliverer.deliver_and_wait(message);
    match timeout(config.accept_timeout.get(), waiting).await {
        Ok(result) => Ok(answer(result, config.status())),
        Err(_) => Err(Answer::error(
            StatusCode::GATEWAY_TIMEOUT,
            "accept_timeout",
            "the host has not accepted the message yet, and still may",
        )),
    }
}

fn too_large(config: &ReceiveConfig) -> Answer {
    let reason = format!("a body has at most {} bytes here", config.max_body.bytes());
    Answer::error(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
}

/// Reads a body, no further than it may be long. Its memory is counted for as long as the permit
/// lives.
async fn read<B>(
    mut body: B,
    max: usize,
    shared: &Shared,
    config: &ReceiveConfig,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), Answer>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut read = Vec::new();
    let mut room: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            let reason = "the body ended early, or its chunks are malformed";
            return Err(Answer::error(StatusCode::BAD_REQUEST, "bad_body", reason));
        };
        // Trailers are dropped: they are no part of the message.
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if data.len() > max - read.len() {
            return Err(too_large(config));
        }
        let counted = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let needed = (read.len() + data.len())
            .div_ceil(1024)
            .saturating_sub(counted);
        if needed > 0 {
            let needed = u32::try_from(needed).unwrap_or(u32::MAX);
            let Ok(more) = Arc::clone(&shared.room).try_acquire_many_owned(needed) else {
                return Err(Answer::busy(
                    "busy",
                    "too many bodies are on their way",
                    SOON_MS,
                ));
            };
            match &mut room {
                Some(room) => room.merge(more),
                None => room = Some(more),
            }
        }
        read.extend_from_slice(&data);
    }
    Ok((read, room))
}

/// The only value of a header, or `None`. Twice is an error: which one another reader of the
/// request would believe is unknown.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a HeaderValue>, Answer> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        let reason = format!("the header `{name}` comes twice");
        return Err(Answer::error(StatusCode::BAD_REQUEST, "bad_header", reason));
    }
    Ok(first)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Answer> {
    let Some(value) = single(headers, name)? else {
        return Ok(None);
    };
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| {
        let reason = format!("the header `{name}` is not UTF-8");
        Answer::error(StatusCode::BAD_REQUEST, "bad_header", reason)
    })?;
    Ok(Some(text))
}

fn client_key(config: &ReceiveConfig, headers: &HeaderMap) -> Result<Option<String>, Answer> {
    let name = &config.client_key_header;
    let bad = |reason| Answer::error(StatusCode::BAD_REQUEST, "bad_idempotency_key", reason);
    match text(headers, name)? {
        Some("") => Err(bad(format!("the header `{name}` is empty"))),
        Some(key) if key.len() > MAX_CLIENT_KEY => Err(bad(format!(
            "the header `{name}` has more than {MAX_CLIENT_KEY} bytes"
        ))),
        None if config.require_client_key => Err(bad(format!("the header `{name}` is missing"))),
        key => Ok(key.map(str::to_owned)),
    }
}

fn message(
    endpoint: &Endpoint,
    peer: SocketAddr,
    head: &Parts,
    body: Vec<u8>,
    principal: Option<String>,
    client_key: Option<String>,
) -> Result<SourceMessage, Answer> {
    let config = &endpoint.config;
    let path = head.uri.path();
    let mut message = SourceMessage::new(body)
        .attribute("method", head.method.as_str())
        .attribute("path", path)
        .attribute("remote", peer.ip().to_string());
    if let Some(query) = head.uri.query() {
        message = message.attribute("query", query);
    }
    for (name, value) in &head.headers {
        if passes(config, name) {
            message = message.header(name.as_str(), value.as_bytes());
        }
    }
    if let Some(content_type) = text(&head.headers, header::CONTENT_TYPE.as_str())? {
        message = message.content_type(content_type);
    }
    let routing_key = match &config.routing_key_header {
        Some(name) => text(&head.headers, name)?.map(str::to_owned),
        None if config.routing_key_from_path => Some(endpoint.below(path).replace('/', ".")),
        None => None,
    };
    if let Some(key) = routing_key {
        message = message.routing_key(key);
    }
    if let Some(principal) = principal {
        message = message
            .attribute("principal", principal.clone())
            .principal(principal);
    }
    Ok(match client_key {
        Some(key) => message.client_key(key),
        None => message,
    })
}

fn passes(config: &ReceiveConfig, name: &HeaderName) -> bool {
    let listed = |names: &[&str]| names.contains(&name.as_str());
    let included = || {
        config
            .include_headers
            .iter()
            .any(|n| n.eq_ignore_ascii_case(name.as_str()))
    };
    !listed(&HOP_BY_HOP) && (!listed(&AUTHENTICATING) || included())
}

/// Who may send, as digests: comparing two takes the same time wherever they differ.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    bearer: Vec<(Hash, String)>,
    basic: Vec<(Hash, String)>,
}

impl Senders {
    pub(crate) fn new(config: &ReceiveConfig) -> Self {
        let Some(auth) = &config.auth else {
            return Self::default();
        };
        let bearer = auth.bearer.iter().map(|sender| {
            (
                blake3::hash(sender.token.expose().as_bytes()),
                sender.principal.clone(),
            )
        });
        let basic = auth.basic.iter().map(|sender| {
            let both = format!("{}:{}", sender.username, sender.password.expose());
            (blake3::hash(both.as_bytes()), sender.username.clone())
        });
        Self {
            bearer: bearer.collect(),
            basic: basic.collect(),
        }
    }

    /// The principal, or `None` where everyone may send.
    fn check(&self, headers: &HeaderMap) -> Result<Option<String>, Answer> {
        if self.bearer.is_empty() && self.basic.is_empty() {
            return Ok(None);
        }
        let value = single(headers, header::AUTHORIZATION.as_str())?;
        let value = value
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let (scheme, credentials) = value.split_once(' ').unwrap_or((value, ""));
        let credentials = credentials.trim();
        let known = if scheme.eq_ignore_ascii_case("bearer") {
            find(&self.bearer, credentials.as_bytes())
        } else if scheme.eq_ignore_ascii_case("basic") {
            let decoded = base64::engine::general_purpose::STANDARD.decode(credentials);
            decoded.ok().and_then(|both| find(&self.basic, &both))
        } else {
            None
        };
        let refusal = || Answer::unauthorized(!self.bearer.is_empty(), !self.basic.is_empty());
        known.map(Some).ok_or_else(refusal)
    }
}

/// Looks through all senders, also after the right one.
fn find(senders: &[(Hash, String)], shown: &[u8]) -> Option<String> {
    let shown = blake3::hash(shown);
    senders.iter().fold(None, |found, (hash, name)| {
        // `Hash` compares in constant time.
        if *hash == shown {
            Some(name.clone())
        } else {
            found
        }
    })
}
