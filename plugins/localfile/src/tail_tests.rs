//! Tests of `tail`: each kind of rotation, and seeded random schedules against a reference list.

use super::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::{HashMap, HashSet},
    fs::OpenOptions,
    io::Write,
    os::unix::fs::MetadataExt,
};

const WAIT: Duration = Duration::from_secs(2);

struct Folder {
    dir: tempfile::TempDir,
    root: PathBuf,
    now: Duration,
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        Self {
            dir,
            root,
            now: Duration::ZERO,
        }
    }

    fn tail(&self, pattern: &str, position: Option<&[u8]>) -> Tail {
        self.tail_with(pattern, position, false, 1000)
    }

    fn tail_with(&self, pattern: &str, at: Option<&[u8]>, from_end: bool, max_body: usize) -> Tail {
        let selection = Selection::new(&self.root, pattern, &[]).unwrap();
        let settings = Settings {
            from_end,
            max_body,
            rotate_wait: WAIT,
        };
        Tail::new(self.root.clone(), selection, settings, at).unwrap()
    }

    fn append(&self, name: &str, text: &str) {
        let mut options = OpenOptions::new();
        let mut file = options
            .append(true)
            .create(true)
            .open(self.path(name))
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.path(from), self.path(to)).unwrap();
    }

    fn truncate(&self, name: &str) {
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(self.path(name))
            .unwrap();
    }

    /// Polls, settling each line, until nothing comes for longer than the rotation wait.
    fn drain(&mut self, tail: &mut Tail) -> Vec<Line> {
        let mut all = Vec::new();
        let mut silent = 0;
        while silent < 4 {
            let lines = tail.poll(self.now, 100, 1 << 20).unwrap();
            silent = if lines.is_empty() { silent + 1 } else { 0 };
            lines.iter().for_each(|l| tail.settle(l.ticket));
            all.extend(lines);
            self.now += WAIT;
        }
        all
    }
}

fn bodies(lines: &[Line]) -> Vec<&str> {
    lines
        .iter()
        .map(|l| std::str::from_utf8(&l.body).unwrap())
        .collect()
}

fn last_position(lines: &[Line]) -> Option<Vec<u8>> {
    lines.last().map(|l| l.position.clone())
}

#[test]
fn a_partial_last_line_waits_and_a_restart_goes_on_after_the_last_settled_line() {
    let mut f = Folder::new();
    f.append("a.log", "one\ntwo\nthr");
    let mut tail = f.tail("a.log", None);
    let lines = f.drain(&mut tail);
    assert_eq!(bodies(&lines), ["one", "two"]);
    assert_eq!(lines[1].offset, 4);
    f.append("a.log", "ee\n");
    let again = f.drain(&mut f.tail("a.log", Some(&lines[0].position)));
    assert_eq!(bodies(&again), ["two", "three"]);
    assert_eq!(
        (again[0].incarnation, again[0].offset),
        (lines[1].incarnation, 4)
    );
}

#[test]
fn rename_and_create_reads_the_old_file_to_its_end_first() {
    let mut f = Folder::new();
    f.append("a.log", "1\n");
    let mut tail = f.tail("a.log", None);
    assert_eq!(bodies(&f.drain(&mut tail)), ["1"]);
    f.append("a.log", "2\n");
    f.rename("a.log", "a.log.1");
    f.append("a.log", "4\n");
    assert_eq!(bodies(&tail.poll(f.now, 9, 9999).unwrap()), ["2"]);
    f.append("a.log.1", "3 without an ending");
    let rest = f.drain(&mut tail);
    assert_eq!(
        bodies(&rest),
        ["3 without an ending"],
        "line 2 is not settled: 4 must wait"
    );
    let line_2 = tail.files[0].flying[0].0;
    tail.settle(Ticket {
        sequence: line_2,
        ..rest[0].ticket
    });
    assert_eq!(bodies(&f.drain(&mut tail)), ["4"]);
    assert_eq!(tail.files.len(), 1, "the finished file is forgotten");
}

#[test]
fn rotation_while_the_host_is_down_loses_nothing() {
    let mut f = Folder::new();
    f.append("a.log", "1\n2\n");
    let lines = f.drain(&mut f.tail("a.log", None));
    f.append("a.log", "3\n");
    f.rename("a.log", "a.log.1");
    f.append("a.log", "4\n");
    let mut tail = f.tail("a.log", last_position(&lines).as_deref());
    let more = f.drain(&mut tail);
    assert_eq!(bodies(&more), ["3", "4"]);
    assert_eq!(more[0].incarnation, lines[0].incarnation);
    assert_ne!(more[1].incarnation, lines[0].incarnation);
}

#[test]
fn rotated_files_that_match_the_pattern_too_are_not_read_twice() {
    let mut f = Folder::new();
    let mut tail = f.tail("a.log*", None);
    let mut all = Vec::new();
    for n in 0..5 {
        f.append("a.log", &format!("{n}\n"));
        all.extend(f.drain(&mut tail));
        f.rename("a.log", &format!("a.log.{n}"));
        tail = f.tail("a.log*", last_position(&all).as_deref());
    }
    all.extend(f.drain(&mut tail));
    assert_eq!(bodies(&all), ["0", "1", "2", "3", "4"]);
}

#[test]
fn truncation_gives_new_identities_seen_running_or_stopped() {
    let mut f = Folder::new();
    f.append("a.log", "same\n");
    let mut tail = f.tail("a.log", None);
    let first = f.drain(&mut tail);
    f.truncate("a.log");
    f.append("a.log", "other, and longer than before\n");
    let second = f.drain(&mut tail);
    f.truncate("a.log");
    f.append("a.log", "same\n");
    let third = f.drain(&mut f.tail("a.log", last_position(&second).as_deref()));
    assert_eq!(bodies(&third), ["same"]);
    let names = [&first, &second, &third].map(|l| (l[0].incarnation, l[0].offset));
    assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
}

#[test]
fn lines_that_come_back_are_read_again_even_from_a_deleted_file() {
    let mut f = Folder::new();
    f.append("a.log", "1\n2\n3\n");
    let mut tail = f.tail("a.log", None);
    let lines = tail.poll(f.now, 9, 9999).unwrap();
    tail.settle(lines[0].ticket);
    std::fs::remove_file(f.path("a.log")).unwrap();
    f.now += WAIT * 3;
    assert!(tail.poll(f.now, 9, 9999).unwrap().is_empty());
    tail.hand_back(lines[1].ticket).unwrap();
    tail.hand_back(lines[2].ticket).unwrap();
    let again = f.drain(&mut tail);
    assert_eq!(bodies(&again), ["2", "3"]);
    assert_eq!(
        (again[0].incarnation, again[0].offset),
        (lines[1].incarnation, 2)
    );
    assert!(tail.files.is_empty());
}

#[test]
fn from_the_end_applies_to_the_first_start_alone() {
    let mut f = Folder::new();
    f.append("a.log", "old\nhalf ");
    let mut tail = f.tail_with("*.log", None, true, 100);
    assert!(f.drain(&mut tail).is_empty());
    f.append("a.log", "line\n");
    f.append("b.log", "new file\n");
    let lines = f.drain(&mut tail);
    assert_eq!(bodies(&lines), ["half line", "new file"]);
    f.append("c.log", "while down\n");
    let mut tail = f.tail_with("*.log", last_position(&lines).as_deref(), true, 100);
    let more = f.drain(&mut tail);
    assert_eq!(bodies(&more), ["while down"]);
}

#[test]
fn a_line_too_long_is_passed_over_and_the_next_position_is_after_it() {
    let mut f = Folder::new();
    f.append("a.log", "ok\nfar too long\nok too\nmuch too long again\n");
    let mut tail = f.tail_with("a.log", None, false, 8);
    let lines = f.drain(&mut tail);
    assert_eq!(bodies(&lines), ["ok", "ok too"]);
    let (resumed, long) = (f.tail("a.log", last_position(&lines).as_deref()), 43);
    assert_eq!(
        tail.files[0].open.as_ref().unwrap().cursor.mark().offset,
        long
    );
    assert_eq!(
        resumed.files[0].resume.offset, 23,
        "before the last one, which is passed over again"
    );
}

#[test]
fn an_unreadable_file_holds_up_no_other() {
    let mut f = Folder::new();
    f.append("b.log", "b\n");
    f.append("a.log", "a\n");
    let mut tail = f.tail("*.log", None);
    tail.poll(f.now, 0, 0).unwrap();
    // A folder in its place can be opened but not read.
    std::fs::remove_file(f.path("a.log")).unwrap();
    std::fs::create_dir(f.path("a.log")).unwrap();
    assert_eq!(bodies(&f.drain(&mut tail)), ["b"]);
}

#[test]
fn more_files_than_the_limit_are_left_alone() {
    let mut f = Folder::new();
    (0..MAX_FILES + 3).for_each(|n| f.append(&format!("{n:04}.log"), "x\n"));
    let mut tail = f.tail("*.log", None);
    assert_eq!(f.drain(&mut tail).len(), MAX_FILES);
    for n in 0..3 {
        std::fs::remove_file(f.path(&format!("{n:04}.log"))).unwrap();
    }
    assert_eq!(f.drain(&mut tail).len(), 3, "room is used again");
}

#[test]
fn a_position_that_is_none_is_an_error() {
    let f = Folder::new();
    let selection = Selection::new(&f.root, "*", &[]).unwrap();
    let settings = Settings {
        from_end: false,
        max_body: 9,
        rotate_wait: WAIT,
    };
    let error = Tail::new(f.root.clone(), selection, settings, Some(b"{}")).unwrap_err();
    assert!(error.contains("can't be read"), "{error}");
}

/// Writers, rotation, truncation, host crashes and lines that come back, in random order, against a
/// host that accepts lines in order and keeps the position of the last. Whatever happens, it accepts
/// each line exactly once, and no identity ever stands for two lines.
#[test]
fn random_schedules_lose_no_line_and_repeat_none() {
    let seeds = match std::env::var("CONSIGN_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..60).collect(),
    };
    for seed in seeds {
        Schedule::new(seed).run();
    }
}

struct Schedule {
    seed: u64,
    random: StdRng,
    folder: Folder,
    pattern: &'static str,
    tail: Tail,
    written: Vec<String>,
    identities: HashMap<([u8; 16], u64), Vec<u8>>,
    unsettled: Vec<Line>,
    accepted: Vec<String>,
    position: Option<Vec<u8>>,
    rotations: u32,
    /// Names that were rotated since everything was last read: a narrow pattern does not find a
    /// file that came and went unseen.
    rotated: HashSet<&'static str>,
}

impl Schedule {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let folder = Folder::new();
        let pattern = if random.random_bool(0.5) {
            "?.log*"
        } else {
            "?.log"
        };
        let tail = folder.tail(pattern, None);
        Self {
            seed,
            random,
            folder,
            pattern,
            tail,
            written: Vec::new(),
            identities: HashMap::new(),
            unsettled: Vec::new(),
            accepted: Vec::new(),
            position: None,
            rotations: 0,
            rotated: HashSet::new(),
        }
    }

    fn run(mut self) {
        for _ in 0..300 {
            let name = ["a.log", "b.log", "c.log"][self.random.random_range(0..3)];
            match self.random.random_range(0..100) {
                0..45 => self.write(name),
                45..75 => {
                    self.folder.now += WAIT / 2;
                    self.read();
                }
                75..83 => {
                    let some = self.random.random_range(0..=self.unsettled.len());
                    self.accept(some);
                }
                83..86 => {
                    let from = self.random.random_range(0..=self.unsettled.len());
                    for line in self.unsettled.drain(from..) {
                        self.tail.hand_back(line.ticket).unwrap();
                    }
                }
                86..91 => {
                    self.tail = self.folder.tail(self.pattern, self.position.as_deref());
                    self.unsettled.clear();
                }
                91..97 => self.rotate(name),
                _ => {
                    self.read_all();
                    if self.random.random_bool(0.5) && self.folder.path(name).exists() {
                        self.folder.truncate(name);
                        // Two truncations between two looks can't be told from one.
                        self.read();
                    }
                }
            }
        }
        self.read_all();
        let (mut written, mut accepted) = (self.written, self.accepted);
        written.sort();
        accepted.sort();
        let missing: Vec<_> = written.iter().filter(|l| !accepted.contains(l)).collect();
        assert!(
            missing.is_empty(),
            "seed {}: missing {missing:?}",
            self.seed
        );
        let twice: Vec<_> = accepted
            .windows(2)
            .filter(|w| w[0] == w[1])
            .map(|w| &w[0])
            .collect();
        assert!(twice.is_empty(), "seed {}: twice {twice:?}", self.seed);
        assert_eq!(written.len(), accepted.len(), "seed {}", self.seed);
    }

    fn write(&mut self, name: &str) {
        for _ in 0..self.random.random_range(1..6) {
            let padding = "x".repeat(self.random.random_range(0..90));
            let line = format!("{name} {} {padding}", self.written.len());
            let cut = self.random.random_range(0..line.len());
            self.folder.append(name, &line[..cut]);
            if self.random.random_bool(0.1) {
                self.read();
            }
            self.folder.append(name, &line[cut..]);
            self.folder.append(name, "\n");
            self.written.push(line);
        }
    }

    fn rotate(&mut self, name: &'static str) {
        let Ok(file) = std::fs::metadata(self.folder.path(name)) else {
            return;
        };
        let position = self.position.as_deref().unwrap_or_default();
        let known =
            String::from_utf8_lossy(position).contains(&format!("\"inode\":{},", file.ino()));
        let wide = self.pattern.ends_with('*');
        if wide || (known && self.rotated.insert(name)) {
            self.rotations += 1;
            self.folder
                .rename(name, &format!("{name}.{}", self.rotations));
        }
    }

    fn read(&mut self) {
        for line in self.tail.poll(self.folder.now, 7, 3000).unwrap() {
            let identity = (line.incarnation, line.offset);
            let before = self.identities.insert(identity, line.body.clone());
            let same = before.is_none_or(|before| before == line.body);
            assert!(same, "seed {}: one identity, two lines", self.seed);
            self.unsettled.push(line);
        }
    }

    fn accept(&mut self, count: usize) {
        for line in self.unsettled.drain(..count) {
            self.tail.settle(line.ticket);
            self.position = Some(line.position);
            self.accepted.push(String::from_utf8(line.body).unwrap());
        }
    }

    fn read_all(&mut self) {
        let mut silent = 0;
        while silent < 6 {
            self.folder.now += WAIT;
            self.read();
            silent = if self.unsettled.is_empty() {
                silent + 1
            } else {
                0
            };
            self.accept(self.unsettled.len());
        }
        self.rotated.clear();
    }
}
