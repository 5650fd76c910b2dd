//! Transforms, processors and error handlers of plugins, in a running host.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{assert_ledgers, drained, post, read_table, zoo};
use consign_e2e::{Host, built, free_port};
use serde_json::{Value, json as value};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A table that refuses ids which begin with `bad`.
fn picky(folder: &Path) -> PathBuf {
    let path = folder.join("out.db");
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch(
        "PRAGMA journal_mode = WAL;
         CREATE TABLE t (id TEXT CHECK (id NOT LIKE 'bad%'), write_key TEXT UNIQUE)",
    )
    .unwrap();
    path
}

/// http into the picky table, what `on_failure` says, and a table of dead letters.
fn hooks(port: u16, plugins: &str, steps: &str, on_failure: &str) -> String {
    format!(
        r#"{plugins}
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{port}" }} }}
  table: {{ connector: sqlite, config: {{ path: ./out.db, busy_timeout: 100ms }} }}
  dead: {{ connector: sqlite, config: {{ path: ./dead.db, busy_timeout: 100ms }} }}
redact: [body.card.number]
adapters:
  hooks:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: all
        when: '.headers."x-never" == null'
        {steps}
        {on_failure}
        send:
          - id: table
            connection: table
            operation: sqlite.write
            order: none
            config: {{ table: t, columns: {{ id: "{{{{ .body.id || .body.ID }}}}" }}, write_key_column: write_key }}
      - name: dead
        when: '.headers."x-never" != null'
        send:
          - id: letters
            connection: dead
            operation: sqlite.write
            config: {{ table: letters, create_table: true, body_column: body, write_key_column: write_key }}
"#
    )
}

const DEAD_LETTER: &str = "on_failure: { handler: dead_letter, divert: [hooks/dead/letters] }";

fn letters(folder: &Path) -> Vec<(Value, String)> {
    let path = folder.join("dead.db");
    if !path.exists() {
        return Vec::new();
    }
    let db = rusqlite::Connection::open(path).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    if !db.table_exists(None, "letters").unwrap() {
        return Vec::new();
    }
    let mut statement = db.prepare("SELECT body, write_key FROM letters").unwrap();
    let rows = statement.query_map([], |row| {
        let body: Value = match row.get_ref(0)? {
            rusqlite::types::ValueRef::Text(text) | rusqlite::types::ValueRef::Blob(text) => {
                serde_json::from_slice(text).unwrap()
            }
            other => panic!("{other:?}"),
        };
        Ok((body, row.get(1)?))
    });
    rows.unwrap().map(Result::unwrap).collect()
}

async fn send(client: &reqwest::Client, url: &str, body: &str) -> reqwest::StatusCode {
    let request = client
        .post(url)
        .header("content-type", "application/json")
        .header("authorization", "Bearer s3cret-token");
    request.body(body.to_owned()).send().await.unwrap().status()
}

async fn codes(host: &Host) -> Vec<String> {
    let events = host.get("/api/v1/events?limit=500").await.unwrap();
    let list = events.as_array().or(events["events"].as_array()).unwrap();
    list.iter()
        .map(|event| event["code"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_write_becomes_a_dead_letter_and_the_rest_flows() {
    let folder = tempfile::tempdir().unwrap();
    let out = picky(folder.path());
    let port = free_port();
    let mut host = Host::new(folder.path(), &hooks(port, "", "", DEAD_LETTER));
    host.start().await;
    let (client, url) = (
        reqwest::Client::new(),
        format!("http://127.0.0.1:{port}/in"),
    );
    post(&client, &url, "good-1").await;
    let card = r#"{"id": "bad-1", "card": {"number": "4111111111111111"}, "amount": 1.10}"#;
    assert!(send(&client, &url, card).await.is_success());
    post(&client, &url, "good-2").await;
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(read_table(&out, "t").len(), 2);
    let letters = letters(folder.path());
    assert_eq!(letters.len(), 1, "{letters:?}");
    let (record, key) = &letters[0];
    assert_eq!(record["format"], "consign.dead_letter/1");
    assert_eq!(record["routing"]["send"], "table");
    assert_eq!(record["routing"]["operation"], "sqlite.write");
    assert_eq!(record["diagnosis"]["class"], "refused");
    assert_eq!(record["diagnosis"]["applied"], "no");
    assert_eq!(record["replayable"], false, "something was taken out of it");
    let text = record.to_string();
    assert!(
        !text.contains("4111"),
        "a redacted field is in a copy: {text}"
    );
    assert!(
        !text.contains("s3cret"),
        "a credential is in a copy: {text}"
    );
    assert!(text.contains("bad-1"), "{text}");
    let original = record["write_key"].as_str().unwrap();
    assert_eq!(original.len(), 32);
    assert!(!key.starts_with(original), "the copy has a key of its own");
    let codes = codes(&host).await;
    assert!(
        codes.iter().any(|code| code == "write_diverted"),
        "{codes:?}"
    );
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_imported_and_sent_again_under_the_key_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let out = picky(folder.path());
    let port = free_port();
    let mut host = Host::new(folder.path(), &hooks(port, "", "", DEAD_LETTER));
    host.start().await;
    let client = reqwest::Client::new();
    let url = format!("http://127.0.0.1:{port}/in");
    let bodies = [
        r#"{"id": "bad-1", "amount": 1.10, "text": "zwölf"}"#,
        r#"{"id": "bad-2", "card": {"number": "4111111111111111"}}"#,
    ];
    for body in bodies {
        assert!(send(&client, &url, body).await.is_success());
    }
    drained(&host).await;
    let letters = letters(folder.path());
    let file = folder.path().join("letters.jsonl");
    let lines: String = letters
        .iter()
        .map(|(letter, _)| format!("{letter}\n"))
        .collect();
    std::fs::write(&file, lines).unwrap();
    let file = file.display().to_string();
    let import = ["failed", "import", &file];
    assert_eq!(
        common::ok(&host, &import)["added"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let again = common::ok(&host, &import);
    assert_eq!(
        (&again["added"], &again["already_there"]),
        (&value!([]), &value!(2))
    );

    let db = rusqlite::Connection::open(&out).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    db.execute_batch("DROP TABLE t; CREATE TABLE t (id TEXT, write_key TEXT UNIQUE)")
        .unwrap();
    let list = common::ok(&host, &["failed", "list", "--state", "parked"]);
    for one in list.as_array().unwrap() {
        let id = one["id"].to_string();
        let (code, said) = common::json(&host, &["failed", "send-again", &id]);
        let whole = one["replayable"] == true;
        assert_eq!(code == 0, whole, "{one:#} {said:#}");
        assert!(whole || said.to_string().contains("redacted"), "{said:#}");
    }
    assert_ledgers(&drained(&host).await);
    let rows = read_table(&out, "t");
    let (letter, _) = letters
        .iter()
        .find(|(letter, _)| letter["replayable"] == true)
        .expect("one of them is whole");
    let key = letter["write_key"].as_str().unwrap();
    assert_eq!(
        rows.keys().collect::<Vec<_>>(),
        ["bad-1"],
        "the redacted one stays"
    );
    assert_eq!(rows["bad-1"], [format!("{key}#0")]);

    // What is no dead letter, or of a send that is not here, is refused with its place in the file.
    let mut foreign = letter.clone();
    foreign["routing"]["send"] = "elsewhere".into();
    foreign["write_key"] = "0".repeat(32).into();
    std::fs::write(folder.path().join("letters.jsonl"), format!("{foreign}\n")).unwrap();
    let (code, why) = common::json(&host, &import);
    assert_eq!(code, 2, "{why:#}");
    let why = why.to_string();
    assert!(
        why.contains("record 1") && why.contains("hooks/all/elsewhere"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_whose_destination_is_down_waits_through_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let out = picky(folder.path());
    let port = free_port();
    let mut host = Host::new(folder.path(), &hooks(port, "", "", DEAD_LETTER));
    host.start().await;
    let (client, url) = (
        reqwest::Client::new(),
        format!("http://127.0.0.1:{port}/in"),
    );
    let lock = rusqlite::Connection::open(folder.path().join("dead.db")).unwrap();
    lock.execute_batch("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE")
        .unwrap();
    for id in ["bad-1", "bad-2", "bad-3"] {
        post(&client, &url, id).await;
    }
    post(&client, &url, "good").await;
    host.until("three letters wait", |status| {
        let lanes = status["lanes"].as_array().unwrap();
        let pending = |id: &str| {
            lanes
                .iter()
                .find(|lane| lane["id"] == id)
                .map(|lane| lane["pending"].clone())
        };
        pending("hooks/dead/letters") == Some(3.into())
            && pending("hooks/all/table") == Some(0.into())
    })
    .await;
    host.kill();
    host.start().await;
    drop(lock);
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(read_table(&out, "t").len(), 1);
    let mut keys: Vec<String> = letters(folder.path())
        .iter()
        .map(|(record, _)| record["write_key"].as_str().unwrap().to_owned())
        .collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 3, "each once: {keys:?}");
    assert_eq!(letters(folder.path()).len(), 3);
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugins_change_messages_discard_them_and_fail_alone() {
    let folder = tempfile::tempdir().unwrap();
    zoo(folder.path());
    let out = picky(folder.path());
    let port = free_port();
    // It writes bodies in upper case, the keys of a JSON object with them.
    let steps = "processors: [{ processor: zoo_upper, timeout: 1s }]";
    let config = hooks(port, "", steps, "");
    let mut host = Host::new(folder.path(), &config);
    with_zoo(&host);
    host.start().await;
    let (client, url) = (
        reqwest::Client::new(),
        format!("http://127.0.0.1:{port}/in"),
    );
    host.until("the source runs", |status| {
        status["adapters"][0]["state"] == "running"
    })
    .await;
    let posts = [
        "{\"id\": \"one\"}",
        "bad",
        "panic",
        "hang",
        "talks",
        // A body of 40 MiB: more than a record takes.
        "huge",
        "{\"id\": \"two\"}",
    ];
    let answers = futures::future::join_all(posts.map(|body| send(&client, &url, body))).await;
    assert!(
        !answers[1].is_success() && !answers[2].is_success() && !answers[3].is_success(),
        "{answers:?}"
    );
    // `.body.id` is not there any more once the body is upper case: null is rendered as nothing.
    assert!(
        !answers[4].is_success() && !answers[5].is_success(),
        "{answers:?}"
    );
    assert!(
        answers[0].is_success() && answers[6].is_success(),
        "{answers:?}"
    );
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(
        status["adapters"][0]["outcomes"]["dropped"], 4,
        "{status:#}"
    );
    let refused = &status["adapters"][0]["outcomes"]["refused_at_source"];
    assert_eq!(*refused, 1, "the one that is too large: {status:#}");
    assert!(host.log().len() < 1 << 20, "a plugin's tale fills the log");
    let codes = codes(&host).await;
    for code in ["processor_failed", "plugin_panicked", "message_dropped"] {
        assert!(codes.iter().any(|one| one == code), "{code}: {codes:?}");
    }
    let ids: Vec<String> = read_table(&out, "t").into_keys().collect();
    assert_eq!(ids, ["ONE", "TWO"]);
    assert_eq!(host.stop(), Some(0));
}

/// Lets the host find the zoo beside its configuration.
fn with_zoo(host: &Host) {
    let text = std::fs::read_to_string(host.config()).unwrap();
    let plugins = format!("plugins: [{}", built().plugins.display());
    let text = text.replace(&plugins, &format!("{plugins}, ."));
    std::fs::write(host.config(), text).unwrap();
}

/// A file of lines into the picky table, sent directly.
fn lines(on_failure: &str) -> String {
    format!(
        r#"
connections:
  logs: {{ connector: localfile, config: {{ root: ./logs }} }}
  table: {{ connector: sqlite, config: {{ path: ./out.db, busy_timeout: 100ms }} }}
adapters:
  logs:
    source: {{ connection: logs, operation: localfile.read, config: {{ path: "app.log", mode: tail, content_type: application/json }} }}
    {on_failure}
    routes:
      - name: all
        send:
          - id: table
            connection: table
            operation: sqlite.write
            delivery: direct
            config: {{ table: t, columns: {{ id: "{{{{ .body.id }}}}" }}, write_key_column: write_key }}
"#
    )
}

fn write_lines(folder: &Path) {
    std::fs::create_dir_all(folder.join("logs")).unwrap();
    let lines: String = ["one", "two", "bad-3", "four", "five"]
        .map(|id| format!("{{\"id\": \"{id}\"}}\n"))
        .concat();
    std::fs::write(folder.join("logs/app.log"), lines).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_stalls_its_partition_and_says_so_until_a_handler_isolates_it() {
    let folder = tempfile::tempdir().unwrap();
    let out = picky(folder.path());
    write_lines(folder.path());
    let mut host = Host::new(folder.path(), &lines(""));
    host.start().await;
    host.until("the write is refused again and again", |_| {
        read_table(&out, "t").len() == 2
    })
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(
        read_table(&out, "t").len(),
        2,
        "nothing overtakes in a file"
    );
    assert_eq!(host.stop(), Some(0));

    let text = std::fs::read_to_string(host.config()).unwrap();
    let handler = "    on_failure: { handler: isolate_poison }\n    routes:";
    std::fs::write(host.config(), text.replace("    routes:", handler)).unwrap();
    host.start().await;
    let status = host
        .until("the rest flows", |_| read_table(&out, "t").len() == 4)
        .await;
    assert_ledgers(&status);
    let status = host
        .until("all five are settled", |status| {
            status["adapters"][0]["in_process"] == 0
        })
        .await;
    assert_eq!(
        status["adapters"][0]["outcomes"]["handled"], 1,
        "{status:#}"
    );
    let codes = codes(&host).await;
    assert!(codes.iter().any(|code| code == "parked"), "{codes:?}");
    assert_eq!(host.stop(), Some(0));
}

/// Failures of a message before it has any write are counted over restarts: a handler that sets it aside after
/// six does so after six, however often the host was killed in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_a_processor_fails_on_is_counted_over_kills() {
    let folder = tempfile::tempdir().unwrap();
    zoo(folder.path());
    let out = picky(folder.path());
    std::fs::create_dir_all(folder.path().join("logs")).unwrap();
    std::fs::write(folder.path().join("logs/app.log"), "one\nbad\nthree\n").unwrap();
    let config = lines("").replace(
        "      - name: all\n",
        "      - name: all\n        on_failure: { handler: isolate_poison, config: { attempts: 6, wait: 400ms } }\n        processors: [{ processor: zoo_upper, config: { calls: ./calls } }]\n",
    );
    let config = config
        .replace("content_type: application/json", "content_type: text/plain")
        .replace("{{ .body.id }}", "{{ .body }}");
    let mut host = Host::new(folder.path(), &config);
    with_zoo(&host);
    let calls = || {
        let text = std::fs::read_to_string(folder.path().join("calls")).unwrap_or_default();
        text.lines().filter(|line| *line == "bad").count()
    };
    let counted = || {
        let path = folder.path().join("data/ledger.db");
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let db = rusqlite::Connection::open_with_flags(path, flags).ok()?;
        db.query_row("SELECT attempts FROM attempts", [], |row| {
            row.get::<_, u32>(0)
        })
        .ok()
    };
    for before_the_kill in [2, 4] {
        host.start().await;
        common::wait_until("it failed again", || counted() >= Some(before_the_kill)).await;
        host.kill();
    }
    let earlier = calls();
    host.start().await;
    let status = host
        .until("it is set aside", |status| {
            status["adapters"][0]["outcomes"]["handled"] == 1
        })
        .await;
    assert_ledgers(&status);
    common::wait_until("the rest flows", || read_table(&out, "t").len() == 2).await;
    // A call that a kill met may have failed uncounted.
    let all = calls();
    assert!((6..=8).contains(&all), "{all} failures for six attempts");
    assert!(
        all - earlier < 6,
        "the last life began anew: {earlier} of {all} before it"
    );
    let list = common::ok(&host, &["failed", "list", "--state", "parked"]);
    assert_eq!(list.as_array().unwrap().len(), 1, "{list:#}");
    let shown = common::ok(&host, &["failed", "show", &list[0]["id"].to_string()]);
    let history = &shown["history"];
    assert_eq!(history["attempts"], 6, "{shown:#}");
    assert!(
        history["first_attempt_unix_ms"].as_i64() < history["last_attempt_unix_ms"].as_i64(),
        "{shown:#}"
    );
    let parked = common::wait_for_event(&host, "parked").await;
    assert!(
        parked[0].to_string().contains("bad after 6 attempts"),
        "{parked:#?}"
    );
    assert_eq!(counted(), None, "what has ended is not counted any more");
    assert_eq!(host.stop(), Some(0));
}

/// Whatever a handler does, the write it was asked about is kept, and the rest flows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_panics_hangs_or_answers_nonsense_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    zoo(folder.path());
    let out = picky(folder.path());
    let port = free_port();
    let on_failure = "on_failure: { handler: zoo_decide, divert: [hooks/dead/letters] }";
    let mut host = Host::new(folder.path(), &hooks(port, "", "", on_failure));
    with_zoo(&host);
    host.start().await;
    let (client, url) = (
        reqwest::Client::new(),
        format!("http://127.0.0.1:{port}/in"),
    );
    let acts = ["panic", "hang", "astray", "fat", "talks", "park"];
    for act in acts {
        let body = format!(r#"{{"id": "bad-{act}", "say": "act: {act} "}}"#);
        assert!(send(&client, &url, &body).await.is_success());
    }
    post(&client, &url, "good").await;
    // A handler has thirty seconds.
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(read_table(&out, "t").len(), 1);
    let list = common::ok(&host, &["failed", "list", "--state", "parked"]);
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), acts.len(), "{list:#?}");
    assert!(letters(folder.path()).is_empty());
    let mut seen: Vec<String> = Vec::new();
    for one in list {
        let shown = common::ok(&host, &["failed", "show", &one["id"].to_string()]);
        let text = shown.to_string();
        assert!(
            text.len() < 64 << 10,
            "{} bytes of {}",
            text.len(),
            one["id"]
        );
        seen.extend(
            acts.iter()
                .filter(|act| text.contains(&format!("bad-{act}")))
                .map(|act| (*act).to_owned()),
        );
    }
    seen.sort();
    let mut wanted = acts.map(str::to_owned);
    wanted.sort();
    assert_eq!(seen, wanted);
    let codes = codes(&host).await;
    for code in ["handler_failed", "plugin_panicked", "parked"] {
        assert!(codes.iter().any(|one| one == code), "{code}: {codes:?}");
    }
    assert_eq!(host.stop(), Some(0));
}
