//! What a running source and the host know of each other: credits, messages not yet settled, and
//! what the host has asked for. One lock, never held across an await.

use crate::message::SourceMessage;
use crate::source::{Control, MessageId, SettleResult, Settled, Stopped};
use consign_abi::MessageBatch;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

/// Bytes after which a delivery is handed over and the next one begun: one arena holds 4 GiB.
const BATCH_BYTES: usize = 64 << 20;

/// The token an author ties to a message.
pub(crate) type Token = Arc<dyn Any + Send + Sync>;

/// The host's side of a source, as the source sees it.
pub(crate) trait Upstream: Send + Sync + 'static {
    /// Hands messages over; never blocks.
    fn deliver(&self, batch: MessageBatch);
    /// Says that partitions are going; the host answers with `revoke_done(token)`.
    fn revoked(&self, token: u64, partitions: &[String]);
}

struct Outstanding {
    partition: Option<String>,
    token: Option<Token>,
    waiter: Option<oneshot::Sender<SettleResult>>,
}

struct Revoke {
    partitions: Vec<String>,
    settled: Vec<Settled>,
    done: Option<oneshot::Sender<Vec<Settled>>>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    credit_count: u64,
    /// May fall below zero: one message larger than what is left still passes, or it never would.
    credit_bytes: i64,
    paused: bool,
    paused_told: bool,
    stopped: bool,
    stop_told: bool,
    outstanding: BTreeMap<MessageId, Outstanding>,
    settled: Vec<Settled>,
    extend: BTreeSet<MessageId>,
    seek: Option<Vec<u8>>,
    next_revoke: u64,
    revokes: BTreeMap<u64, Revoke>,
}

pub(crate) struct SourceState {
    state: Mutex<State>,
    upstream: Box<dyn Upstream>,
    /// Woken when credits came, or pause or stop changed.
    room: Notify,
    /// Woken when there is something for `control`.
    control: Notify,
}

impl SourceState {
    pub(crate) fn new(upstream: Box<dyn Upstream>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::default()),
            upstream,
            room: Notify::new(),
            control: Notify::new(),
        })
    }

    // What the source calls.

    /// Waits until something may be delivered; how many messages.
    pub(crate) async fn ready(&self) -> Result<usize, Stopped> {
        loop {
            let woken = self.room.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            {
                let state = self.state.lock();
                if state.stopped {
                    return Err(Stopped);
                }
                if state.has_room() {
                    return Ok(usize::try_from(state.credit_count).unwrap_or(usize::MAX));
                }
            }
            woken.await;
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        let state = self.state.lock();
        !state.stopped && state.has_room()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.state.lock().paused
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    pub(crate) async fn stopped(&self) {
        while self.ready_or_not().await.is_ok() {}
    }

    /// Waits for any change; an error when stopped.
    async fn ready_or_not(&self) -> Result<(), Stopped> {
        let woken = self.room.notified();
        tokio::pin!(woken);
        woken.as_mut().enable();
        if self.is_stopped() {
            return Err(Stopped);
        }
        woken.await;
        Ok(())
    }

    pub(crate) async fn deliver(
        &self,
        messages: Vec<SourceMessage>,
    ) -> Result<Vec<MessageId>, Stopped> {
        let mut ids = Vec::with_capacity(messages.len());
        let mut waiting = VecDeque::from(messages);
        while !waiting.is_empty() {
            self.ready().await?;
            self.deliver_now(&mut waiting, &mut ids)?;
        }
        Ok(ids)
    }

    pub(crate) async fn deliver_and_wait(&self, mut message: SourceMessage) -> SettleResult {
        let (sender, receiver) = oneshot::channel();
        message.waiter = Some(sender);
        if self.deliver(vec![message]).await.is_err() {
            return SettleResult::Released;
        }
        receiver.await.unwrap_or(SettleResult::Released)
    }

    /// Delivers as many as the credits allow.
    fn deliver_now(
        &self,
        waiting: &mut VecDeque<SourceMessage>,
        ids: &mut Vec<MessageId>,
    ) -> Result<(), Stopped> {
        let mut batch = MessageBatch::new();
        let mut too_large = false;
        {
            let mut state = self.state.lock();
            if state.stopped {
                return Err(Stopped);
            }
            while state.has_room() && batch.arena.len() < BATCH_BYTES {
                let Some(mut message) = waiting.pop_front() else {
                    break;
                };
                state.next_id += 1;
                let id = MessageId::new(state.next_id);
                let too_large_for_an_arena = message.is_too_large();
                if !too_large_for_an_arena {
                    state.credit_count -= 1;
                    state.credit_bytes = state.credit_bytes.saturating_sub(message.weight());
                }
                state.outstanding.insert(
                    id,
                    Outstanding {
                        partition: message.partition_name(),
                        token: message.token.take(),
                        waiter: message.waiter.take(),
                    },
                );
                ids.push(id);
                if too_large_for_an_arena {
                    let reason = "a message holds at most 2 GiB".to_owned();
                    too_large |= state.settle(id, SettleResult::Refused { reason });
                } else {
                    message.encode(id, &mut batch);
                }
            }
            // Inside the lock, so that batches of several tasks leave in the order of their ids.
            if !batch.rows.is_empty() {
                self.upstream.deliver(batch);
            }
        }
        if too_large {
            self.control.notify_waiters();
        }
        Ok(())
    }

    pub(crate) fn token(&self, id: MessageId) -> Option<Token> {
        self.state
            .lock()
            .outstanding
            .get(&id)
            .and_then(|o| o.token.clone())
    }

    pub(crate) async fn revoke(&self, partitions: Vec<String>) -> Vec<Settled> {
        let (done, receiver) = oneshot::channel();
        {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            if state.stopped {
                return state.release(&partitions);
            }
            state.next_revoke += 1;
            let token = state.next_revoke;
            let of_them =
                |s: &Settled| s.partition.as_ref().is_some_and(|p| partitions.contains(p));
            let settled = state.settled.extract_if(.., |s| of_them(s)).collect();
            state.revokes.insert(
                token,
                Revoke {
                    partitions: partitions.clone(),
                    settled,
                    done: Some(done),
                },
            );
            self.upstream.revoked(token, &partitions);
        }
        receiver.await.unwrap_or_default()
    }

    pub(crate) async fn next_control(&self) -> Control {
        loop {
            let woken = self.control.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if let Some(control) = self.state.lock().next_control() {
                return control;
            }
            woken.await;
        }
    }

    // What the host calls.

    pub(crate) fn credit(&self, count: u64, bytes: u64) {
        {
            let mut state = self.state.lock();
            state.credit_count = state.credit_count.saturating_add(count);
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            state.credit_bytes = state.credit_bytes.saturating_add(bytes);
        }
        self.room.notify_waiters();
    }

    /// Settles messages; ids that are not outstanding are ignored.
    pub(crate) fn settle(&self, results: impl Iterator<Item = (MessageId, SettleResult)>) {
        let mut any = false;
        {
            let mut state = self.state.lock();
            for (id, result) in results {
                any |= state.settle(id, result);
            }
        }
        if any {
            self.control.notify_waiters();
        }
    }

    pub(crate) fn extend(&self, ids: impl Iterator<Item = MessageId>) {
        {
            let mut state = self.state.lock();
            for id in ids {
                if state.outstanding.contains_key(&id) {
                    state.extend.insert(id);
                }
            }
        }
        self.control.notify_waiters();
    }

    pub(crate) fn pause(&self, paused: bool) {
        self.state.lock().paused = paused;
        self.control.notify_waiters();
        self.room.notify_waiters();
    }

    pub(crate) fn seek(&self, position: Vec<u8>) {
        self.state.lock().seek = Some(position);
        self.control.notify_waiters();
    }

    pub(crate) fn revoke_done(&self, token: u64) {
        let done = {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            let Some(mut revoke) = state.revokes.remove(&token) else {
                return;
            };
            revoke.settled.extend(state.release(&revoke.partitions));
            revoke.done.take().map(|done| (done, revoke.settled))
        };
        if let Some((done, settled)) = done {
            // The source may have given up waiting.
            let _ = done.send(settled);
        }
    }

    /// Releases everything outstanding and tells the source to stop.
    pub(crate) fn stop(&self) {
        let revokes: Vec<u64> = {
            let mut state = self.state.lock();
            state.stopped = true;
            state.revokes.keys().copied().collect()
        };
        for token in revokes {
            self.revoke_done(token);
        }
        let ids: Vec<MessageId> = self.state.lock().outstanding.keys().copied().collect();
        self.settle(ids.into_iter().map(|id| (id, SettleResult::Released)));
        self.control.notify_waiters();
        self.room.notify_waiters();
    }
}

impl State {
    fn has_room(&self) -> bool {
        !self.paused && self.credit_count > 0 && self.credit_bytes > 0
    }

    /// Settles one message; whether `control` has something new.
    fn settle(&mut self, id: MessageId, result: SettleResult) -> bool {
        let Some(outstanding) = self.outstanding.remove(&id) else {
            return false;
        };
        self.extend.remove(&id);
        if let Some(waiter) = outstanding.waiter {
            // The waiter may have gone away: then nobody wants to know.
            let _ = waiter.send(result);
            return false;
        }
        let settled = Settled {
            id,
            result,
            token: outstanding.token,
            partition: outstanding.partition,
        };
        let revoke = self.revokes.values_mut().find(|r| {
            settled
                .partition
                .as_ref()
                .is_some_and(|p| r.partitions.contains(p))
        });
        if let Some(revoke) = revoke {
            revoke.settled.push(settled);
            return false;
        }
        self.settled.push(settled);
        true
    }

    /// Takes everything outstanding of these partitions as released.
    fn release(&mut self, partitions: &[String]) -> Vec<Settled> {
        let of_them =
            |o: &Outstanding| o.partition.as_ref().is_some_and(|p| partitions.contains(p));
        let ids: Vec<MessageId> = self
            .outstanding
            .iter()
            .filter(|(_, o)| of_them(o))
            .map(|(id, _)| *id)
            .collect();
        let before = self.settled.len();
        for id in ids {
            self.settle(id, SettleResult::Released);
        }
        self.settled.split_off(before)
    }

    fn next_control(&mut self) -> Option<Control> {
        if !self.settled.is_empty() {
            return Some(Control::Settle(std::mem::take(&mut self.settled)));
        }
        if self.stopped {
            self.stop_told = true;
            return Some(Control::Stop);
        }
        if !self.extend.is_empty() {
            let ids = std::mem::take(&mut self.extend);
            return Some(Control::Extend(ids.into_iter().collect()));
        }
        if let Some(position) = self.seek.take() {
            return Some(Control::Seek(position));
        }
        if self.paused != self.paused_told {
            self.paused_told = self.paused;
            return Some(if self.paused {
                Control::Pause
            } else {
                Control::Resume
            });
        }
        None
    }
}
