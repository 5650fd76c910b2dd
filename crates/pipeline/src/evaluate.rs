//! What becomes of a message: the first route whose conditions match, its transforms, its sends
//! rendered.

use crate::event::Event;
use crate::key::short_digest;
use crate::program::{OrderProgram, SendProgram, StepProgram};
use crate::{Message, Program};
use bytes::Bytes;
use consign_config::Place;
use std::borrow::Cow;
use std::num::NonZeroU64;
use vrl::value::Value;

/// What became of a message.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Conditions that ended in an error; each did not match, and is counted.
    pub condition_errors: Vec<ConditionError>,
    /// Why the adapter's `key` gave no routing key, if it failed.
    pub key_error: Option<String>,
    /// Where it ended.
    pub outcome: Outcome,
}

/// A condition that ended in an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionError {
    /// Index of the route.
    pub route: usize,
    /// What went wrong.
    pub message: String,
}

/// Where a message ended in the pipeline.
#[derive(Debug, Clone, PartialEq)]
#[allow(
    clippy::large_enum_variant,
    reason = "made once per message and moved on: a box would cost an allocation each"
)]
pub enum Outcome {
    /// No route claims it: acknowledge, discard, count.
    NoRoute,
    /// A transform returned an error: acknowledge, discard, count.
    TransformFailed {
        /// Index of the route.
        route: usize,
        /// Index of the transform in the route.
        transform: usize,
        /// What went wrong.
        message: String,
        /// The transform's place.
        place: Place,
    },
    /// A processor failed: handled as a delivery failure.
    ProcessorFailed {
        /// Index of the route.
        route: usize,
        /// Index of the processor in the route.
        processor: usize,
        /// What went wrong.
        message: String,
    },
    /// A route claimed it; a route without sends acknowledges it and nothing leaves.
    Matched(Matched),
}

/// A message that a route claimed, ready to be accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Matched {
    /// Index of the route.
    pub route: usize,
    /// The message as it leaves.
    pub message: Message,
    /// Whether a transform changed it.
    pub changed: bool,
    /// One per send of the route, in order. An error is a delivery failure of the message.
    pub sends: Vec<Result<Rendered, RenderError>>,
}

/// What is a send's own in a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Which writes it may not overtake.
    pub order: OrderKey,
    /// The rendered templates, in slot order.
    pub slots: Vec<String>,
    /// Which setting each of them is of; see [`SendProgram::settings`](crate::SendProgram::settings).
    pub settings: Bytes,
}

/// Which writes of its lane a write may not overtake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderKey {
    /// All of them.
    Strict,
    /// None.
    None,
    /// Those with the same hash of the order key.
    Key(NonZeroU64),
}

impl OrderKey {
    /// The hash as the buffer keeps it; 0 where the lane is strict or unordered.
    #[must_use]
    pub fn stored_hash(self) -> u64 {
        match self {
            Self::Key(hash) => hash.get(),
            Self::Strict | Self::None => 0,
        }
    }
}

/// A template or an order key that could not be rendered for this message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderError {
    /// What went wrong, with the expression.
    pub message: String,
    /// The template's or the expression's place.
    pub place: Place,
}

/// A step that a plugin carries out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Index of a transform in the route.
    Transform(usize),
    /// Index of a processor in the route.
    Processor(usize),
}

/// How far a message has come.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "made once per message and moved on: a box would cost an allocation each"
)]
pub enum Progress {
    /// To its end.
    Done(Verdict),
    /// To a step that a plugin carries out: call it and [`Program::resume`].
    Call(Box<Call>),
}

/// A message that waits for a plugin.
#[derive(Debug)]
pub struct Call {
    /// Index of the route.
    pub route: usize,
    /// What to call.
    pub step: Step,
    /// The message as it is now.
    pub message: Message,
    at: usize,
    changed: bool,
    place: Place,
    tally: Tally,
}

#[derive(Debug, Default)]
struct Tally {
    condition_errors: Vec<ConditionError>,
    key_error: Option<String>,
}

impl Tally {
    fn ends(self, outcome: Outcome) -> Progress {
        Progress::Done(Verdict {
            condition_errors: self.condition_errors,
            key_error: self.key_error,
            outcome,
        })
    }
}

/// Why a route did not claim a message, or that it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// It claims the message.
    Claimed,
    /// None of its patterns matches the routing key.
    PatternMismatch,
    /// Its condition is false.
    ConditionFalse,
    /// Its condition ended in this error.
    ConditionError(String),
    /// An earlier route claimed the message.
    NotReached,
}

impl Program {
    /// The message's identity: the adapter's `identity` expression, else the source's own. `None`
    /// when it has none.
    ///
    /// # Errors
    /// Why the expression failed. The message is then one without an identity; count it.
    pub fn identity(&self, message: &Message) -> Result<Option<Bytes>, String> {
        let Some(expression) = &self.identity else {
            return Ok(message.identity.clone());
        };
        let mut event = Event::new(Cow::Borrowed(message));
        Ok(match expression.run(&mut event)? {
            Value::Null => None,
            Value::Bytes(bytes) => Some(bytes),
            value => Some(Bytes::from(event.text(&value)?)),
        }
        .filter(|identity| !identity.is_empty()))
    }

    /// Takes a message as far as it goes without a plugin.
    #[must_use]
    pub fn start(&self, message: &Message) -> Progress {
        let mut event = Event::new(Cow::Borrowed(message));
        let mut tally = Tally {
            key_error: self.compute_key(&mut event),
            ..Tally::default()
        };
        let claimed = self.claim(&mut event, &mut |route, claim| {
            if let Claim::ConditionError(message) = claim {
                tally
                    .condition_errors
                    .push(ConditionError { route, message });
            }
        });
        match claimed {
            Some(route) => self.steps(event, route, 0, false, tally),
            None => tally.ends(Outcome::NoRoute),
        }
    }

    /// Goes on after a plugin's step, with the message it gave back or the error it returned.
    #[must_use]
    pub fn resume(&self, call: Call, result: Result<Message, String>) -> Progress {
        let Call {
            route, step, at, ..
        } = call;
        match result {
            Ok(message) => {
                let changed = call.changed || message != call.message;
                let event = Event::new(Cow::Owned(message));
                self.steps(event, route, at + 1, changed, call.tally)
            }
            Err(message) => call.tally.ends(match step {
                Step::Transform(transform) => Outcome::TransformFailed {
                    route,
                    transform,
                    message,
                    place: call.place,
                },
                Step::Processor(processor) => Outcome::ProcessorFailed {
                    route,
                    processor,
                    message,
                },
            }),
        }
    }

    /// Takes a message to its end; steps that a plugin would carry out leave it as it is.
    #[must_use]
    pub fn evaluate(&self, message: &Message) -> Verdict {
        let mut progress = self.start(message);
        loop {
            match progress {
                Progress::Done(verdict) => return verdict,
                Progress::Call(call) => {
                    let unchanged = call.message.clone();
                    progress = self.resume(*call, Ok(unchanged));
                }
            }
        }
    }

    /// Renders what is a send's own for a message as it leaves, without asking its route: for a write
    /// that a person moves there, or that an error handler diverts.
    ///
    /// # Errors
    /// A template or an order key fails for this message, or there is no such send.
    pub fn render_send(
        &self,
        route: usize,
        send: usize,
        message: &Message,
    ) -> Result<Rendered, RenderError> {
        let program = self
            .routes
            .get(route)
            .and_then(|route| route.sends.get(send))
            .ok_or_else(|| RenderError {
                message: "there is no such send".to_owned(),
                place: Place::default(),
            })?;
        render(program, &mut Event::new(Cow::Borrowed(message)))
    }

    /// For each route whether it claims the message, and if not, why.
    #[must_use]
    pub fn explain(&self, message: &Message) -> Vec<Claim> {
        let mut event = Event::new(Cow::Borrowed(message));
        let _ = self.compute_key(&mut event);
        let mut claims = vec![Claim::NotReached; self.routes.len()];
        let _ = self.claim(&mut event, &mut |route, claim| {
            if let Some(slot) = claims.get_mut(route) {
                *slot = claim;
            }
        });
        claims
    }

    fn compute_key(&self, event: &mut Event<'_>) -> Option<String> {
        let key = self.key.as_ref()?;
        let result = key.run(event).and_then(|value| match value {
            Value::Null => Ok(None),
            value => event.text(&value).map(Some),
        });
        match result {
            Ok(key) => {
                event.set_routing_key(key);
                None
            }
            Err(why) => {
                event.set_routing_key(None);
                Some(why)
            }
        }
    }

    fn claim(&self, event: &mut Event<'_>, tell: &mut dyn FnMut(usize, Claim)) -> Option<usize> {
        for (index, route) in self.routes.iter().enumerate() {
            let key = event.routing_key();
            let fits = route.patterns.is_empty()
                || route.patterns.iter().any(|(pattern, _)| {
                    key.map_or_else(|| pattern.matches_none(), |key| pattern.matches(key))
                });
            if !fits {
                tell(index, Claim::PatternMismatch);
                continue;
            }
            let Some((condition, _)) = &route.condition else {
                tell(index, Claim::Claimed);
                return Some(index);
            };
            match condition.run(event) {
                Ok(Value::Boolean(true)) => {
                    tell(index, Claim::Claimed);
                    return Some(index);
                }
                Ok(_) => tell(index, Claim::ConditionFalse),
                Err(message) => tell(index, Claim::ConditionError(message)),
            }
        }
        None
    }

    fn steps(
        &self,
        mut event: Event<'_>,
        route: usize,
        from: usize,
        changed: bool,
        tally: Tally,
    ) -> Progress {
        let Some(program) = self.routes.get(route) else {
            return tally.ends(Outcome::NoRoute);
        };
        let mut last = (0, Place::default());
        for (at, step) in program.steps.iter().enumerate().skip(from) {
            let (step, place) = match step {
                StepProgram::Vrl(compiled, place) => {
                    if let Err(message) = compiled.run(&mut event) {
                        return tally.ends(Outcome::TransformFailed {
                            route,
                            transform: at,
                            message,
                            place: place.clone(),
                        });
                    }
                    last = (at, place.clone());
                    continue;
                }
                StepProgram::Transform(i, place) => (Step::Transform(*i), place.clone()),
                StepProgram::Processor(i) => (Step::Processor(*i), Place::default()),
            };
            let changed = changed || event.is_changed();
            return match event.message() {
                Ok(message) => Progress::Call(Box::new(Call {
                    route,
                    step,
                    message,
                    at,
                    changed,
                    place,
                    tally,
                })),
                Err(message) => tally.ends(unwritten(route, last, message)),
            };
        }
        let changed = changed || event.is_changed();
        let message = match event.message() {
            Ok(message) => message,
            Err(message) => return tally.ends(unwritten(route, last, message)),
        };
        let sends = program
            .sends
            .iter()
            .map(|send| render(send, &mut event))
            .collect();
        tally.ends(Outcome::Matched(Matched {
            route,
            message,
            changed,
            sends,
        }))
    }
}

/// What the transforms left cannot be written: the last one is told.
fn unwritten(route: usize, (transform, place): (usize, Place), message: String) -> Outcome {
    Outcome::TransformFailed {
        route,
        transform,
        message,
        place,
    }
}

fn render(send: &SendProgram, event: &mut Event<'_>) -> Result<Rendered, RenderError> {
    let order = match &send.order {
        OrderProgram::Strict => OrderKey::Strict,
        OrderProgram::None => OrderKey::None,
        OrderProgram::ByKey(compiled, source) => {
            let text = compiled
                .run(event)
                .and_then(|value| match value {
                    // Messages without the field share one order key.
                    Value::Null => Ok(String::new()),
                    value => event.text(&value),
                })
                .map_err(|why| RenderError {
                    message: format!("the order key `{source}` failed: {why}"),
                    place: source.place().clone(),
                })?;
            OrderKey::Key(order_hash(&text))
        }
    };
    let slots = send
        .compiled
        .iter()
        .map(|template| {
            template.render(event).map_err(|message| RenderError {
                message: format!("the template {message}"),
                place: template.source().place().clone(),
            })
        })
        .collect::<Result<_, _>>()?;
    Ok(Rendered {
        order,
        slots,
        settings: send.settings.clone(),
    })
}

/// A 64-bit hash of an order key, never 0, which stands for the lane's own order.
fn order_hash(text: &str) -> NonZeroU64 {
    NonZeroU64::new(u64::from_le_bytes(short_digest(text))).unwrap_or(NonZeroU64::MIN)
}
