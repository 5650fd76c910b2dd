//! `consign jobs`: bulk work, its progress and its failures.
#![allow(
    clippy::indexing_slicing,
    reason = "only JSON values are indexed by name, and answer null for what they do not have"
)]

use crate::cli::acting::JobsArgs;
use crate::commands::events::time;
use crate::output::{CliError, Output, table};
use crate::session::Session;
use consign_runtime::operator::{JobChange, Request};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

/// How often a waiting command looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Failures that a person reads.
const SHOWN_FAILURES: usize = 20;

pub fn run(out: Output, args: &JobsArgs) -> Result<(), CliError> {
    let session = Session::open(&args.place)?;
    let Some(id) = args.id else {
        let jobs = session.ask(Request::Jobs { limit: 0 })?;
        return out.show(&jobs, list_text);
    };
    let change = [
        (args.pause, JobChange::Pause),
        (args.resume, JobChange::Resume),
        (args.cancel, JobChange::Cancel),
    ];
    let request = match change.into_iter().find(|(asked, _)| *asked) {
        Some((_, to)) => Request::JobSwitch { id, to },
        None => Request::Job { id },
    };
    let job = session.ask(request)?;
    if args.wait {
        return wait(out, &session, id);
    }
    out.show(&job, job_text)
}

/// Waits until a job is through; an error when part of it could not be done.
pub fn wait(out: Output, session: &Session<'_>, id: i64) -> Result<(), CliError> {
    if !session.is_running() {
        return Err(CliError::input(
            "jobs are carried out by a running host: start it, and wait without --data-dir",
        ));
    }
    let mut last = Value::Null;
    let job = loop {
        let job = session.ask(Request::Job { id })?;
        match job["state"].as_str() {
            Some("finished" | "cancelled") => break job,
            Some("paused") => {
                out.show(&job, job_text)?;
                return Err(CliError::failed(format!(
                    "job {id} is paused: consign jobs {id} --resume"
                )));
            }
            _ => {}
        }
        if job["done"] != last && std::io::stderr().is_terminal() {
            last = job["done"].clone();
            eprint!("\rjob {id}: {last} of {} ", job["total"]);
        }
        std::thread::sleep(LOOK_EVERY);
    };
    if last != Value::Null {
        eprintln!();
    }
    out.show(&job, job_text)?;
    match (job["state"].as_str(), job["failed"].as_u64()) {
        (Some("cancelled"), _) => Err(CliError::failed(format!("job {id} was cancelled"))),
        (_, Some(failed)) if failed > 0 => Err(CliError::failed(format!(
            "job {id}: {failed} of {} could not be done",
            job["total"]
        ))),
        _ => Ok(()),
    }
}

fn list_text(jobs: &Value) -> String {
    let word = |job: &Value, name: &str| job[name].as_str().unwrap_or_default().to_owned();
    let rows: Vec<Vec<String>> = jobs
        .as_array()
        .into_iter()
        .flatten()
        .map(|job| {
            vec![
                job["id"].to_string(),
                word(job, "kind"),
                word(job, "state"),
                format!("{} of {}", job["done"], job["total"]),
                job["failed"].to_string(),
                word(job, "who"),
                time(job["at_unix_ms"].as_i64().unwrap_or(0)),
            ]
        })
        .collect();
    table(
        &[
            "job",
            "act",
            "state",
            "done",
            "failed",
            "who",
            "began (UTC)",
        ],
        &rows,
        "no jobs",
    )
}

fn job_text(job: &Value) -> String {
    let mut text = format!(
        "job {}: {}, {}: {} of {}, {} could not be done\n",
        job["id"],
        job["kind"].as_str().unwrap_or_default(),
        job["state"].as_str().unwrap_or_default(),
        job["done"],
        job["total"],
        job["failed"],
    );
    let failures = job["failures"].as_array().cloned().unwrap_or_default();
    for failure in failures.iter().take(SHOWN_FAILURES) {
        let why = failure["message"].as_str().unwrap_or_default();
        let _ = writeln!(text, "  {}: {why}", failure["failed_id"]);
    }
    if failures.len() > SHOWN_FAILURES {
        let _ = writeln!(text, "  and more; --json has them");
    }
    text
}
