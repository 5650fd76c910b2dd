//! A small server of our own, to test the kit itself and as a first destination for an author's
//! connector: one line in, one line out.
//!
//! `PUT <key> <id>` is answered `STORED`, or `REPEAT` where the server drops repeats and has the key
//! already. A key of `-` is none and never a repeat. An id of the form `hex:…` is stored decoded.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What was stored: id and key, in order.
type Stored = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// The server. Stops when it is dropped.
#[derive(Debug)]
pub struct KeyedServer {
    address: SocketAddr,
    stored: Stored,
    _tasks: JoinSet<()>,
}

impl KeyedServer {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// No port could be bound.
    pub async fn start(drops_repeats: bool) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let stored = Stored::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&stored), drops_repeats));
        Ok(Self {
            address,
            stored,
            _tasks: tasks,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was stored, in order: id and key.
    pub fn stored(&self) -> Vec<(String, Option<String>)> {
        let stored = self.stored.lock();
        stored.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn accept(listener: TcpListener, stored: Stored, drops_repeats: bool) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(serve(stream, Arc::clone(&stored), drops_repeats));
            }
        }
    }
}

async fn serve(stream: TcpStream, stored: Stored, drops_repeats: bool) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while let Ok(1..) = stream.read_line(&mut line).await {
        // A line without its end was cut off, and is no request.
        if !line.ends_with('\n') {
            return;
        }
        let answer = put(line.trim_end(), &stored, drops_repeats);
        line.clear();
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn put(line: &str, stored: &Stored, drops_repeats: bool) -> &'static str {
    let mut words = line.split(' ');
    let (Some("PUT"), Some(key), Some(id)) = (words.next(), words.next(), words.next()) else {
        return "UNKNOWN\n";
    };
    let key = (key != "-").then(|| key.to_owned());
    let id = id
        .strip_prefix("hex:")
        .map_or_else(|| id.to_owned(), decode);
    let mut stored = stored.lock().unwrap_or_else(PoisonError::into_inner);
    if drops_repeats && key.is_some() && stored.iter().any(|(_, known)| *known == key) {
        return "REPEAT\n";
    }
    stored.push((id, key));
    "STORED\n"
}

fn decode(hex: &str) -> String {
    let digits: Vec<u8> = hex.bytes().collect();
    let bytes = digits.chunks(2).filter_map(|pair| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok()
    });
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_dropped_by_key_and_never_without_one() {
        let stored = Stored::default();
        let put = |line| put(line, &stored, true);
        assert_eq!(put("PUT k a"), "STORED\n");
        assert_eq!(put("PUT k a"), "REPEAT\n");
        assert_eq!(put("PUT - a"), "STORED\n");
        assert_eq!(put("PUT - a"), "STORED\n");
        assert_eq!(put("PUT j hex:4142"), "STORED\n");
        assert_eq!(put("GET k"), "UNKNOWN\n");
        let ids: Vec<String> = stored.lock().unwrap().iter().map(|s| s.0.clone()).collect();
        assert_eq!(ids, ["a", "a", "a", "AB"]);
    }
}
