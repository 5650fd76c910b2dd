//! Prints what a round trip through a plugin costs, in elapsed time and in CPU time of the whole
//! process (Linux, 100 ticks a second): `cargo run --release -p consign-loader --example roundtrip
//! -- path/to/libzoo.so` after `cargo build --release -p consign-loader --examples`. Not a test:
//! numbers differ from machine to machine, and elapsed time means nothing on a busy one.

use consign_loader::{
    BatchBuilder, LoadOptions, Names, OpenConnection, Plugins, SinkHandle, WriteBatch, WriteParts,
};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use std::error::Error;
use std::time::{Duration, Instant};

const BODY: [u8; 1024] = [b'x'; 1024];
const DEADLINE: Duration = Duration::from_secs(30);
const ROUNDS: u32 = 5_000;
/// Microseconds of one tick of /proc/self/stat.
const TICK: f64 = 10_000.0;

/// CPU time of this process, in ticks.
fn cpu_ticks() -> Result<f64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    // The 14th and 15th fields, user and system time; the third is the first after the name.
    let times = after_name.split_whitespace().skip(11).take(2);
    Ok(times.filter_map(|t| t.parse::<f64>().ok()).sum())
}

fn batch(writes: usize) -> Result<WriteBatch, Box<dyn Error>> {
    let mut batch = BatchBuilder::with_capacity(writes, writes * BODY.len());
    for _ in 0..writes {
        let write = WriteParts {
            body: &BODY,
            ..WriteParts::default()
        };
        batch.push(&write, [], [])?;
    }
    Ok(batch.finish())
}

async fn measure(
    sink: &SinkHandle,
    writes: usize,
    in_flight: usize,
) -> Result<(f64, f64), Box<dyn Error>> {
    let prototype = batch(writes)?;
    let ticks = cpu_ticks()?;
    let mut running = FuturesUnordered::new();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        if running.len() == in_flight {
            running.next().await;
        }
        running.push(sink.submit(prototype.clone(), DEADLINE));
    }
    while running.next().await.is_some() {}
    let elapsed = start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS);
    let cpu = (cpu_ticks()? - ticks) * TICK / f64::from(ROUNDS);
    Ok((elapsed, cpu))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args()
        .nth(1)
        .ok_or("give the path of libzoo.so")?;
    let plugins = Plugins::load(&LoadOptions {
        folders: vec![file.into()],
        ..LoadOptions::default()
    })?;
    let request = OpenConnection {
        connector: "zoo".to_owned(),
        config: serde_json::json!({}),
        names: Names::default(),
    };
    let connection = plugins.open_connection(request, DEADLINE).await?;
    let config = serde_json::json!({ "act": "swallow" });
    let sink = connection
        .open_sink("zoo.write", config, Names::default(), DEADLINE)
        .await?;
    println!("batch  in flight  µs a batch  CPU µs a batch  CPU µs a write");
    for writes in [1, 64, 256] {
        for in_flight in [1, 8] {
            measure(&sink, writes, in_flight).await?;
            let (micros, cpu) = measure(&sink, writes, in_flight).await?;
            let each = cpu / f64::from(u32::try_from(writes)?);
            println!("{writes:5}  {in_flight:9}  {micros:10.1}  {cpu:14.1}  {each:14.2}");
        }
    }
    Ok(())
}
