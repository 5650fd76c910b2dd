//! System packages: looked for first, installed only where missing and where that is possible.

use crate::error::{Context, Result, failed};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// What the build itself needs from the system: a program, and the Debian package that brings it.
/// The bundled SQLite and the TLS provider are C, so a C compiler is all there is.
const BUILD_NEEDS: [(&str, &str); 1] = [("cc", "build-essential")];

/// Makes sure that the build's system packages are there.
pub fn ensure_build_needs() -> Result<()> {
    for (program, package) in BUILD_NEEDS {
        if find_program(program, &[]).is_none() {
            install(&[package.to_owned()])?;
        }
    }
    Ok(())
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
    fn a_file_that_is_not_executable_is_no_program() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plain"), "text").unwrap();
        let extra = [folder.path().display().to_string()];
        assert!(find_program("plain", &extra).is_none());
    }
}
