//! A nats-server of one test's own: any configuration, killed, frozen and started again at will.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Where Debian and the makers' packages put it; `PATH` of a user often lacks sbin.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/usr/local/bin"].map(PathBuf::from));
    folders
        .into_iter()
        .map(|folder| folder.join("nats-server"))
        .find(|file| file.is_file())
}

/// A server on a free port, with a store of its own. Gone when dropped.
pub struct Server {
    folder: TempDir,
    port: u16,
    process: Option<Child>,
}

impl Server {
    /// Starts a server with JetStream and `extra` lines of configuration. `None`, loudly, where
    /// there is no nats-server; with `CI=true` that fails the test.
    pub fn start(extra: &str) -> Option<Self> {
        if program().is_none() {
            assert!(
                std::env::var("CI").as_deref() != Ok("true"),
                "nats-server is not installed"
            );
            eprintln!("SKIPPED, nothing was tested: nats-server is not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        Self::in_folder(
            folder,
            &format!("jetstream {{ store_dir: {store:?} }}\n{extra}"),
        )
    }

    /// Starts a server with `lines` of configuration and nothing else.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn start_without_jetstream(lines: &str) -> Option<Self> {
        program()?;
        Self::in_folder(tempfile::tempdir().unwrap(), lines)
    }

    fn in_folder(folder: TempDir, lines: &str) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let config = format!("listen: \"127.0.0.1:{port}\"\n{lines}");
        std::fs::write(folder.path().join("server.conf"), config).unwrap();
        let mut server = Self {
            folder,
            port,
            process: None,
        };
        server.run();
        Some(server)
    }

    fn run(&mut self) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .unwrap();
        let process = Command::new(program().unwrap())
            .arg("-c")
            .arg(self.folder.path().join("server.conf"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let log = || std::fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(
                Instant::now() < deadline,
                "the server did not start:\n{}",
                log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Its folder, for files that a configuration names.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Starts it again, with its store and port.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn restart(&mut self) {
        self.kill();
        self.run();
    }

    /// Sends it a signal (`STOP`, `CONT`).
    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn signal(&self, name: &str) {
        let pid = self.process.as_ref().unwrap().id().to_string();
        let done = Command::new("kill")
            .args(["-s", name, &pid])
            .status()
            .unwrap();
        assert!(done.success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
