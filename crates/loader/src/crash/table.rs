//! The table of writes that plugins have, as the handler may read it at any moment.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Places in the table: the writes in flight of a host with a hundred busy lanes. Half a MiB at most
/// in a note.
pub const TABLE: usize = 16_384;

/// One write. A place is free while `lane` is 0.
struct Place {
    /// The lane's number and 1.
    lane: AtomicU64,
    seq: AtomicU64,
}

#[allow(
    clippy::declare_interior_mutable_const,
    reason = "the initial value of each place of the static"
)]
const FREE: Place = Place {
    lane: AtomicU64::new(0),
    seq: AtomicU64::new(0),
};

static PLACES: [Place; TABLE] = [FREE; TABLE];
/// Writes that found no place, at the moment.
static UNLISTED: AtomicU64 = AtomicU64::new(0);
/// Free places: those that were given back, and where the never used ones begin. The handler never
/// looks at it.
static FREE_PLACES: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

/// Notes that a plugin has these writes of a lane, until the result is dropped.
pub fn in_hands(lane: u32, seqs: impl IntoIterator<Item = u64>) -> InHands {
    let mut hands = InHands {
        places: Vec::new(),
        unlisted: 0,
    };
    let mut free = FREE_PLACES.lock();
    for seq in seqs {
        let next = free.0.pop().or_else(|| {
            let fresh = free.1;
            (fresh < TABLE).then(|| {
                free.1 += 1;
                fresh
            })
        });
        match next.and_then(|at| Some((at, PLACES.get(at)?))) {
            Some((at, place)) => {
                place.seq.store(seq, Ordering::Relaxed);
                place.lane.store(u64::from(lane) + 1, Ordering::Release);
                hands.places.push(at);
            }
            None => hands.unlisted += 1,
        }
    }
    UNLISTED.fetch_add(hands.unlisted, Ordering::Relaxed);
    hands
}

/// Writes that a plugin has.
#[derive(Debug)]
#[must_use = "dropping it says that the plugin has them no longer"]
pub struct InHands {
    places: Vec<usize>,
    unlisted: u64,
}

impl Drop for InHands {
    fn drop(&mut self) {
        for place in self.places.iter().filter_map(|at| PLACES.get(*at)) {
            place.lane.store(0, Ordering::Release);
        }
        UNLISTED.fetch_sub(self.unlisted, Ordering::Relaxed);
        FREE_PLACES.lock().0.append(&mut self.places);
    }
}

/// Calls `each` with lane and number of every write in the table; gives the count of those outside.
/// Safe in a signal handler. A place that changes hands at this very moment may be read half old, half
/// new: three notes that agree on it by accident are not to be feared.
pub(super) fn for_each(mut each: impl FnMut(u64, u64)) -> u64 {
    for place in &PLACES {
        let lane = place.lane.load(Ordering::Acquire);
        if lane != 0 {
            each(lane - 1, place.seq.load(Ordering::Relaxed));
        }
    }
    UNLISTED.load(Ordering::Relaxed)
}
