//! System packages: looked for first, installed only where missing and where that is possible.

use crate::error::{Context, Error, Result, failed};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// What the build itself needs from the system: a program, and the Debian package that brings it. SQLite,
/// the TLS provider and librdkafka are C and are built along.
const BUILD_NEEDS: [(&str, &str); 3] = [
    ("cc", "build-essential"),
    ("make", "build-essential"),
    ("pkg-config", "pkg-config"),
];

/// Libraries that librdkafka is built against, as pkg-config calls them, and their Debian packages.
const BUILD_LIBRARIES: [(&str, &str); 2] = [("openssl", "libssl-dev"), ("zlib", "zlib1g-dev")];

/// Makes sure that the build's system packages are there.
pub fn ensure_build_needs() -> Result<()> {
    let mut missing: Vec<String> = Vec::new();
    let mut need = |package: &str| {
        if !missing.iter().any(|known| known == package) {
            missing.push(package.to_owned());
        }
    };
    for (program, package) in BUILD_NEEDS {
        if find_program(program, &[]).is_none() {
            need(package);
        }
    }
    for (library, package) in BUILD_LIBRARIES {
        if !has_library(library) {
            need(package);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    install(&missing)
}

fn has_library(name: &str) -> bool {
    Command::new("pkg-config")
        .args(["--exists", name])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Debian's compiler beside rustup's, for plugins that another compiler built.
const SECOND_COMPILER: (&str, &str) = ("/usr/bin/rustc", "rustc-web");

/// Makes sure that there is a second compiler: where it is, or `None` where it cannot be had, which is said.
///
/// # Errors
/// It cannot be had and this is CI.
pub fn ensure_second_compiler() -> Result<Option<PathBuf>> {
    let (path, package) = SECOND_COMPILER;
    if !is_executable(Path::new(path)) {
        match install(&[package.to_owned()]) {
            Ok(()) => {}
            Err(Error::Failed(why)) if !in_ci() => {
                eprintln!("SKIPPED Debian's compiler: {why}");
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Some(PathBuf::from(path)))
}

/// Whether what cannot be had fails the run instead of being skipped.
pub fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Finds a program on PATH or in the given extra folders, where one `*` stands for any folder name.
pub fn find_program(name: &str, extra: &[String]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    for pattern in extra {
        folders.extend(expand(pattern));
    }
    folders
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The folders that match a pattern with at most one `*` as a whole folder name, newest name first
/// (so that of two installed versions the later one is used).
fn expand(pattern: &str) -> Vec<PathBuf> {
    let Some((before, after)) = pattern.split_once('*') else {
        return vec![PathBuf::from(pattern)];
    };
    let Ok(entries) = std::fs::read_dir(before) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path().join(after.trim_start_matches('/')))
        .filter(|path| path.is_dir())
        .collect();
    found.sort();
    found.reverse();
    found
}

/// Installs Debian packages.
///
/// # Errors
/// Where this is not Debian, where the caller is not root, and where a package cannot be had; the
/// message says what to install by hand.
pub fn install(packages: &[String]) -> Result<()> {
    let list = packages.join(" ");
    if find_program("apt-get", &[]).is_none() {
        return failed(format!(
            "missing on this system: {list} (Debian's names). There is no apt-get here: install them by hand"
        ));
    }
    if !rustix::process::geteuid().is_root() {
        return failed(format!(
            "missing on this system: {list}. Run `sudo apt-get install {list}`"
        ));
    }
    eprintln!("installing {list} with apt-get");
    refresh_lists();
    let output = Command::new("apt-get")
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context(|| "cannot run apt-get".into())?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it said nothing")
        .to_owned();
    failed(format!("apt-get could not install {list}: {last}"))
}

/// Makes a Python environment in this folder and installs packages of PyPI into it. Debian's packages are
/// what making one needs, where it is not there.
pub fn install_python(folder: &Path, debian: &[String], packages: &[String]) -> Result<()> {
    let make = || {
        run_quietly(
            Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(folder),
        )
    };
    if make().is_err() {
        install(debian)?;
        make()?;
    }
    let list = packages.join(" ");
    eprintln!("installing {list} with pip");
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    let installed = run_quietly(pip.args(packages));
    if installed.is_err() {
        // Half an environment must not pass for a whole one the next time.
        let _ = std::fs::remove_dir_all(folder);
    }
    installed
}

/// The Maven plugin that copies archives, pinned: Maven's own default changes with Maven.
const COPY_DEPENDENCIES: &str =
    "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// Puts Java archives (`group:artifact:version`) and all they need into this folder. Debian's packages are
/// what that and the archives need, where Maven is not there.
pub fn install_maven(folder: &Path, debian: &[String], archives: &[String]) -> Result<()> {
    if find_program("mvn", &[]).is_none() || find_program("java", &[]).is_none() {
        install(debian)?;
    }
    eprintln!("installing {} with Maven", archives.join(" "));
    // Half a folder must not pass for a whole one the next time: it gets its name at the end.
    let begun = folder.with_extension("begun");
    let _ = std::fs::remove_dir_all(&begun);
    std::fs::create_dir_all(&begun).context(|| format!("cannot create {}", begun.display()))?;
    let pom = begun.join("pom.xml");
    std::fs::write(&pom, project(archives)?)
        .context(|| format!("cannot write {}", pom.display()))?;
    let mut maven = Command::new("mvn");
    maven
        .args(["--batch-mode", "--quiet", "--file"])
        .arg(&pom)
        .arg(COPY_DEPENDENCIES)
        .arg("-DincludeScope=runtime")
        .arg(format!("-DoutputDirectory={}", begun.display()));
    run_quietly(&mut maven)?;
    std::fs::rename(&begun, folder).context(|| format!("cannot create {}", folder.display()))
}

/// A Maven project that needs these archives and is nothing else.
fn project(archives: &[String]) -> Result<String> {
    let mut text = String::from(
        "<project><modelVersion>4.0.0</modelVersion><groupId>consign</groupId>\
         <artifactId>service</artifactId><version>1</version><dependencies>\n",
    );
    for archive in archives {
        let mut parts = archive.split(':');
        let (Some(group), Some(artifact), Some(version), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Error::Input(format!(
                "{archive:?}: expected group:artifact:version"
            )));
        };
        text.push_str(&format!(
            "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
             <version>{version}</version></dependency>\n"
        ));
    }
    text.push_str("</dependencies></project>\n");
    Ok(text)
}

/// Runs a program to its end; what it said last where it fails.
fn run_quietly(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output();
    let output = output.context(|| format!("cannot run {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    failed(format!(
        "{program} failed: {}",
        last.unwrap_or("it said nothing")
    ))
}

/// `apt-get update`, once for the life of this process. That it failed shows in the install after it.
fn refresh_lists() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let result = Command::new("apt-get")
            .arg("update")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !result.is_ok_and(|status| status.success()) {
            eprintln!("`apt-get update` failed: going on with the lists that are here");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_on_path_and_under_a_starred_folder() {
        assert!(find_program("sh", &[]).is_some());
        assert!(find_program("no-such-program-here", &[]).is_none());

        let folder = tempfile::tempdir().unwrap();
        for version in ["13", "15"] {
            let bin = folder.path().join(version).join("bin");
            std::fs::create_dir_all(&bin).unwrap();
            let program = bin.join("no-such-program-here");
            std::fs::write(&program, "#!/bin/sh\n").unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&program, mode).unwrap();
        }
        let pattern = format!("{}/*/bin", folder.path().display());
        let found = find_program("no-such-program-here", &[pattern]).unwrap();
        assert!(found.ends_with("15/bin/no-such-program-here"), "{found:?}");
    }

    #[test]
    fn archives_become_a_project_and_an_incomplete_name_is_an_error() {
        let text = project(&["org.example:thing_2.13:1.2.3".to_owned()]).unwrap();
        assert!(text.contains(
            "<groupId>org.example</groupId><artifactId>thing_2.13</artifactId><version>1.2.3</version>"
        ));
        let error = project(&["org.example:thing".to_owned()]).unwrap_err();
        assert!(
            error.to_string().contains("group:artifact:version"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_not_executable_is_no_program() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plain"), "text").unwrap();
        let extra = [folder.path().display().to_string()];
        assert!(find_program("plain", &extra).is_none());
    }
}
