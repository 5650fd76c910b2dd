//! A fault proxy for TCP: it stands between a connector and a real server and breaks the connection on
//! purpose, at a chosen byte or request, once or for ever.
//!
//! Bytes pass untouched (TLS too: a request inside TLS is then found by its place in the stream, not
//! by its text). A [`Fault`] is armed, waits for its [`Trigger`] and does its [`Action`]; how often it
//! *fired* is counted, because a scenario whose fault never fired proves nothing. Everything that
//! passed, was withheld or swallowed is in the [`Transcript`].
//!
//! What is "cut" is closed on both sides at once; what is "swallowed" was read from the server and
//! dropped, so the server believes that it was received.

mod link;
mod transcript;

pub use transcript::{Entry, Transcript, What};

use link::Link;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// When a fault fires, seen from one connection's bytes towards the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// At once on each new connection, before its first byte.
    Connect,
    /// After so many bytes of one connection, counted from when the fault was armed.
    Bytes(u64),
    /// Once these texts were seen in this order on one connection, counted from when the fault was
    /// armed: the mark of a message, then what makes the server apply it (`COMMIT`). One at least.
    Request(Vec<Vec<u8>>),
}

impl Trigger {
    /// The first request that contains this text.
    pub fn text(text: impl Into<Vec<u8>>) -> Self {
        Self::Request(vec![text.into()])
    }
}

/// What a fault does to the connection on which it fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Withholds the bytes that fired it and cuts: the request does not reach the server whole.
    CutBefore,
    /// Forwards the bytes up to and with the trigger, withholds what follows, and cuts.
    CutAfter,
    /// Forwards everything, and drops what the server answers from now on. The connection stays open
    /// until [`Proxy::cut`].
    SwallowReplies,
    /// Nothing passes any more in either direction, and nobody is told: a peer that is gone without
    /// a word.
    HalfOpen,
    /// Holds back each answer of the server for this long.
    Delay(Duration),
    /// Holds what the server answers until this long after the firing; then everything passes.
    Late(Duration),
    /// Lets at most so many bytes a second pass in each direction.
    Throttle(u64),
}

/// A fault to be armed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// When.
    pub when: Trigger,
    /// What.
    pub what: Action,
    /// How often; [`Fault::always`] for no limit.
    pub times: u64,
}

impl Fault {
    /// A fault that fires once.
    pub fn once(when: Trigger, what: Action) -> Self {
        Self {
            when,
            what,
            times: 1,
        }
    }

    /// A fault that fires each time its trigger comes.
    pub fn always(when: Trigger, what: Action) -> Self {
        Self {
            when,
            what,
            times: u64::MAX,
        }
    }
}

/// A proxy in front of one server. Stops, and cuts what is open, when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Owns the listener and every connection.
    tasks: JoinSet<()>,
}

/// What the listener and the connections share.
#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    armed: Mutex<Armed>,
    fired: watch::Sender<u64>,
    /// Connections made up to this number are cut.
    cut: watch::Sender<u64>,
    refusing: watch::Sender<bool>,
    connections: AtomicU64,
    transcript: Mutex<Transcript>,
}

/// The fault that waits, if one does.
#[derive(Debug, Default)]
struct Armed {
    fault: Option<Fault>,
    /// Changes with each arming, so that a connection starts counting anew.
    generation: u64,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `upstream`, which need not be there yet.
    ///
    /// # Errors
    /// No port could be bound.
    pub async fn start(upstream: SocketAddr) -> std::io::Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), upstream).await
    }

    /// The same on a port of its own choosing: for a server that tells its clients where it is, and says
    /// that it is there.
    ///
    /// # Errors
    /// The port could not be bound.
    pub async fn start_at(address: SocketAddr, upstream: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            armed: Mutex::default(),
            fired: watch::Sender::new(0),
            cut: watch::Sender::new(0),
            refusing: watch::Sender::new(false),
            connections: AtomicU64::new(0),
            transcript: Mutex::new(Transcript::begin()),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, address, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            tasks,
        })
    }

    /// Where to connect instead of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Arms a fault in place of the one before, and sets the count of firings back to none.
    pub fn arm(&self, fault: Fault) {
        let mut armed = self.shared.armed();
        armed.generation += 1;
        armed.fault = Some(fault);
        self.shared.fired.send_replace(0);
    }

    /// Takes the fault away. A connection on which it fired keeps what was done to it.
    pub fn disarm(&self) {
        let mut armed = self.shared.armed();
        armed.generation += 1;
        armed.fault = None;
    }

    /// Refuses new connections, or takes them again. Open ones stay.
    pub fn refuse(&self, refuse: bool) {
        self.shared.refusing.send_replace(refuse);
    }

    /// Cuts every connection that is open now.
    pub fn cut(&self) {
        let all = self.shared.connections.load(Ordering::SeqCst);
        self.shared.cut.send_replace(all);
    }

    /// How often the armed fault fired.
    pub fn fired(&self) -> u64 {
        *self.shared.fired.borrow()
    }

    /// Waits until the armed fault has fired; false when it has not within this time.
    pub async fn wait_fired(&self, within: Duration) -> bool {
        let mut fired = self.shared.fired.subscribe();
        let waited = tokio::time::timeout(within, fired.wait_for(|fired| *fired > 0)).await;
        matches!(waited, Ok(Ok(_)))
    }

    /// What passed so far.
    pub fn transcript(&self) -> Transcript {
        self.shared.transcript().clone()
    }

    /// Whether it still takes connections (it does for as long as it lives, unless it refuses).
    pub fn is_running(&self) -> bool {
        !self.tasks.is_empty()
    }
}

impl Shared {
    fn armed(&self) -> MutexGuard<'_, Armed> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn transcript(&self) -> MutexGuard<'_, Transcript> {
        self.transcript
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, connection: u64, what: What) {
        self.transcript().add(connection, what);
    }

    /// Counts a firing, unless the fault was changed meanwhile or is used up.
    fn fire(&self, generation: u64) -> Option<Action> {
        let mut armed = self.armed();
        if armed.generation != generation {
            return None;
        }
        let fault = armed.fault.as_mut()?;
        let action = fault.what;
        fault.times -= 1;
        if fault.times == 0 {
            armed.fault = None;
        }
        drop(armed);
        self.fired.send_modify(|fired| *fired += 1);
        Some(action)
    }
}

/// Takes connections. While it refuses, nobody listens on the port, as with a server that is down.
async fn accept(listener: TcpListener, address: SocketAddr, shared: Arc<Shared>) {
    let mut links = JoinSet::new();
    let mut refusing = shared.refusing.subscribe();
    let mut listener = Some(listener);
    loop {
        if *refusing.borrow_and_update() {
            listener = None;
        }
        let Some(open) = &listener else {
            if refusing.wait_for(|refuse| !refuse).await.is_err() {
                return;
            }
            listener = bind_again(address).await;
            continue;
        };
        tokio::select! {
            changed = refusing.changed() => if changed.is_err() { return },
            Some(_) = links.join_next(), if !links.is_empty() => {}
            accepted = open.accept() => if let Ok((client, _)) = accepted {
                let number = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
                links.spawn(serve(client, number, Arc::clone(&shared)));
            }
        }
    }
}

/// The port was ours a moment ago; somebody else can have taken it, so this is tried for a while.
async fn bind_again(address: SocketAddr) -> Option<TcpListener> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Some(listener),
            Err(_) if Instant::now() < until => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => {
                eprintln!("the fault proxy lost its port {address}: {error}");
                return None;
            }
        }
    }
}

async fn serve(client: TcpStream, number: u64, shared: Arc<Shared>) {
    shared.note(number, What::Opened);
    match TcpStream::connect(shared.upstream).await {
        Ok(server) => Link::new(number, shared).run(client, server).await,
        // The client sees its connection end at once, as it would see a server that just went away.
        Err(error) => shared.note(number, What::NoServer(error.to_string())),
    }
}

#[cfg(test)]
mod tests;
