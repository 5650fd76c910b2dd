//! `rest.post`, `rest.put` and `rest.patch`: each write is one request.

use crate::config::{ConnectionConfig, IDEMPOTENCY_KEY, RequestConfig, check_path};
use crate::connection::Rest;
use crate::outcome::{Asked, of_failure, outcome, unanswered};
use bytes::Bytes;
use consign_plugin::prelude::*;
use futures::future::join_all;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request as HttpRequest};
use std::marker::PhantomData;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Answers are given this much before the host's deadline: after it, those that did arrive would
/// count as unknown as well.
const ANSWER_MARGIN: Duration = Duration::from_millis(50);

/// What a request of a method promises.
pub trait Verb: Send + Sync + 'static {
    /// The operation's id.
    const OPERATION: &'static str;
    /// Its title.
    const TITLE: &'static str;
    /// The method.
    const METHOD: Method;
    /// Whether the same request twice is the same as once (RFC 9110, 9.2.2).
    const IDEMPOTENT: bool;
}

/// POST.
pub struct Post;

impl Verb for Post {
    const OPERATION: &'static str = "rest.post";
    const TITLE: &'static str = "POST Request";
    const METHOD: Method = Method::POST;
    const IDEMPOTENT: bool = false;
}

/// PUT.
pub struct Put;

impl Verb for Put {
    const OPERATION: &'static str = "rest.put";
    const TITLE: &'static str = "PUT Request";
    const METHOD: Method = Method::PUT;
    const IDEMPOTENT: bool = true;
}

/// PATCH.
pub struct Patch;

impl Verb for Patch {
    const OPERATION: &'static str = "rest.patch";
    const TITLE: &'static str = "PATCH Request";
    const METHOD: Method = Method::PATCH;
    const IDEMPOTENT: bool = false;
}

/// The sink of one send.
pub struct Request<V> {
    connection: Arc<Rest>,
    config: RequestConfig,
    verb: PhantomData<V>,
}

impl<V: Verb> Request<V> {
    fn promise() -> (Promise, RepeatKind) {
        if V::IDEMPOTENT {
            (Promise::EffectivelyOnce, RepeatKind::SameTarget)
        } else {
            (Promise::AtLeastOnce, RepeatKind::SecondCopy)
        }
    }
}

#[async_trait]
impl<V: Verb> Sink for Request<V> {
    type Connector = Rest;
    type Config = RequestConfig;
    const OPERATION: &'static str = V::OPERATION;
    const TITLE: &'static str = V::TITLE;

    fn declaration() -> SinkDeclaration {
        let (promise, kind) = Self::promise();
        SinkDeclaration {
            promise,
            unconfirmed: false,
            repeat: Repeat {
                kind,
                condition: None,
                window: Window::None,
            },
            key: KeyPlacement::On(
                "header Idempotency-Key (with `idempotency_key` on; the function's own Idempotency-Key header wins)".into(),
            ),
            batch: BatchKind::Independent,
            sealed: false,
            note: String::new(),
        }
    }

    fn resolve(connection: &ConnectionConfig, config: &RequestConfig) -> Resolved {
        let (promise, repeat) = Self::promise();
        let key = if config.overrides_key() {
            "its Idempotency-Key is the one under `headers`"
        } else if config.idempotency_key {
            "its Idempotency-Key is the write key"
        } else {
            "it carries no Idempotency-Key"
        };
        let reason = if V::IDEMPOTENT {
            format!("the same PUT twice leaves the same behind; {key}")
        } else {
            format!(
                "whether the service drops a repeated {} is not known; {key}",
                V::METHOD
            )
        };
        let path = config.path.as_written().unwrap_or_default();
        let endpoint = connection.endpoint.trim_end_matches('/');
        let query = config.query.keys().map(|name| format!("query.{name}"));
        Resolved {
            promise,
            unconfirmed: false,
            repeat,
            window: Window::None,
            reason,
            target_id: format!("{} {endpoint}{path}", V::METHOD),
            target_fields: std::iter::once("path".to_owned()).chain(query).collect(),
            faults: [connection.faults(), config.faults()].concat(),
        }
    }

    async fn open(
        connection: Arc<Rest>,
        config: RequestConfig,
        _: &ConnectionContext,
    ) -> Result<Self, Failure> {
        Ok(Self {
            connection,
            config,
            verb: PhantomData,
        })
    }

    async fn write(&self, batch: &Batch, cx: &WriteContext) -> Vec<Outcome> {
        let request = Instant::now() + self.connection.config().timeouts.request.get();
        let deadline = Instant::from_std(cx.deadline()) - ANSWER_MARGIN.min(cx.remaining() / 2);
        let deadline = deadline.min(request);
        join_all(batch.writes().iter().map(|write| self.one(write, deadline))).await
    }

    async fn inspect(&self) -> Inspection {
        Inspection::not_inspected("a service cannot be asked what it makes of a repeat")
    }
}

impl<V: Verb> Request<V> {
    async fn one(&self, write: &Write, deadline: Instant) -> Outcome {
        let request = match self.request(write) {
            Ok(request) => request,
            Err(detail) => return Outcome::refused(detail),
        };
        let asked = Asked {
            own_path: self.config.path.as_written().is_none(),
        };
        match timeout_at(deadline, self.connection.send(&request)).await {
            Ok(Ok(answer)) => outcome(asked, answer.status, &answer.headers, &answer.body),
            Ok(Err(Ok(error))) => unanswered(&error),
            Ok(Err(Err(failure))) => of_failure(failure),
            // A dial has a limit of its own, so most likely the request has left.
            Err(_) => Outcome::unknown(("timeout", "the service did not answer in time")),
        }
    }

    fn request(&self, write: &Write) -> Result<HttpRequest<Full<Bytes>>, Detail> {
        let path = write.text(&self.config.path)?;
        if !path.starts_with('/') && !path.is_empty() {
            return Err(("path", format!("`{path}` does not begin with `/`")).into());
        }
        check_path(path).map_err(|text| ("path", text))?;
        let mut url = self.connection.url(path).map_err(|text| ("path", text))?;
        if !self.config.query.is_empty() {
            let mut pairs = url.query_pairs_mut();
            for (name, template) in &self.config.query {
                pairs.append_pair(name, write.text(template)?);
            }
        }
        let body = Bytes::copy_from_slice(write.body());
        let request = HttpRequest::builder().method(V::METHOD).uri(url.as_str());
        let mut request = request
            .body(Full::from(body))
            .map_err(|error| ("path", error.to_string()))?;
        let headers = request.headers_mut();
        if let Some(content_type) = write.content_type() {
            headers.insert(CONTENT_TYPE, value("content-type", content_type)?);
        }
        if self.config.idempotency_key {
            let key = write.key().to_string();
            headers.insert(IDEMPOTENCY_KEY, value(IDEMPOTENCY_KEY, &key)?);
        }
        for (name, template) in &self.config.headers {
            let text = value(name, write.text(template)?)?;
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| ("header", format!("`{name}` is not a header name")))?;
            headers.insert(name, text);
        }
        Ok(request)
    }
}

fn value(name: &str, text: &str) -> Result<HeaderValue, Detail> {
    HeaderValue::from_str(text)
        .map_err(|_| ("header", format!("header `{name}` cannot hold this text")).into())
}
