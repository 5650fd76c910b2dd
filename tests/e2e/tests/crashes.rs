//! Crash loops: a plugin whose native code ends the process, with real signals.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::config::{Config, FAST, send};
use common::server::{Answer, Server, example};
use common::{consign, drained, events, lane, wait_until};
use consign_e2e::{Host, free_port};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const SIGNALS: [(&str, i32, &str); 6] = [
    ("segv", libc::SIGSEGV, "SIGSEGV"),
    ("stack", libc::SIGSEGV, "SIGSEGV"),
    ("abrt", libc::SIGABRT, "SIGABRT"),
    ("bus", libc::SIGBUS, "SIGBUS"),
    ("ill", libc::SIGILL, "SIGILL"),
    ("fpe", libc::SIGFPE, "SIGFPE"),
];

/// Webhooks that the crashing plugin writes.
struct Bench {
    host: Host,
    url: String,
    folder: tempfile::TempDir,
}

impl Bench {
    async fn new(config: Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let place = format!("folder: {:?}", folder.path().display().to_string());
        let to = send(
            "line",
            "crash",
            "crash.write",
            "",
            &format!("order: none, timeout: 60s, {FAST}"),
        );
        let config = config
            .connection("crash", "crash", &place)
            .hooks(port, &[to]);
        example(folder.path(), "post");
        let more = example(folder.path(), "crash");
        let mut host = Host::with_plugins(folder.path(), &config.text(), &[&more]);
        host.start().await;
        Self {
            host,
            url: format!("http://127.0.0.1:{port}/in"),
            folder,
        }
    }

    /// Takes a message; it is durable then.
    async fn post(&self, url: &str, body: &str) {
        let from = Instant::now();
        loop {
            let request = reqwest::Client::new()
                .post(url)
                .header("content-type", "application/json");
            let answer = request.body(body.to_owned()).send().await.unwrap();
            // A source that has just begun may have no room yet.
            if answer.status() == 503 && from.elapsed() < Duration::from_secs(10) {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            assert_eq!(answer.status(), 202, "{body}");
            return;
        }
    }

    fn set(&self, file: &str, there: bool) {
        let path = self.folder.path().join(file);
        if there {
            std::fs::write(path, "").unwrap();
        } else {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Copies of each body that took effect.
    fn effects(&self) -> BTreeMap<String, usize> {
        let text = std::fs::read_to_string(self.folder.path().join("effects")).unwrap_or_default();
        let mut effects = BTreeMap::new();
        for line in text.lines() {
            let (body, _key) = line.rsplit_once(' ').unwrap();
            *effects.entry(body.to_owned()).or_default() += 1;
        }
        effects
    }

    async fn landed(&self, body: &str) {
        wait_until(body, || self.effects().contains_key(body)).await;
    }

    async fn in_flight(&self, id: &str, writes: u64) {
        let done = |status: &Value| lane(status, id)["in_flight"] == writes;
        self.host.until("the plugin has it", done).await;
    }

    fn history(&self) -> Value {
        let file = std::fs::read(self.host.data().join("crashes.json")).unwrap();
        serde_json::from_slice(&file).unwrap()
    }
}

/// What a person types, and reads.
fn typed(host: &Host, args: &[&str]) -> String {
    let output = consign(host, "ada", args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_crashes_the_host_three_times_parks_and_the_rest_flows() {
    let mut bench = Bench::new(Config::new()).await;
    let bad = r#"{"id": "bad", "crash": "segv"}"#;
    // First, so that the gate is open: the one that crashes is no canary.
    bench.post(&bench.url, r#"{"id": "before"}"#).await;
    bench.landed(r#"{"id": "before"}"#).await;
    bench.post(&bench.url, bad).await;
    bench.in_flight("hooks/all/line", 1).await;
    bench.set("go", true);
    assert_eq!(bench.host.wait_for_signal(), Some(libc::SIGSEGV));
    for crash in 2..=3 {
        bench.host.spawn();
        assert_eq!(
            bench.host.wait_for_signal(),
            Some(libc::SIGSEGV),
            "crash {crash}"
        );
    }

    // The fourth start parks it; nothing has to be typed for the rest to flow.
    bench.host.start().await;
    let status = drained(&bench.host).await;
    assert_eq!(
        lane(&status, "hooks/all/line")["outcomes"]["parked"],
        1,
        "{status:#}"
    );
    bench.post(&bench.url, r#"{"id": "after"}"#).await;
    bench.landed(r#"{"id": "after"}"#).await;
    assert!(!bench.effects().contains_key(bad));
    // Each is told although the start after it ended within milliseconds.
    assert_eq!(events(&bench.host, "host_crashed").await.len(), 3);
    let suspected = events(&bench.host, "suspected_crash").await;
    assert_eq!(suspected.len(), 1, "{suspected:#?}");
    let (fields, message) = (
        &suspected[0]["fields"],
        suspected[0]["message"].as_str().unwrap(),
    );
    assert_eq!(fields["plugin"], "crash");
    assert_eq!(fields["crashes"], 3);
    assert_eq!(fields["signal"], "SIGSEGV");
    let next = fields["next"].as_str().unwrap();
    assert!(
        message.contains("hooks/all/line") && message.contains("send-again"),
        "{message}"
    );

    // What the event says is typed as it stands.
    let words: Vec<&str> = next.split(' ').skip(1).collect();
    let shown = typed(&bench.host, &words);
    assert!(
        shown.contains("suspected_crash") && shown.contains("bad"),
        "{shown}"
    );
    let listed = typed(
        &bench.host,
        &["failed", "list", "--reason", "suspected_crash"],
    );
    assert!(listed.contains("suspected_crash"), "{listed}");
    // The plugin was mended.
    bench.set("withstand", true);
    let id = words.last().unwrap();
    typed(&bench.host, &["failed", "send-again", id]);
    bench.landed(bad).await;
    let copies = bench.effects();
    assert!(copies.values().all(|n| *n == 1), "{copies:?}");
    assert_eq!(bench.host.stop(), Some(0));
    // A clean stop leaves no note.
    assert_eq!(
        std::fs::read(bench.host.data().join("crash-note")).unwrap(),
        b""
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_killed_three_times_parks_nothing() {
    let mut bench = Bench::new(Config::new()).await;
    let held = r#"{"id": "held", "crash": "segv"}"#;
    bench.post(&bench.url, held).await;
    for kill in 0..3 {
        bench.in_flight("hooks/all/line", 1).await;
        bench.host.kill();
        assert_eq!(
            std::fs::read(bench.host.data().join("crash-note")).unwrap(),
            b"",
            "kill {kill}"
        );
        bench.host.start().await;
    }
    // A signal that somebody sends says nothing about the writes either.
    bench.in_flight("hooks/all/line", 1).await;
    bench.host.signal("SEGV");
    assert_eq!(bench.host.wait_for_signal(), Some(libc::SIGSEGV));
    bench.set("withstand", true);
    bench.host.start().await;
    let status = drained(&bench.host).await;
    assert_eq!(
        lane(&status, "hooks/all/line")["outcomes"]["delivered"],
        1,
        "{status:#}"
    );
    for code in ["host_crashed", "suspected_crash", "parked"] {
        assert!(events(&bench.host, code).await.is_empty(), "{code}");
    }
    assert_eq!(bench.effects(), BTreeMap::from([(held.to_owned(), 1)]));
    assert_eq!(bench.host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_plugins_writes_only_what_was_there_at_all_three_crashes_is_suspected() {
    let (port, mut server) = (free_port(), Server::new(free_port()));
    server.start().await;
    let to = send(
        "post",
        "server",
        "post.write",
        "path: /post",
        &format!("order: none, timeout: 60s, {FAST}"),
    );
    let listen = format!("listen: \"127.0.0.1:{port}\"");
    let config = Config::new()
        .connection("server", "post", &server.config())
        .connection("others", "http", &listen)
        .adapter("others", ["others", "http.receive", "path: /in"], &[to]);
    let mut bench = Bench::new(config).await;
    let others = format!("http://127.0.0.1:{port}/in");
    bench
        .post(&bench.url, r#"{"id": "bad", "crash": "abrt"}"#)
        .await;
    for run in 1..=3 {
        // In each run another write of the other plugin is on its way; the one before is delivered first.
        let earlier = |status: &Value| lane(status, "others/all/post")["pending"] == 0;
        bench
            .host
            .until("the write before it is delivered", earlier)
            .await;
        let silent = format!(r#"{{"id": "innocent {run}"}}"#);
        let keep = silent.clone();
        server.answer(move |request| match request.body == keep {
            true => Answer::Silence,
            false => Answer::Status(200),
        });
        bench.post(&others, &silent).await;
        let there = || {
            server
                .requests()
                .iter()
                .any(|request| request.body == silent)
        };
        wait_until("the server has it", there).await;
        bench.in_flight("hooks/all/line", 1).await;
        bench.set("go", true);
        assert_eq!(
            bench.host.wait_for_signal(),
            Some(libc::SIGABRT),
            "run {run}"
        );
        bench.set("go", false);
        let crashes = bench.history_with_note();
        assert_eq!(crashes, run, "each names both writes");
        server.answer(|_| Answer::Status(200));
        if run < 3 {
            bench.host.start().await;
        }
    }
    bench.host.start().await;
    let status = drained(&bench.host).await;
    assert_eq!(
        lane(&status, "hooks/all/line")["outcomes"]["parked"],
        1,
        "{status:#}"
    );
    assert_eq!(
        lane(&status, "others/all/post")["outcomes"]["delivered"],
        3,
        "{status:#}"
    );
    assert_eq!(events(&bench.host, "suspected_crash").await.len(), 1);
    assert_eq!(bench.host.stop(), Some(0));
}

impl Bench {
    /// Crashes so far, counting the note of the last one; each must name two writes.
    fn history_with_note(&self) -> usize {
        let note = std::fs::read_to_string(self.host.data().join("crash-note")).unwrap();
        let writes = note
            .lines()
            .filter(|line| line.starts_with("write "))
            .count();
        assert_eq!(writes, 2, "{note}");
        assert!(note.ends_with("unlisted 0\nend\n"), "{note}");
        if !self.host.data().join("crashes.json").exists() {
            return 1;
        }
        let history = self.history();
        let crashes = history["crashes"].as_array().unwrap();
        for crash in crashes {
            assert_eq!(crash["writes"].as_array().unwrap().len(), 2, "{crash:#}");
        }
        crashes.len() + 1
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_signal_of_native_code_is_noted_and_so_is_a_stack_that_ran_over() {
    let mut bench = Bench::new(Config::new()).await;
    for (how, signal, name) in SIGNALS {
        bench
            .post(
                &bench.url,
                &format!(r#"{{"id": "{how}", "crash": "{how}"}}"#),
            )
            .await;
        bench.in_flight("hooks/all/line", 1).await;
        bench.set("go", true);
        assert_eq!(bench.host.wait_for_signal(), Some(signal), "{how}");
        bench.set("go", false);
        bench.set("withstand", true);
        bench.host.start().await;
        drained(&bench.host).await;
        bench.set("withstand", false);
        let crashed = events(&bench.host, "host_crashed").await;
        // Whichever way they are sorted, one of them is new.
        let newest = crashed
            .iter()
            .max_by_key(|event| event["id"].as_u64())
            .unwrap();
        assert_eq!(newest["fields"]["signal"], name, "{how}: {crashed:#?}");
        assert_eq!(newest["fields"]["thread"], "plugin-crash", "{how}");
        assert_eq!(newest["fields"]["writes"], 1, "{how}");
    }
    // Six crashes, each by another write: nothing is suspected.
    assert!(events(&bench.host, "suspected_crash").await.is_empty());
    assert_eq!(bench.effects().len(), SIGNALS.len());
    assert_eq!(bench.host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_note_that_was_cut_or_is_garbage_keeps_no_host_from_starting() {
    let mut bench = Bench::new(Config::new()).await;
    assert_eq!(bench.host.stop(), Some(0));
    let notes: [&[u8]; 4] = [
        b"consign-crash 1\nrun 00000000000000",
        b"\x7f\x45\x4c\x46\x00\xff",
        b"consign-crash 1\nrun 0000000000000001\nat 1\nsignal 11\nthread x\nwrite 0 1\nwri",
        b"consign-crash 99\n",
    ];
    for note in notes {
        std::fs::write(bench.host.data().join("crash-note"), note).unwrap();
        bench.host.start().await;
        bench.post(&bench.url, r#"{"id": "fine"}"#).await;
        drained(&bench.host).await;
        assert_eq!(bench.host.stop(), Some(0), "{note:?}");
    }
    std::fs::write(
        bench.host.data().join("crashes.json"),
        "{\"version\": 1, \"cra",
    )
    .unwrap();
    bench.host.start().await;
    assert_eq!(events(&bench.host, "crash_note_unreadable").await.len(), 4);
    assert_eq!(
        events(&bench.host, "host_crashed").await.len(),
        1,
        "the one cut behind its writes"
    );
    assert!(events(&bench.host, "suspected_crash").await.is_empty());
    assert_eq!(bench.host.stop(), Some(0));
}
