//! The committing thread: steps the core, and sleeps in between.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::api::{Options, Recovery};
use crate::buffer::{Buffer, Owner};
use crate::core::{Core, Now};
use crate::error::OpenError;
use crate::fs::Filesystem;
use crate::recovery;

/// The thread looks around this often when nobody asks for anything.
const IDLE: Duration = Duration::from_millis(100);
/// As [`IDLE`], while operations wait for room in the log.
const IDLE_BLOCKED: Duration = Duration::from_millis(5);

pub(crate) async fn open(
    dir: PathBuf,
    options: Options,
    fs: Arc<dyn Filesystem>,
) -> Result<(Buffer, Recovery), OpenError> {
    let (sender, receiver) = oneshot::channel();
    let path = dir.clone();
    let spawned = std::thread::Builder::new()
        .name("consign-buffer".into())
        .spawn(move || match recovery::open(dir, options, fs, 0) {
            Ok((core, recovery)) => {
                let shared = core.shared.clone();
                if sender.send(Ok((shared, recovery))).is_ok() {
                    run(core);
                }
            }
            Err(e) => drop(sender.send(Err(e))),
        });
    let failed = |source| OpenError::Io {
        what: "starting the committing thread for",
        path: path.clone(),
        source,
    };
    let thread = spawned.map_err(failed)?;
    let (shared, recovery) = receiver
        .await
        .map_err(|_| failed(std::io::Error::other("the thread ended while opening")))??;
    let owner = Arc::new(Owner {
        shared: shared.clone(),
        thread: Mutex::new(Some(thread)),
    });
    Ok((Buffer { shared, owner }, recovery))
}

fn run(mut core: Core) {
    let start = Instant::now();
    let shared = core.shared.clone();
    let (gather, flush) = (core.options.gather, core.options.settle_flush);
    let mut last_group = 1;
    loop {
        let mono_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let stepped = core.step(Now {
            mono_ms,
            unix_ms: shared.unix_now_ms(),
        });
        if stepped.closed || shared.is_abandoned() {
            return;
        }
        if stepped.group > 0 {
            last_group = stepped.group;
        }
        let idle = match (stepped.more, core.waits()) {
            (true, _) => Duration::ZERO,
            (false, true) => IDLE_BLOCKED,
            (false, false) => IDLE,
        };
        shared.wait(last_group, gather, flush, idle);
    }
}
