//! What the host tells a connection and each write.

use crate::blocking::Blocking;
use crate::shim::{self, Contained};
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

/// Told of a panic in a task, with its message.
pub(crate) type OnPanic = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Default)]
struct Tasks {
    running: Mutex<JoinSet<()>>,
    on_panic: Option<OnPanic>,
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tasks", self.running.lock().len())
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.running.get_mut().abort_all();
    }
}

impl ConnectionContext {
    pub(crate) fn new(names: Names) -> Self {
        Self {
            names: Arc::new(names),
            tasks: Arc::new(Tasks::default()),
        }
    }

    pub(crate) fn with_panics_to(names: Names, on_panic: OnPanic) -> Self {
        Self {
            names: Arc::new(names),
            tasks: Arc::new(Tasks {
                running: Mutex::default(),
                on_panic: Some(on_panic),
            }),
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
    /// blocks. A panic in it faults the connection: the host closes it and connects again.
    ///
    /// Call it from inside one of the plugin's async methods (or a `tokio` test).
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let on_panic = self.tasks.on_panic.clone();
        let task = async move {
            let panicked = Contained::new(task).await.err();
            if let (Some(panic), Some(on_panic)) = (panicked, on_panic) {
                on_panic(&panic);
            }
        };
        let mut running = self.tasks.running.lock();
        while running.try_join_next().is_some() {}
        running.spawn(shim::in_place(shim::place(), task));
    }

    /// Adds to a counter of the plugin; shown among the host's metrics. Never blocks. `name` is
    /// `snake_case`; a plugin has at most 256 metrics.
    pub fn count(&self, name: &str, by: u64) {
        #[allow(
            clippy::cast_precision_loss,
            reason = "counts beyond 2^53 may lose their last digits"
        )]
        shim::metric(1, name, by as f64);
    }

    /// Sets a gauge of the plugin; shown among the host's metrics. Never blocks.
    pub fn gauge(&self, name: &str, value: f64) {
        shim::metric(2, name, value);
    }

    pub(crate) fn abort_tasks(&self) {
        self.tasks.running.lock().abort_all();
    }
}

/// How long one `write` may take, and whether the host still wants it.
#[derive(Debug, Clone)]
pub struct WriteContext {
    deadline: Instant,
    cancelled: watch::Receiver<bool>,
    blocking: Blocking,
}

impl WriteContext {
    pub(crate) fn new(
        deadline: Instant,
        cancelled: watch::Receiver<bool>,
        blocking: Blocking,
    ) -> Self {
        Self {
            deadline,
            cancelled,
            blocking,
        }
    }

    /// Runs blocking work (a driver without async, file I/O) on a thread made for it. Use this
    /// and not `tokio::task::spawn_blocking`: such work can't be dropped, and the SDK answers a
    /// cancel or a passed deadline only once it has ended, so that an acknowledged abort never
    /// applies anything afterwards. Keep each piece short, and ask
    /// [`WriteContext::is_cancelled`] between two pieces. A panic in it is a panic of the write.
    ///
    /// ```
    /// use consign_plugin::prelude::*;
    ///
    /// async fn append(path: std::path::PathBuf, write: Write, cx: &WriteContext) -> Outcome {
    ///     let work = move || -> std::io::Result<()> {
    ///         use std::io::Write as _;
    ///         let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path)?;
    ///         file.write_all(write.body())?;
    ///         file.sync_all()
    ///     };
    ///     match cx.blocking(work).await {
    ///         Ok(()) => Outcome::delivered(),
    ///         // Part of it may be there.
    ///         Err(error) => Outcome::failed_maybe(("io", error.to_string())),
    ///     }
    /// }
    /// # let _ = append;
    /// ```
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.blocking.run(work).await
    }

    /// Whether the host has cancelled the request, or its deadline has passed. Never blocks.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow() || self.remaining().is_zero()
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
