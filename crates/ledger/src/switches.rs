//! What an operator has switched off, and who did: it stays off over a restart.

use crate::{Ledger, Result};
use rusqlite::params;
use serde::{Deserialize, Serialize};

/// Something that is paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switch {
    /// What: `adapter NAME`, `connection NAME` or `lane ADAPTER/ROUTE/SEND`.
    pub subject: String,
    /// Who paused it.
    pub who: String,
    /// When.
    pub at_unix_ms: i64,
}

impl Ledger {
    /// Notes that something is paused; true when it was not before.
    ///
    /// # Errors
    /// As the file's.
    pub fn pause(&self, subject: &str, who: &str, at_unix_ms: i64) -> Result<bool> {
        self.write(|db| {
            let changed = db.execute(
                "INSERT INTO switches (subject, who, at_unix_ms) VALUES (?1, ?2, ?3)
                 ON CONFLICT DO NOTHING",
                params![subject, who, at_unix_ms],
            )?;
            Ok(changed > 0)
        })
    }

    /// Notes that something goes on; true when it was paused.
    ///
    /// # Errors
    /// As the file's.
    pub fn resume(&self, subject: &str) -> Result<bool> {
        self.write(|db| Ok(db.execute("DELETE FROM switches WHERE subject = ?", [subject])? > 0))
    }

    /// Everything that is paused.
    ///
    /// # Errors
    /// As the file's.
    pub fn paused(&self) -> Result<Vec<Switch>> {
        self.read(|db| {
            let mut statement = db
                .prepare_cached("SELECT subject, who, at_unix_ms FROM switches ORDER BY subject")?;
            let rows = statement.query_map([], |row| {
                Ok(Switch {
                    subject: row.get(0)?,
                    who: row.get(1)?,
                    at_unix_ms: row.get(2)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }
}
