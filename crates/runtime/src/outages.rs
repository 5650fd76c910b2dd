//! Outage reports: what a connection or a target being away came to.
//!
//! A report opens when a gate closes because of an outage. It ends when the gate is open again and
//! everything that its lanes held by then has left them; where nothing is held, half-open is enough,
//! because no canary comes before the next write. Counts are taken from the buffer, whose
//! outcomes outlive the process, so a report goes on over a restart.

use crate::clock::wall_unix_ms_i64;
use crate::engine::Snapshot;
use crate::events::Events;
use crate::lanes::Lanes;
use consign_buffer::Buffer;
use consign_delivery::{EventCode, GateState, LaneId, SettleResult};
use consign_ledger::{Code, Event, Ledger, Outage, OutageReport};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often open reports are brought up to date.
pub const UPDATE_EVERY: Duration = Duration::from_millis(500);

/// Reports of this host.
pub struct Outages {
    ledger: Ledger,
    events: Events,
    buffer: Buffer,
    lanes: Arc<Lanes>,
    /// Those that are not settled.
    live: Mutex<Vec<Live>>,
    /// Those that a gate has just opened; written by the next update.
    begun: Mutex<Vec<Begun>>,
}

/// A report under way.
struct Live {
    outage: Outage,
    /// Its lanes, by number.
    lanes: Vec<LaneId>,
    /// Resends of its lanes when this process began to count for it, and those counted before.
    resent_from: BTreeMap<u32, u64>,
    resent_before: u64,
    copies_before: u64,
    /// Each lane's next number when the gate was open again: what is below was held.
    held_below: Option<BTreeMap<u32, u64>>,
}

/// What began, as the machine said it.
struct Begun {
    connection: String,
    target: Option<String>,
    lanes: Vec<LaneId>,
    code: String,
    cause: String,
    drill: bool,
    at_unix_ms: i64,
}

impl Outages {
    /// Takes up the reports that the last run left open.
    pub fn new(
        ledger: Ledger,
        events: Events,
        buffer: Buffer,
        lanes: Arc<Lanes>,
        open: Vec<Outage>,
    ) -> Self {
        let live = open
            .into_iter()
            .map(|outage| Live {
                lanes: lanes
                    .all()
                    .into_iter()
                    .filter(|(_, info)| outage.report.lanes.contains(&info.id))
                    .map(|(lane, _)| lane)
                    .collect(),
                resent_from: BTreeMap::new(),
                resent_before: outage.report.resent,
                copies_before: outage.report.copies_possible,
                held_below: None,
                outage,
            })
            .collect();
        Self {
            ledger,
            events,
            buffer,
            lanes,
            live: Mutex::new(live),
            begun: Mutex::default(),
        }
    }

    /// Looks at an event of the machine; never blocks.
    pub fn event(
        &self,
        event: &consign_delivery::Event,
        connection: Option<&str>,
        target: Option<(String, Vec<LaneId>)>,
        drill: bool,
    ) {
        if !matches!(event.code, EventCode::GateClosed | EventCode::TargetClosed) {
            return;
        }
        let Some(connection) = connection else { return };
        let (target, lanes) = match target {
            Some((name, lanes)) => (Some(name), lanes),
            None => (
                None,
                self.lanes
                    .all()
                    .into_iter()
                    .filter(|(_, info)| info.connection == connection)
                    .map(|(lane, _)| lane)
                    .collect(),
            ),
        };
        self.begun.lock().push(Begun {
            connection: connection.to_owned(),
            target,
            lanes,
            code: event.detail.code.clone(),
            cause: self
                .events
                .redactor()
                .text(&event.detail.message)
                .into_owned(),
            drill,
            at_unix_ms: wall_unix_ms_i64(),
        });
    }

    /// Whether anything has to be brought up to date.
    pub fn busy(&self) -> bool {
        !self.begun.lock().is_empty() || !self.live.lock().is_empty()
    }

    /// Brings every report up to date and settles those that are over. Blocks on the ledger.
    ///
    /// # Errors
    /// The ledger does not take a report; it is tried again with the next update.
    pub fn update(&self, snapshot: &Snapshot) -> Result<(), consign_ledger::Error> {
        let begun = std::mem::take(&mut *self.begun.lock());
        for one in begun {
            self.begin(one, snapshot)?;
        }
        let mut live = self.live.lock();
        let mut still = Vec::with_capacity(live.len());
        for mut one in live.drain(..) {
            let over = self.bring_up_to_date(&mut one, snapshot);
            if over {
                one.outage.settled_unix_ms = Some(wall_unix_ms_i64());
            }
            let written = self.ledger.outage_update(&one.outage);
            match written {
                Ok(()) if over => self.ended(&one.outage),
                Ok(()) => still.push(one),
                Err(error) => {
                    tracing::warn!(%error, "an outage report could not be written");
                    one.outage.settled_unix_ms = None;
                    still.push(one);
                }
            }
        }
        *live = still;
        Ok(())
    }

    fn begin(&self, begun: Begun, snapshot: &Snapshot) -> Result<(), consign_ledger::Error> {
        let mut live = self.live.lock();
        let same = |one: &Live| {
            one.outage.connection == begun.connection && one.outage.target == begun.target
        };
        // Away again before what the last outage held had left: it is still the same one.
        if let Some(one) = live.iter_mut().find(|one| same(one)) {
            one.outage.to_unix_ms = None;
            one.held_below = None;
            return Ok(());
        }
        let mut report = OutageReport {
            code: begun.code,
            cause: begun.cause,
            drill: begun.drill,
            lanes: self.names(&begun.lanes),
            ..OutageReport::default()
        };
        for lane in &begun.lanes {
            if let Some(info) = self.lanes.get(*lane) {
                report.base.insert(info.id.clone(), self.outcomes(*lane));
            }
        }
        let id = self.ledger.outage_began(
            &begun.connection,
            begun.target.as_deref(),
            begun.at_unix_ms,
            &report,
        )?;
        let subject = subject(&begun.connection, begun.target.as_deref());
        let mut event = Event::new(Code::OutageStarted, begun.at_unix_ms)
            .connection(begun.connection.clone())
            .field("outage", id)
            .field("code", report.code.clone())
            .field("drill", report.drill)
            .message(format!("{subject} takes no writes: {}", report.cause));
        if let Some(target) = &begun.target {
            event = event.field("target", target.clone());
        }
        self.events.emit(event);
        live.push(Live {
            resent_from: begun
                .lanes
                .iter()
                .map(|lane| (lane.0, resends(snapshot, *lane)))
                .collect(),
            lanes: begun.lanes,
            resent_before: 0,
            copies_before: 0,
            held_below: None,
            outage: Outage {
                id,
                connection: begun.connection,
                target: begun.target,
                from_unix_ms: begun.at_unix_ms,
                to_unix_ms: None,
                settled_unix_ms: None,
                report,
            },
        });
        Ok(())
    }

    /// True when it is over and what it held has left.
    fn bring_up_to_date(&self, one: &mut Live, snapshot: &Snapshot) -> bool {
        let mut sums: BTreeMap<u8, u64> = BTreeMap::new();
        let (mut held, mut resent, mut copies) = (0_u64, one.resent_before, one.copies_before);
        for lane in &one.lanes {
            let Some(info) = self.lanes.get(*lane) else {
                continue;
            };
            let before = one.outage.report.base.get(&info.id);
            for (name, count) in self.outcomes(*lane) {
                let before = before
                    .and_then(|base| base.get(&name))
                    .copied()
                    .unwrap_or(0);
                if let Some(result) = result_of(&name) {
                    let sum = sums.entry(result.code()).or_default();
                    *sum = sum.saturating_add(count.saturating_sub(before));
                }
            }
            held = held.saturating_add(self.pending(*lane));
            let now = resends(snapshot, *lane);
            // First seen after a restart: counted from here.
            let from = *one.resent_from.entry(lane.0).or_insert(now);
            let more = now.saturating_sub(from);
            resent = resent.saturating_add(more);
            if !info.drops_repeats {
                copies = copies.saturating_add(more);
            }
        }
        let of = |result: SettleResult| sums.get(&result.code()).copied().unwrap_or(0);
        let open = is_open(snapshot, &one.outage, &self.lanes, held);
        let report = &mut one.outage.report;
        report.resent = resent;
        report.delivered_as_repeat = of(SettleResult::DeliveredAsRepeat);
        report.delivered = of(SettleResult::Delivered) + report.delivered_as_repeat;
        report.sent_unconfirmed = of(SettleResult::SentUnconfirmed);
        report.parked = of(SettleResult::Parked);
        report.expired = of(SettleResult::Expired);
        // A write that the destination recognised is one, however often it was sent.
        report.copies_possible = copies;
        if !open {
            one.outage.to_unix_ms = None;
            one.held_below = None;
            report.held = held;
            return false;
        }
        if one.outage.to_unix_ms.is_none() {
            one.outage.to_unix_ms = Some(wall_unix_ms_i64());
        }
        if one.held_below.is_none() {
            report.held = report.held.max(held);
        }
        let below = one.held_below.get_or_insert_with(|| {
            one.lanes
                .iter()
                .map(|lane| (lane.0, self.next_seq(*lane)))
                .collect()
        });
        below.iter().all(|(lane, next)| {
            self.buffer
                .stats(consign_buffer::LaneId(*lane))
                .is_none_or(|stats| {
                    stats.pending == 0 || stats.settled_through.saturating_add(1) >= *next
                })
        })
    }

    fn ended(&self, outage: &Outage) {
        let report = &outage.report;
        let subject = subject(&outage.connection, outage.target.as_deref());
        let lasted_ms = outage
            .to_unix_ms
            .unwrap_or(outage.from_unix_ms)
            .saturating_sub(outage.from_unix_ms);
        let mut event = Event::new(Code::OutageEnded, wall_unix_ms_i64())
            .connection(outage.connection.clone())
            .field("outage", outage.id)
            .field("lasted_ms", lasted_ms)
            .field("held", report.held)
            .field("resent", report.resent)
            .field("delivered", report.delivered)
            .field("sent_unconfirmed", report.sent_unconfirmed)
            .field("parked", report.parked)
            .field("copies_possible", report.copies_possible)
            .field("drill", report.drill)
            .message(format!(
                "{subject} was away for {:.1} s: {} writes held, {} resent, {} delivered, {} parked, {} copies possible",
                lasted_ms as f64 / 1_000.0,
                report.held,
                report.resent,
                report.delivered,
                report.parked,
                report.copies_possible
            ));
        if let Some(target) = &outage.target {
            event = event.field("target", target.clone());
        }
        self.events.emit(event);
    }

    fn names(&self, lanes: &[LaneId]) -> Vec<String> {
        lanes
            .iter()
            .filter_map(|lane| Some(self.lanes.get(*lane)?.id.clone()))
            .collect()
    }

    fn outcomes(&self, lane: LaneId) -> BTreeMap<String, u64> {
        let stats = self.buffer.stats(consign_buffer::LaneId(lane.0));
        stats
            .map(|stats| stats.outcomes)
            .unwrap_or_default()
            .into_iter()
            .map(|(code, count)| (crate::view::result_name(code), count))
            .collect()
    }

    fn pending(&self, lane: LaneId) -> u64 {
        self.buffer
            .stats(consign_buffer::LaneId(lane.0))
            .map_or(0, |stats| stats.pending)
    }

    fn next_seq(&self, lane: LaneId) -> u64 {
        self.buffer
            .stats(consign_buffer::LaneId(lane.0))
            .map_or(0, |stats| stats.next_seq)
    }
}

fn subject(connection: &str, target: Option<&str>) -> String {
    match target {
        Some(target) => format!("target {target} of connection {connection}"),
        None => format!("connection {connection}"),
    }
}

fn result_of(name: &str) -> Option<SettleResult> {
    [
        SettleResult::Delivered,
        SettleResult::DeliveredAsRepeat,
        SettleResult::SentUnconfirmed,
        SettleResult::Parked,
        SettleResult::Expired,
    ]
    .into_iter()
    .find(|result| result.name() == name)
}

fn resends(snapshot: &Snapshot, lane: LaneId) -> u64 {
    snapshot
        .lanes
        .get(&lane.0)
        .map_or(0, |stats| stats.counts.resends)
}

/// Whether the gates that the outage closed are open again, or would be tried by the next write where
/// none is held.
fn is_open(snapshot: &Snapshot, outage: &Outage, lanes: &Lanes, held: u64) -> bool {
    let passes =
        |gate: GateState| gate == GateState::Open || gate == GateState::HalfOpen && held == 0;
    // A connection or target that this configuration no longer has is not away.
    let of_connection = lanes
        .all()
        .into_iter()
        .filter(|(_, info)| info.connection == outage.connection)
        .find_map(|(lane, _)| {
            let stats = snapshot.lanes.get(&lane.0)?;
            snapshot.connections.get(&stats.connection.0)
        });
    let Some(connection) = of_connection else {
        return true;
    };
    if !passes(connection.gate) {
        return false;
    }
    outage.target.as_ref().is_none_or(|name| {
        connection
            .targets
            .iter()
            .filter(|(target, _)| target == name)
            .all(|(_, gate)| passes(*gate))
    })
}
