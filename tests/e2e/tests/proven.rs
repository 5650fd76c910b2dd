//! Records of conformance runs, as the generated page reads them: the ones that are checked in hold,
//! and one of other sources or of another declaration stops the page and says what to run.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use consign_e2e::{built, consign};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Output;

fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/results")
}

/// Operations without a record, and why.
const NOT_YET: [(&str, &str); 1] = [(
    "events.read",
    "a host makes its own events: the test `notices` kills one and counts",
)];

/// The record that is checked in for NATS.
fn nats() -> Value {
    let text = std::fs::read_to_string(results().join("nats.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Generates the pages from this record beside sources with this digest.
fn generate(folder: &Path, record: &Value, sources: &str) -> Output {
    let proven = folder.join("proven");
    std::fs::create_dir_all(&proven).unwrap();
    std::fs::write(proven.join("nats.json"), record.to_string()).unwrap();
    let digests = folder.join("digests.json");
    std::fs::write(&digests, json!({ "nats": sources }).to_string()).unwrap();
    let path = |path: &Path| path.display().to_string();
    consign(&[
        "gen",
        &path(&folder.join("docs")),
        "--plugins",
        &path(&built().plugins),
        "--proven",
        &path(&proven),
        "--source-digests",
        &path(&digests),
    ])
}

fn digest_of(record: &Value) -> String {
    record["records"][0]["plugin_digest"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn a_record_that_holds_stands_in_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let record = nats();
    let output = generate(folder.path(), &record, &digest_of(&record));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let page = std::fs::read_to_string(folder.path().join("docs/promises.md")).unwrap();
    let line = page
        .lines()
        .find(|line| line.contains("`nats.publish`"))
        .unwrap();
    assert!(line.contains("nats-server 2."), "{line}");
    assert!(!line.contains("not yet"), "{line}");
}

#[test]
fn a_record_of_other_sources_or_of_another_declaration_stops_the_page_and_says_what_to_run() {
    let folder = tempfile::tempdir().unwrap();
    let record = nats();
    let output = generate(folder.path(), &record, "the digest of changed sources");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(said.contains("the plugin changed"), "{said}");
    assert!(said.contains("cargo xtask conformance nats"), "{said}");

    let mut other = record.clone();
    other["records"][0]["declaration_digest"] = "0".repeat(64).into();
    let output = generate(folder.path(), &other, &digest_of(&record));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(said.contains("the declaration changed"), "{said}");
    assert!(
        !folder.path().join("docs/promises.md").exists(),
        "no page from stale records"
    );
}

#[test]
fn every_operation_of_ours_has_a_record() {
    let output = consign(&[
        "promises",
        "--json",
        "--plugins",
        &built().plugins.display().to_string(),
    ]);
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!rows.is_empty());
    let mut proven = Vec::new();
    for entry in std::fs::read_dir(results()).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        proven.extend(file["records"].as_array().unwrap().clone());
    }
    for row in rows {
        let record = proven
            .iter()
            .find(|record| record["operation"] == row["operation"]);
        let waived = NOT_YET
            .iter()
            .any(|(waived, _)| row["operation"] == *waived);
        if record.is_none() && waived {
            continue;
        }
        let record = record.unwrap_or_else(|| panic!("{} was never proven", row["operation"]));
        assert_eq!(
            record["declaration_digest"], row["declaration_digest"],
            "{}: the declaration changed; run `cargo xtask conformance`",
            row["operation"]
        );
    }
}
