//! As much of the NATS protocol as counting needs, over one TCP connection: text lines, and payloads
//! of announced length. A fault panics.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// How long an answer of the server may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Raw {
    stream: BufReader<TcpStream>,
    subscriptions: u32,
}

/// A message as it came.
pub struct Message {
    headers: String,
    pub payload: Vec<u8>,
}

impl Message {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<String> {
        self.headers.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            (found == name).then(|| value.trim().to_owned())
        })
    }
}

impl Raw {
    pub async fn connect(server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server).await.expect("nats-server");
        let mut raw = Self {
            stream: BufReader::new(stream),
            subscriptions: 0,
        };
        raw.line().await.expect("INFO");
        raw.say("CONNECT {\"verbose\":false,\"headers\":true}\r\n")
            .await;
        raw
    }

    /// Subscribes, and returns once the server knows of it.
    pub async fn subscribe(&mut self, subject: &str) {
        self.subscriptions += 1;
        let number = self.subscriptions;
        self.say(&format!("SUB {subject} {number}\r\nPING\r\n"))
            .await;
        while self.line().await.expect("PONG") != "PONG" {}
    }

    /// The next message; none when the connection has ended.
    pub async fn next(&mut self) -> Option<Message> {
        loop {
            let line = self.line().await?;
            let mut words = line.split_whitespace();
            let (head, total) = match words.next() {
                Some("MSG") => (0, words.next_back()?.parse().ok()?),
                Some("HMSG") => {
                    let total = words.next_back()?.parse().ok()?;
                    (words.next_back()?.parse().ok()?, total)
                }
                Some("PING") => {
                    self.say("PONG\r\n").await;
                    continue;
                }
                Some("-ERR") => panic!("nats-server: {line}"),
                _ => continue,
            };
            let mut bytes: Vec<u8> = vec![0; total];
            self.stream.read_exact(&mut bytes).await.ok()?;
            self.line().await?;
            let payload = bytes.split_off(head);
            return Some(Message {
                headers: String::from_utf8(bytes).expect("headers are text"),
                payload,
            });
        }
    }

    async fn request(&mut self, subject: &str, payload: &Value) -> Message {
        let inbox = format!("_INBOX.conformance.{}", self.subscriptions + 1);
        let text = payload.to_string();
        self.subscribe(&inbox).await;
        self.say(&format!(
            "PUB {subject} {inbox} {}\r\n{text}\r\n",
            text.len()
        ))
        .await;
        let answer = tokio::time::timeout(PATIENCE, self.next()).await;
        let answer = answer
            .expect("an answer of nats-server")
            .expect("a connection");
        let number = self.subscriptions;
        self.say(&format!("UNSUB {number}\r\n")).await;
        answer
    }

    /// Publishes into a stream and returns once it has stored them all.
    pub async fn publish_all(&mut self, stream: &str, subject: &str, payloads: &[String]) {
        let before = self.stored_count(stream).await;
        for payload in payloads {
            let length = payload.len();
            self.say(&format!("PUB {subject} {length}\r\n{payload}\r\n"))
                .await;
        }
        let until = tokio::time::Instant::now() + PATIENCE;
        while self.stored_count(stream).await < before + payloads.len() as u64 {
            assert!(tokio::time::Instant::now() < until, "not stored");
        }
    }

    async fn stored_count(&mut self, stream: &str) -> u64 {
        let info = self.api(&format!("STREAM.INFO.{stream}"), &json!({})).await;
        info["state"]["messages"].as_u64().expect("a number")
    }

    /// How many messages of a stream its consumer has acknowledged; none before there is one.
    pub async fn acknowledged(&mut self, stream: &str, consumer: &str) -> u64 {
        let stored = self.api(&format!("STREAM.INFO.{stream}"), &json!({})).await;
        let subject = format!("$JS.API.CONSUMER.INFO.{stream}.{consumer}");
        let info = self.request(&subject, &json!({})).await;
        let info: Value = serde_json::from_slice(&info.payload).expect("JSON");
        let (Some(waiting), Some(open)) = (
            info["num_pending"].as_u64(),
            info["num_ack_pending"].as_u64(),
        ) else {
            return 0;
        };
        let stored = stored["state"]["messages"].as_u64().expect("a number");
        stored - waiting - open
    }

    async fn api(&mut self, subject: &str, payload: &Value) -> Value {
        let answer = self.request(&format!("$JS.API.{subject}"), payload).await;
        let answer: Value = serde_json::from_slice(&answer.payload).expect("JSON");
        assert!(answer.get("error").is_none(), "{subject}: {answer}");
        answer
    }

    /// A stream on disk that can be read message by message.
    pub async fn create_stream(&mut self, name: &str, subject: &str, window: Duration) {
        let config = json!({
            "name": name, "subjects": [subject], "retention": "limits", "storage": "file",
            "discard": "old", "num_replicas": 1, "max_consumers": -1, "max_msgs": -1,
            "max_bytes": -1, "duplicate_window": window.as_nanos() as u64, "allow_direct": true,
        });
        self.api(&format!("STREAM.CREATE.{name}"), &config).await;
    }

    pub async fn delete_stream(&mut self, name: &str) {
        self.api(&format!("STREAM.DELETE.{name}"), &json!({})).await;
    }

    /// Every message of a stream, in order.
    pub async fn stored(&mut self, name: &str) -> Vec<Message> {
        let info = self.api(&format!("STREAM.INFO.{name}"), &json!({})).await;
        let state = |field: &str| info["state"][field].as_u64().expect("a number");
        let mut messages = Vec::new();
        if state("messages") > 0 {
            for sequence in state("first_seq")..=state("last_seq") {
                let subject = format!("$JS.API.DIRECT.GET.{name}");
                messages.push(self.request(&subject, &json!({ "seq": sequence })).await);
            }
        }
        messages
    }

    async fn say(&mut self, text: &str) {
        self.stream
            .get_mut()
            .write_all(text.as_bytes())
            .await
            .expect("nats-server reads");
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line).await {
            Ok(1..) => Some(line.trim_end().to_owned()),
            _ => None,
        }
    }
}
