//! Pending writes as lines of JSON.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::{envelope, io_error, load};
use crate::api::Lost;
use crate::error::{BufferError, OpenError};
use crate::fs::Filesystem;

/// What [`export`] did.
#[derive(Debug, Clone, Default)]
pub struct Exported {
    /// Lines written.
    pub writes: u64,
    /// What does not check and so is not among them.
    pub lost: Lost,
}

/// Writes every pending write of these lanes (none named: of all) as one JSON object a line, in the order of lanes and
/// their numbers: `lane`, `seq`, `key`, `order`, `created_unix_ms`, `expires_unix_ms`, `body` (base64), `children`;
/// `maybe_since_unix_ms` where it may have been applied; and where something was noted about it `attempts`,
/// `spent_resends`, `open_gate_age_ms`, `first_attempt_unix_ms`, `flags`, `sealed`.
///
/// # Errors
/// As [`inspect`](super::inspect); [`OpenError::NoLane`]; [`OpenError::Io`] also when `out` fails.
pub fn export(
    dir: &Path,
    fs: Arc<dyn Filesystem>,
    only: &[String],
    out: &mut dyn Write,
) -> Result<Exported, OpenError> {
    let (found, mut core) = load(dir, fs)?;
    let lanes: Vec<&str> = found.lanes.iter().map(|l| l.id.as_str()).collect();
    super::check_lanes(only, &lanes)?;
    let failed = |e: BufferError| io_error(dir, io::Error::other(e.to_string()));
    let mut writes = 0;
    for (number, id) in (0u32..).zip(&lanes) {
        if !only.is_empty() && !only.iter().any(|wanted| wanted == id) {
            continue;
        }
        super::each_pending(&mut core, dir, number, 0, |core, write| {
            let children = match write.children {
                0 => Vec::new(),
                _ => core.children(number, write.seq).map_err(failed)?,
            };
            let line = envelope::line(id, write, &children, &lanes);
            writes += 1;
            writeln!(out, "{line}").map_err(|source| OpenError::Io {
                what: "writing the export of",
                path: dir.to_owned(),
                source,
            })
        })?;
    }
    core.settle_losses();
    let lost = core.shared.state.lock().lost.clone();
    Ok(Exported { writes, lost })
}
