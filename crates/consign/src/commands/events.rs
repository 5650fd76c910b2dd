//! `consign events`: what happened, from a running host or a stopped host's folder.

use crate::cli::Target;
use crate::client;
use crate::output::{CliError, Output, table};
use consign_ledger::events::Code;
use consign_ledger::{EventFilter, Ledger, Severity, StoredEvent};
use std::time::Duration;

/// How often a following reader asks.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);

/// Which events.
pub struct Filter {
    /// Only this code.
    pub code: Option<String>,
    /// This level or worse.
    pub level: Option<String>,
    /// Only this adapter.
    pub adapter: Option<String>,
    /// At most so many.
    pub limit: u32,
}

/// Where events are read from.
pub struct From<'a> {
    /// The running host.
    pub target: &'a Target,
    /// A data folder, which goes before the host.
    pub data_dir: Option<&'a std::path::Path>,
}

pub fn run(
    out: Output,
    from: &From<'_>,
    filter: &Filter,
    follow: bool,
    jsonl: bool,
) -> Result<(), CliError> {
    let mut query = EventFilter {
        limit: filter.limit,
        newest_first: true,
        adapter: filter.adapter.clone(),
        ..EventFilter::default()
    };
    if let Some(code) = &filter.code {
        query.codes = vec![
            code.parse::<Code>()
                .map_err(|error| CliError::input(error.to_string()))?,
        ];
    }
    if let Some(level) = &filter.level {
        query.min_level = Some(severity(level)?);
    }
    let ledger = from.data_dir.map(crate::session::open_ledger).transpose()?;
    let mut events = read(from.target, ledger.as_ref(), &query)?;
    events.reverse();
    if !follow {
        out.ends_at(
            events.len(),
            filter.limit,
            "--limit N shows older ones, too",
        );
        if jsonl {
            return lines(out, &events);
        }
        return out.show(&events, |events| text(events, true));
    }
    let mut last = events.last().map_or(0, |event| event.id);
    loop {
        if jsonl || out.json {
            lines(out, &events)?;
        } else {
            out.text(&text(&events, false))?;
        }
        std::thread::sleep(FOLLOW_EVERY);
        query.newest_first = false;
        query.after_id = Some(last);
        query.limit = 0;
        events = read(from.target, ledger.as_ref(), &query)?;
        last = events.last().map_or(last, |event| event.id);
    }
}

fn read(
    target: &Target,
    ledger: Option<&Ledger>,
    query: &EventFilter,
) -> Result<Vec<StoredEvent>, CliError> {
    if let Some(ledger) = ledger {
        return ledger.events(query).map_err(CliError::failed);
    }
    let mut parameters: Vec<(&str, String)> = vec![("limit", query.limit.to_string())];
    parameters.extend(
        query
            .codes
            .iter()
            .map(|code| ("code", code.name().to_owned())),
    );
    if let Some(level) = query.min_level {
        parameters.push(("level", level.name().to_owned()));
    }
    if let Some(adapter) = &query.adapter {
        parameters.push(("adapter", adapter.clone()));
    }
    if let Some(after) = query.after_id {
        parameters.push(("after_id", after.to_string()));
    }
    if query.newest_first {
        parameters.push(("newest_first", "true".to_owned()));
    }
    let value = client::get(target, "/api/v1/events", &parameters)?;
    serde_json::from_value(value)
        .map_err(|error| CliError::failed(format!("the host's events cannot be read: {error}")))
}

fn severity(word: &str) -> Result<Severity, CliError> {
    match word {
        "debug" => Ok(Severity::Debug),
        "info" => Ok(Severity::Info),
        "warn" | "warning" => Ok(Severity::Warn),
        "error" => Ok(Severity::Error),
        _ => Err(CliError::input(format!(
            "there is no level `{word}`; it is debug, info, warning or error"
        ))),
    }
}

fn lines(out: Output, events: &[StoredEvent]) -> Result<(), CliError> {
    for event in events {
        out.text(&serde_json::to_string(event).map_err(CliError::failed)?)?;
    }
    Ok(())
}

fn text(events: &[StoredEvent], whole: bool) -> String {
    if events.is_empty() && !whole {
        return String::new();
    }
    let rows: Vec<Vec<String>> = events
        .iter()
        .map(|stored| {
            let times = if stored.times > 1 {
                format!(" ({} times)", stored.times)
            } else {
                String::new()
            };
            vec![
                time(stored.event.at_unix_ms),
                stored.level.name().to_owned(),
                stored.event.code.name().to_owned(),
                format!("{}{times}", stored.event.message),
            ]
        })
        .collect();
    table(&["time (UTC)", "level", "code", "what"], &rows, "no events")
}

/// `2026-01-31 12:00:00.000`, UTC.
pub fn time(unix_ms: i64) -> String {
    chrono::DateTime::from_timestamp_millis(unix_ms).map_or_else(
        || unix_ms.to_string(),
        |time| time.format("%Y-%m-%d %H:%M:%S%.3f").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_civil_dates() {
        assert_eq!(time(0), "1970-01-01 00:00:00.000");
        assert_eq!(time(951_782_400_000), "2000-02-29 00:00:00.000");
        assert_eq!(time(1_767_225_599_999), "2025-12-31 23:59:59.999");
        assert_eq!(time(-1), "1969-12-31 23:59:59.999");
    }
}
