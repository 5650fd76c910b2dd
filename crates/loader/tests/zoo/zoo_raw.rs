//! A plugin that speaks the ABI itself, without the SDK, to say what the SDK never would.
//!
//! Which of its lies it tells while it loads is a text in the file, `SELECTOR`, which the tests
//! overwrite in a copy; what it answers to calls is in each function's config.
#![allow(
    unsafe_code,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "misbehaving is its purpose"
)]

use consign_abi::export::{RootModuleResult, header, root};
use consign_abi::note::{ABI_VERSION, NoteRecord};
use consign_abi::{
    Call, HostRef, LibHeader, MessageBatch, MessageRow, OutcomeRow, Plugin, ROption, RVec, Reply,
    SettleRow, Span, Status, WriteBatch,
};
use serde_json::{Value, json};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// 32 bytes: `lie=` and its name, filled up with dots.
#[used]
static SELECTOR: [u8; 32] = *b"lie=none........................";

#[used]
#[unsafe(link_section = ".note.consign")]
static NOTE: NoteRecord = NoteRecord::new(&[
    "magic=consign-plugin\nsdk=0.0.0\nrustc=none\ntarget=x86_64-unknown-linux-gnu\nabi=",
    ABI_VERSION,
    "\npanic=unwind\npackage=zoo-raw\nversion=0.0.0\nprovides=\n",
]);

#[unsafe(export_name = "consign_plugin_root_zoo_raw")]
pub static ROOT: LibHeader = header(make_root);

static HOST: OnceLock<HostRef> = OnceLock::new();
/// Config of the sinks and sources by handle, counted from 1.
static OPEN: Mutex<Vec<(Call, Value)>> = Mutex::new(Vec::new());

fn lie() -> &'static str {
    // SAFETY: reads a static of this file; volatile, because the tests change its bytes on disk.
    let bytes: &'static [u8; 32] = unsafe {
        let _ = std::ptr::read_volatile(&raw const SELECTOR);
        std::hint::black_box(&SELECTOR)
    };
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.trim_start_matches("lie=").trim_end_matches('.')
}

extern "C" fn make_root() -> RootModuleResult {
    root(|| match lie() {
        "root_panics" => panic!("the root has escaped"),
        "root_fails" => Err("the configuration of the moon is missing".to_owned()),
        _ => Ok(Plugin {
            manifest,
            init,
            resolve,
            connection_open,
            connection_probe: done,
            connection_close: done,
            sink_open,
            sink_submit,
            sink_inspect,
            sink_close: done,
            cancel,
            source_open,
            source_credit,
            source_settle,
            source_extend,
            source_control,
            source_seek,
            source_revoke_done,
            source_stop: done,
            shutdown,
            function_open: function,
            function_call,
            function_close: done,
        }),
    })
}

extern "C" fn manifest() -> RVec<u8> {
    let mut manifest = json!({
        "format": 1, "name": "zoo_raw", "version": "0.0.0",
        "connectors": [{
            "name": "zoo_raw", "title": "Raw", "description": "", "config_schema": {},
            "operations": [
                { "id": "zoo_raw.write", "title": "Write", "description": "", "config_schema": {},
                  "declaration": { "sink": {
                    "promise": "at_least_once",
                    "repeat": { "kind": "second_copy", "window": "none" },
                    "key": { "on": "nothing" }, "batch": "independent" } } },
                { "id": "zoo_raw.count", "title": "Count", "description": "", "config_schema": {},
                  "declaration": { "source": {
                    "delivery": "offset_tracked_individual", "identity": "none" } } },
            ],
        }],
    });
    let function = json!({ "kind": "processor", "name": "zoo_raw", "title": "Raw", "description": "",
                           "config_schema": {} });
    match lie() {
        "none" => {
            let mut handler = function.clone();
            handler["kind"] = json!("error_handler");
            manifest["functions"] = json!([function, handler]);
        }
        "function_twice" => manifest["functions"] = json!([function, function]),
        "function_schema" => {
            manifest["functions"] = json!([function]);
            manifest["functions"][0]["config_schema"] = json!("none");
        }
        "function_name" => {
            manifest["functions"] = json!([function]);
            manifest["functions"][0]["name"] = json!("Zoo-Raw");
        }
        "describe_huge" => manifest["connectors"][0]["description"] = json!("x".repeat(8 << 20)),
        _ => {}
    }
    let connector = &mut manifest["connectors"][0];
    match lie() {
        "incoherent" => {
            connector["operations"][0]["declaration"]["sink"]["promise"] =
                json!("effectively_once");
        }
        "prefix" => connector["operations"][0]["id"] = json!("other.write"),
        "twice" => connector["operations"][1]["id"] = json!("zoo_raw.write"),
        "other_name" => connector["name"] = json!("zoo_other"),
        "no_schema" => connector["config_schema"] = Value::Null,
        "format" => manifest["format"] = json!(99),
        "not_json" => return b"<manifest/>".to_vec().into(),
        "no_name" => {
            manifest.as_object_mut().map(|m| m.remove("name"));
        }
        _ => {}
    }
    manifest.to_string().into_bytes().into()
}

extern "C" fn init(_: u64, host: HostRef) -> u32 {
    if lie() == "init_fails" {
        return Status::Failed.code();
    }
    let _ = HOST.set(host);
    Status::Ok.code()
}

extern "C" fn resolve(_: RVec<u8>) -> RVec<u8> {
    let promise = match lie() {
        "resolves_better" => "effectively_once",
        "resolve_not_json" => return b"?".to_vec().into(),
        _ => "at_least_once",
    };
    json!({ "ok": {
        "promise": promise, "repeat": "write_key", "window": "none",
        "reason": "because", "target_id": "raw" } })
    .to_string()
    .into_bytes()
    .into()
}

fn complete(token: u64, generation: u64, reply: Reply) {
    if let Some(host) = HOST.get() {
        (host.complete())(token, generation, reply);
    }
}

fn opened(handle: u64) -> Reply {
    let mut reply = Reply::of(Status::Ok);
    reply.handle = handle;
    reply
}

fn open_as(call: Call, config: Value) -> u64 {
    let mut open = OPEN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    open.push((call, config));
    u64::try_from(open.len()).unwrap_or(0)
}

fn config_of(handle: u64) -> (Call, Value) {
    let open = OPEN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let place = usize::try_from(handle).unwrap_or(0).saturating_sub(1);
    open.get(place).cloned().unwrap_or((
        Call {
            token: 0,
            generation: 0,
            deadline_ms: 0,
        },
        Value::Null,
    ))
}

fn request(bytes: &[u8]) -> Value {
    serde_json::from_slice::<Value>(bytes).unwrap_or_default()["config"].take()
}

extern "C" fn connection_open(call: Call, bytes: RVec<u8>) {
    let mut reply = opened(1);
    match request(&bytes)["act"].as_str() {
        Some("failure_not_json") => {
            reply = Reply::of(Status::Failed);
            reply.bytes = b"\xff\xfe".to_vec().into();
        }
        Some("unknown_status") => {
            reply.status = 77;
            reply.bytes = br#"{"kind":99,"code":"from_the_future","message":"later"}"#
                .to_vec()
                .into();
        }
        _ => {}
    }
    complete(call.token, call.generation, reply);
}

extern "C" fn done(call: Call, _: u64) {
    complete(call.token, call.generation, Reply::of(Status::Ok));
}

extern "C" fn sink_open(call: Call, _: u64, bytes: RVec<u8>) {
    let handle = open_as(call, request(&bytes));
    complete(call.token, call.generation, opened(handle));
}

extern "C" fn sink_inspect(call: Call, _: u64) {
    let mut reply = Reply::of(Status::Ok);
    reply.bytes = b"{}".to_vec().into();
    complete(call.token, call.generation, reply);
}

fn row(index: u32, applied: u32, scope: u32, advice: u32) -> OutcomeRow {
    OutcomeRow {
        index,
        applied,
        scope,
        advice,
        flags: 0xffff_fff0,
        after_ms: u64::MAX,
        // Points outside the arena.
        code: Span {
            start: 4_000_000_000,
            len: 4_000_000_000,
        },
        message: Span::ABSENT,
        attributes: Span {
            start: 1,
            len: u32::MAX,
        },
    }
}

extern "C" fn sink_submit(call: Call, sink: u64, batch: WriteBatch) {
    let (_, config) = config_of(sink);
    let count = u32::try_from(batch.rows.len()).unwrap_or(0);
    let mut reply = Reply::of(Status::Ok);
    reply.outcomes = (0..count).map(|i| row(i, 1, 1, 1)).collect();
    let (token, generation) = (call.token, call.generation);
    match config["act"].as_str().unwrap_or_default() {
        "none" => reply.outcomes.clear(),
        "too_few" => {
            reply.outcomes.pop();
        }
        "too_many" => reply.outcomes.push(row(count, 1, 1, 1)),
        "out_of_range" => reply.outcomes = vec![row(u32::MAX, 1, 1, 1)].into(),
        "all_for_one" => reply.outcomes = (0..count).map(|_| row(0, 1, 1, 1)).collect(),
        "unknown_codes" => reply.outcomes = (0..count).map(|i| row(i, 9, 9, 9)).collect(),
        "whole_batch" => reply = Reply::of(Status::Failed),
        "unknown_status" => reply.status = 1234,
        "double" => complete(token, generation, reply.clone()),
        "foreign" => {
            complete(token + 1_000_000_000, generation, reply.clone());
            complete(0, generation, reply.clone());
            complete(token, generation + 1_000_000_000, reply.clone());
        }
        "silent" => return,
        "late" => {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(config["ms"].as_u64().unwrap_or(0)));
                complete(token, generation, reply);
            });
            return;
        }
        _ => {}
    }
    complete(token, generation, reply);
}

extern "C" fn cancel(_: u64, _: u64) {}

fn message(id: u64) -> MessageRow {
    let nowhere = Span {
        start: 1_000,
        len: 5,
    };
    MessageRow {
        id,
        time_unix_ms: 0,
        offset: 0,
        flags: 0,
        body: nowhere,
        content_type: nowhere,
        routing_key: nowhere,
        identity: nowhere,
        partition: nowhere,
        client_key: nowhere,
        principal: nowhere,
        position: nowhere,
        source: nowhere,
        headers: nowhere,
        attributes: nowhere,
    }
}

extern "C" fn source_open(call: Call, _: u64, bytes: RVec<u8>, _: ROption<RVec<u8>>) {
    let config = request(&bytes);
    let handle = open_as(call, config.clone());
    complete(call.token, call.generation, opened(handle));
    if config["act"] == "over_credit" {
        deliver(call, &[1]);
    }
}

fn deliver(call: Call, ids: &[u64]) {
    let mut batch = MessageBatch::new();
    batch.rows = ids.iter().map(|id| message(*id)).collect();
    if let Some(host) = HOST.get() {
        (host.deliver())(call.token, call.generation, batch);
    }
}

extern "C" fn source_credit(source: u64, _: u64, _: u64) {
    let (call, config) = config_of(source);
    match config["act"].as_str() {
        Some("ids_fall") => deliver(call, &[2, 1]),
        Some("bad_spans") => deliver(call, &[1]),
        Some("foreign") => deliver(
            Call {
                generation: call.generation + 1_000_000_000,
                ..call
            },
            &[1],
        ),
        _ => {}
    }
}

extern "C" fn source_settle(_: u64, _: RVec<SettleRow>, _: RVec<u8>) {}
extern "C" fn source_extend(_: u64, _: RVec<u64>) {}
extern "C" fn source_control(_: u64, _: u32) {}
extern "C" fn source_seek(_: u64, _: RVec<u8>) {}
extern "C" fn source_revoke_done(_: u64, _: u64) {}
extern "C" fn shutdown(call: Call) {
    complete(call.token, call.generation, Reply::of(Status::Ok));
}
extern "C" fn function(call: Call, bytes: RVec<u8>) {
    let handle = open_as(call, request(&bytes));
    complete(call.token, call.generation, opened(handle));
}
/// A processor's or a handler's answer, as its config says.
extern "C" fn function_call(call: Call, function: u64, messages: MessageBatch, _: RVec<u8>) {
    let (_, config) = config_of(function);
    let mut reply = Reply::of(Status::Ok);
    let count = u32::try_from(messages.rows.len()).unwrap_or(0);
    let answered = |reply: &mut Reply, count: u32| {
        reply.outcomes = (0..count).map(|i| row(i, 1, 1, 1)).collect();
        reply.messages.rows = (0..u64::from(count)).map(message).collect();
    };
    match config["act"].as_str().unwrap_or_default() {
        "too_few" => answered(&mut reply, count.saturating_sub(1)),
        "too_many" => answered(&mut reply, count + 1),
        "without_messages" => reply.outcomes = (0..count).map(|i| row(i, 1, 1, 1)).collect(),
        "bad_spans" => answered(&mut reply, count),
        "unknown_codes" => {
            answered(&mut reply, count);
            reply.outcomes = (0..count).map(|i| row(i, 9, 9, 9)).collect();
        }
        "not_json" => reply.bytes = b"park it".to_vec().into(),
        "not_a_list" => reply.bytes = br#"{"park":{"reason":"x"}}"#.to_vec().into(),
        "from_the_future" => reply.bytes = br#"[{"teleport":{"to":"mars"}}]"#.to_vec().into(),
        "failed" => reply = Reply::of(Status::Failed),
        _ => {}
    }
    complete(call.token, call.generation, reply);
}
