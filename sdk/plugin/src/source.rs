//! The source contract as an author sees it: deliver under credits, then learn what became of
//! each message.

use crate::ConnectionContext;
use crate::message::SourceMessage;
use crate::source_state::{SourceState, Token};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

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
