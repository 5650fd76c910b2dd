//! The database on its own thread: SQLite blocks, and it has one write lock, so one thread per
//! connection runs every job in turn.
//!
//! * The thread owns the handle; jobs are closures sent to it, at most [`JOB_QUEUE`] waiting.
//! * A job whose caller is gone is skipped, and one that is running rolls back before its commit.
//! * Before each job the file at `path` is compared with the one that is open: a file that was moved
//!   away or replaced would take rows that nobody ever sees.

use crate::config::ConnectionConfig;
use crate::outcome;
use consign_plugin::prelude::*;
use rusqlite::Connection;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Jobs that wait for the thread. The host has at most a few batches per lane under way; beyond this
/// they wait in their own tasks, where a cancel reaches them sooner.
const JOB_QUEUE: usize = 64;

/// Compiled statements kept per handle: one per table and column list in use.
const STATEMENT_CACHE: usize = 64;

/// After a checkpoint the WAL is cut back to this size.
const WAL_KEPT_BYTES: i64 = 64 << 20;

type Job = Box<dyn FnOnce(&mut Database) + Send>;

/// One database file.
#[derive(Debug)]
pub struct Sqlite {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    busy_timeout: Duration,
}

#[async_trait]
impl Connector for Sqlite {
    type Config = ConnectionConfig;
    const NAME: &'static str = "sqlite";
    const TITLE: &'static str = "SQLite";

    async fn connect(config: ConnectionConfig, _cx: &ConnectionContext) -> Result<Self, Failure> {
        let busy_timeout = config.busy_timeout.get();
        let (jobs, mut queue) = mpsc::channel::<Job>(JOB_QUEUE);
        let mut database = Database { config, open: None };
        let thread = std::thread::Builder::new()
            .name("sqlite".into())
            .spawn(move || {
                while let Some(job) = queue.blocking_recv() {
                    job(&mut database);
                }
            })
            .map_err(|error| Failure::down(("thread", error.to_string())))?;
        let connection = Self {
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(Some(thread)),
            busy_timeout,
        };
        match connection.probe().await {
            // A lock held elsewhere ends by itself, and the first write waits for it.
            Err(failure) if !failure.code.starts_with("busy") => Err(failure),
            _ => Ok(connection),
        }
    }

    /// Takes the write lock and gives it back: sees a read-only file, a lock held elsewhere and a
    /// file that is gone, and writes nothing.
    async fn probe(&self) -> Result<(), Failure> {
        let wait = self.busy_timeout;
        self.run(move |database, _| {
            let connection = database.handle(wait)?;
            connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK")
        })
        .await
        .ok_or_else(gone)?
        .map_err(|error| outcome::failure(&error))
    }

    async fn close(&self) {
        if let Ok(mut jobs) = self.jobs.lock() {
            jobs.take();
        }
        let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Sqlite {
    /// Runs `job` on the thread. `None` when the connection is closed. The job is told whether its
    /// caller still waits.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Database, &dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Option<T> {
        let jobs = self.jobs.lock().ok().and_then(|jobs| jobs.clone())?;
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |database| {
            if !reply.is_closed() {
                let result = job(database, &|| !reply.is_closed());
                let _ = reply.send(result);
            }
        });
        jobs.send(job).await.ok()?;
        answer.await.ok()
    }

    /// How long a job may wait for the write lock.
    pub(crate) fn busy_timeout(&self) -> Duration {
        self.busy_timeout
    }
}

fn gone() -> Failure {
    Failure::down(("closed", "the connection is closed"))
}

/// The thread's side: the handle, opened when first needed.
#[derive(Debug)]
pub(crate) struct Database {
    config: ConnectionConfig,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    /// Device and inode of the file that is open.
    file: (u64, u64),
}

impl Database {
    /// The handle on the file that is at `path` now, opened again when it is another one.
    pub(crate) fn handle(&mut self, wait: Duration) -> rusqlite::Result<&Connection> {
        if self
            .open
            .as_ref()
            .is_some_and(|open| file_id(&self.config.path) != Some(open.file))
        {
            tracing::warn!(path = %self.config.path.display(), "the database file was moved or replaced; opening it again");
            self.open = None;
        }
        let open = match self.open.take() {
            Some(open) => open,
            None => open(&self.config)?,
        };
        open.connection.busy_timeout(wait)?;
        Ok(&self.open.insert(open).connection)
    }

    /// Gives up a handle whose state is in doubt; the next job opens the file again.
    pub(crate) fn abandon(&mut self) {
        self.open = None;
    }

    /// Bytes in the write-ahead log, 0 when there is none.
    pub(crate) fn wal_bytes(&self) -> u64 {
        let mut wal = self.config.path.clone().into_os_string();
        wal.push("-wal");
        std::fs::metadata(wal).map_or(0, |file| file.len())
    }
}

fn open(config: &ConnectionConfig) -> rusqlite::Result<Open> {
    use rusqlite::OpenFlags as Flags;
    let mut flags = Flags::SQLITE_OPEN_READ_WRITE | Flags::SQLITE_OPEN_NO_MUTEX;
    if config.create {
        flags |= Flags::SQLITE_OPEN_CREATE;
        if let Some(folder) = config.path.parent() {
            // If this fails, opening the file fails too and names the path.
            let _ = std::fs::create_dir_all(folder);
        }
    }
    let connection = Connection::open_with_flags(&config.path, flags)?;
    connection.busy_timeout(config.busy_timeout.get())?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        // Durable all the same: FULL also flushes a rollback journal.
        tracing::warn!(path = %config.path.display(), mode, "the database does not support WAL mode");
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", WAL_KEPT_BYTES)?;
    let file = file_id(&config.path).unwrap_or_default();
    Ok(Open { connection, file })
}

fn file_id(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path)
        .ok()
        .map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::WriteRows;
    use consign_plugin::testing::{self, TestWrite};
    use consign_plugin::{Applied, Scope};

    async fn sqlite(path: &Path) -> Arc<Sqlite> {
        let busy_timeout = HumanDuration::from_millis(100);
        let path = path.to_owned();
        testing::connect(ConnectionConfig {
            path,
            create: true,
            busy_timeout,
        })
        .await
        .unwrap()
    }

    async fn pragma(sqlite: &Sqlite, pragma: &'static str) -> String {
        let read = move |database: &mut Database, _: &dyn Fn() -> bool| {
            let connection = database.handle(Duration::ZERO).unwrap();
            let row = connection.query_row(&format!("PRAGMA {pragma}"), [], |row| {
                row.get::<_, rusqlite::types::Value>(0)
            });
            format!("{:?}", row.unwrap())
        };
        sqlite.run(read).await.unwrap()
    }

    #[tokio::test]
    async fn a_commit_is_flushed_before_it_returns() {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = sqlite(&folder.path().join("a.db")).await;
        assert_eq!(pragma(&sqlite, "synchronous").await, "Integer(2)", "FULL");
        assert_eq!(pragma(&sqlite, "journal_mode").await, "Text(\"wal\")");
    }

    #[tokio::test]
    async fn a_full_disk_is_down_and_nothing_of_the_batch_stays() {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = sqlite(&folder.path().join("a.db")).await;
        let config = serde_json::json!({
            "table": "t", "write_key_column": "k", "body_column": "b", "create_table": true,
        });
        let config = serde_json::from_value(config).unwrap();
        let sink = WriteRows::open(Arc::clone(&sqlite), config, &testing::context())
            .await
            .unwrap();
        assert_eq!(sink.inspect().await.verdict, Verdict::Verified);
        pragma(&sqlite, "max_page_count = 20").await;
        let batch = testing::batch([TestWrite::new("small"), TestWrite::new(vec![b'x'; 200_000])]);
        for outcome in testing::write(&sink, &batch).await {
            let found = (outcome.applied(), outcome.scope(), outcome.code());
            assert_eq!(found, (Applied::No, Scope::Connection, "disk_full"));
        }
        pragma(&sqlite, "max_page_count = 2000").await;
        assert_eq!(
            testing::write(&sink, &batch).await,
            [Outcome::delivered(), Outcome::delivered()]
        );
    }
}
