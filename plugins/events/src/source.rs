//! `events.read`: the event log as a stream.
//!
//! An event's id never comes twice in one log, and rises. Where a host's log is begun anew, ids start
//! over: the position then counts one log further, so that the new log's events are not taken for
//! repeats.

use crate::config::{ConnectionConfig, ReadConfig};
use crate::connection::Host;
use consign_plugin::prelude::*;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// What a host calls this source in its state.
const OPERATION: &str = "events.read";
/// Events asked for at a time, and never more than the host has room for.
const PAGE: usize = 500;

/// The source of one adapter.
#[derive(Debug)]
pub struct ReadEvents;

/// A place in the log: after this event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// How often the log was begun anew.
    log: u64,
    /// The event's id; 0 before the first.
    id: i64,
}

#[async_trait]
impl Source for ReadEvents {
    type Connector = Host;
    type Config = ReadConfig;
    const OPERATION: &'static str = OPERATION;
    const TITLE: &'static str = "Read Events";

    fn declaration() -> SourceDeclaration {
        SourceDeclaration {
            delivery: DeliveryType::OffsetTrackedCumulative,
            identity: Identity::Stable("the log and the event's id in it".into()),
            redelivery_bound_ms: None,
            note: "events that the host's own retention deletes before they are read are gone"
                .into(),
        }
    }

    fn resolve(_: &ConnectionConfig, config: &ReadConfig) -> ResolvedSource {
        let declared = Self::declaration();
        ResolvedSource {
            delivery: declared.delivery,
            identity: declared.identity,
            reason: "an event's id never comes twice in one log".into(),
            faults: config.faults(),
        }
    }

    async fn run(
        connection: Arc<Host>,
        config: ReadConfig,
        cx: SourceContext,
    ) -> Result<(), Failure> {
        if let Some(fault) = config.faults().into_iter().next() {
            return Err(Failure::config(("config", fault)));
        }
        check_codes(&connection, &config.codes).await?;
        let mut skip = config.skip_adapters.clone();
        skip.extend(cx.connection().adapter().map(str::to_owned));
        let mut reader = Reader {
            place: begin(&connection, cx.position().as_deref()).await?,
            since_unix_ms: match cx.position() {
                Some(_) => i64::MIN,
                None => now_unix_ms().saturating_sub(millis(&config.look_back)),
            },
            skip,
            notifiers: Mutex::default(),
            host: connection,
            config,
        };
        let (deliverer, controls) = cx.split();
        let mut not_before = Instant::now();
        loop {
            // Dropped and begun anew by a control: what it read may not be what comes next then.
            let read = async {
                tokio::time::sleep_until(not_before).await;
                let Ok(room) = deliverer.ready().await else {
                    // `Stop` comes next.
                    return std::future::pending().await;
                };
                let most = room.clamp(1, PAGE);
                let events = reader.read(most).await?;
                reader.learn(&events).await?;
                Ok::<_, Failure>((events, most))
            };
            let (events, most) = tokio::select! {
                biased;
                control = controls.next() => {
                    match control {
                        Control::Stop => return Ok(()),
                        Control::Settle(settled) => {
                            if let Some(wait) = reader.settle(&settled) {
                                not_before = Instant::now() + wait;
                            }
                        }
                        Control::Seek(position) => reader.seek(&position),
                        _ => {}
                    }
                    continue;
                }
                read = read => read?,
            };
            if events.len() < most {
                not_before = Instant::now() + reader.config.poll_interval.get();
            }
            let messages = reader.messages(&events)?;
            if !messages.is_empty() {
                // An error means that `Stop` comes next.
                let _ = deliverer.deliver(messages).await;
            }
        }
    }
}

/// The host says which code it does not know, and the nearest one.
async fn check_codes(host: &Host, codes: &[String]) -> Result<(), Failure> {
    for code in codes {
        host.events(vec![("code", code.clone()), ("limit", "1".to_owned())])
            .await?;
    }
    Ok(())
}

/// Where to go on: after the position, or in the next log where the log has no such event yet.
async fn begin(host: &Host, position: Option<&[u8]>) -> Result<Place, Failure> {
    let Some(position) = position else {
        return Ok(Place { log: 0, id: 0 });
    };
    let place = Place::read(position).ok_or_else(|| {
        let text = String::from_utf8_lossy(position).into_owned();
        Failure::config(("position_unreadable", format!("`{text}` is no LOG:ID")))
    })?;
    let newest = host
        .events(vec![
            ("newest_first", "true".to_owned()),
            ("limit", "1".to_owned()),
        ])
        .await?;
    let newest = newest.first().and_then(id_of).unwrap_or(0);
    if newest >= place.id {
        return Ok(place);
    }
    tracing::warn!(
        code = "log_begun_anew",
        "the host's newest event is {newest}, and {} was read before: its log was begun anew and is read from its start",
        place.id
    );
    Ok(Place {
        log: place.log.saturating_add(1),
        id: 0,
    })
}

struct Reader {
    host: Arc<Host>,
    config: ReadConfig,
    place: Place,
    since_unix_ms: i64,
    skip: Vec<String>,
    /// Which adapters of the host read events: two of them would else feed each other for ever.
    notifiers: Mutex<HashMap<String, bool>>,
}

impl Reader {
    /// Asks about adapters that were not met before.
    async fn learn(&self, events: &[Value]) -> Result<(), Failure> {
        let unknown: Vec<String> = {
            let known = self.notifiers.lock();
            let met = events.iter().filter_map(adapter_of);
            met.filter(|name| !known.contains_key(*name))
                .map(str::to_owned)
                .collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let adapters = self.host.adapters().await?;
        let mut known = self.notifiers.lock();
        for (name, source) in adapters {
            known.insert(name, source == OPERATION);
        }
        // One that is gone reads nothing any more.
        for name in unknown {
            known.entry(name).or_insert(false);
        }
        Ok(())
    }

    /// The next events, at most so many.
    async fn read(&self, most: usize) -> Result<Vec<Value>, Failure> {
        let query = vec![
            ("after_id", self.place.id.to_string()),
            ("level", self.config.min_level.name().to_owned()),
            ("limit", most.to_string()),
        ];
        self.host.events(query).await
    }

    /// Goes past these events; those that are wanted are messages.
    fn messages(&mut self, events: &[Value]) -> Result<Vec<SourceMessage>, Failure> {
        let mut messages = Vec::with_capacity(events.len());
        for event in events {
            let id =
                id_of(event).ok_or_else(|| Failure::other(("not_events", "an event has no id")))?;
            if id <= self.place.id {
                continue;
            }
            self.place.id = id;
            if self.wants(event) {
                messages.push(message(self.place, event));
            }
        }
        Ok(messages)
    }

    fn wants(&self, event: &Value) -> bool {
        let text = |name: &str| event.get(name).and_then(Value::as_str);
        let code = text("code").unwrap_or_default();
        let listed = self.config.codes.is_empty() || self.config.codes.iter().any(|c| c == code);
        let skipped = adapter_of(event).is_some_and(|adapter| {
            let notifies = self.notifiers.lock().get(adapter) == Some(&true);
            notifies || self.skip.iter().any(|s| s == adapter)
        });
        listed && !skipped && at(event) >= self.since_unix_ms
    }

    /// Goes back to the first event that was not taken; says when to read next, where that changes.
    fn settle(&mut self, settled: &[Settled]) -> Option<Duration> {
        let mut wait = None;
        for one in settled {
            if one.result.acknowledges() {
                continue;
            }
            if let SettleResult::Blocked { retry_after_ms, .. } = one.result {
                wait = wait.max(Some(Duration::from_millis(retry_after_ms)));
            }
            if let Some(place) = one.token::<Place>()
                && place.log == self.place.log
            {
                self.place.id = self.place.id.min(place.id.saturating_sub(1));
            }
        }
        wait
    }

    /// `beginning`, or a position the source gave earlier.
    fn seek(&mut self, position: &[u8]) {
        let place = match position.trim_ascii() {
            b"beginning" => Some(Place {
                log: self.place.log,
                id: 0,
            }),
            other => Place::read(other),
        };
        match place {
            Some(place) => {
                self.place = place;
                self.since_unix_ms = i64::MIN;
            }
            None => tracing::error!(
                code = "seek_refused",
                "expected `beginning` or a position (LOG:ID)"
            ),
        }
    }
}

impl Place {
    fn read(text: &[u8]) -> Option<Self> {
        let (log, id) = std::str::from_utf8(text).ok()?.split_once(':')?;
        Some(Self {
            log: log.parse().ok()?,
            id: id.parse().ok().filter(|id| *id >= 0)?,
        })
    }

    fn text(self) -> String {
        format!("{}:{}", self.log, self.id)
    }
}

fn message(place: Place, event: &Value) -> SourceMessage {
    let text = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or("unknown");
    let position = place.text();
    SourceMessage::new(event.to_string())
        .content_type("application/json")
        .routing_key(format!("{}.{}", text("level"), text("code")))
        .identity(position.as_bytes())
        // A new log is another partition: its ids are not below what was accepted of the old one.
        .partition(format!("log {}", place.log))
        .offset(place.id.unsigned_abs())
        .time_unix_ms(at(event))
        .position(position)
        .token(place)
}

fn adapter_of(event: &Value) -> Option<&str> {
    event.get("adapter").and_then(Value::as_str)
}

fn id_of(event: &Value) -> Option<i64> {
    event.get("id")?.as_i64()
}

fn at(event: &Value) -> i64 {
    event.get("at_unix_ms").and_then(Value::as_i64).unwrap_or(0)
}

fn millis(duration: &HumanDuration) -> i64 {
    i64::try_from(duration.get().as_millis()).unwrap_or(i64::MAX)
}

fn now_unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
