//! Bad input of every kind: each is a clear sentence that names the place, or a recorded outcome.
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

/// Runs `consign check` on a configuration and gives what it says, without what differs by machine.
fn check(config: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    check_in(folder.path(), config)
}

fn check_in(folder: &Path, config: &str) -> String {
    let file = folder.join("consign.yaml");
    let plugins = built().plugins.display().to_string();
    std::fs::write(&file, config.replace("{plugins}", &plugins)).unwrap();
    let out = consign(&["check", file.to_str().unwrap()]);
    said(folder, &out)
}

fn said(folder: &Path, out: &std::process::Output) -> String {
    let text = format!(
        "exit {}\n--- stdout\n{}--- stderr\n{}",
        out.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    text.replace(folder.to_str().unwrap(), "[folder]")
        .replace(built().plugins.to_str().unwrap(), "[plugins]")
}

/// A good configuration with one line to spoil.
fn config(spoiled: &str) -> String {
    format!(
        r#"plugins: ["{{plugins}}"]
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:8080" }} }}
  table: {{ connector: sqlite, config: {{ path: ./out.db }} }}
adapters:
  payments:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: all
{spoiled}
"#
    )
}

const SEND: &str = "        send:
          - id: table
            connection: table
            operation: sqlite.write
            config: { table: t, write_key_column: k }
";

#[test]
fn a_good_configuration_says_what_it_promises() {
    insta::assert_snapshot!(check(&config(SEND)));
}

#[test]
fn an_unknown_key_names_the_nearest() {
    insta::assert_snapshot!(check(&config(&format!(
        "{SEND}            retries: {{ max_attempts: 3 }}\n"
    ))));
}

#[test]
fn a_wrong_type_says_what_was_expected() {
    insta::assert_snapshot!(check(&config(&format!(
        "{SEND}            batch: {{ max_writes: many }}\n"
    ))));
}

#[test]
fn vrl_that_does_not_compile_points_into_the_file() {
    insta::assert_snapshot!(check(&config(&format!(
        "        when: '.body.amount >'\n{SEND}"
    ))));
}

#[test]
fn an_integer_condition_is_refused() {
    insta::assert_snapshot!(check(&config(&format!(
        "        when: 'to_int(.body.amount) ?? 0 > 0'\n{SEND}"
    ))));
}

#[test]
fn a_missing_plugin_says_where_was_looked() {
    let text = config(SEND).replace("connector: sqlite", "connector: cobol");
    insta::assert_snapshot!(check(&text));
}

#[test]
fn a_text_file_named_so_is_no_plugin() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("bad")).unwrap();
    std::fs::write(
        folder.path().join("bad/libconsign_plugin_http.so"),
        "not a library\n",
    )
    .unwrap();
    let text = config(SEND).replace("[\"{plugins}\"]", "[./bad]");
    insta::assert_snapshot!(check_in(folder.path(), &text));
}

#[test]
fn duplicate_adapter_names_are_refused() {
    let text = config(SEND);
    let adapter = text.split_once("adapters:\n").unwrap().1.to_owned();
    insta::assert_snapshot!(check(&format!("{text}{adapter}")));
}

#[test]
fn a_send_after_itself_is_refused() {
    insta::assert_snapshot!(check(&config(&format!("{SEND}            after: table\n"))));
}

#[test]
fn a_promise_that_cannot_be_kept_is_refused() {
    let text = config(&SEND.replace(
        "config: { table: t, write_key_column: k }",
        "config: { table: t }\n            require: effectively_once",
    ));
    insta::assert_snapshot!(check(&text));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let out = consign(&[
        "check",
        folder.path().join("missing.yaml").to_str().unwrap(),
    ]);
    insta::assert_snapshot!(said(folder.path(), &out));
}

#[test]
fn a_secret_that_is_not_set_stops_a_run_and_not_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let text = config(SEND).replace("{ path: /in }", "{ path: /in, auth: { bearer: [{ principal: a, token: \"${env:CONSIGN_E2E_NOT_SET}\" }] } }");
    insta::assert_snapshot!("secret_check", check_in(folder.path(), &text));
    let out = consign(&["run", folder.path().join("consign.yaml").to_str().unwrap()]);
    insta::assert_snapshot!("secret_run", said(folder.path(), &out));
}

#[tokio::test]
async fn a_port_and_a_data_dir_in_use_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let text = format!(
        "connections:\n  hooks: {{ connector: http, config: {{ listen: \"127.0.0.1:{port}\" }} }}\n  out: {{ connector: localfile, config: {{ root: ./out }} }}\nadapters:\n  a:\n    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}\n    routes: [{{ name: all, send: [{{ id: f, connection: out, operation: localfile.write.local, config: {{ path: \"{{{{ .key }}}}\" }} }}] }}]\n"
    );
    let mut host = Host::new(folder.path(), &text);
    host.start().await;
    // The same configuration again: the console's port is taken.
    let out = consign(&["run", host.config().to_str().unwrap()]);
    let console = host.url("").trim_start_matches("http://").to_owned();
    insta::assert_snapshot!(
        "console_port_in_use",
        said(folder.path(), &out).replace(&console, "[console]")
    );
    // Another console, the same data folder.
    let other = std::fs::read_to_string(host.config())
        .unwrap()
        .replace(&console, &format!("127.0.0.1:{}", free_port()));
    let second = folder.path().join("second.yaml");
    std::fs::write(&second, other).unwrap();
    let out = consign(&["run", second.to_str().unwrap()]);
    let text = said(folder.path(), &out).replace(&host.pid().to_string(), "[pid]");
    insta::assert_snapshot!("data_dir_in_use", text);
    host.kill();
}

#[tokio::test]
async fn odd_bodies_are_answered_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut host = Host::new(
        folder.path(),
        &format!(
            r#"
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{port}" }} }}
  out:   {{ connector: localfile, config: {{ root: ./out }} }}
adapters:
  hooks:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: payments
        when: '.body.type == "payment"'
        transforms: [{{ vrl: '.body.amount = to_int!(.body.amount)' }}]
        send: []
      - name: all
        send:
          - id: file
            connection: out
            operation: localfile.write.local
            config: {{ path: "{{{{ .headers.name }}}}.bin" }}
"#
        ),
    );
    host.start().await;
    host.until("the source runs", |status| {
        status["adapters"][0]["state"] == "running"
    })
    .await;
    let client = reqwest::Client::new();
    let url = format!("http://127.0.0.1:{port}/in");
    let post = |name: &'static str, body: Vec<u8>| {
        let request = client
            .post(&url)
            .header("name", name)
            .header("content-type", "application/json")
            .body(body);
        async move { request.send().await.map(|r| r.status().as_u16()) }
    };
    let odd: [(&str, Vec<u8>); 5] = [
        ("empty", Vec::new()),
        ("not_utf8", vec![0xff, 0xfe, 0x00, 0x80]),
        ("not_json", b"{\"type\": ".to_vec()),
        (
            "numbers",
            br#"{"a": 12345678901234567890, "b": 1.10, "b": 1.10 }"#.to_vec(),
        ),
        ("deep", [vec![b'['; 5_000], vec![b']'; 5_000]].concat()),
    ];
    for (name, body) in &odd {
        assert_eq!(post(name, body.clone()).await.unwrap(), 202, "{name}");
    }
    // A hundred megabytes are turned away before they are read, or while.
    match post("huge", vec![b'x'; 100 << 20]).await {
        Ok(status) => assert_eq!(status, 413),
        Err(error) => assert!(error.is_request() || error.is_body(), "{error:?}"),
    }
    // A transform that fails discards silently, and is counted.
    assert_eq!(
        post(
            "bad_amount",
            br#"{"type": "payment", "amount": "x"}"#.to_vec()
        )
        .await
        .unwrap(),
        202
    );
    assert_eq!(
        post("no_send", br#"{"type": "payment", "amount": "5"}"#.to_vec())
            .await
            .unwrap(),
        202
    );
    let status = common::drained(&host).await;
    common::assert_ledgers(&status);
    let outcomes = &status["adapters"][0]["outcomes"];
    assert_eq!(
        (
            &outcomes["transform_failed"],
            &outcomes["no_send"],
            &outcomes["accepted"]
        ),
        (&1.into(), &1.into(), &5.into()),
        "{status:#}"
    );
    for (name, body) in odd {
        assert_eq!(
            std::fs::read(folder.path().join(format!("out/{name}.bin"))).unwrap(),
            body,
            "{name} leaves byte for byte"
        );
    }
    host.kill();
}
