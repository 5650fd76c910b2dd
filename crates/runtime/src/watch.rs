//! Watches the buffer while the host runs: a disk that fills up, a failed log, and damage that is found late.
//!
//! A spill file is read when its lane comes to it, so what a flipped bit took from one shows hours after the start.

use crate::clock;
use crate::events::Events;
use consign_buffer::{Buffer, Health, Lost};
use consign_ledger::{Code, Event};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// How often losses are looked at; they are rare, and counting them costs one lock.
const LOSSES_EVERY: Duration = Duration::from_millis(500);
/// How often the disk's room is looked at: it is compared with quotas, so it warns long before the disk is full.
const ROOM_EVERY: Duration = Duration::from_secs(10);
/// The subject of the buffer's episodes.
const SUBJECT: &str = "buffer";

/// Writes events about the buffer of `dir` until it is closed. `reported` are losses that were told at the start.
pub async fn watch(buffer: Buffer, events: Events, dir: PathBuf, reported: Lost) {
    let mut health = buffer.watch_health();
    let mut seen = reported;
    let mut tick = tokio::time::interval(LOSSES_EVERY);
    let mut room = tokio::time::interval(ROOM_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    room.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // An episode of the last run is over if this one begins well.
    health.mark_changed();
    loop {
        tokio::select! {
            changed = health.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = health.borrow_and_update().clone();
                tell_health(&events, &dir, now);
            }
            _ = tick.tick() => {}
            _ = room.tick() => tell_room(&events, &dir, &buffer).await,
        }
        let lost = buffer.lost();
        if let Some(event) = corruption(&seen, &lost) {
            events.emit(event);
        }
        seen = lost;
        if *health.borrow() == Health::Closed {
            return;
        }
    }
}

/// What lanes may still be given, and what the disk has left for it.
async fn tell_room(events: &Events, dir: &Path, buffer: &Buffer) {
    let lanes = buffer.lanes().into_iter().filter(|(_, lane)| lane.claimed);
    let left = lanes.map(|(_, lane)| lane.quota_bytes.saturating_sub(lane.charged_bytes));
    let wanted = left.fold(0, u64::saturating_add);
    let of = dir.to_path_buf();
    let free = tokio::task::spawn_blocking(move || free_bytes(&of)).await;
    // A disk that cannot be asked is told by the buffer, when it fails.
    let Some(free) = free.ok().and_then(Result::ok) else {
        return;
    };
    if free >= wanted {
        events.close(SUBJECT, Code::DiskLow, None);
        return;
    }
    let event = Event::new(Code::DiskLow, clock::wall_unix_ms_i64())
        .field("free_bytes", free)
        .field("wanted_bytes", wanted)
        .message(format!(
            "the disk of {} has {free} bytes left, and the quotas of the lanes may need {wanted} more",
            dir.display()
        ));
    events.open(SUBJECT, event);
}

/// Bytes that this process may still use on a folder's disk.
fn free_bytes(dir: &Path) -> std::io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_frsize.saturating_mul(stat.f_bavail))
}

fn tell_health(events: &Events, dir: &Path, health: Health) {
    let at = clock::wall_unix_ms_i64();
    match health {
        Health::Full { why } => {
            let event = Event::new(Code::DiskFull, at)
                .field("path", dir.display().to_string())
                .field("error", why.clone())
                .message(format!(
                    "the disk of {} is full and nothing is accepted until there is room: {why}",
                    dir.display()
                ));
            events.open(SUBJECT, event);
        }
        Health::Failed { why } => {
            let event = Event::new(Code::BufferFailed, at)
                .field("error", why.clone())
                .message(format!(
                    "the buffer failed and nothing more is accepted or sent: {why}; mend the disk and restart the host"
                ));
            events.open(SUBJECT, event);
        }
        Health::Running => {
            let room = Event::new(Code::DiskHasRoom, at)
                .field("path", dir.display().to_string())
                .message(format!(
                    "there is room on the disk of {} again; messages are accepted",
                    dir.display()
                ));
            events.close(SUBJECT, Code::DiskFull, Some(room));
        }
        Health::Closed => {}
    }
}

/// What was lost since `seen`, as an event.
pub fn corruption(seen: &Lost, lost: &Lost) -> Option<Event> {
    let notes = lost.notes.get(seen.notes.len()..).unwrap_or_default();
    let writes = lost.writes.saturating_sub(seen.writes);
    let records = lost.records.saturating_sub(seen.records);
    let bytes = lost
        .quarantined_bytes
        .saturating_sub(seen.quarantined_bytes);
    let missing = lost.files.saturating_sub(seen.files);
    if notes.is_empty() && missing == 0 && writes == 0 && records == 0 && bytes == 0 {
        return None;
    }
    let places: Vec<String> = lost
        .places
        .get(seen.places.len()..)
        .unwrap_or_default()
        .iter()
        .map(|place| format!("{} at {}", place.file.display(), place.offset))
        .collect();
    let event = Event::new(Code::BufferCorruption, clock::wall_unix_ms_i64())
        .field("places", places.join(", "))
        .field("records", records)
        .field("writes", writes)
        .field("files", missing)
        .field("quarantined_bytes", bytes)
        .message(format!(
            "the buffer was damaged: {}{writes} writes are lost. {}",
            // What a missing record or file held cannot be counted in writes.
            if records > 0 || missing > 0 {
                "at least "
            } else {
                ""
            },
            notes.join("; ")
        ));
    Some(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_buffer::Place;

    #[test]
    fn only_what_is_new_is_told() {
        let place = |offset| Place {
            file: "log/0000.log".into(),
            offset,
            bytes: 8,
        };
        let first = Lost {
            writes: 2,
            quarantined_bytes: 8,
            places: vec![place(4096)],
            notes: vec!["one".into()],
            ..Lost::default()
        };
        let event = corruption(&Lost::default(), &first).unwrap();
        assert_eq!(
            event.message,
            "the buffer was damaged: 2 writes are lost. one"
        );
        assert!(corruption(&first, &first).is_none());
        let mut second = first.clone();
        second.writes = 3;
        second.notes.push("two".into());
        second.places.push(place(8192));
        let event = corruption(&first, &second).unwrap();
        assert_eq!(
            event.message,
            "the buffer was damaged: 1 writes are lost. two"
        );
        let text = format!("{event:?}");
        assert!(
            text.contains("log/0000.log at 8192") && !text.contains("at 4096"),
            "{text}"
        );
    }
}
