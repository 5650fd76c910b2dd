//! Tests of the listener: ports, TLS, slow clients, limits and the end.

use super::*;
use consign_plugin::testing;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

const SOON: Duration = Duration::from_secs(5);

fn config(more: &str) -> ConnectionConfig {
    serde_json::from_str(&format!(r#"{{"listen": "127.0.0.1:0"{more}}}"#)).unwrap()
}

async fn failure(json: &str) -> Failure {
    let config = serde_json::from_str(json).unwrap();
    testing::connect::<Http>(config).await.err().unwrap()
}

/// What comes until the other side closes.
async fn until_closed<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut all = Vec::new();
    // A peer that closes without a TLS goodbye is closed all the same.
    let _ = timeout(SOON, stream.read_to_end(&mut all))
        .await
        .expect("closed in time");
    String::from_utf8(all).unwrap()
}

#[tokio::test]
async fn a_port_in_use_says_who_holds_it() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    let failure = failure(&format!(r#"{{"listen": "{address}"}}"#)).await;
    assert_eq!(
        (failure.kind, failure.code.as_str()),
        (FailureKind::Down, "port_in_use")
    );
    assert!(
        failure.message.contains("is in use by this host itself"),
        "{failure}"
    );
}

#[tokio::test]
async fn addresses_that_cannot_be_bound_are_told_apart() {
    assert_eq!(
        failure(r#"{"listen": "203.0.113.7:0"}"#).await.code,
        "no_such_address"
    );
    for bad in [
        r#"{"listen": "nonsense"}"#,
        r#"{"listen": "127.0.0.1:99999"}"#,
    ] {
        assert_eq!(failure(bad).await.kind, FailureKind::Config);
    }
}

#[tokio::test]
async fn slow_heads_are_cut_off() {
    let mut config = config("");
    config.header_timeout = HumanDuration::from_secs(1);
    let http = testing::connect::<Http>(config).await.unwrap();
    for part in [
        "",
        "POST /in HT",
        "POST /in HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    ] {
        let started = Instant::now();
        let mut stream = TcpStream::connect(http.address()).await.unwrap();
        stream.write_all(part.as_bytes()).await.unwrap();
        let answer = until_closed(&mut stream).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 408"),
            "{answer}"
        );
        assert!(started.elapsed() >= Duration::from_millis(900), "{part:?}");
    }
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let http = testing::connect::<Http>(config("")).await.unwrap();
    let mut stream = TcpStream::connect(http.address()).await.unwrap();
    let head = format!("POST /in HTTP/1.1\r\nX: {}\r\n", "x".repeat(MAX_HEAD));
    let _ = stream.write_all(head.as_bytes()).await;
    assert!(until_closed(&mut stream).await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_their_turn() {
    let http = testing::connect::<Http>(config(r#", "max_connections": 1"#))
        .await
        .unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut first = TcpStream::connect(http.address()).await.unwrap();
    first.write_all(request).await.unwrap();
    let mut start = [0; 12];
    first.read_exact(&mut start).await.unwrap();
    let mut second = TcpStream::connect(http.address()).await.unwrap();
    second.write_all(request).await.unwrap();
    let waited = timeout(Duration::from_millis(200), second.read_exact(&mut start)).await;
    assert!(waited.is_err(), "the first one is still connected");
    drop(first);
    timeout(SOON, second.read_exact(&mut start))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn closing_ends_idle_connections_and_frees_the_port() {
    let http = testing::connect::<Http>(config("")).await.unwrap();
    let address = http.address();
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut start = [0; 12];
    idle.read_exact(&mut start).await.unwrap();
    assert!(http.probe().await.is_ok());
    let started = Instant::now();
    http.close().await;
    assert!(started.elapsed() < SOON);
    until_closed(&mut idle).await;
    assert!(http.probe().await.is_err());
    http.close().await;
    let again = ConnectionConfig {
        listen: address.to_string(),
        ..config("")
    };
    testing::connect::<Http>(again).await.unwrap();
}

#[tokio::test]
async fn tls_serves_and_can_ask_for_client_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let trusting = Tls {
        ca_file: Some(cert.clone()),
        ..Tls::default()
    };
    let client = TlsConnector::from(trusting.client().await.unwrap());
    let ask = async |http: &Http| {
        let stream = TcpStream::connect(http.address()).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = client.connect(name, stream).await.unwrap();
        let _ = stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await;
        until_closed(&mut stream).await
    };
    let mut tls = Tls {
        cert_file: Some(cert.clone()),
        key_file: Some(key.clone()),
        ..Tls::default()
    };
    let open = ConnectionConfig {
        tls: Some(tls.clone()),
        ..config("")
    };
    let http = testing::connect::<Http>(open).await.unwrap();
    assert!(ask(&http).await.starts_with("HTTP/1.1 503"));
    let mut plain = TcpStream::connect(http.address()).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(!until_closed_bytes(&mut plain).await.starts_with(b"HTTP"));

    tls.ca_file = Some(cert.clone());
    let mutual = ConnectionConfig {
        tls: Some(tls.clone()),
        ..config("")
    };
    let http = testing::connect::<Http>(mutual).await.unwrap();
    assert_eq!(
        ask(&http).await,
        "",
        "a client without a certificate gets nothing"
    );

    for (bad_cert, bad_key) in [
        (&key, &key),
        (&cert, &cert),
        (&dir.path().join("none"), &key),
    ] {
        tls.cert_file = Some(bad_cert.clone());
        tls.key_file = Some(bad_key.clone());
        let bad = ConnectionConfig {
            tls: Some(tls.clone()),
            ..config("")
        };
        let failure = testing::connect::<Http>(bad).await.err().unwrap();
        assert_eq!(
            (failure.kind, failure.code.as_str()),
            (FailureKind::Config, "tls")
        );
        assert!(
            failure.message.contains(".pem") || failure.message.contains("none"),
            "{failure}"
        );
    }
}

async fn until_closed_bytes(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut all))
        .await
        .expect("closed in time");
    all
}

#[test]
fn faults_name_the_field() {
    for (more, field) in [
        (r#", "max_connections": 0"#, "`max_connections`"),
        (r#", "header_timeout": "10ms""#, "`header_timeout`"),
        (r#", "body_timeout": "10ms""#, "`body_timeout`"),
        (r#", "tls": {}"#, "`tls`"),
        (
            r#", "tls": {"cert_file": "a", "key_file": "b", "server_name": "x"}"#,
            "`tls.server_name`",
        ),
    ] {
        let faults = config(more).faults();
        assert!(
            faults.len() == 1 && faults[0].starts_with(field),
            "{more}: {faults:?}"
        );
    }
}
