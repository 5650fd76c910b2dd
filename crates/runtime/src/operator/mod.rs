//! What people do to a running host: failed messages, jobs, pauses, drills, traces.
//!
//! * [`Request`]: everything that can be asked, the same for the API and the command line.
//! * [`Operator`]: carries it out in a running host.
//! * [`Offline`]: carries out what needs the ledger alone, for a host that is stopped.
//! * `acts`, `replay`: what each act makes of a failed message, and the order in which it is made durable.

mod acts;
pub(crate) mod control;
mod dead_letter;
mod jobs;
mod preview;
mod records;
pub(crate) mod replay;
mod request;
mod trace;

pub use records::{EDITED, Records};
pub use request::{Bulk, DIRECT_MAX, Fault, FaultKind, JobChange, KeyChoice, Request, Selection};

use crate::clock::wall_unix_ms_i64;
use crate::host::Host;
use consign_ledger::{Act, Code, Done, Event, Ledger, Redactor};
use replay::blocking;
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use tokio::sync::Mutex;

/// The result of a request: one JSON document.
pub type Answer = Result<Value, Fault>;

/// Carries requests out in a running host. Cheap to clone.
#[derive(Clone)]
pub struct Operator {
    host: Weak<Host>,
    /// Held while acts go into lanes, one batch at a time; true once the host stops.
    turn: Arc<Mutex<bool>>,
}

impl Operator {
    /// Of this host.
    pub fn new(host: &Arc<Host>) -> Self {
        Self {
            host: Arc::downgrade(host),
            turn: Arc::default(),
        }
    }

    /// Goes on with jobs that are not over.
    pub async fn resume_jobs(&self) {
        let Some(host) = self.host.upgrade() else {
            return;
        };
        let ledger = host.ledger.clone();
        match blocking(move || ledger.unfinished_jobs()).await {
            Ok(jobs) => jobs.iter().for_each(|job| self.start_job(&host, job.id)),
            Err(error) => {
                tracing::error!(error, "jobs cannot be read; they go on at the next start")
            }
        }
    }

    /// Lets the batch under way end and takes no further one.
    pub async fn close(&self) {
        *self.turn.lock().await = true;
    }

    /// Deletes failed messages whose time is over, one batch between two acts of people.
    pub(crate) async fn expire(&self, host: &Host, ids: &[i64], unchanged_since: i64) -> Vec<i64> {
        let mut gone = Vec::with_capacity(ids.len());
        for batch in ids.chunks(replay::BATCH) {
            let closed = self.turn.lock().await;
            if *closed {
                break;
            }
            let acted = replay::purge(host, batch, Some(unchanged_since)).await;
            gone.extend(
                acted
                    .into_iter()
                    .filter(|(_, done)| done.is_ok())
                    .map(|(id, _)| id),
            );
        }
        gone
    }

    fn start_job(&self, host: &Arc<Host>, id: i64) {
        let job = jobs::run(Arc::clone(host), Arc::clone(&self.turn), id);
        host.own(tokio::spawn(job));
    }

    fn host(&self) -> Result<Arc<Host>, Fault> {
        self.host
            .upgrade()
            .ok_or_else(|| Fault::failed("the host is stopping"))
    }

    /// Carries one request out. What changes something runs to its end even if nobody waits for the
    /// answer any more.
    ///
    /// # Errors
    /// Why it was not done.
    pub async fn call(&self, request: Request, who: &str) -> Answer {
        let host = self.host()?;
        let records = Records {
            ledger: host.ledger.clone(),
            redactor: host.events.shared_redactor(),
        };
        match request {
            Request::FailedAct {
                act,
                selection,
                dry_run,
                rate_per_s,
                to,
            } => {
                let settings = jobs::Settings {
                    act,
                    rate_per_s,
                    to,
                };
                let (operator, who) = (self.clone(), who.to_owned());
                let work = tokio::spawn(async move {
                    operator
                        .act(&host, settings, selection, dry_run, &who)
                        .await
                });
                work.await
                    .unwrap_or_else(|_| Err(Fault::failed("the host is stopping")))
            }
            Request::FailedEdit {
                id,
                body,
                headers,
                key,
            } => {
                let (name, of) = (who.to_owned(), Arc::clone(&host));
                let edited = in_background(move || {
                    records.edit(id, body.as_deref(), &headers, key, &name, Some(&of))
                })
                .await?;
                record(&host, acted("edit", who, 1, Some(id))).await;
                Ok(edited)
            }
            Request::FailedImport { records: list } => {
                let of = Arc::clone(&host);
                let imported = in_background(move || records.import(&list, Some(&of))).await?;
                let count = records::added(&imported);
                record(&host, acted("import", who, count, None)).await;
                Ok(imported)
            }
            Request::Pause { subject } => control::pause(&host, &subject, true, who).await,
            Request::Resume { subject } => control::pause(&host, &subject, false, who).await,
            Request::Reload => {
                let who = who.to_owned();
                let work = tokio::spawn(async move { control::reload(&host, &who).await });
                work.await
                    .unwrap_or_else(|_| Err(Fault::failed("the host is stopping")))
            }
            Request::Drill {
                connection,
                for_ms,
                swallow_replies,
            } => control::drill(&host, &connection, for_ms, swallow_replies, who).await,
            Request::Trace { what } => trace::trace(&host, &what).await,
            Request::JobSwitch { .. } => {
                let answer = in_background(move || of_ledger(&records, request)).await;
                if let Ok(job) = &answer {
                    let of = |name: &str| job.get(name).cloned().unwrap_or_default();
                    let text = format!("{who} changed job {}: {}", of("id"), of("state"));
                    record(&host, acted("job", who, 1, None).message(text)).await;
                }
                answer
            }
            other => in_background(move || of_ledger(&records, other)).await,
        }
    }

    async fn act(
        &self,
        host: &Arc<Host>,
        settings: jobs::Settings,
        selection: Selection,
        dry_run: bool,
        who: &str,
    ) -> Answer {
        if settings.act == Bulk::Move && settings.to.is_none() {
            return Err(Fault::input("a move needs --to ADAPTER/ROUTE/SEND"));
        }
        if settings
            .rate_per_s
            .is_some_and(|rate| !rate.is_finite() || rate <= 0.0)
        {
            return Err(Fault::input("the rate must be above zero"));
        }
        let (ids, direct) = match selection {
            Selection::Ids(mut ids) => {
                ids.sort_unstable();
                ids.dedup();
                let direct = ids.len() <= DIRECT_MAX && settings.rate_per_s.is_none();
                (ids, direct)
            }
            Selection::Filter(mut filter) => {
                if filter.states.is_empty() {
                    filter.states = settings.act.states();
                }
                let ledger = host.ledger.clone();
                let ids = blocking(move || ledger.failed_ids(&filter)).await;
                (ids.map_err(Fault::failed)?, false)
            }
        };
        if dry_run {
            return preview::preview(host, &settings, &ids).await;
        }
        if ids.is_empty() {
            return Ok(json!({ "done": [], "failed": [] }));
        }
        if !direct {
            let (ledger, who_begins) = (host.ledger.clone(), who.to_owned());
            let total = ids.len();
            let act = settings.act.name();
            let id = in_background(move || {
                jobs::begin(&ledger, &settings, ids, &who_begins).map(Value::from)
            })
            .await?;
            let text = format!("{who} began job {id}: {act}, {total} messages");
            let event = acted(act, who, total, None).field("job", id.clone());
            record(host, event.message(text)).await;
            if let Some(id) = id.as_i64() {
                self.start_job(host, id);
            }
            return Ok(json!({ "job": id, "total": total }));
        }
        let mut done = Vec::new();
        let mut changed = Vec::new();
        let mut failed = Vec::new();
        for batch in ids.chunks(replay::BATCH) {
            let closed = self.turn.lock().await;
            if *closed {
                return Err(Fault::failed("the host is stopping: nothing more was done"));
            }
            let to = settings.to.as_deref();
            for (id, result) in replay::act(host, settings.act, batch, to, who).await {
                match result {
                    Ok(mut facts) => {
                        if let Some(facts) = facts.as_object_mut() {
                            facts.insert("id".to_owned(), json!(id));
                        }
                        changed.push(id);
                        done.push(facts);
                    }
                    Err(why) => failed.push(json!({ "id": id, "error": why.why })),
                }
            }
        }
        if !done.is_empty() {
            let one = changed.first().copied().filter(|_| changed.len() == 1);
            let event = acted(settings.act.name(), who, changed.len(), one);
            record(host, event).await;
        }
        Ok(json!({ "done": done, "failed": failed }))
    }
}

/// What needs the ledger alone.
fn of_ledger(records: &Records, request: Request) -> Answer {
    match request {
        Request::FailedList { filter } => records.list(&filter),
        Request::FailedCauses { all } => records.causes(all),
        Request::FailedShow { id } => records.show(id),
        Request::FailedBody { id, original } => records.body(id, original),
        Request::FailedExport { filter, redacted } => records.export(&filter, redacted),
        Request::Jobs { limit } => jobs::list(&records.ledger, limit),
        Request::Job { id } => jobs::one(&records.ledger, id),
        Request::JobSwitch { id, to } => jobs::switch(&records.ledger, id, to),
        Request::Outages { connection, limit } => {
            let outages = records.ledger.outages(connection.as_deref(), limit)?;
            Ok(json!(outages))
        }
        _ => Err(Fault::input(
            "that needs the running host: leave --data-dir out, or start the host",
        )),
    }
}

/// Carries requests out on the ledger of a host that is stopped. The caller holds the folder's lock.
pub struct Offline {
    records: Records,
}

impl Offline {
    /// On this ledger. The configuration's fields to redact are unknown here; what authenticates is
    /// taken out all the same.
    pub fn new(ledger: Ledger) -> Self {
        Self {
            records: Records {
                ledger,
                redactor: Arc::new(Redactor::default()),
            },
        }
    }

    /// Carries one request out. Blocks.
    ///
    /// # Errors
    /// Why it was not done.
    pub fn call(&self, request: Request, who: &str) -> Answer {
        let ledger = &self.records.ledger;
        match request {
            Request::FailedAct {
                act: act @ (Bulk::Skip | Bulk::Restore | Bulk::Purge),
                selection,
                dry_run,
                ..
            } => {
                let ids = match selection {
                    Selection::Ids(ids) => ids,
                    Selection::Filter(mut filter) => {
                        if filter.states.is_empty() {
                            filter.states = act.states();
                        }
                        ledger.failed_ids(&filter)?
                    }
                };
                if dry_run {
                    let lines: Vec<Value> = ids.iter().map(|id| json!({ "id": id })).collect();
                    return Ok(json!({ "dry_run": true, "total": ids.len(), "messages": lines }));
                }
                let (mut done, mut failed) = (Vec::new(), Vec::new());
                for id in ids {
                    match self.act(act, id, who) {
                        Ok(()) => done.push(json!({ "id": id })),
                        Err(error) => failed.push(json!({ "id": id, "error": error })),
                    }
                }
                if !done.is_empty() {
                    ledger.append(&[acted(act.name(), who, done.len(), None)])?;
                }
                Ok(json!({ "done": done, "failed": failed }))
            }
            Request::FailedEdit {
                id,
                body,
                headers,
                key,
            } => {
                let edited = self
                    .records
                    .edit(id, body.as_deref(), &headers, key, who, None)?;
                ledger.append(&[acted("edit", who, 1, Some(id))])?;
                Ok(edited)
            }
            Request::FailedImport { records } => {
                let imported = self.records.import(&records, None)?;
                let count = records::added(&imported);
                ledger.append(&[acted("import", who, count, None)])?;
                Ok(imported)
            }
            other => of_ledger(&self.records, other),
        }
    }

    fn act(&self, act: Bulk, id: i64, who: &str) -> Result<(), String> {
        let ledger = &self.records.ledger;
        let now = wall_unix_ms_i64();
        let ended = |error: consign_ledger::Error| error.to_string();
        let (claimed, done) = match act {
            Bulk::Restore => (Act::Restore, Done::Restored),
            Bulk::Skip => {
                let message = ledger.failed_message(id).map_err(ended)?;
                if message.is_some_and(|message| !message.record.dependents.is_empty()) {
                    return Err(format!(
                        "writes wait for failed message {id}, and whether a skip drops or releases them is in the configuration: skip it in the running host"
                    ));
                }
                (Act::Skip, Done::Skipped)
            }
            _ => {
                return match ledger.purge(&[id], None).map_err(ended)? {
                    0 => Err(format!("failed message {id} is claimed or not there")),
                    _ => Ok(()),
                };
            }
        };
        let claim = ledger.claim(id, claimed, who, now).map_err(ended)?;
        ledger.finish(&claim, &done, now).map_err(ended)
    }
}

fn acted(act: &str, who: &str, count: usize, failed_id: Option<i64>) -> Event {
    let event = Event::new(Code::OperatorActed, wall_unix_ms_i64())
        .field("act", act)
        .field("who", who)
        .field("count", count);
    match failed_id {
        Some(id) => event
            .field("failed_id", id)
            .message(format!("{who}: {act}, failed message {id}")),
        None => event.message(format!("{who}: {act}, {count} messages")),
    }
}

/// Writes who did what, durably before they hear that it is done: a host that dies right after must not
/// forget who it was.
async fn record(host: &Host, event: Event) {
    host.events.emit(event);
    let sink = host.events.sink().clone();
    // An event log that cannot be written says so itself; what was done stays done.
    drop(tokio::task::spawn_blocking(move || sink.flush()).await);
}

async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Fault::failed("the host is stopping")))
}
