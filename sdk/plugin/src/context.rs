//! What the host tells a connection and each write.

use crate::shim;
use consign_abi::json::Names;
use parking_lot::Mutex;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Where a connection, sink or source lives in the host. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConnectionContext {
    names: Arc<Names>,
    tasks: Arc<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks(Mutex<JoinSet<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.get_mut().abort_all();
    }
}

impl ConnectionContext {
    pub(crate) fn new(names: Names) -> Self {
        Self {
            names: Arc::new(names),
            tasks: Arc::new(Tasks::default()),
        }
    }

    /// The name the write key travels under, `consign.write-key` unless the host's configuration
    /// says otherwise. Dash or underscore it where the system's rules want that.
    #[must_use]
    pub fn write_key_name(&self) -> &str {
        self.names
            .write_key_name
            .as_deref()
            .unwrap_or("consign.write-key")
    }

    /// A folder for the plugin's own scratch files, kept across restarts. `None` when the host
    /// gives none. It may not exist yet.
    #[must_use]
    pub fn data_dir(&self) -> Option<&Path> {
        self.names.data_dir.as_deref()
    }

    /// The connection's name in the host's configuration.
    #[must_use]
    pub fn connection(&self) -> &str {
        &self.names.connection
    }

    /// The adapter's name; `None` in [`crate::Connector::connect`], since adapters share connections.
    #[must_use]
    pub fn adapter(&self) -> Option<&str> {
        self.names.adapter.as_deref()
    }

    /// The route's name, in a sink.
    #[must_use]
    pub fn route(&self) -> Option<&str> {
        self.names.route.as_deref()
    }

    /// The send's id, in a sink.
    #[must_use]
    pub fn send(&self) -> Option<&str> {
        self.names.send.as_deref()
    }

    /// Runs a task beside the connection, on the plugin's own runtime. The connection owns it: it
    /// is aborted when the connection, sink or source this context was made for is closed. Never
    /// blocks. A panic in it is logged as an error and ends that task alone.
    ///
    /// Call it from inside one of the plugin's async methods (or a `tokio` test).
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(shim::in_place(shim::place(), task));
    }

    pub(crate) fn abort_tasks(&self) {
        self.tasks.0.lock().abort_all();
    }
}

/// How long one `write` may take, and whether the host still wants it.
#[derive(Debug, Clone)]
pub struct WriteContext {
    deadline: Instant,
    cancelled: watch::Receiver<bool>,
}

impl WriteContext {
    pub(crate) fn new(deadline: Instant, cancelled: watch::Receiver<bool>) -> Self {
        Self {
            deadline,
            cancelled,
        }
    }

    /// When the host stops waiting. The SDK then drops the write's future and answers unknown for
    /// every write of the batch.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Time left until [`WriteContext::deadline`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Completes when the host cancels the request or its deadline passes. The write's own future
    /// is dropped then anyway: this is for tasks it has spawned, which must stop too.
    pub async fn cancelled(&self) {
        let mut cancelled = self.cancelled.clone();
        // An error means that the request is over and its sender gone.
        let _ = cancelled.wait_for(|cancelled| *cancelled).await;
    }
}
