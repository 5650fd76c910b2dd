//! "Where is my message?": what a person would look at, in order, and the answer in one sentence.
//!
//! Five checks: the event log, the routes' conditions, whether a send has it, the source, and what
//! stands still. A message is named by its id, a write key, the client's idempotency key, or the
//! source's identity.

use super::Answer;
use super::replay::blocking;
use super::request::Fault;
use crate::host::Host;
use crate::recent::{REMEMBERED, Seen};
use crate::source::SourceState;
use consign_buffer::{Known, Origin};
use consign_delivery::{GateState, LaneId, LaneState};
use consign_ledger::{EventFilter, FailedMessage, FailedState, StoredEvent};
use consign_pipeline::{MessageId, StoredWrite, WriteKey, key};
use serde_json::json;
use std::sync::Arc;

/// Pending writes that are looked at in one lane; beyond them the answer says so.
const SCANNED: u64 = 100_000;
/// Writes in one look.
const PAGE: usize = 1_000;
/// Bytes of bodies in one look.
const PAGE_BYTES: usize = 4 << 20;
/// Events that are shown.
const EVENTS: u32 = 5;

/// A write that waits in a lane.
struct Waiting {
    lane: LaneId,
    id: String,
    seq: u64,
    before: u64,
}

/// What was found.
struct Found {
    seen: Vec<Seen>,
    failed: Vec<FailedMessage>,
    waiting: Option<Waiting>,
    scanned_all: bool,
    events: Vec<StoredEvent>,
    /// The adapter whose acceptance check knows it.
    known_by: Option<String>,
}

/// The answer: machine word and sentence.
struct Verdict {
    case: &'static str,
    cause: String,
    known: bool,
}

fn verdict(case: &'static str, cause: String) -> Verdict {
    Verdict {
        case,
        cause,
        known: true,
    }
}

/// Looks for a message or a write.
pub async fn trace(host: &Arc<Host>, what: &str) -> Answer {
    let what = what.trim();
    if what.is_empty() {
        return Err(Fault::input(
            "say which: a message id, a write key, an idempotency key or an identity",
        ));
    }
    let found = find(host, what).await?;
    let snapshot = host.engine.snapshot().await;
    let stall = found
        .waiting
        .as_ref()
        .map(|one| stall(host, &snapshot, one));
    let source = source(host);
    let verdict = judge(&found, stall.as_ref(), source.as_ref(), what, host);
    let conditions: Vec<String> = found
        .seen
        .iter()
        .flat_map(|seen| seen.condition_errors.clone())
        .collect();
    let checks = json!([
        { "check": "events", "found": events_text(&found) },
        { "check": "conditions", "found": conditions_text(&found, &conditions) },
        { "check": "send", "found": send_text(&found) },
        { "check": "source", "found": source.map_or("all sources run".to_owned(), |(_, text)| text) },
        { "check": "stall", "found": stall.map_or("nothing of it stands still".to_owned(), |(_, text)| text) },
    ]);
    Ok(json!({
        "what": what,
        "known": verdict.known,
        "case": verdict.case,
        "cause": verdict.cause,
        "checks": checks,
        "seen": found.seen,
        "failed": found.failed.iter().map(|one| one.id).collect::<Vec<_>>(),
        "events": found.events,
    }))
}

async fn find(host: &Arc<Host>, what: &str) -> Result<Found, Fault> {
    let mut seen = host.recent.find(what);
    // A failed write names its message too, which the ledger keeps over restarts.
    let (ledger, name) = (host.ledger.clone(), what.to_owned());
    let mut ids: Vec<String> = seen.iter().map(|one| one.message_id.clone()).collect();
    let derived = message_ids(host, what);
    ids.extend(
        derived
            .iter()
            .filter(|id| !ids.contains(id))
            .cloned()
            .collect::<Vec<_>>(),
    );
    let sink = host.events.sink().clone();
    let (failed, events) = blocking(move || {
        drop(sink.flush());
        let mut failed = ledger.failed_by_message(&name)?;
        if let Ok(key) = name.parse::<WriteKey>() {
            failed.extend(ledger.failed_by_key(key.0)?);
        }
        for id in ids.iter().filter(|id| **id != name) {
            failed.extend(ledger.failed_by_message(id)?);
        }
        failed.sort_by_key(|one| one.id);
        failed.dedup_by_key(|one| one.id);
        let mut events = Vec::new();
        for text in std::iter::once(&name).chain(ids.iter().filter(|id| **id != name)) {
            events.extend(ledger.events(&EventFilter {
                text: Some(text.clone()),
                newest_first: true,
                limit: EVENTS,
                ..EventFilter::default()
            })?);
        }
        Ok((failed, events))
    })
    .await
    .map_err(Fault::failed)?;
    if seen.is_empty() {
        for id in failed
            .iter()
            .filter_map(|one| one.record.message_id.as_deref())
        {
            seen.extend(host.recent.find(id));
        }
        seen.dedup();
    }
    let mut names: Vec<String> = vec![what.to_owned()];
    names.extend(derived);
    for one in &seen {
        names.push(one.message_id.clone());
        names.extend(
            one.writes
                .iter()
                .filter(|write| write.ended.is_none())
                .map(|write| write.write_key.clone()),
        );
    }
    let (waiting, scanned_all) = waiting(host, &names).await?;
    let known_by = host.adapters().iter().find_map(|(name, state)| {
        let acceptor = Arc::clone(&state.acceptor.borrow());
        let client = Origin::ClientKey {
            key: key::client_scope(name, None, what),
            body: [0; 16],
        };
        let individual = Origin::Individual {
            id: key::individual(name, acceptor.epoch, what.as_bytes()),
        };
        [client, individual]
            .iter()
            .any(|origin| {
                matches!(
                    acceptor.buffer.known(name, origin),
                    Known::Repeat | Known::Conflict
                )
            })
            .then(|| name.clone())
    });
    Ok(Found {
        seen,
        failed,
        waiting,
        scanned_all,
        events,
        known_by,
    })
}

/// What a message is named by if `what` is its client's idempotency key or its source's identity: the same
/// over restarts, which what was seen since the start is not.
fn message_ids(host: &Host, what: &str) -> Vec<String> {
    let of = |(name, state): (&String, &Arc<crate::source::AdapterState>)| {
        let epoch = state.acceptor.borrow().epoch;
        let client = key::client_identity(None, what);
        [client.as_slice(), what.as_bytes()]
            .map(|identity| MessageId(key::message(name, epoch, identity)).to_string())
    };
    host.adapters().iter().flat_map(of).collect()
}

/// The first pending write with one of these names.
async fn waiting(host: &Host, names: &[String]) -> Result<(Option<Waiting>, bool), Fault> {
    let mut all = true;
    for (lane, info) in host
        .plugs
        .lanes()
        .all()
        .into_iter()
        .filter(|(_, info)| info.buffered)
    {
        let number = consign_buffer::LaneId(lane.0);
        let (mut after, mut before) = (0_u64, 0_u64);
        loop {
            let page = host.buffer.fetch(number, after, PAGE, PAGE_BYTES).await;
            let page = page.map_err(Fault::failed)?;
            let Some(last) = page.writes.last().map(|write| write.seq) else {
                break;
            };
            for write in page.writes {
                let id = StoredWrite::decode(write.body).map(|w| w.message_id.to_string());
                let key = WriteKey(write.key).to_string();
                if names.contains(&key) || id.is_ok_and(|id| names.contains(&id)) {
                    let one = Waiting {
                        lane,
                        id: info.id.clone(),
                        seq: write.seq,
                        before,
                    };
                    return Ok((Some(one), all));
                }
                before = before.saturating_add(1);
            }
            if !page.more {
                break;
            }
            if before >= SCANNED {
                all = false;
                break;
            }
            after = last;
        }
    }
    Ok((None, all))
}

/// Why a pending write waits.
fn stall(host: &Host, snapshot: &crate::engine::Snapshot, one: &Waiting) -> (&'static str, String) {
    let place = format!(
        "write {} waits in lane {} behind {} others",
        one.seq, one.id, one.before
    );
    let Some(stats) = snapshot.lanes.get(&one.lane.0) else {
        return ("waiting", place);
    };
    let connection = host
        .plugs
        .connection_name(stats.connection)
        .unwrap_or_default();
    let gate = snapshot.connections.get(&stats.connection.0);
    let since = gate.map_or(0, |gate| {
        crate::clock::monotonic_ms().saturating_sub(gate.since_ms) / 1_000
    });
    match stats.state {
        LaneState::Paused => (
            "paused",
            format!(
                "{place}: an operator paused the lane or connection {connection}: consign resume"
            ),
        ),
        LaneState::GateClosed | LaneState::TargetClosed => (
            "gate_closed",
            format!(
                "{place}: connection {connection} takes no writes since {since} s; it goes by itself once the destination is back: consign outages"
            ),
        ),
        LaneState::Halted => (
            "denied",
            format!(
                "{place}: connection {connection} {}: a person must act: consign events --code denied",
                match gate.map(|gate| gate.gate) {
                    Some(GateState::Halted) => "was fenced too often and is halted until restart",
                    _ => "is denied access",
                }
            ),
        ),
        LaneState::HaltedOnOneWrite => (
            "halted_on_one_write",
            format!(
                "{place}: the lane stands still on one write that fails again and again, and no other can tell whether it is the write or the destination: consign events --code halted_on_one_write"
            ),
        ),
        LaneState::Throttled => (
            "throttled",
            format!("{place}: the destination asked to wait"),
        ),
        _ if stats.ambiguous > 0 => (
            "held",
            format!(
                "{place}: a write that may have landed is held, and nothing goes past it: consign events --code write_held"
            ),
        ),
        _ if stats.retrying > 0 => (
            "retrying",
            format!("{place}: a write failed and waits for its next attempt"),
        ),
        _ => ("waiting", format!("{place}: it is on its way")),
    }
}

/// The first source that does not hand anything over.
fn source(host: &Host) -> Option<(&'static str, String)> {
    host.adapters().iter().find_map(|(name, state)| {
        if *state.paused.borrow() {
            let text = format!("adapter {name} is paused by an operator: consign resume {name}");
            return Some(("source_paused", text));
        }
        match &*state.source.lock() {
            SourceState::Failed(why) => Some((
                "source_failed",
                format!("the source of adapter {name} fails: {why}"),
            )),
            SourceState::Opening => Some((
                "source_failed",
                format!("the source of adapter {name} is being opened"),
            )),
            SourceState::Running => state.held.lock().as_ref().map(|why| {
                let text = format!("adapter {name} holds its source back: {why}");
                ("source_held", text)
            }),
            SourceState::Stopped => None,
        }
    })
}

fn judge(
    found: &Found,
    stall: Option<&(&'static str, String)>,
    source: Option<&(&'static str, String)>,
    what: &str,
    host: &Host,
) -> Verdict {
    if let Some(one) = found.failed.iter().find(|one| {
        matches!(
            one.state,
            FailedState::Parked | FailedState::Claimed | FailedState::Skipped
        )
    }) {
        return of_failed(host, one);
    }
    if let Some((case, text)) = stall {
        return verdict(case, text.clone());
    }
    // The last copy decides, except that a repeat points to the first.
    if let Some(seen) = found
        .seen
        .iter()
        .rev()
        .find(|seen| seen.outcome != "repeat")
        .or(found.seen.last())
    {
        return of_seen(seen, found.seen.iter().any(|seen| seen.outcome == "repeat"));
    }
    if let Some(one) = found.failed.last() {
        return of_failed(host, one);
    }
    if let Some(adapter) = &found.known_by {
        let rest = if found.scanned_all {
            "nothing of it waits or is parked: its writes have ended, most likely as delivered"
        } else {
            "none of the waiting writes that were looked at is of it; not all were"
        };
        return verdict(
            "accepted_before",
            format!("adapter {adapter} accepted it before, and {rest}"),
        );
    }
    if let Some((case, text)) = source {
        return Verdict {
            case,
            cause: format!("this host has not accepted it, and {text}"),
            known: false,
        };
    }
    let more = if found.scanned_all {
        ""
    } else {
        ", and not all of the waiting writes were looked at"
    };
    Verdict {
        case: "unknown",
        cause: format!(
            "this host knows nothing of `{what}`: it is in no lane, not among the failed messages, not in the event log, and not among the last {REMEMBERED} messages since the start{more}; ask whoever sends it"
        ),
        known: false,
    }
}

fn of_failed(host: &Host, one: &FailedMessage) -> Verdict {
    let record = &one.record;
    let send = format!("{}/{}/{}", record.adapter, record.route, record.send);
    let said = host
        .events
        .redactor()
        .text(&record.diagnosis.message)
        .into_owned();
    let id = one.id;
    match one.state {
        FailedState::Parked | FailedState::Claimed => verdict(
            "parked",
            format!(
                "its write for send {send} is failed message {id} ({}, {}): {said}; once the cause is mended: consign failed send-again {id}",
                record.diagnosis.reason.name(),
                record.diagnosis.code,
            ),
        ),
        FailedState::Skipped => verdict(
            "skipped",
            format!(
                "{} skipped its write for send {send} (failed message {id}): consign failed restore {id}",
                one.changed_by.as_deref().unwrap_or("somebody")
            ),
        ),
        state => verdict(
            state.name(),
            format!(
                "its write for send {send} failed once and was {} by {} (failed message {id}); nothing of it waits since",
                state.name().replace('_', " "),
                one.changed_by.as_deref().unwrap_or("somebody")
            ),
        ),
    }
}

fn of_seen(seen: &Seen, repeated: bool) -> Verdict {
    let adapter = &seen.adapter;
    let when = seen.at_unix_ms;
    let why = seen.why.clone().unwrap_or_default();
    match seen.outcome {
        "no_route" if !seen.condition_errors.is_empty() => verdict(
            "condition_error",
            format!(
                "no route of adapter {adapter} claimed it, because a condition failed: {}",
                seen.condition_errors.join("; ")
            ),
        ),
        "no_route" => verdict(
            "no_route",
            format!(
                "no route of adapter {adapter} claimed it, so it was acknowledged and discarded: consign explain FILE MESSAGE says why; a last route without conditions claims everything left"
            ),
        ),
        "transform_failed" => verdict(
            "transform_failed",
            format!(
                "route {} of adapter {adapter} claimed it and a transform failed, so it was discarded: {why}",
                seen.route.as_deref().unwrap_or_default()
            ),
        ),
        "no_send" => verdict(
            "no_send",
            format!(
                "route {} of adapter {adapter} claimed it and has no sends: nothing was to leave",
                seen.route.as_deref().unwrap_or_default()
            ),
        ),
        "dropped" => verdict(
            "dropped",
            format!(
                "adapter {adapter} could not accept it and its source cannot hand it over again: {why}"
            ),
        ),
        "refused_at_source" => verdict(
            "refused_at_source",
            format!("adapter {adapter} turned it away and its client was told: {why}"),
        ),
        "released" => verdict(
            "released",
            format!("adapter {adapter} gave it back to its source, which hands it over again"),
        ),
        "repeat" => verdict(
            "repeat",
            format!(
                "adapter {adapter} had accepted it before, so this copy was settled as a repeat and nothing was written twice"
            ),
        ),
        _ => {
            let open: Vec<&str> = seen
                .writes
                .iter()
                .filter(|write| write.ended.is_none())
                .map(|write| write.send.as_str())
                .collect();
            let ended: Vec<String> = seen
                .writes
                .iter()
                .filter_map(|write| Some(format!("{} {}", write.send, write.ended?)))
                .collect();
            let bad = seen.writes.iter().find_map(|write| {
                write.ended.filter(|how| {
                    !matches!(
                        *how,
                        "delivered"
                            | "delivered_as_repeat"
                            | "sent_unconfirmed"
                            | "confirmed_by_operator"
                    )
                })
            });
            let again = if repeated {
                "; copies that came again were settled as repeats"
            } else {
                ""
            };
            match (bad, open.is_empty()) {
                (Some(how), _) => verdict(
                    how,
                    format!(
                        "adapter {adapter} accepted it (at {when}), and not all of it was delivered: {}",
                        ended.join(", ")
                    ),
                ),
                (None, true) => verdict(
                    "delivered",
                    format!(
                        "adapter {adapter} accepted it (at {when}) and everything of it has left: {}{again}",
                        ended.join(", ")
                    ),
                ),
                (None, false) => verdict(
                    "waiting_for_parent",
                    format!(
                        "adapter {adapter} accepted it (at {when}); {} waits for the send it comes after",
                        open.join(", ")
                    ),
                ),
            }
        }
    }
}

fn events_text(found: &Found) -> String {
    match found.events.first() {
        Some(event) => format!(
            "{} name it, the last: {}",
            found.events.len(),
            event.event.message
        ),
        None => "none names it".to_owned(),
    }
}

fn conditions_text(found: &Found, errors: &[String]) -> String {
    match found.seen.last() {
        _ if !errors.is_empty() => errors.join("; "),
        Some(seen) => match &seen.route {
            Some(route) => format!("route {route} of adapter {} claimed it", seen.adapter),
            None if seen.outcome == "no_route" => {
                format!("no route of adapter {} claimed it", seen.adapter)
            }
            None => "its routes were not asked".to_owned(),
        },
        None => "it has not been seen since the start".to_owned(),
    }
}

fn send_text(found: &Found) -> String {
    if let Some(one) = found.failed.last() {
        return format!("failed message {} ({})", one.id, one.state.name());
    }
    if let Some(one) = &found.waiting {
        return format!("it is in lane {}", one.id);
    }
    match found.seen.last() {
        Some(seen) if !seen.writes.is_empty() => seen
            .writes
            .iter()
            .map(|write| format!("{}: {}", write.send, write.ended.unwrap_or("under way")))
            .collect::<Vec<_>>()
            .join(", "),
        _ => "no send has it".to_owned(),
    }
}
