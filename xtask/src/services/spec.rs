//! The file of a service, `tests/services/NAME.toml`: how it is installed, started, known to be
//! ready, asked for its version and stopped.
//!
//! In every text `{data}` is the instance's data folder, `{port:NAME}` one of its ports, and
//! `{url}` its address; `{python}` and `{maven}` are the folders of what was installed from PyPI and from
//! Maven. Unknown keys are errors.

use crate::error::{Context, Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A service, as its file says.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The file's name without `.toml`; not written in the file.
    #[serde(skip)]
    pub name: String,
    /// The product's name as its maker writes it.
    pub title: String,
    /// Names of the ports it listens on; a free one is chosen for each.
    pub ports: Vec<String>,
    /// The address that tests connect to.
    pub url: String,
    /// System user to run as where the caller is root; some servers refuse to run as root.
    pub user: Option<String>,
    /// Folders to look for programs in besides PATH; one `*` may stand for a folder name.
    #[serde(default)]
    pub path: Vec<String>,
    /// Environment of every step.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where it comes from.
    pub install: Install,
    /// How it says which version it is.
    pub version: Version,
    /// Files by name, written into the data folder before each start.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Steps that run once, in order, when the data folder is new.
    #[serde(default)]
    pub init: Vec<Step>,
    /// The server process itself; it stays in the foreground.
    pub start: Step,
    /// How one knows that it answers.
    pub ready: Ready,
    /// Steps that run after each start, once it is ready.
    #[serde(default)]
    pub after_start: Vec<Step>,
    /// How it is asked to end.
    #[serde(default)]
    pub stop: Stop,
}

/// Packages that bring the service.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Install {
    /// Debian packages. Installed only when a program of the service is missing.
    #[serde(default)]
    pub debian: Vec<String>,
    /// Packages of PyPI, with versions; they go into an environment of their own, whose folder is
    /// `{python}` in the names of programs.
    #[serde(default)]
    pub pypi: Vec<String>,
    /// Java archives as `group:artifact:version`; they and all they need go into one folder, which is
    /// `{maven}` in arguments.
    #[serde(default)]
    pub maven: Vec<String>,
}

/// The version question.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    /// Program to run.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The version that tests were last green with.
    pub pinned: String,
}

/// One program with arguments.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Program, looked up in PATH and in the service's `path`.
    pub program: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
}

/// The readiness question: exactly one of `http`, `greeting` and `command`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// A page that answers 200.
    pub http: Option<String>,
    /// A port on which the server speaks first, and what it says.
    pub greeting: Option<Greeting>,
    /// A program that ends with 0.
    pub command: Option<Step>,
    /// Seconds from start to ready, at most.
    pub within_s: u64,
}

/// What a server says first on a new connection.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Greeting {
    /// Name of the port.
    pub port: String,
    /// How its first bytes begin.
    pub begins: String,
}

/// How the process is asked to end.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// `TERM`, `INT` or `QUIT`.
    pub signal: StopSignal,
    /// Seconds until it is killed instead.
    pub within_s: u64,
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            signal: StopSignal::Term,
            within_s: 10,
        }
    }
}

/// Signals that ask a process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum StopSignal {
    /// SIGTERM.
    Term,
    /// SIGINT.
    Int,
    /// SIGQUIT.
    Quit,
}

impl Spec {
    /// Names of all services that have a file.
    pub fn names(root: &Path) -> Result<Vec<String>> {
        let folder = root.join("tests/services");
        let entries =
            std::fs::read_dir(&folder).context(|| format!("cannot read {}", folder.display()))?;
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                name.strip_suffix(".toml").map(str::to_owned)
            })
            .collect();
        names.sort();
        Ok(names)
    }

    /// Reads the file of one service.
    ///
    /// # Errors
    /// [`Error::Input`] for an unknown name and for a file that is not understood.
    pub fn read(root: &Path, name: &str) -> Result<Self> {
        let path = root.join(format!("tests/services/{name}.toml"));
        let text = std::fs::read_to_string(&path).map_err(|_| {
            let known = Self::names(root).unwrap_or_default().join(", ");
            Error::Input(format!("there is no service {name:?}; there are: {known}"))
        })?;
        Self::parse(name, &text)
    }

    /// Understands the text of a service's file.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut spec: Spec = toml::from_str(text)
            .map_err(|error| Error::Input(format!("tests/services/{name}.toml: {error}")))?;
        spec.name = name.to_owned();
        let ready = &spec.ready;
        let ways = [
            ready.http.is_some(),
            ready.greeting.is_some(),
            ready.command.is_some(),
        ];
        if ways.iter().filter(|way| **way).count() != 1 {
            return Err(Error::Input(format!(
                "tests/services/{name}.toml: [ready] needs exactly one of http, greeting and command"
            )));
        }
        Ok(spec)
    }

    /// Puts the folders of what was installed into programs and arguments.
    #[must_use]
    pub fn with_folders(mut self, python: &Path, maven: &Path) -> Self {
        let (python, maven) = (python.display().to_string(), maven.display().to_string());
        let steps = self.init.iter_mut().chain(&mut self.after_start);
        let steps = steps.chain(&mut self.ready.command);
        let steps = steps.chain([&mut self.start]);
        let (mut programs, mut args) = (Vec::new(), Vec::new());
        for step in steps {
            programs.push(&mut step.program);
            args.extend(&mut step.args);
        }
        programs.push(&mut self.version.program);
        args.extend(&mut self.version.args);
        for text in programs.into_iter().chain(args) {
            *text = text.replace("{python}", &python).replace("{maven}", &maven);
        }
        self
    }

    /// The programs that the service needs, each once.
    pub fn programs(&self) -> Vec<&str> {
        let steps = self.init.iter().chain(&self.after_start);
        let mut programs: Vec<&str> = steps
            .chain(&self.ready.command)
            .map(|step| step.program.as_str())
            .chain([self.version.program.as_str(), self.start.program.as_str()])
            .collect();
        programs.sort_unstable();
        programs.dedup();
        programs
    }
}

/// The values that stand behind `{…}` in a service's texts.
#[derive(Debug, Clone)]
pub struct Values {
    /// `{data}`.
    pub data: String,
    /// `{port:NAME}`.
    pub ports: BTreeMap<String, u16>,
    /// `{url}`.
    pub url: String,
}

impl Values {
    /// Fills a text in.
    ///
    /// # Errors
    /// [`Error::Input`] when the text names something that is not there.
    pub fn fill(&self, text: &str) -> Result<String> {
        let mut filled = text
            .replace("{data}", &self.data)
            .replace("{url}", &self.url);
        for (name, port) in &self.ports {
            filled = filled.replace(&format!("{{port:{name}}}"), &port.to_string());
        }
        if let Some((_, rest)) = filled.split_once("{port:") {
            let name = rest.split('}').next().unwrap_or_default();
            return Err(Error::Input(format!(
                "a service file names the port {name:?}, which is not in its `ports`"
            )));
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
title = "Example"
ports = ["sql"]
url = "postgres://postgres@127.0.0.1:{port:sql}/postgres"
user = "postgres"
path = ["/usr/lib/postgresql/*/bin"]
env = { LC_ALL = "C.UTF-8" }
install = { debian = ["postgresql"] }
version = { program = "postgres", args = ["--version"], pinned = "15" }
init = [{ program = "initdb", args = ["--pgdata", "{data}"] }]
start = { program = "postgres", args = ["-D", "{data}", "-p", "{port:sql}"] }
ready = { command = { program = "pg_isready", args = ["-p", "{port:sql}"] }, within_s = 30 }
stop = { signal = "INT", within_s = 20 }
"#;

    #[test]
    fn a_service_with_user_init_and_environment_is_understood() {
        let spec = Spec::parse("example", FULL).unwrap();
        assert_eq!(spec.user.as_deref(), Some("postgres"));
        assert_eq!(spec.stop.signal, StopSignal::Int);
        assert_eq!(spec.programs(), ["initdb", "pg_isready", "postgres"]);
    }

    #[test]
    fn programs_of_a_python_environment_are_looked_for_in_its_folder() {
        let text = FULL.replace(
            "\"postgres\", args = [\"-D",
            "\"{python}/bin/serve\", args = [\"-D",
        );
        let spec = Spec::parse("example", &text).unwrap();
        let spec = spec.with_folders(Path::new("/env"), Path::new("/jars"));
        assert_eq!(spec.start.program, "/env/bin/serve");
        assert_eq!(spec.version.program, "postgres");
    }

    #[test]
    fn java_archives_are_looked_for_in_the_folder_they_were_put_into() {
        let text = FULL.replace("[\"--version\"]", "[\"-cp\", \"{maven}/*\", \"Main\"]");
        let spec = Spec::parse("example", &text).unwrap();
        let spec = spec.with_folders(Path::new("/env"), Path::new("/jars"));
        assert_eq!(spec.version.args, ["-cp", "/jars/*", "Main"]);
    }

    #[test]
    fn an_unknown_key_and_two_readiness_questions_are_errors_that_name_the_file() {
        let unknown = format!("colour = \"red\"\n{FULL}");
        let error = Spec::parse("example", &unknown).unwrap_err().to_string();
        assert!(
            error.contains("tests/services/example.toml") && error.contains("colour"),
            "{error}"
        );

        let twice = FULL.replace(
            "within_s = 30",
            "within_s = 30, http = \"http://127.0.0.1:1/\"",
        );
        let error = Spec::parse("example", &twice).unwrap_err().to_string();
        assert!(error.contains("exactly one"), "{error}");
    }

    #[test]
    fn texts_are_filled_in_and_an_undeclared_port_is_an_error() {
        let values = Values {
            data: "/d".into(),
            ports: BTreeMap::from([("sql".into(), 5555)]),
            url: "u".into(),
        };
        assert_eq!(values.fill("{data} {port:sql} {url}").unwrap(), "/d 5555 u");
        let error = values.fill("{port:admin}").unwrap_err().to_string();
        assert!(error.contains("admin"), "{error}");
    }

    #[test]
    fn every_service_file_of_the_workspace_is_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let names = Spec::names(root).unwrap();
        assert!(names.contains(&"nats".to_owned()), "{names:?}");
        for name in names {
            Spec::read(root, &name).unwrap();
        }
    }
}
