//! Conformance of the SQLite connector. There is no network to break: the database is locked by
//! somebody else, and the host is killed. Rows are counted by a reader that opens the file read-only.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use async_trait::async_trait;
use consign_testkit::conformance::{
    self, Access, Destination, Effect, Kind, Place, Product, Setup, Subjects,
};
use rusqlite::{Connection, OpenFlags};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Longer than any scenario holds the lock while somebody waits for it.
const BUSY: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    conformance::main("sqlite", || async {
        Subjects::new()
            .destination(Table { keyed: true })
            .destination(Table { keyed: false })
    })
}

/// A table with or without a write-key column.
struct Table {
    keyed: bool,
}

impl Table {
    fn path(place: &Place) -> PathBuf {
        place.folder.join("destination.db")
    }
}

#[async_trait]
impl Destination for Table {
    fn operation(&self) -> &'static str {
        "sqlite.write"
    }

    fn case(&self) -> &'static str {
        if self.keyed { "keyed" } else { "without_key" }
    }

    fn product(&self) -> Product {
        Product {
            server: "SQLite".into(),
            version: rusqlite::version().into(),
            kind: Kind::Real,
        }
    }

    fn access(&self) -> Access {
        Access::Local
    }

    async fn prepare(&self, place: &Place) -> Setup {
        let db = Connection::open(Self::path(place)).unwrap();
        db.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (id TEXT, key TEXT UNIQUE)")
            .unwrap();
        let key = if self.keyed {
            ", write_key_column: key"
        } else {
            ""
        };
        Setup {
            // It waits for the lock within the write, so that a kill meets a request in flight.
            connection: format!(
                "{{ connector: sqlite, config: {{ path: {:?}, busy_timeout: 3s }} }}",
                Self::path(place)
            ),
            config: format!("{{ table: t, columns: {{ id: \"{{{{ .body.id }}}}\" }}{key} }}"),
            order: "strict".into(),
        }
    }

    async fn effects(&self, place: &Place) -> Vec<Effect> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let db = Connection::open_with_flags(Self::path(place), flags).unwrap();
        db.busy_timeout(BUSY).unwrap();
        let mut rows = db.prepare("SELECT id, key FROM t").unwrap();
        let effects = rows.query_map([], |row| {
            Ok(Effect {
                id: row.get(0)?,
                // The declaration's condition is a write-key column: without one there is no key.
                key: row.get::<_, Option<String>>(1)?,
            })
        });
        effects.unwrap().map(Result::unwrap).collect()
    }

    fn without_key(&self) -> bool {
        !self.keyed
    }

    async fn hold(&self, place: &Place) -> Box<dyn Send> {
        let db = Connection::open(Self::path(place)).unwrap();
        db.busy_timeout(BUSY).unwrap();
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        Box::new(db)
    }

    async fn refuse(&self, place: &Place, id: &str) -> Box<dyn Send> {
        let db = Connection::open(Self::path(place)).unwrap();
        db.busy_timeout(BUSY).unwrap();
        db.execute_batch(&format!(
            "CREATE TRIGGER refusal BEFORE INSERT ON t WHEN NEW.id = '{id}' BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        ))
        .unwrap();
        Box::new(Refusal(db))
    }
}

/// The trigger, gone when this is dropped.
struct Refusal(Connection);

impl Drop for Refusal {
    fn drop(&mut self) {
        self.0.execute_batch("DROP TRIGGER refusal").unwrap();
    }
}
