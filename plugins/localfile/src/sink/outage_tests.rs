//! Tests of a root that goes away between any two steps: an outage, after which each write lands.

use super::*;
use consign_plugin::{Advice, Scope};
use std::{collections::BTreeMap, sync::atomic::AtomicUsize, thread, time::Instant};

const STEPS: [At; 6] = [
    At::Folder,
    At::Prepare,
    At::FlushFile,
    At::PutInPlace,
    At::FlushFolder,
    At::Append,
];

/// What stands where the root was.
#[derive(Debug, Clone, Copy)]
enum Instead {
    Nothing,
    PlainFile,
    DanglingLink,
    /// The root is still reached, through a symlink.
    Link,
}

const ALL: [Instead; 4] = [
    Instead::Nothing,
    Instead::PlainFile,
    Instead::DanglingLink,
    Instead::Link,
];

#[derive(Clone)]
struct Root {
    dir: Arc<tempfile::TempDir>,
    here: PathBuf,
    away: PathBuf,
}

impl Root {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let here = base.join("root");
        std::fs::create_dir_all(here.join("there")).unwrap();
        std::os::unix::fs::symlink("there", here.join("link")).unwrap();
        Self {
            dir: Arc::new(dir),
            away: base.join("away"),
            here,
        }
    }

    async fn sink(&self, config: &str) -> WriteFile {
        let connection = ConnectionConfig {
            root: self.here.clone(),
            create: false,
        };
        let config = serde_json::from_str(config).unwrap();
        testing::open_sink(connection, config).await.unwrap()
    }

    fn take_away(&self, instead: Instead) {
        std::fs::rename(&self.here, &self.away).unwrap();
        match instead {
            Instead::Nothing => {}
            Instead::PlainFile => std::fs::write(&self.here, "x").unwrap(),
            Instead::DanglingLink => {
                std::os::unix::fs::symlink("nowhere", &self.here).unwrap();
            }
            Instead::Link => std::os::unix::fs::symlink(&self.away, &self.here).unwrap(),
        }
    }

    fn bring_back(&self) {
        if self.here.symlink_metadata().is_ok() {
            std::fs::remove_file(&self.here).unwrap();
        }
        std::fs::rename(&self.away, &self.here).unwrap();
    }

    /// All files, by their path below the root.
    fn files(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.here.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let kind = path.symlink_metadata().unwrap();
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() {
                    let name = path.strip_prefix(&self.here).unwrap();
                    let name = name.to_str().unwrap().to_owned();
                    found.insert(name, std::fs::read_to_string(&path).unwrap());
                }
            }
        }
        assert_eq!(
            std::fs::read_dir(self.dir.path()).unwrap().count(),
            1,
            "nothing was made beside the root"
        );
        found
    }
}

/// A write that is sent until it is delivered, as the host does.
#[derive(Clone)]
struct Pending {
    number: u8,
    path: String,
    maybe: bool,
}

impl Pending {
    fn new(number: u8, path: String) -> Self {
        Self {
            number,
            path,
            maybe: false,
        }
    }

    fn body(&self) -> String {
        format!("body {}", self.number)
    }

    fn write(&self) -> TestWrite {
        let write = to(&self.path, &self.body()).key([self.number; 16]);
        if self.maybe {
            write.may_be_repeat()
        } else {
            write
        }
    }
}

/// Sends the writes once; keeps those that are not delivered. Returns the codes of the failures.
async fn send(sink: &WriteFile, writes: &mut Vec<Pending>) -> Vec<String> {
    let batch = testing::batch(writes.iter().map(Pending::write));
    let outcomes = testing::write(sink, &batch).await;
    let mut left = Vec::new();
    let mut codes = Vec::new();
    for (mut write, outcome) in std::mem::take(writes).into_iter().zip(outcomes) {
        assert_ne!(outcome.advice(), Advice::Never, "refused: {outcome:?}");
        assert_ne!(outcome.advice(), Advice::NeverAlone, "denied: {outcome:?}");
        if outcome.applied() == Applied::Yes {
            continue;
        }
        if outcome.code() == "root_gone" {
            assert_eq!(
                (outcome.applied(), outcome.scope()),
                (Applied::No, Scope::Connection)
            );
        }
        write.maybe |= outcome.applied() == Applied::Maybe;
        codes.push(outcome.code().to_owned());
        left.push(write);
    }
    *writes = left;
    codes
}

fn paths(append: bool) -> Vec<Pending> {
    let paths = ["new/deep/", "there/", "", "new/other/", "link/"];
    let one = |(number, folder): (usize, &str)| {
        let number = u8::try_from(number).unwrap() + 1;
        let name = if append { 0 } else { number };
        Pending::new(number, format!("{folder}f{name}"))
    };
    paths.into_iter().enumerate().map(one).collect()
}

#[tokio::test]
async fn a_root_that_goes_away_before_any_step_is_an_outage_and_parks_nothing() {
    let mut reached = 0;
    for (config, append) in [(PLAIN, false), (KEEP, false), (APPEND, true)] {
        for instead in ALL {
            let steps = STEPS.iter().filter(|step| match step {
                At::Prepare | At::PutInPlace => !append,
                At::Append => append,
                _ => true,
            });
            for step in steps.copied() {
                for nth in [0, 1, 4] {
                    let root = Root::new();
                    let sink = root.sink(config).await;
                    let (count, at) = (AtomicUsize::new(0), root.clone());
                    sink.0.hook.set(move |now| {
                        if now == step && count.fetch_add(1, Ordering::SeqCst) == nth {
                            at.take_away(instead);
                        }
                    });
                    let mut writes = paths(append);
                    let codes = send(&sink, &mut writes).await;
                    sink.0.hook.clear();
                    let told = format!("{config} {instead:?} before {step:?} {nth}: {codes:?}");
                    if root.away.exists() {
                        reached += 1;
                        root.bring_back();
                    }
                    send(&sink, &mut writes).await;
                    assert!(writes.is_empty(), "{told}");
                    let files = root.files();
                    for write in paths(append) {
                        let path = write.path.replace("link/", "there/");
                        let lines = files[&path].matches(&write.body()).count();
                        // Only an appended line whose flush failed may be there twice.
                        let once = !append || !codes.iter().any(|c| c != "not_attempted");
                        assert!(lines == 1 || !once && lines == 2, "{told} {files:?}");
                    }
                    let distinct = if append { 4 } else { 5 };
                    assert_eq!(files.len(), distinct, "{told} {files:?}");
                }
            }
        }
    }
    assert!(reached > 100, "{reached}");
}

#[tokio::test]
async fn while_the_root_is_away_nothing_is_tried_and_nothing_made() {
    for config in [PLAIN, KEEP, APPEND] {
        for instead in [Instead::Nothing, Instead::PlainFile, Instead::DanglingLink] {
            let root = Root::new();
            let sink = root.sink(config).await;
            root.take_away(instead);
            let mut writes = paths(false);
            let codes = send(&sink, &mut writes).await;
            let rest = ["not_attempted"; 4];
            assert_eq!(
                (codes[0].as_str(), &codes[1..]),
                ("root_gone", &rest.map(str::to_owned)[..])
            );
            let probed = sink.0.connection.probe().await.unwrap_err();
            assert_eq!(probed.kind, FailureKind::Down, "{instead:?}");
            root.bring_back();
            sink.0.connection.probe().await.unwrap();
            assert!(root.files().is_empty());
        }
    }
}

/// The root comes and goes without any order; with `create_dirs: false` too, where a missing folder
/// is a reason to refuse.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_that_comes_and_goes_refuses_nothing_and_each_write_lands_once() {
    const BATCHES: u8 = 20;
    const WRITES: u8 = 6;
    let fixed = r#"{"path": {"$template": 0}, "create_dirs": false}"#;
    for (config, folder) in [
        (PLAIN, "day"),
        (KEEP, "day"),
        (fixed, "there"),
        (APPEND, "day"),
    ] {
        let root = Root::new();
        let sink = root.sink(config).await;
        let stop = Arc::new(AtomicBool::new(false));
        let swapper = thread::spawn({
            let (root, stop) = (root.clone(), Arc::clone(&stop));
            move || {
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) {
                    root.take_away(ALL[rounds % ALL.len()]);
                    if rounds % 3 == 0 {
                        thread::sleep(Duration::from_micros(300));
                    }
                    root.bring_back();
                    thread::sleep(Duration::from_micros(50 * (rounds as u64 % 40)));
                    rounds += 1;
                }
                rounds
            }
        });
        let end = Instant::now() + Duration::from_secs(4);
        let mut left = Vec::new();
        let mut failures: BTreeMap<String, usize> = BTreeMap::new();
        let mut number = 0;
        for batch in 0..BATCHES {
            for _ in 0..WRITES {
                number += 1;
                let path = format!("{folder}/{batch}/f{number}");
                let path = if config == fixed {
                    path.replace(&format!("/{batch}/"), "/")
                } else {
                    path
                };
                left.push(Pending::new(number, path));
            }
            while !left.is_empty() && Instant::now() < end {
                for code in send(&sink, &mut left).await {
                    *failures.entry(code).or_default() += 1;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        let rounds = swapper.join().unwrap();
        send(&sink, &mut left).await;
        assert!(left.is_empty());
        assert!(rounds > 0);
        let files = root.files();
        let named = |name: &&String| !name.contains("/.consign-");
        let names: Vec<_> = files.keys().filter(named).collect();
        assert_eq!(names.len(), usize::from(number), "{failures:?} {names:?}");
        // An unfinished name may stay where the root went away just before it was to be removed.
        assert!(files.len() < names.len() + 5, "{config} {files:?}");
        for (name, text) in files {
            if name.contains("/.consign-") {
                continue;
            }
            let number = name.rsplit('f').next().unwrap();
            let body = format!("body {number}");
            let own = |line: &str| line == body;
            assert!(text.lines().all(own) && !text.is_empty(), "{name} {text}");
            assert!(config == APPEND || text == body, "{name} {text}");
        }
    }
}
