//! Every code has its entry and page, and the pages keep their form.

use consign_ledger::{Code, Severity, events};
use std::collections::BTreeSet;

/// Commands that a page may name.
const COMMANDS: [&str; 21] = [
    "run", "check", "test", "explain", "show", "plugins", "promises", "status", "events", "schema",
    "vrl", "failed", "jobs", "outages", "trace", "drill", "pause", "resume", "wait", "new",
    "buffer",
];

#[test]
fn every_code_has_exactly_one_entry() {
    let listed: Vec<Code> = events::catalogue().map(|e| e.code).collect();
    let set: BTreeSet<Code> = listed.iter().copied().collect();
    assert_eq!(set.len(), listed.len(), "a code stands there twice");
    assert_eq!(set, Code::ALL.iter().copied().collect());
    for code in Code::ALL {
        assert_eq!(code.entry().code, *code);
    }
}

#[test]
fn every_entry_says_what_why_and_what_to_do() {
    let mut faults = Vec::new();
    for e in events::catalogue() {
        for (part, text) in [("what", e.what), ("why", e.why), ("fix", e.fix)] {
            if !text.ends_with('.') || text.contains("  ") {
                faults.push(format!("{}: {part}", e.code));
            }
        }
        if e.title.is_empty() || e.title.ends_with('.') {
            faults.push(format!("{}: title", e.code));
        }
        if e.level == Severity::Error && e.fix.starts_with("Nothing") {
            faults.push(format!("{}: an error that nobody needs to act on", e.code));
        }
        let names: BTreeSet<_> = e.fields.iter().map(|f| f.0).collect();
        if names.len() != e.fields.len() {
            faults.push(format!("{}: a field twice", e.code));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn pages_name_only_commands_and_events_that_exist() {
    for (file, text) in events::pages() {
        for quoted in text.split('`').skip(1).step_by(2) {
            if let Some(command) = quoted.strip_prefix("consign ") {
                let command = command.split_whitespace().next().unwrap_or_default();
                assert!(COMMANDS.contains(&command), "{file}: `{quoted}`");
            }
            if let Some((_, code)) = quoted.split_once("--code ") {
                assert!(code.parse::<Code>().is_ok(), "{file}: `{quoted}`");
            }
        }
    }
}

#[test]
fn codes_are_words_and_read_back() {
    for code in Code::ALL {
        let name = code.name();
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
        assert_eq!(name.parse(), Ok(*code));
        assert_eq!(serde_json::to_value(code).unwrap(), name);
    }
    assert_eq!(
        "gate_close".parse::<Code>().unwrap_err(),
        "`gate_close` is no event code; the nearest is `gate_closed`"
    );
    assert_eq!(events::nearest("Gate-Closed"), Some(Code::GateClosed));
    assert_eq!(events::nearest("quite something else"), None);
    assert_eq!(events::page("quite something else"), None);
}

#[test]
fn there_is_a_page_for_every_code_and_an_index_of_all() {
    let pages = events::pages();
    assert_eq!(pages.len(), Code::ALL.len() + 1);
    let (name, index) = &pages[0];
    assert_eq!(name, "README.md");
    for (file, text) in &pages[1..] {
        assert!(index.contains(&format!("({file})")), "{file}");
        assert!(text.ends_with('\n') && !text.ends_with("\n\n"));
    }
    insta::assert_snapshot!(events::page("halted_on_one_write").unwrap());
}

#[test]
fn the_levels_and_titles_of_all_events() {
    let lines: Vec<String> = events::catalogue()
        .map(|e| format!("{:5} {:24} {}", e.level, e.code, e.title))
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
}
