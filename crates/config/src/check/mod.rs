//! Checks a node against a JSON schema and reports every fault with its place.
//!
//! The part of JSON schema that `schemars` writes is understood: types, properties, required keys,
//! enums and constants, ranges, lengths, patterns, `$ref`, `anyOf`, `oneOf` and `allOf`. What is
//! not understood restricts nothing; the plugin itself still refuses what it cannot read.

mod words;

use crate::model::{Secret, TemplateText};
use crate::nearest::{did_you_mean, one_of};
use crate::node::{Data, Node};
use crate::{ByteSize, DURATION_FORMAT, HumanDuration, Problem, SIZE_FORMAT, Text, secrets};
use serde_json::Value;
use words::{is_unit, is_word, number_at, range, word_of, words, wrong_pattern};

/// The schema format of a string in which `{{ … }}` is a template.
pub(crate) const TEMPLATE_FORMAT: &str = "consign-template";
/// The schema format of a string that names a file or folder.
pub(crate) const PATH_FORMAT: &str = "path";
/// The schema format of a string that is never shown.
pub(crate) const PASSWORD_FORMAT: &str = "password";
/// `$ref` chains longer than this are circles.
const MAX_REFERENCES: usize = 32;

/// What the check learns about a plugin's settings on the way.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) templates: Vec<TemplateText>,
    pub(crate) secrets: Vec<Secret>,
    pub(crate) passwords: Vec<String>,
    pub(crate) paths: Vec<String>,
}

/// Checks the whole file against the host's own schema.
pub(crate) fn host(root: &Node, problems: &mut Vec<Problem>) {
    let schema = crate::schema::host();
    let mut checker = Checker::new(&schema, false);
    checker.check(root, &schema, "", &mut Path::new("the configuration"));
    problems.append(&mut checker.problems);
}

/// Checks a plugin's settings against the plugin's schema.
pub(crate) fn settings(
    node: &Node,
    schema: &Value,
    what: &str,
    problems: &mut Vec<Problem>,
) -> Findings {
    let mut checker = Checker::new(schema, true);
    checker.check(node, schema, "", &mut Path::new(what));
    problems.append(&mut checker.problems);
    checker.findings
}

/// How messages name the value being checked: its key, or what the whole is.
struct Path<'a> {
    name: &'a str,
}

impl<'a> Path<'a> {
    fn new(name: &'a str) -> Self {
        Self { name }
    }
}

struct Checker<'s> {
    root: &'s Value,
    /// Templates and secrets are looked for in plugins' settings only.
    plugin: bool,
    problems: Vec<Problem>,
    findings: Findings,
}

impl<'s> Checker<'s> {
    fn new(root: &'s Value, plugin: bool) -> Self {
        Self {
            root,
            plugin,
            problems: Vec::new(),
            findings: Findings::default(),
        }
    }

    fn check(&mut self, node: &Node, schema: &'s Value, pointer: &str, path: &mut Path<'_>) {
        let schema = self.followed(schema);
        if let Some(branches) = branches(schema) {
            return self.check_branches(node, branches, pointer, path);
        }
        for part in list(schema, "allOf") {
            self.check(node, part, pointer, path);
        }
        if let Data::String(text) = &node.data
            && self.plugin
            && self.is_secret(text, schema, pointer)
        {
            return;
        }
        if !self.fits_type(node, schema) {
            return self.wrong_type(node, schema, path);
        }
        if let Some(expected) = schema.get("const")
            && node.to_json() != *expected
        {
            return self.wrong_type(node, schema, path);
        }
        if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
            && !allowed.contains(&node.to_json())
        {
            return self.wrong_type(node, schema, path);
        }
        match &node.data {
            Data::String(text) => self.string(text, schema, pointer, path),
            Data::Number(_) => self.number(node, schema, path),
            Data::List(items) => self.list(node, items, schema, pointer, path),
            Data::Map(entries) => self.map(node, entries, schema, pointer, path),
            Data::Null | Data::Bool(_) => {}
        }
    }

    /// The schema behind `$ref`s, where those stand alone.
    fn followed(&self, schema: &'s Value) -> &'s Value {
        let mut schema = schema;
        for _ in 0..MAX_REFERENCES {
            let target = schema
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|name| name.strip_prefix('#'))
                .and_then(|pointer| self.root.pointer(pointer));
            match target {
                Some(target) => schema = target,
                None => break,
            }
        }
        schema
    }

    fn check_branches(
        &mut self,
        node: &Node,
        branches: &'s [Value],
        pointer: &str,
        path: &mut Path<'_>,
    ) {
        let tried: Vec<(bool, bool, Checker<'s>)> = branches
            .iter()
            .map(|branch| {
                let branch = self.followed(branch);
                let mut checker = Checker::new(self.root, self.plugin);
                checker.check(node, branch, pointer, path);
                let fits = self.fits_type(node, branch) && !is_word(branch);
                (fits, self.names(node, branch), checker)
            })
            .collect();
        let ok = tried.iter().position(|(_, _, c)| c.problems.is_empty());
        // A mapping that names its kind (`type: x`) is judged as that kind; else, where only one
        // branch can hold such a value at all, its faults are the ones to tell.
        let named: Vec<usize> = positions(&tried, |(fits, named, _)| *fits && *named);
        let fitting: Vec<usize> = positions(&tried, |(fits, _, _)| *fits);
        let best = ok.or_else(|| match (named.as_slice(), fitting.as_slice()) {
            ([one], _) | (_, [one]) => Some(*one),
            (_, [_, ..]) if matches!(node.data, Data::Map(_)) => {
                fitting.iter().copied().min_by_key(|i| {
                    tried
                        .get(*i)
                        .map_or(usize::MAX, |(_, _, c)| c.problems.len())
                })
            }
            _ => None,
        });
        if ok.is_none()
            && named.is_empty()
            && fitting.len() > 1
            && let Some((key, value)) = self.kind_key(node, branches)
        {
            let words = branches
                .iter()
                .filter_map(|b| self.constant(b, key)?.as_str());
            let expected = one_of(words.clone());
            let help = value.text().and_then(|text| did_you_mean(text, words));
            return self.report(value, &Path::new(&format!("`{key}`")), &expected, help);
        }
        let chosen = best.and_then(|best| tried.into_iter().nth(best));
        match chosen {
            Some((_, _, mut checker)) => {
                self.problems.append(&mut checker.problems);
                self.findings.absorb(checker.findings);
            }
            None => {
                let expected = self.described_branches(branches);
                let words = branches.iter().filter_map(|b| word_of(self.followed(b)));
                let help = node.text().and_then(|text| did_you_mean(text, words));
                self.report(node, path, &expected, help);
            }
        }
    }

    /// The key by which branches are told apart (`type`), and what the mapping has there.
    fn kind_key<'n>(&self, node: &'n Node, branches: &'s [Value]) -> Option<(&'n str, &'n Node)> {
        node.entries()
            .iter()
            .find(|(key, _)| {
                let told = branches.iter().filter(|b| self.constant(b, key).is_some());
                told.count() > 1
            })
            .map(|(key, value)| (key.as_str(), value))
    }

    fn constant(&self, branch: &'s Value, key: &str) -> Option<&'s Value> {
        let schema = self.followed(branch).get("properties")?.get(key)?;
        self.followed(schema).get("const")
    }

    /// Whether a mapping holds the constants by which a branch is told from the others.
    fn names(&self, node: &Node, branch: &'s Value) -> bool {
        let Some(properties) = branch.get("properties").and_then(Value::as_object) else {
            return false;
        };
        let mut constants = properties
            .iter()
            .filter_map(|(name, schema)| Some((name, self.followed(schema).get("const")?)))
            .peekable();
        let required = list(branch, "required");
        if constants.peek().is_some() {
            return constants
                .all(|(name, constant)| node.get(name).is_some_and(|n| n.to_json() == *constant));
        }
        !required.is_empty()
            && required
                .iter()
                .filter_map(Value::as_str)
                .all(|name| node.get(name).is_some())
    }

    fn fits_type(&self, node: &Node, schema: &'s Value) -> bool {
        let fits = |name: &str| match (name, &node.data) {
            ("null", Data::Null)
            | ("boolean", Data::Bool(_))
            | ("number", Data::Number(_))
            | ("string", Data::String(_))
            | ("array", Data::List(_))
            | ("object", Data::Map(_)) => true,
            ("integer", Data::Number(_)) => {
                let value = node.to_json();
                value.is_i64() || value.is_u64()
            }
            // `linger: 0` and `config:` with nothing below read as they are meant.
            ("string", Data::Number(number)) => number == "0" && is_unit(schema),
            ("object", Data::Null) => true,
            _ => false,
        };
        match schema.get("type") {
            Some(Value::String(name)) => fits(name),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(fits),
            _ => *schema != Value::Bool(false),
        }
    }

    fn wrong_type(&mut self, node: &Node, schema: &'s Value, path: &Path<'_>) {
        let expected = self.described(schema);
        let help = match &node.data {
            Data::Bool(_) | Data::Number(_) | Data::Null if expected.contains("a text") => {
                Some("put it in quotes to make it a text".to_owned())
            }
            Data::String(text) => did_you_mean(text, words(schema)),
            _ => None,
        };
        self.report(node, path, &expected, help);
    }

    fn report(&mut self, node: &Node, path: &Path<'_>, expected: &str, help: Option<String>) {
        self.problems.push(
            Problem::error(
                &node.place,
                "wrong_type",
                format!(
                    "{}: expected {expected}, got {}",
                    path.name,
                    node.described()
                ),
            )
            .maybe_help(help),
        );
    }

    fn string(&mut self, text: &Text, schema: &'s Value, pointer: &str, path: &Path<'_>) {
        let format = schema.get("format").and_then(Value::as_str);
        if self.plugin {
            self.templates(text, format, pointer, path);
        }
        match format {
            Some(PASSWORD_FORMAT) => self.findings.passwords.push(pointer.to_owned()),
            Some(PATH_FORMAT) => self.findings.paths.push(pointer.to_owned()),
            _ => {}
        }
        let length = text.chars().count();
        let fault = match format {
            Some(DURATION_FORMAT) => text.parse::<HumanDuration>().err(),
            Some(SIZE_FORMAT) => text.parse::<ByteSize>().err(),
            _ => match (
                number_at(schema, "minLength"),
                number_at(schema, "maxLength"),
            ) {
                (Some(1.0), _) if length == 0 => {
                    Some("expected a text, got an empty one".to_owned())
                }
                (Some(min), _) if (length as f64) < min => {
                    Some(format!("expected at least {min} characters, got {length}"))
                }
                (_, Some(max)) if length as f64 > max => {
                    Some(format!("expected at most {max} characters, got {length}"))
                }
                _ => wrong_pattern(text, schema),
            },
        };
        if let Some(fault) = fault {
            self.problems.push(Problem::error(
                text.place(),
                "wrong_value",
                format!("{}: {fault}", path.name),
            ));
        }
    }

    fn templates(&mut self, text: &Text, format: Option<&str>, pointer: &str, path: &Path<'_>) {
        let Some(at) = text.find("{{") else { return };
        if format == Some(TEMPLATE_FORMAT)
            && text.contains("${")
            && !secrets::scan(text, pointer).0.is_empty()
        {
            self.problems.push(
                Problem::error(
                    text.place(),
                    "secret_in_template",
                    format!("{}: a secret and a template stand in one text", path.name),
                )
                .help("rendered texts are stored with the write, and secrets are not: keep them apart"),
            );
        } else if format == Some(TEMPLATE_FORMAT) {
            self.findings.templates.push(TemplateText {
                pointer: pointer.to_owned(),
                text: text.clone(),
            });
        } else {
            self.problems.push(
                Problem::error(
                    &text.place_at(at),
                    "no_template_here",
                    format!(
                        "{}: `{{{{` stands in a field that takes no template",
                        path.name
                    ),
                )
                .help("compute the value in a transform, or use a field that takes templates"),
            );
        }
    }

    /// Notes the secrets in a string; true when the string is one placeholder for a value that is
    /// no string, which is checked once it is known.
    fn is_secret(&mut self, text: &Text, schema: &'s Value, pointer: &str) -> bool {
        let (found, faults) = secrets::scan(text, pointer);
        self.problems.extend(faults);
        let is_whole = match found.as_slice() {
            [one] => secrets::is_whole(text, one),
            _ => false,
        };
        let wants_text = self.fits_type_named(schema, "string");
        self.findings
            .secrets
            .extend(found.into_iter().map(|secret| Secret {
                coerce: is_whole && !wants_text,
                ..secret
            }));
        is_whole && !wants_text
    }

    fn fits_type_named(&self, schema: &Value, wanted: &str) -> bool {
        match schema.get("type") {
            Some(Value::String(name)) => name == wanted,
            Some(Value::Array(names)) => names.iter().any(|name| name == wanted),
            _ => true,
        }
    }

    fn number(&mut self, node: &Node, schema: &'s Value, path: &Path<'_>) {
        if is_unit(schema) {
            return;
        }
        let value = node.to_json().as_f64().unwrap_or(f64::NAN);
        let (low, high) = range(schema);
        let exclusive = |key| number_at(schema, key);
        let too_low = low.is_some_and(|low| value < low)
            || exclusive("exclusiveMinimum").is_some_and(|low| value <= low);
        let too_high = high.is_some_and(|high| value > high)
            || exclusive("exclusiveMaximum").is_some_and(|high| value >= high);
        if too_low || too_high || value.is_nan() {
            let expected = self.described(schema);
            self.problems.push(Problem::error(
                &node.place,
                "out_of_range",
                format!(
                    "{}: expected {expected}, got {}",
                    path.name,
                    node.described()
                ),
            ));
        }
    }

    fn list(
        &mut self,
        node: &Node,
        items: &[Node],
        schema: &'s Value,
        pointer: &str,
        path: &Path<'_>,
    ) {
        let count = items.len() as f64;
        let fault = match (number_at(schema, "minItems"), number_at(schema, "maxItems")) {
            (Some(min), _) if count < min => Some(format!("at least {min}")),
            (_, Some(max)) if count > max => Some(format!("at most {max}")),
            _ => None,
        };
        if let Some(limit) = fault {
            self.problems.push(Problem::error(
                &node.place,
                "wrong_length",
                format!(
                    "{}: expected {limit} item{}, got {count}",
                    path.name,
                    if limit.ends_with(" 1") { "" } else { "s" }
                ),
            ));
        }
        if let Some(schema) = schema.get("items") {
            for (i, item) in items.iter().enumerate() {
                self.check(
                    item,
                    schema,
                    &format!("{pointer}/{i}"),
                    &mut Path::new(path.name),
                );
            }
        }
    }

    fn map(
        &mut self,
        node: &Node,
        entries: &[(Text, Node)],
        schema: &'s Value,
        pointer: &str,
        path: &Path<'_>,
    ) {
        let properties = schema.get("properties").and_then(Value::as_object);
        let others = schema.get("additionalProperties");
        for (key, value) in entries {
            let part = key.replace('~', "~0").replace('/', "~1");
            let below = format!("{pointer}/{part}");
            let name = format!("`{key}`");
            let known = properties.and_then(|p| p.get(key.as_str()));
            match (known, others) {
                (Some(schema), _) => self.check(value, schema, &below, &mut Path::new(&name)),
                (None, Some(Value::Bool(false))) => {
                    let known: Vec<&str> = properties
                        .map(|p| p.keys().map(String::as_str).collect())
                        .unwrap_or_default();
                    self.unknown_key(key, &known, path);
                }
                (None, Some(schema)) => {
                    self.check(value, schema, &below, &mut Path::new(&name));
                }
                (None, None) => {}
            }
        }
        for required in list(schema, "required").iter().filter_map(Value::as_str) {
            if node.get(required).is_none() {
                self.problems.push(Problem::error(
                    &node.place,
                    "missing_key",
                    format!("the key `{required}` is missing in {}", path.name),
                ));
            }
        }
    }

    fn unknown_key(&mut self, key: &Text, known: &[&str], path: &Path<'_>) {
        let help = did_you_mean(key, known.iter().copied()).or_else(|| match known {
            [] => Some("no key is known here".to_owned()),
            _ => Some(format!("known here: {}", one_of(known.iter().copied()))),
        });
        self.problems.push(
            Problem::error(
                key.place(),
                "unknown_key",
                format!("unknown key `{key}` in {}", path.name),
            )
            .maybe_help(help),
        );
    }
}

impl Findings {
    fn absorb(&mut self, other: Self) {
        self.templates.extend(other.templates);
        self.secrets.extend(other.secrets);
        self.passwords.extend(other.passwords);
        self.paths.extend(other.paths);
    }
}

fn branches(schema: &Value) -> Option<&[Value]> {
    ["anyOf", "oneOf"]
        .iter()
        .find_map(|key| schema.get(key).and_then(Value::as_array))
        .map(Vec::as_slice)
}

fn list<'v>(schema: &'v Value, key: &str) -> &'v [Value] {
    schema
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn positions<T>(items: &[T], wanted: impl Fn(&T) -> bool) -> Vec<usize> {
    items
        .iter()
        .enumerate()
        .filter(|(_, item)| wanted(item))
        .map(|(i, _)| i)
        .collect()
}
