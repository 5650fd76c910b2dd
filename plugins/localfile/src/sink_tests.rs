//! Tests of the sink on real files.

use super::*;
use consign_plugin::{
    Applied,
    testing::{self, TestWrite},
};
use parking_lot::Mutex;
use std::{
    fs::{File, OpenOptions},
    os::unix::fs::MetadataExt,
};

#[path = "sink/order_tests.rs"]
mod order;
#[path = "sink/outage_tests.rs"]
mod outages;

type Call = Arc<dyn Fn(At) + Send + Sync>;

/// What a test does between the steps of a batch.
#[derive(Default)]
pub(super) struct Hook(Mutex<Option<Call>>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

impl Hook {
    pub(super) fn reached(&self, step: At) {
        let call = self.0.lock().clone();
        if let Some(call) = call {
            call(step);
        }
    }

    fn set(&self, call: impl Fn(At) + Send + Sync + 'static) {
        *self.0.lock() = Some(Arc::new(call));
    }

    fn clear(&self) {
        *self.0.lock() = None;
    }
}

struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn sink(&self, config: &str) -> WriteFile {
        let root = self.dir.path().to_owned();
        let config: WriteConfig = serde_json::from_str(config).unwrap();
        testing::open_sink::<WriteFile>(
            ConnectionConfig {
                root,
                create: false,
            },
            config,
        )
        .await
        .unwrap()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

const PLAIN: &str = r#"{"path": {"$template": 0}}"#;
const KEEP: &str = r#"{"path": {"$template": 0}, "overwrite_existing": false}"#;
const APPEND: &str = r#"{"path": {"$template": 0}, "append": true}"#;

fn to(path: &str, body: &str) -> TestWrite {
    TestWrite::new(body).template(0, path)
}

async fn write(sink: &WriteFile, writes: impl IntoIterator<Item = TestWrite>) -> Vec<String> {
    let outcomes = testing::write(sink, &testing::batch(writes)).await;
    let word = |o: &Outcome| match (o.applied(), o.is_repeat()) {
        (Applied::Yes, true) => "repeat".to_owned(),
        (Applied::Yes, false) => "delivered".to_owned(),
        (Applied::HandedOver, _) => "unconfirmed".to_owned(),
        _ => o.code().to_owned(),
    };
    outcomes.iter().map(word).collect()
}

#[tokio::test]
async fn files_are_replaced_whole_and_folders_are_made() {
    let f = Folder::new();
    let sink = f.sink(PLAIN).await;
    let writes = [to("a/b/c.json", "1"), to("d", ""), to("a/b/c.json", "2")];
    assert_eq!(write(&sink, writes).await, ["delivered"; 3]);
    assert_eq!(
        (f.read("a/b/c.json").as_str(), f.read("d").as_str()),
        ("2", "")
    );
    assert_eq!(
        std::fs::metadata(f.path("d")).unwrap().mode() & 0o777,
        0o640
    );
    let repeat = to("d", "").key([2; 16]).may_be_repeat();
    let lost = to("e", "never landed").key([3; 16]).may_be_repeat();
    assert_eq!(write(&sink, [repeat, lost]).await, ["repeat", "delivered"]);
    assert_eq!(f.names(), ["a", "d", "e"], "nothing unfinished is left");
}

#[tokio::test]
async fn without_overwriting_a_replay_finds_its_own_and_others_get_a_variant() {
    let f = Folder::new();
    std::fs::write(f.path("a.json"), "theirs").unwrap();
    let sink = f.sink(KEEP).await;
    let ours = || to("a.json", "ours").key([0xab; 16]);
    let variant = format!("a.{}.json", "ab".repeat(16));
    assert_eq!(write(&sink, [ours()]).await, ["delivered"]);
    assert_eq!(
        (f.read("a.json").as_str(), f.read(&variant).as_str()),
        ("theirs", "ours")
    );
    // Also when the host does not know that it is a repeat, and when the other file is gone.
    std::fs::remove_file(f.path("a.json")).unwrap();
    assert_eq!(write(&sink, [ours()]).await, ["repeat"]);
    assert_eq!(write(&sink, [ours().may_be_repeat()]).await, ["repeat"]);
    assert_eq!(f.names(), std::slice::from_ref(&variant));
    assert_eq!(
        write(&sink, [to("b", "x").key([1; 16])]).await,
        ["delivered"]
    );
    assert_eq!(write(&sink, [to("b", "x").key([1; 16])]).await, ["repeat"]);
    assert_eq!(f.names(), [variant, "b".to_owned()]);
}

#[tokio::test]
async fn appended_lines_follow_each_other_and_a_cut_line_is_ended() {
    let f = Folder::new();
    let sink = f.sink(APPEND).await;
    let writes = [to("l", "1"), to("m", "x"), to("l", "2")];
    assert_eq!(write(&sink, writes).await, ["delivered"; 3]);
    std::fs::write(f.path("l"), "1\n2\n{\"cut\":").unwrap();
    assert_eq!(write(&sink, [to("l", "3")]).await, ["delivered"]);
    assert_eq!(f.read("l"), "1\n2\n{\"cut\":\n3\n");
    let bare = f
        .sink(r#"{"path": "n", "append": true, "newline": false}"#)
        .await;
    let writes = [TestWrite::new("a"), TestWrite::new("b")];
    assert_eq!(write(&bare, writes).await, ["delivered"; 2]);
    assert_eq!(f.read("n"), "ab");
}

#[tokio::test]
async fn paths_that_lead_out_or_name_no_file_are_refused() {
    let f = Folder::new();
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), f.path("link")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("new"), f.path("file-link")).unwrap();
    std::fs::create_dir(f.path("folder")).unwrap();
    std::fs::write(f.path("file"), "x").unwrap();
    let long = "n".repeat(256);
    let deep = "d/".repeat(3000) + "x";
    let cases = [
        ("../x", "bad_path"),
        ("a/../../x", "bad_path"),
        ("/etc/consign-test", "bad_path"),
        ("a\0b", "bad_path"),
        ("", "bad_path"),
        ("folder/", "bad_path"),
        ("link/x", "bad_path"),
        ("link/deeper/x", "bad_path"),
        (".consign-x.tmp", "bad_path"),
        ("file/x", "not_a_folder"),
        (long.as_str(), "name_too_long"),
        (deep.as_str(), "name_too_long"),
    ];
    for config in [PLAIN, KEEP, APPEND] {
        let sink = f.sink(config).await;
        for (path, code) in cases {
            assert_eq!(
                write(&sink, [to(path, "x")]).await,
                [code],
                "{path:.20} {config}"
            );
        }
        let folder = write(&sink, [to("folder", "x")]).await;
        let allowed = ["is_a_folder", "delivered"];
        assert!(allowed.contains(&folder[0].as_str()), "{folder:?} {config}");
    }
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    let sink = f.sink(APPEND).await;
    assert_eq!(write(&sink, [to("file-link", "x")]).await, ["is_a_link"]);
    let absolute = f.path("inside").to_str().unwrap().to_owned();
    let absolute = absolute.replace(
        f.dir.path().to_str().unwrap(),
        f.dir.path().canonicalize().unwrap().to_str().unwrap(),
    );
    assert_eq!(write(&sink, [to(&absolute, "x")]).await, ["delivered"]);
}

#[tokio::test]
async fn a_batch_ends_at_its_first_failure_and_the_rest_was_not_attempted() {
    let f = Folder::new();
    for config in [PLAIN, KEEP, APPEND] {
        let sink = f.sink(config).await;
        let writes = [to("a", "1"), to("../b", "2"), to("c", "3")];
        let said = write(&sink, writes).await;
        assert_eq!(said[1..], ["bad_path", "not_attempted"]);
        assert!(f.path("a").exists() && !f.path("c").exists(), "{config}");
    }
}

#[tokio::test]
async fn missing_folders_are_refused_or_an_outage() {
    let f = Folder::new();
    let sink = f
        .sink(r#"{"path": {"$template": 0}, "create_dirs": false}"#)
        .await;
    assert_eq!(write(&sink, [to("a/b", "x")]).await, ["no_folder"]);
    let root = f.path("");
    std::fs::remove_dir(&root).unwrap();
    let batch = testing::batch([to("b", "x")]);
    let outcome = &testing::write(&sink, &batch).await[0];
    assert_eq!(
        (outcome.code(), outcome.scope()),
        ("root_gone", consign_plugin::Scope::Connection)
    );
    assert_eq!(
        sink.0.connection.probe().await.unwrap_err().kind,
        FailureKind::Down
    );
    std::fs::write(f.dir.path(), "no folder").unwrap();
    let outcome = &testing::write(&sink, &batch).await[0];
    assert_eq!(outcome.code(), "root_gone");
    let probed = sink.0.connection.probe().await.unwrap_err();
    assert_eq!(
        (probed.kind, probed.code.as_str()),
        (FailureKind::Down, "not_a_folder")
    );
    std::fs::remove_file(f.dir.path()).unwrap();
    std::fs::create_dir(&root).unwrap();
    sink.0.connection.probe().await.unwrap();
}

#[tokio::test]
async fn unfinished_files_of_a_stopped_process_are_removed_and_no_others() {
    let f = Folder::new();
    let old = std::time::SystemTime::now() - Duration::from_secs(7200);
    let theirs = format!(".consign-{}-0123.tmp", "00".repeat(16));
    for (name, aged) in [
        (theirs.as_str(), true),
        (".consign-young.tmp", false),
        ("old.tmp", true),
    ] {
        let file = File::create(f.path(name)).unwrap();
        if aged {
            file.set_modified(old).unwrap();
        }
    }
    let sink = f.sink(PLAIN).await;
    assert_eq!(write(&sink, [to("a", "x")]).await, ["delivered"]);
    assert_eq!(f.names(), [".consign-young.tmp", "a", "old.tmp"]);
}

#[tokio::test]
async fn a_full_disk_takes_the_part_of_a_line_back() {
    let f = Folder::new();
    let sink = f.sink(APPEND).await;
    std::fs::write(f.path("l"), "1\n").unwrap();
    // A file opened to read only fails to write, as a full disk does, and can't be cut either.
    let mut file = File::open(f.path("l")).unwrap();
    assert_eq!(sink.0.add(&mut file, b"2").unwrap_err().1, Step::Seen);
    assert_eq!(f.read("l"), "1\n");
}

#[tokio::test]
async fn a_full_disk_is_an_outage_of_the_connection() {
    let sink = Writer {
        connection: testing::connect::<LocalFile>(ConnectionConfig {
            root: "/dev".into(),
            create: false,
        })
        .await
        .unwrap(),
        config: serde_json::from_str(APPEND).unwrap(),
        mode: 0o640,
        hook: Hook::default(),
    };
    let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (error, _) = sink.add(&mut full, b"x").unwrap_err();
    assert_eq!(
        outcome(&error, Step::Unseen),
        Outcome::down(("disk_full", error.to_string()))
    );
    let not_a_file = sink.open_to_append(Path::new("/dev/null")).unwrap_err();
    assert_eq!(outcome(&not_a_file, Step::Unseen).code(), "not_a_file");
}

#[tokio::test]
async fn a_write_that_was_given_up_leaves_nothing_and_a_resend_waits_for_it() {
    let f = Folder::new();
    let sink = f.sink(PLAIN).await;
    let root = f.dir.path().canonicalize().unwrap();
    let target = root.join("a");
    let held = sink.0.connection.lock([target.as_path()].into_iter());
    let batch = testing::batch([to("a", "given up")]);
    let outcome = testing::write_within(&sink, &batch, Duration::from_millis(50)).await;
    assert_eq!(outcome[0].code(), "deadline");
    drop(held);
    assert_eq!(write(&sink, [to("a", "resent")]).await, ["delivered"]);
    assert_eq!(f.read("a"), "resent");
    assert_eq!(f.names(), ["a"]);
}

#[tokio::test]
async fn without_fsync_nothing_is_called_delivered() {
    let f = Folder::new();
    let sink = f.sink(r#"{"path": "a", "fsync": false}"#).await;
    assert_eq!(write(&sink, [TestWrite::new("x")]).await, ["unconfirmed"]);
}

#[test]
fn the_promise_follows_the_configuration() {
    let connection = ConnectionConfig {
        root: "/srv/out".into(),
        create: true,
    };
    let resolve = |config: &str| {
        WriteFile::resolve(
            &connection,
            &serde_json::from_str::<WriteConfig>(config).unwrap(),
        )
    };
    let plain = resolve(r#"{"path": "a/{{ .body.id }}"}"#);
    assert_eq!(
        (plain.promise, plain.repeat),
        (Promise::EffectivelyOnce, RepeatKind::SameTarget)
    );
    assert_eq!(
        (plain.target_id.as_str(), plain.faults.len()),
        ("/srv/out", 0)
    );
    assert_eq!(plain.target_fields, ["path"]);
    let append = resolve(r#"{"path": "a", "append": true}"#);
    assert_eq!(
        (append.promise, append.repeat),
        (Promise::AtLeastOnce, RepeatKind::SecondCopy)
    );
    let lazy = resolve(r#"{"path": "a", "fsync": false}"#);
    assert_eq!(
        (lazy.promise, lazy.unconfirmed),
        (Promise::AtLeastOnce, true)
    );
    for bad in [
        r#"{"path": "../a"}"#,
        r#"{"path": "a", "newline": true}"#,
        r#"{"path": "a", "append": true, "overwrite_existing": true}"#,
        r#"{"path": "a", "mode": "999"}"#,
        r#"{"path": "a", "mode": "+777"}"#,
    ] {
        assert_eq!(resolve(bad).faults.len(), 1, "{bad}");
    }
    assert!(resolve(r#"{"path": "/srv/out/a"}"#).faults.is_empty());
    assert_eq!(
        consign_manifest::coherence::sink(&WriteFile::declaration()),
        [""; 0]
    );
}
