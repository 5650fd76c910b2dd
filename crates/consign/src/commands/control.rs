//! Looking after a running host: outages, traces, drills, pauses, waits.
#![allow(
    clippy::indexing_slicing,
    reason = "only JSON values are indexed by name, and answer null for what they do not have"
)]

use crate::cli::Target;
use crate::cli::acting::{Place, WaitFor};
use crate::client;
use crate::commands::{events::time, status};
use crate::output::{CliError, Kind, Output, table};
use crate::session::Session;
use consign_config::HumanDuration;
use consign_console::Status;
use consign_ledger::Outage;
use consign_runtime::operator::Request;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often a waiting command looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// `consign outages`.
pub fn outages(
    out: Output,
    place: &Place,
    connection: Option<String>,
    limit: u32,
) -> Result<(), CliError> {
    let value = Session::open(place)?.ask(Request::Outages { connection, limit })?;
    let mut outages: Vec<Outage> = serde_json::from_value(value)
        .map_err(|error| CliError::failed(format!("the outages cannot be read: {error}")))?;
    for outage in &mut outages {
        // What the counts were taken from says nothing to a reader.
        outage.report.base.clear();
    }
    out.show(&outages, |outages| outages_table(outages))
}

fn outages_table(outages: &[Outage]) -> String {
    let rows: Vec<Vec<String>> = outages
        .iter()
        .map(|outage| {
            let report = &outage.report;
            let place = match &outage.target {
                Some(target) => format!("{} ({target})", outage.connection),
                None => outage.connection.clone(),
            };
            let to = match (outage.to_unix_ms, outage.settled_unix_ms) {
                (Some(to), Some(_)) => time(to),
                (Some(to), None) => format!("{} (draining)", time(to)),
                (None, _) => "lasts".to_owned(),
            };
            let cause = if report.drill {
                "a drill".to_owned()
            } else {
                format!("{}: {}", report.code, report.cause)
            };
            vec![
                outage.id.to_string(),
                place,
                time(outage.from_unix_ms),
                to,
                report.held.to_string(),
                report.resent.to_string(),
                report.delivered.to_string(),
                report.sent_unconfirmed.to_string(),
                report.parked.to_string(),
                report.copies_possible.to_string(),
                cause,
            ]
        })
        .collect();
    table(
        &[
            "id",
            "connection",
            "from (UTC)",
            "to (UTC)",
            "held",
            "resent",
            "delivered",
            "unconfirmed",
            "parked",
            "copies?",
            "cause",
        ],
        &rows,
        "no outages",
    )
}

/// `consign trace`.
pub fn trace(out: Output, target: &Target, what: String) -> Result<(), CliError> {
    let answer = client::command(target, &Request::Trace { what })?;
    out.show(&answer, |answer| {
        let mut text = format!("{}\n", answer["cause"].as_str().unwrap_or_default());
        for check in answer["checks"].as_array().into_iter().flatten() {
            let word = |name: &str| check[name].as_str().unwrap_or_default();
            text.push_str(&format!("  {}: {}\n", word("check"), word("found")));
        }
        text
    })?;
    if answer["known"] == false {
        return Err(CliError::failed("nothing is known of it"));
    }
    Ok(())
}

/// `consign drill`'s settings.
pub struct Drill {
    /// The connection.
    pub connection: String,
    /// For how long.
    pub duration: String,
    /// Throw answers away.
    pub swallow_replies: bool,
    /// Copies are wanted.
    pub yes: bool,
    /// Wait for its end.
    pub wait: bool,
}

pub fn drill(out: Output, target: &Target, drill: Drill) -> Result<(), CliError> {
    let length: HumanDuration = drill.duration.parse().map_err(CliError::input)?;
    if drill.swallow_replies && !drill.yes {
        let copies: Vec<String> = copies_of(&status::read(target)?, &drill.connection);
        if !copies.is_empty() {
            return Err(CliError::input(format!(
                "{} does not drop repeats: what is on its way then may arrive twice for real. Add --yes to do it",
                copies.join(", ")
            )));
        }
    }
    let answer = client::command(
        target,
        &Request::Drill {
            connection: drill.connection.clone(),
            for_ms: length.as_ms(),
            swallow_replies: drill.swallow_replies,
        },
    )?;
    if !drill.wait {
        return out.show(&answer, |_| {
            format!(
                "the drill runs for {}; `consign outages --connection {}` has its report",
                drill.duration, drill.connection
            )
        });
    }
    std::thread::sleep(Duration::from_millis(length.as_ms()));
    // Its report settles once everything that was held has left.
    let from = Instant::now();
    let place = Place {
        target: target.clone(),
        data_dir: None,
    };
    while from.elapsed() < Duration::from_millis(length.as_ms()).max(Duration::from_secs(60)) {
        let request = Request::Outages {
            connection: Some(drill.connection.clone()),
            limit: 1,
        };
        let newest = client::command(target, &request)?;
        if newest[0]["settled_unix_ms"].is_i64() || newest[0].is_null() {
            return outages(out, &place, Some(drill.connection), 1);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Err(CliError::new(
        Kind::TimedOut,
        "the drill is over, and what it held has not left yet: consign outages",
    ))
}

/// Lanes of a connection whose destination does not drop repeats, as far as the status tells.
fn copies_of(status: &Status, connection: &str) -> Vec<String> {
    let mut lanes = Vec::new();
    for lane in status.lanes.iter().filter(|l| l.connection == connection) {
        let level = status.adapters.iter().find_map(|adapter| {
            let rest = lane
                .id
                .strip_prefix(adapter.name.as_str())?
                .strip_prefix('/')?;
            adapter.routes.iter().find_map(|route| {
                let send = rest.strip_prefix(route.name.as_str())?.strip_prefix('/')?;
                let levels = route.sends.iter().find(|one| one["send"] == send)?;
                levels["resolved"]["level"].as_str().map(str::to_owned)
            })
        });
        if level.as_deref() != Some("effectively_once") {
            lanes.push(lane.id.clone());
        }
    }
    lanes
}

/// `consign pause` and `consign resume`.
pub fn switch(out: Output, target: &Target, request: Request) -> Result<(), CliError> {
    let answer = client::command(target, &request)?;
    out.show(&answer, |answer| {
        let word = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let already = if answer["changed"] == false {
            " (it was already)"
        } else {
            ""
        };
        format!("{} is {}{already}", word("subject"), word("state"))
    })
}

/// `consign reload`.
pub fn reload(out: Output, target: &Target) -> Result<(), CliError> {
    let answer = client::command(target, &Request::Reload)?;
    out.show(&answer, |answer| {
        let warnings = answer["warnings"].as_array().into_iter().flatten();
        let lines = std::iter::once(&answer["sentence"]).chain(warnings);
        lines
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    })
}

/// `consign wait`.
pub fn wait(
    out: Output,
    target: &Target,
    what: WaitFor,
    lanes: &[String],
    timeout: &str,
) -> Result<(), CliError> {
    let timeout: HumanDuration = timeout.parse().map_err(CliError::input)?;
    let from = Instant::now();
    loop {
        let missing = match missing(target, what, lanes) {
            Ok(None) => {
                let waited = u64::try_from(from.elapsed().as_millis()).unwrap_or(u64::MAX);
                let answer = json!({ "waited_ms": waited });
                return out.show(&answer, |_| String::new());
            }
            Ok(Some(missing)) => missing,
            // A host that is starting does not answer yet.
            Err(error) if error.is_unreachable() => error.to_string(),
            Err(error) => return Err(error),
        };
        if from.elapsed() >= Duration::from_millis(timeout.as_ms()) {
            return Err(CliError::new(
                Kind::TimedOut,
                format!("not within {timeout}: {missing}"),
            ));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What is not so yet, or nothing.
fn missing(target: &Target, what: WaitFor, lanes: &[String]) -> Result<Option<String>, CliError> {
    if what == WaitFor::Calm {
        let request = Request::Outages {
            connection: None,
            limit: 100,
        };
        let outages = client::command(target, &request)?;
        let open = outages.as_array().into_iter().flatten();
        let open: Vec<&Value> = open
            .filter(|one| one["settled_unix_ms"].is_null())
            .collect();
        return Ok(open
            .first()
            .map(|one| format!("{} outages, first of {}", open.len(), one["connection"])));
    }
    let status = status::read(target)?;
    Ok(match what {
        WaitFor::Live | WaitFor::Calm => None,
        WaitFor::Ready if status.readiness.ready => None,
        WaitFor::Ready => Some(status.readiness.reasons.join("; ")),
        WaitFor::Drained => {
            if let Some(unknown) = lanes
                .iter()
                .find(|id| status.lanes.iter().all(|lane| lane.id != **id))
            {
                return Err(CliError::input(format!("there is no lane `{unknown}`")));
            }
            let waiting: Vec<String> = status
                .lanes
                .iter()
                .filter(|lane| lanes.is_empty() || lanes.contains(&lane.id))
                .filter(|lane| lane.pending > 0)
                .map(|lane| format!("{} writes in {} ({})", lane.pending, lane.id, lane.state))
                .collect();
            (!waiting.is_empty()).then(|| waiting.join("; "))
        }
    })
}
