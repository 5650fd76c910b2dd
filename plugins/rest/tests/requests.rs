//! What requests look like, and what each answer, or none, comes to: against the kit's own server,
//! which answers what it is told to, and against httpbin, which says what it was sent.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use consign_plugin::prelude::*;
use consign_plugin::testing::{self, TestWrite};
use consign_plugin::{Advice, Applied, Scope};
use consign_plugin_rest::config::{ConnectionConfig, RequestConfig};
use consign_plugin_rest::connection::Rest;
use consign_plugin_rest::sink::{Patch, Post, Put, Request};
use consign_testkit::http_server::{Answer, HttpServer};
use consign_testkit::proxy::{Action, Fault, Proxy, Trigger};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

const KEY: &str = "07070707070707070707070707070707";

async fn server() -> HttpServer {
    HttpServer::start().await.unwrap()
}

fn connection(address: SocketAddr, change: Value) -> ConnectionConfig {
    let mut config = json!({
        "endpoint": format!("http://{address}/base"),
        "timeouts": { "connect": "3s", "request": "5s" },
    });
    config
        .as_object_mut()
        .unwrap()
        .extend(change.as_object().unwrap().clone());
    serde_json::from_value(config).unwrap()
}

async fn open<S: Sink<Connector = Rest, Config = RequestConfig>>(
    connection: ConnectionConfig,
    config: Value,
) -> S {
    let config: RequestConfig = serde_json::from_value(config).unwrap();
    let resolved = S::resolve(&connection, &config);
    assert!(resolved.faults.is_empty(), "{:?}", resolved.faults);
    testing::open_sink::<S>(connection, config).await.unwrap()
}

fn one(body: &str) -> Batch {
    testing::batch([TestWrite::new(body)
        .key([7; 16])
        .content_type("application/json")])
}

fn axes(outcome: &Outcome) -> (Applied, Scope, Advice, &str) {
    (
        outcome.applied(),
        outcome.scope(),
        outcome.advice(),
        outcome.code(),
    )
}

#[tokio::test]
async fn a_request_carries_body_key_headers_and_encoded_parameters() {
    let server = server().await;
    let config = json!({
        "path": {"$template": 0}, "query": { "q": {"$template": 1}, "z": "1" },
        "headers": { "X-Order": {"$template": 2} },
    });
    let change = json!({
        "auth": { "username": "ann", "password": "s3cret" },
        "api_key": { "header": "X-Api-Key", "value": "k" },
    });
    let sink: Request<Post> = open(connection(server.address(), change), config).await;
    let body = "{\"a\": 1.10,\n \"a\": 2}";
    let batch = testing::batch([TestWrite::new(body)
        .key([7; 16])
        .content_type("application/json")
        .template(0, "/orders/a b/ü")
        .template(1, "1 & 2=ö")
        .template(2, "x")]);
    assert_eq!(testing::write(&sink, &batch).await, [Outcome::delivered()]);
    let requests = server.requests();
    let request = &requests[0];
    assert_eq!(request.method, "POST");
    assert_eq!(
        request.path,
        "/base/orders/a%20b/%C3%BC?q=1+%26+2%3D%C3%B6&z=1"
    );
    assert_eq!(request.body, body.as_bytes());
    for (name, value) in [
        ("idempotency-key", KEY),
        ("content-type", "application/json"),
        ("x-order", "x"),
        ("x-api-key", "k"),
        ("authorization", "Basic YW5uOnMzY3JldA=="),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn the_key_is_the_functions_own_where_it_sets_one_and_absent_where_it_is_off() {
    let server = server().await;
    for (config, expected) in [
        (
            json!({ "path": "/", "headers": { "Idempotency-Key": "mine" } }),
            Some("mine"),
        ),
        (json!({ "path": "/", "idempotency_key": false }), None),
    ] {
        let sink: Request<Patch> = open(connection(server.address(), json!({})), config).await;
        testing::write(&sink, &one("{}")).await;
        let requests = server.requests();
        assert_eq!(requests.last().unwrap().header("idempotency-key"), expected);
        assert_eq!(requests.last().unwrap().method, "PATCH");
    }
}

#[tokio::test]
async fn a_path_that_leads_elsewhere_is_refused_and_nothing_is_sent() {
    let server = server().await;
    let config = json!({ "path": {"$template": 0} });
    let sink: Request<Put> = open(connection(server.address(), json!({})), config).await;
    for path in [
        "/a/../../admin",
        "/a?x=1",
        "a",
        "/a#b",
        "//evil",
        "/%2e%2e/x",
        "/a\r\nX: y",
    ] {
        let batch = testing::batch([TestWrite::new("x").template(0, path)]);
        let outcomes = testing::write(&sink, &batch).await;
        assert_eq!(
            axes(&outcomes[0]),
            (Applied::No, Scope::Write, Advice::Never, "path"),
            "{path}"
        );
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_redirect_is_told_and_never_followed() {
    let (server, other) = (server().await, server().await);
    let sink: Request<Post> = open(
        connection(server.address(), json!({})),
        json!({ "path": "/in" }),
    )
    .await;
    for status in [301, 302, 303, 307, 308] {
        let to = format!("http://{}/in", other.address());
        server.answer("/base/in", Answer::status(status).header("location", &to));
        let outcomes = testing::write(&sink, &one("{}")).await;
        assert_eq!(
            (outcomes[0].applied(), outcomes[0].advice()),
            (Applied::No, Advice::NeverAlone)
        );
        assert!(outcomes[0].detail().unwrap().message.contains(&to));
    }
    assert!(other.requests().is_empty());
    assert_eq!(server.requests().len(), 5);
}

#[tokio::test]
async fn a_pause_that_is_asked_for_is_passed_on() {
    let server = server().await;
    let sink: Request<Post> = open(
        connection(server.address(), json!({})),
        json!({ "path": "/in" }),
    )
    .await;
    for status in [429, 503] {
        server.answer(
            "/base/in",
            Answer::status(status).header("retry-after", "17"),
        );
        let outcomes = testing::write(&sink, &one("{}")).await;
        assert_eq!(
            outcomes[0].after(),
            Some(Duration::from_secs(17)),
            "{status}"
        );
    }
    let date = std::time::SystemTime::now() + Duration::from_secs(90);
    server.answer(
        "/base/in",
        Answer::status(429).header("retry-after", &httpdate::fmt_http_date(date)),
    );
    let after = testing::write(&sink, &one("{}")).await[0].after().unwrap();
    assert!((80..=90).contains(&after.as_secs()), "{after:?}");
}

fn oauth2(server: &HttpServer) -> Value {
    json!({ "oauth2": {
        "token_endpoint": format!("http://{}/token", server.address()),
        "client_id": "us:er", "client_secret": "p%w", "scopes": ["a", "b"], "audience": "shop",
    }})
}

fn token(text: &str, lasts: u64) -> Answer {
    Answer::status(200).body(
        json!({ "access_token": text, "expires_in": lasts, "token_type": "Bearer" }).to_string(),
    )
}

#[tokio::test]
async fn a_token_is_had_once_and_renewed_when_it_is_refused() {
    let server = server().await;
    server.answer("/token", token("first", 3600));
    let sink: Request<Post> = open(
        connection(server.address(), oauth2(&server)),
        json!({ "path": "/in" }),
    )
    .await;
    for _ in 0..3 {
        assert_eq!(
            testing::write(&sink, &one("{}")).await,
            [Outcome::delivered()]
        );
    }
    server.answer("/token", token("second", 3600));
    server.answer("/base/in", Answer::status(401));
    assert_eq!(
        testing::write(&sink, &one("{}")).await,
        [Outcome::delivered()]
    );
    let requests = server.requests();
    let asked: Vec<_> = requests.iter().filter(|r| r.path == "/token").collect();
    assert_eq!(asked.len(), 2);
    let form = String::from_utf8(asked[0].body.clone()).unwrap();
    assert_eq!(
        form,
        "grant_type=client_credentials&scope=a+b&audience=shop"
    );
    // `us%3Aer:p%25w`, each part encoded before they are joined.
    assert_eq!(
        asked[0].header("authorization"),
        Some("Basic dXMlM0FlcjpwJTI1dw==")
    );
    let shown: Vec<_> = requests
        .iter()
        .filter(|r| r.path != "/token")
        .map(|r| r.header("authorization").unwrap())
        .collect();
    assert_eq!(
        shown,
        [
            "Bearer first",
            "Bearer first",
            "Bearer first",
            "Bearer first",
            "Bearer second"
        ]
    );
    assert_eq!(
        server
            .effects()
            .iter()
            .filter(|r| r.path == "/base/in")
            .count(),
        4
    );

    // A new token that is refused, too: a person must act, and nothing was applied.
    server.answer("/token", token("third", 3600));
    for _ in 0..2 {
        server.answer("/base/in", Answer::status(401));
    }
    let outcomes = testing::write(&sink, &one("{}")).await;
    assert_eq!(
        axes(&outcomes[0]),
        (
            Applied::No,
            Scope::Connection,
            Advice::NeverAlone,
            "http_401"
        )
    );
}

#[tokio::test]
async fn a_token_that_is_not_to_be_had_sends_nothing() {
    let server = server().await;
    server.answer("/token", token("short", 0));
    let sink: Request<Post> = open(
        connection(server.address(), oauth2(&server)),
        json!({ "path": "/in" }),
    )
    .await;
    for (status, expected) in [
        (503, (Applied::No, Scope::Connection, Advice::Now, "token")),
        (
            400,
            (Applied::No, Scope::Connection, Advice::NeverAlone, "token"),
        ),
        (
            401,
            (Applied::No, Scope::Connection, Advice::NeverAlone, "token"),
        ),
    ] {
        server.answer(
            "/token",
            Answer::status(status).body("{\"error\": \"s3cret\"}"),
        );
        let outcomes = testing::write(&sink, &one("{}")).await;
        assert_eq!(axes(&outcomes[0]), expected, "{status}");
        assert!(!outcomes[0].detail().unwrap().message.contains("s3cret"));
    }
    server.answer("/token", Answer::status(200).body("no json"));
    let outcomes = testing::write(&sink, &one("{}")).await;
    assert_eq!(outcomes[0].advice(), Advice::NeverAlone);
    assert!(server.effects().iter().all(|r| r.path == "/token"));
}

#[tokio::test]
async fn a_request_without_an_answer_is_maybe_and_one_without_a_connection_is_not() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let sink: Request<Post> = open(
        connection(proxy.address(), json!({})),
        json!({ "path": "/in" }),
    )
    .await;
    assert_eq!(
        testing::write(&sink, &one("warm")).await,
        [Outcome::delivered()]
    );
    proxy.arm(Fault::once(Trigger::text("hit-a"), Action::CutAfter));
    let outcomes = testing::write(&sink, &one("hit-a, of which the end is cut off")).await;
    assert_eq!(
        axes(&outcomes[0]),
        (
            Applied::Maybe,
            Scope::Connection,
            Advice::Now,
            "connection_lost"
        )
    );
    proxy.arm(Fault::once(Trigger::text("hit-b"), Action::SwallowReplies));
    let outcomes = testing::write_within(&sink, &one("hit-b"), Duration::from_millis(700)).await;
    assert_eq!(
        axes(&outcomes[0]),
        (Applied::Maybe, Scope::Connection, Advice::Now, "timeout")
    );
    assert_eq!(
        server
            .effects()
            .iter()
            .filter(|r| r.body == b"hit-b")
            .count(),
        1
    );
    proxy.cut();
    proxy.refuse(true);
    let outcomes = testing::write(&sink, &one("hit-c")).await;
    assert_eq!(
        (outcomes[0].applied(), outcomes[0].scope()),
        (Applied::No, Scope::Connection),
        "{:?}",
        outcomes[0]
    );
    proxy.refuse(false);
    // Its port is open again a moment later.
    let mut outcomes = testing::write(&sink, &one("hit-d")).await;
    while outcomes[0].code() == "connect" {
        tokio::time::sleep(Duration::from_millis(20)).await;
        outcomes = testing::write(&sink, &one("hit-d")).await;
    }
    assert_eq!(outcomes, [Outcome::delivered()]);
    let bodies: Vec<_> = server.requests().into_iter().map(|r| r.body).collect();
    assert_eq!(bodies.iter().filter(|body| *body == b"hit-d").count(), 1);
    assert!(!bodies.contains(&b"hit-c".to_vec()));
}

#[tokio::test]
async fn the_probe_asks_without_writing() {
    let server = server().await;
    let config = || connection(server.address(), json!({ "probe_path": "/up" }));
    for (status, kind) in [
        (503, Some(FailureKind::Down)),
        (401, Some(FailureKind::Denied)),
        (404, None),
        (200, None),
    ] {
        server.answer("/base/up", Answer::status(status));
        let failed = testing::connect::<Rest>(config()).await.err();
        assert_eq!(failed.map(|failure| failure.kind), kind, "{status}");
    }
    assert!(
        server
            .requests()
            .iter()
            .all(|r| r.method == "GET" && r.path == "/base/up")
    );
    let nobody: SocketAddr = ([127, 0, 0, 1], consign_testkit::host::free_port()).into();
    let failed = testing::connect::<Rest>(connection(nobody, json!({})))
        .await
        .err()
        .unwrap();
    assert_eq!(
        (failed.kind, failed.code.as_str()),
        (FailureKind::Down, "connect")
    );
}

#[tokio::test]
async fn httpbin_says_that_it_was_sent_what_was_meant() {
    let Some(service) = consign_testkit::service("httpbin") else {
        return;
    };
    let url = service.url.split_once("/#").unwrap().0.to_owned();
    let connection =
        || -> ConnectionConfig { serde_json::from_value(json!({ "endpoint": url })).unwrap() };
    for (status, expected) in [
        (201, Advice::None),
        (302, Advice::NeverAlone),
        (401, Advice::NeverAlone),
        (403, Advice::NeverAlone),
        (409, Advice::Now),
        (422, Advice::Never),
        (429, Advice::After),
        (500, Advice::Now),
        (503, Advice::Now),
    ] {
        let sink: Request<Post> =
            open(connection(), json!({ "path": format!("/status/{status}") })).await;
        let outcomes = testing::write(&sink, &one("{}")).await;
        assert_eq!(
            outcomes[0].advice(),
            expected,
            "{status}: {:?}",
            outcomes[0]
        );
    }
    let path = json!({ "path": "/anything/a", "query": { "q": "1 2" } });
    // Its answer comes with a status that passes the body on to a person.
    let sink: Request<Put> = open(connection(), path).await;
    assert_eq!(
        testing::write(&sink, &one("{\"n\": 1.10}")).await,
        [Outcome::delivered()]
    );
    let sink: Request<Post> = open(connection(), json!({ "path": "/put" })).await;
    let outcomes = testing::write(&sink, &one("{}")).await;
    assert_eq!(
        axes(&outcomes[0]),
        (Applied::No, Scope::Target, Advice::NeverAlone, "http_405")
    );
    let late: Request<Post> = open(connection(), json!({ "path": "/delay/3" })).await;
    let outcomes = testing::write_within(&late, &one("{}"), Duration::from_millis(500)).await;
    assert_eq!(outcomes[0].applied(), Applied::Maybe);
}
