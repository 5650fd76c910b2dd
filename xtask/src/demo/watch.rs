//! What every wait of the demo looks at: an interrupt, the time limit, and failures of the clients.

use crate::error::{Context, Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(5);

/// Shared by the conductor and the clients of one demo.
#[derive(Debug)]
pub struct Watch {
    interrupted: Arc<AtomicBool>,
    stopped: AtomicBool,
    fault: Mutex<Option<String>>,
    end: Instant,
    /// Webhooks that were answered 2xx.
    pub accepted: AtomicU64,
}

impl Watch {
    /// Starts watching; SIGINT, SIGTERM and SIGHUP no longer end the process but show here.
    pub fn new(limit: Duration) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [
            signal_hook::consts::SIGINT,
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGHUP,
        ] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))
                .context(|| "cannot watch for interrupts".into())?;
        }
        Ok(Self {
            interrupted,
            stopped: AtomicBool::new(false),
            fault: Mutex::new(None),
            end: Instant::now() + limit,
            accepted: AtomicU64::new(0),
        })
    }

    /// An error when the demo must not go on.
    pub fn check(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = &*fault {
            return Err(Error::Failed(text.clone()));
        }
        if Instant::now() > self.end {
            return Err(Error::Failed(
                "the demo did not come to its end within its time limit".into(),
            ));
        }
        Ok(())
    }

    /// Tells everyone that something is wrong; the first to say so is heard.
    pub fn fault(&self, text: String) {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.get_or_insert(text);
        self.stop();
    }

    /// Tells the clients to end.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the clients are to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || self.interrupted.load(Ordering::Relaxed)
    }

    /// Waits until `done` says so.
    pub fn wait(&self, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        while !done()? {
            self.check()?;
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits for a time.
    pub fn pause(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        self.wait(|| Ok(Instant::now() >= end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_first_fault_and_at_the_time_limit() {
        let watch = Watch::new(Duration::from_secs(60)).unwrap();
        watch.fault("first".into());
        watch.fault("second".into());
        assert!(watch.is_stopped());
        let error = watch.wait(|| Ok(false)).unwrap_err().to_string();
        assert_eq!(error, "first");

        let watch = Watch::new(Duration::from_millis(20)).unwrap();
        let error = watch
            .pause(Duration::from_secs(60))
            .unwrap_err()
            .to_string();
        assert!(error.contains("time limit"), "{error}");
    }
}
