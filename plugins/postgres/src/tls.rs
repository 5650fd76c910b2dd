//! TLS for the driver: required, with the shared settings' certificates and the one crypto provider.

use consign_plugin::prelude::*;
use consign_plugin::tls::rustls::ClientConfig;
use consign_plugin::tls::rustls::pki_types::ServerName;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::{TlsConnector, client};

/// Makes the TLS side of each dial.
#[derive(Clone)]
pub(crate) struct Secure {
    config: Arc<ClientConfig>,
    settings: Tls,
}

impl Secure {
    /// Reads the files that the settings name.
    pub async fn new(settings: &Tls) -> Result<Self, Failure> {
        Ok(Self {
            config: settings.client().await?,
            settings: settings.clone(),
        })
    }
}

impl MakeTlsConnect<Socket> for Secure {
    type Stream = Stream;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        let name = self.settings.expected_name(host);
        Ok(Handshake {
            connector: TlsConnector::from(Arc::clone(&self.config)),
            name: name.map_err(io::Error::other)?,
        })
    }
}

pub(crate) struct Handshake {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let stream = self.connector.connect(self.name, socket).await?;
            Ok(Stream(Box::new(stream)))
        })
    }
}

/// A stream inside TLS.
pub(crate) struct Stream(Box<client::TlsStream<Socket>>);

impl TlsStream for Stream {
    /// Without channel binding: the certificate is always checked, which is what it would add to.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}
