//! Messages of which a table refuses one, `bad-3`, that is sent there directly: whatever broker they come from.

use super::{assert_ledgers, drained, lane, ok, read_table, wait_until};
use consign_e2e::Host;
use serde_json::Value;
use std::time::Duration;

/// A host between a broker and the table.
pub struct Scene {
    pub folder: tempfile::TempDir,
    pub host: Host,
}

impl Scene {
    /// `broker` is the connection, `source` the operation with its settings.
    pub fn new(broker: &str, source: &str, on_failure: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let db = rusqlite::Connection::open(folder.path().join("out.db")).unwrap();
        db.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE t (id TEXT CHECK (id NOT LIKE 'bad%'), write_key TEXT UNIQUE)",
        )
        .unwrap();
        let host = Host::new(
            folder.path(),
            &format!(
                r#"
connections:
  broker: {broker}
  table: {{ connector: sqlite, config: {{ path: ./out.db, busy_timeout: 100ms }} }}
  dead: {{ connector: sqlite, config: {{ path: ./dead.db, busy_timeout: 100ms }} }}
adapters:
  orders:
    source: {{ connection: broker, {source} }}
    routes:
      - name: dead
        match: never.matches
        send:
          - id: letters
            connection: dead
            operation: sqlite.write
            config: {{ table: letters, create_table: true, body_column: body, write_key_column: write_key }}
      - name: all
        {on_failure}
        send:
          - id: table
            connection: table
            operation: sqlite.write
            delivery: direct
            order: none
            retry: {{ backoff: {{ initial: 50ms, max: 500ms }} }}
            config: {{ table: t, columns: {{ id: "{{{{ .body.id }}}}" }}, write_key_column: write_key }}
"#
            ),
        );
        Self { folder, host }
    }

    pub fn rows(&self) -> usize {
        read_table(&self.folder.path().join("out.db"), "t").len()
    }

    pub async fn until_rows(&self, count: usize) {
        wait_until(&format!("{count} rows"), || self.rows() >= count).await;
        assert_eq!(self.rows(), count);
    }

    /// The one that is held is told, once, with its send and the table's reason.
    pub async fn assert_told(&self) {
        let held = super::wait_for_event(&self.host, "message_held").await;
        assert_eq!(held.len(), 1, "said once: {held:#?}");
        let said = held[0].to_string();
        assert!(
            said.contains("orders/all/table") && said.contains("CHECK"),
            "{said}"
        );
    }

    /// From now on the table takes it, too.
    pub fn mend(&self) {
        let db = rusqlite::Connection::open(self.folder.path().join("out.db")).unwrap();
        db.busy_timeout(Duration::from_secs(10)).unwrap();
        super::rebuild_table(&db, "id TEXT");
    }

    /// The one is in Failed messages, and nothing else is.
    pub fn assert_set_aside(&self) {
        let list = ok(&self.host, &["failed", "list", "--state", "parked"]);
        assert_eq!(list.as_array().unwrap().len(), 1, "{list:#}");
        let id = list[0]["id"].to_string();
        let shown = ok(&self.host, &["failed", "show", &id]);
        assert!(shown.to_string().contains("bad-3"), "{shown:#}");
        let status = ok(&self.host, &["status"]);
        assert_eq!(
            status["adapters"][0]["outcomes"]["handled"], 1,
            "{status:#}"
        );
        assert_ledgers(&status);
    }

    /// Keeps dead letters from being delivered until it is dropped.
    pub fn close_the_dead_letters(&self) -> rusqlite::Connection {
        let lock = rusqlite::Connection::open(self.folder.path().join("dead.db")).unwrap();
        lock.execute_batch("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE")
            .unwrap();
        lock
    }

    pub async fn until_the_letter_waits(&self) {
        self.host
            .until("the letter waits in its lane", |status| {
                lane(status, "orders/dead/letters")["pending"] == 1
            })
            .await;
    }

    /// Two kills, then the letters' destination is back: it has the one.
    pub async fn assert_the_letter_outlives_kills(&mut self, lock: rusqlite::Connection) {
        for _ in 0..2 {
            self.host.kill();
            self.host.start().await;
        }
        drop(lock);
        let status = drained(&self.host).await;
        assert_ledgers(&status);
        let db = rusqlite::Connection::open(self.folder.path().join("dead.db")).unwrap();
        let letters: Vec<String> = db
            .prepare("SELECT body FROM letters")
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(letters.len(), 1, "{letters:#?}");
        let letter: Value = serde_json::from_str(&letters[0]).unwrap();
        assert_eq!(letter["format"], "consign.dead_letter/1");
        assert!(letter["body"].to_string().contains("bad-3"), "{letter:#}");
    }
}
