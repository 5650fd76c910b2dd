//! Files of released formats are read for ever, and files of a newer one are refused untouched.
//!
//! A fixture is the text of a folder: `file <path> <length>`, then a line for each 32 bytes that are not all zero.
//! With `CONSIGN_WRITE_FIXTURE=<path>` set, the first test writes such a text with the code as it is.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use consign_buffer::*;
use tempfile::TempDir;

const V1: &str = include_str!("fixtures/v1/folder.txt");

fn options() -> Options {
    Options {
        log_bytes: 64 << 10,
        log_segments: 4,
        spill_file_bytes: 2 << 10,
        log_entries: 8,
        ..Options::default()
    }
}

async fn open(dir: &Path) -> Result<(Buffer, Recovery), OpenError> {
    Buffer::open(dir, options(), Arc::new(RealFilesystem)).await
}

fn lane(buffer: &Buffer, id: &str) -> LaneId {
    let spec = LaneSpec {
        id: id.into(),
        formerly: vec![],
        quota_bytes: 1 << 20,
        in_flight_limit: 8,
        when_full: WhenFull::Block,
    };
    buffer.lane(spec).unwrap()
}

fn write(lane: LaneId, n: u8, children: Vec<NewWrite>) -> NewWrite {
    NewWrite {
        lane,
        key: [n; 16],
        order: u64::from(n % 3),
        body: Bytes::from(format!("body {n}")),
        created_unix_ms: 1_700_000_000_000 + u64::from(n),
        expires_unix_ms: n.is_multiple_of(2).then_some(1_900_000_000_000),
        children,
    }
}

const NOTED: WriteState = WriteState {
    attempts: 3,
    first_maybe_unix_ms: Some(1_700_000_100_000),
    spent_resends: 1,
    open_gate_age_ms: 4_000,
    first_attempt_unix_ms: 1_700_000_090_000,
    flags: 5,
    sealed: 0x0007_0002,
};

fn origin(n: u8) -> Origin {
    match n % 3 {
        0 => Origin::Cumulative {
            partition: "p/0".into(),
            incarnation: 2,
            offset: u64::from(n),
        },
        1 => Origin::Individual { id: [n; 16] },
        _ => Origin::ClientKey {
            key: [n; 16],
            body: [n ^ 255; 16],
        },
    }
}

/// What the fixture holds: a checkpoint with spill and key files, and records behind it, left by a crash.
async fn fill(dir: &Path) {
    let (buffer, _) = open(dir).await.unwrap();
    let (stuck, other) = (lane(&buffer, "a/r/stuck"), lane(&buffer, "a/r/other"));
    for n in 1..=24u8 {
        let children = if n == 5 || n == 20 {
            vec![write(other, 100 + n, vec![write(stuck, 200 + n, vec![])])]
        } else {
            vec![]
        };
        let writes = vec![write(stuck, n, children)];
        let mut room = vec![(stuck, 16)];
        if n == 5 || n == 20 {
            room.extend([(other, 16), (stuck, 16)]);
        }
        let acceptance = Acceptance {
            scope: "a".into(),
            origin: Some(origin(n)),
            position: Some(("file".into(), Bytes::from(vec![n; 4]))),
            writes,
            settles: vec![],
        };
        buffer
            .accept(buffer.reserve(&room).unwrap(), acceptance)
            .await
            .unwrap();
        if n == 6 {
            buffer.frontier(stuck, 6, 1_700_000_050_000).await.unwrap();
            buffer.note(stuck, 6, NOTED).await.unwrap();
            let settle = |seq| Settlement {
                lane: stuck,
                seq,
                result: 1,
                release_children: true,
            };
            buffer.settle(vec![settle(2), settle(5)]).await.unwrap();
        }
        // Time for the checkpoints that are due.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(buffer.totals().checkpoints > 0 && buffer.stats(stuck).unwrap().spill_files > 0);
}

fn text_of(dir: &Path) -> String {
    fn visit(top: &Path, dir: &Path, out: &mut String) {
        let mut entries: Vec<PathBuf> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                visit(top, &path, out);
                continue;
            }
            let name = path.strip_prefix(top).unwrap().display();
            let bytes = std::fs::read(&path).unwrap();
            if name.to_string() == "lock" {
                continue;
            }
            writeln!(out, "file {name} {}", bytes.len()).unwrap();
            for (at, row) in bytes.chunks(32).enumerate() {
                if row.iter().any(|b| *b != 0) {
                    let hex: String = row.iter().map(|b| format!("{b:02x}")).collect();
                    writeln!(out, "{:x} {hex}", at * 32).unwrap();
                }
            }
        }
    }
    let mut out = String::new();
    visit(dir, dir, &mut out);
    out
}

fn unpack(text: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    let mut file: Option<(PathBuf, Vec<u8>)> = None;
    let put = |file: Option<(PathBuf, Vec<u8>)>| {
        if let Some((path, bytes)) = file {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    };
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["file", name, len] => {
                put(file.take());
                file = Some((dir.path().join(name), vec![0; len.parse().unwrap()]));
            }
            [at, hex] => {
                let at = usize::from_str_radix(at, 16).unwrap();
                let bytes = &mut file.as_mut().unwrap().1;
                for i in 0..hex.len() / 2 {
                    bytes[at + i] = u8::from_str_radix(&hex[i * 2..i * 2 + 2], 16).unwrap();
                }
            }
            _ => panic!("{line}"),
        }
    }
    put(file);
    dir
}

async fn pending(buffer: &Buffer, lane: LaneId) -> Vec<Pending> {
    let got = buffer.fetch(lane, 0, 1000, 1 << 20).await.unwrap();
    assert!(!got.more);
    got.writes
}

/// What [`fill`] left, whoever wrote it.
async fn check(dir: &Path) {
    let (buffer, recovery) = open(dir).await.unwrap();
    assert!(recovery.unclean_exit);
    assert!(recovery.lost.is_empty(), "{:?}", recovery.lost);
    assert!(recovery.replayed_records > 0);
    let (stuck, other) = (lane(&buffer, "a/r/stuck"), lane(&buffer, "a/r/other"));
    let found = pending(&buffer, stuck).await;
    let seqs: Vec<u64> = found.iter().map(|w| w.seq).collect();
    let expected: Vec<u64> = (1..=24).filter(|n| ![2, 5].contains(n)).collect();
    assert_eq!(seqs, expected);
    for w in &found {
        let n = w.seq as u8;
        let made = write(stuck, n, vec![]);
        assert_eq!(
            (w.key, w.order, &w.body),
            (made.key, made.order, &made.body)
        );
        assert_eq!(w.created_unix_ms, made.created_unix_ms);
        assert_eq!(w.expires_unix_ms, made.expires_unix_ms);
        assert_eq!(w.children, usize::from(n == 20));
        let state = if n == 6 { NOTED } else { WriteState::default() };
        assert_eq!(w.state, state);
        assert_eq!(w.maybe_since_unix_ms.is_some(), n <= 6, "{n}");
    }
    let stats = buffer.stats(stuck).unwrap();
    assert_eq!(
        (stats.frontier, stats.frontier_wall_unix_ms),
        (6, 1_700_000_050_000)
    );
    assert!(stats.spill_files > 0);
    let released = pending(&buffer, other).await;
    assert_eq!(released.len(), 1);
    assert_eq!((released[0].key, released[0].children), ([105; 16], 1));
    let held = buffer.children(stuck, 20).await.unwrap();
    assert_eq!(
        (held[0].key, held[0].children[0].key),
        ([120; 16], [220; 16])
    );
    for n in 1..=24 {
        assert_eq!(buffer.known("a", &origin(n)), Known::Repeat, "{n}");
    }
    let other_body = Origin::ClientKey {
        key: [2; 16],
        body: [0; 16],
    };
    assert_eq!(buffer.known("a", &other_body), Known::Conflict);
    assert_eq!(buffer.known("a", &origin(25)), Known::New);
    assert_eq!(buffer.position("file").unwrap(), vec![24; 4]);
    // And it goes on from there.
    let room = buffer.reserve(&[(stuck, 16)]).unwrap();
    let acceptance = Acceptance {
        writes: vec![write(stuck, 99, vec![])],
        ..Acceptance::default()
    };
    let numbers = buffer.accept(room, acceptance).await.unwrap();
    assert_eq!(numbers, [(stuck, 25)]);
    buffer.close().await.unwrap();
}

#[tokio::test]
async fn what_this_version_writes_is_what_the_fixture_says() {
    let dir = TempDir::new().unwrap();
    fill(dir.path()).await;
    if let Some(path) = std::env::var_os("CONSIGN_WRITE_FIXTURE") {
        std::fs::write(path, text_of(dir.path())).unwrap();
    }
    check(dir.path()).await;
}

#[tokio::test]
async fn files_of_version_1_are_read() {
    for part in [
        "log/0000.log",
        "lanes/",
        "keys/",
        "checkpoint-0",
        "checkpoint-1",
    ] {
        assert!(V1.contains(&format!("file {part}")), "no {part}");
    }
    let dir = unpack(V1);
    check(dir.path()).await;
}

#[tokio::test]
async fn files_of_a_newer_version_are_refused_and_stay_as_they_are() {
    for name in ["log/0000.log", "checkpoint-0", "checkpoint-1"] {
        let dir = unpack(V1);
        let path = dir.path().join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        // The version follows eight bytes of magic, in both copies.
        let half = if name.starts_with("log") {
            2048
        } else {
            bytes.len() / 2
        };
        for at in [0, half] {
            bytes[at + 8] = 2;
            // In every version a sum covers it: the head's of a checkpoint, the header's of a segment.
            let (place, sum) = if name.starts_with("log") {
                let sum = crc32c::crc32c(&bytes[at + 8..at + 12]);
                (12, crc32c::crc32c_append(sum, &bytes[at + 16..at + 44]))
            } else {
                (32, crc32c::crc32c(&bytes[at..at + 32]))
            };
            bytes[at + place..at + place + 4].copy_from_slice(&sum.to_le_bytes());
        }
        std::fs::write(&path, &bytes).unwrap();
        let before = text_of(dir.path());
        let refused = open(dir.path()).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "{} has format version 2, this version reads up to 1; start a newer consign",
                path.display()
            )
        );
        assert_eq!(text_of(dir.path()), before);
    }
}
