//! A real disk that is full: a small file system in memory, a stuck lane, producers that go on.
//!
//! Needs the right to mount; without it the test says so and shows nothing.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use consign_buffer::*;
use tempfile::TempDir;

const BODY_BYTES: usize = 20_000;
/// No acceptance may take longer, full disk or not.
const LONGEST: Duration = Duration::from_secs(3);

struct Mounted(TempDir);

impl Mounted {
    fn new(size: &str) -> Option<Mounted> {
        let dir = TempDir::new().unwrap();
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(dir.path())
            .status();
        done.is_ok_and(|s| s.success()).then(|| Mounted(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

async fn open(dir: &Path) -> (Buffer, Recovery, LaneId) {
    let options = Options {
        log_bytes: 4 << 20,
        ..Options::default()
    };
    let (buffer, recovery) = Buffer::open(dir.join("data"), options, Arc::new(RealFilesystem))
        .await
        .unwrap();
    let spec = LaneSpec {
        id: "a/r/stuck".into(),
        formerly: vec![],
        quota_bytes: 1 << 30,
        in_flight_limit: 64,
        when_full: WhenFull::Block,
    };
    let lane = buffer.lane(spec).unwrap();
    (buffer, recovery, lane)
}

/// One acceptance; its number if it was acknowledged, `None` if the disk is full.
async fn accept(buffer: &Buffer, lane: LaneId, room: Reservation, n: u64) -> Option<u64> {
    let mut key = [0u8; 16];
    key[..8].copy_from_slice(&n.to_le_bytes());
    let write = NewWrite {
        lane,
        key,
        order: 0,
        body: Bytes::from(vec![n as u8; BODY_BYTES]),
        created_unix_ms: n,
        expires_unix_ms: None,
        children: vec![],
    };
    let acceptance = Acceptance {
        writes: vec![write],
        ..Acceptance::default()
    };
    match tokio::time::timeout(LONGEST, buffer.accept(room, acceptance)).await {
        Ok(Ok(_)) => Some(n),
        Ok(Err(BufferError::DiskFull(_))) => None,
        Ok(Err(other)) => panic!("acceptance {n}: {other}"),
        Err(_) => panic!("acceptance {n} hangs while health is {:?}", buffer.health()),
    }
}

async fn pending(buffer: &Buffer, lane: LaneId) -> (BTreeSet<u64>, Vec<u64>) {
    let (mut ids, mut seqs, mut after) = (BTreeSet::new(), Vec::new(), 0);
    loop {
        let got = buffer.fetch(lane, after, 100, 1 << 20).await.unwrap();
        for w in &got.writes {
            let n = u64::from_le_bytes(w.key[..8].try_into().unwrap());
            assert_eq!(w.body, vec![n as u8; BODY_BYTES]);
            ids.insert(n);
            seqs.push(w.seq);
            after = w.seq;
        }
        if !got.more {
            return (ids, seqs);
        }
    }
}

/// Waits until health says `running`, or not, for at most a few seconds.
async fn until(buffer: &Buffer, running: bool) {
    let start = Instant::now();
    while (buffer.health() == Health::Running) != running {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}",
            buffer.health()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_tmpfs_refuses_at_once_loses_nothing_and_resumes_by_itself() {
    let Some(disk) = Mounted::new("20m") else {
        eprintln!("SKIPPED: a tmpfs cannot be mounted here, so a full disk was not tried");
        return;
    };
    let (buffer, _, lane) = open(disk.path()).await;
    // What other files take, and give back later: more than the log, so that all of it can be spilled then.
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1u8; 6 << 20]).unwrap();

    let granted = buffer.reserve(&[(lane, BODY_BYTES as u64)]).unwrap();
    let mut producers = Vec::new();
    for p in 0..8u64 {
        let buffer = buffer.clone();
        producers.push(tokio::spawn(async move {
            let mut acknowledged = BTreeSet::new();
            for i in 0..2000 {
                let Ok(room) = buffer.reserve(&[(lane, BODY_BYTES as u64)]) else {
                    break;
                };
                acknowledged.extend(accept(&buffer, lane, room, p * 10_000 + i).await);
            }
            acknowledged
        }));
    }
    let mut acknowledged = BTreeSet::new();
    for producer in producers {
        acknowledged.append(&mut producer.await.unwrap());
    }
    assert!(acknowledged.len() > 100, "{}", acknowledged.len());
    assert!(matches!(buffer.health(), Health::Full { .. }));

    // Steadily, while attempts go on.
    let mut health = buffer.watch_health();
    health.mark_unchanged();
    let before = buffer.totals().checkpoint_failures;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        let refused = buffer.reserve(&[(lane, 10)]);
        assert!(matches!(refused, Err(Full::Disk { .. })), "{refused:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!health.has_changed().unwrap());
    assert!(buffer.totals().checkpoint_failures > before);
    assert_eq!(accept(&buffer, lane, granted, 777_777).await, None);
    assert_eq!(pending(&buffer, lane).await.0, acknowledged);

    // Space appears, and is used up again.
    std::fs::remove_file(&ballast).unwrap();
    until(&buffer, true).await;
    for n in 500_000.. {
        let Ok(room) = buffer.reserve(&[(lane, BODY_BYTES as u64)]) else {
            break;
        };
        acknowledged.extend(accept(&buffer, lane, room, n).await);
    }
    until(&buffer, false).await;
    assert_eq!(pending(&buffer, lane).await.0, acknowledged);

    // A crash while it is full.
    drop(buffer);
    let (buffer, recovery, lane) = open(disk.path()).await;
    assert!(recovery.lost.is_empty(), "{:?}", recovery.lost);
    let (found, seqs) = pending(&buffer, lane).await;
    assert_eq!(found, acknowledged);

    // The lane drains; nobody deletes anything.
    for chunk in seqs.chunks(50) {
        let settlements = chunk.iter().map(|&seq| Settlement {
            lane,
            seq,
            result: 1,
            release_children: true,
        });
        tokio::time::timeout(LONGEST, buffer.settle(settlements.collect()))
            .await
            .unwrap()
            .unwrap();
    }
    until(&buffer, true).await;
    for n in 900_000..900_010 {
        let room = buffer.reserve(&[(lane, BODY_BYTES as u64)]).unwrap();
        assert_eq!(accept(&buffer, lane, room, n).await, Some(n));
    }
    assert_eq!(pending(&buffer, lane).await.0.len(), 10);
    buffer.close().await.unwrap();
}
