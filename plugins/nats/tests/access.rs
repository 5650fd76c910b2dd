//! How a connection is secured and who it is: TLS, client certificates, tokens, nkeys, domains.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod server;

use consign_plugin::prelude::*;
use consign_plugin::testing::{self, SourceDriver, TestWrite};
use consign_plugin_nats::config::ConnectionConfig;
use consign_plugin_nats::connection::Nats;
use consign_plugin_nats::sink::Publish;
use consign_plugin_nats::source::Consume;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use server::Server;
use std::path::Path;
use std::time::Duration;

async fn connect(server: &Server, change: Value) -> Result<Arc<Nats>, Failure> {
    let mut config =
        json!({ "servers": [server.url()], "timeouts": { "connect": "3s", "request": "3s" } });
    config
        .as_object_mut()
        .unwrap()
        .extend(change.as_object().unwrap().clone());
    let config: ConnectionConfig = serde_json::from_value(config).unwrap();
    assert_eq!(config.faults(), Vec::<String>::new());
    testing::connect::<Nats>(config).await
}

async fn refused(server: &Server, change: Value) -> FailureKind {
    connect(server, change)
        .await
        .err()
        .expect("it let us in")
        .kind
}

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

#[tokio::test]
async fn tls_checks_the_server_and_shows_a_client_certificate() {
    let files = tempfile::tempdir().unwrap();
    certificates(files.path());
    let file = |name: &str| files.path().join(name);
    let tls = format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        file("server.pem"),
        file("server.key"),
        file("ca.pem")
    );
    let Some(server) = Server::start(&tls) else {
        return;
    };
    let whole = json!({ "ca_file": file("ca.pem"), "cert_file": file("client.pem"), "key_file": file("client.key") });
    let nats = connect(&server, json!({ "tls": whole })).await.unwrap();
    nats.probe().await.unwrap();
    // Without the authority the server is a stranger, without a certificate we are.
    connect(&server, json!({}))
        .await
        .err()
        .expect("an unknown authority");
    connect(&server, json!({ "tls": { "ca_file": file("ca.pem") } }))
        .await
        .err()
        .expect("no client certificate");
    connect(&server, json!({ "tls": { "ca_file": file("none.pem") } }))
        .await
        .err()
        .expect("no such file");
}

#[tokio::test]
async fn a_plain_server_is_refused_where_tls_is_configured() {
    let Some(server) = Server::start("") else {
        return;
    };
    connect(&server, json!({ "tls": {} }))
        .await
        .err()
        .expect("it sent in the clear");
}

#[tokio::test]
async fn a_token_or_an_nkey_opens_the_door() {
    let Some(server) = Server::start("authorization { token: \"s3cret\" }") else {
        return;
    };
    connect(&server, json!({ "token": "s3cret" }))
        .await
        .unwrap();
    assert_eq!(
        refused(&server, json!({ "token": "wrong" })).await,
        FailureKind::Denied
    );
    let pair = nkeys::KeyPair::new_user();
    let users = format!(
        "authorization {{ users: [{{ nkey: {} }}] }}",
        pair.public_key()
    );
    let server = Server::start(&users).unwrap();
    connect(&server, json!({ "nkey_seed": pair.seed().unwrap() }))
        .await
        .unwrap();
    let other = nkeys::KeyPair::new_user().seed().unwrap();
    assert_eq!(
        refused(&server, json!({ "nkey_seed": other })).await,
        FailureKind::Denied
    );
    assert_eq!(
        refused(&server, json!({ "nkey_seed": "SUnonsense" })).await,
        FailureKind::Denied
    );
    let missing = json!({ "credentials_file": "/nowhere/to/be.creds" });
    assert_eq!(refused(&server, missing).await, FailureKind::Config);
}

#[tokio::test]
async fn the_first_server_that_answers_is_used() {
    let Some(server) = Server::start("") else {
        return;
    };
    let servers = json!({ "servers": ["nats://127.0.0.1:1", server.url(), "nats://127.0.0.1:2"] });
    let nats = connect(&server, servers).await.unwrap();
    nats.probe().await.unwrap();
    nats.close().await;
    assert_eq!(
        refused(&server, json!({ "servers": ["nats://127.0.0.1:1"] })).await,
        FailureKind::Down
    );
    assert_eq!(
        refused(
            &server,
            json!({ "servers": ["nats://no-such-host.invalid"] })
        )
        .await,
        FailureKind::Down
    );
}

#[tokio::test]
async fn a_jetstream_domain_is_written_to_inspected_and_read() {
    let Some(server) = Server::start("") else {
        return;
    };
    let folder = server.folder().join("hub");
    drop(server);
    let domain = format!("jetstream {{ store_dir: {folder:?}, domain: hub }}");
    let server = Server::start_without_jetstream(&domain).unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let jetstream = async_nats::jetstream::with_domain(client, "hub");
    let stream = async_nats::jetstream::stream::Config {
        name: "S".into(),
        subjects: vec!["s".into()],
        ..Default::default()
    };
    jetstream.create_stream(stream).await.unwrap();
    let nats = connect(&server, json!({ "jetstream_domain": "hub" }))
        .await
        .unwrap();
    let config = serde_json::from_value(json!({ "subject": "s", "jetstream": true })).unwrap();
    let sink = Publish::open(Arc::clone(&nats), config, &testing::context())
        .await
        .unwrap();
    assert_eq!(sink.inspect().await.verdict, Verdict::Verified);
    let batch = testing::batch([TestWrite::new("x").header("Cookie", "c")]);
    assert_eq!(testing::write(&sink, &batch).await, [Outcome::delivered()]);
    let config = serde_json::from_value(json!({ "stream": "S", "consumer": "c" })).unwrap();
    let mut source = SourceDriver::start::<Consume>(nats, config, None);
    source.credit(1, 1 << 20);
    let message = source.receive(Duration::from_secs(10)).await.unwrap();
    assert_eq!(message.attributes["sequence"], 1);
    source.accept([message.id]);
    source.stop(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn authenticating_headers_stay_behind_unless_named() {
    let Some(server) = Server::start("") else {
        return;
    };
    let client = async_nats::connect(server.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let stream = async_nats::jetstream::stream::Config {
        name: "S".into(),
        subjects: vec!["s".into()],
        ..Default::default()
    };
    jetstream.create_stream(stream).await.unwrap();
    let mut headers = async_nats::HeaderMap::new();
    for name in ["Authorization", "cookie", "X-Api-Key", "other"] {
        headers.insert(name, "x");
    }
    jetstream
        .publish_with_headers("s", headers, "".into())
        .await
        .unwrap()
        .await
        .unwrap();
    for (consumer, include, expected) in [
        ("a", json!([]), vec!["other"]),
        ("b", json!(["COOKIE"]), vec!["cookie", "other"]),
    ] {
        let nats = connect(&server, json!({})).await.unwrap();
        let config = json!({ "stream": "S", "consumer": consumer, "include_headers": include });
        let mut source =
            SourceDriver::start::<Consume>(nats, serde_json::from_value(config).unwrap(), None);
        source.credit(1, 1 << 20);
        let message = source.receive(Duration::from_secs(10)).await.unwrap();
        let mut names: Vec<_> = message.headers.into_iter().map(|(name, _)| name).collect();
        names.sort();
        assert_eq!(names, expected);
        source.stop(Duration::from_secs(10)).await.unwrap();
    }
}
