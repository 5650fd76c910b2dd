//! What one seed's run is about. Each run has its own sizes, its own mix of actions and its own odds of faults, so
//! that combinations come up which no single mix would ever make likely.

use super::cells::{Cell, possible};
use super::rng::Rng;
use crate::api::Options;
use crate::planted::Planted;

/// Bytes of a simulated log segment: the smallest there is.
pub(super) const SEGMENT_BYTES: u64 = 16 << 10;

/// How often things go wrong: once in so many calls, 0 = never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odds {
    /// A kill.
    pub kill: u64,
    /// A power cut.
    pub power_cut: u64,
    /// An I/O error of the log.
    pub eio_log: u64,
    /// An I/O error elsewhere.
    pub eio: u64,
    /// No space, at a call that needs some.
    pub enospc: u64,
    /// Less is read or written than was asked.
    pub short: u64,
    /// One fault at one kind of call, and how often: what the run looks at most closely.
    pub focus: Option<(Cell, u64)>,
}

/// An action of the caller, or of fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Accept,
    Fetch,
    Settle,
    Frontier,
    Note,
    Purge,
    Space,
    Close,
    Crash,
    Step,
}

/// What is done to files while the host is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    None,
    /// Bits flip.
    Flips,
    /// Files are removed or cut short.
    Hands,
}

/// One run's settings.
#[derive(Debug, Clone)]
pub(super) struct Swarm {
    pub(super) options: Options,
    pub(super) odds: Odds,
    pub(super) damage: Damage,
    pub(super) quota_bytes: u64,
    /// The first opening meets faults too.
    pub(super) hard_start: bool,
    /// The number of segments may change at a restart.
    pub(super) resizes: bool,
    /// The disk is full from the first, and the caller goes on until the log is.
    pub(super) crams: bool,
    weights: [(Action, u64); 10],
    total: u64,
}

impl Swarm {
    pub(super) fn new(rng: &mut Rng, planted: Option<Planted>) -> Swarm {
        let segments = 4 + rng.below(3);
        let options = Options {
            log_bytes: SEGMENT_BYTES * segments,
            log_segments: segments as u32,
            spill_file_bytes: 2048 << rng.below(4),
            body_memory_bytes: 1024 << rng.below(6),
            log_entries: 8 << rng.below(6) as usize,
            slot_bytes: 2048 << rng.below(4),
            planted,
            ..Options::default()
        };
        let mut pick = |choices: &[u64]| rng.pick(choices).unwrap_or(0);
        let mut odds = Odds {
            kill: pick(&[0, 300, 1500]),
            power_cut: pick(&[150, 500, 1500]),
            eio_log: pick(&[0, 0, 400, 2000]),
            eio: pick(&[0, 30, 200]),
            enospc: pick(&[0, 0, 20, 100]),
            short: pick(&[0, 10]),
            focus: None,
        };
        let weights = [
            (Action::Accept, pick(&[20, 30, 30, 50])),
            (Action::Fetch, pick(&[5, 15, 15, 25])),
            (Action::Settle, pick(&[2, 12, 12, 25])),
            (Action::Frontier, pick(&[2, 5, 5, 15])),
            (Action::Note, pick(&[1, 4, 4, 30])),
            (Action::Purge, pick(&[0, 1, 1, 6])),
            (Action::Space, pick(&[0, 1, 1, 4])),
            (Action::Close, pick(&[0, 1, 1, 3])),
            (Action::Crash, pick(&[0, 1, 1, 4])),
            (Action::Step, pick(&[15, 30, 30, 60])),
        ];
        let damage = match pick(&[0, 0, 0, 0, 0, 1, 1, 2]) {
            0 => Damage::None,
            1 => Damage::Flips,
            _ => Damage::Hands,
        };
        let quota_bytes = pick(&[6_000, 20_000, 60_000, 60_000]);
        let hard_start = pick(&[0, 0, 1]) == 1;
        let resizes = pick(&[0, 0, 1]) == 1;
        if rng.one_in(2) {
            let often = rng.pick(&[3, 20, 100]).unwrap_or(20);
            odds.focus = rng.pick(&possible()).map(|cell| (cell, often));
        }
        let mut swarm = Swarm {
            options,
            odds,
            damage,
            quota_bytes,
            hard_start,
            resizes,
            crams: false,
            total: 0,
            weights,
        };
        if rng.one_in(50) {
            swarm.cram();
        }
        swarm.total = swarm.weights.iter().map(|(_, w)| w).sum();
        swarm
    }

    /// Nothing but a log that fills up behind a full disk, and ends of runs.
    fn cram(&mut self) {
        self.crams = true;
        self.odds = Odds::default();
        self.damage = Damage::None;
        self.resizes = false;
        self.quota_bytes = 60_000;
        self.options.log_segments = 4;
        self.options.log_bytes = SEGMENT_BYTES * 4;
        for (action, weight) in &mut self.weights {
            *weight = match action {
                Action::Accept => 40,
                Action::Fetch => 15,
                Action::Note | Action::Step => 30,
                Action::Frontier | Action::Close | Action::Crash => 1,
                Action::Settle | Action::Purge | Action::Space => 0,
            };
        }
    }

    pub(super) fn action(&self, rng: &mut Rng) -> Action {
        let mut at = rng.below(self.total);
        for (action, weight) in self.weights {
            if at < weight {
                return action;
            }
            at -= weight;
        }
        Action::Step
    }
}
