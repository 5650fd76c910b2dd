//! Writes what came out into the file of cases, where it differs from what was expected.

use super::{CaseResult, Suite, compare};
use consign_config::Problem;
use consign_config::yaml::{Data, Node};

/// The file's text with a new `expect` for every case that differs; all other lines stay.
///
/// # Errors
/// A case that would change is written in flow style (`- { … }`), in which there are no lines to
/// replace.
pub fn bless(source: &str, suite: &Suite, results: &[CaseResult]) -> Result<String, Vec<Problem>> {
    let mut lines: Vec<String> = source.lines().map(str::to_owned).collect();
    let mut problems = Vec::new();
    // From the end, so that the numbers of earlier lines stay true.
    for (i, (case, result)) in suite.cases.iter().zip(results).enumerate().rev() {
        if result.differences.is_empty() {
            continue;
        }
        let layout = &case.layout;
        let is_block = layout
            .lines
            .iter()
            .zip(layout.lines.iter().skip(1))
            .all(|(a, b)| a < b);
        if !is_block {
            problems.push(
                Problem::error(
                    &case.place,
                    "flow_style",
                    format!(
                        "the case `{}` is written on one line and cannot be blessed",
                        case.name
                    ),
                )
                .help("write each of its keys on a line of its own"),
            );
            continue;
        }
        let end_of_case = suite
            .cases
            .get(i + 1)
            .map_or(lines.len() + 1, |next| number(next.place.line));
        let (begin, end) = match layout.expect {
            Some((line, _)) => {
                let next = layout.lines.iter().find(|other| **other > line);
                (number(line), next.map_or(end_of_case, |n| number(*n)))
            }
            None => (end_of_case, end_of_case),
        };
        // Lines from `begin` up to `end`, counted from 1; blank lines and comments at the end of
        // them belong to what follows.
        let is_spare = |line: Option<&String>| {
            line.is_none_or(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
        };
        let mut end = end;
        while end > begin && is_spare(lines.get(end - 2)) {
            end -= 1;
        }
        let mut begin = begin;
        while layout.expect.is_none() && begin > 1 && is_spare(lines.get(begin - 2)) {
            begin -= 1;
        }
        // A case without `expect` gets one after its last line; nothing is replaced.
        let end = if layout.expect.is_some() { end } else { begin };
        let indent = number(layout.column).saturating_sub(1);
        let mut written = vec![format!("{}expect:", " ".repeat(indent))];
        block(&result.actual, indent + 2, &mut written);
        let range =
            begin.saturating_sub(1).min(lines.len())..end.saturating_sub(1).min(lines.len());
        lines.splice(range, written);
    }
    if problems.is_empty() {
        return Ok(lines.join("\n") + "\n");
    }
    problems.reverse();
    Err(problems)
}

fn number(line: u32) -> usize {
    usize::try_from(line).unwrap_or(usize::MAX)
}

/// A mapping in block style. Texts and names are written as JSON, which YAML reads as it is, and
/// lists on one line.
fn block(node: &Node, indent: usize, out: &mut Vec<String>) {
    for (name, value) in node.entries() {
        let name =
            if name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.is_empty() {
                name.as_str().to_owned()
            } else {
                serde_json::Value::from(name.as_str()).to_string()
            };
        let pad = " ".repeat(indent);
        match &value.data {
            Data::Map(entries) if !entries.is_empty() => {
                out.push(format!("{pad}{name}:"));
                block(value, indent + 2, out);
            }
            _ => out.push(format!("{pad}{name}: {}", compare::json(value))),
        }
    }
}
