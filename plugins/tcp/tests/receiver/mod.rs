//! A receiver with sockets of the standard library: what each stream carried, until it is told to
//! misbehave.
#![allow(dead_code, reason = "each test binary uses some of these")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How one stream is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Reads until the other side ends it.
    ReadAll,
    /// Reads this many bytes, then closes; what is unread makes that a reset.
    CloseAfter(usize),
    /// Sends this many bytes first, then reads.
    Chatter(usize),
}

/// A listener; each stream is read in a thread of its own.
pub struct Receiver {
    port: u16,
    streams: Arc<Mutex<Vec<Vec<u8>>>>,
    manner: Arc<Mutex<Manner>>,
}

impl Receiver {
    pub fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    pub fn on(listener: TcpListener) -> Self {
        let port = listener.local_addr().unwrap().port();
        let streams: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let manner = Arc::new(Mutex::new(Manner::ReadAll));
        let (kept, how) = (Arc::clone(&streams), Arc::clone(&manner));
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let place = kept.lock().unwrap().len();
                kept.lock().unwrap().push(Vec::new());
                let (kept, how) = (Arc::clone(&kept), *how.lock().unwrap());
                std::thread::spawn(move || read(stream, how, &kept, place));
            }
        });
        Self {
            port,
            streams,
            manner,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// How streams from now on are treated.
    pub fn treat(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    /// The bytes of each stream so far.
    pub fn streams(&self) -> Vec<Vec<u8>> {
        self.streams.lock().unwrap().clone()
    }

    /// All bytes so far, stream after stream.
    pub fn bytes(&self) -> Vec<u8> {
        self.streams().concat()
    }

    /// Waits until what has come is as wanted.
    pub async fn until(&self, what: &str, done: impl Fn(&[Vec<u8>]) -> bool) -> Vec<Vec<u8>> {
        let from = Instant::now();
        loop {
            let streams = self.streams();
            if done(&streams) {
                return streams;
            }
            let sizes: Vec<usize> = streams.iter().map(Vec::len).collect();
            assert!(
                from.elapsed() < Duration::from_secs(20),
                "never saw {what}: {sizes:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn read(mut stream: TcpStream, manner: Manner, kept: &Mutex<Vec<Vec<u8>>>, place: usize) {
    let mut left = match manner {
        Manner::CloseAfter(bytes) => bytes,
        _ => usize::MAX,
    };
    if let Manner::Chatter(bytes) = manner {
        stream.write_all(&vec![b'~'; bytes]).unwrap();
    }
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let room = buffer.len().min(left);
        match stream.read(&mut buffer[..room]) {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                kept.lock().unwrap()[place].extend_from_slice(&buffer[..count]);
                left -= count;
            }
        }
    }
}
