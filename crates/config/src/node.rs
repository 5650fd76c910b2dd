//! YAML as a tree in which every node knows its place.
//!
//! Limits: [`MAX_NODES`] nodes and [`MAX_DEPTH`] levels, counted after aliases are followed, so that
//! a small file cannot unfold into a large one.

use crate::{Place, Problem, Text};
use granit_parser::{Event, Options, Parser, ScalarStyle, Span};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// More than a host of thousands of adapters needs; bounds what aliases unfold to.
const MAX_NODES: usize = 2_000_000;
/// Deeper than any sensible configuration; keeps every recursion over the tree shallow.
const MAX_DEPTH: usize = 64;

/// A node with its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Where it begins.
    pub place: Place,
    /// What it is.
    pub data: Data,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as it was written.
    Number(String),
    /// A text.
    String(Text),
    /// Items in order.
    List(Vec<Node>),
    /// Entries in order; names are unique.
    Map(Vec<(Text, Node)>),
}

impl Node {
    /// What it is, with an article, for messages.
    #[must_use]
    pub fn described(&self) -> String {
        match &self.data {
            Data::Null => "nothing".to_owned(),
            Data::Bool(value) => format!("`{value}`"),
            Data::Number(number) => format!("the number {number}"),
            Data::String(text) if text.len() <= 60 && !text.contains('\n') => {
                format!("the text `{text}`")
            }
            Data::String(_) => "a text".to_owned(),
            Data::List(_) => "a list".to_owned(),
            Data::Map(_) => "a mapping".to_owned(),
        }
    }

    /// The entry of a mapping with this name.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries()
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, node)| node)
    }

    /// A mapping's entries; none for every other type.
    #[must_use]
    pub fn entries(&self) -> &[(Text, Self)] {
        match &self.data {
            Data::Map(entries) => entries,
            _ => &[],
        }
    }

    /// A list's items; none for every other type.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        match &self.data {
            Data::List(items) => items,
            _ => &[],
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&Text> {
        match &self.data {
            Data::String(text) => Some(text),
            _ => None,
        }
    }

    /// The node as a JSON value. Numbers that JSON cannot hold (`.inf`) become text.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.data {
            Data::Null => Value::Null,
            Data::Bool(value) => Value::Bool(*value),
            Data::Number(number) => number_to_json(number),
            Data::String(text) => Value::String(text.as_str().to_owned()),
            Data::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Data::Map(entries) => Value::Object(
                entries
                    .iter()
                    .map(|(key, node)| (key.as_str().to_owned(), node.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }
}

/// Reads a YAML scalar as JSON would: numbers, true, false and null by the core schema.
pub(crate) fn plain_scalar(text: &str) -> Data {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Data::Null,
        "true" | "True" | "TRUE" => Data::Bool(true),
        "false" | "False" | "FALSE" => Data::Bool(false),
        _ if is_number(text) => Data::Number(text.to_owned()),
        _ => Data::String(Text::from(text)),
    }
}

fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if let Some(hex) = unsigned.strip_prefix("0x") {
        return unsigned == text && u64::from_str_radix(hex, 16).is_ok();
    }
    let (mantissa, exponent) = unsigned
        .split_once(['e', 'E'])
        .map_or((unsigned, None), |(m, e)| (m, Some(e)));
    let exponent_fits = exponent.is_none_or(|e| digits(e.strip_prefix(['-', '+']).unwrap_or(e)));
    let mantissa_fits = match mantissa.split_once('.') {
        None => digits(mantissa),
        Some((whole, part)) => {
            (digits(whole) || whole.is_empty())
                && (digits(part) || part.is_empty() && !whole.is_empty())
        }
    };
    mantissa_fits && exponent_fits
}

fn number_to_json(number: &str) -> Value {
    let plain = number.strip_prefix('+').unwrap_or(number);
    if let Some(hex) = plain.strip_prefix("0x")
        && let Ok(value) = u64::from_str_radix(hex, 16)
    {
        return Value::from(value);
    }
    if let Ok(value) = plain.parse::<i64>() {
        return Value::from(value);
    }
    if let Ok(value) = plain.parse::<u64>() {
        return Value::from(value);
    }
    match plain.parse::<f64>() {
        Ok(value) if value.is_finite() => Value::from(value),
        _ => Value::String(number.to_owned()),
    }
}

/// Reads one YAML document. Stops at the first syntax error, since what follows one is guesswork;
/// duplicate keys are collected.
///
/// # Errors
/// The first syntax error, or a limit that was passed.
pub fn read(file: &str, source: &str) -> Result<(Node, Vec<Problem>), Problem> {
    Reader {
        file: Place::new(file, 1, 1),
        source_lines: source.lines().collect(),
        anchors: HashMap::new(),
        count: 0,
        problems: Vec::new(),
    }
    .document(source)
}

struct Reader<'s> {
    file: Place,
    source_lines: Vec<&'s str>,
    anchors: HashMap<usize, Node>,
    count: usize,
    problems: Vec<Problem>,
}

enum Open {
    List(Place, usize, Vec<Node>),
    Map(Place, usize, Vec<(Text, Node)>, Option<Text>),
}

impl<'s> Reader<'s> {
    fn document(mut self, source: &str) -> Result<(Node, Vec<Problem>), Problem> {
        let mut open: Vec<Open> = Vec::new();
        let mut root: Option<Node> = None;
        for event in Parser::new_from_str_with_options(source, Options::default()) {
            let (event, span) = event.map_err(|error| {
                let mark = error.marker();
                Problem::error(
                    &self.place(mark.line(), mark.col()),
                    "yaml_syntax",
                    format!("not YAML: {}", error.info()),
                )
            })?;
            let place = self.place(span.start.line(), span.start.col());
            let done = match event {
                Event::Scalar(value, style, anchor, tag) => {
                    let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
                    let node = self.scalar(&value, style, is_text, place, &span);
                    Some((anchor, node))
                }
                Event::SequenceStart(_, anchor, _) => {
                    open.push(Open::List(place, anchor, Vec::new()));
                    None
                }
                Event::MappingStart(_, anchor, _) => {
                    open.push(Open::Map(place, anchor, Vec::new(), None));
                    None
                }
                Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                    Some(Open::List(place, anchor, items)) => {
                        let data = Data::List(items);
                        Some((anchor, Node { place, data }))
                    }
                    Some(Open::Map(place, anchor, entries, _)) => {
                        let data = Data::Map(entries);
                        Some((anchor, Node { place, data }))
                    }
                    None => None,
                },
                Event::Alias(id) => {
                    let Some(node) = self.anchors.get(&id).cloned() else {
                        return Err(Problem::error(
                            &place,
                            "yaml_alias",
                            "this alias stands inside the node it names",
                        ));
                    };
                    self.count += size(&node);
                    Some((0, node))
                }
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(Problem::error(
                        &place,
                        "second_document",
                        "a configuration is one YAML document, and here a second one begins",
                    ));
                }
                _ => None,
            };
            if open.len() > MAX_DEPTH {
                let place = self.place(span.start.line(), span.start.col());
                return Err(Problem::error(
                    &place,
                    "too_deep",
                    format!("nested more than {MAX_DEPTH} levels deep"),
                ));
            }
            let Some((anchor, node)) = done else { continue };
            self.count += 1;
            if self.count > MAX_NODES {
                return Err(Problem::error(
                    &node.place,
                    "too_large",
                    format!("more than {MAX_NODES} values, aliases followed"),
                ));
            }
            if anchor > 0 {
                self.anchors.insert(anchor, node.clone());
            }
            if open.len() + depth(&node, MAX_DEPTH) > MAX_DEPTH {
                return Err(Problem::error(
                    &node.place,
                    "too_deep",
                    format!("nested more than {MAX_DEPTH} levels deep"),
                ));
            }
            match open.last_mut() {
                None => root = Some(node),
                Some(Open::List(_, _, items)) => items.push(node),
                Some(Open::Map(_, _, entries, key)) => match key.take() {
                    None => *key = Some(key_of(node, &mut self.problems)),
                    Some(name) => insert(entries, name, node, &mut self.problems),
                },
            }
        }
        let empty = || Node {
            place: self.file.clone(),
            data: Data::Null,
        };
        Ok((root.unwrap_or_else(empty), self.problems))
    }

    fn place(&self, line: usize, column: usize) -> Place {
        let to = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.file.at(to(line), to(column).saturating_add(1))
    }

    fn scalar(
        &self,
        value: &str,
        style: ScalarStyle,
        is_text: bool,
        place: Place,
        span: &Span,
    ) -> Node {
        let data = match plain_scalar(value) {
            Data::String(_) => None,
            plain => (style == ScalarStyle::Plain && !is_text).then_some(plain),
        };
        let data = data.unwrap_or_else(|| {
            let lines = self.lines(value, style, &place, span);
            Data::String(Text::with_lines(value.to_owned(), place.clone(), lines))
        });
        Node { place, data }
    }

    /// Where each source line of a scalar begins in its value.
    fn lines(
        &self,
        value: &str,
        style: ScalarStyle,
        place: &Place,
        span: &Span,
    ) -> Vec<(usize, u32, u32)> {
        let first = (span.start.line(), span.end.line());
        let quote = u32::from(matches!(
            style,
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted
        ));
        let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
        let mut lines = Vec::new();
        if !is_block {
            lines.push((0, place.line, place.column + quote));
        }
        let mut from = 0;
        // A block scalar's span begins with its first line of content.
        let begin = first.0 + usize::from(!is_block);
        for number in begin..=first.1 {
            let Some(line) = number.checked_sub(1).and_then(|i| self.source_lines.get(i)) else {
                break;
            };
            let content = line.trim();
            if content.is_empty() {
                continue;
            }
            let found = value.get(from..).and_then(|rest| rest.find(content));
            let Some(at) = found.map(|at| from + at) else {
                continue;
            };
            let indent = line.chars().take_while(|c| c.is_whitespace()).count();
            // A literal line may begin with spaces of its own: they belong to the value.
            let own = value.get(..at).map_or(0, |before| {
                before.len() - before.trim_end_matches([' ', '\t']).len()
            });
            let own = if style == ScalarStyle::Literal {
                own
            } else {
                0
            };
            let column = u32::try_from(indent.saturating_sub(own)).unwrap_or(0) + 1;
            lines.push((at - own, u32::try_from(number).unwrap_or(u32::MAX), column));
            from = at + content.len();
        }
        lines
    }
}

fn size(node: &Node) -> usize {
    1 + match &node.data {
        Data::List(items) => items.iter().map(size).sum(),
        Data::Map(entries) => entries.iter().map(|(_, node)| size(node)).sum(),
        _ => 0,
    }
}

fn depth(node: &Node, limit: usize) -> usize {
    if limit == 0 {
        return 1;
    }
    match &node.data {
        Data::List(items) => 1 + items.iter().map(|n| depth(n, limit - 1)).max().unwrap_or(0),
        Data::Map(entries) => {
            1 + entries
                .iter()
                .map(|(_, n)| depth(n, limit - 1))
                .max()
                .unwrap_or(0)
        }
        _ => 0,
    }
}

fn key_of(node: Node, problems: &mut Vec<Problem>) -> Text {
    match node.data {
        Data::String(text) => text,
        Data::Number(number) => Text::new(number, &node.place),
        Data::Bool(value) => Text::new(value.to_string(), &node.place),
        Data::Null => Text::new("null", &node.place),
        Data::List(_) | Data::Map(_) => {
            problems.push(Problem::error(
                &node.place,
                "wrong_key",
                "expected a name before the colon, got a list or a mapping",
            ));
            Text::new("", &node.place)
        }
    }
}

fn insert(entries: &mut Vec<(Text, Node)>, key: Text, node: Node, problems: &mut Vec<Problem>) {
    if let Some((first, _)) = entries.iter().find(|(name, _)| *name == key) {
        let line = first.place().line;
        problems.push(
            Problem::error(
                key.place(),
                "duplicate_key",
                format!("`{key}` stands here a second time; the first is in line {line}"),
            )
            .help("remove one of the two, or give one another name"),
        );
        return;
    }
    entries.push((key, node));
}
