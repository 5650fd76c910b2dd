//! The end of an opening: the run's first record, and a checkpoint that says what the log's files are.

use std::io;

use crate::checkpoint::{Untold, encode};
use crate::core::Core;
use crate::group::{Done, Group, Prepared};
use crate::items::{self, Item};
use crate::log::Log;
use crate::planted::Planted;

/// Makes the run's first record durable, in a new segment after damage.
pub(crate) fn begin_run(core: &mut Core, damage: bool) -> io::Result<()> {
    let mut payload = Vec::new();
    let wall_unix_ms = core.now.unix_ms;
    items::put_item(
        &mut payload,
        &Item::Session {
            epoch: core.log.epoch,
            wall_unix_ms,
        },
    );
    if core.planted == Some(Planted::CleanMarkEarly) {
        items::put_item(&mut payload, &Item::Clean);
    }
    let record = Prepared::items(payload, Done::Nothing);
    let mut rotate = damage || record.size() > core.log.remaining();
    let empty = core.log.live.is_empty();
    rotate |= empty;
    if rotate && !core.log.rotate(core.fs.entropy())? && record.size() > core.log.remaining() {
        // Full to the last byte. One segment more than configured begins this run; it goes once it is free again.
        if core.planted == Some(Planted::LogFilledWhole) {
            return Err(io::Error::other("no log segment is free"));
        }
        let slot = core.log.slots.len();
        let bytes = core.log.segment_bytes;
        let made = Log::create_slot(core.fs.as_ref(), &core.dir, slot, bytes)?;
        core.fs.sync_dir(&core.dir.join("log"))?;
        core.log.slots.push(made);
        core.log.rotate(core.fs.entropy())?;
    }
    if empty {
        // New, or nothing is left of the log that was.
        core.point = core.log.point();
    }
    let mut group = Group::default();
    core.put(&mut group, record);
    core.log.write(&group.bytes)?;
    if core.planted != Some(Planted::LogNotSynced) {
        core.log.sync()?;
    }
    let base = core.log.offset;
    core.log.advance(group.bytes.len() as u64, 1);
    core.apply_group(group, base);
    Ok(())
}

/// Has a checkpoint say that a run began and what the log's files are, where the one in force does not: from then on a
/// log that is gone is told from one that never was. What an earlier opening found missing is told by now.
///
/// After damage always, and an opening fails where it cannot: what is pending was found out from what was left, and the
/// next opening may find a checkpoint and a log that look whole again.
pub(crate) fn vouch_for_log(
    core: &mut Core,
    written: &[u64],
    began: bool,
    damage: bool,
    untold: Untold,
) -> io::Result<()> {
    let sizes = core.log.sizes();
    if began && written == sizes && !damage {
        return Ok(());
    }
    let payload = {
        let state = core.shared.state.lock();
        let over = Default::default();
        encode(
            &state,
            &over,
            core.point,
            core.log.epoch,
            &sizes,
            untold,
            core.planted,
        )
    };
    match core.slots.write(&payload) {
        Ok(bytes) => {
            core.count_written(bytes);
            Ok(())
        }
        Err(e) if began && !damage => {
            // The one in force will do.
            tracing::warn!(target: "consign::buffer", "a checkpoint could not be written while opening: {e}");
            Ok(())
        }
        Err(e) => Err(e),
    }
}
