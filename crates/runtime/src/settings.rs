//! From configuration to the settings of buffer and delivery: the one place where their words meet.

use crate::plan::SendPlan;
use consign_buffer::{Buffer, Options};
use consign_config::{Adapter, Config, Delivery, Order, Require, Route, Send};
use consign_delivery::{
    AfterPark, Backoff, BatchConfig, BatchKind, ClassConfig, ClassId, ConnectionConfig,
    ConnectionId, DirectMode, HostLimits, LaneConfig, LaneId, OnAmbiguous, OnWindowPassed, Policy,
    Repeat,
};
use consign_ledger::Redactor;
use consign_manifest::{DeliveryType, RepeatKind, Window};
use consign_promise::Level;
use std::time::Duration;

/// How long a probe may take.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(30);
/// Taken off a window: clocks of host and destination differ, and a request takes time.
const WINDOW_MARGIN_MS: u64 = 5_000;
/// Waits between probes of a closed gate. Short at first, because most outages are; half a minute at the
/// most, so that a destination that is back is not left waiting.
const GATE_BACKOFF: Backoff = Backoff {
    initial_ms: 250,
    max_ms: 30_000,
};

/// The buffer's sizes.
pub fn buffer_options(config: &Config) -> Options {
    Options {
        log_bytes: config.buffer.log_size.as_bytes(),
        body_memory_bytes: config.buffer.memory.as_bytes(),
        ..Options::default()
    }
}

/// The ledger's size.
pub fn ledger_options(config: &Config) -> consign_ledger::Options {
    consign_ledger::Options {
        max_bytes: Some(config.failed.quota.as_bytes()),
        ..consign_ledger::Options::default()
    }
}

/// The host's limits and classes; class 0 is the default.
pub fn limits(config: &Config) -> HostLimits {
    let classes = (1_u32..)
        .zip(&config.classes)
        .map(|(number, class)| ClassConfig {
            id: ClassId(number),
            reserved: class.reserved_slots(),
            max_in_flight: class.max_in_flight,
            // A rate below one a second rounds up: 0 would stop the class.
            rate_per_s: class
                .rate_per_s
                .map(|rate| rate.ceil().clamp(1.0, f64::from(u32::MAX)) as u32),
        })
        .collect();
    HostLimits {
        max_in_flight: config.max_in_flight,
        classes,
    }
}

/// A connection's settings.
pub fn connection(config: &Config, id: ConnectionId) -> ConnectionConfig {
    ConnectionConfig {
        id,
        backoff: GATE_BACKOFF,
        probe_timeout_ms: u64::try_from(PROBE_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
        cancel_grace_ms: config.cancel_grace.as_ms(),
    }
}

/// A lane's settings.
#[allow(
    clippy::too_many_arguments,
    reason = "one place joins what six others say about a send"
)]
pub fn lane(
    config: &Config,
    route: &Route,
    send: &Send,
    plan: &SendPlan,
    id: LaneId,
    connection: ConnectionId,
    offset_tracked: bool,
    has_handler: bool,
) -> LaneConfig {
    let class = send
        .class
        .as_ref()
        .and_then(|name| {
            config
                .classes
                .iter()
                .position(|class| class.name.as_str() == name.as_str())
        })
        .and_then(|position| u32::try_from(position.saturating_add(1)).ok())
        .unwrap_or(0);
    let direct = match (send.delivery, offset_tracked) {
        (Delivery::Buffered, _) => None,
        (Delivery::Direct, true) => Some(DirectMode::Hold),
        (Delivery::Direct, false) => Some(DirectMode::Answer),
    };
    let target = if plan.target_id.is_empty() {
        format!("{}/{}", route.name, send.id)
    } else {
        plan.target_id.clone()
    };
    LaneConfig {
        class: ClassId(class),
        direct,
        order: match send.order {
            Order::Strict => consign_delivery::Order::Strict,
            Order::ByKey(_) => consign_delivery::Order::ByKey,
            Order::None => consign_delivery::Order::None,
        },
        after_park: match send.after_park {
            consign_config::AfterPark::Continue => AfterPark::Continue,
            consign_config::AfterPark::HoldKey => AfterPark::HoldKey,
        },
        batch: BatchConfig {
            kind: match plan.declaration.batch {
                consign_manifest::BatchKind::Atomic => BatchKind::Atomic,
                consign_manifest::BatchKind::Prefix => BatchKind::Prefix,
                consign_manifest::BatchKind::Independent => BatchKind::Independent,
            },
            sealed: plan.declaration.sealed,
            max_writes: send.batch.max_writes,
            max_bytes: send.batch.max_bytes.as_bytes(),
            linger_ms: send.batch.linger.as_ms(),
        },
        in_flight_limit: send.in_flight_limit(),
        policy: Policy {
            max_attempts: send.retry.max_attempts,
            max_age_ms: send.retry.max_age.map(|age| age.as_ms()),
            backoff: Backoff {
                initial_ms: send.retry.backoff.initial.as_ms(),
                max_ms: send.retry.backoff.max.as_ms(),
            },
        },
        timeout_ms: send.timeout.as_ms(),
        repeat: repeat(route, send, plan, direct),
        on_ambiguous: match send.on_ambiguous {
            consign_config::OnAmbiguous::Hold => OnAmbiguous::Hold,
            consign_config::OnAmbiguous::Park => OnAmbiguous::Park,
            consign_config::OnAmbiguous::Retry => OnAmbiguous::Retry,
        },
        skip_releases_dependents: send.when_parent_skipped
            == consign_config::ParentSkipped::Release,
        has_handler,
        inspected: plan.promise.repeat == RepeatKind::WriteKey,
        ..LaneConfig::new(id, connection, target)
    }
}

fn repeat(route: &Route, send: &Send, plan: &SendPlan, direct: Option<DirectMode>) -> Repeat {
    if direct == Some(DirectMode::Answer) || plan.promise.level <= Level::AtMostOnce {
        return Repeat::Never;
    }
    if plan.promise.level != Level::EffectivelyOnce {
        return Repeat::SecondCopy;
    }
    let window_ms = match plan.promise.window {
        Window::DurationMs(ms) => Some(ms),
        // Counts, words and "until the next write" have no length in time; order and sealed batches keep them.
        _ => None,
    };
    let require = send.require.or(route.require);
    let parks = send.on_window_passed == Some(consign_config::OnWindowPassed::Park)
        || (send.on_window_passed.is_none() && require == Some(Require::EffectivelyOnce));
    Repeat::Dropped {
        window_ms,
        margin_ms: window_ms.map_or(0, |window| WINDOW_MARGIN_MS.min(window / 4)),
        on_window_passed: if parks {
            OnWindowPassed::Park
        } else {
            OnWindowPassed::Resend
        },
    }
}

/// How long accepted keys of an adapter are remembered: for a client's keys, the window the operator
/// chose; for a source that redelivers, as long as it may do so after its acknowledgement was lost.
pub fn key_window_ms(
    config: &Config,
    adapter: &Adapter,
    delivery: DeliveryType,
    redelivery_bound_ms: Option<u64>,
) -> u64 {
    if delivery.is_offset_tracked() {
        redelivery_bound_ms.unwrap_or(REDELIVERY_BOUND_MS)
    } else {
        adapter
            .idempotency_window
            .unwrap_or(config.idempotency_window)
            .as_ms()
    }
}

/// How long a source may redeliver what was acknowledged, where it does not say: a day.
const REDELIVERY_BOUND_MS: u64 = 86_400_000;

/// Texts shorter than this are no secrets worth hiding, and hiding them would blank every sentence.
const SHORTEST_SECRET: usize = 4;

/// Takes the configuration's secrets and the operator's fields out of events and views.
pub fn redactor(config: &Config) -> Redactor {
    let connections = config.connections.iter().map(|c| &c.config);
    let sources = config.adapters.iter().map(|a| &a.source.config);
    let sends = config
        .adapters
        .iter()
        .flat_map(|a| &a.routes)
        .flat_map(|r| &r.send)
        .map(|s| &s.config);
    let mut secrets: Vec<String> = connections
        .chain(sources)
        .chain(sends)
        .flat_map(|settings| {
            let pointers = settings
                .passwords
                .iter()
                .chain(settings.secrets.iter().map(|secret| &secret.pointer));
            pointers
                .filter_map(|pointer| settings.value.pointer(pointer)?.as_str().map(str::to_owned))
        })
        .filter(|secret| secret.len() >= SHORTEST_SECRET)
        .collect();
    secrets.sort();
    secrets.dedup();
    // `body.card.number` names a field, `x-token` a header.
    let (mut fields, mut headers) = (Vec::new(), Vec::new());
    for name in &config.redact {
        let name = name.as_str().trim_start_matches('.');
        match name.strip_prefix("body.") {
            Some(field) => fields.push(field.to_owned()),
            None => headers.push(name.trim_start_matches("headers.").to_owned()),
        }
    }
    Redactor::new(secrets, &headers, &fields)
}

/// The name of the position the host keeps for an adapter's source.
pub fn position_name(adapter: &Adapter) -> String {
    format!("{}/source", adapter.name)
}

/// The epoch in an adapter's write keys: 0 until a deliberate rewind raises it.
pub fn epoch(buffer: &Buffer, adapter: &Adapter) -> u64 {
    buffer
        .position(&format!("{}/epoch", adapter.name))
        .and_then(|bytes| Some(u64::from_le_bytes(bytes.as_ref().try_into().ok()?)))
        .unwrap_or(0)
}
