//! `bench classes`: what a bulk backlog costs a critical lane of the same host.
//!
//! Critical messages are posted at a fixed rate, each on time whether or not the one before was
//! answered, and each is timed from when it was due to when its bytes are at its destination: the whole
//! path, acceptance included. First alone; then while a backlog of bulk writes, which a closed
//! destination has held, drains over the same host. Both destinations are sockets of this program.

use crate::build::build;
use crate::error::{Context, Result, failed};
use crate::http::{self, Client};
use crate::workspace::{Profile, Workspace};
use clap::Args;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads that post: a slow answer delays only its own thread's next message.
const SENDERS: u64 = 8;

/// The longest wait for anything but the measurement itself.
const PATIENCE: Duration = Duration::from_secs(180);

/// What to measure.
#[derive(Debug, Args)]
pub struct Options {
    /// Bulk writes in the backlog.
    #[arg(long, default_value_t = 200_000)]
    bulk: u64,
    /// Critical messages a second.
    #[arg(long, default_value_t = 100)]
    rate: u64,
    /// Seconds of each of the two measurements.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Measure the debug build, which compiles faster. Its figures are no one's throughput; the ratio
    /// still says something.
    #[arg(long)]
    debug: bool,
}

/// Builds host and plugins, measures, and prints a table and one summary line.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let profile = Profile::from_release(!options.debug);
    build(workspace, profile)?;
    let folder = workspace.target.join("bench-classes");
    if folder.exists() {
        fs::remove_dir_all(&folder).context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder.join("logs"))
        .context(|| format!("cannot create {}", folder.display()))?;
    let scene = Scene::new(&folder)?;
    let plugins = workspace.plugin_folder(profile);
    fs::write(folder.join("bench.yaml"), scene.config(&plugins))
        .context(|| "cannot write the configuration".into())?;
    let arrivals = Arrivals::listen(scene.critical, options.rate * options.seconds * 2)?;
    let host = Host::start(workspace, profile, &folder, &scene)?;

    let alone = measure(&scene, &arrivals, options, 0)?;
    write_bulk(&folder.join("logs/bulk.log"), options.bulk)?;
    wait("the bulk backlog", || Ok(pending(&scene)? >= options.bulk))?;
    let drained = count_lines(scene.bulk)?;
    wait("the first bulk write", || {
        Ok(drained.load(Ordering::Relaxed) > 0)
    })?;
    let (from, before) = (Instant::now(), drained.load(Ordering::Relaxed));
    let beside = measure(&scene, &arrivals, options, options.rate * options.seconds)?;
    let (took, meanwhile) = (from.elapsed(), drained.load(Ordering::Relaxed) - before);
    wait("the rest of the backlog", || {
        Ok(drained.load(Ordering::Relaxed) >= options.bulk)
    })?;
    drop(host);

    println!("| critical lane | messages | p50 | p99 | longest |");
    println!("|---|---|---|---|---|");
    println!("| alone | {} | {} |", alone.len(), words(&alone));
    println!("| beside bulk | {} | {} |", beside.len(), words(&beside));
    let ratio = |at| milliseconds(&beside, at) / milliseconds(&alone, at).max(0.001);
    println!(
        "classes: p99 {:.1} ms alone, {:.1} ms beside bulk ({:.1} times; p50 {:.1} times), while {meanwhile} of {} bulk writes were sent in {:.1} s ({} build)",
        milliseconds(&alone, 0.99),
        milliseconds(&beside, 0.99),
        ratio(0.99),
        ratio(0.5),
        options.bulk,
        took.as_secs_f64(),
        profile.folder(),
    );
    Ok(())
}

/// The addresses in use.
struct Scene {
    hooks: SocketAddr,
    console: SocketAddr,
    critical: SocketAddr,
    bulk: SocketAddr,
}

impl Scene {
    fn new(folder: &Path) -> Result<Self> {
        let free = || -> Result<SocketAddr> {
            let listener = TcpListener::bind("127.0.0.1:0")
                .and_then(|listener| listener.local_addr())
                .context(|| format!("no free port for {}", folder.display()))?;
            Ok(listener)
        };
        Ok(Self {
            hooks: free()?,
            console: free()?,
            critical: free()?,
            bulk: free()?,
        })
    }

    fn config(&self, plugins: &Path) -> String {
        format!(
            r#"data_dir: ./data
plugins: ["{plugins}"]
console: {{ listen: "{console}" }}
connections:
  hooks:    {{ connector: http, config: {{ listen: "{hooks}" }} }}
  logs:     {{ connector: localfile, config: {{ root: ./logs }} }}
  critical: {{ connector: tcp, config: {{ address: "{critical}" }} }}
  bulk:     {{ connector: tcp, config: {{ address: "{bulk}" }} }}
classes:
  critical: {{ reserved: 4 }}
  bulk:     {{ max_in_flight: 8 }}
adapters:
  critical:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /critical }} }}
    routes:
      - name: all
        send:
          - {{ id: out, connection: critical, operation: tcp.send, config: {{}}, class: critical }}
  bulk:
    source: {{ connection: logs, operation: localfile.read, config: {{ path: bulk.log, poll_interval: 20ms }} }}
    routes:
      - name: all
        send:
          - {{ id: out, connection: bulk, operation: tcp.send, config: {{}}, class: bulk }}
"#,
            plugins = plugins.display(),
            console = self.console,
            hooks = self.hooks,
            critical = self.critical,
            bulk = self.bulk,
        )
    }
}

/// A running host; killed by its process id when it goes out of scope.
struct Host(Child);

impl Host {
    fn start(
        workspace: &Workspace,
        profile: Profile,
        folder: &Path,
        scene: &Scene,
    ) -> Result<Self> {
        let log = File::create(folder.join("host.log"))
            .context(|| format!("cannot write into {}", folder.display()))?;
        let program = workspace.host(profile);
        let child = Command::new(&program)
            .current_dir(folder)
            .args(["run", "bench.yaml"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context(|| format!("cannot start {}", program.display()))?;
        let host = Self(child);
        wait("the host", || Ok(TcpStream::connect(scene.hooks).is_ok()))?;
        Ok(host)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // It fails only when the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// When each critical message arrived, in nanoseconds since `since`; 0 while it has not.
struct Arrivals {
    since: Instant,
    at: Arc<Vec<AtomicU64>>,
}

impl Arrivals {
    fn listen(address: SocketAddr, messages: u64) -> Result<Self> {
        let since = Instant::now();
        let at: Arc<Vec<AtomicU64>> = Arc::new((0..messages).map(|_| AtomicU64::new(0)).collect());
        let kept = Arc::clone(&at);
        each_line(address, move |line| {
            let number = line.trim().parse().ok().and_then(|n: usize| kept.get(n));
            if let Some(place) = number {
                place.store(nanoseconds(since.elapsed()), Ordering::Release);
            }
        })?;
        Ok(Self { since, at })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Lines that arrived at this address.
fn count_lines(address: SocketAddr) -> Result<Arc<AtomicU64>> {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    each_line(address, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    })?;
    Ok(count)
}

/// Reads lines of every connection to this address in threads that end with the program.
fn each_line(address: SocketAddr, take: impl Fn(&str) + Send + Sync + 'static) -> Result<()> {
    let listener = TcpListener::bind(address).context(|| format!("cannot listen on {address}"))?;
    let take = Arc::new(take);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(std::io::Result::ok) {
            let take = Arc::clone(&take);
            std::thread::spawn(move || {
                for line in BufReader::new(stream)
                    .lines()
                    .map_while(std::io::Result::ok)
                {
                    take(&line);
                }
            });
        }
    });
    Ok(())
}

fn write_bulk(path: &Path, lines: u64) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for number in 0..lines {
            writeln!(file, "bulk {number:08} {}", "x".repeat(80))?;
        }
        file.flush()
    };
    write().context(|| format!("cannot write {}", path.display()))
}

/// Bulk writes that wait in their lane.
fn pending(scene: &Scene) -> Result<u64> {
    let answer = http::get(&format!("http://{}/api/v1/status", scene.console))
        .context(|| "the host does not answer".into())?;
    let status: serde_json::Value =
        serde_json::from_slice(&answer.body).context(|| "status is not JSON".into())?;
    let lanes = status.get("lanes").and_then(|lanes| lanes.as_array());
    let bulk = lanes.and_then(|lanes| lanes.iter().find(|lane| lane["id"] == "bulk/all/out"));
    Ok(bulk.and_then(|lane| lane["pending"].as_u64()).unwrap_or(0))
}

/// Posts the critical messages from this number on and waits until all have arrived; their delays,
/// sorted.
fn measure(
    scene: &Scene,
    arrivals: &Arrivals,
    options: &Options,
    first: u64,
) -> Result<Vec<Duration>> {
    let count = options.rate * options.seconds;
    let start = Instant::now() + Duration::from_millis(50);
    let due = |number: u64| {
        start + Duration::from_nanos((number - first) * 1_000_000_000 / options.rate.max(1))
    };
    let posted: Result<Vec<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..SENDERS)
            .map(|sender| {
                scope.spawn(move || -> Result<()> {
                    let mut client = Client::new(scene.hooks);
                    let numbers = (first..first + count).filter(|n| n % SENDERS == sender);
                    for number in numbers {
                        std::thread::sleep(due(number).saturating_duration_since(Instant::now()));
                        let body = number.to_string();
                        let answer = client
                            .request("POST", "/critical", &[], body.as_bytes())
                            .context(|| format!("message {number}"))?;
                        if answer.status >= 300 {
                            return failed(format!("message {number}: status {}", answer.status));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => failed("a sender panicked"),
            })
            .collect()
    });
    posted?;
    let places = || {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        arrivals.at.iter().skip(first).take(count)
    };
    wait("the critical messages", || {
        Ok(places().all(|at| at.load(Ordering::Acquire) > 0))
    })?;
    let mut delays: Vec<Duration> = (first..)
        .zip(places())
        .map(|(number, at)| {
            let arrived = arrivals.since + Duration::from_nanos(at.load(Ordering::Acquire));
            arrived.saturating_duration_since(due(number))
        })
        .collect();
    delays.sort_unstable();
    Ok(delays)
}

fn wait(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let from = Instant::now();
    while !done()? {
        if from.elapsed() > PATIENCE {
            return failed(format!("{what} did not come within {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The delay at this part of the sorted ones, in milliseconds.
fn milliseconds(sorted: &[Duration], part: f64) -> f64 {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a few thousand samples"
    )]
    let place = ((sorted.len() as f64 * part).ceil() as usize).saturating_sub(1);
    let last = sorted.len().saturating_sub(1);
    sorted
        .get(place.min(last))
        .map_or(0.0, |delay| delay.as_secs_f64() * 1000.0)
}

fn words(sorted: &[Duration]) -> String {
    [0.5, 0.99, 1.0]
        .map(|part| format!("{:.1} ms", milliseconds(sorted, part)))
        .join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_sorted_delays_are_the_nearest_rank() {
        let delays: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        for (part, expected) in [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.0, 1.0)] {
            assert!((milliseconds(&delays, part) - expected).abs() < 1e-9);
        }
        assert_eq!(milliseconds(&[], 0.5), 0.0);
    }

    #[test]
    fn lines_are_counted_over_connections() {
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let count = count_lines(address).unwrap();
        for _ in 0..2 {
            TcpStream::connect(address)
                .unwrap()
                .write_all(b"a\nb\n")
                .unwrap();
        }
        let from = Instant::now();
        while count.load(Ordering::Relaxed) < 4 {
            assert!(from.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
