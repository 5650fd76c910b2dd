//! One TCP connection at a time, dialled again when it is gone.
//!
//! * The client library's reconnecting is off: it would send what waited in its queue over the next
//!   connection, after the host has given those writes up. A session is one connection, and what was
//!   not answered when it broke is never sent.
//! * `Client::flush` only empties the socket buffer. [`Session::round_trip`] publishes to an inbox of
//!   its own and waits for the echo: the server has then read all that was sent before.
//! * The server reports a missing permission beside the protocol; [`Session::denials`] carries it to
//!   the publish it belongs to.

use crate::config::ConnectionConfig;
use crate::outcome;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Event, ServerError, connection::State};
use bytes::Bytes;
use consign_plugin::prelude::*;
use futures::StreamExt;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::{broadcast, watch};

/// Where the library looks for a server after the first connection is gone: port 0 answers nobody,
/// so it ends instead of reconnecting.
const NOWHERE: &str = "nats://127.0.0.1:0";

/// After a failed dial, callers within this time get the same answer without another one.
const REDIAL_PAUSE: Duration = Duration::from_millis(250);

/// Permission violations that may wait for a reader; older ones are dropped, and their publishes
/// time out instead.
const DENIALS_KEPT: usize = 1024;

/// The error for a permission comes beside the echo that follows it; both are on their way through
/// this process when the echo is here.
const DENIAL_GRACE: Duration = Duration::from_millis(1);

/// A round trip that takes longer counts as none: the server is frozen or the path is cut, and a new
/// connection is the better bet.
const PROBE_WAIT: Duration = Duration::from_secs(3);

/// How often the state is looked at by who waits for the end of a connection.
const STATE_CHECK: Duration = Duration::from_secs(1);

/// A NATS server or cluster.
pub struct Nats {
    config: ConnectionConfig,
    name: String,
    session: Mutex<Option<Arc<Session>>>,
    dialling: tokio::sync::Mutex<Option<(Instant, Failure)>>,
}

/// One connection.
pub(crate) struct Session {
    pub client: Client,
    pub jetstream: Context,
    denials: broadcast::Sender<Denial>,
    broken: watch::Receiver<bool>,
}

/// The user lacks a permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Denial {
    /// To publish to this subject.
    Publish(String),
    /// To subscribe to this subject.
    Subscribe(String),
}

/// Why a round trip failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoRoundTrip {
    /// The connection is gone.
    Lost,
    /// The user may not subscribe to its inbox, so no answer can ever arrive.
    NoInbox(String),
}

#[async_trait]
impl Connector for Nats {
    type Config = ConnectionConfig;
    const NAME: &'static str = "nats";
    const TITLE: &'static str = "NATS";

    async fn connect(config: ConnectionConfig, cx: &ConnectionContext) -> Result<Self, Failure> {
        let connection = Self {
            config,
            name: format!("consign {}", cx.connection()),
            session: Mutex::new(None),
            dialling: tokio::sync::Mutex::new(None),
        };
        connection.session().await?;
        Ok(connection)
    }

    /// A round trip to the server, over a new connection if there is none.
    async fn probe(&self) -> Result<(), Failure> {
        let session = self.session().await?;
        match tokio::time::timeout(PROBE_WAIT, session.round_trip()).await {
            Ok(result) => result.map_err(|error| error.failure()),
            Err(_) => {
                self.forget(&session);
                Err(Failure::down(("timeout", "the server does not answer")))
            }
        }
    }

    async fn close(&self) {
        if let Ok(mut session) = self.session.lock() {
            session.take();
        }
    }
}

impl Nats {
    /// The connection that is up, or a new one.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, Failure> {
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let mut last_failure = self.dialling.lock().await;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        if let Some((at, failure)) = &*last_failure
            && at.elapsed() < REDIAL_PAUSE
        {
            return Err(failure.clone());
        }
        let within = self.config.timeouts.connect.get();
        let dialled = tokio::time::timeout(within, dial(&self.config, &self.name))
            .await
            .unwrap_or_else(|_| Err(Failure::down(("timeout", "the server does not answer"))));
        match dialled {
            Ok(session) => {
                let session = Arc::new(session);
                if let Ok(mut current) = self.session.lock() {
                    *current = Some(Arc::clone(&session));
                }
                *last_failure = None;
                Ok(session)
            }
            Err(failure) => {
                *last_failure = Some((Instant::now(), failure.clone()));
                Err(failure)
            }
        }
    }

    fn current(&self) -> Option<Arc<Session>> {
        let session = self.session.lock().ok()?.clone()?;
        session.is_up().then_some(session)
    }

    /// Gives a connection up that does not answer; the next caller dials.
    pub(crate) fn forget(&self, session: &Arc<Session>) {
        if let Ok(mut current) = self.session.lock()
            && current
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, session))
        {
            *current = None;
        }
    }

    /// How long one request may take.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.config.timeouts.request.get()
    }
}

async fn dial(config: &ConnectionConfig, name: &str) -> Result<Session, Failure> {
    let (denials, _) = broadcast::channel(DENIALS_KEPT);
    let events = denials.clone();
    let (breaks, broken) = watch::channel(false);
    let client = options(config)
        .await?
        .name(name)
        .custom_inbox_prefix(&config.inbox_prefix)
        .connection_timeout(config.timeouts.connect.get())
        .request_timeout(Some(config.timeouts.request.get()))
        .ping_interval(config.ping_interval.get())
        .ignore_discovered_servers()
        .max_reconnects(config.servers.len())
        .reconnect_delay_callback(|_| Duration::ZERO)
        .event_callback(move |event| {
            // Nobody listens for permissions while nothing is published.
            let _ = denial(&event).map(|denial| events.send(denial));
            if event == Event::Disconnected {
                breaks.send_replace(true);
            }
            std::future::ready(())
        })
        .connect(&config.servers)
        .await
        .map_err(|error| outcome::failure(&error))?;
    client
        .set_server_pool(NOWHERE)
        .await
        .map_err(|error| Failure::down(("connect", error.to_string())))?;
    let mut jetstream = match &config.jetstream_domain {
        Some(domain) => jetstream::with_domain(client.clone(), domain),
        None => jetstream::new(client.clone()),
    };
    jetstream.set_timeout(config.timeouts.request.get());
    let session = Session {
        client,
        jetstream,
        denials,
        broken,
    };
    session
        .round_trip()
        .await
        .map_err(|error| error.failure())?;
    Ok(session)
}

async fn options(config: &ConnectionConfig) -> Result<ConnectOptions, Failure> {
    let mut options = ConnectOptions::new();
    if let Some(auth) = &config.auth {
        options =
            options.user_and_password(auth.username.clone(), auth.password.expose().to_owned());
    }
    if let Some(token) = &config.token {
        options = options.token(token.expose().to_owned());
    }
    if let Some(seed) = &config.nkey_seed {
        options = options.nkey(seed.expose().to_owned());
    }
    if let Some(path) = &config.credentials_file {
        options = options.credentials_file(path).await.map_err(|error| {
            Failure::config(("credentials_file", format!("{}: {error}", path.display())))
        })?;
    }
    let tls_address = config
        .servers
        .iter()
        .any(|server| server.starts_with("tls://"));
    if config.tls.is_some() || tls_address {
        // The process may hold several providers; an error says that one is installed already.
        let _ = async_nats::rustls::crypto::ring::default_provider().install_default();
    }
    if let Some(tls) = &config.tls {
        options = options.require_tls(true);
        if let Some(ca) = &tls.ca_file {
            options = options.add_root_certificates(ca.clone());
        }
        if let (Some(cert), Some(key)) = (&tls.cert_file, &tls.key_file) {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
    }
    Ok(options)
}

impl Session {
    /// Whether the connection is up, as far as the client knows.
    pub fn is_up(&self) -> bool {
        !*self.broken.borrow() && self.client.connection_state() == State::Connected
    }

    /// Returns once the connection is gone.
    pub async fn gone(&self) {
        let mut broken = self.broken.clone();
        while self.is_up() {
            // The library drops events when many come at once, hence the look at the state.
            let _ = tokio::time::timeout(STATE_CHECK, broken.wait_for(|broken| *broken)).await;
        }
    }

    /// Permission violations from now on.
    pub fn denials(&self) -> broadcast::Receiver<Denial> {
        self.denials.subscribe()
    }

    /// Returns once the server has read everything that was sent before on this connection, and
    /// has reported the permissions that were missing.
    pub async fn round_trip(&self) -> Result<(), NoRoundTrip> {
        let inbox = self.client.new_inbox();
        let mut denials = self.denials();
        let subscribed = self.client.subscribe(inbox.clone()).await;
        let mut echo = subscribed.map_err(|_| NoRoundTrip::Lost)?;
        let published = self.client.publish(inbox.clone(), Bytes::new()).await;
        published.map_err(|_| NoRoundTrip::Lost)?;
        loop {
            tokio::select! {
                message = echo.next() => {
                    message.ok_or(NoRoundTrip::Lost)?;
                    tokio::time::sleep(DENIAL_GRACE).await;
                    return Ok(());
                }
                denial = denials.recv() => match denial {
                    // A refused echo was read as well.
                    Ok(Denial::Publish(subject)) if subject == inbox => return Ok(()),
                    Ok(Denial::Subscribe(subject)) if subject == inbox => {
                        return Err(NoRoundTrip::NoInbox(subject));
                    }
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return Err(NoRoundTrip::Lost),
                }
            }
        }
    }
}

impl NoRoundTrip {
    fn failure(self) -> Failure {
        match self {
            Self::Lost => Failure::down(("connection_lost", "the connection broke")),
            Self::NoInbox(subject) => Failure::denied((
                "no_inbox",
                format!("the user may not subscribe to `{subject}`: allow `<inbox_prefix>.>`"),
            )),
        }
    }
}

/// Reads `Permissions Violation for Publish to "subject"`.
fn denial(event: &Event) -> Option<Denial> {
    let Event::ServerError(ServerError::Other(text)) = event else {
        return None;
    };
    let (kind, rest) = text.split_once('"')?;
    let (subject, _) = rest.split_once('"')?;
    let subject = subject.to_owned();
    match kind.trim_end().to_ascii_lowercase().as_str() {
        "permissions violation for publish to" => Some(Denial::Publish(subject)),
        "permissions violation for subscription to" => Some(Denial::Subscribe(subject)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_errors_name_their_subject() {
        let server = |text: &str| Event::ServerError(ServerError::Other(text.to_owned()));
        let publish = server("Permissions Violation for Publish to \"a.b\"");
        assert_eq!(denial(&publish), Some(Denial::Publish("a.b".into())));
        let subscribe =
            server("Permissions Violation for Subscription to \"_INBOX.x.*\" using queue \"q\"");
        assert_eq!(
            denial(&subscribe),
            Some(Denial::Subscribe("_INBOX.x.*".into()))
        );
        assert_eq!(denial(&server("Stale Connection")), None);
        assert_eq!(denial(&server("Permissions Violation for \"a")), None);
        assert_eq!(denial(&Event::Disconnected), None);
    }
}
