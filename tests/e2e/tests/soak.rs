//! Ten minutes of everything at once: a host that is killed, stopped and frozen, destinations that go
//! away, a disk that fills up, and people who act on failed messages, while clients post. At the end every
//! accepted message has landed once, and both ledgers add up.
//!
//! `cargo xtask soak [--for 10m] [--seed N]` runs it; it is no part of the ordinary test run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::config::{Config, FAST, send};
use common::{
    Tmpfs, assert_ledgers, assert_once, drained, make_stream, ok, read_stream, read_table,
    rebuild_table,
};
use consign_e2e::{Host, free_port};
use consign_testkit::PrivateService;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Clients that post at a time.
const CLIENTS: u64 = 6;
/// A client's pause between two messages.
const PACE: Duration = Duration::from_millis(8);
/// One message in so many is refused by the table until it is mended.
const REFUSED_IN: u64 = 23;
/// The data folder's disk, where one can be mounted.
const DISK: &str = "256m";
/// Rows go in under their key; a constraint refuses what is too much.
const TABLE: &str =
    "CREATE TABLE t (id TEXT, amount REAL CHECK (amount < 100), write_key TEXT UNIQUE)";

/// Draws that depend on the seed alone (xorshift64*).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

struct Soak {
    host: Host,
    nats: PrivateService,
    folder: PathBuf,
    disk: bool,
    done: BTreeMap<&'static str, u64>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes ten minutes: cargo xtask soak"]
async fn everything_at_once_loses_and_doubles_nothing() {
    let seconds = std::env::var("CONSIGN_SOAK_SECONDS").map_or(600, |text| text.parse().unwrap());
    let seed: u64 = std::env::var("CONSIGN_SOAK_SEED").map_or(1, |text| text.parse().unwrap());
    let Some(nats) = consign_testkit::private_service("nats") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let disk = Tmpfs::mount(&folder.path().join("data"), DISK);
    if disk.is_none() {
        eprintln!("a tmpfs cannot be mounted here: the disk is never full in this run");
    }
    let port = free_port();
    let (stream, subject) = (format!("SOAK_{port}"), format!("soak.{port}"));
    let url = nats.service().url.clone();
    make_stream(&url, &stream, &subject).await;
    open(folder.path()).execute_batch(TABLE).unwrap();
    std::fs::create_dir(folder.path().join("files")).unwrap();
    let mut soak = Soak {
        host: Host::new(folder.path(), &config(port, &url, &stream, &subject)),
        nats,
        folder: folder.path().to_owned(),
        disk: disk.is_some(),
        done: BTreeMap::new(),
    };
    soak.host.start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(client(number, port, Arc::clone(&stop))))
        .collect();

    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        tokio::time::sleep(dice.millis(200, 2_500)).await;
        soak.happen(&mut dice).await;
    }

    stop.store(true, Ordering::Relaxed);
    let mut accepted = Vec::new();
    for client in clients {
        accepted.extend(client.await.unwrap());
    }
    let status = soak.come_to_rest().await;
    assert_ledgers(&status);
    let rows = read_table(&folder.path().join("out.db"), "t");
    assert_once(&rows, &accepted);
    let published = read_stream(&url, &stream).await;
    assert_once(&published, &accepted);
    for id in &accepted {
        let receipt = folder.path().join(format!("files/{id}.json"));
        assert!(receipt.exists(), "{id} has no receipt");
    }
    assert_eq!(
        (rows.len(), published.len()),
        (accepted.len(), accepted.len())
    );
    let outages = ok(&soak.host, &["outages", "--limit", "100000"]);
    eprintln!(
        "{}",
        json!({
            "soak": "passed", "seconds": seconds, "seed": seed, "accepted": accepted.len(),
            "rows": rows.len(), "published": published.len(), "copies": 0, "lost": 0,
            "outages": outages.as_array().unwrap().len(), "happened": soak.done,
        })
    );
    assert_eq!(soak.host.stop(), Some(0));
}

fn config(port: u16, nats: &str, stream: &str, subject: &str) -> String {
    let table = send(
        "table",
        "table",
        "sqlite.write",
        "table: t, columns: { id: \"{{ .body.id }}\", amount: \"{{ .body.amount }}\" }, write_key_column: write_key",
        &format!("order: none, batch: {{ max_writes: 64 }}, require: effectively_once, {FAST}"),
    );
    let receipt = send(
        "receipt",
        "files",
        "localfile.write.local",
        "path: \"{{ .body.id }}.json\"",
        &format!("after: table, order: none, {FAST}"),
    );
    let bus = send(
        "bus",
        "bus",
        "nats.publish",
        &format!("subject: \"{subject}\", jetstream: true, stream: {stream}"),
        &format!("batch: {{ max_writes: 64 }}, require: effectively_once, {FAST}"),
    );
    Config::new()
        .host("buffer: { log_size: 32MiB, memory: 16MiB }")
        .database()
        .connection("files", "localfile", "root: ./files")
        .connection("bus", "nats", &format!("servers: [\"{nats}\"]"))
        .hooks(port, &[table, receipt, bus])
        .text()
}

fn open(folder: &Path) -> rusqlite::Connection {
    let db = rusqlite::Connection::open(folder.join("out.db")).unwrap();
    db.busy_timeout(Duration::from_secs(20)).unwrap();
    db
}

/// Posts until told to stop, each message again and again until it is taken; the ids.
async fn client(number: u64, port: u16, stop: Arc<AtomicBool>) -> Vec<String> {
    let http = reqwest::Client::builder().timeout(Duration::from_secs(10));
    let http = http.build().unwrap();
    let url = format!("http://127.0.0.1:{port}/in");
    let mut ids = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let n = ids.len() as u64;
        let id = format!("{number}-{n}");
        let amount = if (n + number).is_multiple_of(REFUSED_IN) {
            250
        } else {
            1
        };
        let body = json!({ "id": id, "amount": amount, "text": "x".repeat(512) });
        loop {
            let sent = http
                .post(&url)
                .header("idempotency-key", &id)
                .json(&body)
                .send();
            if sent.await.is_ok_and(|answer| answer.status().is_success()) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        ids.push(id);
        tokio::time::sleep(PACE).await;
    }
    ids
}

impl Soak {
    async fn happen(&mut self, dice: &mut Dice) {
        let what = match dice.below(if self.disk { 14 } else { 13 }) {
            0 | 1 => {
                self.host.kill();
                tokio::time::sleep(dice.millis(0, 800)).await;
                self.host.start().await;
                "host killed"
            }
            2 => {
                assert_eq!(self.host.stop(), Some(0), "{}", self.host.log());
                self.host.start().await;
                "host stopped"
            }
            3 => {
                self.host.signal("STOP");
                tokio::time::sleep(dice.millis(200, 3_000)).await;
                self.host.signal("CONT");
                "host frozen"
            }
            4 => {
                self.nats.kill().unwrap();
                tokio::time::sleep(dice.millis(200, 4_000)).await;
                self.nats.start().unwrap();
                "nats killed"
            }
            5 => {
                self.nats.stop().unwrap();
                tokio::time::sleep(dice.millis(200, 4_000)).await;
                self.nats.start().unwrap();
                "nats stopped"
            }
            6 => {
                let db = open(&self.folder);
                db.execute_batch("BEGIN IMMEDIATE").unwrap();
                tokio::time::sleep(dice.millis(200, 3_000)).await;
                db.execute_batch("ROLLBACK").unwrap();
                "table locked"
            }
            7 => {
                let (root, away) = (self.folder.join("files"), self.folder.join("away"));
                std::fs::rename(&root, &away).unwrap();
                tokio::time::sleep(dice.millis(200, 3_000)).await;
                std::fs::rename(&away, &root).unwrap();
                "folder away"
            }
            8 => {
                let connection = ["table", "files", "bus"][dice.below(3) as usize];
                let mut args = vec!["drill", "--connection", connection, "--for", "1s"];
                if dice.below(2) == 0 {
                    args.extend(["--swallow-replies", "--yes"]);
                }
                self.operate(&args);
                "drill"
            }
            9 => {
                let lane = ["hooks/all/table", "hooks/all/bus"][dice.below(2) as usize];
                self.operate(&["pause", lane]);
                tokio::time::sleep(dice.millis(100, 2_000)).await;
                self.operate(&["resume", lane]);
                "lane paused"
            }
            10 => {
                self.operate(&["failed", "send-again", "--state", "parked"]);
                "all sent again"
            }
            11 => {
                self.act_on_one(dice);
                "one failed message acted on"
            }
            12 => {
                self.operate(&["reload"]);
                "reload"
            }
            _ => {
                let ballast = self.folder.join("data/ballast");
                // As much as there is: the last block that fits ends it.
                let file = std::fs::File::create(&ballast).unwrap();
                drop(std::io::copy(&mut std::io::repeat(1), &mut &file));
                tokio::time::sleep(dice.millis(300, 3_000)).await;
                std::fs::remove_file(ballast).unwrap();
                "disk full"
            }
        };
        *self.done.entry(what).or_default() += 1;
    }

    /// A person types; what they hear (a drill runs already, the lane is full) is theirs to read. Only an
    /// input that is wrong is a fault of the soak.
    fn operate(&self, args: &[&str]) -> Value {
        let (code, said) = common::json(&self.host, args);
        assert_ne!(code, 2, "{args:?}: {said:#}");
        said
    }

    fn act_on_one(&self, dice: &mut Dice) {
        let list = self.operate(&["failed", "list", "--state", "parked", "--limit", "20"]);
        let list = list.as_array().cloned().unwrap_or_default();
        if list.is_empty() {
            return;
        }
        let one = &list[dice.below(list.len() as u64) as usize];
        let id = one["id"].to_string();
        match dice.below(3) {
            0 => {
                self.operate(&["failed", "skip", &id]);
                self.operate(&["failed", "restore", &id]);
            }
            1 => {
                // Mended by hand: its id stays, its amount is one that is taken.
                let message = self.operate(&["failed", "show", &id]);
                let Some(name) = message["body"].as_str().and_then(|body| {
                    let body: Value = serde_json::from_str(body).ok()?;
                    body["id"].as_str().map(str::to_owned)
                }) else {
                    return;
                };
                let file = self.folder.join("edited.json");
                let body = json!({ "id": name, "amount": 2 });
                std::fs::write(&file, body.to_string()).unwrap();
                let file = file.display().to_string();
                self.operate(&["failed", "edit", &id, "--body-file", &file, "--same-key"]);
                self.operate(&["failed", "send-again", &id]);
            }
            _ => {
                self.operate(&["failed", "send-again", &id]);
            }
        }
    }

    /// Everything is there again, the table takes every amount, and what failed is sent again until nothing
    /// is left.
    async fn come_to_rest(&mut self) -> Value {
        rebuild_table(&open(&self.folder), "id TEXT, amount REAL");
        let from = Instant::now();
        loop {
            let status = drained(&self.host).await;
            for state in ["parked", "skipped"] {
                let list = self.operate(&["failed", "list", "--state", state, "--limit", "100000"]);
                let left = list.as_array().unwrap().len();
                if left > 0 {
                    let act = if state == "parked" {
                        "send-again"
                    } else {
                        "restore"
                    };
                    self.operate(&["failed", act, "--state", state, "--wait"]);
                }
            }
            let left = self.operate(&["failed", "list", "--causes"]);
            if left == json!([])
                && status["lanes"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|l| l["pending"] == 0)
            {
                return drained(&self.host).await;
            }
            assert!(
                from.elapsed() < Duration::from_secs(240),
                "{left:#}\n{}",
                self.host.log()
            );
        }
    }
}
