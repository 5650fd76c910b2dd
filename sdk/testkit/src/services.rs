//! Real servers for tests: where they are, and how to stop and restart one of one's own.
//!
//! `cargo xtask test` starts every service before the tests and says where each is in the
//! environment. A test run on its own starts what it needs through `cargo xtask services`; such a
//! server goes on running for the next test run until `cargo xtask services down`.
//!
//! A service that cannot be had makes a test return early, loudly. With `CI=true` it fails the test
//! instead: a run that skipped would look like one that passed.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A running server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Service {
    /// Where to connect, as the product writes its addresses.
    pub url: String,
    /// What the server said its version is.
    pub version: String,
    /// Its ports on 127.0.0.1 by name; empty when the address came from the environment.
    #[serde(default)]
    pub ports: BTreeMap<String, u16>,
}

/// The shared server of a service (a file in `tests/services`), started if need be. Other tests use it
/// at the same time: keep to names of your own, and never stop it.
///
/// None when it cannot be had here; the reason has been printed.
///
/// # Panics
/// When it cannot be had and `CI` is `true`.
pub fn service(name: &str) -> Option<Service> {
    let variable = format!("CONSIGN_SERVICE_{}", name.to_uppercase().replace('-', "_"));
    let found = if let Ok(url) = std::env::var(&variable) {
        let version = std::env::var(format!("{variable}_VERSION"));
        Ok(Service {
            url,
            version: version.unwrap_or_else(|_| "version not known".into()),
            ports: BTreeMap::new(),
        })
    } else if let Ok(reason) = std::env::var(format!("{variable}_SKIPPED")) {
        Err(reason)
    } else {
        up(name, name)
    };
    available(name, found)
}

/// A server of a service that only this test uses, with its own data and ports: it may be stopped,
/// killed and started again. It is removed when the value is dropped.
///
/// # Panics
/// As [`service`].
pub fn private_service(name: &str) -> Option<PrivateService> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let instance = format!("{name}-{}-{count}", std::process::id());
    let found = up(name, &instance);
    available(name, found).map(|service| PrivateService {
        name: name.to_owned(),
        instance,
        service,
    })
}

/// A server that one test owns.
#[derive(Debug)]
pub struct PrivateService {
    name: String,
    instance: String,
    service: Service,
}

impl PrivateService {
    /// Where it is. Address and ports stay the same over a stop and a start.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Stops it as an operator would; its data stays. Returns when the process is gone.
    ///
    /// # Errors
    /// What the command said.
    pub fn stop(&self) -> Result<(), String> {
        down(&[&self.instance, "--keep"])
    }

    /// Kills it with SIGKILL; its data stays. Returns when the process is gone.
    ///
    /// # Errors
    /// What the command said.
    pub fn kill(&self) -> Result<(), String> {
        down(&[&self.instance, "--keep", "--kill"])
    }

    /// Sends its process a signal by name (`STOP`, `CONT`).
    ///
    /// # Errors
    /// What the commands said.
    pub fn signal(&self, name: &str) -> Result<(), String> {
        let output = xtask(&["services", "status", &self.instance, "--json"])?;
        let rows: serde_json::Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("`services status` printed something unexpected: {error}"))?;
        let id = rows.pointer("/0/pid/id").and_then(|id| id.as_u64());
        let id = id.ok_or_else(|| format!("{} does not run", self.instance))?;
        let status = Command::new("kill")
            .args(["-s", name, &id.to_string()])
            .status();
        match status {
            Ok(status) if status.success() => Ok(()),
            _ => Err(format!("process {id} cannot be sent {name}")),
        }
    }

    /// Starts it again with the data and the ports it had. Returns when it is ready.
    ///
    /// # Errors
    /// What the command said.
    pub fn start(&self) -> Result<(), String> {
        up(&self.name, &self.instance).map(drop)
    }
}

impl Drop for PrivateService {
    fn drop(&mut self) {
        if let Err(error) = down(&[&self.instance, "--kill"]) {
            eprintln!("{} may still run: {error}", self.instance);
        }
    }
}

/// Turns "not to be had" into a skipped test, or in CI into a failed one.
fn available<T>(name: &str, found: Result<T, String>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(reason) => {
            let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!in_ci, "the service {name} cannot be had: {reason}");
            eprintln!("SKIPPED, nothing was tested: the service {name} cannot be had: {reason}");
            None
        }
    }
}

/// One entry of what `services up --json` prints.
#[derive(Deserialize)]
struct Row {
    #[serde(flatten)]
    service: Option<Service>,
    skipped: Option<String>,
}

fn up(name: &str, instance: &str) -> Result<Service, String> {
    let output = xtask(&["services", "up", name, "--instance", instance, "--json"])?;
    let rows: Vec<Row> = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("`services up` printed something unexpected: {error}"))?;
    match rows.into_iter().next() {
        Some(Row {
            service: Some(service),
            ..
        }) => Ok(service),
        Some(Row {
            skipped: Some(reason),
            ..
        }) => Err(reason),
        _ => Err("`services up` did not say what came of it".into()),
    }
}

fn down(args: &[&str]) -> Result<(), String> {
    let mut all = vec!["services", "down"];
    all.extend(args);
    xtask(&all).map(drop)
}

/// Runs the workspace automation: the built program where a test run names it, else through cargo.
fn xtask(args: &[&str]) -> Result<Output, String> {
    let mut command = match std::env::var_os("CONSIGN_XTASK") {
        Some(program) => Command::new(program),
        None => {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
            let mut command = Command::new(cargo);
            command.args(["run", "--quiet", "--package", "xtask", "--"]);
            command
        }
    };
    let output = command
        .current_dir(workspace_root())
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run xtask: {error}"))?;
    if output.status.success() {
        Ok(output)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// The top of the workspace: this crate lies in `sdk/testkit`.
fn workspace_root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    match here.ancestors().nth(2) {
        Some(root) => root.to_owned(),
        None => here,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpStream;

    fn greeting(service: &Service) -> Option<String> {
        let mut first = [0; 4];
        TcpStream::connect(service.url.strip_prefix("nats://")?)
            .ok()?
            .read_exact(&mut first)
            .ok()?;
        String::from_utf8(first.to_vec()).ok()
    }

    #[test]
    fn a_private_server_keeps_address_and_data_over_stop_kill_and_start_and_is_gone_after() {
        let Some(own) = private_service("nats") else {
            return;
        };
        let service = own.service().clone();
        assert!(service.version.contains("nats-server"), "{service:?}");
        assert_eq!(greeting(&service).as_deref(), Some("INFO"));
        own.stop().unwrap();
        assert_eq!(greeting(&service), None, "it answers after stop");
        own.start().unwrap();
        assert_eq!(greeting(&service).as_deref(), Some("INFO"));
        own.kill().unwrap();
        assert_eq!(greeting(&service), None, "it answers after kill");
        own.start().unwrap();
        drop(own);
        assert_eq!(greeting(&service), None, "it answers after it was dropped");
    }

    #[test]
    fn the_shared_server_is_the_same_for_every_test() {
        let (Some(first), Some(second)) = (service("nats"), service("nats")) else {
            return;
        };
        assert_eq!(first.url, second.url);
        assert_eq!(greeting(&first).as_deref(), Some("INFO"));
    }

    #[test]
    fn an_unknown_service_says_which_there_are() {
        let error = up("no-such-service", "no-such-service").unwrap_err();
        assert!(error.contains("nats"), "{error}");
    }
}
