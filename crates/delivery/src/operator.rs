//! What a person does to lanes and writes, and direct sends that are given up.

use crate::config::AfterPark;
use crate::gate::{Cause, State};
use crate::ids::{ConnectionId, LaneId};
use crate::input::Act;
use crate::lane::{Doom, Phase};
use crate::machine::Delivery;

impl Delivery {
    pub(crate) fn act(&mut self, act: Act) {
        match act {
            Act::Pause(id) => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.paused = true;
                }
            }
            Act::Resume(id) => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.paused = false;
                }
                self.wake(id);
            }
            Act::PauseConnection(id) => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.paused = true;
                }
            }
            Act::ResumeConnection(id) => {
                let mut lanes = Vec::new();
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.paused = false;
                    lanes.extend(connection.lanes.iter().copied());
                }
                lanes.into_iter().for_each(|lane| self.wake(lane));
            }
            Act::ProbeNow(id) => self.probe_now(id),
            Act::RetryNow(id) => self.retry_now(id),
            Act::Skip(id, seq) => self.doom(id, seq, Doom::Skip),
            Act::Purge(id, seq) => self.doom(id, seq, Doom::Purge),
            Act::Park(id, seq) => self.doom(id, seq, Doom::Park),
            Act::Confirm(id, seq) => self.doom(id, seq, Doom::Confirm),
            Act::ReleaseKey(id, order) => self.release_key(id, order),
        }
    }

    fn probe_now(&mut self, id: ConnectionId) {
        let now_ms = self.now_ms;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let targets: Vec<u32> = connection.targets.iter().copied().collect();
        let gate = &mut connection.gate;
        if gate.state == State::Closed && gate.probing_until_ms.is_none() {
            gate.try_at_ms = Some(now_ms);
            self.gate_due(id);
        }
        for number in targets {
            let closed = self
                .targets
                .get(&number)
                .is_some_and(|target| target.gate.state == State::Closed);
            if closed {
                self.half_open_target(number);
            }
        }
    }

    /// Waiting writes go now; one held as ambiguous may be sent once more.
    fn retry_now(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let waiting: Vec<(u64, Phase)> = lane
            .writes
            .iter()
            .map(|(seq, write)| (*seq, write.phase))
            .filter(|(_, phase)| matches!(phase, Phase::Backoff { .. } | Phase::Held))
            .collect();
        let target = lane.target;
        for (seq, phase) in waiting {
            if phase == Phase::Held {
                self.release_held(id, seq);
            } else if let Some(lane) = self.lanes.get_mut(&id) {
                lane.set_phase(seq, Phase::Ready);
            }
        }
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.trial_at_ms = 0;
        }
        let throttled = self
            .targets
            .get(&target)
            .is_some_and(|target| target.gate.cause == Cause::Throttled);
        if !throttled {
            self.half_open_target(target);
        }
        self.check_halt(id);
        self.wake(id);
        self.touch(id);
    }

    /// Ends a write: at once, or once its request has been stopped.
    fn doom(&mut self, id: LaneId, seq: u64, doom: Doom) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        // A direct send is in its source's hands: there is nothing to park it from, and trying it again
        // would be one copy more each time.
        if lane.settling.contains(&seq) || (doom == Doom::Park && lane.is_volatile()) {
            return;
        }
        let Some(write) = lane.writes.get_mut(&seq) else {
            // Beyond the window: it was never sent under this machine. A park that holds an order
            // key waits until the key is known.
            let holds = lane.cfg.after_park == AfterPark::HoldKey && !lane.is_unordered();
            if doom == Doom::Park && holds && seq > lane.cursor {
                lane.parks_ahead.insert(seq);
                return;
            }
            self.carry_out(id, seq, doom);
            return;
        };
        write.doom = Some(doom);
        if let Phase::InFlight(request) = write.phase {
            self.cancel(request, true);
            return;
        }
        let group = write.group;
        if lane.cfg.batch.sealed && group != 0 {
            self.unseal(id, group, seq);
        }
        self.carry_out(id, seq, doom);
        self.check_halt(id);
    }

    /// One write of a sealed batch goes: the rest can't be sent under the same token. What was
    /// never tried is sealed anew; what may have landed parks.
    pub(crate) fn unseal(&mut self, id: LaneId, group: u64, leaving: u64) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let rest: Vec<(u64, bool)> = lane
            .writes
            .iter()
            .filter(|(seq, write)| write.group == group && **seq != leaving)
            .map(|(seq, write)| (*seq, write.is_maybe()))
            .collect();
        for (seq, maybe) in rest {
            if maybe {
                self.park(id, seq, crate::output::ParkReason::MayHaveLanded);
            } else if let Some(lane) = self.lanes.get_mut(&id) {
                if let Some(write) = lane.writes.get_mut(&seq) {
                    write.group = 0;
                    write.note.unseal();
                }
                lane.mark_note(seq);
            }
        }
        self.touch(id);
    }

    /// A sealed batch is not whole in the window. `true` when it never will be and was parked.
    pub(crate) fn give_up_sealed(&mut self, id: LaneId, group: u64) -> bool {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return false;
        };
        lane.needs_more = true;
        if lane.fetching || lane.wants_fetch().is_some() {
            self.touch(id);
            return false;
        }
        lane.needs_more = false;
        let members: Vec<u64> = lane
            .writes
            .iter()
            .filter(|(_, write)| write.group == group)
            .map(|(seq, _)| *seq)
            .collect();
        for seq in members {
            let maybe = self
                .lanes
                .get(&id)
                .and_then(|lane| lane.writes.get(&seq))
                .is_some_and(crate::lane::Pending::is_maybe);
            if maybe {
                self.park(id, seq, crate::output::ParkReason::MayHaveLanded);
            } else if let Some(lane) = self.lanes.get_mut(&id) {
                if let Some(write) = lane.writes.get_mut(&seq) {
                    write.group = 0;
                    write.note.unseal();
                }
                lane.mark_note(seq);
            }
        }
        self.touch(id);
        true
    }

    /// The message of a direct send was given back.
    pub(crate) fn withdraw(&mut self, id: LaneId, seq: u64) {
        self.end_direct(id, seq, Doom::Withdraw);
    }

    /// A volatile lane goes: what it still holds was not answered.
    pub(crate) fn withdraw_all(&mut self, id: LaneId) {
        let left: Vec<u64> = self
            .lanes
            .get(&id)
            .filter(|lane| lane.is_volatile())
            .map(|lane| lane.writes.keys().copied().collect())
            .unwrap_or_default();
        left.into_iter().for_each(|seq| self.withdraw(id, seq));
    }

    /// The adapter waits no longer.
    pub(crate) fn give_up(&mut self, id: LaneId, seq: u64) {
        self.end_direct(id, seq, Doom::GiveUp);
    }

    fn end_direct(&mut self, id: LaneId, seq: u64, doom: Doom) {
        let volatile = self
            .lanes
            .get(&id)
            .is_some_and(|lane| lane.is_volatile() && lane.writes.contains_key(&seq));
        if volatile {
            self.doom(id, seq, doom);
        }
    }
}
