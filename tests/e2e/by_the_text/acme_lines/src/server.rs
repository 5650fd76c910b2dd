//! A small line server for the tests: keeps lines by key, and breaks the connection when told to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The server's state.
#[derive(Default)]
pub struct Lines {
    /// Tag and line by key.
    pub kept: BTreeMap<String, (String, String)>,
    /// Applies the next request and closes without an answer.
    pub swallow_next: bool,
}

/// Starts a server; its address.
pub async fn start() -> (String, Arc<Mutex<Lines>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let lines = Arc::new(Mutex::new(Lines::default()));
    let shared = Arc::clone(&lines);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&shared)));
        }
    });
    (address, lines)
}

async fn serve(stream: TcpStream, lines: Arc<Mutex<Lines>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let words: Vec<&str> = line.trim_end().splitn(4, ' ').collect();
        let answer = match words.as_slice() {
            ["PING"] => "STORED",
            ["LINE", _, _, body] if body.is_empty() => "BAD empty line",
            ["LINE", key, tag, body] => {
                let mut lines = lines.lock().unwrap();
                let known = lines.kept.contains_key(*key);
                if !known {
                    let kept = ((*tag).to_owned(), (*body).to_owned());
                    lines.kept.insert((*key).to_owned(), kept);
                }
                if std::mem::take(&mut lines.swallow_next) {
                    return None;
                }
                if known { "KNOWN" } else { "STORED" }
            }
            _ => "BAD request",
        };
        stream
            .write_all(format!("{answer}\n").as_bytes())
            .await
            .ok()?;
    }
}
