//! One scenario's stage: a host with a folder of its own, the destination, and the proxy between.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a stage that cannot be set up fails its scenario by panicking"
)]

use super::judge::{Count, Keys};
use super::{Access, Allowed, Destination, Failure, Level, Place, Result, Scenario, Verdict};
use crate::host::{self, Host};
use crate::proxy::{Proxy, Transcript, Trigger};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a scenario waits for what must happen, on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The send's timeout: long enough for a busy machine, short enough for a scenario that waits it out.
pub(super) const TIMEOUT: Duration = Duration::from_secs(4);

/// How often the destination is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Writes of a batch.
pub(super) const BATCH: usize = 8;

pub(super) struct Stage<'a> {
    pub destination: &'a dyn Destination,
    pub scenario: Scenario,
    pub place: Place,
    pub host: Host,
    pub proxy: Option<Proxy>,
    pub level: Level,
    pub allowed: Allowed,
    keys: Keys,
    expected: Vec<(String, Allowed)>,
    url: String,
    client: reqwest::Client,
    /// Gone with the stage.
    _folder: tempfile::TempDir,
}

impl<'a> Stage<'a> {
    /// Sets everything up; the host is not started.
    pub async fn set_up(
        destination: &'a dyn Destination,
        scenario: Scenario,
        plugins: &[PathBuf],
    ) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let proxy = match destination.access() {
            Access::Network { server, .. } => {
                let any = (std::net::Ipv4Addr::LOCALHOST, 0).into();
                let address = destination.proxy_address().unwrap_or(any);
                let proxy = Proxy::start_at(address, server).await;
                Some(proxy.expect("the proxy's port is free"))
            }
            Access::Local => None,
        };
        let place = Place {
            scenario,
            folder: folder.path().to_owned(),
            tag: format!(
                "c{}x{}",
                std::process::id(),
                COUNT.fetch_add(1, Ordering::Relaxed)
            ),
            address: proxy.as_ref().map(Proxy::address),
        };
        let setup = destination.prepare(&place).await;
        let port = host::free_port();
        let config = format!(
            r#"
connections:
  conformance_in: {{ connector: http, config: {{ listen: "127.0.0.1:{port}" }} }}
  destination: {connection}
adapters:
  conformance:
    source: {{ connection: conformance_in, operation: http.receive, config: {{ path: /in }} }}
    routes:
      - name: all
        send:
          - id: destination
            connection: destination
            operation: {operation}
            config: {config}
            order: {order}
            batch: {{ max_writes: {BATCH}, linger: 500ms }}
            timeout: {timeout}s
            retry: {{ max_attempts: {attempts}, backoff: {{ initial: 100ms, max: 500ms }} }}
"#,
            connection = setup.connection,
            operation = destination.operation(),
            config = setup.config,
            order = setup.order,
            timeout = TIMEOUT.as_secs(),
            attempts = if scenario == Scenario::SentAgainFromFailed {
                1
            } else {
                5
            },
        );
        let more: Vec<&Path> = plugins.iter().map(PathBuf::as_path).collect();
        let host = Host::with_plugins(&place.folder, &config, &more);
        let level = level(&host)?;
        let window = destination.window().is_some();
        Ok(Self {
            allowed: Allowed::after(level, scenario, window),
            keys: if destination.without_key() {
                Keys::Nowhere
            } else {
                keys(destination.operation(), plugins)?
            },
            destination,
            scenario,
            place,
            host,
            proxy,
            level,
            expected: Vec::new(),
            url: format!("http://127.0.0.1:{port}/in"),
            client: reqwest::Client::new(),
            _folder: folder,
        })
    }

    /// An id that no other message has.
    pub fn id(&self, name: &str) -> String {
        // Closed with a letter, so that no id is the beginning of another.
        format!("{}-{name}z", self.place.tag)
    }

    /// Hands a message in and returns once the host has made it durable. It may have one effect only.
    pub async fn post(&mut self, id: &str) {
        self.post_allowing(id, Allowed::ONE).await;
    }

    /// The same for a message that will be interrupted.
    pub async fn post_interrupted(&mut self, id: &str) {
        let allowed = self.allowed;
        self.post_allowing(id, allowed).await;
    }

    async fn post_allowing(&mut self, id: &str, allowed: Allowed) {
        let from = Instant::now();
        loop {
            let sent = self
                .client
                .post(&self.url)
                .header("content-type", "application/json")
                .header("idempotency-key", id)
                .body(format!("{{\"id\": \"{id}\", \"n\": 1}}"))
                .send()
                .await;
            match sent {
                Ok(response) if response.status().is_success() => break,
                Ok(response) if ![409, 503].contains(&response.status().as_u16()) => {
                    panic!("the host answered {} to {id}", response.status())
                }
                _ => {}
            }
            assert!(from.elapsed() < PATIENCE, "{id} was not accepted");
            tokio::time::sleep(LOOK).await;
        }
        self.expected.push((id.to_owned(), allowed));
    }

    /// A first message all the way through, so that the connection is up and was looked at.
    pub async fn warm_up(&mut self) {
        let id = self.id("warm");
        self.post(&id).await;
        self.drained().await;
    }

    /// Waits until no write is pending.
    pub async fn drained(&self) -> Value {
        self.host
            .until("no write pending", |status| {
                lane(status).is_some_and(|lane| lane["pending"] == 0)
            })
            .await
    }

    /// What is at the destination now.
    pub async fn count(&self) -> Count {
        Count::of(self.destination.effects(&self.place).await)
    }

    /// Waits for the first effect of a message. False when there is none in time.
    pub async fn landed(&self, id: &str, within: Duration) -> bool {
        let from = Instant::now();
        while self.count().await.times(id) == 0 {
            if from.elapsed() > within {
                return false;
            }
            tokio::time::sleep(LOOK).await;
        }
        true
    }

    /// The proxy; scenarios without a network do not ask.
    pub fn proxy(&self) -> &Proxy {
        self.proxy
            .as_ref()
            .expect("a scenario of a destination with a network")
    }

    /// What fires on the request of a message: its id on the wire, and with `applied` what makes the
    /// server apply it.
    pub fn request(&self, id: &str, applied: bool) -> Trigger {
        let mut texts = vec![id.as_bytes().to_vec()];
        if let Access::Network { applies, .. } = self.destination.access()
            && applied
        {
            texts.extend(applies.iter().map(|text| text.as_bytes().to_vec()));
        }
        Trigger::Request(texts)
    }

    /// Ends the scenario: everything is delivered, the write ledger adds up, and the effects are as
    /// promised. The effects reported are those of the interrupted messages.
    pub async fn finish(&mut self, evidence: String) -> Result<Verdict> {
        let status = self.drained().await;
        check_ledger(&status, self.scenario)?;
        let count = self.count().await;
        let judged = count.judge(&self.expected, self.keys);
        judged.map_err(Failure::Contradicted)?;
        self.check_keys_on_the_wire(&count)?;
        self.expected.retain(|(id, _)| !id.contains("-warm"));
        let effects = self.expected.iter().map(|(id, _)| count.times(id));
        let effects = (
            effects.clone().min().unwrap_or_default(),
            effects.max().unwrap_or_default(),
        );
        let code = self.host.stop();
        if code != Some(0) {
            return Err(Failure::Broken(format!("the host ended with {code:?}")));
        }
        Ok(Verdict::Kept {
            effects,
            allowed: self.allowed,
            evidence,
        })
    }

    /// Each copy that was sent had its key with it, also those that the destination dropped.
    fn check_keys_on_the_wire(&self, count: &Count) -> Result<()> {
        let (
            Access::Network {
                shows_key: true, ..
            },
            Keys::Everywhere,
        ) = (self.destination.access(), self.keys)
        else {
            return Ok(());
        };
        let transcript = self.proxy().transcript();
        for (id, _) in &self.expected {
            let Some(key) = count.key(id) else { continue };
            let (copies, keys) = (transcript.arrived(id), transcript.arrived(&key));
            // The copy that was cut right behind its id may have lost its key with the rest.
            let cut = usize::from(self.scenario == Scenario::CutMidBatch && copies > 1);
            if keys + cut < copies {
                return Err(Failure::Contradicted(format!(
                    "message {id} was sent {copies} times and its write key {key} only {keys} times"
                )));
            }
        }
        Ok(())
    }

    /// Allows a message what is allowed now.
    pub fn raise(&mut self, id: &str) {
        let allowed = self.allowed;
        for (known, own) in &mut self.expected {
            if known == id {
                *own = allowed;
            }
        }
    }

    /// Keeps transcript and log for a person.
    pub fn save(&self, folder: &Path) {
        let saved = std::fs::create_dir_all(folder).and_then(|()| {
            let transcript = self.proxy.as_ref().map(Proxy::transcript);
            let text = transcript.map_or_else(
                || "no network, so nothing to write down\n".to_owned(),
                |transcript: Transcript| transcript.to_string(),
            );
            std::fs::write(folder.join("transcript.txt"), text)?;
            std::fs::write(folder.join("host.log"), self.host.log())?;
            std::fs::copy(self.host.config(), folder.join("consign.yaml")).map(drop)
        });
        if let Err(error) = saved {
            eprintln!(
                "cannot keep the transcript in {}: {error}",
                folder.display()
            );
        }
    }
}

/// The one lane of the scenario's host.
pub(super) fn lane(status: &Value) -> Option<&Value> {
    status["lanes"].as_array()?.first()
}

fn check_ledger(status: &Value, scenario: Scenario) -> Result<()> {
    let lane = lane(status).unwrap_or(&Value::Null);
    let outcomes = lane["outcomes"].as_object().cloned().unwrap_or_default();
    let ended: u64 = outcomes.values().filter_map(Value::as_u64).sum();
    let accepted = lane["accepted"].as_u64().unwrap_or_default();
    if accepted != ended {
        return Err(Failure::Broken(format!(
            "the write ledger does not add up: {accepted} accepted, {ended} ended"
        )));
    }
    let others: Vec<&String> = outcomes
        .iter()
        .filter(|(name, n)| {
            let parks = scenario == Scenario::SentAgainFromFailed && name.as_str() == "parked";
            n.as_u64() != Some(0)
                && !parks
                && !["delivered", "delivered_as_repeat", "sent_unconfirmed"]
                    .contains(&name.as_str())
        })
        .map(|(name, _)| name)
        .collect();
    if others.is_empty() {
        Ok(())
    } else {
        Err(Failure::Contradicted(format!(
            "an outage must park nothing and lose nothing, and writes ended as {others:?}"
        )))
    }
}

/// What the host resolves for this configuration.
fn level(host: &Host) -> Result<Level> {
    let output = Command::new(&host::built().consign)
        .args(["check", "--json"])
        .arg(host.config())
        .output()
        .expect("consign runs");
    let reports: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let send = &reports[0]["adapters"][0]["routes"][0]["sends"][0];
    let level = send["resolved"]["level"].as_str();
    level.and_then(Level::named).ok_or_else(|| {
        Failure::Broken(format!(
            "`consign check` refuses the configuration: {}",
            reports[0]["errors"]
        ))
    })
}

/// Where the operation declares its key.
fn keys(operation: &str, plugins: &[PathBuf]) -> Result<Keys> {
    let row = super::run::declaration(operation, plugins)?;
    Ok(if row["sink"]["key"]["on"].is_string() {
        Keys::Everywhere
    } else {
        Keys::Nowhere
    })
}

/// Copies a host's data folder, as a backup would.
pub(super) fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("the data folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("a copy");
        }
    }
}

/// Puts a copied data folder back.
pub(super) fn put_back(copy: &Path, data: &Path) {
    std::fs::remove_dir_all(data).expect("the data folder");
    copy_folder(copy, data);
}
