//! Every command line of docs/operating.md, part two, typed against a host that has what it names.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{consign, eventually, ok};
use consign_e2e::{Host, free_port};
use serde_json::Value;

/// Command lines of blocks with this word after `sh`.
fn commands(page: &str, word: &str) -> Vec<Vec<String>> {
    let part = page.split("## Part two").nth(1).expect("part two");
    let fence = format!("```{word}");
    let mut found = Vec::new();
    let mut inside = false;
    for line in part.lines() {
        if line.starts_with("```") {
            inside = !inside && line == fence;
        } else if inside {
            let words = line.split_whitespace().map(str::to_owned);
            found.push(words.skip(1).collect());
            assert!(line.starts_with("consign "), "{line}");
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_of_the_operating_page_runs() {
    let page = include_str!("../../../docs/operating.md");
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let db = rusqlite::Connection::open(folder.path().join("out.db")).unwrap();
    db.execute_batch(
        "CREATE TABLE invoices (id TEXT, amount REAL CHECK (amount < 100), write_key TEXT UNIQUE)",
    )
    .unwrap();
    std::fs::create_dir(folder.path().join("files")).unwrap();
    std::fs::write(
        folder.path().join("mended.json"),
        r#"{"id": "2", "amount": 1}"#,
    )
    .unwrap();
    let mut host = Host::new(
        folder.path(),
        &format!(
            r#"
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{port}" }} }}
  ledger: {{ connector: sqlite, config: {{ path: ./out.db }} }}
  files: {{ connector: localfile, config: {{ root: ./files }} }}
adapters:
  payments:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: spare
        match: spare.never
        send:
          - {{ id: file, connection: files, operation: localfile.write.local, config: {{ path: "{{{{ .body.id }}}}.json" }} }}
      - name: completed
        send:
          - id: billing
            connection: ledger
            operation: sqlite.write
            config: {{ table: invoices, columns: {{ id: "{{{{ .body.id }}}}", amount: "{{{{ .body.amount }}}}" }}, write_key_column: write_key }}
"#
        ),
    );
    host.start().await;
    let client = reqwest::Client::new();
    for n in 1..=8 {
        let response = client
            .post(format!("http://127.0.0.1:{port}/in"))
            .header("content-type", "application/json")
            .header("idempotency-key", format!("order-{}", 4710 + n))
            .body(format!(r#"{{"id": "{n}", "amount": 250}}"#))
            .send()
            .await
            .unwrap();
        assert!(response.status().is_success());
    }
    let parked = || ok(&host, &["failed", "list", "--state", "parked"]);
    eventually("eight parked", || {
        (parked().as_array().unwrap().len() == 8).then_some(())
    })
    .await;

    let mut run = 0;
    for command in commands(page, "sh") {
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        // The page speaks of one message at a time; what was sent again there is refused here once
        // more, so it is waited for until it waits again.
        let (_, before) = common::json(&host, &["wait", "drained", "--timeout", "20s"]);
        assert!(before["errors"].is_null(), "{before:#}");
        if args.contains(&"confirm") {
            // Nobody knows whether this one landed.
            let ledger = rusqlite::Connection::open(host.data().join("ledger.db")).unwrap();
            ledger
                .execute("UPDATE failed SET applied = 'maybe' WHERE id = 3", [])
                .unwrap();
        }
        let output = consign(&host, "ann", &args);
        assert!(
            output.status.success(),
            "{command:?}: {}{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            host.log()
        );
        run += 1;
    }
    assert!(run > 30, "only {run} commands on the page");
    assert_eq!(host.stop(), Some(0));
    let stopped = commands(page, "sh stopped");
    assert!(!stopped.is_empty());
    for command in stopped {
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        let output = consign(&host, "ann", &args);
        assert!(
            output.status.success(),
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let _: Value = ok(&host, &["jobs", "--data-dir", "data"]);
}
