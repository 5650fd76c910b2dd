//! What the caller does in a run, and what it learns from the answers.

use bytes::Bytes;

use super::check::origin_of;
use super::model::{Status, body, id_of};
use super::world::{Open, World, retryable};
use crate::api::{Acceptance, LaneId, NewWrite, Settlement, WriteState};

/// Lanes of a run.
pub(super) const LANES: u32 = 4;

impl World {
    /// The number of one of the lanes.
    fn lane(&mut self) -> u32 {
        self.rng.pick(&self.numbers).unwrap_or(0)
    }

    fn new_write(&mut self, lane: u32, depth: u32) -> NewWrite {
        let id = self.model.id();
        let mut key = [0u8; 16];
        key[..8].copy_from_slice(&id.to_le_bytes());
        let most = if self.rng.one_in(8) { 2500 } else { 300 };
        let bytes = self.rng.below(most) as usize;
        let mut children = Vec::new();
        if depth < 2 && self.rng.one_in(6) {
            for _ in 0..=self.rng.below(2) {
                let lane = self.lane();
                children.push(self.new_write(lane, depth + 1));
            }
        }
        NewWrite {
            lane: LaneId(lane),
            key,
            order: id % 7,
            body: body(id, bytes),
            created_unix_ms: self.unix_ms,
            expires_unix_ms: None,
            children,
        }
    }

    pub(super) fn accept(&mut self) {
        fn rooms(w: &NewWrite, out: &mut Vec<(LaneId, u64)>) {
            out.push((w.lane, w.body.len() as u64));
            w.children.iter().for_each(|c| rooms(c, out));
        }
        let mut writes = Vec::new();
        for _ in 0..self.rng.below(4) {
            let lane = self.lane();
            writes.push(self.new_write(lane, 0));
        }
        let mut wanted = Vec::new();
        writes.iter().for_each(|w| rooms(w, &mut wanted));
        let Ok(reservation) = self.buffer.reserve(&wanted) else {
            return;
        };
        let record = self.model.id();
        let known = self.rng.one_in(2).then_some(record);
        let origin = known.map(origin_of);
        let mut position = None;
        let mut asked = None;
        if self.rng.one_in(4) {
            let source = format!("source-{}", self.rng.below(2));
            let (all, _) = self.model.positions.entry(source.clone()).or_default();
            all.push(record);
            asked = Some((source.clone(), all.len()));
            position = Some((source, Bytes::copy_from_slice(&record.to_le_bytes())));
        }
        let mut settles = Vec::new();
        let mut settled = Vec::new();
        if self.rng.one_in(10)
            && let Some((lane, seq, id)) = self.pick_fetched()
            && self.may_divert(lane, seq, id)
        {
            settles.push(Settlement {
                lane: LaneId(lane),
                seq,
                result: 7,
                release_children: false,
            });
            if self.model.settling(id, false) {
                settled.push((id, false));
            }
        }
        let ids: Vec<u64> = writes.iter().map(|w| id_of(&w.key)).collect();
        for write in &writes {
            self.model.add(write, record, true);
        }
        let acceptance = Acceptance {
            scope: "adapter".into(),
            origin,
            position,
            writes,
            settles,
        };
        self.say(|| format!("accept {record}: {:?} settles {settled:?}", ids));
        let future = self.buffer.accept(reservation, acceptance);
        self.open.push(Open::Accept {
            future,
            ids,
            known,
            position: asked,
            settles: settled,
        });
    }

    fn pick_fetched(&mut self) -> Option<(u32, u64, u64)> {
        let lane = self.lane();
        let out = self.fetched.get_mut(&lane)?;
        // Mostly from the front, now and then from anywhere: settlements come out of order.
        let at = if self.rng.one_in(3) {
            self.rng.below(out.len() as u64) as usize
        } else {
            0
        };
        let (seq, id) = out.iter().nth(at).map(|(s, i)| (*s, *i))?;
        out.remove(&seq);
        // Settled twice, once with and once without its dependents, would leave open which of the two took effect:
        // the caller's mistake, not the buffer's.
        let asked = self.open.iter().any(|op| match op {
            Open::Settle { writes, .. } => writes.iter().any(|(w, _)| *w == id),
            Open::Accept { settles, .. } => settles.iter().any(|(w, _)| *w == id),
            _ => false,
        });
        (!asked).then_some((lane, seq, id))
    }

    /// Whether a divert may settle the write: not when another settlement of it was tried. It is handed out again then.
    fn may_divert(&mut self, lane: u32, seq: u64, id: u64) -> bool {
        let may = self.release_tried(id).is_none();
        if !may {
            self.fetched.entry(lane).or_default().insert(seq, id);
        }
        may
    }

    /// What was said about the write's dependents when its settlement was tried before and failed.
    fn release_tried(&self, id: u64) -> Option<bool> {
        match self.model.writes.get(&id)?.status {
            Status::Settling { release } => Some(release),
            _ => None,
        }
    }

    pub(super) fn settle(&mut self) {
        let (mut settlements, mut writes) = (Vec::new(), Vec::new());
        for _ in 0..=self.rng.below(8) {
            let Some((lane, seq, id)) = self.pick_fetched() else {
                continue;
            };
            let release = !self.rng.one_in(4);
            let release = self.release_tried(id).unwrap_or(release);
            settlements.push(Settlement {
                lane: LaneId(lane),
                seq,
                result: 1,
                release_children: release,
            });
            if self.model.settling(id, release) {
                writes.push((id, release));
            }
        }
        if settlements.is_empty() {
            return;
        }
        self.say(|| format!("settle {writes:?}"));
        let future = self.buffer.settle(settlements);
        self.open.push(Open::Settle { future, writes });
    }

    pub(super) fn fetch(&mut self) {
        let lane = self.lane();
        let after = self.cursor.get(&lane).copied().unwrap_or(0);
        let most = 1 + self.rng.below(12) as usize;
        let mut future = self.buffer.fetch(LaneId(lane), after, most, 4096);
        if future.try_now_is_pending() {
            self.step_core();
        }
        let Some(Ok(found)) = future.try_now() else {
            return;
        };
        for write in found.writes {
            self.cursor.insert(lane, write.seq);
            self.fetched
                .entry(lane)
                .or_default()
                .insert(write.seq, id_of(&write.key));
        }
    }

    pub(super) fn frontier(&mut self) {
        let lane = self.lane();
        let Some((seq, _)) = self.fetched.get(&lane).and_then(|f| f.last_key_value()) else {
            return;
        };
        let seq = *seq;
        let f = self.model.frontiers.entry(lane).or_default();
        f.asked = f.asked.max(seq);
        let future = self.buffer.frontier(LaneId(lane), seq, self.unix_ms);
        self.open.push(Open::Frontier { future, lane, seq });
    }

    pub(super) fn note(&mut self) {
        let lane = self.lane();
        let Some((seq, id)) = self.fetched.get(&lane).and_then(|f| f.first_key_value()) else {
            return;
        };
        let (seq, id) = (*seq, *id);
        let state = WriteState {
            attempts: 1 + self.rng.below(9) as u32,
            first_maybe_unix_ms: self.rng.one_in(2).then_some(self.unix_ms),
            open_gate_age_ms: self.rng.below(100),
            sealed: u64::from(self.rng.0 as u32) << 16,
            ..WriteState::default()
        };
        let Some(write) = self.model.writes.get_mut(&id) else {
            return;
        };
        write.notes.push(state);
        let count = write.notes.len();
        let future = self.buffer.note(LaneId(lane), seq, state);
        self.open.push(Open::Note { future, id, count });
    }

    /// Purges are only made while nothing of the lane is open, so that the model need not order them.
    pub(super) fn purge(&mut self) {
        let lane = self.lane();
        if !self.open.is_empty() || !self.rng.one_in(4) {
            return;
        }
        // A settlement that failed in part leaves open what became of its writes, and whether their dependents have
        // joined the lane that is about to be purged.
        if self
            .model
            .writes
            .values()
            .any(|w| matches!(w.status, Status::Settling { .. }))
        {
            return;
        }
        let all: Vec<u64> = self
            .model
            .writes
            .iter()
            .filter(|(_, w)| w.lane == lane)
            .map(|(i, _)| *i)
            .collect();
        for id in all {
            if self
                .model
                .writes
                .get(&id)
                .is_some_and(|w| w.status == Status::Pending)
            {
                self.model.set(id, Status::Settling { release: false });
            }
        }
        self.fetched.remove(&lane);
        self.say(|| format!("purge lane {lane}"));
        let future = self.buffer.purge(LaneId(lane));
        self.open.push(Open::Purge { future, lane });
    }

    pub(super) fn answers(&mut self) -> Result<(), String> {
        let open = std::mem::take(&mut self.open);
        for mut op in open {
            let trace = self.trace;
            let model = &mut self.model;
            let done = match &mut op {
                Open::Accept {
                    future,
                    ids,
                    known,
                    position,
                    settles,
                } => match future.try_now() {
                    None => false,
                    Some(Ok(numbers)) => {
                        if trace {
                            eprintln!("accepted {ids:?} as {numbers:?}");
                        }
                        model.accepted(ids, &numbers)?;
                        settles
                            .iter()
                            .for_each(|(id, release)| model.settled(*id, *release));
                        model.known.extend(known.iter());
                        if let Some((source, count)) = position
                            && let Some((_, answered)) = model.positions.get_mut(source)
                        {
                            *answered = (*answered).max(*count);
                        }
                        true
                    }
                    Some(Err(why)) => {
                        if trace {
                            eprintln!("refused {ids:?}: {why}");
                        }
                        if retryable(&why) {
                            ids.iter().for_each(|id| model.forget(*id));
                            settles.iter().for_each(|(id, _)| model.unsettled(*id));
                            self.cursor.clear();
                        }
                        true
                    }
                },
                Open::Settle { future, writes } => match future.try_now() {
                    None => false,
                    Some(Ok(())) => {
                        if trace {
                            eprintln!("settled {writes:?}");
                        }
                        writes
                            .iter()
                            .for_each(|(id, release)| model.settled(*id, *release));
                        true
                    }
                    Some(Err(why)) => {
                        if trace {
                            eprintln!("settled in part {writes:?}: {why}");
                        }
                        // Some of them may have gone in an earlier part.
                        if retryable(&why) {
                            self.cursor.clear();
                        }
                        true
                    }
                },
                Open::Frontier { future, lane, seq } => match future.try_now() {
                    None => false,
                    Some(result) => {
                        if result.is_ok() {
                            let f = model.frontiers.entry(*lane).or_default();
                            f.durable = f.durable.max(*seq);
                        }
                        true
                    }
                },
                Open::Note { future, id, count } => match future.try_now() {
                    None => false,
                    Some(result) => {
                        if let (Ok(()), Some(w)) = (result, model.writes.get_mut(id)) {
                            w.noted = w.noted.max((*count).min(w.notes.len()));
                        }
                        true
                    }
                },
                Open::Purge { future, lane } => match future.try_now() {
                    None => false,
                    Some(Ok(_)) => {
                        let purged: Vec<u64> = model
                            .writes
                            .iter()
                            .filter(|(_, w)| {
                                w.lane == *lane && matches!(w.status, Status::Settling { .. })
                            })
                            .map(|(i, _)| *i)
                            .collect();
                        purged.into_iter().for_each(|id| model.forget(id));
                        true
                    }
                    Some(Err(_)) => true,
                },
            };
            if !done {
                self.open.push(op);
            }
        }
        Ok(())
    }
}
