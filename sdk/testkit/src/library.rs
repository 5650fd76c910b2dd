//! A plugin's finished library, as cargo built it beside its tests, and the example it comes with, in the
//! host: for plugins that have no destination to count effects at.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test helper fails by panicking"
)]

use crate::host::{self, Host, PATIENCE};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The library of the package whose test this is. Its crate needs both `cdylib` and `rlib` among its
/// `crate-type`s.
///
/// # Panics
/// Where cargo has not built it.
#[must_use]
pub fn built_here(package: &str) -> PathBuf {
    let name = format!("lib{}.so", package.replace('-', "_"));
    let exe = std::env::current_exe().expect("the test's own path");
    // Beside the test, or where cargo puts what was asked for; the newer one is of this build.
    let newest = exe
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(&name))
        .filter_map(|path| Some((std::fs::metadata(&path).ok()?.modified().ok()?, path)))
        .max();
    match newest {
        Some((_, path)) => path,
        None => panic!(
            "{name} is not beside this test: its Cargo.toml needs `crate-type = [\"cdylib\", \"rlib\"]` under [lib]"
        ),
    }
}

/// What `consign plugins verify` says of this package's library: all faults at once. False where there is no
/// host, which has been said.
///
/// # Panics
/// It has faults; or there is no host, and `CI` is `true`.
pub fn verify(package: &str) -> bool {
    if !host::is_here(package) {
        return false;
    }
    let library = built_here(package);
    let output = host::consign(&["plugins", "verify", &library.display().to_string()]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    true
}

/// A plugin's example in a running host, in a folder of its own.
#[derive(Debug)]
pub struct Example {
    /// The host. Gone before its folder is.
    pub host: Host,
    folder: tempfile::TempDir,
}

impl Example {
    /// Lays out `files` (path and content), and starts the host with the example and this package's library.
    /// None where there is no host, which has been said.
    ///
    /// # Panics
    /// The example does not run; or there is no host, and `CI` is `true`.
    pub async fn start(package: &str, example: &str, files: &[(&str, &str)]) -> Option<Self> {
        if !host::is_here(package) {
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (path, content) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, content).expect("a file");
        }
        // Where things are is the test's to say.
        let own = ["data_dir:", "plugins:", "console:"];
        let rest: Vec<&str> = example
            .lines()
            .filter(|line| !own.iter().any(|own| line.starts_with(own)))
            .collect();
        let library = built_here(package);
        let mut host = Host::with_plugins(folder.path(), &rest.join("\n"), &[&library]);
        host.start().await;
        Some(Self { host, folder })
    }

    /// Waits until a file of the folder has this content.
    ///
    /// # Panics
    /// It never has.
    pub async fn until_file(&self, path: &str, content: &str) {
        let path: PathBuf = self.folder.path().join(path);
        let (from, mut last) = (Instant::now(), String::new());
        while from.elapsed() < PATIENCE {
            last = read(&path);
            if last == content {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!(
            "{} holds {last:?} and not {content:?}\n{}",
            path.display(),
            self.host.log()
        );
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
