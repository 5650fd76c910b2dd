//! Sent, not confirmed: writes over TCP that the network took are counted apart and never sent again;
//! what it did not take waits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::config::{Config, FAST, send};
use common::{Poster, assert_ledgers, drained, events, lane, wait_for_event, wait_until};
use consign_e2e::{Host, consign, free_port};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinHandle, JoinSet};

const LANE: &str = "hooks/all/out";

/// Reads lines of every stream while it is started; its port stays the same.
struct Receiver {
    port: u16,
    lines: Arc<Mutex<Vec<String>>>,
    task: Option<JoinHandle<()>>,
}

impl Receiver {
    fn new(port: u16) -> Self {
        Self {
            port,
            lines: Arc::default(),
            task: None,
        }
    }

    async fn start(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        let lines = Arc::clone(&self.lines);
        self.task = Some(tokio::spawn(async move {
            // Dropped with this task, which closes every stream.
            let mut streams = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let lines = Arc::clone(&lines);
                streams.spawn(async move {
                    let mut stream = BufReader::new(stream).lines();
                    while let Ok(Some(line)) = stream.next_line().await {
                        lines.lock().unwrap().push(line);
                    }
                });
            }
        }));
    }

    /// Closes the listener and every stream.
    async fn stop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            drop(task.await);
        }
    }

    /// How often the body with each id arrived.
    fn copies(&self) -> BTreeMap<String, usize> {
        let mut copies = BTreeMap::new();
        for line in self.lines.lock().unwrap().iter() {
            let body: Value = serde_json::from_str(line).unwrap();
            let id = body["id"].as_str().unwrap().to_owned();
            *copies.entry(id).or_default() += 1;
        }
        copies
    }
}

fn config(port: u16, receiver: &Receiver, more: &str) -> Config {
    let address = format!("address: \"127.0.0.1:{}\"", receiver.port);
    Config::new()
        .connection("collector", "tcp", &address)
        .hooks(port, &[send("out", "collector", "tcp.send", "", more)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_network_took_is_counted_apart_and_not_sent_again_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let (port, mut receiver) = (free_port(), Receiver::new(free_port()));
    receiver.start().await;
    let mut host = Host::new(folder.path(), &config(port, &receiver, FAST).text());
    host.start().await;
    let client = reqwest::Client::new();
    let url = format!("http://127.0.0.1:{port}/in");
    for n in 0..20 {
        common::post(&client, &url, &format!("m{n}")).await;
    }
    let status = drained(&host).await;
    assert_ledgers(&status);
    let outcomes = &lane(&status, LANE)["outcomes"];
    assert_eq!(outcomes["sent_unconfirmed"], 20, "{outcomes:#}");
    assert!(
        outcomes["delivered"].as_u64().unwrap_or_default() == 0,
        "nobody has confirmed anything: {outcomes:#}"
    );
    // The page of the route says so, and the table of `status` has it.
    let promise = status["adapters"][0]["routes"][0]["promise"].to_string();
    assert!(promise.contains("not confirmed"), "{promise}");
    let printed = consign(&["status", "--host", &host.url("")]);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(printed.contains("sent_unconfirmed 20"), "{printed}");

    // A body that its framing cannot carry parks by name; what is behind it goes on.
    let broken = client
        .post(&url)
        .header("content-type", "application/json")
        .body("{\n\"id\": \"broken\"}");
    assert!(broken.send().await.unwrap().status().is_success());
    common::post(&client, &url, "behind").await;
    let status = drained(&host).await;
    assert_eq!(lane(&status, LANE)["outcomes"]["parked"], 1, "{status:#}");
    let refused = wait_for_event(&host, "refused").await;
    assert!(
        refused[0].to_string().contains("embedded_newline"),
        "{refused:#?}"
    );

    // Settled is settled: nothing of it is sent again, whatever happens to the host.
    wait_until("all 21", || receiver.copies().len() == 21).await;
    host.kill();
    host.start().await;
    common::post(&client, &url, "after the kill").await;
    wait_until("the next", || receiver.copies().len() == 22).await;
    let copies = receiver.copies();
    assert!(copies.values().all(|n| *n == 1), "{copies:?}");
    assert_eq!(host.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_receiver_keeps_a_backlog_that_drains_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (port, mut receiver) = (free_port(), Receiver::new(free_port()));
    receiver.start().await;
    let more = format!("batch: {{ max_writes: 16 }}, {FAST}");
    let mut host = Host::new(folder.path(), &config(port, &receiver, &more).text());
    host.start().await;
    let client = reqwest::Client::new();
    let url = format!("http://127.0.0.1:{port}/in");
    common::post(&client, &url, "first").await;
    wait_until("the first", || receiver.copies().len() == 1).await;
    drained(&host).await;
    receiver.stop().await;
    for n in 0..60 {
        common::post(&client, &url, &format!("b{n:02}")).await;
    }
    let status = host
        .until("the gate is closed", |status| {
            status["connections"][0]["gate"] == "closed"
        })
        .await;
    assert_eq!(lane(&status, LANE)["pending"], 60, "{status:#}");
    assert_eq!(events(&host, "gate_closed").await.len(), 1);
    // A kill in the outage changes nothing.
    host.kill();
    host.start().await;
    receiver.start().await;
    let status = drained(&host).await;
    assert_ledgers(&status);
    assert_eq!(lane(&status, LANE)["outcomes"]["sent_unconfirmed"], 61);
    wait_until("the backlog", || receiver.copies().len() == 61).await;
    assert!(receiver.copies().values().all(|n| *n == 1));
    let lines = receiver.lines.lock().unwrap().clone();
    let mut sorted = lines[1..].to_vec();
    sorted.sort_unstable();
    assert_eq!(lines[1..], sorted, "strict order over an outage and a kill");
    assert_eq!(host.stop(), Some(0));
}

/// Reads what comes and resets the stream inside a line of more than a mebibyte, twice; whole lines from then on.
/// Gives how often it cut.
fn cutter(receiver: &Receiver, listener: TcpListener) -> (Arc<AtomicUsize>, JoinHandle<()>) {
    let cuts = Arc::new(AtomicUsize::new(0));
    let (lines, count) = (Arc::clone(&receiver.lines), Arc::clone(&cuts));
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut line = Vec::new();
            let mut chunk = vec![0; 64 * 1024];
            while let Ok(n @ 1..) = stream.read(&mut chunk).await {
                line.extend_from_slice(&chunk[..n]);
                while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                    let whole: Vec<u8> = line.drain(..=end).collect();
                    let whole = String::from_utf8(whole).unwrap();
                    lines.lock().unwrap().push(whole);
                }
                if line.len() > 1024 * 1024 && count.load(Ordering::SeqCst) < 2 {
                    count.fetch_add(1, Ordering::SeqCst);
                    // With bytes unread in it, the stream is reset and not closed.
                    break;
                }
            }
        }
    });
    (cuts, task)
}

/// Nothing tells whether the receiver took half a line for a message. It is sent once more; cut again, it waits
/// for a person, and what is behind it does not wait with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_cut_twice_in_its_middle_parks_and_the_rest_flows() {
    let folder = tempfile::tempdir().unwrap();
    let (port, receiver) = (free_port(), Receiver::new(free_port()));
    // The system takes at most four mebibytes for a peer that does not read, and this little more.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let address = format!("127.0.0.1:{}", receiver.port);
    socket.bind(address.parse().unwrap()).unwrap();
    let listener = socket.listen(16).unwrap();
    let (cuts, task) = cutter(&receiver, listener);
    let mut host = Host::new(folder.path(), &config(port, &receiver, FAST).text());
    host.start().await;
    let url = format!("http://127.0.0.1:{port}/in");
    let client = reqwest::Client::new();
    let body = serde_json::json!({ "id": "large", "text": "x".repeat(7 << 20) });
    let posted = client.post(&url).json(&body).send().await.unwrap();
    assert!(posted.status().is_success(), "{posted:?}");
    let told = wait_for_event(&host, "write_held").await;
    assert_eq!(cuts.load(Ordering::SeqCst), 2, "{told:#?}");
    for n in 0..5 {
        common::post(&client, &url, &format!("m{n}")).await;
    }
    let told = wait_for_event(&host, "may_have_landed").await;
    assert_eq!(told.len(), 1, "{told:#?}");
    let status = drained(&host).await;
    assert_ledgers(&status);
    let outcomes = &lane(&status, LANE)["outcomes"];
    assert_eq!(outcomes["parked"], 1, "{outcomes:#}");
    assert_eq!(outcomes["sent_unconfirmed"], 5, "{outcomes:#}");
    wait_until("the rest", || receiver.copies().len() == 5).await;
    assert!(receiver.copies().values().all(|n| *n == 1));
    let failed = common::ok(&host, &["failed", "list"]);
    assert_eq!(failed[0]["reason"], "may_have_landed", "{failed:#}");

    // A person has looked at the receiver: it goes once more, whole.
    let id = failed[0]["id"].to_string();
    common::ok(&host, &["failed", "send-again", &id]);
    wait_until("the large one", || receiver.copies().len() == 6).await;
    assert_eq!(cuts.load(Ordering::SeqCst), 2);
    assert_eq!(host.stop(), Some(0));
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_under_load_lose_nothing_while_the_receiver_lives() {
    let folder = tempfile::tempdir().unwrap();
    let (port, mut receiver) = (free_port(), Receiver::new(free_port()));
    receiver.start().await;
    let more = format!("batch: {{ max_writes: 32 }}, {FAST}");
    let mut host = Host::new(folder.path(), &config(port, &receiver, &more).text());
    host.start().await;
    let poster = Poster::start(&format!("http://127.0.0.1:{port}/in"), 8);
    const KILLS: usize = 3;
    for _ in 0..KILLS {
        poster.wait_for(150).await;
        host.kill();
        host.start().await;
    }
    poster.wait_for(50).await;
    let ids = poster.finish().await;
    let status = drained(&host).await;
    assert_ledgers(&status);
    wait_until("every id", || receiver.copies().len() >= ids.len()).await;
    let copies = receiver.copies();
    let lost: Vec<&String> = ids.iter().filter(|id| !copies.contains_key(*id)).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    // One extra copy an unclean exit of what was on its way, and no more than may be in flight.
    assert!(copies.values().all(|n| *n <= 1 + KILLS), "{copies:?}");
    let doubled = copies.values().filter(|n| **n > 1).count();
    assert!(doubled <= KILLS * 2 * 32, "{doubled} ids came twice");
    assert_eq!(host.stop(), Some(0));
}

#[test]
fn check_says_at_every_level_that_nobody_confirms() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::new(free_port());
    let text = config(free_port(), &receiver, "").text();
    let host = Host::new(folder.path(), &text);
    let checked = consign(&["check", host.config().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "{said}");
    assert!(
        said.matches("not confirmed").count() >= 2,
        "levels two and four: {said}"
    );
    assert!(said.contains("raw TCP has no acknowledgement"), "{said}");
    let required = text.replace("tcp.send,", "tcp.send, require: effectively_once,");
    let host = Host::new(folder.path(), &required);
    let checked = consign(&["check", host.config().to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(2), "{checked:?}");
}
