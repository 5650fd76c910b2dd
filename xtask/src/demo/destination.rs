//! The independent reader: counts what is at the destinations by reading them, without asking the
//! host, and compares every body with the webhook that was sent.

use super::generator::{index_of, webhook};
use crate::error::{Context, Result};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a read waits for the host's transaction.
const BUSY: Duration = Duration::from_secs(20);

/// What is at one destination.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Copies by webhook.
    copies: BTreeMap<u64, u64>,
    /// Bodies whose bytes are not those of the webhook they name.
    pub altered: u64,
    /// Entries that no sender sent.
    pub foreign: u64,
    /// Hidden files: what the host was writing when it was killed and had not given its name yet.
    pub unfinished: u64,
}

/// The part of a body by which it is known.
#[derive(Deserialize)]
struct Head {
    id: String,
}

impl Tally {
    /// Counts one body found at the destination.
    pub fn add(&mut self, seed: u64, sent: u64, body: &[u8]) {
        let index = serde_json::from_slice::<Head>(body)
            .ok()
            .and_then(|head| index_of(seed, &head.id))
            .filter(|index| *index < sent);
        let Some(index) = index else {
            self.foreign += 1;
            return;
        };
        *self.copies.entry(index).or_default() += 1;
        if webhook(seed, index).body != body {
            self.altered += 1;
        }
    }

    /// Webhooks that are there at least once.
    pub fn landed(&self) -> u64 {
        self.copies.len() as u64
    }

    /// Webhooks below `sent` that are not there.
    pub fn missing(&self, sent: u64) -> u64 {
        sent - self.landed()
    }

    /// Entries beyond the first of a webhook.
    pub fn extra(&self) -> u64 {
        self.copies.values().map(|copies| copies - 1).sum()
    }

    /// Whether webhook `index` is there.
    pub fn has(&self, index: u64) -> bool {
        self.copies.contains_key(&index)
    }
}

/// The destination database, opened for reading only.
#[derive(Debug)]
pub struct Database(Connection);

impl Database {
    /// Opens it.
    pub fn open(path: &Path) -> Result<Self> {
        let open = || {
            let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            connection.busy_timeout(BUSY)?;
            Ok(connection)
        };
        let opened: rusqlite::Result<Connection> = open();
        let connection = opened.context(|| format!("cannot open {}", path.display()))?;
        Ok(Self(connection))
    }

    /// A number that changes with every transaction of someone else.
    pub fn version(&self) -> Result<u64> {
        self.number("PRAGMA data_version")
    }

    /// Rows in the table.
    pub fn rows(&self) -> Result<u64> {
        self.number("SELECT count(*) FROM webhooks")
    }

    /// Webhooks in the table, by the event column.
    pub fn distinct(&self) -> Result<u64> {
        self.number("SELECT count(DISTINCT event) FROM webhooks")
    }

    /// Rows beyond the first of each webhook.
    pub fn copies(&self) -> Result<u64> {
        self.number("SELECT count(*) - count(DISTINCT event) FROM webhooks")
    }

    /// Inserts that arrived and added no row, counted by the database's own trigger: each is a repeat
    /// that the unique index dropped.
    pub fn dropped(&self) -> Result<u64> {
        self.number("SELECT (SELECT count FROM arrivals) - (SELECT count(*) FROM webhooks)")
    }

    /// Reads every row.
    pub fn tally(&self, seed: u64, sent: u64) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut read = || {
            let mut statement = self.0.prepare("SELECT body FROM webhooks")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                match row.get_ref(0)? {
                    ValueRef::Text(body) | ValueRef::Blob(body) => tally.add(seed, sent, body),
                    _ => tally.foreign += 1,
                }
            }
            Ok(())
        };
        let result: rusqlite::Result<()> = read();
        result.context(|| "cannot read the table".into())?;
        Ok(tally)
    }

    fn number(&self, sql: &str) -> Result<u64> {
        let number: i64 = self
            .0
            .query_row(sql, [], |row| row.get(0))
            .context(|| "cannot count rows".into())?;
        u64::try_from(number).context(|| "a count is negative".into())
    }
}

/// Files under a folder, in all its subfolders.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        let entries =
            std::fs::read_dir(&folder).context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries.flatten() {
            // The folder can hold tens of thousands of files, so none is asked about twice.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// How many files there are under their final names.
pub fn count_files(folder: &Path) -> Result<u64> {
    let files = files(folder)?;
    Ok(files.iter().filter(|path| !is_hidden(path)).count() as u64)
}

/// Reads every file.
pub fn tally_files(folder: &Path, seed: u64, sent: u64) -> Result<Tally> {
    let mut tally = Tally::default();
    for path in files(folder)? {
        if is_hidden(&path) {
            tally.unfinished += 1;
            continue;
        }
        let body = std::fs::read(&path).context(|| format!("cannot read {}", path.display()))?;
        tally.add(seed, sent, &body);
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(index: u64) -> Vec<u8> {
        webhook(1, index).body
    }

    /// Webhook 0 once, 1 three times, 2 altered, 3 missing, and two entries that nobody sent.
    fn entries() -> Vec<Vec<u8>> {
        let mut altered = body(2);
        altered.insert(1, b' ');
        let other_seed = webhook(2, 0).body;
        vec![
            body(0),
            body(1),
            body(1),
            body(1),
            altered,
            other_seed,
            b"half a fi".to_vec(),
        ]
    }

    fn check(tally: &Tally) {
        assert_eq!(tally.landed(), 3);
        assert_eq!(tally.missing(4), 1);
        assert_eq!(tally.extra(), 2);
        assert_eq!(tally.altered, 1);
        assert_eq!(tally.foreign, 2);
        assert!(tally.has(2) && !tally.has(3));
    }

    #[test]
    fn losses_copies_altered_and_foreign_rows_are_counted_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.db");
        let database = Connection::open(&path).unwrap();
        database
            .execute_batch(
                "CREATE TABLE webhooks (body, event DEFAULT 'e'); CREATE TABLE arrivals (count);
                 INSERT INTO arrivals VALUES (9);",
            )
            .unwrap();
        for entry in entries() {
            let value = match String::from_utf8(entry) {
                Ok(text) => rusqlite::types::Value::Text(text),
                Err(error) => rusqlite::types::Value::Blob(error.into_bytes()),
            };
            database
                .execute("INSERT INTO webhooks (body) VALUES (?)", [value])
                .unwrap();
        }
        let reader = Database::open(&path).unwrap();
        check(&reader.tally(1, 4).unwrap());
        assert_eq!(reader.rows().unwrap(), 7);
        assert_eq!(reader.dropped().unwrap(), 2);
        assert_eq!(
            (reader.distinct().unwrap(), reader.copies().unwrap()),
            (1, 6)
        );
    }

    #[test]
    fn a_transaction_of_someone_else_is_noticed_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.db");
        // As in the demo: the reader is there before the host turns the write-ahead log on.
        let database = Connection::open(&path).unwrap();
        database.execute_batch("CREATE TABLE t (a)").unwrap();
        let reader = Database::open(&path).unwrap();
        database
            .execute_batch("PRAGMA journal_mode = WAL; INSERT INTO t VALUES (0)")
            .unwrap();
        for _ in 0..3 {
            let version = reader.version().unwrap();
            assert_eq!(reader.version().unwrap(), version);
            database.execute("INSERT INTO t VALUES (1)", []).unwrap();
            assert_ne!(reader.version().unwrap(), version);
        }
    }

    #[test]
    fn losses_copies_altered_and_foreign_files_are_counted_apart() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        for (number, entry) in entries().into_iter().enumerate() {
            let sub = if number % 2 == 0 { "sub" } else { "" };
            let path = folder.path().join(sub).join(format!("{number}.json"));
            std::fs::write(path, entry).unwrap();
        }
        std::fs::write(folder.path().join(".half.tmp"), "half a fi").unwrap();
        let tally = tally_files(folder.path(), 1, 4).unwrap();
        check(&tally);
        assert_eq!(tally.unfinished, 1);
        assert_eq!(count_files(folder.path()).unwrap(), 7);
    }

    #[test]
    fn a_webhook_beyond_those_sent_is_foreign() {
        let mut tally = Tally::default();
        tally.add(1, 4, &body(4));
        assert_eq!((tally.landed(), tally.foreign), (0, 1));
    }
}
