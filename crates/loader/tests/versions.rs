//! Plugins built with another SDK: an older one and a newer one load, one whose data types differ
//! is refused.
//!
//! Each variant is a copy of sdk/ with a change, and a small plugin built against it, in a
//! workspace of its own under the target folder. It uses the same lock file and target folder, so
//! only the SDK's three crates and the plugin are compiled. Its crates have versions of their own,
//! or cargo would take them for this workspace's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test code"
)]

mod common;

use common::profile_dir;
use consign_loader::{
    Applied, BatchBuilder, Failure, FunctionHandle, LoadOptions, Names, OpenConnection,
    OpenFunction, Plugins, WriteParts, verify_file,
};
use consign_manifest::PluginKind;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// Cargo builds one variant after the other: they share a target folder.
static BUILDING: Mutex<()> = Mutex::new(());

/// The text between two marks of a file is replaced.
struct Change {
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

const fn change(file: &'static str, from: &'static str, to: &'static str) -> Change {
    Change { file, from, to }
}

fn build(variant: &str, patch: u32, changes: &[Change]) -> PathBuf {
    let _one = BUILDING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = profile_dir().parent().unwrap().to_owned();
    let copy = target.join("sdk-variants").join(variant);
    let mut files = BTreeMap::new();
    for part in ["abi", "manifest", "plugin"] {
        read_tree(&root.join("sdk"), &root.join("sdk").join(part), &mut files);
    }
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = line_of(&manifest, "members = ");
    let version = line_of(&manifest, "version = ");
    let manifest = manifest
        .replace(&members, r#"members = ["sdk/*", "tiny"]"#)
        .replace(&version, &with_patch(&version, patch));
    files.insert("Cargo.toml".to_owned(), manifest);
    let abi = files.get_mut("sdk/abi/Cargo.toml").unwrap();
    let version = line_of(abi, "version = ");
    *abi = abi.replace(&version, &with_patch(&version, patch));
    let name = format!("variant_{variant}");
    files.insert(
        "tiny/Cargo.toml".to_owned(),
        TINY_MANIFEST.replace("variant", &name),
    );
    files.insert("tiny/src/lib.rs".to_owned(), TINY.replace("variant", &name));
    for change in changes {
        let text = files.get_mut(change.file).unwrap();
        assert!(
            text.contains(change.from),
            "{} lacks {:?}",
            change.file,
            change.from
        );
        *text = text.replace(change.from, change.to);
    }
    for (path, text) in &files {
        write(&copy.join(path), text);
    }
    fs::copy(root.join("Cargo.lock"), copy.join("Cargo.lock")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(&copy)
        .args(["build", "--offline", "--package", &name]);
    cargo.arg("--target-dir").arg(&target);
    if profile_dir().ends_with("release") {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    profile_dir().join(format!("lib{name}.so"))
}

/// `version = "1.2.3"` with another last number.
fn with_patch(line: &str, patch: u32) -> String {
    let (start, _) = line.rsplit_once('.').unwrap();
    format!("{start}.{patch}\"")
}

/// Writes a file unless it is the same already, so that cargo does not build it again.
fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    if fs::read_to_string(path).ok().as_deref() != Some(text) {
        fs::write(path, text).unwrap();
    }
}

fn line_of(text: &str, start: &str) -> String {
    text.lines()
        .find(|line| line.starts_with(start))
        .unwrap()
        .to_owned()
}

/// The files of a crate but for its tests, by their path from the folder above `sdk`.
fn read_tree(sdk: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().unwrap() != "tests" {
                read_tree(sdk, &path, files);
            }
        } else {
            let name = format!("sdk/{}", path.strip_prefix(sdk).unwrap().display());
            files.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

const TINY_MANIFEST: &str = r#"[package]
name = "variant"
version = "0.1.0"
edition = "2024"
[lib]
crate-type = ["cdylib"]
[dependencies]
consign-plugin.workspace = true
async-trait.workspace = true
schemars.workspace = true
serde.workspace = true
"#;

const TINY: &str = r#"
use consign_plugin::prelude::*;

/// Nothing.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Nothing {}

pub struct Tiny;

#[async_trait]
impl Connector for Tiny {
    type Config = Nothing;
    const NAME: &'static str = "variant";
    const TITLE: &'static str = "Variant";
    async fn connect(_: Nothing, _: &ConnectionContext) -> Result<Self, Failure> {
        Ok(Self)
    }
    async fn probe(&self) -> Result<(), Failure> {
        Ok(())
    }
}

pub struct Write;

#[async_trait]
impl Sink for Write {
    type Connector = Tiny;
    type Config = Nothing;
    const OPERATION: &'static str = "variant.write";
    const TITLE: &'static str = "Write";
    fn declaration() -> SinkDeclaration {
        SinkDeclaration {
            promise: Promise::AtLeastOnce,
            unconfirmed: false,
            repeat: Repeat { kind: RepeatKind::SecondCopy, condition: None, window: Window::None },
            key: KeyPlacement::Nowhere("it goes nowhere".into()),
            batch: BatchKind::Independent,
            sealed: false,
            note: String::new(),
        }
    }
    fn resolve(_: &Nothing, _: &Nothing) -> Resolved {
        unreachable!()
    }
    async fn open(_: Arc<Tiny>, _: Nothing, _: &ConnectionContext) -> Result<Self, Failure> {
        Ok(Self)
    }
    async fn write(&self, batch: &Batch, _: &WriteContext) -> Vec<Outcome> {
        batch.all(Outcome::delivered())
    }
}

pub struct Same;

#[async_trait]
impl Processor for Same {
    type Config = Nothing;
    const NAME: &'static str = "variant_same";
    const TITLE: &'static str = "Same";
    async fn open(_: Nothing, _: &FunctionContext) -> Result<Self, Failure> {
        Ok(Self)
    }
    async fn process(&self, _: &mut Message) -> Result<(), Detail> {
        Ok(())
    }
}

fn plugin() -> Plugin {
    Plugin::new("variant", "0.1.0")
        .connector::<Tiny>(|c| c.sink::<Write>())
        .processor::<Same>()
}

export_plugin!(plugin, provides = "variant variant_same");
"#;

/// Loads a variant and carries a batch through it.
async fn works(file: &Path, variant: &str) -> Plugins {
    let plugins = Plugins::load(&LoadOptions {
        folders: vec![file.to_owned()],
        ..LoadOptions::default()
    })
    .unwrap();
    let request = OpenConnection {
        connector: format!("variant_{variant}"),
        config: json!({}),
        names: Names::default(),
    };
    let connection = plugins.open_connection(request, SOON).await.unwrap();
    let operation = format!("variant_{variant}.write");
    let opened = connection.open_sink(&operation, json!({}), Names::default(), SOON);
    let sink = opened.await.unwrap();
    let mut batch = BatchBuilder::default();
    batch.push(&WriteParts::default(), [], []).unwrap();
    let answer = sink.submit(batch.finish(), SOON).await;
    assert_eq!(answer.outcomes[0].applied, Applied::Yes);
    plugins
}

const VTABLE: &str = "sdk/abi/src/vtable.rs";
const SHIM: &str = "sdk/plugin/src/shim/mod.rs";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_of_an_older_sdk_loads_and_the_methods_it_lacks_are_absent() {
    // The SDK before functions had methods of their own.
    let file = build(
        "older",
        901,
        &[
            change(
                VTABLE,
                "pub function_open: extern \"C\" fn(Call, RVec<u8>),",
                "",
            ),
            change(
                VTABLE,
                "pub function_call: extern \"C\" fn(Call, u64, MessageBatch, RVec<u8>),",
                "",
            ),
            change(
                VTABLE,
                "pub function_close: extern \"C\" fn(Call, u64),",
                "",
            ),
            change(
                VTABLE,
                "    /// Opens a processor, transform or error handler: an",
                "    // ",
            ),
            change(VTABLE, "    /// Calls it: function, messages,", "    // "),
            change(VTABLE, "    /// error handler).", "    //"),
            change(VTABLE, "    /// Closes it.\n", ""),
            change(SHIM, "function_open: functions::open,", ""),
            change(SHIM, "function_call: functions::call,", ""),
            change(SHIM, "function_close: functions::close,", ""),
        ],
    );
    let plugins = works(&file, "older").await;
    let failure = open_function(&plugins, "older").await.unwrap_err();
    assert_eq!(failure.code, "not_supported", "{failure}");
}

async fn open_function(plugins: &Plugins, variant: &str) -> Result<FunctionHandle, Failure> {
    let request = OpenFunction {
        kind: PluginKind::Processor,
        name: format!("variant_{variant}_same"),
        config: json!({}),
        names: Names::default(),
    };
    plugins.open_function(request, SOON).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_of_a_newer_sdk_loads_with_a_method_the_host_does_not_know() {
    let file = build(
        "newer",
        902,
        &[
            change(
                VTABLE,
                "pub function_close: extern \"C\" fn(Call, u64),",
                "pub function_close: extern \"C\" fn(Call, u64),\n    /// New.\n    pub juggle: extern \"C\" fn(Call, u64),",
            ),
            change(
                SHIM,
                "function_close: functions::close,",
                "function_close: functions::close,\n            juggle: functions::close,",
            ),
        ],
    );
    let plugins = works(&file, "newer").await;
    open_function(&plugins, "newer").await.unwrap();
}

#[test]
fn a_plugin_whose_data_types_differ_is_refused() {
    let file = build(
        "other",
        903,
        &[change(
            "sdk/abi/src/data.rs",
            "pub struct SettleRow {",
            "pub struct SettleRow {\n    /// New.\n    pub more: u64,",
        )],
    );
    let refusals = verify_file(&file).unwrap_err();
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    let (start, _) = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap();
    let other_version = format!("{start}.903");
    let message = refusals[0]
        .message
        .replace(&other_version, "[other]")
        .replace(env!("CARGO_PKG_VERSION"), "[version]");
    insta::assert_snapshot!(message);
}
