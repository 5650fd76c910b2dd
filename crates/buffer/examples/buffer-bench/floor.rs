//! What the disk itself does: overwriting a preallocated file with an fdatasync after every write.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Outcome, percentile};

/// The file is overwritten in turn, as the log is.
const FILE_BYTES: u64 = 64 << 20;

/// One measurement.
pub struct Floor {
    bytes_s: f64,
    /// Median time of one write with its flush.
    pub p50: Duration,
}

impl Floor {
    /// MiB a second.
    pub fn mib_s(&self) -> f64 {
        self.bytes_s / f64::from(1 << 20)
    }
}

/// What measures: `fio` where it is installed.
pub fn tool() -> &'static str {
    let fio = Command::new("fio").arg("--version").output();
    match fio.is_ok_and(|out| out.status.success()) {
        true => "fio",
        false => "a loop of write and fdatasync (fio is not installed)",
    }
}

/// Writes of `block` bytes, each flushed, for so long.
pub fn measure(dir: &Path, block: usize, time: Duration) -> Outcome<Floor> {
    let path = dir.join("floor");
    std::fs::write(&path, vec![7u8; usize::try_from(FILE_BYTES)?])?;
    std::fs::File::open(&path)?.sync_all()?;
    let measured = match tool() {
        "fio" => fio(&path, block, time)?,
        _ => own(&path, block, time)?,
    };
    std::fs::remove_file(&path)?;
    Ok(measured)
}

fn fio(path: &Path, block: usize, time: Duration) -> Outcome<Floor> {
    let out = Command::new("fio")
        .args([
            "--name=floor",
            "--rw=write",
            "--overwrite=1",
            "--fdatasync=1",
        ])
        .args(["--ioengine=sync", "--time_based=1", "--output-format=json"])
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--size={FILE_BYTES}"))
        .arg(format!("--bs={block}"))
        .arg(format!("--runtime={}", time.as_secs().max(1)))
        .output()?;
    let text = String::from_utf8(out.stdout)?;
    // Warnings stand before the document.
    let document = text
        .find('{')
        .and_then(|at| text.get(at..))
        .unwrap_or_default();
    let value: serde_json::Value = serde_json::from_str(document).map_err(|e| {
        format!(
            "fio said {text:?} {}: {e}",
            String::from_utf8_lossy(&out.stderr)
        )
    })?;
    let job = value.pointer("/jobs/0").ok_or("fio ran no job")?;
    let number = |at: &str| job.pointer(at).and_then(serde_json::Value::as_f64);
    let bytes_s = number("/write/bw_bytes").ok_or("fio gave no bandwidth")?;
    let nanos = number("/write/clat_ns/mean").unwrap_or(0.0)
        + number("/sync/lat_ns/percentile/50.000000").unwrap_or(0.0);
    Ok(Floor {
        bytes_s,
        p50: Duration::from_nanos(nanos as u64),
    })
}

fn own(path: &Path, block: usize, time: Duration) -> io::Result<Floor> {
    let file = std::fs::OpenOptions::new().write(true).open(path)?;
    let bytes = vec![7u8; block];
    let blocks = FILE_BYTES / block as u64;
    let (start, mut samples) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let begun = Instant::now();
        file.write_all_at(&bytes, samples.len() as u64 % blocks * block as u64)?;
        file.sync_data()?;
        samples.push(begun.elapsed());
    }
    let bytes_s = samples.len() as f64 * block as f64 / start.elapsed().as_secs_f64();
    samples.sort();
    Ok(Floor {
        bytes_s,
        p50: percentile(&samples, 0.5),
    })
}
