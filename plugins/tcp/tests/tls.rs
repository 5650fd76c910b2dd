//! TLS: who is trusted, who is refused, and an independent receiver.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use consign_plugin::prelude::*;
use consign_plugin::testing::{self, TestWrite};
use consign_plugin_tcp::config::{ConnectionConfig, SendConfig};
use consign_plugin_tcp::connection::Tcp;
use consign_plugin_tcp::sink::SendFrames;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// Writes an authority, a certificate for 127.0.0.1 and one for a client, with their keys.
fn certificates(folder: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    std::fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    let issuer = Issuer::new(params, key);
    for (file, name) in [("server", "127.0.0.1"), ("client", "client")] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(folder.join(format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

/// A TLS server that reads each stream to its end; what came is sent to the channel.
async fn server(tls: Tls) -> (String, mpsc::UnboundedReceiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let acceptor = TlsAcceptor::from(tls.server().await.unwrap());
    let (sender, streams) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(socket).await else {
                    return;
                };
                let mut bytes = Vec::new();
                let _ = stream.read_to_end(&mut bytes).await;
                let _ = sender.send(bytes);
            });
        }
    });
    (address, streams)
}

fn config(address: &str, tls: Value) -> ConnectionConfig {
    let config = json!({ "address": address, "tls": tls, "timeouts": { "connect": "2s" } });
    let config: ConnectionConfig = serde_json::from_value(config).unwrap();
    assert_eq!(config.faults(), Vec::<String>::new());
    config
}

async fn refused(address: &str, tls: Value) -> Failure {
    testing::connect::<Tcp>(config(address, tls))
        .await
        .err()
        .expect("it let us in")
}

async fn send(tcp: &Arc<Tcp>, bodies: &[Vec<u8>]) -> Vec<Outcome> {
    let sink = SendFrames::open(Arc::clone(tcp), SendConfig {}, &testing::context())
        .await
        .unwrap();
    let writes = bodies.iter().map(|body| TestWrite::new(body.clone()));
    testing::write(&sink, &testing::batch(writes)).await
}

#[tokio::test]
async fn both_sides_are_checked_and_a_stranger_is_refused_before_anything_is_sent() {
    let files = tempfile::tempdir().unwrap();
    certificates(files.path());
    let file = |name: &str| Some(files.path().join(name));
    let (address, mut streams) = server(Tls {
        cert_file: file("server.pem"),
        key_file: file("server.key"),
        ca_file: file("ca.pem"),
        ..Tls::default()
    })
    .await;
    let whole = json!({ "ca_file": file("ca.pem"), "cert_file": file("client.pem"), "key_file": file("client.key") });
    let tcp = testing::connect::<Tcp>(config(&address, whole.clone()))
        .await
        .unwrap();
    // More than one piece, so that a flush is in the midst of it.
    let bodies: Vec<Vec<u8>> = (0..10).map(|n| vec![b'a' + n; 20_000]).collect();
    assert!(
        send(&tcp, &bodies)
            .await
            .iter()
            .all(|outcome| *outcome == Outcome::sent_unconfirmed())
    );
    tcp.probe().await.unwrap();
    tcp.close().await;
    let expected: Vec<u8> = bodies
        .iter()
        .flat_map(|body| body.iter().chain(b"\n").copied())
        .collect();
    let came = tokio::time::timeout(Duration::from_secs(10), streams.recv());
    assert!(came.await.unwrap().unwrap() == expected);

    // Without the authority the server is a stranger; without a certificate we are; under another name
    // it is another server.
    for (tls, words) in [
        (json!({}), "certificate"),
        (json!({ "ca_file": file("ca.pem") }), "refuses us"),
        (
            json!({ "ca_file": file("ca.pem"), "server_name": "other.example", "cert_file": file("client.pem"), "key_file": file("client.key") }),
            "certificate",
        ),
    ] {
        let failure = refused(&address, tls).await;
        assert_eq!((failure.kind, &*failure.code), (FailureKind::Denied, "tls"));
        assert!(failure.message.contains(words), "{failure}");
    }
    for tls in [
        json!({ "ca_file": file("none.pem") }),
        json!({ "ca_file": file("server.key") }),
        json!({ "ca_file": file("ca.pem"), "cert_file": file("client.pem"), "key_file": file("ca.pem") }),
    ] {
        let failure = refused(&address, tls).await;
        assert_eq!((failure.kind, &*failure.code), (FailureKind::Config, "tls"));
        assert!(failure.message.contains(files.path().to_str().unwrap()));
    }
}

#[tokio::test]
async fn a_receiver_without_tls_is_refused_where_tls_is_configured() {
    let files = tempfile::tempdir().unwrap();
    certificates(files.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let mut greeted = 0;
        let mut kept = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            greeted += 1;
            if greeted == 1 {
                let _ = socket.write_all(b"220 welcome\r\n").await;
            }
            kept.push(socket);
        }
    });
    let tls = json!({ "ca_file": files.path().join("ca.pem") });
    let talks = refused(&address, tls.clone()).await;
    assert_eq!((talks.kind, &*talks.code), (FailureKind::Denied, "tls"));
    assert!(talks.message.contains("does not speak TLS"), "{talks}");
    // One that says nothing may be one that hangs.
    let silent = refused(&address, tls).await;
    assert_eq!((silent.kind, &*silent.code), (FailureKind::Down, "timeout"));
}

#[tokio::test]
async fn openssl_reads_what_was_sent() {
    let files = tempfile::tempdir().unwrap();
    certificates(files.path());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let out = files.path().join("out");
    let started = Command::new("openssl")
        .args([
            "s_server",
            "-quiet",
            "-accept",
            &format!("127.0.0.1:{port}"),
        ])
        .arg("-cert")
        .arg(files.path().join("server.pem"))
        .arg("-key")
        .arg(files.path().join("server.key"))
        // It ends with its input.
        .stdin(Stdio::piped())
        .stdout(std::fs::File::create(&out).unwrap())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut openssl) = started else {
        eprintln!("skipped: openssl is not installed");
        return;
    };
    let tls = json!({ "ca_file": files.path().join("ca.pem") });
    let from = Instant::now();
    let tcp = loop {
        match testing::connect::<Tcp>(config(&format!("127.0.0.1:{port}"), tls.clone())).await {
            Ok(tcp) => break tcp,
            Err(failure) => assert!(
                from.elapsed() < Duration::from_secs(10),
                "openssl did not start: {failure}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let bodies: Vec<Vec<u8>> = (0..100).map(|n| format!("line {n}").into_bytes()).collect();
    let outcomes = send(&tcp, &bodies).await;
    assert!(outcomes.iter().all(|o| *o == Outcome::sent_unconfirmed()));
    let expected: String = (0..100).map(|n| format!("line {n}\n")).collect();
    let mut came = String::new();
    while came != expected && from.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        came = std::fs::read_to_string(&out).unwrap_or_default();
    }
    openssl.kill().unwrap();
    openssl.wait().unwrap();
    assert_eq!(came, expected);
}
