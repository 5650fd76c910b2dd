//! Tests of the source with real clients on real sockets, against the SDK's host.

use super::*;
use consign_plugin::testing::{self, Received, SourceDriver};
use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const SOON: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(150);

fn config(json: &str) -> ReceiveConfig {
    serde_json::from_str(json).unwrap()
}

async fn listener(more: &str) -> Arc<Http> {
    let json = format!(r#"{{"listen": "127.0.0.1:0"{more}}}"#);
    testing::connect::<Http>(serde_json::from_str(&json).unwrap())
        .await
        .unwrap()
}

/// A source with credit for everything.
fn start(http: &Arc<Http>, json: &str) -> SourceDriver {
    let source = SourceDriver::start::<Receive>(Arc::clone(http), config(json), None);
    source.credit(1000, 1 << 30);
    source
}

/// Waits until the path is taken.
async fn taken(http: &Http, path: &str) {
    let taken = async {
        while !matches!(
            http.shared().places.find(path, &Method::POST),
            Found::Endpoint(_) | Found::NotAllowed(_)
        ) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(SOON, taken).await.unwrap();
}

/// Sends bytes and reads until the other side closes or is silent.
async fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The other side may have closed already.
    let _ = stream.write_all(bytes).await;
    read(&mut stream).await
}

async fn read(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(Ok(count @ 1..)) = timeout(SHORT * 4, stream.read(&mut chunk)).await {
        all.extend_from_slice(&chunk[..count]);
    }
    String::from_utf8(all).unwrap()
}

fn post(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
        .into_bytes()
}

fn status(answer: &str) -> u16 {
    answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0)
}

/// Sends a request, settles its message, and gives both.
async fn exchange(
    http: &Http,
    source: &mut SourceDriver,
    request: Vec<u8>,
    result: SettleResult,
) -> (Received, String) {
    let client = tokio::spawn(raw_owned(http.address(), request));
    let message = source.receive(SOON).await.unwrap();
    source.settle(message.id, result);
    (message, client.await.unwrap())
}

async fn raw_owned(address: SocketAddr, bytes: Vec<u8>) -> String {
    raw(address, &bytes).await
}

#[tokio::test]
async fn a_request_becomes_a_message_and_is_answered_after_acceptance_alone() {
    let http = listener("").await;
    let mut source = start(&http, r#"{"path": "/in"}"#);
    taken(&http, "/in").await;
    let headers = "Content-Type: text/x\r\nX-Id: 1\r\nX-Id: 2\r\nAuthorization: Bearer t\r\n\
                   Cookie: c\r\nIdempotency-Key: k 1\r\nTE: trailers\r\n";
    let client = tokio::spawn(raw_owned(
        http.address(),
        post("/in?a=b", headers, "b\u{e9}dy"),
    ));
    let message = source.receive(SOON).await.unwrap();
    tokio::time::sleep(SHORT).await;
    assert!(
        !client.is_finished(),
        "nothing is said before the host has settled it"
    );
    source.accept([message.id]);
    let answer = client.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 202 Accepted\r\n"), "{answer}");
    assert!(answer.ends_with("{\"result\":\"accepted\"}\n"), "{answer}");
    assert_eq!(message.body, "b\u{e9}dy".as_bytes());
    assert_eq!(message.content_type.as_deref(), Some("text/x"));
    assert_eq!(message.client_key.as_deref(), Some("k 1"));
    let names: Vec<_> = message
        .headers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        names,
        ["host", "content-type", "x-id", "x-id", "idempotency-key"]
    );
    assert_eq!(message.attributes["method"], "POST");
    assert_eq!(
        (&message.attributes["path"], &message.attributes["query"]),
        (&"/in".into(), &"a=b".into())
    );
    assert_eq!(message.attributes["remote"], "127.0.0.1");
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn every_result_of_the_host_reaches_the_client() {
    let http = listener("").await;
    let mut source = start(&http, r#"{"path": "/in", "accepted_status": 200}"#);
    taken(&http, "/in").await;
    let why = || "why".to_owned();
    for (result, expected) in [
        (SettleResult::Accepted, 200),
        (SettleResult::Repeat, 200),
        (SettleResult::Refused { reason: why() }, 400),
        (SettleResult::Dropped { reason: why() }, 502),
        (
            SettleResult::Blocked {
                retry_after_ms: 7000,
                reason: why(),
            },
            503,
        ),
        (SettleResult::Conflict, 422),
        (SettleResult::InFlight, 409),
        (SettleResult::Released, 503),
    ] {
        let (_, answer) = exchange(&http, &mut source, post("/in", "", "x"), result.clone()).await;
        assert_eq!(status(&answer), expected, "{result:?} {answer}");
        if matches!(result, SettleResult::Blocked { .. }) {
            assert!(
                answer.contains("retry-after: 7\r\n") && answer.contains("why"),
                "{answer}"
            );
        }
    }
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn paths_and_methods_find_their_function_or_a_clear_refusal() {
    let http = listener("").await;
    let mut one = start(
        &http,
        r#"{"path": "/hooks/*", "routing_key_from_path": true}"#,
    );
    let mut two = start(
        &http,
        r#"{"path": "/hooks/exact", "methods": ["POST", "PUT"]}"#,
    );
    taken(&http, "/hooks/a").await;
    taken(&http, "/hooks/exact").await;
    let (message, _) = exchange(
        &http,
        &mut one,
        post("/hooks/a/b", "", "1"),
        SettleResult::Accepted,
    )
    .await;
    assert_eq!(message.routing_key.as_deref(), Some("a.b"));
    let request = post("/hooks/exact", "", "2");
    let (message, _) = exchange(&http, &mut two, request, SettleResult::Accepted).await;
    assert_eq!(message.body, b"2");
    let ask = |line: &str| {
        let request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        raw_owned(http.address(), request.into_bytes())
    };
    for line in [
        "GET /hooks/exact",
        "HEAD /hooks/exact",
        "OPTIONS /hooks/exact",
        "FOO /hooks/exact",
    ] {
        let answer = ask(line).await;
        assert!(
            status(&answer) == 405 && answer.contains("allow: POST, PUT\r\n"),
            "{line}: {answer}"
        );
        assert_eq!(
            line.starts_with("HEAD"),
            answer.ends_with("\r\n\r\n"),
            "{answer}"
        );
    }
    // Nobody is sent away for good while the host starts.
    assert_eq!(status(&ask("POST /other").await), 503);
    assert!(matches!(
        http.shared().places.find("/other", &Method::POST),
        Found::Unknown
    ));
    assert!(matches!(
        http.shared().places.find("/hooks", &Method::POST),
        Found::Unknown
    ));
    one.stop(SOON).await.unwrap();
    let answer = ask("POST /hooks/a").await;
    assert!(
        status(&answer) == 503 && answer.contains("\"stopped\""),
        "{answer}"
    );
    two.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_path_belongs_to_one_function_and_is_free_again_after_its_stop() {
    let http = listener("").await;
    let first = start(&http, r#"{"path": "/in", "methods": ["POST", "PUT"]}"#);
    taken(&http, "/in").await;
    let second = start(&http, r#"{"path": "/in"}"#);
    let failure = second.ended(SOON).await.unwrap_err();
    assert_eq!(
        (failure.kind, failure.code.as_str()),
        (FailureKind::Config, "path_taken")
    );
    let other = start(&http, r#"{"path": "/in", "methods": ["PATCH"]}"#);
    first.stop(SOON).await.unwrap();
    let mut third = start(&http, r#"{"path": "/in"}"#);
    taken(&http, "/in").await;
    let (_, answer) = exchange(
        &http,
        &mut third,
        post("/in", "", ""),
        SettleResult::Accepted,
    )
    .await;
    assert_eq!(status(&answer), 202);
    third.stop(SOON).await.unwrap();
    other.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn only_known_senders_get_in_and_their_name_goes_with_the_message() {
    let http = listener("").await;
    let json = r#"{"path": "/in", "include_headers": ["Authorization"], "auth": {
        "bearer": [{"principal": "shop", "token": "s3cret"}, {"principal": "desk", "token": "other"}],
        "basic": [{"username": "ann", "password": "p:w"}]}}"#;
    let mut source = start(&http, json);
    taken(&http, "/in").await;
    // base64 of ann:p:w, of ann:no, of ann
    for bad in [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer s3cret2\r\n",
        "Authorization: s3cret\r\n",
        "Authorization: Basic YW5uOm5v\r\n",
        "Authorization: Basic YW5u\r\n",
        "Authorization: Basic %%%\r\n",
        "Authorization: Digest YW5uOnA6dw==\r\n",
        "Proxy-Authorization: Bearer s3cret\r\n",
    ] {
        let answer = raw(http.address(), &post("/in", bad, "x")).await;
        assert_eq!(status(&answer), 401, "{bad:?}");
        assert!(
            answer.contains("www-authenticate: Bearer")
                && answer.contains("www-authenticate: Basic")
        );
    }
    let twice = "Authorization: Bearer s3cret\r\nAuthorization: Bearer wrong\r\n";
    assert_eq!(
        status(&raw(http.address(), &post("/in", twice, "x")).await),
        400
    );
    for (good, who) in [
        ("Authorization: Bearer s3cret\r\n", "shop"),
        ("authorization: bearer other\r\n", "desk"),
        ("Authorization: Basic YW5uOnA6dw==\r\n", "ann"),
    ] {
        let request = post("/in", good, "x");
        let (message, _) = exchange(&http, &mut source, request, SettleResult::Accepted).await;
        assert_eq!(message.principal.as_deref(), Some(who));
        assert_eq!(message.attributes["principal"], who);
        assert!(
            message
                .headers
                .iter()
                .any(|(name, _)| name == "authorization"),
            "listed"
        );
    }
    assert!(
        source.receive(SHORT).await.is_none(),
        "no other request became a message"
    );
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn bodies_are_bounded_by_length_and_by_what_comes() {
    let http = listener("").await;
    let mut source = start(&http, r#"{"path": "/in", "max_body": "10B"}"#);
    taken(&http, "/in").await;
    let exact = exchange(
        &http,
        &mut source,
        post("/in", "", "0123456789"),
        SettleResult::Accepted,
    );
    assert_eq!(exact.await.0.body.len(), 10);
    let answer = raw(http.address(), &post("/in", "", "0123456789a")).await;
    assert!(
        status(&answer) == 413 && answer.contains("10 bytes"),
        "{answer}"
    );
    let chunked = |chunks: &str| {
        format!("POST /in HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}").into_bytes()
    };
    let whole = chunked("4\r\nabcd\r\n3;ext=1\r\nefg\r\n0\r\nTrailer: x\r\n\r\n");
    let (message, _) = exchange(&http, &mut source, whole, SettleResult::Accepted).await;
    assert_eq!(message.body, b"abcdefg");
    assert_eq!(
        status(
            &raw(
                http.address(),
                &chunked("6\r\nabcdef\r\n6\r\nabcdef\r\n0\r\n\r\n")
            )
            .await
        ),
        413
    );
    assert_eq!(
        status(&raw(http.address(), &chunked("zz\r\nabc\r\n")).await),
        400
    );
    let (message, _) = exchange(
        &http,
        &mut source,
        post("/in", "", ""),
        SettleResult::Accepted,
    )
    .await;
    assert_eq!(message.body, b"", "an empty body is a message");
    assert!(source.receive(SHORT).await.is_none());
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_body_cut_short_is_never_a_message() {
    let http = listener("").await;
    let mut source = start(&http, r#"{"path": "/in"}"#);
    taken(&http, "/in").await;
    let mut stream = TcpStream::connect(http.address()).await.unwrap();
    let head = "POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n01234";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let answer = read(&mut stream).await;
    assert!(answer.is_empty() || status(&answer) == 400, "{answer}");
    assert!(source.receive(SHORT).await.is_none());
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_body_that_trickles_is_cut_off() {
    let http = listener(r#", "body_timeout": "1s""#).await;
    let mut source = start(&http, r#"{"path": "/in"}"#);
    taken(&http, "/in").await;
    let mut stream = TcpStream::connect(http.address()).await.unwrap();
    let head = "POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let _ = stream.write_all(b"x").await;
    }
    assert_eq!(status(&read(&mut stream).await), 408);
    assert!(source.receive(SHORT).await.is_none());
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_does_not_take_its_message_back() {
    let http = listener("").await;
    let mut source = start(&http, r#"{"path": "/in"}"#);
    taken(&http, "/in").await;
    let mut stream = TcpStream::connect(http.address()).await.unwrap();
    stream.write_all(&post("/in", "", "x")).await.unwrap();
    let message = source.receive(SOON).await.unwrap();
    drop(stream);
    tokio::time::sleep(SHORT).await;
    source.accept([message.id]);
    let (_, answer) = exchange(
        &http,
        &mut source,
        post("/in", "", "y"),
        SettleResult::Accepted,
    )
    .await;
    assert_eq!(status(&answer), 202);
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn one_connection_carries_many_requests_in_turn() {
    let http = listener("").await;
    let mut source = start(&http, r#"{"path": "/in"}"#);
    taken(&http, "/in").await;
    let mut stream = TcpStream::connect(http.address()).await.unwrap();
    let request = |n: u32| format!("POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{n}");
    // Three at once: the second is read when the first is answered.
    stream
        .write_all((0..3).map(request).collect::<String>().as_bytes())
        .await
        .unwrap();
    for n in 0..3 {
        let message = source.receive(SOON).await.unwrap();
        assert_eq!(message.body, n.to_string().as_bytes());
        assert!(source.receive(SHORT).await.is_none());
        source.accept([message.id]);
    }
    assert_eq!(read(&mut stream).await.matches("HTTP/1.1 202").count(), 3);
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_client_that_sends_100_mb_uninvited_reads_its_413() {
    let http = listener("").await;
    let source = start(&http, r#"{"path": "/in"}"#);
    taken(&http, "/in").await;
    let stream = TcpStream::connect(http.address()).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let sender = tokio::spawn(async move {
        let head = "POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n";
        writing.write_all(head.as_bytes()).await.unwrap();
        let megabyte = vec![0; 1 << 20];
        let mut sent = 0;
        while sent < 100 && writing.write_all(&megabyte).await.is_ok() {
            sent += 1;
        }
        sent
    });
    let mut answer = vec![0; 4096];
    let count = timeout(SOON, reading.read(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(status(&String::from_utf8_lossy(&answer[..count])), 413);
    timeout(SOON, sender).await.unwrap().unwrap();
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_client_that_asks_first_is_not_invited_in_vain() {
    let http = listener("").await;
    let mut source = start(&http, r#"{"path": "/in", "max_body": "10B"}"#);
    taken(&http, "/in").await;
    let head = |length: u32| {
        format!(
            "POST /in HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let answer = raw(http.address(), head(11).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let mut stream = TcpStream::connect(http.address()).await.unwrap();
    stream.write_all(head(2).as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    timeout(SOON, stream.read_exact(&mut interim))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"ok").await.unwrap();
    let message = source.receive(SOON).await.unwrap();
    assert_eq!(message.body, b"ok");
    source.accept([message.id]);
    assert_eq!(status(&read(&mut stream).await), 202);
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn two_lengths_never_make_two_requests_of_one() {
    let http = listener("").await;
    let mut source = start(&http, r#"{"path": "/in"}"#);
    taken(&http, "/in").await;
    let hidden = "POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nh";
    // The chunks end at once; by the length, the second request would be a body.
    let both = format!(
        "POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
        5 + hidden.len()
    );
    let client = tokio::spawn(raw_owned(http.address(), both.into_bytes()));
    while let Some(message) = source.receive(SHORT * 2).await {
        assert_eq!(message.body, b"", "the hidden request was taken for one");
        source.accept([message.id]);
    }
    let answer = client.await.unwrap();
    assert!(answer.matches("HTTP/1.1").count() <= 1, "{answer}");
    for bad in [
        "POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na",
        "POST /in HTTP/1.1\r\nHost: x\r\nContent-Length : 1\r\n\r\na",
        "POST /in HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "POST /in HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /in HTTP/1.1\r\nHost: x\r\nX: a\r\n folded\r\nContent-Length: 0\r\n\r\n",
        "POST  /in HTTP/1.1\r\nHost: x\r\n\r\n",
        "not http at all\r\n\r\n",
        "\x16\x03\x01 a TLS hello",
    ] {
        let answer = raw(http.address(), bad.as_bytes()).await;
        assert!(
            answer.is_empty() || status(&answer) == 400,
            "{bad:?}: {answer}"
        );
    }
    assert!(source.receive(SHORT).await.is_none());
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn idempotency_keys_are_checked_and_can_be_required_under_another_name() {
    let http = listener("").await;
    let json = r#"{"path": "/in", "client_key_header": "webhook-id", "require_client_key": true}"#;
    let mut source = start(&http, json);
    taken(&http, "/in").await;
    let long = format!("webhook-id: {}\r\n", "k".repeat(256));
    let cases = [
        "",
        "Idempotency-Key: a\r\n",
        "webhook-id:\r\n",
        "webhook-id: a\r\nWebhook-Id: b\r\n",
        &long,
    ];
    for bad in cases {
        assert_eq!(
            status(&raw(http.address(), &post("/in", bad, "x")).await),
            400,
            "{bad:?}"
        );
    }
    let request = post("/in", "Webhook-Id: msg_1\r\n", "x");
    let (message, _) = exchange(&http, &mut source, request, SettleResult::Repeat).await;
    assert_eq!(message.client_key.as_deref(), Some("msg_1"));
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn without_credit_paused_or_without_an_answer_in_time_nothing_is_promised() {
    let http = listener("").await;
    let json = r#"{"path": "/in", "accept_timeout": "100ms"}"#;
    let mut source = SourceDriver::start::<Receive>(Arc::clone(&http), config(json), None);
    taken(&http, "/in").await;
    let answer = raw(http.address(), &post("/in", "", "x")).await;
    assert!(
        status(&answer) == 503 && answer.contains("\"blocked\""),
        "{answer}"
    );
    source.credit(10, 1000);
    let answer = raw(http.address(), &post("/in", "", "x")).await;
    assert!(
        status(&answer) == 504 && answer.contains("still may"),
        "{answer}"
    );
    let message = source.receive(SOON).await.unwrap();
    source.accept([message.id]);
    source.pause();
    let answer = raw(http.address(), &post("/in", "", "x")).await;
    assert!(
        status(&answer) == 503 && answer.contains("\"paused\""),
        "{answer}"
    );
    source.resume();
    let (_, answer) = exchange(
        &http,
        &mut source,
        post("/in", "", "x"),
        SettleResult::Accepted,
    )
    .await;
    assert_eq!(status(&answer), 202);
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn bodies_in_memory_are_bounded_over_all_requests() {
    let http = listener(r#", "max_buffered": "64KiB""#).await;
    let mut source = start(&http, r#"{"path": "/in", "max_body": "64KiB"}"#);
    taken(&http, "/in").await;
    let large = "x".repeat(40 << 10);
    let first = tokio::spawn(raw_owned(http.address(), post("/in", "", &large)));
    let message = source.receive(SOON).await.unwrap();
    let answer = raw(http.address(), &post("/in", "", &large)).await;
    assert!(
        status(&answer) == 503 && answer.contains("\"busy\""),
        "{answer}"
    );
    source.accept([message.id]);
    assert_eq!(status(&first.await.unwrap()), 202);
    let (_, answer) = exchange(
        &http,
        &mut source,
        post("/in", "", &large),
        SettleResult::Accepted,
    )
    .await;
    assert_eq!(status(&answer), 202, "room is given back");
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_stop_answers_every_request_and_says_success_to_none_that_is_not_safe() {
    let http = listener("").await;
    let mut source = start(&http, r#"{"path": "/in"}"#);
    taken(&http, "/in").await;
    let clients: Vec<_> = (0..20)
        .map(|_| tokio::spawn(raw_owned(http.address(), post("/in", "", "x"))))
        .collect();
    let messages = source.receive_many(20, SOON).await;
    source.accept(messages[..5].iter().map(|m| m.id));
    source.stop(SOON).await.unwrap();
    let mut counts = [0, 0];
    for client in clients {
        let answer = client.await.unwrap();
        match status(&answer) {
            202 => counts[0] += 1,
            503 if answer.contains("retry-after: 1\r\n") => counts[1] += 1,
            _ => panic!("{answer}"),
        }
    }
    assert_eq!(counts, [5, 15]);
}

#[test]
fn faults_name_the_field() {
    let connection: ConnectionConfig = serde_json::from_str(r#"{"listen": "x:1"}"#).unwrap();
    let faults = |json: &str| Receive::resolve(&connection, &config(json)).faults;
    assert!(faults(r#"{"path": "/a/*"}"#).is_empty());
    for (json, field) in [
        (r#"{"path": "a"}"#, "`path`"),
        (r#"{"path": "/a*b"}"#, "`path`"),
        (r#"{"path": "/a?b"}"#, "`path`"),
        (r#"{"path": "/a", "methods": []}"#, "`methods`"),
        (r#"{"path": "/a", "methods": ["post"]}"#, "`methods`"),
        (r#"{"path": "/a", "max_body": "0B"}"#, "`max_body`"),
        (r#"{"path": "/a", "max_body": "1GiB"}"#, "`max_body`"),
        (
            r#"{"path": "/a", "accepted_status": 204}"#,
            "`accepted_status`",
        ),
        (
            r#"{"path": "/a", "accepted_status": 302}"#,
            "`accepted_status`",
        ),
        (
            r#"{"path": "/a", "client_key_header": "a b"}"#,
            "`client_key_header`",
        ),
        (
            r#"{"path": "/a", "routing_key_from_path": true}"#,
            "`routing_key_from_path`",
        ),
        (
            r#"{"path": "/a", "accept_timeout": "1ms"}"#,
            "`accept_timeout`",
        ),
        (r#"{"path": "/a", "auth": {}}"#, "`auth`"),
        (
            r#"{"path": "/a", "auth": {"bearer": [{"principal": "x", "token": ""}]}}"#,
            "`auth.bearer`",
        ),
        (
            r#"{"path": "/a", "auth": {"basic": [{"username": "a:b", "password": "x"}]}}"#,
            "`auth.basic`",
        ),
    ] {
        let faults = faults(json);
        assert!(
            faults.len() == 1 && faults[0].starts_with(field),
            "{json}: {faults:?}"
        );
    }
    assert_eq!(
        consign_manifest::coherence::source(&Receive::declaration()),
        [""; 0]
    );
}
