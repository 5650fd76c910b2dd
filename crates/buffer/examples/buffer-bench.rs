//! Measures the buffer beside the bare disk in one run: `buffer-bench [--seconds N] [--dir PATH]`.
//!
//! The floor overwrites a preallocated file and flushes (fdatasync) after every write, as the log does. The last line is
//! the summary.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use consign_buffer::{
    Acceptance, Buffer, LaneId, LaneSpec, NewWrite, Options, RealFilesystem, Settlement, WhenFull,
};

const BODY_BYTES: usize = 1024;
const PRODUCERS: usize = 64;
/// The floor's file is overwritten in turn, as the log is.
const FLOOR_BYTES: u64 = 64 << 20;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|a| a != name).nth(1)
}

/// The latency that this share of the sorted samples does not exceed, in milliseconds.
fn percentile(sorted: &[Duration], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    let sample = sorted.get(at.min(sorted.len().saturating_sub(1)));
    sample.map_or(0.0, |d| d.as_secs_f64() * 1000.0)
}

/// Writes of `block` bytes, each flushed: how many a second, and the median latency in milliseconds.
fn floor(dir: &Path, block: usize, time: Duration) -> io::Result<(f64, f64)> {
    let path = dir.join("floor");
    let file = std::fs::File::create(&path)?;
    let bytes = vec![7u8; block];
    let blocks = FLOOR_BYTES / block as u64;
    for at in 0..blocks {
        file.write_all_at(&bytes, at * block as u64)?;
    }
    file.sync_all()?;
    let (start, mut samples) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let begun = Instant::now();
        file.write_all_at(&bytes, samples.len() as u64 % blocks * block as u64)?;
        file.sync_data()?;
        samples.push(begun.elapsed());
    }
    let rate = samples.len() as f64 / start.elapsed().as_secs_f64();
    samples.sort();
    std::fs::remove_file(path)?;
    Ok((rate, percentile(&samples, 0.5)))
}

async fn produce(buffer: Buffer, lane: LaneId, until: Instant) -> Outcome<Vec<Duration>> {
    let body = Bytes::from(vec![5u8; BODY_BYTES]);
    let mut samples = Vec::new();
    while Instant::now() < until {
        let room = buffer.reserve(&[(lane, BODY_BYTES as u64)])?;
        let write = NewWrite {
            lane,
            key: [1; 16],
            order: 0,
            body: body.clone(),
            created_unix_ms: 1,
            expires_unix_ms: None,
            children: Vec::new(),
        };
        let begun = Instant::now();
        let acceptance = Acceptance {
            writes: vec![write],
            ..Acceptance::default()
        };
        let numbers = buffer.accept(room, acceptance).await?;
        samples.push(begun.elapsed());
        // Settled at once, as while destinations answer; nobody waits for it.
        let settlements = numbers.into_iter().map(|(lane, seq)| Settlement {
            lane,
            seq,
            result: 1,
            release_children: true,
        });
        drop(buffer.settle(settlements.collect()));
    }
    Ok(samples)
}

/// Writes a second and sorted latencies of so many producers with one write outstanding each.
async fn measure(
    buffer: &Buffer,
    producers: usize,
    time: Duration,
) -> Outcome<(f64, Vec<Duration>)> {
    let start = Instant::now();
    let mut tasks = Vec::new();
    for n in 0..producers {
        let lane = buffer.lane(LaneSpec {
            id: format!("bench/{n}"),
            formerly: Vec::new(),
            quota_bytes: 1 << 30,
            in_flight_limit: 64,
            when_full: WhenFull::Block,
        })?;
        let task = produce(buffer.clone(), lane, start + time);
        tasks.push(tokio::spawn(async move {
            task.await.map_err(|e| e.to_string())
        }));
    }
    let mut samples = Vec::new();
    for task in tasks {
        samples.append(&mut task.await??);
    }
    let rate = samples.len() as f64 / start.elapsed().as_secs_f64();
    samples.sort();
    Ok((rate, samples))
}

fn main() -> Outcome<()> {
    let seconds = argument("--seconds").map_or(Ok(5), |s| s.parse())?;
    let time = Duration::from_secs(seconds);
    let at = argument("--dir").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = at.join(format!("buffer-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let result = bench(&dir, time);
    std::fs::remove_dir_all(&dir)?;
    result
}

fn bench(dir: &Path, time: Duration) -> Outcome<()> {
    let (one_rate, one_ms) = floor(dir, BODY_BYTES, time)?;
    println!("floor, 1 KiB and fdatasync:   {one_rate:>9.0} writes/s, p50 {one_ms:.3} ms");
    let (block_rate, block_ms) = floor(dir, PRODUCERS * BODY_BYTES, time)?;
    let block_rate = block_rate * PRODUCERS as f64;
    println!("floor, 64 KiB and fdatasync:  {block_rate:>9.0} KiB/s, p50 {block_ms:.3} ms");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (buffer, _) = Buffer::open(
            dir.join("data"),
            Options::default(),
            Arc::new(RealFilesystem),
        )
        .await?;
        let (alone_rate, alone) = measure(&buffer, 1, time).await?;
        let alone_ms = percentile(&alone, 0.5);
        println!("buffer, 1 producer:           {alone_rate:>9.0} writes/s, p50 {alone_ms:.3} ms");
        let (rate, all) = measure(&buffer, PRODUCERS, time).await?;
        let (p50, p99) = (percentile(&all, 0.5), percentile(&all, 0.99));
        println!(
            "buffer, {PRODUCERS} producers:         {rate:>9.0} writes/s, p50 {p50:.3} ms, p99 {p99:.3} ms"
        );
        let totals = buffer.totals();
        buffer.close().await?;
        println!(
            "summary: {PRODUCERS} producers x 1 KiB: {rate:.0} writes/s = {:.0} % of 64 KiB writes with fdatasync, \
             {:.1} x one fdatasync per write, p50 {p50:.2} ms, p99 {p99:.2} ms, {:.1} records a flush; \
             alone p50 = {:.2} x a bare fdatasync",
            100.0 * rate / block_rate,
            rate / one_rate,
            totals.records as f64 / totals.groups.max(1) as f64,
            alone_ms / one_ms,
        );
        Ok(())
    })
}
