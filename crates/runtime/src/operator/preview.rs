//! What an act would do, without doing it.

use super::Answer;
use super::acts;
use super::jobs::Settings;
use super::replay::blocking;
use super::request::{Bulk, DIRECT_MAX, Fault};
use crate::host::Host;
use consign_ledger::{Applied, Error, FailedMessage};
use consign_pipeline::WriteKey;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// How many messages an act would take, and what would become of the first of them.
pub async fn preview(host: &Arc<Host>, settings: &Settings, ids: &[i64]) -> Answer {
    let ledger = host.ledger.clone();
    let list: Vec<i64> = ids.iter().take(DIRECT_MAX).copied().collect();
    let messages = blocking(move || {
        let mut messages = Vec::new();
        for id in list {
            messages.push((id, ledger.failed_message(id)?));
        }
        Ok(messages)
    })
    .await
    .map_err(Fault::failed)?;
    let mut lines = Vec::new();
    for (id, message) in messages {
        let mut line = match message {
            Some(message) => of_message(host, settings.act, &message).await,
            None => refused(format!("no failed message {id}")),
        };
        line.insert("id".to_owned(), json!(id));
        lines.push(Value::Object(line));
    }
    Ok(json!({ "dry_run": true, "total": ids.len(), "messages": lines }))
}

fn refused(why: String) -> Map<String, Value> {
    Map::from_iter([("error".to_owned(), json!(why))])
}

async fn of_message(host: &Host, act: Bulk, message: &FailedMessage) -> Map<String, Value> {
    let record = &message.record;
    let send = format!("{}/{}/{}", record.adapter, record.route, record.send);
    let key = WriteKey(record.write_key).to_string();
    let mut line = Map::from_iter([
        ("state".to_owned(), json!(message.state)),
        ("write_key".to_owned(), json!(key)),
        ("send".to_owned(), json!(send)),
        (
            "may_have_landed".to_owned(),
            json!(record.diagnosis.applied == Applied::Maybe),
        ),
        ("dependents".to_owned(), json!(record.dependents.len())),
    ]);
    let sends = matches!(act, Bulk::SendAgain | Bulk::RouteAgain | Bulk::Move);
    let (name, value) = if !act.states().contains(&message.state) {
        let state = message.state.name().replace('_', " ");
        ("error", json!(format!("it is {state}")))
    } else if sends && !record.replayable {
        ("error", json!(Error::NotReplayable(message.id).to_string()))
    } else if act == Bulk::RouteAgain {
        match acts::routed(host, message).await {
            Ok((routed, _)) => ("routed", routed),
            Err(why) => ("error", json!(why)),
        }
    } else {
        return line;
    };
    line.insert(name.to_owned(), value);
    line
}
