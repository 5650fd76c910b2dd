//! Sources by handle: each runs as one task for as long as it is open.

use super::calls::{self, Contained, answer, guarded_call, no_such_handle};
use super::connections::no_such_operation;
use super::logging::{self, Place};
use super::{Core, guarded, reply};
use crate::plugin::Open;
use crate::source::{MessageId, SettleResult};
use crate::source_state::{SourceState, Upstream};
use crate::{ConnectionContext, Failure};
use consign_abi::{
    Call, ControlKind, MessageBatch, ROption, RVec, Reply, SettleCode, SettleRow, Status, json,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

#[derive(Default)]
pub(super) struct Sources(Mutex<HashMap<u64, Arc<Source>>>);

struct Source {
    connection: u64,
    opened_by: Call,
    state: Arc<SourceState>,
    place: Arc<Place>,
    cx: ConnectionContext,
    /// Whether `run` is over.
    ended: watch::Receiver<bool>,
    /// Told when `run` is to be dropped.
    abort: watch::Sender<bool>,
}

impl Sources {
    fn get(&self, handle: u64) -> Option<Arc<Source>> {
        self.0.lock().get(&handle).cloned()
    }

    /// Stops and drops every source of a connection that is being closed.
    pub fn stop_of(&self, connection: u64) {
        let mut sources = self.0.lock();
        for (_, source) in sources.extract_if(|_, s| s.connection == connection) {
            source.end();
        }
    }

    /// Stops and drops all of them.
    pub fn stop_all(&self) {
        for (_, source) in self.0.lock().drain() {
            source.end();
        }
    }
}

impl Source {
    fn end(&self) {
        self.state.stop();
        self.cx.abort_tasks();
        self.abort.send_replace(true);
    }
}

struct ToHost {
    core: &'static Core,
    call: Call,
}

impl Upstream for ToHost {
    fn deliver(&self, batch: MessageBatch) {
        if let Some(host) = self.core.host() {
            (host.vtable.deliver())(self.call.token, self.call.generation, batch);
        }
    }

    fn revoked(&self, token: u64, partitions: &[String]) {
        if let Some(host) = self.core.host() {
            let partitions = partitions.iter().map(|p| p.as_str().into()).collect();
            (host.vtable.revoked())(self.call.token, self.call.generation, token, partitions);
        }
    }
}

pub(super) extern "C" fn open(
    call: Call,
    connection: u64,
    request: RVec<u8>,
    position: ROption<RVec<u8>>,
) {
    guarded_call(call, |core| {
        let Some(connection) = core.connections.get(connection) else {
            return no_such_handle(core, call);
        };
        let request: json::OpenFunction = match serde_json::from_slice(&request) {
            Ok(request) => request,
            Err(error) => {
                let failure = Failure::other(("bad_request", error.to_string()));
                return answer(core, call, reply::failed(&failure));
            }
        };
        let def = core
            .plugin
            .operation_def(&connection.connector, &request.operation);
        let Some(Open::Source(run)) = def.map(|def| &def.open) else {
            return answer(
                core,
                call,
                no_such_operation(&connection, &request, "source"),
            );
        };
        let place = Place::new(&request.names);
        let cx = ConnectionContext::with_panics_to(request.names, connection.on_panic(core));
        let state = SourceState::new(Box::new(ToHost { core, call }));
        let position = position.into_option().map(RVec::into_vec);
        let run = run(
            connection.inner.any(),
            request.config,
            cx.clone(),
            position,
            Arc::clone(&state),
        );
        let run = match run {
            Ok(run) => run,
            Err(failure) => return answer(core, call, reply::failed(&failure)),
        };
        let (ended, ended_receiver) = watch::channel(false);
        let (abort, mut aborted) = watch::channel(false);
        let handle = core.next_handle();
        let source = Arc::new(Source {
            connection: connection.handle,
            opened_by: call,
            state,
            place: Arc::clone(&place),
            cx,
            ended: ended_receiver,
            abort,
        });
        core.sources.0.lock().insert(handle, Arc::clone(&source));
        // Answered before it runs, so that the host knows the handle before the first message.
        answer(core, call, reply::opened(handle));
        let spawned = core.spawn(logging::in_place(Some(place), async move {
            let mut run = Contained::new(run);
            let result = tokio::select! {
                biased;
                result = &mut run => result,
                _ = aborted.wait_for(|aborted| *aborted) => Ok(Ok(())),
            };
            let result = result.and_then(|result| run.discard().map(|()| result));
            source.finish(core, result, &connection);
            ended.send_replace(true);
        }));
        if !spawned {
            let failure = Failure::other(("shut_down", "the plugin was shut down"));
            core.fault(call.token, call.generation, &failure);
        }
    });
}

impl Source {
    /// Closes the books of a source that has ended, and reports a fault if it was not asked to.
    fn finish(
        &self,
        core: &'static Core,
        result: Result<Result<(), Failure>, String>,
        connection: &super::connections::Connection,
    ) {
        let asked = self.state.is_stopped();
        self.state.stop();
        self.cx.abort_tasks();
        let failure = match result {
            Err(panic) => {
                connection.faulted(core, &panic);
                Failure::other(("plugin_panicked", panic))
            }
            Ok(_) if asked => return,
            Ok(Err(failure)) => failure,
            Ok(Ok(())) => Failure::other(("source_ended", "the source ended unasked")),
        };
        core.fault(self.opened_by.token, self.opened_by.generation, &failure);
    }
}

fn with(source: u64, act: impl FnOnce(&SourceState)) {
    guarded((), |core| {
        if let Some(source) = core.sources.get(source) {
            act(&source.state);
        }
    });
}

pub(super) extern "C" fn credit(source: u64, count: u64, bytes: u64) {
    with(source, |state| state.credit(count, bytes));
}

pub(super) extern "C" fn settle(source: u64, rows: RVec<SettleRow>, arena: RVec<u8>) {
    with(source, |state| {
        state.settle(
            rows.iter()
                .map(|row| (MessageId::new(row.id), result_of(row, &arena))),
        );
    });
}

fn result_of(row: &SettleRow, arena: &[u8]) -> SettleResult {
    let reason = || row.reason.text(arena).unwrap_or_default().to_owned();
    match SettleCode::from_code(row.result) {
        SettleCode::Accepted => SettleResult::Accepted,
        SettleCode::Repeat => SettleResult::Repeat,
        SettleCode::Refused => SettleResult::Refused { reason: reason() },
        SettleCode::Dropped => SettleResult::Dropped { reason: reason() },
        SettleCode::Blocked => SettleResult::Blocked {
            retry_after_ms: row.retry_after_ms,
            reason: reason(),
        },
        SettleCode::Conflict => SettleResult::Conflict,
        SettleCode::InFlight => SettleResult::InFlight,
        _ => SettleResult::Released,
    }
}

pub(super) extern "C" fn extend(source: u64, ids: RVec<u64>) {
    with(source, |state| {
        state.extend(ids.iter().copied().map(MessageId::new));
    });
}

pub(super) extern "C" fn control(source: u64, kind: u32) {
    with(source, |state| match ControlKind::from_code(kind) {
        ControlKind::Pause => state.pause(true),
        ControlKind::Resume => state.pause(false),
        _ => {}
    });
}

pub(super) extern "C" fn seek(source: u64, position: RVec<u8>) {
    with(source, |state| state.seek(position.into_vec()));
}

pub(super) extern "C" fn revoke_done(source: u64, token: u64) {
    with(source, |state| state.revoke_done(token));
}

pub(super) extern "C" fn stop(call: Call, source: u64) {
    guarded_call(call, |core| {
        let Some(stopped) = core.sources.0.lock().remove(&source) else {
            return no_such_handle(core, call);
        };
        stopped.state.stop();
        let place = Some(Arc::clone(&stopped.place));
        let work = async move {
            let mut ended = stopped.ended.clone();
            // When this wait is dropped at its deadline, the guard drops `run` as well.
            let guard = EndOnDrop(stopped);
            // An error means that `run` was dropped without a word: over as well.
            let _ = ended.wait_for(|ended| *ended).await;
            drop(guard);
            Reply::of(Status::Ok)
        };
        calls::run(core, call, place, |_| work, |_| {});
    });
}

struct EndOnDrop(Arc<Source>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}
