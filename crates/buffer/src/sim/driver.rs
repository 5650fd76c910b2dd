//! One run: random work on a random disk, ended by kills, power cuts and failures, checked after each recovery.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::disk::{Area, Call, Fault, Odds, Rng, SimFilesystem};
use super::model::{Model, Restart, Status, body, id_of};
use crate::api::{
    Acceptance, Health, Known, LaneId, LaneSpec, NewWrite, Options, Origin, Pending, Settlement,
    WhenFull, WriteState,
};
use crate::buffer::{Accepting, Buffer, Purging, Ticket};
use crate::core::{Core, Now};
use crate::error::BufferError;
use crate::planted::Planted;
use crate::recovery;

const LANES: u32 = 4;
/// Recoveries that may be killed in a row before one is let through.
const MAX_FAILED_OPENS: u32 = 6;
/// Steps within which a buffer without faults must have emptied itself.
const MAX_DRAIN_STEPS: u32 = 3_000;
/// Steps for which the disk stays full on the seeds that drain with a full disk.
const MAX_FULL_STEPS: u32 = 1_500;

/// What a run is about.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Actions before the final drain.
    pub actions: u32,
    /// A fault put into the buffer on purpose.
    pub planted: Option<Planted>,
}

/// What a run came to.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Hits per fault and call site.
    pub hits: BTreeMap<(Fault, Call, Area), u64>,
    /// Recoveries checked.
    pub recoveries: u64,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Bits flipped.
    pub flips: u64,
}

enum Open {
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

struct World {
    rng: Rng,
    fs: SimFilesystem,
    dir: PathBuf,
    options: Options,
    odds: Odds,
    model: Model,
    core: Core,
    buffer: Buffer,
    open: Vec<Open>,
    /// What each lane has handed out and is not settled: id by number.
    fetched: BTreeMap<u32, BTreeMap<u64, u64>>,
    cursor: BTreeMap<u32, u64>,
    mono_ms: u64,
    unix_ms: u64,
    report: Report,
    flip: bool,
}

/// Runs one seed.
///
/// # Errors
/// What the model found wrong.
pub fn run(scenario: Scenario) -> Result<Report, String> {
    let mut rng = Rng(scenario.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x00C0_FFEE);
    let fs = SimFilesystem::new(rng.draw());
    let options = Options {
        log_bytes: (16 << 10) * (4 + rng.below(3)),
        log_segments: 0,
        spill_file_bytes: 2048 << rng.below(4),
        body_memory_bytes: 1024 << rng.below(6),
        log_entries: 8 << rng.below(6) as usize,
        planted: scenario.planted,
        ..Options::default()
    };
    let options = Options {
        log_segments: (options.log_bytes / (16 << 10)) as u32,
        ..options
    };
    let mut pick = |choices: &[u64]| {
        let at = rng.below(choices.len() as u64) as usize;
        choices.get(at).copied().unwrap_or(0)
    };
    let flip = pick(&[0, 0, 0, 1]) == 1;
    let odds = Odds {
        kill: pick(&[0, 300, 1500]),
        power_cut: pick(&[150, 500, 1500]),
        eio_log: pick(&[0, 0, 400, 2000]),
        eio: pick(&[0, 30, 200]),
        enospc: pick(&[0, 0, 20, 100]),
        short: pick(&[0, 10]),
    };
    let dir = PathBuf::from("/sim");
    let (core, buffer) =
        open(&fs, &dir, &options, 1_000_000).map_err(|e| format!("the first opening: {e}"))?;
    let mut world = World {
        rng,
        fs,
        dir,
        options,
        odds,
        model: Model::default(),
        core,
        buffer,
        open: Vec::new(),
        fetched: BTreeMap::new(),
        cursor: BTreeMap::new(),
        mono_ms: 0,
        unix_ms: 1_000_000,
        report: Report::default(),
        flip,
    };
    world.claim_lanes()?;
    world.fs.set_odds(world.odds);
    for _ in 0..scenario.actions {
        world.act()?;
    }
    world.finish()?;
    world.report.hits = world.fs.hits();
    Ok(world.report)
}

fn open(
    fs: &SimFilesystem,
    dir: &std::path::Path,
    options: &Options,
    unix_ms: u64,
) -> Result<(Core, Buffer), String> {
    let (core, _) = recovery::open(
        dir.to_owned(),
        options.clone(),
        Arc::new(fs.clone()),
        unix_ms,
    )
    .map_err(|e| e.to_string())?;
    let buffer = Buffer::of(&core);
    Ok((core, buffer))
}

impl World {
    fn claim_lanes(&mut self) -> Result<(), String> {
        for lane in 0..LANES {
            let spec = LaneSpec {
                id: format!("lane-{lane}"),
                formerly: vec![],
                quota_bytes: 60_000,
                in_flight_limit: 8,
                when_full: WhenFull::Block,
            };
            match self.buffer.lane(spec) {
                Ok(LaneId(n)) if n == lane => {}
                Ok(LaneId(n)) => return Err(format!("lane {lane} was given number {n}")),
                // The buffer has failed; the next recovery claims them again.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn act(&mut self) -> Result<(), String> {
        match self.rng.below(100) {
            0..=29 => self.accept(),
            30..=44 => self.fetch(),
            45..=56 => self.settle(),
            57..=61 => self.frontier(),
            62..=65 => self.note(),
            66 => self.purge(),
            67 => self.set_space(),
            68 if self.rng.one_in(3) => return self.close(),
            69 if self.rng.one_in(3) => {
                let fault = if self.rng.one_in(2) {
                    Fault::Kill
                } else {
                    Fault::PowerCut
                };
                return self.restart(fault, Restart::Unclean);
            }
            _ => return self.step(),
        }
        self.after()
    }

    fn new_write(&mut self, lane: u32, depth: u32) -> NewWrite {
        let id = self.model.id();
        let mut key = [0u8; 16];
        key[..8].copy_from_slice(&id.to_le_bytes());
        let most = if self.rng.one_in(8) { 2500 } else { 300 };
        let bytes = self.rng.below(most) as usize;
        let mut children = Vec::new();
        if depth < 2 && self.rng.one_in(6) {
            for _ in 0..=self.rng.below(2) {
                let lane = self.rng.below(u64::from(LANES)) as u32;
                children.push(self.new_write(lane, depth + 1));
            }
        }
        NewWrite {
            lane: LaneId(lane),
            key,
            order: id % 7,
            body: body(id, bytes),
            created_unix_ms: self.unix_ms,
            expires_unix_ms: None,
            children,
        }
    }

    fn accept(&mut self) {
        fn rooms(w: &NewWrite, out: &mut Vec<(LaneId, u64)>) {
            out.push((w.lane, w.body.len() as u64));
            w.children.iter().for_each(|c| rooms(c, out));
        }
        let mut writes = Vec::new();
        for _ in 0..self.rng.below(4) {
            let lane = self.rng.below(u64::from(LANES)) as u32;
            writes.push(self.new_write(lane, 0));
        }
        let mut wanted = Vec::new();
        writes.iter().for_each(|w| rooms(w, &mut wanted));
        let Ok(reservation) = self.buffer.reserve(&wanted) else {
            return;
        };
        let record = self.model.id();
        let (origin, known) = if self.rng.one_in(2) {
            self.origin(record)
        } else {
            (None, None)
        };
        let mut position = None;
        let mut asked = None;
        if self.rng.one_in(4) {
            let source = format!("source-{}", self.rng.below(2));
            let (all, _) = self.model.positions.entry(source.clone()).or_default();
            all.push(record);
            asked = Some((source.clone(), all.len()));
            position = Some((source, Bytes::copy_from_slice(&record.to_le_bytes())));
        }
        let mut settles = Vec::new();
        let mut settled = Vec::new();
        if self.rng.one_in(10)
            && let Some((lane, seq, id)) = self.pick_fetched()
            && self.may_divert(lane, seq, id)
        {
            settles.push(Settlement {
                lane: LaneId(lane),
                seq,
                result: 7,
                release_children: false,
            });
            settled.push((id, false));
            self.model.set(id, Status::Settling { release: false });
        }
        let ids: Vec<u64> = writes.iter().map(|w| id_of(&w.key)).collect();
        for write in &writes {
            self.model.add(write, record, true);
        }
        let acceptance = Acceptance {
            scope: "adapter".into(),
            origin,
            position,
            writes,
            settles,
        };
        let future = self.buffer.accept(reservation, acceptance);
        self.open.push(Open::Accept {
            future,
            ids,
            known,
            position: asked,
            settles: settled,
        });
    }

    fn origin(&mut self, n: u64) -> (Option<Origin>, Option<u64>) {
        let origin = origin_of(n);
        (Some(origin), Some(n))
    }

    fn pick_fetched(&mut self) -> Option<(u32, u64, u64)> {
        let lane = self.rng.below(u64::from(LANES)) as u32;
        let out = self.fetched.get_mut(&lane)?;
        // Mostly from the front, now and then from anywhere: settlements come out of order.
        let at = if self.rng.one_in(3) {
            self.rng.below(out.len() as u64) as usize
        } else {
            0
        };
        let (seq, id) = out.iter().nth(at).map(|(s, i)| (*s, *i))?;
        out.remove(&seq);
        // Settled twice, once with and once without its dependents, would leave open which of the two took effect:
        // the caller's mistake, not the buffer's.
        let asked = self.open.iter().any(|op| match op {
            Open::Settle { writes, .. } => writes.iter().any(|(w, _)| *w == id),
            Open::Accept { settles, .. } => settles.iter().any(|(w, _)| *w == id),
            _ => false,
        });
        (!asked).then_some((lane, seq, id))
    }

    /// Whether a divert may settle the write: not when another settlement of it was tried. It is handed out again then.
    fn may_divert(&mut self, lane: u32, seq: u64, id: u64) -> bool {
        let may = self.release_tried(id).is_none();
        if !may {
            self.fetched.entry(lane).or_default().insert(seq, id);
        }
        may
    }

    /// What was said about the write's dependents when its settlement was tried before and failed.
    fn release_tried(&self, id: u64) -> Option<bool> {
        match self.model.writes.get(&id)?.status {
            Status::Settling { release } => Some(release),
            _ => None,
        }
    }

    fn settle(&mut self) {
        let (mut settlements, mut writes) = (Vec::new(), Vec::new());
        for _ in 0..=self.rng.below(8) {
            let Some((lane, seq, id)) = self.pick_fetched() else {
                continue;
            };
            let release = !self.rng.one_in(4);
            let release = self.release_tried(id).unwrap_or(release);
            settlements.push(Settlement {
                lane: LaneId(lane),
                seq,
                result: 1,
                release_children: release,
            });
            writes.push((id, release));
            self.model.set(id, Status::Settling { release });
        }
        if settlements.is_empty() {
            return;
        }
        let future = self.buffer.settle(settlements);
        self.open.push(Open::Settle { future, writes });
    }

    fn fetch(&mut self) {
        let lane = self.rng.below(u64::from(LANES)) as u32;
        let after = self.cursor.get(&lane).copied().unwrap_or(0);
        let most = 1 + self.rng.below(12) as usize;
        let mut future = self.buffer.fetch(LaneId(lane), after, most, 4096);
        if future.try_now_is_pending() {
            self.step_core();
        }
        let Some(Ok(found)) = future.try_now() else {
            return;
        };
        for write in found.writes {
            self.cursor.insert(lane, write.seq);
            self.fetched
                .entry(lane)
                .or_default()
                .insert(write.seq, id_of(&write.key));
        }
    }

    fn frontier(&mut self) {
        let lane = self.rng.below(u64::from(LANES)) as u32;
        let Some((seq, _)) = self.fetched.get(&lane).and_then(|f| f.last_key_value()) else {
            return;
        };
        let seq = *seq;
        let f = self.model.frontiers.entry(lane).or_default();
        f.asked = f.asked.max(seq);
        let future = self.buffer.frontier(LaneId(lane), seq, self.unix_ms);
        self.open.push(Open::Frontier { future, lane, seq });
    }

    fn note(&mut self) {
        let lane = self.rng.below(u64::from(LANES)) as u32;
        let Some((seq, id)) = self.fetched.get(&lane).and_then(|f| f.first_key_value()) else {
            return;
        };
        let (seq, id) = (*seq, *id);
        let state = WriteState {
            attempts: 1 + self.rng.below(9) as u32,
            first_maybe_unix_ms: self.rng.one_in(2).then_some(self.unix_ms),
            open_gate_age_ms: self.rng.below(100),
            sealed: u64::from(self.rng.0 as u32) << 16,
            ..WriteState::default()
        };
        let Some(write) = self.model.writes.get_mut(&id) else {
            return;
        };
        write.notes.push(state);
        let count = write.notes.len();
        let future = self.buffer.note(LaneId(lane), seq, state);
        self.open.push(Open::Note { future, id, count });
    }

    /// Purges are only made while nothing of the lane is open, so that the model need not order them.
    fn purge(&mut self) {
        let lane = self.rng.below(u64::from(LANES)) as u32;
        if !self.open.is_empty() || !self.rng.one_in(4) {
            return;
        }
        // A settlement that failed in part leaves open what became of its writes.
        let mine = |w: &&super::model::ModelWrite| w.lane == lane;
        if self
            .model
            .writes
            .values()
            .filter(mine)
            .any(|w| matches!(w.status, Status::Settling { .. }))
        {
            return;
        }
        let all: Vec<u64> = self
            .model
            .writes
            .iter()
            .filter(|(_, w)| w.lane == lane)
            .map(|(i, _)| *i)
            .collect();
        for id in all {
            if self
                .model
                .writes
                .get(&id)
                .is_some_and(|w| w.status == Status::Pending)
            {
                self.model.set(id, Status::Settling { release: false });
            }
        }
        self.fetched.remove(&lane);
        let future = self.buffer.purge(LaneId(lane));
        self.open.push(Open::Purge { future, lane });
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

    fn step_core(&mut self) {
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
    fn after(&mut self) -> Result<(), String> {
        self.answers()?;
        if let Some(fault) = self.fs.crashed() {
            return self.restart(fault, Restart::Unclean);
        }
        if matches!(self.buffer.health(), Health::Failed { .. }) {
            let fault = if self.rng.one_in(2) {
                Fault::Kill
            } else {
                Fault::PowerCut
            };
            return self.restart(fault, Restart::Unclean);
        }
        Ok(())
    }

    fn answers(&mut self) -> Result<(), String> {
        let open = std::mem::take(&mut self.open);
        for mut op in open {
            let model = &mut self.model;
            let done = match &mut op {
                Open::Accept {
                    future,
                    ids,
                    known,
                    position,
                    settles,
                } => match future.try_now() {
                    None => false,
                    Some(Ok(numbers)) => {
                        for (id, (_, seq)) in ids.iter().zip(numbers) {
                            model.set(*id, Status::Pending);
                            if let Some(w) = model.writes.get_mut(id) {
                                w.seq = seq;
                            }
                        }
                        settles
                            .iter()
                            .for_each(|(id, release)| model.settled(*id, *release));
                        model.known.extend(known.iter());
                        if let Some((source, count)) = position
                            && let Some((_, answered)) = model.positions.get_mut(source)
                        {
                            *answered = (*answered).max(*count);
                        }
                        true
                    }
                    Some(Err(why)) => {
                        if retryable(&why) {
                            ids.iter().for_each(|id| model.forget(*id));
                            settles
                                .iter()
                                .for_each(|(id, _)| model.set(*id, Status::Pending));
                            self.cursor.clear();
                        }
                        true
                    }
                },
                Open::Settle { future, writes } => match future.try_now() {
                    None => false,
                    Some(Ok(())) => {
                        writes
                            .iter()
                            .for_each(|(id, release)| model.settled(*id, *release));
                        true
                    }
                    Some(Err(why)) => {
                        // Some of them may have gone in an earlier part.
                        if retryable(&why) {
                            self.cursor.clear();
                        }
                        true
                    }
                },
                Open::Frontier { future, lane, seq } => match future.try_now() {
                    None => false,
                    Some(result) => {
                        if result.is_ok() {
                            let f = model.frontiers.entry(*lane).or_default();
                            f.durable = f.durable.max(*seq);
                        }
                        true
                    }
                },
                Open::Note { future, id, count } => match future.try_now() {
                    None => false,
                    Some(result) => {
                        if let (Ok(()), Some(w)) = (result, model.writes.get_mut(id)) {
                            w.noted = w.noted.max((*count).min(w.notes.len()));
                        }
                        true
                    }
                },
                Open::Purge { future, lane } => match future.try_now() {
                    None => false,
                    Some(Ok(_)) => {
                        let purged: Vec<u64> = model
                            .writes
                            .iter()
                            .filter(|(_, w)| {
                                w.lane == *lane && matches!(w.status, Status::Settling { .. })
                            })
                            .map(|(i, _)| *i)
                            .collect();
                        purged.into_iter().for_each(|id| model.forget(id));
                        true
                    }
                    Some(Err(_)) => true,
                },
            };
            if !done {
                self.open.push(op);
            }
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
                let fault = if self.rng.one_in(2) {
                    Fault::Kill
                } else {
                    Fault::PowerCut
                };
                return self.restart(fault, how);
            }
        }
        let fault = if self.rng.one_in(2) {
            Fault::Kill
        } else {
            Fault::PowerCut
        };
        self.restart(fault, Restart::Either)
    }

    fn restart(&mut self, fault: Fault, how: Restart) -> Result<(), String> {
        self.open.clear();
        self.fetched.clear();
        self.cursor.clear();
        let mut how = how;
        let mut fault = fault;
        let mut tries = 0;
        self.report.checkpoints += self.buffer.totals().checkpoints;
        loop {
            self.fs.reboot(fault);
            if self.flip && self.rng.one_in(2) {
                self.flip_a_bit();
            }
            if tries >= MAX_FAILED_OPENS {
                self.fs.set_odds(Odds::default());
                self.fs.set_space(u64::MAX);
            }
            tries += 1;
            let opened = recovery::open(
                self.dir.clone(),
                self.options.clone(),
                Arc::new(self.fs.clone()),
                self.unix_ms,
            );
            match opened {
                // Killed in the last calls of opening: the run had begun.
                Ok(_) if self.fs.crashed().is_some() => {
                    how = Restart::Unclean;
                    fault = self.fs.crashed().unwrap_or(Fault::Kill);
                }
                Ok((core, recovery)) => {
                    self.fs.set_odds(Odds::default());
                    self.buffer = Buffer::of(&core);
                    self.core = core;
                    self.report.recoveries += 1;
                    let damage =
                        !recovery.lost.is_empty() || (self.flip && recovery.torn_bytes > 0);
                    self.model.reported_loss = damage && self.flip;
                    if damage && !self.flip {
                        return Err(format!("losses without damage: {:?}", recovery.lost));
                    }
                    let said = if recovery.unclean_exit {
                        Restart::Unclean
                    } else {
                        Restart::Clean
                    };
                    if how != Restart::Either && how != said && !self.flip {
                        return Err(format!(
                            "{how:?} exit, and unclean_exit is {}",
                            recovery.unclean_exit
                        ));
                    }
                    how = said;
                    break;
                }
                Err(e) if tries > MAX_FAILED_OPENS => {
                    return Err(format!("cannot open without faults: {e}"));
                }
                Err(_) => {
                    // The attempt may have begun its run, or not.
                    if how == Restart::Clean {
                        how = Restart::Either;
                    }
                    fault = self.fs.crashed().unwrap_or(Fault::Kill);
                }
            }
        }
        if let Err(why) = self.check_all(how) {
            return Err(format!(
                "{why} (flips: {}, {how:?})\n{}",
                self.flip,
                self.describe()
            ));
        }

        self.claim_lanes()?;
        self.fs.set_odds(self.odds);
        Ok(())
    }

    fn flip_a_bit(&mut self) {
        let area = [".log", ".spill", "checkpoint-", ".keys"];
        let part = area
            .get(self.rng.below(4) as usize)
            .copied()
            .unwrap_or(".log");
        let files = self.fs.files(part);
        let Some((path, len)) = files
            .get(self.rng.below(files.len() as u64) as usize)
            .cloned()
        else {
            return;
        };
        if len > 0 {
            let bit = self.rng.below(len * 8);
            self.fs.flip(&path, bit);
            self.report.flips += 1;
            self.model.damaged = true;
        }
    }

    /// Reads everything and compares.
    fn check_all(&mut self, how: Restart) -> Result<(), String> {
        let mut found: BTreeMap<u32, Vec<Pending>> = BTreeMap::new();
        for lane in 0..LANES {
            if self.buffer.stats(LaneId(lane)).is_none() {
                continue;
            }
            let mut after = 0;
            loop {
                let most = 1 + self.rng.below(20) as usize;
                let mut future = self.buffer.fetch(LaneId(lane), after, most, 4096);
                if future.try_now_is_pending() {
                    self.core.step(Now {
                        mono_ms: self.mono_ms,
                        unix_ms: self.unix_ms,
                    });
                }
                let got = match future.try_now() {
                    Some(Ok(got)) => got,
                    other => return Err(format!("reading lane {lane} without faults: {other:?}")),
                };
                after = got.writes.last().map_or(after, |w| w.seq);
                let end = !got.more || got.writes.is_empty();
                found.entry(lane).or_default().extend(got.writes);
                if end {
                    break;
                }
            }
        }
        // What reading found damaged is made durable.
        for _ in 0..20 {
            self.mono_ms += 50;
            self.core.step(Now {
                mono_ms: self.mono_ms,
                unix_ms: self.unix_ms,
            });
        }
        if self.flip {
            self.model.reported_loss |= !self.buffer.lost().is_empty();
        }
        let ids: Vec<u64> = self.model.known.iter().copied().collect();
        self.model.check(&found, how)?;
        for lane in 0..LANES {
            if let Some(stats) = self.buffer.stats(LaneId(lane)) {
                self.model.check_quota(lane, &stats)?;
            }
        }
        for (source, (asked, answered)) in &mut self.model.positions {
            let value = self
                .buffer
                .position(source)
                .and_then(|v| v.as_ref().try_into().ok())
                .map(u64::from_le_bytes);
            let at = value.and_then(|v| asked.iter().rposition(|a| *a == v));
            match at {
                Some(at) if at + 1 >= *answered => *answered = at + 1,
                None if *answered == 0 => {}
                _ if self.model.reported_loss => *answered = 0,
                _ => {
                    return Err(format!(
                        "{source} is at {value:?}, of {asked:?} with {answered} answered"
                    ));
                }
            }
            asked.truncate(*answered);
        }
        for n in ids {
            if self.buffer.known("adapter", &origin_of(n)) != Known::Repeat {
                if !self.model.reported_loss {
                    return Err(format!("origin {n} was accepted and is not known"));
                }
                self.model.known.remove(&n);
            }
        }
        Ok(())
    }

    /// What is stuck, for a person.
    fn describe(&self) -> String {
        let state = self.core.shared.state.lock();
        let mut text = format!(
            "{} open, others {}, accepts {}, prepared {}, free slots {}, job {}, failure {:?}, lost {:?}",
            self.open.len(),
            self.core.others.len(),
            self.core.accepts.len(),
            self.core.prepared.is_some(),
            self.core.log.free_slots(),
            self.core.job.is_some(),
            self.core.last_failure,
            state.lost,
        );
        for (n, lane) in state
            .lanes
            .iter()
            .enumerate()
            .filter(|(_, l)| l.charged + l.reserved > 0)
        {
            let fetched = self.fetched.get(&(n as u32));
            text += &format!(
                "\nlane {n}: charged {} reserved {} pending {} entries {:?} settled {:?} through {} files {:?} fetched {fetched:?} cursor {:?}",
                lane.charged,
                lane.reserved,
                lane.pending(),
                lane.entries.keys(),
                lane.settled,
                lane.spilled_through,
                lane.files,
                self.cursor.get(&(n as u32)),
            );
        }
        text
    }

    /// With faults off, and on some seeds with the disk still full, everything drains and the books come to nothing.
    fn finish(&mut self) -> Result<(), String> {
        self.fs.set_odds(Odds::default());
        let full = self.rng.one_in(3);
        self.fs
            .set_space(if full { self.fs.used() } else { u64::MAX });
        for step in 0..MAX_DRAIN_STEPS {
            if step == MAX_FULL_STEPS {
                // What a full disk let drain has drained; accepted keys and a full log may need the space.
                self.fs.set_space(u64::MAX);
            }
            self.step_core();
            self.after()?;
            for lane in 0..LANES {
                let after = self.cursor.get(&lane).copied().unwrap_or(0);
                let mut future = self.buffer.fetch(LaneId(lane), after, 50, 1 << 20);
                if future.try_now_is_pending() {
                    self.step_core();
                }
                let Some(Ok(found)) = future.try_now() else {
                    continue;
                };
                for write in found.writes {
                    self.cursor.insert(lane, write.seq);
                    self.fetched
                        .entry(lane)
                        .or_default()
                        .insert(write.seq, id_of(&write.key));
                }
            }
            self.settle();
            let left: usize = self.fetched.values().map(BTreeMap::len).sum();
            let pending: u64 = self.buffer.lanes().iter().map(|(_, s)| s.pending).sum();
            if left == 0 && pending == 0 && self.open.is_empty() {
                let charged: u64 = self
                    .buffer
                    .lanes()
                    .iter()
                    .map(|(_, s)| s.charged_bytes + s.reserved_bytes)
                    .sum();
                if charged != 0 {
                    return Err(format!(
                        "all is drained and {charged} bytes are still charged"
                    ));
                }
                return self.restart(Fault::PowerCut, Restart::Unclean);
            }
        }
        Err(format!(
            "the buffer does not drain (disk full: {full}, flips: {}): {}",
            self.flip,
            self.describe()
        ))
    }
}

/// Whether the buffer goes on after this error.
fn retryable(why: &BufferError) -> bool {
    matches!(
        why,
        BufferError::Read(_) | BufferError::TooLarge { .. } | BufferError::DiskFull(_)
    )
}

fn origin_of(n: u64) -> Origin {
    match n % 3 {
        0 => Origin::Cumulative {
            partition: "p".into(),
            incarnation: 1,
            offset: n,
        },
        1 => {
            let mut id = [1u8; 16];
            id[..8].copy_from_slice(&n.to_le_bytes());
            Origin::Individual { id }
        }
        _ => {
            let mut key = [2u8; 16];
            key[..8].copy_from_slice(&n.to_le_bytes());
            Origin::ClientKey { key, body: [3; 16] }
        }
    }
}
