//! Numbers the connections and lanes of a configuration, and says what each part is told about them.

use crate::acceptance::{Lane, RouteTarget, SendTarget};
use crate::clock;
use crate::engine::FIRST_DIRECT_LANE;
use crate::events::Events;
use crate::handlers::{HandlerMaker, Handlers};
use crate::host::{StartError, names};
use crate::lanes::{LaneInfo, Lanes};
use crate::plan::Plan;
use crate::plugs::{ConnectionSpec, SinkSpec};
use crate::settings;
use consign_buffer::{Buffer, LaneSpec, ScopeSpec};
use consign_config::{Adapter, Config, Delivery, Send as SendConfig};
use consign_delivery::{ConnectionId, Input, LaneConfig, LaneId};
use consign_ledger::{Code, Event};
use consign_loader::Names;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

/// Everything the parts need to know about each other, by number.
pub struct Wired {
    pub connections: Vec<ConnectionSpec>,
    pub sinks: BTreeMap<u32, SinkSpec>,
    pub lanes: Lanes,
    pub inputs: Vec<Input>,
    pub routes: Vec<Vec<RouteTarget>>,
    pub handlers: Handlers,
}

pub fn wire(plan: &Plan, buffer: &Buffer, events: &Events) -> Result<Wired, StartError> {
    let config = &plan.config;
    let mut connections = Vec::new();
    let mut inputs = Vec::new();
    for (number, connection) in (0_u32..).zip(&config.connections) {
        // One that only sources use has no gate, and opening it here would open it twice.
        let sends = config
            .adapters
            .iter()
            .flat_map(|adapter| &adapter.routes)
            .flat_map(|route| &route.send);
        if sends
            .into_iter()
            .any(|send| send.connection == connection.name.as_str())
        {
            inputs.push(Input::AddConnection(settings::connection(
                config,
                ConnectionId(number),
            )));
        }
        connections.push(ConnectionSpec {
            name: connection.name.to_string(),
            connector: connection.connector.to_string(),
            config: connection.config.value.clone(),
            probe_timeout: settings::PROBE_TIMEOUT,
            names: names(config, &connection.name),
        });
    }
    let mut wired = Wired {
        connections,
        sinks: BTreeMap::new(),
        lanes: Lanes::default(),
        inputs,
        routes: Vec::new(),
        handlers: Handlers::default(),
    };
    let mut infos = Vec::new();
    let mut next_direct = FIRST_DIRECT_LANE;
    for (adapter, planned) in config.adapters.iter().zip(&plan.adapters) {
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
        })?;
        let mut routes = Vec::new();
        for (index, (route, route_plan)) in adapter.routes.iter().zip(&planned.routes).enumerate() {
            let mut sends = Vec::new();
            for (number, (send, send_plan)) in route.send.iter().zip(&route_plan.sends).enumerate()
            {
                let id = format!("{}/{}/{}", adapter.name, route.name, send.id);
                let lane = match send.delivery {
                    Delivery::Buffered => LaneId(
                        buffer
                            .lane(lane_spec(adapter, route, send, &id))
                            .map_err(|error| StartError::Lane {
                                id: id.clone(),
                                message: error.to_string(),
                            })?
                            .0,
                    ),
                    Delivery::Direct => {
                        next_direct = next_direct.saturating_add(1);
                        LaneId(next_direct)
                    }
                };
                let connection = connection_number(config, &send.connection);
                infos.push((lane, lane_info(adapter, route, send, &id)));
                let function = planned
                    .program
                    .route(index)
                    .and_then(|r| r.sends.get(number))
                    .map(|s| s.function.clone());
                wired.sinks.insert(
                    lane.0,
                    SinkSpec {
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
                );
                let stats = buffer.stats(consign_buffer::LaneId(lane.0));
                let tracked = planned.source.delivery.is_offset_tracked();
                let settings: LaneConfig = settings::lane(
                    config,
                    route,
                    send,
                    send_plan,
                    lane,
                    connection,
                    stats.as_ref(),
                    tracked,
                    handles(adapter, route, send),
                );
                wired.inputs.push(Input::AddLane(Box::new(settings)));
                sends.push(send_target(route, send, lane));
            }
            routes.push(RouteTarget {
                name: route.name.to_string(),
                sends,
                keep_original: route.keep_original,
                handler: None,
            });
        }
        wired.routes.push(routes);
    }
    wired.lanes = Lanes::new(infos);
    add_handlers(plan, events, &mut wired);
    for orphan in buffer.orphans() {
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
    Ok(wired)
}

/// Handlers divert to lanes, so every lane has to have its number first.
fn add_handlers(plan: &Plan, events: &Events, wired: &mut Wired) {
    let buffered = wired
        .lanes
        .iter()
        .filter(|(_, info)| info.buffered)
        .map(|(lane, info)| (info.id.clone(), consign_buffer::LaneId(lane.0)))
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
                if let Some(info) = wired.lanes.get(lane) {
                    let promise = send_plan.promise.level.name();
                    maker.send(lane, adapter, route, send, info, promise);
                }
            }
        }
    }
    wired.handlers = maker.finish();
}

/// Whether an error handler decides about a send's writes.
fn handles(adapter: &Adapter, route: &consign_config::Route, send: &SendConfig) -> bool {
    [&send.on_failure, &route.on_failure, &adapter.on_failure]
        .into_iter()
        .any(Option::is_some)
}

fn connection_number(config: &Config, name: &str) -> ConnectionId {
    let position = config
        .connections
        .iter()
        .position(|c| c.name.as_str() == name)
        .unwrap_or(usize::MAX);
    ConnectionId(u32::try_from(position).unwrap_or(u32::MAX))
}

fn lane_spec(
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
    }
}

fn send_target(route: &consign_config::Route, send: &SendConfig, lane: LaneId) -> SendTarget {
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
        lane: match send.delivery {
            Delivery::Buffered => Lane::Buffered(consign_buffer::LaneId(lane.0)),
            Delivery::Direct => Lane::Direct {
                lane,
                last: AtomicU64::new(0),
            },
        },
        held_by: parent.filter(|_| !parent_is_direct),
        after_direct: parent.filter(|_| parent_is_direct),
        expires_after_ms: send.expires_after.map(|after| after.as_ms()),
        releases_when_skipped: send.when_parent_skipped == consign_config::ParentSkipped::Release,
    }
}
