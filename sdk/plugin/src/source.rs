//! The source contract as an author sees it: deliver under credits, then learn what became of
//! each message.

use crate::ConnectionContext;
use crate::source_state::{SourceState, Token};
use consign_abi::{HeaderRow, MessageBatch, MessageRow, Span, flags};
use serde_json::{Map, Value};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The number of a delivered message, unique within one `run`, rising in order of delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(u64);

impl MessageId {
    pub(crate) fn new(id: u64) -> Self {
        Self(id)
    }

    /// The bare number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The host has told the source to stop: nothing is delivered any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the host has stopped this source")
    }
}

impl std::error::Error for Stopped {}

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettleResult {
    /// Durable in the host: acknowledge it.
    Accepted,
    /// Known already: acknowledge it.
    Repeat,
    /// The host will never take it (4xx); a broker's message is acknowledged or rejected for good.
    Refused {
        /// One sentence.
        reason: String,
    },
    /// Lost by a rule or a failure, with an event: acknowledge it, but never say that it arrived.
    Dropped {
        /// One sentence.
        reason: String,
    },
    /// No room (503). It was not taken; the host does not want it again before the time is over.
    Blocked {
        /// Milliseconds.
        retry_after_ms: u64,
        /// One sentence.
        reason: String,
    },
    /// Another body came under the same client key before (422).
    Conflict,
    /// The first message with this client key is still being accepted (409).
    InFlight,
    /// Given back (stop, revoke, fault): do not acknowledge it; it will come again.
    Released,
}

impl SettleResult {
    /// Whether the source may acknowledge the message: it is safe in the host, or lost on record.
    #[must_use]
    pub fn acknowledges(&self) -> bool {
        matches!(
            self,
            Self::Accepted | Self::Repeat | Self::Refused { .. } | Self::Dropped { .. }
        )
    }
}

/// A message and what became of it. Every delivered message gets exactly one: through
/// [`Control::Settle`], from [`SourceContext::revoke`], or from
/// [`Deliverer::deliver_and_wait`].
#[derive(Clone)]
#[non_exhaustive]
pub struct Settled {
    /// The message.
    pub id: MessageId,
    /// What became of it.
    pub result: SettleResult,
    pub(crate) token: Option<Token>,
    pub(crate) partition: Option<String>,
}

impl Settled {
    /// The token tied to the message with [`SourceMessage::token`], when it is a `T`.
    #[must_use]
    pub fn token<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.token.clone()?.downcast().ok()
    }

    /// The message's partition, where it has one.
    #[must_use]
    pub fn partition(&self) -> Option<&str> {
        self.partition.as_deref()
    }
}

impl fmt::Debug for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settled")
            .field("id", &self.id.0)
            .field("result", &self.result)
            .finish_non_exhaustive()
    }
}

/// What the host asks of a source.
#[derive(Debug)]
#[non_exhaustive]
pub enum Control {
    /// These messages are settled: acknowledge or give back, in this order.
    Settle(Vec<Settled>),
    /// The host still works on these: extend their lease (in-progress, visibility timeout).
    Extend(Vec<MessageId>),
    /// Deliver nothing more; [`Deliverer::deliver`] waits meanwhile.
    Pause,
    /// Deliver again.
    Resume,
    /// Go to this position, one the source gave earlier or one an operator wrote.
    Seek(Vec<u8>),
    /// Return from `run` soon. Everything outstanding has been released before. From now on
    /// every call gives `Stop` again.
    Stop,
}

/// A message for the host. Build it up: `SourceMessage::new(body).header("a", "b")`.
pub struct SourceMessage {
    body: Vec<u8>,
    headers: Vec<(String, Vec<u8>)>,
    content_type: Option<String>,
    routing_key: Option<String>,
    time_unix_ms: Option<i64>,
    identity: Option<Vec<u8>>,
    partition: Option<String>,
    offset: Option<u64>,
    client_key: Option<String>,
    principal: Option<String>,
    position: Option<Vec<u8>>,
    attributes: Map<String, Value>,
    pub(crate) token: Option<Token>,
    pub(crate) waiter: Option<oneshot::Sender<SettleResult>>,
}

impl SourceMessage {
    /// A message with this body and nothing else.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            headers: Vec::new(),
            content_type: None,
            routing_key: None,
            time_unix_ms: None,
            identity: None,
            partition: None,
            offset: None,
            client_key: None,
            principal: None,
            position: None,
            attributes: Map::new(),
            token: None,
            waiter: None,
        }
    }

    /// Adds a header; a name may come twice. Inbound auth headers do not belong here.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The body's content type.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// The subject, topic or path patterns match on.
    #[must_use]
    pub fn routing_key(mut self, key: impl Into<String>) -> Self {
        self.routing_key = Some(key.into());
        self
    }

    /// When the message came into being, unix milliseconds. Default: when the host received it.
    #[must_use]
    pub fn time_unix_ms(mut self, time_unix_ms: i64) -> Self {
        self.time_unix_ms = Some(time_unix_ms);
        self
    }

    /// What names it across redeliveries, when the declaration says `stable`. Never a receipt, a
    /// delivery tag, a receive time or the body alone.
    #[must_use]
    pub fn identity(mut self, identity: impl Into<Vec<u8>>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// The partition of a cumulative position.
    #[must_use]
    pub fn partition(mut self, partition: impl Into<String>) -> Self {
        self.partition = Some(partition.into());
        self
    }

    /// The offset within the partition; rises with delivery.
    #[must_use]
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// The client's idempotency key (session-based sources).
    #[must_use]
    pub fn client_key(mut self, key: impl Into<String>) -> Self {
        self.client_key = Some(key.into());
        self
    }

    /// Who sent it: client keys are kept apart by principal.
    #[must_use]
    pub fn principal(mut self, principal: impl Into<String>) -> Self {
        self.principal = Some(principal.into());
        self
    }

    /// The position to resume from once this message is accepted, for the host to keep; comes
    /// back from [`SourceContext::position`].
    #[must_use]
    pub fn position(mut self, position: impl Into<Vec<u8>>) -> Self {
        self.position = Some(position.into());
        self
    }

    /// A field of `.source` in conditions and templates.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// Adds fields of `.source`.
    #[must_use]
    pub fn attributes(mut self, attributes: Map<String, Value>) -> Self {
        self.attributes.extend(attributes);
        self
    }

    /// Ties something of the source's own to the message (a broker's acknowledgement handle); it
    /// comes back in [`Settled::token`] and from [`Controls::token`]. So no map from ids to
    /// handles is needed, and a settlement can't overtake it.
    #[must_use]
    pub fn token<T: Any + Send + Sync>(mut self, token: T) -> Self {
        self.token = Some(Arc::new(token));
        self
    }

    /// Bytes it takes of the credits.
    pub(crate) fn weight(&self) -> i64 {
        let headers: usize = self.headers.iter().map(|(n, v)| n.len() + v.len()).sum();
        i64::try_from(self.body.len() + headers).unwrap_or(i64::MAX)
    }

    /// Whether it would not fit into an arena together with what may be there already.
    pub(crate) fn is_too_large(&self) -> bool {
        const AT_MOST: i64 = 2 << 30;
        self.weight() > AT_MOST
    }

    pub(crate) fn partition_name(&self) -> Option<String> {
        self.partition.clone()
    }

    pub(crate) fn encode(self, id: MessageId, batch: &mut MessageBatch) {
        let arena = &mut batch.arena;
        let first_header = batch.headers.len();
        for (name, value) in &self.headers {
            batch.headers.push(HeaderRow {
                name: Span::push(arena, name.as_bytes()),
                value: Span::push(arena, value),
            });
        }
        let mut text = |text: &Option<String>| match text {
            Some(text) => Span::push(arena, text.as_bytes()),
            None => Span::ABSENT,
        };
        let content_type = text(&self.content_type);
        let routing_key = text(&self.routing_key);
        let partition = text(&self.partition);
        let client_key = text(&self.client_key);
        let principal = text(&self.principal);
        let mut bytes = |bytes: &Option<Vec<u8>>| match bytes {
            Some(bytes) => Span::push(arena, bytes),
            None => Span::ABSENT,
        };
        let identity = bytes(&self.identity);
        let position = bytes(&self.position);
        let source = if self.attributes.is_empty() {
            Span::ABSENT
        } else {
            Span::push(arena, Value::Object(self.attributes).to_string().as_bytes())
        };
        let mut set = 0;
        if self.offset.is_some() {
            set |= flags::MESSAGE_HAS_OFFSET;
        }
        if self.time_unix_ms.is_some() {
            set |= flags::MESSAGE_HAS_TIME;
        }
        batch.rows.push(MessageRow {
            id: id.0,
            time_unix_ms: self.time_unix_ms.unwrap_or_default(),
            offset: self.offset.unwrap_or_default(),
            flags: set,
            body: Span::push(arena, &self.body),
            content_type,
            routing_key,
            identity,
            partition,
            client_key,
            principal,
            position,
            source,
            headers: Span::since(first_header, batch.headers.len()),
            attributes: Span::EMPTY,
        });
    }
}

impl fmt::Debug for SourceMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceMessage")
            .field("bytes", &self.body.len())
            .field("routing_key", &self.routing_key)
            .field("partition", &self.partition)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

/// What `run` owns: its place in the host, and both directions of the source contract. Use it as
/// it is in a single loop, or [`SourceContext::split`] it.
pub struct SourceContext {
    cx: ConnectionContext,
    position: Option<Vec<u8>>,
    state: Arc<SourceState>,
}

impl SourceContext {
    pub(crate) fn new(
        cx: ConnectionContext,
        position: Option<Vec<u8>>,
        state: Arc<SourceState>,
    ) -> Self {
        Self {
            cx,
            position,
            state,
        }
    }

    /// The place in the host: names, scratch folder, tasks.
    #[must_use]
    pub fn connection(&self) -> &ConnectionContext {
        &self.cx
    }

    /// The position the host has kept, of the last message accepted; `None` at the very first
    /// start, and where the broker keeps it.
    #[must_use]
    pub fn position(&self) -> Option<Vec<u8>> {
        self.position.clone()
    }

    /// As [`Deliverer::deliver`].
    ///
    /// # Errors
    /// The host has stopped the source.
    pub async fn deliver(&self, messages: Vec<SourceMessage>) -> Result<Vec<MessageId>, Stopped> {
        self.state.deliver(messages).await
    }

    /// As [`Controls::next`].
    pub async fn control(&self) -> Control {
        self.state.next_control().await
    }

    /// As [`Controls::revoke`].
    pub async fn revoke(&self, partitions: Vec<String>) -> Vec<Settled> {
        self.state.revoke(partitions).await
    }

    /// As [`Controls::token`].
    #[must_use]
    pub fn token<T: Any + Send + Sync>(&self, id: MessageId) -> Option<Arc<T>> {
        self.state.token(id)?.downcast().ok()
    }

    /// Both directions apart, so that a receiving and a settling loop run side by side.
    #[must_use]
    pub fn split(self) -> (Deliverer, Controls) {
        (
            Deliverer(Arc::clone(&self.state)),
            Controls {
                state: self.state,
                cx: self.cx,
            },
        )
    }
}

/// The delivering half. Clones deliver concurrently; the host sees batches whole.
#[derive(Clone)]
pub struct Deliverer(Arc<SourceState>);

impl Deliverer {
    /// Hands messages over, in order, and returns their ids. Waits (never blocks a thread) while
    /// the host grants no credits in count or bytes, and while paused. A message larger than the
    /// bytes granted still passes when it is first; one above 2 GiB is settled as refused.
    ///
    /// Not cancel safe: when the future is dropped early, some messages are with the host (and
    /// will be settled) and the rest is not. In a `select!`, await [`Deliverer::ready`] instead
    /// and deliver after it.
    ///
    /// # Errors
    /// The host has stopped the source. What it had taken before is released.
    pub async fn deliver(&self, messages: Vec<SourceMessage>) -> Result<Vec<MessageId>, Stopped> {
        self.0.deliver(messages).await
    }

    /// Hands one message over and waits until it is settled: for sources that answer inline on a
    /// session. Its settlement goes to nobody else. `Released` when the host stops the source or
    /// it faults. Dropping the future does not take the message back. For a bounded wait, put a
    /// timeout on [`Deliverer::ready`] first.
    pub async fn deliver_and_wait(&self, message: SourceMessage) -> SettleResult {
        self.0.deliver_and_wait(message).await
    }

    /// Waits until the host grants credit and is not paused; gives the number of messages that
    /// may be delivered now. Cancel safe. A pull-based source fetches that many at most.
    ///
    /// # Errors
    /// The host has stopped the source.
    pub async fn ready(&self) -> Result<usize, Stopped> {
        self.0.ready().await
    }

    /// Whether [`Deliverer::ready`] would return at once.
    #[must_use]
    pub fn has_credit(&self) -> bool {
        self.0.has_room()
    }

    /// Whether the host has paused the source.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.0.is_paused()
    }

    /// Whether the host has stopped the source.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }

    /// Completes when the host stops the source. Cancel safe.
    pub async fn stopped(&self) {
        self.0.stopped().await;
    }
}

/// The half that hears from the host.
pub struct Controls {
    state: Arc<SourceState>,
    cx: ConnectionContext,
}

impl Controls {
    /// What the host asks for next. Waits; cancel safe. Settlements come first, then stop, then
    /// the rest; requests of one kind that came while nobody listened are merged.
    pub async fn next(&self) -> Control {
        self.state.next_control().await
    }

    /// Tells the host that partitions are going (a rebalance), and waits until it has settled or
    /// released every message of them. Returns those of them that [`Controls::next`] had not
    /// given yet: commit what [`SettleResult::acknowledges`], then let the partitions go.
    pub async fn revoke(&self, partitions: Vec<String>) -> Vec<Settled> {
        self.state.revoke(partitions).await
    }

    /// The token tied to an outstanding message, when it is a `T`; for [`Control::Extend`].
    #[must_use]
    pub fn token<T: Any + Send + Sync>(&self, id: MessageId) -> Option<Arc<T>> {
        self.state.token(id)?.downcast().ok()
    }

    /// Completes when the host stops the source. Cancel safe.
    pub async fn stopped(&self) {
        self.state.stopped().await;
    }

    /// The place in the host: names, scratch folder, tasks.
    #[must_use]
    pub fn connection(&self) -> &ConnectionContext {
        &self.cx
    }
}
