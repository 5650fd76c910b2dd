//! The buffer of a host that does not run.

use crate::host::make_private;
use crate::lock::{self, FolderLock};
use crate::settings;
use crate::wire::lane_spec;
use consign_buffer::inspect::second_copies;
use consign_buffer::{Buffer, BufferError, LaneSpec, OpenError, RealFilesystem, Recovery};
use consign_config::{Config, Delivery};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a host keeps its buffer.
#[must_use]
pub fn buffer_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("buffer")
}

/// Why a buffer could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The data folder cannot be made or entered.
    #[error("data_dir {}: {source}; check the path and its permissions", dir.display())]
    DataDir {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The buffer in it cannot be opened; [`OpenError::Locked`] while a host runs.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The buffer failed while its lanes were made.
    #[error(transparent)]
    Buffer(#[from] BufferError),
}

/// An open buffer, and what its opening found.
pub(crate) struct Opened {
    pub(crate) buffer: Buffer,
    pub(crate) recovery: Recovery,
    /// Second copies that stood in, one sentence each.
    pub(crate) healed: Vec<String>,
    /// Keeps the folder for as long as it is held.
    pub(crate) lock: FolderLock,
}

/// Opens the buffer in a configuration's data folder, and makes both where they are not there.
pub(crate) async fn open_buffer(config: &Config) -> Result<Opened, OfflineError> {
    let dir = config.data_dir();
    let fail = |source| OfflineError::DataDir {
        dir: dir.clone(),
        source,
    };
    make_private(&dir).map_err(fail)?;
    let lock = lock::hold(&dir)
        .map_err(fail)?
        .ok_or_else(|| lock::held_by_another(&dir))?;
    let dir = buffer_dir(&dir);
    let fs = Arc::new(RealFilesystem);
    let (of, at) = (Arc::clone(&fs), dir.clone());
    // Before opening, which writes over what it read past. What cannot be read now is refused by it, with the reason.
    let copies = tokio::task::spawn_blocking(move || second_copies(&at, of.as_ref())).await;
    let copies = copies.ok().and_then(Result::ok).unwrap_or_default();
    let (buffer, recovery) = Buffer::open(dir, settings::buffer_options(config), fs).await?;
    let healed = copies.told(recovery.unclean_exit);
    Ok(Opened {
        buffer,
        recovery,
        healed,
        lock,
    })
}

/// The lanes of a configuration: one for each buffered send.
pub fn lanes(config: &Config) -> Vec<LaneSpec> {
    let mut specs = Vec::new();
    for adapter in &config.adapters {
        for route in &adapter.routes {
            let sends = route.send.iter();
            for send in sends.filter(|send| send.delivery == Delivery::Buffered) {
                let id = format!("{}/{}/{}", adapter.name, route.name, send.id);
                specs.push(lane_spec(adapter, route, send, &id));
            }
        }
    }
    specs
}

/// Opens a host's buffer as the host would, with a lane for each buffered send, and makes it where there is none. No
/// host can start on the folder until the lock is dropped.
///
/// # Errors
/// [`OfflineError`]; nothing was accepted then.
pub async fn open(config: &Config) -> Result<(Buffer, FolderLock), OfflineError> {
    let Opened { buffer, lock, .. } = open_buffer(config).await?;
    for spec in lanes(config) {
        buffer.lane(spec)?;
    }
    Ok((buffer, lock))
}
