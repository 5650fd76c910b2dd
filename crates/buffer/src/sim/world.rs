//! One run: random work on a random disk, ended by kills, power cuts and failures, checked after each recovery.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::cells::{Cell, Fault};
use super::disk::SimFilesystem;
use super::model::{Model, Restart};
use super::rng::Rng;
use super::swarm::{Action, Damage, Odds, SEGMENT_BYTES, Swarm};
use super::work::LANES;
use crate::api::{Health, LaneId, LaneSpec, Options, Recovery, WhenFull};
use crate::buffer::Buffer;
use crate::core::{Core, Now};
use crate::error::BufferError;
use crate::handles::{Accepting, Purging, Ticket};
use crate::planted::Planted;
use crate::recovery;

/// Recoveries that may be killed in a row before one is let through.
const MAX_FAILED_OPENS: u32 = 6;
const FIRST_UNIX_MS: u64 = 1_000_000;
/// Notes made at once where the log is to be filled: little else is let into its reserve.
const CRAMMED_NOTES: u32 = 8;

/// What a run is about.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Actions before the final drain.
    pub actions: u32,
    /// A fault put into the buffer on purpose.
    pub planted: Option<Planted>,
    /// Tells on the standard error what happens.
    pub trace: bool,
}

/// What a run came to.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Hits per fault and call site.
    pub hits: BTreeMap<Cell, u64>,
    /// Recoveries checked.
    pub recoveries: u64,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Bits flipped, files removed or cut short.
    pub damages: u64,
}

/// An operation without an answer yet.
pub(super) enum Open {
    Accept {
        future: Accepting,
        ids: Vec<u64>,
        known: Option<u64>,
        position: Option<(String, usize)>,
        settles: Vec<(u64, bool)>,
    },
    Settle {
        future: Ticket,
        writes: Vec<(u64, bool)>,
    },
    Frontier {
        future: Ticket,
        lane: u32,
        seq: u64,
    },
    Note {
        future: Ticket,
        id: u64,
        count: usize,
    },
    Purge {
        future: Purging,
        lane: u32,
    },
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) fs: SimFilesystem,
    dir: PathBuf,
    pub(super) swarm: Swarm,
    pub(super) model: Model,
    pub(super) core: Core,
    pub(super) buffer: Buffer,
    pub(super) open: Vec<Open>,
    /// The number of each lane. Another than at first once the record that named the lane was damaged.
    pub(super) numbers: Vec<u32>,
    /// What each lane has handed out and is not settled: id by number.
    pub(super) fetched: BTreeMap<u32, BTreeMap<u64, u64>>,
    pub(super) cursor: BTreeMap<u32, u64>,
    pub(super) mono_ms: u64,
    pub(super) unix_ms: u64,
    pub(super) trace: bool,
    report: Report,
}

/// Runs one seed.
///
/// # Errors
/// What the model found wrong.
pub fn run(scenario: Scenario) -> Result<Report, String> {
    let mut rng = Rng(scenario.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x00C0_FFEE);
    let fs = SimFilesystem::new(rng.draw());
    let swarm = Swarm::new(&mut rng, scenario.planted);
    let dir = PathBuf::from("/sim");
    let core = first_open(&fs, &dir, &swarm)?;
    let mut world = World {
        rng,
        fs,
        dir,
        model: Model::default(),
        buffer: Buffer::of(&core),
        core,
        open: Vec::new(),
        numbers: (0..LANES).collect(),
        fetched: BTreeMap::new(),
        cursor: BTreeMap::new(),
        mono_ms: 0,
        unix_ms: FIRST_UNIX_MS,
        trace: scenario.trace,
        report: Report::default(),
        swarm,
    };
    world.say(|| format!("{:?}", world.swarm));
    world.claim_lanes()?;
    world.fs.set_odds(world.swarm.odds);
    if world.swarm.crams {
        world.fs.set_space(world.fs.used());
    }
    for _ in 0..scenario.actions {
        world.act()?;
    }
    world.finish()?;
    world.report.hits = world.fs.hits();
    Ok(world.report)
}

/// Opens the folder for the first time, on some seeds with faults, until it succeeds.
fn first_open(fs: &SimFilesystem, dir: &Path, swarm: &Swarm) -> Result<Core, String> {
    for attempt in 0.. {
        let hard = swarm.hard_start && attempt < MAX_FAILED_OPENS;
        fs.set_odds(if hard { swarm.odds } else { Odds::default() });
        let opened = open(fs, dir, &swarm.options, FIRST_UNIX_MS);
        fs.set_odds(Odds::default());
        match (opened, fs.crashed()) {
            (Ok((_, found)), None) if !found.lost.is_empty() => {
                return Err(format!("losses at the first opening: {:?}", found.lost));
            }
            (Ok((core, _)), None) => return Ok(core),
            (Err(e), None) if !hard => return Err(format!("the first opening: {e}")),
            (_, crashed) => fs.reboot(crashed.unwrap_or(Fault::Kill)),
        }
    }
    Err("the first opening never succeeds".into())
}

fn open(
    fs: &SimFilesystem,
    dir: &Path,
    options: &Options,
    unix_ms: u64,
) -> Result<(Core, Recovery), String> {
    let fs = Arc::new(fs.clone());
    recovery::open(dir.to_owned(), options.clone(), fs, unix_ms).map_err(|e| e.to_string())
}

/// Whether the buffer goes on after this error.
pub(super) fn retryable(why: &BufferError) -> bool {
    matches!(
        why,
        BufferError::Read(_) | BufferError::TooLarge { .. } | BufferError::DiskFull(_)
    )
}

impl World {
    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{}", what());
        }
    }

    fn claim_lanes(&mut self) -> Result<(), String> {
        for lane in 0..LANES {
            let spec = LaneSpec {
                id: format!("lane-{lane}"),
                formerly: vec![],
                quota_bytes: self.swarm.quota_bytes,
                in_flight_limit: 8,
                when_full: WhenFull::Block,
            };
            // Where the buffer has failed the next recovery claims them again.
            let Ok(LaneId(number)) = self.buffer.lane(spec) else {
                return Ok(());
            };
            let Some(known) = self.numbers.get_mut(lane as usize) else {
                continue;
            };
            if *known != number && !self.model.ever_lost {
                return Err(format!("lane {lane} was given number {number}"));
            }
            *known = number;
        }
        Ok(())
    }

    fn act(&mut self) -> Result<(), String> {
        match self.swarm.action(&mut self.rng) {
            Action::Accept => self.accept(),
            Action::Fetch => self.fetch(),
            Action::Settle => self.settle(),
            Action::Frontier => self.frontier(),
            Action::Note => {
                let notes = if self.swarm.crams { CRAMMED_NOTES } else { 1 };
                (0..notes).for_each(|_| self.note());
            }
            Action::Purge => self.purge(),
            Action::Space => self.set_space(),
            Action::Close if self.rng.one_in(3) => return self.close(),
            Action::Crash if self.rng.one_in(3) => {
                let fault = self.any_crash();
                return self.restart(fault, Restart::Unclean);
            }
            Action::Close | Action::Crash | Action::Step => return self.step(),
        }
        self.after()
    }

    fn any_crash(&mut self) -> Fault {
        if self.rng.one_in(2) {
            Fault::Kill
        } else {
            Fault::PowerCut
        }
    }

    fn set_space(&mut self) {
        let used = self.fs.used();
        let room = self.rng.below(40_000);
        let space = if self.rng.one_in(3) {
            used + room
        } else {
            u64::MAX
        };
        self.fs.set_space(space);
    }

    pub(super) fn step_core(&mut self) {
        self.mono_ms += self.rng.below(40);
        self.unix_ms += self.rng.below(40);
        self.core.shared.set_clock(self.unix_ms);
        self.core.step(Now {
            mono_ms: self.mono_ms,
            unix_ms: self.unix_ms,
        });
    }

    fn step(&mut self) -> Result<(), String> {
        for _ in 0..=self.rng.below(3) {
            self.step_core();
        }
        self.after()
    }

    /// Takes answers into the model, and restarts what has died.
    pub(super) fn after(&mut self) -> Result<(), String> {
        self.answers()?;
        if let Some(fault) = self.fs.crashed() {
            return self.restart(fault, Restart::Unclean);
        }
        if matches!(self.buffer.health(), Health::Failed { .. }) {
            let fault = self.any_crash();
            return self.restart(fault, Restart::Unclean);
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        let mut closing = self.buffer.begin_close();
        for _ in 0..200 {
            self.step_core();
            self.answers()?;
            if let Some(fault) = self.fs.crashed() {
                return self.restart(fault, Restart::Either);
            }
            if let Some(result) = closing
                .as_mut()
                .map_or(Some(Err(())), |c| c.try_now().map(|r| r.map_err(drop)))
            {
                // A mark whose flush failed may be found all the same; all that was queued is before it.
                let how = match (result.is_ok(), closing.is_some()) {
                    (true, _) => Restart::Clean,
                    (false, true) => Restart::Either,
                    (false, false) => Restart::Unclean,
                };
                let fault = self.any_crash();
                return self.restart(fault, how);
            }
        }
        let fault = self.any_crash();
        self.restart(fault, Restart::Either)
    }

    /// Ends the process and opens the folder again, through faults if need be, until it succeeds; then compares.
    pub(super) fn restart(&mut self, fault: Fault, how: Restart) -> Result<(), String> {
        self.open.clear();
        self.fetched.clear();
        self.cursor.clear();
        self.model.last_number.clear();
        let (mut how, mut fault) = (how, fault);
        // A loss found by an opening that died right after it had succeeded was told all the same.
        let mut reported = false;
        self.report.checkpoints += self.buffer.totals().checkpoints;
        for attempt in 0.. {
            self.say(|| format!("restart: {fault:?} {how:?}"));
            self.fs.reboot(fault);
            self.damage();
            if attempt == MAX_FAILED_OPENS {
                self.fs.set_odds(Odds::default());
                self.fs.set_space(u64::MAX);
            }
            if attempt == 0 && self.swarm.resizes && self.rng.one_in(3) {
                self.resize();
            }
            let opened = open(&self.fs, &self.dir, &self.swarm.options, self.unix_ms);
            let (core, recovery) = match (opened, self.fs.crashed()) {
                (Ok(opened), None) => opened,
                // Killed in the last calls of opening: the run had begun.
                (Ok((_, recovery)), Some(crashed)) => {
                    reported |= !recovery.lost.is_empty() || self.cut_a_flip(&recovery);
                    how = Restart::Unclean;
                    fault = crashed;
                    continue;
                }
                (Err(e), _) if attempt >= MAX_FAILED_OPENS => {
                    return Err(format!("cannot open without faults: {e}"));
                }
                (Err(e), crashed) => {
                    self.say(|| format!("opening failed: {e}"));
                    // The attempt may have begun its run, or not.
                    if how == Restart::Clean {
                        how = Restart::Either;
                    }
                    fault = crashed.unwrap_or(Fault::Kill);
                    continue;
                }
            };
            self.say(|| format!("opened: {:?}", recovery.lost));
            self.fs.set_odds(Odds::default());
            self.buffer = Buffer::of(&core);
            self.core = core;
            self.report.recoveries += 1;
            how = self.told(&recovery, how, reported)?;
            break;
        }
        if let Err(why) = self.check_all(how) {
            return Err(format!(
                "{why} (damage: {:?}, {how:?})\n{}",
                self.swarm.damage,
                self.describe()
            ));
        }
        self.claim_lanes()?;
        self.fs.set_odds(self.swarm.odds);
        Ok(())
    }

    /// A flipped bit in the last group cannot be told from a torn write, and shows in the figure alone.
    fn cut_a_flip(&self, recovery: &Recovery) -> bool {
        self.swarm.damage == Damage::Flips && recovery.torn_bytes > 0
    }

    /// Takes in what an opening said, and checks that it said what it had to.
    fn told(
        &mut self,
        recovery: &Recovery,
        how: Restart,
        reported: bool,
    ) -> Result<Restart, String> {
        let damaged = self.swarm.damage != Damage::None;
        if !damaged && (reported || !recovery.lost.is_empty()) {
            return Err(format!("losses without damage: {:?}", recovery.lost));
        }
        let torn = self.cut_a_flip(recovery);
        self.model.reported_loss = reported || torn || !recovery.lost.is_empty();
        self.model.ever_lost |= self.model.reported_loss;
        let said = if recovery.unclean_exit {
            Restart::Unclean
        } else {
            Restart::Clean
        };
        if how != Restart::Either && how != said && !damaged {
            return Err(format!(
                "{how:?} exit, and unclean_exit is {}",
                recovery.unclean_exit
            ));
        }
        Ok(said)
    }

    /// The configuration asks for another number of log segments.
    fn resize(&mut self) {
        let segments = 4 + self.rng.below(4);
        self.swarm.options.log_segments = segments as u32;
        self.swarm.options.log_bytes = SEGMENT_BYTES * segments;
    }

    /// Damages a file while the host is down, on the seeds that are about that.
    fn damage(&mut self) {
        if self.swarm.damage == Damage::None || !self.rng.one_in(2) {
            return;
        }
        let part = self.rng.pick(&[".log", ".spill", "checkpoint-", ".keys"]);
        let files = self.fs.files(part.unwrap_or(".log"));
        let Some((path, len)) = files
            .get(self.rng.below(files.len() as u64) as usize)
            .cloned()
            .filter(|(_, len)| *len > 0)
        else {
            return;
        };
        self.report.damages += 1;
        if self.swarm.damage == Damage::Flips {
            // Heads are small and matter, so they are hit more often than their share.
            let bytes = if self.rng.one_in(4) { len.min(64) } else { len };
            let bit = self.rng.below(bytes * 8);
            self.say(|| format!("bit {bit} of {} flips", path.display()));
            self.fs.flip(&path, bit);
        } else if self.rng.one_in(2) {
            self.say(|| format!("{} is removed", path.display()));
            self.fs.lose_file(&path);
        } else {
            let at = self.rng.below(len);
            self.say(|| format!("{} is cut at {at}", path.display()));
            self.fs.cut_file(&path, at);
        }
    }
}
