//! Where each lane's pending writes were sent, durably: what may have landed at one target is never
//! sent to another, also when the configuration changed while the host was down.

use crate::clock;
use crate::events::of_lane;
use crate::host::Host;
use crate::wire::Wire;
use bytes::Bytes;
use consign_buffer::{Acceptance, BufferError};
use consign_delivery::LaneId;
use consign_ledger::{Code, Event};
use serde::{Deserialize, Serialize};

/// What is kept of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Its target, as [`Wire::target`].
    target: String,
    /// Writes up to this number were sent to another one, from before a restart.
    moved_below: u64,
}

/// By the buffer's number of the lane, which a renamed send keeps.
fn name_of(lane: LaneId) -> String {
    format!("lane/{}/target", lane.0)
}

impl Host {
    /// Compares a lane's target with the one its pending writes were sent to. Returns up to which number
    /// they belong to another one.
    pub(crate) async fn check_target(&self, lane: LaneId, wire: &Wire) -> u64 {
        if !wire.info.buffered {
            return 0;
        }
        let known = self
            .buffer
            .position(&name_of(lane))
            .and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        let stats = self.buffer.stats(consign_buffer::LaneId(lane.0));
        let (frontier, pending) = stats.map_or((0, 0), |stats| (stats.frontier, stats.pending));
        let moved_below = match known {
            Some(record) if record.target == wire.target => return record.moved_below,
            Some(_) if pending > 0 => frontier,
            // Nothing is left of the old target, or the lane is new.
            _ => 0,
        };
        if moved_below > 0 {
            let event = of_lane(
                Event::new(Code::ConfigReloaded, clock::wall_unix_ms_i64()),
                &wire.info,
            )
            .field("pending", pending)
            .message(format!(
                "{}: its target changed while writes were pending; those that may have landed at the old one are parked as may_have_landed, the others go to the new one",
                wire.info.id
            ));
            self.events.emit(event);
        }
        if let Err(error) = self.record_target(lane, wire, moved_below).await {
            tracing::error!(lane = wire.info.id, %error, "the lane's target could not be recorded");
        }
        moved_below
    }

    /// Makes a lane's target durable.
    ///
    /// # Errors
    /// When the log has failed.
    pub(crate) async fn record_target(
        &self,
        lane: LaneId,
        wire: &Wire,
        moved_below: u64,
    ) -> Result<(), BufferError> {
        let record = Record {
            target: wire.target.clone(),
            moved_below,
        };
        let bytes = serde_json::to_vec(&record).unwrap_or_default();
        let nothing = self
            .buffer
            .reserve(&[])
            .map_err(|full| BufferError::Failed(full.to_string()))?;
        let accepting = self.buffer.accept(
            nothing,
            Acceptance {
                scope: wire.info.adapter.clone(),
                origin: None,
                position: Some((name_of(lane), Bytes::from(bytes))),
                writes: Vec::new(),
                settles: Vec::new(),
            },
        );
        accepting.await.map(drop)
    }
}
