//! What is written and what is read. That a signal is noted is shown by processes of their own.

use super::*;
use std::sync::Mutex;

/// The table is one for the process.
static ALONE: Mutex<()> = Mutex::new(());

fn listed() -> (BTreeSet<(u64, u64)>, u64) {
    let mut found = BTreeSet::new();
    let unlisted = table::for_each(|lane, seq| {
        found.insert((lane, seq));
    });
    (found, unlisted)
}

const NOTE: &str = "consign-crash 1\nrun 6f1f0d9a77e30c12\nat 1700000000000\nsignal 11\nthread plugin-nats\nwrite 3 4711\nwrite 0 1\nunlisted 2\nend\n";

#[test]
fn writes_are_listed_while_a_plugin_has_them() {
    let _alone = ALONE.lock().unwrap();
    let first = in_hands(0, [7, 8]);
    let second = in_hands(u32::MAX, [u64::MAX]);
    let all = [(0, 7), (0, 8), (u64::from(u32::MAX), u64::MAX)];
    assert_eq!(listed(), (BTreeSet::from(all), 0));
    drop(first);
    let third = in_hands(5, [1]);
    let some = [(5, 1), (u64::from(u32::MAX), u64::MAX)];
    assert_eq!(listed(), (BTreeSet::from(some), 0));
    drop((second, third));
    assert_eq!(listed(), (BTreeSet::new(), 0));
}

#[test]
fn what_finds_no_place_is_counted_and_places_come_back() {
    let _alone = ALONE.lock().unwrap();
    let most = u64::try_from(TABLE).unwrap();
    for _ in 0..2 {
        let all = in_hands(1, 0..most + 3);
        let (found, unlisted) = listed();
        assert_eq!((found.len(), unlisted), (TABLE, 3));
        drop(all);
        assert_eq!(listed(), (BTreeSet::new(), 0));
    }
}

#[test]
fn a_note_is_read_as_it_was_written() {
    let note = read(NOTE.as_bytes()).unwrap().unwrap();
    let expected = CrashNote {
        run: 0x6f1f_0d9a_77e3_0c12,
        at_unix_ms: 1_700_000_000_000,
        signal: 11,
        thread: "plugin-nats".into(),
        writes: BTreeSet::from([(3, 4711), (0, 1)]),
        unlisted: 2,
        whole: true,
    };
    assert_eq!(note, expected);
    assert_eq!(read(b""), Ok(None));
    assert_eq!(read(&[0; 4096]), Ok(None), "room that was never used");
    let mut padded = NOTE.as_bytes().to_vec();
    padded.extend([0; 100]);
    assert_eq!(read(&padded), Ok(Some(expected)));
}

/// A note may end anywhere: no cut is an accident, and none invents a write.
#[test]
fn a_note_that_was_cut_names_only_what_was_in_flight() {
    let whole = read(NOTE.as_bytes()).unwrap().unwrap();
    let (mut unusable, mut usable) = (0, 0);
    for len in 1..NOTE.len() {
        match read(&NOTE.as_bytes()[..len]) {
            Err(why) => {
                unusable += 1;
                assert!(why.contains("cut"), "{why}");
            }
            Ok(note) => {
                usable += 1;
                let note = note.unwrap();
                assert!(note.writes.is_subset(&whole.writes), "{len}: {note:?}");
                assert_eq!(note.signal, 11);
                assert!(!note.whole);
            }
        }
    }
    assert!(unusable > 20 && usable > 20, "{unusable} {usable}");
}

#[test]
fn garbage_is_no_note() {
    for bytes in [
        &b"\xff\xfe\xfd"[..],
        b"\n\n\n",
        b"consign-crash 2\nsignal 11\n",
    ] {
        assert!(read(bytes).is_err(), "{bytes:?}");
    }
    let odd =
        "consign-crash 1\nsignal 6\nwrite\nwrite x y\nwrite 1\nwrite 1 2 3\nwhat 7\nwrite 4 5\n";
    let note = read(odd.as_bytes()).unwrap().unwrap();
    assert_eq!(note.writes, BTreeSet::from([(4, 5)]));
}

#[test]
fn signals_have_names() {
    assert_eq!(signal_name(libc::SIGSEGV), "SIGSEGV");
    assert_eq!(signal_name(63), "signal 63");
}
