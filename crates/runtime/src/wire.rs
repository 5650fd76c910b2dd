//! Numbers the connections and lanes of a configuration, and says what each part is told about them.

use crate::acceptance::{Lane, RouteTarget, SendTarget};
use crate::clock;
use crate::engine::FIRST_DIRECT_LANE;
use crate::events::Events;
use crate::handlers::{Handler, HandlerMaker};
use crate::host::{StartError, names};
use crate::lanes::LaneInfo;
use crate::plan::Plan;
use crate::plugs::{ConnectionSpec, SinkSpec};
use crate::settings;
use crate::templates::Templates;
use consign_buffer::{Buffer, LaneSpec, ScopeSpec};
use consign_config::{Adapter, Config, Delivery, Send as SendConfig};
use consign_delivery::{ConnectionId, LaneConfig, LaneId};
use consign_ledger::{Code, Event};
use consign_loader::Names;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// One send, wired: what each part is told about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Wire {
    /// For people.
    pub info: LaneInfo,
    /// For the plugin.
    pub sink: SinkSpec,
    /// For the machine; without what the lane's own state adds.
    pub settings: LaneConfig,
    /// Names what it writes to: writes that may have landed there are sent nowhere else.
    pub target: String,
}

/// Everything the parts need to know about each other, by number.
pub struct Wired {
    /// Connections, and whether a send uses them.
    pub connections: BTreeMap<u32, (ConnectionSpec, bool)>,
    /// Sends by lane.
    pub lanes: BTreeMap<u32, Wire>,
    /// Of each adapter, in the order of the configuration.
    pub routes: Vec<Vec<RouteTarget>>,
    /// Error handlers by lane.
    pub handlers: Vec<(LaneId, Handler)>,
}

/// Numbers given so far. None is given twice: what changes gets another, so that what is still on its
/// way under the old one is never taken for the new.
#[derive(Debug, Default)]
pub struct Numbers {
    connections: BTreeMap<String, (u32, ConnectionSpec)>,
    next_connection: u32,
    direct: BTreeMap<String, (LaneId, Wire, Arc<AtomicU64>)>,
    last_direct: u32,
}

impl Numbers {
    fn connection(&mut self, spec: &ConnectionSpec) -> u32 {
        if let Some((number, known)) = self.connections.get(&spec.name)
            && known == spec
        {
            return *number;
        }
        let number = self.next_connection;
        self.next_connection = number.saturating_add(1);
        self.connections
            .insert(spec.name.clone(), (number, spec.clone()));
        number
    }

    fn direct(&mut self, wire: &mut Wire) -> (LaneId, Arc<AtomicU64>) {
        if let Some((lane, known, last)) = self.direct.get(&wire.info.id) {
            wire.settings.id = *lane;
            if known == wire {
                return (*lane, Arc::clone(last));
            }
        }
        self.last_direct = self.last_direct.saturating_add(1);
        let lane = LaneId(FIRST_DIRECT_LANE.saturating_add(self.last_direct));
        let last = Arc::new(AtomicU64::new(0));
        wire.settings.id = lane;
        let entry = (lane, wire.clone(), Arc::clone(&last));
        self.direct.insert(wire.info.id.clone(), entry);
        (lane, last)
    }
}

/// Numbers everything and makes its lanes known to the buffer.
///
/// # Errors
/// [`StartError::Lane`] when the buffer has failed.
pub fn wire(
    plan: &Plan,
    buffer: &Buffer,
    events: &Events,
    numbers: &mut Numbers,
) -> Result<Wired, StartError> {
    let config = &plan.config;
    let mut wired = Wired {
        connections: BTreeMap::new(),
        lanes: BTreeMap::new(),
        routes: Vec::new(),
        handlers: Vec::new(),
    };
    let mut by_name = BTreeMap::new();
    for connection in &config.connections {
        let spec = ConnectionSpec {
            name: connection.name.to_string(),
            connector: connection.connector.to_string(),
            config: connection.config.value.clone(),
            probe_timeout: settings::PROBE_TIMEOUT,
            names: names(config, &connection.name),
        };
        let number = numbers.connection(&spec);
        by_name.insert(spec.name.clone(), number);
        // One that only sources use has no gate, and opening it here would open it twice.
        wired.connections.insert(number, (spec, false));
    }
    for (adapter, planned) in config.adapters.iter().zip(&plan.adapters) {
        scope(config, adapter, planned, buffer)?;
        let mut routes = Vec::new();
        for (index, (route, route_plan)) in adapter.routes.iter().zip(&planned.routes).enumerate() {
            let mut sends = Vec::new();
            for (number, (send, send_plan)) in route.send.iter().zip(&route_plan.sends).enumerate()
            {
                let id = format!("{}/{}/{}", adapter.name, route.name, send.id);
                let connection = by_name.get(send.connection.as_str()).copied();
                let connection = ConnectionId(connection.unwrap_or(u32::MAX));
                if let Some((_, used)) = wired.connections.get_mut(&connection.0) {
                    *used = true;
                }
                let function = planned
                    .program
                    .route(index)
                    .and_then(|r| r.sends.get(number))
                    .map(|s| s.function.clone());
                let tracked = planned.source.delivery.is_offset_tracked();
                let mut wire = Wire {
                    info: LaneInfo {
                        drops_repeats: send_plan.promise.level
                            == consign_promise::Level::EffectivelyOnce,
                        templates: Templates::of(&planned.program, index, number),
                        ..lane_info(adapter, route, send, &id)
                    },
                    sink: SinkSpec {
                        connection,
                        operation: send.operation.to_string(),
                        config: function.unwrap_or_default(),
                        names: Names {
                            adapter: Some(adapter.name.to_string()),
                            route: Some(route.name.to_string()),
                            send: Some(send.id.to_string()),
                            ..names(config, &send.connection)
                        },
                    },
                    settings: settings::lane(
                        config,
                        route,
                        send,
                        send_plan,
                        LaneId(0),
                        connection,
                        tracked,
                        handles(adapter, route, send),
                    ),
                    target: target(config, send, send_plan),
                };
                let (lane, last) = match send.delivery {
                    Delivery::Buffered => {
                        let spec = lane_spec(adapter, route, send, &id);
                        let lane = buffer.lane(spec).map_err(|error| StartError::Lane {
                            id: id.clone(),
                            message: error.to_string(),
                        })?;
                        wire.settings.id = LaneId(lane.0);
                        (LaneId(lane.0), Arc::default())
                    }
                    Delivery::Direct => numbers.direct(&mut wire),
                };
                wired.lanes.insert(lane.0, wire);
                sends.push(send_target(route, send, lane, last));
            }
            routes.push(RouteTarget {
                name: route.name.to_string(),
                sends,
                keep_original: route.keep_original,
                handler: None,
                counts: Arc::default(),
            });
        }
        wired.routes.push(routes);
    }
    add_handlers(plan, events, &mut wired);
    Ok(wired)
}

/// Handlers divert to lanes, so every lane has to have its number first.
fn add_handlers(plan: &Plan, events: &Events, wired: &mut Wired) {
    let buffered = wired
        .lanes
        .iter()
        .filter(|(_, wire)| wire.info.buffered)
        .map(|(lane, wire)| (wire.info.id.clone(), consign_buffer::LaneId(*lane)))
        .collect();
    let mut maker = HandlerMaker::new(plan, events, &buffered);
    let adapters = plan.config.adapters.iter().zip(&plan.adapters);
    for ((adapter, planned), targets) in adapters.zip(&mut wired.routes) {
        let routes = adapter.routes.iter().zip(&planned.routes).zip(targets);
        for ((route, route_plan), target) in routes {
            target.handler = maker.route(adapter, route);
            let sends = route.send.iter().zip(&route_plan.sends).zip(&target.sends);
            for ((send, send_plan), to) in sends {
                let lane = to.lane.number();
                if let Some(wire) = wired.lanes.get(&lane.0) {
                    let promise = send_plan.promise.level.name();
                    let handler = maker.send(adapter, route, send, &wire.info, promise);
                    wired
                        .handlers
                        .extend(handler.map(|handler| (lane, handler)));
                }
            }
        }
    }
}

/// Whether an error handler decides about a send's writes.
fn handles(adapter: &Adapter, route: &consign_config::Route, send: &SendConfig) -> bool {
    [&send.on_failure, &route.on_failure, &adapter.on_failure]
        .into_iter()
        .any(Option::is_some)
}

fn scope(
    config: &Config,
    adapter: &Adapter,
    planned: &crate::plan::AdapterPlan,
    buffer: &Buffer,
) -> Result<(), StartError> {
    let spec = ScopeSpec {
        id: adapter.name.to_string(),
        window_ms: settings::key_window_ms(
            config,
            adapter,
            planned.source.delivery,
            planned.redelivery_bound_ms,
        ),
        key_quota_bytes: config.key_quota.as_bytes(),
    };
    buffer.scope(spec).map_err(|error| StartError::Lane {
        id: adapter.name.to_string(),
        message: error.to_string(),
    })
}

/// What a send writes to, as a text that two configurations can be compared by: the system as its
/// connection's settings name it, without what is secret there, the operation, and the table, topic or
/// host. Names that people give to connections and sends do not count.
fn target(config: &Config, send: &SendConfig, plan: &crate::plan::SendPlan) -> String {
    let connection = config.connection(&send.connection);
    let mut system = connection
        .map(|connection| connection.config.value.clone())
        .unwrap_or_default();
    let secrets = connection.into_iter().flat_map(|connection| {
        let secrets = connection.config.secrets.iter().map(|s| &s.pointer);
        connection.config.passwords.iter().chain(secrets)
    });
    for pointer in secrets {
        if let Some(secret) = system.pointer_mut(pointer) {
            *secret = serde_json::Value::Null;
        }
    }
    let operation = send.operation.as_str();
    serde_json::json!({ "operation": operation, "target": plan.target_id, "system": system })
        .to_string()
}

/// Lanes with a backlog and without a send, each with an event.
pub fn report_orphans(buffer: &Buffer, events: &Events) -> Vec<(String, u64)> {
    let orphans = buffer.orphans();
    for orphan in &orphans {
        events.emit(
            Event::new(Code::LaneOrphaned, clock::wall_unix_ms_i64())
                .field("lane", orphan.id.clone())
                .field("pending", orphan.pending)
                .message(format!(
                    "lane {} holds {} writes and no send has that name; rename the send back or give it `formerly: [{}]`",
                    orphan.id, orphan.pending, orphan.id
                )),
        );
    }
    orphans
        .into_iter()
        .map(|orphan| (orphan.id, orphan.pending))
        .collect()
}

pub(crate) fn lane_spec(
    adapter: &Adapter,
    route: &consign_config::Route,
    send: &SendConfig,
    id: &str,
) -> LaneSpec {
    // A send renamed inside its route, then the whole path as it was written, then a renamed adapter.
    let mut formerly = Vec::new();
    for old in &send.formerly {
        let old = old.as_str();
        formerly.push(if old.contains('/') {
            old.to_owned()
        } else {
            format!("{}/{}/{old}", adapter.name, route.name)
        });
    }
    for old in &adapter.formerly {
        formerly.push(format!("{old}/{}/{}", route.name, send.id));
    }
    LaneSpec {
        id: id.to_owned(),
        formerly,
        quota_bytes: send.quota.as_bytes(),
        in_flight_limit: send.in_flight_limit(),
        when_full: match send.when_full {
            consign_config::WhenFull::Block => consign_buffer::WhenFull::Block,
            consign_config::WhenFull::Drop => consign_buffer::WhenFull::Drop,
        },
    }
}

fn lane_info(
    adapter: &Adapter,
    route: &consign_config::Route,
    send: &SendConfig,
    id: &str,
) -> LaneInfo {
    LaneInfo {
        id: id.to_owned(),
        adapter: adapter.name.to_string(),
        route: route.name.to_string(),
        send: send.id.to_string(),
        connection: send.connection.to_string(),
        operation: send.operation.to_string(),
        source: adapter.source.operation.to_string(),
        buffered: send.delivery == Delivery::Buffered,
        drops_repeats: false,
        holds_keys: send.after_park == consign_config::AfterPark::HoldKey,
        skip_releases: send.when_parent_skipped == consign_config::ParentSkipped::Release,
        ordered: !matches!(send.order, consign_config::Order::None),
        templates: Templates::default(),
    }
}

fn send_target(
    route: &consign_config::Route,
    send: &SendConfig,
    lane: LaneId,
    last: Arc<AtomicU64>,
) -> SendTarget {
    let path = |id: &str| format!("{}/{id}", route.name);
    let parent = send.after.as_ref().and_then(|after| {
        route
            .send
            .iter()
            .position(|s| s.id.as_str() == after.as_str())
    });
    let parent_is_direct = parent
        .and_then(|p| route.send.get(p))
        .is_some_and(|p| p.delivery == Delivery::Direct);
    SendTarget {
        id: send.id.to_string(),
        path: path(&send.id),
        lane: match send.delivery {
            Delivery::Buffered => Lane::Buffered(consign_buffer::LaneId(lane.0)),
            Delivery::Direct => Lane::Direct { lane, last },
        },
        held_by: parent.filter(|_| !parent_is_direct),
        after_direct: send
            .after
            .as_ref()
            .filter(|_| parent_is_direct)
            .map(|parent| path(parent)),
        expires_after_ms: send.expires_after.map(|after| after.as_ms()),
        releases_when_skipped: send.when_parent_skipped == consign_config::ParentSkipped::Release,
    }
}
