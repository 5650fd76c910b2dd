//! Attacks on the ledger: two processes at once, kill -9 in the middle of a commit, a full disk, a
//! damaged file, a flood of events, and many hands on one claim.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
use common::*;
use consign_ledger::*;
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Tells the test binary, started once more, to be a child that parks.
const CHILD: &str = "CONSIGN_LEDGER_CHILD";

fn child(path: &Path, from: u64, act: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_child_that_works_until_it_is_killed",
            "--nocapture",
        ])
        .env(CHILD, format!("{act}|{from}|{}", path.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test of its own: the other side of those that need a second process.
#[test]
fn a_child_that_works_until_it_is_killed() {
    let Ok(order) = std::env::var(CHILD) else {
        return;
    };
    let [act, from, path] = order.splitn(3, '|').collect::<Vec<_>>()[..] else {
        panic!("{order}");
    };
    let from: u64 = from.parse().unwrap();
    let ledger = Ledger::open(Path::new(path), options()).unwrap();
    let say = |word: &str| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{word}").unwrap();
        out.flush().unwrap();
    };
    match act {
        "park" => {
            for n in from.. {
                let mut r = record(n);
                r.body = vec![7; 20_000];
                ledger.park(&r).unwrap();
                say(&format!("parked {n}"));
            }
        }
        "park_200" => {
            for n in from..from + 200 {
                ledger.park(&record(n)).unwrap();
            }
            say("done");
        }
        "claim" => {
            let mut won = 0;
            for id in ledger.failed_ids(&FailedFilter::default()).unwrap() {
                match ledger.claim(id, Act::SendAgain, &format!("child {from}"), 1) {
                    Ok(_) => won += 1,
                    Err(Error::NotClaimable { .. }) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            say(&format!("won {won}"));
        }
        _ => panic!("{act}"),
    }
}

fn words(child: &mut Child, prefix: &str) -> Vec<u64> {
    BufReader::new(child.stdout.as_mut().unwrap())
        .lines()
        .map_while(|line| line.ok())
        .filter_map(|line| line.strip_prefix(prefix)?.trim().parse().ok())
        .collect()
}

#[test]
fn what_was_answered_survives_kill_9_in_the_middle_of_commits() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir);
    let mut answered = BTreeSet::new();
    let mut from = 1;
    for round in 0..8_u64 {
        let mut child = child(&path, from, "park");
        let pid = child.id();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(150 + round * 37));
            Command::new("kill").args(["-9", &pid.to_string()]).status()
        });
        let parked = words(&mut child, "parked ");
        killer.join().unwrap().unwrap();
        assert!(!child.wait().unwrap().success(), "it was killed");
        answered.extend(parked.iter().copied());
        let ledger = Ledger::open(&path, options()).unwrap();
        ledger.check().unwrap();
        let there: BTreeSet<u64> = ledger
            .failed(&FailedFilter {
                limit: 1_000_000,
                ..FailedFilter::default()
            })
            .unwrap()
            .iter()
            .map(|f| u64::from_str_radix(&f.write_key[16..], 16).unwrap())
            .collect();
        let lost: Vec<_> = answered.difference(&there).collect();
        assert!(
            lost.is_empty(),
            "round {round}: answered and lost: {lost:?}"
        );
        assert!(there.len() <= answered.len() + 1 + usize::try_from(round).unwrap());
        let waiting: u64 = ledger.causes(true).unwrap().iter().map(|c| c.waiting).sum();
        assert_eq!(waiting, there.len() as u64, "counts follow rows");
        // As the host does after a crash: the last write is parked once more.
        from = there.last().copied().unwrap_or(1);
    }
    assert!(answered.len() > 8, "the kills met work: {}", answered.len());
}

#[test]
fn two_processes_park_into_one_ledger() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir);
    // Both make the file, and their ranges overlap by half.
    let mut children = [child(&path, 1, "park_200"), child(&path, 101, "park_200")];
    for child in &mut children {
        let mut out = String::new();
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        assert!(child.wait().unwrap().success() && out.contains("done"));
    }
    let ledger = Ledger::open(&path, options()).unwrap();
    assert_eq!(ledger.failed_count(&FailedFilter::default()).unwrap(), 300);
    assert_eq!(ledger.causes(true).unwrap()[0].waiting, 300);
}

#[test]
fn two_processes_that_claim_everything_win_each_message_once() {
    let (dir, ledger) = ledger();
    let records: Vec<NewFailed> = (1..=150).map(record).collect();
    ledger.park_all(&records).unwrap();
    let path = file(&dir);
    let mut children = [child(&path, 1, "claim"), child(&path, 2, "claim")];
    let won: u64 = children
        .iter_mut()
        .map(|child| {
            let won = words(child, "won ");
            assert!(child.wait().unwrap().success());
            won[0]
        })
        .sum();
    assert_eq!(won, 150);
    assert_eq!(ledger.open_claims().unwrap().len(), 150);
}

#[test]
fn of_many_threads_one_wins_a_claim() {
    let (_dir, ledger) = ledger();
    for n in 1..=20 {
        let id = ledger.park(&record(n)).unwrap().id();
        let won: usize = std::thread::scope(|scope| {
            let hands: Vec<_> = (0..8)
                .map(|hand| {
                    let ledger = ledger.clone();
                    scope.spawn(move || {
                        ledger
                            .claim(id, Act::SendAgain, &format!("hand {hand}"), 1)
                            .is_ok()
                    })
                })
                .collect();
            hands
                .into_iter()
                .map(|hand| usize::from(hand.join().unwrap()))
                .sum()
        });
        assert_eq!(won, 1);
        assert_eq!(ledger.claim_history(id).unwrap().len(), 1);
    }
}

/// Parks bodies until the ledger says that it is full; gives how many landed.
fn park_until_full(ledger: &Ledger, from: u64) -> u64 {
    let mut rng = 1_u64;
    for n in from..from + 10_000 {
        let mut r = record(n);
        r.body = (0..8_192)
            .map(|_| {
                rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                u8::try_from(rng >> 56).unwrap()
            })
            .collect();
        match ledger.park(&r) {
            Ok(_) => {}
            Err(Error::Full { .. }) => return n - from,
            Err(e) => panic!("{e}"),
        }
    }
    panic!("it never filled");
}

fn same_after_reopening(path: &Path, options: Options, expected: u64) {
    let ledger = Ledger::open(path, options).unwrap();
    ledger.check().unwrap();
    assert_eq!(
        ledger.failed_count(&FailedFilter::default()).unwrap(),
        expected
    );
}

#[test]
fn at_its_own_limit_the_reserve_lands_and_then_it_blocks() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir);
    let limited = Options {
        reserve_bytes: 128 * 1024,
        max_bytes: Some(1024 * 1024),
        ..Options::default()
    };
    let ledger = Ledger::open(&path, limited.clone()).unwrap();
    let landed = park_until_full(&ledger, 1);
    assert_eq!(ledger.reserve(), ReserveState::Released);
    assert!(landed > 60, "{landed}");
    let mut large = record(99_999);
    large.body = vec![7; 8_192];
    let error = ledger.park(&large).unwrap_err().to_string();
    assert!(
        error.contains("is full") && error.contains("make room on its disk"),
        "{error}"
    );
    assert_eq!(ledger.park(&record(1)).unwrap(), Parked::AlreadyThere(1));
    // What is needed to get out of it works: reading, and purging.
    let ids = ledger.failed_ids(&FailedFilter::default()).unwrap();
    assert_eq!(ids.len() as u64, landed);
    assert_eq!(ledger.purge(&ids[..30], None).unwrap(), 30);
    assert!(matches!(ledger.park(&large).unwrap(), Parked::New(_)));
    assert_eq!(ledger.refill_reserve(), ReserveState::Held);
    drop(ledger);
    same_after_reopening(&path, limited, landed - 30 + 1);
}

/// A small disk of its own, taken away at the end.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(dir.path())
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|s| s.success()).then_some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn on_a_full_disk_parks_and_events_land_in_the_reserve() {
    let Some(disk) = SmallDisk::mount("6m") else {
        eprintln!(
            "not allowed to mount a small disk here: the ledger's own limit is tested instead"
        );
        return at_its_own_limit_the_reserve_lands_and_then_it_blocks();
    };
    let path = file(&disk.0);
    let reserve = Options {
        reserve_bytes: 1024 * 1024,
        ..Options::default()
    };
    let ledger = Ledger::open(&path, reserve.clone()).unwrap();
    let sink = EventSink::start(ledger.clone(), SinkOptions::default()).unwrap();
    // Something else takes all the room there is.
    let hog = disk.0.path().join("hog");
    let mut filler = fs::File::create(&hog).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    drop(filler);
    assert_eq!(ledger.reserve(), ReserveState::Held);
    for n in 1..=10 {
        let mut r = record(n);
        r.body = vec![7; 20_000];
        assert!(matches!(ledger.park(&r).unwrap(), Parked::New(_)), "{n}");
    }
    sink.open("disk", Event::new(Code::DiskFull, 1));
    sink.flush().unwrap();
    assert_eq!(ledger.reserve(), ReserveState::Released);
    let landed = 10 + park_until_full(&ledger, 100);
    assert_eq!(
        ledger.failed_count(&FailedFilter::default()).unwrap(),
        landed
    );
    assert_eq!(
        ledger.refill_reserve(),
        ReserveState::Released,
        "no room for it"
    );
    // Events are kept back, not lost, and nothing blocks.
    let started = Instant::now();
    for n in 0..200 {
        sink.emit(Event::new(Code::GateClosed, n).message("x".repeat(2_000)));
    }
    assert!(started.elapsed() < Duration::from_secs(1));
    // Somebody makes room.
    fs::remove_file(&hog).unwrap();
    sink.flush().unwrap();
    assert_eq!(ledger.refill_reserve(), ReserveState::Held);
    assert!(matches!(
        ledger.park(&record(99_999)).unwrap(),
        Parked::New(_)
    ));
    sink.shutdown().unwrap();
    let count = |code| {
        ledger
            .events(&EventFilter {
                codes: vec![code],
                ..EventFilter::default()
            })
            .unwrap()
            .len()
    };
    assert_eq!(count(Code::DiskFull), 1);
    assert_eq!(count(Code::GateClosed), 200);
    assert_eq!(count(Code::EventsDropped), 0);
    drop((sink, ledger));
    same_after_reopening(&path, reserve, landed + 1);
}

#[test]
fn a_disk_that_is_full_from_the_start_is_a_clear_sentence() {
    let Some(disk) = SmallDisk::mount("64k") else {
        return;
    };
    let hog = disk.0.path().join("hog");
    let mut filler = fs::File::create(&hog).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    let error = Ledger::open(&file(&disk.0), options()).err().unwrap();
    assert!(error.to_string().contains("is full"), "{error}");
}

fn refused(path: &Path) -> String {
    let bytes = fs::read(path).unwrap();
    let error = Ledger::open(path, options()).err().unwrap().to_string();
    assert_eq!(fs::read(path).unwrap(), bytes, "nothing was changed");
    error.replace(&path.display().to_string(), "LEDGER")
}

#[test]
fn damaged_foreign_and_newer_files_are_refused_in_a_sentence() {
    let dir = TempDir::new().unwrap();
    let text = dir.path().join("text.db");
    fs::write(
        &text,
        "this is a text file and not a database at all, ".repeat(40),
    )
    .unwrap();
    let foreign = dir.path().join("foreign.db");
    rusqlite::Connection::open(&foreign)
        .unwrap()
        .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE cats (name TEXT);")
        .unwrap();
    let newer = dir.path().join("newer.db");
    drop(Ledger::open(&newer, options()).unwrap());
    rusqlite::Connection::open(&newer)
        .unwrap()
        .execute_batch("PRAGMA user_version = 99")
        .unwrap();
    let folder = dir.path().join("folder.db");
    fs::create_dir(&folder).unwrap();
    let folder = Ledger::open(&folder, options()).err().unwrap().to_string();
    let sentences = [
        refused(&text),
        refused(&foreign),
        refused(&newer),
        folder.replace(&dir.path().display().to_string(), "DIR"),
    ];
    insta::assert_snapshot!(sentences.join("\n"));
}

#[test]
fn a_ledger_with_bad_pages_in_its_middle_is_refused() {
    let (dir, ledger) = ledger();
    for n in 1..=200 {
        ledger.park(&record(n)).unwrap();
    }
    drop(ledger);
    let path = file(&dir);
    let length = fs::metadata(&path).unwrap().len();
    let mut f = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for at in (8_192..length).step_by(4_096) {
        f.seek(SeekFrom::Start(at)).unwrap();
        f.write_all(&[0xff; 64]).unwrap();
    }
    drop(f);
    let error = Ledger::open(&path, options()).err().unwrap();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let sentence = error.to_string();
    assert!(
        sentence.contains("cannot be read")
            && sentence.contains(".damaged")
            && !sentence.contains('\n'),
        "{sentence}"
    );
}

#[test]
fn a_file_that_was_cut_short_is_refused() {
    let (dir, ledger) = ledger();
    for n in 1..=200 {
        ledger.park(&record(n)).unwrap();
    }
    drop(ledger);
    let path = file(&dir);
    let length = fs::metadata(&path).unwrap().len();
    let f = fs::OpenOptions::new().write(true).open(&path).unwrap();
    f.set_len(length / 2 / 4096 * 4096).unwrap();
    drop(f);
    let error = Ledger::open(&path, options()).err().unwrap();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[test]
fn the_file_and_its_companions_are_private() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir);
    fs::write(&path, b"").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let ledger = Ledger::open(&path, options()).unwrap();
    ledger.park(&record(1)).unwrap();
    let mut seen = 0;
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", entry.path().display());
        seen += 1;
    }
    assert_eq!(seen, 4, "the file, -wal, -shm and the reserve");
}

#[test]
fn a_hundred_thousand_events_are_written_and_searched() {
    let (_dir, ledger) = ledger();
    let sink = EventSink::start(
        ledger.clone(),
        SinkOptions {
            capacity: 200_000,
            on_written: None,
        },
    )
    .unwrap();
    for n in 0..100_000_i64 {
        let code = if n % 1_000 == 0 {
            Code::Parked
        } else {
            Code::LateAnswer
        };
        sink.emit(
            Event::new(code, n)
                .connection(format!("c{}", n % 7))
                .field("n", n),
        );
    }
    loop {
        match sink.flush() {
            Ok(()) => break,
            Err(Error::Busy { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(sink.stats().written, 100_000);
    assert_eq!(sink.stats().dropped, 0);
    let started = Instant::now();
    let found = ledger
        .events(&EventFilter {
            codes: vec![Code::Parked],
            newest_first: true,
            limit: 5,
            ..EventFilter::default()
        })
        .unwrap();
    assert_eq!(found[0].event.at_unix_ms, 99_000);
    let last = ledger.last_event_id().unwrap();
    let tail = ledger
        .events(&EventFilter {
            after_id: Some(last - 3),
            ..EventFilter::default()
        })
        .unwrap();
    assert_eq!(tail.len(), 3);
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    sink.shutdown().unwrap();
}

#[test]
fn a_lock_that_is_held_for_long_is_a_clear_sentence_and_leaves_nothing_open() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir);
    let ledger = Ledger::open(
        &path,
        Options {
            busy_timeout: Duration::from_millis(100),
            ..options()
        },
    )
    .unwrap();
    let blocker = rusqlite::Connection::open(&path).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = ledger.park(&record(1)).unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert!(
        ledger.failed(&FailedFilter::default()).unwrap().is_empty(),
        "lists do not wait"
    );
    blocker.execute_batch("ROLLBACK").unwrap();
    assert!(matches!(ledger.park(&record(1)).unwrap(), Parked::New(_)));
}
