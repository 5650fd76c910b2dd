//! `consign explain`: why a message goes where it goes, and what an event code means.

use crate::commands::message;
use crate::output::{CliError, Output, table};
use crate::problems;
use consign_config::Adapter;
use consign_pipeline::{Claim, Message, Outcome, Program};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

pub fn run(
    out: Output,
    subject: &str,
    text: Option<&str>,
    adapter: Option<&str>,
) -> Result<(), CliError> {
    let Some(text) = text else {
        return code(out, subject);
    };
    let plan = problems::plan(Path::new(subject))?;
    let message = message(text)?;
    let names: Vec<&str> = plan.adapters.iter().map(|a| a.name.as_str()).collect();
    let chosen = match adapter {
        Some(name) => plan
            .adapters
            .iter()
            .find(|a| a.name == name)
            .ok_or_else(|| {
                CliError::input(format!(
                    "{subject} has no adapter `{name}`; it has {}",
                    names.join(", ")
                ))
            })?,
        None => match plan.adapters.as_slice() {
            [only] => only,
            [] => return Err(CliError::input(format!("{subject} has no adapters"))),
            _ => {
                return Err(CliError::input(format!(
                    "{subject} has several adapters; choose one with --adapter: {}",
                    names.join(", ")
                )));
            }
        },
    };
    let config = plan
        .config
        .adapter(&chosen.name)
        .ok_or_else(|| CliError::failed("the adapter is not in its own configuration"))?;
    let explanation = explained(config, &chosen.program, &message);
    out.show(&explanation, words)
}

/// Every event code with its level and its title.
pub fn codes(out: Output) -> Result<(), CliError> {
    let all: Vec<Listed> = consign_ledger::Code::ALL
        .iter()
        .map(|code| Listed {
            code: code.name(),
            level: code.entry().level.name(),
            title: code.entry().title,
        })
        .collect();
    out.show(&all, |all| {
        let rows: Vec<Vec<String>> = all
            .iter()
            .map(|one| {
                vec![
                    one.code.to_owned(),
                    one.level.to_owned(),
                    one.title.to_owned(),
                ]
            })
            .collect();
        table(&["code", "level", "what happened"], &rows, "no codes")
    })
}

#[derive(Debug, Serialize)]
struct Listed {
    code: &'static str,
    level: &'static str,
    title: &'static str,
}

/// Which route claims a message, and why the others do not.
#[derive(Debug, Serialize)]
struct Explanation {
    /// One per route, in order.
    routes: Vec<RouteExplained>,
    /// What becomes of the message then.
    outcome: &'static str,
    /// In one sentence.
    what: String,
}

#[derive(Debug, Serialize)]
struct RouteExplained {
    route: String,
    claim: &'static str,
    why: String,
}

fn explained(config: &Adapter, program: &Program, message: &Message) -> Explanation {
    let key = routing_key(config, message);
    let routes = config
        .routes
        .iter()
        .zip(program.explain(message))
        .map(|(route, claim)| {
            let patterns: Vec<&str> = route.patterns.iter().map(|p| p.as_str()).collect();
            let patterns = patterns.join(", ");
            let (word, why) = match claim {
                Claim::Claimed => ("claimed", "claims the message".to_owned()),
                Claim::PatternMismatch => match &key {
                    Some(key) => (
                        "pattern_mismatch",
                        format!("no: the routing key `{key}` does not match {patterns}"),
                    ),
                    None => (
                        "pattern_mismatch",
                        format!(
                            "no: the message has no routing key, and the route wants {patterns}"
                        ),
                    ),
                },
                Claim::ConditionFalse => {
                    let condition = route
                        .when
                        .as_ref()
                        .map(ToString::to_string)
                        .unwrap_or_default();
                    (
                        "condition_false",
                        format!("no: its condition is false: {condition}"),
                    )
                }
                Claim::ConditionError(error) => (
                    "condition_error",
                    format!("no: its condition failed: {error}"),
                ),
                Claim::NotReached => (
                    "not_reached",
                    "not asked: an earlier route claimed the message".to_owned(),
                ),
            };
            RouteExplained {
                route: route.name.to_string(),
                claim: word,
                why,
            }
        })
        .collect();
    let (outcome, what) = ends(program, config, &program.evaluate(message).outcome);
    Explanation {
        routes,
        outcome,
        what,
    }
}

#[derive(Serialize)]
struct Page<'a> {
    code: &'a str,
    page: String,
}

fn code(out: Output, code: &str) -> Result<(), CliError> {
    match consign_ledger::events::page(code) {
        Some(page) => out.show(&Page { code, page }, |page| page.page.clone()),
        None => {
            let near = consign_ledger::events::nearest(code)
                .map(|near| format!("; did you mean `{near}`?"))
                .unwrap_or_default();
            let hint = if code.contains('.') || code.contains('/') {
                format!(
                    "to explain a message, give it after the configuration: consign explain {code} '{{\"body\": …}}'"
                )
            } else {
                format!("there is no event code `{code}`{near}")
            };
            Err(CliError::input(hint))
        }
    }
}

fn words(explanation: &Explanation) -> String {
    let mut out = String::new();
    for route in &explanation.routes {
        let _ = writeln!(out, "route {}: {}", route.route, route.why);
    }
    let _ = writeln!(out, "{}", explanation.what);
    out
}

/// What `key:` makes of the message, or the key it came with.
fn routing_key(config: &Adapter, message: &Message) -> Option<String> {
    let Some(expression) = &config.key else {
        return message.routing_key.clone();
    };
    let json = consign_pipeline::try_expression(expression, message).ok()?;
    match serde_json::from_str(&json).ok()? {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

fn ends(program: &Program, config: &Adapter, outcome: &Outcome) -> (&'static str, String) {
    match outcome {
        Outcome::NoRoute => (
            "no_route",
            "no route claims it: acknowledged and discarded".to_owned(),
        ),
        Outcome::TransformFailed {
            transform, message, ..
        } => {
            let number = transform.saturating_add(1);
            (
                "transform_failed",
                format!(
                    "transform {number} fails, so the message is acknowledged and discarded: {message}"
                ),
            )
        }
        Outcome::ProcessorFailed { message, .. } => (
            "processor_failed",
            format!("a processor fails, as a delivery would: {message}"),
        ),
        Outcome::Matched(matched) if matched.sends.is_empty() => (
            "no_send",
            "the route has no sends: acknowledged, nothing leaves".to_owned(),
        ),
        Outcome::Matched(matched) => ("accepted", writes(program, config, matched)),
    }
}

/// One line a write: where it goes and what its templates came to.
fn writes(program: &Program, config: &Adapter, matched: &consign_pipeline::Matched) -> String {
    let sends = program
        .route(matched.route)
        .map(|route| route.sends.as_slice())
        .unwrap_or_default();
    let operations = config
        .routes
        .get(matched.route)
        .map(|route| route.send.as_slice())
        .unwrap_or_default();
    let mut lines = Vec::new();
    for ((send, verdict), configured) in sends.iter().zip(&matched.sends).zip(operations) {
        let mut line = format!(
            "write {} by {} over {}",
            send.id, configured.operation, configured.connection
        );
        match verdict {
            Ok(rendered) => {
                for (template, text) in send.templates.iter().zip(&rendered.slots) {
                    let name = template.pointer.trim_start_matches('/').replace('/', ".");
                    let _ = write!(line, "; {name}: {text}");
                }
            }
            Err(error) => {
                let _ = write!(line, "; cannot be rendered: {}", error.message);
            }
        }
        lines.push(line);
    }
    lines.join("\n")
}
