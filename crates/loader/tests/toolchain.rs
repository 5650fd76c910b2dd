//! A plugin that another compiler built: nothing that crosses depends on rustc's version.
//!
//! `cargo xtask test` finds or installs Debian's compiler, which is another one than rustup's, and names it
//! in `CONSIGN_SECOND_RUSTC`. Run alone, the test takes it where it is installed, or a nightly of rustup.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test code"
)]

mod common;

use common::variant::{build_with, open_same, write_one};
use consign_loader::{Applied, FunctionAnswer, FunctionMessage};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

fn version(rustc: &Path) -> Option<String> {
    let output = Command::new(rustc).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// A compiler of another version than the one that built this.
fn second(ours: &str) -> Result<(PathBuf, String), String> {
    let named = std::env::var_os("CONSIGN_SECOND_RUSTC").map(PathBuf::from);
    let nightly = || {
        let mut which = Command::new("rustup");
        let output = which
            .args(["which", "rustc", "--toolchain", "nightly"])
            .output()
            .ok()?;
        let path = String::from_utf8(output.stdout).ok()?;
        Some(PathBuf::from(path.trim())).filter(|path| path.is_file())
    };
    let candidates = [named, Some("/usr/bin/rustc".into())].into_iter().flatten();
    candidates
        .chain(nightly())
        .find_map(|path| Some((version(&path)?, path)).filter(|(version, _)| version != ours))
        .map(|(version, path)| (path, version))
        .ok_or_else(|| "there is no compiler but the one that built this".to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_another_compiler_built_loads_works_and_may_panic() {
    let ours = version(Path::new("rustc")).expect("the compiler that built this");
    let (rustc, other) = match second(&ours) {
        Ok(found) => found,
        Err(why) => {
            assert_ne!(
                std::env::var("CI").as_deref(),
                Ok("true"),
                "no second compiler: {why}"
            );
            eprintln!("SKIPPED a plugin of a second compiler: {why}");
            return;
        }
    };
    let file = build_with(&rustc);
    let (plugins, outcome) = write_one(&file, "compiler").await;
    assert_eq!(outcome.applied, Applied::Yes);
    let files = plugins.files();
    assert_eq!(files[0].note.rustc, other, "it is what it says it is");
    assert_ne!(files[0].note.rustc, ours);
    let function = open_same(&plugins, "compiler").await.unwrap();
    let message = |body: &str| FunctionMessage {
        body: body.into(),
        headers: vec![("h".to_owned(), vec![0xff, 0])],
        ..FunctionMessage::default()
    };
    // A panic of that compiler's standard library ends in its own shim.
    let failure = function
        .process(&[message("panic")], SOON)
        .await
        .unwrap_err();
    assert!(
        failure.panicked && failure.message.contains("it has escaped"),
        "{failure}"
    );
    let answers = function.process(&[message("abc")], SOON).await.unwrap();
    let FunctionAnswer::Changed(changed) = &answers[0] else {
        panic!("{answers:?}");
    };
    assert_eq!(changed.body, b"ABC");
    assert_eq!(changed.headers, message("").headers);
}
