//! Logs, metrics and panics of a plugin, forwarded to the host.
//!
//! A plugin has its own copy of `tracing`; this subscriber is its global one. Levels down to info
//! are forwarded, all of them when `CONSIGN_PLUGIN_LOG` is `debug` or `trace`. Spans are not kept:
//! the place in the host (connection, adapter, route, send) is added to every event instead.

use super::Host;
use consign_abi::{RStr, json};
use serde_json::{Map, Value};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The names every event of a call carries.
pub(crate) struct Place(Map<String, Value>);

impl Place {
    pub(super) fn new(names: &json::Names) -> Arc<Self> {
        let mut fields = Map::new();
        fields.insert("connection".to_owned(), names.connection.clone().into());
        for (name, value) in [
            ("adapter", &names.adapter),
            ("route", &names.route),
            ("send", &names.send),
        ] {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value.clone().into());
            }
        }
        Arc::new(Self(fields))
    }
}

tokio::task_local! {
    static PLACE: Option<Arc<Place>>;
}

/// Runs a future so that its events carry the place.
pub(crate) fn in_place<F: Future>(
    place: Option<Arc<Place>>,
    work: F,
) -> impl Future<Output = F::Output> {
    PLACE.scope(place, work)
}

/// The place of the running task.
pub(crate) fn place() -> Option<Arc<Place>> {
    PLACE.try_with(Clone::clone).ok().flatten()
}

pub(super) fn install(host: Host) {
    let level = match std::env::var("CONSIGN_PLUGIN_LOG").as_deref() {
        Ok("trace") => Level::TRACE,
        Ok("debug") => Level::DEBUG,
        _ => Level::INFO,
    };
    // Fails only when the author has set one of their own: then theirs stays.
    let _ = tracing::subscriber::set_global_default(Forward { host, level });
    std::panic::set_hook(Box::new(move |panic| {
        let at = panic.location().map_or(String::new(), ToString::to_string);
        let message = panic
            .payload()
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.payload().downcast_ref::<String>().cloned())
            .unwrap_or_default();
        let mut fields = Map::new();
        fields.insert("at".to_owned(), at.into());
        send(host, &Level::ERROR, "panic", &message, fields);
    }));
}

/// Reports a metric; nobody hears it outside a host.
pub(crate) fn metric(kind: u32, name: &str, value: f64) {
    if let Some(host) = super::Core::get().and_then(super::Core::host) {
        (host.vtable.metric())(host.number, kind, RStr::from_str(name), value);
    }
}

struct Forward {
    host: Host,
    level: Level,
}

impl Subscriber for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.level.into())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        send(
            self.host,
            metadata.level(),
            metadata.target(),
            &fields.message,
            fields.rest,
        );
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn send(host: Host, level: &Level, target: &str, message: &str, mut fields: Map<String, Value>) {
    if let Some(place) = place() {
        for (name, value) in &place.0 {
            fields.entry(name).or_insert_with(|| value.clone());
        }
    }
    let number = match *level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    };
    let fields = Value::Object(fields).to_string();
    (host.vtable.log())(
        host.number,
        number,
        RStr::from_str(target),
        RStr::from_str(message),
        RStr::from_str(&fields),
    );
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        self.rest.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.put(field, format!("{value:?}").into());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.put(field, value.into());
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}
