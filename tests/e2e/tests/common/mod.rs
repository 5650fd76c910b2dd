//! What the process tests share: a client that retries under one key, and readers that count effects.
#![allow(dead_code, reason = "each test binary uses some of these")]

pub mod config;
pub mod flood;
pub mod poison;
pub mod server;

use consign_e2e::Host;
use futures::StreamExt as _;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Posts numbered bodies until told to stop, each under its own `Idempotency-Key`, and repeats each
/// until it is answered 2xx, as a careful client does.
pub struct Poster {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<u64>>,
    accepted: Arc<AtomicU64>,
}

impl Poster {
    /// `clients` of them at once, to this address.
    pub fn start(url: &str, clients: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let accepted = Arc::new(AtomicU64::new(0));
        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(10))
            .build()
            .unwrap();
        let tasks = (0..clients)
            .map(|number| {
                let (url, client) = (url.to_owned(), client.clone());
                let (stop, accepted) = (Arc::clone(&stop), Arc::clone(&accepted));
                tokio::spawn(async move {
                    let mut sent = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let id = format!("{number}-{sent}");
                        post(&client, &url, &id).await;
                        accepted.fetch_add(1, Ordering::Relaxed);
                        sent += 1;
                    }
                    sent
                })
            })
            .collect();
        Self {
            stop,
            tasks,
            accepted,
        }
    }

    /// Bodies answered 2xx so far.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Waits until so many more were accepted.
    pub async fn wait_for(&self, more: u64) {
        let goal = self.accepted() + more;
        let from = Instant::now();
        while self.accepted() < goal {
            assert!(
                from.elapsed() < Duration::from_secs(120),
                "clients make no progress: {} of {goal}",
                self.accepted()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets each client finish its body; the ids that were accepted.
    pub async fn finish(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut ids = Vec::new();
        for (number, task) in self.tasks.into_iter().enumerate() {
            let sent = task.await.unwrap();
            ids.extend((0..sent).map(|n| format!("{number}-{n}")));
        }
        ids
    }
}

/// One body until it is accepted; a minute without an answer fails the test.
pub async fn post(client: &reqwest::Client, url: &str, id: &str) {
    let from = Instant::now();
    loop {
        let body = format!("{{\"id\": \"{id}\", \"amount\": 1.10}}");
        let sent = client
            .post(url)
            .header("content-type", "application/json")
            .header("idempotency-key", id)
            .body(body)
            .send()
            .await;
        match sent {
            Ok(response) if response.status().is_success() => return,
            // Refused, reset, 503 and 409 (its first copy is still being accepted): the same again.
            Ok(response)
                if response.status().as_u16() == 503 || response.status().as_u16() == 409 => {}
            Ok(response) => panic!(
                "{id}: {} {}",
                response.status(),
                response.text().await.unwrap_or_default()
            ),
            Err(_) => {}
        }
        assert!(
            from.elapsed() < Duration::from_secs(60),
            "{id} was not accepted in a minute"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Effects and distinct write keys by id.
pub type Effects = BTreeMap<String, Vec<String>>;

/// Asserts that every id landed exactly once.
pub fn assert_once(effects: &Effects, ids: &[String]) {
    let lost: Vec<&String> = ids.iter().filter(|id| !effects.contains_key(*id)).collect();
    assert!(
        lost.is_empty(),
        "{} of {} lost, such as {:?}",
        lost.len(),
        ids.len(),
        lost.first()
    );
    let copies: Vec<_> = effects.iter().filter(|(_, keys)| keys.len() > 1).collect();
    assert!(
        copies.is_empty(),
        "{} ids arrived more than once, such as {:?}",
        copies.len(),
        copies.first()
    );
}

/// A stream of one subject, whose window is longer than any test: what is sent again is recognised.
pub async fn make_stream(url: &str, name: &str, subject: &str) {
    let client = async_nats::connect(url).await.unwrap();
    let config = async_nats::jetstream::stream::Config {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        duplicate_window: Duration::from_secs(7_200),
        ..Default::default()
    };
    async_nats::jetstream::new(client)
        .create_stream(config)
        .await
        .unwrap();
}

/// Every message of a JetStream stream, read without the connector: id from the body, key from the header.
pub async fn read_stream(url: &str, stream: &str) -> Effects {
    let client = async_nats::connect(url).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let mut stream = jetstream.get_stream(stream).await.unwrap();
    let expected = stream.info().await.unwrap().state.messages;
    let consumer = stream
        .create_consumer(async_nats::jetstream::consumer::pull::OrderedConfig::default())
        .await
        .unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let mut effects = Effects::new();
    for _ in 0..expected {
        let message = tokio::time::timeout(Duration::from_secs(20), messages.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let body: Value = serde_json::from_slice(&message.payload).unwrap();
        let key = message
            .headers
            .as_ref()
            .and_then(|headers| headers.get("consign.write-key"))
            .map(|key| key.as_str().to_owned())
            .expect("every copy carries the write key");
        effects
            .entry(body["id"].as_str().unwrap().to_owned())
            .or_default()
            .push(key);
    }
    effects
}

/// Every row of a table, read with SQLite itself; none while there is no table yet.
pub fn read_table(path: &std::path::Path, table: &str) -> Effects {
    let mut effects = Effects::new();
    if !path.exists() {
        return effects;
    }
    let db =
        rusqlite::Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)
            .unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    if !db.table_exists(None, table).unwrap() {
        return effects;
    }
    let mut rows = db
        .prepare(&format!("SELECT id, write_key FROM {table}"))
        .unwrap();
    let found = rows
        .query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        })
        .unwrap();
    for row in found {
        let (id, key) = row.unwrap();
        effects.entry(id).or_default().push(key);
    }
    effects
}

/// Makes the table `t` anew with these columns and a unique `write_key`, its rows kept: what its old
/// constraints refused is taken from here on.
pub fn rebuild_table(db: &rusqlite::Connection, columns: &str) {
    db.execute_batch(&format!(
        "BEGIN IMMEDIATE; ALTER TABLE t RENAME TO old;
         CREATE TABLE t ({columns}, write_key TEXT UNIQUE);
         INSERT INTO t SELECT * FROM old; DROP TABLE old; COMMIT"
    ))
    .unwrap();
}

/// A small file system in memory; it is unmounted when this is dropped.
pub struct Tmpfs(pub std::path::PathBuf);

impl Tmpfs {
    /// At this folder, which is made. None where this process may not mount.
    pub fn mount(at: &std::path::Path, size: &str) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let done = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(at)
            .status();
        done.is_ok_and(|status| status.success())
            .then(|| Self(at.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let mut umount = std::process::Command::new("umount");
        drop(umount.arg("-l").arg(&self.0).status());
    }
}

/// Waits until no lane has pending writes.
pub async fn drained(host: &Host) -> Value {
    host.until("all lanes empty", |status| {
        status["lanes"]
            .as_array()
            .is_some_and(|lanes| lanes.iter().all(|lane| lane["pending"] == 0))
    })
    .await
}

/// The lane with this id.
pub fn lane<'a>(status: &'a Value, id: &str) -> &'a Value {
    let lanes = status["lanes"].as_array().unwrap();
    lanes
        .iter()
        .find(|lane| lane["id"] == id)
        .unwrap_or_else(|| panic!("no lane {id}: {status:#}"))
}

/// All events with this code.
pub async fn events(host: &Host, code: &str) -> Vec<Value> {
    let path = format!("/api/v1/events?code={code}");
    match host.get(&path).await {
        Some(Value::Array(events)) => events,
        other => panic!("no events: {other:?}"),
    }
}

/// Waits until there is an event with this code.
pub async fn wait_for_event(host: &Host, code: &str) -> Vec<Value> {
    let from = Instant::now();
    loop {
        let found = events(host, code).await;
        if !found.is_empty() {
            return found;
        }
        assert!(
            from.elapsed() < Duration::from_secs(30),
            "no event {code}\n{}",
            host.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until this holds.
pub async fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let from = Instant::now();
    while !done() {
        assert!(
            from.elapsed() < Duration::from_secs(60),
            "never saw: {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Both ledgers of a status document: received = outcomes + in process; accepted = outcomes + pending.
pub fn assert_ledgers(status: &Value) {
    let sum = |value: &Value| -> u64 {
        value
            .as_object()
            .unwrap()
            .values()
            .map(|n| n.as_u64().unwrap())
            .sum()
    };
    for adapter in status["adapters"].as_array().unwrap() {
        let ended = sum(&adapter["outcomes"]);
        assert_eq!(
            adapter["received"].as_u64().unwrap(),
            ended + adapter["in_process"].as_u64().unwrap(),
            "{adapter:#}"
        );
    }
    for lane in status["lanes"].as_array().unwrap() {
        let ended = sum(&lane["outcomes"]);
        assert_eq!(
            lane["accepted"].as_u64().unwrap(),
            ended + lane["pending"].as_u64().unwrap(),
            "{lane:#}"
        );
    }
}

/// The loader's zoo: a plugin with a processor and a transform that fail, panic or hang by the body.
pub fn zoo(folder: &std::path::Path) {
    let library = consign_e2e::built()
        .consign
        .with_file_name("examples")
        .join("libzoo.so");
    if !library.exists() {
        let status = std::process::Command::new(env!("CARGO"))
            .args(["build", "--package", "consign-loader", "--example", "zoo"])
            .status()
            .unwrap();
        assert!(status.success(), "the zoo does not build");
    }
    std::fs::copy(library, folder.join("libzoo.so")).unwrap();
}

/// Names of the workspace's plugins, by their folders.
pub fn plugin_folders() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("Cargo.toml").is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 9, "{names:?}");
    names
}

/// `consign` against this host, run by this person in the host's folder; its output.
pub fn consign(host: &Host, who: &str, args: &[&str]) -> std::process::Output {
    std::process::Command::new(&consign_e2e::built().consign)
        .args(args)
        .env("CONSIGN_HOST", host.url(""))
        .env("CONSIGN_OPERATOR", who)
        .env_remove("CONSIGN_TOKEN")
        .current_dir(host.config().parent().unwrap())
        .output()
        .unwrap()
}

/// The same with `--json`: exit code and document (or what was said on stderr, which is one too).
pub fn json(host: &Host, args: &[&str]) -> (i32, serde_json::Value) {
    let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    let output = consign(host, "ann", &args);
    let text = if output.stdout.is_empty() {
        &output.stderr
    } else {
        &output.stdout
    };
    let value = serde_json::from_slice(text)
        .unwrap_or_else(|e| panic!("{args:?}: {e}\n{}", String::from_utf8_lossy(text)));
    (output.status.code().unwrap(), value)
}

/// The document of a command that works.
pub fn ok(host: &Host, args: &[&str]) -> serde_json::Value {
    let (code, value) = json(host, args);
    assert_eq!(code, 0, "{args:?}: {value:#}\n{}", host.log());
    value
}

/// Waits until `look` gives something.
pub async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let from = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            from.elapsed() < Duration::from_secs(60),
            "never saw: {what}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
