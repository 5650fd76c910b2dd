//! Conformance of the Local File connector's sink. There is no network to break: the root is taken
//! away and put back, and the host is killed. Files are counted with the standard library.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use async_trait::async_trait;
use consign_testkit::conformance::{
    self, Access, Destination, Effect, Kind, Origin, Place, Product, Setup, Subjects,
};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::main("localfile", || async {
        Subjects::new()
            .destination(Folder::Replace)
            .destination(Folder::Keep)
            .destination(Folder::Append)
            .origin(Tail)
    })
}

/// What becomes of a file that is there already.
enum Folder {
    Replace,
    Keep,
    Append,
}

/// Files are the kernel's.
fn linux() -> Product {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Product {
        server: "Linux".into(),
        version: release.trim().split('-').next().unwrap_or_default().into(),
        kind: Kind::Real,
    }
}

fn root(place: &Place) -> PathBuf {
    place.folder.join("out")
}

fn away(place: &Place) -> PathBuf {
    place.folder.join("out.away")
}

#[async_trait]
impl Destination for Folder {
    fn operation(&self) -> &'static str {
        "localfile.write.local"
    }

    fn case(&self) -> &'static str {
        match self {
            Self::Replace => "replace",
            Self::Keep => "keep",
            Self::Append => "append",
        }
    }

    fn product(&self) -> Product {
        linux()
    }

    fn access(&self) -> Access {
        Access::Local
    }

    async fn prepare(&self, place: &Place) -> Setup {
        fs::create_dir(root(place)).unwrap();
        let config = match self {
            Self::Replace => r#"{ path: "{{ .body.id }}.json" }"#,
            Self::Keep => r#"{ path: "{{ .body.id }}.json", overwrite_existing: false }"#,
            Self::Append => "{ path: all.jsonl, append: true }",
        };
        Setup {
            connection: "{ connector: localfile, config: { root: ./out, create: false } }".into(),
            config: config.into(),
            order: "strict".into(),
        }
    }

    async fn effects(&self, place: &Place) -> Vec<Effect> {
        let mut effects = Vec::new();
        for folder in [root(place), away(place)] {
            collect(&folder, &mut effects);
        }
        effects
    }

    async fn hold(&self, place: &Place) -> Box<dyn Send> {
        let (root, away) = (root(place), away(place));
        fs::rename(&root, &away).unwrap();
        Box::new(Away { root, away })
    }

    fn refuses_nothing(&self) -> Option<&'static str> {
        let why =
            "a name that is taken refuses nothing: the file gets the variant of its write key";
        matches!(self, Self::Keep).then_some(why)
    }

    /// A folder has the name that the file is to have.
    async fn refuse(&self, place: &Place, id: &str) -> Box<dyn Send> {
        let name = match self {
            Self::Replace | Self::Keep => root(place).join(format!("{id}.json")),
            Self::Append => root(place).join("all.jsonl"),
        };
        let aside = name.with_extension("aside");
        if name.exists() {
            fs::rename(&name, &aside).unwrap();
        }
        fs::create_dir(&name).unwrap();
        Box::new(Taken { name, aside })
    }
}

/// A name while a folder has it.
struct Taken {
    name: PathBuf,
    aside: PathBuf,
}

impl Drop for Taken {
    fn drop(&mut self) {
        fs::remove_dir(&self.name).unwrap();
        if self.aside.exists() {
            fs::rename(&self.aside, &self.name).unwrap();
        }
    }
}

/// The root while it is away; it comes back when this is dropped.
struct Away {
    root: PathBuf,
    away: PathBuf,
}

impl Drop for Away {
    fn drop(&mut self) {
        fs::rename(&self.away, &self.root).unwrap();
    }
}

/// An effect for each line of each finished file; unfinished ones have other names.
fn collect(folder: &Path, effects: &mut Vec<Effect>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if !matches!(ending, Some("json" | "jsonl")) || path.is_dir() {
            continue;
        }
        for line in fs::read_to_string(&path).unwrap().lines() {
            // A line that is being appended is no effect yet.
            if let Ok(body) = serde_json::from_str::<serde_json::Value>(line) {
                let id = body.get("id").and_then(|id| id.as_str()).unwrap();
                effects.push(Effect {
                    id: id.to_owned(),
                    key: None,
                });
            }
        }
    }
}

/// The lines of a file that grows.
struct Tail;

#[async_trait]
impl Origin for Tail {
    fn operation(&self) -> &'static str {
        "localfile.read"
    }

    fn case(&self) -> &'static str {
        "tail"
    }

    fn product(&self) -> Product {
        linux()
    }

    async fn prepare(&self, place: &Place) -> Setup {
        fs::create_dir(place.folder.join("logs")).unwrap();
        Setup {
            connection: "{ connector: localfile, config: { root: ./logs } }".into(),
            config: "{ path: app.log, content_type: application/json, poll_interval: 20ms }".into(),
            order: String::new(),
        }
    }

    async fn offer(&self, place: &Place, ids: &[String]) {
        let lines = ids
            .iter()
            .map(|id| format!("{{\"id\": \"{id}\", \"n\": 1}}\n"));
        let path = place.folder.join("logs/app.log");
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        file.write_all(lines.collect::<String>().as_bytes())
            .unwrap();
    }

    /// The position is kept by the host, in the record that accepts the line.
    async fn settled(&self, _: &Place) -> Option<u64> {
        None
    }
}
