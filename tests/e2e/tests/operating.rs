//! A person at a running host: where a message is, what an outage came to, drills, pauses, waits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{consign, drained, eventually, json, ok, read_table};
use consign_e2e::{Host, free_port};
use serde_json::{Value, json as value};
use std::path::Path;
use std::time::{Duration, Instant};

/// Takes the folder of files away. A plain file takes its name, or the next start would make a new one.
fn away(folder: &Path) {
    std::fs::rename(folder.join("files"), folder.join("gone")).unwrap();
    std::fs::write(folder.join("files"), "").unwrap();
}

fn back(folder: &Path) {
    std::fs::remove_file(folder.join("files")).unwrap();
    std::fs::rename(folder.join("gone"), folder.join("files")).unwrap();
}

/// Routes for every way in which a message can go astray.
fn host(folder: &Path, port: u16) -> Host {
    let db = rusqlite::Connection::open(folder.join("out.db")).unwrap();
    db.execute_batch("CREATE TABLE t (id TEXT CHECK (id <> 'bad'), write_key TEXT UNIQUE)")
        .unwrap();
    std::fs::create_dir(folder.join("files")).unwrap();
    std::fs::write(folder.join("in.log"), "").unwrap();
    Host::new(
        folder,
        &format!(
            r#"
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{port}" }} }}
  table: {{ connector: sqlite, config: {{ path: ./out.db, busy_timeout: 200ms }} }}
  files: {{ connector: localfile, config: {{ root: ./files }} }}
adapters:
  hooks:
    log_discards: true
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: audit
        when: '.body.kind == "audit"'
        send: []
      - name: broken
        when: '.body.kind == "broken"'
        transforms: [{{ vrl: '.body.n = to_int!(.body.n)' }}]
        send:
          - {{ id: table, connection: table, operation: sqlite.write, config: {{ table: t, columns: {{ id: "{{{{ .body.id }}}}" }}, write_key_column: write_key }} }}
      - name: picky
        when: '.body.kind == "picky" && to_int!(.body.n) > 1'
        send: []
      - name: file
        when: '.body.kind == "file"'
        send:
          - {{ id: file, connection: files, operation: localfile.write.local, config: {{ path: "{{{{ .body.id }}}}.json" }} }}
      - name: rows
        when: '.body.kind == "row"'
        send:
          - id: table
            connection: table
            operation: sqlite.write
            config: {{ table: t, columns: {{ id: "{{{{ .body.id }}}}" }}, write_key_column: write_key }}
"#
        ),
    )
}

async fn post(port: u16, key: &str, body: &Value) -> u16 {
    reqwest::Client::new()
        .post(format!("http://127.0.0.1:{port}/in"))
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(body.to_string())
        .send()
        .await
        .unwrap()
        .status()
        .as_u16()
}

/// What `consign trace` says of a key, once it says that.
async fn traced(host: &Host, key: &str, case: &str) -> Value {
    let mut last = Value::Null;
    let from = std::time::Instant::now();
    while from.elapsed() < Duration::from_secs(30) {
        last = json(host, &["trace", key]).1;
        if last["case"] == case {
            assert_eq!(last["checks"].as_array().unwrap().len(), 5, "{last:#}");
            return last;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{key}: never {case}: {last:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_the_planted_cases_of_a_missing_message_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut host = host(folder.path(), port);
    host.start().await;
    let row = |id: &str| value!({ "kind": "row", "id": id });
    let says = |answer: &Value, words: &str| {
        let cause = answer["cause"].as_str().unwrap();
        assert!(cause.contains(words), "{cause}");
    };

    // 1. It is there. 2. It came twice.
    post(port, "k-row", &row("a")).await;
    let answer = traced(&host, "k-row", "delivered").await;
    says(&answer, "table delivered");
    post(port, "k-row", &row("a")).await;
    says(&traced(&host, "k-row", "delivered").await, "repeats");
    // By the key of its write, too.
    let key = read_table(&folder.path().join("out.db"), "t")["a"][0].clone();
    let key = key.split('#').next().unwrap();
    traced(&host, key, "delivered").await;

    // 3. No route wants it; and that is in the log, since the adapter asks for it.
    post(port, "k-none", &value!({ "kind": "other" })).await;
    let answer = traced(&host, "k-none", "no_route").await;
    assert_eq!(answer["events"][0]["code"], "discarded", "{answer:#}");
    // 4. A condition fails on it.
    post(port, "k-cond", &value!({ "kind": "picky", "n": "x" })).await;
    says(
        &traced(&host, "k-cond", "condition_error").await,
        "route picky",
    );
    // 5. A transform fails on it.
    post(port, "k-trans", &value!({ "kind": "broken", "n": "x" })).await;
    says(
        &traced(&host, "k-trans", "transform_failed").await,
        "route broken",
    );
    // 6. Its route has no sends.
    post(port, "k-audit", &value!({ "kind": "audit" })).await;
    says(&traced(&host, "k-audit", "no_send").await, "route audit");
    // 7. The destination refuses it.
    post(port, "k-bad", &row("bad")).await;
    says(
        &traced(&host, "k-bad", "parked").await,
        "consign failed send-again 1",
    );
    // 8. A person gave it up.
    ok(&host, &["failed", "skip", "1"]);
    says(&traced(&host, "k-bad", "skipped").await, "ann skipped");
    // 9. A person paused its lane.
    ok(&host, &["pause", "hooks/rows/table"]);
    post(port, "k-paused", &row("p")).await;
    says(
        &traced(&host, "k-paused", "paused").await,
        "hooks/rows/table",
    );
    ok(&host, &["resume", "hooks/rows/table"]);
    traced(&host, "k-paused", "delivered").await;
    // 10. Its destination is away.
    away(folder.path());
    post(port, "k-away", &value!({ "kind": "file", "id": "f" })).await;
    says(
        &traced(&host, "k-away", "gate_closed").await,
        "connection files",
    );
    // 11. It has not come in: its source is paused.
    ok(&host, &["pause", "adapter:hooks"]);
    says(
        &traced(&host, "k-never", "source_paused").await,
        "consign resume hooks",
    );
    ok(&host, &["resume", "adapter:hooks"]);
    // 12. Nobody has seen it.
    let (code, _) = json(&host, &["trace", "k-never"]);
    assert_eq!(code, 1, "not found is a failure");
    traced(&host, "k-never", "unknown").await;
    // 13. It was accepted by a run whose memory is gone.
    host.kill();
    host.start().await;
    traced(&host, "k-row", "accepted_before").await;
    back(folder.path());
    drained(&host).await;

    // Discards are counted by route and reason.
    post(port, "k-trans-2", &value!({ "kind": "broken", "n": "x" })).await;
    let status = host.get("/api/v1/status").await.unwrap();
    let routes = &status["adapters"][0]["routes"];
    assert_eq!(routes[1]["name"], "broken");
    assert_eq!(routes[1]["counts"]["transform_failed"], 1, "{routes:#}");
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_leaves_a_report_that_adds_up_also_over_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut host = host(folder.path(), port);
    host.start().await;
    away(folder.path());
    for n in 0..40 {
        let body = value!({ "kind": "file", "id": format!("f{n}") });
        assert!(post(port, &format!("k{n}"), &body).await < 300);
    }
    let open = eventually("an open report", || {
        let outages = ok(&host, &["outages"]);
        outages
            .get(0)
            .filter(|one| one["report"]["held"] == 40)
            .cloned()
    })
    .await;
    assert_eq!(open["connection"], "files");
    assert!(open["to_unix_ms"].is_null());
    let (code, why) = json(&host, &["wait", "drained", "--timeout", "1s"]);
    assert_eq!(code, 4, "{why:#}");
    assert!(why.to_string().contains("hooks/file/file"), "{why:#}");
    host.kill();
    host.start().await;
    back(folder.path());
    ok(&host, &["wait", "drained", "--timeout", "60s"]);
    ok(&host, &["wait", "calm", "--timeout", "30s"]);
    let outages = ok(&host, &["outages", "--connection", "files"]);
    let one = &outages[0];
    assert_eq!(
        one["id"], open["id"],
        "one report over both runs: {outages:#}"
    );
    let report = &one["report"];
    assert_eq!(report["held"], 40, "{one:#}");
    assert_eq!(
        report["delivered"].as_u64().unwrap() + report["parked"].as_u64().unwrap(),
        40,
        "{one:#}"
    );
    assert!(one["to_unix_ms"].as_i64() > one["from_unix_ms"].as_i64());
    let started = ok(&host, &["events", "--code", "outage_started"]);
    let ended = ok(&host, &["events", "--code", "outage_ended"]);
    assert_eq!(started.as_array().unwrap().len(), 1, "{started:#}");
    assert_eq!(ended.as_array().unwrap().len(), 1, "{ended:#}");
    assert_eq!(ended[0]["fields"]["held"], 40, "{ended:#}");
    assert_eq!(host.stop(), Some(0));
    // The report is there for a stopped host as well.
    let stopped = ok(&host, &["outages", "--data-dir", "data"]);
    assert_eq!(stopped[0]["id"], open["id"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drill_holds_writes_and_swallowed_replies_make_no_copy_at_a_keyed_table() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut host = host(folder.path(), port);
    host.start().await;
    ok(&host, &["drill", "--connection", "table", "--for", "3s"]);
    let (code, why) = json(&host, &["drill", "--connection", "table", "--for", "3s"]);
    assert_eq!(code, 1, "{why:#}");
    for n in 0..10 {
        post(
            port,
            &format!("d{n}"),
            &value!({ "kind": "row", "id": format!("d{n}") }),
        )
        .await;
    }
    traced(&host, "d5", "gate_closed").await;
    ok(&host, &["wait", "drained", "--timeout", "60s"]);
    ok(&host, &["wait", "calm", "--timeout", "30s"]);
    let outages = ok(&host, &["outages"]);
    assert_eq!(outages[0]["report"]["drill"], true, "{outages:#}");
    assert_eq!(outages[0]["report"]["delivered"], 10, "{outages:#}");
    let events = ok(&host, &["events", "--code", "drill_ended"]);
    assert_eq!(events.as_array().unwrap().len(), 1);

    // Replies vanish: the rows land, the host cannot know, sends again, and the key drops the repeat.
    ok(
        &host,
        &[
            "drill",
            "--connection",
            "table",
            "--for",
            "3s",
            "--swallow-replies",
        ],
    );
    for n in 0..10 {
        post(
            port,
            &format!("s{n}"),
            &value!({ "kind": "row", "id": format!("s{n}") }),
        )
        .await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    ok(&host, &["wait", "drained", "--timeout", "60s"]);
    let rows = read_table(&folder.path().join("out.db"), "t");
    assert_eq!(rows.len(), 20);
    assert!(rows.values().all(|keys| keys.len() == 1));
    let status = host.get("/api/v1/status").await.unwrap();
    let lane = status["lanes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|lane| lane["id"] == "hooks/rows/table")
        .unwrap();
    assert!(
        lane["outcomes"]["delivered_as_repeat"].as_u64() > Some(0),
        "the drill made nothing vanish: {lane:#}"
    );
    for (args, code) in [
        (["drill", "--connection", "nope"].as_slice(), 2),
        (&["drill", "--connection", "table", "--for", "2h"], 2),
        (&["pause", "nope"], 2),
        (&["wait", "drained", "nope"], 2),
    ] {
        assert_eq!(json(&host, args).0, code, "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_over_a_restart_and_says_who_made_it() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut host = host(folder.path(), port);
    host.start().await;
    ok(&host, &["pause", "table"]);
    let again = ok(&host, &["pause", "table"]);
    assert_eq!(again["changed"], false);
    host.kill();
    host.start().await;
    post(port, "k", &value!({ "kind": "row", "id": "a" })).await;
    traced(&host, "k", "paused").await;
    assert_eq!(json(&host, &["wait", "drained", "--timeout", "0"]).0, 4);
    ok(&host, &["resume", "table"]);
    ok(&host, &["wait", "drained"]);
    ok(&host, &["wait", "ready"]);
    let events = ok(&host, &["events", "--code", "operator_acted"]);
    let who: Vec<&Value> = events
        .as_array()
        .unwrap()
        .iter()
        .map(|event| &event["fields"]["who"])
        .collect();
    assert_eq!(who, ["ann", "ann"], "{events:#}");
    // A table for people, nothing else on stdout, and no host is code 3.
    let output = consign(&host, "ann", &["outages"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "no outages\n");
    assert_eq!(host.stop(), Some(0));
    assert_eq!(json(&host, &["outages"]).0, 3);
    assert_eq!(json(&host, &["wait", "live", "--timeout", "300ms"]).0, 4);
}

/// It was paused a moment after it was put in, and now and then one write slipped out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_lane_sends_nothing_at_a_start_and_is_traced_by_the_clients_key() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut host = host(folder.path(), port);
    host.start().await;
    ok(&host, &["pause", "hooks/rows/table"]);
    for n in 0..10 {
        let body = value!({ "kind": "row", "id": format!("p{n}") });
        post(port, &format!("p{n}"), &body).await;
        host.kill();
        host.start().await;
        let rows = read_table(&folder.path().join("out.db"), "t");
        assert_eq!(rows.len(), 0, "start {n}: {rows:?}");
    }
    // This run has not seen it come: what waits is found by the name that the key gives it.
    traced(&host, "p3", "paused").await;
    ok(&host, &["resume", "hooks/rows/table"]);
    ok(&host, &["wait", "drained"]);
    assert_eq!(read_table(&folder.path().join("out.db"), "t").len(), 10);
    traced(&host, "p3", "accepted_before").await;
}

/// A command that goes on until the host is gone, and the documents it writes, one a line.
struct Watch {
    child: std::process::Child,
    lines: std::sync::mpsc::Receiver<Value>,
}

impl Watch {
    fn start(host: &Host, args: &[&str]) -> Self {
        use std::io::{BufRead as _, BufReader};
        let mut child = std::process::Command::new(&consign_e2e::built().consign)
            .args(args)
            .env("CONSIGN_HOST", host.url(""))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let read = BufReader::new(child.stdout.take().unwrap()).lines();
        let (seen, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in read.map_while(Result::ok) {
                drop(seen.send(serde_json::from_str(&line).unwrap()));
            }
        });
        Self { child, lines }
    }

    /// The first document that holds.
    fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let from = Instant::now();
        let patience = Duration::from_secs(30);
        loop {
            let line = self.lines.recv_timeout(patience).expect(what);
            if holds(&line) {
                return line;
            }
            assert!(from.elapsed() < patience, "never seen: {what}");
        }
    }

    /// Waits for its end, which says that the host is gone.
    fn ended(self) {
        let ended = self.child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(3), "the host is gone");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.contains("no host answers"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watched_status_and_followed_events_go_with_the_host_and_end_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut host = host(folder.path(), port);
    host.start().await;
    let status = Watch::start(&host, &["status", "--watch", "--json"]);
    let events = Watch::start(&host, &["events", "--follow", "--jsonl"]);
    let accepted = |status: &Value| status["adapters"][0]["outcomes"]["accepted"].as_u64();
    status.until("nothing accepted", |status| {
        accepted(status).unwrap_or(0) == 0
    });
    events.until("its start", |event| event["code"] == "host_started");
    post(port, "w", &value!({ "kind": "row", "id": "w" })).await;
    status.until("one accepted", |status| accepted(status) == Some(1));
    ok(&host, &["pause", "adapter:hooks"]);
    let paused = events.until("a pause", |event| event["code"] == "adapter_paused");
    assert_eq!(paused["fields"]["who"], "ann", "{paused:#}");
    assert_eq!(host.stop(), Some(0));
    status.ended();
    events.ended();
}
