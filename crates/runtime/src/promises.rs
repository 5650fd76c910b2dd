//! Levels two and four for the sends of one adapter: the plugin's own answer, narrowed by what the host
//! knows about the send.

use crate::plan::{AdapterPlan, RoutePlan, SendPlan};
use consign_config::{Adapter, Config, Delivery, Order, Problem, Route, Send, WhenFull};
use consign_loader::{Plugins, ResolvedOperation};
use consign_manifest::{
    Identity, Inspection, OperationDeclaration, ResolveRequest, Resolved, ResolvedSource,
    SinkDeclaration,
};
use consign_pipeline::{Program, SendProgram};
use consign_promise::{DeliveryMode, Level, SendFacts, SendLevels, SourceFacts};

/// What the routes of an adapter promise, with warnings; or every fault.
pub fn adapter(
    config: &Config,
    adapter: &Adapter,
    program: Program,
    plugins: &Plugins,
) -> Result<(AdapterPlan, Vec<Problem>), Vec<Problem>> {
    let mut problems = Vec::new();
    let mut warnings = Vec::new();
    let (source, claims) = match source(config, adapter, plugins) {
        Ok(found) => found,
        Err(fault) => return Err(vec![fault]),
    };
    let place = &adapter.source.place;
    problems.extend(
        source
            .faults
            .iter()
            .map(|fault| Problem::error(place, "source_config", fault.clone())),
    );
    let facts = source_facts(config, adapter, &source);
    let mut routes = Vec::new();
    for (index, route) in adapter.routes.iter().enumerate() {
        let mut levels = Vec::new();
        let mut sends = Vec::new();
        for (number, send) in route.send.iter().enumerate() {
            let compiled = program
                .route(index)
                .and_then(|route| route.sends.get(number));
            match resolve(config, send, compiled, plugins) {
                Ok(plan) => {
                    let require = send.require.or(route.require).map(level_of);
                    let mut one = SendLevels::new(
                        &send.id,
                        &send.operation,
                        &facts,
                        plan.promise.clone(),
                        None,
                        require,
                    );
                    if let Some(parent) = &send.after {
                        one = one.after(parent.as_str());
                    }
                    for fault in one.faults() {
                        problems.push(Problem::error(
                            &send.place,
                            "promise",
                            format!("send {}: {fault}", send.id),
                        ));
                    }
                    levels.push(one);
                    sends.push(plan);
                }
                Err(fault) => problems.push(fault),
            }
        }
        warnings.extend(bulk_parents(config, route));
        routes.push(RoutePlan {
            name: route.name.to_string(),
            sends,
            promise: consign_promise::route(levels),
        });
    }
    if problems.is_empty() {
        let program = std::sync::Arc::new(program);
        let declared = plugins
            .operation(&adapter.source.operation)
            .map(|(_, operation)| operation.declaration);
        let redelivery_bound_ms = match declared {
            Some(OperationDeclaration::Source(declaration)) => declaration.redelivery_bound_ms,
            _ => None,
        };
        let name = adapter.name.to_string();
        Ok((
            AdapterPlan {
                name,
                source,
                claims,
                redelivery_bound_ms,
                program,
                routes,
            },
            warnings,
        ))
    } else {
        Err(problems)
    }
}

/// What the host knows about an adapter's source.
pub fn source_facts(config: &Config, adapter: &Adapter, source: &ResolvedSource) -> SourceFacts {
    let window = adapter
        .idempotency_window
        .unwrap_or(config.idempotency_window);
    SourceFacts::new(source, Some(window.as_ms()))
}

/// The levels of a planned send, with what an inspection of its destination found.
pub fn inspected(
    facts: &SourceFacts,
    planned: &SendLevels,
    inspection: Option<&Inspection>,
) -> SendLevels {
    let levels = SendLevels::new(
        &planned.send,
        &planned.operation,
        facts,
        planned.resolved.clone(),
        inspection,
        planned.require,
    );
    match &planned.after {
        Some(parent) => levels.after(parent),
        None => levels,
    }
}

fn source(
    config: &Config,
    adapter: &Adapter,
    plugins: &Plugins,
) -> Result<(ResolvedSource, Vec<String>), Problem> {
    let settings = &adapter.source;
    let request = request(
        config,
        &settings.connection,
        &settings.operation,
        &settings.config.value,
    );
    let resolution = plugins
        .resolve(&request)
        .map_err(|failure| Problem::error(&settings.place, "resolve", failure.message))?;
    match resolution.operation {
        ResolvedOperation::Source(mut source) => {
            // The operator's own expression names messages; without one, a source that needs one names none.
            if adapter.identity.is_some() {
                source.identity = Identity::Expression;
                source.reason = "`identity` names each message".to_owned();
            } else if source.identity == Identity::Expression {
                source.identity = Identity::None;
                source.reason =
                    "the source needs `identity: EXPR` to name its messages, and none is set"
                        .to_owned();
            }
            Ok((source, resolution.claims))
        }
        ResolvedOperation::Sink(_) => Err(Problem::error(
            &settings.place,
            "not_a_source",
            format!(
                "{} writes to a destination; a source operation is needed here",
                settings.operation
            ),
        )),
    }
}

fn resolve(
    config: &Config,
    send: &Send,
    compiled: Option<&SendProgram>,
    plugins: &Plugins,
) -> Result<SendPlan, Problem> {
    let fault = |code, message: String| {
        Problem::error(&send.place, code, format!("send {}: {message}", send.id))
    };
    let Some((_, operation)) = plugins.operation(&send.operation) else {
        return Err(fault(
            "unknown_operation",
            format!("no plugin has the operation {}", send.operation),
        ));
    };
    let OperationDeclaration::Sink(declaration) = operation.declaration else {
        return Err(fault(
            "not_a_sink",
            format!(
                "{} reads from a source; it cannot be sent to",
                send.operation
            ),
        ));
    };
    let request = request(
        config,
        &send.connection,
        &send.operation,
        &send.config.value,
    );
    let resolution = plugins
        .resolve(&request)
        .map_err(|failure| fault("resolve", failure.message))?;
    let resolved = match resolution.operation {
        ResolvedOperation::Sink(resolved) => resolved,
        ResolvedOperation::Source(_) => {
            return Err(fault(
                "resolve",
                "the plugin answered for a source".to_owned(),
            ));
        }
    };
    let facts = facts(send, compiled, &resolved, &declaration);
    let mut promise = consign_promise::resolve(&declaration, &resolved, &facts);
    promise.overclaims.extend(resolution.clamped);
    Ok(SendPlan {
        declaration,
        target_id: resolved.target_id,
        promise,
    })
}

fn request(
    config: &Config,
    connection: &str,
    operation: &str,
    function: &serde_json::Value,
) -> ResolveRequest {
    ResolveRequest {
        operation: operation.to_owned(),
        connection: config
            .connection(connection)
            .map(|c| c.config.value.clone())
            .unwrap_or_default(),
        function: function.clone(),
    }
}

fn facts(
    send: &Send,
    compiled: Option<&SendProgram>,
    resolved: &Resolved,
    declaration: &SinkDeclaration,
) -> SendFacts {
    let templates = compiled.map(|c| c.templates.as_slice()).unwrap_or_default();
    let is_target = |pointer: &str| {
        resolved
            .target_fields
            .iter()
            .any(|field| *field == dotted(pointer))
    };
    SendFacts {
        delivery: match send.delivery {
            Delivery::Buffered => DeliveryMode::Buffered,
            Delivery::Direct => DeliveryMode::Direct,
        },
        order: match &send.order {
            Order::Strict => consign_promise::Order::Strict,
            Order::None => consign_promise::Order::None,
            // One target always has one order key when the key alone makes the target's name vary.
            Order::ByKey(expression) => consign_promise::Order::ByKey {
                serialises_target: templates.iter().filter(|t| is_target(&t.pointer)).any(|t| {
                    only_placeholder(&t.source).is_some_and(|inner| inner == expression.trim())
                }),
            },
        },
        drops_when_full: send.when_full == WhenFull::Drop,
        expires_after_ms: send.expires_after.map(|after| after.as_ms()),
        may_skip: false,
        on_ambiguous: match send.on_ambiguous {
            consign_config::OnAmbiguous::Hold => consign_promise::OnAmbiguous::Hold,
            consign_config::OnAmbiguous::Park => consign_promise::OnAmbiguous::Park,
            consign_config::OnAmbiguous::Retry => consign_promise::OnAmbiguous::Retry,
        },
        after_park: match send.after_park {
            consign_config::AfterPark::Continue => consign_promise::AfterPark::Continue,
            consign_config::AfterPark::HoldKey => consign_promise::AfterPark::HoldKey,
        },
        parks_past_window: send.on_window_passed == Some(consign_config::OnWindowPassed::Park),
        nondeterministic_target_fields: templates
            .iter()
            .filter(|t| is_target(&t.pointer) && !t.nondeterministic.is_empty())
            .map(|t| dotted(&t.pointer))
            .collect(),
        key_names_target: templates
            .iter()
            .any(|t| is_target(&t.pointer) && t.reads_id),
        sealed_batches: declaration.sealed,
    }
}

/// `/a/b` as people write it, `a.b`.
fn dotted(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace('/', ".")
}

/// The expression of a template that has exactly one placeholder.
fn only_placeholder(template: &str) -> Option<&str> {
    let (_, rest) = template.split_once("{{")?;
    let (inner, rest) = rest.split_once("}}")?;
    (!rest.contains("{{")).then(|| inner.trim())
}

fn level_of(require: consign_config::Require) -> Level {
    match require {
        consign_config::Require::EffectivelyOnce => Level::EffectivelyOnce,
        consign_config::Require::AtLeastOnce => Level::AtLeastOnce,
    }
}

/// A critical send behind a bulk one waits as long as the bulk backlog does.
fn bulk_parents(config: &Config, route: &Route) -> Vec<Problem> {
    let class_of = |send: &Send| send.class.as_ref().and_then(|name| config.class(name));
    let is_limited = |send: &Send| {
        class_of(send).is_some_and(|c| c.rate_per_s.is_some() || c.max_in_flight.is_some())
    };
    let is_reserved = |send: &Send| class_of(send).is_some_and(|c| c.reserved_slots() > 1);
    let mut warnings = Vec::new();
    for send in route.send.iter().filter(|send| is_reserved(send)) {
        let parent = send
            .after
            .as_ref()
            .and_then(|name| route.send.iter().find(|s| s.id.as_str() == name.as_str()));
        if let Some(parent) = parent.filter(|parent| is_limited(parent)) {
            let message = format!(
                "send {} has reserved slots but waits for {}, whose class is limited: it is as slow as that backlog",
                send.id, parent.id
            );
            warnings.push(Problem::warning(
                &send.place,
                "critical_after_bulk",
                message,
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_placeholder_serialises_its_target() {
        assert_eq!(only_placeholder("a/{{ .body.id }}.json"), Some(".body.id"));
        assert_eq!(only_placeholder("{{ .body.a }}{{ .body.b }}"), None);
        assert_eq!(only_placeholder("fixed"), None);
    }

    #[test]
    fn pointers_read_as_dotted_names() {
        assert_eq!(dotted("/headers/x"), "headers.x");
    }
}
