//! Blocking work of one call, counted so that its end can be awaited.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// The blocking work of one call. Clones count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Blocking(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    running: AtomicUsize,
    ended: Notify,
}

/// One piece of work; counted until it is dropped, which happens on its own thread.
struct Running(Blocking);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.ended.notify_waiters();
        }
    }
}

impl Blocking {
    /// Runs `work` on a thread for blocking work. Dropping the future does not stop it.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.0.running.fetch_add(1, Ordering::AcqRel);
        let running = Running(self.clone());
        let ended = tokio::task::spawn_blocking(move || {
            let _running = running;
            work()
        });
        match ended.await {
            Ok(value) => value,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime is ending: so is whoever waits here.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Waits until nothing of it runs.
    pub async fn idle(&self) {
        loop {
            let ended = self.0.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.0.running.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}
