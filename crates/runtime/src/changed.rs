//! Which settings of the host, its adapters and its routes differ between two configurations, by name.
//!
//! Connections and sends are not looked into: a reload tells of them by what it did with their lanes.

use consign_config::Config;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// What a reload tells of elsewhere.
const OF_THE_HOST: [&str; 6] = [
    "data_dir",
    "plugins",
    "console",
    "buffer",
    "connections",
    "adapters",
];

/// Settings that differ, as `failed`, `classes`, `orders.key` (adapter) and `orders/eu.when` (route). Adapters and
/// routes that only one of the two has are not in it, but `orders.routes` is where routes came, went or moved.
pub(crate) fn settings(old: &Config, new: &Config) -> Vec<String> {
    let mut changed = differing("", old, new, &OF_THE_HOST);
    for adapter in &new.adapters {
        let Some(before) = old.adapter(&adapter.name) else {
            continue;
        };
        let name = format!("{}.", adapter.name);
        changed.extend(differing(&name, before, adapter, &["source", "routes"]));
        let names = |of: &consign_config::Adapter| -> Vec<String> {
            of.routes
                .iter()
                .map(|route| route.name.to_string())
                .collect()
        };
        if names(before) != names(adapter) {
            changed.push(format!("{name}routes"));
        }
        for route in &adapter.routes {
            if let Some(before) = before.route(&route.name) {
                let name = format!("{}/{}.", adapter.name, route.name);
                changed.extend(differing(&name, before, route, &["send"]));
            }
        }
    }
    changed
}

/// Fields that differ, with `prefix` before each.
fn differing<T: Serialize>(prefix: &str, old: &T, new: &T, but: &[&str]) -> Vec<String> {
    let (old, new) = (fields(old), fields(new));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    names
        .into_iter()
        .filter(|name| !but.contains(&name.as_str()) && old.get(*name) != new.get(*name))
        .map(|name| format!("{prefix}{name}"))
        .collect()
}

fn fields(of: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(of) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}
