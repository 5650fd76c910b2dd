//! What a client and an operator are told of a message that cannot be taken, and how a message is named.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::config::{Config, FAST, send, to_table};
use common::{assert_ledgers, drained, events, wait_for_event};
use consign_e2e::{Host, consign, free_port};

async fn post(url: &str, key: &str, body: &str) -> reqwest::Response {
    let request = reqwest::Client::new().post(url);
    let request = request
        .header("content-type", "application/json")
        .header("idempotency-key", key);
    request.body(body.to_owned()).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_uses_one_key_for_two_bodies_is_one_event_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let config = Config::new().database().hooks(port, &[to_table("t", FAST)]);
    let mut host = Host::new(folder.path(), &config.text());
    host.start().await;
    let url = format!("http://127.0.0.1:{port}/in");
    assert_eq!(post(&url, "k", r#"{"id": "1"}"#).await.status(), 202);
    for n in 0..3 {
        let other = format!(r#"{{"id": "other {n}"}}"#);
        assert_eq!(post(&url, "k", &other).await.status(), 422);
    }
    let conflicts = wait_for_event(&host, "idempotency_conflict").await;
    assert_eq!(conflicts.len(), 1, "one for the episode: {conflicts:#?}");
    let fields = &conflicts[0]["fields"];
    assert_eq!(fields["peer"], "127.0.0.1", "{conflicts:#?}");
    assert_eq!(fields["key"].as_str().unwrap().len(), 32, "{conflicts:#?}");
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(status["adapters"][0]["outcomes"]["refused_at_source"], 3);
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_a_template_fails_for_is_refused_and_nothing_of_it_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let sends = [to_table("t", "delivery: direct")];
    let config = Config::new().database().hooks(port, &sends);
    let mut host = Host::new(folder.path(), &config.text());
    host.start().await;
    let url = format!("http://127.0.0.1:{port}/in");
    for n in 0..2 {
        let response = post(&url, &format!("k{n}"), r#"{"no": "id"}"#).await;
        assert_eq!(response.status(), 400);
        let said = response.text().await.unwrap();
        assert!(
            said.contains(".body.id") && said.contains("table"),
            "{said}"
        );
    }
    let failed = wait_for_event(&host, "template_failed").await;
    assert_eq!(failed.len(), 1, "one for the episode: {failed:#?}");
    assert!(events(&host, "message_dropped").await.is_empty());
    // The same key with a body that can be rendered is not a conflict: the first was never taken.
    assert_eq!(post(&url, "k0", r#"{"id": "1"}"#).await.status(), 202);
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(status["adapters"][0]["outcomes"]["refused_at_source"], 2);
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_an_id_of_its_own_has_a_name_that_templates_can_use() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let file = send(
        "file",
        "files",
        "localfile.write.local",
        "path: \"{{ .id }}.json\"",
        FAST,
    );
    let config = Config::new()
        .connection("files", "localfile", "root: ./files")
        .hooks(port, &[file]);
    let mut host = Host::new(folder.path(), &config.text());
    host.start().await;
    let url = format!("http://127.0.0.1:{port}/in");
    let client = reqwest::Client::new();
    for _ in 0..3 {
        let sent = client
            .post(&url)
            .body("the same text")
            .send()
            .await
            .unwrap();
        assert_eq!(sent.status(), 202);
    }
    // Under one key it is one message, and so one name.
    for _ in 0..2 {
        assert_eq!(post(&url, "k", "{}").await.status(), 202);
    }
    drained(&host).await;
    let mut names: Vec<String> = std::fs::read_dir(folder.path().join("files"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(names.iter().all(|name| name.len() == 32 + ".json".len()));
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_plugins_are_kept_in_the_data_folder_and_old_ones_go() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new()
        .database()
        .hooks(free_port(), &[to_table("t", FAST)]);
    let mut host = Host::new(folder.path(), &config.text());
    let copies = host.data().join("plugins");
    std::fs::create_dir_all(&copies).unwrap();
    std::fs::write(copies.join("libconsign_plugin_http-0123.so"), "an old one").unwrap();
    for _ in 0..2 {
        host.start().await;
        let mut names: Vec<String> = std::fs::read_dir(&copies)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        assert_eq!(names.len(), 2, "one a plugin: {names:?}");
        assert!(names[0].starts_with("libconsign_plugin_http-"));
        assert!(!names.contains(&"libconsign_plugin_http-0123.so".to_owned()));
        host.kill();
    }
}

#[test]
fn two_adapters_on_one_path_are_refused_with_both_places() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let sends = [to_table("t", FAST)];
    let other = |path: &str| {
        let config = Config::new().database().hooks(port, &sends).adapter(
            "other",
            ["hooks", "http.receive", path],
            &sends,
        );
        let host = Host::new(folder.path(), &config.text());
        let checked = consign(&["check", host.config().to_str().unwrap()]);
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        (checked.status.code(), said)
    };
    let (code, said) = other("path: /in, methods: [PUT, POST]");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("POST /in of connection hooks"), "{said}");
    assert!(said.contains("adapter hooks already"), "{said}");
    assert_eq!(
        said.matches("consign.yaml:").count(),
        2,
        "both places: {said}"
    );
    for fine in ["path: /in, methods: [PUT]", "path: /in/*", "path: /other"] {
        let (code, said) = other(fine);
        assert_eq!(code, Some(0), "{fine}: {said}");
    }
}

#[test]
fn a_message_without_a_time_is_one_of_now() {
    let printed = consign(&[
        "vrl",
        "to_unix_timestamp(.time) > 1700000000",
        "--message",
        "{\"body\": 1}",
    ]);
    let said = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert_eq!(said.trim(), "true", "{printed:?}");
    let printed = consign(&[
        "vrl",
        ".time",
        "--message",
        "{\"body\": 1, \"time_unix_ms\": 0}",
    ]);
    let said = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(said.contains("1970"), "{said}");
}
