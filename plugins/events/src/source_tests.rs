//! Tests of the source against the SDK's host, and an API that is served by a few lines.

use super::*;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::{Json, Router, routing::get};
use consign_plugin::testing::{self, SourceDriver};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Mutex;

const SOON: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(150);

/// The log that is served.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Value>>>);

impl Log {
    fn add(&self, level: &str, code: &str, adapter: Option<&str>) {
        let mut log = self.0.lock().unwrap();
        let id = log.last().and_then(id_of).unwrap_or(0) + 1;
        log.push(json!({
            "id": id, "level": level, "code": code, "at_unix_ms": now_unix_ms(),
            "adapter": adapter, "message": format!("event {id}"),
        }));
    }

    async fn serve(&self) -> ConnectionConfig {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new()
            .route("/api/v1/events", get(answer))
            .route("/api/v1/status", get(status))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        ConnectionConfig {
            endpoint,
            token: None,
            timeouts: Timeouts::default(),
        }
    }
}

/// Adapters whose name begins with `notices` read events.
async fn status(State(log): State<Log>) -> Json<Value> {
    let log = log.0.lock().unwrap();
    let named = log.iter().filter_map(adapter_of);
    let adapters: Vec<Value> = named
        .map(|name| {
            let reads = name.starts_with("notices");
            let source = if reads { "events.read" } else { "http.receive" };
            json!({ "name": name, "source": source, "state": "running" })
        })
        .collect();
    Json(json!({ "version": "0.1.0", "adapters": adapters }))
}

async fn answer(
    State(log): State<Log>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Vec<Value>>, (StatusCode, Json<Value>)> {
    if query.get("code").is_some_and(|code| code == "parkd") {
        let error = json!({ "error": "`parkd` is no event code; the nearest is `parked`" });
        return Err((StatusCode::BAD_REQUEST, Json(error)));
    }
    let after = query.get("after_id").map_or(0, |id| id.parse().unwrap());
    let limit: usize = query["limit"].parse().unwrap();
    let mut events = log.0.lock().unwrap().clone();
    events.retain(|event| id_of(event).unwrap() > after);
    if query.get("level").is_some_and(|level| level == "error") {
        events.retain(|event| event["level"] == "error");
    }
    if query.contains_key("newest_first") {
        events.reverse();
    }
    events.truncate(limit);
    Ok(Json(events))
}

fn config(json: Value) -> ReadConfig {
    let mut config: ReadConfig = serde_json::from_value(json).unwrap();
    config.poll_interval = serde_json::from_value(json!("10ms")).unwrap();
    config
}

async fn start(log: &Log, settings: Value, position: Option<Vec<u8>>) -> SourceDriver {
    let host = testing::connect::<Host>(log.serve().await).await.unwrap();
    let source = SourceDriver::start::<ReadEvents>(host, config(settings), position);
    source.credit(1_000, 1 << 20);
    source
}

#[tokio::test]
async fn events_come_once_with_their_level_and_code_as_key_and_go_on_after_a_stop() {
    let log = Log::default();
    log.add("warn", "parked", Some("payments"));
    log.add("error", "denied", None);
    let mut source = start(&log, json!({}), None).await;
    let first = source.receive_many(2, SOON).await;
    assert_eq!(first[0].routing_key.as_deref(), Some("warn.parked"));
    assert_eq!(first[1].routing_key.as_deref(), Some("error.denied"));
    let body: Value = serde_json::from_slice(&first[1].body).unwrap();
    assert_eq!(
        (&body["id"], &body["message"]),
        (&json!(2), &json!("event 2"))
    );
    log.add("warn", "parked", None);
    let third = source.receive(SOON).await.unwrap();
    source.stop(SOON).await.unwrap();

    let mut source = start(&log, json!({}), first[1].position.clone()).await;
    let again = source.receive(SOON).await.unwrap();
    assert_eq!(again.identity, third.identity);
    assert!(source.receive(SHORT).await.is_none());
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn codes_levels_and_adapters_are_chosen() {
    let log = Log::default();
    for (level, code, adapter) in [
        ("warn", "parked", Some("a")),
        ("error", "denied", Some("a")),
        ("error", "parked", Some("skipped")),
        ("error", "parked", Some("a")),
    ] {
        log.add(level, code, adapter);
    }
    let settings =
        json!({ "codes": ["parked"], "min_level": "error", "skip_adapters": ["skipped"] });
    let mut source = start(&log, settings, None).await;
    assert_eq!(source.receive(SOON).await.unwrap().offset, Some(4));
    assert!(source.receive(SHORT).await.is_none());
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn adapters_that_read_events_do_not_feed_each_other() {
    let log = Log::default();
    log.add("error", "parked", Some("notices_of_another_route"));
    log.add("error", "parked", Some("a"));
    let mut source = start(&log, json!({}), None).await;
    assert_eq!(source.receive(SOON).await.unwrap().offset, Some(2));
    log.add("error", "parked", Some("notices_added_later"));
    log.add("error", "parked", None);
    assert_eq!(source.receive(SOON).await.unwrap().offset, Some(4));
    assert!(source.receive(SHORT).await.is_none());
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn an_unknown_code_stops_the_source_with_the_nearest_one() {
    let log = Log::default();
    let source = start(&log, json!({ "codes": ["parkd"] }), None).await;
    let failure = source.ended(SOON).await.unwrap_err();
    assert!(
        failure.to_string().contains("the nearest is `parked`"),
        "{failure}"
    );
}

#[tokio::test]
async fn what_is_blocked_comes_again() {
    let log = Log::default();
    log.add("warn", "parked", None);
    log.add("warn", "denied", None);
    let mut source = start(&log, json!({}), None).await;
    let both = source.receive_many(2, SOON).await;
    source.accept([both[0].id]);
    let reason = "full".to_owned();
    let blocked = SettleResult::Blocked {
        retry_after_ms: 20,
        reason,
    };
    source.settle(both[1].id, blocked);
    let again = source.receive(SOON).await.unwrap();
    assert_eq!(
        (again.offset, again.identity),
        (Some(2), both[1].identity.clone())
    );
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_log_that_was_begun_anew_is_read_from_its_start_as_another_partition() {
    let log = Log::default();
    log.add("warn", "parked", None);
    let mut source = start(&log, json!({}), Some(b"0:900".to_vec())).await;
    let event = source.receive(SOON).await.unwrap();
    assert_eq!(event.partition.as_deref(), Some("log 1"));
    assert_eq!(event.position.as_deref(), Some(&b"1:1"[..]));
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn the_first_start_looks_back_as_far_as_it_is_told() {
    let log = Log::default();
    log.add("warn", "parked", None);
    log.0.lock().unwrap()[0]["at_unix_ms"] = json!(now_unix_ms() - 10_000);
    log.add("warn", "denied", None);
    let mut source = start(&log, json!({ "look_back": "5s" }), None).await;
    assert_eq!(source.receive(SOON).await.unwrap().offset, Some(2));
    source.stop(SOON).await.unwrap();
    let mut source = start(&log, json!({ "look_back": "5s" }), Some(b"0:0".to_vec())).await;
    assert_eq!(source.receive(SOON).await.unwrap().offset, Some(1));
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_host_that_does_not_answer_is_down_and_a_bad_address_is_a_fault_of_the_configuration() {
    let mut config = Log::default().serve().await;
    config.endpoint = "127.0.0.1:8640".to_owned();
    let failure = testing::connect::<Host>(config.clone()).await.unwrap_err();
    assert!(failure.to_string().contains("`endpoint`"), "{failure}");
    config.endpoint = "http://127.0.0.1:1".to_owned();
    let host = testing::connect::<Host>(config).await.unwrap();
    let failure = host.probe().await.unwrap_err();
    assert!(failure.to_string().contains("127.0.0.1:1"), "{failure}");
}
