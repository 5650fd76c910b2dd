//! Connections and sinks by handle.

use super::calls::{self, CallContext, answer, guarded_call, no_such_handle};
use super::logging::Place;
use super::{Core, reply};
use crate::context::OnPanic;
use crate::plugin::{AnyConnection, AnySink, Open};
use crate::{Batch, ConnectionContext, Failure, WriteContext};
use consign_abi::{Call, RVec, Reply, Status, WriteBatch, json};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

#[derive(Default)]
pub(super) struct Connections {
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    sinks: Mutex<HashMap<u64, Arc<Sink>>>,
}

pub(super) struct Connection {
    pub handle: u64,
    /// The call that opened it: names it to the host when it faults.
    pub opened_by: Call,
    pub connector: String,
    pub place: Arc<Place>,
    pub inner: Arc<dyn AnyConnection>,
    cx: ConnectionContext,
}

struct Sink {
    connection: Arc<Connection>,
    place: Arc<Place>,
    inner: Arc<dyn AnySink>,
    cx: ConnectionContext,
    /// Set when it is closed: ends what is in flight.
    closing: watch::Sender<bool>,
}

impl Sink {
    fn end(&self) {
        self.cx.abort_tasks();
        self.closing.send_replace(true);
    }
}

impl Connections {
    pub fn get(&self, handle: u64) -> Option<Arc<Connection>> {
        self.open.lock().get(&handle).cloned()
    }

    /// Ends and drops all sinks and connections.
    pub fn drop_all(&self) {
        let sinks: Vec<Arc<Sink>> = self.sinks.lock().drain().map(|(_, sink)| sink).collect();
        for sink in sinks {
            sink.end();
        }
        let open: Vec<Arc<Connection>> = self.open.lock().drain().map(|(_, open)| open).collect();
        for connection in open {
            connection.cx.abort_tasks();
        }
    }

    fn sink(&self, handle: u64) -> Option<Arc<Sink>> {
        self.sinks.lock().get(&handle).cloned()
    }
}

/// What tells the host that the connection a call opened is not to be trusted any more.
fn on_panic(core: &'static Core, opened_by: Call) -> OnPanic {
    Arc::new(move |panic| {
        let failure = Failure::other(("plugin_panicked", panic.to_owned()));
        core.fault(opened_by.token, opened_by.generation, &failure);
    })
}

impl Connection {
    pub fn on_panic(&self, core: &'static Core) -> OnPanic {
        on_panic(core, self.opened_by)
    }

    /// Says that a panic has made the connection untrustworthy.
    pub fn faulted(&self, core: &'static Core, panic: &str) {
        on_panic(core, self.opened_by)(panic);
    }
}

pub(super) extern "C" fn open(call: Call, request: RVec<u8>) {
    guarded_call(call, |core| {
        let request: json::OpenConnection = match serde_json::from_slice(&request) {
            Ok(request) => request,
            Err(error) => return answer(core, call, bad_request(&error)),
        };
        let Some(def) = core.plugin.connector_def(&request.connector) else {
            let message = format!("the plugin has no connector {}", request.connector);
            let failure = Failure::config(("no_such_connector", message));
            return answer(core, call, reply::failed(&failure));
        };
        let place = Place::new(&request.names);
        let cx = ConnectionContext::with_panics_to(request.names, on_panic(core, call));
        let work = {
            let place = Arc::clone(&place);
            async move {
                match (def.connect)(request.config, cx.clone()).await {
                    Ok(inner) => {
                        let connection = Connection {
                            handle: core.next_handle(),
                            opened_by: call,
                            connector: request.connector,
                            place,
                            inner,
                            cx,
                        };
                        let handle = connection.handle;
                        let connections = &core.connections;
                        connections.open.lock().insert(handle, Arc::new(connection));
                        reply::opened(handle)
                    }
                    Err(failure) => {
                        cx.abort_tasks();
                        reply::failed(&failure)
                    }
                }
            }
        };
        calls::run(core, call, Some(place), |_| work, |_| {});
    });
}

fn bad_request(error: &serde_json::Error) -> Reply {
    reply::failed(&Failure::other(("bad_request", error.to_string())))
}

pub(super) extern "C" fn probe(call: Call, connection: u64) {
    guarded_call(call, |core| {
        let Some(connection) = core.connections.get(connection) else {
            return no_such_handle(core, call);
        };
        let place = Some(Arc::clone(&connection.place));
        let probed = Arc::clone(&connection);
        calls::run(
            core,
            call,
            place,
            |_| async move { reply::done(probed.inner.probe().await) },
            move |panic| connection.faulted(core, panic),
        );
    });
}

pub(super) extern "C" fn close(call: Call, connection: u64) {
    guarded_call(call, |core| {
        let Some(connection) = core.connections.open.lock().remove(&connection) else {
            return no_such_handle(core, call);
        };
        core.sources.stop_of(connection.handle);
        let sinks: Vec<Arc<Sink>> = {
            let mut sinks = core.connections.sinks.lock();
            sinks
                .extract_if(|_, s| s.connection.handle == connection.handle)
                .map(|(_, sink)| sink)
                .collect()
        };
        let place = Some(Arc::clone(&connection.place));
        let work = async move {
            for sink in &sinks {
                sink.end();
            }
            drop(sinks);
            connection.inner.close().await;
            connection.cx.abort_tasks();
            Reply::of(Status::Ok)
        };
        calls::run(core, call, place, |_| work, |_| {});
    });
}

pub(super) extern "C" fn sink_open(call: Call, connection: u64, request: RVec<u8>) {
    guarded_call(call, |core| {
        let Some(connection) = core.connections.get(connection) else {
            return no_such_handle(core, call);
        };
        let request: json::OpenFunction = match serde_json::from_slice(&request) {
            Ok(request) => request,
            Err(error) => return answer(core, call, bad_request(&error)),
        };
        let def = core
            .plugin
            .operation_def(&connection.connector, &request.operation);
        let Some(Open::Sink(open)) = def.map(|def| &def.open) else {
            return answer(core, call, no_such_operation(&connection, &request, "sink"));
        };
        let place = Place::new(&request.names);
        let cx = ConnectionContext::with_panics_to(request.names, connection.on_panic(core));
        let faulted = Arc::clone(&connection);
        let work = {
            let place = Arc::clone(&place);
            async move {
                match open(connection.inner.any(), request.config, cx.clone()).await {
                    Ok(inner) => {
                        let handle = core.next_handle();
                        let sink = Sink {
                            connection,
                            place,
                            inner,
                            cx,
                            closing: watch::Sender::new(false),
                        };
                        core.connections.sinks.lock().insert(handle, Arc::new(sink));
                        reply::opened(handle)
                    }
                    Err(failure) => {
                        cx.abort_tasks();
                        reply::failed(&failure)
                    }
                }
            }
        };
        calls::run(
            core,
            call,
            Some(place),
            |_| work,
            move |panic| faulted.faulted(core, panic),
        );
    });
}

pub(super) fn no_such_operation(
    connection: &Connection,
    request: &json::OpenFunction,
    kind: &str,
) -> Reply {
    reply::failed(&Failure::config((
        "no_such_operation",
        format!(
            "connector {} has no {kind} {}",
            connection.connector, request.operation
        ),
    )))
}

pub(super) extern "C" fn sink_submit(call: Call, sink: u64, batch: WriteBatch) {
    guarded_call(call, |core| {
        let Some(sink) = core.connections.sink(sink) else {
            return no_such_handle(core, call);
        };
        let place = Some(Arc::clone(&sink.place));
        let connection = Arc::clone(&sink.connection);
        let work = |call: CallContext| async move {
            let batch = Batch::new(batch);
            let cx = WriteContext::new(call.deadline, call.cancelled, call.blocking);
            let mut closing = sink.closing.subscribe();
            tokio::select! {
                biased;
                outcomes = sink.inner.write(&batch, &cx) => reply::outcomes(&outcomes),
                _ = closing.wait_for(|closing| *closing) => Reply::of(Status::Aborted),
            }
        };
        calls::run(core, call, place, work, move |panic| {
            connection.faulted(core, panic);
        });
    });
}

pub(super) extern "C" fn sink_inspect(call: Call, sink: u64) {
    guarded_call(call, |core| {
        let Some(sink) = core.connections.sink(sink) else {
            return no_such_handle(core, call);
        };
        let place = Some(Arc::clone(&sink.place));
        let connection = Arc::clone(&sink.connection);
        calls::run(
            core,
            call,
            place,
            |_| async move { reply::json(&sink.inner.inspect().await) },
            move |panic| connection.faulted(core, panic),
        );
    });
}

pub(super) extern "C" fn sink_close(call: Call, sink: u64) {
    guarded_call(call, |core| {
        let Some(sink) = core.connections.sinks.lock().remove(&sink) else {
            return no_such_handle(core, call);
        };
        let place = Some(Arc::clone(&sink.place));
        let connection = Arc::clone(&sink.connection);
        let work = async move {
            sink.end();
            drop(sink);
            Reply::of(Status::Ok)
        };
        calls::run(
            core,
            call,
            place,
            |_| work,
            move |panic| connection.faulted(core, panic),
        );
    });
}
