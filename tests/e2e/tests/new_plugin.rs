//! What `consign new plugin` writes: in a folder outside this workspace, against the packaged SDK, each kind
//! builds, passes its own tests, and is loaded by the host.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{assert_ledgers, drained, post};
use consign_e2e::{Host, built, consign, free_port};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

const PROFILE: [&str; 4] = [
    "profile.dev.opt-level=1",
    "profile.dev.debug=\"line-tables-only\"",
    "profile.dev.package.\"*\".debug=false",
    "profile.dev.package.\"*\".opt-level=1",
];
const KINDS: [&str; 5] = ["sink", "source", "processor", "transform", "error-handler"];

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Cargo in a project, with the workspace's profile, so that most dependencies need not be built again, and
/// with this workspace's host for the tests that need one.
fn cargo(project: &Path, args: &[&str]) -> Command {
    let (command, rest) = args.split_at(1);
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(project)
        .args(command)
        .args(PROFILE.iter().flat_map(|setting| ["--config", setting]))
        .args(["--offline", "--target-dir"])
        .arg(target())
        .args(rest)
        .env("CONSIGN_BIN", &built().consign)
        .env("CONSIGN_PLUGINS", &built().plugins);
    cargo
}

/// What the kit has to say of each kind's finished library.
fn proven(kind: &str, tests: &str) {
    match kind {
        "sink" => assert!(
            tests.contains("conformance my_sink: 2 kept, 0 failed"),
            "{tests}"
        ),
        "source" => assert!(
            tests.contains("conformance my_source: 1 kept, 0 failed"),
            "{tests}"
        ),
        _ => assert!(
            tests.contains("the_example_runs_in_the_host ... ok"),
            "{tests}"
        ),
    }
}

/// The workspace's target folder, which has every dependency built already.
fn target() -> PathBuf {
    built()
        .consign
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned()
}

/// The SDK as it would come from a registry, unpacked.
fn packaged_sdk(into: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let packages = into.join("packages");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(&root).args([
        "package",
        "--offline",
        "--no-verify",
        "--allow-dirty",
        "-p",
        "consign-abi",
        "-p",
        "consign-manifest",
        "-p",
        "consign-plugin",
        "-p",
        "consign-testkit",
        "--target-dir",
    ]);
    run(cargo.arg(&packages));
    let sdk = into.join("sdk");
    std::fs::create_dir_all(&sdk).unwrap();
    for entry in std::fs::read_dir(packages.join("package")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "crate") {
            run(Command::new("tar")
                .arg("xzf")
                .arg(&path)
                .arg("-C")
                .arg(&sdk));
        }
    }
}

/// Answers `PING` and `PUT KEY PLACE LENGTH`, as the sink's own test server does.
async fn shelf() -> (u16, Arc<Mutex<BTreeMap<String, Vec<u8>>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let kept: Arc<Mutex<BTreeMap<String, Vec<u8>>>> = Arc::default();
    let shared = Arc::clone(&kept);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = Arc::clone(&shared);
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).await.unwrap_or(0) > 0 {
                    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
                    if let [put, key, _, length] = words.as_slice()
                        && put == "PUT"
                    {
                        let mut body = vec![0; length.parse().unwrap()];
                        stream.read_exact(&mut body).await.unwrap();
                        kept.lock().unwrap().insert(key.clone(), body);
                    }
                    stream.write_all(b"OK\n").await.unwrap();
                    line.clear();
                }
            });
        }
    });
    (port, kept)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_plugin_builds_against_the_packaged_sdk_passes_its_tests_and_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    packaged_sdk(folder.path());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let into = folder.path().to_str().unwrap();
    let sdk = folder.path().join("sdk");
    let plugins = folder.path().join("plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    for kind in KINDS {
        let name = format!("my_{}", kind.replace('-', "_"));
        let made = consign(&[
            "new",
            "plugin",
            &name,
            "--kind",
            kind,
            "--into",
            into,
            "--sdk",
            sdk.to_str().unwrap(),
        ]);
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        let project = folder.path().join(&name);
        // The versions that are built already.
        std::fs::copy(root.join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
        proven(kind, &run(&mut cargo(&project, &["test"])));
        run(&mut cargo(&project, &["build"]));
        let mut fmt = Command::new(env!("CARGO"));
        run(fmt.current_dir(&project).args(["fmt", "--check"]));
        let library = target()
            .join("debug")
            .join(format!("libconsign_plugin_{name}.so"));
        let verified = consign(&["plugins", "verify", library.to_str().unwrap()]);
        assert!(
            verified.status.success(),
            "{}",
            String::from_utf8_lossy(&verified.stderr)
        );
        std::fs::copy(&library, plugins.join(library.file_name().unwrap())).unwrap();
    }

    let (port, http) = (shelf().await, free_port());
    let (shelf_port, kept) = port;
    let mut host = Host::new(
        folder.path(),
        &format!(
            r#"
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{http}" }} }}
  shelf: {{ connector: my_sink, config: {{ address: "127.0.0.1:{shelf_port}" }} }}
adapters:
  hooks:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: all
        processors: [{{ processor: my_processor, config: {{ header: seen, value: "yes" }} }}]
        on_failure: {{ handler: my_error_handler, config: {{ skip: [place] }} }}
        send:
          - {{ id: put, connection: shelf, operation: my_sink.put, config: {{ place: "{{{{ .body.id }}}}" }} }}
"#
        ),
    );
    let text = std::fs::read_to_string(host.config()).unwrap();
    let ours = format!("plugins: [{}", built().plugins.display());
    std::fs::write(
        host.config(),
        text.replace(&ours, &format!("{ours}, ./plugins")),
    )
    .unwrap();
    host.start().await;
    let (client, url) = (
        reqwest::Client::new(),
        format!("http://127.0.0.1:{http}/in"),
    );
    for id in ["a", "b", "no place", "c"] {
        post(&client, &url, id).await;
    }
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(kept.lock().unwrap().len(), 3, "the handler gave one up");
    assert_eq!(status["lanes"][0]["outcomes"]["skipped"], 1, "{status:#}");
    assert_eq!(host.stop(), Some(0));
}

/// Projects that the command made, with what an author wrote into them by docs/writing-a-plugin.md alone: a sink
/// to a line server, and an error handler. They build outside this workspace, and the host runs both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connector_and_a_handler_written_by_the_text_are_loaded_and_work() {
    let folder = tempfile::tempdir().unwrap();
    packaged_sdk(folder.path());
    let plugins = folder.path().join("plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    for (name, kind) in [("acme_lines", "sink"), ("acme_desk", "error-handler")] {
        let project = written(folder.path(), name, kind);
        let tests = run(&mut cargo(&project, &["test"]));
        if kind == "sink" {
            let kept = "conformance acme_lines: 2 kept, 0 failed";
            assert!(tests.contains(kept), "{tests}");
        }
        run(&mut cargo(&project, &["build"]));
        let library = format!("libconsign_plugin_{name}.so");
        std::fs::copy(
            target().join("debug").join(&library),
            plugins.join(&library),
        )
        .unwrap();
    }
    let (lines_port, kept) = line_server().await;
    let http = free_port();
    let config = format!(
        r#"
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{http}" }} }}
  lines: {{ connector: acme_lines, config: {{ address: "127.0.0.1:{lines_port}" }} }}
  desk: {{ connector: localfile, config: {{ root: ./desk }} }}
adapters:
  hooks:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: all
        when: '.headers."x-never" == null'
        on_failure: {{ handler: acme_desk, config: {{ tries: 3 }}, divert: [hooks/desk/file] }}
        send:
          - {{ id: line, connection: lines, operation: acme_lines.put, config: {{ tag: "{{{{ .body.id }}}}" }} }}
      - name: desk
        when: '.headers."x-never" != null'
        send:
          - {{ id: file, connection: desk, operation: localfile.write.local, config: {{ path: refused.jsonl, append: true }} }}
"#
    );
    std::fs::create_dir_all(folder.path().join("desk")).unwrap();
    let mut host = Host::with_plugins(folder.path(), &config, &[&plugins]);
    host.start().await;
    let client = reqwest::Client::new();
    let url = format!("http://127.0.0.1:{http}/in");
    for id in ["a", "no tag", "b"] {
        post(&client, &url, id).await;
    }
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(kept.lock().unwrap().len(), 2, "each line once");
    let desk = std::fs::read_to_string(folder.path().join("desk/refused.jsonl")).unwrap();
    assert!(
        desk.contains("no tag") && desk.lines().count() == 1,
        "{desk}"
    );
    assert_eq!(host.stop(), Some(0));
}

/// Makes a project and lays over it what was written.
fn written(folder: &Path, name: &str, kind: &str) -> PathBuf {
    let sdk = folder.join("sdk");
    let (into, sdk) = (folder.to_str().unwrap(), sdk.to_str().unwrap());
    let made = consign(&[
        "new", "plugin", name, "--kind", kind, "--into", into, "--sdk", sdk,
    ]);
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let project = folder.join(name);
    overlay(&root.join("by_the_text").join(name), &project);
    std::fs::copy(root.join("../../Cargo.lock"), project.join("Cargo.lock")).unwrap();
    project
}

fn overlay(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            overlay(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

/// Keeps `LINE KEY TAG BODY` by key, once.
async fn line_server() -> (u16, Arc<Mutex<BTreeMap<String, String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let kept: Arc<Mutex<BTreeMap<String, String>>> = Arc::default();
    let shared = Arc::clone(&kept);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = Arc::clone(&shared);
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).await.unwrap_or(0) > 0 {
                    let words: Vec<&str> = line.trim_end().splitn(4, ' ').collect();
                    if let ["LINE", key, _, body] = words.as_slice() {
                        let known = kept
                            .lock()
                            .unwrap()
                            .insert((*key).to_owned(), (*body).to_owned());
                        assert!(known.is_none(), "{key} came twice");
                    }
                    stream.write_all(b"STORED\n").await.unwrap();
                    line.clear();
                }
            });
        }
    });
    (port, kept)
}
