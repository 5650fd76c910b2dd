//! Compares what came out with what was expected, field by field.

use super::Difference;
use crate::json;
use consign_config::yaml::{Data, Node};

/// Differences shown for one case; a wholly different body would bury the rest.
const MAX_DIFFERENCES: usize = 50;

/// Compares every field that `expect` names.
pub(super) fn against(expect: &Node, actual: &Node) -> Vec<Difference> {
    let mut differences = Vec::new();
    for (name, expected) in expect.entries() {
        match actual.get(name) {
            Some(actual) => node(name, expected, actual, &mut differences),
            None if matches!(expected.data, Data::Null) => {}
            None => differences.push(difference(name, expected, Some(expected), None)),
        }
    }
    differences.truncate(MAX_DIFFERENCES);
    differences
}

fn difference(
    field: &str,
    at: &Node,
    expected: Option<&Node>,
    actual: Option<&Node>,
) -> Difference {
    Difference {
        place: at.place.clone(),
        field: field.to_owned(),
        expected: expected.map(json),
        actual: actual.map(json),
    }
}

fn node(field: &str, expected: &Node, actual: &Node, out: &mut Vec<Difference>) {
    let same = match (&expected.data, &actual.data) {
        (Data::Map(wanted), Data::Map(found)) => {
            for (name, wanted) in wanted {
                let field = format!("{field}.{name}");
                match actual.get(name) {
                    Some(found) => node(&field, wanted, found, out),
                    None => out.push(difference(&field, wanted, Some(wanted), None)),
                }
            }
            for (name, found) in found
                .iter()
                .filter(|(name, _)| expected.get(name).is_none())
            {
                let field = format!("{field}.{name}");
                out.push(difference(&field, expected, None, Some(found)));
            }
            true
        }
        (Data::List(wanted), Data::List(found)) => {
            for (i, wanted) in wanted.iter().enumerate() {
                let field = format!("{field}[{i}]");
                match found.get(i) {
                    Some(found) => node(&field, wanted, found, out),
                    None => out.push(difference(&field, wanted, Some(wanted), None)),
                }
            }
            for (i, found) in found.iter().enumerate().skip(wanted.len()) {
                let field = format!("{field}[{i}]");
                out.push(difference(&field, expected, None, Some(found)));
            }
            true
        }
        // An empty `sends: { billing: }` says that the send is there.
        (Data::Null, Data::Map(found)) => found.is_empty(),
        (Data::Number(wanted), Data::Number(found)) => {
            json::decimal(wanted) == json::decimal(found)
        }
        (wanted, found) => wanted == found,
    };
    if !same {
        out.push(difference(field, expected, Some(expected), Some(actual)));
    }
}

/// A node as JSON, its numbers as they were written.
pub(super) fn json(node: &Node) -> String {
    let mut out = Vec::new();
    write(node, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

fn write(node: &Node, out: &mut Vec<u8>) {
    let separate = |out: &mut Vec<u8>, i: usize| {
        if i > 0 {
            out.push(b',');
        }
    };
    match &node.data {
        Data::Null => out.extend_from_slice(b"null"),
        Data::Bool(value) => out.extend_from_slice(value.to_string().as_bytes()),
        Data::Number(number) => out.extend_from_slice(number.as_bytes()),
        Data::String(text) => json::write_text(text, out),
        Data::List(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                separate(out, i);
                write(item, out);
            }
            out.push(b']');
        }
        Data::Map(entries) => {
            out.push(b'{');
            for (i, (name, value)) in entries.iter().enumerate() {
                separate(out, i);
                json::write_text(name, out);
                out.push(b':');
                write(value, out);
            }
            out.push(b'}');
        }
    }
}
