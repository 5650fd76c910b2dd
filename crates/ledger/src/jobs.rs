//! Jobs: bulk work over a frozen selection, with its progress. Who runs them keeps them here.

use crate::{
    Error, Ledger, Result,
    db::Inside,
    park::bad,
    query::{integer, limit},
};
use rusqlite::params;
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

    /// Notes how far a job came.
    ///
    /// # Errors
    /// [`Error::NotFound`], and as the file's.
    pub fn job_progress(
        &self,
        id: i64,
        done: u64,
        failed: u64,
        state: JobState,
        at_unix_ms: i64,
    ) -> Result<()> {
        self.write(|connection| {
            let changed = connection.execute(
                "UPDATE jobs SET done = ?2, failed = ?3, state = ?4, changed_unix_ms = ?5
                 WHERE id = ?1",
                params![id, integer(done), integer(failed), state.name(), at_unix_ms],
            )?;
            if changed == 0 {
                return Err(Error::NotFound(format!("job {id}")).into());
            }
            Ok(())
        })
    }

    /// The newest jobs, newest first.
    ///
    /// # Errors
    /// As the file's.
    pub fn jobs(&self, most: u32) -> Result<Vec<Job>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, kind, who, state, settings, selection, done, failed, at_unix_ms,
                        changed_unix_ms
                 FROM jobs ORDER BY id DESC LIMIT ?",
            )?;
            let mut rows = statement.query([limit(most)])?;
            let mut jobs = Vec::new();
            while let Some(row) = rows.next()? {
                let state: String = row.get(3)?;
                let json = |column: usize| -> Inside<Value> {
                    serde_json::from_str(&row.get::<_, String>(column)?).map_err(|e| bad("job", &e))
                };
                jobs.push(Job {
                    id: row.get(0)?,
                    kind: row.get(1)?,
                    who: row.get(2)?,
                    state: JobState::ALL
                        .into_iter()
                        .find(|s| s.name() == state)
                        .ok_or_else(|| bad("job", &format!("`{state}` is no state")))?,
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
