//! Which send each lane number belongs to.

use consign_delivery::LaneId;
use std::collections::BTreeMap;

/// One send, as far as events, parked writes and status need it.
#[derive(Debug, Clone)]
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
}

/// All lanes of this run. Built once at start.
#[derive(Debug, Default)]
pub struct Lanes {
    by_number: BTreeMap<u32, LaneInfo>,
}

impl Lanes {
    /// Makes the directory.
    pub fn new(lanes: impl IntoIterator<Item = (LaneId, LaneInfo)>) -> Self {
        Self {
            by_number: lanes.into_iter().map(|(id, info)| (id.0, info)).collect(),
        }
    }

    /// The send behind a lane.
    pub fn get(&self, lane: LaneId) -> Option<&LaneInfo> {
        self.by_number.get(&lane.0)
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = (LaneId, &LaneInfo)> {
        self.by_number.iter().map(|(id, info)| (LaneId(*id), info))
    }
}
