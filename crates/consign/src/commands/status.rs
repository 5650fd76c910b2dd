//! `consign status`: how a running host is doing.

use crate::cli::Target;
use crate::client;
use crate::commands::events::time;
use crate::output::{CliError, Output, table};
use consign_console::Status;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

/// How often a watching command looks.
const WATCH_EVERY: Duration = Duration::from_secs(1);

pub fn run(out: Output, target: &Target, watch: bool) -> Result<(), CliError> {
    if !watch {
        return out.show(&read(target)?, text);
    }
    loop {
        let status = read(target)?;
        if out.json {
            out.text(&serde_json::to_string(&status).map_err(CliError::failed)?)?;
        } else if std::io::stdout().is_terminal() {
            // The screen is cleared, so that the newest stands where the last one stood.
            out.text(&format!("\x1b[2J\x1b[H{}", text(&status)))?;
        } else {
            out.text(&text(&status))?;
        }
        std::thread::sleep(WATCH_EVERY);
    }
}

/// The status document of a running host.
pub fn read(target: &Target) -> Result<Status, CliError> {
    let value = client::get(target, "/api/v1/status", &[])?;
    serde_json::from_value(value).map_err(|error| {
        CliError::failed(format!(
            "the host's status cannot be read: {error}; is it another version?"
        ))
    })
}

fn text(status: &Status) -> String {
    let mut out = String::new();
    let ready = if status.readiness.ready {
        "ready"
    } else {
        "not ready"
    };
    let started = time(i64::try_from(status.started_unix_ms).unwrap_or(i64::MAX));
    let _ = writeln!(
        out,
        "consign {} is {ready}, since {started} UTC (process {})",
        status.version, status.pid
    );
    for reason in &status.readiness.reasons {
        let _ = writeln!(out, "  {reason}");
    }
    let _ = writeln!(out);
    let rows: Vec<Vec<String>> = status
        .adapters
        .iter()
        .map(|adapter| {
            vec![
                adapter.name.clone(),
                adapter.state.clone(),
                adapter.received.to_string(),
                adapter.in_process.to_string(),
                counted(&adapter.outcomes),
            ]
        })
        .collect();
    out.push_str(&table(
        &["adapter", "source", "received", "in process", "outcomes"],
        &rows,
        "no adapters",
    ));
    let _ = writeln!(out);
    let rows: Vec<Vec<String>> = status
        .lanes
        .iter()
        .map(|lane| {
            vec![
                lane.id.clone(),
                lane.state.clone(),
                lane.pending.to_string(),
                lane.in_flight.to_string(),
                lane.resends.to_string(),
                counted(&lane.outcomes),
            ]
        })
        .collect();
    out.push_str(&table(
        &[
            "lane",
            "state",
            "pending",
            "in flight",
            "resends",
            "outcomes",
        ],
        &rows,
        "no lanes",
    ));
    let _ = writeln!(out);
    let rows: Vec<Vec<String>> = status
        .connections
        .iter()
        .map(|c| {
            let next = c
                .next_try_ms
                .map(|ms| format!("next try in {:.1} s", ms as f64 / 1_000.0))
                .unwrap_or_default();
            vec![
                c.name.clone(),
                c.connector.clone(),
                c.gate.clone(),
                c.in_flight.to_string(),
                next,
            ]
        })
        .collect();
    out.push_str(&table(
        &["connection", "connector", "gate", "in flight", ""],
        &rows,
        "no connections",
    ));
    out
}

/// Outcomes that happened, with their numbers.
fn counted(outcomes: &BTreeMap<String, u64>) -> String {
    let happened = outcomes.iter().filter(|(_, n)| **n > 0);
    happened
        .map(|(name, n)| format!("{name} {n}"))
        .collect::<Vec<_>>()
        .join(", ")
}
