//! What the handles and the committing thread share: the state, and the queue between them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::api::{Fetched, Health, LaneId, NewWrite, Settlement};
use crate::error::BufferError;
use crate::keys::Busy;
use crate::state::State;

pub(crate) type Answer<T> = oneshot::Sender<Result<T, BufferError>>;

/// One acceptance, encoded by its caller.
#[derive(Debug)]
pub(crate) struct AcceptOp {
    pub(crate) payload: Vec<u8>,
    pub(crate) payload_crc: u32,
    /// The lane of each write, in order.
    pub(crate) lanes: Vec<LaneId>,
    pub(crate) bodies: Vec<Bytes>,
    pub(crate) settles: Vec<Settlement>,
    pub(crate) busy: Option<(u32, Busy)>,
    /// Charges given back when the record has taken effect.
    pub(crate) reserved: Vec<(LaneId, u64)>,
    pub(crate) answer: Answer<Vec<(LaneId, u64)>>,
}

/// One thing for the committing thread to do.
#[derive(Debug)]
pub(crate) enum Op {
    Accept(Box<AcceptOp>),
    Settle {
        settlements: Vec<Settlement>,
        answer: Answer<()>,
    },
    /// Items that need nothing from the state: frontiers, notes, names, commits.
    Items {
        payload: Vec<u8>,
        answer: Option<Answer<()>>,
    },
    Purge {
        lane: LaneId,
        answer: Answer<u64>,
    },
    Fetch {
        lane: LaneId,
        after_seq: u64,
        max_writes: usize,
        max_bytes: usize,
        answer: Answer<Fetched>,
    },
    Children {
        lane: LaneId,
        seq: u64,
        answer: Answer<Vec<NewWrite>>,
    },
    Close {
        answer: Answer<()>,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) ops: Vec<Op>,
    /// Operations somebody waits for.
    pub(crate) urgent: usize,
    /// Since when one nobody waits for has been here.
    pub(crate) lazy_since: Option<Instant>,
    /// The thread sleeps until this many urgent operations wait; 0 = it is not asleep.
    pub(crate) wake_at: usize,
    pub(crate) stopped: Option<BufferError>,
    /// Nobody has a handle any more.
    pub(crate) abandoned: bool,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// Locked before `queue` where both are needed.
    pub(crate) state: Mutex<State>,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) wake: Condvar,
    /// The simulation's wall clock; 0 = the system's.
    clock_unix_ms: AtomicU64,
}

impl Shared {
    pub(crate) fn new(state: State) -> Self {
        Shared {
            state: Mutex::new(state),
            queue: Mutex::new(Queue::default()),
            wake: Condvar::new(),
            clock_unix_ms: AtomicU64::new(0),
        }
    }

    /// Wall-clock time in unix milliseconds.
    pub(crate) fn unix_now_ms(&self) -> u64 {
        match self.clock_unix_ms.load(Ordering::Relaxed) {
            0 => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
            fixed => fixed,
        }
    }

    /// Replaces the system's clock.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn set_clock(&self, unix_ms: u64) {
        self.clock_unix_ms.store(unix_ms, Ordering::Relaxed);
    }

    /// Queues an operation; it is dropped, and with it its answer, once the buffer has stopped.
    pub(crate) fn push(&self, op: Op, urgent: bool) -> Result<(), BufferError> {
        let mut queue = self.queue.lock();
        if let Some(why) = &queue.stopped {
            return Err(why.clone());
        }
        queue.ops.push(op);
        if urgent {
            queue.urgent += 1;
        } else if queue.lazy_since.is_none() {
            queue.lazy_since = Some(Instant::now());
        }
        self.wake_if_due(&mut queue, !urgent);
        Ok(())
    }

    /// Somebody now waits for an operation that was queued without hurry.
    pub(crate) fn urge(&self) {
        let mut queue = self.queue.lock();
        queue.urgent += 1;
        self.wake_if_due(&mut queue, false);
    }

    fn wake_if_due(&self, queue: &mut Queue, first_lazy: bool) {
        // A sleeping thread with nothing at all to do has to learn of the first lazy operation too, to set its alarm.
        let due = queue.wake_at != 0
            && (queue.urgent >= queue.wake_at || first_lazy && queue.urgent == 0);
        if due {
            queue.wake_at = 0;
            self.wake.notify_one();
        }
    }

    /// Takes what waits.
    pub(crate) fn take(&self) -> Vec<Op> {
        let mut queue = self.queue.lock();
        queue.urgent = 0;
        queue.lazy_since = None;
        std::mem::take(&mut queue.ops)
    }

    /// Stops the buffer for good.
    pub(crate) fn stop(&self, why: BufferError, health: Health) {
        let mut state = self.state.lock();
        state.stopped = Some(why.clone());
        state.health.send_replace(health);
        state.room_appeared();
        self.queue.lock().stopped = Some(why);
    }

    /// Tells the thread that nobody has a handle any more.
    pub(crate) fn abandon(&self) {
        let mut queue = self.queue.lock();
        queue.abandoned = true;
        queue.urgent += 1;
        self.wake.notify_one();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.queue.lock().abandoned
    }

    /// Sleeps until there is something to commit, for at most `idle`; then waits for a group as large as the last.
    pub(crate) fn wait(
        &self,
        last_group: usize,
        gather: Duration,
        settle_flush: Duration,
        idle: Duration,
    ) {
        let start = Instant::now();
        let mut queue = self.queue.lock();
        while queue.urgent == 0 {
            let alarm = queue.lazy_since.map_or(start + idle, |since| {
                (since + settle_flush).min(start + idle)
            });
            if Instant::now() >= alarm {
                return;
            }
            queue.wake_at = 1;
            self.wake.wait_until(&mut queue, alarm);
            queue.wake_at = 0;
        }
        let until = Instant::now() + gather;
        while queue.urgent < last_group && Instant::now() < until {
            queue.wake_at = last_group;
            self.wake.wait_until(&mut queue, until);
            queue.wake_at = 0;
        }
    }
}
