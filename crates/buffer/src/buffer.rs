//! The handle: what the runtime calls. Every call is cheap and touches no file; the committing thread does that.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::api::{
    Acceptance, Assigned, BufferStats, Fetched, Health, Known, LaneId, LaneSpec, LaneStats, Lost,
    NewWrite, Options, Origin, Recovery, ScopeSpec, Settlement, WRITE_OVERHEAD_BYTES, WhenFull,
    WriteState,
};
use crate::error::{BufferError, Full, OpenError};
use crate::fs::Filesystem;
use crate::items::{self, Item};
use crate::keys::{Busy, busy_of};
use crate::lane::Lane;
use crate::shared::{AcceptOp, Op, Shared};
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
        Some(Ticket(Waiting {
            receiver: Ok(receiver),
            urge: None,
        }))
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

    fn scope_number(&self, state: &mut State, id: &str) -> Result<u32, BufferError> {
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

    /// Lanes with pending writes that no configuration claimed in this run.
    pub fn orphans(&self) -> Vec<LaneStats> {
        let state = self.shared.state.lock();
        state
            .lanes
            .iter()
            .filter(|l| !l.claimed && l.pending() > 0)
            .map(Lane::stats)
            .collect()
    }

    /// Reserves room for writes: all or none. One entry per write and per dependent, with the bytes of its body.
    ///
    /// Dropping the reservation gives the room back.
    ///
    /// # Errors
    /// See [`Full`].
    pub fn reserve(&self, wanted: &[(LaneId, u64)]) -> Result<Reservation, Full> {
        let mut state = self.shared.state.lock();
        if let Some(why) = &state.stopped {
            return Err(Full::Buffer(why.clone()));
        }
        if let Some(why) = &state.disk_full
            && !wanted.is_empty()
        {
            return Err(Full::Disk { why: why.clone() });
        }
        let mut charges: Vec<(LaneId, u64)> = Vec::new();
        let mut dropped = Vec::new();
        let mut total = 0u64;
        for (at, &(id, bytes)) in wanted.iter().enumerate() {
            let charge = bytes.saturating_add(WRITE_OVERHEAD_BYTES);
            let lane = state.lane(id).ok_or(BufferError::UnknownLane(id))?;
            let mine: u64 = charges
                .iter()
                .filter(|(l, _)| *l == id)
                .map(|(_, c)| c)
                .sum();
            let used = lane
                .charged
                .saturating_add(lane.reserved)
                .saturating_add(mine);
            if used.saturating_add(charge) > lane.quota_bytes {
                if lane.when_full == WhenFull::Drop {
                    dropped.push(at);
                    continue;
                }
                if charge.saturating_add(mine) > lane.quota_bytes {
                    return Err(Full::Never {
                        needed: charge.saturating_add(mine),
                        limit: lane.quota_bytes,
                    });
                }
                return Err(Full::Lane {
                    lane: id,
                    id: lane.id.clone(),
                    charged: used,
                    quota: lane.quota_bytes,
                    needed: charge,
                });
            }
            total = total.saturating_add(charge);
            charges.push((id, charge));
        }
        if total > state.record_limit {
            return Err(Full::Never {
                needed: total,
                limit: state.record_limit,
            });
        }
        for (id, charge) in &charges {
            state.lane_mut(id.0).reserved += charge;
        }
        Ok(Reservation {
            charges,
            dropped,
            shared: self.shared.clone(),
        })
    }

    /// Queues one acceptance, in call order; the future resolves once the record is durable.
    ///
    /// The acceptance is committed whether or not the future is kept. While the disk is full it is refused with
    /// [`BufferError::DiskFull`], also when its room was reserved before: that may be taken as any other lack of room.
    pub fn accept(&self, mut reservation: Reservation, acceptance: Acceptance) -> Accepting {
        match self.try_accept(&mut reservation, acceptance) {
            Ok(receiver) => Accepting(Waiting {
                receiver: Ok(receiver),
                urge: None,
            }),
            Err(why) => Accepting(Waiting {
                receiver: Err(Some(why)),
                urge: None,
            }),
        }
    }

    fn try_accept(
        &self,
        reservation: &mut Reservation,
        acceptance: Acceptance,
    ) -> Result<Receiver<Vec<(LaneId, u64)>>, BufferError> {
        let Acceptance {
            scope,
            origin,
            position,
            writes,
            settles,
        } = acceptance;
        let mut charges = Vec::new();
        for write in &writes {
            if !items::charges(write, 0, &mut charges) {
                return Err(BufferError::TooDeep);
            }
        }
        let mut left = reservation.charges.clone();
        for (lane, charge) in &charges {
            let mut need = *charge;
            for (_, have) in left.iter_mut().filter(|(l, _)| l == lane) {
                let used = need.min(*have);
                *have -= used;
                need -= used;
            }
            if need > 0 {
                return Err(BufferError::NotReserved(*lane));
            }
        }
        let mut payload = Vec::with_capacity(
            128 + writes.iter().map(|w| w.body.len() + 128).sum::<usize>() + settles.len() * 32,
        );
        for write in &writes {
            items::put_write(&mut payload, write);
        }
        if let Some((source, value)) = position {
            items::put_item(&mut payload, &Item::Position { source, value });
        }
        let scope = match &origin {
            Some(_) => Some(self.scope_number(&mut self.shared.state.lock(), &scope)?),
            None => None,
        };
        if let (Some(scope), Some(origin)) = (scope, &origin) {
            let at_unix_ms = self.shared.unix_now_ms();
            items::put_item(
                &mut payload,
                &Item::Known {
                    scope,
                    origin: origin.clone(),
                    at_unix_ms,
                },
            );
        }
        let payload_crc = crc32c::crc32c(&payload);
        let size = crate::record::size(writes.len(), payload.len()) as u64;
        let (sender, receiver) = oneshot::channel();
        let busy = scope.zip(origin.as_ref().map(busy_of));
        let op = AcceptOp {
            payload,
            payload_crc,
            lanes: writes.iter().map(|w| w.lane).collect(),
            bodies: writes.into_iter().map(|w| w.body).collect(),
            settles,
            busy: busy.clone(),
            reserved: std::mem::take(&mut reservation.charges),
            answer: sender,
        };
        let mut state = self.shared.state.lock();
        let limit = state.record_limit;
        if size > limit {
            reservation.charges = op.reserved;
            return Err(BufferError::TooLarge { bytes: size, limit });
        }
        let reserved = op.reserved.clone();
        // Under the state's lock, so that a stop in between gives the reservation back exactly once.
        match self.shared.push(Op::Accept(Box::new(op)), true) {
            Ok(()) => {
                if let Some((scope, busy)) = busy {
                    state.scope_mut(scope).hold(busy);
                }
                Ok(receiver)
            }
            Err(why) => {
                reservation.charges = reserved;
                Err(why)
            }
        }
    }

    /// The acceptance check: was this origin accepted, or is it on its way?
    pub fn known(&self, scope: &str, origin: &Origin) -> Known {
        self.shared.state.lock().known(scope, origin)
    }

    /// The acceptance check that also claims a new origin: until the claim is dropped, others get
    /// [`Known::InFlight`]. Keep it until the acceptance has resolved.
    ///
    /// # Errors
    /// What is known, when it is not [`Known::New`].
    pub fn claim(&self, scope: &str, origin: &Origin) -> Result<Claim, Known> {
        let mut state = self.shared.state.lock();
        match state.known(scope, origin) {
            Known::New => {}
            known => return Err(known),
        }
        // A buffer that has stopped accepts nothing, so there is nothing to protect from a second claim.
        let held = self
            .scope_number(&mut state, scope)
            .ok()
            .map(|scope| (scope, busy_of(origin)));
        if let Some((scope, busy)) = &held {
            state.scope_mut(*scope).hold(busy.clone());
        }
        Ok(Claim {
            held,
            shared: self.shared.clone(),
        })
    }

    /// A partition was assigned to us at this committed offset (the next one to be read).
    pub fn assigned(
        &self,
        scope: &str,
        partition: &str,
        incarnation: u64,
        committed: u64,
    ) -> Assigned {
        let mut state = self.shared.state.lock();
        let Ok(number) = self.scope_number(&mut state, scope) else {
            return Assigned::Resumed;
        };
        let found = state
            .scope_mut(number)
            .assess(partition, incarnation, committed);
        self.set_committed(
            &mut state,
            number,
            partition,
            incarnation,
            committed,
            found != Assigned::Resumed,
        );
        found
    }

    /// The source's own commit went through: offsets below it need not be remembered.
    pub fn committed(&self, scope: &str, partition: &str, incarnation: u64, committed: u64) {
        let mut state = self.shared.state.lock();
        if let Ok(number) = self.scope_number(&mut state, scope) {
            self.set_committed(&mut state, number, partition, incarnation, committed, false);
        }
    }

    fn set_committed(
        &self,
        state: &mut State,
        scope: u32,
        partition: &str,
        incarnation: u64,
        to: u64,
        reset: bool,
    ) {
        let partition = partition.to_owned();
        let mut payload = Vec::new();
        let item = Item::Assigned {
            scope,
            partition: partition.clone(),
            incarnation,
            committed: to,
            reset,
        };
        items::put_item(&mut payload, &item);
        // In memory at once, so that the next check sees it; a crash before it is durable is a restart from the
        // offset the group committed, which comes with an assignment of its own.
        if self
            .shared
            .push(
                Op::Items {
                    payload,
                    answer: None,
                },
                false,
            )
            .is_ok()
        {
            state
                .scope_mut(scope)
                .set_committed(partition, incarnation, to, reset);
        }
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
                    return Fetching(Waiting {
                        receiver: Err(Some(why)),
                        urge: None,
                    });
                }
            }
        }
        Fetching(Waiting {
            receiver: Ok(receiver),
            urge: None,
        })
    }

    /// The dependents a pending write holds, as they were accepted. None for a write that is settled or has none.
    ///
    /// Read by the committing thread.
    pub fn children(&self, lane: LaneId, seq: u64) -> Holding {
        let (answer, receiver) = oneshot::channel();
        let known = self.shared.state.lock().lane(lane).is_some();
        let receiver = if known {
            let op = Op::Children { lane, seq, answer };
            self.shared.push(op, true).map(|()| receiver).map_err(Some)
        } else {
            Err(Some(BufferError::UnknownLane(lane)))
        };
        Holding(Waiting {
            receiver,
            urge: None,
        })
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
        match self.shared.push(Op::Purge { lane, answer }, true) {
            Ok(()) => Purging(Waiting {
                receiver: Ok(receiver),
                urge: None,
            }),
            Err(why) => Purging(Waiting {
                receiver: Err(Some(why)),
                urge: None,
            }),
        }
    }

    fn queue_for(&self, lane: LaneId, payload: Vec<u8>) -> Ticket {
        if self.shared.state.lock().lane(lane).is_none() {
            return Ticket(Waiting {
                receiver: Err(Some(BufferError::UnknownLane(lane))),
                urge: None,
            });
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
            Err(why) => Ticket(Waiting {
                receiver: Err(Some(why)),
                urge: None,
            }),
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

/// Room that was set aside. Dropping it gives the room back.
#[derive(Debug)]
pub struct Reservation {
    charges: Vec<(LaneId, u64)>,
    dropped: Vec<usize>,
    shared: Arc<Shared>,
}

impl Reservation {
    /// Indexes of the writes that found no room in a lane with [`WhenFull::Drop`]. Leave them out of the acceptance.
    pub fn dropped(&self) -> &[usize] {
        &self.dropped
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        let mut state = self.shared.state.lock();
        for (lane, charge) in self.charges.drain(..) {
            let lane = state.lane_mut(lane.0);
            lane.reserved = lane.reserved.saturating_sub(charge);
        }
        state.room_appeared();
    }
}

/// An origin that nobody else can claim until this is dropped.
#[derive(Debug)]
pub struct Claim {
    held: Option<(u32, Busy)>,
    shared: Arc<Shared>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some((scope, busy)) = self.held.take() {
            self.shared.state.lock().scope_mut(scope).release(&busy);
        }
    }
}

type Receiver<T> = oneshot::Receiver<Result<T, BufferError>>;

#[derive(Debug)]
struct Waiting<T> {
    receiver: Result<Receiver<T>, Option<BufferError>>,
    /// Taken at the first poll: somebody waits now.
    urge: Option<Arc<Shared>>,
}

impl<T> Waiting<T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, BufferError>> {
        let receiver = match &mut self.receiver {
            Err(why) => return Poll::Ready(Err(why.take().unwrap_or(BufferError::Closed))),
            Ok(receiver) => receiver,
        };
        match Pin::new(receiver).poll(cx) {
            Poll::Ready(answer) => Poll::Ready(answer.unwrap_or(Err(BufferError::Closed))),
            Poll::Pending => {
                if let Some(shared) = self.urge.take() {
                    shared.urge();
                }
                Poll::Pending
            }
        }
    }

    /// The answer, if it is there.
    #[cfg(any(test, feature = "simulation"))]
    fn try_now(&mut self) -> Option<Result<T, BufferError>> {
        match &mut self.receiver {
            Err(why) => Some(Err(why.take().unwrap_or(BufferError::Closed))),
            Ok(receiver) => match receiver.try_recv() {
                Ok(answer) => Some(answer),
                Err(oneshot::error::TryRecvError::Empty) => None,
                Err(oneshot::error::TryRecvError::Closed) => Some(Err(BufferError::Closed)),
            },
        }
    }
}

macro_rules! waiting {
    ($(#[$doc:meta] $name:ident -> $t:ty;)*) => {$(
        #[$doc]
        #[derive(Debug)]
        #[allow(missing_docs)]
        pub struct $name(Waiting<$t>);

        impl Future for $name {
            type Output = Result<$t, BufferError>;
            fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                self.0.poll(cx)
            }
        }

        #[cfg(any(test, feature = "simulation"))]
        impl $name {
            /// The answer, if it is there: for drivers that step the core themselves.
            #[doc(hidden)]
            pub fn try_now(&mut self) -> Option<Result<$t, BufferError>> {
                self.0.try_now()
            }
        }
    )*};
}

#[cfg(any(test, feature = "simulation"))]
impl Fetching {
    /// Whether the committing side has to answer; takes nothing.
    pub(crate) fn try_now_is_pending(&mut self) -> bool {
        matches!(&mut self.0.receiver, Ok(receiver) if receiver.is_empty())
    }
}

waiting! {
    /// Resolves to the lanes and numbers of the accepted writes once their record is durable.
    Accepting -> Vec<(LaneId, u64)>;
    /// Resolves to pending writes.
    Fetching -> Fetched;
    /// Resolves to the dependents of one write.
    Holding -> Vec<NewWrite>;
    /// Resolves once the operation is durable. May be dropped: the operation goes on.
    Ticket -> ();
    /// Resolves to the number of writes taken away, once that is durable.
    Purging -> u64;
}
