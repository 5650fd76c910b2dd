//! Jobs: bulk work over a frozen selection, with its progress. Who runs them keeps them here.

use crate::{
    Error, Ledger, Result,
    db::Inside,
    park::bad,
    query::{integer, limit},
};
use rusqlite::{OptionalExtension, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It is being worked on, or will be once the host runs.
    Running,
    /// Somebody paused it.
    Paused,
    /// It is through.
    Finished,
    /// Somebody ended it early.
    Cancelled,
}

impl JobState {
    const ALL: [Self; 4] = [Self::Running, Self::Paused, Self::Finished, Self::Cancelled];

    /// The name in the file and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A job to begin.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// What is done with each (`send_again`).
    pub kind: String,
    /// Who began it.
    pub who: String,
    /// The failed messages, as they were selected.
    pub selection: Vec<i64>,
    /// Its settings (`rate_per_s`).
    pub settings: Value,
    /// When.
    pub at_unix_ms: i64,
}

/// What a job could not do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFailure {
    /// The failed message.
    pub failed_id: i64,
    /// Why, in one sentence.
    pub message: String,
    /// When.
    pub at_unix_ms: i64,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: i64,
    /// What is done with each.
    pub kind: String,
    /// Who began it.
    pub who: String,
    /// Where it stands.
    pub state: JobState,
    /// Its settings.
    pub settings: Value,
    /// The failed messages.
    pub selection: Vec<i64>,
    /// How many are through; the next is the selection's entry at this place.
    pub done: u64,
    /// How many of those failed.
    pub failed: u64,
    /// When it began.
    pub at_unix_ms: i64,
    /// When it last went on.
    pub changed_unix_ms: i64,
}

impl Ledger {
    /// Begins a job and gives its id.
    ///
    /// # Errors
    /// As the file's.
    pub fn job_create(&self, job: &NewJob) -> Result<i64> {
        let selection = serde_json::json!(job.selection).to_string();
        self.write(|connection| {
            Ok(connection.query_row(
                "INSERT INTO jobs (kind, who, state, settings, selection, total, at_unix_ms,
                                   changed_unix_ms)
                 VALUES (?1, ?2, 'running', ?3, ?4, ?5, ?6, ?6) RETURNING id",
                params![
                    job.kind,
                    job.who,
                    job.settings.to_string(),
                    selection,
                    integer(job.selection.len() as u64),
                    job.at_unix_ms
                ],
                |row| row.get(0),
            )?)
        })
    }

    /// Notes how far a job came. Its state stays what it is, so that a pause that came meanwhile
    /// is not undone; gives that state.
    ///
    /// # Errors
    /// [`Error::NotFound`], and as the file's.
    pub fn job_progress(
        &self,
        id: i64,
        done: u64,
        failed: u64,
        at_unix_ms: i64,
    ) -> Result<JobState> {
        self.write(|connection| {
            let state: Option<String> = connection
                .query_row(
                    "UPDATE jobs SET done = ?2, failed = ?3, changed_unix_ms = ?4
                     WHERE id = ?1 RETURNING state",
                    params![id, integer(done), integer(failed), at_unix_ms],
                    |row| row.get(0),
                )
                .optional()?;
            job_state(&state.ok_or_else(|| Error::NotFound(format!("job {id}")))?)
        })
    }

    /// Notes that a job could not do its work on one message.
    ///
    /// # Errors
    /// As the file's.
    pub fn job_failed(
        &self,
        id: i64,
        failed_id: i64,
        message: &str,
        at_unix_ms: i64,
    ) -> Result<()> {
        self.write(|connection| {
            connection.execute(
                "INSERT OR REPLACE INTO job_failures (job, failed, message, at_unix_ms)
                 VALUES (?1, ?2, ?3, ?4)",
                params![id, failed_id, message, at_unix_ms],
            )?;
            Ok(())
        })
    }

    /// What a job could not do, by message; at most `most`.
    ///
    /// # Errors
    /// As the file's.
    pub fn job_failures(&self, id: i64, most: u32) -> Result<Vec<JobFailure>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT failed, message, at_unix_ms FROM job_failures WHERE job = ?1
                 ORDER BY failed LIMIT ?2",
            )?;
            let rows = statement.query_map(params![id, limit(most)], |row| {
                Ok(JobFailure {
                    failed_id: row.get(0)?,
                    message: row.get(1)?,
                    at_unix_ms: row.get(2)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Changes a job's state if it is one of `from`; the state it has then.
    ///
    /// # Errors
    /// [`Error::NotFound`], and as the file's.
    pub fn job_switch(
        &self,
        id: i64,
        from: &[JobState],
        to: JobState,
        at_unix_ms: i64,
    ) -> Result<JobState> {
        self.write(|connection| {
            let now: String = connection
                .query_row("SELECT state FROM jobs WHERE id = ?", [id], |row| {
                    row.get(0)
                })
                .optional()?
                .ok_or_else(|| Error::NotFound(format!("job {id}")))?;
            let now = job_state(&now)?;
            if !from.contains(&now) {
                return Ok(now);
            }
            connection.execute(
                "UPDATE jobs SET state = ?2, changed_unix_ms = ?3 WHERE id = ?1",
                params![id, to.name(), at_unix_ms],
            )?;
            Ok(to)
        })
    }

    /// One job.
    ///
    /// # Errors
    /// As the file's.
    pub fn job(&self, id: i64) -> Result<Option<Job>> {
        Ok(self.jobs_where("WHERE id = ?1", id)?.pop())
    }

    /// Jobs that are not over, oldest first: at start, what is to be gone on with.
    ///
    /// # Errors
    /// As the file's.
    pub fn unfinished_jobs(&self) -> Result<Vec<Job>> {
        self.jobs_where(
            "WHERE state IN ('running', 'paused') AND id > ?1 ORDER BY id",
            0,
        )
    }

    /// The newest jobs, newest first.
    ///
    /// # Errors
    /// As the file's.
    pub fn jobs(&self, most: u32) -> Result<Vec<Job>> {
        self.jobs_where("ORDER BY id DESC LIMIT ?1", limit(most))
    }

    fn jobs_where(&self, rest: &str, parameter: i64) -> Result<Vec<Job>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT id, kind, who, state, settings, selection, done, failed, at_unix_ms,
                        changed_unix_ms
                 FROM jobs {rest}"
            ))?;
            let mut rows = statement.query([parameter])?;
            let mut jobs = Vec::new();
            while let Some(row) = rows.next()? {
                let json = |column: usize| -> Inside<Value> {
                    serde_json::from_str(&row.get::<_, String>(column)?).map_err(|e| bad("job", &e))
                };
                jobs.push(Job {
                    id: row.get(0)?,
                    kind: row.get(1)?,
                    who: row.get(2)?,
                    state: job_state(&row.get::<_, String>(3)?)?,
                    settings: json(4)?,
                    selection: serde_json::from_value(json(5)?).map_err(|e| bad("job", &e))?,
                    done: row.get::<_, i64>(6)?.unsigned_abs(),
                    failed: row.get::<_, i64>(7)?.unsigned_abs(),
                    at_unix_ms: row.get(8)?,
                    changed_unix_ms: row.get(9)?,
                });
            }
            Ok(jobs)
        })
    }
}

fn job_state(name: &str) -> Inside<JobState> {
    JobState::ALL
        .into_iter()
        .find(|state| state.name() == name)
        .ok_or_else(|| bad("job", &format!("`{name}` is no state")))
}
