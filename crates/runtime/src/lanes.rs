//! Which send each lane number belongs to.

use crate::templates::Templates;
use consign_delivery::LaneId;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One send, as far as events, parked writes and status need it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneInfo {
    /// The lane's stable name, `adapter/route/send`.
    pub id: String,
    /// Its adapter.
    pub adapter: String,
    /// Its route.
    pub route: String,
    /// Its send.
    pub send: String,
    /// The connection it sends over.
    pub connection: String,
    /// The operation it carries out.
    pub operation: String,
    /// The adapter's source operation.
    pub source: String,
    /// Whether its writes are durable; a direct send's are not.
    pub buffered: bool,
    /// Whether its destination drops a repeat, as resolved for this configuration.
    pub drops_repeats: bool,
    /// Whether what has the order key of a parked write waits for a person.
    pub holds_keys: bool,
    /// Whether a skip releases what waits for the write instead of dropping it.
    pub skip_releases: bool,
    /// Whether the order of its writes means something (`strict` or `by_key`).
    pub ordered: bool,
    /// Templates of its settings, whose texts each stored write brings along.
    pub templates: Templates,
}

/// All lanes of this run, by number; a reload adds and removes some.
#[derive(Debug, Default)]
pub struct Lanes {
    by_number: RwLock<BTreeMap<u32, Arc<LaneInfo>>>,
}

impl Lanes {
    /// Makes the directory.
    pub fn new(lanes: impl IntoIterator<Item = (LaneId, LaneInfo)>) -> Self {
        let lanes = lanes.into_iter().map(|(id, info)| (id.0, Arc::new(info)));
        Self {
            by_number: RwLock::new(lanes.collect()),
        }
    }

    /// The send behind a lane.
    pub fn get(&self, lane: LaneId) -> Option<Arc<LaneInfo>> {
        self.by_number.read().get(&lane.0).cloned()
    }

    /// The lane with this stable name.
    pub fn by_id(&self, id: &str) -> Option<(LaneId, Arc<LaneInfo>)> {
        let lanes = self.by_number.read();
        let (number, info) = lanes.iter().find(|(_, info)| info.id == id)?;
        Some((LaneId(*number), Arc::clone(info)))
    }

    /// All of them, by number.
    pub fn all(&self) -> Vec<(LaneId, Arc<LaneInfo>)> {
        let lanes = self.by_number.read();
        lanes
            .iter()
            .map(|(id, info)| (LaneId(*id), Arc::clone(info)))
            .collect()
    }

    /// The lane of each send's stable name.
    pub fn by_name(&self) -> BTreeMap<String, LaneId> {
        let lanes = self.by_number.read();
        lanes
            .iter()
            .map(|(id, info)| (info.id.clone(), LaneId(*id)))
            .collect()
    }

    /// A send that is new, or named anew.
    pub fn put(&self, lane: LaneId, info: LaneInfo) {
        self.by_number.write().insert(lane.0, Arc::new(info));
    }

    /// A send that is gone.
    pub fn remove(&self, lane: LaneId) {
        self.by_number.write().remove(&lane.0);
    }
}
