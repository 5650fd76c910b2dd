//! What the host says about itself. Nothing here decides whether the demo passes: the destinations are
//! read for that. Names of the host's events and counters are known in this file alone.

use super::scene::Scene;
use serde_json::Value;
use std::process::{Command, Stdio};

/// The event that a host records at its start when the one before did not end cleanly.
const UNCLEAN_EXIT: &str = "unclean_exit";

/// In that event: writes that may have been on their way to a destination when the host died.
const IN_FLIGHT: &str = "maybe_in_flight";

/// In the status: writes that the destination recognised by their key or target.
const REPEATS: &str = "delivered_as_repeat";

/// In the status: writes that are not settled.
const PENDING: &str = "pending";

/// Writes that were in flight when the host was last killed, by the event it recorded when it started
/// again. None when it does not say.
pub fn in_flight_at_last_exit(scene: &Scene) -> Option<u64> {
    let args = ["events", "--json", "--code", UNCLEAN_EXIT];
    let events = ask(scene, &args)?;
    sum(events.as_array()?.last()?, IN_FLIGHT)
}

/// Writes that the host counts as delivered again and recognised. None when it does not say.
pub fn repeats(scene: &Scene) -> Option<u64> {
    sum(&ask(scene, &["status", "--json"])?, REPEATS)
}

/// Writes that the host has not settled yet. None when it does not say.
pub fn pending(scene: &Scene) -> Option<u64> {
    sum(&ask(scene, &["status", "--json"])?, PENDING)
}

fn ask(scene: &Scene, args: &[&str]) -> Option<Value> {
    let output = Command::new(&scene.host)
        .current_dir(&scene.folder)
        .args(args)
        .arg("--host")
        .arg(format!("http://{}", scene.console))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// The sum of all numbers under a name, at any depth; none when there is none.
fn sum(value: &Value, name: &str) -> Option<u64> {
    let below = |values: &mut dyn Iterator<Item = &Value>| {
        values
            .filter_map(|value| sum(value, name))
            .reduce(|left, right| left + right)
    };
    match value {
        Value::Object(object) => {
            let here = object.get(name).and_then(Value::as_u64);
            let deeper = below(&mut object.values());
            match (here, deeper) {
                (None, None) => None,
                (here, deeper) => Some(here.unwrap_or(0) + deeper.unwrap_or(0)),
            }
        }
        Value::Array(array) => below(&mut array.iter()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_one_name_are_summed_at_any_depth() {
        let status = serde_json::json!({
            "adapters": [{"sends": [{"pending": 2}, {"pending": 3, "other": 9}]}],
            "pending": "not a number"
        });
        assert_eq!(sum(&status, "pending"), Some(5));
        assert_eq!(sum(&status, "absent"), None);
    }
}
