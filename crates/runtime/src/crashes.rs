//! Crash loops (rule 11): what ended the runs before this one, and which writes are suspected of it.
//!
//! The note of the last run is read once at the start and goes into a history of the last three. A
//! write that is in all three parks as `suspected_crash`; one that is in the last one only is sent
//! alone, so that the next crash tells it from its companions. Nothing here may keep a host from
//! starting: what cannot be read is set aside and told.

use crate::clock;
use crate::events::Events;
use consign_delivery::LaneId;
use consign_ledger::{Code, Event};
use consign_loader::crash::{self, CrashNote};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The note of this run; empty unless it crashes.
pub const NOTE_FILE: &str = "crash-note";
/// The last crashes.
pub const HISTORY_FILE: &str = "crashes.json";
/// Crashes in a row that a write must have been part of to be suspected, and as many are kept.
pub const CRASHES: usize = 3;

/// One crash, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Crash {
    run: u64,
    at_unix_ms: u64,
    signal: i32,
    thread: String,
    writes: BTreeSet<(u32, u64)>,
    unlisted: u64,
    whole: bool,
}

impl From<CrashNote> for Crash {
    fn from(note: CrashNote) -> Self {
        Self {
            run: note.run,
            at_unix_ms: note.at_unix_ms,
            signal: note.signal,
            thread: note.thread,
            writes: note.writes,
            unlisted: note.unlisted,
            whole: note.whole,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct History {
    version: u32,
    crashes: Vec<Crash>,
}

const VERSION: u32 = 1;

/// The last crashes, oldest first.
#[derive(Debug, Default)]
pub struct Crashes {
    kept: Vec<Crash>,
    /// The run before this one crashed: the last of those kept is new.
    new: bool,
    /// What could not be read or written.
    problems: Vec<String>,
}

impl Crashes {
    /// Takes what the last run left, and has this run watched. Blocks.
    pub fn take(dir: &Path) -> Self {
        let mut crashes = Self::read(dir);
        let path = dir.join(NOTE_FILE);
        let watched = private(&path).and_then(|file| crash::watch(file, rand::random()));
        if let Err(error) = watched {
            crashes.problem(&path, "a crash of this run could not be noted", &error);
        }
        crashes
    }

    fn read(dir: &Path) -> Self {
        let mut crashes = Self::default();
        let history = dir.join(HISTORY_FILE);
        match read_if_there(&history) {
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) => match serde_json::from_slice::<History>(&bytes) {
                Ok(found) if found.version == VERSION => crashes.kept = found.crashes,
                Ok(found) => crashes.set_aside(&history, &format!("version {}", found.version)),
                Err(error) => crashes.set_aside(&history, &error),
            },
            Err(error) => crashes.problem(&history, "the last crashes are not known", &error),
        }
        let note = dir.join(NOTE_FILE);
        match read_if_there(&note).map(|bytes| crash::read(&bytes)) {
            Ok(Ok(None)) => {}
            // The run ended between the two files: the note is in the history already.
            Ok(Ok(Some(note))) if crashes.kept.iter().any(|known| known.run == note.run) => {}
            Ok(Ok(Some(note))) => {
                crashes.kept.push(note.into());
                let excess = crashes.kept.len().saturating_sub(CRASHES);
                crashes.kept.drain(..excess);
                crashes.new = true;
                if let Err(error) = crashes.save(dir) {
                    crashes.problem(&history, "the crash could not be kept", &error);
                }
            }
            Ok(Err(why)) => crashes.set_aside(&note, &why),
            Err(error) => {
                crashes.problem(&note, "whether the last run crashed is not known", &error)
            }
        }
        crashes
    }

    /// Durable before the note is emptied.
    fn save(&self, dir: &Path) -> io::Result<()> {
        let history = History {
            version: VERSION,
            crashes: self.kept.clone(),
        };
        let path = dir.join(HISTORY_FILE);
        let next = path.with_extension("json.new");
        let mut file = private(&next)?;
        file.write_all(&serde_json::to_vec_pretty(&history)?)?;
        file.sync_all()?;
        std::fs::rename(&next, &path)?;
        File::open(dir)?.sync_all()
    }

    fn problem(&mut self, path: &Path, what: &str, error: &dyn std::fmt::Display) {
        let path = path.display();
        self.problems.push(format!("{path}: {what}: {error}"));
    }

    fn set_aside(&mut self, path: &Path, why: &dyn std::fmt::Display) {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".unreadable");
        let outcome = match std::fs::rename(path, &aside) {
            Ok(()) => format!("it lies in {} now", Path::new(&aside).display()),
            Err(error) => format!("it could not be set aside: {error}"),
        };
        self.problem(path, &format!("it is not believed ({why})"), &outcome);
    }

    /// Writes of a lane that plugins had at the last three crashes.
    pub fn suspects(&self, lane: LaneId) -> Vec<u64> {
        if self.kept.len() < CRASHES {
            return Vec::new();
        }
        let Some((first, rest)) = self.kept.split_first() else {
            return Vec::new();
        };
        let of = first.writes.iter().filter(|(number, _)| *number == lane.0);
        of.filter(|write| rest.iter().all(|crash| crash.writes.contains(write)))
            .map(|(_, seq)| *seq)
            .collect()
    }

    /// Writes of a lane that plugins had at the last crash.
    pub fn alone(&self, lane: LaneId) -> Vec<u64> {
        let writes = self.kept.last().into_iter().flat_map(|last| &last.writes);
        writes
            .filter(|(number, _)| *number == lane.0)
            .map(|(_, seq)| *seq)
            .collect()
    }

    /// The signal of the last crash, by name; empty when there was none.
    pub fn signal(&self) -> String {
        let last = self.kept.last();
        last.map_or_else(String::new, |last| crash::signal_name(last.signal))
    }

    /// The thread of the last crash; a plugin's threads are named after it.
    pub fn thread(&self) -> &str {
        self.kept.last().map_or("", |last| &last.thread)
    }

    /// Says what ended the last run, and what could not be read.
    pub(crate) fn report(&self, events: &Events) {
        let at = clock::wall_unix_ms_i64();
        if let Some(last) = self.kept.last().filter(|_| self.new) {
            let (signal, thread) = (self.signal(), &last.thread);
            let writes = u64::try_from(last.writes.len()).unwrap_or(u64::MAX);
            let writes = writes.saturating_add(last.unlisted);
            events.emit(
                Event::new(Code::HostCrashed, at)
                    .field("signal", signal.clone())
                    .field("thread", thread.clone())
                    .field("writes", writes)
                    .field("at_unix_ms", last.at_unix_ms)
                    .message(format!(
                        "native code ended the last run by {signal} in thread {thread:?}; plugins had {writes} buffered writes, each of which is sent alone now{}",
                        if last.whole { "" } else { " (the note was cut: there may be more)" }
                    )),
            );
        }
        for problem in &self.problems {
            events.emit(Event::new(Code::CrashNoteUnreadable, at).message(problem.clone()));
        }
    }
}

fn read_if_there(path: &Path) -> io::Result<Vec<u8>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

/// An empty file for this user alone.
fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(run: u64, writes: &[(u32, u64)]) -> String {
        let lines: String = writes
            .iter()
            .map(|(lane, seq)| format!("write {lane} {seq}\n"))
            .collect();
        format!(
            "consign-crash 1\nrun {run:016x}\nat 7\nsignal 11\nthread plugin-x\n{lines}unlisted 0\nend\n"
        )
    }

    /// A run that crashed with these writes, and the start after it.
    fn crash(dir: &Path, run: u64, writes: &[(u32, u64)]) -> Crashes {
        std::fs::write(dir.join(NOTE_FILE), note(run, writes)).unwrap();
        after(dir)
    }

    /// A start, as far as it touches the files.
    fn after(dir: &Path) -> Crashes {
        let crashes = Crashes::read(dir);
        private(&dir.join(NOTE_FILE)).unwrap();
        crashes
    }

    #[test]
    fn only_what_was_in_flight_at_three_crashes_is_suspected() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        assert_eq!(after(dir).suspects(LaneId(1)), Vec::<u64>::new());
        let first = crash(dir, 1, &[(1, 5), (1, 6), (2, 9)]);
        assert!(first.new);
        assert_eq!(first.suspects(LaneId(1)), Vec::<u64>::new());
        assert_eq!(first.alone(LaneId(1)), [5, 6]);
        // A clean run, or one that was killed, leaves nothing and changes nothing.
        assert!(!after(dir).new);
        let second = crash(dir, 2, &[(1, 5), (1, 7), (2, 9)]);
        assert_eq!(second.suspects(LaneId(1)), Vec::<u64>::new());
        let third = crash(dir, 3, &[(1, 5), (1, 6), (2, 10)]);
        assert_eq!(third.suspects(LaneId(1)), [5]);
        assert_eq!(
            third.suspects(LaneId(2)),
            Vec::<u64>::new(),
            "9 was in two of them"
        );
        assert_eq!(
            (third.signal(), third.thread()),
            ("SIGSEGV".to_owned(), "plugin-x")
        );
        // A fourth without it: suspected no longer.
        assert_eq!(
            crash(dir, 4, &[(2, 10)]).suspects(LaneId(1)),
            Vec::<u64>::new()
        );
    }

    #[test]
    fn a_note_counts_once_though_the_start_ends_before_it_is_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        for _ in 0..4 {
            std::fs::write(dir.join(NOTE_FILE), note(1, &[(1, 5)])).unwrap();
            assert_eq!(Crashes::read(dir).suspects(LaneId(1)), Vec::<u64>::new());
        }
        assert_eq!(Crashes::read(dir).kept.len(), 1);
    }

    #[test]
    fn files_that_say_nothing_are_set_aside_and_told() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        for (note, history) in [
            ("consign-cra", "{"),
            ("\u{1}\u{2}", r#"{"version":9,"crashes":[]}"#),
        ] {
            std::fs::write(dir.join(NOTE_FILE), note).unwrap();
            std::fs::write(dir.join(HISTORY_FILE), history).unwrap();
            let crashes = after(dir);
            assert_eq!(crashes.problems.len(), 2, "{:?}", crashes.problems);
            assert!(
                crashes
                    .problems
                    .iter()
                    .all(|problem| problem.contains(".unreadable"))
            );
            assert!(dir.join("crash-note.unreadable").exists());
            assert!(dir.join("crashes.json.unreadable").exists());
            assert_eq!(crashes.suspects(LaneId(1)), Vec::<u64>::new());
            // The next crash is kept all the same.
            assert_eq!(crash(dir, 9, &[(1, 1)]).alone(LaneId(1)), [1]);
        }
    }

    #[test]
    fn a_cut_note_counts_with_what_it_names() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        crash(dir, 1, &[(1, 5)]);
        crash(dir, 2, &[(1, 5)]);
        let whole = note(3, &[(1, 5), (1, 6)]);
        let cut = whole.find("write 1 6").unwrap() + 7;
        std::fs::write(dir.join(NOTE_FILE), &whole[..cut]).unwrap();
        let crashes = after(dir);
        assert_eq!(crashes.suspects(LaneId(1)), [5]);
        assert!(!crashes.kept[2].whole);
    }
}
