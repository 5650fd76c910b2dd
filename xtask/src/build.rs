//! `build`: the host and every plugin, and the plugins' files collected into one folder.

use crate::error::{Context, Error, Result};
use crate::system;
use crate::workspace::{Profile, Workspace};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Builds the host and all plugins and collects the plugins' files in
/// `target/<profile>/plugins/`, so that a configuration can name that folder.
pub fn build(workspace: &Workspace, profile: Profile) -> Result<()> {
    system::ensure_build_needs()?;
    let mut args = vec!["build", "--package", "consign"];
    for plugin in &workspace.plugins {
        args.extend(["--package", plugin]);
    }
    if profile == Profile::Release {
        args.push("--release");
    }
    workspace.cargo(&args)?;
    collect(workspace, profile)
}

/// The same as a part of building the whole workspace, for tests. Cargo chooses features by what is
/// built together: built apart, the expression language would be compiled twice.
pub fn build_workspace(workspace: &Workspace) -> Result<()> {
    workspace.cargo(&["build", "--workspace"])?;
    collect(workspace, Profile::Debug)
}

/// Brings the plugin folder in line with what cargo built: new and changed files are replaced, files
/// of plugins that are gone are removed.
fn collect(workspace: &Workspace, profile: Profile) -> Result<()> {
    let built = workspace.target.join(profile.folder());
    let folder = workspace.plugin_folder(profile);
    fs::create_dir_all(&folder).context(|| format!("cannot create {}", folder.display()))?;
    let mut wanted = BTreeSet::new();
    for plugin in &workspace.plugins {
        let name = OsString::from(library_name(plugin));
        place(&built.join(&name), &folder.join(&name))?;
        wanted.insert(name);
    }
    let entries = fs::read_dir(&folder).context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry.context(|| format!("cannot read {}", folder.display()))?;
        if !wanted.contains(&entry.file_name()) {
            let path = entry.path();
            fs::remove_file(&path).context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// The file that cargo makes of a plugin package.
fn library_name(package: &str) -> String {
    format!("lib{}.so", package.replace('-', "_"))
}

/// Copies `from` to `to` unless they are the same already. The copy appears under its name at once
/// and whole: a running host may have the old file mapped, and writing into that would kill it.
fn place(from: &Path, to: &Path) -> Result<()> {
    if same(from, to) {
        return Ok(());
    }
    let mut name = OsString::from(".new-");
    name.push(to.file_name().unwrap_or_default());
    let temporary: PathBuf = to.with_file_name(name);
    fs::copy(from, &temporary).map_err(|error| {
        Error::Failed(format!(
            "cannot copy {}: {error}; is its crate-type cdylib?",
            from.display()
        ))
    })?;
    fs::rename(&temporary, to).context(|| format!("cannot replace {}", to.display()))
}

/// Whether `to` is a current copy: as long as, and not older than, `from`.
fn same(from: &Path, to: &Path) -> bool {
    let (Ok(from), Ok(to)) = (fs::metadata(from), fs::metadata(to)) else {
        return false;
    };
    let newer = match (from.modified(), to.modified()) {
        (Ok(from), Ok(to)) => from <= to,
        _ => false,
    };
    newer && from.len() == to.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_file_is_named_as_cargo_names_it() {
        assert_eq!(
            library_name("consign-plugin-http"),
            "libconsign_plugin_http.so"
        );
    }

    #[test]
    fn a_changed_plugin_replaces_its_copy_and_a_current_one_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (
            folder.path().join("built.so"),
            folder.path().join("copy.so"),
        );
        fs::write(&from, "one").unwrap();
        place(&from, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"one");
        assert!(same(&from, &to));
        fs::write(&from, "other").unwrap();
        assert!(!same(&from, &to));
        place(&from, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"other");
    }

    #[test]
    fn a_plugin_that_cargo_did_not_make_is_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = place(
            &folder.path().join("absent.so"),
            &folder.path().join("x.so"),
        )
        .unwrap_err()
        .to_string();
        assert!(
            error.contains("absent.so") && error.contains("cdylib"),
            "{error}"
        );
    }
}
