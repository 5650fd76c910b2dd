//! A lane that goes to another target, or goes for good: what may have been applied keeps its target.

use crate::event::EventCode;
use crate::ids::LaneId;
use crate::lane::{Lane, Phase};
use crate::machine::{Delivery, Timer};
use crate::output::ParkReason;

impl Delivery {
    /// From here on only maybe-applied writes of this lane are sent.
    pub(crate) fn leave_target(&mut self, id: LaneId, until_ms: u64) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if lane.is_volatile() {
            lane.removing = true;
        } else {
            lane.leaving_until_ms = Some(until_ms);
            // A removal that was under way waits for less.
            lane.removing = false;
            // Whatever is pending up to the frontier is looked at: after an unclean exit it may
            // have been applied. A fetch that is out keeps what it finds only if it may have been.
            self.timers.insert((until_ms, Timer::Leave(id)));
        }
        self.sweep_leaving(id);
        self.touch(id);
        self.wake(id);
    }

    /// Lets go of what was never applied: the next target gets it. Once the time is over, what may
    /// have been applied parks.
    pub(crate) fn sweep_leaving(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let Some(until_ms) = lane.leaving_until_ms else {
            return;
        };
        let overdue = self.now_ms >= until_ms;
        let at_rest: Vec<(u64, bool)> = lane
            .writes
            .iter()
            .filter(|(_, write)| {
                !matches!(write.phase, Phase::InFlight(_) | Phase::Asking)
                    && !write.note_dirty
                    && write.noting.is_none()
            })
            .map(|(seq, write)| (*seq, write.is_maybe()))
            .collect();
        let mut parked = 0_u64;
        let mut first = 0;
        for (seq, maybe) in at_rest {
            if !maybe {
                self.take_write(id, seq);
            } else if overdue {
                if parked == 0 {
                    first = seq;
                }
                parked += 1;
                self.park(id, seq, ParkReason::MayHaveLanded);
            }
        }
        if parked > 0 {
            self.lane_event(
                EventCode::TargetLeft,
                id,
                first,
                "writes that may have landed at the old target were not answered in time: they are in Failed messages, where a person decides whether the new target gets them",
            );
        }
    }
}

impl Lane {
    /// Whether a lane that is being removed, or leaves its target, has nothing left to wait for.
    pub(crate) fn is_gone(&self) -> bool {
        let at_rest = self.in_flight == 0
            && self.settling.is_empty()
            // Its answer would be taken for one of the lane that has the number next.
            && !self.fetching
            && self.writes.values().all(|write| write.noting.is_none());
        let left = self.leaving_until_ms.is_some()
            && self.writes.is_empty()
            && self.wants_fetch().is_none();
        at_rest && (self.removing || left)
    }
}
