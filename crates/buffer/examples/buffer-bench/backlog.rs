//! Memory and start-up time with a backlog on the disk.
//!
//! Each phase is a process of its own, so that its memory is its own: one fills the folder and is killed, one opens what
//! the kill left and ends well, one opens that, drains a part and ends.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use consign_buffer::{
    Acceptance, Buffer, LaneId, LaneSpec, NewWrite, Options, RealFilesystem, Settlement, WhenFull,
};

use crate::{Outcome, argument};

/// Acceptances on their way while the backlog is made.
const OUTSTANDING: usize = 1024;
/// The disk keeps this much; what is there by then is measured.
const KEEP_FREE: u64 = 3 << 30;
/// Writes that the last phase delivers.
const DRAINED: u64 = 200_000;
/// What a phase says when it is done and waits to be killed.
const READY: &str = "ready";
const GIB: f64 = (1u64 << 30) as f64;

/// How much, of what, and for how long at most.
pub struct Wanted {
    /// GiB of bodies.
    pub gib: f64,
    /// Bytes of one body.
    pub body: usize,
    /// The longest the filling may take; what is there by then is measured.
    pub longest: Duration,
}

struct Opened {
    buffer: Buffer,
    lane: LaneId,
    took: Duration,
    pending: u64,
}

async fn open(dir: &Path) -> Outcome<Opened> {
    evict(dir);
    let start = Instant::now();
    let (buffer, recovery) =
        Buffer::open(dir, Options::default(), Arc::new(RealFilesystem)).await?;
    let took = start.elapsed();
    if !recovery.lost.is_empty() {
        return Err(format!("something was lost: {:?}", recovery.lost).into());
    }
    let lane = buffer.lane(LaneSpec {
        id: "bench/backlog".into(),
        formerly: Vec::new(),
        quota_bytes: u64::MAX / 4,
        in_flight_limit: 1000,
        when_full: WhenFull::Block,
    })?;
    let pending = buffer.stats(lane).unwrap_or_default().pending;
    Ok(Opened {
        buffer,
        lane,
        took,
        pending,
    })
}

/// Asks the system to forget what it has cached of the folder, so that it is read from the disk.
fn evict(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            evict(&path);
        } else if let Ok(file) = std::fs::File::open(&path) {
            // Only what is on the disk can be forgotten.
            let _ = file.sync_all();
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}

/// Resident memory of this process, in MiB, and what of it is not file pages.
fn rss_mib() -> Outcome<f64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line
        .and_then(|l| l.trim().strip_suffix(" kB"))
        .ok_or("no VmRSS")?;
    Ok(kib.trim().parse::<f64>()? / 1024.0)
}

fn free_bytes(dir: &Path) -> Outcome<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_frsize.saturating_mul(stat.f_bavail))
}

/// Says a line of figures to the process that began this one, and waits to be killed.
fn hold(figures: &[(&str, f64)]) -> Outcome<()> {
    let words: Vec<String> = figures.iter().map(|(k, v)| format!("{k}={v}")).collect();
    println!("{READY} {}", words.join(" "));
    loop {
        std::thread::park();
    }
}

/// One phase, in a process of its own.
pub async fn phase(name: &str, dir: &Path, wanted: &Wanted) -> Outcome<()> {
    match name {
        "fill" => fill(dir, wanted).await,
        "recover" => {
            let opened = open(dir).await?;
            let rss = rss_mib()?;
            opened.buffer.close().await?;
            hold(&[
                ("start_s", opened.took.as_secs_f64()),
                ("pending", opened.pending as f64),
                ("rss", rss),
            ])
        }
        "drain" => {
            let opened = open(dir).await?;
            let rss = rss_mib()?;
            let begun = Instant::now();
            let drained = drain(&opened.buffer, opened.lane).await?;
            let rate = drained as f64 / begun.elapsed().as_secs_f64();
            let after = rss_mib()?;
            opened.buffer.close().await?;
            hold(&[
                ("start_s", opened.took.as_secs_f64()),
                ("pending", opened.pending as f64),
                ("rss", rss),
                ("drained_s", rate),
                ("rss_after", after),
            ])
        }
        other => Err(format!("there is no phase {other:?}").into()),
    }
}

async fn fill(dir: &Path, wanted: &Wanted) -> Outcome<()> {
    let Opened { buffer, lane, .. } = open(dir).await?;
    let bytes = Bytes::from(vec![3u8; wanted.body]);
    let count = (wanted.gib * GIB / wanted.body as f64) as u64;
    let (start, mut flying, mut pending) = (Instant::now(), VecDeque::new(), 0u64);
    let (mut base, mut said, mut short) = (None, Instant::now(), false);
    loop {
        let going = pending < count && start.elapsed() < wanted.longest && !short;
        if !going && flying.is_empty() {
            break;
        }
        while going && flying.len() < OUTSTANDING && pending < count {
            let write = NewWrite {
                lane,
                key: u128::from(pending).to_le_bytes(),
                order: 0,
                body: bytes.clone(),
                created_unix_ms: 1,
                expires_unix_ms: None,
                children: Vec::new(),
            };
            let acceptance = Acceptance {
                writes: vec![write],
                ..Acceptance::default()
            };
            let room = buffer.reserve(&[(lane, wanted.body as u64)])?;
            flying.push_back(buffer.accept(room, acceptance));
            pending += 1;
        }
        if let Some(accepting) = flying.pop_front() {
            accepting.await?;
        }
        if said.elapsed() > Duration::from_secs(5) {
            said = Instant::now();
            short = free_bytes(dir)? < KEEP_FREE;
            let spilled = buffer.stats(lane).unwrap_or_default().spill_bytes;
            // Once the log has been full, memory grows with the backlog alone.
            if base.is_none() && spilled > 2 * Options::default().log_bytes {
                base = Some(rss_mib()?);
            }
            println!(
                "  {pending} pending, {:.1} GiB spilled, {:.0} MiB resident",
                spilled as f64 / GIB,
                rss_mib()?
            );
        }
    }
    let stats = buffer.stats(lane).unwrap_or_default();
    let rss = rss_mib()?;
    hold(&[
        ("pending", pending as f64),
        ("seconds", start.elapsed().as_secs_f64()),
        ("spill", stats.spill_bytes as f64),
        ("files", stats.spill_files as f64),
        ("rss_first", base.unwrap_or(rss)),
        ("rss", rss),
    ])
}

/// Fetches and settles a part, as a lane that drains does.
async fn drain(buffer: &Buffer, lane: LaneId) -> Outcome<u64> {
    let (mut after, mut drained) = (0, 0);
    while drained < DRAINED {
        let got = buffer.fetch(lane, after, 1000, 4 << 20).await?;
        let Some(last) = got.writes.last() else { break };
        after = last.seq;
        drained += got.writes.len() as u64;
        let settlements = got.writes.iter().map(|w| Settlement {
            lane,
            seq: w.seq,
            result: 1,
            release_children: true,
        });
        buffer.settle(settlements.collect()).await?;
    }
    Ok(drained)
}

/// Killed when it goes out of scope.
struct Phase(Child);

impl Drop for Phase {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a phase measured, by name.
struct Figures(Vec<(String, f64)>);

impl Figures {
    fn get(&self, name: &str) -> f64 {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or(f64::NAN, |(_, value)| *value)
    }
}

/// Runs a phase until it has said its figures, and kills it.
fn run_phase(name: &str, dir: &Path) -> Outcome<Figures> {
    // The same program, also when a build has put another one in its place meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1));
    command.args(["--phase", name]).arg("--folder").arg(dir);
    let child = command.stdout(Stdio::piped()).spawn()?;
    let mut phase = Phase(child);
    let out = phase.0.stdout.take().ok_or("no output")?;
    for line in BufReader::new(out).lines() {
        let line = line?;
        let Some(said) = line.strip_prefix(READY) else {
            println!("{line}");
            continue;
        };
        let parse = |word: &str| -> Outcome<(String, f64)> {
            let (name, value) = word.split_once('=').ok_or("not a figure")?;
            Ok((name.to_owned(), value.parse()?))
        };
        let figures: Outcome<Vec<_>> = said.split_whitespace().map(parse).collect();
        return Ok(Figures(figures?));
    }
    Err(format!("{name} ended without a figure").into())
}

/// All phases, and what they came to.
pub fn run(dir: &Path, wanted: &Wanted) -> Outcome<()> {
    let filled = run_phase("fill", dir)?;
    let (pending, seconds) = (filled.get("pending"), filled.get("seconds"));
    let grown = filled.get("rss") - filled.get("rss_first");
    println!(
        "filled: {pending:.0} writes of {} bytes in {seconds:.0} s ({:.0} writes/s); {:.0} spill files, {:.2} GiB; \
         {:.0} MiB resident, {grown:+.0} since the log was full first",
        wanted.body,
        pending / seconds,
        filled.get("files"),
        filled.get("spill") / GIB,
        filled.get("rss"),
    );
    let killed = run_phase("recover", dir)?;
    println!(
        "opened after kill -9: {:.2} s, {:.0} pending, {:.0} MiB resident",
        killed.get("start_s"),
        killed.get("pending"),
        killed.get("rss")
    );
    let ended = run_phase("drain", dir)?;
    println!(
        "opened after a clean end: {:.2} s, {:.0} MiB resident; drained at {:.0} writes/s, {:.0} MiB resident then",
        ended.get("start_s"),
        ended.get("rss"),
        ended.get("drained_s"),
        ended.get("rss_after")
    );
    if killed.get("pending") != pending || ended.get("pending") != pending {
        return Err(format!("{pending} were accepted, and not all of them are pending").into());
    }
    let met = |ok: bool| if ok { "met" } else { "MISSED" };
    let slowest = killed.get("start_s").max(ended.get("start_s"));
    let most = grown.max(ended.get("rss_after"));
    println!(
        "summary: {pending:.0} writes pending, {:.2} GiB of bodies (of {} asked for): memory {grown:+.0} MiB while the \
         backlog grew, a process that opens and drains it has {most:.0} MiB in all (<= 64 {}); start-up {slowest:.2} s \
         (<= 5 {})",
        pending * wanted.body as f64 / GIB,
        wanted.gib,
        met(grown <= 64.0),
        met(slowest <= 5.0),
    );
    Ok(())
}

/// What the command line asks for.
pub fn wanted(gib: &str) -> Outcome<Wanted> {
    let minutes = argument("--minutes").map_or(Ok(10), |m| m.parse())?;
    Ok(Wanted {
        gib: gib.parse()?,
        body: argument("--body").map_or(Ok(1024), |b| b.parse())?,
        longest: Duration::from_secs(60 * minutes),
    })
}
