//! Templates: `{{ … }}` in a function's settings, a VRL expression each, rendered once at
//! acceptance.

use crate::event::Event;
use crate::vrl_program::{Access, Compiled, Types};
use consign_config::{Problem, Text};
use vrl::path::OwnedValuePath;

/// A compiled template.
#[derive(Debug)]
pub(crate) struct Template {
    parts: Vec<Part>,
    source: Text,
}

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "compiled once and kept: there are as many as the configuration has"
)]
enum Part {
    Literal(String),
    Expression(Compiled, Text),
}

impl Template {
    /// Compiles a string that holds at least one `{{ … }}`.
    pub(crate) fn compile(
        source: &Text,
        types: &Types,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let before = problems.len();
        let mut parts = Vec::new();
        let mut at = 0;
        while let Some(open) = source
            .get(at..)
            .and_then(|rest| rest.find("{{"))
            .map(|i| at + i)
        {
            parts.push(Part::Literal(
                source.get(at..open).unwrap_or_default().to_owned(),
            ));
            let inner = open + 2;
            let Some(length) = closing(source.get(inner..).unwrap_or_default()) else {
                problems.push(Problem::error(
                    &source.place_at(open),
                    "template",
                    "this `{{` has no `}}`",
                ));
                return None;
            };
            let expression = source.part(inner..inner + length);
            if expression.trim().is_empty() {
                problems.push(Problem::error(
                    &source.place_at(open),
                    "template",
                    "this template is empty: expected a VRL expression such as `.body.id`",
                ));
            } else if let Some(compiled) = Compiled::new(&expression, Access::Read, types, problems)
            {
                let kind = compiled.kind();
                if kind.is_null() || kind.is_undefined() {
                    problems.push(Problem::error(
                        &expression.place_at(0),
                        "template",
                        "this template is always null",
                    ));
                }
                parts.push(Part::Expression(compiled, expression));
            }
            at = inner + length + 2;
        }
        parts.push(Part::Literal(
            source.get(at..).unwrap_or_default().to_owned(),
        ));
        (problems.len() == before).then(|| Self {
            parts,
            source: source.clone(),
        })
    }

    pub(crate) fn source(&self) -> &Text {
        &self.source
    }

    /// Functions in it that answer differently each time.
    pub(crate) fn nondeterministic(&self) -> Vec<&'static str> {
        self.expressions()
            .flat_map(|compiled| compiled.nondeterministic.iter().copied())
            .collect()
    }

    pub(crate) fn reads(&self) -> impl Iterator<Item = &OwnedValuePath> {
        self.expressions().flat_map(|compiled| &compiled.reads)
    }

    fn expressions(&self) -> impl Iterator<Item = &Compiled> {
        self.parts.iter().filter_map(|part| match part {
            Part::Literal(_) => None,
            Part::Expression(compiled, _) => Some(compiled),
        })
    }

    /// Renders the template. A null or an error is a failure, never an empty text.
    pub(crate) fn render(&self, event: &mut Event<'_>) -> Result<String, String> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.push_str(text),
                Part::Expression(compiled, source) => {
                    let value = compiled
                        .run(event)
                        .map_err(|why| format!("`{{{{{source}}}}}`: {why}"))?;
                    let text = event
                        .text(&value)
                        .map_err(|why| format!("`{{{{{source}}}}}` {why}"))?;
                    out.push_str(&text);
                }
            }
        }
        Ok(out)
    }
}

/// The length of an expression up to its `}}`; braces of objects and quotes are skipped over.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut quote: Option<char> = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '{') => depth += 1,
            (None, '}') if depth > 0 => depth -= 1,
            (None, '}') if text.get(at..).is_some_and(|rest| rest.starts_with("}}")) => {
                return Some(at);
            }
            _ => {}
        }
    }
    None
}
