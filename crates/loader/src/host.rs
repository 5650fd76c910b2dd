//! The host's vtable: what plugins call. Every function only looks something up and queues.

use crate::call::Failure;
use crate::registry::REGISTRY;
use consign_abi::{Host, HostRef, MessageBatch, PrefixTypeTrait, RStr, RString, RVec, Reply};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

/// Metrics a plugin may have; more names are dropped, with one warning.
const METRICS_AT_MOST: usize = 256;

/// A metric a plugin reports.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginMetric {
    /// The plugin's name.
    pub plugin: String,
    /// The metric's name, as the plugin gives it.
    pub name: String,
    /// Whether it only grows.
    pub is_counter: bool,
    /// Its value now.
    pub value: f64,
}

type Metrics = BTreeMap<(u64, String), (bool, f64)>;

static NAMES: Mutex<BTreeMap<u64, Arc<str>>> = Mutex::new(BTreeMap::new());
static METRICS: Mutex<Metrics> = Mutex::new(BTreeMap::new());

static VTABLE: LazyLock<HostRef> = LazyLock::new(|| {
    Host {
        complete,
        deliver,
        revoked,
        fault,
        log,
        metric,
    }
    .leak_into_prefix()
});

pub(crate) fn vtable() -> HostRef {
    *VTABLE
}

/// Gives a plugin's number its name, for logs and metrics.
pub(crate) fn introduce(number: u64, name: &str) {
    NAMES.lock().insert(number, name.into());
}

pub(crate) fn metrics() -> Vec<PluginMetric> {
    let names = NAMES.lock();
    let name_of = |number| names.get(&number).map(ToString::to_string);
    METRICS
        .lock()
        .iter()
        .map(|((plugin, name), (is_counter, value))| PluginMetric {
            plugin: name_of(*plugin).unwrap_or_default(),
            name: name.clone(),
            is_counter: *is_counter,
            value: *value,
        })
        .collect()
}

/// A panic of ours must not unwind into the plugin.
fn guarded(body: impl FnOnce()) {
    // There is nobody to tell: the panic hook has logged it.
    let _ = catch_unwind(AssertUnwindSafe(body));
}

extern "C" fn complete(token: u64, generation: u64, reply: Reply) {
    guarded(|| REGISTRY.complete(token, generation, reply));
}

extern "C" fn deliver(token: u64, generation: u64, batch: MessageBatch) {
    guarded(|| REGISTRY.deliver(token, generation, batch));
}

extern "C" fn revoked(token: u64, generation: u64, revoke: u64, partitions: RVec<RString>) {
    guarded(|| {
        let partitions = partitions.into_iter().map(RString::into_string).collect();
        REGISTRY.revoked(token, generation, revoke, partitions);
    });
}

extern "C" fn fault(token: u64, generation: u64, failure: RVec<u8>) {
    guarded(|| REGISTRY.fault(token, generation, Failure::from_json(&failure)));
}

extern "C" fn log(plugin: u64, level: u32, target: RStr<'_>, message: RStr<'_>, fields: RStr<'_>) {
    guarded(|| {
        let plugin = NAMES.lock().get(&plugin).cloned();
        let plugin = plugin.as_deref().unwrap_or("unknown");
        let (target, message, fields) = (target.as_str(), message.as_str(), fields.as_str());
        match level {
            1 => tracing::error!(target: "plugin", plugin, from = target, fields, "{message}"),
            2 => tracing::warn!(target: "plugin", plugin, from = target, fields, "{message}"),
            3 => tracing::info!(target: "plugin", plugin, from = target, fields, "{message}"),
            4 => tracing::debug!(target: "plugin", plugin, from = target, fields, "{message}"),
            _ => tracing::trace!(target: "plugin", plugin, from = target, fields, "{message}"),
        }
    });
}

extern "C" fn metric(plugin: u64, kind: u32, name: RStr<'_>, value: f64) {
    guarded(|| {
        let mut metrics = METRICS.lock();
        let key = (plugin, name.as_str().to_owned());
        if !metrics.contains_key(&key) {
            let own = metrics.range((plugin, String::new())..(plugin + 1, String::new()));
            if own.count() >= METRICS_AT_MOST {
                tracing::warn!(target: "plugin", plugin, metric = name.as_str(), "too many metrics: dropped");
                return;
            }
        }
        let entry = metrics.entry(key).or_insert((kind == 1, 0.0));
        if kind == 1 {
            entry.1 += value;
        } else {
            entry.1 = value;
        }
    });
}
