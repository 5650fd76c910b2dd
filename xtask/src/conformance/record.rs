//! Records of whole runs, and the digests that say whether they still hold.

#![allow(
    clippy::indexing_slicing,
    reason = "a field that a JSON document lacks is null, and null matches nothing"
)]

use super::RESULTS;
use crate::error::{Context, Result, failed};
use crate::workspace::Workspace;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The format of a record file, as `consign gen` reads it.
const FORMAT: u32 = 1;

/// What of a plugin's folder makes its behaviour.
const SOURCES: [&str; 2] = ["Cargo.toml", "src"];

/// Writes the record of a run that kept everything; returns where.
pub fn write(workspace: &Workspace, connector: &str, report: &Value) -> Result<PathBuf> {
    let digest = source_digest(&workspace.root.join("plugins").join(connector))?;
    let mut records: Vec<Value> = Vec::new();
    for subject in report["subjects"].as_array().into_iter().flatten() {
        let operation = &subject["operation"];
        let product = &subject["product"];
        let scenarios = kept(report, operation, &product["server"]);
        let known = records.iter().any(|record| {
            record["operation"] == *operation && record["server"] == product["server"]
        });
        if known || scenarios.is_empty() {
            continue;
        }
        records.push(json!({
            "operation": operation,
            "server": product["server"],
            "version": product["version"],
            "kind": product["kind"],
            "plugin_digest": digest,
            "declaration_digest": subject["declaration_digest"],
            "date": today(SystemTime::now()),
            "scenarios": scenarios,
        }));
    }
    if records.is_empty() {
        return failed(format!("the run of {connector} has nothing to record"));
    }
    records.sort_by_key(|record| record["operation"].to_string());
    let file = json!({"format": FORMAT, "connector": connector, "records": records});
    let folder = workspace.root.join(RESULTS);
    fs::create_dir_all(&folder).context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join(format!("{connector}.json"));
    let mut text =
        serde_json::to_string_pretty(&file).context(|| "cannot write a record".into())?;
    text.push('\n');
    fs::write(&path, text).context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// `case/scenario` of everything that was kept for an operation against a server.
fn kept(report: &Value, operation: &Value, server: &Value) -> Vec<String> {
    let subjects = report["subjects"].as_array().into_iter().flatten();
    let cases: Vec<&Value> = subjects
        .filter(|subject| {
            subject["operation"] == *operation && subject["product"]["server"] == *server
        })
        .map(|subject| &subject["case"])
        .collect();
    let rows = report["rows"].as_array().into_iter().flatten();
    rows.filter(|row| row["operation"] == *operation && cases.contains(&&row["case"]))
        .filter(|row| row["verdict"] == "kept")
        .filter_map(|row| {
            Some(format!(
                "{}/{}",
                row["case"].as_str()?,
                row["scenario"].as_str()?
            ))
        })
        .collect()
}

/// The digest of each connector's sources, by its folder's name, as a JSON document.
pub fn source_digests(workspace: &Workspace) -> Result<Value> {
    let folder = workspace.root.join("plugins");
    let entries = fs::read_dir(&folder).context(|| format!("cannot read {}", folder.display()))?;
    let mut digests = Map::new();
    for entry in entries.flatten() {
        if let Ok(name) = entry.file_name().into_string()
            && entry.path().join("Cargo.toml").is_file()
        {
            digests.insert(name, source_digest(&entry.path())?.into());
        }
    }
    Ok(digests.into())
}

/// BLAKE3 over names and contents of a plugin's sources, in the order of their names. A rebuild of the
/// same sources keeps it, which the built file's digest would not.
pub fn source_digest(plugin: &Path) -> Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&plugin.join(source), &mut files)?;
    }
    files.sort();
    let mut digest = blake3::Hasher::new();
    for file in files {
        let name = file
            .strip_prefix(plugin)
            .unwrap_or(&file)
            .display()
            .to_string();
        let bytes = fs::read(&file).context(|| format!("cannot read {}", file.display()))?;
        for part in [name.as_bytes(), &bytes] {
            digest.update(&(part.len() as u64).to_le_bytes());
            digest.update(part);
        }
    }
    Ok(digest.finalize().to_hex().to_string())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    let entries = fs::read_dir(path).context(|| format!("cannot read {}", path.display()))?;
    for entry in entries {
        let entry = entry.context(|| format!("cannot read {}", path.display()))?;
        collect(&entry.path(), files)?;
    }
    Ok(())
}

/// The day, UTC, as `YYYY-MM-DD`.
fn today(now: SystemTime) -> String {
    let seconds = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let mut days = seconds / 86_400;
    let mut year = 1970;
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, day) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_251_199, "2024-02-29"),
            (1_709_251_200, "2024-03-01"),
            (1_796_083_199, "2026-11-30"),
        ] {
            assert_eq!(today(UNIX_EPOCH + Duration::from_secs(seconds)), day);
        }
    }

    #[test]
    fn a_digest_changes_with_a_source_and_not_with_a_test() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("Cargo.toml", "[package]");
        write("src/lib.rs", "one");
        let digest = || source_digest(folder.path()).unwrap();
        let first = digest();
        write("tests/conformance.rs", "a test");
        assert_eq!(digest(), first);
        write("src/lib.rs", "two");
        let second = digest();
        assert_ne!(second, first);
        write("src/sink/more.rs", "");
        assert_ne!(digest(), second);
    }

    #[test]
    fn what_was_kept_is_recorded_by_case_and_scenario_and_for_each_server_apart() {
        let row = |case, scenario, verdict| json!({"operation": "a.b", "case": case, "scenario": scenario, "verdict": verdict});
        let subject =
            |case, server| json!({"operation": "a.b", "case": case, "product": {"server": server}});
        let report = json!({
            "subjects": [subject("c", "one"), subject("d", "other")],
            "rows": [row("c", "clean", "kept"), row("c", "slow", "not_run"), row("d", "clean", "kept")],
        });
        let kept = |server: &str| kept(&report, &json!("a.b"), &json!(server));
        assert_eq!(kept("one"), ["c/clean"]);
        assert_eq!(kept("other"), ["d/clean"]);
    }
}
