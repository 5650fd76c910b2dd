//! `consign buffer inspect` and `verify`.

use super::{folder, known_lanes, refused, shown, wanted};
use crate::cli::Stopped;
use crate::output::{CliError, Output, table};
use consign_buffer::inspect::{self, Damage, Inspection, Verified};
use consign_buffer::{Lost, RealFilesystem};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// What the folder holds.
#[derive(Debug, Serialize)]
struct Report {
    folder: String,
    unclean_exit: bool,
    epoch: u32,
    pending: u64,
    maybe_in_flight: u64,
    log: LogReport,
    lanes: Vec<LaneReport>,
    positions: Vec<PositionReport>,
    lost: LostReport,
    healed: Vec<String>,
    #[serde(flatten)]
    verified: Option<VerifiedReport>,
}

#[derive(Debug, Serialize)]
struct LogReport {
    bytes: u64,
    segments: usize,
    records: u64,
    writes: usize,
    torn_bytes: u64,
}

#[derive(Debug, Serialize)]
struct LaneReport {
    id: String,
    pending: u64,
    maybe_in_flight: u64,
    pending_bytes: u64,
    accepted: u64,
    settled_through: u64,
    frontier: u64,
    frontier_unix_ms: u64,
    spill_files: usize,
    spill_bytes: u64,
    outcomes: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct PositionReport {
    name: String,
    bytes: usize,
}

#[derive(Debug, Default, Serialize)]
struct LostReport {
    records: u64,
    writes: u64,
    bytes: u64,
    files: u64,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct VerifiedReport {
    whole: bool,
    writes_read: u64,
    spill_bytes_read: u64,
    damage: Vec<DamageReport>,
}

#[derive(Debug, Serialize)]
struct DamageReport {
    file: String,
    offset: u64,
    bytes: u64,
    harmless: bool,
}

pub fn inspect(out: Output, at: &Stopped) -> Result<(), CliError> {
    let dir = folder(at)?;
    let found = inspect::inspect(&dir, Arc::new(RealFilesystem)).map_err(|e| refused(&e))?;
    known_lanes(&at.lanes, found.lanes.iter().map(|l| l.id.as_str()))?;
    out.show(&report(&dir, &found, &at.lanes, None), text)
}

/// Damage that took something, or may have, is a failure; so is a copy that had to be stood in for.
pub fn verify(out: Output, at: &Stopped) -> Result<(), CliError> {
    let dir = folder(at)?;
    let verified = inspect::verify(&dir, Arc::new(RealFilesystem)).map_err(|e| refused(&e))?;
    let found = &verified.found;
    known_lanes(&at.lanes, found.lanes.iter().map(|l| l.id.as_str()))?;
    out.show(&report(&dir, found, &at.lanes, Some(&verified)), text)?;
    if verified.is_whole() {
        return Ok(());
    }
    let lost = found.lost.writes;
    Err(CliError::failed(format!(
        "{}: {} places do not check and {lost} writes are lost; copy the folder before the host starts again, and look at the disk",
        shown(&dir),
        verified.damage.len() + found.healed.len(),
    )))
}

fn report(dir: &Path, found: &Inspection, lanes: &[String], verified: Option<&Verified>) -> Report {
    let chosen: Vec<LaneReport> = found
        .lanes
        .iter()
        .zip(&found.maybe)
        .filter(|(lane, _)| wanted(lanes, &lane.id))
        .map(|(lane, maybe)| LaneReport {
            id: lane.id.clone(),
            pending: lane.pending,
            maybe_in_flight: (*maybe).min(lane.pending),
            pending_bytes: lane.charged_bytes,
            accepted: lane.next_seq.saturating_sub(1),
            settled_through: lane.settled_through,
            frontier: lane.frontier,
            frontier_unix_ms: lane.frontier_wall_unix_ms,
            spill_files: lane.spill_files,
            spill_bytes: lane.spill_bytes,
            outcomes: lane
                .outcomes
                .iter()
                .map(|(code, n)| (consign_runtime::view::result_name(*code), *n))
                .collect(),
        })
        .collect();
    Report {
        folder: shown(dir),
        unclean_exit: found.unclean_exit,
        epoch: found.epoch,
        pending: chosen.iter().map(|lane| lane.pending).sum(),
        maybe_in_flight: chosen.iter().map(|lane| lane.maybe_in_flight).sum(),
        log: LogReport {
            bytes: found.log_bytes,
            segments: found.log_segments,
            records: found.log_records,
            writes: found.log_writes,
            torn_bytes: found.torn_bytes,
        },
        lanes: chosen,
        positions: found
            .positions
            .iter()
            .map(|(name, bytes)| PositionReport {
                name: name.clone(),
                bytes: *bytes,
            })
            .collect(),
        lost: lost(&found.lost),
        healed: found.healed.clone(),
        verified: verified.map(|verified| VerifiedReport {
            whole: verified.is_whole(),
            writes_read: verified.writes,
            spill_bytes_read: verified.spill_bytes,
            damage: verified.damage.iter().map(damage).collect(),
        }),
    }
}

fn lost(lost: &Lost) -> LostReport {
    LostReport {
        records: lost.records,
        writes: lost.writes,
        bytes: lost.quarantined_bytes,
        files: lost.files,
        notes: lost.notes.clone(),
    }
}

fn damage(damage: &Damage) -> DamageReport {
    DamageReport {
        file: shown(&damage.file),
        offset: damage.offset,
        bytes: damage.bytes,
        harmless: damage.harmless,
    }
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    let exit = match report.unclean_exit {
        true => "the last run did not stop cleanly",
        false => "the last run stopped cleanly",
    };
    let _ = writeln!(
        out,
        "{}: {} writes are pending, up to {} of them may have been sent; {exit} (run {})",
        report.folder, report.pending, report.maybe_in_flight, report.epoch
    );
    let log = &report.log;
    let _ = writeln!(
        out,
        "log: {} bytes in {} files, {} records after the checkpoint, {} pending writes",
        log.bytes, log.segments, log.records, log.writes
    );
    if log.torn_bytes > 0 {
        let _ = writeln!(
            out,
            "log: the last {} bytes are torn and were never acknowledged; the next start cuts them",
            log.torn_bytes
        );
    }
    for position in &report.positions {
        let _ = writeln!(out, "position {}: {} bytes", position.name, position.bytes);
    }
    let _ = writeln!(out);
    out.push_str(&lanes(&report.lanes));
    let lost = &report.lost;
    if lost.writes + lost.records + lost.bytes + lost.files > 0 || !lost.notes.is_empty() {
        let _ = writeln!(
            out,
            "\nlost: {} writes; {} log records, {} bytes and {} files do not check",
            lost.writes, lost.records, lost.bytes, lost.files
        );
    }
    for note in lost.notes.iter().chain(&report.healed) {
        let _ = writeln!(out, "  {note}");
    }
    if let Some(verified) = &report.verified {
        let _ = writeln!(
            out,
            "\nread {} pending writes and {} bytes of spill files: {}",
            verified.writes_read,
            verified.spill_bytes_read,
            if verified.whole {
                "everything checks"
            } else {
                "not everything checks"
            }
        );
        for damage in &verified.damage {
            let _ = writeln!(out, "  {}", damaged(damage));
        }
    }
    out
}

fn damaged(damage: &DamageReport) -> String {
    let harm = match damage.harmless {
        true => " (nothing that is still needed)",
        false => "",
    };
    match damage.bytes {
        0 => format!("{}: the file is missing{harm}", damage.file),
        bytes => format!(
            "{}: {bytes} bytes at offset {} do not check{harm}",
            damage.file, damage.offset
        ),
    }
}

fn lanes(lanes: &[LaneReport]) -> String {
    let rows: Vec<Vec<String>> = lanes
        .iter()
        .map(|lane| {
            let outcomes: Vec<String> = lane
                .outcomes
                .iter()
                .map(|(name, n)| format!("{name} {n}"))
                .collect();
            vec![
                lane.id.clone(),
                lane.pending.to_string(),
                lane.maybe_in_flight.to_string(),
                lane.pending_bytes.to_string(),
                lane.spill_files.to_string(),
                lane.spill_bytes.to_string(),
                outcomes.join(", "),
            ]
        })
        .collect();
    table(
        &[
            "lane",
            "pending",
            "maybe sent",
            "bytes",
            "spill files",
            "spill bytes",
            "outcomes",
        ],
        &rows,
        "no lanes",
    )
}
