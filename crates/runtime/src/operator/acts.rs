//! What each act makes of one failed message: the writes that go into lanes, what becomes of its dependents, and
//! what is told. Nothing is carried out here; [`replay`](super::replay) does that, a batch at a time.

use super::records::split;
use super::replay::Ready;
use crate::clock::{wall_unix_ms, wall_unix_ms_i64};
use crate::host::Host;
use crate::lanes::LaneInfo;
use bytes::Bytes;
use consign_buffer::NewWrite;
use consign_delivery::LaneId;
use consign_ledger::{Applied, Code, Dependent, Event, FailedMessage, NewFailed};
use consign_pipeline::{Message, Rendered, StoredWrite, WriteKey, key};
use serde_json::{Value, json};
use std::sync::Arc;

/// The running buffered lane of a send, and what is known about it.
fn lane_of(host: &Host, id: &str) -> Result<(LaneId, Arc<LaneInfo>), String> {
    let (lane, info) = host.plugs.lanes().by_id(id).ok_or_else(|| {
        format!("no send {id} runs: give the send that took its place `formerly`, or use move or route again")
    })?;
    if info.buffered {
        Ok((lane, info))
    } else {
        Err(format!("send {id} is direct now: use move or route again"))
    }
}

/// A stored write that still fits the send's settings.
fn fitting(envelope: &[u8], info: &LaneInfo) -> Result<Bytes, String> {
    let stored = Bytes::copy_from_slice(envelope);
    let mut write = StoredWrite::decode(stored.clone()).map_err(|error| error.to_string())?;
    info.templates.fit(&mut write).map_err(|why| {
        format!(
            "send {} has a template that it lacks, {why}: use route again",
            info.id
        )
    })?;
    Ok(stored)
}

pub(super) fn send_again(host: &Host, ready: &mut Ready) -> Result<(), String> {
    let record = &ready.claim.message.record;
    let id = format!("{}/{}/{}", record.adapter, record.route, record.send);
    let (lane, info) = lane_of(host, &id)?;
    let write = NewWrite {
        lane: consign_buffer::LaneId(lane.0),
        key: record.write_key,
        order: record.order,
        body: fitting(&record.envelope, &info)?,
        created_unix_ms: u64::try_from(record.history.accepted_unix_ms)
            .unwrap_or_else(|_| wall_unix_ms()),
        // A person wants it sent, however old it is.
        expires_unix_ms: None,
        children: children(host, record, None)?,
    };
    let newer = host
        .buffer
        .stats(consign_buffer::LaneId(lane.0))
        .map_or(0, |stats| stats.settled_through.saturating_sub(record.seq));
    if newer > 0 && record.seq > 0 && info.ordered {
        let warning = format!(
            "newer writes of its lane were delivered since it was parked (up to {newer}): it may replace a newer state"
        );
        ready.events.push(
            crate::events::of_lane(Event::new(Code::ReplayOvertakes, wall_unix_ms_i64()), &info)
                .connection(info.connection.clone())
                .field("write_key", WriteKey(record.write_key).to_string())
                .field("newer", newer)
                .message(format!(
                    "{id}: failed message {}: {warning}",
                    ready.claim.failed_id
                )),
        );
        ready.facts.insert("warnings".to_owned(), json!([warning]));
    }
    ready.facts.insert("lane".to_owned(), json!(id));
    ready.writes.push(write);
    Ok(())
}

/// The dependents that wait for `parent`, each with those that wait for it.
fn children(host: &Host, record: &NewFailed, parent: Option<u32>) -> Result<Vec<NewWrite>, String> {
    let mut writes = Vec::new();
    for (place, dependent) in (0_u32..).zip(&record.dependents) {
        if dependent.parent == parent {
            writes.push(NewWrite {
                children: children(host, record, Some(place))?,
                ..child(host, record, dependent)?
            });
        }
    }
    Ok(writes)
}

fn child(host: &Host, record: &NewFailed, dependent: &Dependent) -> Result<NewWrite, String> {
    let id = format!("{}/{}/{}", record.adapter, record.route, dependent.send);
    let (lane, info) = lane_of(host, &id)?;
    Ok(NewWrite {
        lane: consign_buffer::LaneId(lane.0),
        key: dependent.write_key,
        order: dependent.order,
        body: fitting(&dependent.envelope, &info)?,
        created_unix_ms: u64::try_from(record.history.accepted_unix_ms)
            .unwrap_or_else(|_| wall_unix_ms()),
        expires_unix_ms: None,
        children: Vec::new(),
    })
}

/// The message as its source handed it over.
pub fn original_of(message: &FailedMessage) -> Result<Message, String> {
    let stored = StoredWrite::decode(Bytes::from(message.record.envelope.clone()))
        .map_err(|error| error.to_string())?;
    let mut original = stored.message();
    if let Some(before) = stored.original {
        original.body = before.body;
        original.content_type = before.content_type;
        original.headers = before.headers;
        original.routing_key = before.routing_key;
    }
    Ok(original)
}

pub(super) fn move_to(host: &Host, ready: &mut Ready, to: Option<&str>) -> Result<(), String> {
    let to = to.ok_or("say where to: --to ADAPTER/ROUTE/SEND")?;
    let record = &ready.claim.message.record;
    let (lane, _) = lane_of(host, to)?;
    if to == format!("{}/{}/{}", record.adapter, record.route, record.send) {
        return Err(format!("{to} is where it comes from: use send again"));
    }
    let stored = StoredWrite::decode(Bytes::from(record.envelope.clone()))
        .map_err(|error| error.to_string())?;
    let rendered = rendered(host, to, &stored)?;
    let new_key = key::diverted(WriteKey(record.write_key), to);
    let mut moved = StoredWrite {
        attributes: Vec::new(),
        ..stored
    };
    moved.set_slots(&rendered);
    let body = moved.encode();
    ready.writes.push(NewWrite {
        lane: consign_buffer::LaneId(lane.0),
        key: new_key.0,
        order: rendered.order.stored_hash(),
        body,
        created_unix_ms: wall_unix_ms(),
        expires_unix_ms: None,
        children: Vec::new(),
    });
    if !record.dependents.is_empty() {
        ready.split = Some(split(record, Some(host.plugs.lanes()), "moved"));
    }
    ready.facts.insert("lane".to_owned(), json!(to));
    ready
        .facts
        .insert("write_key".to_owned(), json!(new_key.to_string()));
    warn_of_landed(ready, "moved it may be there twice");
    Ok(())
}

/// What is a running send's own in a stored write: its templates and order key, rendered anew.
pub fn rendered(host: &Host, id: &str, stored: &StoredWrite) -> Result<Rendered, String> {
    let missing = || format!("no send {id} runs");
    let (_, info) = host.plugs.lanes().by_id(id).ok_or_else(missing)?;
    let state = host.adapters().remove(&info.adapter).ok_or_else(missing)?;
    let acceptor = Arc::clone(&state.acceptor.borrow());
    let routes = acceptor.routes.iter().enumerate();
    let place = routes
        .filter(|(_, route)| route.name == info.route)
        .find_map(|(place, route)| {
            let send = route.sends.iter().position(|send| send.id == info.send)?;
            Some((place, send))
        });
    let (route, send) = place.ok_or_else(missing)?;
    acceptor
        .program
        .render_send(route, send, &stored.message())
        .map_err(|error| format!("send {id}: {}", error.message))
}

pub(super) async fn route_again(host: &Host, ready: &mut Ready) -> Result<(), String> {
    let message = &ready.claim.message;
    let (preview, writes) = routed(host, message).await?;
    if writes.is_empty() {
        return Err(format!("today's routes make no write of it: {preview}"));
    }
    ready.facts.insert("routed".to_owned(), preview);
    ready.writes = writes;
    if !message.record.dependents.is_empty() {
        dropped(ready, "routed_again");
        ready.split = Some(Vec::new());
    }
    warn_of_landed(ready, "routed again it may be there twice");
    Ok(())
}

fn warn_of_landed(ready: &mut Ready, what: &str) {
    if ready.claim.message.record.diagnosis.applied == Applied::Maybe {
        let warning = format!("the old write may have landed: {what}, because the key is new");
        ready.facts.insert("warnings".to_owned(), json!([warning]));
    }
}

/// What today's routes make of the original message.
pub async fn routed(
    host: &Host,
    message: &FailedMessage,
) -> Result<(Value, Vec<NewWrite>), String> {
    let adapter = &message.record.adapter;
    let state = host
        .adapters()
        .remove(adapter)
        .ok_or_else(|| format!("there is no adapter {adapter} any more: use move"))?;
    let acceptor = Arc::clone(&state.acceptor.borrow());
    let original = original_of(message)?;
    let (evaluated, writes) = acceptor.route_again(&original).await?;
    Ok((acceptor.described(&evaluated), writes))
}

pub(super) fn confirm(host: &Host, ready: &mut Ready) -> Result<(), String> {
    let record = &ready.claim.message.record;
    if record.diagnosis.applied == Applied::No {
        return Err(format!(
            "failed message {} has not landed ({}): there is nothing to confirm; use send again or skip",
            ready.claim.failed_id, record.diagnosis.code
        ));
    }
    release_dependents(host, ready)
}

pub(super) fn skip(host: &Host, ready: &mut Ready) -> Result<(), String> {
    let record = &ready.claim.message.record;
    if record.dependents.is_empty() {
        return Ok(());
    }
    let id = format!("{}/{}/{}", record.adapter, record.route, record.send);
    let releases = host
        .plugs
        .lanes()
        .by_id(&id)
        .is_some_and(|(_, info)| info.skip_releases);
    if releases {
        return release_dependents(host, ready);
    }
    // They stay in the record, so that a restore brings them back with it.
    dropped(ready, "skipped");
    Ok(())
}

fn release_dependents(host: &Host, ready: &mut Ready) -> Result<(), String> {
    let record = &ready.claim.message.record;
    if !record.dependents.is_empty() {
        let writes = children(host, record, None)?;
        ready
            .facts
            .insert("released".to_owned(), json!(writes.len()));
        ready.writes = writes;
        ready.split = Some(Vec::new());
    }
    Ok(())
}

fn dropped(ready: &mut Ready, reason: &str) {
    let record = &ready.claim.message.record;
    ready.events.push(dropped_event(record, reason));
    ready.facts.insert(
        "dropped_dependents".to_owned(),
        json!(record.dependents.len()),
    );
}

pub(super) fn dropped_event(record: &NewFailed, reason: &str) -> Event {
    let sends: Vec<&str> = record.dependents.iter().map(|d| d.send.as_str()).collect();
    Event::new(Code::DependentDropped, wall_unix_ms_i64())
        .adapter(record.adapter.clone())
        .route(record.route.clone())
        .send(record.send.clone())
        .field("parent", WriteKey(record.write_key).to_string())
        .field("reason", reason)
        .message(format!(
            "{}/{}: what waits for a failed write of send {} ({}) was dropped: the write was {reason}",
            record.adapter,
            record.route,
            record.send,
            sends.join(", ")
        ))
}
