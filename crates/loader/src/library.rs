//! Opening a checked file: a content-hashed copy, dlopen, the root. Never closed again.

use crate::inspect::PluginFile;
use crate::refusal::Refusal;
use consign_abi::export::{self, RootError};
use consign_abi::{PluginRef, Status};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::fs;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Opens a file whose bytes were checked, and gives the plugin's vtable.
///
/// The bytes are copied to `cache_dir` under their digest first, so that what was checked is what
/// is loaded, and a deployment that overwrites the file does not pull the mapped pages away.
pub(crate) fn open(
    file: &PluginFile,
    bytes: &[u8],
    cache_dir: Option<&Path>,
) -> Result<PluginRef, Refusal> {
    let cannot_copy = |error: std::io::Error| {
        Refusal::new(
            "copy_failed",
            &file.path,
            format!(
                "it can't be copied to where it is loaded from ({error}): make room there or set data_dir, and check it with `df -h`"
            ),
        )
    };
    let copy = match cache_dir {
        Some(folder) => {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(cannot_copy)?;
            copy_to(folder, file, bytes).map_err(cannot_copy)?
        }
        None => {
            copy_to(&private_folder().map_err(cannot_copy)?, file, bytes).map_err(cannot_copy)?
        }
    };
    let opened = dlopen(&copy, file);
    if cache_dir.is_none() {
        // Mapped by now; a leftover copy would harm nobody.
        let _ = fs::remove_file(&copy);
        let _ = copy.parent().map(fs::remove_dir);
    }
    opened
}

/// Removes copies of plugins that are loaded no more: an upgrade leaves one behind. A process that has
/// one mapped keeps it.
pub(crate) fn tidy(folder: &Path, loaded: &[&str]) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_copy = name.starts_with("lib") && (name.ends_with(".so") || name.ends_with(".tmp"));
        if is_copy && !loaded.iter().any(|digest| name.contains(digest)) {
            // A file that cannot be removed takes room and does no harm.
            let _ = fs::remove_file(path);
        }
    }
}

/// `<name>-<digest>.so`, written once.
fn copy_to(folder: &Path, file: &PluginFile, bytes: &[u8]) -> std::io::Result<PathBuf> {
    let stem = file.path.file_stem().unwrap_or_default().to_string_lossy();
    let target = folder.join(format!("{stem}-{}.so", file.digest));
    if fs::read(&target).is_ok_and(|there| there == bytes) {
        return Ok(target);
    }
    let temporary = folder.join(format!("{stem}-{}.{}.tmp", file.digest, std::process::id()));
    let mut out = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o700)
        .open(&temporary)?;
    out.write_all(bytes)?;
    out.sync_all()?;
    fs::rename(&temporary, &target)?;
    Ok(target)
}

/// A folder nobody else can write to.
fn private_folder() -> std::io::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!(
        "consign-plugins-{}-{}",
        std::process::id(),
        crate::registry::REGISTRY.issue()
    ));
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

fn dlopen(copy: &Path, file: &PluginFile) -> Result<PluginRef, Refusal> {
    // SAFETY: running the library's initialisers is what loading a plugin means. The file was
    // checked to be one of ours, and its digest against the lock where there is one.
    let library = unsafe { Library::open(Some(copy), RTLD_NOW | RTLD_LOCAL) };
    // Never unloaded: threads, thread locals and vtables of the plugin live as long as the process.
    let library = ManuallyDrop::new(library.map_err(|error| {
        let text = with_cause(&error);
        Refusal::new(
            "dlopen_failed",
            &file.path,
            format!(
                "the system can't load it ({}): install what it misses, as `ldd {}` shows",
                text.replace(&*copy.to_string_lossy(), "the file"),
                file.path.display()
            ),
        )
    })?);
    // SAFETY: the symbol is a static `LibHeader`, whose start is an `AbiHeader`; its address read
    // as `Header`, a transparent pointer, is how abi_stable itself reads it. `open` checks the
    // magic bytes behind it before anything else, and the library is never unloaded.
    let root = unsafe {
        match library.get::<export::Header>(file.root.as_bytes()) {
            Ok(symbol) => export::open(*symbol),
            Err(error) => Err(RootError::Header(error.to_string())),
        }
    };
    root.map_err(|error| refuse_root(file, error))
}

/// The linker's own words stand in the cause.
fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

fn refuse_root(file: &PluginFile, error: RootError) -> Refusal {
    let sdk = env!("CARGO_PKG_VERSION");
    let (code, message) = match error {
        RootError::Header(why) => (
            "bad_root",
            format!(
                "its symbol {} is not the root of a plugin of SDK {sdk} ({why}): run `cargo update -p consign-plugin --precise {sdk}` and `cargo build --release` in its crate",
                file.root
            ),
        ),
        RootError::Layout(why) => (
            "layout",
            format!(
                "the types of its SDK {} differ from those of this host's {sdk} ({why}): run `cargo update -p consign-plugin --precise {sdk}` and `cargo build --release` in its crate",
                file.note.sdk
            ),
        ),
        RootError::Constructor(why) => (
            "init_failed",
            format!(
                "it failed while it described itself and the host needs its description ({why}): run `cargo test` in its crate"
            ),
        ),
    };
    Refusal::new(code, &file.path, message)
}

/// Starts a loaded plugin: its runtime and its way to the host.
pub(crate) fn init(plugin: PluginRef, number: u64, file: &PluginFile) -> Result<(), Refusal> {
    let status = Status::from_code((plugin.init())(number, crate::host::vtable()));
    if status == Status::Ok {
        return Ok(());
    }
    Err(Refusal::new(
        "init_failed",
        &file.path,
        format!(
            "its init answered {status:?} and the host needs Ok: see the log line before this, and run `cargo test` in its crate"
        ),
    ))
}
