//! Running sources.

use crate::call::{self, Failure};
use crate::connection::Inner;
use crate::incoming::Incoming;
use crate::registry::{REGISTRY, SourceListener, SourceSignal};
use consign_abi::{Call, ControlKind, PluginRef, ROption, RVec, SettleCode, SettleRow, Span};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// What a source says.
#[derive(Debug)]
#[non_exhaustive]
pub enum SourceEvent {
    /// Messages, in order. Settle each exactly once.
    Messages(Vec<Incoming>),
    /// These partitions are going: settle or release all of their messages, then say
    /// [`SourceHandle::revoke_done`] with the token.
    Revoked {
        /// For `revoke_done`.
        token: u64,
        /// Their names.
        partitions: Vec<String>,
    },
    /// The source has ended. Nothing outstanding can be settled any more; open it again.
    Fault(Failure),
}

/// The events of one source.
#[derive(Debug)]
pub struct SourceEvents {
    receiver: mpsc::UnboundedReceiver<SourceSignal>,
    source: Arc<Source>,
}

impl SourceEvents {
    /// The next event; `None` after a fault, and once the source was stopped. Cancel safe. The
    /// queue behind it holds at most what credits were granted for.
    pub async fn recv(&mut self) -> Option<SourceEvent> {
        let signal = self.receiver.recv().await?;
        Some(match signal {
            SourceSignal::Messages(batch) => SourceEvent::Messages(Incoming::all(batch)),
            SourceSignal::Revoked { token, partitions } => {
                SourceEvent::Revoked { token, partitions }
            }
            SourceSignal::Fault(failure) => {
                self.receiver.close();
                self.source.ended.store(true, Ordering::Release);
                SourceEvent::Fault(failure)
            }
        })
    }
}

/// A running source, for speaking to it. Clones are the same source. Nothing here blocks.
///
/// When the last clone and the events are dropped, the plugin is told to stop it.
#[derive(Clone, Debug)]
pub struct SourceHandle {
    source: Arc<Source>,
}

#[derive(Debug)]
struct Source {
    connection: Arc<Inner>,
    opened_by: u64,
    handle: u64,
    ended: AtomicBool,
}

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettleResult {
    /// Durable: acknowledge it.
    Accepted,
    /// Known already: acknowledge it.
    Repeat,
    /// Never (4xx).
    Refused {
        /// One sentence.
        reason: String,
    },
    /// Lost by rule, with an event.
    Dropped {
        /// One sentence.
        reason: String,
    },
    /// No room (503).
    Blocked {
        /// Until another try makes sense.
        retry_after_ms: u64,
        /// One sentence.
        reason: String,
    },
    /// Another body under the same client key (422).
    Conflict,
    /// The first message with this client key is still being accepted (409).
    InFlight,
    /// Given back: it will come again.
    Released,
}

/// One settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// [`Incoming::id`].
    pub id: u64,
    /// What became of it.
    pub result: SettleResult,
}

pub(crate) async fn open(
    connection: &Arc<Inner>,
    handle: u64,
    request: RVec<u8>,
    position: Option<Vec<u8>>,
    deadline: Duration,
) -> Result<(SourceHandle, SourceEvents), Failure> {
    if !connection.is_usable() {
        return Err(Failure::other(
            "closed",
            "the connection was closed or fenced",
        ));
    }
    let (plugin, generation) = (connection.vtable(), connection.generation());
    let (token, receiver) = REGISTRY.enter(generation);
    let (events, event_receiver) = mpsc::unbounded_channel();
    REGISTRY.sources.lock().insert(
        token,
        SourceListener {
            generation,
            events,
            granted: 0,
            last_id: 0,
        },
    );
    let mut forget = Forget(Some(token));
    let position: ROption<RVec<u8>> = position.map(Into::into).into();
    let send = |call| (plugin.source_open())(call, handle, request, position);
    let reply = call::await_reply(plugin, token, generation, receiver, deadline, send).await?;
    forget.0 = None;
    let source = Arc::new(Source {
        connection: Arc::clone(connection),
        opened_by: token,
        handle: reply.handle,
        ended: AtomicBool::new(false),
    });
    let events = SourceEvents {
        receiver: event_receiver,
        source: Arc::clone(&source),
    };
    Ok((SourceHandle { source }, events))
}

/// Forgets a source's listener when opening it does not come to an end.
struct Forget(Option<u64>);

impl Drop for Forget {
    fn drop(&mut self) {
        if let Some(token) = self.0 {
            REGISTRY.sources.lock().remove(&token);
        }
    }
}

/// Time a plugin gets to stop a source nobody waits for.
const BACKGROUND_STOP: Duration = Duration::from_secs(10);

impl Drop for Source {
    fn drop(&mut self) {
        REGISTRY.sources.lock().remove(&self.opened_by);
        if !self.ended.load(Ordering::Acquire) && self.connection.is_usable() {
            let generation = self.connection.generation();
            let call = Call {
                token: REGISTRY.enter_ignored(generation),
                generation,
                deadline_ms: call::millis(BACKGROUND_STOP),
            };
            (self.connection.vtable().source_stop())(call, self.handle);
        }
    }
}

impl SourceHandle {
    fn plugin(&self) -> PluginRef {
        self.source.connection.vtable()
    }

    /// Grants credits on top of what is left: messages and bytes. A message larger than the bytes
    /// left still comes when it is next, so the overdraft is one message.
    pub fn credit(&self, count: u64, bytes: u64) {
        // Entered before the plugin hears of it, so that it can't deliver too early.
        if let Some(listener) = REGISTRY.sources.lock().get_mut(&self.source.opened_by) {
            listener.granted = listener.granted.saturating_add(count);
        }
        (self.plugin().source_credit())(self.source.handle, count, bytes);
    }

    /// Settles messages: one crossing for all of them. Ids the source does not know are ignored.
    pub fn settle(&self, settlements: impl IntoIterator<Item = Settle>) {
        let mut arena = RVec::new();
        let mut rows = RVec::new();
        for settle in settlements {
            rows.push(row(settle, &mut arena));
        }
        if !rows.is_empty() {
            (self.plugin().source_settle())(self.source.handle, rows, arena);
        }
    }

    /// Asks the source to keep its lease on these messages.
    pub fn extend(&self, ids: Vec<u64>) {
        if !ids.is_empty() {
            (self.plugin().source_extend())(self.source.handle, ids.into());
        }
    }

    /// Nothing more for now. What was delivered before may still be in the queue.
    pub fn pause(&self) {
        (self.plugin().source_control())(self.source.handle, ControlKind::Pause.code());
    }

    /// Deliver again.
    pub fn resume(&self) {
        (self.plugin().source_control())(self.source.handle, ControlKind::Resume.code());
    }

    /// Go to a position.
    pub fn seek(&self, position: Vec<u8>) {
        (self.plugin().source_seek())(self.source.handle, position.into());
    }

    /// Everything of a revocation is settled; what is not is released by the source itself.
    pub fn revoke_done(&self, token: u64) {
        (self.plugin().source_revoke_done())(self.source.handle, token);
    }

    /// Stops the source and waits for it. What is outstanding is released. Events end.
    ///
    /// # Errors
    /// `deadline`: it did not stop in time and was dropped. `hung`: it does not even say so.
    pub async fn stop(&self, deadline: Duration) -> Result<(), Failure> {
        if self.source.ended.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let handle = self.source.handle;
        let send = |plugin: PluginRef, call| (plugin.source_stop())(call, handle);
        let result = self.source.connection.call(deadline, send).await;
        REGISTRY.sources.lock().remove(&self.source.opened_by);
        result.map(|_| ())
    }
}

fn row(settle: Settle, arena: &mut RVec<u8>) -> SettleRow {
    let mut wait = 0;
    let mut put = |reason: String| Span::push(arena, reason.as_bytes());
    let (code, reason) = match settle.result {
        SettleResult::Accepted => (SettleCode::Accepted, Span::ABSENT),
        SettleResult::Repeat => (SettleCode::Repeat, Span::ABSENT),
        SettleResult::Refused { reason } => (SettleCode::Refused, put(reason)),
        SettleResult::Dropped { reason } => (SettleCode::Dropped, put(reason)),
        SettleResult::Blocked {
            retry_after_ms,
            reason,
        } => {
            wait = retry_after_ms;
            (SettleCode::Blocked, put(reason))
        }
        SettleResult::Conflict => (SettleCode::Conflict, Span::ABSENT),
        SettleResult::InFlight => (SettleCode::InFlight, Span::ABSENT),
        SettleResult::Released => (SettleCode::Released, Span::ABSENT),
    };
    SettleRow {
        id: settle.id,
        result: code.code(),
        retry_after_ms: wait,
        reason,
    }
}
