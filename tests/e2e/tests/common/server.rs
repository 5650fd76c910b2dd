//! A destination that can misbehave: an HTTP server of the test's own, and the plugin that posts to it
//! (`examples/post.rs`). What arrives is counted here, whatever the host believes.

use consign_e2e::built;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// One request that arrived whole.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    /// Its write key.
    pub key: String,
    pub body: String,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// This status.
    Status(u16),
    /// Nothing, until the client gives up: it may or may not have taken effect.
    Silence,
}

type Behaviour = Box<dyn Fn(&Request) -> Answer + Send>;

/// Listens on a port that stays the same when it is stopped and started.
pub struct Server {
    port: u16,
    behaviour: Arc<Mutex<Behaviour>>,
    requests: Arc<Mutex<Vec<Request>>>,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Server {
    /// On this port, not listening yet, answering 200.
    pub fn new(port: u16) -> Self {
        Self {
            port,
            behaviour: Arc::new(Mutex::new(Box::new(|_| Answer::Status(200)))),
            requests: Arc::default(),
            task: None,
        }
    }

    pub async fn start(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        let (behaviour, requests) = (Arc::clone(&self.behaviour), Arc::clone(&self.requests));
        self.task = Some(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (behaviour, requests) = (Arc::clone(&behaviour), Arc::clone(&requests));
                tokio::spawn(async move {
                    let _ = serve(stream, &behaviour, &requests).await;
                });
            }
        }));
    }

    /// Answers like this from now on.
    pub fn answer(&self, behaviour: impl Fn(&Request) -> Answer + Send + 'static) {
        *self.behaviour.lock().unwrap() = Box::new(behaviour);
    }

    /// Every request so far, in order.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// How often each body arrived.
    pub fn copies(&self) -> BTreeMap<String, usize> {
        let mut copies = BTreeMap::new();
        for request in self.requests() {
            *copies.entry(request.body).or_default() += 1;
        }
        copies
    }

    /// The connection `server`.
    pub fn config(&self) -> String {
        format!("address: \"127.0.0.1:{}\"", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

async fn serve(
    mut stream: TcpStream,
    behaviour: &Mutex<Behaviour>,
    requests: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    let request = loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        if let Some(request) = whole(&bytes) {
            break request;
        }
    };
    let answer = behaviour.lock().unwrap()(&request);
    requests.lock().unwrap().push(request);
    match answer {
        Answer::Status(status) => {
            let reply =
                format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(reply.as_bytes()).await
        }
        Answer::Silence => {
            let _ = stream.read_buf(&mut bytes).await;
            Ok(())
        }
    }
}

fn whole(bytes: &[u8]) -> Option<Request> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let header = |name: &str| {
        head.lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let length: usize = header("content-length:")?.parse().ok()?;
    (body.len() == length).then(|| Request {
        path: head.split(' ').nth(1).unwrap_or_default().to_owned(),
        key: header("idempotency-key:").unwrap_or_default().to_owned(),
        body: body.to_owned(),
    })
}

/// A folder with the plugin that posts, for `plugins:`.
pub fn plugin(folder: &Path) -> PathBuf {
    example(folder, "post")
}

/// A folder with a plugin of this package's examples. `cargo test -p consign-e2e` has built it; where it
/// is missing or older than its source (a run of one test file), it is built here.
pub fn example(folder: &Path, name: &str) -> PathBuf {
    // One at a time, so that tests beside each other build it once.
    static BUILDING: Mutex<()> = Mutex::new(());
    let profile = built().consign.parent().unwrap().to_owned();
    let library = profile.join(format!("examples/lib{name}.so"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
    let written = |file: &Path| {
        std::fs::metadata(file)
            .and_then(|meta| meta.modified())
            .ok()
    };
    {
        let _one = BUILDING
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if written(&library) < written(&source) {
            build(profile.parent().unwrap(), name);
        }
    }
    let place = folder.join("more-plugins");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::copy(&library, place.join(format!("lib{name}.so"))).unwrap();
    place
}

fn build(target: &Path, name: &str) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--package", "consign-e2e", "--example", name]);
    cargo
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .env("CARGO_TARGET_DIR", target);
    // What cargo told this test about its own package would make some build scripts run again.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    assert!(
        cargo.status().unwrap().success(),
        "the plugin does not build"
    );
}
