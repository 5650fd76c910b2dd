//! A checkpoint under way, one piece per step so that commits go on in between.
//!
//! Spill (pending writes of old segments go to their lanes' files, see `spilling`) → compact (files under a quarter
//! live are copied forward, see `compact`) → keys (accepted keys go to their buckets' files, see `keyfile`) → write
//! (the checkpoint becomes durable) → only then is the log cut and are files unlinked (see `finish`).
//!
//! Until the checkpoint is durable nothing of it is believed: new files and appended bytes are outside what the last
//! one vouches for. A spill that fails keeps the files it had completed and gives up the rest; that much still becomes
//! a checkpoint, which may be what frees the space.

use std::collections::{BTreeMap, VecDeque};

use crate::core::Core;
use crate::fs::FileHandle;
use crate::keys::KeyFile;
use crate::lane::SpillFile;
use crate::planted::Planted;
use crate::record;

#[derive(Debug)]
pub(crate) enum Stage {
    Spill(VecDeque<u32>),
    Compact(VecDeque<u32>),
    Keys,
}

/// A lane's part of the job.
#[derive(Default)]
pub(crate) struct LaneJob {
    /// The file being appended to.
    pub(crate) open: Option<(SpillFile, Box<dyn FileHandle>)>,
    /// Files that were appended to or made, as they will be.
    pub(crate) files: Vec<SpillFile>,
    pub(crate) through: u64,
    pub(crate) next_file: u64,
    /// New files in place of old ones.
    pub(crate) compacted: Vec<(SpillFile, Vec<u64>)>,
    /// Numbers of files made by this job.
    pub(crate) made: Vec<u64>,
}

pub(crate) struct Job {
    pub(crate) cut: u64,
    pub(crate) stage: Stage,
    pub(crate) lanes: BTreeMap<u32, LaneJob>,
    pub(crate) keys: BTreeMap<(u32, u64), (KeyFile, usize)>,
    /// A part failed; the replay point must not pass what it would have saved.
    pub(crate) failure: Option<String>,
    pub(crate) keys_failed: bool,
}

impl Core {
    /// Why the last checkpoint could not free the log, while that is so.
    pub(crate) fn job_failure(&self) -> Option<String> {
        self.last_failure.clone()
    }

    /// Does a piece of the checkpoint under way, or begins one that is due. True while there is more to do.
    pub(crate) fn advance_checkpoint(&mut self) -> bool {
        let Some(mut job) = self.job.take() else {
            if let Some(cut) = self.checkpoint_due() {
                self.begin_checkpoint(cut);
                return true;
            }
            return false;
        };
        match &mut job.stage {
            Stage::Spill(todo) => match todo.pop_front() {
                Some(lane) => match self.spill_some(&mut job, lane) {
                    Ok(true) => {}
                    Ok(false) => todo_push(&mut job.stage, lane),
                    Err(e) => {
                        self.keep_whole_files(&mut job, lane);
                        job.failure = Some(format!("spilling: {e}"));
                        job.stage = Stage::Keys;
                    }
                },
                None => job.stage = Stage::Compact(self.sparse_lanes(&job)),
            },
            Stage::Compact(todo) => match todo.pop_front() {
                Some(lane) => {
                    // A copy that fails leaves the old files, which is no harm.
                    let copied = match self.planted {
                        Some(Planted::CompactionLeftOut) => Ok(false),
                        _ => self.compact_some(&mut job, lane),
                    };
                    let again = std::mem::replace(&mut self.compaction_failed, copied.is_err());
                    if matches!(copied, Ok(true)) {
                        // There may be another run of sparse files in the lane.
                        todo_push(&mut job.stage, lane);
                    }
                    if let Err(e) = copied {
                        if let Some(made) = job.lanes.get_mut(&lane).and_then(|j| j.made.pop()) {
                            self.garbage.push(self.spill_path(lane, made));
                        }
                        if !again {
                            tracing::warn!(target: "consign::buffer", "copying spill files forward failed: {e}");
                        }
                    }
                }
                None => job.stage = Stage::Keys,
            },
            Stage::Keys => {
                if let Err(e) = self.save_keys(&mut job) {
                    job.keys.clear();
                    job.keys_failed = true;
                    job.failure = Some(format!("saving accepted keys: {e}"));
                }
                // In the same step: a key accepted in between would be neither in a file nor after the replay point.
                self.finish_checkpoint(job);
                return true;
            }
        }
        self.job = Some(job);
        true
    }

    pub(crate) fn stamp(&self, salt: u64, seq: u64) -> record::Stamp {
        record::Stamp {
            salt,
            seq,
            epoch: self.log.epoch,
            index: 0,
        }
    }

    fn begin_checkpoint(&mut self, cut: u64) {
        let mut state = self.shared.state.lock();
        for scope in &mut state.scopes {
            scope.expire(self.now.unix_ms);
        }
        state.reclaim = false;
        let lanes = (0u32..)
            .zip(&state.lanes)
            .filter(|(_, l)| {
                l.entries
                    .first_key_value()
                    .is_some_and(|(_, e)| e.place.segment < cut)
            })
            .map(|(n, _)| n)
            .collect();
        drop(state);
        self.job = Some(Job {
            cut,
            stage: Stage::Spill(lanes),
            lanes: BTreeMap::new(),
            keys: BTreeMap::new(),
            failure: None,
            keys_failed: false,
        });
    }
}

fn todo_push(stage: &mut Stage, lane: u32) {
    if let Stage::Spill(todo) | Stage::Compact(todo) = stage {
        todo.push_front(lane);
    }
}
