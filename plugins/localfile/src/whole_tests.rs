//! Tests of `whole`: when a file is taken, what is remembered, what becomes of it.

use super::*;

const QUIET: Duration = Duration::from_secs(2);

struct Folder {
    dir: tempfile::TempDir,
    root: PathBuf,
    after: After,
    now: Duration,
}

impl Folder {
    fn new(after: After) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("in")).unwrap();
        Self {
            dir,
            root,
            after,
            now: Duration::ZERO,
        }
    }

    fn whole(&self, position: Option<&[u8]>) -> Whole {
        let selection = Selection::new(&self.root, "in/*", &[]).unwrap();
        let move_to = (self.after == After::Move).then(|| self.root.join("done"));
        let settings = Settings {
            quiet: QUIET,
            max_body: 100,
            after: self.after,
            move_to,
        };
        Whole::new(self.root.clone(), selection, settings, position).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join(folder)).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Two looks, a quiet time apart.
    fn take(&mut self, whole: &mut Whole) -> Option<Taken> {
        assert_eq!(whole.poll(self.now).unwrap(), None);
        self.now += QUIET;
        whole.poll(self.now).unwrap()
    }

    /// Takes and accepts until nothing is left.
    fn drain(&mut self, whole: &mut Whole) -> Vec<Taken> {
        let mut all = Vec::new();
        for _ in 0..4 {
            while let Some(taken) = whole.poll(self.now).unwrap() {
                whole.settle(&taken.ticket, true);
                all.push(taken);
            }
            self.now += QUIET;
        }
        all
    }
}

fn names(taken: &[Taken]) -> Vec<&str> {
    taken.iter().map(|t| t.name.as_str()).collect()
}

#[test]
fn a_file_is_taken_once_it_has_stopped_changing() {
    let mut f = Folder::new(After::Delete);
    let mut whole = f.whole(None);
    f.write("in/a", "one");
    assert_eq!(whole.poll(f.now).unwrap(), None);
    f.now += QUIET - Duration::from_millis(1);
    assert_eq!(whole.poll(f.now).unwrap(), None);
    f.write("in/a", "one more");
    f.now += Duration::from_millis(1);
    let taken = f.take(&mut whole).unwrap();
    assert_eq!(taken.name, "in/a");
    assert_eq!(taken.body, b"one more");
    assert_eq!(whole.poll(f.now).unwrap(), None, "it is under way");
}

#[test]
fn kept_files_are_remembered_over_restarts_and_come_again_when_changed() {
    let mut f = Folder::new(After::Keep);
    f.write("in/a", "a");
    f.write("in/b", "b");
    f.write("in/empty", "");
    let taken = f.drain(&mut f.whole(None));
    assert_eq!(names(&taken), ["in/a", "in/b", "in/empty"]);
    let position = taken.last().unwrap().position.clone();
    let mut whole = f.whole(Some(&position));
    assert!(f.drain(&mut whole).is_empty());
    f.write("in/b", "new");
    let again = f.drain(&mut whole);
    assert_eq!(names(&again), ["in/b"]);
    assert_ne!(again[0].identity, taken[1].identity);
    assert_eq!(f.names("in"), ["a", "b", "empty"]);
}

#[test]
fn a_stop_before_the_acceptance_brings_the_file_again_under_the_same_identity() {
    let mut f = Folder::new(After::Keep);
    f.write("in/a", "a");
    f.write("in/b", "b");
    let mut whole = f.whole(None);
    let first = f.take(&mut whole).unwrap();
    assert_eq!(first.name, "in/a");
    let again = f.drain(&mut f.whole(None));
    assert_eq!(again[0].identity, first.identity);
    assert_eq!(names(&again), ["in/a", "in/b"]);
}

#[test]
fn accepted_files_are_deleted_or_moved_and_none_is_overwritten() {
    let mut f = Folder::new(After::Delete);
    f.write("in/a", "a");
    assert_eq!(f.drain(&mut f.whole(None)).len(), 1);
    assert!(f.names("in").is_empty());

    let mut f = Folder::new(After::Move);
    let mut whole = f.whole(None);
    f.write("in/a", "first");
    f.drain(&mut whole);
    f.write("in/a", "second");
    f.drain(&mut whole);
    assert!(f.names("in").is_empty());
    let moved = f.names("done");
    assert_eq!((moved.len(), moved[0].as_str()), (2, "a"));
    assert_eq!(std::fs::read(f.root.join("done/a")).unwrap(), b"first");
}

#[test]
fn a_file_that_took_the_place_of_an_accepted_one_is_not_deleted() {
    let mut f = Folder::new(After::Delete);
    f.write("in/a", "old");
    let mut whole = f.whole(None);
    let taken = f.take(&mut whole).unwrap();
    f.write("in/new", "newer");
    std::fs::rename(f.root.join("in/new"), f.root.join("in/a")).unwrap();
    whole.settle(&taken.ticket, true);
    let next = f.drain(&mut whole);
    assert_eq!(next[0].body, b"newer");
}

#[test]
fn a_crash_between_acceptance_and_deletion_deletes_without_sending_again() {
    let mut f = Folder::new(After::Delete);
    f.write("in/a", "a");
    let position = f.take(&mut f.whole(None)).unwrap().position;
    // The host accepted, and stopped before the source heard of it.
    assert!(f.drain(&mut f.whole(Some(&position))).is_empty());
    assert!(f.names("in").is_empty());
}

#[test]
fn a_refused_file_stays_and_is_not_read_again() {
    let mut f = Folder::new(After::Delete);
    f.write("in/a", "a");
    let mut whole = f.whole(None);
    let taken = f.take(&mut whole).unwrap();
    whole.settle(&taken.ticket, false);
    f.write("in/b", "b");
    let more = f.drain(&mut whole);
    assert_eq!(names(&more), ["in/b"]);
    let mut whole = f.whole(Some(&more[0].position));
    assert!(f.drain(&mut whole).is_empty());
    assert_eq!(f.names("in"), ["a"]);
}

#[test]
fn a_file_that_came_back_is_taken_again() {
    let mut f = Folder::new(After::Delete);
    f.write("in/a", "a");
    let mut whole = f.whole(None);
    let taken = f.take(&mut whole).unwrap();
    whole.hand_back();
    assert_eq!(whole.poll(f.now).unwrap().unwrap().identity, taken.identity);
}

#[test]
fn files_that_are_too_large_or_no_files_are_left_alone() {
    let mut f = Folder::new(After::Delete);
    f.write("in/large", &"x".repeat(101));
    f.write("in/fits", &"x".repeat(100));
    std::fs::create_dir(f.root.join("in/folder")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", f.root.join("in/link")).unwrap();
    assert_eq!(names(&f.drain(&mut f.whole(None))), ["in/fits"]);
    assert_eq!(f.names("in"), ["folder", "large", "link"]);
}

#[test]
fn files_that_vanish_for_a_while_are_not_forgotten() {
    let mut f = Folder::new(After::Keep);
    f.write("in/a", "a");
    let mut whole = f.whole(None);
    assert_eq!(f.drain(&mut whole).len(), 1);
    std::fs::rename(f.root.join("in"), f.root.join("away")).unwrap();
    std::fs::create_dir(f.root.join("in")).unwrap();
    assert!(f.drain(&mut whole).is_empty());
    std::fs::remove_dir(f.root.join("in")).unwrap();
    std::fs::rename(f.root.join("away"), f.root.join("in")).unwrap();
    assert!(f.drain(&mut whole).is_empty());
}

#[test]
fn a_position_that_is_none_is_an_error() {
    let f = Folder::new(After::Keep);
    let mut whole = f.whole(None);
    for bad in [
        b"{}".as_slice(),
        b"x",
        br#"{"v":1,"done":["zz"],"left":[]}"#,
    ] {
        assert!(whole.seek(Some(bad)).is_err());
    }
    assert!(whole.seek(None).is_ok());
}
