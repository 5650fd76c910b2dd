//! `consign check --live`: connects to every destination, inspects it, and narrows the promises.

use crate::plan::Plan;
use crate::promises;
use consign_config::Place;
use consign_loader::{Names, OpenConnection};
use consign_promise::RoutePromise;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long each connection and each inspection may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// What the destinations of one route said.
pub struct Inspected {
    /// The adapter.
    pub adapter: String,
    /// The route.
    pub route: String,
    /// Where the route stands in the configuration.
    pub place: Place,
    /// Its promise as inspected, or why it could not be.
    pub result: Result<RoutePromise, String>,
}

/// Inspects every send of every route. No message is written; opening a sink creates what its settings
/// tell it to create.
pub async fn inspect(plan: &Plan) -> Vec<Inspected> {
    let mut connections = BTreeMap::new();
    for connection in &plan.config.connections {
        let request = OpenConnection {
            connector: connection.connector.to_string(),
            config: connection.config.value.clone(),
            names: Names {
                connection: connection.name.to_string(),
                ..Names::default()
            },
        };
        let sends = |adapter: &consign_config::Adapter| {
            adapter
                .routes
                .iter()
                .flat_map(|r| &r.send)
                .any(|send| send.connection.as_str() == connection.name.as_str())
        };
        if plan.config.adapters.iter().any(sends) {
            connections.insert(
                connection.name.to_string(),
                plan.plugins.open_connection(request, DEADLINE).await,
            );
        }
    }
    let mut found = Vec::new();
    for (config, adapter) in plan.config.adapters.iter().zip(&plan.adapters) {
        let facts = promises::source_facts(&plan.config, config, &adapter.source);
        for (index, (route, planned)) in config.routes.iter().zip(&adapter.routes).enumerate() {
            let mut levels = Vec::new();
            let mut faults = Vec::new();
            for (number, (send, known)) in route.send.iter().zip(&planned.promise.sends).enumerate()
            {
                let function = adapter
                    .program
                    .route(index)
                    .and_then(|r| r.sends.get(number))
                    .map(|s| s.function.clone());
                let inspection = match connections.get(send.connection.as_str()) {
                    Some(Ok(connection)) => {
                        let names = Names {
                            connection: send.connection.to_string(),
                            ..Names::default()
                        };
                        let opened = connection
                            .open_sink(
                                &send.operation,
                                function.unwrap_or_default(),
                                names,
                                DEADLINE,
                            )
                            .await;
                        match opened {
                            Ok(sink) => sink.inspect(DEADLINE).await,
                            Err(failure) => Err(failure),
                        }
                    }
                    Some(Err(failure)) => Err(failure.clone()),
                    None => continue,
                };
                match inspection {
                    Ok(inspection) => {
                        let one = promises::inspected(&facts, known, Some(&inspection));
                        faults.extend(
                            one.faults()
                                .map(|fault| format!("send {}: {fault}", known.send)),
                        );
                        levels.push(one);
                    }
                    Err(failure) => faults.push(format!(
                        "send {}: {} ({})",
                        known.send, failure.message, failure.code
                    )),
                }
            }
            let result = if faults.is_empty() {
                Ok(consign_promise::route(levels))
            } else {
                Err(faults.join("; "))
            };
            found.push(Inspected {
                adapter: adapter.name.clone(),
                route: route.name.to_string(),
                place: route.place.clone(),
                result,
            });
        }
    }
    found
}
