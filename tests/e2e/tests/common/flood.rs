//! Messages in bulk: clients that post without an end, and a reader that checks what arrived byte for byte.

use consign_e2e::Host;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a message carries after its id.
pub const BODY_BYTES: usize = 60_000;

/// A host whose only destination is a folder that is not there yet: an outage until somebody makes it.
pub fn host(folder: &Path, port: u16) -> Host {
    Host::new(
        folder,
        &format!(
            r#"
buffer: {{ log_size: 16MiB }}
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{port}" }} }}
  files: {{ connector: localfile, config: {{ root: ./out, create: false }} }}
adapters:
  hooks:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: all
        send:
          - id: files
            connection: files
            operation: localfile.write.local
            config: {{ path: '{{{{ .headers."x-id" }}}}.bin', fsync: false }}
            batch: {{ max_writes: 32 }}
"#
        ),
    )
}

/// The body of a message: its id, then every byte value, not text.
pub fn body(id: &str) -> Vec<u8> {
    let seed = id.bytes().fold(7_u8, |sum, b| sum.wrapping_mul(31) ^ b);
    let mut bytes = format!("<{id}>").into_bytes();
    bytes.extend((0..BODY_BYTES).map(|i| (i as u8).wrapping_mul(29) ^ seed ^ (i >> 8) as u8));
    bytes
}

/// Clients that post without an end, each message until it is accepted or they are told to stop.
pub struct Flood {
    stop: Arc<AtomicBool>,
    /// Messages answered 2xx so far.
    pub accepted: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<(BTreeSet<String>, Option<String>)>>,
}

impl Flood {
    /// So many clients at once.
    pub fn start(port: u16, clients: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (accepted, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..clients)
            .map(|number| {
                let (stop, accepted, refused) = (stop.clone(), accepted.clone(), refused.clone());
                tokio::spawn(async move {
                    let client = client();
                    let mut ids = BTreeSet::new();
                    for n in 0.. {
                        let id = format!("{number}-{n}");
                        loop {
                            if stop.load(Ordering::Relaxed) {
                                return (ids, Some(id));
                            }
                            match post(&client, port, &id).await {
                                Some(status) if status < 300 => break,
                                Some(503) => drop(refused.fetch_add(1, Ordering::Relaxed)),
                                Some(409) | None => {}
                                Some(other) => panic!("{id}: {other}"),
                            }
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                        accepted.fetch_add(1, Ordering::Relaxed);
                        ids.insert(id);
                    }
                    (ids, None)
                })
            })
            .collect();
        Self {
            stop,
            accepted,
            refused,
            tasks,
        }
    }

    /// Waits until so many more were accepted.
    pub async fn accepted_more(&self, more: u64) {
        let goal = self.accepted.load(Ordering::Relaxed) + more;
        until("more messages are accepted", || {
            self.accepted.load(Ordering::Relaxed) >= goal
        })
        .await;
    }

    /// Waits until so many more were refused with 503.
    pub async fn refused_more(&self, more: u64) {
        let goal = self.refused.load(Ordering::Relaxed) + more;
        until("messages are refused with 503", || {
            self.refused.load(Ordering::Relaxed) >= goal
        })
        .await;
    }

    /// What was accepted, and what was under way: its answer may have been lost, so it may be there or not.
    pub async fn finish(self) -> (BTreeSet<String>, BTreeSet<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut all, mut open) = (BTreeSet::new(), BTreeSet::new());
        for task in self.tasks {
            let (ids, last) = task.await.unwrap();
            all.extend(ids);
            open.extend(last);
        }
        (all, open)
    }
}

/// A client that gives up after ten seconds.
pub fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .timeout(Duration::from_secs(10))
        .build()
        .unwrap()
}

/// The answer's status; none if there was no answer.
pub async fn post(client: &reqwest::Client, port: u16, id: &str) -> Option<u16> {
    let sent = client
        .post(format!("http://127.0.0.1:{port}/in"))
        .header("content-type", "application/octet-stream")
        .header("idempotency-key", id)
        .header("x-id", id)
        .body(body(id))
        .send()
        .await;
    sent.ok().map(|response| {
        let status = response.status().as_u16();
        let after = response.headers().get("retry-after");
        assert_eq!(
            status == 503,
            after.is_some(),
            "{id}: a sender is told when to come again if, and only if, there is no room: {status} {after:?}"
        );
        status
    })
}

/// So many messages, each accepted at once.
pub async fn post_all(port: u16, count: usize) -> BTreeSet<String> {
    let client = client();
    let mut ids = BTreeSet::new();
    for n in 0..count {
        let id = format!("m-{n:04}");
        let from = std::time::Instant::now();
        loop {
            let answer = post(&client, port, &id).await;
            if answer.is_some_and(|status| status < 300) {
                break;
            }
            // A source that has just begun may have no room yet.
            assert!(
                answer == Some(503) && from.elapsed() < Duration::from_secs(10),
                "{id}: {answer:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ids.insert(id);
    }
    ids
}

/// Waits for a condition, two minutes at most.
pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let from = Instant::now();
    while !done() {
        assert!(
            from.elapsed() < Duration::from_secs(120),
            "never saw that {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The files that arrived, each checked byte for byte.
pub fn arrived(folder: &Path) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for entry in std::fs::read_dir(folder.join("out")).unwrap() {
        let path = entry.unwrap().path();
        let id = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(
            std::fs::read(&path).unwrap() == body(&id),
            "{id} arrived with other bytes"
        );
        ids.insert(id);
    }
    ids
}

/// The events of a code, as soon as there are any.
pub async fn awaited(host: &Host, code: &str) -> Vec<serde_json::Value> {
    let from = Instant::now();
    loop {
        let found = host.get(&format!("/api/v1/events?code={code}")).await;
        let found = found
            .and_then(|v| v.as_array().cloned())
            .unwrap_or_default();
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

/// Every lane's spill files.
pub fn spill_files(host: &Host) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for lane in std::fs::read_dir(host.data().join("buffer/lanes"))
        .into_iter()
        .flatten()
    {
        for file in std::fs::read_dir(lane.unwrap().path()).unwrap() {
            files.push(file.unwrap().path());
        }
    }
    files.sort();
    files
}
