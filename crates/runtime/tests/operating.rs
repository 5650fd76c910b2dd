//! docs/operating.md, part one: every state that a host shows has its section, every outcome its line,
//! and every event that it names is one.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::string_slice)]

use consign_runtime::{MessageOutcome, states};
use std::collections::BTreeSet;

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");
    std::fs::read_to_string(path).unwrap()
}

/// The states of one kind of part that the page has a section for.
fn sections(page: &str, part: &str) -> BTreeSet<String> {
    page.lines()
        .filter_map(|line| line.strip_prefix("### ")?.strip_prefix(part))
        .filter_map(|rest| rest.trim().strip_prefix('`')?.strip_suffix('`'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_state_that_is_shown_has_its_section_and_nothing_else_has() {
    let page = page();
    for (part, states) in [
        ("Lane", states::of_lanes()),
        ("Gate", states::of_gates()),
        ("Source", states::of_sources()),
        ("Buffer", states::of_the_buffer()),
    ] {
        let states: BTreeSet<String> = states.into_iter().map(str::to_owned).collect();
        assert_eq!(sections(&page, part), states, "{part}");
    }
}

#[test]
fn every_outcome_has_its_line() {
    let page = page();
    let messages = MessageOutcome::ALL.iter().map(|outcome| outcome.name());
    for outcome in states::of_ended_writes().into_iter().chain(messages) {
        let has_line = page
            .lines()
            .any(|line| line.starts_with('|') && line.contains(&format!("`{outcome}`")));
        assert!(has_line, "`{outcome}` has no line");
    }
}

#[test]
fn every_event_that_is_named_is_one() {
    let page = page();
    let mut named = 0;
    for part in page.split("Events:").skip(1) {
        // To the end of the sentence, of the cell, or of the paragraph.
        let end = [". ", ".\n", " |", "\n\n"]
            .iter()
            .filter_map(|end| part.find(end))
            .min()
            .unwrap_or(part.len());
        for code in part[..end].split('`').skip(1).step_by(2) {
            named += 1;
            let page = consign_ledger::events::page(code);
            assert!(page.is_some(), "`{code}` is no event");
        }
    }
    assert!(named > 40, "only {named} events are named");
}

#[test]
fn links_lead_to_sections_of_the_page() {
    let page = page();
    let anchors: BTreeSet<String> = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title.replace('`', "").replace(' ', "-")
        })
        .collect();
    for link in page.split("](#").skip(1) {
        let anchor = link.split(')').next().unwrap();
        assert!(anchors.contains(anchor), "no section #{anchor}");
    }
}
