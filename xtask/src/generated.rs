//! `gen`: writes every generated file of the repository, or with `--check` tells which are stale.
//!
//! The host writes them all into a folder (`consign gen FOLDER`), laid out like `docs`; here they are
//! only compared and copied.

use crate::build::build;
use crate::conformance;
use crate::error::{Context, Result, failed};
use crate::workspace::{Profile, Workspace, run};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where generated files belong.
const PLACE: &str = "docs";

/// Folders in which every file is generated: one that the host no longer writes is removed.
const WHOLLY_GENERATED: [&str; 2] = ["docs/connectors", "docs/events"];

/// What mends a stale file.
const MEND: &str = "cargo xtask gen";

/// Lines shown of one file's difference; a person sees what it is about from the first few.
const MAX_DIFF_LINES: usize = 40;

/// One file that differs from what the host generates.
#[derive(Debug, PartialEq, Eq)]
struct Stale {
    /// Relative to the workspace.
    path: PathBuf,
    /// What is there; none when missing.
    present: Option<Vec<u8>>,
    /// What the host generates; none when it no longer does.
    wanted: Option<Vec<u8>>,
}

/// Builds host and plugins and brings the generated files up to date, or only checks them.
pub fn generate(workspace: &Workspace, check: bool) -> Result<()> {
    build(workspace, Profile::Debug)?;
    bring_up_to_date(workspace, check)
}

/// The same with host and plugins as they are built.
pub fn bring_up_to_date(workspace: &Workspace, check: bool) -> Result<()> {
    let folder = workspace.target.join("generated");
    if folder.exists() {
        fs::remove_dir_all(&folder).context(|| format!("cannot empty {}", folder.display()))?;
    }
    let docs = folder.join(PLACE);
    fs::create_dir_all(&docs).context(|| format!("cannot create {}", docs.display()))?;
    let digests = workspace.target.join("source-digests.json");
    fs::write(
        &digests,
        conformance::source_digests(workspace)?.to_string(),
    )
    .context(|| format!("cannot write {}", digests.display()))?;
    run(Command::new(workspace.host(Profile::Debug))
        .current_dir(&workspace.root)
        .arg("gen")
        .arg(&docs)
        .arg("--plugins")
        .arg(workspace.plugin_folder(Profile::Debug))
        .arg("--proven")
        .arg(conformance::RESULTS)
        .arg("--source-digests")
        .arg(&digests))?;
    let stale = compare(&folder, &workspace.root)?;
    if stale.is_empty() {
        eprintln!("generated files are up to date");
        return Ok(());
    }
    if check {
        for file in &stale {
            print!("{}", difference(file));
        }
        return failed(format!(
            "{} generated files are stale; run `{MEND}` and commit what it writes",
            stale.len()
        ));
    }
    for file in &stale {
        write(&workspace.root, file)?;
        eprintln!("wrote {}", file.path.display());
    }
    Ok(())
}

/// All files that differ between what was generated and the workspace, in order.
fn compare(generated: &Path, root: &Path) -> Result<Vec<Stale>> {
    let wanted = files_under(generated, Path::new(""))?;
    if wanted.is_empty() {
        return failed("the host generated no file at all");
    }
    let mut paths = wanted.clone();
    for folder in WHOLLY_GENERATED {
        paths.extend(files_under(root, Path::new(folder))?);
    }
    let mut stale = Vec::new();
    for path in paths {
        let present = fs::read(root.join(&path)).ok();
        let new = if wanted.contains(&path) {
            let bytes = fs::read(generated.join(&path));
            Some(bytes.context(|| format!("cannot read {}", path.display()))?)
        } else {
            None
        };
        if present != new {
            stale.push(Stale {
                path,
                present,
                wanted: new,
            });
        }
    }
    Ok(stale)
}

/// Files under `base/folder`, relative to `base`. A folder that is not there has none.
fn files_under(base: &Path, folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        let full = base.join(&folder);
        if !full.is_dir() {
            continue;
        }
        let entries = fs::read_dir(&full).context(|| format!("cannot read {}", full.display()))?;
        for entry in entries {
            let entry = entry.context(|| format!("cannot read {}", full.display()))?;
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                open.push(path);
            } else {
                found.insert(path);
            }
        }
    }
    Ok(found)
}

fn write(root: &Path, file: &Stale) -> Result<()> {
    let path = root.join(&file.path);
    match &file.wanted {
        None => fs::remove_file(&path).context(|| format!("cannot remove {}", path.display())),
        Some(bytes) => {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)
                    .context(|| format!("cannot create {}", folder.display()))?;
            }
            fs::write(&path, bytes).context(|| format!("cannot write {}", path.display()))
        }
    }
}

/// The difference of one file: what all lines between the first and the last that differ were and
/// will be. Not a minimal diff, but enough to see what changed.
fn difference(file: &Stale) -> String {
    let text = |bytes: &Option<Vec<u8>>| {
        String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned()
    };
    let (old, new) = (text(&file.present), text(&file.wanted));
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| {
        pairs.take_while(|(old, new)| old == new).count()
    };
    let start = same(&mut old.iter().zip(&new));
    let rest = old.len().min(new.len()) - start;
    let end = same(&mut old.iter().rev().zip(new.iter().rev())).min(rest);
    let note = match (&file.present, &file.wanted) {
        (None, _) => " (missing)",
        (_, None) => " (no longer generated)",
        _ => "",
    };
    let mut out = format!("{}:{}{note}\n", file.path.display(), start + 1);
    for (sign, lines) in [('-', &old), ('+', &new)] {
        let changed = lines.len() - start - end;
        for line in lines.iter().skip(start).take(changed.min(MAX_DIFF_LINES)) {
            out.push_str(&format!("{sign} {line}\n"));
        }
        if changed > MAX_DIFF_LINES {
            out.push_str(&format!(
                "{sign} … {} more lines\n",
                changed - MAX_DIFF_LINES
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_all(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn missing_changed_and_abandoned_files_are_stale_and_one_write_mends_them() {
        let (made, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_all(
            made.path(),
            &[
                ("docs/promises.md", "a\nb\nc\n"),
                ("docs/events/new.md", "n\n"),
            ],
        );
        write_all(
            root.path(),
            &[
                ("docs/promises.md", "a\nB\nc\n"),
                ("docs/events/old.md", "o\n"),
                ("docs/architecture.md", "by hand\n"),
            ],
        );
        let stale = compare(made.path(), root.path()).unwrap();
        let paths: Vec<_> = stale
            .iter()
            .map(|file| file.path.to_str().unwrap())
            .collect();
        assert_eq!(
            paths,
            [
                "docs/events/new.md",
                "docs/events/old.md",
                "docs/promises.md"
            ]
        );
        assert_eq!(
            difference(&stale[0]),
            "docs/events/new.md:1 (missing)\n+ n\n"
        );
        assert_eq!(
            difference(&stale[1]),
            "docs/events/old.md:1 (no longer generated)\n- o\n"
        );
        assert_eq!(difference(&stale[2]), "docs/promises.md:2\n- B\n+ b\n");

        for file in &stale {
            write(root.path(), file).unwrap();
        }
        assert_eq!(compare(made.path(), root.path()).unwrap(), []);
        assert!(root.path().join("docs/architecture.md").exists());
    }

    #[test]
    fn a_repeated_line_at_the_end_does_not_confuse_the_difference() {
        let file = Stale {
            path: "x".into(),
            present: Some(b"a\na\n".to_vec()),
            wanted: Some(b"a\na\na\n".to_vec()),
        };
        assert_eq!(difference(&file), "x:3\n+ a\n");
    }

    #[test]
    fn a_host_that_generates_nothing_is_an_error() {
        let (made, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert!(compare(made.path(), root.path()).is_err());
    }
}
