//! Sends: values that must agree, and who waits for whom.

use super::unknown;
use crate::model::{Delivery, Order, WhenFull};
use crate::{Catalog, Config, OnFailure, Problem, Require, Route, Send, Text};
use consign_manifest::OperationDeclaration;
use std::collections::HashMap;

/// Values of one send that must agree with each other.
pub(super) fn values(route: &Route, send: &Send, problems: &mut Vec<Problem>) {
    let backoff = &send.retry.backoff;
    if backoff.initial.as_ms() == 0 {
        problems.push(Problem::error(
            &backoff.place,
            "out_of_range",
            "`initial`: expected at least 1ms, got 0s",
        ));
    }
    if backoff.max < backoff.initial {
        problems.push(Problem::error(
            if backoff.place.is_known() {
                &backoff.place
            } else {
                &send.place
            },
            "wrong_value",
            format!(
                "`backoff`: the longest wait ({}) is shorter than the first ({})",
                backoff.max, backoff.initial
            ),
        ));
    }
    for (key, duration, place) in [
        ("timeout", Some(send.timeout), &send.place),
        ("max_age", send.retry.max_age, &send.retry.place),
        ("expires_after", send.expires_after, &send.place),
    ] {
        if duration.is_some_and(|d| d.as_ms() == 0) {
            problems.push(Problem::error(
                place,
                "out_of_range",
                format!("`{key}`: expected at least 1ms, got 0s"),
            ));
        }
    }
    for (key, size) in [("quota", send.quota), ("max_bytes", send.batch.max_bytes)] {
        if size.as_bytes() == 0 {
            problems.push(Problem::error(
                &send.place,
                "out_of_range",
                format!("`{key}`: expected a size above 0"),
            ));
        }
    }
    if send.delivery == Delivery::Direct {
        direct(send, problems);
    }
    let required = send.require.or(route.require);
    if required == Some(Require::EffectivelyOnce) && send.when_full == WhenFull::Drop {
        problems.push(Problem::error(
            &send.place,
            "contradiction",
            format!(
                "the send `{}` requires effectively once and drops writes when it is full",
                send.id
            ),
        ));
    }
}

/// What only makes sense for a lane is refused on a direct send rather than silently ignored.
fn direct(send: &Send, problems: &mut Vec<Problem>) {
    let mut refuse = |what: &str| {
        problems.push(
            Problem::error(
                &send.place,
                "contradiction",
                format!("the send `{}` is direct, and {what}", send.id),
            )
            .help("use `delivery: buffered`, or leave it out"),
        );
    };
    if send.when_full == WhenFull::Drop {
        refuse("`when_full` is for buffered sends");
    }
    if send.expires_after.is_some() {
        refuse("`expires_after` is for buffered sends");
    }
    if matches!(send.order, Order::ByKey(_)) {
        refuse("`order: { by_key: … }` is for buffered sends");
    }
    if !send.formerly.is_empty() {
        refuse("it has no backlog to take over with `formerly`");
    }
}

/// `after`: who must exist, may be waited for, and does not wait in a circle.
pub(super) fn dependencies(route: &Route, catalog: &Catalog, problems: &mut Vec<Problem>) {
    for send in &route.send {
        let Some(after) = &send.after else { continue };
        if *after == send.id {
            problems.push(
                Problem::error(
                    after.place(),
                    "after_itself",
                    format!("the send `{}` waits for itself", send.id),
                )
                .help("`after` names the send that must be delivered first"),
            );
            continue;
        }
        let Some(parent) = route.send.iter().find(|other| other.id == *after) else {
            let known = route
                .send
                .iter()
                .map(|other| &other.id)
                .filter(|id| **id != send.id);
            unknown(after, "send", known, problems);
            continue;
        };
        if send.delivery == Delivery::Direct && parent.delivery == Delivery::Buffered {
            problems.push(
                Problem::error(
                    after.place(),
                    "direct_after_buffered",
                    format!(
                        "the direct send `{}` waits for the buffered send `{}`, which is delivered later, when the source has its answer",
                        send.id, parent.id
                    ),
                )
                .help(format!("make `{}` buffered too, or `{}` direct", send.id, parent.id)),
            );
        }
        if is_unconfirmed(parent, catalog) {
            problems.push(Problem::error(
                after.place(),
                "after_unconfirmed",
                format!(
                    "`{}` ({}) never confirms, so nothing can wait for it to be delivered",
                    parent.id, parent.operation
                ),
            ));
        }
    }
    circles(route, problems);
}

fn is_unconfirmed(send: &Send, catalog: &Catalog) -> bool {
    matches!(
        catalog.operation(&send.operation).map(|o| &o.declaration),
        Some(OperationDeclaration::Sink(sink)) if sink.unconfirmed
    )
}

fn circles(route: &Route, problems: &mut Vec<Problem>) {
    let parents: HashMap<&str, &Text> = route
        .send
        .iter()
        .filter_map(|send| Some((send.id.as_str(), send.after.as_ref()?)))
        .filter(|(id, after)| *id != after.as_str())
        .collect();
    let mut told: Vec<&str> = Vec::new();
    for send in &route.send {
        let mut path = vec![send.id.as_str()];
        let mut at = send.id.as_str();
        while let Some(next) = parents.get(at) {
            if let Some(start) = path.iter().position(|id| *id == next.as_str()) {
                let circle = path.get(start..).unwrap_or_default();
                if !circle.iter().any(|id| told.contains(id)) {
                    let shown: Vec<String> = circle
                        .iter()
                        .chain(circle.first())
                        .map(|id| format!("`{id}`"))
                        .collect();
                    problems.push(Problem::error(
                        next.place(),
                        "after_circle",
                        format!(
                            "sends wait for each other in a circle: {}",
                            shown.join(" after ")
                        ),
                    ));
                    told.extend(circle);
                }
                break;
            }
            path.push(next.as_str());
            at = next.as_str();
        }
    }
}

/// Divert targets exist, are buffered, and lead nowhere in a circle.
pub(super) fn diverts(config: &Config, problems: &mut Vec<Problem>) {
    let mut lanes: HashMap<String, (&Send, Option<&OnFailure>)> = HashMap::new();
    for adapter in &config.adapters {
        for route in &adapter.routes {
            for send in &route.send {
                let handler = [&send.on_failure, &route.on_failure, &adapter.on_failure]
                    .into_iter()
                    .find_map(Option::as_ref);
                let lane = format!("{}/{}/{}", adapter.name, route.name, send.id);
                lanes.insert(lane, (send, handler));
            }
        }
    }
    let mut ids: Vec<Text> = lanes.keys().map(|id| Text::from(id.as_str())).collect();
    ids.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    let mut done: Vec<&Text> = Vec::new();
    for target in all_targets(config).filter(|t| t.split('/').count() == 3) {
        match lanes.get(target.as_str()) {
            None => unknown(target, "send", ids.iter(), problems),
            Some((send, _)) if send.delivery == Delivery::Direct => {
                problems.push(Problem::error(
                    target.place(),
                    "divert_to_direct",
                    format!("`divert`: `{target}` is direct, and only a buffered send can be diverted to"),
                ));
            }
            Some(_) => {}
        }
        done.push(target);
    }
    for id in &ids {
        let mut open: Vec<&str> = targets(&lanes, id).map(Text::as_str).collect();
        let mut seen: Vec<&str> = Vec::new();
        while let Some(next) = open.pop() {
            if next == id.as_str() {
                let place = done
                    .iter()
                    .find(|target| target.as_str() == next)
                    .map_or_else(|| config.place.clone(), |target| target.place().clone());
                problems.push(Problem::error(
                    &place,
                    "divert_circle",
                    format!("`divert`: writes of `{id}` could be diverted in a circle, back to it"),
                ));
                break;
            }
            if !seen.contains(&next) {
                seen.push(next);
                open.extend(targets(&lanes, next).map(Text::as_str));
            }
        }
    }
}

fn targets<'a>(
    lanes: &HashMap<String, (&'a Send, Option<&'a OnFailure>)>,
    id: &str,
) -> impl Iterator<Item = &'a Text> + use<'a> {
    lanes
        .get(id)
        .and_then(|(_, handler)| *handler)
        .into_iter()
        .flat_map(|handler| &handler.divert)
}

fn all_targets(config: &Config) -> impl Iterator<Item = &Text> {
    config.adapters.iter().flat_map(|adapter| {
        let of_sends = adapter.routes.iter().flat_map(|route| {
            route
                .send
                .iter()
                .map(|send| &send.on_failure)
                .chain([&route.on_failure])
        });
        of_sends
            .chain([&adapter.on_failure])
            .filter_map(Option::as_ref)
            .flat_map(|handler| &handler.divert)
    })
}
