//! Outage reports: one row for each time a connection or a target was away.

use crate::{Ledger, Result, db::Inside, park::bad, query::limit};
use rusqlite::{Row, params};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an outage came to. Counts run from its beginning until everything that was held at its end
/// has left its lane.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OutageReport {
    /// The first failure's code.
    pub code: String,
    /// What was said.
    pub cause: String,
    /// It was a drill: the host itself kept the destination away.
    pub drill: bool,
    /// Writes that waited when it ended, or that wait now.
    pub held: u64,
    /// Attempts of writes that may have landed before.
    pub resent: u64,
    /// Writes delivered since it began.
    pub delivered: u64,
    /// Of those, the ones that the destination recognised as repeats.
    pub delivered_as_repeat: u64,
    /// Writes sent and never confirmed.
    pub sent_unconfirmed: u64,
    /// Writes that parked.
    pub parked: u64,
    /// Writes that expired.
    pub expired: u64,
    /// The most second copies that may exist at destinations that do not drop a repeat.
    pub copies_possible: u64,
    /// The lanes that waited.
    pub lanes: Vec<String>,
    /// What each lane's outcomes were when it began; what the counts are taken from.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub base: BTreeMap<String, BTreeMap<String, u64>>,
}

/// One outage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// Its id.
    pub id: i64,
    /// The connection.
    pub connection: String,
    /// The target; `None` when the whole connection was away.
    pub target: Option<String>,
    /// When it began.
    pub from_unix_ms: i64,
    /// When a write was delivered again; `None` while it lasts.
    pub to_unix_ms: Option<i64>,
    /// When what was held had left; the report is final then.
    pub settled_unix_ms: Option<i64>,
    /// What it came to.
    pub report: OutageReport,
}

impl Ledger {
    /// Notes that an outage began, and gives its id.
    ///
    /// # Errors
    /// As the file's.
    pub fn outage_began(
        &self,
        connection: &str,
        target: Option<&str>,
        from_unix_ms: i64,
        report: &OutageReport,
    ) -> Result<i64> {
        let report = serde_json::json!(report).to_string();
        self.write(|db| {
            Ok(db.query_row(
                "INSERT INTO outages (connection, target, from_unix_ms, report)
                 VALUES (?1, ?2, ?3, ?4) RETURNING id",
                params![connection, target, from_unix_ms, report],
                |row| row.get(0),
            )?)
        })
    }

    /// Writes what an outage came to so far. An outage that was purged meanwhile stays so.
    ///
    /// # Errors
    /// As the file's.
    pub fn outage_update(&self, outage: &Outage) -> Result<()> {
        let report = serde_json::json!(outage.report).to_string();
        self.write(|db| {
            db.execute(
                "UPDATE outages SET to_unix_ms = ?2, settled_unix_ms = ?3, report = ?4 WHERE id = ?1",
                params![
                    outage.id,
                    outage.to_unix_ms,
                    outage.settled_unix_ms,
                    report
                ],
            )?;
            Ok(())
        })
    }

    /// The newest outages, newest first.
    ///
    /// # Errors
    /// As the file's.
    pub fn outages(&self, connection: Option<&str>, most: u32) -> Result<Vec<Outage>> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "SELECT id, connection, target, from_unix_ms, to_unix_ms, settled_unix_ms, report
                 FROM outages WHERE ?1 IS NULL OR connection = ?1 ORDER BY id DESC LIMIT ?2",
            )?;
            let mut rows = statement.query(params![connection, limit(most)])?;
            let mut outages = Vec::new();
            while let Some(row) = rows.next()? {
                outages.push(outage(row)?);
            }
            Ok(outages)
        })
    }

    /// Outages that are not settled, oldest first: at start, those of the last run.
    ///
    /// # Errors
    /// As the file's.
    pub fn open_outages(&self) -> Result<Vec<Outage>> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "SELECT id, connection, target, from_unix_ms, to_unix_ms, settled_unix_ms, report
                 FROM outages WHERE settled_unix_ms IS NULL ORDER BY id",
            )?;
            let mut rows = statement.query([])?;
            let mut outages = Vec::new();
            while let Some(row) = rows.next()? {
                outages.push(outage(row)?);
            }
            Ok(outages)
        })
    }
}

fn outage(row: &Row<'_>) -> Inside<Outage> {
    let report: String = row.get(6)?;
    Ok(Outage {
        id: row.get(0)?,
        connection: row.get(1)?,
        target: row.get(2)?,
        from_unix_ms: row.get(3)?,
        to_unix_ms: row.get(4)?,
        settled_unix_ms: row.get(5)?,
        report: serde_json::from_str(&report).map_err(|e| bad("outage", &e))?,
    })
}
