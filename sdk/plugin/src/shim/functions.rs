//! Processors, transforms and error handlers by handle, and messages as they cross for them.

use super::calls::{self, answer, guarded_call, no_such_handle};
use super::logging::Place;
use super::reply;
use crate::functions::{AnyFunction, Decision, FailureReport, Message};
use crate::{Failure, FunctionContext, Outcome};
use consign_abi::{
    Call, HeaderRow, MessageBatch, MessageRow, RVec, Reply, Span, Status, flags, json,
};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Functions(Mutex<HashMap<u64, (AnyFunction, Arc<Place>)>>);

impl Functions {
    /// Drops all of them.
    pub fn drop_all(&self) {
        let open: Vec<_> = self.0.lock().drain().collect();
        drop(open);
    }
}

pub(super) extern "C" fn open(call: Call, request: RVec<u8>) {
    guarded_call(call, |core| {
        let request: json::OpenFunction = match serde_json::from_slice(&request) {
            Ok(request) => request,
            Err(error) => {
                let failure = Failure::other(("bad_request", error.to_string()));
                return answer(core, call, reply::failed(&failure));
            }
        };
        let kind = request.kind.as_deref().unwrap_or_default();
        let Some(def) = core.plugin.function_def(kind, &request.operation) else {
            let message = format!("the plugin has no {kind} {}", request.operation);
            let failure = Failure::config(("no_such_function", message));
            return answer(core, call, reply::failed(&failure));
        };
        let place = Place::new(&request.names);
        let cx = FunctionContext {
            adapter: request.names.adapter.unwrap_or_default(),
            route: request.names.route.unwrap_or_default(),
        };
        let kept = Arc::clone(&place);
        let work = async move {
            match (def.open)(request.config, cx).await {
                Ok(function) => {
                    let handle = core.next_handle();
                    core.functions.0.lock().insert(handle, (function, kept));
                    reply::opened(handle)
                }
                Err(failure) => reply::failed(&failure),
            }
        };
        calls::run(core, call, Some(place), |_| work, |_| {});
    });
}

pub(super) extern "C" fn call(
    call: Call,
    function: u64,
    messages: MessageBatch,
    details: RVec<u8>,
) {
    guarded_call(call, |core| {
        let Some((function, place)) = core.functions.0.lock().get(&function).cloned() else {
            return no_such_handle(core, call);
        };
        let work = async move {
            match function {
                AnyFunction::Change(function) => {
                    let mut reply = Reply::of(Status::Ok);
                    // Together, so that one slow answer (a lookup) is not waited for once per message.
                    let changed = messages.rows.iter().map(|row| async {
                        let mut message = read(&messages, row);
                        let outcome = match function.change(&mut message).await {
                            Ok(()) => Outcome::delivered(),
                            Err(detail) => Outcome::refused(detail),
                        };
                        (row.id, message, outcome)
                    });
                    let changed = futures::future::join_all(changed).await;
                    for (index, (id, message, outcome)) in (0_u32..).zip(changed) {
                        write(&message, id, &mut reply.messages);
                        reply::push(&mut reply, index, &outcome);
                    }
                    reply
                }
                AnyFunction::Decide(function) => {
                    let reports: Vec<FailureReport> = match serde_json::from_slice(&details) {
                        Ok(reports) => reports,
                        Err(error) => {
                            let failure = Failure::other(("bad_request", error.to_string()));
                            return reply::failed(&failure);
                        }
                    };
                    let mut decisions = Vec::with_capacity(reports.len());
                    let mut diverted = MessageBatch::new();
                    for (row, report) in messages.rows.iter().zip(&reports) {
                        let message = read(&messages, row);
                        let decision = function.decide(report, &message).await;
                        // Bodies cross as bytes, not inside the JSON.
                        if let Decision::Divert {
                            message: Some(message),
                            ..
                        } = &decision
                        {
                            write(message, row.id, &mut diverted);
                        }
                        decisions.push(decision);
                    }
                    let mut reply = reply::json(&decisions);
                    reply.messages = diverted;
                    reply
                }
            }
        };
        calls::run(core, call, Some(place), |_| work, |_| {});
    });
}

pub(super) extern "C" fn close(call: Call, function: u64) {
    guarded_call(call, |core| {
        let Some((function, place)) = core.functions.0.lock().remove(&function) else {
            return no_such_handle(core, call);
        };
        let work = async move {
            drop(function);
            Reply::of(Status::Ok)
        };
        calls::run(core, call, Some(place), |_| work, |_| {});
    });
}

fn read(batch: &MessageBatch, row: &MessageRow) -> Message {
    let text = |span: Span| span.text(&batch.arena).map(str::to_owned);
    let bytes = |span: Span| span.of(&batch.arena).unwrap_or_default().to_vec();
    Message {
        body: bytes(row.body),
        headers: row
            .headers
            .of(&batch.headers)
            .unwrap_or_default()
            .iter()
            .filter_map(|h| Some((text(h.name)?, bytes(h.value))))
            .collect(),
        content_type: text(row.content_type),
        routing_key: text(row.routing_key),
        time_unix_ms: row.time_unix_ms,
        source: match row.source.of(&batch.arena).map(serde_json::from_slice) {
            Some(Ok(Value::Object(source))) => source,
            _ => serde_json::Map::new(),
        },
    }
}

fn write(message: &Message, id: u64, batch: &mut MessageBatch) {
    let first = batch.headers.len();
    for (name, value) in &message.headers {
        batch.headers.push(HeaderRow {
            name: Span::push(&mut batch.arena, name.as_bytes()),
            value: Span::push(&mut batch.arena, value),
        });
    }
    let mut text = |text: &Option<String>| match text {
        Some(text) => Span::push(&mut batch.arena, text.as_bytes()),
        None => Span::ABSENT,
    };
    let content_type = text(&message.content_type);
    let routing_key = text(&message.routing_key);
    batch.rows.push(MessageRow {
        id,
        time_unix_ms: message.time_unix_ms,
        offset: 0,
        flags: flags::MESSAGE_HAS_TIME,
        body: Span::push(&mut batch.arena, &message.body),
        content_type,
        routing_key,
        identity: Span::ABSENT,
        partition: Span::ABSENT,
        client_key: Span::ABSENT,
        principal: Span::ABSENT,
        position: Span::ABSENT,
        source: Span::ABSENT,
        headers: Span::since(first, batch.headers.len()),
        attributes: Span::EMPTY,
    });
}
