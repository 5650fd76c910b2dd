//! Reading everything and comparing it with the model, and the drain at the end of a run.

use std::collections::BTreeMap;

use super::cells::Fault;
use super::model::{Restart, id_of};
use super::swarm::{Damage, Odds};
use super::world::World;
use crate::api::{Known, LaneId, Origin, Pending};
use crate::core::Now;

/// Steps within which a buffer without faults must have emptied itself.
const MAX_DRAIN_STEPS: u32 = 3_000;
/// Steps for which the disk stays full on the seeds that drain with a full disk.
const MAX_FULL_STEPS: u32 = 1_500;

impl World {
    fn lane_count(&self) -> u32 {
        u32::try_from(self.buffer.lanes().len()).unwrap_or(0)
    }

    /// Reads everything and compares.
    pub(super) fn check_all(&mut self, how: Restart) -> Result<(), String> {
        let mut found: BTreeMap<u32, Vec<Pending>> = BTreeMap::new();
        for lane in 0..self.lane_count() {
            let mut after = 0;
            loop {
                let most = 1 + self.rng.below(20) as usize;
                let mut future = self.buffer.fetch(LaneId(lane), after, most, 4096);
                if future.try_now_is_pending() {
                    self.core.step(Now {
                        mono_ms: self.mono_ms,
                        unix_ms: self.unix_ms,
                    });
                }
                let got = match future.try_now() {
                    Some(Ok(got)) => got,
                    other => return Err(format!("reading lane {lane} without faults: {other:?}")),
                };
                after = got.writes.last().map_or(after, |w| w.seq);
                let end = !got.more || got.writes.is_empty();
                found.entry(lane).or_default().extend(got.writes);
                if end {
                    break;
                }
            }
        }
        // What reading found damaged is made durable.
        for _ in 0..20 {
            self.mono_ms += 50;
            self.core.step(Now {
                mono_ms: self.mono_ms,
                unix_ms: self.unix_ms,
            });
        }
        if self.swarm.damage != Damage::None {
            self.model.reported_loss |= !self.buffer.lost().is_empty();
        }
        let ids: Vec<u64> = self.model.known.iter().copied().collect();
        self.model.check(&found, how)?;
        for lane in 0..self.lane_count() {
            if let Some(stats) = self.buffer.stats(LaneId(lane)) {
                self.model.check_quota(lane, &stats)?;
            }
        }
        for (source, (asked, answered)) in &mut self.model.positions {
            let value = self
                .buffer
                .position(source)
                .and_then(|v| v.as_ref().try_into().ok())
                .map(u64::from_le_bytes);
            let at = value.and_then(|v| asked.iter().rposition(|a| *a == v));
            match at {
                Some(at) if at + 1 >= *answered => *answered = at + 1,
                None if *answered == 0 => {}
                _ if self.model.reported_loss => *answered = 0,
                _ => {
                    return Err(format!(
                        "{source} is at {value:?}, of {asked:?} with {answered} answered"
                    ));
                }
            }
            asked.truncate(*answered);
        }
        for n in ids {
            if self.buffer.known("adapter", &origin_of(n)) != Known::Repeat {
                if !self.model.reported_loss {
                    return Err(format!("origin {n} was accepted and is not known"));
                }
                self.model.known.remove(&n);
            }
        }
        Ok(())
    }

    /// What is stuck, for a person.
    pub(super) fn describe(&self) -> String {
        let state = self.core.shared.state.lock();
        let mut text = format!(
            "{} open, others {}, accepts {}, prepared {}, free slots {}, job {}, failure {:?}, lost {:?}",
            self.open.len(),
            self.core.others.len(),
            self.core.accepts.len(),
            self.core.prepared.is_some(),
            self.core.log.free_slots(),
            self.core.job.is_some(),
            self.core.last_failure,
            state.lost,
        );
        for (n, lane) in state
            .lanes
            .iter()
            .enumerate()
            .filter(|(_, l)| l.charged + l.reserved > 0)
        {
            let fetched = self.fetched.get(&(n as u32));
            text += &format!(
                "\nlane {n}: charged {} reserved {} pending {} entries {:?} settled {:?} through {} files {:?} fetched {fetched:?} cursor {:?}",
                lane.charged,
                lane.reserved,
                lane.pending(),
                lane.entries.keys(),
                lane.settled,
                lane.spilled_through,
                lane.files,
                self.cursor.get(&(n as u32)),
            );
        }
        text
    }

    /// With faults off, and on some seeds with the disk still full, everything drains and the books come to nothing.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        self.fs.set_odds(Odds::default());
        // Lanes whose names were lost are drained as well.
        self.numbers = (0..self.lane_count()).collect();
        let full = self.rng.one_in(3);
        self.fs
            .set_space(if full { self.fs.used() } else { u64::MAX });
        for step in 0..MAX_DRAIN_STEPS {
            if step == MAX_FULL_STEPS {
                // What a full disk let drain has drained; accepted keys and a full log may need the space.
                self.fs.set_space(u64::MAX);
            }
            self.step_core();
            self.after()?;
            for lane in 0..self.lane_count() {
                let after = self.cursor.get(&lane).copied().unwrap_or(0);
                let mut future = self.buffer.fetch(LaneId(lane), after, 50, 1 << 20);
                if future.try_now_is_pending() {
                    self.step_core();
                }
                let Some(Ok(found)) = future.try_now() else {
                    continue;
                };
                for write in found.writes {
                    self.cursor.insert(lane, write.seq);
                    self.fetched
                        .entry(lane)
                        .or_default()
                        .insert(write.seq, id_of(&write.key));
                }
            }
            self.settle();
            let left: usize = self.fetched.values().map(BTreeMap::len).sum();
            let pending: u64 = self.buffer.lanes().iter().map(|(_, s)| s.pending).sum();
            if left == 0 && pending == 0 && self.open.is_empty() {
                let charged: u64 = self
                    .buffer
                    .lanes()
                    .iter()
                    .map(|(_, s)| s.charged_bytes + s.reserved_bytes)
                    .sum();
                if charged != 0 {
                    return Err(format!(
                        "all is drained and {charged} bytes are still charged"
                    ));
                }
                return self.restart(Fault::PowerCut, Restart::Unclean);
            }
        }
        Err(format!(
            "the buffer does not drain (disk full: {full}, damage: {:?}): {}",
            self.swarm.damage,
            self.describe()
        ))
    }
}

/// The origin that stands for a number.
pub(super) fn origin_of(n: u64) -> Origin {
    match n % 3 {
        0 => Origin::Cumulative {
            partition: "p".into(),
            incarnation: 1,
            offset: n,
        },
        1 => {
            let mut id = [1u8; 16];
            id[..8].copy_from_slice(&n.to_le_bytes());
            Origin::Individual { id }
        }
        _ => {
            let mut key = [2u8; 16];
            key[..8].copy_from_slice(&n.to_le_bytes());
            Origin::ClientKey { key, body: [3; 16] }
        }
    }
}
