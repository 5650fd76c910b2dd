//! The file: how it is opened, kept private, migrated and written.

use crate::{
    Error, Result,
    reserve::{Reserve, ReserveState},
};
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// How long to wait before a busy file is tried again: a switch to WAL takes a few milliseconds.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// The schema this version writes, kept in `user_version`. Every lower one is migrated at opening.
pub const SCHEMA_VERSION: i64 = 3;

/// Marks the file as ours: "CNSL" as a big-endian number, kept in `application_id`.
const APPLICATION_ID: i64 = 0x434e_534c;

/// One script per schema version, the first makes an empty file. Never edited once released.
const MIGRATIONS: [&str; 3] = [
    include_str!("schema_1.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
];

/// A file up to this size is checked whole when it is opened (about 0.1 s); a greater one is
/// checked by [`Ledger::check`] on demand.
const CHECK_AT_OPEN_MAX_BYTES: u64 = 32 * 1024 * 1024;

/// The WAL is kept at most this long between checkpoints, so that a burst does not hold the disk.
const WAL_KEPT_MAX_BYTES: i64 = 16 * 1024 * 1024;

/// How a ledger is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long a call waits for another process's write lock. Default 5 s.
    pub busy_timeout: Duration,
    /// Size of the file that is given up when the disk is full, in bytes; 0 for none. Default 8 MiB.
    pub reserve_bytes: u64,
    /// The ledger's own limit in bytes, its last part (at most `reserve_bytes`, at most an eighth)
    /// kept for what must land when the limit is reached. Default none.
    pub max_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            busy_timeout: Duration::from_secs(5),
            reserve_bytes: 8 * 1024 * 1024,
            max_bytes: None,
        }
    }
}

/// The ledger. Cloning is cheap and gives the same ledger.
#[derive(Clone)]
pub struct Ledger {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    options: Options,
    writer: Mutex<Connection>,
    /// Lists never wait behind a commit.
    reader: Mutex<Connection>,
    reserve: Mutex<Reserve>,
}

/// What goes wrong inside a transaction, before the path is known.
#[derive(Debug)]
pub(crate) enum Fault {
    Sql(rusqlite::Error),
    Own(Error),
}

/// The result inside a transaction.
pub(crate) type Inside<T> = std::result::Result<T, Fault>;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

impl Ledger {
    /// Opens the file, or makes it, and migrates it to [`SCHEMA_VERSION`].
    ///
    /// # Errors
    /// [`Error::Open`] where file or folder do not allow it, [`Error::Corrupt`] for a damaged or
    /// foreign file, [`Error::Newer`] for one of a newer version, [`Error::Busy`], [`Error::Full`].
    pub fn open(path: &Path, options: Options) -> Result<Self> {
        make_private(path).map_err(|source| Error::Open {
            path: path.to_owned(),
            source,
        })?;
        let mut reserve = Reserve::new(path, options.reserve_bytes);
        reserve.hold();
        let writer = match Self::open_writer(path, &options) {
            Err(Error::Full { .. }) if reserve.release() => Self::open_writer(path, &options)?,
            other => other?,
        };
        let reader = connect(path, &options).map_err(|e| sentence(path, e))?;
        Ok(Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                options,
                writer: Mutex::new(writer),
                reader: Mutex::new(reader),
                reserve: Mutex::new(reserve),
            }),
        })
    }

    fn open_writer(path: &Path, options: &Options) -> Result<Connection> {
        let mut connection = connect(path, options).map_err(|e| sentence(path, e))?;
        check_identity(path, &connection)?;
        migrate(path, &mut connection)?;
        limit_pages(&connection, options, true).map_err(|e| sentence(path, e))?;
        Ok(connection)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Whether the reserve for a full disk is there.
    #[must_use]
    pub fn reserve(&self) -> ReserveState {
        self.inner.reserve.lock().state()
    }

    /// Takes the reserve back once there is room again for twice its size.
    pub fn refill_reserve(&self) -> ReserveState {
        let mut reserve = self.inner.reserve.lock();
        if reserve.state() == ReserveState::Released && reserve.refill() {
            // A failure leaves the greater limit, which only delays the next refusal.
            let _ = limit_pages(&self.inner.writer.lock(), &self.inner.options, true);
        }
        reserve.state()
    }

    /// Reads the whole file and checks it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first fault found.
    pub fn check(&self) -> Result<()> {
        integrity(&self.inner.path, &self.inner.reader.lock())
    }

    /// Reads.
    pub(crate) fn read<T>(&self, work: impl FnOnce(&Connection) -> Inside<T>) -> Result<T> {
        work(&self.inner.reader.lock()).map_err(|fault| self.own(fault))
    }

    /// Runs `work` in one IMMEDIATE transaction. When the disk is full the reserve is given up and
    /// `work` runs once more, so it must not count on running once.
    pub(crate) fn write<T>(&self, mut work: impl FnMut(&Connection) -> Inside<T>) -> Result<T> {
        let mut connection = self.inner.writer.lock();
        let first = self.transaction(&mut connection, &mut work);
        let result = match first {
            Err(Fault::Sql(error)) if is_full(&error) && self.give_up_reserve(&connection) => {
                self.transaction(&mut connection, &mut work)
            }
            other => other,
        };
        result.map_err(|fault| self.own(fault))
    }

    fn give_up_reserve(&self, connection: &Connection) -> bool {
        let released = self.inner.reserve.lock().release();
        let raised = self.inner.options.max_bytes.is_some()
            && limit_pages(connection, &self.inner.options, false).unwrap_or(false);
        released || raised
    }

    fn transaction<T>(
        &self,
        connection: &mut Connection,
        work: &mut impl FnMut(&Connection) -> Inside<T>,
    ) -> Inside<T> {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let result = work(connection)
            .and_then(|value| Ok(connection.execute_batch("COMMIT").map(|()| value)?));
        if result.is_err() && !connection.is_autocommit() {
            // A failed COMMIT, or a failed statement, leaves the transaction open.
            let _ = connection.execute_batch("ROLLBACK");
        }
        if !connection.is_autocommit() {
            // It could not even be rolled back: this connection is of no more use.
            *connection = connect(&self.inner.path, &self.inner.options)?;
            limit_pages(connection, &self.inner.options, true)?;
        }
        result
    }

    fn own(&self, fault: Fault) -> Error {
        match fault {
            Fault::Own(error) => error,
            Fault::Sql(error) => sentence(&self.inner.path, error),
        }
    }
}

/// Makes folder and file, readable by their owner alone.
fn make_private(path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(std::io::Error::new(
            ErrorKind::InvalidInput,
            "it is no file",
        ));
    }
    if meta.permissions().mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    // SQLite gives its companions the file's own permissions; ones that are left over keep theirs.
    for suffix in ["-wal", "-shm"] {
        let companion = beside(path, suffix);
        if companion.is_file() {
            fs::set_permissions(&companion, fs::Permissions::from_mode(0o600))?;
        }
    }
    Ok(())
}

/// The path with something appended to its name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn connect(path: &Path, options: &Options) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    connection.busy_timeout(options.busy_timeout)?;
    into_wal(&connection, options.busy_timeout)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", "ON")?;
    connection
        .pragma_update_and_check(None, "journal_size_limit", WAL_KEPT_MAX_BYTES, |_| Ok(()))?;
    // Without it a crafted or damaged schema could run functions of its own.
    connection.pragma_update(None, "trusted_schema", "OFF")?;
    Ok(connection)
}

/// Switches to WAL. Two processes that make the file at once meet here, and SQLite answers busy at once
/// where waiting could deadlock (sqlite3_busy_handler), so the wait is ours.
fn into_wal(connection: &Connection, within: Duration) -> rusqlite::Result<()> {
    let from = std::time::Instant::now();
    loop {
        match connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())) {
            Err(error) if is_busy(&error) && from.elapsed() < within => {
                std::thread::sleep(BUSY_PAUSE)
            }
            result => return result,
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// Refuses what is none of ours, newer, or damaged, before anything is changed.
fn check_identity(path: &Path, connection: &Connection) -> Result<()> {
    let number = |name: &str| -> Result<i64> {
        connection
            .pragma_query_value(None, name, |row| row.get(0))
            .map_err(|e| sentence(path, e))
    };
    let (version, application) = (number("user_version")?, number("application_id")?);
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(|e| sentence(path, e))?;
    if application != APPLICATION_ID && (tables > 0 || version != 0) {
        return Err(Error::Corrupt {
            path: path.to_owned(),
            detail: "it is a database of another program".to_owned(),
        });
    }
    if version > SCHEMA_VERSION {
        return Err(Error::Newer {
            path: path.to_owned(),
            found: version,
            known: SCHEMA_VERSION,
        });
    }
    let bytes = fs::metadata(path).map(|m| m.len()).unwrap_or(0);
    if bytes <= CHECK_AT_OPEN_MAX_BYTES {
        integrity(path, connection)?;
    }
    Ok(())
}

fn integrity(path: &Path, connection: &Connection) -> Result<()> {
    let answer: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|e| sentence(path, e))?;
    if answer == "ok" {
        Ok(())
    } else {
        Err(Error::Corrupt {
            path: path.to_owned(),
            detail: answer.lines().collect::<Vec<_>>().join(" "),
        })
    }
}

/// All missing steps, each in a transaction of its own that also says how far it came. Two
/// processes that open a new file at once both come here; the second finds nothing left to do.
fn migrate(path: &Path, connection: &mut Connection) -> Result<()> {
    for (step, script) in (1_i64..).zip(MIGRATIONS) {
        let transaction = connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .map_err(|e| sentence(path, e))?;
        let done = (|| {
            let version: i64 =
                transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
            if version >= step {
                return Ok(());
            }
            transaction.execute_batch(script)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", step)?;
            transaction.commit()
        })();
        done.map_err(|e| sentence(path, e))?;
    }
    Ok(())
}

/// Sets the page limit; `with_reserve` keeps the last part back. True when there is a limit.
fn limit_pages(
    connection: &Connection,
    options: &Options,
    with_reserve: bool,
) -> rusqlite::Result<bool> {
    let Some(max_bytes) = options.max_bytes else {
        return Ok(false);
    };
    let page: u64 = connection
        .pragma_query_value(None, "page_size", |row| row.get::<_, i64>(0))?
        .unsigned_abs()
        .max(512);
    let kept = if with_reserve {
        options.reserve_bytes.min(max_bytes / 8)
    } else {
        0
    };
    let pages = i64::try_from((max_bytes - kept) / page).unwrap_or(i64::MAX);
    connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    Ok(true)
}

/// Whether room is what is missing. A full disk shows as SQLITE_FULL, or, where the shared-memory
/// file cannot grow, as an input/output error of its own.
fn is_full(error: &rusqlite::Error) -> bool {
    const IOERR_SHMSIZE: i32 = 10 | (19 << 8);
    match error {
        rusqlite::Error::SqliteFailure(cause, _) => {
            cause.code == ErrorCode::DiskFull || cause.extended_code == IOERR_SHMSIZE
        }
        _ => false,
    }
}

fn sentence(path: &Path, error: rusqlite::Error) -> Error {
    let path = path.to_owned();
    if is_full(&error) {
        return Error::Full { path };
    }
    match &error {
        rusqlite::Error::SqliteFailure(cause, text) => match cause.code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Error::Busy { path },
            ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt => Error::Corrupt {
                path,
                detail: text.clone().unwrap_or_else(|| cause.to_string()),
            },
            ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied => {
                Error::Open {
                    path,
                    source: std::io::Error::new(ErrorKind::PermissionDenied, error.to_string()),
                }
            }
            _ => Error::Storage {
                path,
                detail: error.to_string(),
            },
        },
        _ => Error::Storage {
            path,
            detail: error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(reserve_bytes: u64) -> (tempfile::TempDir, Ledger) {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            reserve_bytes,
            ..Options::default()
        };
        let ledger = Ledger::open(&dir.path().join("ledger.db"), options).unwrap();
        (dir, ledger)
    }

    #[test]
    fn what_is_answered_was_flushed() {
        let (_dir, ledger) = opened(0);
        for connection in [&ledger.inner.writer, &ledger.inner.reader] {
            let connection = connection.lock();
            let full: i64 = connection
                .pragma_query_value(None, "synchronous", |row| row.get(0))
                .unwrap();
            let mode: String = connection
                .pragma_query_value(None, "journal_mode", |row| row.get(0))
                .unwrap();
            assert_eq!((full, mode.as_str()), (2, "wal"));
        }
    }

    #[test]
    fn a_failed_commit_leaves_no_transaction_open() {
        let (_dir, ledger) = opened(0);
        // A deferred constraint fails at COMMIT and not before; SQLite then keeps the transaction open.
        let failed = ledger.write(|connection| {
            connection.execute_batch(
                "PRAGMA defer_foreign_keys = ON;
                 INSERT INTO dependents (failed, nth, send, write_key, envelope, body)
                 VALUES (12345, 0, 's', zeroblob(16), x'', x'')",
            )?;
            Ok(())
        });
        assert!(matches!(failed, Err(Error::Storage { .. })), "{failed:?}");
        assert!(ledger.inner.writer.lock().is_autocommit());
        let left: i64 = ledger
            .read(|c| Ok(c.query_row("SELECT count(*) FROM dependents", [], |r| r.get(0))?))
            .unwrap();
        assert_eq!(left, 0);
        ledger
            .append(&[crate::Event::new(crate::Code::HostStarted, 1)])
            .unwrap();
    }

    #[test]
    fn work_that_fails_changes_nothing() {
        let (_dir, ledger) = opened(0);
        let failed: Result<()> = ledger.write(|connection| {
            crate::event_log::append(connection, &crate::Event::new(crate::Code::HostStarted, 1))?;
            Err(Error::Closed.into())
        });
        assert!(failed.is_err());
        assert_eq!(ledger.last_event_id().unwrap(), 0);
    }

    #[test]
    fn the_reserve_is_made_once_and_given_up_once() {
        let (dir, ledger) = opened(10_000);
        let path = dir.path().join("ledger.db.reserve");
        assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
        assert!(ledger.inner.reserve.lock().release());
        assert!(!path.exists());
        assert!(!ledger.inner.reserve.lock().release());
        assert_eq!(ledger.refill_reserve(), ReserveState::Held);
        assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
    }
}
