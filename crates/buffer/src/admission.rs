//! The way in: room is reserved, the acceptance check made, the record encoded and queued.

use tokio::sync::oneshot;

use crate::api::{Acceptance, Assigned, Known, LaneId, Origin, WRITE_OVERHEAD_BYTES, WhenFull};
use crate::buffer::Buffer;
use crate::error::{BufferError, Full};
use crate::handles::{Accepting, Claim, Receiver, Reservation, Waiting};
use crate::items::{self, Item};
use crate::keys::busy_of;
use crate::shared::{AcceptOp, Op};
use crate::state::State;
use crate::write::charges as charges_of;

impl Buffer {
    /// Reserves room for writes: all or none. One entry per write and per dependent, with the bytes of its body.
    ///
    /// Dropping the reservation gives the room back.
    ///
    /// # Errors
    /// See [`Full`].
    pub fn reserve(&self, wanted: &[(LaneId, u64)]) -> Result<Reservation, Full> {
        let mut state = self.shared.state.lock();
        if let Some(why) = &state.stopped {
            return Err(Full::Buffer(why.clone()));
        }
        if let Some(why) = &state.disk_full
            && !wanted.is_empty()
        {
            return Err(Full::Disk { why: why.clone() });
        }
        let mut charges: Vec<(LaneId, u64)> = Vec::new();
        let mut dropped = Vec::new();
        let mut total = 0u64;
        for (at, &(id, bytes)) in wanted.iter().enumerate() {
            let charge = bytes.saturating_add(WRITE_OVERHEAD_BYTES);
            let lane = state.lane(id).ok_or(BufferError::UnknownLane(id))?;
            let mine: u64 = charges
                .iter()
                .filter(|(l, _)| *l == id)
                .map(|(_, c)| c)
                .sum();
            let used = lane
                .charged
                .saturating_add(lane.reserved)
                .saturating_add(mine);
            if used.saturating_add(charge) > lane.quota_bytes {
                if lane.when_full == WhenFull::Drop {
                    dropped.push(at);
                    continue;
                }
                if charge.saturating_add(mine) > lane.quota_bytes {
                    return Err(Full::Never {
                        needed: charge.saturating_add(mine),
                        into: format!("lane {}", lane.id),
                        limit: lane.quota_bytes,
                        setting: "its `quota`",
                    });
                }
                return Err(Full::Lane {
                    lane: id,
                    id: lane.id.clone(),
                    charged: used,
                    quota: lane.quota_bytes,
                    needed: charge,
                });
            }
            total = total.saturating_add(charge);
            charges.push((id, charge));
        }
        if total > state.record_limit {
            return Err(Full::Never {
                needed: total,
                into: "one record of the log".to_owned(),
                limit: state.record_limit,
                setting: "`buffer.log_size`",
            });
        }
        for (id, charge) in &charges {
            state.lane_mut(id.0).reserved += charge;
        }
        Ok(Reservation {
            charges,
            dropped,
            shared: self.shared.clone(),
        })
    }

    /// Queues one acceptance, in call order; the future resolves once the record is durable.
    ///
    /// The acceptance is committed whether or not the future is kept. While the disk is full it is refused with
    /// [`BufferError::DiskFull`], also when its room was reserved before: that may be taken as any other lack of room.
    pub fn accept(&self, mut reservation: Reservation, acceptance: Acceptance) -> Accepting {
        Accepting(Waiting::of(self.try_accept(&mut reservation, acceptance)))
    }

    fn try_accept(
        &self,
        reservation: &mut Reservation,
        acceptance: Acceptance,
    ) -> Result<Receiver<Vec<(LaneId, u64)>>, BufferError> {
        let Acceptance {
            scope,
            origin,
            position,
            writes,
            settles,
        } = acceptance;
        let mut charges = Vec::new();
        for write in &writes {
            if !charges_of(write, 0, &mut charges) {
                return Err(BufferError::TooDeep);
            }
        }
        let mut left = reservation.charges.clone();
        for (lane, charge) in &charges {
            let mut need = *charge;
            for (_, have) in left.iter_mut().filter(|(l, _)| l == lane) {
                let used = need.min(*have);
                *have -= used;
                need -= used;
            }
            if need > 0 {
                return Err(BufferError::NotReserved(*lane));
            }
        }
        let mut payload = Vec::with_capacity(
            128 + writes.iter().map(|w| w.body.len() + 128).sum::<usize>() + settles.len() * 32,
        );
        for write in &writes {
            items::put_write(&mut payload, write);
        }
        if let Some((source, value)) = position {
            items::put_item(&mut payload, &Item::Position { source, value });
        }
        let scope = match &origin {
            Some(_) => Some(self.scope_number(&mut self.shared.state.lock(), &scope)?),
            None => None,
        };
        if let (Some(scope), Some(origin)) = (scope, &origin) {
            let at_unix_ms = self.shared.unix_now_ms();
            items::put_item(
                &mut payload,
                &Item::Known {
                    scope,
                    origin: origin.clone(),
                    at_unix_ms,
                },
            );
        }
        let payload_crc = crc32c::crc32c(&payload);
        let size = crate::record::size(writes.len(), payload.len()) as u64;
        let (sender, receiver) = oneshot::channel();
        let busy = scope.zip(origin.as_ref().map(busy_of));
        let op = AcceptOp {
            payload,
            payload_crc,
            lanes: writes.iter().map(|w| w.lane).collect(),
            bodies: writes.into_iter().map(|w| w.body).collect(),
            settles,
            busy: busy.clone(),
            reserved: std::mem::take(&mut reservation.charges),
            answer: sender,
        };
        let mut state = self.shared.state.lock();
        let limit = state.record_limit;
        if size > limit {
            reservation.charges = op.reserved;
            return Err(BufferError::TooLarge { bytes: size, limit });
        }
        let reserved = op.reserved.clone();
        // Under the state's lock, so that a stop in between gives the reservation back exactly once.
        match self.shared.push(Op::Accept(Box::new(op)), true) {
            Ok(()) => {
                if let Some((scope, busy)) = busy {
                    state.scope_mut(scope).hold(busy);
                }
                Ok(receiver)
            }
            Err(why) => {
                reservation.charges = reserved;
                Err(why)
            }
        }
    }

    /// The acceptance check: was this origin accepted, or is it on its way?
    pub fn known(&self, scope: &str, origin: &Origin) -> Known {
        self.shared.state.lock().known(scope, origin)
    }

    /// The acceptance check that also claims a new origin: until the claim is dropped, others get
    /// [`Known::InFlight`]. Keep it until the acceptance has resolved.
    ///
    /// # Errors
    /// What is known, when it is not [`Known::New`].
    pub fn claim(&self, scope: &str, origin: &Origin) -> Result<Claim, Known> {
        let mut state = self.shared.state.lock();
        match state.known(scope, origin) {
            Known::New => {}
            known => return Err(known),
        }
        // A buffer that has stopped accepts nothing, so there is nothing to protect from a second claim.
        let held = self
            .scope_number(&mut state, scope)
            .ok()
            .map(|scope| (scope, busy_of(origin)));
        if let Some((scope, busy)) = &held {
            state.scope_mut(*scope).hold(busy.clone());
        }
        Ok(Claim {
            held,
            shared: self.shared.clone(),
        })
    }

    /// A partition was assigned to us at this committed offset (the next one to be read).
    pub fn assigned(
        &self,
        scope: &str,
        partition: &str,
        incarnation: u64,
        committed: u64,
    ) -> Assigned {
        let mut state = self.shared.state.lock();
        let Ok(number) = self.scope_number(&mut state, scope) else {
            return Assigned::Resumed;
        };
        let found = state
            .scope_mut(number)
            .assess(partition, incarnation, committed);
        self.set_committed(
            &mut state,
            number,
            partition,
            incarnation,
            committed,
            found != Assigned::Resumed,
        );
        found
    }

    /// The source's own commit went through: offsets below it need not be remembered.
    pub fn committed(&self, scope: &str, partition: &str, incarnation: u64, committed: u64) {
        let mut state = self.shared.state.lock();
        if let Ok(number) = self.scope_number(&mut state, scope) {
            self.set_committed(&mut state, number, partition, incarnation, committed, false);
        }
    }

    fn set_committed(
        &self,
        state: &mut State,
        scope: u32,
        partition: &str,
        incarnation: u64,
        to: u64,
        reset: bool,
    ) {
        let partition = partition.to_owned();
        let mut payload = Vec::new();
        let item = Item::Assigned {
            scope,
            partition: partition.clone(),
            incarnation,
            committed: to,
            reset,
        };
        items::put_item(&mut payload, &item);
        // In memory at once, so that the next check sees it; a crash before it is durable is a restart from the
        // offset the group committed, which comes with an assignment of its own.
        if self
            .shared
            .push(
                Op::Items {
                    payload,
                    answer: None,
                },
                false,
            )
            .is_ok()
        {
            state
                .scope_mut(scope)
                .set_committed(partition, incarnation, to, reset);
        }
    }
}
