//! Plugins and hosts built against changed copies of the SDK.
//!
//! Each variant is a copy of some crates with a change, and a small plugin or host built against it, in a
//! workspace of its own under the target folder. It uses the same lock file and target folder, so
//! only those crates and the plugin are compiled.

use super::profile_dir;
use consign_loader::{
    BatchBuilder, Failure, FunctionHandle, LoadOptions, Names, OpenConnection, OpenFunction,
    Outcome, Plugins, WriteParts,
};
use consign_manifest::PluginKind;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// Cargo builds one variant after the other: they share a target folder.
static BUILDING: Mutex<()> = Mutex::new(());

const SOON: Duration = Duration::from_secs(20);

/// A text of a file, and what stands there instead.
#[derive(Clone, Copy)]
pub struct Change {
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

pub const fn change(file: &'static str, from: &'static str, to: &'static str) -> Change {
    Change { file, from, to }
}

/// A plugin built against a changed copy of the SDK.
pub fn build(variant: &str, patch: u32, changes: &[Change]) -> PathBuf {
    let name = format!("variant_{variant}");
    let mut files = copy(
        patch,
        &["abi", "manifest", "plugin"].map(|part| format!("sdk/{part}")),
        "tiny",
    );
    files.insert(
        "tiny/Cargo.toml".to_owned(),
        TINY_MANIFEST.replace("variant", &name),
    );
    files.insert("tiny/src/lib.rs".to_owned(), TINY.replace("variant", &name));
    let target = profile_dir().parent().unwrap().to_owned();
    let built = cargo_build(variant, &name, files, changes, &target, None);
    built.join(format!("lib{name}.so"))
}

/// The same small plugin, the SDK as it is, and another compiler. It has a target folder of its own,
/// since cargo would build everything anew at each change of the compiler.
pub fn build_with(compiler: &Path) -> PathBuf {
    let mut files = copy(
        0,
        &["abi", "manifest", "plugin"].map(|part| format!("sdk/{part}")),
        "tiny",
    );
    files.insert(
        "tiny/Cargo.toml".to_owned(),
        TINY_MANIFEST.replace("variant", "variant_compiler"),
    );
    files.insert(
        "tiny/src/lib.rs".to_owned(),
        TINY.replace("variant", "variant_compiler"),
    );
    let target = profile_dir().parent().unwrap().join("second-compiler");
    let built = cargo_build(
        "compiler",
        "variant_compiler",
        files,
        &[],
        &target,
        Some(compiler),
    );
    built.join("libvariant_compiler.so")
}

/// A program that loads a plugin (its first argument), built against a changed copy of SDK and loader.
pub fn build_host(variant: &str, patch: u32, changes: &[Change], main: &str) -> PathBuf {
    let name = format!("host_{variant}");
    let parts = ["sdk/abi", "sdk/manifest", "crates/loader"].map(str::to_owned);
    let mut files = copy(patch, &parts, "host");
    // Its tests and examples stay where they are.
    let loader = files.get_mut("crates/loader/Cargo.toml").unwrap();
    let end = loader.find("[dev-dependencies]").unwrap();
    loader.truncate(end);
    files.insert(
        "host/Cargo.toml".to_owned(),
        HOST_MANIFEST.replace("variant", &name),
    );
    files.insert("host/src/main.rs".to_owned(), main.to_owned());
    let target = profile_dir().parent().unwrap().to_owned();
    cargo_build(variant, &name, files, changes, &target, None).join(name)
}

/// The workspace with these crates and `member`, each with a last version number of its own: cargo would take
/// them for this workspace's otherwise. 0 leaves the numbers as they are.
fn copy(patch: u32, parts: &[String], member: &str) -> BTreeMap<String, String> {
    let root = root();
    let mut files = BTreeMap::new();
    for part in parts {
        read_tree(&root, &root.join(part), &mut files);
    }
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = line_of(&manifest, "members = ");
    let list: Vec<String> = parts
        .iter()
        .chain([&member.to_owned()])
        .map(|m| format!("{m:?}"))
        .collect();
    let mut manifest = manifest.replace(&members, &format!("members = [{}]", list.join(", ")));
    if patch > 0 {
        let version = line_of(&manifest, "version = ");
        manifest = manifest.replace(&version, &with_patch(&version, patch));
        let abi = files.get_mut("sdk/abi/Cargo.toml").unwrap();
        let version = line_of(abi, "version = ");
        *abi = abi.replace(&version, &with_patch(&version, patch));
    }
    files.insert("Cargo.toml".to_owned(), manifest);
    files
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes a copy and builds one of its packages; the folder with what came of it.
fn cargo_build(
    variant: &str,
    package: &str,
    mut files: BTreeMap<String, String>,
    changes: &[Change],
    target: &Path,
    compiler: Option<&Path>,
) -> PathBuf {
    let _one = BUILDING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = profile_dir()
        .parent()
        .unwrap()
        .join("sdk-variants")
        .join(variant);
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
        write(&folder.join(path), text);
    }
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(&folder)
        .args(["build", "--offline", "--package", package])
        .arg("--target-dir")
        .arg(target);
    if let Some(compiler) = compiler {
        // Everything is built anew for it: as little as makes a plugin.
        let quick = [
            "profile.dev.opt-level=0",
            "profile.dev.debug=false",
            "profile.dev.package.\"*\".opt-level=0",
        ];
        cargo
            .args(quick.iter().flat_map(|setting| ["--config", setting]))
            .env("RUSTC", compiler)
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTUP_TOOLCHAIN");
    }
    let release = profile_dir().ends_with("release");
    if release {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    target.join(if release { "release" } else { "debug" })
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

/// The files of a crate but for its tests and examples, by their path in the workspace.
fn read_tree(root: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !["tests", "examples"]
                .map(Some)
                .contains(&path.file_name().unwrap().to_str())
            {
                read_tree(root, &path, files);
            }
        } else {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            files.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

/// Loads a variant and carries one write through it.
pub async fn write_one(file: &Path, variant: &str) -> (Plugins, Outcome) {
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
    (plugins, answer.outcomes[0].clone())
}

/// Opens its processor.
pub async fn open_same(plugins: &Plugins, variant: &str) -> Result<FunctionHandle, Failure> {
    let request = OpenFunction {
        kind: PluginKind::Processor,
        name: format!("variant_{variant}_same"),
        config: json!({}),
        names: Names::default(),
    };
    plugins.open_function(request, SOON).await
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
    async fn process(&self, message: &mut Message) -> Result<(), Detail> {
        assert_ne!(message.body, b"panic", "it has escaped");
        message.body.make_ascii_uppercase();
        Ok(())
    }
}

pub struct Other;

#[async_trait]
impl Transform for Other {
    type Config = Nothing;
    const NAME: &'static str = "variant_other";
    const TITLE: &'static str = "Other";
    async fn open(_: Nothing, _: &FunctionContext) -> Result<Self, Failure> {
        Ok(Self)
    }
    async fn transform(&self, _: &mut Message) -> Result<(), Detail> {
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

const HOST_MANIFEST: &str = r#"[package]
name = "variant"
version = "0.1.0"
edition = "2024"
[dependencies]
consign-loader.workspace = true
consign-manifest.workspace = true
serde_json.workspace = true
tokio.workspace = true
"#;
