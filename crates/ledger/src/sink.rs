//! Between delivery and the event log: a bounded queue and one writing thread.
//!
//! * Adding never waits for the disk; the queue's lock is held for a push.
//! * A full queue drops, mildest first: debug and info from three quarters, the rest when it is
//!   full. What was dropped is counted by level, and once the log takes events again one
//!   `events_dropped` event says how many.
//! * The thread writes up to [`BATCH_MAX`] events in a transaction, retries with backoff for as
//!   long as the ledger fails, and keeps order.

use crate::{
    Code, Error, Event, Ledger, ReserveState, Result, Severity, db::Inside, episodes,
    event_log::append,
};
use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Events in one transaction at most: a few milliseconds of work while lists wait for nothing.
const BATCH_MAX: usize = 512;

/// How long the thread gathers before it writes, so that a burst costs one flush.
const LINGER: Duration = Duration::from_millis(20);

/// The pause after a failed write, doubled up to the second.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// How often the thread looks whether the ledger's reserve can be taken back.
const REFILL_EVERY: Duration = Duration::from_secs(60);

/// How long `flush` and `shutdown` wait for a ledger that fails.
const FLUSH_MAX: Duration = Duration::from_secs(10);

/// Episodes that are remembered at once; subjects come from the configuration, so this many means
/// that one is made from data, and such are written as plain events.
const OPEN_EPISODES_MAX: usize = 16_384;

/// How a sink is started.
pub struct SinkOptions {
    /// Events that wait at most. Default 8,192: a few MiB.
    pub capacity: usize,
    /// Called on the writing thread after each transaction with the newest event's id; must not block.
    pub on_written: Option<Box<dyn Fn(i64) + Send>>,
}

impl Default for SinkOptions {
    fn default() -> Self {
        Self {
            capacity: 8_192,
            on_written: None,
        }
    }
}

/// Counters of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SinkStats {
    /// Events and ends of episodes that are durable.
    pub written: u64,
    /// Events that found the queue full, ever.
    pub dropped: u64,
    /// Events that wait.
    pub queued: u64,
    /// Writes to the ledger that failed, ever.
    pub failures: u64,
}

/// Where delivery puts its events. Cloning is cheap and gives the same sink.
#[derive(Clone)]
pub struct EventSink {
    shared: Arc<Shared>,
    /// Ends the thread when the last sink is gone.
    _last: Arc<Last>,
}

struct Last(Arc<Shared>);

impl Drop for Last {
    /// Tells the thread to write what waits and end. It is not waited for, since this may run where
    /// blocking is not allowed; [`EventSink::shutdown`] waits.
    fn drop(&mut self) {
        self.0.state.lock().closing = true;
        self.0.wake.notify_all();
    }
}

struct Shared {
    ledger: Ledger,
    capacity: usize,
    state: Mutex<State>,
    /// Something to write, or to end.
    wake: Condvar,
    /// Something was written, or failed.
    progress: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Item>,
    /// Repeats of each open episode since it was opened or last counted.
    open: HashMap<(Code, String), u64>,
    stats: SinkStats,
    dropped_by_level: [u64; Severity::ALL.len()],
    /// Items ever taken into the queue, and ever written: what `flush` waits for.
    accepted: u64,
    done: u64,
    /// Somebody waits, so there is nothing to gather for.
    hurry: bool,
    closing: bool,
    ended: bool,
}

#[derive(Clone)]
enum Item {
    Event(Event),
    Open(String, Event),
    Close {
        subject: String,
        opened: Code,
        times_more: u64,
        closing: Option<Event>,
        at_unix_ms: i64,
    },
}

impl EventSink {
    /// Starts the writing thread. Episodes that are open in the ledger stay open.
    ///
    /// # Errors
    /// The ledger cannot be read, or the system gives no thread.
    pub fn start(ledger: Ledger, options: SinkOptions) -> Result<Self> {
        let open = ledger
            .open_episodes()?
            .into_iter()
            .map(|e| ((e.code, e.subject), 0))
            .collect();
        let shared = Arc::new(Shared {
            capacity: options.capacity.max(8),
            state: Mutex::new(State {
                open,
                ..State::default()
            }),
            wake: Condvar::new(),
            progress: Condvar::new(),
            thread: Mutex::new(None),
            ledger,
        });
        let worker = Arc::clone(&shared);
        let on_written = options.on_written;
        let thread = std::thread::Builder::new()
            .name("consign-events".to_owned())
            .spawn(move || worker.run(on_written.as_deref()))
            .map_err(|source| Error::Open {
                path: shared.ledger.path().to_owned(),
                source,
            })?;
        *shared.thread.lock() = Some(thread);
        let last = Arc::new(Last(Arc::clone(&shared)));
        Ok(Self {
            shared,
            _last: last,
        })
    }

    /// Adds an event. Never blocks; a full queue drops and counts it.
    pub fn emit(&self, event: Event) {
        self.shared
            .push(&mut self.shared.state.lock(), Item::Event(event));
    }

    /// Adds the event that opens an episode, unless that is open already; true when this call
    /// opened it. A repeat is only counted.
    pub fn open(&self, subject: &str, event: Event) -> bool {
        let mut state = self.shared.state.lock();
        let key = (event.code, subject.to_owned());
        if let Some(repeats) = state.open.get_mut(&key) {
            *repeats += 1;
            return false;
        }
        if state.open.len() >= OPEN_EPISODES_MAX {
            self.shared.push(&mut state, Item::Event(event));
            return true;
        }
        if self
            .shared
            .push(&mut state, Item::Open(subject.to_owned(), event))
        {
            // One that was dropped is not open, so that the next one is written.
            state.open.insert(key, 0);
        }
        true
    }

    /// Closes the episode that an event with the code `opened` began, adding `closing` with its
    /// duration and count; true when it was open. Nothing happens otherwise.
    pub fn close(
        &self,
        subject: &str,
        opened: Code,
        closing: Option<Event>,
        at_unix_ms: i64,
    ) -> bool {
        let mut state = self.shared.state.lock();
        let Some(times_more) = state.open.remove(&(opened, subject.to_owned())) else {
            return false;
        };
        let item = Item::Close {
            subject: subject.to_owned(),
            opened,
            times_more,
            closing,
            at_unix_ms,
        };
        if state.ended {
            state.stats.dropped += 1;
            return true;
        }
        // An end that was dropped would leave the episode open for ever in the log; there is at
        // most one for each that was opened, so the queue stays bounded.
        state.accepted += 1;
        state.queue.push_back(item);
        self.shared.wake.notify_one();
        true
    }

    /// Whether an episode is open.
    #[must_use]
    pub fn is_open(&self, subject: &str, opened: Code) -> bool {
        let state = self.shared.state.lock();
        state.open.contains_key(&(opened, subject.to_owned()))
    }

    /// Waits until everything that was added before is durable. Blocks.
    ///
    /// # Errors
    /// [`Error::Busy`] when the ledger has not taken it within ten seconds, [`Error::Closed`].
    pub fn flush(&self) -> Result<()> {
        let deadline = Instant::now() + FLUSH_MAX;
        let mut state = self.shared.state.lock();
        let target = state.accepted;
        while state.done < target {
            if state.ended {
                return Err(Error::Closed);
            }
            state.hurry = true;
            self.shared.wake.notify_one();
            if self
                .shared
                .progress
                .wait_until(&mut state, deadline)
                .timed_out()
            {
                return Err(Error::Busy {
                    path: self.shared.ledger.path().to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> SinkStats {
        let state = self.shared.state.lock();
        SinkStats {
            queued: state.queue.len() as u64,
            ..state.stats
        }
    }

    /// Writes what waits and ends the thread. Blocks, ten seconds at most where the ledger fails.
    /// What is added later is dropped and counted.
    ///
    /// # Errors
    /// [`Error::Closed`] where something that waited could not be written.
    pub fn shutdown(&self) -> Result<()> {
        {
            let mut state = self.shared.state.lock();
            state.closing = true;
            self.shared.wake.notify_one();
        }
        if let Some(thread) = self.shared.thread.lock().take() {
            let _ = thread.join();
        }
        let state = self.shared.state.lock();
        if state.done < state.accepted {
            return Err(Error::Closed);
        }
        Ok(())
    }
}

impl Shared {
    /// Takes an item, or drops and counts it.
    fn push(&self, state: &mut State, item: Item) -> bool {
        let level = match &item {
            Item::Event(event) | Item::Open(_, event) => event.level(),
            Item::Close { .. } => Severity::Error,
        };
        let room = if level >= Severity::Warn {
            self.capacity
        } else {
            self.capacity / 4 * 3
        };
        if state.closing || state.queue.len() >= room {
            state.stats.dropped += 1;
            if let Some(count) = state.dropped_by_level.get_mut(level as usize) {
                *count += 1;
            }
            return false;
        }
        state.accepted += 1;
        state.queue.push_back(item);
        self.wake.notify_one();
        true
    }

    fn run(&self, on_written: Option<&(dyn Fn(i64) + Send)>) {
        let mut refilled = Instant::now();
        loop {
            if refilled.elapsed() >= REFILL_EVERY {
                refilled = Instant::now();
                if self.ledger.reserve() == ReserveState::Released {
                    self.ledger.refill_reserve();
                }
            }
            let Some(batch) = self.gather() else { break };
            if !batch.is_empty() {
                match self.write_until_done(&batch) {
                    Some(last) => {
                        if let Some(tell) = on_written {
                            tell(last);
                        }
                    }
                    None => break,
                }
            }
        }
        let mut state = self.state.lock();
        state.ended = true;
        self.progress.notify_all();
    }

    /// The next items; `None` once there is nothing left and the sink closes.
    fn gather(&self) -> Option<Vec<Item>> {
        let mut state = self.state.lock();
        while state.queue.is_empty() {
            if state.closing {
                return None;
            }
            if self.wake.wait_for(&mut state, REFILL_EVERY).timed_out() {
                return Some(Vec::new());
            }
        }
        let until = Instant::now() + LINGER;
        while state.queue.len() < BATCH_MAX && !state.closing && !state.hurry {
            if self.wake.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.hurry = false;
        let count = state.queue.len().min(BATCH_MAX);
        // They stay in the queue until they are durable, and so keep its bound.
        Some(state.queue.iter().take(count).cloned().collect())
    }

    /// Writes a batch, however long it takes; `None` when the sink closes and the ledger still fails.
    fn write_until_done(&self, batch: &[Item]) -> Option<i64> {
        let mut pause = RETRY_FIRST;
        let mut closing_since: Option<Instant> = None;
        loop {
            let dropped = self.state.lock().dropped_by_level;
            let before = self.ledger.reserve();
            let result = self.ledger.write(|connection| {
                let mut last = write_items(connection, batch)?;
                if let Some(event) = dropped_event(dropped) {
                    last = append(connection, &event)?;
                }
                Ok(last)
            });
            let mut state = self.state.lock();
            match result {
                Ok(last) => {
                    let count = batch.len().min(state.queue.len());
                    state.queue.drain(..count);
                    state.stats.written += count as u64;
                    state.done += count as u64;
                    for (left, told) in state.dropped_by_level.iter_mut().zip(dropped) {
                        *left = left.saturating_sub(told);
                    }
                    if before == ReserveState::Held
                        && self.ledger.reserve() == ReserveState::Released
                    {
                        self.push(
                            &mut state,
                            Item::Event(Event::new(Code::ReserveReleased, now_unix_ms())),
                        );
                    }
                    self.progress.notify_all();
                    return Some(last);
                }
                Err(_) => {
                    state.stats.failures += 1;
                    if state.closing {
                        let since = *closing_since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= FLUSH_MAX {
                            return None;
                        }
                    }
                    self.wake.wait_for(&mut state, pause);
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
        }
    }
}

fn write_items(connection: &Connection, items: &[Item]) -> Inside<i64> {
    let mut last = 0;
    for item in items {
        match item {
            Item::Event(event) => last = append(connection, event)?,
            Item::Open(subject, event) => {
                episodes::open(connection, subject, event)?;
            }
            Item::Close {
                subject,
                opened,
                times_more,
                closing,
                at_unix_ms,
            } => {
                episodes::close(
                    connection,
                    subject,
                    *opened,
                    *times_more,
                    closing.as_ref(),
                    *at_unix_ms,
                )?;
            }
        }
    }
    if last == 0 {
        last = connection.query_row("SELECT coalesce(max(id), 0) FROM events", [], |r| r.get(0))?;
    }
    Ok(last)
}

fn dropped_event(by_level: [u64; Severity::ALL.len()]) -> Option<Event> {
    let total: u64 = by_level.iter().sum();
    (total > 0).then(|| {
        let mut event = Event::new(Code::EventsDropped, now_unix_ms()).message(format!(
            "{total} events were not written: the event log could not keep up"
        ));
        for (level, count) in Severity::ALL.iter().zip(by_level) {
            if count > 0 {
                event = event.field(level.name(), count);
            }
        }
        event.field("total", total)
    })
}

fn now_unix_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
