//! VRL, compiled once and run over [`Event`]s, with errors that point into the YAML.

use crate::event::{Event, FIELDS, Fields};
use consign_config::{Place, Problem, Text, did_you_mean, one_of};
use std::sync::LazyLock;
use vrl::compiler::runtime::{Runtime, Terminate};
use vrl::compiler::state::{ExternalEnv, LocalEnv};
use vrl::compiler::{
    CompileConfig, ExpressionError, Function, Program, TimeZone, TypeState, compile_with_state,
};
use vrl::path::{OwnedSegment, OwnedTargetPath, OwnedValuePath, PathPrefix};
use vrl::value::kind::Collection;
use vrl::value::{Kind, Value};

/// Functions that reach outside the message. The pipeline does no I/O.
const FORBIDDEN: [&str; 9] = [
    "dns_lookup",
    "get_env_var",
    "get_hostname",
    "get_secret",
    "get_timezone_name",
    "http_request",
    "log",
    "remove_secret",
    "reverse_dns",
];
/// Functions that answer differently each time.
const NONDETERMINISTIC: [&str; 7] = [
    "now",
    "random_bool",
    "random_bytes",
    "random_float",
    "random_int",
    "uuid_v4",
    "uuid_v7",
];

/// Stands among the nondeterministic functions for a program that reads the message's name, which
/// differs each time a message is handed over whose source does not name it.
pub(crate) const MESSAGE_ID: &str = ".id";

static FUNCTIONS: LazyLock<Vec<Box<dyn Function>>> = LazyLock::new(|| {
    vrl::stdlib::all()
        .into_iter()
        .filter(|function| !FORBIDDEN.contains(&function.identifier()))
        .collect()
});

/// The same on every machine, whatever its clock is set to.
static UTC: LazyLock<TimeZone> = LazyLock::new(|| TimeZone::parse("UTC").unwrap_or_default());

/// What a program may do with the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Change,
}

/// One compiled program.
#[derive(Debug)]
pub(crate) struct Compiled {
    program: Program,
    fields: Fields,
    /// Functions in it that answer differently each time, and [`MESSAGE_ID`] where it is read.
    pub(crate) nondeterministic: Vec<&'static str>,
    pub(crate) reads: Vec<OwnedValuePath>,
    pub(crate) writes: Vec<OwnedValuePath>,
}

/// What the compiler knows about the message's types at a point of a route.
#[derive(Debug, Clone)]
pub(crate) struct Types(ExternalEnv);

impl Types {
    /// A message as it comes from a source.
    pub(crate) fn of_message() -> Self {
        let header = Kind::bytes().or_array(Collection::from_unknown(Kind::bytes()));
        let fields = [
            ("body", json_kind()),
            ("headers", Kind::object(Collection::from_unknown(header))),
            ("id", Kind::bytes()),
            ("key", Kind::bytes()),
            ("source", Kind::object(Collection::any())),
            ("time", Kind::timestamp()),
        ];
        let fields: std::collections::BTreeMap<_, _> = fields
            .into_iter()
            .map(|(name, kind)| (name.into(), kind))
            .collect();
        Self(ExternalEnv::new_with_kind(
            Kind::object(fields),
            Kind::object(Collection::empty()),
        ))
    }
}

fn json_kind() -> Kind {
    Kind::any().without_undefined()
}

impl Compiled {
    /// Compiles a program. Faults are added to `problems`, with their places in the YAML.
    pub(crate) fn new(
        source: &Text,
        access: Access,
        types: &Types,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let mut config = CompileConfig::default();
        match access {
            Access::Read => config.set_read_only(),
            Access::Change => {
                for field in ["id", "source", "time"] {
                    let path = OwnedValuePath::single_field(field);
                    config.set_read_only_path(OwnedTargetPath::event(path), true);
                }
                config.set_read_only_path(OwnedTargetPath::metadata_root(), true);
            }
        }
        let state = TypeState {
            local: LocalEnv::default(),
            external: types.0.clone(),
        };
        let result = match compile_with_state(source, &FUNCTIONS, &state, config) {
            Ok(result) => result,
            Err(diagnostics) => {
                problems.extend(
                    diagnostics
                        .iter()
                        .filter(|d| d.is_problem())
                        .map(|d| told(source, access, d)),
                );
                return None;
            }
        };
        let info = result.program.info();
        let mut fields = Fields::default();
        let before = problems.len();
        for path in info.target_queries.iter().chain(&info.target_assignments) {
            match top_field(path) {
                Top::Root => fields = Fields::ALL,
                Top::Field(name) => fields.add(name),
                Top::Unknown(name) => unknown_field(source, name, problems),
                Top::Metadata => problems.push(Problem::error(
                    &place_of(source, "%"),
                    "vrl_field",
                    "a message has no metadata (`%`)",
                )),
            }
        }
        if problems.len() > before {
            return None;
        }
        let reads_id = info
            .target_queries
            .iter()
            .any(|path| matches!(top_field(path), Top::Root | Top::Field("id")));
        let inside = |paths: &[OwnedTargetPath]| paths.iter().map(|p| p.path.clone()).collect();
        Some(Self {
            fields,
            nondeterministic: calls(source)
                .filter_map(|name| NONDETERMINISTIC.iter().find(|n| **n == name))
                .copied()
                .chain(reads_id.then_some(MESSAGE_ID))
                .collect(),
            reads: inside(&info.target_queries),
            writes: inside(&info.target_assignments),
            program: result.program,
        })
    }

    /// The type of what the program evaluates to.
    pub(crate) fn kind(&self) -> Kind {
        self.program.final_type_info().result.kind().clone()
    }

    /// What is known about the message after the program has run.
    pub(crate) fn types_after(&self) -> Types {
        Types(self.program.final_type_info().state.external)
    }

    /// Runs the program over a message.
    ///
    /// # Errors
    /// What went wrong, in one line.
    pub(crate) fn run(&self, event: &mut Event<'_>) -> Result<Value, String> {
        event.load(self.fields);
        let mut runtime = Runtime::default();
        runtime
            .resolve(event, &self.program, &UTC)
            .map_err(|terminate| match terminate {
                Terminate::Abort(ExpressionError::Abort { message, .. }) => match message {
                    Some(message) => format!("aborted: {message}"),
                    None => "aborted".to_owned(),
                },
                Terminate::Abort(error) | Terminate::Error(error) => one_line(&error.to_string()),
                Terminate::Interrupted => "interrupted".to_owned(),
            })
    }
}

enum Top<'p> {
    Root,
    Field(&'p str),
    Unknown(&'p str),
    Metadata,
}

fn top_field(path: &OwnedTargetPath) -> Top<'_> {
    if path.prefix == PathPrefix::Metadata {
        return Top::Metadata;
    }
    match path.path.segments.first() {
        None => Top::Root,
        Some(OwnedSegment::Field(name)) if FIELDS.contains(&name.as_str()) => Top::Field(name),
        Some(OwnedSegment::Field(name)) => Top::Unknown(name),
        Some(OwnedSegment::Index(_)) => Top::Unknown("[…]"),
    }
}

fn unknown_field(source: &Text, name: &str, problems: &mut Vec<Problem>) {
    let known = FIELDS.map(|field| format!("`.{field}`")).join(", ");
    let help = did_you_mean(name, FIELDS).map_or_else(
        || format!("fields of the body are under it: `.body.{name}`"),
        |guess| guess.replace('`', "`.").replacen("`.?", "`?", 1),
    );
    problems.push(
        Problem::error(
            &place_of(source, &format!(".{name}")),
            "vrl_field",
            format!("a message has no field `.{name}`: it has {known}"),
        )
        .help(help),
    );
}

fn place_of(source: &Text, part: &str) -> Place {
    // The first mention that is not the end of a longer path (`.body.amount` for `.amount`).
    let found = source.match_indices(part).find(|(at, _)| {
        let before = source.get(..*at).and_then(|b| b.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '"' | '.'))
    });
    found.map_or_else(|| source.place().clone(), |(at, _)| source.place_at(at))
}

/// A compiler's diagnostic as one problem.
fn told(source: &Text, access: Access, diagnostic: &vrl::diagnostic::Diagnostic) -> Problem {
    let label = diagnostic
        .labels
        .iter()
        .find(|label| label.primary)
        .or(diagnostic.labels.first());
    let place = label.map_or_else(
        || source.place().clone(),
        |label| source.place_at(label.span.start()),
    );
    let mut message = format!("VRL: {}", one_line(&diagnostic.message));
    let labels: Vec<String> = diagnostic
        .labels
        .iter()
        .map(|label| one_line(&label.message))
        .filter(|label| !label.is_empty() && *label != diagnostic.message)
        .collect();
    if !labels.is_empty() {
        message.push_str(&format!(" ({})", labels.join("; ")));
    }
    let help = match diagnostic.code {
        _ if message.contains("read-only") && access == Access::Read && assigns(source) => {
            Some(ASSIGNS.to_owned())
        }
        _ if message.contains("read-only") => Some(
            "`.id`, `.time` and `.source` are never changed, and a condition, a key and a template change nothing: use a transform for `.body`, `.headers` and `.key`"
                .to_owned(),
        ),
        100 | 103 | 110 => Some(
            "say what holds when it fails, `(… ?? default)`, or let it fail with `function!(…)`"
                .to_owned(),
        ),
        105 => forbidden(source),
        _ => None,
    };
    Problem::error(&place, "vrl", message).maybe_help(help)
}

/// What to do about an `=` where nothing can be assigned.
pub(crate) const ASSIGNS: &str =
    "`=` assigns a value, and nothing is changed here: to compare, write `==`";

/// Whether a program has a lone `=` outside of texts and comments: an assignment.
pub(crate) fn assigns(source: &str) -> bool {
    let mut rest = source;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let after = rest
            .get(c.len_utf8()..)
            .and_then(|rest| rest.chars().next());
        if c == '=' && !"=!<>".contains(before) && !matches!(after, Some('=' | '>' | '~')) {
            return true;
        }
        before = c;
        rest = rest.get(step(rest, c)..).unwrap_or_default();
    }
    false
}

fn forbidden(source: &str) -> Option<String> {
    calls(source)
        .find(|name| FORBIDDEN.contains(name))
        .map(|name| format!("`{name}` reaches outside the message and is not available here"))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Names of the functions a program calls: an identifier before `(` or `!(`, outside of texts and
/// comments.
fn calls(source: &str) -> impl Iterator<Item = &str> {
    let mut rest = source;
    let mut names = Vec::new();
    while let Some(c) = rest.chars().next() {
        let skip = match c {
            c if c.is_ascii_alphabetic() || c == '_' => {
                let end = rest
                    .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                    .unwrap_or(rest.len());
                let after = rest.get(end..).unwrap_or_default();
                if after.starts_with('(') || after.starts_with("!(") {
                    names.extend(rest.get(..end));
                }
                end
            }
            c => step(rest, c),
        };
        rest = rest.get(skip..).unwrap_or_default();
    }
    names.into_iter()
}

/// How far to the next character of a program that is neither in a text nor in a comment; `c` is the
/// first of `rest`.
fn step(rest: &str, c: char) -> usize {
    match c {
        '#' => rest.find('\n').unwrap_or(rest.len()),
        '"' | '\'' => quoted(rest, c),
        c => c.len_utf8(),
    }
}

/// The length of a quoted text, its quotes included.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// What a kind is, in words a person reads.
pub(crate) fn described(kind: &Kind) -> String {
    let mut names = Vec::new();
    for (is, name) in [
        (kind.contains_bytes(), "a text"),
        (kind.contains_integer(), "an integer"),
        (kind.contains_float(), "a float"),
        (kind.contains_boolean(), "a boolean"),
        (kind.contains_timestamp(), "a timestamp"),
        (kind.contains_regex(), "a regular expression"),
        (kind.contains_object(), "an object"),
        (kind.contains_array(), "an array"),
        (kind.contains_null() || kind.contains_undefined(), "null"),
    ] {
        if is {
            names.push(name);
        }
    }
    match names.as_slice() {
        names if names.len() > 6 => "a value of any type".to_owned(),
        [] => "nothing".to_owned(),
        _ => one_of(names.iter().copied()).replace('`', ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_outside_of_texts_and_comments() {
        let source = "a = now() # random_int(1, 2)\n.x = \"uuid_v4()\" + s'now() \\' now()' + to_string(b)\nparse_json!(.body)";
        assert_eq!(
            calls(source).collect::<Vec<_>>(),
            ["now", "to_string", "parse_json"]
        );
    }

    #[test]
    fn an_assignment_is_told_from_comparisons_and_texts() {
        for source in [
            ".a = 1",
            "a=1",
            ".a == 1 && .b = 2",
            "x = .a == 1",
            ".a |= {}",
        ] {
            assert!(assigns(source), "{source}");
        }
        for source in [
            ".a == 1",
            ".a != 1",
            ".a <= 1 || .a >= 2",
            ".a == \"b = c\"",
            ".a == s'x = 1' # y = 2",
            "map_values(.a) -> |v| { v }",
        ] {
            assert!(!assigns(source), "{source}");
        }
    }

    #[test]
    fn no_function_reaches_outside() {
        let names: Vec<&str> = FUNCTIONS.iter().map(|f| f.identifier()).collect();
        for name in FORBIDDEN {
            assert!(!names.contains(&name), "{name}");
        }
        for name in NONDETERMINISTIC {
            assert!(names.contains(&name), "{name} is unknown to VRL");
        }
    }
}
