//! The routes over real connections: what each answers, who may ask, and what a bad question gets.
#![allow(clippy::unwrap_used)]

use consign_console::*;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A host that says what it is told to say.
#[derive(Default)]
struct Host {
    status: Status,
    hangs: bool,
}

impl HostView for Host {
    async fn status(&self) -> Status {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        self.status.clone()
    }

    async fn events(&self, query: EventQuery) -> Result<Vec<Value>, String> {
        if query.code.as_deref() == Some("gate_close") {
            return Err("`gate_close` is no event code; the nearest is `gate_closed`".to_owned());
        }
        Ok(vec![json!({
            "id": 1, "level": "error", "times": 3, "code": "denied", "at_unix_ms": 1_796_050_434_000_i64,
            "message": "login <b>refused</b>", "asked": format!("{query:?}"),
        })])
    }

    async fn command(&self, command: Value, who: String) -> Result<Value, CommandError> {
        match command.get("command").and_then(Value::as_str) {
            Some("bad") => Err(CommandError::Input("there is no such thing".to_owned())),
            Some("late") => Err(CommandError::Failed("somebody else did".to_owned())),
            _ => Ok(json!({ "asked": command, "who": who })),
        }
    }
}

fn busy() -> Status {
    let counts = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect()
    };
    let send = json!({
        "send": "billing", "operation": "sqlite.write", "after": null,
        "resolved": {
            "declared": "effectively_once", "level": "effectively_once", "repeat": "write_key", "window": "none",
            "reason": "as declared", "narrowed": [], "caveats": [], "key_names_target": false, "faults": [],
            "overclaims": [], "delivery": "buffered",
        },
        "inspected": {
            "level": "at_least_once", "repeat": "second_copy", "window": "none", "verdict": "contradicted",
            "detail": "no unique index covers only `write_key`", "warnings": [], "lowered": true,
        },
        "end_to_end": {
            "level": "at_least_once", "from_acceptance": true, "keys": "by_client_key", "windows": [],
            "notes": [], "fault": null,
        },
        "require": null, "shortfall": null,
    });
    Status {
        version: "0.1.0".into(),
        pid: 42,
        started_unix_ms: 1_796_050_434_000,
        readiness: Readiness {
            ready: true,
            reasons: vec![],
        },
        buffer: BufferStatus {
            health: "running".into(),
            log_bytes: 1 << 20,
            ..BufferStatus::default()
        },
        adapters: vec![AdapterStatus {
            name: "pay\"ments\\\n<script>alert(1)</script>".into(),
            source: "http.receive".into(),
            state: "running".into(),
            received: 10,
            in_process: 1,
            outcomes: counts(&[("accepted", 8), ("no_route", 1)]),
            last_progress_unix_ms: 1_796_050_434_500,
            routes: vec![RouteStatus {
                counts: BTreeMap::new(),
                name: "completed".into(),
                promise: "at least once from acceptance".into(),
                sends: vec![send],
                lines: vec!["billing: effectively once".into()],
            }],
            ..AdapterStatus::default()
        }],
        lanes: vec![LaneStatus {
            id: "payments/completed/billing".into(),
            connection: "ledger".into(),
            operation: "sqlite.write".into(),
            buffered: true,
            state: "gate_closed".into(),
            pending: 3,
            accepted: 8,
            outcomes: counts(&[("delivered", 4), ("delivered_as_repeat", 1)]),
            ..LaneStatus::default()
        }],
        connections: vec![ConnectionStatus {
            name: "ledger".into(),
            connector: "sqlite".into(),
            gate: "closed".into(),
            since_ms: 61_000,
            next_try_ms: Some(900),
            ..ConnectionStatus::default()
        }],
        ..Status::default()
    }
}

/// Serves on a free port of loopback; `loopback` is what the routes are told.
async fn start(host: Host, token: Option<&str>, loopback: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = router(Arc::new(host), token.map(str::to_owned), loopback);
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

struct Answer {
    code: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

async fn ask(port: u16, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let host = if headers.to_lowercase().contains("host:") {
        String::new()
    } else {
        format!("Host: 127.0.0.1:{port}\r\n")
    };
    let request = format!("{method} {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes))
        .await
        .unwrap()
        .unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    Answer {
        code: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_lowercase(),
        body: body.to_owned(),
    }
}

async fn get(port: u16, path: &str) -> Answer {
    ask(port, "GET", path, "").await
}

fn of(status: Status) -> Host {
    Host {
        status,
        hangs: false,
    }
}

#[tokio::test]
async fn liveness_is_answered_and_readiness_shows_progress() {
    let port = start(of(busy()), None, true).await;
    let live = get(port, "/health/live").await;
    assert_eq!((live.code, live.body.as_str()), (200, "live\n"));
    let ready = get(port, "/health/ready").await;
    assert_eq!(ready.code, 200);
    assert_eq!(ready.json(), json!({"ready": true, "reasons": []}));

    let mut status = busy();
    status.readiness = Readiness {
        ready: false,
        reasons: vec!["lane a/b/c is full: its source is held back".into()],
    };
    let port = start(of(status), None, true).await;
    let ready = get(port, "/health/ready").await;
    assert_eq!(ready.code, 503);
    assert_eq!(
        ready.json()["reasons"],
        json!(["lane a/b/c is full: its source is held back"])
    );
    assert_eq!(get(port, "/health/live").await.code, 200);
}

#[tokio::test]
async fn a_host_that_hangs_is_live_and_not_ready() {
    let host = Host {
        status: Status::default(),
        hangs: true,
    };
    let port = start(host, None, true).await;
    let (live, ready, status) = tokio::join!(
        get(port, "/health/live"),
        get(port, "/health/ready"),
        get(port, "/api/v1/status")
    );
    assert_eq!((live.code, ready.code, status.code), (200, 503, 503));
    assert!(ready.body.contains("makes no progress"), "{}", ready.body);
}

#[tokio::test]
async fn the_status_is_the_document_and_reads_back() {
    let port = start(of(busy()), None, true).await;
    let answer = get(port, "/api/v1/status").await;
    assert!(answer.head.contains("content-type: application/json"));
    let back: Status = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(back, busy());
}

#[tokio::test]
async fn events_are_asked_for_by_query() {
    let port = start(of(busy()), None, true).await;
    let answer = get(
        port,
        "/api/v1/events?code=denied&after_id=7&newest_first=true&limit=99999999",
    )
    .await;
    assert_eq!(answer.code, 200);
    let asked = answer.json()[0]["asked"].as_str().unwrap().to_owned();
    assert!(
        asked.contains("Some(\"denied\")")
            && asked.contains("after_id: Some(7)")
            && asked.contains("newest_first: true")
            && asked.contains("limit: 10000"),
        "{asked}"
    );
}

#[tokio::test]
async fn a_bad_question_gets_the_sentence() {
    let port = start(of(busy()), None, true).await;
    for (path, part) in [
        ("/api/v1/events?colour=red", "unknown field `colour`"),
        ("/api/v1/events?after_id=x", "after_id"),
        ("/api/v1/events?limit=-1", "limit"),
        (
            "/api/v1/events?code=gate_close",
            "the nearest is `gate_closed`",
        ),
    ] {
        let answer = get(port, path).await;
        assert_eq!(answer.code, 400, "{path}");
        let sentence = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(sentence.contains(part), "{path}: {sentence}");
    }
    assert_eq!(get(port, "/nowhere").await.code, 404);
    assert_eq!(get(port, "/../etc/passwd").await.code, 404);
    for method in ["POST", "DELETE", "PUT"] {
        let answer = ask(port, method, "/api/v1/status", "Content-Length: 0\r\n").await;
        assert_eq!(answer.code, 405);
        assert!(answer.body.contains("only GET"));
    }
}

#[tokio::test]
async fn promises_are_listed_by_route() {
    let port = start(of(busy()), None, true).await;
    let answer = get(port, "/api/v1/promises").await.json();
    assert_eq!(answer.as_array().unwrap().len(), 1);
    assert_eq!(answer[0]["route"], "completed");
    assert_eq!(
        answer[0]["sends"][0]["inspected"]["verdict"],
        "contradicted"
    );
    let port = start(Host::default(), None, true).await;
    assert_eq!(get(port, "/api/v1/promises").await.json(), json!([]));
}

#[tokio::test]
async fn metrics_are_prometheus_text() {
    let port = start(of(busy()), None, true).await;
    let answer = get(port, "/metrics").await;
    assert!(
        answer
            .head
            .contains("content-type: text/plain; version=0.0.4")
    );
    insta::assert_snapshot!(answer.body);
}

#[test]
fn metrics_keep_to_the_format() {
    let text = metrics(&busy());
    let mut family = "";
    let mut families = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            family = rest.split(' ').next().unwrap();
            assert!(family.starts_with("consign_"));
            assert!(families.insert(family), "{family} twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let kind = rest.strip_prefix(family).unwrap().trim();
            assert_eq!(kind == "counter", family.ends_with("_total"), "{line}");
        } else {
            let rest = line.strip_prefix(family).unwrap();
            assert!(rest.starts_with(['{', ' ']), "{line}");
            let value = line.rsplit(' ').next().unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(text.ends_with('\n'));
    assert!(text.contains("adapter=\"pay\\\"ments\\\\\\n<script>alert(1)</script>\""));
}

#[tokio::test]
async fn the_page_shows_everything_and_runs_nothing() {
    let port = start(of(busy()), None, true).await;
    let page = get(port, "/").await;
    assert_eq!(page.code, 200);
    for part in [
        "effectively once, by the write key, no window",
        "no unique index covers only `write_key`",
        "at least once from acceptance",
        "payments/completed/billing",
        "gate closed",
        "in 900 ms",
        "delivered 4, delivered as repeat 1",
        "2026-11-30",
        "(3 times)",
    ] {
        assert!(page.body.contains(part), "{part} is missing");
    }
    assert!(
        !page.body.contains("<script"),
        "no script, whatever names say"
    );
    assert!(!page.body.contains("<b>refused"), "messages are text");
    assert!(
        page.head
            .contains("content-security-policy: default-src 'none'")
    );
    assert!(page.head.contains("cache-control: no-store"));
}

#[tokio::test]
async fn the_page_of_an_empty_host() {
    let port = start(Host::default(), None, true).await;
    let page = get(port, "/").await;
    assert_eq!(page.code, 200);
    for part in ["not ready", "No adapters.", "No sends.", "No routes."] {
        assert!(page.body.contains(part), "{part}");
    }
}

#[tokio::test]
async fn on_loopback_a_token_guards_all_but_health_and_metrics() {
    let port = start(of(busy()), Some("s3cret"), true).await;
    for path in [
        "/",
        "/api/v1/status",
        "/api/v1/events",
        "/api/v1/promises",
        "/nowhere",
    ] {
        let answer = get(port, path).await;
        assert_eq!(answer.code, 401, "{path}");
        assert!(answer.head.contains("www-authenticate: bearer"));
        let answer = ask(port, "GET", path, "Authorization: Bearer wrong1\r\n").await;
        assert_eq!(answer.code, 401, "{path}");
    }
    for path in ["/health/live", "/health/ready", "/metrics"] {
        assert_eq!(get(port, path).await.code, 200, "{path}");
    }
    // The second is "ann:s3cret", as a browser sends it.
    for login in ["Bearer s3cret", "Basic YW5uOnMzY3JldA=="] {
        let answer = ask(port, "GET", "/", &format!("Authorization: {login}\r\n")).await;
        assert_eq!(answer.code, 200, "{login}");
    }
}

#[tokio::test]
async fn beyond_loopback_only_bare_health_is_open() {
    let mut status = busy();
    status.readiness = Readiness {
        ready: false,
        reasons: vec!["lane payments is full".into()],
    };
    let port = start(of(status), Some("s3cret"), false).await;
    assert_eq!(get(port, "/health/live").await.code, 200);
    let ready = get(port, "/health/ready").await;
    assert_eq!(ready.code, 503);
    assert_eq!(
        ready.json(),
        json!({"ready": false}),
        "no names for strangers"
    );
    let token = "Authorization: Bearer s3cret\r\n";
    let ready = ask(port, "GET", "/health/ready", token).await;
    assert!(ready.body.contains("lane payments is full"));
    assert_eq!(get(port, "/metrics").await.code, 401);
    assert_eq!(ask(port, "GET", "/metrics", token).await.code, 200);
    // With the token any name will do: it may be a real one.
    let named = format!("Host: consign.example\r\n{token}");
    assert_eq!(ask(port, "GET", "/api/v1/status", &named).await.code, 200);
}

#[tokio::test]
async fn a_page_in_a_browser_cannot_point_a_name_of_its_own_here() {
    let port = start(of(busy()), None, true).await;
    for path in ["/", "/api/v1/status", "/metrics"] {
        let answer = ask(port, "GET", path, "Host: evil.example\r\n").await;
        assert_eq!(answer.code, 403, "{path}");
    }
    let answer = ask(port, "GET", "/api/v1/status", "Host: localhost:1\r\n").await;
    assert_eq!(answer.code, 200);
}

#[tokio::test]
async fn it_is_not_served_beyond_loopback_without_a_token() {
    for token in [None, Some(String::new())] {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let error = serve(listener, Arc::new(Host::default()), token)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("set CONSIGN_TOKEN"), "{error}");
    }
}

#[tokio::test]
async fn it_is_served_as_the_host_serves_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = tokio::spawn(serve(listener, Arc::new(of(busy())), None));
    assert_eq!(get(port, "/api/v1/status").await.code, 200);
    served.abort();
}

#[tokio::test]
async fn commands_always_need_a_token_and_carry_who_asks() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let login = Login {
        token: None,
        acting: Some("made-at-start".to_owned()),
        token_file: Some("/data/token".into()),
    };
    let served = tokio::spawn(serve(listener, Arc::new(Host::default()), login));
    let ask = async |head: &str, body: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "POST /api/v1/commands HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{head}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let token = "authorization: Bearer made-at-start\r\n";
    assert!(ask("", "{}").await.starts_with("HTTP/1.1 401"));
    let wrong = "authorization: Bearer made-at-star\r\n";
    assert!(ask(wrong, "{}").await.starts_with("HTTP/1.1 401"));
    let named = format!("{token}x-consign-operator: ann\r\n");
    assert!(ask(&named, "{}").await.contains(r#""who":"ann""#));
    assert!(ask(token, "{}").await.contains(r#""who":"api""#));
    let answer = ask(token, r#"{"command":"bad"}"#).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let answer = ask(token, r#"{"command":"late"}"#).await;
    assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
    assert!(ask(token, "{").await.starts_with("HTTP/1.1 400"));
    served.abort();
}
