//! Every `consign …` that the documentation tells a person to type is a command line that this program
//! understands.

use crate::cli::Cli;
use clap::Parser as _;
use std::path::Path;

/// Commands in a page: in backticks, or after a prompt in a console block.
fn commands(page: &str) -> Vec<String> {
    let quoted = page.split('`').skip(1).step_by(2);
    let typed = page.lines().filter_map(|line| line.strip_prefix("$ "));
    quoted
        .chain(typed)
        .map(|text| text.split('#').next().unwrap_or(text).trim())
        .filter(|text| text.starts_with("consign "))
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// A command line's words, quotes taken off as a shell does.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, ' ') => words.push(String::new()),
            (_, c) => words.last_mut().unwrap().push(c),
        }
    }
    words
}

#[test]
fn every_command_of_the_pages_can_be_typed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    for entry in std::fs::read_dir(root.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        pages.extend(path.extension().is_some_and(|e| e == "md").then_some(path));
    }
    let mut found = 0;
    for path in pages {
        let page = std::fs::read_to_string(&path).unwrap();
        for command in commands(&page) {
            found += 1;
            // Places stand for what a person puts there.
            let line = command
                .replace(" …", "")
                .replace(" ID", " 1")
                .replace("CODE", "gate_closed");
            if let Err(error) = Cli::try_parse_from(words(&line)) {
                // A sentence may name a command without what it needs.
                let named = words(&line).len() == 2
                    && error.kind() == clap::error::ErrorKind::MissingRequiredArgument;
                let fine = named
                    || matches!(
                        error.kind(),
                        clap::error::ErrorKind::DisplayHelp
                            | clap::error::ErrorKind::DisplayVersion
                            | clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                    );
                assert!(fine, "{}: `{command}`: {error}", path.display());
            }
        }
    }
    assert!(found > 20, "only {found} commands in the pages");
}
