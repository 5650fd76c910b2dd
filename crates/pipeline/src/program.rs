//! An adapter, compiled: patterns, conditions, transforms, order keys and templates of every route.

use crate::key::short_digest;
use crate::template::Template;
use crate::topic::Pattern;
use crate::vrl_program::{ASSIGNS, Access, Compiled, MESSAGE_ID, Types, assigns, described};
use bytes::Bytes;
use consign_config::{Adapter, Order, Place, Problem, Route, Send, Text, Transform, in_order};
use serde_json::{Value, json};
use vrl::path::OwnedValuePath;

/// A compiled adapter. Shared by all tasks that evaluate its messages.
#[derive(Debug)]
pub struct Program {
    pub(crate) key: Option<Compiled>,
    pub(crate) identity: Option<Compiled>,
    pub(crate) routes: Vec<RouteProgram>,
}

/// A compiled route.
#[derive(Debug)]
pub struct RouteProgram {
    /// Its name.
    pub name: String,
    /// Its sends, in order.
    pub sends: Vec<SendProgram>,
    pub(crate) patterns: Vec<(Pattern, Text)>,
    pub(crate) condition: Option<(Compiled, Text)>,
    pub(crate) steps: Vec<StepProgram>,
}

/// A transform or a processor.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "compiled once and kept: there are as many as the configuration has"
)]
pub(crate) enum StepProgram {
    Vrl(Compiled, Place),
    Transform(usize, Place),
    Processor(usize),
}

/// A compiled send.
#[derive(Debug)]
pub struct SendProgram {
    /// Its id.
    pub id: String,
    /// The function's settings as the plugin gets them: each templated string is replaced by
    /// `{"$template": SLOT}`.
    pub function: Value,
    /// One per slot, in slot order.
    pub templates: Vec<TemplateInfo>,
    /// Which setting each slot is of: 8 bytes for each, a digest of its JSON pointer. It goes into each
    /// write, so that one accepted before a reload is never read by another order of slots.
    pub settings: Bytes,
    pub(crate) compiled: Vec<Template>,
    pub(crate) order: OrderProgram,
}

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "compiled once and kept: there are as many as the configuration has"
)]
pub(crate) enum OrderProgram {
    Strict,
    None,
    ByKey(Compiled, Text),
}

/// What is known about a template before any message comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateInfo {
    /// JSON pointer of the string in the function's settings (`/subject`).
    pub pointer: String,
    /// The string as it was written, with its place.
    pub source: Text,
    /// Its slot: an index into the rendered texts.
    pub slot: u32,
    /// Functions that answer differently each time (`now`, `uuid_v4`) and decide what it renders
    /// to, directly or through a transform. Where such a template names the target of a write, a
    /// message that is handed over again may land elsewhere: the promise falls.
    pub nondeterministic: Vec<&'static str>,
    /// It renders the message's name (`.id`), directly or through a transform: another one each time
    /// where the source does not name its messages.
    pub reads_id: bool,
}

impl Program {
    /// Compiles an adapter.
    ///
    /// # Errors
    /// Every fault of every pattern, expression and template, each at its place in the YAML.
    pub fn compile(adapter: &Adapter) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let types = Types::of_message();
        let mut expression = |source: &Option<Text>| {
            let source = source.as_ref()?;
            let compiled = Compiled::new(source, Access::Read, &types, &mut problems)?;
            not_null(&compiled, source, &mut problems);
            Some(compiled)
        };
        let key = expression(&adapter.key);
        let identity = expression(&adapter.identity);
        let tainted = key.as_ref().map_or(&[][..], |key| &key.nondeterministic);
        let routes = adapter
            .routes
            .iter()
            .map(|route| RouteProgram::compile(route, tainted, &mut problems))
            .collect();
        if problems.is_empty() {
            return Ok(Self {
                key,
                identity,
                routes,
            });
        }
        in_order(&mut problems);
        Err(problems)
    }

    /// The route at this index of the configuration.
    #[must_use]
    pub fn route(&self, index: usize) -> Option<&RouteProgram> {
        self.routes.get(index)
    }

    /// All routes, in order.
    #[must_use]
    pub fn routes(&self) -> &[RouteProgram] {
        &self.routes
    }
}

/// Compiles one expression on its own, for `consign vrl`, and runs it over a message.
///
/// # Errors
/// The faults of the expression, or what went wrong when it ran, as problems at its place.
pub fn try_expression(source: &Text, message: &crate::Message) -> Result<String, Vec<Problem>> {
    let mut problems = Vec::new();
    let types = Types::of_message();
    let compiled = Compiled::new(source, Access::Change, &types, &mut problems);
    let Some(compiled) = compiled else {
        return Err(problems);
    };
    let mut event = crate::event::Event::new(std::borrow::Cow::Borrowed(message));
    let failed = |why: String| vec![Problem::error(source.place(), "vrl_failed", why)];
    let value = compiled.run(&mut event).map_err(failed)?;
    let mut out = Vec::new();
    crate::json::write(&value, event.document(), &mut out, 0).map_err(failed)?;
    String::from_utf8(out).map_err(|_| failed("the result is not UTF-8".to_owned()))
}

fn not_null(compiled: &Compiled, source: &Text, problems: &mut Vec<Problem>) {
    let kind = compiled.kind();
    if kind.is_null() || kind.is_undefined() || kind.is_never() {
        problems.push(Problem::error(
            source.place(),
            "vrl_type",
            "this expression is always null, and a text is needed",
        ));
    }
}

impl RouteProgram {
    fn compile(route: &Route, key_taint: &[&'static str], problems: &mut Vec<Problem>) -> Self {
        let mut types = Types::of_message();
        let mut taint = Taint::default();
        if !key_taint.is_empty() {
            taint.add(&[OwnedValuePath::single_field("key")], key_taint);
        }
        let patterns = route
            .patterns
            .iter()
            .filter_map(|text| match Pattern::compile(text) {
                Ok(pattern) => Some((pattern, text.clone())),
                Err((at, message)) => {
                    problems.push(Problem::error(&text.place_at(at), "pattern", message));
                    None
                }
            })
            .collect();
        let condition = route
            .when
            .as_ref()
            .and_then(|source| condition(source, &types, problems));
        let mut steps = Vec::new();
        for (i, transform) in route.transforms.iter().enumerate() {
            match transform {
                Transform::Vrl { vrl } => {
                    let Some(compiled) = Compiled::new(vrl, Access::Change, &types, problems)
                    else {
                        // What follows cannot be typed without it.
                        return Self::broken(route, patterns);
                    };
                    types = compiled.types_after();
                    taint.follow(&compiled);
                    steps.push(StepProgram::Vrl(compiled, vrl.place().clone()));
                }
                Transform::Plugin { transform, .. } => {
                    types = Types::of_message();
                    steps.push(StepProgram::Transform(i, transform.place().clone()));
                }
            }
        }
        for i in 0..route.processors.len() {
            types = Types::of_message();
            steps.push(StepProgram::Processor(i));
        }
        let sends = route
            .send
            .iter()
            .map(|send| SendProgram::compile(send, &types, &taint, problems))
            .collect();
        Self {
            name: route.name.as_str().to_owned(),
            sends,
            patterns,
            condition,
            steps,
        }
    }

    fn broken(route: &Route, patterns: Vec<(Pattern, Text)>) -> Self {
        Self {
            name: route.name.as_str().to_owned(),
            sends: Vec::new(),
            patterns,
            condition: None,
            steps: Vec::new(),
        }
    }
}

fn condition(
    source: &Text,
    types: &Types,
    problems: &mut Vec<Problem>,
) -> Option<(Compiled, Text)> {
    let compiled = Compiled::new(source, Access::Read, types, problems)?;
    let kind = compiled.kind();
    if kind.is_boolean() {
        return Some((compiled, source.clone()));
    }
    let help = if assigns(source) && !source.contains(';') {
        ASSIGNS
    } else if source.contains("??") {
        "VRL reads `a ?? 0 > 0` as `a ?? (0 > 0)`: put the default in brackets, `(a ?? 0) > 0`"
    } else if kind.contains_boolean() {
        "say what holds when it is not a boolean: `bool(…) ?? false`, or compare it, `… == true`"
    } else {
        "compare it with something: `… == …`, `… > …`, `exists(…)`"
    };
    problems.push(
        Problem::error(
            source.place(),
            "condition_type",
            format!(
                "this condition is {}, and a condition must be a boolean, true or false",
                described(&kind)
            ),
        )
        .help(help),
    );
    None
}

impl SendProgram {
    fn compile(send: &Send, types: &Types, taint: &Taint, problems: &mut Vec<Problem>) -> Self {
        let mut function = send.config.value.clone();
        let mut templates = Vec::new();
        let mut compiled = Vec::new();
        for text in &send.config.templates {
            let Some(template) = Template::compile(&text.text, types, problems) else {
                continue;
            };
            let slot = u32::try_from(compiled.len()).unwrap_or(u32::MAX);
            if let Some(place) = function.pointer_mut(&text.pointer) {
                *place = json!({ "$template": slot });
            }
            let mut nondeterministic = template.nondeterministic();
            nondeterministic.extend(template.reads().flat_map(|path| taint.of(path)));
            nondeterministic.sort_unstable();
            nondeterministic.dedup();
            let reads_id = nondeterministic.contains(&MESSAGE_ID);
            nondeterministic.retain(|name| *name != MESSAGE_ID);
            templates.push(TemplateInfo {
                pointer: text.pointer.clone(),
                source: template.source().clone(),
                slot,
                nondeterministic,
                reads_id,
            });
            compiled.push(template);
        }
        let order = match &send.order {
            Order::Strict => OrderProgram::Strict,
            Order::None => OrderProgram::None,
            Order::ByKey(source) => match Compiled::new(source, Access::Read, types, problems) {
                Some(compiled) => {
                    not_null(&compiled, source, problems);
                    OrderProgram::ByKey(compiled, source.clone())
                }
                None => OrderProgram::Strict,
            },
        };
        let settings = templates
            .iter()
            .flat_map(|template| short_digest(&template.pointer))
            .collect();
        Self {
            id: send.id.as_str().to_owned(),
            function,
            settings,
            templates,
            compiled,
            order,
        }
    }
}

/// Fields of the message that a nondeterministic function decided, and which function.
#[derive(Debug, Default)]
struct Taint {
    fields: Vec<(OwnedValuePath, &'static str)>,
}

impl Taint {
    fn add(&mut self, paths: &[OwnedValuePath], functions: &[&'static str]) {
        for path in paths {
            self.fields
                .extend(functions.iter().map(|function| (path.clone(), *function)));
        }
    }

    /// What a transform writes depends on the functions it calls and on what it reads.
    fn follow(&mut self, compiled: &Compiled) {
        let mut functions = compiled.nondeterministic.clone();
        functions.extend(compiled.reads.iter().flat_map(|path| self.of(path)));
        self.add(&compiled.writes, &functions);
    }

    fn of(&self, path: &OwnedValuePath) -> Vec<&'static str> {
        let overlaps = |other: &OwnedValuePath| {
            path.segments
                .iter()
                .zip(&other.segments)
                .all(|(a, b)| a == b)
        };
        self.fields
            .iter()
            .filter(|(field, _)| overlaps(field))
            .map(|(_, function)| *function)
            .collect()
    }
}
