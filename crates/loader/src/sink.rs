//! Submitting batches.

use crate::answer::Answer;
use crate::call::{Abandon, Failure, millis};
use crate::connection::Inner;
use crate::registry::{Completion, REGISTRY};
use consign_abi::{Call, PluginRef, WriteBatch};
use consign_manifest::Inspection;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;

/// An opened sink. Clones are the same sink.
///
/// When the last clone is dropped without [`SinkHandle::close`], the plugin is told to close it.
#[derive(Clone, Debug)]
pub struct SinkHandle {
    sink: Arc<Sink>,
}

#[derive(Debug)]
struct Sink {
    connection: Arc<Inner>,
    handle: u64,
    closed: AtomicBool,
}

/// Time a plugin gets to close a sink nobody waits for.
const BACKGROUND_CLOSE: Duration = Duration::from_secs(10);

impl Drop for Sink {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Acquire) && self.connection.is_usable() {
            let generation = self.connection.generation();
            let call = Call {
                token: REGISTRY.enter_ignored(generation),
                generation,
                deadline_ms: millis(BACKGROUND_CLOSE),
            };
            (self.connection.vtable().sink_close())(call, self.handle);
        }
    }
}

impl Sink {
    fn is_usable(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && self.connection.is_usable()
    }
}

impl SinkHandle {
    pub(crate) fn new(connection: Arc<Inner>, handle: u64) -> Self {
        Self {
            sink: Arc::new(Sink {
                connection,
                handle,
                closed: AtomicBool::new(false),
            }),
        }
    }

    /// Hands a batch over; never blocks. Several may be in flight. The plugin drops the work at
    /// the deadline and answers aborted; the host sets no timer of its own.
    pub fn submit(&self, batch: WriteBatch, deadline: Duration) -> PendingReply {
        let writes = batch.rows.len();
        if !self.sink.is_usable() {
            return PendingReply(State::Never(writes));
        }
        let connection = &self.sink.connection;
        let (plugin, generation) = (connection.vtable(), connection.generation());
        let (token, receiver) = REGISTRY.enter(generation);
        // A fence that came in between has not seen this token: look again.
        if !self.sink.is_usable() {
            REGISTRY.abandon(token);
            return PendingReply(State::Never(writes));
        }
        let abandon = Abandon {
            plugin,
            token,
            generation,
            armed: true,
        };
        let call = Call {
            token,
            generation,
            deadline_ms: millis(deadline),
        };
        (plugin.sink_submit())(call, self.sink.handle, batch);
        PendingReply(State::Sent {
            receiver,
            abandon,
            writes,
        })
    }

    /// Compares the promise with the live destination.
    ///
    /// # Errors
    /// The plugin failed or gave no readable answer.
    pub async fn inspect(&self, deadline: Duration) -> Result<Inspection, Failure> {
        let handle = self.sink.handle;
        let send = |plugin: PluginRef, call| (plugin.sink_inspect())(call, handle);
        let reply = self.sink.connection.call(deadline, send).await?;
        serde_json::from_slice(&reply.bytes).map_err(|error| {
            REGISTRY.count_garbage();
            Failure::other(
                "bad_reply",
                format!("the inspection is unreadable: {error}"),
            )
        })
    }

    /// Closes it; what is still in flight is aborted and answered so.
    ///
    /// # Errors
    /// The plugin did not manage in time, or not without a panic.
    pub async fn close(&self, deadline: Duration) -> Result<(), Failure> {
        if self.sink.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let handle = self.sink.handle;
        let send = |plugin: PluginRef, call| (plugin.sink_close())(call, handle);
        self.sink.connection.call(deadline, send).await.map(|_| ())
    }
}

/// The answer to a submitted batch, to come. Dropping it cancels the batch; a completion that
/// comes later is counted as late.
#[must_use = "dropping it cancels the batch"]
pub struct PendingReply(State);

enum State {
    Sent {
        receiver: oneshot::Receiver<Completion>,
        abandon: Abandon,
        writes: usize,
    },
    /// The connection was gone already.
    Never(usize),
}

impl PendingReply {
    /// The call's token; 0 when the batch was never handed over.
    #[must_use]
    pub fn token(&self) -> u64 {
        match &self.0 {
            State::Sent { abandon, .. } => abandon.token,
            State::Never(_) => 0,
        }
    }

    /// Cancels from elsewhere while this is awaited.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller(match &self.0 {
            State::Sent { abandon, .. } => {
                Some((abandon.plugin, abandon.token, abandon.generation))
            }
            State::Never(_) => None,
        })
    }

    /// Asks the plugin to drop the batch. The reply then resolves as aborted, or as answered when
    /// that came first. Never blocks; may be called again.
    pub fn cancel(&self) {
        self.canceller().cancel();
    }
}

impl Future for PendingReply {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        match &mut self.0 {
            State::Never(writes) => Poll::Ready(Answer::not_sent(*writes)),
            State::Sent {
                receiver,
                abandon,
                writes,
            } => match Pin::new(receiver).poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(completion) => {
                    abandon.armed = false;
                    let completion = completion.unwrap_or(Completion::Fenced);
                    Poll::Ready(Answer::read(completion, *writes))
                }
            },
        }
    }
}

impl fmt::Debug for PendingReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PendingReply").field(&self.token()).finish()
    }
}

/// Cancels one submitted batch.
#[derive(Clone, Copy)]
pub struct Canceller(Option<(PluginRef, u64, u64)>);

impl Canceller {
    /// As [`PendingReply::cancel`].
    pub fn cancel(&self) {
        if let Some((plugin, token, generation)) = self.0 {
            (plugin.cancel())(token, generation);
        }
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Canceller")
            .field(&self.0.map(|c| c.1))
            .finish()
    }
}
