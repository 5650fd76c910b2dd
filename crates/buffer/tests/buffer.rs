//! The buffer on the real file system, through its public handle and its own thread.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;

use bytes::Bytes;
use consign_buffer::*;
use tempfile::TempDir;

fn small() -> Options {
    Options {
        log_bytes: 512 << 10,
        log_segments: 8,
        spill_file_bytes: 64 << 10,
        body_memory_bytes: 64 << 10,
        ..Options::default()
    }
}

async fn open(dir: &TempDir) -> (Buffer, Recovery) {
    Buffer::open(dir.path(), small(), Arc::new(RealFilesystem))
        .await
        .unwrap()
}

fn spec(id: &str) -> LaneSpec {
    LaneSpec {
        id: id.into(),
        formerly: vec![],
        quota_bytes: 64 << 20,
        in_flight_limit: 64,
        when_full: WhenFull::Block,
    }
}

fn write(lane: LaneId, n: u64, bytes: usize) -> NewWrite {
    let mut key = [0u8; 16];
    key[..8].copy_from_slice(&n.to_le_bytes());
    let mut body = vec![n as u8; bytes];
    body.extend_from_slice(&n.to_le_bytes());
    NewWrite {
        lane,
        key,
        order: 0,
        body: Bytes::from(body),
        created_unix_ms: 1000 + n,
        expires_unix_ms: None,
        children: vec![],
    }
}

fn accept(buffer: &Buffer, writes: Vec<NewWrite>) -> Accepting {
    fn all(w: &NewWrite, out: &mut Vec<(LaneId, u64)>) {
        out.push((w.lane, w.body.len() as u64));
        w.children.iter().for_each(|c| all(c, out));
    }
    let mut wanted = Vec::new();
    writes.iter().for_each(|w| all(w, &mut wanted));
    let reservation = buffer.reserve(&wanted).unwrap();
    buffer.accept(
        reservation,
        Acceptance {
            scope: "a".into(),
            writes,
            ..Acceptance::default()
        },
    )
}

fn settled(lane: LaneId, seq: u64) -> Settlement {
    Settlement {
        lane,
        seq,
        result: 1,
        release_children: true,
    }
}

async fn drain(buffer: &Buffer, lane: LaneId) -> Vec<Pending> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let got = buffer.fetch(lane, after, 100, 1 << 20).await.unwrap();
        after = got.writes.last().map_or(after, |w| w.seq);
        all.extend(got.writes);
        if !got.more {
            return all;
        }
    }
}

#[tokio::test]
async fn what_was_accepted_is_there_after_reopening_and_what_settled_is_not() {
    let dir = TempDir::new().unwrap();
    let (buffer, recovery) = open(&dir).await;
    assert!(!recovery.unclean_exit);
    let lane = buffer.lane(spec("a/r/s")).unwrap();
    for n in 1..=10 {
        let seqs = accept(&buffer, vec![write(lane, n, 100)]).await.unwrap();
        assert_eq!(seqs, [(lane, n)]);
    }
    buffer
        .settle(vec![settled(lane, 3), settled(lane, 1)])
        .await
        .unwrap();
    buffer.close().await.unwrap();
    let (buffer, recovery) = open(&dir).await;
    assert!(!recovery.unclean_exit);
    assert!(recovery.lost.is_empty(), "{:?}", recovery.lost);
    let lane = buffer.lane(spec("a/r/s")).unwrap();
    let pending = drain(&buffer, lane).await;
    assert_eq!(
        pending.iter().map(|w| w.seq).collect::<Vec<_>>(),
        [2, 4, 5, 6, 7, 8, 9, 10]
    );
    assert_eq!(pending[0].body, write(lane, 2, 100).body);
    assert!(pending.iter().all(|w| w.maybe_since_unix_ms.is_none()));
}

#[tokio::test]
async fn a_backlog_far_larger_than_the_log_is_spilled_and_drained_in_order_across_restarts() {
    let dir = TempDir::new().unwrap();
    let (buffer, _) = open(&dir).await;
    let lane = buffer.lane(spec("stuck")).unwrap();
    let other = buffer.lane(spec("other")).unwrap();
    for n in 1..=4000 {
        let a = accept(&buffer, vec![write(lane, n, 900), write(other, n, 10)]);
        if n % 50 == 0 {
            a.await.unwrap();
        }
        if n % 50 == 0 {
            drop(buffer.settle((n - 49..=n).map(|s| settled(other, s)).collect()));
        }
    }
    let stats = buffer.stats(lane).unwrap();
    assert!(stats.spill_files > 10, "{stats:?}");
    assert_eq!(stats.charged_bytes, 4000 * (908 + WRITE_OVERHEAD_BYTES));
    let totals = buffer.totals();
    assert!(
        totals.checkpoints > 3 && totals.body_memory_bytes <= 64 << 10,
        "{totals:?}"
    );
    drop(buffer);
    let (buffer, recovery) = open(&dir).await;
    assert!(recovery.unclean_exit);
    assert!(recovery.lost.is_empty(), "{:?}", recovery.lost);
    let lane = buffer.lane(spec("stuck")).unwrap();
    assert_eq!(
        buffer.stats(lane).unwrap().charged_bytes,
        4000 * (908 + WRITE_OVERHEAD_BYTES)
    );
    let pending = drain(&buffer, lane).await;
    assert_eq!(pending.len(), 4000);
    for (n, w) in (1..).zip(&pending) {
        assert_eq!((w.seq, &w.body), (n, &write(lane, n, 900).body));
    }
    for chunk in pending.chunks(100) {
        buffer
            .settle(chunk.iter().map(|w| settled(lane, w.seq)).collect())
            .await
            .unwrap();
    }
    let stats = buffer.stats(lane).unwrap();
    assert_eq!((stats.charged_bytes, stats.pending), (0, 0));
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    assert_eq!(buffer.stats(lane).unwrap().spill_files, 0);
    let left = std::fs::read_dir(dir.path().join("lanes/00000000"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
    buffer.close().await.unwrap();
}

#[tokio::test]
async fn a_second_host_is_refused_in_one_sentence_with_the_other_pid() {
    let dir = TempDir::new().unwrap();
    let (_buffer, _) = open(&dir).await;
    let refused = Buffer::open(dir.path(), small(), Arc::new(RealFilesystem))
        .await
        .unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains(&format!("in use by process {}", std::process::id())),
        "{text}"
    );
}
