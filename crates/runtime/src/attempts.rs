//! How often a message failed before it had any write, durably: an error handler that sets a message
//! aside after so many failures must not begin anew at each restart.
//!
//! Counted are messages that their source hands over again under the same id; of others nothing is left
//! after a restart that a count could belong to. A failure is counted after it happened and before the
//! handler is asked, so a crash between the two is a failure that was counted and not decided about, and
//! one before it is a failure that was not counted. Failures that come together share one transaction.

use crate::clock;
use crate::operator::replay::blocking;
use consign_ledger::{Attempts as Counted, FailedMessageId, Ledger};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// A message that has not failed for so long is forgotten: its source does not hand it over any more.
/// Far longer than any host is down for.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Rows deleted in one transaction.
const AT_ONCE: u32 = 5_000;

type Waiting = Vec<(FailedMessageId, oneshot::Sender<Counted>)>;

/// The counts of all adapters.
pub struct Attempts {
    ledger: Ledger,
    /// Messages that a count is kept of: nothing is looked up for those that never failed.
    known: Arc<Mutex<HashSet<[u8; 16]>>>,
    waiting: Mutex<Waiting>,
    /// Held by whoever writes down what waits.
    writing: tokio::sync::Mutex<()>,
    /// Whether counts could not be kept last time, so that the log says it once.
    failing: Arc<AtomicBool>,
}

impl Attempts {
    /// Over the counts that the ledger has.
    ///
    /// # Errors
    /// As the ledger's.
    pub async fn open(ledger: Ledger) -> Result<Self, String> {
        let of = ledger.clone();
        let known = blocking(move || of.attempted()).await?;
        Ok(Self {
            ledger,
            known: Arc::new(Mutex::new(known.into_iter().collect())),
            waiting: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
            failing: Arc::default(),
        })
    }

    /// Counts a failure. `None` where the ledger cannot take it now; what this process counted stands then.
    pub async fn failed(&self, adapter: &str, id: [u8; 16]) -> Option<Counted> {
        let message = FailedMessageId {
            id,
            adapter: adapter.to_owned(),
        };
        let (tell, told) = oneshot::channel();
        self.waiting.lock().push((message, tell));
        let turn = self.writing.lock().await;
        let all = mem::take(&mut *self.waiting.lock());
        if !all.is_empty() {
            let (ledger, known) = (self.ledger.clone(), Arc::clone(&self.known));
            let failing = Arc::clone(&self.failing);
            // Whoever waits is told from there: this call may be dropped while it runs.
            let write = move || write_down(&ledger, &known, &failing, all);
            drop(tokio::task::spawn_blocking(write).await);
        }
        drop(turn);
        told.await.ok()
    }

    /// Forgets those of these messages that have failed before: they are accepted, or decided about.
    pub async fn ended(&self, ids: impl Iterator<Item = [u8; 16]>) {
        let ids: Vec<[u8; 16]> = {
            let known = self.known.lock();
            if known.is_empty() {
                return;
            }
            ids.filter(|id| known.contains(id)).collect()
        };
        if ids.is_empty() {
            return;
        }
        let (ledger, gone) = (self.ledger.clone(), ids.clone());
        match blocking(move || ledger.attempts_ended(&gone)).await {
            Ok(()) => {
                let mut known = self.known.lock();
                for id in &ids {
                    known.remove(id);
                }
            }
            // The row is of a message that does not come again, and goes when its time is over.
            Err(why) => {
                tracing::warn!(%why, "the failures of a message that has ended stay counted")
            }
        }
    }

    /// Forgets what has not failed for long.
    ///
    /// # Errors
    /// As the ledger's.
    pub async fn forget_old(&self) -> Result<(), String> {
        let kept = i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX);
        let before = clock::wall_unix_ms_i64().saturating_sub(kept);
        loop {
            if self.known.lock().is_empty() {
                return Ok(());
            }
            let ledger = self.ledger.clone();
            let gone = blocking(move || ledger.delete_attempts_before(before, AT_ONCE)).await?;
            let mut known = self.known.lock();
            for id in &gone {
                known.remove(id);
            }
            if gone.len() < AT_ONCE as usize {
                return Ok(());
            }
        }
    }
}

fn write_down(
    ledger: &Ledger,
    known: &Mutex<HashSet<[u8; 16]>>,
    failing: &AtomicBool,
    waiting: Waiting,
) {
    let (messages, tell): (Vec<FailedMessageId>, Vec<_>) = waiting.into_iter().unzip();
    match ledger.attempts_failed(&messages, clock::wall_unix_ms_i64()) {
        Ok(counted) => {
            failing.store(false, Ordering::Relaxed);
            known
                .lock()
                .extend(messages.iter().map(|message| message.id));
            for (tell, counted) in tell.into_iter().zip(counted) {
                // Nobody waits any more where the message was taken back meanwhile.
                let _ = tell.send(counted);
            }
        }
        Err(error) => {
            if !failing.swap(true, Ordering::Relaxed) {
                tracing::warn!(%error, "failures of messages are not counted over a restart until the ledger takes them");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_ledger::Options;

    fn ledger(folder: &std::path::Path) -> Ledger {
        let options = Options {
            reserve_bytes: 64 * 1024,
            ..Options::default()
        };
        Ledger::open(&folder.join("ledger.db"), options).unwrap()
    }

    async fn count(attempts: &Attempts, n: u8) -> u32 {
        attempts.failed("a", [n; 16]).await.unwrap().attempts
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn failures_are_counted_over_a_restart_and_forgotten_once_the_message_ends() {
        let folder = tempfile::tempdir().unwrap();
        let attempts = Attempts::open(ledger(folder.path())).await.unwrap();
        assert_eq!(count(&attempts, 1).await, 1);
        assert_eq!(count(&attempts, 1).await, 2);
        // Together they are one transaction, and each has its own answer.
        let together = futures::future::join_all((1..=9).map(|n| count(&attempts, n))).await;
        assert_eq!(together, [3, 1, 1, 1, 1, 1, 1, 1, 1]);
        drop(attempts);
        let attempts = Attempts::open(ledger(folder.path())).await.unwrap();
        assert_eq!(count(&attempts, 1).await, 4);
        attempts.ended([[1; 16], [99; 16]].into_iter()).await;
        assert_eq!(count(&attempts, 1).await, 1);
        attempts.forget_old().await.unwrap();
        assert_eq!(count(&attempts, 2).await, 2, "nothing is old yet");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_call_that_is_dropped_while_it_writes_takes_no_other_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let attempts = Arc::new(Attempts::open(ledger(folder.path())).await.unwrap());
        for _ in 0..20 {
            let of = Arc::clone(&attempts);
            let dropped = tokio::spawn(async move { of.failed("a", [1; 16]).await });
            let other = attempts.failed("a", [2; 16]);
            tokio::task::yield_now().await;
            dropped.abort();
            assert!(other.await.is_some());
        }
        assert_eq!(attempts.failed("a", [2; 16]).await.unwrap().attempts, 21);
    }
}
