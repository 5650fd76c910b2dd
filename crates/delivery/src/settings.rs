//! New settings of a lane that runs: what they mean for the writes it holds.

use crate::config::{LaneConfig, OnAmbiguous, Policy};
use crate::ids::LaneId;
use crate::lane::{Lane, Pending, Phase, normalise};
use crate::machine::Delivery;
use crate::note::WriteNote;
use crate::output::ParkReason;

impl Pending {
    /// Whether every attempt this policy gives is charged, or all the time.
    pub(crate) fn is_spent(&self, policy: &Policy) -> bool {
        self.note.attempts >= policy.max_attempts || self.is_too_old(policy)
    }

    /// Whether it failed for longer than this policy allows.
    pub(crate) fn is_too_old(&self, policy: &Policy) -> bool {
        policy
            .max_age_ms
            .is_some_and(|limit| self.note.open_gate_age_ms >= limit)
    }

    /// A write noted as spent under settings that gave it less has attempts again. `true` when
    /// that changed its note.
    pub(crate) fn regain(&mut self, policy: &Policy) -> bool {
        if !self.note.has(WriteNote::SPENT) || self.is_spent(policy) {
            return false;
        }
        self.note.set(WriteNote::SPENT, false);
        self.last_try = false;
        self.last_try_failed = false;
        if !self.note.has(WriteNote::AMBIGUOUS) {
            self.finish_on_failure = false;
        }
        true
    }
}

impl Lane {
    /// Takes new settings; what is on its way ends under the old ones.
    fn reconfigure(&mut self, mut cfg: LaneConfig) {
        normalise(&mut cfg);
        for key in &cfg.held_keys {
            self.held.entry(*key).or_insert(None);
        }
        let keys: Vec<u64> = self.held.keys().copied().collect();
        keys.into_iter().for_each(|key| self.refresh_key(key));
        self.removing = false;
        self.cfg = cfg;
        self.regain_attempts();
    }

    /// Raised limits: what was spent or stuck under the old ones and is not under these is a write
    /// like any other, and no trial goes past it.
    fn regain_attempts(&mut self) {
        let policy = self.cfg.policy;
        let mut changed = Vec::new();
        for (seq, write) in &mut self.writes {
            if write.regain(&policy) {
                changed.push(*seq);
            }
            let tried = write.note.attempts.saturating_add(write.uncharged);
            if write.phase != Phase::Held && tried < policy.max_attempts {
                self.stuck.remove(seq);
            }
        }
        changed.into_iter().for_each(|seq| self.mark_note(seq));
    }
}

impl Delivery {
    /// New settings of a lane that exists.
    pub(crate) fn reconfigure_lane(&mut self, id: LaneId, cfg: LaneConfig) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.reconfigure(cfg);
        let on_ambiguous = lane.cfg.on_ambiguous;
        let held: Vec<u64> = lane
            .writes
            .iter()
            .filter(|(_, write)| write.phase == Phase::Held && write.note.has(WriteNote::AMBIGUOUS))
            .map(|(seq, _)| *seq)
            .collect();
        for seq in held {
            match on_ambiguous {
                OnAmbiguous::Hold => {}
                OnAmbiguous::Park => self.finish(id, seq, ParkReason::MayHaveLanded),
                OnAmbiguous::Retry => self.release_held(id, seq),
            }
        }
        self.check_halt(id);
    }

    /// A write held as ambiguous goes once more: one copy more, which a person or the settings ask for.
    pub(crate) fn release_held(&mut self, id: LaneId, seq: u64) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if let Some(write) = lane.writes.get_mut(&seq) {
            write.note.set(WriteNote::AMBIGUOUS, false);
            write.note.spent_resends = write.note.spent_resends.saturating_add(1);
            write.resent_in = None;
        }
        lane.stuck.remove(&seq);
        lane.mark_note(seq);
        lane.set_phase(seq, Phase::Ready);
        if let Some(target) = self.targets.get_mut(&lane.target) {
            target.ambiguous.remove(&(id, seq));
        }
    }
}
