//! Everything the buffer knows, and how one durable record changes it. Live commits and recovery go through the same
//! [`State::apply`], so what a restart finds is what the run had.
//!
//! Applying is idempotent: a checkpoint may already contain effects of records after its replay point.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use bytes::Bytes;
use tokio::sync::watch;

use crate::api::{BufferStats, Health, LOST, LaneId, Lost, Origin, PURGED, Place};
use crate::error::BufferError;
use crate::items::Item;
use crate::keys::Scope;
use crate::lane::{Books, Entry, Lane, LogPlace, SpilledMeta};
use crate::planted::Planted;
use crate::seqset::SeqSet;
use crate::write::Held;

/// Sentences about losses kept; beyond it only the counts grow.
const MAX_LOST_NOTES: usize = 100;

#[derive(Debug)]
pub(crate) struct State {
    /// By lane number.
    pub(crate) lanes: Vec<Lane>,
    pub(crate) lane_numbers: HashMap<String, u32>,
    /// By scope number.
    pub(crate) scopes: Vec<Scope>,
    pub(crate) scope_numbers: HashMap<String, u32>,
    pub(crate) positions: BTreeMap<String, Bytes>,
    /// The last record of a run that closed properly was seen.
    pub(crate) clean: bool,
    /// The owner epoch of the newest run seen.
    pub(crate) run_epoch: u32,
    pub(crate) body_bytes: u64,
    pub(crate) body_budget: u64,
    pub(crate) entries: usize,
    /// A spill file became empty or sparse since the last checkpoint.
    pub(crate) reclaim: bool,
    /// The disk is full and the log has come down to its reserve.
    pub(crate) disk_full: Option<String>,
    pub(crate) record_limit: u64,
    pub(crate) planted: Option<Planted>,
    pub(crate) lost: Lost,
    /// Something is missing of the log or of the checkpoints, so what is pending must be found out anew.
    pub(crate) damaged: bool,
    /// Numbers of log records that are known to be missing. What was told once is not told again by each opening
    /// until the replay point has passed it.
    pub(crate) gaps: SeqSet,
    /// The log record before which no other's word on losses counts: what was there by then was found out anew.
    pub(crate) rebuilt_at: u64,
    pub(crate) totals: BufferStats,
    /// Why nothing is taken any more.
    pub(crate) stopped: Option<BufferError>,
    pub(crate) health: watch::Sender<Health>,
    pub(crate) room: watch::Sender<u64>,
}

/// Stands for the number of a record that is being committed, not replayed.
pub(crate) const LIVE: u64 = u64::MAX;

/// Where a record stands, and what memory still has of it.
pub(crate) struct Applied<'a> {
    /// Its own number in the log, or [`LIVE`].
    pub(crate) seq: u64,
    pub(crate) segment: u64,
    /// Offset of the payload in the segment.
    pub(crate) payload_offset: u64,
    /// The bodies of its writes, in order, when it is being committed.
    pub(crate) bodies: &'a [Bytes],
}

impl State {
    pub(crate) fn new(body_budget: u64, record_limit: u64) -> Self {
        State {
            lanes: Vec::new(),
            lane_numbers: HashMap::new(),
            scopes: Vec::new(),
            scope_numbers: HashMap::new(),
            positions: BTreeMap::new(),
            clean: true,
            run_epoch: 0,
            body_bytes: 0,
            body_budget,
            entries: 0,
            reclaim: false,
            disk_full: None,
            record_limit,
            planted: None,
            lost: Lost::default(),
            damaged: false,
            gaps: SeqSet::default(),
            rebuilt_at: 0,
            totals: BufferStats::default(),
            stopped: None,
            health: watch::Sender::new(Health::Running),
            room: watch::Sender::new(0),
        }
    }

    pub(crate) fn lane(&self, id: LaneId) -> Option<&Lane> {
        self.lanes.get(id.0 as usize)
    }

    /// The lane with this number, made if a lost record would have made it.
    pub(crate) fn lane_mut(&mut self, number: u32) -> &mut Lane {
        let at = number as usize;
        while self.lanes.len() <= at {
            let id = format!("lost-name-{}", self.lanes.len());
            self.lane_numbers.insert(
                id.clone(),
                u32::try_from(self.lanes.len()).unwrap_or(u32::MAX),
            );
            self.lanes.push(Lane::new(id));
        }
        // The loop above made it; `Vec` has no infallible accessor.
        #[allow(clippy::indexing_slicing)]
        &mut self.lanes[at]
    }

    /// Gives a lane a name, which makes it or renames it.
    pub(crate) fn name_lane(&mut self, number: u32, id: String) {
        let lane = self.lane_mut(number);
        let old = std::mem::replace(&mut lane.id, id.clone());
        self.lane_numbers.remove(&old);
        self.lane_numbers.insert(id, number);
    }

    pub(crate) fn scope_mut(&mut self, number: u32) -> &mut Scope {
        let at = number as usize;
        while self.scopes.len() <= at {
            let id = format!("lost-name-{}", self.scopes.len());
            self.scopes.push(Scope::new(id));
        }
        // As in `lane_mut`.
        #[allow(clippy::indexing_slicing)]
        &mut self.scopes[at]
    }

    pub(crate) fn name_scope(&mut self, number: u32, id: String) {
        let scope = self.scope_mut(number);
        let old = std::mem::replace(&mut scope.id, id.clone());
        self.scope_numbers.remove(&old);
        self.scope_numbers.insert(id, number);
    }

    pub(crate) fn note_loss(&mut self, sentence: String) {
        tracing::error!(target: "consign::buffer", "{sentence}");
        if self.lost.notes.len() < MAX_LOST_NOTES {
            self.lost.notes.push(sentence);
        }
    }

    /// Remembers where bytes did not check.
    pub(crate) fn note_place(&mut self, file: PathBuf, offset: u64, bytes: u64) {
        if self.lost.places.len() < MAX_LOST_NOTES {
            self.lost.places.push(Place {
                file,
                offset,
                bytes,
            });
        }
    }

    /// Notes a loss after which nothing that follows from the books is believed.
    pub(crate) fn damage(&mut self, sentence: String) {
        self.damaged = true;
        self.note_loss(sentence);
    }

    pub(crate) fn room_appeared(&self) {
        self.room.send_modify(|n| *n = n.wrapping_add(1));
    }

    fn charge_held(&mut self, held: &Held) {
        for (lane, charge) in held {
            self.lane_mut(*lane).charged += charge;
        }
    }

    fn discharge_held(&mut self, held: &Held) {
        for (lane, charge) in held {
            let lane = self.lane_mut(*lane);
            lane.charged = lane.charged.saturating_sub(*charge);
        }
    }

    /// Makes one durable record take effect.
    pub(crate) fn apply(&mut self, items: Vec<Item<'_>>, at: &Applied<'_>) {
        let mut bodies = at.bodies.iter();
        for item in items {
            match item {
                Item::Write {
                    seq,
                    at: offset,
                    enc,
                    view,
                } => {
                    let body = bodies.next();
                    let place = LogPlace {
                        segment: at.segment,
                        offset: at.payload_offset + offset as u64,
                        len: u32::try_from(enc.len()).unwrap_or(u32::MAX),
                        crc: crc32c::crc32c(enc),
                    };
                    let held = view.held();
                    let entry = Entry {
                        key: view.key,
                        order: view.order,
                        created_unix_ms: view.created_unix_ms,
                        expires_unix_ms: view.expires_unix_ms,
                        body: None,
                        place,
                        charge: view.charge(),
                        children: u16::try_from(view.children.len()).unwrap_or(u16::MAX),
                        held: (!held.is_empty()).then(|| Box::new(held)),
                        fetched: false,
                    };
                    self.add(view.lane, seq, entry, body);
                }
                Item::Settle {
                    lane,
                    seq,
                    result,
                    charge,
                    held,
                } => self.settle(lane, seq, result, charge, &held),
                Item::Frontier {
                    lane,
                    seq,
                    wall_unix_ms,
                } => self.lane_mut(lane).advance_frontier(seq, wall_unix_ms),
                Item::Note { lane, seq, state } => {
                    let replayed = at.seq != LIVE;
                    let lane = self.lane_mut(lane);
                    if replayed && seq >= lane.next_seq {
                        // As with a settlement.
                        lane.next_seq = seq + 1;
                        self.damaged = true;
                    } else if seq < lane.next_seq && !lane.settled.contains(seq) {
                        lane.states.insert(seq, state);
                    }
                }
                Item::Position { source, value } => {
                    self.positions.insert(source, value);
                }
                Item::Known {
                    scope,
                    origin,
                    at_unix_ms,
                } => self.scope_mut(scope).remember(&origin, at_unix_ms),
                Item::Scope { number, id } => self.name_scope(number, id),
                Item::Lane { number, id } => self.name_lane(number, id),
                Item::Session { epoch, .. } => self.begin_session(epoch),
                Item::Clean => self.clean = true,
                Item::Purge { lane, through } => self.purge(lane, through),
                Item::Lost {
                    lane,
                    file,
                    ranges,
                    writes,
                    charge,
                    physical,
                    held,
                } => {
                    if at.seq < self.rebuilt_at {
                        continue;
                    }
                    self.lose_spilled(
                        lane,
                        file,
                        &ranges,
                        Books {
                            writes,
                            charge,
                            physical,
                        },
                        &held,
                    );
                }
                Item::Assigned {
                    scope,
                    partition,
                    incarnation,
                    committed,
                    reset,
                } => {
                    self.scope_mut(scope)
                        .set_committed(partition, incarnation, committed, reset);
                }
            }
        }
    }

    fn add(&mut self, number: u32, seq: u64, mut entry: Entry, body: Option<&Bytes>) {
        let room = self.body_budget.saturating_sub(self.body_bytes);
        let lane = self.lane_mut(number);
        // Numbers are dense, so the record that gave those between is gone. The writes may be in a spill file.
        let gap = seq > lane.next_seq;
        lane.next_seq = lane.next_seq.max(seq + 1);
        self.damaged |= gap;
        let lane = self.lane_mut(number);
        if seq <= lane.spilled_through
            || lane.settled.contains(seq)
            || lane.entries.contains_key(&seq)
        {
            return;
        }
        lane.charged += entry.charge;
        let held = entry.held.clone();
        if let Some(body) = body.filter(|b| b.len() as u64 <= room) {
            entry.body = Some(body.clone());
        }
        let kept = entry.body.as_ref().map_or(0, |b| b.len() as u64);
        lane.entries.insert(seq, entry);
        lane.watch.send_replace(seq);
        self.body_bytes += kept;
        self.entries += 1;
        if let Some(held) = held {
            self.charge_held(&held);
        }
    }

    /// Forgets a log entry's memory; its charges are the caller's matter.
    pub(crate) fn drop_entry(&mut self, number: u32, seq: u64) -> Option<Entry> {
        let entry = self.lane_mut(number).entries.remove(&seq)?;
        self.body_bytes = self
            .body_bytes
            .saturating_sub(entry.body.as_ref().map_or(0, |b| b.len() as u64));
        self.entries = self.entries.saturating_sub(1);
        Some(entry)
    }

    fn settle(&mut self, number: u32, seq: u64, result: u8, charge: u64, held: &Held) {
        let lane = self.lane_mut(number);
        // The record that gave the number is gone. It must not be given to another write: replayed once more, this
        // settlement would take that one.
        let unknown = seq >= lane.next_seq;
        lane.next_seq = lane.next_seq.max(seq + 1);
        let settled = lane.settled.insert(seq);
        self.damaged |= unknown;
        if !settled {
            return;
        }
        let lane = self.lane_mut(number);
        lane.count_outcome(result, 1);
        lane.states.remove(&seq);
        lane.spilled.remove(&seq);
        if seq <= lane.spilled_through {
            lane.charged = lane.charged.saturating_sub(charge);
            let sparse = lane.file_of(seq).is_some_and(|file| {
                file.take_off(1, charge, held);
                file.live == 0 || file.is_sparse()
            });
            self.reclaim |= sparse;
            self.discharge_held(held);
        } else if let Some(entry) = self.drop_entry(number, seq) {
            let lane = self.lane_mut(number);
            lane.charged = lane.charged.saturating_sub(entry.charge);
            if let Some(held) = entry.held {
                self.discharge_held(&held);
            }
        }
    }

    fn purge(&mut self, number: u32, through: u64) {
        let again = self.planted == Some(Planted::PurgeReplayed);
        let lane = self.lane_mut(number);
        // As with a settlement: numbers that only this record knows of are not given again.
        let unknown = through >= lane.next_seq;
        lane.next_seq = lane.next_seq.max(through + 1);
        self.damaged |= unknown;
        let lane = self.lane_mut(number);
        let pending = through;
        let purged = pending - lane.settled.count_in(1, pending);
        if purged == 0 && !again {
            // Replayed over a checkpoint that knows it: the files may hold later writes by now.
            return;
        }
        lane.settled.insert_range(1, pending);
        lane.count_outcome(PURGED, purged);
        lane.states = lane.states.split_off(&(pending + 1));
        lane.spilled.retain(|seq, _| *seq > pending);
        let in_log: Vec<u64> = lane.entries.range(..=pending).map(|(s, _)| *s).collect();
        let mut held_off: Held = Vec::new();
        let mut charge_off = 0;
        for file in &mut lane.files {
            if file.first_seq <= pending {
                charge_off += file.live_charge;
                held_off.extend(std::mem::take(&mut file.held));
                (file.live, file.live_charge, file.live_physical) = (0, 0, 0);
            }
        }
        for seq in in_log {
            if let Some(entry) = self.drop_entry(number, seq) {
                charge_off += entry.charge;
                held_off.extend(entry.held.into_iter().flat_map(|h| *h));
            }
        }
        let lane = self.lane_mut(number);
        lane.charged = lane.charged.saturating_sub(charge_off);
        self.discharge_held(&held_off);
        self.reclaim = true;
    }

    /// Writes that a spill file lost leave the books.
    ///
    /// Replayed from further back than the checkpoint that named the file, because that one is gone, the log may still
    /// have some of the writes. Those are not lost, and what the record says they were charged is theirs again.
    fn lose_spilled(
        &mut self,
        number: u32,
        file: u64,
        ranges: &[(u64, u64)],
        mut books: Books,
        held: &Held,
    ) {
        let lane = self.lane_mut(number);
        let mut held: BTreeMap<u32, u64> = held.iter().copied().collect();
        let mut gone = Vec::new();
        let mut unknown = false;
        for &(from, to) in ranges {
            unknown |= to >= lane.next_seq;
            lane.next_seq = lane.next_seq.max(to + 1);
            let mut next = from;
            for (&seq, entry) in lane.entries.range(from..=to) {
                let none = Held::new();
                let inside = entry.held.as_deref().unwrap_or(&none);
                books.take_off(entry.charge, inside, &mut held);
                gone.extend((next < seq).then_some((next, seq - 1)));
                next = seq + 1;
            }
            gone.extend((next <= to).then_some((next, to)));
        }
        self.damaged |= unknown;
        let lane = self.lane_mut(number);
        let mut lost = 0;
        for &(from, to) in &gone {
            lost += (to - from + 1).saturating_sub(lane.settled.count_in(from, to));
            lane.settled.insert_range(from, to);
        }
        if lost == 0 {
            return;
        }
        lane.count_outcome(LOST, lost);
        for &(from, to) in &gone {
            let noted: Vec<u64> = lane.states.range(from..=to).map(|(s, _)| *s).collect();
            for seq in noted {
                lane.states.remove(&seq);
            }
            lane.spilled.retain(|seq, _| *seq < from || *seq > to);
        }
        let (charge, held) = lane.take_off_files(file, &gone, books, held);
        lane.charged = lane.charged.saturating_sub(charge);
        let sentence = format!(
            "lane {}: {lost} writes in spill file {file} are damaged and lost",
            lane.id
        );
        self.discharge_held(&held);
        self.lost.writes += lost;
        self.reclaim = true;
        self.note_loss(sentence);
    }

    /// What a new run does to the lanes of the last one.
    ///
    /// A checkpoint may know the run already and have frontiers of it, which say nothing about the run before.
    fn begin_session(&mut self, epoch: u32) {
        let again = epoch <= self.run_epoch && self.planted != Some(Planted::RunReplayed);
        if self.clean && self.planted == Some(Planted::MaybeForgottenOnClean) {
            self.lanes
                .iter_mut()
                .for_each(|lane| lane.maybe_through = 0);
        }
        if !self.clean && !again {
            for lane in &mut self.lanes {
                // A frontier runs ahead: what is accepted from here on was never on its way.
                let last = lane.next_seq.saturating_sub(1);
                lane.maybe_through = lane.maybe_through.max(lane.frontier.min(last));
            }
        }
        self.run_epoch = self.run_epoch.max(epoch);
        self.clean = false;
    }

    /// Charges and dependents of a pending write, as far as memory has them.
    pub(crate) fn meta(&self, lane: u32, seq: u64) -> Option<SpilledMeta> {
        let lane = self.lanes.get(lane as usize)?;
        if let Some(entry) = lane.entries.get(&seq) {
            return Some(SpilledMeta {
                charge: entry.charge,
                held: entry.held.clone(),
            });
        }
        lane.spilled.get(&seq).cloned()
    }

    pub(crate) fn is_pending(&self, lane: u32, seq: u64) -> bool {
        self.lanes
            .get(lane as usize)
            .is_some_and(|l| seq != 0 && seq < l.next_seq && !l.settled.contains(seq))
    }

    /// Whether this origin was accepted, or is on its way.
    pub(crate) fn known(&self, scope: &str, origin: &Origin) -> crate::api::Known {
        use crate::api::Known;
        let Some(scope) = self
            .scope_numbers
            .get(scope)
            .and_then(|n| self.scopes.get(*n as usize))
        else {
            return Known::New;
        };
        match scope.known(origin) {
            Known::New if scope.busy.contains_key(&crate::keys::busy_of(origin)) => Known::InFlight,
            known => known,
        }
    }
}
