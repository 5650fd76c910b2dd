//! Reloads of a real process while messages flow: SIGHUP, another configuration, nothing lost.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Poster, assert_ledgers, assert_once, drained, read_table};
use consign_e2e::{Host, free_port};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// One send of the table `t`, keyed.
fn send(id: &str, connection: &str, more: &str) -> String {
    format!(
        r#"          - {{ id: {id}, connection: {connection}, operation: sqlite.write, {more} config: {{ table: t, create_table: true, columns: {{ id: "{{{{ .body.id }}}}" }}, write_key_column: write_key }} }}
"#
    )
}

fn config(port: u16, sends: &[String]) -> String {
    format!(
        r#"
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{port}" }} }}
  one: {{ connector: sqlite, config: {{ path: ./one.db }} }}
  two: {{ connector: sqlite, config: {{ path: ./two.db }} }}
  three: {{ connector: sqlite, config: {{ path: ./three.db }} }}
adapters:
  hooks:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: all
        send:
{}"#,
        sends.concat()
    )
}

/// Puts another configuration into the file, the head that the harness wrote kept.
fn rewrite(host: &Host, body: &str) {
    let text = std::fs::read_to_string(host.config()).unwrap();
    let head: String = text.split_inclusive('\n').take(3).collect();
    std::fs::write(host.config(), format!("{head}{body}")).unwrap();
}

/// Reloads, and waits for the event that says how it ended; its fields.
async fn reload(host: &Host, code: &str, before: usize) -> Value {
    host.signal("HUP");
    let from = Instant::now();
    loop {
        let events = host.get(&format!("/api/v1/events?code={code}")).await;
        if let Some(events) = events
            && let Some(list) = events.as_array()
            && list.len() > before
        {
            let newest = list
                .iter()
                .max_by_key(|event| event["id"].as_i64())
                .unwrap();
            return newest.clone();
        }
        assert!(
            from.elapsed() < Duration::from_secs(60),
            "no {code}:\n{}",
            host.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn ids(folder: &Path, file: &str) -> common::Effects {
    read_table(&folder.join(file), "t")
}

/// The ids of each client in the order of their rows: one lane in strict order keeps them.
fn assert_order(folder: &Path, file: &str) {
    let db = rusqlite::Connection::open(folder.join(file)).unwrap();
    let mut rows = db.prepare("SELECT id FROM t ORDER BY rowid").unwrap();
    let ids: Vec<String> = rows
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let mut last = std::collections::BTreeMap::new();
    for id in ids {
        let (client, number) = id.split_once('-').unwrap();
        let number: u64 = number.parse().unwrap();
        if let Some(before) = last.insert(client.to_owned(), number) {
            assert!(number > before, "{file}: {id} came after {client}-{before}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_while_messages_flow_lose_double_and_reorder_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let first = [send("keep", "one", ""), send("drop", "two", "")];
    let mut host = Host::new(folder.path(), &config(port, &first));
    host.start().await;
    let url = format!("http://127.0.0.1:{port}/in");
    let clients = Poster::start(&url, 4);
    clients.wait_for(100).await;

    // A bad file changes nothing and says why.
    rewrite(&host, &config(port, &[send("keep", "nowhere", "")]));
    let event = reload(&host, "config_rejected", 0).await;
    assert!(
        event["message"].as_str().unwrap().contains("nowhere"),
        "{event:#}"
    );
    clients.wait_for(50).await;

    // One send gets other settings it takes while it runs, one is added.
    let second = [
        send(
            "keep",
            "one",
            "batch: { max_writes: 50 }, retry: { max_attempts: 9 },",
        ),
        send("drop", "two", ""),
        send("new", "three", ""),
    ];
    rewrite(&host, &config(port, &second));
    let event = reload(&host, "config_reloaded", 0).await;
    assert!(
        event["message"].as_str().unwrap().contains("hooks/all/new"),
        "{event:#}"
    );
    clients.wait_for(100).await;

    // One is taken away; another's order changes, which it is taken out for.
    let third = [
        send("keep", "one", "order: none, batch: { max_writes: 50 },"),
        send("new", "three", ""),
    ];
    rewrite(&host, &config(port, &third));
    let event = reload(&host, "config_reloaded", 1).await;
    assert!(
        event["message"]
            .as_str()
            .unwrap()
            .contains("hooks/all/drop"),
        "{event:#}"
    );
    clients.wait_for(100).await;

    // And back to strict, with a connection that has other settings.
    let fourth = config(port, &[send("keep", "one", ""), send("new", "three", "")])
        .replace("path: ./three.db", "path: ./three.db, busy_timeout: 3s");
    rewrite(&host, &fourth);
    reload(&host, "config_reloaded", 2).await;
    clients.wait_for(100).await;

    let accepted = clients.finish().await;
    // What the send that was taken away still had waits as an orphan; all others get empty.
    let status = host
        .until("all lanes of sends empty", |status| {
            let lanes = status["lanes"].as_array().unwrap();
            let mut running = lanes.iter().filter(|lane| lane["state"] != "orphaned");
            running.all(|lane| lane["pending"] == 0)
        })
        .await;
    assert_ledgers(&status);
    assert_eq!(host.stop(), Some(0), "{}", host.log());

    assert_once(&ids(folder.path(), "one.db"), &accepted);
    let third = ids(folder.path(), "three.db");
    assert!(third.len() >= 300, "{} rows", third.len());
    assert_once(&third, &third.keys().cloned().collect::<Vec<_>>());
    assert_order(folder.path(), "three.db");
    let dropped = ids(folder.path(), "two.db");
    assert_once(&dropped, &dropped.keys().cloned().collect::<Vec<_>>());
    assert!(dropped.len() < accepted.len(), "it was taken away");
    assert_order(folder.path(), "two.db");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_is_taken_away_with_a_backlog_is_an_orphan_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let held = rusqlite::Connection::open(folder.path().join("two.db")).unwrap();
    held.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (id TEXT, write_key TEXT UNIQUE); BEGIN IMMEDIATE")
        .unwrap();
    let both = [send("keep", "one", ""), send("drop", "two", "timeout: 1s,")];
    let text = config(port, &both).replace("path: ./two.db", "path: ./two.db, busy_timeout: 100ms");
    let mut host = Host::new(folder.path(), &text);
    host.start().await;
    let url = format!("http://127.0.0.1:{port}/in");
    let client = reqwest::Client::new();
    for n in 0..20 {
        common::post(&client, &url, &format!("0-{n}")).await;
    }
    rewrite(&host, &text.replace(&both[1], ""));
    let event = reload(&host, "config_reloaded", 0).await;
    assert!(
        event["message"]
            .as_str()
            .unwrap()
            .contains("orphaned: hooks/all/drop (20)"),
        "{event:#}"
    );
    host.until("an orphan", |status| {
        status["lanes"]
            .as_array()
            .is_some_and(|lanes| lanes.iter().any(|lane| lane["state"] == "orphaned"))
    })
    .await;
    held.execute_batch("ROLLBACK").unwrap();
    rewrite(&host, &text);
    reload(&host, "config_reloaded", 1).await;
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(host.stop(), Some(0), "{}", host.log());
    let accepted: Vec<String> = (0..20).map(|n| format!("0-{n}")).collect();
    assert_once(&ids(folder.path(), "two.db"), &accepted);
    assert_once(&ids(folder.path(), "one.db"), &accepted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_by_command_says_what_changed_or_what_is_wrong_and_where() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut host = Host::new(folder.path(), &config(port, &[send("keep", "one", "")]));
    host.start().await;
    rewrite(&host, &config(port, &[send("keep", "nowhere", "")]));
    let (code, why) = common::json(&host, &["reload"]);
    assert_eq!(code, 2, "{why:#}");
    let why = why.to_string();
    assert!(
        why.contains("nowhere") && why.contains("consign.yaml:"),
        "{why}"
    );

    rewrite(
        &host,
        &config(port, &[send("keep", "one", ""), send("more", "two", "")]),
    );
    let report = common::ok(&host, &["reload"]);
    assert_eq!(
        report["sends_added"],
        serde_json::json!(["hooks/all/more"]),
        "{report:#}"
    );
    assert_eq!(report["changes"].as_u64(), Some(1), "{report:#}");
    let said = common::consign(&host, "ann", &["reload"]);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("0 changes"), "{said}");

    let condition = "      - name: all\n        when: '.body.id != \"no\"'\n";
    let text = config(port, &[send("keep", "one", ""), send("more", "two", "")]);
    let text = text.replace("      - name: all\n", condition);
    rewrite(&host, &format!("failed: {{ retention: 30d }}\n{text}"));
    let report = common::ok(&host, &["reload"]);
    assert_eq!(
        report["settings_changed"],
        serde_json::json!(["failed", "hooks/all.when"]),
        "{report:#}"
    );
    common::post(
        &reqwest::Client::new(),
        &format!("http://127.0.0.1:{port}/in"),
        "x",
    )
    .await;
    drained(&host).await;
    assert!(ids(folder.path(), "two.db").contains_key("x"));
    let events = common::ok(&host, &["events", "--code", "operator_acted"]);
    assert!(events.to_string().contains("ann reloaded"), "{events:#}");
}

/// Webhooks into a table by these columns.
fn columns(port: u16, columns: &str) -> String {
    format!(
        r#"
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{port}" }} }}
  one: {{ connector: sqlite, config: {{ path: ./one.db }} }}
adapters:
  hooks:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: all
        send:
          - {{ id: t, connection: one, operation: sqlite.write, config: {{ table: n, columns: {{ {columns} }}, write_key_column: write_key }} }}
"#
    )
}

/// Texts were kept by their place: two columns that changed places got each other's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_texts_of_a_write_stay_with_their_settings_when_the_templates_change() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let db = rusqlite::Connection::open(folder.path().join("one.db")).unwrap();
    db.execute_batch("CREATE TABLE n (id TEXT, name TEXT, city TEXT, write_key TEXT UNIQUE)")
        .unwrap();
    let (id, name) = (r#"id: "{{ .body.id }}""#, r#"name: "{{ .body.name }}""#);
    let city = r#"city: "{{ .body.city }}""#;
    let of = |parts: &[&str]| columns(port, &parts.join(", "));
    let mut host = Host::new(folder.path(), &of(&[id, name, city]));
    host.start().await;
    common::ok(&host, &["pause", "hooks/all/t"]);
    let client = reqwest::Client::new();
    let post = async |id: &str| {
        let body = serde_json::json!({ "id": id, "name": format!("name {id}"), "city": format!("city {id}") });
        let url = format!("http://127.0.0.1:{port}/in");
        let sent = client.post(url).json(&body).send().await.unwrap();
        assert!(sent.status().is_success());
    };
    post("1").await;
    // Two change places; then one is none any more; then there are all of them once more, over a restart.
    rewrite(&host, &of(&[city, id, name]));
    common::ok(&host, &["reload"]);
    post("2").await;
    rewrite(&host, &of(&[name, r#"city: "fixed""#, id]));
    common::ok(&host, &["reload"]);
    post("3").await;
    rewrite(&host, &of(&[id, city, name]));
    host.kill();
    host.start().await;
    post("4").await;
    common::ok(&host, &["resume", "hooks/all/t"]);
    drained(&host).await;
    let mut rows = db
        .prepare("SELECT id, name, city FROM n ORDER BY id")
        .unwrap();
    let rows: Vec<[String; 3]> = rows
        .query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let expected: Vec<[String; 3]> = (1..=4)
        .map(|n| [n.to_string(), format!("name {n}"), format!("city {n}")])
        .collect();
    assert_eq!(rows, expected);
}
