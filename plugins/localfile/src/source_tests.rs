//! Tests of the source against the SDK's host.

use super::*;
use consign_plugin::testing::{self, SourceDriver};
use std::{io::Write, path::Path};

const SOON: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(150);

fn config(json: &str) -> ReadConfig {
    serde_json::from_str(json).unwrap()
}

async fn folder(root: &Path) -> Arc<LocalFile> {
    let config = ConnectionConfig {
        root: root.to_owned(),
        create: false,
    };
    testing::connect::<LocalFile>(config).await.unwrap()
}

fn append(root: &Path, text: &str) {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .append(true)
        .create(true)
        .open(root.join("a.log"))
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

const TAIL: &str = r#"{"path": "a.log", "poll_interval": "10ms", "content_type": "text/plain"}"#;
const WHOLE: &str = r#"{"path": "*.csv", "mode": "whole", "poll_interval": "10ms", "quiet": "0s", "after": "delete"}"#;

#[tokio::test]
async fn lines_come_with_identity_and_position_and_go_on_after_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    append(dir.path(), "one\ntwo\n");
    let folder = folder(dir.path()).await;
    let mut source = SourceDriver::start::<ReadFiles>(Arc::clone(&folder), config(TAIL), None);
    source.credit(100, 1 << 20);
    let lines = source.receive_many(2, SOON).await;
    assert_eq!(lines[1].body, b"two");
    assert_eq!((lines[0].offset, lines[1].offset), (Some(0), Some(4)));
    assert_eq!(lines[1].attributes["offset"], 4);
    assert_eq!(lines[1].partition.as_deref(), Some("a.log"));
    assert_eq!(lines[1].routing_key.as_deref(), Some("a.log"));
    assert_eq!(lines[1].content_type.as_deref(), Some("text/plain"));
    assert_ne!(lines[0].identity, lines[1].identity);
    append(dir.path(), "three\n");
    assert_eq!(source.receive(SOON).await.unwrap().body, b"three");
    source.stop(SOON).await.unwrap();

    let position = lines[0].position.clone();
    let mut source = SourceDriver::start::<ReadFiles>(folder, config(TAIL), position);
    source.credit(100, 1 << 20);
    let again = source.receive_many(2, SOON).await;
    assert_eq!(again[0].identity, lines[1].identity);
    assert_eq!(again[1].body, b"three");
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn lines_that_are_blocked_come_again() {
    let dir = tempfile::tempdir().unwrap();
    append(dir.path(), "one\ntwo\n");
    let mut source = SourceDriver::start::<ReadFiles>(folder(dir.path()).await, config(TAIL), None);
    source.credit(100, 1 << 20);
    let lines = source.receive_many(2, SOON).await;
    source.accept([lines[0].id]);
    let reason = "full".to_owned();
    source.settle(
        lines[1].id,
        SettleResult::Blocked {
            retry_after_ms: 20,
            reason,
        },
    );
    let again = source.receive(SOON).await.unwrap();
    assert_eq!(
        (&again.identity, &again.body),
        (&lines[1].identity, &lines[1].body)
    );
    source.accept([again.id]);
    assert!(source.receive(SHORT).await.is_none());
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn seeking_to_the_beginning_reads_again_under_the_same_identity() {
    let dir = tempfile::tempdir().unwrap();
    append(dir.path(), "one\n");
    let mut source = SourceDriver::start::<ReadFiles>(folder(dir.path()).await, config(TAIL), None);
    source.credit(100, 1 << 20);
    let first = source.receive(SOON).await.unwrap();
    source.accept([first.id]);
    source.seek("nonsense");
    assert!(source.receive(SHORT).await.is_none());
    source.seek("beginning");
    assert_eq!(source.receive(SOON).await.unwrap().identity, first.identity);
    source.seek(first.position.unwrap());
    assert!(source.receive(SHORT).await.is_none());
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn nothing_is_read_without_credit_and_stop_is_prompt_while_waiting_for_it() {
    let dir = tempfile::tempdir().unwrap();
    append(dir.path(), "one\ntwo\nthree\n");
    let mut source = SourceDriver::start::<ReadFiles>(folder(dir.path()).await, config(TAIL), None);
    assert!(source.receive(SHORT).await.is_none());
    source.credit(2, 1);
    assert_eq!(source.receive_many(3, SHORT).await.len(), 1);
    source.stop(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn a_whole_file_is_one_message_and_leaves_once_accepted() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.csv"), "x,y\n1,2\n").unwrap();
    let mut source =
        SourceDriver::start::<ReadFiles>(folder(dir.path()).await, config(WHOLE), None);
    source.credit(100, 1 << 20);
    let file = source.receive(SOON).await.unwrap();
    assert_eq!(file.body, b"x,y\n1,2\n");
    assert!(file.identity.is_some() && file.time_unix_ms.is_some() && file.position.is_some());
    assert!(dir.path().join("a.csv").exists());
    source.accept([file.id]);
    let gone = async {
        while dir.path().join("a.csv").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, gone).await.unwrap();
    source.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn a_folder_that_goes_away_is_a_fault_and_a_bad_position_a_clear_one() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(dir.path()).await;
    let source =
        SourceDriver::start::<ReadFiles>(Arc::clone(&folder), config(TAIL), Some(b"{".into()));
    let failure = source.ended(SOON).await.unwrap_err();
    assert_eq!(failure.code, "position_unreadable");
    let source = SourceDriver::start::<ReadFiles>(folder, config(TAIL), None);
    source.credit(1, 1);
    drop(dir);
    assert_eq!(
        source.ended(SOON).await.unwrap_err().kind,
        FailureKind::Down
    );
}

#[test]
fn the_mode_decides_and_settings_of_the_other_one_are_faults() {
    let connection = ConnectionConfig {
        root: "/".into(),
        create: false,
    };
    let resolve = |json: &str| ReadFiles::resolve(&connection, &config(json));
    assert_eq!(
        resolve(TAIL).delivery,
        DeliveryType::OffsetTrackedCumulative
    );
    assert_eq!(
        resolve(WHOLE).delivery,
        DeliveryType::OffsetTrackedIndividual
    );
    assert!(resolve(TAIL).faults.is_empty() && resolve(WHOLE).faults.is_empty());
    for (json, part) in [
        (
            r#"{"path": "a", "after": "keep"}"#,
            "`after`: only with `mode: whole`",
        ),
        (
            r#"{"path": "a", "mode": "whole", "start": "end"}"#,
            "`start`: only with `mode: tail`",
        ),
        (r#"{"path": "../a"}"#, "leads out"),
        (r#"{"path": "/a"}"#, "absolute"),
        (r#"{"path": "[a"}"#, "not a pattern"),
        (r#"{"path": "a", "poll_interval": "0s"}"#, "at least 10ms"),
        (r#"{"path": "a", "max_body": "0B"}"#, "at least 1B"),
        (
            r#"{"path": "a", "mode": "whole", "after": "move"}"#,
            "expected a folder",
        ),
        (
            r#"{"path": "in/*", "mode": "whole", "after": "move", "move_to": "in"}"#,
            "come again",
        ),
        (
            r#"{"path": "in/*", "mode": "whole", "move_to": "out"}"#,
            "only with `after: move`",
        ),
    ] {
        let faults = resolve(json).faults;
        assert!(
            faults.len() == 1 && faults[0].contains(part),
            "{json}: {faults:?}"
        );
    }
    assert_eq!(
        consign_manifest::coherence::source(&ReadFiles::declaration()),
        [""; 0]
    );
}
