//! Pausing and resuming adapters, connections and lanes, and drills.

use super::replay::blocking;
use super::request::Fault;
use super::{Answer, acted, record};
use crate::clock::wall_unix_ms_i64;
use crate::host::Host;
use crate::plugs::Plugs;
use crate::reload::ReloadError;
use consign_delivery::{Act, ConnectionId, Input, LaneId};
use consign_ledger::{Code, Event, Switch};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// A drill at most: longer is a maintenance window, for which there is `pause`.
const DRILL_MAX_MS: u64 = 3_600_000;

/// Something that can be paused.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    Adapter(String),
    Connection(ConnectionId, String),
    Lane(LaneId, String),
}

impl Subject {
    /// As the ledger and events name it.
    fn name(&self) -> String {
        match self {
            Self::Adapter(name) => format!("adapter {name}"),
            Self::Connection(_, name) => format!("connection {name}"),
            Self::Lane(_, id) => format!("lane {id}"),
        }
    }

    /// A name as an operator types it: bare where it is unique, else with its kind before it.
    fn find(host: &Host, text: &str) -> Result<Self, Fault> {
        let (kind, name) = text
            .split_once([':', ' '])
            .filter(|(kind, _)| ["adapter", "connection", "lane"].contains(kind))
            .map_or(("", text), |(kind, name)| (kind, name.trim()));
        let mut found = Vec::new();
        if matches!(kind, "" | "adapter") && host.adapters().contains_key(name) {
            found.push(Self::Adapter(name.to_owned()));
        }
        if matches!(kind, "" | "connection")
            && let Some(id) = connection(host, name)
        {
            found.push(Self::Connection(id, name.to_owned()));
        }
        if matches!(kind, "" | "lane")
            && let Some((lane, info)) = host.plugs.lanes().by_id(name)
        {
            found.push(Self::Lane(lane, info.id.clone()));
        }
        match (found.pop(), found.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(_), false) => Err(Fault::input(format!(
                "`{name}` is an adapter and a connection: say adapter:{name} or connection:{name}"
            ))),
            (None, _) => {
                let adapters: Vec<String> = host.adapters().into_keys().collect();
                let lanes: Vec<String> = host
                    .plugs
                    .lanes()
                    .all()
                    .into_iter()
                    .map(|(_, info)| info.id.clone())
                    .collect();
                Err(Fault::input(format!(
                    "there is no adapter, connection or lane `{name}`; adapters: {}; lanes: {}",
                    adapters.join(", "),
                    lanes.join(", ")
                )))
            }
        }
    }

    fn set(&self, host: &Host, paused: bool) {
        let act = match self {
            Self::Adapter(name) => {
                if let Some(state) = host.adapters().get(name) {
                    state.paused.send_replace(paused);
                }
                return;
            }
            Self::Connection(id, _) if paused => Act::PauseConnection(*id),
            Self::Connection(id, _) => Act::ResumeConnection(*id),
            Self::Lane(id, _) if paused => Act::Pause(*id),
            Self::Lane(id, _) => Act::Resume(*id),
        };
        host.engine.input(Input::Operator(act));
    }
}

/// The number of a connection that sends.
fn connection(host: &Host, name: &str) -> Option<ConnectionId> {
    number(&host.plugs, name)
}

fn number(plugs: &Plugs, name: &str) -> Option<ConnectionId> {
    plugs
        .connections()
        .into_iter()
        .find(|(_, known, _)| known == name)
        .map(|(number, ..)| ConnectionId(number))
}

/// What was paused stays so over a restart. Connections go to the machine before the lanes on them; a
/// lane is told so when it is added, and an adapter when its source is.
pub fn paused_connections(paused: &[Switch], plugs: &Plugs) -> Vec<Input> {
    let of = |switch: &Switch| number(plugs, switch.subject.strip_prefix("connection ")?);
    paused
        .iter()
        .filter_map(of)
        .map(|connection| Input::Operator(Act::PauseConnection(connection)))
        .collect()
}

/// Whether a lane was paused.
pub fn is_lane_paused(paused: &[Switch], id: &str) -> bool {
    paused
        .iter()
        .any(|switch| switch.subject.strip_prefix("lane ") == Some(id))
}

/// Whether an adapter was paused.
pub fn is_paused(paused: &[Switch], adapter: &str) -> bool {
    paused
        .iter()
        .any(|switch| switch.subject.strip_prefix("adapter ") == Some(adapter))
}

/// Pauses or resumes.
pub async fn pause(host: &Arc<Host>, text: &str, paused: bool, who: &str) -> Answer {
    let subject = Subject::find(host, text)?;
    let name = subject.name();
    let (ledger, of, by) = (host.ledger.clone(), name.clone(), who.to_owned());
    let changed = blocking(move || {
        if paused {
            ledger.pause(&of, &by, wall_unix_ms_i64())
        } else {
            ledger.resume(&of)
        }
    })
    .await
    .map_err(Fault::failed)?;
    subject.set(host, paused);
    if !paused && let Subject::Lane(lane, _) = &subject {
        // Somebody has mended something: what waits is tried now.
        host.engine.input(Input::Operator(Act::RetryNow(*lane)));
    }
    let word = if paused { "paused" } else { "resumed" };
    if changed {
        let text = format!("{who} {word} {name}");
        let event = match &subject {
            Subject::Adapter(adapter) => {
                let code = if paused {
                    Code::AdapterPaused
                } else {
                    Code::AdapterResumed
                };
                Event::new(code, wall_unix_ms_i64())
                    .adapter(adapter.clone())
                    .field("who", who)
            }
            _ => acted(word, who, 1, None).field("subject", name.clone()),
        };
        record(host, event.message(text)).await;
    }
    Ok(json!({ "subject": name, "state": word, "changed": changed }))
}

/// Reloads the configuration file.
pub async fn reload(host: &Arc<Host>, who: &str) -> Answer {
    let report = host.reload().await.map_err(|error| match &error {
        ReloadError::Rejected(problems) => {
            let each: Vec<String> = problems.iter().map(ToString::to_string).collect();
            Fault::input(format!("{error}\n{}", each.join("\n")))
        }
        ReloadError::Busy(_) | ReloadError::Failed(_) => Fault::failed(error),
    })?;
    let text = format!("{who} reloaded the configuration");
    record(
        host,
        acted("reload", who, report.changes(), None).message(text),
    )
    .await;
    let mut answer = json!(report);
    if let Some(answer) = answer.as_object_mut() {
        answer.insert("changes".to_owned(), json!(report.changes()));
        answer.insert("sentence".to_owned(), json!(report.sentence()));
    }
    Ok(answer)
}

/// Starts a drill; it ends by itself.
pub async fn drill(host: &Arc<Host>, name: &str, for_ms: u64, swallow: bool, who: &str) -> Answer {
    let id = connection(host, name).ok_or_else(|| {
        let plan = host.plan();
        let names: Vec<&str> = plan
            .config
            .connections
            .iter()
            .map(|connection| connection.name.as_str())
            .filter(|name| connection(host, name).is_some())
            .collect();
        Fault::input(format!(
            "no send uses a connection `{name}`; drills are for {}",
            names.join(", ")
        ))
    })?;
    if for_ms == 0 || for_ms > DRILL_MAX_MS {
        return Err(Fault::input(
            "a drill lasts between a moment and an hour (--for 30s)",
        ));
    }
    if !host.plugs.drills.start(id, for_ms, swallow) {
        return Err(Fault::failed(format!(
            "a drill runs on connection {name} already: wait for its end"
        )));
    }
    let copies: Vec<String> = host
        .plugs
        .lanes()
        .all()
        .into_iter()
        .filter(|(_, info)| info.connection == name && !info.drops_repeats)
        .map(|(_, info)| info.id.clone())
        .collect();
    let started = Event::new(Code::DrillStarted, wall_unix_ms_i64())
        .connection(name)
        .field("for_ms", for_ms)
        .field("swallow_replies", swallow)
        .field("who", who)
        .message(format!(
            "{who} started a drill on connection {name} for {:.1} s{}",
            for_ms as f64 / 1_000.0,
            if swallow { ", swallowing replies" } else { "" }
        ));
    record(host, started).await;
    let (of, connection) = (Arc::clone(host), name.to_owned());
    host.own(tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(for_ms)).await;
        end_of_drill(&of, id, &connection).await;
    }));
    Ok(json!({
        "connection": name,
        "for_ms": for_ms,
        "swallow_replies": swallow,
        "may_make_copies": if swallow { copies } else { Vec::new() },
    }))
}

async fn end_of_drill(host: &Host, id: ConnectionId, name: &str) {
    let pending = |(lane, _): (LaneId, _)| {
        host.buffer
            .stats(consign_buffer::LaneId(lane.0))
            .map_or(0, |stats| stats.pending)
    };
    let held: u64 = host
        .plugs
        .lanes()
        .all()
        .into_iter()
        .filter(|(_, info)| info.connection == name)
        .map(pending)
        .sum();
    let (ledger, of) = (host.ledger.clone(), name.to_owned());
    let report = blocking(move || ledger.outages(Some(&of), 1)).await;
    let resent = report
        .ok()
        .and_then(|outages| outages.into_iter().next())
        .filter(|outage| outage.report.drill)
        .map_or(0, |outage| outage.report.resent);
    host.engine.input(Input::Operator(Act::ProbeNow(id)));
    host.events.emit(
        Event::new(Code::DrillEnded, wall_unix_ms_i64())
            .connection(name)
            .field("held", held)
            .field("resent", resent)
            .message(format!(
                "the drill on connection {name} is over: {held} writes wait for it"
            )),
    );
}
