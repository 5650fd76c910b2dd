//! Messages with expected outcomes, for `consign test`; and messages alone, for `consign explain`.
//!
//! A file of cases is a YAML list:
//!
//! ```yaml
//! - name: a payment is billed
//!   adapter: payments
//!   message:
//!     headers: { x-tenant: north }
//!     body: { type: payment.completed, amount: 1.10, invoice: i-1 }
//!   expect:
//!     outcome: matched
//!     route: completed
//!     body: { type: payment.completed, amount: 1.10, invoice: i-1, amount_cents: 110 }
//!     sends:
//!       billing: {}
//!       receipt: { templates: { /subject: receipts.i-1 } }
//! ```
//!
//! What `expect` names is compared, all of it; what it leaves out is not. Numbers are compared by
//! their digits, at any length. [`bless`] writes what came out where it differs from what was
//! expected.

mod bless;
mod compare;
mod read;

pub use bless::bless;
pub use read::{read, read_message};

use crate::{Message, Outcome, Program, Verdict};
use consign_config::yaml::{Data, Node};
use consign_config::{Place, Problem, Text, did_you_mean, one_of};

/// A file of cases.
#[derive(Debug, Clone)]
pub struct Suite {
    /// In the order of the file.
    pub cases: Vec<Case>,
}

/// One message and what is expected of it.
#[derive(Debug, Clone)]
pub struct Case {
    /// What it shows.
    pub name: Text,
    /// The adapter it goes to.
    pub adapter: Text,
    /// What the source hands over.
    pub message: Message,
    /// What should come out; a case without it fails until it is blessed.
    pub expect: Option<Node>,
    /// Where the case begins.
    pub place: Place,
    layout: read::Layout,
}

/// What came of a case.
#[derive(Debug, Clone)]
pub struct CaseResult {
    /// The case's name.
    pub name: String,
    /// Where the case begins.
    pub place: Place,
    /// Nothing when what came out is what was expected.
    pub differences: Vec<Difference>,
    /// Everything that came out, in the shape of `expect`.
    pub actual: Node,
}

/// One field that is not as expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Where it is expected, in the file of cases.
    pub place: Place,
    /// The field (`body.items[0].price`).
    pub field: String,
    /// As JSON; nothing when the field should not be there.
    pub expected: Option<String>,
    /// As JSON; nothing when the field is not there.
    pub actual: Option<String>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(
            f,
            "{}: {}: expected {}, got {}",
            self.place,
            self.field,
            shown(&self.expected),
            shown(&self.actual)
        )
    }
}

/// Runs every case. Steps that plugins carry out are skipped: they leave the message as it is.
///
/// # Errors
/// A case names an adapter that `program` does not know; `adapters` are the known ones.
pub fn run<'p>(
    suite: &Suite,
    adapters: &[&str],
    program: impl Fn(&str) -> Option<&'p Program>,
) -> Result<Vec<CaseResult>, Vec<Problem>> {
    let mut results = Vec::new();
    let mut problems = Vec::new();
    for case in &suite.cases {
        let Some(program) = program(&case.adapter) else {
            let help = did_you_mean(&case.adapter, adapters.iter().copied())
                .unwrap_or_else(|| format!("known: {}", one_of(adapters.iter().copied())));
            problems.push(
                Problem::error(
                    case.adapter.place(),
                    "unknown_name",
                    format!("unknown adapter `{}`", case.adapter),
                )
                .help(help),
            );
            continue;
        };
        let actual = outcome_tree(program, &program.evaluate(&case.message), &case.place);
        let differences = match &case.expect {
            Some(expect) => compare::against(expect, &actual),
            None => vec![Difference {
                place: case.place.clone(),
                field: "expect".to_owned(),
                expected: None,
                actual: Some(compare::json(&actual)),
            }],
        };
        results.push(CaseResult {
            name: case.name.as_str().to_owned(),
            place: case.place.clone(),
            differences,
            actual,
        });
    }
    if problems.is_empty() {
        Ok(results)
    } else {
        Err(problems)
    }
}

/// Everything a message came to, as a tree in the shape of `expect`.
fn outcome_tree(program: &Program, verdict: &Verdict, place: &Place) -> Node {
    let tree = Tree(place);
    let name = |route: usize| program.route(route).map_or("", |route| &route.name);
    let mut out = Vec::new();
    match &verdict.outcome {
        Outcome::NoRoute => out.push(("outcome", tree.text("no_route"))),
        Outcome::TransformFailed {
            route,
            transform,
            message,
            ..
        } => {
            out.push(("outcome", tree.text("transform_failed")));
            out.push(("route", tree.text(name(*route))));
            out.push(("transform", tree.number(*transform)));
            out.push(("error", tree.text(message)));
        }
        Outcome::ProcessorFailed { route, message, .. } => {
            out.push(("outcome", tree.text("processor_failed")));
            out.push(("route", tree.text(name(*route))));
            out.push(("error", tree.text(message)));
        }
        Outcome::Matched(matched) => {
            let is_sent = !matched.sends.is_empty();
            let outcome = if is_sent { "matched" } else { "no_send" };
            out.push(("outcome", tree.text(outcome)));
            out.push(("route", tree.text(name(matched.route))));
            out.extend(tree.message(&matched.message));
            let sends = program.route(matched.route).map_or(&[][..], |r| &r.sends);
            let sends = sends.iter().zip(&matched.sends).map(|(send, rendered)| {
                let fields = match rendered {
                    Err(failed) => vec![("failed", tree.text(&failed.message))],
                    Ok(rendered) if rendered.slots.is_empty() => vec![],
                    Ok(rendered) => {
                        let named = send.templates.iter().zip(&rendered.slots);
                        let named = named.map(|(t, slot)| (t.pointer.as_str(), tree.text(slot)));
                        vec![("templates", tree.map(named))]
                    }
                };
                (send.id.as_str(), tree.map(fields))
            });
            if is_sent {
                out.push(("sends", tree.map(sends)));
            }
        }
    }
    if !verdict.condition_errors.is_empty() {
        let errors = verdict.condition_errors.iter();
        let errors = errors.map(|error| (name(error.route), tree.text(&error.message)));
        out.push(("condition_errors", tree.map(errors)));
    }
    if let Some(error) = &verdict.key_error {
        out.push(("key_error", tree.text(error)));
    }
    tree.map(out)
}

/// Builds nodes that all stand at one place.
struct Tree<'p>(&'p Place);

impl Tree<'_> {
    fn node(&self, data: Data) -> Node {
        Node {
            place: self.0.clone(),
            data,
        }
    }

    fn text(&self, text: &str) -> Node {
        self.node(Data::String(Text::new(text, self.0)))
    }

    fn number(&self, number: usize) -> Node {
        self.node(Data::Number(number.to_string()))
    }

    fn map<'a>(&self, entries: impl IntoIterator<Item = (&'a str, Node)>) -> Node {
        let entries = entries.into_iter();
        let entries = entries.map(|(name, node)| (Text::new(name, self.0), node));
        self.node(Data::Map(entries.collect()))
    }

    /// Bytes as a text; what is not UTF-8 shows as `\u{fffd}`.
    fn bytes(&self, bytes: &[u8]) -> Node {
        self.text(&String::from_utf8_lossy(bytes))
    }

    fn message(&self, message: &Message) -> Vec<(&'static str, Node)> {
        let mut out = Vec::new();
        if let Some(key) = &message.routing_key {
            out.push(("key", self.text(key)));
        }
        if let Some(content_type) = &message.content_type {
            out.push(("content_type", self.text(content_type)));
        }
        if !message.headers.is_empty() {
            out.push(("headers", self.headers(message)));
        }
        let body = crate::json::Document::parse(&message.body)
            .filter(|document| document.is_container())
            .map_or_else(|| self.bytes(&message.body), |d| d.to_tree(self.0));
        out.push(("body", body));
        out
    }

    fn headers(&self, message: &Message) -> Node {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in &message.headers {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        self.map(names.into_iter().map(|name| {
            let mut values: Vec<Node> = message
                .headers
                .iter()
                .filter(|(other, _)| other == name)
                .map(|(_, value)| self.bytes(value))
                .collect();
            let one = (values.len() == 1).then(|| values.pop()).flatten();
            (name, one.unwrap_or_else(|| self.node(Data::List(values))))
        }))
    }
}
