//! The message ledger: every message received ends in exactly one outcome or is still in process.
//!
//! The write ledger is the buffer's, since it must survive a restart; this one counts from the
//! start of the process, because a message that was in process when the process died was never
//! acknowledged and is received again.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageOutcome {
    /// No route claimed it.
    NoRoute,
    /// A transform returned an error.
    TransformFailed,
    /// Its route has no sends.
    NoSend,
    /// All its writes are durable, or its direct sends accepted.
    Accepted,
    /// It was accepted before.
    Repeat,
    /// An error handler skipped, parked or diverted it.
    Handled,
    /// A session-based source's message that could not be accepted.
    Dropped,
    /// Turned away at the source (503, 409, 422): the client was told.
    RefusedAtSource,
    /// Given back unfinished: revoked, or shut down. It comes again.
    Released,
}

impl MessageOutcome {
    /// Every outcome, in the order they are shown.
    pub const ALL: [Self; 9] = [
        Self::NoRoute,
        Self::TransformFailed,
        Self::NoSend,
        Self::Accepted,
        Self::Repeat,
        Self::Handled,
        Self::Dropped,
        Self::RefusedAtSource,
        Self::Released,
    ];

    /// Its name in status, metrics and events.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoRoute => "no_route",
            Self::TransformFailed => "transform_failed",
            Self::NoSend => "no_send",
            Self::Accepted => "accepted",
            Self::Repeat => "repeat",
            Self::Handled => "handled",
            Self::Dropped => "dropped",
            Self::RefusedAtSource => "refused_at_source",
            Self::Released => "released",
        }
    }
}

/// One adapter's message ledger.
#[derive(Debug, Default)]
pub struct MessageLedger {
    received: AtomicU64,
    outcomes: [AtomicU64; MessageOutcome::ALL.len()],
    last_progress_unix_ms: AtomicU64,
}

impl MessageLedger {
    /// A message came in. The entry counts it as in process until it is ended.
    pub fn receive(self: &std::sync::Arc<Self>) -> Entry {
        self.received.fetch_add(1, Ordering::Relaxed);
        Entry {
            ledger: Some(std::sync::Arc::clone(self)),
        }
    }

    /// Messages received since the process started.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Messages that ended so.
    pub fn ended(&self, outcome: MessageOutcome) -> u64 {
        self.slot(outcome).load(Ordering::Relaxed)
    }

    /// Messages received and not ended. Outcomes are read first, so that it is never negative.
    pub fn in_process(&self) -> u64 {
        let ended: u64 = self
            .outcomes
            .iter()
            .map(|o| o.load(Ordering::Acquire))
            .sum();
        self.received().saturating_sub(ended)
    }

    /// Wall-clock time of the last message that ended; 0 before the first.
    pub fn last_progress_unix_ms(&self) -> u64 {
        self.last_progress_unix_ms.load(Ordering::Relaxed)
    }

    fn slot(&self, outcome: MessageOutcome) -> &AtomicU64 {
        let [
            no_route,
            transform,
            no_send,
            accepted,
            repeat,
            handled,
            dropped,
            refused,
            released,
        ] = &self.outcomes;
        match outcome {
            MessageOutcome::NoRoute => no_route,
            MessageOutcome::TransformFailed => transform,
            MessageOutcome::NoSend => no_send,
            MessageOutcome::Accepted => accepted,
            MessageOutcome::Repeat => repeat,
            MessageOutcome::Handled => handled,
            MessageOutcome::Dropped => dropped,
            MessageOutcome::RefusedAtSource => refused,
            MessageOutcome::Released => released,
        }
    }
}

/// A message in process. Dropped without an outcome (its task was cancelled), it counts as released:
/// it was never acknowledged, so its source hands it over again or has told its client so.
#[derive(Debug)]
pub struct Entry {
    ledger: Option<std::sync::Arc<MessageLedger>>,
}

impl Entry {
    /// The message ended so.
    pub fn end(mut self, outcome: MessageOutcome) {
        self.count(outcome);
    }

    fn count(&mut self, outcome: MessageOutcome) {
        if let Some(ledger) = self.ledger.take() {
            ledger.slot(outcome).fetch_add(1, Ordering::Release);
            ledger
                .last_progress_unix_ms
                .store(crate::clock::wall_unix_ms(), Ordering::Relaxed);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.count(MessageOutcome::Released);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn received_is_outcomes_plus_in_process() {
        let ledger = Arc::new(MessageLedger::default());
        let entries: Vec<Entry> = (0..9).map(|_| ledger.receive()).collect();
        assert_eq!((ledger.received(), ledger.in_process()), (9, 9));
        for (entry, outcome) in entries.into_iter().zip(MessageOutcome::ALL) {
            entry.end(outcome);
        }
        assert!(MessageOutcome::ALL.iter().all(|o| ledger.ended(*o) == 1));
        assert_eq!(ledger.in_process(), 0);
    }

    #[test]
    fn an_entry_that_is_let_go_counts_as_released() {
        let ledger = Arc::new(MessageLedger::default());
        drop(ledger.receive());
        assert_eq!(ledger.ended(MessageOutcome::Released), 1);
        assert_eq!(ledger.in_process(), 0);
    }
}
