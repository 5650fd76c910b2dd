//! Taking the destination away for a while, in ways that real destinations go away.
//!
//! * The database: another program holds SQLite's write lock, so every insert is answered "busy".
//! * The folder: it is renamed, and a plain file stands under its name, so that no file can be made
//!   in it even by a host that runs as root.

use crate::error::{Context, Result};
use rusqlite::Connection;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for the write lock: the host's transactions take milliseconds.
const LOCK_WITHIN: Duration = Duration::from_secs(20);

/// The destinations, taken away. Dropping it gives them back.
#[derive(Debug)]
pub struct Outage {
    /// Holds the write lock as long as it is open.
    database: Option<Connection>,
    folder: PathBuf,
    away: PathBuf,
}

impl Outage {
    /// Takes the database and the folder away.
    pub fn begin(database: &Path, folder: &Path) -> Result<Self> {
        let lock = || {
            let connection = Connection::open(database)?;
            connection.busy_timeout(LOCK_WITHIN)?;
            connection.execute_batch("BEGIN IMMEDIATE")?;
            Ok(connection)
        };
        let locked: rusqlite::Result<Connection> = lock();
        let connection = locked.context(|| format!("cannot lock {}", database.display()))?;
        let mut name = folder.as_os_str().to_owned();
        name.push(".away");
        let outage = Self {
            database: Some(connection),
            folder: folder.to_owned(),
            away: PathBuf::from(name),
        };
        fs::rename(folder, &outage.away)
            .and_then(|()| fs::write(folder, "this folder is away\n"))
            .context(|| format!("cannot take {} away", folder.display()))?;
        Ok(outage)
    }

    /// Gives both back.
    pub fn end(mut self) -> Result<()> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        // Closing rolls the empty transaction back.
        let Some(connection) = self.database.take() else {
            return Ok(());
        };
        drop(connection);
        if !self.away.exists() {
            return Ok(());
        }
        if self.folder.is_file() {
            fs::remove_file(&self.folder)
                .context(|| format!("cannot remove {}", self.folder.display()))?;
        }
        fs::rename(&self.away, &self.folder)
            .context(|| format!("cannot give {} back", self.folder.display()))
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            eprintln!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_destination_takes_anything_until_it_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let (path, archive) = (folder.path().join("d.db"), folder.path().join("archive"));
        let database = Connection::open(&path).unwrap();
        database
            .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (a)")
            .unwrap();
        fs::create_dir(&archive).unwrap();
        fs::write(archive.join("before"), "x").unwrap();

        let outage = Outage::begin(&path, &archive).unwrap();
        let insert = || database.execute("INSERT INTO t VALUES (1)", []);
        database.busy_timeout(Duration::ZERO).unwrap();
        assert!(insert().unwrap_err().to_string().contains("locked"));
        assert!(fs::write(archive.join("during"), "x").is_err());
        assert!(fs::create_dir_all(&archive).is_err());

        outage.end().unwrap();
        insert().unwrap();
        assert!(archive.join("before").exists());
        fs::write(archive.join("after"), "x").unwrap();
    }

    #[test]
    fn an_outage_that_is_dropped_gives_everything_back() {
        let folder = tempfile::tempdir().unwrap();
        let (path, archive) = (folder.path().join("d.db"), folder.path().join("archive"));
        fs::create_dir(&archive).unwrap();
        drop(Outage::begin(&path, &archive).unwrap());
        assert!(archive.is_dir());
    }
}
