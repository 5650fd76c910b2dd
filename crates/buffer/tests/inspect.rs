//! Looking into a stopped host's folder: what is said about damage, that nothing is written, and that an export can be
//! imported again.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use consign_buffer::inspect::*;
use consign_buffer::*;
use tempfile::TempDir;

const BODY_BYTES: usize = 1000;
const WRITES: u64 = 40;

/// A log that holds everything, or one so small that most is spilled.
fn options(small: bool) -> Options {
    Options {
        log_bytes: if small { 64 << 10 } else { 1 << 20 },
        log_segments: 4,
        spill_file_bytes: 8 << 10,
        log_entries: if small { 8 } else { 10_000 },
        ..Options::default()
    }
}

fn fs() -> Arc<RealFilesystem> {
    Arc::new(RealFilesystem)
}

async fn open(dir: &Path, small: bool) -> Buffer {
    let (buffer, _) = Buffer::open(dir, options(small), fs()).await.unwrap();
    for id in ["a/r/one", "a/r/two"] {
        lane(&buffer, id, 1 << 20);
    }
    buffer
}

fn lane(buffer: &Buffer, id: &str, quota_bytes: u64) -> LaneId {
    let spec = LaneSpec {
        quota_bytes,
        ..spec(id)
    };
    buffer.lane(spec).unwrap()
}

fn spec(id: &str) -> LaneSpec {
    LaneSpec {
        id: id.into(),
        formerly: vec![],
        quota_bytes: 1 << 20,
        in_flight_limit: 8,
        when_full: WhenFull::Block,
    }
}

/// Every byte value, and not text.
fn write(lane: LaneId, n: u64, children: Vec<NewWrite>) -> NewWrite {
    let mut key = [0xA5; 16];
    key[..8].copy_from_slice(&n.to_le_bytes());
    let body: Vec<u8> = (0..BODY_BYTES).map(|i| (i as u64 * 7 + n) as u8).collect();
    NewWrite {
        lane,
        key,
        order: n % 5,
        body: Bytes::from(body),
        created_unix_ms: 1_700_000_000_000 + n,
        expires_unix_ms: n.is_multiple_of(3).then_some(1_900_000_000_000 + n),
        children,
    }
}

fn noted(n: u64) -> WriteState {
    WriteState {
        attempts: n as u32,
        first_maybe_unix_ms: Some(1_700_000_100_000 + n),
        spent_resends: 1,
        open_gate_age_ms: 4_000,
        first_attempt_unix_ms: 1_700_000_090_000,
        flags: 5,
        sealed: if n == 9 { 77 } else { 0 },
    }
}

/// Forty writes of one lane; the tenth holds a dependent of the other, the ninth and eleventh were tried, every fourth
/// is settled.
async fn fill(dir: &Path, small: bool) {
    let buffer = open(dir, small).await;
    let (one, two) = (LaneId(0), LaneId(1));
    for n in 1..=WRITES {
        let mut room = vec![(one, BODY_BYTES as u64)];
        let mut children = vec![];
        if n == 10 {
            room.extend([(two, BODY_BYTES as u64), (one, BODY_BYTES as u64)]);
            children = vec![write(two, 1000, vec![write(one, 1001, vec![])])];
        }
        let acceptance = Acceptance {
            scope: "a".into(),
            origin: Some(Origin::Individual { id: [n as u8; 16] }),
            writes: vec![write(one, n, children)],
            ..Acceptance::default()
        };
        let room = buffer.reserve(&room).unwrap();
        buffer.accept(room, acceptance).await.unwrap();
        if n == 9 || n == 11 {
            buffer.note(one, n, noted(n)).await.unwrap();
        }
        if n % 4 == 0 {
            let settled = Settlement {
                lane: one,
                seq: n,
                result: 1,
                release_children: true,
            };
            buffer.settle(vec![settled]).await.unwrap();
        }
    }
    if small {
        let from = std::time::Instant::now();
        while buffer.stats(one).unwrap().spill_files < 3 {
            assert!(from.elapsed().as_secs() < 20, "{:?}", buffer.stats(one));
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    buffer.close().await.unwrap();
}

fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            out.extend(tree(&path));
        } else {
            out.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    out
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

fn first_spill(dir: &Path) -> PathBuf {
    let files = tree(&dir.join("lanes/00000000"));
    files.into_keys().next().unwrap()
}

#[tokio::test]
async fn looking_writes_nothing_and_sees_everything() {
    for small in [false, true] {
        let dir = TempDir::new().unwrap();
        fill(dir.path(), small).await;
        let before = tree(dir.path());
        let found = inspect(dir.path(), fs()).unwrap();
        assert!(!found.unclean_exit && found.lost.is_empty() && found.healed.is_empty());
        assert_eq!(found.lanes[0].pending, 30);
        assert_eq!(found.lanes[0].id, "a/r/one");
        assert_eq!(found.maybe[0], 2);
        assert_eq!((found.log_segments, found.epoch), (4, 1));
        assert_eq!(found.log_bytes, options(small).log_bytes);
        assert_eq!(found.lanes[0].spill_files > 0, small);
        let verified = verify(dir.path(), fs()).unwrap();
        assert!(verified.is_whole(), "{verified:?}");
        assert_eq!(verified.writes, 30);
        assert_eq!(verified.spill_bytes > 0, small);
        let mut out = Vec::new();
        let exported = export(dir.path(), fs(), &[], &mut out).unwrap();
        assert_eq!(exported.writes, 30);
        assert!(exported.lost.is_empty());
        assert!(tree(dir.path()) == before, "something was written");
        // From a copy that cannot be written to, without the lock file.
        std::fs::remove_file(dir.path().join("lock")).unwrap();
        let mut again = Vec::new();
        export(dir.path(), fs(), &[], &mut again).unwrap();
        assert_eq!(out, again);
        assert!(!dir.path().join("lock").exists());
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_spill_file_is_named_and_counted() {
    let dir = TempDir::new().unwrap();
    fill(dir.path(), true).await;
    let path = first_spill(dir.path());
    let file = path.strip_prefix(dir.path()).unwrap().to_path_buf();
    flip(&path, 64 + 200);
    let before = tree(dir.path());
    let verified = verify(dir.path(), fs()).unwrap();
    let [damage] = &verified.damage[..] else {
        panic!("{verified:?}")
    };
    assert_eq!((&damage.file, damage.offset), (&file, 64));
    assert!(damage.bytes >= 1000 && !damage.harmless);
    assert_eq!(verified.found.lost.writes, 1);
    assert_eq!((verified.writes, verified.found.lanes[0].pending), (29, 29));
    // Notes name the place, and no copy that was not made.
    let notes = verified.found.lost.notes.join("\n");
    assert!(
        notes.contains(&format!("{} at 64", file.display())),
        "{notes}"
    );
    assert!(
        notes.contains("nothing is written while looking"),
        "{notes}"
    );
    let exported = export(dir.path(), fs(), &[], &mut Vec::new()).unwrap();
    assert_eq!((exported.writes, exported.lost.writes), (29, 1));
    // In the head, which the checkpoint stands in for.
    flip(&path, 64 + 200);
    flip(&path, 20);
    let verified = verify(dir.path(), fs()).unwrap();
    assert_eq!(verified.writes, 30);
    let [damage] = &verified.damage[..] else {
        panic!("{verified:?}")
    };
    assert!(damage.harmless && damage.offset == 0 && damage.file == file);
    // Gone altogether.
    std::fs::remove_file(&path).unwrap();
    let verified = verify(dir.path(), fs()).unwrap();
    assert_eq!(verified.damage[0].bytes, 0);
    assert!(!verified.damage[0].harmless && verified.found.lost.files == 1);
    assert_eq!(verified.writes + verified.found.lost.writes, 30);
    assert_eq!(tree(dir.path()).len() + 1, before.len());
}

#[tokio::test]
async fn a_flipped_bit_in_the_log_is_named_and_counted() {
    let dir = TempDir::new().unwrap();
    fill(dir.path(), false).await;
    let log = dir.path().join("log/0000.log");
    let bytes = std::fs::read(&log).unwrap();
    let key = write(LaneId(0), 6, vec![]).key;
    let at = bytes.windows(16).position(|w| w == key).unwrap();
    // In the middle of its body.
    flip(&log, at + 500);
    let verified = verify(dir.path(), fs()).unwrap();
    let [damage] = &verified.damage[..] else {
        panic!("{verified:?}")
    };
    assert_eq!(damage.file, Path::new("log/0000.log"));
    let (from, to) = (
        damage.offset as usize,
        (damage.offset + damage.bytes) as usize,
    );
    assert!(
        from < at && at + BODY_BYTES <= to && to - from < 2 * BODY_BYTES,
        "{damage:?}"
    );
    assert_eq!(
        (verified.found.lost.records, verified.found.lost.writes),
        (1, 1)
    );
    assert_eq!(verified.writes, 29);
    // The host says the same when it starts, and keeps what does not check.
    let (buffer, recovery) = Buffer::open(dir.path(), options(false), fs())
        .await
        .unwrap();
    assert_eq!((recovery.lost.records, recovery.lost.writes), (1, 1));
    assert_eq!(recovery.lost.places.len(), 1);
    assert_eq!(recovery.lost.places[0].offset, damage.offset);
    assert_eq!(tree(&dir.path().join("quarantine")).len(), 1);
    drop(buffer);
}

#[tokio::test]
async fn a_flipped_bit_in_a_copy_is_healed_and_said() {
    for (file, at, says) in [
        (
            "checkpoint-0",
            100,
            "checkpoint-0: its first copy does not check; the second was read",
        ),
        (
            "log/0000.log",
            30,
            "log/0000.log: the first copy of its header does not check; the other was read",
        ),
    ] {
        let dir = TempDir::new().unwrap();
        fill(dir.path(), false).await;
        flip(&dir.path().join(file), at);
        let verified = verify(dir.path(), fs()).unwrap();
        assert_eq!(verified.found.healed, [says]);
        assert!(!verified.is_whole() && verified.found.lost.is_empty());
        assert_eq!(verified.writes, 30);
        let copies = second_copies(dir.path(), fs().as_ref()).unwrap();
        let (buffer, recovery) = Buffer::open(dir.path(), options(false), fs())
            .await
            .unwrap();
        assert_eq!(copies.told(recovery.unclean_exit), [says]);
        assert!(recovery.lost.is_empty() && !recovery.unclean_exit);
        drop(buffer);
    }
}

#[tokio::test]
async fn without_a_checkpoint_nothing_is_said_to_have_stood_in() {
    let dir = TempDir::new().unwrap();
    fill(dir.path(), false).await;
    for slot in ["checkpoint-0", "checkpoint-1"] {
        let path = dir.path().join(slot);
        let half = std::fs::metadata(&path).unwrap().len() as usize / 2;
        for at in [100, half + 100] {
            flip(&path, at);
        }
    }
    let verified = verify(dir.path(), fs()).unwrap();
    assert!(verified.found.healed.is_empty() && !verified.is_whole());
    let notes = verified.found.lost.notes.join("\n");
    assert!(
        notes.contains("no checkpoint is left that checks"),
        "{notes}"
    );
}

#[tokio::test]
async fn an_export_is_imported_elsewhere_once_with_the_same_keys_and_bytes() {
    for small in [false, true] {
        let from = TempDir::new().unwrap();
        fill(from.path(), small).await;
        let mut lines = Vec::new();
        export(from.path(), fs(), &[], &mut lines).unwrap();
        let to = TempDir::new().unwrap();
        let buffer = open(to.path(), small).await;
        let mut done = Imported::default();
        let specs = ["a/r/one", "a/r/two"].map(spec);
        let rehearse = |dir: &Path, done: &mut Imported| {
            rehearse(dir, fs(), &specs, &mut &lines[..], &[], done)
        };
        rehearse(&to.path().join("nowhere"), &mut done).unwrap();
        assert_eq!(
            (done.accepted, done.already_there, done.unsealed),
            (30, 0, 1)
        );
        assert!(!to.path().join("nowhere").exists());
        let running = rehearse(to.path(), &mut done).unwrap_err().to_string();
        assert!(running.contains("is in use by process"), "{running}");
        for again in [false, true] {
            let mut done = Imported::default();
            import(&buffer, &mut &lines[..], &[], &mut done)
                .await
                .unwrap();
            let expected = Imported {
                accepted: if again { 0 } else { 30 },
                already_there: if again { 30 } else { 0 },
                other_lanes: 0,
                unsealed: u64::from(!again),
            };
            assert_eq!(done, expected);
        }
        let got = buffer
            .fetch(LaneId(0), 0, 100, 1 << 20)
            .await
            .unwrap()
            .writes;
        let numbers: Vec<u64> = (1..=WRITES).filter(|n| n % 4 != 0).collect();
        assert_eq!(got.len(), numbers.len());
        for (found, n) in got.iter().zip(numbers) {
            let made = write(LaneId(0), n, vec![]);
            assert_eq!(
                (found.key, found.order, &found.body),
                (made.key, made.order, &made.body)
            );
            assert_eq!(found.created_unix_ms, made.created_unix_ms);
            assert_eq!(found.expires_unix_ms, made.expires_unix_ms);
            let state = if n == 9 || n == 11 {
                WriteState {
                    sealed: 0,
                    ..noted(n)
                }
            } else {
                WriteState::default()
            };
            assert_eq!(found.state, state, "{n}");
            assert_eq!(found.children, usize::from(n == 10));
            if n == 10 {
                let held = buffer.children(LaneId(0), found.seq).await.unwrap();
                assert_eq!(
                    (held[0].lane, held[0].key),
                    (LaneId(1), write(LaneId(1), 1000, vec![]).key)
                );
                assert_eq!(
                    held[0].children[0].body,
                    write(LaneId(0), 1001, vec![]).body
                );
            }
        }
        buffer.close().await.unwrap();
        let mut done = Imported::default();
        let before = tree(to.path());
        rehearse(to.path(), &mut done).unwrap();
        assert_eq!((done.accepted, done.already_there), (0, 30));
        assert!(tree(to.path()) == before, "something was written");
        // What comes out of there is what went in, but for the numbers and the seal.
        let mut second = Vec::new();
        export(to.path(), fs(), &[], &mut second).unwrap();
        let strip = |lines: &[u8]| -> Vec<serde_json::Value> {
            let text = std::str::from_utf8(lines).unwrap();
            let parse = |line| {
                let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
                let object = value.as_object_mut().unwrap();
                object.remove("seq");
                object.remove("sealed");
                value
            };
            text.lines().map(parse).collect()
        };
        assert_eq!(strip(&lines), strip(&second));
    }
}

#[tokio::test]
async fn lanes_can_be_chosen_and_wrong_lines_are_named() {
    let dir = TempDir::new().unwrap();
    fill(dir.path(), false).await;
    let count = |lanes: &[&str]| {
        let lanes: Vec<String> = lanes.iter().map(|l| (*l).to_owned()).collect();
        export(dir.path(), fs(), &lanes, &mut Vec::new()).map(|e| e.writes)
    };
    assert_eq!(count(&["a/r/one"]).unwrap(), 30);
    assert_eq!(count(&["a/r/two"]).unwrap(), 0);
    let refused = count(&["a/r/three"]).unwrap_err().to_string();
    assert_eq!(
        refused,
        "there is no lane \"a/r/three\"; there are a/r/one, a/r/two"
    );

    let mut lines = Vec::new();
    export(dir.path(), fs(), &[], &mut lines).unwrap();
    let text = String::from_utf8(lines).unwrap();
    let to = TempDir::new().unwrap();
    let buffer = open(to.path(), false).await;
    let mut done = Imported::default();
    let two = ["a/r/two".to_owned()];
    import(&buffer, &mut text.as_bytes(), &two, &mut done)
        .await
        .unwrap();
    assert_eq!((done.accepted, done.other_lanes), (0, 30));
    for (wrong, says) in [
        (
            text.replacen("\"a/r/two\"", "\"gone\"", 1),
            "line 8: there is no lane \"gone\"; there are a/r/one, a/r/two",
        ),
        (
            text.replacen("\n", "\nnot json\n", 2),
            "line 2: expected ident at line 1 column 2; it is not a line of `consign buffer export`",
        ),
        (
            text.replacen("\"body\":\"", "\"body\":\"*", 1),
            "line 1: \"body\" must be base64",
        ),
        (
            text.replacen("\"key\":\"", "\"key\":\"x", 1),
            "line 1: \"key\" must be 32 hex digits",
        ),
        (
            text.replacen("\"created_unix_ms\":1", "\"created_unix_ms\":-1", 1),
            "line 1: \"created_unix_ms\" must be a number",
        ),
        (
            text.replacen("\"attempts\":9", "\"attempts\":9000000000", 1),
            "line 7: \"attempts\" must be below 2^32",
        ),
    ] {
        let to = TempDir::new().unwrap();
        let buffer = open(to.path(), false).await;
        let mut done = Imported::default();
        let error = import(&buffer, &mut wrong.as_bytes(), &[], &mut done)
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), says);
        // What came before is there, once; the mended file brings the rest.
        assert_eq!(buffer.stats(LaneId(0)).unwrap().pending, done.accepted);
        let mut rest = Imported::default();
        import(&buffer, &mut text.as_bytes(), &[], &mut rest)
            .await
            .unwrap();
        assert_eq!(rest.accepted + done.accepted, 30);
        assert_eq!(rest.already_there, done.accepted);
    }
    // No room: said with the line, and what came before stays.
    let to = TempDir::new().unwrap();
    let buffer = open(to.path(), false).await;
    lane(
        &buffer,
        "a/r/one",
        5 * (BODY_BYTES as u64 + WRITE_OVERHEAD_BYTES),
    );
    let mut done = Imported::default();
    let error = import(&buffer, &mut text.as_bytes(), &[], &mut done)
        .await
        .unwrap_err();
    assert!(
        matches!(error, ImportError::NoRoom { line: 6, .. }),
        "{error}"
    );
    assert_eq!(done.accepted, 5);
}

#[tokio::test]
async fn a_running_host_and_a_folder_without_a_buffer_are_refused() {
    let dir = TempDir::new().unwrap();
    let buffer = open(dir.path(), false).await;
    let refused = inspect(dir.path(), fs()).unwrap_err();
    assert!(
        matches!(refused, OpenError::Locked { pid, .. } if pid == std::process::id()),
        "{refused}"
    );
    buffer.close().await.unwrap();
    drop(buffer);
    let found = inspect(dir.path(), fs()).unwrap();
    assert_eq!(found.lanes.len(), 2);
    for path in [dir.path().join("nowhere"), dir.path().join("lock")] {
        let refused = inspect(&path, fs()).unwrap_err();
        assert!(matches!(refused, OpenError::NoBuffer { .. }), "{refused}");
        assert!(!dir.path().join("nowhere").exists());
    }
}
