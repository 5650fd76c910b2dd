//! A disk that fills up, lies or is cut off in the middle: nothing accepted is lost, and what is lost is said.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::flood::{Flood, arrived, awaited, host, spill_files};
use common::{Tmpfs, assert_ledgers, drained};
use consign_e2e::{Host, free_port};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The disk of a test, or a word that it was skipped. Also in CI: whether a machine lets its root mount is
/// not for this project to say.
fn disk(at: &Path, size: &str) -> Option<Tmpfs> {
    let disk = Tmpfs::mount(at, size);
    if disk.is_none() {
        eprintln!("SKIPPED: a tmpfs cannot be mounted here, so a full disk was not tried");
    }
    disk
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_loses_nothing_and_drains_without_anybody_deleting() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = disk(&folder.path().join("data"), "64m") else {
        return;
    };
    let port = free_port();
    let mut host = host(folder.path(), port);
    // What something else has on the disk.
    let ballast = disk.0.join("ballast");
    std::fs::write(&ballast, vec![1_u8; 12 << 20]).unwrap();
    host.start().await;
    // The lane's quota is more than the disk has: said before anything is full.
    awaited(&host, "disk_low").await;
    let flood = Flood::start(port, 4);
    flood.refused_more(20).await;
    let full = awaited(&host, "disk_full").await;
    assert_eq!(full.len(), 1, "one episode is one event: {full:#?}");
    let status = host
        .until("full", |status| status["buffer"]["health"] == "full")
        .await;
    assert_eq!(status["readiness"]["ready"], false, "{status:#}");
    let before = flood.accepted.load(Ordering::Relaxed);
    assert!(
        before > 50,
        "{before} were accepted before the disk was full"
    );

    // Room, which is used up again.
    std::fs::remove_file(&ballast).unwrap();
    flood.accepted_more(50).await;
    awaited(&host, "disk_has_room").await;
    flood.refused_more(20).await;

    // A crash of a host with a full disk; the lane is stuck all the while.
    host.kill();
    host.start().await;
    flood.refused_more(20).await;

    // The destination comes back. Nobody deletes anything.
    std::fs::create_dir(folder.path().join("out")).unwrap();
    flood.accepted_more(300).await;
    let (ids, open) = flood.finish().await;
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(status["buffer"]["health"], "running");
    assert_eq!(status["recovery"]["lost_writes"], 0);
    let arrived = arrived(folder.path());
    let lost: Vec<_> = ids.difference(&arrived).collect();
    assert!(
        lost.is_empty(),
        "{} of {} are lost: {lost:?}",
        lost.len(),
        ids.len()
    );
    assert!(arrived.difference(&ids).all(|id| open.contains(id)));
    assert_eq!(host.stop(), Some(0));
    drop(host);
    drop(disk);
}

/// When the host is killed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// As soon as bytes go to a spill file.
    Spill,
    /// As soon as a checkpoint's slot changes.
    Checkpoint,
}

/// Bytes of spill files on the disk.
fn spilled_bytes(host: &Host) -> u64 {
    let sizes = spill_files(host)
        .into_iter()
        .map(|f| std::fs::metadata(f).map_or(0, |m| m.len()));
    sizes.sum()
}

/// Generation and newness of both copies in both slots: differs as soon as a checkpoint begins to be written.
fn slots(host: &Host) -> Vec<Vec<u8>> {
    let slots = ["checkpoint-0", "checkpoint-1"].map(|slot| host.data().join("buffer").join(slot));
    let mut heads = Vec::new();
    for path in slots {
        let bytes = std::fs::read(path).unwrap_or_default();
        for at in [0, bytes.len() / 2] {
            heads.push(bytes.get(at..at + 64).unwrap_or_default().to_vec());
        }
    }
    heads
}

/// Watches the files without a pause and kills at once. What the killed host left shows where the kill fell.
fn kill_at(host: &mut Host, moment: Moment) {
    let (bytes, heads) = (spilled_bytes(host), slots(host));
    let from = Instant::now();
    loop {
        let now = match moment {
            Moment::Spill => spilled_bytes(host) > bytes,
            Moment::Checkpoint => slots(host) != heads,
        };
        if now {
            break;
        }
        assert!(
            from.elapsed() < Duration::from_secs(60),
            "no checkpoint came\n{}",
            host.log()
        );
    }
    host.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn kills_in_spills_and_checkpoints_lose_nothing() {
    const KILLS: usize = 10;
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut host = host(folder.path(), port);
    host.start().await;
    let flood = Flood::start(port, 4);
    let (mut in_spill, mut in_checkpoint) = (0, 0);
    for n in 0..KILLS {
        flood.accepted_more(20).await;
        let moment = if n % 2 == 0 {
            Moment::Spill
        } else {
            Moment::Checkpoint
        };
        let mut killed = host;
        host = tokio::task::spawn_blocking(move || {
            kill_at(&mut killed, moment);
            killed
        })
        .await
        .unwrap();
        // Bytes that no checkpoint vouches for: it was killed after they were spilled and before that was durable.
        let found = consign_buffer::inspect::inspect(
            &host.data().join("buffer"),
            Arc::new(consign_buffer::RealFilesystem),
        )
        .unwrap();
        assert!(
            found.unclean_exit && found.lost.is_empty(),
            "{:?}",
            found.lost
        );
        let vouched: u64 = found.lanes.iter().map(|lane| lane.spill_bytes).sum();
        in_spill += usize::from(spilled_bytes(&host) > vouched);
        in_checkpoint += usize::from(moment == Moment::Checkpoint);
        host.start().await;
    }
    eprintln!(
        "{KILLS} kills: {in_spill} left bytes of an unfinished spill, {in_checkpoint} came as a checkpoint was written"
    );
    assert!(
        in_spill >= KILLS / 4,
        "only {in_spill} of {KILLS} kills fell into a spill"
    );
    flood.accepted_more(20).await;
    std::fs::create_dir(folder.path().join("out")).unwrap();
    let (ids, open) = flood.finish().await;
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(status["recovery"]["lost_writes"], 0);
    let arrived = arrived(folder.path());
    let lost: Vec<_> = ids.difference(&arrived).collect();
    assert!(
        lost.is_empty(),
        "{} of {} are lost: {lost:?}",
        lost.len(),
        ids.len()
    );
    assert!(arrived.difference(&ids).all(|id| open.contains(id)));
    assert_eq!(host.stop(), Some(0));
    // The folder is as good as one that never saw a kill.
    let dir = host.data().join("buffer");
    let verified =
        consign_buffer::inspect::verify(&dir, Arc::new(consign_buffer::RealFilesystem)).unwrap();
    assert!(verified.is_whole(), "{verified:?}");
}
