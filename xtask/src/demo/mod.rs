//! `demo`: shows that nothing is lost and nothing arrives twice.
//!
//! The example configuration runs unchanged but for its ports. Senders post webhooks under load while
//! both destinations are away for ten seconds and the host is killed with `kill -9` three times: once
//! in steady traffic, once while the backlog of the outage drains, once in steady traffic again. Each
//! time a moment is drawn from the seed, and from there the table's next transaction is awaited: right
//! after it the rows are at the destination and the host has not noted so yet, which is the worst
//! moment there is. Then the destinations are read, not the host's counters.
//!
//! `--without-keys` is the control: the same run against a table without the unique index. It must
//! show copies, or the demo's kills would not be able to show that there are none.

mod destination;
mod generator;
mod host;
mod load;
mod outage;
mod random;
mod report;
mod scene;
mod telemetry;
mod watch;

use crate::build::build;
use crate::error::{Error, Result, failed};
use crate::system;
use crate::workspace::{Profile, Workspace};
use destination::Database;
use host::Host;
use load::Load;
use outage::Outage;
use random::Random;
use report::{Kill, Report};
use scene::Scene;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use telemetry::Status;
use watch::Watch;

pub use scene::{EXAMPLE, lay_out_quickstart};

/// How long the destinations are away.
const OUTAGE: Duration = Duration::from_secs(10);

/// The whole run, at most. It takes about a minute, and several where the disk is slow: each of the
/// 20,000 files is flushed on its own.
const LIMIT: Duration = Duration::from_secs(1200);

/// How often one is told how far it has come, in the end.
const TELL: Duration = Duration::from_secs(10);

/// After an outage the first write lands within this time, or something is wrong.
const RESUME_WITHIN: Duration = Duration::from_secs(60);

/// When nothing more lands for this long, what is missing is lost; a lane's longest pause is 2 s.
const QUIET: Duration = Duration::from_secs(30);

/// From taking connections to a status, at most; without one the demo goes on all the same.
const STATUS_WITHIN: Duration = Duration::from_secs(5);

/// How often the destinations are looked at in the end.
const LOOK: Duration = Duration::from_millis(200);

/// How often the table is looked at for a new transaction: the host notes what was delivered within
/// some ten milliseconds, and the kill should come before.
const COMMIT_POLL: Duration = Duration::from_micros(200);

/// Where the example takes webhooks.
const PATH: &str = "/webhooks";

/// A stream of randomness that no webhook uses.
const KILL_STREAM: u64 = u64::MAX;

/// What can be chosen.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The last line on standard output is one JSON object.
    #[arg(long)]
    json: bool,
    /// The control: a table without the unique index, where repeats become copies.
    #[arg(long)]
    without_keys: bool,
    /// Seed of the webhooks and of the moments of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many webhooks.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(2_000..=1_000_000))]
    messages: u64,
    /// How many a second, at most. The load must last longer than the outage.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// With the optimised build.
    #[arg(long)]
    release: bool,
    /// Use host and plugins as they were built last.
    #[arg(long)]
    no_build: bool,
}

/// Whether the table has what makes repeats harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// It has the unique index on the write key.
    Keys,
    /// It has none.
    NoKeys,
}

/// Builds, runs the demo, prints its ledger, and fails when a promise did not hold.
pub fn demo(workspace: &Workspace, options: &Options) -> Result<()> {
    system::ensure_build_needs()?;
    let profile = Profile::from_release(options.release);
    if !options.no_build {
        build(workspace, profile)?;
    }
    let control = if options.without_keys {
        Control::NoKeys
    } else {
        Control::Keys
    };
    let watch = Arc::new(Watch::new(LIMIT)?);
    let scene = Scene::set(workspace, profile, control)?;
    let report = Play::new(&scene, options, control, &watch)?.run()?;
    print!("{}", report.text());
    let faults = report.faults();
    if options.json {
        let line = serde_json::to_string(&report.summary());
        println!(
            "{}",
            line.map_err(|error| Error::Failed(error.to_string()))?
        );
    }
    if faults.is_empty() {
        return Ok(());
    }
    failed(format!(
        "{}\n(everything is left in {})",
        faults.join("\n"),
        workspace.shown(&scene.folder)
    ))
}

/// One run.
struct Play<'a> {
    scene: &'a Scene,
    options: &'a Options,
    control: Control,
    watch: &'a Arc<Watch>,
    random: Random,
    database: Database,
    kills: Vec<Kill>,
    /// Dropped repeats and rows at the last kill.
    at_last_kill: (u64, u64),
}

impl<'a> Play<'a> {
    fn new(
        scene: &'a Scene,
        options: &'a Options,
        control: Control,
        watch: &'a Arc<Watch>,
    ) -> Result<Self> {
        Ok(Self {
            scene,
            options,
            control,
            watch,
            random: Random::new(options.seed, KILL_STREAM),
            database: Database::open(&scene.database)?,
            kills: Vec::new(),
            at_last_kill: (0, 0),
        })
    }

    fn run(mut self) -> Result<Report> {
        let (host, took) = Host::start(self.scene, self.watch)?;
        eprintln!(
            "the host runs {} after {:.1} s; {} webhooks go to http://{}{PATH}",
            EXAMPLE,
            took.as_secs_f64(),
            self.options.messages,
            self.scene.hooks
        );
        let since = Instant::now();
        let load = Load::start(
            load::Plan {
                address: self.scene.hooks,
                path: PATH,
                seed: self.options.seed,
                count: self.options.messages,
                rate: self.options.rate,
            },
            self.watch,
        );

        let host = self.wait_share(host, 8, 22)?;
        let host = self.kill(host, "in steady traffic")?;

        let host = self.wait_share(host, 30, 34)?;
        let outage = Outage::begin(&self.scene.database, &self.scene.archive)?;
        eprintln!("both destinations are away");
        let (away_since, before) = (Instant::now(), self.accepted());
        self.watch.pause(OUTAGE)?;
        outage.end()?;
        let (away, accepted_in_outage) = (away_since.elapsed(), self.accepted() - before);
        eprintln!("both destinations are back; {accepted_in_outage} webhooks wait for them");

        self.wait_resume()?;
        let host = self.kill(host, "while the backlog drained")?;

        let host = self.wait_share(host, 80, 92)?;
        let host = self.kill(host, "in steady traffic")?;

        let host = self.finish(host, &load)?;
        let took = since.elapsed();
        let status = self.status().unwrap_or_default();
        let stop_fault = host.stop().err().map(|error| error.to_string());
        self.watch.check()?;
        self.close_last_kill()?;
        eprintln!("reading the destinations");
        let sent = self.options.messages;
        let tries = &load.tries;
        Ok(Report {
            control: self.control,
            seed: self.options.seed,
            posted: sent,
            accepted: self.accepted(),
            table: self.database.tally(self.options.seed, sent)?,
            files: destination::tally_files(&self.scene.archive, self.options.seed, sent)?,
            dropped: self.database.dropped()?,
            kills: self.kills,
            outage: away,
            accepted_in_outage,
            host_repeats: status.repeats(),
            undelivered: status.undelivered(),
            tries: [&tries.broken, &tries.blocked, &tries.in_flight]
                .map(|count| count.load(Ordering::Relaxed)),
            took,
            stop_fault,
        })
    }

    fn status(&self) -> Option<Status> {
        Status::ask(self.scene.console)
    }

    /// Writes in flight at the kill, by the host's own reckoning once its status can be had.
    fn status_after_start(&self) -> Result<Option<u64>> {
        let since = Instant::now();
        loop {
            let status = self.status();
            if status.is_some() || since.elapsed() > STATUS_WITHIN {
                return Ok(status.map(|status| status.in_flight_at_last_exit()));
            }
            self.watch.pause(LOOK)?;
        }
    }

    fn accepted(&self) -> u64 {
        self.watch.accepted.load(Ordering::Relaxed)
    }

    /// Waits until a share of the webhooks is accepted, drawn between two percentages.
    fn wait_share(&mut self, mut host: Host, low: u64, high: u64) -> Result<Host> {
        let messages = self.options.messages;
        let share = self
            .random
            .between(messages * low / 100, messages * high / 100);
        let watch = self.watch;
        watch.wait(|| {
            host.check()?;
            Ok(watch.accepted.load(Ordering::Relaxed) >= share)
        })?;
        Ok(host)
    }

    /// Waits until rows arrive again after the outage, and then for a moment more.
    fn wait_resume(&mut self) -> Result<()> {
        let (rows, since) = (self.database.rows()?, Instant::now());
        self.watch.wait(|| {
            if since.elapsed() > RESUME_WITHIN {
                return failed(format!(
                    "no row arrived within {RESUME_WITHIN:?} after the outage"
                ));
            }
            Ok(self.database.rows()? > rows)
        })?;
        let moment = Duration::from_millis(self.random.between(0, 150));
        self.watch.pause(moment)
    }

    /// Waits for the next transaction at the table.
    fn wait_commit(&self, host: &mut Host) -> Result<()> {
        let (version, since) = (self.database.version()?, Instant::now());
        while self.database.version()? == version {
            host.check()?;
            self.watch.check()?;
            if since.elapsed() > RESUME_WITHIN {
                return failed(format!("no row arrived for {RESUME_WITHIN:?}"));
            }
            std::thread::sleep(COMMIT_POLL);
        }
        Ok(())
    }

    /// `kill -9` right after the next transaction at the table, and at once a new start.
    fn kill(&mut self, mut host: Host, when: &'static str) -> Result<Host> {
        self.wait_commit(&mut host)?;
        let accepted = self.accepted();
        let since = Instant::now();
        host.kill()?;
        // Nobody writes now, so this is exact.
        self.close_last_kill()?;
        let (host, _) = Host::start(self.scene, self.watch)?;
        let back_after = since.elapsed();
        let in_flight = self.status_after_start()?;
        eprintln!(
            "kill -9 no. {} {when}; back after {:.1} s",
            self.kills.len() + 1,
            back_after.as_secs_f64()
        );
        self.kills.push(Kill {
            when,
            accepted,
            in_flight,
            back_after,
            dropped: 0,
            copies: 0,
        });
        Ok(host)
    }

    /// Books what the table was sent again since the last kill. The host must not run.
    fn close_last_kill(&mut self) -> Result<()> {
        let dropped = self.database.dropped()?;
        let copies = self.database.copies()?;
        if let Some(kill) = self.kills.last_mut() {
            kill.dropped = dropped - self.at_last_kill.0;
            kill.copies = copies - self.at_last_kill.1;
        }
        self.at_last_kill = (dropped, copies);
        Ok(())
    }

    /// Waits until all webhooks are accepted and have landed, or until nothing moves any more.
    fn finish(&mut self, mut host: Host, load: &Load) -> Result<Host> {
        self.watch.wait(|| {
            host.check()?;
            Ok(load.is_finished())
        })?;
        let accepted = self.accepted();
        eprintln!("all senders are done: {accepted} accepted; waiting for the rest to land");
        let (mut moved, mut last) = (Instant::now(), (0, 0));
        let mut told = Instant::now();
        self.watch.wait(|| {
            host.check()?;
            std::thread::sleep(LOOK);
            let rows = self.database.distinct()?;
            let files = destination::count_files(&self.scene.archive)?;
            if (rows, files) != last {
                (moved, last) = (Instant::now(), (rows, files));
            }
            if told.elapsed() > TELL {
                told = Instant::now();
                eprintln!("{rows} in the table, {files} files");
            }
            // Repeats of what has landed may still be on their way; and where the host has nothing
            // left to send, what is missing does not come any more.
            let idle = self.status().is_some_and(|status| status.pending() == 0);
            Ok(idle || moved.elapsed() > QUIET)
        })?;
        Ok(host)
    }
}
