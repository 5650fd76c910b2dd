//! One dial: TCP to the service or to a proxy before it, then TLS where the address asks for it.

use crate::config::ConnectionConfig;
use crate::outcome::chain;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use consign_plugin::prelude::*;
use consign_plugin::tls::disagreement;
use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Error;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;
use url::Url;

/// A proxy's answer to CONNECT is at most this long.
const MAX_ANSWER: usize = 8 << 10;

/// Makes connections.
#[derive(Clone)]
pub struct Dialer {
    tls: TlsConnector,
    names: Tls,
    proxy: Option<Proxy>,
    within: Duration,
}

/// A proxy between.
#[derive(Clone)]
struct Proxy {
    host: String,
    port: u16,
    authorization: Option<Secret>,
}

/// `Basic …`, as a header has it.
#[must_use]
pub fn basic(username: &str, password: &Secret) -> Secret {
    let pair = format!("{username}:{}", password.expose());
    Secret::new(format!("Basic {}", STANDARD.encode(pair)))
}

impl Dialer {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// `Config`, with the file and what is wrong with it.
    pub async fn new(config: &ConnectionConfig) -> Result<Self, Failure> {
        let names = config.tls.clone().unwrap_or_default();
        let proxy = match config.proxy.as_deref().map(Url::parse) {
            Some(Ok(url)) => Some(Proxy {
                host: url.host_str().unwrap_or_default().to_owned(),
                port: url.port_or_known_default().unwrap_or(80),
                authorization: (config.proxy_auth.as_ref())
                    .map(|auth| basic(&auth.username, &auth.password)),
            }),
            _ => None,
        };
        Ok(Self {
            tls: TlsConnector::from(names.client().await?),
            names,
            proxy,
            within: config.timeouts.connect.get(),
        })
    }

    /// What a request without TLS shows to the proxy that it goes to.
    #[must_use]
    pub fn proxy_authorization(&self) -> Option<&Secret> {
        self.proxy.as_ref()?.authorization.as_ref()
    }

    /// Whether a connection to the service can be made. Nothing is sent over it.
    ///
    /// # Errors
    /// `Down`, or `Denied` where the two sides do not agree on TLS or a proxy refuses us.
    pub async fn reach(&self, uri: &Uri) -> Result<Stream, Failure> {
        let dialled = tokio::time::timeout(self.within, self.dial(uri)).await;
        dialled.unwrap_or_else(|_| {
            let text = format!("no connection within {} s", self.within.as_secs_f64());
            Err(Failure::down(("timeout", text)))
        })
    }

    async fn dial(&self, uri: &Uri) -> Result<Stream, Failure> {
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let (to, to_port) = match &self.proxy {
            Some(proxy) => (proxy.host.as_str(), proxy.port),
            None => (host, port),
        };
        let place = format!("{to}:{to_port}");
        let failed = |error: io::Error| broken(&place, &error);
        let mut tcp = TcpStream::connect((to, to_port)).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        if let (Some(proxy), true) = (&self.proxy, secure) {
            tunnel(&mut tcp, proxy, host, port).await?;
        }
        let io: Box<dyn Bytes> = if secure {
            let name = self.names.expected_name(host)?;
            let shaken = self.tls.connect(name, tcp).await;
            Box::new(shaken.map_err(|error| broken(&format!("{host}:{port}"), &error))?)
        } else {
            Box::new(tcp)
        };
        Ok(Stream {
            io: TokioIo::new(io),
            to_proxy: self.proxy.is_some() && !secure,
        })
    }
}

fn broken(place: &str, error: &io::Error) -> Failure {
    match disagreement(error) {
        Some(words) => Failure::denied(("tls", format!("{place}: {words}"))),
        None => Failure::down(("connect", format!("{place}: {error}"))),
    }
}

/// Asks the proxy for a way through (RFC 9110, 9.3.6).
async fn tunnel(tcp: &mut TcpStream, proxy: &Proxy, host: &str, port: u16) -> Result<(), Failure> {
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    if let Some(authorization) = &proxy.authorization {
        request.push_str(&format!(
            "Proxy-Authorization: {}\r\n",
            authorization.expose()
        ));
    }
    request.push_str("\r\n");
    let place = format!("proxy {}:{}", proxy.host, proxy.port);
    let failed = |error: io::Error| Failure::down(("proxy", format!("{place}: {error}")));
    tcp.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") && answer.len() < MAX_ANSWER {
        // Byte by byte: what follows is the service's.
        answer.push(tcp.read_u8().await.map_err(failed)?);
    }
    let text = String::from_utf8_lossy(&answer);
    let line = text.lines().next().unwrap_or_default();
    match line.split(' ').nth(1) {
        Some(status) if status.starts_with('2') => Ok(()),
        Some("403" | "407") => Err(Failure::denied(("proxy", format!("{place}: {line}")))),
        _ => Err(Failure::down(("proxy", format!("{place}: {line}")))),
    }
}

/// Why there was no connection for a request.
#[must_use]
pub fn failure(error: &Error) -> Failure {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.clone();
        }
        next = cause.source();
    }
    Failure::down(("connect", chain(error)))
}

impl Service<Uri> for Dialer {
    type Response = Stream;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(async move { dialer.reach(&uri).await })
    }
}

trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bytes for T {}

/// A connection, plain or inside TLS.
pub struct Stream {
    io: TokioIo<Box<dyn Bytes>>,
    to_proxy: bool,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.to_proxy)
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
