//! Secrets: `${env:NAME}` and `${file:PATH}` in plugins' settings and in the console's token.
//!
//! They stay placeholders through every check and every view; [`Config::with_secrets`] fills them
//! in for a run. `$${` stands for a literal `${`.

use crate::model::{Secret, SecretKind};
use crate::node::{Data, plain_scalar};
use crate::{Config, Place, Problem, Settings, Text};
use serde_json::Value;
use std::path::Path;

/// Where secrets are read from. Injected, so that nothing here touches the machine.
pub trait Environment {
    /// The value of an environment variable, `None` when it is not set.
    fn variable(&self, name: &str) -> Option<String>;

    /// The content of a secret's file.
    ///
    /// # Errors
    /// Why it cannot be read, in words.
    fn file(&self, path: &Path) -> Result<String, String>;
}

/// An environment in which nothing is set.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEnvironment;

impl Environment for NoEnvironment {
    fn variable(&self, _: &str) -> Option<String> {
        None
    }

    fn file(&self, _: &Path) -> Result<String, String> {
        Err("no file is read here".to_owned())
    }
}

/// One part of a string with placeholders.
enum Part<'t> {
    Literal(&'t str),
    /// A placeholder: where it begins and what stands between the braces.
    Placeholder(usize, &'t str),
    /// `${` without an end, and where.
    Open(usize),
}

fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut from = 0;
    while let Some(at) = text
        .get(from..)
        .and_then(|rest| rest.find("${"))
        .map(|i| from + i)
    {
        let before = text.get(from..at).unwrap_or_default();
        if let Some(before) = before.strip_suffix('$') {
            parts.push(Part::Literal(before));
            parts.push(Part::Literal("${"));
            from = at + 2;
            continue;
        }
        parts.push(Part::Literal(before));
        let inside = text.get(at + 2..).unwrap_or_default();
        match inside.find('}') {
            Some(end) => {
                parts.push(Part::Placeholder(at, inside.get(..end).unwrap_or_default()));
                from = at + 2 + end + 1;
            }
            None => {
                parts.push(Part::Open(at));
                parts.push(Part::Literal(text.get(at..).unwrap_or_default()));
                return parts;
            }
        }
    }
    parts.push(Part::Literal(text.get(from..).unwrap_or_default()));
    parts
}

fn read(inside: &str) -> Option<(SecretKind, &str)> {
    let (kind, name) = inside.split_once(':')?;
    let kind = match kind {
        "env" => SecretKind::Env,
        "file" => SecretKind::File,
        _ => return None,
    };
    (!name.trim().is_empty()).then_some((kind, name.trim()))
}

/// The secrets a string names, and what is wrong with how it names them.
pub(crate) fn scan(text: &Text, pointer: &str) -> (Vec<Secret>, Vec<Problem>) {
    let mut secrets = Vec::new();
    let mut faults = Vec::new();
    for part in parts(text) {
        match part {
            Part::Literal(_) => {}
            Part::Placeholder(at, inside) => match read(inside) {
                Some((kind, name)) => secrets.push(Secret {
                    pointer: pointer.to_owned(),
                    kind,
                    name: name.to_owned(),
                    place: text.place_at(at),
                    coerce: false,
                }),
                None => faults.push(fault(text, at, &format!("${{{inside}}}"))),
            },
            Part::Open(at) => faults.push(fault(text, at, "${")),
        }
    }
    (secrets, faults)
}

fn fault(text: &Text, at: usize, found: &str) -> Problem {
    Problem::error(
        &text.place_at(at),
        "unknown_secret",
        format!("expected `${{env:NAME}}` or `${{file:PATH}}`, got `{found}`"),
    )
    .help("write `$${` for a literal `${`")
}

/// Whether a string is this one placeholder and nothing else.
pub(crate) fn is_whole(text: &str, _: &Secret) -> bool {
    let significant: Vec<Part<'_>> = parts(text)
        .into_iter()
        .filter(|part| !matches!(part, Part::Literal("")))
        .collect();
    matches!(significant.as_slice(), [Part::Placeholder(..)])
}

struct Filler<'a> {
    folder: &'a Path,
    environment: &'a dyn Environment,
    problems: Vec<Problem>,
}

impl Filler<'_> {
    fn value(&mut self, kind: SecretKind, name: &str, place: &Place) -> Option<String> {
        let found = match kind {
            SecretKind::Env => self
                .environment
                .variable(name)
                .ok_or_else(|| format!("the environment variable `{name}` is not set")),
            SecretKind::File => self
                .environment
                .file(&self.folder.join(name))
                .map(|text| text.strip_suffix('\n').map_or(text.clone(), str::to_owned))
                .map_err(|why| format!("the secret's file `{name}` cannot be read: {why}")),
        };
        match found {
            Ok(value) => Some(value),
            Err(message) => {
                self.problems
                    .push(Problem::warning(place, "secret_unset", message));
                None
            }
        }
    }

    /// The string with its placeholders filled in; those that are unset stay as they are.
    fn fill(&mut self, text: &str, place: &Place) -> String {
        let mut out = String::with_capacity(text.len());
        for part in parts(text) {
            match part {
                Part::Literal(literal) => out.push_str(literal),
                Part::Open(_) => {}
                Part::Placeholder(_, inside) => {
                    let value = read(inside).and_then(|(kind, name)| self.value(kind, name, place));
                    match value {
                        Some(value) => out.push_str(&value),
                        None => {
                            out.push_str("${");
                            out.push_str(inside);
                            out.push('}');
                        }
                    }
                }
            }
        }
        out
    }

    fn settings(&mut self, settings: &mut Settings) {
        let mut done: Vec<&str> = Vec::new();
        for secret in &settings.secrets {
            if done.contains(&secret.pointer.as_str()) {
                continue;
            }
            done.push(&secret.pointer);
            let Some(slot) = settings.value.pointer_mut(&secret.pointer) else {
                continue;
            };
            let Value::String(text) = &*slot else {
                continue;
            };
            let before = self.problems.len();
            let filled = self.fill(text, &secret.place);
            if !secret.coerce || self.problems.len() > before {
                *slot = Value::String(filled);
                continue;
            }
            match plain_scalar(filled.trim()) {
                Data::Number(_) | Data::Bool(_) => {
                    let node = crate::node::Node {
                        place: secret.place.clone(),
                        data: plain_scalar(filled.trim()),
                    };
                    *slot = node.to_json();
                }
                _ => self.problems.push(Problem::error(
                    &secret.place,
                    "wrong_type",
                    format!(
                        "`{}` was expected to hold a number, true or false, and holds a text",
                        secret.name
                    ),
                )),
            }
        }
        for pointer in &settings.open_paths {
            if let Some(Value::String(path)) = settings.value.pointer_mut(pointer)
                && !path.starts_with("${")
            {
                *path = crate::rules::resolved_path(self.folder, path);
            }
        }
        // `$${` in a string without a secret still stands for `${`.
        unescape(&mut settings.value);
    }
}

fn unescape(value: &mut Value) {
    match value {
        Value::String(text) if text.contains("$${") => *text = text.replace("$${", "${"),
        Value::Array(items) => items.iter_mut().for_each(unescape),
        Value::Object(entries) => entries.values_mut().for_each(unescape),
        _ => {}
    }
}

impl Config {
    /// The configuration with every secret filled in, and a warning for each that is unset and so
    /// stays a placeholder. `run` refuses to start over one; `check` lists them.
    #[must_use]
    pub fn with_secrets(&self, environment: &dyn Environment) -> (Self, Vec<Problem>) {
        let mut config = self.clone();
        let folder = self.folder.clone();
        let mut filler = Filler {
            folder: &folder,
            environment,
            problems: Vec::new(),
        };
        if let Some(console) = &mut config.console
            && let Some(token) = &console.token
        {
            let filled = filler.fill(token, token.place());
            console.token = Some(Text::new(filled, token.place()));
        }
        config.each_settings(|settings| filler.settings(settings));
        let mut problems = filler.problems;
        crate::in_order(&mut problems);
        (config, problems)
    }

    /// Every secret the configuration names.
    #[must_use]
    pub fn secrets(&self) -> Vec<Secret> {
        let mut secrets: Vec<Secret> = Vec::new();
        if let Some(token) = self.console.as_ref().and_then(|c| c.token.as_ref()) {
            secrets.extend(scan(token, "").0);
        }
        let mut copy = self.clone();
        copy.each_settings(|settings| secrets.append(&mut settings.secrets));
        secrets
    }

    /// The configuration as JSON for a person: defaults filled in, secrets as placeholders, other
    /// passwords as `***`.
    #[must_use]
    pub fn redacted(&self) -> Value {
        let mut copy = self.clone();
        copy.each_settings(|settings| {
            for pointer in &settings.passwords {
                if let Some(slot) = settings.value.pointer_mut(pointer) {
                    redact(slot);
                }
            }
        });
        if let Some(console) = &mut copy.console
            && let Some(token) = &mut console.token
            && scan(token, "").0.is_empty()
        {
            *token = Text::new("***", token.place());
        }
        serde_json::to_value(&copy).unwrap_or(Value::Null)
    }

    /// Visits every plugin's settings in the configuration.
    pub(crate) fn each_settings(&mut self, mut visit: impl FnMut(&mut Settings)) {
        use crate::{OnFailure, Transform};
        for connection in &mut self.connections {
            visit(&mut connection.config);
        }
        let handler = |on_failure: &mut Option<OnFailure>, visit: &mut dyn FnMut(&mut Settings)| {
            if let Some(on_failure) = on_failure {
                visit(&mut on_failure.config);
            }
        };
        for adapter in &mut self.adapters {
            visit(&mut adapter.source.config);
            handler(&mut adapter.on_failure, &mut visit);
            for route in &mut adapter.routes {
                handler(&mut route.on_failure, &mut visit);
                for transform in &mut route.transforms {
                    if let Transform::Plugin { config, .. } = transform {
                        visit(config);
                    }
                }
                for processor in &mut route.processors {
                    visit(&mut processor.config);
                }
                for send in &mut route.send {
                    visit(&mut send.config);
                    handler(&mut send.on_failure, &mut visit);
                }
            }
        }
    }
}

/// Hides a password, unless it is nothing but a placeholder, which tells nothing.
fn redact(slot: &mut Value) {
    let is_placeholder = slot.as_str().is_some_and(|text| {
        let parts = parts(text);
        let literal = parts
            .iter()
            .any(|part| matches!(part, Part::Literal(text) if !text.is_empty()));
        !literal && parts.iter().any(|p| matches!(p, Part::Placeholder(..)))
    });
    if !is_placeholder {
        *slot = Value::String("***".to_owned());
    }
}
