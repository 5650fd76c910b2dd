//! Runs the built host as a process: start, wait until it is ready, signal it, read what it says.
//!
//! Everything is bounded in time; a host is killed by its process id when its handle is dropped.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test helper fails by panicking"
)]

use serde_json::Value;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a host may take to become ready, or to stop, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long [`Host::start`] waits for sources that are being opened.
const OPENING: Duration = Duration::from_secs(10);

/// Where the host and its plugins are.
#[derive(Debug)]
pub struct Built {
    /// The `consign` program.
    pub consign: PathBuf,
    /// A folder with the plugins that come with it.
    pub plugins: PathBuf,
}

/// The workspace this kit is a part of; elsewhere there is none.
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The built host and plugins. In this workspace `cargo xtask test` builds them first; run alone, this builds
/// them once. Elsewhere see [`found`].
///
/// # Panics
/// There are none.
pub fn built() -> &'static Built {
    match found() {
        Ok(built) => built,
        Err(why) => panic!("{why}"),
    }
}

/// The host that tests run: the one that `CONSIGN_BIN` names, this workspace's own, or `consign` on the `PATH`;
/// its plugins from `CONSIGN_PLUGINS` or the folder `plugins` beside it.
///
/// # Errors
/// There is none, and how to name one.
pub fn found() -> &'static Result<Built, String> {
    static FOUND: OnceLock<Result<Built, String>> = OnceLock::new();
    FOUND.get_or_init(|| {
        if let Some(consign) = std::env::var_os("CONSIGN_BIN") {
            return with_plugins(consign.into());
        }
        if Path::new(WORKSPACE).join("xtask/Cargo.toml").is_file() {
            return Ok(of_workspace());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path).map(|folder| folder.join("consign"));
        match on_path.into_iter().find(|consign| consign.is_file()) {
            Some(consign) => with_plugins(consign),
            None => Err("there is no host to run this in: put `consign` on the PATH, or name it in CONSIGN_BIN".into()),
        }
    })
}

/// Whether there is a host, for a test of `what` that cannot run without one and is skipped, loudly.
///
/// # Panics
/// There is none, and `CI` is `true`: a run that skipped would look like one that passed.
pub fn is_here(what: &str) -> bool {
    let Err(why) = found() else {
        return true;
    };
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!in_ci, "{what} is not tested: {why}");
    eprintln!("SKIPPED {what}: {why}");
    false
}

fn with_plugins(consign: PathBuf) -> Result<Built, String> {
    let beside = || consign.with_file_name("plugins");
    let plugins = std::env::var_os("CONSIGN_PLUGINS").map_or_else(beside, PathBuf::from);
    if !consign.is_file() {
        return Err(format!(
            "CONSIGN_BIN names {}, which is no file",
            consign.display()
        ));
    }
    if !plugins.is_dir() {
        return Err(format!(
            "{} has no plugins in {}: name the folder that they are in with CONSIGN_PLUGINS",
            consign.display(),
            plugins.display()
        ));
    }
    Ok(Built { consign, plugins })
}

fn of_workspace() -> Built {
    let profile = profile();
    if std::env::var_os("CONSIGN_BUILT").is_none() {
        let status = Command::new(env!("CARGO"))
            .args(["xtask", "build"])
            .current_dir(WORKSPACE)
            .env("CARGO_TARGET_DIR", profile.parent().expect("target folder"))
            .stdout(Stdio::null())
            .status()
            .expect("cargo runs");
        assert!(status.success(), "`cargo xtask build` failed");
    }
    Built {
        consign: profile.join("consign"),
        plugins: profile.join("plugins"),
    }
}

/// The folder of the test's profile (`target/debug`).
pub(crate) fn profile() -> PathBuf {
    let exe = std::env::current_exe().expect("the test's own path");
    exe.ancestors()
        .find(|folder| folder.join("deps").is_dir())
        .expect("a target folder")
        .to_owned()
}

/// Runs `consign` with these arguments to its end.
pub fn consign(args: &[&str]) -> Output {
    Command::new(&built().consign)
        .args(args)
        .env_remove("CONSIGN_TOKEN")
        .output()
        .expect("consign runs")
}

/// A free loopback port. Another process may take it before it is used; tests retry on that.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .expect("loopback")
        .local_addr()
        .expect("bound")
        .port()
}

/// A folder with a configuration, and the host that runs it.
#[derive(Debug)]
pub struct Host {
    folder: PathBuf,
    console: u16,
    child: Option<Child>,
}

impl Host {
    /// Writes `config` to `folder/consign.yaml` with the built plugins and a free console port, data in
    /// `folder/data`. Nothing is started yet.
    pub fn new(folder: &Path, config: &str) -> Self {
        Self::with_plugins(folder, config, &[])
    }

    /// The same with more folders of plugins.
    pub fn with_plugins(folder: &Path, config: &str, more: &[&Path]) -> Self {
        let console = free_port();
        let plugins: Vec<String> = std::iter::once(built().plugins.as_path())
            .chain(more.iter().copied())
            .map(|folder| folder.display().to_string())
            .collect();
        let text = format!(
            "data_dir: ./data\nplugins: [{}]\nconsole: {{ listen: \"127.0.0.1:{console}\" }}\n{config}",
            plugins.join(", ")
        );
        std::fs::write(folder.join("consign.yaml"), text).expect("config written");
        Self {
            folder: folder.to_owned(),
            console,
            child: None,
        }
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.join("consign.yaml")
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The address of its API.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.console)
    }

    /// Starts the process without waiting. Its log goes to `folder/host.log`.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "already running");
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join("host.log"))
            .expect("log file");
        let child = Command::new(&built().consign)
            .arg("run")
            .arg(self.config())
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log file"))
            .stderr(log)
            .spawn()
            .expect("consign starts");
        self.child = Some(child);
    }

    /// Starts and waits until the API answers and no source is still being opened; one that fails to open
    /// is not waited for.
    pub async fn start(&mut self) {
        self.spawn();
        let client = reqwest::Client::new();
        let from = Instant::now();
        loop {
            if let Ok(response) = client.get(self.url("/health/live")).send().await
                && response.status().is_success()
            {
                break;
            }
            if let Some(status) = self
                .child
                .as_mut()
                .and_then(|c| c.try_wait().expect("child"))
            {
                panic!("the host stopped at start ({status}):\n{}", self.log());
            }
            assert!(
                from.elapsed() < PATIENCE,
                "the host did not come up:\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The API answers first, so that a host whose source hangs can be asked why.
        let from = Instant::now();
        while from.elapsed() < OPENING && self.is_opening().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn is_opening(&self) -> bool {
        let status = self.get("/api/v1/status").await.unwrap_or_default();
        let adapters = status.get("adapters").and_then(Value::as_array);
        let opening = |one: &Value| one.get("state").is_some_and(|state| state == "opening");
        adapters.is_some_and(|all| all.iter().any(opening))
    }

    /// Everything it logged so far, over all its lives.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("host.log")).unwrap_or_default()
    }

    /// Its process id while it runs.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// Sends a signal by name (`TERM`, `STOP`, `CONT`, `HUP`).
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.pid().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success(), "kill -{name} failed");
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// SIGTERM, and its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal("TERM");
        self.wait()
    }

    /// Waits until it ends by itself; its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.ended().code()
    }

    /// Waits until it ends by itself; the signal that ended it.
    pub fn wait_for_signal(&mut self) -> Option<i32> {
        self.ended().signal()
    }

    fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("running");
        let from = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("child") {
                return status;
            }
            if from.elapsed() > PATIENCE {
                drop(child.kill());
                drop(child.wait());
                panic!("the host did not stop:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `GET` on its API, as JSON.
    pub async fn get(&self, path: &str) -> Option<Value> {
        let response = reqwest::get(self.url(path)).await.ok()?;
        response.json().await.ok()
    }

    /// Waits until `done` holds for its status document.
    pub async fn until(&self, what: &str, mut done: impl FnMut(&Value) -> bool) -> Value {
        let from = Instant::now();
        let mut last = Value::Null;
        while from.elapsed() < PATIENCE {
            if let Some(status) = self.get("/api/v1/status").await {
                if done(&status) {
                    return status;
                }
                last = status;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("never saw: {what}\nlast status: {last:#}\n{}", self.log());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- host.log of {}\n{}", self.folder.display(), self.log());
        }
    }
}
