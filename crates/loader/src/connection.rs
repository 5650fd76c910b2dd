//! One connection instance.

use crate::call::{self, Failure};
use crate::plugins::Loaded;
use crate::registry::{ConnectionListener, REGISTRY};
use crate::sink::SinkHandle;
use crate::source::{self, SourceEvents, SourceHandle};
use consign_abi::json::{Names, OpenConnection, OpenFunction};
use consign_abi::{Call, PluginRef, RVec, Reply};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// A connection as a plugin has opened it. Clones are the same instance; one that is rebuilt is a
/// new instance with a new generation.
///
/// When the last clone is dropped without [`Connection::close`], the plugin is told to close it.
#[derive(Clone, Debug)]
pub struct Connection {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    plugin: Arc<Loaded>,
    generation: u64,
    opened_by: u64,
    handle: u64,
    fault: watch::Receiver<Option<Failure>>,
    fenced: AtomicBool,
    closed: AtomicBool,
}

impl Inner {
    pub fn vtable(&self) -> PluginRef {
        self.plugin.vtable
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn is_usable(&self) -> bool {
        !self.fenced.load(Ordering::Acquire) && !self.closed.load(Ordering::Acquire)
    }

    pub async fn call(
        &self,
        deadline: Duration,
        send: impl FnOnce(PluginRef, Call),
    ) -> Result<Reply, Failure> {
        if !self.is_usable() {
            return Err(Failure::other(
                "closed",
                "the connection was closed or fenced",
            ));
        }
        let vtable = self.vtable();
        call::call(vtable, self.generation, deadline, |call| send(vtable, call)).await
    }

    /// Asks the plugin to close it, without waiting.
    fn close_in_background(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let call = Call {
            token: REGISTRY.enter_ignored(self.generation),
            generation: self.generation,
            deadline_ms: call::millis(BACKGROUND_CLOSE),
        };
        (self.vtable().connection_close())(call, self.handle);
    }
}

/// Time a plugin gets to close a connection nobody waits for.
const BACKGROUND_CLOSE: Duration = Duration::from_secs(10);

impl Drop for Inner {
    fn drop(&mut self) {
        REGISTRY.connections.lock().remove(&self.opened_by);
        self.close_in_background();
    }
}

pub(crate) fn json_bytes(value: &impl Serialize) -> Result<RVec<u8>, Failure> {
    serde_json::to_vec(value)
        .map(Into::into)
        .map_err(|e| Failure::other("json", e.to_string()))
}

impl Connection {
    pub(crate) async fn open(
        plugin: Arc<Loaded>,
        request: &OpenConnection,
        deadline: Duration,
    ) -> Result<Self, Failure> {
        let generation = REGISTRY.issue();
        let (token, receiver) = REGISTRY.enter(generation);
        let (fault_sender, fault) = watch::channel(None);
        let listener = ConnectionListener {
            generation,
            fault: fault_sender,
        };
        REGISTRY.connections.lock().insert(token, listener);
        let mut forget = Forget(Some(token));
        let request = json_bytes(request)?;
        let vtable = plugin.vtable;
        let send = |call| (vtable.connection_open())(call, request);
        let reply = call::await_reply(vtable, token, generation, receiver, deadline, send).await?;
        forget.0 = None;
        Ok(Self {
            inner: Arc::new(Inner {
                plugin,
                generation,
                opened_by: token,
                handle: reply.handle,
                fault,
                fenced: AtomicBool::new(false),
                closed: AtomicBool::new(false),
            }),
        })
    }

    /// The number of this instance, unique in the process.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.inner.generation
    }

    /// A cheap round trip that does not use the write path.
    ///
    /// # Errors
    /// Keeps the gate closed.
    pub async fn probe(&self, deadline: Duration) -> Result<(), Failure> {
        let handle = self.inner.handle;
        let send = |plugin: PluginRef, call| (plugin.connection_probe())(call, handle);
        self.inner.call(deadline, send).await.map(|_| ())
    }

    /// Opens a sink.
    ///
    /// # Errors
    /// What the plugin says; `no_such_operation` when it is not a sink of this connector.
    pub async fn open_sink(
        &self,
        operation: &str,
        config: Value,
        names: Names,
        deadline: Duration,
    ) -> Result<SinkHandle, Failure> {
        let request = json_bytes(&OpenFunction {
            operation: operation.to_owned(),
            kind: None,
            config,
            names,
        })?;
        let handle = self.inner.handle;
        let send = |plugin: PluginRef, call| (plugin.sink_open())(call, handle, request);
        let reply = self.inner.call(deadline, send).await?;
        Ok(SinkHandle::new(Arc::clone(&self.inner), reply.handle))
    }

    /// Opens a source, which runs at once and delivers as soon as it has credit. `position` is
    /// the one the host has kept, if any.
    ///
    /// # Errors
    /// What the plugin says; `no_such_operation` when it is not a source of this connector. A
    /// failure of `run` itself comes as [`crate::SourceEvent::Fault`].
    pub async fn open_source(
        &self,
        operation: &str,
        config: Value,
        names: Names,
        position: Option<Vec<u8>>,
        deadline: Duration,
    ) -> Result<(SourceHandle, SourceEvents), Failure> {
        let request = json_bytes(&OpenFunction {
            operation: operation.to_owned(),
            kind: None,
            config,
            names,
        })?;
        source::open(&self.inner, self.inner.handle, request, position, deadline).await
    }

    /// Resolves when the plugin reports a fault of this connection (a panic in one of its tasks);
    /// pending for ever otherwise. Cancel safe.
    pub async fn faulted(&self) -> Failure {
        let mut fault = self.inner.fault.clone();
        let found = match fault.wait_for(Option::is_some).await {
            Ok(found) => found.clone(),
            Err(_) => None,
        };
        match found {
            Some(failure) => failure,
            None => std::future::pending().await,
        }
    }

    /// Gives this instance up at once: every pending reply resolves as fenced, sources end with
    /// a fault, and whatever the plugin still says for it is counted as late. The plugin is told to close it;
    /// nobody waits for that.
    pub fn fence(&self) {
        if !self.inner.fenced.swap(true, Ordering::AcqRel) {
            REGISTRY.fence(self.inner.generation);
            self.inner.close_in_background();
        }
    }

    /// Closes it, with everything that is still open on it.
    ///
    /// # Errors
    /// The plugin did not manage in time, or not without a panic. It counts as closed anyway.
    pub async fn close(&self, deadline: Duration) -> Result<(), Failure> {
        if self.inner.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (plugin, handle) = (self.inner.vtable(), self.inner.handle);
        call::call(plugin, self.inner.generation, deadline, |call| {
            (plugin.connection_close())(call, handle);
        })
        .await
        .map(|_| ())
    }
}

/// Forgets a connection's listener when opening it does not come to an end.
struct Forget(Option<u64>);

impl Drop for Forget {
    fn drop(&mut self) {
        if let Some(token) = self.0 {
            REGISTRY.connections.lock().remove(&token);
        }
    }
}
