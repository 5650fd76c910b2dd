//! Asynchronous calls: each runs as one task, and is answered once, by its result, its cancel, its
//! deadline or its panic, whichever comes first. The work is dropped before the answer leaves.

use super::{Core, guarded, logging};
use crate::blocking::Blocking;
use crate::plugin::BoxFuture;
use consign_abi::{Call, Reply, Status};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Longest deadline a timer is set for; the host's own are far below.
const LONGEST_DEADLINE: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Default)]
pub(super) struct Calls(Mutex<HashMap<(u64, u64), watch::Sender<bool>>>);

/// What the work of a call may know of it.
pub(super) struct CallContext {
    pub deadline: Instant,
    pub cancelled: watch::Receiver<bool>,
    pub blocking: Blocking,
}

/// Runs the body of an entry point that answers a call; a panic in it is answered too.
pub(super) fn guarded_call(call: Call, body: impl FnOnce(&'static Core)) {
    guarded((), |core| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(core))) {
            let mut reply = Reply::of(Status::Panicked);
            reply.bytes = text_of(&*panic).into_bytes().into();
            answer(core, call, reply);
        }
    });
}

/// Answers a call as aborted when its task is dropped before it could answer (the runtime ends).
struct AnswerOnDrop {
    core: &'static Core,
    call: Call,
    armed: bool,
}

impl Drop for AnswerOnDrop {
    fn drop(&mut self) {
        if self.armed {
            self.core
                .calls
                .0
                .lock()
                .remove(&(self.call.token, self.call.generation));
            answer(self.core, self.call, Reply::of(Status::Aborted));
        }
    }
}

/// Runs `work` as the answer to `call`. `on_panic` runs before a panic is answered.
pub(super) fn run<F, W>(
    core: &'static Core,
    call: Call,
    names: Option<Arc<logging::Place>>,
    work: F,
    on_panic: impl FnOnce(&str) + Send + 'static,
) where
    F: FnOnce(CallContext) -> W,
    W: Future<Output = Reply> + Send + 'static,
{
    let (cancel, mut cancelled) = watch::channel(false);
    let within = Duration::from_millis(call.deadline_ms).min(LONGEST_DEADLINE);
    let blocking = Blocking::default();
    let context = CallContext {
        deadline: Instant::now() + within,
        cancelled: cancelled.clone(),
        blocking: blocking.clone(),
    };
    let key = (call.token, call.generation);
    core.calls.0.lock().insert(key, cancel);
    let work = work(context);
    let mut unanswered = AnswerOnDrop {
        core,
        call,
        armed: true,
    };
    core.spawn(logging::in_place(names, async move {
        // Named here so that the task owns it, and declared before the work, to be dropped after it.
        let unanswered = &mut unanswered;
        let mut work = Contained::new(work);
        let ended = tokio::select! {
            biased;
            ended = &mut work => ended,
            _ = cancelled.wait_for(|cancelled| *cancelled) => Ok(Reply::of(Status::Aborted)),
            () = tokio::time::sleep(within) => Ok(Reply::of(Status::Aborted)),
        };
        // Tasks the work has spawned hear of the end; then the work itself goes.
        if let Some(cancel) = core.calls.0.lock().remove(&key) {
            cancel.send_replace(true);
        }
        let ended = ended.and_then(|reply| work.discard().map(|()| reply));
        // What still runs on a blocking thread may still apply: no abort is acknowledged before.
        blocking.idle().await;
        let reply = ended.unwrap_or_else(|panic| {
            on_panic(&panic);
            let mut reply = Reply::of(Status::Panicked);
            reply.bytes = panic.into_bytes().into();
            reply
        });
        unanswered.armed = false;
        answer(core, call, reply);
    }));
}

/// Answers a call.
pub(super) fn answer(core: &Core, call: Call, reply: Reply) {
    if let Some(host) = core.host() {
        (host.vtable.complete())(call.token, call.generation, reply);
    }
}

/// Answers a call whose handle is not there.
pub(super) fn no_such_handle(core: &Core, call: Call) {
    answer(core, call, Reply::of(Status::NoSuchHandle));
}

pub(super) extern "C" fn cancel(token: u64, generation: u64) {
    guarded((), |core| {
        if let Some(cancel) = core.calls.0.lock().get(&(token, generation)) {
            cancel.send_replace(true);
        }
    });
}

/// Time the runtime gets to end its tasks at shutdown when the host gives none.
const SHUTDOWN_AT_MOST: Duration = Duration::from_secs(10);

pub(super) extern "C" fn shutdown(call: Call) {
    guarded((), |core| {
        core.sources.stop_all();
        let Some(runtime) = core.runtime.lock().take() else {
            return answer(core, call, Reply::of(Status::Ok));
        };
        let within = Duration::from_millis(call.deadline_ms).min(SHUTDOWN_AT_MOST);
        // A thread of its own: ending a runtime blocks, and this entry point may not.
        let ending = std::thread::Builder::new()
            .name("plugin-shutdown".to_owned())
            .spawn(move || {
                // What authors left open is dropped where their resources expect it.
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    let _inside = runtime.enter();
                    core.connections.drop_all();
                    core.functions.drop_all();
                }));
                runtime.shutdown_timeout(within);
                answer(core, call, Reply::of(Status::Ok));
            });
        if ending.is_err() {
            answer(core, call, Reply::of(Status::Failed));
        }
    });
}

/// A future whose panics become errors, in polling and in dropping.
pub(crate) struct Contained<T>(Option<BoxFuture<'static, T>>);

impl<T> Contained<T> {
    pub fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }

    /// Drops the work; an error says that the drop panicked.
    pub fn discard(&mut self) -> Result<(), String> {
        let work = self.0.take();
        catch_unwind(AssertUnwindSafe(|| drop(work))).map_err(|panic| text_of(&*panic))
    }
}

impl<T> Future for Contained<T> {
    type Output = Result<T, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = self.0.as_mut() else {
            return Poll::Pending;
        };
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(self.discard().map(|()| value)),
            Err(panic) => {
                // What the work still holds goes too; a second panic adds nothing.
                let _ = self.discard();
                Poll::Ready(Err(text_of(&*panic)))
            }
        }
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        // Reached when the runtime drops the task; nobody is left to tell.
        let _ = self.discard();
    }
}

/// A panic's message.
pub(super) fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
