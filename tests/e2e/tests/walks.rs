//! The walks an operator meets, with real processes: what each comes to is counted at the destination.
//! The same walks run in virtual time in `crates/delivery/tests/walks.rs`, over hours.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::config::{Config, FAST, send, to_table};
use common::server::{Answer, Server};
use common::{assert_ledgers, drained, events, lane, read_table, wait_for_event};
use consign_e2e::{Host, built, free_port};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A host that takes webhooks, and a server of the test's own to which it posts them.
struct Walk {
    host: Host,
    server: Server,
    url: String,
    client: reqwest::Client,
    folder: tempfile::TempDir,
}

/// A send to the server's path of the same name.
fn post(id: &str, more: &str) -> String {
    send(
        id,
        "server",
        "post.write",
        &format!("path: /{id}"),
        &format!("timeout: 1s, {more}"),
    )
}

impl Walk {
    /// The server does not listen yet.
    async fn new(sends: &[String]) -> Self {
        Self::with(Config::new(), sends).await
    }

    async fn with(config: Config, sends: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, server) = (free_port(), Server::new(free_port()));
        let config = config
            .connection("server", "post", &server.config())
            .hooks(port, sends);
        let more = common::server::plugin(folder.path());
        let mut host = Host::with_plugins(folder.path(), &config.text(), &[&more]);
        host.start().await;
        host.until("the source runs", |status| {
            status["adapters"][0]["state"] == "running"
        })
        .await;
        Self {
            host,
            server,
            url: format!("http://127.0.0.1:{port}/in"),
            client: reqwest::Client::new(),
            folder,
        }
    }

    async fn post(&self, id: &str) {
        common::post(&self.client, &self.url, id).await;
    }

    /// One request, whatever comes of it.
    async fn try_post(&self, id: &str) -> reqwest::Response {
        let request = self.client.post(&self.url);
        let body = format!("{{\"id\": \"{id}\"}}");
        let request = request.header("content-type", "application/json");
        request.body(body).send().await.unwrap()
    }

    /// Requests that arrived, as ids in order.
    fn arrived(&self) -> Vec<String> {
        let requests = self.server.requests();
        requests
            .iter()
            .map(|request| id_of(&request.body))
            .collect()
    }

    async fn end(mut self) {
        let status = self.host.get("/api/v1/status").await.unwrap();
        assert_ledgers(&status);
        assert_eq!(self.host.stop(), Some(0), "{}", self.host.log());
    }
}

fn id_of(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    body["id"].as_str().unwrap().to_owned()
}

fn outcome(status: &Value, lane_id: &str, name: &str) -> u64 {
    lane(status, lane_id)["outcomes"][name]
        .as_u64()
        .unwrap_or_default()
}

const LANE: &str = "hooks/all/out";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_pending_write_and_a_long_outage_parks_nothing() {
    let mut walk = Walk::new(&[post("out", FAST)]).await;
    walk.post("only").await;
    let status = walk
        .host
        .until("the gate is closed", |status| {
            lane(status, LANE)["state"] == "gate_closed"
        })
        .await;
    assert_eq!(status["connections"][0]["gate"], "closed", "{status:#}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let status = walk.host.get("/api/v1/status").await.unwrap();
    assert_eq!(lane(&status, LANE)["pending"], 1, "{status:#}");
    assert_eq!(outcome(&status, LANE, "parked"), 0);
    let closed = events(&walk.host, "gate_closed").await;
    assert_eq!(
        closed.len(),
        1,
        "one event for the whole outage: {closed:#?}"
    );
    walk.server.start().await;
    let status = drained(&walk.host).await;
    assert_eq!(outcome(&status, LANE, "delivered"), 1);
    assert_eq!(walk.arrived(), ["only"]);
    wait_for_event(&walk.host, "gate_opened").await;
    walk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_lane_parks_its_poison_head_and_goes_on_in_order() {
    let retry = "retry: { max_attempts: 2, backoff: { initial: 50ms, max: 300ms } }";
    // Otherwise a 500 may have landed, and one resend is all it gets.
    let mut walk = Walk::new(&[post("out", &format!("on_ambiguous: retry, {retry}"))]).await;
    walk.server.answer(|request| {
        Answer::Status(if request.body.contains("poison") {
            500
        } else {
            200
        })
    });
    walk.server.start().await;
    walk.post("poison").await;
    for n in 0..6 {
        walk.post(&format!("good-{n}")).await;
    }
    let status = drained(&walk.host).await;
    assert_eq!(outcome(&status, LANE, "delivered"), 6, "{status:#}");
    assert_eq!(outcome(&status, LANE, "parked"), 1);
    let good: Vec<String> = walk
        .arrived()
        .into_iter()
        .filter(|id| id != "poison")
        .collect();
    let expected: Vec<String> = (0..6).map(|n| format!("good-{n}")).collect();
    assert_eq!(good, expected, "once each, in order");
    // Its last try comes after others were delivered.
    let arrived = walk.arrived();
    let first_good = arrived.iter().position(|id| id != "poison");
    let last_try = arrived.iter().rposition(|id| id == "poison");
    assert!(last_try > first_good, "{arrived:?}");
    walk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_502_to_everything_parks_nothing() {
    let retry = "retry: { max_attempts: 2, backoff: { initial: 50ms, max: 300ms } }";
    let mut walk = Walk::new(&[post("out", &format!("on_ambiguous: retry, {retry}"))]).await;
    walk.server.answer(|_| Answer::Status(502));
    walk.server.start().await;
    for n in 0..5 {
        walk.post(&format!("m{n}")).await;
    }
    walk.host
        .until("the target is closed", |status| {
            lane(status, LANE)["state"] == "target_closed"
        })
        .await;
    // Many times the attempts that the policy allows.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let status = walk.host.get("/api/v1/status").await.unwrap();
    assert_eq!(outcome(&status, LANE, "parked"), 0, "{status:#}");
    assert_eq!(lane(&status, LANE)["pending"], 5);
    assert_eq!(
        status["connections"][0]["gate"], "open",
        "the target fails, not its connection"
    );
    assert!(walk.server.requests().len() > 4, "it is tried again");
    let closed = events(&walk.host, "target_closed").await;
    assert_eq!(closed.len(), 1, "{closed:#?}");
    walk.server.answer(|_| Answer::Status(200));
    let status = drained(&walk.host).await;
    assert_eq!(outcome(&status, LANE, "delivered"), 5);
    wait_for_event(&walk.host, "target_opened").await;
    walk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_payload_that_is_always_refused_parks_alone() {
    let mut walk = Walk::new(&[post("out", FAST)]).await;
    walk.server.answer(|request| {
        Answer::Status(if request.body.contains("bad") {
            422
        } else {
            200
        })
    });
    walk.server.start().await;
    for id in ["a", "bad", "b", "c"] {
        walk.post(id).await;
    }
    let status = drained(&walk.host).await;
    assert_eq!(outcome(&status, LANE, "delivered"), 3, "{status:#}");
    assert_eq!(outcome(&status, LANE, "parked"), 1);
    assert_eq!(walk.arrived(), ["a", "bad", "b", "c"], "tried once each");
    let refused = events(&walk.host, "refused").await;
    assert_eq!(refused.len(), 1, "{refused:#?}");
    assert!(refused[0].to_string().contains("422"), "{refused:#?}");
    walk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_passes_while_writes_vanish_costs_one_extra_copy() {
    let mut walk = Walk::new(&[post("out", FAST)]).await;
    walk.server.answer(|_| Answer::Silence);
    walk.server.start().await;
    walk.post("first").await;
    walk.post("second").await;
    wait_for_event(&walk.host, "write_held").await;
    let status = walk.host.get("/api/v1/status").await.unwrap();
    assert_eq!(lane(&status, LANE)["ambiguous"], 1, "{status:#}");
    assert_eq!(outcome(&status, LANE, "parked"), 0);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let copies = walk.server.copies();
    assert!(
        copies.values().all(|copies| *copies <= 2),
        "one resend an interruption: {copies:?}"
    );
    // Once the target answers, what is held is known to have been at fault or to have landed.
    walk.server.answer(|_| Answer::Status(200));
    walk.post("third").await;
    let status = drained(&walk.host).await;
    let (delivered, parked) = (
        outcome(&status, LANE, "delivered"),
        outcome(&status, LANE, "parked"),
    );
    assert_eq!(delivered + parked, 3, "{status:#}");
    assert!(parked >= 1, "{status:#}");
    assert_eq!(
        events(&walk.host, "may_have_landed").await.len() as u64,
        parked
    );
    let copies = walk.server.copies();
    assert!(copies.values().all(|copies| *copies <= 3), "{copies:?}");
    walk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_full_lane_holds_the_source_and_so_its_sibling_and_says_so() {
    let sends = [
        post("out", &format!("quota: 4KiB, {FAST}")),
        to_table("t", FAST),
    ];
    let mut walk = Walk::with(Config::new().database(), &sends).await;
    let mut accepted = 0;
    let refused = loop {
        let response = walk.try_post(&format!("m{accepted}")).await;
        if !response.status().is_success() {
            break response;
        }
        accepted += 1;
        assert!(accepted < 100, "4 KiB hold no hundred writes");
    };
    assert_eq!(refused.status().as_u16(), 503);
    assert!(refused.headers().contains_key("retry-after"), "{refused:?}");
    let words = refused.text().await.unwrap();
    assert!(words.contains(LANE), "the full lane is named: {words}");
    // The sibling delivers what was accepted, and gets nothing that was not.
    let sibling = "hooks/all/table";
    let status = walk
        .host
        .until("the sibling has delivered", |status| {
            lane(status, sibling)["pending"] == 0
        })
        .await;
    assert_eq!(outcome(&status, sibling, "delivered"), accepted);
    assert_eq!(lane(&status, LANE)["pending"], accepted, "{status:#}");
    assert_eq!(walk.try_post("late").await.status().as_u16(), 503);
    let refusals = events(&walk.host, "refused_at_source").await;
    assert_eq!(refusals.len(), 1, "one event an episode: {refusals:#?}");
    walk.server.start().await;
    walk.post("after").await;
    drained(&walk.host).await;
    let rows = read_table(&walk.folder.path().join("out.db"), "t");
    assert_eq!(rows.len() as u64, accepted + 1);
    assert_eq!(walk.server.requests().len() as u64, accepted + 1);
    walk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependents_park_as_one_with_a_parent_that_is_refused() {
    let sends = [
        post("out", FAST),
        post("receipt", &format!("after: out, {FAST}")),
    ];
    let mut walk = Walk::new(&sends).await;
    walk.server.answer(|request| {
        let bad = request.path == "/out" && request.body.contains("bad");
        Answer::Status(if bad { 422 } else { 200 })
    });
    walk.server.start().await;
    for id in ["a", "bad", "b"] {
        walk.post(id).await;
    }
    let status = drained(&walk.host).await;
    assert_eq!(outcome(&status, LANE, "parked"), 1, "{status:#}");
    assert_eq!(outcome(&status, "hooks/all/receipt", "delivered"), 2);
    let receipts: Vec<String> = walk
        .server
        .requests()
        .iter()
        .filter(|request| request.path == "/receipt")
        .map(|request| id_of(&request.body))
        .collect();
    assert_eq!(receipts, ["a", "b"], "no receipt for what was refused");
    let parked = events(&walk.host, "refused").await;
    assert_eq!(parked.len(), 1, "parent and dependent are one: {parked:#?}");
    walk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_with_nothing_but_its_failing_write_says_that_it_is_halted_on_it() {
    let retry = "retry: { max_attempts: 2, backoff: { initial: 50ms, max: 300ms } }";
    let mut walk = Walk::new(&[post("out", &format!("on_ambiguous: retry, {retry}"))]).await;
    walk.server.answer(|_| Answer::Status(500));
    walk.server.start().await;
    walk.post("only").await;
    let status = walk
        .host
        .until("halted on one write", |status| {
            lane(status, LANE)["state"] == "halted_on_one_write"
        })
        .await;
    assert_eq!(outcome(&status, LANE, "parked"), 0);
    assert_eq!(status["readiness"]["ready"], false, "{status:#}");
    assert_eq!(events(&walk.host, "halted_on_one_write").await.len(), 1);
    // Others of the target are delivered, before and after its last try: now it is known to be at fault.
    walk.server.answer(|request| {
        Answer::Status(if request.body.contains("only") {
            500
        } else {
            200
        })
    });
    walk.post("other").await;
    walk.host
        .until("the other is delivered", |status| {
            outcome(status, LANE, "delivered") == 1
        })
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    walk.post("another").await;
    let status = drained(&walk.host).await;
    assert_eq!(outcome(&status, LANE, "parked"), 1, "{status:#}");
    assert_eq!(outcome(&status, LANE, "delivered"), 2);
    wait_for_event(&walk.host, "halt_ended").await;
    walk.end().await;
}

/// A small file system in memory at the host's data folder.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(at: &'a Path, size: u64) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(at)
            .status();
        done.is_ok_and(|status| status.success()).then(|| Self(at))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_while_lanes_spill_loses_nothing_and_drains_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let more = common::server::plugin(folder.path());
    // The copies of the plugins lie on that disk, too.
    let plugins = [
        more.join("libpost.so"),
        built().plugins.join("libconsign_plugin_http.so"),
    ];
    let sizes = plugins.map(|file| std::fs::metadata(file).unwrap().len());
    let size = sizes.iter().sum::<u64>() + (48 << 20);
    let Some(disk) = SmallDisk::mount(&data, size) else {
        eprintln!("skipped: no right to mount a small file system");
        return;
    };
    let (port, mut server) = (free_port(), Server::new(free_port()));
    let config = Config::new()
        .host("buffer: { log_size: 16MiB }")
        .connection("server", "post", &server.config())
        .hooks(port, &[post("out", &format!("order: none, {FAST}"))]);
    let mut host = Host::with_plugins(folder.path(), &config.text(), &[&more]);
    host.start().await;
    host.until("the source runs", |status| {
        status["adapters"][0]["state"] == "running"
    })
    .await;
    let client = reqwest::Client::new();
    let url = format!("http://127.0.0.1:{port}/in");
    let filler = "x".repeat(100_000);
    let mut accepted = Vec::new();
    let refused = loop {
        let id = format!("m{}", accepted.len());
        let request = client.post(&url).header("content-type", "application/json");
        let body = format!("{{\"id\": \"{id}\", \"filler\": \"{filler}\"}}");
        let response = request.body(body).send().await.unwrap();
        if !response.status().is_success() {
            break response.status().as_u16();
        }
        accepted.push(id);
        assert!(accepted.len() < 600, "60 MB do not fit into 48 MB");
    };
    assert_eq!(refused, 503);
    assert!(
        accepted.len() > 150,
        "the log alone holds {}",
        accepted.len()
    );
    let status = host.get("/api/v1/status").await.unwrap();
    assert!(
        lane(&status, LANE)["spill_bytes"].as_u64() > Some(0),
        "it was spilling: {status:#}"
    );
    assert_ledgers(&status);
    // A kill on the full disk, too: what was accepted is there afterwards.
    host.kill();
    host.start().await;
    server.start().await;
    let status = drained(&host).await;
    assert_eq!(outcome(&status, LANE, "lost"), 0, "{status:#}");
    let mut arrived: Vec<String> = server
        .requests()
        .iter()
        .map(|request| id_of(&request.body))
        .collect();
    arrived.sort_unstable();
    arrived.dedup();
    accepted.sort_unstable();
    assert_eq!(arrived, accepted);
    common::post(&client, &url, "there is room again").await;
    drained(&host).await;
    assert_eq!(host.stop(), Some(0), "{}", host.log());
    drop(disk);
}
