//! `consign buffer` on folders of stopped hosts: empty, new, filled, damaged; and an export that is delivered elsewhere.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use bytes::Bytes;
use common::flood::{awaited, host, post_all, spill_files};
use common::{assert_ledgers, drained};
use consign_buffer::{
    Acceptance, Buffer, LaneId, LaneSpec, NewWrite, Options, RealFilesystem, Settlement, WhenFull,
    WriteState,
};
use consign_e2e::{Host, consign, free_port};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;

fn said(folder: &Path, out: &Output) -> String {
    let text = format!(
        "exit {}\n--- stdout\n{}--- stderr\n{}",
        out.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    text.replace(folder.to_str().unwrap(), "[folder]")
}

fn on(act: &str, folder: &Path, more: &[&str]) -> Output {
    let mut args = vec!["buffer", act, folder.to_str().unwrap()];
    args.extend(more);
    consign(&args)
}

async fn open(data_dir: &Path) -> (Buffer, [LaneId; 2]) {
    let options = Options {
        log_bytes: 1 << 20,
        log_segments: 4,
        ..Options::default()
    };
    let (buffer, _) = Buffer::open(data_dir.join("buffer"), options, Arc::new(RealFilesystem))
        .await
        .unwrap();
    let lane = |id: &str| {
        let spec = LaneSpec {
            id: id.to_owned(),
            formerly: Vec::new(),
            quota_bytes: 1 << 30,
            in_flight_limit: 8,
            when_full: WhenFull::Block,
        };
        buffer.lane(spec).unwrap()
    };
    let lanes = [lane("orders/all/table"), lane("orders/all/files")];
    (buffer, lanes)
}

fn write(lane: LaneId, n: u8) -> NewWrite {
    NewWrite {
        lane,
        key: [n; 16],
        order: 0,
        body: Bytes::from(vec![n; 100]),
        created_unix_ms: 1_767_225_600_000 + u64::from(n),
        expires_unix_ms: None,
        children: Vec::new(),
    }
}

/// Ten writes for each of two lanes; of the first one is settled and two were tried.
async fn fill(data_dir: &Path) {
    let (buffer, lanes) = open(data_dir).await;
    for n in 1..=10 {
        for lane in lanes {
            let room = buffer.reserve(&[(lane, 100)]).unwrap();
            let acceptance = Acceptance {
                scope: "orders".into(),
                position: Some(("orders/source".into(), Bytes::from(vec![n; 8]))),
                writes: vec![write(lane, n)],
                ..Acceptance::default()
            };
            buffer.accept(room, acceptance).await.unwrap();
        }
    }
    let settled = Settlement {
        lane: lanes[0],
        seq: 1,
        result: 1,
        release_children: true,
    };
    buffer.settle(vec![settled]).await.unwrap();
    for seq in [2, 3] {
        let tried = WriteState {
            attempts: 1,
            first_maybe_unix_ms: Some(1_767_225_700_000),
            ..WriteState::default()
        };
        buffer.note(lanes[0], seq, tried).await.unwrap();
    }
    buffer.close().await.unwrap();
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn document(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:?}"))
}

#[tokio::test]
async fn folders_without_a_buffer_and_without_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for act in ["inspect", "verify", "export"] {
        insta::assert_snapshot!(format!("empty_{act}"), said(path, &on(act, path, &[])));
        assert!(!path.join("buffer").exists(), "{act} made something");
    }
    let (buffer, _) = open(path).await;
    insta::assert_snapshot!("running", {
        let text = said(path, &on("inspect", path, &[]));
        text.replace(&std::process::id().to_string(), "[pid]")
    });
    buffer.close().await.unwrap();
    drop(buffer);
    for act in ["inspect", "verify", "export"] {
        insta::assert_snapshot!(format!("new_{act}"), said(path, &on(act, path, &[])));
    }
}

#[tokio::test]
async fn a_filled_folder_as_table_and_as_document() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fill(path).await;
    for act in ["inspect", "verify"] {
        insta::assert_snapshot!(format!("filled_{act}"), said(path, &on(act, path, &[])));
        insta::assert_snapshot!(
            format!("filled_{act}_json"),
            said(path, &on(act, path, &["--json"]))
        );
    }
    let one = document(&on(
        "inspect",
        path,
        &["--json", "--lane", "orders/all/files"],
    ));
    assert_eq!(one["lanes"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&one["pending"], &one["lanes"][0]["pending"]),
        (&10.into(), &10.into())
    );
    insta::assert_snapshot!(
        "unknown_lane",
        said(path, &on("export", path, &["--lane", "orders/all/tabel"]))
    );
    insta::assert_snapshot!("export_one_lane", {
        let text = said(path, &on("export", path, &["--lane", "orders/all/table"]));
        let lines: Vec<&str> = text.lines().collect();
        [&lines[..4], &lines[lines.len() - 3..]].concat().join("\n")
    });
    // A configuration stands for its data_dir.
    let config = path.join("consign.yaml");
    std::fs::write(&config, "data_dir: .\n").unwrap();
    assert_eq!(
        document(&on("inspect", &config, &["--json"]))["pending"],
        19
    );
}

#[tokio::test]
async fn damage_is_named_by_file_and_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fill(path).await;
    let log = path.join("buffer/log/0000.log");
    let bytes = std::fs::read(&log).unwrap();
    let at = bytes.windows(100).position(|w| w == [4; 100]).unwrap();
    flip(&log, at + 50);
    flip(&path.join("buffer/checkpoint-0"), 100);
    for act in ["inspect", "verify", "export"] {
        let out = on(act, path, &[]);
        let mut text = said(path, &out);
        if act == "export" {
            assert_eq!(text.lines().filter(|l| l.starts_with('{')).count(), 18);
            text = text
                .lines()
                .filter(|l| !l.starts_with('{'))
                .collect::<Vec<_>>()
                .join("\n");
        }
        insta::assert_snapshot!(format!("damaged_{act}"), text);
    }
    let found = document(&on("verify", path, &["--json"]));
    assert_eq!(found["whole"], false);
    assert_eq!(found["lost"]["writes"], 1);
    let damage = &found["damage"][0];
    assert_eq!(damage["file"], "log/0000.log");
    let from = damage["offset"].as_u64().unwrap() as usize;
    assert!(
        from < at && at < from + damage["bytes"].as_u64().unwrap() as usize,
        "{damage}"
    );
    assert_eq!(on("verify", path, &[]).status.code(), Some(1));
    assert!(
        !path.join("buffer/quarantine").exists(),
        "looking wrote something"
    );
}

const MESSAGES: u64 = 25;

/// Two destinations of one message: raw bytes in files, and a table with the keys. Both are away while `out` is no folder.
fn config(port: u16) -> String {
    format!(
        r#"
connections:
  hooks: {{ connector: http, config: {{ listen: "127.0.0.1:{port}" }} }}
  files: {{ connector: localfile, config: {{ root: ./out, create: false }} }}
  table: {{ connector: sqlite, config: {{ path: ./out/out.db }} }}
adapters:
  orders:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: all
        send:
          - id: files
            connection: files
            operation: localfile.write.local
            config: {{ path: '{{{{ .headers."x-id" }}}}.bin' }}
          - id: table
            connection: table
            operation: sqlite.write
            config: {{ table: orders, create_table: true, columns: {{ id: '{{{{ .headers."x-id" }}}}' }}, write_key_column: write_key }}
"#
    )
}

fn body(n: u64) -> Vec<u8> {
    (0..3_000).map(|i| (i * 11 + n * 7) as u8).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_is_delivered_by_another_host_under_the_same_keys() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    std::fs::create_dir(&first).unwrap();
    std::fs::create_dir(&second).unwrap();
    // A plain file has the folder's name, or a connector would make it.
    std::fs::write(first.join("out"), "").unwrap();
    let port = free_port();
    let mut host = Host::new(&first, &config(port));
    host.start().await;
    let client = reqwest::Client::new();
    for n in 0..MESSAGES {
        let sent = client
            .post(format!("http://127.0.0.1:{port}/in"))
            .header("content-type", "application/octet-stream")
            .header("x-id", format!("m{n}"))
            .body(body(n))
            .send()
            .await
            .unwrap();
        assert!(sent.status().is_success(), "{}", sent.status());
    }
    let busy = on("export", &host.data(), &[]);
    assert_eq!(busy.status.code(), Some(2));
    let why = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert!(
        why.contains(&format!("in use by process {}; stop it first", host.pid())),
        "{why}"
    );
    let code = host.stop();
    assert!(code == Some(0) || code == Some(1), "{code:?}");

    let export = folder.path().join("export.jsonl");
    let exported = on(
        "export",
        &host.data(),
        &["--output", export.to_str().unwrap()],
    );
    assert!(exported.status.success(), "{}", said(&first, &exported));
    let again = on(
        "export",
        &host.data(),
        &["--output", export.to_str().unwrap()],
    );
    assert_eq!(
        again.status.code(),
        Some(2),
        "a file that exists is not written over"
    );
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&export).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in std::fs::read_to_string(&export).unwrap().lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let lane = value["lane"].as_str().unwrap().to_owned();
        keys.entry(lane)
            .or_default()
            .push(value["key"].as_str().unwrap().to_owned());
    }
    assert_eq!(keys["orders/all/files"].len() as u64, MESSAGES);
    assert_eq!(keys["orders/all/table"].len() as u64, MESSAGES);

    let mut other = Host::new(&second, &config(port));
    let config = other.config();
    let import = |more: &[&str]| {
        let mut args = vec![
            "buffer",
            "import",
            config.to_str().unwrap(),
            export.to_str().unwrap(),
        ];
        args.extend(more);
        consign(&args)
    };
    insta::assert_snapshot!("import_dry_run", said(&second, &import(&["--dry-run"])));
    insta::assert_snapshot!(
        "import_one_lane",
        said(&second, &import(&["--lane", "orders/all/files"]))
    );
    insta::assert_snapshot!("import_rest", said(&second, &import(&["--json"])));
    insta::assert_snapshot!(
        "import_unknown_lane",
        said(&second, &import(&["--lane", "orders/all/file"]))
    );

    std::fs::create_dir(second.join("out")).unwrap();
    other.start().await;
    assert_eq!(
        import(&[]).status.code(),
        Some(2),
        "not while the host runs"
    );
    let status = drained(&other).await;
    assert_eq!(status["recovery"]["unclean_exit"], false);
    for n in 0..MESSAGES {
        let arrived = std::fs::read(second.join(format!("out/m{n}.bin"))).unwrap();
        assert!(arrived == body(n), "m{n} arrived with other bytes");
    }
    let rows = common::read_table(&second.join("out/out.db"), "orders");
    let mut landed: Vec<String> = rows.values().flatten().cloned().collect();
    landed.sort();
    // A row's key is the write's with the number of the row.
    let rows = keys["orders/all/table"].iter();
    let mut sent: Vec<String> = rows.map(|key| format!("{key}#0")).collect();
    sent.sort();
    assert_eq!(landed, sent, "every write under its old key, once");
    assert_eq!(other.stop(), Some(0));
    let empty = document(&on("inspect", &other.data(), &["--json"]));
    assert_eq!(empty["pending"], 0);
}

/// Where these bytes stand in a file.
fn position(path: &Path, wanted: &[u8]) -> usize {
    let bytes = std::fs::read(path).unwrap();
    bytes
        .windows(wanted.len())
        .position(|w| w == wanted)
        .unwrap()
}

/// A host whose files were spoiled while it was stopped.
struct Spoiled {
    _folder: tempfile::TempDir,
    host: Host,
    /// What `consign buffer verify` said of them.
    verified: Value,
    /// What the host said when it came to them.
    event: Value,
    /// What did not arrive.
    missing: Vec<String>,
}

/// Fills a host, stops it, spoils its files, starts it and lets the destination come back.
async fn spoiled(count: usize, spoil: impl FnOnce(&Host), code: &str) -> Spoiled {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut host = host(folder.path(), port);
    host.start().await;
    let ids = post_all(port, count).await;
    assert_eq!(host.stop(), Some(0), "{}", host.log());
    spoil(&host);
    let out = on("verify", &host.data(), &["--json"]);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    let verified = document(&out);
    host.start().await;
    let event = awaited(&host, code).await.remove(0);
    std::fs::create_dir(folder.path().join("out")).unwrap();
    let status = drained(&host).await;
    assert_ledgers(&status);
    let arrived = common::flood::arrived(folder.path());
    let missing = ids.difference(&arrived).cloned().collect();
    Spoiled {
        _folder: folder,
        host,
        verified,
        event,
        missing,
    }
}

/// The damage that `verify` names is where `event` says it is; that many bytes into the file.
fn named(of: &Spoiled, file: &str) -> u64 {
    let damage = &of.verified["damage"][0];
    let offset = damage["offset"].as_u64().unwrap();
    let name = damage["file"].as_str().unwrap();
    assert!(name.starts_with(file), "{:#}", of.verified);
    assert_eq!(of.event["fields"]["places"], format!("{name} at {offset}"));
    assert_eq!(of.event["fields"]["writes"], 1, "{:#}", of.event);
    assert_eq!(of.verified["lost"]["writes"], 1);
    offset
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_the_log_is_named_told_and_the_rest_delivered() {
    let spoil = |host: &Host| {
        let log = host.data().join("buffer/log/0000.log");
        flip(&log, position(&log, b"<m-0007>") + 1_000);
    };
    let mut of = spoiled(20, spoil, "buffer_corruption").await;
    assert_eq!(of.missing, ["m-0007"]);
    assert_eq!(named(&of, "log/0000.log") % 8, 0);
    let status = of.host.get("/api/v1/status").await.unwrap();
    assert_eq!(status["recovery"]["lost_writes"], 1);
    let aside = std::fs::read_dir(of.host.data().join("buffer/quarantine")).unwrap();
    assert_eq!(aside.count(), 1);
    assert_eq!(of.host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_a_spill_file_is_named_told_and_the_rest_delivered() {
    let spoil = |host: &Host| {
        let file = spill_files(host).remove(0);
        flip(&file, position(&file, b"<m-0003>") + 1_000);
    };
    let mut of = spoiled(300, spoil, "buffer_corruption").await;
    assert_eq!(of.missing, ["m-0003"]);
    assert_eq!(named(&of, "lanes/00000000/") % 8, 0);
    let status = of.host.get("/api/v1/status").await.unwrap();
    assert_eq!(status["lanes"][0]["outcomes"]["lost"], 1);
    assert_eq!(of.host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_a_checkpoint_costs_nothing_and_is_named_and_told() {
    // Which slot is the newest is not said: the first copy of each.
    let spoil = |host: &Host| {
        for slot in ["checkpoint-0", "checkpoint-1"] {
            flip(&host.data().join("buffer").join(slot), 100);
        }
    };
    let mut of = spoiled(300, spoil, "buffer_healed").await;
    assert!(of.missing.is_empty(), "{:?}", of.missing);
    for slot in ["checkpoint-0", "checkpoint-1"] {
        let says = format!("{slot}: its first copy does not check; the second was read");
        assert!(
            of.event["message"].as_str().unwrap().contains(&says),
            "{:#}",
            of.event
        );
        let healed = of.verified["healed"].as_array().unwrap();
        assert!(healed.contains(&says.as_str().into()), "{:#}", of.verified);
    }
    assert_eq!(of.host.stop(), Some(0));
}

/// The folder was locked by a file in it only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_host_is_refused_although_the_first_ones_buffer_was_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = host(folder.path(), free_port());
    first.start().await;
    std::fs::remove_dir_all(folder.path().join("data/buffer")).unwrap();
    let second = host(folder.path(), free_port());
    let refused = std::process::Command::new("timeout")
        .args(["20", consign_e2e::built().consign.to_str().unwrap(), "run"])
        .arg(second.config())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("is in use by another process") && said.contains("another data_dir"),
        "{said}"
    );
}
