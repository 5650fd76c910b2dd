//! Reading and checking a plugin's file; nothing of it runs.

use crate::elf::{self, ElfError};
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
    read_file(path).map(|(file, _)| file)
}

/// As [`inspect_file`], with the bytes that were read.
pub(crate) fn read_file(path: &Path) -> Result<(PluginFile, Vec<u8>), Refusal> {
    let bytes = std::fs::read(path).map_err(|error| {
        Refusal::new(
            "unreadable",
            path,
            format!(
                "the file can't be read ({error}) and the host reads a plugin whole before it loads it: check it with `ls -l {}`",
                path.display()
            ),
        )
    })?;
    let elf = elf::read(&bytes).map_err(|error| refuse_elf(path, &bytes, &error))?;
    let note = parse_note(path, &elf.note)?;
    check_note(path, &note)?;
    if let (Some(needed), Some(running)) = (elf.glibc, elf::running_glibc())
        && needed > running
    {
        return Err(Refusal::new(
            "glibc_too_old",
            path,
            format!(
                "it needs glibc {needed} and this machine has {running}: build it on a system with glibc {running} or older, or with `cargo zigbuild --release --target {}.{running}`",
                note.target
            ),
        ));
    }
    let Some(root) = elf.roots.first().cloned() else {
        return Err(Refusal::new(
            "no_root",
            path,
            format!(
                "it has a note but exports no symbol {ROOT_SYMBOL_PREFIX}…, which the host calls first: set `crate-type = [\"cdylib\", \"rlib\"]`, keep symbols from being stripped of exports, and run `cargo build --release`"
            ),
        ));
    };
    let file = PluginFile {
        path: path.to_owned(),
        digest: blake3::hash(&bytes).to_hex().to_string(),
        note,
        glibc: elf.glibc.map(|g| g.to_string()),
        root,
    };
    Ok((file, bytes))
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

fn check_note(path: &Path, note: &Note) -> Result<(), Refusal> {
    let major = note
        .abi
        .split('.')
        .next()
        .and_then(|m| m.parse::<u32>().ok());
    if major != Some(ABI_MAJOR) {
        let mend = if major.is_some_and(|major| major > ABI_MAJOR) {
            format!(
                "update the host, or build the plugin with `cargo update -p consign-plugin --precise {}` and `cargo build --release`",
                env!("CARGO_PKG_VERSION")
            )
        } else {
            format!(
                "run `cargo update -p consign-plugin --precise {}` and `cargo build --release` in its crate",
                env!("CARGO_PKG_VERSION")
            )
        };
        let abi = if note.abi.is_empty() {
            "that its note does not name".to_owned()
        } else {
            note.abi.clone()
        };
        return Err(Refusal::new(
            "abi_major",
            path,
            format!(
                "it was built for plugin ABI {abi} (SDK {}) and this host speaks ABI {ABI_VERSION}: {mend}",
                note.sdk
            ),
        ));
    }
    if note.panic != "unwind" {
        return Err(Refusal::new(
            "panic_abort",
            path,
            format!(
                "it was built with panic = {:?} and the host contains panics only with \"unwind\": take `panic` out of the profile in Cargo.toml and run `cargo build --release`",
                note.panic
            ),
        ));
    }
    Ok(())
}
