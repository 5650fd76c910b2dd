//! The source suite: messages are offered to a source, the host is held back, killed and stopped, and
//! a table with a unique write key says what came of them.
//!
//! The destination is a SQLite table with a unique index on the write key: a message that comes again
//! under its key changes nothing there, and one that comes again under another key is a second row.
#![allow(
    clippy::expect_used,
    reason = "a stage that cannot be set up fails its scenario by panicking"
)]

use super::judge::{Count, Keys};
use super::stage::{PATIENCE, lane};
use super::{Allowed, Effect, Failure, Place, Product, Result, Scenario, Setup, Verdict};
use crate::host::Host;
use async_trait::async_trait;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Messages that the host may hold at a time: the source's credit.
pub(super) const CREDIT: u64 = 64;

/// Messages offered while the destination is held: far more than its lane has room for.
pub(super) const MORE_THAN_FIT: usize = 1_000;

/// Messages offered to a host that is killed or stopped.
const MESSAGES: usize = 400;

/// How often the host is killed.
const KILLS: usize = 3;

/// How long a held host is watched.
pub(super) const WATCH: Duration = Duration::from_secs(3);

/// One source operation in one configuration. Bodies are `{"id": "…", "n": 1}`.
#[async_trait]
pub trait Origin: Send + Sync {
    /// The operation's id.
    fn operation(&self) -> &'static str;

    /// A short name of this configuration, `snake_case`.
    fn case(&self) -> &'static str;

    /// What it reads from.
    fn product(&self) -> Product;

    /// Makes an empty source for this scenario and says how the host gets there (`order` is not used).
    async fn prepare(&self, place: &Place) -> Setup;

    /// Whether several hosts with this configuration share the messages.
    fn shared_by_hosts(&self) -> bool {
        false
    }

    /// Offers messages, in order, after those offered before. Returns when they are there to be taken; a client that waits for an
    /// answer to each goes on by itself, and repeats a message until it is taken.
    async fn offer(&self, place: &Place, ids: &[String]);

    /// How many messages the other side regards as settled (acknowledged, answered). None where the
    /// host itself keeps the position, so that there is nobody to tell.
    async fn settled(&self, place: &Place) -> Option<u64>;

    /// Removes what was made.
    async fn clean_up(&self, place: &Place) {
        let _ = place;
    }
}

pub(super) struct SourceStage<'a> {
    pub(super) origin: &'a dyn Origin,
    pub scenario: Scenario,
    pub place: Place,
    pub(super) host: Host,
    /// Runs beside the other where hosts share the source.
    pub(super) second: Option<Host>,
    pub(super) ids: Vec<String>,
    /// The message that the destination refuses, and is set aside.
    pub(super) set_aside: Option<String>,
    _folder: tempfile::TempDir,
}

/// What of the configuration and the table is the scenario's own.
fn of_scenario(scenario: Scenario) -> (&'static str, &'static str, &'static str) {
    const REFUSES: &str = "CHECK (id NOT LIKE '%poison%')";
    const DIRECT: &str = "delivery: direct\n            order: none";
    match scenario {
        Scenario::PoisonHeld => ("", DIRECT, REFUSES),
        Scenario::PoisonIsolated => ("on_failure: { handler: isolate_poison }", DIRECT, REFUSES),
        _ => ("", "batch: { max_writes: 8 }\n            quota: 64KiB", ""),
    }
}

impl<'a> SourceStage<'a> {
    pub async fn set_up(
        origin: &'a dyn Origin,
        scenario: Scenario,
        plugins: &[PathBuf],
    ) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = Place {
            scenario,
            folder: folder.path().to_owned(),
            tag: format!(
                "s{}x{}",
                std::process::id(),
                COUNT.fetch_add(1, Ordering::Relaxed)
            ),
            address: None,
        };
        let setup = origin.prepare(&place).await;
        let (on_failure, sent, refuses) = of_scenario(scenario);
        let config = format!(
            r#"
connections:
  origin: {connection}
  conformance_out: {{ connector: sqlite, config: {{ path: "{table}", busy_timeout: 500ms }} }}
adapters:
  conformance:
    source: {{ connection: origin, operation: {operation}, config: {config} }}
    max_in_process: {CREDIT}
    routes:
      - name: all
        {on_failure}
        send:
          - id: destination
            connection: conformance_out
            operation: sqlite.write
            config: {{ table: t, columns: {{ id: "{{{{ .body.id }}}}" }}, write_key_column: key }}
            retry: {{ backoff: {{ initial: 50ms, max: 300ms }} }}
            {sent}
"#,
            table = place.folder.join("out.db").display(),
            connection = setup.connection,
            operation = origin.operation(),
            config = setup.config,
        );
        let more: Vec<&Path> = plugins.iter().map(PathBuf::as_path).collect();
        let second = (scenario == Scenario::SharedAmongHosts).then(|| {
            let folder = place.folder.join("second");
            std::fs::create_dir(&folder).expect("a folder");
            Host::with_plugins(&folder, &config, &more)
        });
        let stage = Self {
            origin,
            scenario,
            host: Host::with_plugins(&place.folder, &config, &more),
            second,
            place,
            ids: Vec::new(),
            set_aside: None,
            _folder: folder,
        };
        stage
            .database()
            .execute_batch(&format!(
                "PRAGMA journal_mode = WAL; CREATE TABLE t (id TEXT {refuses}, key TEXT UNIQUE)"
            ))
            .expect("a table");
        Ok(stage)
    }

    /// Carries the scenario out and judges it.
    pub async fn run(&mut self) -> Result<Verdict> {
        let evidence = match self.scenario {
            Scenario::AcknowledgedAfterAcceptance => self.held_back().await?,
            Scenario::KilledInProcess => self.killed().await?,
            Scenario::StoppedInProcess => self.stopped().await?,
            Scenario::SharedAmongHosts => self.shared().await?,
            Scenario::PoisonHeld => self.poison_held().await?,
            Scenario::PoisonIsolated => self.poison_isolated().await?,
            other => return Err(Failure::Broken(format!("{other} is not of a source"))),
        };
        let aside = |id: &String| self.set_aside.as_ref() == Some(id);
        let ids = self.ids.iter().filter(|id| !aside(id));
        let expected: Vec<(String, Allowed)> = ids.map(|id| (id.clone(), Allowed::ONE)).collect();
        let effects = self
            .count()
            .judge(&expected, Keys::Everywhere)
            .map_err(Failure::Contradicted)?;
        for host in std::iter::once(&mut self.host).chain(&mut self.second) {
            if host.stop() != Some(0) {
                return Err(Failure::Broken("the host did not stop cleanly".into()));
            }
        }
        Ok(Verdict::Kept {
            effects,
            allowed: Allowed::ONE,
            evidence,
        })
    }

    /// The destination is held and its lane fills up: what does not fit stays unacknowledged.
    async fn held_back(&mut self) -> Result<String> {
        self.host.start().await;
        let hold = self.database();
        hold.execute_batch("BEGIN IMMEDIATE")
            .expect("the write lock");
        self.offer(MORE_THAN_FIT).await;
        let from = Instant::now();
        let (mut looks, mut taken) = (0, 0);
        while from.elapsed() < WATCH || taken == 0 {
            // First what the other side knows, then what the host has accepted, which only grows.
            let settled = self.origin.settled(&self.place).await;
            let status = self.host.get("/api/v1/status").await.unwrap_or_default();
            let adapter = &status["adapters"][0];
            taken = accepted(adapter);
            if settled.is_some_and(|settled| settled > taken) {
                return Err(Failure::Contradicted(format!(
                    "{} messages are settled at the source and only {taken} are accepted: \
                     acknowledgement ran ahead of acceptance",
                    settled.unwrap_or_default()
                )));
            }
            let held = adapter["in_process"].as_u64().unwrap_or_default();
            if held > CREDIT {
                return Err(Failure::Contradicted(format!(
                    "{held} messages are in the host, which gave credit for {CREDIT}"
                )));
            }
            looks += 1;
            if from.elapsed() > PATIENCE {
                return Err(Failure::Broken("no message was accepted".into()));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if taken >= MORE_THAN_FIT as u64 {
            return Err(Failure::NeverFired(
                "everything fitted into the lane".into(),
            ));
        }
        drop(hold);
        self.complete().await?;
        self.all_settled().await?;
        Ok(format!(
            "{taken} of {MORE_THAN_FIT} fitted; looked {looks} times while the rest waited"
        ))
    }

    async fn killed(&mut self) -> Result<String> {
        self.host.start().await;
        self.offer(MESSAGES).await;
        let mut met = 0;
        for kill in 1..=KILLS {
            self.rows(MESSAGES / (KILLS + 2) * kill).await?;
            self.host.kill();
            let rows = self.count().total();
            if rows < MESSAGES {
                met += 1;
            }
            self.host.start().await;
        }
        if met == 0 {
            return Err(Failure::NeverFired(
                "every message had arrived before the first kill".into(),
            ));
        }
        self.complete().await?;
        self.all_settled().await?;
        Ok(format!("{met} kills met messages in process"))
    }

    async fn stopped(&mut self) -> Result<String> {
        self.host.start().await;
        self.offer(MESSAGES).await;
        self.rows(MESSAGES / 8).await?;
        let code = self.host.stop();
        if code != Some(0) {
            return Err(Failure::Broken(format!(
                "SIGTERM ended the host with {code:?}"
            )));
        }
        let rows = self.count().total();
        if rows >= MESSAGES {
            return Err(Failure::NeverFired(
                "every message had arrived before the stop".into(),
            ));
        }
        self.host.start().await;
        self.complete().await?;
        self.all_settled().await?;
        let status = self.host.get("/api/v1/status").await.unwrap_or_default();
        let repeats = status["adapters"][0]["outcomes"]["repeat"]
            .as_u64()
            .unwrap_or_default();
        if repeats > 0 {
            return Err(Failure::Contradicted(format!(
                "{repeats} accepted messages came again after a clean stop: their acknowledgements were lost"
            )));
        }
        Ok(format!(
            "stopped after {rows} of {MESSAGES}; none came again"
        ))
    }

    pub(super) async fn offer(&mut self, count: usize) {
        let first = self.ids.len();
        // Closed with a letter, so that no id is the beginning of another.
        let ids = (first..first + count).map(|n| format!("{}-m{n}z", self.place.tag));
        let ids: Vec<String> = ids.collect();
        self.origin.offer(&self.place, &ids).await;
        self.ids.extend(ids);
    }

    /// Waits until so many rows are there.
    pub(super) async fn rows(&self, count: usize) -> Result<()> {
        let (mut from, mut last) = (Instant::now(), 0);
        loop {
            let rows = self.count().total();
            if rows >= count {
                return Ok(());
            }
            if rows > last {
                (from, last) = (Instant::now(), rows);
            }
            if from.elapsed() > PATIENCE {
                return Err(Failure::Contradicted(format!(
                    "{rows} of {count} messages have arrived, and no more come"
                )));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until every message has arrived and no write is pending.
    pub(super) async fn complete(&self) -> Result<()> {
        self.rows(self.ids.len()).await?;
        self.host
            .until("no write pending", |status| {
                lane(status).is_some_and(|lane| lane["pending"] == 0)
            })
            .await;
        Ok(())
    }

    /// Waits until the other side regards every message as settled.
    pub(super) async fn all_settled(&self) -> Result<()> {
        let from = Instant::now();
        loop {
            match self.origin.settled(&self.place).await {
                None => return Ok(()),
                Some(settled) if settled >= self.ids.len() as u64 => return Ok(()),
                Some(settled) if from.elapsed() > PATIENCE => {
                    return Err(Failure::Contradicted(format!(
                        "all messages arrived, and only {settled} of {} were acknowledged",
                        self.ids.len()
                    )));
                }
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.place.folder.join("out.db")
    }

    pub(super) fn database(&self) -> Connection {
        let db = Connection::open(self.path()).expect("the database");
        db.busy_timeout(PATIENCE).expect("a timeout");
        db
    }

    /// The rows, read by a reader that can do nothing else.
    pub(super) fn count(&self) -> Count {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let db = Connection::open_with_flags(self.path(), flags).expect("the database");
        db.busy_timeout(PATIENCE).expect("a timeout");
        let mut rows = db.prepare("SELECT id, key FROM t").expect("the table");
        let effects = rows.query_map([], |row| {
            Ok(Effect {
                id: row.get(0)?,
                key: row.get(1)?,
            })
        });
        Count::of(
            effects
                .expect("rows")
                .map(|row| row.expect("a row"))
                .collect(),
        )
    }

    /// Keeps the log for a person.
    pub fn save(&self, folder: &Path) {
        let saved = std::fs::create_dir_all(folder).and_then(|()| {
            std::fs::write(folder.join("host.log"), self.host.log())?;
            std::fs::copy(self.host.config(), folder.join("consign.yaml")).map(drop)
        });
        if let Err(error) = saved {
            eprintln!("cannot keep the log in {}: {error}", folder.display());
        }
    }
}

/// Messages that the host has taken charge of since it started.
pub(super) fn accepted(adapter: &Value) -> u64 {
    ["accepted", "repeat"]
        .iter()
        .filter_map(|name| adapter["outcomes"][name].as_u64())
        .sum()
}
