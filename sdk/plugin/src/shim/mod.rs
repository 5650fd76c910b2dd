//! Everything between the ABI and an author's traits: the plugin's runtime, its entry points, its
//! handles, and the containment of panics. Authors see none of it but `export_plugin!`.
//!
//! Every entry point returns at once and never lets a panic out. Work runs on two worker threads.

mod calls;
mod connections;
mod functions;
mod logging;
mod reply;
mod sources;

use crate::{Failure, Plugin};
use calls::Calls;
pub(crate) use calls::Contained;
use connections::Connections;
use consign_abi::export::RootModuleResult;
use consign_abi::{HostRef, LibHeader, RVec, Status, json, note};
use functions::Functions;
pub(crate) use logging::{in_place, metric, place};
use parking_lot::Mutex;
use sources::Sources;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::Runtime;

#[doc(hidden)]
pub use consign_abi::export::header;
#[doc(hidden)]
pub use consign_abi::note::NoteRecord;

#[doc(hidden)]
pub type Header = LibHeader;
#[doc(hidden)]
pub type Root = RootModuleResult;

/// The part of the note that is the SDK's; `export_plugin!` adds the package's.
#[doc(hidden)]
pub const NOTE_HEAD: &str = concat!(
    "magic=consign-plugin\nsdk=",
    env!("CARGO_PKG_VERSION"),
    "\nrustc=",
    env!("CONSIGN_RUSTC"),
    "\ntarget=",
    env!("CONSIGN_TARGET"),
    "\nabi=",
);
#[doc(hidden)]
pub const NOTE_ABI: &str = note::ABI_VERSION;
#[doc(hidden)]
pub const NOTE_PANIC: &str = if cfg!(panic = "unwind") {
    "\npanic=unwind"
} else {
    "\npanic=abort"
};

/// Worker threads of a plugin: one that an author blocks by mistake leaves one for the rest.
const WORKERS: usize = 2;

/// The plugin of this library, set when the host asks for the root.
static CORE: OnceLock<Core> = OnceLock::new();

pub(crate) struct Core {
    plugin: Plugin,
    host: OnceLock<Host>,
    runtime: Mutex<Option<Runtime>>,
    handles: AtomicU64,
    calls: Calls,
    connections: Connections,
    sources: Sources,
    functions: Functions,
}

/// The host as it introduced itself.
#[derive(Clone, Copy)]
pub(crate) struct Host {
    pub number: u64,
    pub vtable: HostRef,
}

impl Core {
    fn get() -> Option<&'static Self> {
        CORE.get()
    }

    fn host(&self) -> Option<&Host> {
        self.host.get()
    }

    fn next_handle(&self) -> u64 {
        self.handles.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn fault(&self, token: u64, generation: u64, failure: &Failure) {
        if let Some(host) = self.host() {
            (host.vtable.fault())(token, generation, reply::failure_json(failure));
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> bool {
        match self.runtime.lock().as_ref() {
            Some(runtime) => {
                runtime.spawn(work);
                true
            }
            None => false,
        }
    }
}

/// Runs an entry point's body; a panic ends here.
fn guarded<T>(otherwise: T, body: impl FnOnce(&'static Core) -> T) -> T {
    let Some(core) = Core::get() else {
        return otherwise;
    };
    catch_unwind(AssertUnwindSafe(|| body(core))).unwrap_or(otherwise)
}

/// Called through the exported root. A second call gives the same plugin.
#[doc(hidden)]
pub fn root(make: fn() -> Plugin) -> RootModuleResult {
    consign_abi::export::root(|| {
        let core = Core {
            plugin: make(),
            host: OnceLock::new(),
            runtime: Mutex::new(None),
            handles: AtomicU64::new(0),
            calls: Calls::default(),
            connections: Connections::default(),
            sources: Sources::default(),
            functions: Functions::default(),
        };
        if CORE.set(core).is_err() {
            return Err("the plugin was asked for its root twice".to_owned());
        }
        Ok(consign_abi::Plugin {
            manifest,
            init,
            resolve,
            connection_open: connections::open,
            connection_probe: connections::probe,
            connection_close: connections::close,
            sink_open: connections::sink_open,
            sink_submit: connections::sink_submit,
            sink_inspect: connections::sink_inspect,
            sink_close: connections::sink_close,
            cancel: calls::cancel,
            source_open: sources::open,
            source_credit: sources::credit,
            source_settle: sources::settle,
            source_extend: sources::extend,
            source_control: sources::control,
            source_seek: sources::seek,
            source_revoke_done: sources::revoke_done,
            source_stop: sources::stop,
            shutdown: calls::shutdown,
            function_open: functions::open,
            function_call: functions::call,
            function_close: functions::close,
        })
    })
}

extern "C" fn manifest() -> RVec<u8> {
    guarded(RVec::new(), |core| {
        serde_json::to_vec(&core.plugin.manifest())
            .unwrap_or_default()
            .into()
    })
}

extern "C" fn init(number: u64, vtable: HostRef) -> u32 {
    let status = guarded(Status::Panicked, |core| {
        // Called again after a shutdown: the host stays, the runtime is new.
        if core.host.set(Host { number, vtable }).is_ok() {
            logging::install(Host { number, vtable });
        }
        let mut running = core.runtime.lock();
        if running.is_some() {
            return Status::Ok;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name(format!("plugin-{}", core.plugin.name()))
            .on_thread_start(consign_abi::alternate_stack)
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => {
                *running = Some(runtime);
                Status::Ok
            }
            Err(_) => Status::Failed,
        }
    });
    status.code()
}

extern "C" fn resolve(request: RVec<u8>) -> RVec<u8> {
    let answer = guarded(
        json::Answer::Failure(reply::failure(&Failure::other((
            "plugin_panicked",
            "the plugin panicked in resolve",
        )))),
        |core| match core.plugin.resolve(&request) {
            Ok(value) => json::Answer::Ok(value),
            Err(failure) => json::Answer::Failure(reply::failure(&failure)),
        },
    );
    serde_json::to_vec(&answer).unwrap_or_default().into()
}
