//! Failed messages in the hands of people: sent again, edited, skipped, moved, exported, with a host that
//! is killed meanwhile.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{assert_ledgers, drained, read_table, rebuild_table};
use consign_e2e::{Host, free_port};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

/// A host whose table refuses amounts of a hundred and more.
struct Scene {
    folder: tempfile::TempDir,
    host: Host,
    port: u16,
}

/// Rows go in under their key; a constraint refuses what is too much.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS t (id TEXT, amount REAL CHECK (amount < 100), write_key TEXT UNIQUE)";

impl Scene {
    async fn start() -> Self {
        let scene = Self::prepared("");
        scene.run().await
    }

    fn prepared(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        open(folder.path()).execute_batch(TABLE).unwrap();
        let host = Host::new(
            folder.path(),
            &format!(
                r#"
redact: [body.card]
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{port}" }} }}
  table: {{ connector: sqlite, config: {{ path: ./out.db, busy_timeout: 5s }} }}
  files: {{ connector: localfile, config: {{ root: ./files }} }}
adapters:
  hooks:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: all
        transforms: [{{ vrl: '.body.seen = true' }}]
        send:
          - id: table
            connection: table
            operation: sqlite.write
            config: {{ table: t, columns: {{ id: "{{{{ .body.id }}}}", amount: "{{{{ .body.amount }}}}" }}, write_key_column: write_key }}
          - id: receipt
            after: table
            connection: files
            operation: localfile.write.local
            config: {{ path: "receipts/{{{{ .body.id }}}}.json" }}
  blobs:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /blobs }} }}
    routes:
      - name: spare
        match: spare.never
        send:
          - {{ id: file, connection: files, operation: localfile.write.local, config: {{ path: spare.bin }} }}
      - name: all
        send:
          - id: file
            connection: files
            operation: localfile.write.local
            config: {{ path: "{{{{ .headers.\"x-name\" }}}}" }}
{more}"#
            ),
        );
        std::fs::create_dir(folder.path().join("files")).unwrap();
        Self { folder, host, port }
    }

    async fn run(mut self) -> Self {
        self.host.start().await;
        self
    }

    fn consign(&self, who: &str, args: &[&str]) -> Output {
        common::consign(&self.host, who, args)
    }

    fn json(&self, args: &[&str]) -> (i32, Value) {
        common::json(&self.host, args)
    }

    fn ok(&self, args: &[&str]) -> Value {
        common::ok(&self.host, args)
    }

    async fn post(&self, body: &str) {
        post(self.port, body).await;
    }

    /// Waits until so many messages are parked; their lines.
    async fn parked(&self, count: usize) -> Vec<Value> {
        let from = Instant::now();
        loop {
            let list = self.ok(&["failed", "list", "--state", "parked", "--limit", "100000"]);
            let list = list.as_array().unwrap().clone();
            if list.len() >= count {
                assert_eq!(list.len(), count);
                return list;
            }
            assert!(
                from.elapsed() < Duration::from_secs(90),
                "{} of {count} parked\n{}",
                list.len(),
                self.host.log()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn rows(&self) -> BTreeMap<String, Vec<String>> {
        read_table(&self.folder.path().join("out.db"), "t")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn open(folder: &Path) -> rusqlite::Connection {
    let db = rusqlite::Connection::open(folder.join("out.db")).unwrap();
    db.busy_timeout(Duration::from_secs(20)).unwrap();
    db
}

async fn post(port: u16, body: &str) {
    let client = reqwest::Client::new();
    let from = std::time::Instant::now();
    // The API answers before the source listens.
    let response = loop {
        let sent = client
            .post(format!("http://127.0.0.1:{port}/in"))
            .header("content-type", "application/json")
            .body(body.to_owned())
            .send()
            .await;
        match sent {
            Err(error) if error.is_connect() && from.elapsed() < Duration::from_secs(20) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            sent => break sent.unwrap(),
        }
    };
    assert!(response.status().is_success(), "{}", response.status());
}

/// The constraint goes away: what was refused is taken now.
fn mend(folder: &Path) {
    rebuild_table(&open(folder), "id TEXT, amount REAL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_write_is_shown_edited_and_sent_again_with_its_receipt() {
    let scene = Scene::start().await;
    scene
        .post(r#"{"id": "a", "amount": 250, "card": "4111"}"#)
        .await;
    let line = scene.parked(1).await.remove(0);
    assert_eq!(line["applied"], "no");
    let id = line["id"].to_string();

    let shown = scene.ok(&["failed", "show", &id]);
    assert_eq!(shown["diagnosis"]["reason"], "refused", "{shown:#}");
    assert_eq!(shown["dependents"][0]["send"], "receipt");
    assert!(
        !shown.to_string().contains("4111"),
        "a configured field shows: {shown:#}"
    );
    assert!(
        shown["original"].as_str().unwrap().contains("250"),
        "the message before its transform is kept: {shown:#}"
    );
    let causes = scene.ok(&["failed", "list", "--causes"]);
    assert_eq!(causes[0]["waiting"], 1);

    // It is refused once more while nothing has changed, and waits again.
    scene.ok(&["failed", "send-again", &id]);
    let from = Instant::now();
    while scene.ok(&["failed", "show", &id])["parkings"] != 2 {
        assert!(
            from.elapsed() < Duration::from_secs(30),
            "{}",
            scene.host.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // An edit of a refused write keeps the key; what waits for it becomes a person's matter.
    let body = scene.consign("ann", &["failed", "show", &id, "--body"]);
    let mut edited: Value = serde_json::from_slice(&body.stdout).unwrap();
    edited["amount"] = json!(25);
    std::fs::write(scene.path("edited.json"), edited.to_string()).unwrap();
    let answer = scene.ok(&["failed", "edit", &id, "--body-file", "edited.json"]);
    assert_eq!(answer["split_dependents"], 1, "{answer:#}");
    let (code, why) = scene.json(&["failed", "edit", &id, "--header", "=x"]);
    assert_eq!(code, 2, "{why:#}");
    let (code, _) = scene.json(&["failed", "edit", &id]);
    assert_eq!(code, 2, "nothing to edit is wrong input");
    // The column that is made from the body follows the edit, so the constraint takes it now.
    scene.ok(&["failed", "send-again", &id]);
    let receipts = scene.ok(&["failed", "list", "--send", "receipt"]);
    let receipt = receipts[0]["id"].to_string();
    assert_eq!(receipts[0]["reason"], "parent", "{receipts:#}");
    scene.ok(&["failed", "send-again", &receipt]);
    let status = drained(&scene.host).await;
    assert_ledgers(&status);
    let rows = scene.rows();
    assert_eq!(rows["a"].len(), 1);
    let key = shown["write_key"].as_str().unwrap();
    assert_eq!(rows["a"][0], format!("{key}#0"), "an edit keeps the key");
    assert!(scene.path("files/receipts/a.json").exists());

    let shown = scene.ok(&["failed", "show", &id]);
    assert_eq!(shown["state"], "sent_again");
    let acts: Vec<&str> = shown["claims"]
        .as_array()
        .unwrap()
        .iter()
        .map(|claim| claim["act"].as_str().unwrap())
        .collect();
    assert_eq!(acts, ["send_again", "edit", "send_again"]);
    assert!(shown["claims"].to_string().contains("ann"));
    let events = scene.ok(&["events", "--code", "operator_acted"]);
    assert_eq!(events.as_array().unwrap().len(), 4, "{events:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parent_and_receipt_come_back_as_one_and_the_receipt_waits() {
    let scene = Scene::start().await;
    scene.post(r#"{"id": "a", "amount": 250}"#).await;
    let id = scene.parked(1).await[0]["id"].to_string();
    mend(scene.folder.path());
    scene.ok(&["failed", "send-again", &id]);
    drained(&scene.host).await;
    assert_eq!(scene.rows()["a"].len(), 1);
    assert!(scene.path("files/receipts/a.json").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_operators_who_send_the_same_again_one_wins() {
    let scene = Scene::start().await;
    for n in 0..20 {
        scene
            .post(&format!(r#"{{"id": "{n}", "amount": 250}}"#))
            .await;
    }
    let ids: Vec<String> = scene
        .parked(20)
        .await
        .iter()
        .map(|line| line["id"].to_string())
        .collect();
    mend(scene.folder.path());
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let runs: Vec<_> = ["ann", "bob", "cid"]
            .map(|who| {
                let (scene, ids) = (&scene, &ids);
                scope.spawn(move || {
                    let mut args = vec!["failed", "send-again", "--json"];
                    args.extend(ids.iter().map(String::as_str));
                    scene.consign(who, &args)
                })
            })
            .into_iter()
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let mut done = 0;
    for output in outputs {
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        done += answer["done"].as_array().unwrap().len();
        let lost = answer["failed"].as_array().unwrap();
        assert_eq!(
            output.status.code(),
            Some(i32::from(!lost.is_empty())),
            "losing a claim is an error of the work"
        );
        for one in lost {
            let why = one["error"].as_str().unwrap();
            assert!(why.contains("nothing was done"), "{why}");
        }
    }
    assert_eq!(done, 20);
    let status = drained(&scene.host).await;
    assert_ledgers(&status);
    let lane = status["lanes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|lane| lane["id"] == "hooks/all/table")
        .unwrap();
    assert_eq!(
        lane["accepted"], 40,
        "each was in the lane twice at all: {lane:#}"
    );
    assert!(scene.rows().values().all(|keys| keys.len() == 1));
}

/// 1,204 of one cause are sent again while more come in and the host is killed, several times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_over_1204_sends_each_once_although_the_host_is_killed() {
    const COUNT: usize = 1_204;
    let mut scene = Scene::start().await;
    let client = reqwest::Client::new();
    let url = format!("http://127.0.0.1:{}/in", scene.port);
    let posts = futures::stream::iter((0..COUNT).map(|n| {
        let (client, url) = (client.clone(), url.clone());
        async move {
            client
                .post(url)
                .header("content-type", "application/json")
                .body(format!(r#"{{"id": "old-{n}", "amount": 250}}"#))
                .send()
                .await
                .unwrap()
                .error_for_status()
                .unwrap();
        }
    }));
    futures::StreamExt::collect::<Vec<()>>(futures::StreamExt::buffer_unordered(posts, 64)).await;
    scene.parked(COUNT).await;
    let causes = scene.ok(&["failed", "list", "--causes"]);
    assert_eq!(causes[0]["waiting"], COUNT, "{causes:#}");
    let cause = causes[0]["id"].to_string();

    // More of the same cause come in: the selection is frozen, they are not part of it.
    let dry = scene.ok(&["failed", "send-again", "--cause", &cause, "--dry-run"]);
    assert_eq!(dry["total"], COUNT);
    let job = scene.ok(&["failed", "send-again", "--cause", &cause, "--rate", "400"]);
    assert_eq!(job["total"], COUNT);
    let job = job["job"].to_string();
    for n in 0..10 {
        scene
            .post(&format!(r#"{{"id": "new-{n}", "amount": 250}}"#))
            .await;
    }
    // Lock the table for a moment, so that what is sent again waits in its lane when the host dies.
    for _ in 0..3 {
        let from = Instant::now();
        let before = scene.ok(&["jobs", &job])["done"].as_u64().unwrap();
        while scene.ok(&["jobs", &job])["done"].as_u64().unwrap() < before + 100 {
            assert!(from.elapsed() < Duration::from_secs(60));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        scene.host.kill();
        scene.host.start().await;
    }
    mend(scene.folder.path());
    let done = scene.ok(&["jobs", &job, "--wait"]);
    assert_eq!(
        (&done["state"], &done["done"], &done["failed"]),
        (&json!("finished"), &json!(COUNT), &json!(0)),
        "{done:#}"
    );
    drained(&scene.host).await;
    // What was refused again before the mending waits again: one more job takes all that are left.
    let left = scene.ok(&["failed", "send-again", "--cause", &cause, "--wait"]);
    assert_eq!(left["failed"], 0, "{left:#}");
    let status = drained(&scene.host).await;
    assert_ledgers(&status);
    let rows = scene.rows();
    let old = rows.keys().filter(|id| id.starts_with("old-")).count();
    assert_eq!(old, COUNT);
    assert!(rows.values().all(|keys| keys.len() == 1));
    // The keys hide a write that was in its lane twice, so the books are compared: every claim that
    // was carried out put one write into the lane, and nothing else did.
    let lane = status["lanes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|lane| lane["id"] == "hooks/all/table")
        .unwrap();
    let ledger = rusqlite::Connection::open(scene.host.data().join("ledger.db")).unwrap();
    let count = |sql: &str| {
        ledger
            .query_row(sql, [], |row| row.get::<_, u64>(0))
            .unwrap()
    };
    let carried_out = count("SELECT count(*) FROM claims WHERE result = 'sent_again'");
    assert_eq!(
        lane["accepted"].as_u64().unwrap(),
        u64::try_from(COUNT).unwrap() + 10 + carried_out,
        "{lane:#}"
    );
    let by_job = count(&format!(
        "SELECT count(*) FROM claims WHERE result = 'sent_again' AND who LIKE 'job {job} (%'"
    ));
    assert_eq!(
        by_job,
        u64::try_from(COUNT).unwrap(),
        "each of the selection, once"
    );
    let twice = count(&format!(
        "SELECT count(*) FROM (SELECT failed FROM claims WHERE result = 'sent_again'
         AND who LIKE 'job {job} (%' GROUP BY failed HAVING count(*) > 1)"
    ));
    assert_eq!(twice, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_skip_is_taken_back_and_a_purge_is_not() {
    let scene = Scene::start().await;
    scene.post(r#"{"id": "a", "amount": 250}"#).await;
    let id = scene.parked(1).await[0]["id"].to_string();
    scene.ok(&["failed", "skip", &id]);
    let (code, why) = scene.json(&["failed", "send-again", &id]);
    assert_eq!(code, 1, "{why:#}");
    assert!(
        why["failed"][0]["error"]
            .as_str()
            .unwrap()
            .contains("skipped")
    );
    assert_eq!(scene.ok(&["failed", "list", "--causes"]), json!([]));
    scene.ok(&["failed", "restore", &id]);
    mend(scene.folder.path());
    scene.ok(&["failed", "send-again", &id]);
    drained(&scene.host).await;
    assert!(
        scene.path("files/receipts/a.json").exists(),
        "the receipt came back with it"
    );
    scene.ok(&["failed", "purge", &id]);
    scene.ok(&["failed", "show", &id]);
    scene.ok(&["failed", "purge", &id, "--yes"]);
    assert_eq!(scene.json(&["failed", "show", &id]).0, 2);
    assert_eq!(scene.ok(&["failed", "list"]), json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binary_bodies_survive_export_import_and_send_again() {
    let mut scene = Scene::start().await;
    let body: Vec<u8> = (0..=255).chain([0, 255, 10, 13]).collect();
    let response = reqwest::Client::new()
        .post(format!("http://127.0.0.1:{}/blobs", scene.port))
        .header("content-type", "application/octet-stream")
        .header("x-name", "../out/of/here")
        .body(body.clone())
        .send()
        .await
        .unwrap();
    assert!(response.status().is_success());
    let id = scene.parked(1).await[0]["id"].to_string();
    scene.ok(&["failed", "export", "all.jsonl"]);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(scene.path("all.jsonl"))
            .unwrap()
            .permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    // The redacted copy can be read and never sent.
    scene.ok(&["failed", "export", "clean.jsonl", "--redacted"]);
    scene.ok(&["failed", "purge", &id, "--yes"]);
    let added = scene.ok(&["failed", "import", "clean.jsonl"]);
    let copy = added["added"][0].to_string();
    let (code, why) = scene.json(&["failed", "send-again", &copy]);
    assert_eq!(code, 1);
    assert!(
        why.to_string()
            .contains("redacted copy (replayable: false)"),
        "{why:#}"
    );
    scene.ok(&["failed", "purge", &copy, "--yes"]);

    // On the stopped host's folder, and with the lock respected while it runs.
    let (code, why) = scene.json(&["failed", "import", "all.jsonl", "--data-dir", "data"]);
    assert_eq!(code, 2, "{why:#}");
    assert!(why.to_string().contains("a host runs on it"), "{why:#}");
    assert_eq!(scene.host.stop(), Some(0));
    let added = scene.ok(&["failed", "import", "all.jsonl", "--data-dir", "data"]);
    let id = added["added"][0].to_string();
    let again = scene.ok(&["failed", "import", "all.jsonl", "--data-dir", "data"]);
    assert_eq!(again["already_there"], 1);
    let (code, _) = scene.json(&["failed", "send-again", &id, "--data-dir", "data"]);
    assert_eq!(code, 2, "sending needs the running host");
    scene.host.start().await;
    let output = scene.consign("ann", &["failed", "show", &id, "--body"]);
    assert_eq!(output.stdout, body);
    // Its name leads out of the folder, so it is refused again; another send takes the bytes as they are.
    scene.ok(&["failed", "send-again", &id]);
    scene.parked(1).await;
    scene.ok(&["failed", "move", &id, "--to", "blobs/spare/file"]);
    let status = drained(&scene.host).await;
    assert_ledgers(&status);
    assert_eq!(std::fs::read(scene.path("files/spare.bin")).unwrap(), body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_acts_without_the_token() {
    let scene = Scene::start().await;
    let client = reqwest::Client::new();
    let command = json!({ "command": "failed_list", "filter": {} });
    let url = scene.host.url("/api/v1/commands");
    for token in [None, Some("wrong"), Some("")] {
        let mut request = client.post(&url).json(&command);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        assert_eq!(request.send().await.unwrap().status(), 401);
    }
    let token = std::fs::read_to_string(scene.host.data().join("token")).unwrap();
    let meta = std::fs::metadata(scene.host.data().join("token")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&meta.permissions());
    assert_eq!(mode & 0o777, 0o600);
    let response = client.post(&url).json(&command).bearer_auth(&token).send();
    assert_eq!(
        response.await.unwrap().json::<Value>().await.unwrap(),
        json!([])
    );
    let response = client
        .post(&url)
        .json(&json!({ "command": "failed_lost" }))
        .bearer_auth(&token)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 400);
    let output = scene.consign("ann", &["failed", "list", "--json", "--token", "wrong"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(output.stdout.is_empty());
    serde_json::from_slice::<Value>(&output.stderr).expect("errors are JSON under --json");
}

/// The send frontier runs ahead of what was accepted; after a crash new writes below it counted as maybe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_accepted_after_a_crash_was_never_on_its_way_before() {
    let mut scene = Scene::start().await;
    scene.post(r#"{"id": "before", "amount": 250}"#).await;
    scene.parked(1).await;
    for n in 2..=3 {
        scene.host.kill();
        scene.host.start().await;
        scene
            .post(&format!(r#"{{"id": "after {n}", "amount": 250}}"#))
            .await;
        let lines = scene.parked(n).await;
        assert!(
            lines.iter().all(|line| line["applied"] == "no"),
            "{lines:#?}"
        );
    }
    let status = scene.host.get("/api/v1/status").await.unwrap();
    assert_eq!(
        common::lane(&status, "hooks/all/table")["resends"],
        0,
        "{status:#}"
    );
}

/// A table without a key behind a drill that throws answers away: what is parked may have landed.
const PLAIN: &str = r#"  plain:
    source: { connection: hooks, operation: http.receive, config: { path: /plain } }
    routes:
      - name: all
        send:
          - id: plain
            connection: spare
            operation: sqlite.write
            config: { table: p, columns: { id: "{{ .body.id }}" } }
            on_ambiguous: park
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_of_a_write_that_may_have_landed_asks_which_key_it_gets() {
    let scene = Scene::prepared(PLAIN);
    let config = std::fs::read_to_string(scene.host.config()).unwrap();
    let config = config.replacen(
        "connections:\n",
        "connections:\n  spare: { connector: sqlite, config: { path: ./spare.db } }\n",
        1,
    );
    std::fs::write(scene.host.config(), config).unwrap();
    let spare = rusqlite::Connection::open(scene.path("spare.db")).unwrap();
    spare.execute_batch("CREATE TABLE p (id TEXT)").unwrap();
    let scene = scene.run().await;
    let drill = [
        "drill",
        "--connection",
        "spare",
        "--for",
        "2s",
        "--swallow-replies",
        "--yes",
    ];
    scene.ok(&drill);
    let client = reqwest::Client::new();
    let url = format!("http://127.0.0.1:{}/plain", scene.port);
    for id in ["a", "b"] {
        let body = json!({ "id": id });
        let sent = client.post(&url).json(&body).send().await.unwrap();
        assert!(sent.status().is_success());
    }
    let lines = scene.parked(2).await;
    assert!(
        lines.iter().all(|line| line["reason"] == "may_have_landed"),
        "{lines:#?}"
    );
    // With nothing held the outage is over before the drill is, which would swallow one more answer.
    common::wait_for_event(&scene.host, "drill_ended").await;
    scene.ok(&["wait", "calm", "--timeout", "60s"]);

    let (first, second) = (lines[0]["id"].to_string(), lines[1]["id"].to_string());
    let body = scene.path("edited.json");
    std::fs::write(&body, r#"{"id": "edited"}"#).unwrap();
    let body = body.display().to_string();
    let edit = |id: &str, more: &[&str]| {
        let args = ["failed", "edit", id, "--body-file", &body];
        scene.json(&args.iter().chain(more).copied().collect::<Vec<_>>())
    };
    let (code, why) = edit(&first, &[]);
    assert_eq!(code, 2, "{why:#}");
    let why = why.to_string();
    for said in [
        "may have landed",
        "--same-key",
        "--new-key",
        "is a further write",
    ] {
        assert!(why.contains(said), "{said}: {why}");
    }
    let key = |id: &str| scene.ok(&["failed", "show", id])["write_key"].clone();
    let (key_1, key_2) = (key(&first), key(&second));
    assert_eq!(edit(&first, &["--same-key"]).0, 0);
    assert_eq!(edit(&second, &["--new-key"]).0, 0);
    assert_eq!(key(&first), key_1);
    assert_ne!(key(&second), key_2);
    scene.ok(&["failed", "send-again", &first, &second]);
    drained(&scene.host).await;
    let count = |id: &str| -> i64 {
        let sql = "SELECT count(*) FROM p WHERE id = ?";
        spare.query_row(sql, [id], |row| row.get(0)).unwrap()
    };
    // This table drops no repeats: both landed in the drill, and both edits are further rows.
    assert!(count("a") >= 1 && count("b") >= 1);
    assert_eq!(count("edited"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_acts_on_is_kept_until_retention_ends_and_its_end_is_told() {
    let scene = Scene::prepared("");
    let config = std::fs::read_to_string(scene.host.config()).unwrap();
    let mut scene = scene.run().await;
    scene.post(r#"{"id": "old", "amount": 250}"#).await;
    scene.post(r#"{"id": "skipped", "amount": 250}"#).await;
    let lines = scene.parked(2).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        scene.parked(2).await.len(),
        2,
        "retention is off by default"
    );

    // A skip changes the message: its time begins again.
    std::fs::write(
        scene.host.config(),
        format!("failed: {{ retention: 15s }}\n{config}"),
    )
    .unwrap();
    let skipped = lines[1]["id"].to_string();
    scene.ok(&["failed", "skip", &skipped]);
    let skipped_at = Instant::now();
    scene.host.kill();
    scene.host.start().await;
    let from = Instant::now();
    while scene.ok(&["failed", "list"]).as_array().unwrap().len() == 2 {
        assert!(
            from.elapsed() < Duration::from_secs(40),
            "{}",
            scene.host.log()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let left = scene.ok(&["failed", "list"]);
    if skipped_at.elapsed() < Duration::from_secs(15) {
        assert_eq!(left[0]["id"].to_string(), skipped, "{left:#}");
    }
    let from = Instant::now();
    while scene.ok(&["failed", "list"]) != json!([]) {
        assert!(
            from.elapsed() < Duration::from_secs(40),
            "{}",
            scene.host.log()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let told = scene.ok(&["events", "--code", "failed_expired"]);
    let sum = |name: &str| -> u64 {
        let of = |event: &Value| event["fields"][name].as_u64().unwrap();
        told.as_array().unwrap().iter().map(of).sum()
    };
    assert_eq!((sum("count"), sum("waiting")), (2, 1), "{told:#}");
    assert_eq!(scene.rows().len(), 0);
}
