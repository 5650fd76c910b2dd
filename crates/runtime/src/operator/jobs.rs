//! Bulk work: an act on a frozen selection, in batches, with its progress in the ledger.
//!
//! A job is carried out by the host that has the ledger open, also by one that starts later. After a
//! kill it goes on where its last noted progress was. What its last batch had done and not yet noted
//! is told by the claims, which carry the job's name, so nothing is done twice.

use super::replay::{self, BATCH, blocking};
use super::request::{Bulk, Fault, JobChange};
use crate::clock::{wall_unix_ms, wall_unix_ms_i64};
use crate::host::Host;
use consign_ledger::{Code, Event, Job, JobState, Ledger, NewJob};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// How often a paused job looks whether it may go on, and a slow one whether it was paused.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a job waits after a batch of which nothing could be done because a lane is full.
const FULL_WAIT: Duration = Duration::from_secs(1);
/// Failures that are shown with a job.
const FAILURES_SHOWN: u32 = 1_000;

/// How a job is carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// What is done.
    pub act: Bulk,
    /// At most so many a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Where to, for a move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// A job as people see it: without its selection, which may be long.
pub fn shown(job: &Job) -> Value {
    json!({
        "id": job.id,
        "kind": job.kind,
        "who": job.who,
        "state": job.state,
        "total": job.selection.len(),
        "done": job.done,
        "failed": job.failed,
        "settings": job.settings,
        "at_unix_ms": job.at_unix_ms,
        "changed_unix_ms": job.changed_unix_ms,
    })
}

/// The newest jobs.
pub fn list(ledger: &Ledger, limit: u32) -> Result<Value, Fault> {
    let jobs = ledger.jobs(limit)?;
    Ok(Value::Array(jobs.iter().map(shown).collect()))
}

/// One job with what it could not do.
pub fn one(ledger: &Ledger, id: i64) -> Result<Value, Fault> {
    let job = ledger
        .job(id)?
        .ok_or_else(|| Fault::input(format!("no job {id}")))?;
    let mut value = shown(&job);
    if let Some(map) = value.as_object_mut() {
        let failures = ledger.job_failures(id, FAILURES_SHOWN)?;
        map.insert("failures".to_owned(), json!(failures));
    }
    Ok(value)
}

/// Pauses, resumes or cancels a job; also on a stopped host's ledger.
pub fn switch(ledger: &Ledger, id: i64, to: JobChange) -> Result<Value, Fault> {
    use JobState::{Cancelled, Paused, Running};
    let (from, to): (&[JobState], JobState) = match to {
        JobChange::Pause => (&[Running], Paused),
        JobChange::Resume => (&[Paused], Running),
        JobChange::Cancel => (&[Running, Paused], Cancelled),
    };
    let now = ledger.job_switch(id, from, to, wall_unix_ms_i64())?;
    if now == to {
        one(ledger, id)
    } else {
        Err(Fault::failed(format!(
            "job {id} is {}: nothing was done",
            now.name()
        )))
    }
}

/// Begins a job over these messages.
pub fn begin(
    ledger: &Ledger,
    settings: &Settings,
    selection: Vec<i64>,
    who: &str,
) -> Result<i64, Fault> {
    Ok(ledger.job_create(&NewJob {
        kind: settings.act.name().to_owned(),
        who: who.to_owned(),
        selection,
        settings: json!(settings),
        at_unix_ms: wall_unix_ms_i64(),
    })?)
}

/// Carries a job out until it is through, cancelled, or the host ends.
pub async fn run(host: Arc<Host>, turn: Arc<Mutex<bool>>, id: i64) {
    if let Err(why) = work(&host, &turn, id).await {
        tracing::error!(job = id, "the job stands still until the next start: {why}");
    }
}

async fn load(host: &Host, id: i64) -> Result<Option<Job>, String> {
    let ledger = host.ledger.clone();
    blocking(move || ledger.job(id)).await
}

async fn work(host: &Host, turn: &Mutex<bool>, id: i64) -> Result<(), String> {
    let Some(job) = load(host, id).await? else {
        return Ok(());
    };
    let settings: Settings =
        serde_json::from_value(job.settings.clone()).map_err(|error| error.to_string())?;
    let name = format!("job {id} ({})", job.who);
    let (mut done, mut failed) = (job.done, job.failed);
    let began_ms = wall_unix_ms();
    let mut of_this_run = 0_u64;
    let mut state = job.state;
    // The first batch after a restart may have been done and not noted.
    let mut look_back = true;
    loop {
        match state {
            JobState::Running => {}
            JobState::Paused => {
                tokio::time::sleep(LOOK_EVERY).await;
                state = load(host, id)
                    .await?
                    .map_or(JobState::Cancelled, |job| job.state);
                continue;
            }
            JobState::Finished | JobState::Cancelled => break,
        }
        let from = usize::try_from(done).unwrap_or(usize::MAX);
        let mut batch: Vec<i64> = job
            .selection
            .iter()
            .skip(from)
            .take(batch_of(settings.rate_per_s))
            .copied()
            .collect();
        if batch.is_empty() {
            let ledger = host.ledger.clone();
            state = blocking(move || {
                ledger.job_switch(
                    id,
                    &[JobState::Running],
                    JobState::Finished,
                    wall_unix_ms_i64(),
                )
            })
            .await?;
            continue;
        }
        if let Some(wait) = pace(settings.rate_per_s, began_ms, of_this_run) {
            tokio::time::sleep(wait.min(LOOK_EVERY)).await;
            state = load(host, id)
                .await?
                .map_or(JobState::Cancelled, |job| job.state);
            continue;
        }
        let length = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        if std::mem::take(&mut look_back) {
            let (ledger, who, list) = (host.ledger.clone(), name.clone(), batch.clone());
            batch = blocking(move || {
                let mut left = Vec::new();
                for id in list {
                    if !ledger.was_done_by(id, &who)? {
                        left.push(id);
                    }
                }
                Ok(left)
            })
            .await?;
        }
        let mut failures = Vec::new();
        while !batch.is_empty() && state == JobState::Running {
            let acted = {
                let closed = turn.lock().await;
                if *closed {
                    return Ok(());
                }
                replay::act(host, settings.act, &batch, settings.to.as_deref(), &name).await
            };
            batch.clear();
            for (failed_id, result) in acted {
                match result {
                    Ok(_) => {}
                    // Room comes as the lane is delivered; a job is there to wait for it.
                    Err(not_done) if not_done.passes => batch.push(failed_id),
                    Err(not_done) => failures.push((failed_id, not_done.why)),
                }
            }
            if !batch.is_empty() {
                tokio::time::sleep(FULL_WAIT).await;
                state = load(host, id)
                    .await?
                    .map_or(JobState::Cancelled, |job| job.state);
            }
        }
        if !batch.is_empty() {
            // Paused in the middle of a batch: what was done of it is told by the claims.
            look_back = true;
            continue;
        }
        done = done.saturating_add(length);
        of_this_run = of_this_run.saturating_add(length);
        failed = failed.saturating_add(u64::try_from(failures.len()).unwrap_or(u64::MAX));
        let ledger = host.ledger.clone();
        let (now_done, now_failed) = (done, failed);
        state = blocking(move || {
            for (failed_id, why) in &failures {
                ledger.job_failed(id, *failed_id, why, wall_unix_ms_i64())?;
            }
            ledger.job_progress(id, now_done, now_failed, wall_unix_ms_i64())
        })
        .await?;
    }
    let event = Event::new(Code::OperatorActed, wall_unix_ms_i64())
        .field("act", settings.act.name())
        .field("who", name.clone())
        .field("count", done.saturating_sub(failed))
        .field("failed", failed)
        .message(format!(
            "{name}: {} of {} messages, {failed} could not be done: {}",
            settings.act.name(),
            done,
            state.name()
        ));
    host.events.emit(event);
    Ok(())
}

/// A slow job goes in small steps, so that its rate holds over a second.
fn batch_of(rate_per_s: Option<f64>) -> usize {
    match rate_per_s {
        Some(rate) if rate.is_finite() && rate < 640.0 => {
            ((rate / 10.0).ceil().max(1.0) as usize).min(BATCH)
        }
        _ => BATCH,
    }
}

/// How long to wait until the next batch is due.
fn pace(rate_per_s: Option<f64>, began_ms: u64, done: u64) -> Option<Duration> {
    let rate = rate_per_s.filter(|rate| rate.is_finite() && *rate > 0.0)?;
    let due_s = done as f64 / rate;
    let since_s = wall_unix_ms().saturating_sub(began_ms) as f64 / 1_000.0;
    (due_s > since_s).then(|| Duration::from_secs_f64((due_s - since_s).min(3_600.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_by_small_steps() {
        assert_eq!(batch_of(None), BATCH);
        assert_eq!(batch_of(Some(1.0)), 1);
        assert_eq!(batch_of(Some(100.0)), 10);
        assert_eq!(batch_of(Some(1e9)), BATCH);
        let now = wall_unix_ms();
        assert_eq!(pace(None, now, 1_000), None);
        let wait = pace(Some(10.0), now, 100).unwrap();
        assert!(wait > Duration::from_secs(9) && wait <= Duration::from_secs(10));
        assert_eq!(pace(Some(10.0), now - 20_000, 100), None);
    }
}
