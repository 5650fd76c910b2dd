//! Copying forward: a spill file under a quarter live gives its pending writes to a new one, so that the disk holds at
//! most four times the quota and two files.

use std::collections::VecDeque;
use std::io;

use crate::core::Core;
use crate::fs::{Open, write_all_at};
use crate::job::{Job, LaneJob};
use crate::lane::SpillFile;
use crate::planted::Planted;
use crate::record;
use crate::spill::{FILE_HEADER, Step, Walk};

impl Core {
    /// Lanes with files worth copying forward.
    pub(crate) fn sparse_lanes(&self, job: &Job) -> VecDeque<u32> {
        let state = self.shared.state.lock();
        (0u32..)
            .zip(&state.lanes)
            .filter(|(n, lane)| {
                let touched = |f: &SpillFile| {
                    job.lanes
                        .get(n)
                        .is_some_and(|j| j.files.iter().any(|t| t.number == f.number))
                };
                lane.files
                    .iter()
                    .any(|f| f.live > 0 && f.is_sparse() && f.len > FILE_HEADER && !touched(f))
            })
            .map(|(n, _)| n)
            .collect()
    }

    /// Copies one run of neighbouring sparse files into a new file; true when there was one.
    pub(crate) fn compact_some(&mut self, job: &mut Job, number: u32) -> io::Result<bool> {
        let (run, next_file, through) = {
            let state = self.shared.state.lock();
            let Some(lane) = state.lanes.get(number as usize) else {
                return Ok(false);
            };
            // What this job has spilled into or copied already.
            let touched: Vec<u64> = job.lanes.get(&number).map_or_else(Vec::new, |j| {
                let copied = j.compacted.iter().flat_map(|(_, old)| old.iter().copied());
                j.files.iter().map(|f| f.number).chain(copied).collect()
            });
            let mut run: Vec<SpillFile> = Vec::new();
            let mut bytes = 0;
            for file in &lane.files {
                let fits = bytes + file.live_physical <= self.options.spill_file_bytes;
                if file.is_sparse() && fits && !touched.contains(&file.number) {
                    bytes += file.live_physical;
                    run.push(file.clone());
                } else if !run.is_empty() {
                    break;
                }
            }
            (run, lane.next_file, lane.spilled_through)
        };
        if run.iter().all(|f| f.live == 0) {
            return Ok(false);
        }
        let lane_job = job.lanes.entry(number).or_insert_with(|| LaneJob {
            through,
            next_file,
            ..LaneJob::default()
        });
        let made = lane_job.next_file;
        lane_job.next_file += 1;
        lane_job.made.push(made);
        let (mut out, mut handle) = self.create_spill(number, made)?;
        let mut buf = Vec::new();
        for file in &run {
            let old = self
                .fs
                .open(&self.spill_path(number, file.number), Open::Read)?;
            let mut walk = Walk::new(old.as_ref(), file.salt, file.len, FILE_HEADER);
            let mut copied = 0;
            while let Some(step) = walk.next()? {
                let Step::Record { seq, enc, .. } = step else {
                    continue;
                };
                let wanted = {
                    let state = self.shared.state.lock();
                    state.is_pending(number, seq)
                };
                let wanted = wanted
                    && !(self.planted == Some(Planted::CompactionDropsLive) && copied % 8 == 7);
                if wanted {
                    copied += 1;
                    let crc = crc32c::crc32c(&enc);
                    record::append(&mut buf, self.stamp(out.salt, seq), &[], &enc, crc);
                }
            }
            if copied < file.live && self.planted.is_none() {
                // Something is missing from the old file. Reading it for a fetch will count what.
                self.lose_in_spill(number, file.number)?;
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a spill file is damaged",
                ));
            }
        }
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Ok(false);
        };
        (out.first_seq, out.last_seq, out.sealed) = (first.first_seq, last.last_seq, true);
        handle.allocate(out.len, buf.len() as u64)?;
        write_all_at(handle.as_mut(), &buf, out.len)?;
        out.len += buf.len() as u64;
        handle.sync()?;
        self.sync_lane_dir(number)?;
        self.count_written(buf.len() as u64);
        if let Some(lane_job) = job.lanes.get_mut(&number) {
            lane_job
                .compacted
                .push((out, run.iter().map(|f| f.number).collect()));
        }
        Ok(true)
    }
}
