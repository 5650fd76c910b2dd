//! TLS: required where it is configured, with the server's certificate checked.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[allow(dead_code, reason = "the version is for the conformance test")]
mod server;

use consign_plugin::prelude::*;
use consign_plugin::testing::{self, TestWrite};
use consign_plugin_postgres::config::{ConnectionConfig, WriteConfig};
use consign_plugin_postgres::connection::Postgres;
use consign_plugin_postgres::sink::WriteRows;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use server::Server;
use std::time::{Duration, Instant};

/// Has the server itself write a file, so that it belongs to the user it runs as.
fn written(server: &Server, name: &str, text: &str) {
    let folder = server.sql("SHOW data_directory");
    let lines: Vec<String> = text
        .trim()
        .lines()
        .map(|line| format!("('{}')", line.trim()))
        .collect();
    // A key that others may read is refused.
    server.sql(&format!(
        "COPY (VALUES {}) TO PROGRAM 'umask 077; cat > {folder}/{name}'",
        lines.join(", ")
    ));
}

#[tokio::test]
async fn a_server_is_believed_by_its_certificate_and_the_session_is_encrypted() {
    let Some(private) = consign_testkit::private_service("postgresql") else {
        return;
    };
    let server = Server::of(private.service());
    let folder = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    written(&server, "server.crt", &certificate.pem());
    written(&server, "server.key", &key.serialize_pem());
    server.sql("ALTER SYSTEM SET ssl = on");
    server.sql("SELECT pg_reload_conf()");
    let from = Instant::now();
    server.sql("CREATE TABLE t (id text, tls boolean)");
    while server.sql("SHOW ssl") != "on" {
        assert!(from.elapsed() < Duration::from_secs(30), "TLS stays off");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let config = |tls: Value| -> ConnectionConfig {
        serde_json::from_value(json!({
            "servers": [server.address().to_string()], "database": "postgres", "tls": tls,
            "auth": { "username": "postgres", "password": "" }, "timeouts": { "connect": "5s" },
        }))
        .unwrap()
    };
    let statement: WriteConfig = serde_json::from_value(json!({
        "mode": "statement",
        "statement": "INSERT INTO t SELECT $1, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
        "parameters": ["one"],
    }))
    .unwrap();
    let sink = testing::open_sink::<WriteRows>(config(json!({ "ca_file": ca })), statement);
    let batch = testing::batch([TestWrite::new("x")]);
    assert_eq!(
        testing::write(&sink.await.unwrap(), &batch).await,
        [Outcome::delivered()]
    );
    assert_eq!(server.sql("SELECT id, tls FROM t"), "one|t");

    for tls in [
        json!({}),
        json!({ "ca_file": ca, "server_name": "another.name" }),
    ] {
        let failed = testing::connect::<Postgres>(config(tls.clone()))
            .await
            .err()
            .unwrap();
        assert_eq!(
            (failed.kind, failed.code.as_str()),
            (FailureKind::Denied, "tls"),
            "{tls}"
        );
    }
}
