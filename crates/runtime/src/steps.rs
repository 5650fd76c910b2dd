//! The steps of a route that plugins carry out: transforms and processors, over several messages at once,
//! so that a call to a plugin is shared.

use crate::events::Events;
use crate::functions::{CALL_TIMEOUT, Function, UsedBy, from_function, to_function};
use consign_config::{Adapter, Route, Transform};
use consign_loader::{FunctionAnswer, Plugins};
use consign_manifest::PluginKind;
use consign_pipeline::{Call, Message, Program, Progress, Step, Verdict};
use std::collections::BTreeMap;
use std::time::Duration;

/// Messages in one call to a plugin. Enough to share the crossing; few enough that one that hangs keeps few
/// others waiting.
pub const STEP_MESSAGES: usize = 64;

/// The functions of an adapter's routes.
#[derive(Debug)]
pub struct Steps {
    routes: Vec<RouteSteps>,
}

#[derive(Debug)]
struct RouteSteps {
    /// By index of the transform; those in VRL have none.
    transforms: Vec<Option<Function>>,
    processors: Vec<Function>,
}

/// What a message came to.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "made once per message and moved on: a box would cost an allocation each"
)]
pub enum Stepped {
    /// The pipeline's verdict.
    Verdict(Verdict),
    /// A plugin failed on it, which is not a transform's own error: handled as a delivery failure.
    Failed {
        /// Index of the route.
        route: usize,
        /// In one sentence.
        reason: String,
        /// The plugin's code.
        code: String,
    },
}

impl Steps {
    /// The functions of this adapter; `None` where every step is the host's own.
    pub fn of(adapter: &Adapter, plugins: &Plugins, events: &Events) -> Option<Self> {
        let routes: Vec<RouteSteps> = adapter
            .routes
            .iter()
            .map(|route| RouteSteps::of(adapter, route, plugins, events))
            .collect();
        let any = routes.iter().any(|route| {
            !route.processors.is_empty() || route.transforms.iter().any(Option::is_some)
        });
        any.then_some(Self { routes })
    }

    /// Takes messages to the end of the pipeline: one result each, in order.
    pub async fn run(&self, program: &Program, messages: &[&Message]) -> Vec<Stepped> {
        let mut done: Vec<Option<Stepped>> = messages.iter().map(|_| None).collect();
        let mut calls: Vec<(usize, Call)> = Vec::new();
        let mut place =
            |at: usize, progress: Progress, calls: &mut Vec<(usize, Call)>| match progress {
                Progress::Done(verdict) => {
                    if let Some(slot) = done.get_mut(at) {
                        *slot = Some(Stepped::Verdict(verdict));
                    }
                }
                Progress::Call(call) => calls.push((at, *call)),
            };
        for (at, message) in messages.iter().enumerate() {
            place(at, program.start(message), &mut calls);
        }
        let mut failed: Vec<(usize, Stepped)> = Vec::new();
        while !calls.is_empty() {
            let waves = by_step(std::mem::take(&mut calls))
                .into_iter()
                .map(|((route, step), calls)| self.call(route, step, calls));
            for (at, answered) in futures::future::join_all(waves).await.into_iter().flatten() {
                match answered {
                    Ok((call, result)) => place(at, program.resume(call, result), &mut calls),
                    Err(failure) => failed.push((at, failure)),
                }
            }
        }
        for (at, failure) in failed {
            if let Some(slot) = done.get_mut(at) {
                *slot = Some(failure);
            }
        }
        // Every message was placed: each call is answered or failed.
        done.into_iter().flatten().collect()
    }

    async fn call(
        &self,
        route: usize,
        step: (bool, usize),
        calls: Vec<(usize, Call)>,
    ) -> Vec<(usize, Answered)> {
        let function = self.routes.get(route).and_then(|route| match step {
            (false, transform) => route.transforms.get(transform)?.as_ref(),
            (true, processor) => route.processors.get(processor),
        });
        let Some(function) = function else {
            let reason = "the route has no such step".to_owned();
            return calls
                .into_iter()
                .map(|(at, _)| {
                    (
                        at,
                        Err(Stepped::Failed {
                            route,
                            reason: reason.clone(),
                            code: "no_such_step".to_owned(),
                        }),
                    )
                })
                .collect();
        };
        let messages: Vec<_> = calls
            .iter()
            .map(|(_, call)| to_function(&call.message))
            .collect();
        let answers = function.process(&messages).await;
        calls
            .into_iter()
            .zip(answers)
            .map(|((at, call), answer)| {
                let answered = match answer {
                    Ok(FunctionAnswer::Changed(changed)) => {
                        let message = from_function(&call.message, changed);
                        Ok((call, Ok(message)))
                    }
                    // A transform's error discards the message; the pipeline says so.
                    Ok(FunctionAnswer::Failed { code, message }) if !step.0 => Ok((
                        call,
                        Err(format!("{}: {message} ({code})", function.name())),
                    )),
                    Ok(FunctionAnswer::Failed { code, message }) => Err(Stepped::Failed {
                        route,
                        reason: format!("processor {}: {message} ({code})", function.name()),
                        code,
                    }),
                    Err(failure) => Err(Stepped::Failed {
                        route,
                        reason: format!(
                            "{}: {} ({})",
                            function.name(),
                            failure.message,
                            failure.code
                        ),
                        code: failure.code,
                    }),
                };
                (at, answered)
            })
            .collect()
    }
}

type Answered = Result<(Call, Result<Message, String>), Stepped>;

/// A step in an order: whether it is a processor, and its index.
type StepKey = (usize, (bool, usize));

fn by_step(calls: Vec<(usize, Call)>) -> BTreeMap<StepKey, Vec<(usize, Call)>> {
    let mut steps: BTreeMap<StepKey, Vec<(usize, Call)>> = BTreeMap::new();
    for (at, call) in calls {
        let step = match call.step {
            Step::Transform(index) => (false, index),
            Step::Processor(index) => (true, index),
        };
        steps
            .entry((call.route, step))
            .or_default()
            .push((at, call));
    }
    steps
}

impl RouteSteps {
    fn of(adapter: &Adapter, route: &Route, plugins: &Plugins, events: &Events) -> Self {
        let used_by = UsedBy {
            adapter: adapter.name.as_str(),
            route: route.name.as_str(),
        };
        let function = |kind, name: &str, config: &serde_json::Value, timeout| {
            Function::new(
                plugins,
                events,
                kind,
                name,
                config.clone(),
                used_by,
                timeout,
            )
        };
        Self {
            transforms: route
                .transforms
                .iter()
                .map(|transform| match transform {
                    Transform::Vrl { .. } => None,
                    Transform::Plugin { transform, config } => Some(function(
                        PluginKind::Transform,
                        transform.as_str(),
                        &config.value,
                        CALL_TIMEOUT,
                    )),
                })
                .collect(),
            processors: route
                .processors
                .iter()
                .map(|processor| {
                    function(
                        PluginKind::Processor,
                        processor.processor.as_str(),
                        &processor.config.value,
                        Duration::from_millis(processor.timeout.as_ms()),
                    )
                })
                .collect(),
        }
    }
}
