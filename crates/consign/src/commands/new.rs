//! `consign new plugin`: a project that builds, is tested and checks, for an author anywhere.

use crate::output::{CliError, Output};
use serde_json::json;
use std::path::{Path, PathBuf};

/// What a plugin can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PluginTemplate {
    /// Hands messages over.
    Source,
    /// Carries writes out.
    Sink,
    /// Enriches, records or checks messages; an error is a delivery failure.
    Processor,
    /// Changes messages; an error discards the message.
    Transform,
    /// Decides what becomes of a write that failed.
    ErrorHandler,
}

type Files = &'static [(&'static str, &'static str)];

const COMMON: Files = &[
    (
        "Cargo.toml",
        include_str!("../templates/common/Cargo.toml.txt"),
    ),
    (
        "README.md",
        include_str!("../templates/common/README.md.txt"),
    ),
    (
        ".gitignore",
        include_str!("../templates/common/gitignore.txt"),
    ),
    (
        ".github/workflows/ci.yml",
        include_str!("../templates/common/ci.yml.txt"),
    ),
];

const SINK: Files = &[
    (
        "example.yaml",
        include_str!("../templates/sink/example.yaml.txt"),
    ),
    ("src/lib.rs", include_str!("../templates/sink/lib.rs.txt")),
    (
        "src/config.rs",
        include_str!("../templates/sink/config.rs.txt"),
    ),
    (
        "src/connection.rs",
        include_str!("../templates/sink/connection.rs.txt"),
    ),
    (
        "src/outcome.rs",
        include_str!("../templates/sink/outcome.rs.txt"),
    ),
    ("src/sink.rs", include_str!("../templates/sink/sink.rs.txt")),
    (
        "src/server.rs",
        include_str!("../templates/sink/server.rs.txt"),
    ),
    (
        "src/tests.rs",
        include_str!("../templates/sink/tests.rs.txt"),
    ),
    (
        "tests/conformance.rs",
        include_str!("../templates/sink/conformance.rs.txt"),
    ),
];

const SOURCE: Files = &[
    (
        "example.yaml",
        include_str!("../templates/source/example.yaml.txt"),
    ),
    ("src/lib.rs", include_str!("../templates/source/lib.rs.txt")),
    (
        "src/config.rs",
        include_str!("../templates/source/config.rs.txt"),
    ),
    (
        "src/connection.rs",
        include_str!("../templates/source/connection.rs.txt"),
    ),
    (
        "src/source.rs",
        include_str!("../templates/source/source.rs.txt"),
    ),
    (
        "src/server.rs",
        include_str!("../templates/source/server.rs.txt"),
    ),
    (
        "src/tests.rs",
        include_str!("../templates/source/tests.rs.txt"),
    ),
    (
        "tests/conformance.rs",
        include_str!("../templates/source/conformance.rs.txt"),
    ),
];

const PROCESSOR: Files = &[
    (
        "example.yaml",
        include_str!("../templates/processor/example.yaml.txt"),
    ),
    (
        "src/lib.rs",
        include_str!("../templates/processor/lib.rs.txt"),
    ),
    (
        "tests/library.rs",
        include_str!("../templates/processor/library.rs.txt"),
    ),
];

const TRANSFORM: Files = &[
    (
        "example.yaml",
        include_str!("../templates/transform/example.yaml.txt"),
    ),
    (
        "src/lib.rs",
        include_str!("../templates/transform/lib.rs.txt"),
    ),
    (
        "tests/library.rs",
        include_str!("../templates/transform/library.rs.txt"),
    ),
];

const ERROR_HANDLER: Files = &[
    (
        "example.yaml",
        include_str!("../templates/error-handler/example.yaml.txt"),
    ),
    (
        "src/lib.rs",
        include_str!("../templates/error-handler/lib.rs.txt"),
    ),
    (
        "tests/library.rs",
        include_str!("../templates/error-handler/library.rs.txt"),
    ),
];

impl PluginTemplate {
    fn files(self) -> Files {
        match self {
            Self::Source => SOURCE,
            Self::Sink => SINK,
            Self::Processor => PROCESSOR,
            Self::Transform => TRANSFORM,
            Self::ErrorHandler => ERROR_HANDLER,
        }
    }
}

/// The SDK's crates, by the folders a checkout and an unpacked package have them in.
const SDK_CRATES: [(&str, &str); 4] = [
    ("consign-abi", "abi"),
    ("consign-manifest", "manifest"),
    ("consign-plugin", "plugin"),
    ("consign-testkit", "testkit"),
];

/// Of a connector: its conformance test has a `main` of its own.
const CONFORMANCE: &str = "
# The finished library in the host, with the connection broken on purpose.
[[test]]
name = \"conformance\"
harness = false
";

/// Writes a project into `into/NAME`.
pub fn plugin(
    out: Output,
    name: &str,
    kind: PluginTemplate,
    into: &Path,
    sdk: Option<&Path>,
) -> Result<(), CliError> {
    let name = snake(name)?;
    let folder = into.join(&name);
    if folder.exists() {
        return Err(CliError::input(format!(
            "{} is there already: choose another name, or remove it",
            folder.display()
        )));
    }
    let patch = sdk.map(patch).transpose()?.unwrap_or_default();
    let title = title(&name);
    let tests = match kind {
        PluginTemplate::Source | PluginTemplate::Sink => CONFORMANCE,
        _ => "",
    };
    let fill = |text: &str| {
        text.replace("__sdk_version__", env!("CARGO_PKG_VERSION"))
            .replace("__patch__", &patch)
            .replace("__tests__", tests)
            .replace("__name__", &name)
            .replace("__Name__", &title.replace(' ', ""))
            .replace("__Title__", &title)
    };
    let mut written = Vec::new();
    for (path, text) in COMMON.iter().chain(kind.files()) {
        let to = folder.join(path);
        write(&to, &fill(text))?;
        written.push(to.display().to_string());
    }
    format(&folder);
    let result =
        json!({ "plugin": name, "folder": folder.display().to_string(), "files": written });
    out.show(&result, |_| {
        format!(
            "{} has a plugin that builds: cd {0} && cargo test; its README says the rest",
            folder.display()
        )
    })
}

/// How lines break depends on the name's length. Without rustfmt the project is as good, only not as pretty.
fn format(folder: &Path) {
    let formatted = std::process::Command::new("cargo")
        .arg("fmt")
        .current_dir(folder)
        .output();
    if !formatted.is_ok_and(|output| output.status.success()) {
        eprintln!("`cargo fmt` could not be run; run it before the first commit");
    }
}

/// `snake_case`, which is what stands in a configuration.
fn snake(name: &str) -> Result<String, CliError> {
    let snake = name.replace('-', "_");
    let fits = snake.starts_with(|c: char| c.is_ascii_lowercase())
        && snake
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !snake.ends_with('_')
        && !snake.contains("__");
    if fits {
        return Ok(snake);
    }
    Err(CliError::input(format!(
        "{name:?} is no name for a plugin: lower-case letters, digits and single underscores, a letter first (`acme_queue`)"
    )))
}

fn title(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map_or_else(String::new, |first| {
            first.to_uppercase().chain(letters).collect()
        })
    };
    name.split('_').map(word).collect::<Vec<_>>().join(" ")
}

/// Takes the SDK from a folder instead of a registry.
fn patch(sdk: &Path) -> Result<String, CliError> {
    let fail = |error: std::io::Error| CliError::input(format!("--sdk {}: {error}", sdk.display()));
    let sdk = sdk.canonicalize().map_err(fail)?;
    let folders: Vec<PathBuf> = std::fs::read_dir(&sdk)
        .map_err(fail)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("Cargo.toml").is_file())
        .collect();
    let mut text = "\n[patch.crates-io]\n".to_owned();
    for (name, short) in SDK_CRATES {
        let is = |path: &&PathBuf| {
            let folder = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            folder == short
                || folder == name
                || folder
                    .strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with('-'))
        };
        let Some(found) = folders.iter().find(is) else {
            return Err(CliError::input(format!(
                "--sdk {}: {name} is not there; it takes the `sdk` folder of a checkout, or a folder of unpacked packages",
                sdk.display()
            )));
        };
        text.push_str(&format!(
            "{name} = {{ path = {:?} }}\n",
            found.display().to_string()
        ));
    }
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let fail = |error: std::io::Error| CliError::failed(format!("{}: {error}", path.display()));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(fail)?;
    }
    std::fs::write(path, text).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_snake_case_or_refused() {
        assert_eq!(snake("acme-queue").unwrap(), "acme_queue");
        for bad in ["", "Acme", "1st", "a b", "a/../b", "_a", "a_", "a__b", "é"] {
            assert!(snake(bad).is_err(), "{bad}");
        }
        assert_eq!(title("acme_queue"), "Acme Queue");
    }

    #[test]
    fn no_placeholder_is_left() {
        let into = std::env::temp_dir().join(format!("consign-new-{}", std::process::id()));
        for (name, kind) in [
            ("a_b", PluginTemplate::Sink),
            ("c", PluginTemplate::Source),
            ("d", PluginTemplate::ErrorHandler),
        ] {
            plugin(Output { json: true }, name, kind, &into, None).unwrap();
            for (path, _) in COMMON.iter().chain(kind.files()) {
                let text = std::fs::read_to_string(into.join(name).join(path)).unwrap();
                assert!(!text.contains("__"), "{path}: {text}");
            }
        }
        assert!(
            plugin(
                Output { json: true },
                "c",
                PluginTemplate::Sink,
                &into,
                None
            )
            .is_err()
        );
        std::fs::remove_dir_all(into).unwrap();
    }
}
