//! Calls that wait for their completion, and listeners for what plugins say unasked. One registry
//! per process: tokens are never reused, so a completion finds its call or nothing.

use crate::call::Failure;
use consign_abi::{MessageBatch, Reply};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{mpsc, oneshot, watch};

/// Abandoned calls that are remembered, so that their completion is counted as late: enough for
/// every request of 256 hosts' in-flight limits. An older one counts as double when it comes.
const ABANDONED_AT_MOST: usize = 65_536;

/// Shards, so that completions of several plugins seldom meet.
const SHARDS: usize = 16;

/// Completions that were ignored, since the process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompletionCounts {
    /// Of a call that was cancelled, fenced or given up.
    pub late: u64,
    /// Of a call that was completed before.
    pub double: u64,
    /// With a token or generation that was never given out.
    pub foreign: u64,
    /// Replies and deliveries that break the contract (outcomes missing, surplus or out of
    /// range, ids that do not rise).
    pub garbage: u64,
    /// Deliveries without credit.
    pub over_credit: u64,
}

/// How a call ended, seen from the host.
#[allow(
    clippy::large_enum_variant,
    reason = "moved once, from the plugin's thread to whoever waits; a box would cost more"
)]
pub(crate) enum Completion {
    Reply(Reply),
    Fenced,
}

enum Entry {
    Waiting {
        generation: u64,
        sender: oneshot::Sender<Completion>,
    },
    /// Given up; a completion is late.
    Abandoned { generation: u64 },
    /// Sent without interest in the answer.
    Ignored { generation: u64 },
}

pub(crate) enum SourceSignal {
    Messages(MessageBatch),
    Revoked { token: u64, partitions: Vec<String> },
    Fault(Failure),
}

pub(crate) struct SourceListener {
    pub generation: u64,
    pub events: mpsc::UnboundedSender<SourceSignal>,
    /// Messages granted and not yet delivered: bounds the queue.
    pub granted: u64,
    /// Highest id so far.
    pub last_id: u64,
}

pub(crate) struct ConnectionListener {
    pub generation: u64,
    pub fault: watch::Sender<Option<Failure>>,
}

#[derive(Default)]
pub(crate) struct Registry {
    issued: AtomicU64,
    shards: [Mutex<HashMap<u64, Entry>>; SHARDS],
    abandoned: Mutex<VecDeque<u64>>,
    pub sources: Mutex<HashMap<u64, SourceListener>>,
    pub connections: Mutex<HashMap<u64, ConnectionListener>>,
    late: AtomicU64,
    double: AtomicU64,
    foreign: AtomicU64,
    garbage: AtomicU64,
    over_credit: AtomicU64,
}

/// The registry of this process.
pub(crate) static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::default);

impl Registry {
    /// A number for a call, connection instance or plugin: unique in the process.
    pub fn issue(&self) -> u64 {
        self.issued.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn shard(&self, token: u64) -> &Mutex<HashMap<u64, Entry>> {
        let place = usize::try_from(token).unwrap_or(0) % SHARDS;
        // `place` is below SHARDS; the fallback is never taken.
        self.shards.get(place).unwrap_or(&self.shards[0])
    }

    /// Enters a call; the receiver gets its completion.
    pub fn enter(&self, generation: u64) -> (u64, oneshot::Receiver<Completion>) {
        let token = self.issue();
        let (sender, receiver) = oneshot::channel();
        let entry = Entry::Waiting { generation, sender };
        self.shard(token).lock().insert(token, entry);
        (token, receiver)
    }

    /// Enters a call whose answer nobody wants.
    pub fn enter_ignored(&self, generation: u64) -> u64 {
        let token = self.issue();
        let entry = Entry::Ignored { generation };
        self.shard(token).lock().insert(token, entry);
        token
    }

    /// Gives a call up; does nothing when it was completed.
    pub fn abandon(&self, token: u64) {
        {
            let mut shard = self.shard(token).lock();
            let Some(Entry::Waiting { generation, .. }) = shard.get(&token) else {
                return;
            };
            let generation = *generation;
            shard.insert(token, Entry::Abandoned { generation });
        }
        let oldest = {
            let mut abandoned = self.abandoned.lock();
            abandoned.push_back(token);
            if abandoned.len() > ABANDONED_AT_MOST {
                abandoned.pop_front()
            } else {
                None
            }
        };
        if let Some(oldest) = oldest {
            let mut shard = self.shard(oldest).lock();
            if matches!(shard.get(&oldest), Some(Entry::Abandoned { .. })) {
                shard.remove(&oldest);
            }
        }
    }

    /// Answers every waiting call of a generation as fenced, and silences its listeners.
    pub fn fence(&self, generation: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            for entry in shard.values_mut() {
                if matches!(entry, Entry::Waiting { generation: g, .. } if *g == generation)
                    && let Entry::Waiting { sender, .. } =
                        std::mem::replace(entry, Entry::Abandoned { generation })
                {
                    // Nobody may be waiting any more.
                    let _ = sender.send(Completion::Fenced);
                }
            }
        }
        self.connections
            .lock()
            .retain(|_, listener| listener.generation != generation);
        let fault = Failure::other("fenced", "the connection was fenced and will be rebuilt");
        self.sources.lock().retain(|_, listener| {
            let keep = listener.generation != generation;
            if !keep {
                let _ = listener.events.send(SourceSignal::Fault(fault.clone()));
            }
            keep
        });
    }

    /// A plugin has completed a call.
    pub fn complete(&self, token: u64, generation: u64, reply: Reply) {
        let taken = {
            let mut shard = self.shard(token).lock();
            let known = match shard.get(&token) {
                Some(
                    Entry::Waiting { generation: g, .. }
                    | Entry::Abandoned { generation: g }
                    | Entry::Ignored { generation: g },
                ) => Some(*g),
                None => None,
            };
            match known {
                Some(g) if g == generation => shard.remove(&token),
                Some(_) => {
                    add(&self.foreign);
                    return;
                }
                None => None,
            }
        };
        match taken {
            Some(Entry::Waiting { sender, .. }) => {
                if sender.send(Completion::Reply(reply)).is_err() {
                    add(&self.late);
                }
            }
            Some(Entry::Abandoned { .. }) => add(&self.late),
            Some(Entry::Ignored { .. }) => {}
            None if token == 0 || token > self.issued.load(Ordering::Relaxed) => {
                add(&self.foreign);
            }
            None => add(&self.double),
        }
    }

    /// A plugin hands messages over.
    pub fn deliver(&self, token: u64, generation: u64, batch: MessageBatch) {
        let mut sources = self.sources.lock();
        let Some(listener) = sources.get_mut(&token) else {
            return self.unheard(token);
        };
        if listener.generation != generation {
            return add(&self.foreign);
        }
        let count = u64::try_from(batch.rows.len()).unwrap_or(u64::MAX);
        let mut last = listener.last_id;
        let rising = batch.rows.iter().all(|row| {
            let rises = row.id > last;
            last = row.id;
            rises
        });
        let fault = if count > listener.granted {
            add(&self.over_credit);
            let message = format!(
                "the source delivered {count} messages with credit for {}",
                listener.granted
            );
            Some(Failure::other("over_credit", message))
        } else if !rising {
            add(&self.garbage);
            Some(Failure::other(
                "message_ids",
                "the source delivered message ids that do not rise",
            ))
        } else {
            None
        };
        if let Some(fault) = fault {
            let _ = listener.events.send(SourceSignal::Fault(fault));
            sources.remove(&token);
            return;
        }
        listener.granted -= count;
        listener.last_id = last;
        if listener.events.send(SourceSignal::Messages(batch)).is_err() {
            sources.remove(&token);
        }
    }

    /// A plugin says that partitions are going.
    pub fn revoked(&self, token: u64, generation: u64, revoke: u64, partitions: Vec<String>) {
        let sources = self.sources.lock();
        match sources.get(&token) {
            Some(listener) if listener.generation == generation => {
                let _ = listener.events.send(SourceSignal::Revoked {
                    token: revoke,
                    partitions,
                });
            }
            Some(_) => add(&self.foreign),
            None => self.unheard(token),
        }
    }

    /// A plugin reports a fault of a source or a connection.
    pub fn fault(&self, token: u64, generation: u64, failure: Failure) {
        {
            let mut sources = self.sources.lock();
            if let Some(listener) = sources.get(&token) {
                if listener.generation != generation {
                    return add(&self.foreign);
                }
                let _ = listener.events.send(SourceSignal::Fault(failure));
                sources.remove(&token);
                return;
            }
        }
        match self.connections.lock().get(&token) {
            Some(listener) if listener.generation == generation => {
                listener.fault.send_if_modified(|fault| {
                    let first = fault.is_none();
                    if first {
                        *fault = Some(failure);
                    }
                    first
                });
            }
            Some(_) => add(&self.foreign),
            None => self.unheard(token),
        }
    }

    fn unheard(&self, token: u64) {
        if token == 0 || token > self.issued.load(Ordering::Relaxed) {
            add(&self.foreign);
        } else {
            add(&self.late);
        }
    }

    pub fn count_garbage(&self) {
        add(&self.garbage);
    }

    pub fn counts(&self) -> CompletionCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CompletionCounts {
            late: of(&self.late),
            double: of(&self.double),
            foreign: of(&self.foreign),
            garbage: of(&self.garbage),
            over_credit: of(&self.over_credit),
        }
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}
