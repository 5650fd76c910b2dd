//! What each command prints: empty, one, many; text and `--json`; exit codes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use consign_e2e::{Host, built, consign, free_port};
use std::path::Path;
use std::process::Output;

fn said(folder: &Path, out: &Output) -> String {
    let text = format!(
        "exit {}\n--- stdout\n{}--- stderr\n{}",
        out.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    text.replace(folder.to_str().unwrap(), "[folder]")
        .replace(built().plugins.to_str().unwrap(), "[plugins]")
}

fn json(args: &[&str]) -> serde_json::Value {
    let out = consign(args);
    serde_json::from_slice(&out.stdout).unwrap_or_else(|error| {
        panic!(
            "{args:?}: {error}\n{}\n{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        )
    })
}

fn plugins() -> String {
    built().plugins.display().to_string()
}

#[test]
fn plugins_of_an_empty_folder_and_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().to_str().unwrap();
    insta::assert_snapshot!(
        "plugins_empty",
        said(folder.path(), &consign(&["plugins", "--plugins", empty]))
    );
    assert_eq!(
        json(&["--json", "plugins", "--plugins", empty]),
        serde_json::json!([]),
        "[] when empty"
    );
    let rows = json(&["--json", "plugins", "--plugins", &plugins()]);
    let names: Vec<&str> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    let mut files: Vec<String> = std::fs::read_dir(plugins())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| {
            let name = name.strip_prefix("libconsign_plugin_")?;
            Some(name.strip_suffix(".so")?.to_owned())
        })
        .collect();
    files.sort();
    assert_eq!(names, files);
    for row in rows.as_array().unwrap() {
        assert!(
            row["digest"].as_str().unwrap().len() == 64
                && row["operations"].as_array().unwrap().len()
                    + row["functions"].as_array().unwrap().len()
                    > 0,
            "{row:#}"
        );
        let glibc = row["glibc"].as_str().unwrap();
        assert!(glibc.starts_with("2."), "{row:#}");
        assert_eq!(row["oldest_host_abi"], "1.0", "{row:#}");
        assert!(
            row["rustc"].as_str().unwrap().starts_with("rustc 1."),
            "{row:#}"
        );
    }
    let shown = consign(&["plugins", "--plugins", &plugins()]);
    let text = String::from_utf8(shown.stdout).unwrap();
    let head = text.lines().next().unwrap();
    for column in ["sdk", "rustc", "glibc", "abi", "digest", "path", "contents"] {
        assert!(head.split_whitespace().any(|word| word == column), "{text}");
    }
    assert!(text.contains("This host speaks plugin ABI 1.0"), "{text}");
}

#[test]
fn verify_says_what_a_file_is() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("libx.so");
    std::fs::write(&text, "hello\n").unwrap();
    insta::assert_snapshot!(
        "verify_text_file",
        said(
            folder.path(),
            &consign(&["plugins", "verify", text.to_str().unwrap()])
        )
    );
    let good = Path::new(&plugins()).join("libconsign_plugin_http.so");
    assert_eq!(
        consign(&["plugins", "verify", good.to_str().unwrap()])
            .status
            .code(),
        Some(0)
    );
}

#[test]
fn promises_as_a_table_and_as_json() {
    let folder = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(
        "promises",
        said(
            folder.path(),
            &consign(&["promises", "--plugins", &plugins()])
        )
    );
    let rows = json(&["--json", "promises", "--plugins", &plugins()]);
    let of = |id: &str| {
        rows.as_array()
            .unwrap()
            .iter()
            .find(|row| row["operation"] == id)
            .cloned()
            .unwrap()
    };
    assert_eq!(of("nats.publish")["sink"]["promise"], "effectively_once");
    assert_eq!(
        of("localfile.write.local")["sink"]["repeat"]["kind"],
        "same_target"
    );
}

#[test]
fn the_schema_holds_every_plugins_own_settings() {
    let schema = consign(&["schema", "--plugins", &plugins()]);
    assert_eq!(schema.status.code(), Some(0));
    let text = String::from_utf8(schema.stdout).unwrap();
    for word in [
        "write_key_column",
        "jetstream",
        "overwrite_existing",
        "Idempotency-Key",
    ] {
        assert!(text.contains(word), "the schema lacks {word}");
    }
}

#[test]
fn vrl_runs_one_expression() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| said(folder.path(), &consign(&[&["vrl"], args].concat()));
    insta::assert_snapshot!(
        "vrl_value",
        run(&["to_int!(.body.a) + 1", "--message", r#"{"body": {"a": 1}}"#])
    );
    insta::assert_snapshot!("vrl_error", run(&[".body.a +"]));
    insta::assert_snapshot!(
        "vrl_bad_message",
        run(&[".body", "--message", r#"{"boddy": 1}"#])
    );
}

#[test]
fn explain_a_code_and_an_unknown_one() {
    let folder = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(
        "explain_code",
        said(folder.path(), &consign(&["explain", "gate_closed"]))
    );
    insta::assert_snapshot!(
        "explain_unknown",
        said(folder.path(), &consign(&["explain", "gate_close"]))
    );
    let all = consign(&["explain", "--json"]);
    let all: serde_json::Value = serde_json::from_slice(&all.stdout).unwrap();
    let all = all.as_array().unwrap();
    let pages = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/events"));
    assert_eq!(
        all.len() + 1,
        pages.unwrap().count(),
        "a page each, and their list"
    );
    assert!(all.iter().any(|one| one["code"] == "gate_closed"));
}

const CONFIG: &str = r#"
connections:
  hooks: { connector: http, config: { listen: "127.0.0.1:{port}" } }
  out:   { connector: localfile, config: { root: ./out } }
adapters:
  hooks:
    source: { connection: hooks, operation: http.receive, config: { path: /in } }
    key: .body.type
    routes:
      - name: payments
        match: "payment.*"
        when: '(to_int(.body.amount) ?? 0) > 0'
        send:
          - { id: file, connection: out, operation: localfile.write.local, config: { path: "{{ .body.id }}.json" } }
      - name: rest
        send: []
"#;

#[tokio::test]
async fn a_running_host_shows_status_and_events() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut host = Host::new(folder.path(), &CONFIG.replace("{port}", &port.to_string()));
    let file = host.config().display().to_string();
    let explain = |message: &str| said(folder.path(), &consign(&["explain", &file, message]));
    insta::assert_snapshot!(
        "explain_claimed",
        explain(r#"{"body": {"type": "payment.done", "amount": "5", "id": "x"}}"#)
    );
    insta::assert_snapshot!(
        "explain_not_claimed",
        explain(r#"{"body": {"type": "payment.done", "amount": "0"}}"#)
    );
    insta::assert_snapshot!(
        "explain_no_pattern",
        explain(r#"{"body": {"type": "order"}}"#)
    );
    let shown = consign(&["show", "config", &file]);
    assert_eq!(
        shown.status.code(),
        Some(0),
        "{}",
        said(folder.path(), &shown)
    );

    let unreachable = consign(&["status", "--host", &host.url("")]);
    assert_eq!(
        unreachable.status.code(),
        Some(3),
        "{}",
        said(folder.path(), &unreachable)
    );

    host.start().await;
    host.until("the source runs", |status| {
        status["adapters"][0]["state"] == "running"
    })
    .await;
    let client = reqwest::Client::new();
    for n in 0..3 {
        common_post(
            &client,
            port,
            &format!(r#"{{"type": "payment.done", "amount": "5", "id": "p{n}"}}"#),
        )
        .await;
    }
    common_post(&client, port, r#"{"type": "order"}"#).await;
    host.until("delivered", |status| {
        status["lanes"][0]["outcomes"]["delivered"] == 3
    })
    .await;
    let status = json(&["--json", "status", "--host", &host.url("")]);
    assert_eq!(status["adapters"][0]["outcomes"]["accepted"], 3);
    assert_eq!(status["adapters"][0]["outcomes"]["no_send"], 1);
    assert_eq!(status["readiness"]["ready"], true, "{status:#}");
    let text = consign(&["status", "--host", &host.url("")]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("hooks/payments/file") && text.contains("delivered 3"),
        "{text}"
    );
    let metrics = client
        .get(host.url("/metrics"))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(metrics.contains("consign_messages"), "{metrics}");
    let ready = client.get(host.url("/health/ready")).send().await.unwrap();
    assert_eq!(ready.status().as_u16(), 200);

    let events = json(&["--json", "events", "--host", &host.url("")]);
    assert!(
        events
            .as_array()
            .unwrap()
            .iter()
            .any(|e| e["code"] == "host_started"),
        "{events:#}"
    );
    assert_eq!(host.stop(), Some(0), "{}", host.log());
    // The same from the stopped host's folder.
    let data = host.data().display().to_string();
    let events = json(&[
        "--json",
        "events",
        "--data-dir",
        &data,
        "--code",
        "host_stopped",
    ]);
    assert_eq!(events.as_array().unwrap().len(), 1, "{events:#}");
    let none = json(&["--json", "events", "--data-dir", &data, "--code", "denied"]);
    assert_eq!(none, serde_json::json!([]));
    let odd = consign(&["events", "--data-dir", &data, "--code", "gate_close"]);
    insta::assert_snapshot!("events_unknown_code", said(folder.path(), &odd));
}

async fn common_post(client: &reqwest::Client, port: u16, body: &str) {
    let url = format!("http://127.0.0.1:{port}/in");
    let response = client
        .post(url)
        .header("content-type", "application/json")
        .body(body.to_owned())
        .send()
        .await
        .unwrap();
    assert_eq!(response.status().as_u16(), 202);
}

#[test]
fn cases_are_compared_and_blessed() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("consign.yaml");
    let text = format!(
        "plugins: [{}]\n{}",
        plugins(),
        CONFIG.replace("{port}", "8080")
    );
    std::fs::write(&config, text).unwrap();
    let cases = folder.path().join("cases.yaml");
    let run = |more: &[&str]| {
        let args = [
            &["test", config.to_str().unwrap(), cases.to_str().unwrap()],
            more,
        ]
        .concat();
        said(folder.path(), &consign(&args))
    };
    std::fs::write(&cases, "[]\n").unwrap();
    insta::assert_snapshot!("test_no_cases", run(&[]));
    let one = "- name: a payment is filed\n  adapter: hooks\n  message:\n    body: { type: payment.done, amount: \"5\", id: x }\n  expect:\n    route: rest\n";
    std::fs::write(&cases, one).unwrap();
    insta::assert_snapshot!("test_differs", run(&[]));
    insta::assert_snapshot!("test_bless", run(&["--bless"]));
    insta::assert_snapshot!("test_as_expected", run(&[]));
    std::fs::write(&cases, one.replace("adapter: hooks", "adapter: hook")).unwrap();
    insta::assert_snapshot!("test_unknown_adapter", run(&[]));
}

/// The first YAML block of a page.
#[test]
fn verify_tells_everything_a_reader_of_the_plugin_would_miss() {
    let folder = tempfile::tempdir().unwrap();
    common::zoo(folder.path());
    let library = folder.path().join("libzoo.so");
    let verified = consign(&["plugins", "verify", library.to_str().unwrap()]);
    assert_eq!(verified.status.code(), Some(2));
    let text = String::from_utf8(verified.stderr).unwrap();
    assert!(text.contains("connector zoo has no example"), "{text}");
    let verified = consign(&["--json", "plugins", "verify", library.to_str().unwrap()]);
    let errors: serde_json::Value = serde_json::from_slice(&verified.stderr).unwrap();
    assert_eq!(
        errors["errors"].as_array().unwrap().len(),
        text.lines().count()
    );
    for plugin in common::plugin_folders() {
        let library = format!("{}/libconsign_plugin_{plugin}.so", plugins());
        let verified = consign(&["plugins", "verify", &library]);
        assert_eq!(
            verified.status.code(),
            Some(0),
            "{}",
            said(folder.path(), &verified)
        );
    }
}

#[test]
fn a_lock_holds_the_plugins_that_were_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let lock = folder.path().join("plugins.lock");
    let path = lock.to_str().unwrap();
    let written = consign(&["plugins", "--plugins", &plugins(), "lock", path]);
    assert_eq!(
        written.status.code(),
        Some(0),
        "{}",
        said(folder.path(), &written)
    );
    let config = folder.path().join("consign.yaml");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let text = std::fs::read_to_string(format!("{root}/plugins/http/example.yaml")).unwrap();
    let text = text.replace("plugins: [./plugins]", &format!("plugins: [{}]", plugins()));
    std::fs::write(&config, text).unwrap();
    let check = || consign(&["check", config.to_str().unwrap()]);
    assert_eq!(
        check().status.code(),
        Some(0),
        "{}",
        said(folder.path(), &check())
    );
    let text = std::fs::read_to_string(&lock).unwrap();
    let other: String = text
        .lines()
        .map(|line| match line.split_once("  libconsign_plugin_http") {
            Some(_) => format!("{}  libconsign_plugin_http.so\n", "0".repeat(64)),
            None => format!("{line}\n"),
        })
        .collect();
    std::fs::write(&lock, other).unwrap();
    let refused = check();
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("accept this one with `consign plugins lock`"),
        "{said}"
    );
}

/// The YAML examples of a page, in order.
fn yaml_of(page: &str) -> Vec<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let text = std::fs::read_to_string(format!("{root}/{page}")).unwrap();
    let blocks = text.split("```yaml\n").skip(1);
    blocks
        .map(|rest| rest.split_once("```").unwrap().0.to_owned())
        .collect()
}

#[test]
fn the_examples_of_the_pages_and_of_the_plugins_check() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("consign.yaml");
    let with_plugins =
        |text: &str| text.replace("plugins: [./plugins]", &format!("plugins: [{}]", plugins()));
    std::fs::write(&config, with_plugins(&yaml_of("README.md")[0])).unwrap();
    let checked = consign(&["check", "--strict", config.to_str().unwrap()]);
    assert_eq!(
        checked.status.code(),
        Some(0),
        "{}",
        said(folder.path(), &checked)
    );
    let cases = folder.path().join("cases.yaml");
    // Cases, as a list, for the configuration of the README; everything else is a configuration.
    let (page_cases, page_configs): (Vec<String>, Vec<String>) = yaml_of("docs/configuration.md")
        .into_iter()
        .partition(|block| block.starts_with("- "));
    std::fs::write(&cases, &page_cases[0]).unwrap();
    let tested = consign(&["test", config.to_str().unwrap(), cases.to_str().unwrap()]);
    assert_eq!(
        tested.status.code(),
        Some(0),
        "{}",
        said(folder.path(), &tested)
    );
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut examples: Vec<(String, String)> = page_configs
        .into_iter()
        .map(|text| ("docs/configuration.md".to_owned(), text))
        .collect();
    let of_plugins = common::plugin_folders()
        .into_iter()
        .map(|plugin| format!("plugins/{plugin}/example.yaml"))
        .filter(|example| Path::new(root).join(example).is_file());
    for example in of_plugins.chain(["examples/quickstart.yaml".to_owned()]) {
        let text = std::fs::read_to_string(format!("{root}/{example}")).unwrap();
        examples.push((example, text));
    }
    for (example, text) in examples {
        std::fs::write(&config, with_plugins(&text)).unwrap();
        let checked = consign(&["check", config.to_str().unwrap()]);
        assert_eq!(
            checked.status.code(),
            Some(0),
            "{example}: {}",
            said(folder.path(), &checked)
        );
    }
}
