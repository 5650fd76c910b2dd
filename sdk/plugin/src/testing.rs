//! Drives connectors in process, without a `.so`: build batches, open sinks, play the host of a
//! source. For unit tests; call everything from inside a tokio runtime (`#[tokio::test]`).
//!
//! [`open_sink`] and [`write()`] for sinks, [`SourceDriver`] for sources.

use crate::blocking::Blocking;
use crate::source_state::{SourceState, Upstream};
use crate::{
    Batch, ConnectionContext, Connector, Failure, MessageId, Outcome, SettleResult, Sink, Source,
    SourceContext, WriteContext,
};
use consign_abi::json::Names;
use consign_abi::{
    HeaderRow, MessageBatch, MessageRow, Span, TemplateRow, WriteBatch, WriteRow, flags,
};
use serde_json::Value;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Deadline of [`write()`]: long enough for a slow machine, short enough for a test to end.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// A context without names: connection `test`, adapter `test`, route `test`, send `test`.
#[must_use]
pub fn context() -> ConnectionContext {
    context_with(None)
}

/// As [`context`], with a scratch folder.
#[must_use]
pub fn context_with(data_dir: Option<PathBuf>) -> ConnectionContext {
    let test = || Some("test".to_owned());
    ConnectionContext::new(Names {
        connection: "test".to_owned(),
        adapter: test(),
        route: test(),
        send: test(),
        write_key_name: None,
        data_dir,
    })
}

/// Connects.
///
/// # Errors
/// Whatever the connector says.
pub async fn connect<C: Connector>(config: C::Config) -> Result<Arc<C>, Failure> {
    C::connect(config, &context()).await.map(Arc::new)
}

/// Connects and opens a sink.
///
/// # Errors
/// Whatever the connector or the sink says.
pub async fn open_sink<S: Sink>(
    connection: <S::Connector as Connector>::Config,
    config: S::Config,
) -> Result<S, Failure> {
    let connection = connect::<S::Connector>(connection).await?;
    S::open(connection, config, &context()).await
}

/// Writes a batch with a deadline of 30 s.
pub async fn write<S: Sink>(sink: &S, batch: &Batch) -> Vec<Outcome> {
    write_within(sink, batch, WRITE_DEADLINE).await
}

/// Writes a batch; at the deadline the write's future is dropped, as the host does, and every
/// outcome is unknown with the code `deadline`.
pub async fn write_within<S: Sink>(sink: &S, batch: &Batch, deadline: Duration) -> Vec<Outcome> {
    let (cancel, cancelled) = watch::channel(false);
    let blocking = Blocking::default();
    let cx = WriteContext::new(Instant::now() + deadline, cancelled, blocking.clone());
    let outcomes = tokio::time::timeout(deadline, sink.write(batch, &cx)).await;
    // Nobody may be listening.
    let _ = cancel.send(true);
    blocking.idle().await;
    outcomes.unwrap_or_else(|_| batch.all(Outcome::unknown(("deadline", "deadline passed"))))
}

/// One write to be put into a batch.
#[derive(Debug, Clone, Default)]
pub struct TestWrite {
    key: Option<[u8; 16]>,
    body: Vec<u8>,
    content_type: Option<String>,
    routing_key: Option<String>,
    headers: Vec<(String, Vec<u8>)>,
    templates: Vec<(u32, String)>,
    may_be_repeat: bool,
    time_unix_ms: i64,
}

impl TestWrite {
    /// A write with this body. Its key is its place in the batch, from 1, unless set.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            ..Self::default()
        }
    }

    /// The write key.
    #[must_use]
    pub fn key(mut self, key: [u8; 16]) -> Self {
        self.key = Some(key);
        self
    }

    /// The content type.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// The routing key.
    #[must_use]
    pub fn routing_key(mut self, key: impl Into<String>) -> Self {
        self.routing_key = Some(key.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The rendered text of `Template::slot(slot)`.
    #[must_use]
    pub fn template(mut self, slot: u32, text: impl Into<String>) -> Self {
        self.templates.push((slot, text.into()));
        self
    }

    /// Marks it as possibly landed before.
    #[must_use]
    pub fn may_be_repeat(mut self) -> Self {
        self.may_be_repeat = true;
        self
    }

    /// The message's time.
    #[must_use]
    pub fn time_unix_ms(mut self, time_unix_ms: i64) -> Self {
        self.time_unix_ms = time_unix_ms;
        self
    }
}

/// A batch of these writes, in order.
#[must_use]
pub fn batch(writes: impl IntoIterator<Item = TestWrite>) -> Batch {
    let mut batch = WriteBatch::new();
    for (place, write) in writes.into_iter().enumerate() {
        let number = u128::try_from(place).unwrap_or_default() + 1;
        let first_header = batch.headers.len();
        for (name, value) in &write.headers {
            batch.headers.push(HeaderRow {
                name: Span::push(&mut batch.arena, name.as_bytes()),
                value: Span::push(&mut batch.arena, value),
            });
        }
        let first_template = batch.templates.len();
        for (slot, text) in &write.templates {
            batch.templates.push(TemplateRow {
                slot: *slot,
                text: Span::push(&mut batch.arena, text.as_bytes()),
            });
        }
        let row = WriteRow {
            key: write.key.unwrap_or(number.to_be_bytes()),
            time_unix_ms: write.time_unix_ms,
            flags: if write.may_be_repeat {
                flags::WRITE_MAY_BE_REPEAT
            } else {
                0
            },
            body: Span::push(&mut batch.arena, &write.body),
            content_type: optional(&mut batch, write.content_type.as_deref()),
            routing_key: optional(&mut batch, write.routing_key.as_deref()),
            headers: Span::since(first_header, batch.headers.len()),
            templates: Span::since(first_template, batch.templates.len()),
            attributes: Span::EMPTY,
        };
        batch.rows.push(row);
    }
    Batch::new(batch)
}

fn optional(batch: &mut WriteBatch, text: Option<&str>) -> Span {
    text.map_or(Span::ABSENT, |text| {
        Span::push(&mut batch.arena, text.as_bytes())
    })
}

/// A message as the host received it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Received {
    /// Its id, for settling.
    pub id: u64,
    /// See [`crate::SourceMessage::new`].
    pub body: Vec<u8>,
    /// See [`crate::SourceMessage::header`].
    pub headers: Vec<(String, Vec<u8>)>,
    /// See [`crate::SourceMessage::content_type`].
    pub content_type: Option<String>,
    /// See [`crate::SourceMessage::routing_key`].
    pub routing_key: Option<String>,
    /// See [`crate::SourceMessage::time_unix_ms`].
    pub time_unix_ms: Option<i64>,
    /// See [`crate::SourceMessage::identity`].
    pub identity: Option<Vec<u8>>,
    /// See [`crate::SourceMessage::partition`].
    pub partition: Option<String>,
    /// See [`crate::SourceMessage::offset`].
    pub offset: Option<u64>,
    /// See [`crate::SourceMessage::client_key`].
    pub client_key: Option<String>,
    /// See [`crate::SourceMessage::principal`].
    pub principal: Option<String>,
    /// See [`crate::SourceMessage::position`].
    pub position: Option<Vec<u8>>,
    /// See [`crate::SourceMessage::attribute`]; an object, or null.
    pub attributes: Value,
}

impl Received {
    fn read(batch: &MessageBatch, row: &MessageRow) -> Self {
        let text = |span: Span| span.text(&batch.arena).map(str::to_owned);
        let bytes = |span: Span| span.of(&batch.arena).map(<[u8]>::to_vec);
        Self {
            id: row.id,
            body: bytes(row.body).unwrap_or_default(),
            headers: row
                .headers
                .of(&batch.headers)
                .unwrap_or_default()
                .iter()
                .filter_map(|h| Some((text(h.name)?, bytes(h.value)?)))
                .collect(),
            content_type: text(row.content_type),
            routing_key: text(row.routing_key),
            time_unix_ms: (row.flags & flags::MESSAGE_HAS_TIME != 0).then_some(row.time_unix_ms),
            identity: bytes(row.identity),
            partition: text(row.partition),
            offset: (row.flags & flags::MESSAGE_HAS_OFFSET != 0).then_some(row.offset),
            client_key: text(row.client_key),
            principal: text(row.principal),
            position: bytes(row.position),
            attributes: row
                .source
                .of(&batch.arena)
                .and_then(|json| serde_json::from_slice(json).ok())
                .unwrap_or_default(),
        }
    }
}

enum FromSource {
    Messages(MessageBatch),
    Revoked(u64, Vec<String>),
}

struct Channel(mpsc::UnboundedSender<FromSource>);

impl Upstream for Channel {
    fn deliver(&self, batch: MessageBatch) {
        // The driver may be gone, at the end of a test.
        let _ = self.0.send(FromSource::Messages(batch));
    }

    fn revoked(&self, token: u64, partitions: &[String]) {
        let _ = self.0.send(FromSource::Revoked(token, partitions.to_vec()));
    }
}

/// Plays the host of one running source: grants credits, receives, settles, stops.
///
/// It grants no credit by itself: call [`SourceDriver::credit`].
pub struct SourceDriver {
    state: Arc<SourceState>,
    events: mpsc::UnboundedReceiver<FromSource>,
    received: VecDeque<Received>,
    revoked: VecDeque<(u64, Vec<String>)>,
    run: JoinHandle<Result<(), Failure>>,
}

impl SourceDriver {
    /// Connects, and starts the source without a position.
    ///
    /// # Errors
    /// Whatever the connector says.
    pub async fn connect<S: Source>(
        connection: <S::Connector as Connector>::Config,
        config: S::Config,
    ) -> Result<Self, Failure> {
        let connection = connect::<S::Connector>(connection).await?;
        Ok(Self::start::<S>(connection, config, None))
    }

    /// Starts the source on a connection, from a position the host has kept.
    #[must_use]
    pub fn start<S: Source>(
        connection: Arc<S::Connector>,
        config: S::Config,
        position: Option<Vec<u8>>,
    ) -> Self {
        Self::start_with::<S>(connection, config, position, context())
    }

    /// As [`SourceDriver::start`], with a context of the test's own.
    #[must_use]
    pub fn start_with<S: Source>(
        connection: Arc<S::Connector>,
        config: S::Config,
        position: Option<Vec<u8>>,
        cx: ConnectionContext,
    ) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let state = SourceState::new(Box::new(Channel(sender)));
        let cx = SourceContext::new(cx, position, Arc::clone(&state));
        let run = tokio::spawn(S::run(connection, config, cx));
        Self {
            state,
            events,
            received: VecDeque::new(),
            revoked: VecDeque::new(),
            run,
        }
    }

    /// Grants credits: this many messages more, this many bytes more.
    pub fn credit(&self, count: u64, bytes: u64) {
        self.state.credit(count, bytes);
    }

    /// The next message, or `None` when the source has ended or sends nothing for `within`.
    pub async fn receive(&mut self, within: Duration) -> Option<Received> {
        let deadline = tokio::time::Instant::now() + within;
        while self.received.is_empty() {
            self.event(deadline).await?;
        }
        self.received.pop_front()
    }

    /// Exactly `count` messages; fewer when the time passes first.
    pub async fn receive_many(&mut self, count: usize, within: Duration) -> Vec<Received> {
        let deadline = tokio::time::Instant::now() + within;
        while self.received.len() < count {
            if self.event(deadline).await.is_none() {
                break;
            }
        }
        let count = count.min(self.received.len());
        self.received.drain(..count).collect()
    }

    /// The next revocation's token and partitions; answer with [`SourceDriver::revoke_done`].
    pub async fn revoked(&mut self, within: Duration) -> Option<(u64, Vec<String>)> {
        let deadline = tokio::time::Instant::now() + within;
        while self.revoked.is_empty() {
            self.event(deadline).await?;
        }
        self.revoked.pop_front()
    }

    async fn event(&mut self, deadline: tokio::time::Instant) -> Option<()> {
        match tokio::time::timeout_at(deadline, self.events.recv())
            .await
            .ok()??
        {
            FromSource::Messages(batch) => self
                .received
                .extend(batch.rows.iter().map(|row| Received::read(&batch, row))),
            FromSource::Revoked(token, partitions) => self.revoked.push_back((token, partitions)),
        }
        Some(())
    }

    /// Settles one message.
    pub fn settle(&self, id: u64, result: SettleResult) {
        self.state
            .settle(std::iter::once((MessageId::new(id), result)));
    }

    /// Accepts these messages.
    pub fn accept(&self, ids: impl IntoIterator<Item = u64>) {
        self.state.settle(
            ids.into_iter()
                .map(|id| (MessageId::new(id), SettleResult::Accepted)),
        );
    }

    /// Asks to extend the lease on these.
    pub fn extend(&self, ids: impl IntoIterator<Item = u64>) {
        self.state.extend(ids.into_iter().map(MessageId::new));
    }

    /// Pauses.
    pub fn pause(&self) {
        self.state.pause(true);
    }

    /// Resumes.
    pub fn resume(&self) {
        self.state.pause(false);
    }

    /// Seeks.
    pub fn seek(&self, position: impl Into<Vec<u8>>) {
        self.state.seek(position.into());
    }

    /// Says that everything of a revocation is settled.
    pub fn revoke_done(&self, token: u64) {
        self.state.revoke_done(token);
    }

    /// Releases what is outstanding, stops the source, and waits for `run` to return.
    ///
    /// # Errors
    /// What `run` returned; a failure `did_not_stop` when it has not returned within the time,
    /// `panicked` when it panicked.
    pub async fn stop(self, within: Duration) -> Result<(), Failure> {
        self.state.stop();
        self.ended(within).await
    }

    /// Waits for `run` to return by itself.
    ///
    /// # Errors
    /// As for [`SourceDriver::stop`].
    pub async fn ended(mut self, within: Duration) -> Result<(), Failure> {
        match tokio::time::timeout(within, &mut self.run).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(Failure::other(("panicked", error.to_string()))),
            Err(_) => Err(Failure::other((
                "did_not_stop",
                format!("run did not return within {within:?}"),
            ))),
        }
    }
}

impl Drop for SourceDriver {
    fn drop(&mut self) {
        self.run.abort();
    }
}
