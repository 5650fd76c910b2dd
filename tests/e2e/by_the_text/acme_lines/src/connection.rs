//! One connection, and one exchange over it: a line out, a line back.

use crate::config::ConnectionConfig;
use crate::outcome::Lost;
use consign_plugin::prelude::*;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// One server. It dials when it is needed, so that an exchange that broke is followed by a fresh one.
pub struct AcmeLines {
    config: ConnectionConfig,
    stream: Mutex<Option<BufReader<TcpStream>>>,
}

#[async_trait]
impl Connector for AcmeLines {
    type Config = ConnectionConfig;
    const NAME: &'static str = "acme_lines";
    const TITLE: &'static str = "Acme Lines";

    async fn connect(config: ConnectionConfig, _: &ConnectionContext) -> Result<Self, Failure> {
        let new = Self {
            config,
            stream: Mutex::new(None),
        };
        new.probe().await?;
        Ok(new)
    }

    async fn probe(&self) -> Result<(), Failure> {
        match self.exchange("PING").await {
            Ok(_) => Ok(()),
            Err(Lost::Before(why) | Lost::After(why)) => Err(Failure::down(("down", why))),
        }
    }
}

impl AcmeLines {
    /// One exchange at a time: the protocol has no numbers to tell answers apart.
    ///
    /// # Errors
    /// Whether the request may have arrived: that is what the promise hangs on.
    pub async fn exchange(&self, line: &str) -> Result<String, Lost> {
        let mut slot = self.stream.lock().await;
        let mut stream = match slot.take() {
            Some(stream) => stream,
            None => self.dial().await?,
        };
        // Until the answer is whole the stream is ours alone: when this future is dropped at its deadline,
        // the stream goes with it, and a late answer can never be taken for the next one's.
        let answer = timeout(self.config.timeouts.request.get(), send(&mut stream, line)).await;
        match answer {
            Ok(Ok(answer)) => {
                *slot = Some(stream);
                Ok(answer)
            }
            Ok(Err(error)) => Err(Lost::After(error.to_string())),
            Err(_) => Err(Lost::After("no answer in time".to_owned())),
        }
    }

    async fn dial(&self) -> Result<BufReader<TcpStream>, Lost> {
        let address = &self.config.address;
        match timeout(
            self.config.timeouts.connect.get(),
            TcpStream::connect(address),
        )
        .await
        {
            Ok(Ok(stream)) => Ok(BufReader::new(stream)),
            Ok(Err(error)) => Err(Lost::Before(format!("{address}: {error}"))),
            Err(_) => Err(Lost::Before(format!("{address}: no connection in time"))),
        }
    }
}

async fn send(stream: &mut BufReader<TcpStream>, line: &str) -> std::io::Result<String> {
    stream.write_all(format!("{line}\n").as_bytes()).await?;
    stream.flush().await?;
    let mut answer = String::new();
    if stream.read_line(&mut answer).await? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer.trim_end().to_owned())
}
