//! Plugins' settings against the plugins' own schemas, and the names of what plugins offer.

use super::resolved_path;
use crate::catalog::kind_of;
use crate::check::{self, Findings};
use crate::model::{Settings, Transform};
use crate::nearest::{did_you_mean, one_of};
use crate::node::{Data, Node};
use crate::{Catalog, Config, Connection, Problem, Text};
use consign_manifest::PluginKind;
use serde_json::Value;
use std::path::Path;

/// Checks every plugin's settings and fills in what their schemas tell.
pub(super) fn check(config: &mut Config, catalog: &Catalog, problems: &mut Vec<Problem>) {
    let folder = config.folder.clone();
    let folder = folder.as_path();
    let connectors: Vec<(String, String)> = config
        .connections
        .iter()
        .map(|c| (c.name.as_str().to_owned(), c.connector.as_str().to_owned()))
        .collect();
    let connector_of = |name: &str| {
        connectors
            .iter()
            .find(|(connection, _)| connection == name)
            .map(|(_, connector)| connector.as_str())
    };
    for connection in &mut config.connections {
        connection_settings(connection, catalog, folder, problems);
    }
    for adapter in &mut config.adapters {
        let source = &mut adapter.source;
        let used = Use {
            kind: PluginKind::Source,
            operation: &source.operation,
            connector: connector_of(&source.connection),
        };
        operation(&used, &mut source.config, catalog, folder, problems);
        let mut handlers = vec![&mut adapter.on_failure];
        for route in &mut adapter.routes {
            handlers.push(&mut route.on_failure);
            for transform in &mut route.transforms {
                if let Transform::Plugin { transform, config } = transform {
                    let kind = PluginKind::Transform;
                    function(kind, transform, config, catalog, folder, problems);
                }
            }
            for processor in &mut route.processors {
                let kind = PluginKind::Processor;
                let (name, config) = (&processor.processor, &mut processor.config);
                function(kind, name, config, catalog, folder, problems);
            }
            for send in &mut route.send {
                handlers.push(&mut send.on_failure);
                let used = Use {
                    kind: PluginKind::Sink,
                    operation: &send.operation,
                    connector: connector_of(&send.connection),
                };
                operation(&used, &mut send.config, catalog, folder, problems);
            }
        }
        for on_failure in handlers.into_iter().flatten() {
            let kind = PluginKind::ErrorHandler;
            let (name, config) = (&on_failure.handler, &mut on_failure.config);
            function(kind, name, config, catalog, folder, problems);
        }
    }
}

/// Checks the settings of connections and operations in a file whose structure is at fault
/// elsewhere, so that one run shows all faults. Names are checked only once the structure holds.
pub(crate) fn loose(root: &Node, catalog: &Catalog, problems: &mut Vec<Problem>) {
    let mut one = |owner: &Node, schema: Option<&Value>, name: &str| {
        let Some(schema) = schema else { return };
        let empty = Node {
            place: owner.place.clone(),
            data: Data::Null,
        };
        let settings = owner.get("config").unwrap_or(&empty);
        check::settings(settings, schema, &words_for(name), problems);
    };
    for (_, connection) in root.get("connections").map_or(&[][..], Node::entries) {
        if let Some(name) = connection.get("connector").and_then(Node::text) {
            let schema = catalog.connector(name).map(|c| &c.config_schema);
            one(connection, schema, name);
        }
    }
    for (_, adapter) in root.get("adapters").map_or(&[][..], Node::entries) {
        let routes = adapter.get("routes").map_or(&[][..], Node::items);
        let sends = routes
            .iter()
            .flat_map(|route| route.get("send").map_or(&[][..], Node::items));
        for user in adapter.get("source").into_iter().chain(sends) {
            if let Some(name) = user.get("operation").and_then(Node::text) {
                let schema = catalog.operation(name).map(|o| &o.config_schema);
                one(user, schema, name);
            }
        }
    }
}

/// One use of an operation.
struct Use<'a> {
    kind: PluginKind,
    operation: &'a Text,
    /// The connector of the connection it names, if that exists.
    connector: Option<&'a str>,
}

fn words_for(name: &str) -> String {
    format!("the config of `{name}`")
}

fn connection_settings(
    connection: &mut Connection,
    catalog: &Catalog,
    folder: &Path,
    problems: &mut Vec<Problem>,
) {
    let name = &connection.connector;
    let Some(connector) = catalog.connector(name) else {
        let known: Vec<&str> = catalog.connectors().map(|c| c.name.as_str()).collect();
        missing(name, "connector", &known, catalog, problems);
        return;
    };
    let place = connection.place.clone();
    filled(
        &mut connection.config,
        &place,
        &connector.config_schema,
        name,
        folder,
        problems,
    );
}

fn operation(
    used: &Use<'_>,
    settings: &mut Settings,
    catalog: &Catalog,
    folder: &Path,
    problems: &mut Vec<Problem>,
) {
    let name = used.operation;
    // An unknown connection or connector has been told already.
    let Some(connector) = used.connector.and_then(|c| catalog.connector(c)) else {
        return;
    };
    let wanted = match used.kind {
        PluginKind::Source => "source",
        _ => "sink",
    };
    let Some(operation) = connector.operations.iter().find(|o| o.id == name.as_str()) else {
        let same_kind = |o: &&consign_manifest::OperationManifest| kind_of(o) == used.kind;
        let known: Vec<&str> = connector
            .operations
            .iter()
            .filter(same_kind)
            .map(|o| o.id.as_str())
            .collect();
        let message = match catalog.operation(name) {
            Some(_) => format!(
                "the operation `{name}` is not one of the connector `{}`",
                connector.name
            ),
            None => format!(
                "unknown operation `{name}` of the connector `{}`",
                connector.name
            ),
        };
        let help =
            did_you_mean(name, known.iter().copied()).unwrap_or_else(|| match known.as_slice() {
                [] => format!("this connector has no {wanted} operation"),
                known => format!("its {wanted} operations: {}", one_of(known.iter().copied())),
            });
        problems.push(Problem::error(name.place(), "unknown_operation", message).help(help));
        return;
    };
    if kind_of(operation) != used.kind {
        problems.push(Problem::error(
            name.place(),
            "wrong_operation",
            format!("`{name}` is not a {wanted} operation"),
        ));
        return;
    }
    let place = name.place().clone();
    filled(
        settings,
        &place,
        &operation.config_schema,
        name,
        folder,
        problems,
    );
}

fn function(
    kind: PluginKind,
    name: &Text,
    settings: &mut Settings,
    catalog: &Catalog,
    folder: &Path,
    problems: &mut Vec<Problem>,
) {
    let what = match kind {
        PluginKind::Transform => "transform",
        PluginKind::Processor => "processor",
        _ => "handler",
    };
    match catalog.function(kind, name) {
        Some(function) => {
            let place = name.place().clone();
            filled(
                settings,
                &place,
                &function.config_schema,
                name,
                folder,
                problems,
            );
        }
        None => {
            let known: Vec<&str> = catalog.functions(kind).map(|f| f.name.as_str()).collect();
            missing(name, what, &known, catalog, problems);
        }
    }
}

fn missing(
    name: &Text,
    what: &str,
    known: &[&str],
    catalog: &Catalog,
    problems: &mut Vec<Problem>,
) {
    let searched = catalog.searched_folders();
    let help = match (did_you_mean(name, known.iter().copied()), known) {
        (Some(guess), _) => guess,
        (None, []) => format!("no plugin offers one: {searched}"),
        (None, known) => format!("known: {}; {searched}", one_of(known.iter().copied())),
    };
    problems.push(
        Problem::error(
            name.place(),
            "unknown_plugin",
            format!("unknown {what} `{name}`"),
        )
        .help(help),
    );
}

/// Checks settings and notes what the schema tells about them. Settings that were left out are
/// checked as an empty mapping: required keys are missing at `place` then.
fn filled(
    settings: &mut Settings,
    place: &crate::Place,
    schema: &Value,
    name: &str,
    folder: &Path,
    problems: &mut Vec<Problem>,
) {
    if !settings.place.is_known() {
        settings.place = place.clone();
        settings.node.place = place.clone();
    }
    let Findings {
        templates,
        secrets,
        passwords,
        paths,
    } = check::settings(&settings.node, schema, &words_for(name), problems);
    for pointer in paths {
        match settings.value.pointer_mut(&pointer) {
            Some(Value::String(path)) if path.starts_with("${") => {
                settings.open_paths.push(pointer);
            }
            Some(Value::String(path)) => *path = resolved_path(folder, path),
            _ => {}
        }
    }
    if settings.value.is_null() {
        settings.value = Value::Object(serde_json::Map::new());
    }
    settings.templates = templates;
    settings.secrets = secrets;
    settings.passwords = passwords;
}
