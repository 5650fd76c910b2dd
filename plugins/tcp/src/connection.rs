//! One stream at a time, dialled again when it is gone.
//!
//! * The network stack takes bytes for a receiver that has gone without a word, so before each batch
//!   the stream is asked whether its other end is still there ([`Session::check`]); what is handed over
//!   after that and before the receiver dies is the part that nobody can confirm.
//! * A stream is taken out of its place while a batch goes over it and put back only between two
//!   frames: a batch that fails, times out or is cancelled leaves no half of a frame for the next one.
//! * Sent bytes that nobody acknowledges end the stream after `unacknowledged`, an idle stream is asked
//!   for a sign of life after `keepalive`.

use crate::config::ConnectionConfig;
use crate::outcome::{of_dial, of_io};
use consign_plugin::prelude::*;
use consign_plugin::tls::rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// After a failed dial, batches within this time get the same answer without another one.
const REDIAL_PAUSE: Duration = Duration::from_millis(250);

/// Time between two questions for a sign of life, and how many stay without answer before the end.
const KEEPALIVE: (Duration, u32) = (Duration::from_secs(10), 3);

/// Bytes handed over between two looks at how far it got: what may have left when TLS fails is at most
/// this much.
const PIECE: usize = 64 << 10;

/// In TLS 1.3 a receiver refuses our certificate only after the handshake has ended on this side; a new
/// stream waits this long for that before it takes anything.
const REFUSAL_WAIT: Duration = Duration::from_millis(100);

/// How long the receiver may take to read the rest when the stream is closed.
const LINGER: Duration = Duration::from_secs(1);

/// Looks at what the receiver has sent, at most so often before a batch: it is thrown away.
const MAX_SCRAPS: usize = 64;

/// A receiver.
pub struct Tcp {
    config: ConnectionConfig,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    place: Mutex<Place>,
}

/// Where the stream waits for the next batch.
#[derive(Default)]
struct Place {
    session: Option<Session>,
    failed: Option<(Instant, Failure)>,
}

/// One stream.
struct Session {
    stream: Box<dyn Stream>,
    tls: bool,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send + Sync {
    fn socket(&self) -> &TcpStream;
}

impl Stream for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl Stream for TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// How far the bytes of a batch got.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The network stack took these for certain.
    pub taken: usize,
    /// Of these it may have taken some. At least `taken`.
    pub begun: usize,
    /// What ended it, unless all were taken.
    pub ended_by: Option<Detail>,
}

#[async_trait]
impl Connector for Tcp {
    type Config = ConnectionConfig;
    const NAME: &'static str = "tcp";
    const TITLE: &'static str = "TCP";

    async fn connect(config: ConnectionConfig, _: &ConnectionContext) -> Result<Self, Failure> {
        if let Some(fault) = config.faults().into_iter().next() {
            return Err(Failure::config(("config", fault)));
        }
        let tls = match &config.tls {
            Some(tls) => {
                let name = tls.expected_name(config.host().unwrap_or_default())?;
                Some((TlsConnector::from(tls.client().await?), name))
            }
            None => None,
        };
        let connection = Self {
            config,
            tls,
            place: Mutex::default(),
        };
        connection.probe().await?;
        Ok(connection)
    }

    /// The other end of the stream is there, or a new dial reaches it. A receiver has no other way to
    /// say anything.
    async fn probe(&self) -> Result<(), Failure> {
        let mut place = self.place.lock().await;
        let session = self.session(&mut place).await?;
        place.session = Some(session);
        Ok(())
    }

    /// Lets the receiver read what is under way: closed at once, a stream with unread bytes in it would
    /// be reset.
    async fn close(&self) {
        if let Some(session) = self.place.lock().await.session.take() {
            session.finish().await;
        }
    }
}

impl Tcp {
    pub(crate) fn config(&self) -> &ConnectionConfig {
        &self.config
    }

    /// Hands the bytes of a batch over, until then or until the stream ends.
    ///
    /// # Errors
    /// There is no stream: nothing was handed over.
    pub(crate) async fn send(
        &self,
        bytes: &[u8],
        until: tokio::time::Instant,
    ) -> Result<Progress, Failure> {
        let stalled = || io::Error::from(io::ErrorKind::TimedOut);
        let ready = async {
            let mut place = self.place.lock().await;
            let session = self.session(&mut place).await?;
            Ok::<_, Failure>((place, session))
        };
        let (mut place, mut session) = timeout_at(until, ready)
            .await
            .unwrap_or_else(|_| Err(of_dial(&self.config.address, &stalled())))?;
        let mut progress = Progress::default();
        let pushed = timeout_at(until, session.push(bytes, &mut progress))
            .await
            .unwrap_or_else(|_| Err(stalled()));
        match pushed {
            Ok(()) => place.session = Some(session),
            Err(error) => progress.ended_by = Some(of_io(&error)),
        }
        Ok(progress)
    }

    /// The stream that is up, taken out of its place, or a new one.
    async fn session(&self, place: &mut Place) -> Result<Session, Failure> {
        if let Some(mut session) = place.session.take() {
            match session.check().await {
                Ok(()) => return Ok(session),
                Err(error) => {
                    tracing::debug!(address = self.config.address, "a new stream: {error}")
                }
            }
        }
        if let Some((at, failure)) = &place.failed
            && at.elapsed() < REDIAL_PAUSE
        {
            return Err(failure.clone());
        }
        let dialled = timeout(self.config.timeouts.connect.get(), self.dial()).await;
        let dialled = dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        place.failed = None;
        dialled.map_err(|error| {
            let failure = of_dial(&self.config.address, &error);
            place.failed = Some((Instant::now(), failure.clone()));
            failure
        })
    }

    async fn dial(&self) -> io::Result<Session> {
        let socket = TcpStream::connect(&self.config.address).await?;
        self.set_options(&socket)?;
        let Some((connector, name)) = &self.tls else {
            return Ok(Session {
                stream: Box::new(socket),
                tls: false,
            });
        };
        let mut stream = connector.connect(name.clone(), socket).await?;
        let mut scrap = [0; 1];
        match timeout(REFUSAL_WAIT, stream.read(&mut scrap)).await {
            Ok(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) | Err(_) => {}
        }
        Ok(Session {
            stream: Box::new(stream),
            tls: true,
        })
    }

    fn set_options(&self, socket: &TcpStream) -> io::Result<()> {
        let (interval, times) = KEEPALIVE;
        let keepalive = TcpKeepalive::new()
            .with_time(self.config.keepalive.get())
            .with_interval(interval)
            .with_retries(times);
        let raw = SockRef::from(socket);
        raw.set_tcp_keepalive(&keepalive)?;
        raw.set_tcp_user_timeout(Some(self.config.unacknowledged.get()))?;
        if let Some(size) = self.config.send_buffer {
            raw.set_send_buffer_size(usize::try_from(size.bytes()).unwrap_or(usize::MAX))?;
        }
        // A batch is one piece already; waiting for more would only delay its last packet.
        socket.set_nodelay(true)
    }
}

impl Session {
    /// Whether the other end is still there, as far as this side has been told. What it has said is read
    /// and thrown away.
    async fn check(&mut self) -> io::Result<()> {
        let mut scrap = [0; 4096];
        for _ in 0..MAX_SCRAPS {
            let stream = &mut self.stream;
            let found = poll_fn(|cx| {
                let mut read = ReadBuf::new(&mut scrap);
                Poll::Ready(match Pin::new(&mut *stream).poll_read(cx, &mut read) {
                    Poll::Ready(Ok(())) => Some(Ok(read.filled().len())),
                    Poll::Ready(Err(error)) => Some(Err(error)),
                    Poll::Pending => None,
                })
            });
            match found.await.transpose()? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(_) => {}
                None => break,
            }
        }
        // The runtime may not have heard of the end yet; the socket itself knows.
        let mut byte = [MaybeUninit::uninit(); 1];
        match SockRef::from(self.stream.socket()).peek(&mut byte) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Hands the bytes over, and keeps account of how far it got.
    async fn push(&mut self, bytes: &[u8], progress: &mut Progress) -> io::Result<()> {
        for piece in bytes.chunks(PIECE) {
            let before = progress.taken;
            let mut rest = piece;
            while !rest.is_empty() {
                if self.tls {
                    // What TLS took may still be in its own buffer: only the flush tells.
                    progress.begun = before + piece.len();
                }
                let count = self.stream.write(rest).await?;
                if count == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                if !self.tls {
                    progress.taken += count;
                    progress.begun = progress.taken;
                }
                rest = rest.get(count..).unwrap_or_default();
            }
            self.stream.flush().await?;
            progress.taken = before + piece.len();
        }
        Ok(())
    }

    async fn finish(mut self) {
        let read_out = async {
            self.stream.shutdown().await?;
            let mut scrap = [0; 4096];
            while self.stream.read(&mut scrap).await? > 0 {}
            io::Result::Ok(())
        };
        // Who does not read until the end within the time gets what its machine has.
        let _ = timeout(LINGER, read_out).await;
    }
}
