//! Sessions with the server, dialled when needed, at most `max_sessions` at a time.
//!
//! * A session carries one transaction, and goes back to the others only after the server has said that
//!   it is over. One that timed out, was cancelled or broke is closed: the server then rolls back what
//!   was not committed, and `idle_in_transaction_session_timeout` has it do so even where nobody tells
//!   it that we are gone.
//! * The driver does not reconnect. What was not answered when a session broke is never sent by it.
//! * The database is known by the server's system identifier and its own number, kept in the plugin's
//!   folder: another one behind the same address is told, because keys that the old one knew are not
//!   in it.

use crate::config::{ConnectionConfig, host_and_port};
use crate::outcome;
use crate::tls::Secure;
use consign_plugin::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::{Client, NoTls};

/// After a failed dial, callers within this time get the same answer without another one.
const REDIAL_PAUSE: Duration = Duration::from_millis(250);

/// An idle session is asked for a sign of life after this long, at this interval, this often.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// Sent bytes that nobody acknowledges end a session after this long.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// A session that was not used for this long is closed: firewalls forget it sooner or later.
const IDLE: Duration = Duration::from_secs(300);

/// The first words with the server. `pg_control_system` may be closed to the user, so its answer comes
/// in a statement of its own.
const GREETING: &str = "SELECT current_setting('server_version_num')::int, current_setting('synchronous_commit') = 'off', current_setting('fsync') = 'off', current_database()::text, (SELECT oid::text FROM pg_database WHERE datname = current_database())";
const SYSTEM: &str = "SELECT system_identifier::text FROM pg_control_system()";

/// The oldest server that is supported: its catalog has the columns that are asked for.
const OLDEST: i32 = 120_000;

/// A PostgreSQL database.
pub struct Postgres {
    config: ConnectionConfig,
    dial: tokio_postgres::Config,
    tls: Option<Secure>,
    permits: Semaphore,
    idle: Mutex<Vec<Session>>,
    failed: Mutex<Option<(Instant, Failure)>>,
    about: Mutex<About>,
    /// Where it is noted which database this is.
    note: Option<PathBuf>,
}

/// What is known of the database.
#[derive(Debug, Clone, Default)]
pub(crate) struct About {
    /// Why a commit that was acknowledged might be lost all the same.
    pub warnings: Vec<String>,
    /// `synchronous_commit` is off where nobody sets it.
    pub asynchronous: bool,
    /// Another database is behind the connection than before.
    pub moved: Option<String>,
}

/// One session. Closed when it is dropped.
pub(crate) struct Session {
    pub client: Client,
    driver: JoinHandle<()>,
    used: Instant,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A session for one transaction.
pub(crate) struct Lease<'a> {
    session: Option<Session>,
    connection: &'a Postgres,
    _permit: SemaphorePermit<'a>,
}

impl Lease<'_> {
    /// The session.
    ///
    /// # Errors
    /// It has been given back; does not happen while it is held.
    pub fn client(&self) -> Result<&Client, Outcome> {
        let gone = || Outcome::down(("closed", "the session is closed"));
        self.session
            .as_ref()
            .map(|session| &session.client)
            .ok_or_else(gone)
    }

    /// Gives it back: its transaction is over, and the server has said so. Without this call the session
    /// is closed.
    pub fn give_back(mut self) {
        if let Some(mut session) = self.session.take() {
            session.used = Instant::now();
            lock(&self.connection.idle).push(session);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Connector for Postgres {
    type Config = ConnectionConfig;
    const NAME: &'static str = "postgres";
    const TITLE: &'static str = "PostgreSQL";

    async fn connect(config: ConnectionConfig, cx: &ConnectionContext) -> Result<Self, Failure> {
        if let Some(fault) = config.faults().into_iter().next() {
            return Err(Failure::config(("config", fault)));
        }
        let tls = match &config.tls {
            Some(tls) => Some(Secure::new(tls).await?),
            None => None,
        };
        let connection = Self {
            dial: dial(&config),
            tls,
            permits: Semaphore::new(usize::from(config.max_sessions)),
            idle: Mutex::default(),
            failed: Mutex::default(),
            about: Mutex::default(),
            note: cx
                .data_dir()
                .map(|folder| folder.join(format!("postgres-{}.database", cx.connection()))),
            config,
        };
        let session = connection.dialled().await?;
        lock(&connection.idle).push(session);
        Ok(connection)
    }

    /// A round trip on a session that waits, or on a new one.
    async fn probe(&self) -> Result<(), Failure> {
        let session = self.waiting();
        let session = match session {
            Some(session) => session,
            None => self.dialled().await?,
        };
        let within = self.config.timeouts.connect.get();
        let answer = tokio::time::timeout(within, session.client.check_connection()).await;
        match answer {
            Ok(Ok(())) => {
                lock(&self.idle).push(session);
                Ok(())
            }
            Ok(Err(error)) => Err(outcome::failure(&error)),
            Err(_) => Err(Failure::down(("timeout", "the server does not answer"))),
        }
    }

    async fn close(&self) {
        lock(&self.idle).clear();
    }
}

impl Postgres {
    pub(crate) fn config(&self) -> &ConnectionConfig {
        &self.config
    }

    pub(crate) fn about(&self) -> About {
        lock(&self.about).clone()
    }

    /// A session for one transaction; waits for one where all are in use.
    ///
    /// # Errors
    /// None could be dialled.
    pub(crate) async fn lease(&self) -> Result<Lease<'_>, Failure> {
        let closed = |_| Failure::down(("closed", "the connection is closed"));
        let permit = self.permits.acquire().await.map_err(closed)?;
        let session = match self.waiting() {
            Some(session) => session,
            None => self.dialled().await?,
        };
        Ok(Lease {
            session: Some(session),
            connection: self,
            _permit: permit,
        })
    }

    /// A session that waits and is not known to be broken.
    fn waiting(&self) -> Option<Session> {
        let mut idle = lock(&self.idle);
        idle.retain(|session| !session.client.is_closed() && session.used.elapsed() < IDLE);
        idle.pop()
    }

    async fn dialled(&self) -> Result<Session, Failure> {
        if let Some((at, failure)) = &*lock(&self.failed)
            && at.elapsed() < REDIAL_PAUSE
        {
            return Err(failure.clone());
        }
        let dialled = async {
            let session = match &self.tls {
                None => self.dial_with(NoTls).await?,
                Some(tls) => self.dial_with(tls.clone()).await?,
            };
            self.meet(&session.client).await?;
            Ok(session)
        };
        let dialled = dialled.await;
        let failure = dialled.as_ref().err().cloned();
        *lock(&self.failed) = failure.map(|failure| (Instant::now(), failure));
        dialled
    }

    async fn dial_with<T>(&self, tls: T) -> Result<Session, Failure>
    where
        T: tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>,
        T::Stream: Send + 'static,
    {
        // Each address has its own time; together they have this.
        let servers = u32::try_from(self.config.servers.len()).unwrap_or(u32::MAX);
        let within = self.config.timeouts.connect.get().saturating_mul(servers);
        let dialled = tokio::time::timeout(within, self.dial.connect(tls)).await;
        let (client, connection) = match dialled {
            Ok(Ok(dialled)) => dialled,
            Ok(Err(error)) => return Err(outcome::failure(&error)),
            Err(_) => {
                let text = format!("no server answered within {} s", within.as_secs_f64());
                return Err(Failure::down(("timeout", text)));
            }
        };
        // Its end shows at the client, with the reason.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Session {
            client,
            driver,
            used: Instant::now(),
        })
    }
}

impl Postgres {
    /// Takes note of what the server says of itself, and of which database it is.
    async fn meet(&self, client: &Client) -> Result<(), Failure> {
        let within = self.config.timeouts.connect.get();
        let silent = |_| Failure::down(("timeout", "the server does not answer"));
        let met = tokio::time::timeout(within, meet(client)).await;
        let (mut about, identity) = met.map_err(silent)??;
        if let (Some(identity), Some(note)) = (identity, &self.note)
            && let Some(moved) = remember(note, &identity).await
        {
            tracing::warn!("{moved}");
            about.moved = Some(moved);
        }
        let mut known = lock(&self.about);
        // Told at the next inspections, not only until the next session.
        about.moved = about.moved.or_else(|| known.moved.take());
        *known = about;
        Ok(())
    }
}

fn dial(config: &ConnectionConfig) -> tokio_postgres::Config {
    let mut dial = tokio_postgres::Config::new();
    for (host, port) in config.servers.iter().filter_map(|text| host_and_port(text)) {
        dial.host(host).port(port);
    }
    dial.dbname(&config.database)
        .user(&config.auth.username)
        .password(config.auth.password.expose())
        .application_name(&config.application_name)
        .connect_timeout(config.timeouts.connect.get())
        .keepalives_idle(KEEPALIVE.0)
        .keepalives_interval(KEEPALIVE.1)
        .keepalives_retries(KEEPALIVE.2)
        .tcp_user_timeout(UNACKNOWLEDGED)
        .target_session_attrs(TargetSessionAttrs::ReadWrite)
        .ssl_mode(match config.tls {
            Some(_) => SslMode::Require,
            None => SslMode::Disable,
        });
    dial
}

/// What the server says of itself, and which database it is where it tells.
async fn meet(client: &Client) -> Result<(About, Option<String>), Failure> {
    let failed = |error: tokio_postgres::Error| outcome::failure(&error);
    let row = client
        .query_typed_one(GREETING, &[])
        .await
        .map_err(failed)?;
    let version: i32 = row.try_get(0).map_err(failed)?;
    if version < OLDEST {
        let text = format!(
            "the server is version {}; 12 or later is needed",
            version / 10_000
        );
        return Err(Failure::config(("version", text)));
    }
    let asynchronous: bool = row.try_get(1).map_err(failed)?;
    let no_fsync: bool = row.try_get(2).map_err(failed)?;
    let name: String = row.try_get(3).map_err(failed)?;
    let number: String = row.try_get(4).map_err(failed)?;
    let mut warnings = Vec::new();
    if no_fsync {
        warnings.push("the server runs with fsync = off: what it has committed is lost at a crash of its machine".to_owned());
    }
    let system = client.query_typed_one(SYSTEM, &[]).await;
    let identity = match system.and_then(|row| row.try_get::<_, String>(0)) {
        Ok(system) => Some(format!("system {system}, database {name} ({number})")),
        Err(error) if error.as_db_error().is_some() => None,
        Err(error) => return Err(failed(error)),
    };
    let about = About {
        warnings,
        asynchronous,
        moved: None,
    };
    Ok((about, identity))
}

/// Notes which database it is, and says so where it was another one before.
async fn remember(note: &Path, identity: &str) -> Option<String> {
    let before = tokio::fs::read_to_string(note).await.unwrap_or_default();
    if before == identity {
        return None;
    }
    let noted = async {
        if let Some(folder) = note.parent() {
            tokio::fs::create_dir_all(folder).await?;
        }
        tokio::fs::write(note, identity).await
    };
    if let Err(error) = noted.await {
        tracing::warn!(path = %note.display(), %error, "cannot note which database this is");
    }
    (!before.is_empty()).then(|| {
        format!("another database is behind this connection than before ({identity}; before: {before}): it does not know what the old one has taken, so a write whose answer was lost may be in both")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn another_database_is_told_once_and_the_same_one_never() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("plugins/postgres-db.database");
        assert_eq!(remember(&note, "system 1").await, None);
        assert_eq!(remember(&note, "system 1").await, None);
        let told = remember(&note, "system 2").await;
        assert!(told.unwrap().contains("before: system 1"));
        assert_eq!(remember(&note, "system 2").await, None);
    }
}
