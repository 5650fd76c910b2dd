//! What a schema cannot express: names that must exist, sends that depend on each other, values
//! that must agree, and plugins' settings against the plugins' own schemas.

mod sends;
mod settings;

pub(crate) use settings::loose;

use crate::model::Delivery;
use crate::nearest::{did_you_mean, one_of};
use crate::{Adapter, Catalog, Config, OnFailure, Problem, Route, Text};
use std::collections::HashMap;
use std::path::Path;

/// The smallest commit log: below it, checkpoints would follow each other without a pause.
const MIN_LOG_BYTES: u64 = 16 << 20;
/// The least memory for bodies.
const MIN_MEMORY_BYTES: u64 = 1 << 20;
/// Names are parts of lane ids (`adapter/route/send`), file names and metric labels.
const MAX_NAME_BYTES: usize = 64;

/// Checks everything that the host's schema cannot, and fills in what the plugins' schemas tell.
pub(crate) fn check(config: &mut Config, catalog: &Catalog, problems: &mut Vec<Problem>) {
    host(config, problems);
    for connection in &config.connections {
        name(&connection.name, "connection", problems);
    }
    for class in &config.classes {
        name(&class.name, "class", problems);
    }
    classes(config, problems);
    let mut lanes: HashMap<String, Text> = HashMap::new();
    for adapter in &config.adapters {
        name(&adapter.name, "adapter", problems);
        check_adapter(config, adapter, catalog, problems, &mut lanes);
    }
    former_adapters(config, problems);
    sends::diverts(config, problems);
    settings::check(config, catalog, problems);
}

fn host(config: &Config, problems: &mut Vec<Problem>) {
    let buffer = &config.buffer;
    for (key, size, least) in [
        ("log_size", buffer.log_size, MIN_LOG_BYTES),
        ("memory", buffer.memory, MIN_MEMORY_BYTES),
    ] {
        if size.as_bytes() < least {
            problems.push(Problem::error(
                &buffer.place,
                "out_of_range",
                format!("`{key}`: expected at least {}MiB, got {size}", least >> 20),
            ));
        }
    }
    if let Some(console) = &config.console {
        match console.listen.parse::<std::net::SocketAddr>() {
            Err(_) => problems.push(
                Problem::error(
                    console.listen.place(),
                    "wrong_value",
                    format!(
                        "`listen`: expected an address and a port, got `{}`",
                        console.listen
                    ),
                )
                .help("for example `127.0.0.1:8640`, or `[::1]:8640`"),
            ),
            Ok(address) if !address.ip().is_loopback() && console.token.is_none() => {
                problems.push(
                    Problem::error(
                        console.listen.place(),
                        "open_console",
                        format!(
                            "`listen`: {address} can be reached from other machines and there is no `token`"
                        ),
                    )
                    .help("add `token: ${env:CONSIGN_TOKEN}`, or listen on 127.0.0.1"),
                );
            }
            Ok(_) => {}
        }
        if let Some(token) = &console.token {
            problems.extend(crate::secrets::scan(token, "").1);
            if token.is_empty() {
                problems.push(Problem::error(
                    token.place(),
                    "wrong_value",
                    "`token` is empty",
                ));
            }
        }
    }
}

fn classes(config: &Config, problems: &mut Vec<Problem>) {
    let reserved: u64 = config
        .classes
        .iter()
        .map(|class| u64::from(class.reserved_slots()))
        .sum();
    if reserved > u64::from(config.max_in_flight) {
        let place = config.classes.last().map_or(&config.place, |c| &c.place);
        problems.push(
            Problem::error(
                place,
                "reserved_too_much",
                format!(
                    "the classes reserve {reserved} slots and the host has {} (`max_in_flight`)",
                    config.max_in_flight
                ),
            )
            .help("every class reserves at least one: lower `reserved`, or raise `max_in_flight`"),
        );
    }
    for class in &config.classes {
        if let Some(limit) = class.max_in_flight
            && limit < class.reserved_slots()
        {
            problems.push(Problem::error(
                &class.place,
                "wrong_value",
                format!(
                    "the class `{}` reserves {} slots and may use only {limit} (`max_in_flight`)",
                    class.name,
                    class.reserved_slots()
                ),
            ));
        }
    }
}

fn check_adapter(
    config: &Config,
    adapter: &Adapter,
    catalog: &Catalog,
    problems: &mut Vec<Problem>,
    lanes: &mut HashMap<String, Text>,
) {
    connection_exists(config, &adapter.source.connection, problems);
    handler_has_place(&adapter.on_failure, problems);
    unique(adapter.routes.iter().map(|r| &r.name), "route", problems);
    for route in &adapter.routes {
        name(&route.name, "route", problems);
        handler_has_place(&route.on_failure, problems);
        unique(route.send.iter().map(|s| &s.id), "send", problems);
        for send in &route.send {
            name(&send.id, "send", problems);
            connection_exists(config, &send.connection, problems);
            handler_has_place(&send.on_failure, problems);
            if let Some(class) = &send.class
                && config.class(class).is_none()
            {
                unknown(
                    class,
                    "class",
                    config.classes.iter().map(|c| &c.name),
                    problems,
                );
            }
            sends::values(route, send, problems);
            lane_names(adapter, route, send, lanes, problems);
        }
        sends::dependencies(route, catalog, problems);
    }
    unreachable_routes(adapter, problems);
}

/// A route without conditions claims everything: what follows is never reached.
fn unreachable_routes(adapter: &Adapter, problems: &mut Vec<Problem>) {
    let claims_all = |route: &&Route| {
        route.when.is_none()
            && (route.patterns.is_empty() || route.patterns.iter().any(|p| *p == "#"))
    };
    let mut after = adapter.routes.iter().skip_while(|route| !claims_all(route));
    let Some(all) = after.next() else { return };
    for route in after {
        problems.push(Problem::warning(
            route.name.place(),
            "unreachable_route",
            format!(
                "no message reaches the route `{}`: `{}`, before it, has no condition and claims them all",
                route.name, all.name
            ),
        ));
    }
}

/// Every lane has one name for ever, and no two lanes share a present or former one.
fn lane_names(
    adapter: &Adapter,
    route: &Route,
    send: &crate::Send,
    lanes: &mut HashMap<String, Text>,
    problems: &mut Vec<Problem>,
) {
    if send.delivery == Delivery::Direct {
        return;
    }
    let lane = |id: &str| format!("{}/{}/{id}", adapter.name, route.name);
    let present = lane(&send.id);
    let former = send.formerly.iter().map(|former| {
        let id = match former.contains('/') {
            true => former.as_str().to_owned(),
            false => lane(former),
        };
        (id, former)
    });
    for (id, text) in std::iter::once((present.clone(), &send.id)).chain(former) {
        if text.as_str() != send.id.as_str() && id.split('/').count() != 3 {
            problems.push(Problem::error(
                text.place(),
                "wrong_value",
                format!("`formerly`: expected `adapter/route/send` or an id, got `{text}`"),
            ));
            continue;
        }
        if let Some(other) = lanes.get(&id) {
            // Duplicate ids in one route are told apart elsewhere.
            if other.as_str() != text.as_str() || other.contains('/') {
                problems.push(Problem::error(
                    text.place(),
                    "duplicate_lane",
                    format!(
                        "the lane `{id}` is also named in line {}: one backlog cannot go to two sends",
                        other.place().line
                    ),
                ));
            }
            continue;
        }
        lanes.insert(id, text.clone());
    }
}

fn former_adapters(config: &Config, problems: &mut Vec<Problem>) {
    for adapter in &config.adapters {
        for former in &adapter.formerly {
            let taken = config.adapter(former).is_some()
                || config
                    .adapters
                    .iter()
                    .any(|other| other.name != adapter.name && other.formerly.contains(former));
            if taken {
                problems.push(Problem::error(
                    former.place(),
                    "duplicate_lane",
                    format!(
                        "`formerly`: `{former}` is the name, or a former name, of another adapter"
                    ),
                ));
            }
        }
    }
}

fn handler_has_place(on_failure: &Option<OnFailure>, problems: &mut Vec<Problem>) {
    if let Some(on_failure) = on_failure {
        for target in &on_failure.divert {
            if target.split('/').count() != 3 {
                problems.push(Problem::error(
                    target.place(),
                    "wrong_value",
                    format!("`divert`: expected `adapter/route/send`, got `{target}`"),
                ));
            }
        }
    }
}

fn connection_exists(config: &Config, name: &Text, problems: &mut Vec<Problem>) {
    if config.connection(name).is_none() {
        let known = config.connections.iter().map(|c| &c.name);
        unknown(name, "connection", known, problems);
    }
}

/// "unknown connection `x`", with the nearest or all known ones.
fn unknown<'a>(
    name: &Text,
    what: &str,
    known: impl Iterator<Item = &'a Text>,
    problems: &mut Vec<Problem>,
) {
    let known: Vec<&str> = known.map(Text::as_str).collect();
    let help =
        did_you_mean(name, known.iter().copied()).unwrap_or_else(|| match known.as_slice() {
            [] => format!("there is no {what} in this configuration"),
            known => format!("known: {}", one_of(known.iter().copied())),
        });
    problems.push(
        Problem::error(
            name.place(),
            "unknown_name",
            format!("unknown {what} `{name}`"),
        )
        .help(help),
    );
}

fn unique<'a>(names: impl Iterator<Item = &'a Text>, what: &str, problems: &mut Vec<Problem>) {
    let mut seen: HashMap<&str, &Text> = HashMap::new();
    for name in names {
        match seen.get(name.as_str()) {
            Some(first) => problems.push(Problem::error(
                name.place(),
                "duplicate_name",
                format!(
                    "the {what} `{name}` stands here a second time; the first is in line {}",
                    first.place().line
                ),
            )),
            None => {
                seen.insert(name.as_str(), name);
            }
        }
    }
}

fn name(name: &Text, what: &str, problems: &mut Vec<Problem>) {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if starts && name.len() <= MAX_NAME_BYTES && name.chars().all(fits) {
        return;
    }
    problems.push(
        Problem::error(
            name.place(),
            "wrong_name",
            format!("`{name}` is not a valid {what} name"),
        )
        .help(format!(
            "a name has letters a-z, A-Z, digits, `_`, `-` and `.`, begins with a letter, digit or `_`, and has at most {MAX_NAME_BYTES} characters"
        )),
    );
}

/// A path in a plugin's settings, relative to the configuration file's folder.
pub(crate) fn resolved_path(folder: &Path, path: &str) -> String {
    folder.join(path).display().to_string()
}
