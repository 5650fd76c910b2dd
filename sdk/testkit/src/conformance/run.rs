//! Running scenarios and saying what came of them: the `main` of a connector's `tests/conformance.rs`.
#![allow(
    clippy::expect_used,
    reason = "a run that cannot begin fails by panicking"
)]

use super::origin::SourceStage;
use super::stage::Stage;
use super::{Access, Destination, Failure, Origin, Ran, Result, Scenario, Verdict};
use super::{local, network, parked};
use crate::{host, library};
use serde_json::{Value, json};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// What a connector has tested.
#[derive(Default)]
pub struct Subjects {
    destinations: Vec<Box<dyn Destination>>,
    origins: Vec<Box<dyn Origin>>,
    skipped: Vec<String>,
    /// The library under test, where it is not among the host's own plugins.
    plugins: Vec<PathBuf>,
}

impl Subjects {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One operation in one configuration.
    #[must_use]
    pub fn destination(mut self, destination: impl Destination + 'static) -> Self {
        self.destinations.push(Box::new(destination));
        self
    }

    /// One source operation in one configuration.
    #[must_use]
    pub fn origin(mut self, origin: impl Origin + 'static) -> Self {
        self.origins.push(Box::new(origin));
        self
    }

    /// Tests the library of this package, as cargo built it beside this test
    /// (`.library(env!("CARGO_PKG_NAME"))`), and not a plugin of the host's own.
    #[must_use]
    pub fn library(mut self, package: &str) -> Self {
        self.plugins.push(library::built_here(package));
        self
    }

    /// A service that cannot be had here. In CI finding it has failed the run already.
    #[must_use]
    pub fn skipped(mut self, service: &str) -> Self {
        self.skipped.push(service.to_owned());
        self
    }
}

/// What a run is asked for.
#[derive(Debug, Default)]
struct Wanted {
    full: bool,
    case: Option<String>,
    scenario: Option<Scenario>,
}

impl Wanted {
    fn destination(&self, destination: &dyn Destination, scenario: Scenario) -> bool {
        let quick = scenario.is_quick(destination);
        scenario.applies_to(destination) && self.includes(destination.case(), scenario, quick)
    }

    fn source(&self, case: &str, scenario: Scenario) -> bool {
        self.includes(
            case,
            scenario,
            scenario == Scenario::AcknowledgedAfterAcceptance,
        )
    }

    fn includes(&self, case: &str, scenario: Scenario, quick: bool) -> bool {
        let right_case = self.case.as_ref().is_none_or(|only| only == case);
        let right_scenario = match self.scenario {
            Some(only) => only == scenario,
            None => self.full || quick,
        };
        right_case && right_scenario
    }
}

/// Runs what the command line asks for and prints the table, one summary line at its end. Without
/// arguments it is the quick run that is a part of every test run; `--full`, `--case NAME` and
/// `--scenario NAME` come from `cargo xtask conformance`. With `CONSIGN_CONFORMANCE_REPORT` in the
/// environment the result is also written there, as JSON.
pub fn main<F: Future<Output = Subjects>>(
    connector: &str,
    subjects: impl FnOnce() -> F,
) -> ExitCode {
    let wanted = match wanted(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(run(connector, subjects(), &wanted))
}

fn wanted(mut args: impl Iterator<Item = String>) -> std::result::Result<Wanted, String> {
    let mut wanted = Wanted::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--full" => wanted.full = true,
            "--case" => wanted.case = args.next(),
            "--scenario" => {
                let name = args.next().unwrap_or_default();
                let known = Scenario::ALL.map(Scenario::name).join(", ");
                let scenario = Scenario::named(&name)
                    .ok_or_else(|| format!("there is no scenario {name:?}; there are: {known}"))?;
                wanted.scenario = Some(scenario);
            }
            // Arguments for the usual test harness (`--nocapture`, a name) mean nothing here.
            _ => {}
        }
    }
    Ok(wanted)
}

async fn run<F: Future<Output = Subjects>>(
    connector: &str,
    subjects: F,
    wanted: &Wanted,
) -> ExitCode {
    if !host::is_here(&format!("conformance of {connector}")) {
        return ExitCode::SUCCESS;
    }
    let subjects = subjects.await;
    let plugins = subjects.plugins.as_slice();
    let mut rows = Vec::new();
    for destination in &subjects.destinations {
        for scenario in Scenario::ALL {
            if !wanted.destination(destination.as_ref(), scenario) {
                continue;
            }
            let ran = run_one(connector, destination.as_ref(), scenario, plugins).await;
            println!("{ran}");
            rows.push(ran);
        }
    }
    for origin in &subjects.origins {
        for scenario in Scenario::ALL {
            if scenario.is_of_source() && wanted.source(origin.case(), scenario) {
                let ran = run_source(connector, origin.as_ref(), scenario, plugins).await;
                println!("{ran}");
                rows.push(ran);
            }
        }
    }
    let failed = rows.iter().filter(|ran| ran.failed()).count();
    let kept = rows.iter().filter(|ran| ran.kept()).count();
    let not_run = rows.len() - failed - kept;
    println!("conformance {connector}: {kept} kept, {failed} failed, {not_run} not run");
    println!("{kept} passed, {failed} failed");
    if let Some(path) = std::env::var_os("CONSIGN_CONFORMANCE_REPORT") {
        let report = report(connector, &subjects, &rows);
        std::fs::write(path, report.to_string()).expect("the report can be written");
    }
    if failed == 0 && (kept > 0 || !subjects.skipped.is_empty()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs one scenario with the workspace's plugins and those of `plugins`.
pub async fn run_one(
    connector: &str,
    destination: &dyn Destination,
    scenario: Scenario,
    plugins: &[PathBuf],
) -> Ran {
    let from = Instant::now();
    let (operation, case) = (destination.operation(), destination.case());
    let saved = saved_folder().join(format!("{operation}-{case}-{scenario}"));
    let verdict = match scenario {
        Scenario::SentAgainFromFailed if destination.refuses_nothing().is_some() => {
            let why = destination.refuses_nothing().unwrap_or_default();
            Ok(Verdict::NotRun(format!("does not apply: {why}")))
        }
        Scenario::AgainOutsideWindow if destination.window().is_none() => {
            Ok(Verdict::NotRun("does not apply: there is no window".into()))
        }
        _ => carried_out(destination, scenario, plugins, &saved).await,
    };
    let verdict = verdict.unwrap_or_else(|failure| Verdict::Failed {
        failure,
        declaration: declaration_line(operation, plugins),
        saved,
        rerun: rerun(connector, case, scenario, plugins),
    });
    Ran {
        operation: operation.to_owned(),
        case: case.to_owned(),
        scenario,
        verdict,
        seconds: from.elapsed().as_secs_f64(),
    }
}

/// Runs one scenario of a source.
pub async fn run_source(
    connector: &str,
    origin: &dyn Origin,
    scenario: Scenario,
    plugins: &[PathBuf],
) -> Ran {
    let from = Instant::now();
    let (operation, case) = (origin.operation(), origin.case());
    let saved = saved_folder().join(format!("{operation}-{case}-{scenario}"));
    let verdict = match not_of_source(origin, scenario, plugins) {
        Ok(Some(why)) => Ok(Verdict::NotRun(format!("does not apply: {why}"))),
        Ok(None) => on_source_stage(origin, scenario, plugins, &saved).await,
        Err(failure) => Err(failure),
    };
    let verdict = verdict.unwrap_or_else(|failure| Verdict::Failed {
        failure,
        declaration: declaration_line(operation, plugins),
        saved,
        rerun: rerun(connector, case, scenario, plugins),
    });
    Ran {
        operation: operation.to_owned(),
        case: case.to_owned(),
        scenario,
        verdict,
        seconds: from.elapsed().as_secs_f64(),
    }
}

/// Why a scenario says nothing about a source, where it does not.
fn not_of_source(
    origin: &dyn Origin,
    scenario: Scenario,
    plugins: &[PathBuf],
) -> Result<Option<&'static str>> {
    Ok(match scenario {
        Scenario::SharedAmongHosts if !origin.shared_by_hosts() => {
            Some("hosts do not share the source")
        }
        Scenario::PoisonHeld | Scenario::PoisonIsolated => {
            let declared = declaration(origin.operation(), plugins)?;
            let session = declared["source"]["delivery"] == "session_based";
            session.then_some("the source hands nothing over again")
        }
        _ => None,
    })
}

async fn on_source_stage(
    origin: &dyn Origin,
    scenario: Scenario,
    plugins: &[PathBuf],
    saved: &Path,
) -> Result<Verdict> {
    match SourceStage::set_up(origin, scenario, plugins).await {
        Ok(mut stage) => {
            let place = stage.place.clone();
            let verdict = guarded(stage.run()).await;
            if verdict.is_err() {
                stage.save(saved);
            }
            drop(stage);
            origin.clean_up(&place).await;
            verdict
        }
        Err(failure) => Err(failure),
    }
}

/// A panic (a helper that gave up, a destination that cannot be used) fails the scenario and no more.
async fn carried_out(
    destination: &dyn Destination,
    scenario: Scenario,
    plugins: &[PathBuf],
    saved: &Path,
) -> Result<Verdict> {
    let mut stage = Stage::set_up(destination, scenario, plugins).await?;
    let place = stage.place.clone();
    let done = guarded(async {
        match destination.access() {
            _ if scenario == Scenario::SentAgainFromFailed => parked::run(&mut stage).await,
            Access::Network { .. } => network::run(&mut stage).await,
            Access::Local => local::run(&mut stage).await,
        }
    })
    .await;
    let verdict = match done {
        Ok(evidence) => guarded(stage.finish(evidence)).await,
        Err(failure) => Err(failure),
    };
    if verdict.is_err() {
        stage.save(saved);
    }
    drop(stage);
    destination.clean_up(&place).await;
    verdict
}

/// Turns a panic of this future into a failure.
async fn guarded<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| {
        let polled =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.as_mut().poll(cx)));
        polled.unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default();
            std::task::Poll::Ready(Err(Failure::Broken(text)))
        })
    })
    .await
}

fn saved_folder() -> PathBuf {
    host::profile().with_file_name("conformance")
}

/// The command that runs one scenario alone.
fn rerun(connector: &str, case: &str, scenario: Scenario, plugins: &[PathBuf]) -> String {
    let command = if plugins.is_empty() {
        format!("cargo xtask conformance {connector}")
    } else {
        "cargo test --test conformance --".to_owned()
    };
    format!("{command} --case {case} --scenario {scenario}")
}

/// What `consign promises --json` says of an operation.
pub(crate) fn declaration(operation: &str, plugins: &[PathBuf]) -> Result<Value> {
    let rows: Vec<Value> =
        serde_json::from_str(&promises(&["--json"], plugins)?).unwrap_or_default();
    rows.into_iter()
        .find(|row| row["operation"] == operation)
        .ok_or_else(|| Failure::Broken(format!("no plugin has the operation {operation}")))
}

/// The operation's line of the promise table.
fn declaration_line(operation: &str, plugins: &[PathBuf]) -> String {
    let page = promises(&["--markdown"], plugins).unwrap_or_default();
    let mark = format!("`{operation}`");
    page.lines()
        .find(|line| line.contains(&mark))
        .unwrap_or("(the host does not list it)")
        .to_owned()
}

fn promises(args: &[&str], plugins: &[PathBuf]) -> Result<String> {
    let mut command = Command::new(&host::built().consign);
    command.arg("promises").args(args);
    for folder in std::iter::once(&host::built().plugins).chain(plugins) {
        command.arg("--plugins").arg(folder);
    }
    let output = command.output().expect("consign runs");
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(Failure::Broken(format!(
            "`consign promises` failed: {}",
            String::from_utf8_lossy(&output.stderr)
        )))
    }
}

/// The run as a document: what it ran against, what each operation declared, and the table.
fn report(connector: &str, subjects: &Subjects, rows: &[Ran]) -> Value {
    let destinations = subjects
        .destinations
        .iter()
        .map(|d| (d.operation(), d.case(), d.product()));
    let origins = subjects
        .origins
        .iter()
        .map(|o| (o.operation(), o.case(), o.product()));
    let operations: Vec<Value> = destinations
        .chain(origins)
        .map(|(operation, case, product)| {
            let declared = declaration(operation, &subjects.plugins).unwrap_or_default();
            json!({
                "operation": operation,
                "case": case,
                "product": product,
                "declaration_digest": declared["declaration_digest"],
            })
        })
        .collect();
    json!({
        "connector": connector,
        "skipped": subjects.skipped,
        "subjects": operations,
        "rows": rows.iter().map(Ran::to_json).collect::<Vec<_>>(),
    })
}
