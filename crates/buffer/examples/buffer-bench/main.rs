//! Measures the buffer beside the bare disk in one run.
//!
//! * `buffer-bench [--seconds N] [--rounds N] [--dir PATH]`: throughput, latency and bytes written, each round with its
//!   own floor: `fio` overwriting a preallocated file with an fdatasync per write, as the log does. Without `fio` a loop
//!   of its own does the same, and says so.
//! * `buffer-bench --backlog GIB [--body BYTES] [--minutes N] [--dir PATH]`: memory and start-up time with so much
//!   pending.
//!
//! Figures are medians of the rounds. The last line is the summary.

mod backlog;
mod floor;
mod limits;
mod load;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use consign_buffer::{Buffer, Options, RealFilesystem, inspect};
use limits::Timed;
use load::{Load, Measured};

/// An error of any kind ends the run.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The value of an argument, `--name VALUE` or `--name=VALUE`.
pub fn argument(name: &str) -> Option<String> {
    let mut all = std::env::args();
    all.find_map(|word| match word.strip_prefix(name)? {
        "" => Some(None),
        rest => rest.strip_prefix('=').map(|value| Some(value.to_owned())),
    })?
    .or_else(|| std::env::args().skip_while(|word| word != name).nth(1))
}

/// The value that this share of the sorted samples does not exceed.
pub fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let at = (sorted.len() as f64 * share) as usize;
    let sample = sorted.get(at.min(sorted.len().saturating_sub(1)));
    sample.copied().unwrap_or_default()
}

/// Milliseconds, for people.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let backlog = argument("--backlog").map(|gib| backlog::wanted(&gib));
    let backlog = backlog.transpose()?;
    if let (Some(wanted), Some(phase), Some(folder)) =
        (&backlog, argument("--phase"), argument("--folder"))
    {
        return runtime.block_on(backlog::phase(&phase, Path::new(&folder), wanted));
    }
    let at = argument("--dir").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = at.join(format!("buffer-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let result = match &backlog {
        Some(wanted) => backlog::run(&dir, wanted),
        None => measure(&runtime, &dir),
    };
    std::fs::remove_dir_all(&dir)?;
    result
}

fn measure(runtime: &tokio::runtime::Runtime, dir: &Path) -> Outcome<()> {
    let seconds = argument("--seconds").map_or(Ok(3), |s| s.parse())?;
    let rounds = argument("--rounds").map_or(Ok(3), |s| s.parse())?;
    runtime.block_on(rounds_of(dir, Duration::from_secs(seconds), rounds))
}

/// A buffer in a new folder, for one load.
async fn measured(dir: &Path, load: &Load, time: Duration) -> Outcome<Measured> {
    let folder = dir.join("data");
    let fs = Timed::default();
    let (buffer, _) = Buffer::open(&folder, Options::default(), Arc::new(fs.clone())).await?;
    let mut measured = load.run(&buffer, &fs, time).await?;
    buffer.close().await?;
    let written = buffer.totals().written_bytes;
    drop(buffer);
    let found = inspect::inspect(&folder, Arc::new(RealFilesystem))?;
    measured.look(&found, written);
    std::fs::remove_dir_all(&folder)?;
    Ok(measured)
}

/// More than this many processors waited for, and other programs are what is measured.
const BUSY: f64 = 0.3;

/// What the rounds came to, by name: the figure and its target.
#[derive(Default)]
struct Figures {
    values: Vec<(&'static str, Vec<f64>, f64)>,
    /// Processors that this program's threads waited for, load by load: other programs had them.
    waited: Vec<f64>,
}

impl Figures {
    /// `target` is a lower bound when positive, an upper one when negative.
    fn add(&mut self, name: &'static str, value: f64, target: f64) {
        match self.values.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, values, _)) => values.push(value),
            None => self.values.push((name, vec![value], target)),
        }
    }

    fn summary(&self) -> String {
        let mut parts = Vec::new();
        for (name, values, target) in &self.values {
            let value = median(values.clone());
            let (sign, met) = match *target >= 0.0 {
                true => (">=", value >= *target),
                false => ("<=", value <= -target),
            };
            let met = if met { "met" } else { "MISSED" };
            parts.push(format!(
                "{name} {value:.2} ({sign} {:.2} {met})",
                target.abs()
            ));
        }
        let waited = median(self.waited.clone());
        if waited > BUSY {
            parts.push(format!(
                "THE MACHINE WAS BUSY: threads that could run waited for {waited:.1} processors all the time, so rates and \
                 latencies say little"
            ));
        }
        parts.join(", ")
    }
}

async fn rounds_of(dir: &Path, time: Duration, rounds: usize) -> Outcome<()> {
    let mut figures = Figures::default();
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        one_round(dir, time, &mut figures).await?;
    }
    println!(
        "summary, medians of {rounds} rounds against {}: {}",
        floor::tool(),
        figures.summary()
    );
    Ok(())
}

async fn one_round(dir: &Path, time: Duration, figures: &mut Figures) -> Outcome<()> {
    let bare = floor::measure(dir, 1 << 10, time)?;
    let alone = measured(dir, &Load::closed(1, 1, 1024), time).await?;
    figures.waited.push(alone.limits.waited);
    println!("  one fdatasync   {:8.3} ms (1 KiB)", ms(bare.p50));
    println!("  1 producer      {:8.3} ms  {alone}", ms(alone.p50()));
    figures.add("alone / fdatasync", ms(alone.p50()) / ms(bare.p50), -1.2);

    let block = floor::measure(dir, 64 << 10, time)?;
    let many = measured(dir, &Load::closed(64, 1, 1024), time).await?;
    figures.waited.push(many.limits.waited);
    println!("  floor 64 KiB    {:8.1} MiB/s", block.mib_s());
    println!("  64 x 1 KiB      {:8.1} MiB/s  {many}", many.mib_s());
    figures.add("64 x 1 KiB / floor", many.mib_s() / block.mib_s(), 0.75);

    let large = floor::measure(dir, 1 << 20, time)?;
    let deep = measured(dir, &Load::closed(64, 64, 1024), time).await?;
    figures.waited.push(deep.limits.waited);
    println!("  floor 1 MiB     {:8.1} MiB/s", large.mib_s());
    println!("  4 MiB at once   {:8.1} MiB/s  {deep}", deep.mib_s());
    figures.add("4 MiB / floor", deep.mib_s() / large.mib_s(), 0.7);

    let lanes = measured(dir, &Load::paced(1000, 10, 1024), time).await?;
    figures.waited.push(lanes.limits.waited);
    println!(
        "  1,000 lanes     {:8.0} writes/s of 10,000  {lanes}",
        lanes.rate()
    );
    figures.add("1,000 lanes: share kept up", lanes.rate() / 10_000.0, 0.98);
    figures.add("p99 ms", ms(lanes.p99()), -5.0);

    let answered = measured(dir, &Load::closed(16, 4, 4096), time).await?;
    figures.waited.push(answered.limits.waited);
    println!(
        "  4 KiB, answered {:8.2} bytes written per byte  {answered}",
        answered.written()
    );
    figures.add("written per byte, answered", answered.written(), -1.1);
    let outage = measured(dir, &Load::outage(16, 4, 4096), time).await?;
    figures.waited.push(outage.limits.waited);
    println!(
        "  4 KiB, outage   {:8.2} bytes written per byte  {outage}",
        outage.written()
    );
    figures.add("through an outage", outage.written(), -2.1);
    Ok(())
}
