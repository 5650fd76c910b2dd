//! The senders: they post every webhook until it is answered 2xx, each with the same
//! `Idempotency-Key` on every try, as a careful webhook sender does.

use super::generator::{Webhook, webhook};
use super::watch::Watch;
use crate::http::{Answer, Client};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Concurrent senders: enough that the host always has several requests to commit together.
pub const SENDERS: u64 = 32;

/// Waits between tries: short, so that a restart is met with everything that waited for it.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest wait that a `Retry-After` is believed.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// What is sent where.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The host's listener.
    pub address: SocketAddr,
    /// Path of the endpoint.
    pub path: &'static str,
    /// Seed of the webhooks.
    pub seed: u64,
    /// How many.
    pub count: u64,
    /// How many a second, at most.
    pub rate: u64,
}

/// What the senders met.
#[derive(Debug, Default)]
pub struct Tries {
    /// No connection, or one that broke before the answer.
    pub broken: AtomicU64,
    /// Answered 503 or 429: not now.
    pub blocked: AtomicU64,
    /// Answered 409: the first try of this key is still in flight.
    pub in_flight: AtomicU64,
}

/// All senders.
#[derive(Debug)]
pub struct Load {
    threads: Vec<JoinHandle<()>>,
    watch: Arc<Watch>,
    /// What they met so far.
    pub tries: Arc<Tries>,
}

impl Load {
    /// Starts sending.
    pub fn start(plan: Plan, watch: &Arc<Watch>) -> Self {
        let next = Arc::new(AtomicU64::new(0));
        let tries = Arc::new(Tries::default());
        let since = Instant::now();
        let threads = (0..SENDERS)
            .map(|_| {
                let (next, tries, watch) = (next.clone(), tries.clone(), watch.clone());
                std::thread::spawn(move || send(&plan, since, &next, &tries, &watch))
            })
            .collect();
        Self {
            threads,
            watch: watch.clone(),
            tries,
        }
    }

    /// Whether every webhook was answered 2xx, or the senders gave up.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.watch.stop();
        for thread in self.threads.drain(..) {
            // A sender that panicked has printed why; its webhooks then show as not accepted.
            let _ = thread.join();
        }
    }
}

/// One sender: takes the next webhook when it is due and posts it until it is accepted.
fn send(plan: &Plan, since: Instant, next: &AtomicU64, tries: &Tries, watch: &Watch) {
    let mut client = Client::new(plan.address);
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= plan.count || watch.is_stopped() {
            return;
        }
        let due = since + Duration::from_micros(index * 1_000_000 / plan.rate.max(1));
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let webhook = webhook(plan.seed, index);
        while !watch.is_stopped() {
            let pause = match judge(post(&mut client, plan.path, &webhook), tries) {
                Verdict::Accepted => {
                    watch.accepted.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Verdict::Again(pause) => pause,
                Verdict::Refused(why) => {
                    watch.fault(format!("webhook {index} was refused: {why}"));
                    return;
                }
            };
            std::thread::sleep(pause);
        }
    }
}

fn post(client: &mut Client, path: &str, webhook: &Webhook) -> io::Result<Answer> {
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", webhook.idempotency_key.as_str()),
    ];
    client.request("POST", path, &headers, &webhook.body)
}

/// What a sender makes of an answer.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Accepted,
    Again(Duration),
    /// Trying again would not help.
    Refused(String),
}

fn judge(answer: io::Result<Answer>, tries: &Tries) -> Verdict {
    let Ok(answer) = answer else {
        tries.broken.fetch_add(1, Ordering::Relaxed);
        return Verdict::Again(PAUSE);
    };
    match answer.status {
        200..=299 => Verdict::Accepted,
        409 => {
            tries.in_flight.fetch_add(1, Ordering::Relaxed);
            Verdict::Again(PAUSE)
        }
        429 | 500..=599 => {
            tries.blocked.fetch_add(1, Ordering::Relaxed);
            let wait = answer.retry_after_s.map(Duration::from_secs);
            Verdict::Again(wait.unwrap_or(PAUSE).min(MAX_PAUSE))
        }
        status => {
            let body = String::from_utf8_lossy(&answer.body);
            Verdict::Refused(format!("{status} {}", body.trim()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::Mutex;

    /// A server that drops the connection, answers 503, and 409, before it accepts each key.
    #[test]
    fn every_webhook_is_sent_under_one_key_until_it_is_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
        let server_seen = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let seen = server_seen.clone();
                std::thread::spawn(move || serve(BufReader::new(stream.unwrap()), &seen));
            }
        });
        let watch = Arc::new(Watch::new(Duration::from_secs(30)).unwrap());
        let plan = Plan {
            address,
            path: "/webhooks",
            seed: 5,
            count: 100,
            rate: 10_000,
        };
        let load = Load::start(plan, &watch);
        watch.wait(|| Ok(load.is_finished())).unwrap();
        assert_eq!(watch.accepted.load(Ordering::Relaxed), 100);
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 100);
        assert!(seen.values().all(|tries| *tries == 4), "{seen:?}");
        for counter in [
            &load.tries.broken,
            &load.tries.blocked,
            &load.tries.in_flight,
        ] {
            assert_eq!(counter.load(Ordering::Relaxed), 100);
        }
    }

    fn serve(mut stream: BufReader<std::net::TcpStream>, seen: &Mutex<BTreeMap<String, u32>>) {
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if stream.read_line(&mut head).unwrap() == 0 {
                    return;
                }
            }
            let field = |name: &str| {
                let (_, rest) = head.split_once(name).unwrap();
                rest.split("\r\n").next().unwrap().to_owned()
            };
            let mut body = vec![0; field("content-length: ").parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            let tries = {
                let mut seen = seen.lock().unwrap();
                let tries = seen.entry(field("idempotency-key: ")).or_default();
                *tries += 1;
                *tries
            };
            let status = match tries {
                1 => return,
                2 => "503 Busy",
                3 => "409 Conflict",
                _ => "202 Accepted",
            };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    }

    #[test]
    fn an_answer_that_trying_again_cannot_mend_stops_the_run_with_the_reason() {
        let answer = Answer {
            status: 422,
            retry_after_s: None,
            body: b"another body under this key\n".to_vec(),
        };
        assert_eq!(
            judge(Ok(answer), &Tries::default()),
            Verdict::Refused("422 another body under this key".into())
        );
    }

    #[test]
    fn a_long_retry_after_is_not_waited_out() {
        let answer = Answer {
            status: 503,
            retry_after_s: Some(3600),
            body: Vec::new(),
        };
        assert_eq!(
            judge(Ok(answer), &Tries::default()),
            Verdict::Again(MAX_PAUSE)
        );
    }
}
