//! Every way in which a plugin is refused: one sentence, both sides, the command that mends it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test code"
)]

mod common;

use common::{library, patched, raw};
use consign_loader::{LoadOptions, Lock, Plugins, inspect_file, verify_file};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All that is said about a file, with what differs from machine to machine taken out.
fn said(path: &Path) -> String {
    let refusals = match verify_file(path) {
        Ok(_) => return "accepted".to_owned(),
        Err(refusals) => refusals,
    };
    let lines: Vec<String> = refusals
        .iter()
        .map(|r| format!("[{}] {}", r.code, r.message))
        .collect();
    tidy(&lines.join("\n"), path)
}

fn tidy(text: &str, path: &Path) -> String {
    let folder = path.parent().unwrap().display().to_string();
    let glibc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let running = inspect_file(glibc).unwrap_err();
    assert_eq!(running.code, "no_note", "libc itself is read to the end");
    let text = text
        .replace(&folder, "[folder]")
        .replace(env!("CARGO_PKG_VERSION"), "[version]");
    without_glibc(&text)
}

/// Replaces this machine's glibc version.
fn without_glibc(text: &str) -> String {
    let Some((_, rest)) = text.split_once("this machine has ") else {
        return text.to_owned();
    };
    let version: String = rest.chars().take_while(|c| *c != ':').collect();
    text.replace(&version, "[glibc]")
}

struct Cases {
    folder: tempfile::TempDir,
    report: String,
}

impl Cases {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            report: String::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn add(&mut self, what: &str, path: &Path) {
        let said = said(path);
        for line in said.lines() {
            let (_, sentence) = line.split_once("] ").expect(line);
            assert!(sentence.contains('`'), "names a command: {line}");
            assert!(
                sentence.contains(" and ") || sentence.contains(" but "),
                "has both sides: {line}"
            );
        }
        self.report += &format!("{what}\n{said}\n\n");
    }
}

#[test]
fn files_that_are_no_plugins() {
    let mut cases = Cases::new();
    let text = cases.path("text.so");
    fs::write(&text, "#!/bin/sh\necho hello\n").unwrap();
    cases.add("a text file", &text);

    let empty = cases.path("empty.so");
    fs::write(&empty, "").unwrap();
    cases.add("an empty file", &empty);

    cases.add("no file", &cases.path("missing.so"));

    let folder = cases.path("folder.so");
    fs::create_dir(&folder).unwrap();
    cases.add("a folder", &folder);

    let pipe = cases.path("pipe.so");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    cases.add("a pipe", &pipe);

    let noteless = cases.path("noteless.so");
    fs::copy(library("zoo_noteless"), &noteless).unwrap();
    cases.add("a library without a note", &noteless);

    let whole = fs::read(library("zoo")).unwrap();
    for (what, end) in [
        ("cut off in its header", 40),
        ("cut off in the middle", whole.len() / 2),
    ] {
        let cut = cases.path("cut.so");
        fs::write(&cut, &whole[..end]).unwrap();
        let said = said(&cut);
        assert!(said.starts_with("[damaged]"), "{what}: {said}");
    }
    let cut = cases.path("cut.so");
    fs::write(&cut, &whole[..40]).unwrap();
    cases.add("cut off in its header", &cut);

    let mut other = whole.clone();
    other[4] = 1;
    let narrow = cases.path("narrow.so");
    fs::write(&narrow, &other).unwrap();
    cases.add("32 bit", &narrow);

    let mut other = whole.clone();
    // e_machine, bytes 18 and 19: 183 is aarch64.
    other[18..20].copy_from_slice(&183_u16.to_le_bytes());
    let machine = cases.path("machine.so");
    fs::write(&machine, &other).unwrap();
    cases.add("another machine", &machine);
    insta::assert_snapshot!(cases.report);
}

#[test]
fn notes_that_do_not_fit() {
    let mut cases = Cases::new();
    let zoo = library("zoo");
    for (what, old, new) in [
        (
            "wrong magic",
            "magic=consign-plugin",
            "magic=consign-plugim",
        ),
        ("a newer ABI", "\nabi=1.0\n", "\nabi=2.0\n"),
        ("an older ABI", "\nabi=1.0\n", "\nabi=0.9\n"),
        ("no ABI", "\nabi=1.0\n", "\nabx=1.0\n"),
        ("panic = abort", "panic=unwind\n", "panic=abort \n"),
        (
            "another C library",
            "x86_64-unknown-linux-gnu\nabi",
            "x86_64-unknown-linux-mus\nabi",
        ),
    ] {
        let path = cases.path("note.so");
        patched(&zoo, &path, &[(old, new)]);
        cases.add(what, &path);
    }
    let path = cases.path("note.so");
    let all = [
        ("\nabi=1.0\n", "\nabi=2.0\n"),
        ("panic=unwind\n", "panic=abort \n"),
        ("consign_plugin_root_zoo\0", "consign_plugin_rooo_zoo\0"),
    ];
    patched(&zoo, &path, &all);
    cases.add("several faults at once", &path);
    insta::assert_snapshot!(cases.report);
}

#[test]
fn a_newer_glibc_is_refused_before_anything_runs() {
    let mut cases = Cases::new();
    let path = cases.path("glibc.so");
    let needed = consign_loader::inspect_file(&library("zoo"))
        .unwrap()
        .glibc
        .unwrap();
    let old = format!("GLIBC_{needed}\0");
    let new = format!("GLIBC_2.{}\0", "9".repeat(needed.len() - 2));
    patched(&library("zoo"), &path, &[(&old, &new)]);
    cases.add("a newer glibc", &path);
    insta::assert_snapshot!(cases.report);
}

#[test]
fn plugins_that_fail_or_lie_while_they_load() {
    let mut cases = Cases::new();
    for lie in [
        "root_panics",
        "root_fails",
        "not_json",
        "format",
        "no_name",
        "incoherent",
        "prefix",
        "twice",
        "other_name",
        "no_schema",
        "function_twice",
        "function_schema",
        "function_name",
    ] {
        let path = raw(cases.folder.path(), lie);
        cases.add(lie, &path);
    }
    insta::assert_snapshot!(cases.report);
}

#[test]
fn what_the_system_refuses_is_said_with_its_words() {
    let mut report = String::new();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let path = at.join("libzoo.so");
    // Other bytes than any other test's, or the process would have it loaded already.
    patched(
        &library("zoo"),
        &path,
        &[("libgcc_s.so.1\0", "libgcc_x.so.1\0")],
    );
    let options = |cache: &str| LoadOptions {
        folders: vec![path.clone()],
        cache_dir: Some(at.join(cache)),
        ..LoadOptions::default()
    };
    fs::write(at.join("file"), "").unwrap();
    let said = load_error(&options("file"), at);
    report += &format!("no folder to load from\n{said}\n\n");
    let said = load_error(&options("cache"), at);
    report += &format!("a library it needs\n{said}\n");
    insta::assert_snapshot!(report);
}

#[test]
fn a_plugin_that_describes_itself_at_length_is_only_long() {
    let folder = tempfile::tempdir().unwrap();
    let (_, manifest) = verify_file(&raw(folder.path(), "describe_huge")).unwrap();
    assert_eq!(manifest.connectors[0].description.len(), 8 << 20);
}

/// A code without its sentence in a snapshot is one that nobody has read.
#[test]
fn every_refusal_has_its_text_in_a_snapshot() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = |folder: &str| -> Vec<String> {
        let entries = fs::read_dir(root.join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.is_file())
            .map(|path| fs::read_to_string(path).unwrap())
            .collect()
    };
    let snapshots = files("tests/snapshots").join("\n");
    let mut codes = Vec::new();
    for source in files("src") {
        for rest in source.split("Refusal::new(").skip(1) {
            let argument = rest.trim_start();
            let code = match argument.strip_prefix('"') {
                Some(literal) => literal.split('"').next().unwrap().to_owned(),
                // Of the root: listed where its code is chosen.
                None => continue,
            };
            codes.push(code);
        }
    }
    codes.extend(["bad_root", "layout", "init_failed"].map(str::to_owned));
    assert!(codes.len() > 20, "{codes:?}");
    for code in codes {
        assert!(
            snapshots.contains(&format!("[{code}] ")),
            "no snapshot has the text of {code}"
        );
    }
}

#[test]
fn a_root_that_is_no_root_is_refused_by_its_header() {
    let mut cases = Cases::new();
    let path = cases.path("root.so");
    // The magic bytes at the start of the exported static.
    patched(
        &library("zoo"),
        &path,
        &[("abi stable library for Rust", "abi stable library for Dust")],
    );
    cases.add("another header", &path);
    insta::assert_snapshot!(cases.report);
}

fn load_error(options: &LoadOptions, folder: &Path) -> String {
    let error = Plugins::load(options).unwrap_err();
    let lines: Vec<String> = error
        .refusals()
        .iter()
        .map(|refusal| format!("[{}] {refusal}", refusal.code))
        .collect();
    tidy(&lines.join("\n"), &folder.join("x"))
}

#[test]
fn what_a_configuration_gets_wrong_about_plugins() {
    let mut report = String::new();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let options = |wanted: &[&str]| LoadOptions {
        folders: vec![at.to_owned()],
        wanted: wanted.iter().map(|&w| w.to_owned()).collect(),
        ..LoadOptions::default()
    };
    let mut add = |what: &str, said: String| {
        report += &format!("{what}\n{said}\n\n");
    };
    add("an empty folder", load_error(&options(&["zoo"]), at));

    fs::write(at.join("libnotes.so"), "groceries").unwrap();
    add(
        "only a file that can't be read",
        load_error(&options(&["zoo"]), at),
    );

    fs::copy(library("zoo"), at.join("libzoo.so")).unwrap();
    add(
        "a connector nobody provides",
        load_error(&options(&["zoo", "zebra"]), at),
    );
    Plugins::load(&options(&["zoo"])).expect("a file nobody needs may be unreadable");
    add("everything is asked for", load_error(&options(&[]), at));

    fs::remove_file(at.join("libnotes.so")).unwrap();
    fs::copy(library("zoo"), at.join("libzoo2.so")).unwrap();
    add(
        "two files with one connector",
        load_error(&options(&["zoo"]), at),
    );

    let missing = LoadOptions {
        folders: vec![at.join("nowhere")],
        ..LoadOptions::default()
    };
    add("no folder", load_error(&missing, at));
    fs::remove_file(at.join("libzoo2.so")).unwrap();

    raw(at, "init_fails");
    add("init fails", load_error(&options(&["zoo_raw"]), at));
    insta::assert_snapshot!(report);
}

#[test]
fn the_lock_pins_names_and_digests() {
    let mut report = String::new();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let file = at.join("libzoo.so");
    fs::copy(library("zoo"), &file).unwrap();
    let lock = at.join("plugins.lock");
    let options = LoadOptions {
        folders: vec![at.to_owned()],
        wanted: vec!["zoo".to_owned()],
        lock: Some(lock.clone()),
        cache_dir: Some(at.join("cache")),
    };
    let plugins = Plugins::load(&options).expect("no lock, no pins");
    fs::write(&lock, Lock::text(&plugins.files())).unwrap();
    Plugins::load(&options).expect("the lock names this very file");
    let digest = plugins.files()[0].digest.clone();

    let said = |options: &LoadOptions| load_error(options, at).replace(&digest[..16], "[digest]");
    let wrong = fs::read_to_string(&lock)
        .unwrap()
        .replace(&digest, &"a".repeat(64));
    fs::write(&lock, wrong).unwrap();
    report += &format!("another digest\n{}\n\n", said(&options));
    fs::write(&lock, "# nothing\n\n").unwrap();
    report += &format!("not in the lock\n{}\n\n", said(&options));
    fs::write(&lock, "\nzoo is fine\n").unwrap();
    report += &format!("a line that is none\n{}\n\n", said(&options));
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    report += &format!("a folder\n{}\n", said(&options));
    insta::assert_snapshot!(report);
}

#[test]
fn a_copy_is_loaded_so_that_overwriting_the_file_harms_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let file = raw(folder.path(), "copied");
    let cache = folder.path().join("cache");
    let options = LoadOptions {
        folders: vec![folder.path().to_owned()],
        cache_dir: Some(cache.clone()),
        ..LoadOptions::default()
    };
    let plugins = Plugins::load(&options).unwrap();
    fs::write(&file, "gone").unwrap();
    assert_eq!(plugins.manifests()[0].name, "zoo_raw");
    let copies: Vec<_> = fs::read_dir(&cache)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    let digest = &plugins.files()[0].digest;
    assert_eq!(copies, [&*format!("libzoo_raw_copied-{digest}.so")]);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains(digest.as_str()) && !maps.contains(&*file.to_string_lossy()));
}

#[test]
fn a_copy_somebody_tampered_with_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let file = raw(folder.path(), "tampered");
    let digest = inspect_file(&file).unwrap().digest;
    let cache = folder.path().join("cache");
    fs::create_dir(&cache).unwrap();
    let copy = cache.join(format!("libzoo_raw_tampered-{digest}.so"));
    fs::write(&copy, "evil").unwrap();
    let options = LoadOptions {
        folders: vec![file.clone()],
        cache_dir: Some(cache),
        ..LoadOptions::default()
    };
    Plugins::load(&options).unwrap();
    assert_eq!(fs::read(&copy).unwrap(), fs::read(&file).unwrap());
}

#[test]
fn only_wanted_plugins_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    raw(folder.path(), "unwanted");
    let zoo = folder.path().join("libzoo_wanted.so");
    patched(&library("zoo"), &zoo, &[("\nrustc=rustc", "\nrustc=rustC")]);
    let options = LoadOptions {
        folders: vec![folder.path().to_owned()],
        wanted: vec!["zoo_upper".to_owned()],
        cache_dir: Some(folder.path().join("cache")),
        ..LoadOptions::default()
    };
    let plugins = Plugins::load(&options).unwrap();
    assert_eq!(plugins.manifests().len(), 1);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains("libzoo_wanted-"));
    assert!(!maps.contains("unwanted"));
}
