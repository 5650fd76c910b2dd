//! Messages that are with a plugin before they can be accepted: in the steps of their route, or with an
//! error handler that decides about them.
//!
//! They can be taken back at any time (their partition was revoked, the host stops): nothing of them is
//! durable yet, so their source hands them over again.

use crate::work::Work;
use futures::future::{AbortHandle, Abortable, Aborted};
use futures::stream::{FuturesUnordered, StreamExt as _};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;

/// What a message came to.
#[derive(Debug)]
pub enum Staged {
    /// The routes have been run, or a handler has decided: these can be looked at again, in order.
    Ready(Vec<Work>),
    /// A handler, or its failure, ends it without acceptance: the client is told.
    Drop(Box<Work>),
}

/// A message that is away, as far as its source is concerned.
#[derive(Debug, Clone, Copy)]
pub struct Away {
    /// The source's number for it.
    pub source_id: u64,
    /// What it was charged.
    pub bytes: u64,
    /// When it came in, monotonic milliseconds.
    pub received_ms: u64,
}

struct Entry {
    group: Option<String>,
    abort: AbortHandle,
    works: Vec<Away>,
}

type Running =
    FuturesUnordered<Pin<Box<dyn Future<Output = (u64, Result<Staged, Aborted>)> + Send>>>;

/// Everything of one adapter that is away.
#[derive(Default)]
pub struct Staging {
    running: Running,
    entries: HashMap<u64, Entry>,
    last: u64,
}

impl Staging {
    /// Sends messages of one group away.
    pub fn start(
        &mut self,
        group: Option<String>,
        works: Vec<Away>,
        work: impl Future<Output = Staged> + Send + 'static,
    ) {
        self.last = self.last.wrapping_add(1);
        let token = self.last;
        let (abort, registration) = AbortHandle::new_pair();
        let work = Abortable::new(work, registration);
        self.entries.insert(
            token,
            Entry {
                group,
                abort,
                works,
            },
        );
        self.running
            .push(Box::pin(async move { (token, work.await) }));
    }

    /// The next that came back, with its group. Never ends while nothing is away.
    pub async fn next(&mut self) -> (Option<String>, Staged) {
        loop {
            match self.running.next().await {
                Some((token, Ok(staged))) => {
                    if let Some(entry) = self.entries.remove(&token) {
                        return (entry.group, staged);
                    }
                }
                // Taken back before: its source was told.
                Some((_, Err(Aborted))) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Takes back what `which` picks by group; the groups, and what their source has to be told.
    pub fn take_back(
        &mut self,
        which: impl Fn(&Option<String>) -> bool,
    ) -> Vec<(Option<String>, Vec<Away>)> {
        let tokens: Vec<u64> = self
            .entries
            .iter()
            .filter(|(_, entry)| which(&entry.group))
            .map(|(token, _)| *token)
            .collect();
        tokens
            .into_iter()
            .filter_map(|token| self.entries.remove(&token))
            .map(|entry| {
                entry.abort.abort();
                (entry.group, entry.works)
            })
            .collect()
    }

    /// All messages that are away.
    pub fn away(&self) -> impl Iterator<Item = &Away> {
        self.entries.values().flat_map(|entry| &entry.works)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away(source_id: u64) -> Vec<Away> {
        vec![Away {
            source_id,
            bytes: 1,
            received_ms: 0,
        }]
    }

    #[tokio::test]
    async fn what_is_taken_back_never_comes_back() {
        let mut staging = Staging::default();
        let group = |name: &str| Some(name.to_owned());
        staging.start(group("a"), away(1), async { Staged::Ready(Vec::new()) });
        staging.start(group("b"), away(2), std::future::pending());
        staging.start(None, away(3), async { Staged::Ready(Vec::new()) });
        let back = staging.take_back(|of| of.as_deref() == Some("a") || of.as_deref() == Some("b"));
        let mut ids: Vec<u64> = back
            .iter()
            .flat_map(|(_, works)| works)
            .map(|w| w.source_id)
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
        assert_eq!(staging.away().map(|w| w.source_id).collect::<Vec<_>>(), [3]);
        let (of, _) = staging.next().await;
        assert_eq!(of, None);
        assert_eq!(staging.away().count(), 0);
        assert!(futures::FutureExt::now_or_never(staging.next()).is_none());
    }
}
