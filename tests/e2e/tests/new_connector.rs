//! `cargo xtask new-connector`: in a copy of the workspace, what it makes builds with the workspace's lints,
//! passes its tests, keeps its promises in the host, and has a page.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use consign_e2e::built;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn said(output: &Output) -> String {
    format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

/// The SDK and one other plugin. Its crates have a version of their own: in one target folder cargo would take
/// them for this workspace's otherwise, and build everything anew each time.
fn workspace(folder: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    copy(&root.join("sdk"), &folder.join("sdk"));
    copy(&root.join("plugins/tcp"), &folder.join("plugins/tcp"));
    for file in ["Cargo.lock", "clippy.toml"] {
        std::fs::copy(root.join(file), folder.join(file)).unwrap();
    }
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let line = |text: &str, start: &str| {
        let found = text.lines().find(|line| line.starts_with(start));
        found.unwrap().to_owned()
    };
    let numbered = |text: &str| {
        let version = line(text, "version = ");
        let (start, _) = version.rsplit_once('.').unwrap();
        text.replacen(&version, &format!("{start}.906\""), 1)
    };
    let members = line(&manifest, "members = ");
    let manifest = manifest.replace(&members, r#"members = ["sdk/*", "plugins/*"]"#);
    std::fs::write(folder.join("Cargo.toml"), numbered(&manifest)).unwrap();
    let abi = folder.join("sdk/abi/Cargo.toml");
    let text = std::fs::read_to_string(&abi).unwrap();
    std::fs::write(&abi, numbered(&text)).unwrap();
}

fn target() -> PathBuf {
    built().consign.ancestors().nth(2).unwrap().to_owned()
}

/// A command in the copy, with this workspace's target folder and host.
fn run(program: &Path, workspace: &Path, plugins: &Path, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .current_dir(workspace)
        .env("CARGO_TARGET_DIR", target())
        .env("CARGO_NET_OFFLINE", "true")
        .env("CONSIGN_BIN", &built().consign)
        .env("CONSIGN_PLUGINS", plugins)
        .output()
        .unwrap()
}

#[test]
fn a_new_connector_of_the_workspace_builds_is_tested_and_keeps_its_promises() {
    let xtask = PathBuf::from(
        std::env::var_os("CONSIGN_XTASK")
            .unwrap_or_else(|| built().consign.with_file_name("xtask").into_os_string()),
    );
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    workspace(at);
    let plugins = at.join("built");
    std::fs::create_dir(&plugins).unwrap();
    for plugin in ["http", "sqlite"] {
        let name = format!("libconsign_plugin_{plugin}.so");
        std::fs::copy(built().plugins.join(&name), plugins.join(&name)).unwrap();
    }
    let made = run(&xtask, at, &plugins, &["new-connector", "acme_shelf"]);
    assert!(made.status.success(), "{}", said(&made));
    assert!(!at.join("plugins/acme_shelf/.github").exists());
    let again = run(&xtask, at, &plugins, &["new-connector", "acme_shelf"]);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    assert!(
        said(&again).contains("is there already"),
        "{}",
        said(&again)
    );
    let odd = run(&xtask, at, &plugins, &["new-connector", "Acme"]);
    assert_eq!(odd.status.code(), Some(2), "{}", said(&odd));
    assert!(!at.join("plugins/Acme").exists());

    let cargo = Path::new(env!("CARGO"));
    let package = "consign-plugin-acme_shelf";
    let build = run(cargo, at, &plugins, &["build", "--package", package]);
    assert!(build.status.success(), "{}", said(&build));
    let library = "libconsign_plugin_acme_shelf.so";
    std::fs::copy(target().join("debug").join(library), plugins.join(library)).unwrap();
    let tests = run(cargo, at, &plugins, &["test", "--package", package]);
    assert!(tests.status.success(), "{}", said(&tests));
    let said_of_tests = said(&tests);
    assert!(
        said_of_tests.contains("conformance acme_shelf: 2 kept, 0 failed"),
        "{said_of_tests}"
    );
    let format = run(
        cargo,
        at,
        &plugins,
        &["fmt", "--check", "--package", package],
    );
    assert!(format.status.success(), "{}", said(&format));

    let page = consign_e2e::consign(&[
        "plugins",
        "--plugins",
        plugins.to_str().unwrap(),
        "docs",
        "acme_shelf",
    ]);
    assert!(said(&page).contains("acme_shelf.put"), "{}", said(&page));
}
