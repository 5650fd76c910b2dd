//! The handle: what the runtime calls. Every call is cheap and touches no file; the committing thread does that.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::api::{
    BufferStats, Health, LaneId, LaneSpec, LaneStats, Lost, Options, Recovery, ScopeSpec,
    Settlement, WriteState,
};
use crate::error::{BufferError, OpenError};
use crate::fs::Filesystem;
use crate::handles::{Fetching, Holding, Purging, Ticket, Waiting};
use crate::items::{self, Item};
use crate::lane::Lane;
use crate::shared::{Op, Shared};
use crate::state::State;

/// A durable buffer in one folder. Clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct Buffer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Arc<Owner>,
}

/// Ends the thread when the last handle goes without [`Buffer::close`]: an unclean exit.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.lock().take() {
            self.shared.abandon();
            let _ = thread.join();
        }
    }
}

impl Buffer {
    /// Opens the buffer in `dir`, or makes it there; reads the log back and begins a new run.
    ///
    /// The work is done by a thread of the buffer's own, which later commits.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing is accepted then, and what the folder holds stays as it is.
    pub async fn open(
        dir: impl Into<PathBuf>,
        options: Options,
        fs: Arc<dyn Filesystem>,
    ) -> Result<(Buffer, Recovery), OpenError> {
        crate::thread::open(dir.into(), options, fs).await
    }

    /// A handle to a core that its owner steps: there is no thread.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn of(core: &crate::core::Core) -> Buffer {
        let shared = core.shared.clone();
        let owner = Arc::new(Owner {
            shared: shared.clone(),
            thread: Mutex::new(None),
        });
        Buffer { shared, owner }
    }

    /// Queues the end; the owner of the core steps it there.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn begin_close(&self) -> Option<Ticket> {
        let (answer, receiver) = oneshot::channel();
        self.shared.push(Op::Close { answer }, true).ok()?;
        Some(Ticket(Waiting::of(Ok(receiver))))
    }

    /// Makes a lane known, or changes the settings of one that is. Durable before the first write of the lane is.
    ///
    /// # Errors
    /// [`BufferError::Failed`] or [`BufferError::Closed`].
    pub fn lane(&self, spec: LaneSpec) -> Result<LaneId, BufferError> {
        let mut state = self.shared.state.lock();
        if let Some(why) = &state.stopped {
            return Err(why.clone());
        }
        let known = state.lane_numbers.get(&spec.id).copied();
        let number = match known {
            Some(number) => number,
            None => {
                let former = spec
                    .formerly
                    .iter()
                    .find_map(|old| state.lane_numbers.get(old).copied());
                let number = former.unwrap_or(u32::try_from(state.lanes.len()).unwrap_or(u32::MAX));
                let mut payload = Vec::new();
                items::put_item(
                    &mut payload,
                    &Item::Lane {
                        number,
                        id: spec.id.clone(),
                    },
                );
                self.shared.push(
                    Op::Items {
                        payload,
                        answer: None,
                    },
                    false,
                )?;
                state.name_lane(number, spec.id);
                number
            }
        };
        let lane = state.lane_mut(number);
        lane.quota_bytes = spec.quota_bytes;
        lane.in_flight_limit = spec.in_flight_limit;
        lane.when_full = spec.when_full;
        lane.claimed = true;
        state.room_appeared();
        Ok(LaneId(number))
    }

    /// Sets how long accepted keys of an adapter are remembered.
    ///
    /// # Errors
    /// [`BufferError::Failed`] or [`BufferError::Closed`].
    pub fn scope(&self, spec: ScopeSpec) -> Result<(), BufferError> {
        let mut state = self.shared.state.lock();
        let number = self.scope_number(&mut state, &spec.id)?;
        let scope = state.scope_mut(number);
        scope.window_ms = spec.window_ms.max(1);
        scope.key_quota_bytes = spec.key_quota_bytes;
        Ok(())
    }

    pub(crate) fn scope_number(&self, state: &mut State, id: &str) -> Result<u32, BufferError> {
        if let Some(number) = state.scope_numbers.get(id) {
            return Ok(*number);
        }
        let number = u32::try_from(state.scopes.len()).unwrap_or(u32::MAX);
        let mut payload = Vec::new();
        items::put_item(
            &mut payload,
            &Item::Scope {
                number,
                id: id.to_owned(),
            },
        );
        // Queued under the state's lock: nobody can queue a record that uses the number before this one.
        self.shared.push(
            Op::Items {
                payload,
                answer: None,
            },
            false,
        )?;
        state.name_scope(number, id.to_owned());
        Ok(number)
    }

    /// No send has this lane any more: from here on its backlog is orphaned. [`Buffer::lane`] takes it up again.
    pub fn release_lane(&self, lane: LaneId) {
        let mut state = self.shared.state.lock();
        let index = usize::try_from(lane.0).unwrap_or(usize::MAX);
        if let Some(lane) = state.lanes.get_mut(index) {
            lane.claimed = false;
        }
    }

    /// Lanes with pending writes that no configuration claims.
    pub fn orphans(&self) -> Vec<LaneStats> {
        let state = self.shared.state.lock();
        state
            .lanes
            .iter()
            .filter(|l| !l.claimed && l.pending() > 0)
            .map(Lane::stats)
            .collect()
    }

    /// Pending writes of a lane after `after_seq`, in order: at least one if there is any, at most `max_writes`, and
    /// no more after `max_bytes` of bodies.
    ///
    /// Answered from memory where it can be, else by the committing thread.
    pub fn fetch(
        &self,
        lane: LaneId,
        after_seq: u64,
        max_writes: usize,
        max_bytes: usize,
    ) -> Fetching {
        let mut state = self.shared.state.lock();
        let ready = match (&state.stopped, state.lane(lane)) {
            (Some(why), _) => Some(Err(why.clone())),
            (None, None) => Some(Err(BufferError::UnknownLane(lane))),
            (None, Some(_)) => state
                .fetch_from_memory(lane.0, after_seq, max_writes, max_bytes)
                .map(Ok),
        };
        drop(state);
        let (sender, receiver) = oneshot::channel();
        match ready {
            Some(answer) => {
                let _ = sender.send(answer);
            }
            None => {
                let op = Op::Fetch {
                    lane,
                    after_seq,
                    max_writes,
                    max_bytes,
                    answer: sender,
                };
                if let Err(why) = self.shared.push(op, true) {
                    return Fetching(Waiting::of(Err(why)));
                }
            }
        }
        Fetching(Waiting::of(Ok(receiver)))
    }

    /// The dependents a pending write holds, as they were accepted. None for a write that is settled or has none.
    ///
    /// Read by the committing thread.
    pub fn children(&self, lane: LaneId, seq: u64) -> Holding {
        let (answer, receiver) = oneshot::channel();
        let known = self.shared.state.lock().lane(lane).is_some();
        let receiver = if known {
            let op = Op::Children { lane, seq, answer };
            self.shared.push(op, true).map(|()| receiver)
        } else {
            Err(BufferError::UnknownLane(lane))
        };
        Holding(Waiting::of(receiver))
    }

    /// Settles writes. Durable when the ticket resolves; without anyone waiting, within
    /// [`Options::settle_flush`]. Numbers that are settled already are passed over.
    pub fn settle(&self, settlements: Vec<Settlement>) -> Ticket {
        self.queue(|answer| Op::Settle {
            settlements,
            answer,
        })
    }

    /// Moves a lane's send frontier: numbers up to `seq` may be sent once the ticket has resolved.
    pub fn frontier(&self, lane: LaneId, seq: u64, wall_unix_ms: u64) -> Ticket {
        let mut payload = Vec::new();
        items::put_item(
            &mut payload,
            &Item::Frontier {
                lane: lane.0,
                seq,
                wall_unix_ms,
            },
        );
        self.queue_for(lane, payload)
    }

    /// Notes what happened to a write so far.
    pub fn note(&self, lane: LaneId, seq: u64, state: WriteState) -> Ticket {
        let mut payload = Vec::new();
        items::put_item(
            &mut payload,
            &Item::Note {
                lane: lane.0,
                seq,
                state,
            },
        );
        self.queue_for(lane, payload)
    }

    /// Takes everything pending out of a lane, claimed or orphaned; resolves to the number of writes.
    pub fn purge(&self, lane: LaneId) -> Purging {
        let (answer, receiver) = oneshot::channel();
        let queued = self.shared.push(Op::Purge { lane, answer }, true);
        Purging(Waiting::of(queued.map(|()| receiver)))
    }

    fn queue_for(&self, lane: LaneId, payload: Vec<u8>) -> Ticket {
        if self.shared.state.lock().lane(lane).is_none() {
            return Ticket(Waiting::of(Err(BufferError::UnknownLane(lane))));
        }
        self.queue(|answer| Op::Items {
            payload,
            answer: Some(answer),
        })
    }

    fn queue(&self, op: impl FnOnce(oneshot::Sender<Result<(), BufferError>>) -> Op) -> Ticket {
        let (sender, receiver) = oneshot::channel();
        match self.shared.push(op(sender), false) {
            Ok(()) => Ticket(Waiting {
                receiver: Ok(receiver),
                urge: Some(self.shared.clone()),
            }),
            Err(why) => Ticket(Waiting::of(Err(why))),
        }
    }

    /// A host-kept source position.
    pub fn position(&self, source: &str) -> Option<Bytes> {
        self.shared.state.lock().positions.get(source).cloned()
    }

    /// One lane in figures.
    pub fn stats(&self, lane: LaneId) -> Option<LaneStats> {
        self.shared.state.lock().lane(lane).map(Lane::stats)
    }

    /// Every lane in figures, orphans included.
    pub fn lanes(&self) -> Vec<(LaneId, LaneStats)> {
        let state = self.shared.state.lock();
        (0u32..)
            .map(LaneId)
            .zip(state.lanes.iter().map(Lane::stats))
            .collect()
    }

    /// The whole buffer in figures.
    pub fn totals(&self) -> BufferStats {
        let state = self.shared.state.lock();
        BufferStats {
            log_entries: state.entries,
            body_memory_bytes: state.body_bytes,
            ..state.totals.clone()
        }
    }

    /// The window in which keys of a scope are really remembered, in milliseconds: shorter than asked for when the
    /// key quota forced early forgetting.
    pub fn key_window_ms(&self, scope: &str) -> Option<u64> {
        let state = self.shared.state.lock();
        let number = *state.scope_numbers.get(scope)?;
        state
            .scopes
            .get(number as usize)
            .map(|s| s.kept_ms(self.shared.unix_now_ms()))
    }

    /// Changes whenever room may have appeared.
    pub fn watch_room(&self) -> watch::Receiver<u64> {
        self.shared.state.lock().room.subscribe()
    }

    /// The last durable number of a lane.
    pub fn watch_lane(&self, lane: LaneId) -> Option<watch::Receiver<u64>> {
        self.shared
            .state
            .lock()
            .lane(lane)
            .map(|l| l.watch.subscribe())
    }

    /// Follows [`health`](Self::health).
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.shared.state.lock().health.subscribe()
    }

    /// Whether the buffer works.
    pub fn health(&self) -> Health {
        self.shared.state.lock().health.borrow().clone()
    }

    /// What corruption took, as found in this run, opening included.
    pub fn lost(&self) -> Lost {
        self.shared.state.lock().lost.clone()
    }

    /// Commits what is queued, marks the exit as clean and ends the thread.
    ///
    /// # Errors
    /// [`BufferError::Failed`] when the log had failed or fails now. The exit then counts as unclean, unless
    /// the mark alone failed to be flushed and is found all the same.
    pub async fn close(&self) -> Result<(), BufferError> {
        let (answer, receiver) = oneshot::channel();
        self.shared.push(Op::Close { answer }, true)?;
        let result = receiver.await.unwrap_or(Err(BufferError::Closed));
        // The thread answers as its last act, so this join is short.
        if let Some(thread) = self.owner.thread.lock().take() {
            let _ = thread.join();
        }
        result
    }
}
