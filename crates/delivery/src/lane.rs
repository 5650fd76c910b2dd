//! One lane: its window of pending writes, their phases, and which of them may go next.

use crate::config::{LaneConfig, Order};
use crate::ids::{RequestId, Ticket};
use crate::input::FetchedWrite;
use crate::note::WriteNote;
use crate::outcome::Detail;
use crate::output::{ParkReason, Settled};
use crate::stats::LaneCounts;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Order keys held by parked writes at most, per lane; beyond it the lane looks no further ahead.
pub(crate) const MAX_HELD_KEYS: usize = 1_000_000;

/// Where a pending write stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It waits for its turn only: order, gate, slots, durability of its note.
    Ready,
    /// It failed and waits.
    Backoff {
        /// Monotonic.
        until_ms: u64,
    },
    /// It is on its way.
    InFlight(RequestId),
    /// Its resend was ambiguous too: evidence or a person moves it.
    Held,
    /// The error handler has it.
    Asking,
}

/// What ends a write once its request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doom {
    Skip,
    Purge,
    Park,
    Confirm,
    Withdraw,
    GiveUp,
}

/// How old the first maybe is: an age at a monotonic moment, so that wall-clock jumps don't count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MaybeAge {
    pub(crate) at_ms: u64,
    pub(crate) age_ms: u64,
}

/// One pending write.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    /// Order key as it counts here; 0 under strict, unused under none.
    pub(crate) order: u64,
    pub(crate) bytes: u32,
    pub(crate) expires_unix_ms: Option<u64>,
    pub(crate) note: WriteNote,
    /// The note changed and has not been handed out.
    pub(crate) note_dirty: bool,
    /// The last note handed out is not durable yet.
    pub(crate) noting: Option<Ticket>,
    pub(crate) phase: Phase,
    /// Failed attempts in this process that pause it: the backoff's exponent.
    pub(crate) tries: u32,
    /// The attempt it is on, or the last one, may be or have been a repeat.
    pub(crate) resend: bool,
    /// Failures with no evidence after them yet.
    pub(crate) uncharged: u32,
    /// The try it is on, or the last one, began after its attempts were spent and right after
    /// another write was delivered.
    pub(crate) last_try: bool,
    /// Such a try failed.
    pub(crate) last_try_failed: bool,
    /// Evidence came after that, while it was on its way again.
    pub(crate) finish_on_failure: bool,
    /// Age of the first maybe; `None` when it was not maybe-applied.
    pub(crate) maybe_age: Option<MaybeAge>,
    /// The interruption its last resend was charged to.
    pub(crate) resent_in: Option<u64>,
    /// Batches hold writes of one group only; 0 is the common one.
    pub(crate) group: u64,
    /// Only alone in a batch.
    pub(crate) alone: bool,
    /// When it became known.
    pub(crate) since_ms: u64,
    /// Open clock of its target when its age was last added up.
    pub(crate) age_mark: Option<u64>,
    pub(crate) last_attempt_unix_ms: u64,
    pub(crate) timed_out: bool,
    pub(crate) detail: Option<Box<Detail>>,
    pub(crate) doom: Option<Doom>,
    /// Why the handler was asked.
    pub(crate) asked_for: Option<ParkReason>,
    /// A fenced request that may still answer.
    pub(crate) ghost: Option<RequestId>,
    pub(crate) give_up_at_ms: Option<u64>,
}

impl Pending {
    pub(crate) fn is_maybe(&self) -> bool {
        self.note.first_maybe_unix_ms != 0
    }

    /// No attempt of it ever failed or may have landed.
    pub(crate) fn is_untried(&self) -> bool {
        !self.is_maybe() && self.uncharged == 0 && self.note.attempts == 0
    }

    /// It waits for its turn only.
    pub(crate) fn is_sendable(&self) -> bool {
        self.phase == Phase::Ready && !self.note_dirty && self.noting.is_none()
    }
}

/// Writes of one order key.
#[derive(Debug, Default)]
pub(crate) struct Key {
    /// Ascending.
    pub(crate) seqs: VecDeque<u64>,
    /// Writes of it in flight, all in one request.
    pub(crate) busy: u32,
    /// The head, while it stands in `Lane::ready`.
    ready_head: Option<u64>,
}

/// One lane.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) cfg: LaneConfig,
    pub(crate) target: u32,
    pub(crate) writes: BTreeMap<u64, Pending>,
    pub(crate) window_bytes: u64,
    pub(crate) keys: BTreeMap<u64, Key>,
    /// Writes that may go now, as far as the lane itself is concerned.
    pub(crate) ready: BTreeSet<u64>,
    pub(crate) expiries: BTreeSet<(u64, u64)>,
    pub(crate) expiry_timer_ms: Option<u64>,
    /// Last number fetched.
    pub(crate) cursor: u64,
    pub(crate) fetching: bool,
    /// More may be pending past the cursor.
    pub(crate) more: bool,
    /// A sealed batch is not whole in the window: it is filled beyond half.
    pub(crate) needs_more: bool,
    /// The fetch that is out began before a held key was released: its answer is void.
    pub(crate) stale_fetch: bool,
    /// `Available` came while a fetch was out.
    pub(crate) news: bool,
    /// Held order keys and the first number skipped for each.
    pub(crate) held: BTreeMap<u64, Option<u64>>,
    pub(crate) held_full: bool,
    /// Released order keys whose skipped writes are still being fetched again: what the window has
    /// of them beyond the cursor waits, since an earlier one may be missing.
    pub(crate) released: BTreeSet<u64>,
    pub(crate) suspects_at_start: BTreeSet<u64>,
    /// Writes a person parks once they are fetched.
    pub(crate) parks_ahead: BTreeSet<u64>,
    pub(crate) frontier: u64,
    pub(crate) frontier_asked: u64,
    pub(crate) in_flight: u32,
    /// Settled, not yet durable.
    pub(crate) settling: BTreeSet<u64>,
    pub(crate) out: Vec<Settled>,
    pub(crate) dirty_notes: BTreeSet<u64>,
    pub(crate) paused: bool,
    pub(crate) removing: bool,
    /// It goes to another target; until then only what may have been applied here is sent.
    pub(crate) leaving_until_ms: Option<u64>,
    pub(crate) queued: bool,
    pub(crate) touched: bool,
    /// The inspection says that a repeat is not dropped.
    pub(crate) contradicted: bool,
    pub(crate) inspecting: bool,
    /// The window the destination really has.
    pub(crate) inspected_window_ms: Option<u64>,
    /// Writes that only evidence or a person moves: spent with no evidence yet, or held.
    pub(crate) stuck: BTreeSet<u64>,
    /// When the next trial may go.
    pub(crate) trial_at_ms: u64,
    /// A trial on its way.
    pub(crate) trial: Option<u64>,
    pub(crate) halted_on: Option<u64>,
    /// A clock that went back while the host was down: loaded maybes count as passed.
    pub(crate) clock_went_back: bool,
    pub(crate) counts: LaneCounts,
}

impl Lane {
    pub(crate) fn new(mut cfg: LaneConfig, target: u32, wall_unix_ms: u64) -> Self {
        normalise(&mut cfg);
        let held = cfg.held_keys.iter().map(|key| (*key, None)).collect();
        Self {
            target,
            writes: BTreeMap::new(),
            window_bytes: 0,
            keys: BTreeMap::new(),
            ready: BTreeSet::new(),
            expiries: BTreeSet::new(),
            expiry_timer_ms: None,
            cursor: 0,
            fetching: false,
            more: cfg.direct.is_none(),
            needs_more: false,
            stale_fetch: false,
            news: false,
            held,
            held_full: false,
            released: BTreeSet::new(),
            suspects_at_start: cfg.crash_suspects.iter().copied().collect(),
            parks_ahead: BTreeSet::new(),
            frontier: if cfg.direct.is_some() {
                u64::MAX
            } else {
                cfg.frontier
            },
            frontier_asked: cfg.frontier,
            in_flight: 0,
            settling: BTreeSet::new(),
            out: Vec::new(),
            dirty_notes: BTreeSet::new(),
            paused: cfg.paused,
            removing: false,
            leaving_until_ms: None,
            queued: false,
            touched: false,
            contradicted: false,
            inspecting: false,
            inspected_window_ms: None,
            stuck: BTreeSet::new(),
            trial_at_ms: 0,
            trial: None,
            halted_on: None,
            clock_went_back: wall_unix_ms < cfg.frontier_wall_unix_ms,
            counts: LaneCounts::default(),
            cfg,
        }
    }

    pub(crate) fn is_volatile(&self) -> bool {
        self.cfg.direct.is_some()
    }

    /// Slots that are free: in flight and answered-but-not-durable stay within the limit.
    pub(crate) fn room(&self) -> u32 {
        let settling = u32::try_from(self.settling.len()).unwrap_or(u32::MAX);
        self.cfg
            .in_flight_limit
            .saturating_sub(self.in_flight.saturating_add(settling))
    }

    /// The order key a write falls under here.
    pub(crate) fn order_of(&self, order: u64) -> u64 {
        match self.cfg.order {
            Order::Strict | Order::None => 0,
            Order::ByKey => order,
        }
    }

    /// Takes a pending write into the window. `false` if it is known already.
    pub(crate) fn insert(&mut self, fetched: &FetchedWrite, now_ms: u64) -> bool {
        let seq = fetched.seq;
        if self.writes.contains_key(&seq) || self.settling.contains(&seq) {
            return false;
        }
        let order = self.order_of(fetched.order);
        let note = fetched.note;
        let mut write = Pending {
            order,
            bytes: fetched.bytes,
            expires_unix_ms: fetched.expires_unix_ms,
            note,
            note_dirty: false,
            noting: None,
            phase: Phase::Ready,
            tries: note.attempts,
            resend: false,
            uncharged: 0,
            last_try: false,
            last_try_failed: false,
            finish_on_failure: false,
            maybe_age: None,
            resent_in: None,
            group: note.sealed,
            alone: note.has(WriteNote::SPENT)
                || note.has(WriteNote::SPLIT)
                || self.cfg.crash_alone.contains(&seq),
            since_ms: now_ms,
            age_mark: None,
            last_attempt_unix_ms: 0,
            timed_out: false,
            detail: None,
            doom: None,
            asked_for: None,
            ghost: None,
            give_up_at_ms: None,
        };
        write.regain(&self.cfg.policy);
        if let Some(expires) = write.expires_unix_ms {
            self.expiries.insert((expires, seq));
        }
        self.window_bytes = self.window_bytes.saturating_add(u64::from(write.bytes));
        self.writes.insert(seq, write);
        if self.cfg.order != Order::None {
            let key = self.keys.entry(order).or_default();
            let at = key.seqs.partition_point(|other| *other < seq);
            key.seqs.insert(at, seq);
        }
        self.refresh(seq);
        true
    }

    /// Takes a write out of the window.
    pub(crate) fn remove(&mut self, seq: u64) -> Option<Pending> {
        let write = self.writes.remove(&seq)?;
        self.window_bytes = self.window_bytes.saturating_sub(u64::from(write.bytes));
        self.ready.remove(&seq);
        self.dirty_notes.remove(&seq);
        self.stuck.remove(&seq);
        if let Some(expires) = write.expires_unix_ms {
            self.expiries.remove(&(expires, seq));
        }
        if self.cfg.order != Order::None {
            let mut empty = false;
            if let Some(key) = self.keys.get_mut(&write.order) {
                if let Ok(at) = key.seqs.binary_search(&seq) {
                    key.seqs.remove(at);
                }
                empty = key.seqs.is_empty() && key.busy == 0;
            }
            if empty {
                self.keys.remove(&write.order);
            } else {
                self.refresh_key(write.order);
            }
        }
        Some(write)
    }

    /// Brings `ready` up to date after a change of this write.
    pub(crate) fn refresh(&mut self, seq: u64) {
        let Some(write) = self.writes.get(&seq) else {
            return;
        };
        if self.cfg.order == Order::None {
            if write.is_sendable() {
                self.ready.insert(seq);
            } else {
                self.ready.remove(&seq);
            }
        } else {
            let order = write.order;
            self.refresh_key(order);
        }
    }

    pub(crate) fn refresh_key(&mut self, order: u64) {
        let held = self.held.contains_key(&order);
        let (released, cursor) = (self.released.contains(&order), self.cursor);
        let Some(key) = self.keys.get_mut(&order) else {
            return;
        };
        let head = key.seqs.front().copied().filter(|head| {
            key.busy == 0
                && !held
                && (!released || *head <= cursor)
                && self.writes.get(head).is_some_and(Pending::is_sendable)
        });
        if head != key.ready_head {
            if let Some(old) = key.ready_head {
                self.ready.remove(&old);
            }
            if let Some(new) = head {
                self.ready.insert(new);
            }
            key.ready_head = head;
        } else if let Some(new) = head {
            self.ready.insert(new);
        }
    }

    pub(crate) fn set_phase(&mut self, seq: u64, phase: Phase) {
        if let Some(write) = self.writes.get_mut(&seq) {
            write.phase = phase;
        }
        self.refresh(seq);
    }

    /// Marks a write in flight or no longer so, and its order key with it.
    pub(crate) fn set_busy(&mut self, seq: u64, busy: bool) {
        let Some(order) = self.writes.get(&seq).map(|write| write.order) else {
            return;
        };
        if busy {
            self.in_flight = self.in_flight.saturating_add(1);
        } else {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
        if self.cfg.order != Order::None {
            let mut empty = false;
            if let Some(key) = self.keys.get_mut(&order) {
                if busy {
                    key.busy = key.busy.saturating_add(1);
                } else {
                    key.busy = key.busy.saturating_sub(1);
                }
                empty = key.seqs.is_empty() && key.busy == 0;
            }
            if empty {
                self.keys.remove(&order);
            } else {
                self.refresh_key(order);
            }
        }
    }

    /// Notes a change in a write's durable history.
    pub(crate) fn mark_note(&mut self, seq: u64) {
        if self.is_volatile() {
            return;
        }
        if let Some(write) = self.writes.get_mut(&seq) {
            write.note_dirty = true;
            self.dirty_notes.insert(seq);
        }
        self.refresh(seq);
    }
}

pub(crate) fn normalise(cfg: &mut LaneConfig) {
    cfg.batch.max_writes = cfg.batch.max_writes.max(1);
    cfg.in_flight_limit = cfg.in_flight_limit.max(1);
    if cfg.batch.sealed {
        // A sealed batch goes whole or not at all.
        cfg.in_flight_limit = cfg.in_flight_limit.max(cfg.batch.max_writes);
    }
    cfg.window_writes = cfg
        .window_writes
        .max(cfg.in_flight_limit)
        .max(cfg.batch.max_writes.saturating_mul(2));
    cfg.policy.max_attempts = cfg.policy.max_attempts.max(1);
    cfg.timeout_ms = cfg.timeout_ms.max(1);
}
