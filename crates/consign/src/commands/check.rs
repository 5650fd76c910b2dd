//! `consign check`: everything that can be said about a configuration before it runs.

use crate::output::{CliError, Kind, Output};
use crate::problems;
use consign_config::Problem;
use consign_runtime::Plan;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What a check found in one file.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    ok: bool,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
    adapters: Vec<AdapterReport>,
}

#[derive(Debug, Serialize)]
struct AdapterReport {
    name: String,
    source: String,
    source_reason: String,
    routes: Vec<RouteReport>,
}

#[derive(Debug, Serialize)]
struct RouteReport {
    name: String,
    promise: String,
    #[serde(flatten)]
    levels: consign_promise::RoutePromise,
}

pub fn run(out: Output, paths: &[PathBuf], live: bool, strict: bool) -> Result<(), CliError> {
    let files = files(paths)?;
    let reports: Vec<Report> = files.iter().map(|file| check(file, live, strict)).collect();
    let failed = reports.iter().filter(|report| !report.ok).count();
    out.show(&reports, |reports| {
        reports.iter().map(text).collect::<Vec<_>>().join("\n")
    })?;
    if failed == 0 {
        return Ok(());
    }
    // With --json the document above holds every problem; people get them on stderr.
    let problems: Vec<Problem> = reports
        .into_iter()
        .flat_map(|report| report.errors)
        .collect();
    let text = if out.json {
        format!("{failed} of {} files have errors", files.len())
    } else {
        problems::text(&problems)
    };
    Err(CliError::problems(
        Kind::Input,
        text,
        problems::values(&problems),
    ))
}

fn check(file: &Path, live: bool, strict: bool) -> Report {
    let mut report = Report {
        file: file.display().to_string(),
        ok: true,
        errors: Vec::new(),
        warnings: Vec::new(),
        adapters: Vec::new(),
    };
    match consign_runtime::plan(
        file,
        &problems::Surroundings,
        consign_runtime::Copies::Temporary,
    ) {
        Ok(plan) => {
            report.warnings = plan
                .warnings
                .iter()
                .chain(&plan.unset_secrets)
                .cloned()
                .collect();
            report.adapters = adapters(&plan);
            if live {
                inspect(&plan, &mut report);
            }
        }
        Err(errors) => report.errors = errors,
    }
    if strict {
        report.errors.append(&mut report.warnings);
    }
    report.ok = report.errors.is_empty();
    report
}

/// Asks the live destinations; what contradicts a declaration is a warning with its reason.
fn inspect(plan: &Plan, report: &mut Report) {
    let inspected = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime.block_on(consign_runtime::inspect::inspect(plan)),
        Err(error) => {
            report.errors.push(Problem::error(
                &plan.config.place,
                "runtime",
                error.to_string(),
            ));
            return;
        }
    };
    for one in inspected {
        match one.result {
            Ok(promise) => {
                let route = report
                    .adapters
                    .iter_mut()
                    .find(|a| a.name == one.adapter)
                    .and_then(|a| a.routes.iter_mut().find(|r| r.name == one.route));
                if let Some(route) = route {
                    route.promise = promise.line();
                    route.levels = promise;
                }
            }
            Err(reason) => report
                .errors
                .push(Problem::error(&one.place, "live", reason)),
        }
    }
}

fn adapters(plan: &Plan) -> Vec<AdapterReport> {
    let names = plan.config.adapters.iter().zip(&plan.adapters);
    names
        .map(|(config, adapter)| AdapterReport {
            name: adapter.name.clone(),
            source: config.source.operation.to_string(),
            source_reason: adapter.source.reason.clone(),
            routes: adapter
                .routes
                .iter()
                .map(|route| RouteReport {
                    name: route.name.clone(),
                    promise: route.promise.line(),
                    levels: route.promise.clone(),
                })
                .collect(),
        })
        .collect()
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    let verdict = match (report.ok, report.warnings.len()) {
        (false, _) => "has errors".to_owned(),
        (true, 0) => "is fine".to_owned(),
        (true, 1) => "is fine, with 1 warning".to_owned(),
        (true, n) => format!("is fine, with {n} warnings"),
    };
    let _ = writeln!(out, "{} {verdict}", report.file);
    for adapter in &report.adapters {
        let _ = writeln!(
            out,
            "\nadapter {} from {}: {}",
            adapter.name, adapter.source, adapter.source_reason
        );
        for route in &adapter.routes {
            let _ = writeln!(out, "  route {}: {}", route.name, route.promise);
            for send in &route.levels.sends {
                for line in send.lines() {
                    let _ = writeln!(out, "    {line}");
                }
            }
        }
    }
    if !report.warnings.is_empty() {
        let _ = writeln!(out, "\n{}", problems::text(&report.warnings));
    }
    out
}

/// The files to check: each path, and of a folder every `.yaml` and `.yml` in it.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path)
            .map_err(|error| CliError::input(format!("{}: {error}", path.display())))?;
        let mut found: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "yaml" || e == "yml"))
            .collect();
        if found.is_empty() {
            return Err(CliError::input(format!(
                "{}: there is no .yaml file in this folder",
                path.display()
            )));
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}
