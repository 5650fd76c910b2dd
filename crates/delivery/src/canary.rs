//! Canaries: the one write that is sent through a half-open gate.

use crate::batch::Pick;
use crate::connection::Mode;
use crate::ids::{ClassId, LaneId};
use crate::lane::Lane;
use crate::machine::Delivery;
use std::collections::BTreeMap;

/// Heads looked at for one that was never sent, when a canary is chosen.
const CANARY_LOOK: usize = 64;

impl Delivery {
    /// The one write that decides whether a half-open gate opens: of all lanes behind it, a head
    /// that was never sent, or else the one tried least.
    pub(crate) fn send_canary(&mut self, id: LaneId) -> bool {
        let Some(lane) = self.lanes.get(&id) else {
            return false;
        };
        let target_wants = self
            .targets
            .get(&lane.target)
            .is_some_and(|target| target.gate.wants_canary());
        // One look at all lanes behind a gate a pass: what made it fail does not change meanwhile.
        let gate = if target_wants {
            (true, lane.target)
        } else {
            (false, lane.cfg.connection.0)
        };
        if !self.canary_scans.insert(gate) {
            return false;
        }
        let lanes: Vec<LaneId> = if target_wants {
            self.targets
                .get(&lane.target)
                .map(|target| target.lanes.iter().copied().collect())
                .unwrap_or_default()
        } else {
            self.connections
                .get(&lane.cfg.connection)
                .map(|connection| connection.lanes.iter().copied().collect())
                .unwrap_or_default()
        };
        let mut best: Option<(u32, LaneId, u64, bool)> = None;
        for other in lanes {
            if self.mode(other) != Mode::Canary {
                continue;
            }
            let class = self
                .lanes
                .get(&other)
                .map_or(ClassId(0), |lane| self.classes.resolve(lane.cfg.class));
            if !self.classes.may_send(class, self.now_ms) {
                // It is asked again when its class has a slot.
                if other != id {
                    self.wake(other);
                }
                continue;
            }
            if let Some((rank, seq, trial)) = self.canary_of(other)
                && best.is_none_or(|(least, _, _, _)| rank < least)
            {
                best = Some((rank, other, seq, trial));
            }
        }
        let Some((_, lane, seq, trial)) = best else {
            return false;
        };
        self.send_alone(lane, seq, trial)
    }

    /// The best canary of one lane: rank (0 was never sent), number, whether it is a trial.
    fn canary_of(&mut self, id: LaneId) -> Option<(u32, u64, bool)> {
        let lane = self.lanes.get(&id)?;
        if lane.room() == 0 {
            return None;
        }
        let mut best: Option<(u32, u64)> = None;
        let mut sealed = SealedLook::default();
        for seq in lane.ready.iter().take(CANARY_LOOK) {
            let Some(write) = lane.writes.get(seq) else {
                continue;
            };
            if write.is_maybe() && lane.inspecting {
                continue;
            }
            if !sealed.may_go(lane, write.group, false) {
                continue;
            }
            let rank = if write.is_untried() {
                0
            } else {
                1_u32.saturating_add(write.tries)
            };
            if best.is_none_or(|(least, _)| rank < least) {
                best = Some((rank, *seq));
            }
        }
        if best.is_none_or(|(rank, _)| rank > 0)
            && let Some(seq) = self.trial_candidate(id)
        {
            return Some((0, seq, true));
        }
        best.map(|(rank, seq)| (rank, seq, false))
    }
}

/// Which sealed batches could go alone now, looked at once each: one that waits for a member of its
/// own must not hide the others.
#[derive(Default)]
pub(crate) struct SealedLook {
    groups: BTreeMap<u64, bool>,
}

impl SealedLook {
    /// A trial may step over what is stuck before it, and waits for room if it must.
    pub(crate) fn may_go(&mut self, lane: &Lane, group: u64, trial: bool) -> bool {
        group == 0
            || !lane.cfg.batch.sealed
            || *self.groups.entry(group).or_insert_with(|| {
                let room = if trial {
                    lane.cfg.in_flight_limit
                } else {
                    lane.room()
                };
                lane.pick_sealed(group, room, trial) != Pick::Nothing
            })
    }
}
