//! Spilling: pending writes of old log segments go to their lanes' files, in order, in pieces.

use std::io;

use crate::core::Core;
use crate::fs::{Open, write_all_at};
use crate::job::{Job, LaneJob};
use crate::lane::LogPlace;
use crate::planted::Planted;
use crate::record;
use crate::spill::FILE_HEADER;

/// Bytes spilled in one step.
const SPILL_PIECE_BYTES: u64 = 1 << 20;

impl Core {
    /// Spills a piece of one lane; true when the lane is done, its files durable.
    pub(crate) fn spill_some(&mut self, job: &mut Job, number: u32) -> io::Result<bool> {
        let cut = job.cut;
        let mut batch: Vec<(u64, LogPlace)> = Vec::new();
        let lane_job = {
            let state = self.shared.state.lock();
            let Some(lane) = state.lanes.get(number as usize) else {
                return Ok(true);
            };
            let lane_job = job.lanes.entry(number).or_insert_with(|| LaneJob {
                through: lane.spilled_through,
                next_file: lane.next_file,
                ..LaneJob::default()
            });
            let mut bytes = 0;
            for (seq, entry) in lane.entries.range(lane_job.through + 1..) {
                if entry.place.segment >= cut || bytes >= SPILL_PIECE_BYTES {
                    break;
                }
                bytes += u64::from(entry.place.len);
                batch.push((*seq, entry.place));
            }
            lane_job
        };
        if batch.is_empty() {
            self.close_spill(number, lane_job, false)?;
            return Ok(true);
        }
        let places: Vec<LogPlace> = batch.iter().map(|(_, p)| *p).collect();
        let encodings = self.log.read_many(&places)?;
        let mut buf = Vec::new();
        for ((seq, place), enc) in batch.into_iter().zip(encodings) {
            let Some(enc) = enc else {
                // Goes on behind it once its loss is durable and it has left the index.
                self.lose_in_log(number, seq);
                break;
            };
            let size = record::size(0, enc.len()) as u64;
            let used = lane_job
                .open
                .as_ref()
                .map(|(f, _)| f.len + buf.len() as u64);
            if used.is_some_and(|used| {
                used > FILE_HEADER && used + size > self.options.spill_file_bytes
            }) {
                append(lane_job, &mut buf)?;
                self.close_spill(number, lane_job, true)?;
            }
            if lane_job.open.is_none() {
                self.open_spill(number, lane_job, seq)?;
            }
            if let Some((file, _)) = &mut lane_job.open {
                if file.first_seq == 0 {
                    file.first_seq = seq;
                }
                file.last_seq = seq;
                record::append(&mut buf, self.stamp(file.salt, seq), &[], &enc, place.crc);
            }
            lane_job.through = seq;
        }
        let written = append(lane_job, &mut buf)?;
        self.count_written(written);
        Ok(false)
    }

    /// The lane's tail file, or a new one.
    fn open_spill(&mut self, number: u32, lane_job: &mut LaneJob, seq: u64) -> io::Result<()> {
        let tail = {
            let state = self.shared.state.lock();
            let lane = state.lanes.get(number as usize);
            let tail = lane
                .and_then(|l| l.files.back())
                .filter(|f| !f.sealed && f.last_seq < seq);
            tail.filter(|f| f.len < self.options.spill_file_bytes)
                .cloned()
        };
        if let Some(mut tail) = tail.filter(|_| lane_job.files.is_empty()) {
            match self
                .fs
                .open(&self.spill_path(number, tail.number), Open::Write)
            {
                Ok(handle) => {
                    // Books are made up when the checkpoint is written.
                    tail.index = Vec::new();
                    lane_job.open = Some((tail, handle));
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        let file_number = lane_job.next_file;
        lane_job.next_file += 1;
        lane_job.made.push(file_number);
        lane_job.open = Some(self.create_spill(number, file_number)?);
        Ok(())
    }

    fn close_spill(&mut self, number: u32, lane_job: &mut LaneJob, sealed: bool) -> io::Result<()> {
        let Some((mut file, mut handle)) = lane_job.open.take() else {
            return Ok(());
        };
        if self.planted != Some(Planted::SpillNotSynced) {
            handle.sync()?;
        }
        if lane_job.made.contains(&file.number) {
            self.sync_lane_dir(number)?;
        }
        file.sealed |= sealed;
        lane_job.files.push(file);
        Ok(())
    }

    pub(crate) fn sync_lane_dir(&self, number: u32) -> io::Result<()> {
        if self.planted == Some(Planted::SpillDirNotSynced) {
            return Ok(());
        }
        self.fs.sync_dir(&self.lane_dir(number))?;
        self.fs.sync_dir(&self.dir.join("lanes"))
    }

    /// A lane's spill failed. What it completed is kept: those files are whole and flushed. The one that failed goes,
    /// or is not appended to again when it was the lane's tail; the log keeps its writes.
    pub(crate) fn keep_whole_files(&mut self, job: &mut Job, number: u32) {
        let Some(lane_job) = job.lanes.get_mut(&number) else {
            return;
        };
        let whole = lane_job.files.last().map(|f| f.last_seq);
        let open = lane_job.open.take().map(|(file, _)| file.number);
        let kept: Vec<u64> = lane_job.files.iter().map(|f| f.number).collect();
        let gone: Vec<u64> = lane_job
            .made
            .iter()
            .copied()
            .filter(|n| !kept.contains(n))
            .collect();
        lane_job.made.retain(|n| kept.contains(n));
        let next_file = lane_job.next_file;
        match whole {
            Some(through) => lane_job.through = through,
            None => drop(job.lanes.remove(&number)),
        }
        self.seal_tail(number, next_file, |n| Some(n) == open);
        for file in gone {
            // No checkpoint was ever asked to name it.
            let path = self.spill_path(number, file);
            if self.fs.remove(&path).is_err() {
                self.garbage.push(path);
            }
        }
    }

    /// The checkpoint that would have named what this lane's job wrote may not be durable.
    pub(crate) fn give_up(&mut self, number: u32, lane_job: &LaneJob) {
        let open = lane_job.open.iter().map(|(f, _)| f.number);
        let touched: Vec<u64> = lane_job
            .files
            .iter()
            .map(|f| f.number)
            .chain(open)
            .collect();
        self.seal_tail(number, lane_job.next_file, |n| touched.contains(&n));
    }

    /// Nothing is appended any more to the lane's tail if it was touched, and numbers that were used are not again.
    fn seal_tail(&mut self, number: u32, next_file: u64, touched: impl Fn(u64) -> bool) {
        let mut state = self.shared.state.lock();
        let lane = state.lane_mut(number);
        lane.next_file = lane.next_file.max(next_file);
        if let Some(tail) = lane.files.back_mut().filter(|f| touched(f.number)) {
            tail.sealed = true;
        }
    }
}

/// Writes what has gathered for the open file.
fn append(lane_job: &mut LaneJob, buf: &mut Vec<u8>) -> io::Result<u64> {
    let Some((file, handle)) = &mut lane_job.open else {
        return Ok(0);
    };
    let bytes = buf.len() as u64;
    if bytes > 0 {
        handle.allocate(file.len, bytes)?;
        write_all_at(handle.as_mut(), buf, file.len)?;
        file.len += bytes;
        buf.clear();
    }
    Ok(bytes)
}
