//! Reading and checking a plugin's file; nothing of it runs.

use crate::elf::{self, ElfError, Glibc};
use crate::refusal::Refusal;
use consign_abi::note::{ABI_MAJOR, ABI_VERSION, NOTE_MAGIC, NOTE_SECTION, ROOT_SYMBOL_PREFIX};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a plugin's note says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// ABI it was built for, `major.minor`.
    pub abi: String,
    /// SDK version.
    pub sdk: String,
    /// Compiler, for information.
    pub rustc: String,
    /// Target triple.
    pub target: String,
    /// `unwind` or `abort`.
    pub panic: String,
    /// Package name.
    pub package: String,
    /// Package version.
    pub version: String,
    /// Connectors and functions it provides.
    pub provides: Vec<String>,
}

/// A file that may be loaded, as far as it can be told without running it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginFile {
    /// Where it is.
    pub path: PathBuf,
    /// BLAKE3 of its bytes, 64 hex digits.
    pub digest: String,
    /// What it says of itself.
    pub note: Note,
    /// The oldest glibc it runs on, from the symbol versions it asks for.
    pub glibc: Option<String>,
    /// The exported symbol of its root.
    pub(crate) root: String,
}

/// Reads and checks a file.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn inspect_file(path: &Path) -> Result<PluginFile, Refusal> {
    match read_file(path) {
        Ok((file, _)) => Ok(file),
        Err(first) => Err(first.into_first()),
    }
}

/// Faults of one file, at least one.
pub(crate) struct Faults {
    first: Refusal,
    rest: Vec<Refusal>,
}

impl Faults {
    fn one(first: Refusal) -> Self {
        Self {
            first,
            rest: Vec::new(),
        }
    }

    pub fn into_first(self) -> Refusal {
        self.first
    }

    pub fn into_all(self) -> Vec<Refusal> {
        let mut all = vec![self.first];
        all.extend(self.rest);
        all
    }
}

/// As [`inspect_file`], with the bytes that were read, and with all faults that can be told apart.
pub(crate) fn read_file(path: &Path) -> Result<(PluginFile, Vec<u8>), Faults> {
    let bytes = read_bytes(path).map_err(Faults::one)?;
    let elf = elf::read(&bytes).map_err(|error| Faults::one(refuse_elf(path, &bytes, &error)))?;
    let note = parse_note(path, &elf.note).map_err(Faults::one)?;
    let mut faults = [
        check_abi(path, &note),
        check_panic(path, &note),
        check_c_library(path, &note),
        check_glibc(path, &note, elf.glibc),
        check_root(path, &elf.roots),
    ]
    .into_iter()
    .flatten();
    if let Some(first) = faults.next() {
        let rest = faults.collect();
        return Err(Faults { first, rest });
    }
    let file = PluginFile {
        path: path.to_owned(),
        digest: blake3::hash(&bytes).to_hex().to_string(),
        note,
        glibc: elf.glibc.map(|g| g.to_string()),
        root: elf.roots.into_iter().next().unwrap_or_default(),
    };
    Ok((file, bytes))
}

/// Largest file that is read: plugins have some 10 MB, debug builds up to a few hundred.
const BYTES_AT_MOST: u64 = 1 << 30;

fn read_bytes(path: &Path) -> Result<Vec<u8>, Refusal> {
    let unreadable = |error: std::io::Error| {
        Refusal::new(
            "unreadable",
            path,
            format!(
                "the file can't be read ({error}) and the host reads a plugin whole before it loads it: check it with `ls -l {}`",
                path.display()
            ),
        )
    };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() || metadata.len() > BYTES_AT_MOST {
        let what = if metadata.is_file() {
            format!("has {} bytes", metadata.len())
        } else {
            "is a folder, pipe or device".to_owned()
        };
        return Err(Refusal::new(
            "not_a_file",
            path,
            format!(
                "it {what} and a plugin is a file of at most 1 GiB: check it with `ls -l {}`",
                path.display()
            ),
        ));
    }
    std::fs::read(path).map_err(unreadable)
}

const REBUILD: &str = "run `cargo build --release` in its crate";

fn refuse_elf(path: &Path, bytes: &[u8], error: &ElfError) -> Refusal {
    match error {
        ElfError::NotElf => {
            const SHOWN: usize = 16;
            let start: String = String::from_utf8_lossy(bytes.get(..SHOWN).unwrap_or(bytes))
                .chars()
                .map(|c| {
                    if c.is_control() || c == '\u{fffd}' {
                        '.'
                    } else {
                        c
                    }
                })
                .collect();
            Refusal::new(
                "not_a_library",
                path,
                format!(
                    "it starts with {start:?} and the host loads ELF shared libraries only: {REBUILD} and take the .so from target/release"
                ),
            )
        }
        ElfError::OtherKind(what) => Refusal::new(
            "other_machine",
            path,
            format!(
                "it is {what}: run `cargo build --release --target {}-unknown-linux-gnu` in its crate",
                std::env::consts::ARCH
            ),
        ),
        ElfError::Damaged(why) => Refusal::new(
            "damaged",
            path,
            format!(
                "it begins as a library but can't be read to its end at {} bytes ({why}): copy it again, or {REBUILD}",
                bytes.len()
            ),
        ),
        ElfError::NoNote => Refusal::new(
            "no_note",
            path,
            format!(
                "it is a library without the section {NOTE_SECTION} that every plugin of this host has: end its crate with `export_plugin!(plugin);` and run `cargo build --release`"
            ),
        ),
    }
}

fn parse_note(path: &Path, text: &str) -> Result<Note, Refusal> {
    let mut fields: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    let magic = fields.remove("magic").unwrap_or_default();
    if magic != NOTE_MAGIC {
        return Err(Refusal::new(
            "wrong_magic",
            path,
            format!(
                "its note begins with {magic:?} and a plugin's begins with {NOTE_MAGIC:?}: {REBUILD} with the crate consign-plugin"
            ),
        ));
    }
    let mut take = |key| fields.remove(key).unwrap_or_default().to_owned();
    let package = take("package");
    let provides = take("provides");
    let provides = if provides.trim().is_empty() {
        let name = package.strip_prefix("consign-plugin-").unwrap_or(&package);
        vec![name.replace('-', "_")]
    } else {
        provides.split_whitespace().map(str::to_owned).collect()
    };
    Ok(Note {
        abi: take("abi"),
        sdk: take("sdk"),
        rustc: take("rustc"),
        target: take("target"),
        panic: take("panic"),
        version: take("version"),
        package,
        provides,
    })
}

fn check_abi(path: &Path, note: &Note) -> Option<Refusal> {
    let major = note
        .abi
        .split('.')
        .next()
        .and_then(|m| m.parse::<u32>().ok());
    if major == Some(ABI_MAJOR) {
        return None;
    }
    let build = format!(
        "`cargo update -p consign-plugin --precise {}` and `cargo build --release`",
        env!("CARGO_PKG_VERSION")
    );
    let mend = if major.is_some_and(|major| major > ABI_MAJOR) {
        format!("update the host, or build the plugin with {build}")
    } else {
        format!("run {build} in its crate")
    };
    let abi = if note.abi.is_empty() {
        "that its note does not name"
    } else {
        &note.abi
    };
    Some(Refusal::new(
        "abi_major",
        path,
        format!(
            "it was built for plugin ABI {abi} (SDK {}) and this host speaks ABI {ABI_VERSION}: {mend}",
            note.sdk
        ),
    ))
}

fn check_panic(path: &Path, note: &Note) -> Option<Refusal> {
    (note.panic != "unwind").then(|| {
        Refusal::new(
            "panic_abort",
            path,
            format!(
                "it was built with panic = {:?} and the host contains panics only with \"unwind\": take `panic` out of the profile in Cargo.toml and run `cargo build --release`",
                note.panic
            ),
        )
    })
}

/// The C library this host is built on, as the last part of a target triple.
const C_LIBRARY: &str = if cfg!(target_env = "musl") {
    "musl"
} else {
    "gnu"
};

fn check_c_library(path: &Path, note: &Note) -> Option<Refusal> {
    (!note.target.ends_with(C_LIBRARY)).then(|| {
        let target = format!("{}-unknown-linux-{C_LIBRARY}", std::env::consts::ARCH);
        Refusal::new(
            "other_target",
            path,
            format!(
                "it was built for {} and this host is built for {target}: run `cargo build --release --target {target}` in its crate",
                note.target
            ),
        )
    })
}

fn check_glibc(path: &Path, note: &Note, needed: Option<Glibc>) -> Option<Refusal> {
    let (needed, running) = (needed?, elf::running_glibc()?);
    (needed > running).then(|| {
        Refusal::new(
            "glibc_too_old",
            path,
            format!(
                "it needs glibc {needed} and this machine has {running}: build it on a system with glibc {running} or older, or with `cargo zigbuild --release --target {}.{running}`",
                note.target
            ),
        )
    })
}

fn check_root(path: &Path, roots: &[String]) -> Option<Refusal> {
    roots.is_empty().then(|| {
        Refusal::new(
            "no_root",
            path,
            format!(
                "it has a note but exports no symbol {ROOT_SYMBOL_PREFIX}…, which the host calls first: set `crate-type = [\"cdylib\", \"rlib\"]` and run `cargo build --release`"
            ),
        )
    })
}
