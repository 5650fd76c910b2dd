//! A plugin whose native code ends the process on some messages, for the crash tests; it is not a
//! connector to use.
//!
//! A write whose body has `"crash": HOW` waits until the file `go` appears in the folder, and then
//! crashes; where there is a file `withstand`, it is a write like any other. What takes effect is one
//! line of `effects`.
#![allow(
    unsafe_code,
    reason = "crashing is what it is for, and safe code does not"
)]

use consign_plugin::prelude::*;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The test's folder.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FolderConfig {
    /// Its path.
    folder: PathBuf,
}

/// Writes a line.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LineConfig {}

struct Folder(PathBuf);

#[async_trait]
impl Connector for Folder {
    type Config = FolderConfig;
    const NAME: &'static str = "crash";
    const TITLE: &'static str = "Crash";

    async fn connect(config: FolderConfig, _: &ConnectionContext) -> Result<Self, Failure> {
        Ok(Self(config.folder))
    }

    async fn probe(&self) -> Result<(), Failure> {
        Ok(())
    }
}

struct Line(Arc<Folder>);

#[async_trait]
impl Sink for Line {
    type Connector = Folder;
    type Config = LineConfig;
    const OPERATION: &'static str = "crash.write";
    const TITLE: &'static str = "Crash";

    fn declaration() -> SinkDeclaration {
        SinkDeclaration {
            promise: Promise::AtLeastOnce,
            unconfirmed: false,
            repeat: Repeat {
                kind: RepeatKind::SecondCopy,
                condition: None,
                window: Window::None,
            },
            key: KeyPlacement::On("end of the line".into()),
            batch: BatchKind::Independent,
            sealed: false,
            note: String::new(),
        }
    }

    fn resolve(_: &FolderConfig, _: &LineConfig) -> Resolved {
        Resolved {
            promise: Promise::AtLeastOnce,
            unconfirmed: false,
            repeat: RepeatKind::SecondCopy,
            window: Window::None,
            reason: "every copy is a line".into(),
            target_id: "effects".into(),
            target_fields: Vec::new(),
            faults: Vec::new(),
        }
    }

    async fn open(
        folder: Arc<Folder>,
        _: LineConfig,
        _: &ConnectionContext,
    ) -> Result<Self, Failure> {
        Ok(Self(folder))
    }

    async fn write(&self, batch: &Batch, _: &WriteContext) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for write in batch.writes() {
            outcomes.push(self.line(write).await);
        }
        outcomes
    }
}

impl Line {
    async fn line(&self, write: &Write) -> Outcome {
        let folder = &self.0.0;
        let body = String::from_utf8_lossy(write.body()).into_owned();
        let how = body
            .split_once("\"crash\": \"")
            .and_then(|(_, rest)| rest.split('"').next());
        if let Some(how) = how {
            wait_for_go(folder).await;
            if !folder.join("withstand").exists() {
                crash(how);
            }
        }
        let mut options = OpenOptions::new();
        let file = options
            .append(true)
            .create(true)
            .open(folder.join("effects"));
        match file.and_then(|mut file| writeln!(file, "{body} {}", write.key())) {
            Ok(()) => Outcome::delivered(),
            Err(error) => Outcome::down(("effects", error.to_string())),
        }
    }
}

async fn wait_for_go(folder: &Path) {
    while !folder.join("go").exists() && !folder.join("withstand").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn crash(how: &str) {
    match how {
        // SAFETY: none; this is the fault that the tests are about.
        "segv" => unsafe { std::ptr::null_mut::<u8>().write_volatile(1) },
        "stack" => drop(deeper(u64::MAX)),
        // SAFETY: raises a signal, whose default action ends the process.
        "bus" => unsafe {
            let _ = libc::raise(libc::SIGBUS);
        },
        // SAFETY: as above.
        "ill" => unsafe {
            let _ = libc::raise(libc::SIGILL);
        },
        // SAFETY: as above.
        "fpe" => unsafe {
            let _ = libc::raise(libc::SIGFPE);
        },
        _ => std::process::abort(),
    }
}

#[allow(unconditional_recursion, reason = "the stack is to run over")]
#[inline(never)]
fn deeper(depth: u64) -> u64 {
    let room = [depth; 64];
    let below = std::hint::black_box(deeper(std::hint::black_box(depth.wrapping_sub(1))));
    below.wrapping_add(std::hint::black_box(room).iter().sum())
}

fn plugin() -> Plugin {
    Plugin::new("crash", env!("CARGO_PKG_VERSION"))
        .connector::<Folder>(|connector| connector.sink::<Line>())
}

consign_plugin::export_plugin!(plugin, provides = "crash");
