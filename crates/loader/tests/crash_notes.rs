//! Crash notes, with real signals: this test runs itself as another process that crashes.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "crashing is what it is about, and safe code does not; a test fails by panicking"
)]

use consign_loader::crash::{CrashNote, in_hands, read, watch};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

const RUN: u64 = 0x0123_4567_89ab_cdef;

/// Runs [`child`] with these orders; the signal that ended it, and its note.
fn crash(how: &str) -> (Option<i32>, Result<Option<CrashNote>, String>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("note");
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("CRASH_HOW", how)
        .env("CRASH_NOTE", &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let status = child.status().unwrap();
    (status.signal(), read(&std::fs::read(path).unwrap()))
}

/// The process that crashes; does nothing when it is run by itself.
#[test]
#[ignore = "it ends the process; the tests beside it run it"]
fn child() {
    let (Some(how), Some(path)) = (
        std::env::var_os("CRASH_HOW"),
        std::env::var_os("CRASH_NOTE"),
    ) else {
        return;
    };
    let how = how.into_string().unwrap();
    watch(File::create(Path::new(&path)).unwrap(), RUN).unwrap();
    let _hands = in_hands(3, [7, 8]);
    let _others = in_hands(0, [u64::MAX]);
    drop(in_hands(9, [1]));
    let thread = std::thread::Builder::new().name("plugin-bad".into());
    let thread = thread.spawn(move || die(&how)).unwrap();
    let _ = thread.join();
}

fn die(how: &str) {
    match how {
        // SAFETY: none; this is the fault that the test is about.
        "segv" => unsafe { std::ptr::null_mut::<u8>().write_volatile(1) },
        "stack" => {
            std::hint::black_box(deeper(u64::MAX));
        }
        "abrt" => std::process::abort(),
        // SAFETY: raises a signal, whose default action ends the process.
        "bus" => unsafe {
            libc::raise(libc::SIGBUS);
        },
        // SAFETY: as above.
        "ill" => unsafe {
            libc::raise(libc::SIGILL);
        },
        // SAFETY: as above.
        "fpe" => unsafe {
            libc::raise(libc::SIGFPE);
        },
        // Several threads at once: one note, whole.
        "many" => {
            let threads: Vec<_> = (0..8)
                .map(|_| std::thread::spawn(|| std::process::abort()))
                .collect();
            for thread in threads {
                let _ = thread.join();
            }
        }
        "full" => {
            let _more = in_hands(1, 0..100_000);
            std::process::abort();
        }
        // A person, the OOM killer, a watchdog: from another process.
        signal => {
            let pid = std::process::id().to_string();
            let _ = std::io::stdout().flush();
            let kill = Command::new("kill").args([signal, &pid]).status();
            assert!(kill.is_ok());
            std::thread::sleep(std::time::Duration::from_secs(20));
        }
    }
}

#[allow(unconditional_recursion, reason = "the stack is to run over")]
#[inline(never)]
fn deeper(depth: u64) -> u64 {
    let room = [depth; 64];
    let below = std::hint::black_box(deeper(std::hint::black_box(depth.wrapping_sub(1))));
    below.wrapping_add(std::hint::black_box(room).iter().sum())
}

#[test]
fn each_signal_of_native_code_leaves_a_note_and_ends_the_process() {
    for (how, signal) in [
        ("segv", libc::SIGSEGV),
        ("stack", libc::SIGSEGV),
        ("abrt", libc::SIGABRT),
        ("bus", libc::SIGBUS),
        ("ill", libc::SIGILL),
        ("fpe", libc::SIGFPE),
    ] {
        let (ended_by, note) = crash(how);
        assert_eq!(ended_by, Some(signal), "{how}");
        let note = note.unwrap().expect(how);
        assert!(note.at_unix_ms > 1_700_000_000_000, "{note:?}");
        let expected = CrashNote {
            run: RUN,
            at_unix_ms: note.at_unix_ms,
            signal,
            thread: "plugin-bad".into(),
            writes: BTreeSet::from([(3, 7), (3, 8), (0, u64::MAX)]),
            unlisted: 0,
            whole: true,
        };
        assert_eq!(note, expected, "{how}");
    }
}

#[test]
fn threads_that_crash_at_once_leave_one_whole_note() {
    for _ in 0..5 {
        let (ended_by, note) = crash("many");
        assert_eq!(ended_by, Some(libc::SIGABRT));
        let note = note.unwrap().unwrap();
        assert!(note.whole && note.writes.len() == 3, "{note:?}");
    }
}

#[test]
fn a_note_of_a_full_table_is_whole_and_counts_the_rest() {
    let (ended_by, note) = crash("full");
    assert_eq!(ended_by, Some(libc::SIGABRT));
    let note = note.unwrap().unwrap();
    assert!(note.whole);
    assert_eq!(note.writes.len(), consign_loader::crash::TABLE);
    let all = u64::try_from(note.writes.len()).unwrap() + note.unlisted;
    assert_eq!(all, 100_003);
}

#[test]
fn what_another_process_ends_leaves_no_note() {
    for (how, signal) in [
        ("-KILL", libc::SIGKILL),
        ("-SEGV", libc::SIGSEGV),
        ("-ABRT", libc::SIGABRT),
        ("-TERM", libc::SIGTERM),
    ] {
        assert_eq!(crash(how), (Some(signal), Ok(None)), "{how}");
    }
}
