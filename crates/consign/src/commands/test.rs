//! `consign test`: messages through the routes, compared with what is expected.

use crate::output::{CliError, Kind, Output};
use crate::problems;
use consign_pipeline::cases::{self, CaseResult};
use serde::Serialize;
use std::path::Path;

/// What came of one case.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    place: String,
    passed: bool,
    differences: Vec<DifferenceRow>,
}

#[derive(Debug, Serialize)]
struct DifferenceRow {
    place: String,
    field: String,
    expected: Option<String>,
    actual: Option<String>,
}

pub fn run(out: Output, file: &Path, path: &Path, bless: bool) -> Result<(), CliError> {
    let plan = problems::plan(file)?;
    let name = path.display().to_string();
    let source = std::fs::read_to_string(path)
        .map_err(|error| CliError::input(format!("{name}: {error}")))?;
    let suite = cases::read(&name, &source, super::now_unix_ms())
        .map_err(|problems| problems::error(&problems))?;
    let names: Vec<&str> = plan
        .adapters
        .iter()
        .map(|adapter| adapter.name.as_str())
        .collect();
    let program = |name: &str| {
        plan.adapters
            .iter()
            .find(|adapter| adapter.name == name)
            .map(|adapter| &*adapter.program)
    };
    let results =
        cases::run(&suite, &names, program).map_err(|problems| problems::error(&problems))?;
    let failed = results
        .iter()
        .filter(|result| !result.differences.is_empty())
        .count();
    if bless && failed > 0 {
        let blessed = cases::bless(&source, &suite, &results)
            .map_err(|problems| problems::error(&problems))?;
        write_whole(path, &blessed)
            .map_err(|error| CliError::failed(format!("{name}: {error}")))?;
        return out.show(&rows(&results), |_| {
            format!(
                "{failed} of {} cases in {name} now expect what came out",
                results.len()
            )
        });
    }
    out.show(&rows(&results), |_| text(&results, failed))?;
    if failed == 0 {
        return Ok(());
    }
    let hint = format!(
        "{failed} of {} cases differ; if that is right: consign test {} {name} --bless",
        results.len(),
        file.display()
    );
    Err(CliError::new(Kind::Failed, hint))
}

fn rows(results: &[CaseResult]) -> Vec<Row> {
    let row = |result: &CaseResult| Row {
        name: result.name.clone(),
        place: result.place.to_string(),
        passed: result.differences.is_empty(),
        differences: result
            .differences
            .iter()
            .map(|difference| DifferenceRow {
                place: difference.place.to_string(),
                field: difference.field.clone(),
                expected: difference.expected.clone(),
                actual: difference.actual.clone(),
            })
            .collect(),
    };
    results.iter().map(row).collect()
}

fn text(results: &[CaseResult], failed: usize) -> String {
    let mut lines = Vec::new();
    for result in results
        .iter()
        .filter(|result| !result.differences.is_empty())
    {
        lines.push(format!("{}: {}", result.place, result.name));
        lines.extend(
            result
                .differences
                .iter()
                .map(|difference| format!("  {difference}")),
        );
    }
    let passed = results.len().saturating_sub(failed);
    lines.push(if results.is_empty() {
        "no cases".to_owned()
    } else {
        format!("{passed} of {} cases are as expected", results.len())
    });
    lines.join("\n")
}

/// A reader sees the old file or the whole new one.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("yaml.new");
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, path)
}
