//! The listener and its sessions: accepting, TLS, time limits and an orderly end.
//!
//! * The port is bound at `connect`; one task accepts and owns every session.
//! * After an answer that ends a connection, what the client still sends is read and thrown away for
//!   a while: closed at once, the client would see a broken pipe instead of the answer.

use crate::{config::ConnectionConfig, port, request, source::Places};
use consign_plugin::prelude::*;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

/// Largest head of a request (line and headers); a larger one is answered 431.
const MAX_HEAD: usize = 64 << 10;
/// How long a client may go on sending after the answer that ends its connection, in all and
/// between two packets.
const LINGER: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));
/// After a failed accept (no file handles left), before the next one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An address that is listened on.
pub struct Http {
    shared: Arc<Shared>,
    address: SocketAddr,
    finished: watch::Receiver<bool>,
    /// Accepts, and owns every session; ends with the connection.
    _accepting: JoinSet<()>,
}

/// What all sessions share.
pub(crate) struct Shared {
    pub config: ConnectionConfig,
    pub places: Places,
    /// Room for bodies, in KiB.
    pub room: Arc<Semaphore>,
    pub since: Instant,
    stop: watch::Sender<bool>,
}

#[async_trait]
impl Connector for Http {
    type Config = ConnectionConfig;
    const NAME: &'static str = "http";
    const TITLE: &'static str = "HTTP";

    async fn connect(config: ConnectionConfig, _: &ConnectionContext) -> Result<Self, Failure> {
        if let Some(fault) = config.faults().into_iter().next() {
            return Err(Failure::config(("config", fault)));
        }
        let tls = match &config.tls {
            Some(tls) => Some(TlsAcceptor::from(tls.server().await?)),
            None => None,
        };
        let listener = bind(&config.listen).await?;
        let address = listener
            .local_addr()
            .map_err(|e| Failure::down(("listen", e.to_string())))?;
        let kibibytes = usize::try_from(config.max_buffered.bytes() >> 10).unwrap_or(usize::MAX);
        let shared = Arc::new(Shared {
            config,
            places: Places::default(),
            room: Arc::new(Semaphore::new(kibibytes.clamp(1, Semaphore::MAX_PERMITS))),
            since: Instant::now(),
            stop: watch::Sender::new(false),
        });
        let (done, finished) = watch::channel(false);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, tls, Arc::clone(&shared), done));
        Ok(Self {
            shared,
            address,
            finished,
            _accepting: accepting,
        })
    }

    /// Nothing has to be reached: the listener is there or its task has ended.
    async fn probe(&self) -> Result<(), Failure> {
        match self.finished.has_changed() {
            Ok(false) => Ok(()),
            _ => Err(Failure::down(("closed", "the listener has ended"))),
        }
    }

    /// Accepts no more connections, and lets requests under way finish within the grace.
    async fn close(&self) {
        self.shared.stop.send_replace(true);
        // An error means that the task is gone already.
        let _ = self.finished.clone().wait_for(|finished| *finished).await;
    }
}

impl Http {
    /// The address that was bound: where `listen` has port 0, with the port the system chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

async fn bind(listen: &str) -> Result<TcpListener, Failure> {
    let error = match TcpListener::bind(listen).await {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let address = listen.to_owned();
            let found = tokio::task::spawn_blocking(move || port::holder(&address)).await;
            let by = found
                .ok()
                .flatten()
                .map_or(String::new(), |who| format!(" by {who}"));
            let what = format!("{listen} is in use{by}: stop that, or choose another `listen`");
            Err(Failure::down(("port_in_use", what)))
        }
        io::ErrorKind::PermissionDenied => Err(Failure::denied((
            "port_denied",
            format!("{listen}: {error}; ports below 1024 need a permission of their own"),
        ))),
        io::ErrorKind::AddrNotAvailable => Err(Failure::down((
            "no_such_address",
            format!("{listen} is not an address of this machine"),
        ))),
        _ => Err(Failure::down(("listen", format!("{listen}: {error}")))),
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    done: watch::Sender<bool>,
) {
    let mut sessions = JoinSet::new();
    let mut stop = shared.stop.subscribe();
    let slots = usize::try_from(shared.config.max_connections).unwrap_or(usize::MAX);
    let slots = Arc::new(Semaphore::new(slots.min(Semaphore::MAX_PERMITS)));
    loop {
        while sessions.try_join_next().is_some() {}
        let next = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (tls, shared) = (tls.clone(), Arc::clone(&shared));
                sessions.spawn(async move {
                    let _slot = slot;
                    session(stream, peer, tls, &shared).await;
                });
            }
            Err(error) => {
                tracing::warn!(
                    code = "accept_failed",
                    "a connection can't be accepted: {error}"
                );
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let all = async { while sessions.join_next().await.is_some() {} };
    if timeout(shared.config.shutdown_grace.get(), all)
        .await
        .is_err()
    {
        tracing::warn!(
            code = "sessions_cut",
            "requests were under way when the grace ended"
        );
        sessions.shutdown().await;
    }
    done.send_replace(true);
}

async fn session(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    shared: &Arc<Shared>,
) {
    // Answers are small and wanted at once.
    let _ = stream.set_nodelay(true);
    match tls {
        None => serve(stream, peer, shared).await,
        Some(tls) => {
            let handshake = timeout(shared.config.header_timeout.get(), tls.accept(stream)).await;
            match handshake {
                Ok(Ok(stream)) => serve(stream, peer, shared).await,
                Ok(Err(error)) => tracing::debug!(%peer, "no TLS: {error}"),
                Err(_) => tracing::debug!(%peer, "no TLS in time"),
            }
        }
    }
}

async fn serve<S>(stream: S, peer: SocketAddr, shared: &Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| {
        Box::pin(async move {
            let answer = request::handle(shared, peer, request).await;
            Ok::<_, Infallible>(answer.response())
        })
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(shared.config.header_timeout.get())
        .max_buf_size(MAX_HEAD);
    let mut connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut stop = shared.stop.subscribe();
    let mut stopping = false;
    let ended = loop {
        let until_end = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx));
        tokio::select! {
            ended = until_end => break ended,
            _ = stop.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                std::pin::Pin::new(&mut connection).graceful_shutdown();
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, "the connection ended: {error}");
    }
    linger(connection.into_parts().io.into_inner()).await;
}

async fn linger<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let (in_all, between) = LINGER;
    let _ = timeout(in_all, async {
        stream.shutdown().await?;
        let mut scrap = vec![0; 16 << 10];
        while let Ok(Ok(1..)) = timeout(between, stream.read(&mut scrap)).await {}
        io::Result::Ok(())
    })
    .await;
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
