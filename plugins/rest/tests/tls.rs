//! TLS with and without a client certificate, and a proxy between.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use consign_plugin::prelude::*;
use consign_plugin::testing::{self, TestWrite};
use consign_plugin_rest::config::{ConnectionConfig, RequestConfig};
use consign_plugin_rest::connection::Rest;
use consign_plugin_rest::sink::{Put, Request};
use consign_testkit::http_server::HttpServer;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
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

/// The kit's server behind TLS; it asks for a client's certificate where there is a `ca_file`.
async fn secure(tls: Tls) -> (u16, Arc<HttpServer>) {
    let server = Arc::new(HttpServer::start().await.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(tls.server().await.unwrap());
    let kept = Arc::clone(&server);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, kept) = (acceptor.clone(), Arc::clone(&kept));
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(socket).await {
                    kept.serve(stream);
                }
            });
        }
    });
    (port, server)
}

/// A proxy that lets through who says `Basic YTpi`; what it was asked for is kept.
async fn proxy() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                kept.lock().unwrap().push(head.clone());
                if !head.contains("Proxy-Authorization: Basic YTpi\r\n") {
                    let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
                    client.write_all(refusal).await.unwrap();
                    return;
                }
                let to = head.split(' ').nth(1).unwrap().to_owned();
                let mut server = TcpStream::connect(to).await.unwrap();
                client
                    .write_all(b"HTTP/1.1 200 Connected\r\n\r\n")
                    .await
                    .unwrap();
                drop(copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    (port, asked)
}

fn config(port: u16, change: Value) -> ConnectionConfig {
    let mut config = json!({
        "endpoint": format!("https://127.0.0.1:{port}"), "timeouts": { "connect": "3s", "request": "3s" },
    });
    config
        .as_object_mut()
        .unwrap()
        .extend(change.as_object().unwrap().clone());
    let config: ConnectionConfig = serde_json::from_value(config).unwrap();
    assert_eq!(config.faults(), Vec::<String>::new());
    config
}

async fn put(connection: ConnectionConfig) -> Outcome {
    let config: RequestConfig = serde_json::from_value(json!({ "path": "/a" })).unwrap();
    match testing::open_sink::<Request<Put>>(connection, config).await {
        Ok(sink) => testing::write(&sink, &testing::batch([TestWrite::new("x")]))
            .await
            .remove(0),
        Err(failure) => Outcome::refused((failure.code, failure.message)),
    }
}

#[tokio::test]
async fn a_service_is_believed_and_believes_us_by_certificates() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let file = |name: &str| Some(folder.path().join(name));
    let tls = Tls {
        ca_file: file("ca.pem"),
        cert_file: file("server.pem"),
        key_file: file("server.key"),
        server_name: None,
    };
    let (port, server) = secure(tls).await;
    let with = json!({ "tls": { "ca_file": file("ca.pem"), "cert_file": file("client.pem"), "key_file": file("client.key") } });
    assert_eq!(put(config(port, with)).await, Outcome::delivered());
    // Not from an authority that is trusted.
    let strange = testing::connect::<Rest>(config(port, json!({})))
        .await
        .err()
        .unwrap();
    assert_eq!(
        (strange.kind, strange.code.as_str()),
        (FailureKind::Denied, "tls")
    );
    // Without a certificate of ours: told after the handshake, so by the first request at the latest.
    let without = put(config(
        port,
        json!({ "tls": { "ca_file": file("ca.pem") } }),
    ))
    .await;
    assert_ne!(
        without.applied(),
        consign_plugin::Applied::Yes,
        "{without:?}"
    );
    assert_eq!(server.effects().len(), 1);
}

#[tokio::test]
async fn a_proxy_is_asked_for_a_way_and_sees_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let file = |name: &str| Some(folder.path().join(name));
    let tls = Tls {
        cert_file: file("server.pem"),
        key_file: file("server.key"),
        ..Tls::default()
    };
    let (port, server) = secure(tls).await;
    let (proxy_port, asked) = proxy().await;
    let change = |password: &str| {
        json!({
            "tls": { "ca_file": file("ca.pem") }, "proxy": format!("http://127.0.0.1:{proxy_port}"),
            "proxy_auth": { "username": "a", "password": password },
        })
    };
    assert_eq!(put(config(port, change("b"))).await, Outcome::delivered());
    assert_eq!(server.effects().len(), 1);
    let asked = asked.lock().unwrap().clone();
    assert!(
        asked[0].starts_with(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n")),
        "{asked:?}"
    );
    let refused = testing::connect::<Rest>(config(port, change("wrong")))
        .await
        .err()
        .unwrap();
    assert_eq!(
        (refused.kind, refused.code.as_str()),
        (FailureKind::Denied, "proxy")
    );
}

#[tokio::test]
async fn without_tls_a_proxy_gets_the_whole_request() {
    let server = HttpServer::start().await.unwrap();
    let change = json!({
        "endpoint": "http://service.invalid/base", "proxy": format!("http://{}", server.address()),
        "proxy_auth": { "username": "a", "password": "b" },
    });
    assert_eq!(put(config(1, change)).await, Outcome::delivered());
    let request = server.requests().remove(0);
    assert_eq!(request.path, "http://service.invalid/base/a");
    assert_eq!(request.header("proxy-authorization"), Some("Basic YTpi"));
    assert_eq!(request.header("host"), Some("service.invalid"));
}
