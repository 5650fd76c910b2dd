//! Reads cases and messages from YAML.

use super::{Case, Suite, compare};
use crate::Message;
use bytes::Bytes;
use consign_config::yaml::{self, Data, Node};
use consign_config::{Place, Problem, Text, did_you_mean, in_order, one_of};

const CASE_KEYS: [&str; 4] = ["adapter", "expect", "message", "name"];
const MESSAGE_KEYS: [&str; 7] = [
    "body",
    "content_type",
    "headers",
    "identity",
    "key",
    "source",
    "time_unix_ms",
];
const EXPECT_KEYS: [&str; 11] = [
    "body",
    "condition_errors",
    "content_type",
    "error",
    "headers",
    "key",
    "key_error",
    "outcome",
    "route",
    "sends",
    "transform",
];

/// Where a case's lines are, for writing into the file.
#[derive(Debug, Clone, Default)]
pub(super) struct Layout {
    /// Lines of the entries' keys, from 1, in order.
    pub(super) lines: Vec<u32>,
    /// The line and column of `expect`, if there is one.
    pub(super) expect: Option<(u32, u32)>,
    /// The column in which keys stand.
    pub(super) column: u32,
}

/// Reads a file of cases. A message without `time_unix_ms` is one of `now_unix_ms`.
///
/// # Errors
/// Every fault, with its place.
pub fn read(file: &str, source: &str, now_unix_ms: i64) -> Result<Suite, Vec<Problem>> {
    let (root, mut problems) = yaml::read(file, source).map_err(|problem| vec![problem])?;
    if !matches!(root.data, Data::List(_)) {
        problems.push(wrong(&root, "a list of cases"));
    }
    let cases = root
        .items()
        .iter()
        .filter_map(|node| case(node, now_unix_ms, &mut problems))
        .collect();
    if problems.is_empty() {
        return Ok(Suite { cases });
    }
    in_order(&mut problems);
    Err(problems)
}

/// Reads one message: the shape of a case's `message`, alone in a file (YAML or JSON). Without
/// `time_unix_ms` it is one of `now_unix_ms`.
///
/// # Errors
/// Every fault, with its place.
pub fn read_message(file: &str, source: &str, now_unix_ms: i64) -> Result<Message, Vec<Problem>> {
    let (root, mut problems) = yaml::read(file, source).map_err(|problem| vec![problem])?;
    let message = message(&root, now_unix_ms, &mut problems);
    if problems.is_empty() {
        return Ok(message);
    }
    in_order(&mut problems);
    Err(problems)
}

fn case(node: &Node, now_unix_ms: i64, problems: &mut Vec<Problem>) -> Option<Case> {
    if !matches!(node.data, Data::Map(_)) {
        problems.push(wrong(
            node,
            "a case: a mapping with `name`, `adapter` and `message`",
        ));
        return None;
    }
    known_keys(node, &CASE_KEYS, "a case", problems);
    let mut required = |key: &str| {
        let found = node.get(key);
        if found.is_none() {
            problems.push(Problem::error(
                &node.place,
                "missing_key",
                format!("the key `{key}` is missing in this case"),
            ));
        }
        found
    };
    let (name, adapter, given) = (required("name"), required("adapter"), required("message"));
    let expect = node.get("expect").filter(|e| !matches!(e.data, Data::Null));
    if let Some(expect) = expect {
        match expect.data {
            Data::Map(_) => known_keys(expect, &EXPECT_KEYS, "`expect`", problems),
            _ => problems.push(wrong(expect, "a mapping")),
        }
    }
    let (name, adapter, given) = (name?, adapter?, given?);
    Some(Case {
        name: text(name, problems)?,
        adapter: text(adapter, problems)?,
        message: message(given, now_unix_ms, problems),
        expect: expect.cloned(),
        place: node.place.clone(),
        layout: layout(node),
    })
}

fn layout(node: &Node) -> Layout {
    let place = |key: &Text| (key.place().line, key.place().column);
    let entries = node.entries();
    Layout {
        lines: entries.iter().map(|(key, _)| place(key).0).collect(),
        expect: entries
            .iter()
            .find(|(key, _)| *key == "expect")
            .map(|(key, _)| place(key)),
        column: entries.first().map_or(1, |(key, _)| place(key).1),
    }
}

fn message(node: &Node, now_unix_ms: i64, problems: &mut Vec<Problem>) -> Message {
    let mut message = Message {
        time_unix_ms: now_unix_ms,
        ..Message::default()
    };
    if !matches!(node.data, Data::Map(_)) {
        problems.push(wrong(
            node,
            "a message: a mapping with `body`, `headers`, `key`",
        ));
        return message;
    }
    known_keys(node, &MESSAGE_KEYS, "a message", problems);
    let mut optional = |key: &str| {
        let found = node.get(key)?;
        text(found, problems).map(|text| text.as_str().to_owned())
    };
    message.content_type = optional("content_type");
    message.routing_key = optional("key");
    message.identity = optional("identity").map(Bytes::from);
    message.body = node.get("body").map_or_else(Bytes::new, bytes);
    if let Some(time) = node.get("time_unix_ms") {
        match time.to_json().as_i64() {
            Some(time) => message.time_unix_ms = time,
            None => problems.push(wrong(time, "a time in unix milliseconds")),
        }
    }
    if let Some(source) = node.get("source") {
        match source.to_json() {
            serde_json::Value::Object(map) => message.source = map,
            _ => problems.push(wrong(source, "a mapping")),
        }
    }
    if let Some(headers) = node.get("headers") {
        if !matches!(headers.data, Data::Map(_)) {
            problems.push(wrong(headers, "a mapping of names to values"));
        }
        for (name, value) in headers.entries() {
            let values = match &value.data {
                Data::List(values) => values.as_slice(),
                _ => std::slice::from_ref(value),
            };
            for value in values {
                message
                    .headers
                    .push((name.as_str().to_owned(), bytes(value)));
            }
        }
    }
    message
}

/// A text as it stands; nothing as no bytes; everything else as JSON.
fn bytes(node: &Node) -> Bytes {
    match &node.data {
        Data::Null => Bytes::new(),
        Data::String(text) => Bytes::from(text.as_str().to_owned()),
        _ => Bytes::from(compare::json(node)),
    }
}

fn text(node: &Node, problems: &mut Vec<Problem>) -> Option<Text> {
    match &node.data {
        Data::String(text) => Some(text.clone()),
        Data::Number(number) => Some(Text::new(number.as_str(), &node.place)),
        _ => {
            problems.push(wrong(node, "a text"));
            None
        }
    }
}

fn known_keys(node: &Node, known: &[&str], what: &str, problems: &mut Vec<Problem>) {
    for (key, _) in node
        .entries()
        .iter()
        .filter(|(key, _)| !known.contains(&key.as_str()))
    {
        let help = did_you_mean(key, known.iter().copied())
            .unwrap_or_else(|| format!("known here: {}", one_of(known.iter().copied())));
        problems.push(
            Problem::error(
                key.place(),
                "unknown_key",
                format!("unknown key `{key}` in {what}"),
            )
            .help(help),
        );
    }
}

fn wrong(node: &Node, expected: &str) -> Problem {
    let place: &Place = &node.place;
    Problem::error(
        place,
        "wrong_type",
        format!("expected {expected}, got {}", node.described()),
    )
}
