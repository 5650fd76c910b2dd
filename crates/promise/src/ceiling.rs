//! Checks operations against a table of ids and the best each may promise.
//!
//! The table is tab-separated text with a header; the columns `operation`, `promise` and `repeat`
//! are read and others are passed over. It is a ceiling: less is fine, more is a fault, and so is
//! a sink operation whose id is not in it.

use crate::{resolve::rank, table::promise_rank};
use consign_manifest::{Manifest, OperationDeclaration, Promise, RepeatKind};
use std::collections::BTreeMap;

/// Sink operations that are ours and stand in no such table.
const OUR_OWN: [&str; 1] = ["sqlite.write"];

/// The table's line for one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The best promise.
    pub promise: Promise,
    /// The best way in which a repeat is dropped.
    pub repeat: RepeatKind,
}

/// Reads the table.
///
/// # Errors
/// A sentence with the line's number: a missing column, an unknown word, an operation named twice.
pub fn parse(text: &str) -> Result<BTreeMap<String, Row>, String> {
    let mut lines = text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty());
    let (_, head) = lines.next().ok_or("the table is empty")?;
    let head: Vec<&str> = head.split('\t').collect();
    let column = |name: &str| {
        head.iter()
            .position(|h| h.trim() == name)
            .ok_or_else(|| format!("line 1: no column `{name}`"))
    };
    let (operation, promise, repeat) =
        (column("operation")?, column("promise")?, column("repeat")?);
    let mut rows = BTreeMap::new();
    for (index, line) in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        let cell = |at: usize| cells.get(at).map_or("", |c| c.trim());
        let fault = |what: &str| format!("line {}: {what}", index + 1);
        let id = cell(operation);
        if id.is_empty() {
            return Err(fault("no operation"));
        }
        let row = Row {
            promise: promise_of(cell(promise))
                .ok_or_else(|| fault(&format!("`{}` is no promise", cell(promise))))?,
            repeat: repeat_of(cell(repeat))
                .ok_or_else(|| fault(&format!("`{}` says nothing of repeats", cell(repeat))))?,
        };
        if rows.insert(id.to_owned(), row).is_some() {
            return Err(fault(&format!("`{id}` stands there twice")));
        }
    }
    Ok(rows)
}

fn promise_of(words: &str) -> Option<Promise> {
    let words = words.to_lowercase();
    [
        Promise::EffectivelyOnce,
        Promise::AtLeastOnce,
        Promise::AtMostOnce,
    ]
    .into_iter()
    .find(|p| words.starts_with(p.words()))
}

fn repeat_of(words: &str) -> Option<RepeatKind> {
    let starts = |prefix: &str| words.starts_with(prefix);
    if starts("Yes: by the write key") {
        Some(RepeatKind::WriteKey)
    } else if starts("Yes: the same target") {
        Some(RepeatKind::SameTarget)
    } else if starts("No") && !starts("Not") {
        Some(RepeatKind::SecondCopy)
    } else if starts("Not applicable") {
        Some(RepeatKind::NotApplicable)
    } else {
        None
    }
}

/// All operations that promise more than the table allows, or that it does not know.
#[must_use]
pub fn check(rows: &BTreeMap<String, Row>, manifests: &[Manifest]) -> Vec<String> {
    let mut faults = Vec::new();
    for operation in manifests
        .iter()
        .flat_map(|m| &m.connectors)
        .flat_map(|c| &c.operations)
    {
        let OperationDeclaration::Sink(sink) = &operation.declaration else {
            continue;
        };
        let Some(row) = rows.get(&operation.id) else {
            if !OUR_OWN.contains(&operation.id.as_str()) {
                faults.push(format!("{}: no such operation in the table", operation.id));
            }
            continue;
        };
        if promise_rank(sink.promise) > promise_rank(row.promise) {
            faults.push(format!(
                "{}: declares {}, the table allows {}",
                operation.id, sink.promise, row.promise
            ));
        } else if rank(sink.repeat.kind) > rank(row.repeat) {
            faults.push(format!(
                "{}: declares that a repeat is dropped in a better way than the table allows ({:?} over {:?})",
                operation.id, sink.repeat.kind, row.repeat
            ));
        }
    }
    faults
}
