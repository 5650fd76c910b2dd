//! What the tests share: a ledger in a folder of its own, and records to park.
#![allow(dead_code, clippy::unwrap_used)]

use consign_ledger::*;
use std::path::PathBuf;
use tempfile::TempDir;

/// A small reserve, so that a test does not write megabytes at each opening.
pub fn options() -> Options {
    Options {
        reserve_bytes: 64 * 1024,
        ..Options::default()
    }
}

pub fn ledger() -> (TempDir, Ledger) {
    let dir = TempDir::new().unwrap();
    let ledger = Ledger::open(&file(&dir), options()).unwrap();
    (dir, ledger)
}

pub fn file(dir: &TempDir) -> PathBuf {
    dir.path().join("ledger.db")
}

pub fn key(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

/// Write number `n` of a lane, refused.
pub fn record(n: u64) -> NewFailed {
    NewFailed {
        write_key: key(n),
        adapter: "payments".into(),
        route: "completed".into(),
        send: "billing".into(),
        seq: n,
        connection: "ledger".into(),
        operation: "sqlite.write".into(),
        source: "http.receive".into(),
        source_position: None,
        message_id: Some(format!("m-{n}")),
        event_type: Some("payment.completed".into()),
        schema_version: None,
        tenant: None,
        routing_key: Some("payment.completed".into()),
        order: 0,
        content_type: Some("application/json".into()),
        headers: vec![Header {
            name: "x-raw".into(),
            value: vec![0, 159, 255, b'\n'],
        }],
        body: vec![0, 1, 2, 255, 254, u8::try_from(n % 251).unwrap()],
        envelope: vec![9, 0, 9],
        original: None,
        dependents: vec![],
        history: History {
            accepted_unix_ms: 1_000,
            first_attempt_unix_ms: Some(1_100),
            last_attempt_unix_ms: Some(1_200),
            attempts: 1,
            schedule_unix_ms: vec![1_100],
            host_version: "0.1.0".into(),
            plugin_version: "sqlite 0.1.0".into(),
            trace_id: None,
        },
        diagnosis: Diagnosis {
            reason: ParkReason::Refused,
            class: "refused".into(),
            code: "constraint".into(),
            provider: "SQLite".into(),
            message: "NOT NULL constraint failed: invoices.amount".into(),
            response: None,
            timed_out: false,
            applied: Applied::No,
        },
        replayable: true,
        parked_unix_ms: 10_000 + i64::try_from(n).unwrap(),
    }
}
