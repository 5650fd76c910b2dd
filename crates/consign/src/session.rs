//! Where a command is carried out: by a running host over its API, or here, on a stopped host's folder.

use crate::cli::acting::Place;
use crate::client;
use crate::output::{CliError, Kind};
use consign_ledger::Ledger;
use consign_runtime::lock::{FolderLock, lock};
use consign_runtime::operator::{FaultKind, Offline, Request};
use serde_json::Value;
use std::path::Path;

/// One of the two.
pub enum Session<'a> {
    /// A running host.
    Running(&'a Place),
    /// A stopped host's folder; the lock keeps a host from starting on it meanwhile.
    Stopped(
        Box<Offline>,
        #[allow(dead_code, reason = "held, not read")] FolderLock,
    ),
}

impl<'a> Session<'a> {
    /// Opens what the command line names.
    pub fn open(place: &'a Place) -> Result<Self, CliError> {
        let Some(folder) = &place.data_dir else {
            return Ok(Self::Running(place));
        };
        let guard = lock(folder).map_err(CliError::input)?;
        let ledger = open_ledger(folder)?;
        Ok(Self::Stopped(Box::new(Offline::new(ledger)), guard))
    }

    /// Asks.
    pub fn ask(&self, request: Request) -> Result<Value, CliError> {
        match self {
            Self::Running(place) => client::command(&place.target, &request),
            Self::Stopped(offline, _) => {
                offline
                    .call(request, &client::who())
                    .map_err(|fault| match fault.kind {
                        FaultKind::Input => CliError::input(fault.message),
                        FaultKind::Failed => CliError::failed(fault.message),
                    })
            }
        }
    }

    /// Whether a host carries jobs out.
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }
}

/// Opens the ledger of a data folder, and does not make one.
pub fn open_ledger(folder: &Path) -> Result<Ledger, CliError> {
    let path = folder.join("ledger.db");
    if !path.exists() {
        return Err(CliError::new(
            Kind::Input,
            format!(
                "{}: there is no ledger; is this a host's data_dir?",
                path.display()
            ),
        ));
    }
    Ledger::open(&path, consign_ledger::Options::default()).map_err(CliError::input)
}
