//! Finding the zoo's libraries, and changed copies of them.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod variant;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::SystemTime;

/// Folder of the test binary's own profile (`target/debug`).
pub fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().unwrap().parent().unwrap().to_owned()
}

/// The library of a zoo example. `cargo test -p consign-loader` has built it; where it is missing
/// or older than its sources (a run of one test file), it is built here.
pub fn library(name: &str) -> PathBuf {
    static BUILT: Once = Once::new();
    let path = profile_dir().join("examples").join(format!("lib{name}.so"));
    BUILT.call_once(|| {
        if is_stale(&path) {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--package", "consign-loader", "--examples"]);
            cargo
                .arg("--target-dir")
                .arg(profile_dir().parent().unwrap());
            if profile_dir().ends_with("release") {
                cargo.arg("--release");
            }
            assert!(cargo.status().unwrap().success(), "the zoo does not build");
        }
    });
    path
}

fn is_stale(library: &Path) -> bool {
    let Ok(built) = std::fs::metadata(library).and_then(|m| m.modified()) else {
        return true;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    [
        "tests/zoo",
        "../../sdk/plugin/src",
        "../../sdk/abi/src",
        "../../sdk/manifest/src",
    ]
    .iter()
    .any(|folder| newest(&root.join(folder)) > built)
}

fn newest(folder: &Path) -> SystemTime {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            if path.is_dir() {
                newest(&path)
            } else {
                std::fs::metadata(path).unwrap().modified().unwrap()
            }
        })
        .max()
        .unwrap()
}

/// A copy of a file with some of its bytes replaced by as many others, each exactly where it is.
pub fn patched(from: &Path, to: &Path, changes: &[(&str, &str)]) {
    let mut bytes = std::fs::read(from).unwrap();
    for (old, new) in changes {
        assert_eq!(old.len(), new.len(), "{old} and {new} differ in length");
        let places: Vec<usize> = bytes
            .windows(old.len())
            .enumerate()
            .filter(|(_, window)| *window == old.as_bytes())
            .map(|(place, _)| place)
            .collect();
        assert!(!places.is_empty(), "{old} is not in {}", from.display());
        for place in places {
            bytes[place..place + new.len()].copy_from_slice(new.as_bytes());
        }
    }
    std::fs::write(to, bytes).unwrap();
}

/// The raw plugin telling one of its lies.
pub fn raw(folder: &Path, lie: &str) -> PathBuf {
    let path = folder.join(format!("libzoo_raw_{lie}.so"));
    let selector = format!("{:.<32}", format!("lie={lie}"));
    patched(
        &library("zoo_raw"),
        &path,
        &[("lie=none........................", &selector)],
    );
    path
}
