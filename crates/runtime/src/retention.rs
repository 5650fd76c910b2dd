//! Retention: failed messages and events whose time is over are deleted, as far as somebody set a time.
//!
//! A failed message's time begins when its state last changed, so that what a person skipped can be taken
//! back for as long as it is set. It is deleted as a person's purge would delete it, in the same batches,
//! between the acts of people.

use crate::clock::{wall_unix_ms, wall_unix_ms_i64};
use crate::host::Host;
use crate::operator::Operator;
use crate::operator::replay::blocking;
use consign_config::{Config, HumanDuration};
use consign_ledger::{Code, Event, FailedState};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between two rounds: a tenth of the shortest retention, between these.
const EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));
/// Rows deleted in one transaction, so that nothing that has to be written waits long.
const AT_ONCE: u32 = 5_000;

/// Deletes what is over, for as long as the host runs. Settings are read anew in each round: a reload
/// may have changed them.
pub async fn keep(host: Arc<Host>, operator: Operator) {
    loop {
        tokio::time::sleep(pause(&host.plan().config)).await;
        let plan = host.plan();
        let (failed_kept, log) = (plan.config.failed.retention, &plan.config.events);
        if let Some(kept) = failed_kept
            && let Err(why) = failed(&host, &operator, kept).await
        {
            tracing::warn!("failed messages whose time is over could not be deleted: {why}");
        }
        if let Err(why) = host.attempts.forget_old().await {
            tracing::warn!("counts of messages that are gone could not be deleted: {why}");
        }
        if let Err(why) = events(&host, log.retention, log.max_events).await {
            tracing::warn!("events whose time is over could not be deleted: {why}");
        }
    }
}

fn pause(config: &Config) -> Duration {
    let shortest = config
        .failed
        .retention
        .map_or(u64::MAX, |kept| kept.as_ms())
        .min(config.events.retention.as_ms());
    Duration::from_millis(shortest / 10).clamp(EVERY.0, EVERY.1)
}

/// The moment before which something is over; a clock before 1970 ends nothing.
fn over_before(kept: HumanDuration) -> i64 {
    i64::try_from(wall_unix_ms().saturating_sub(kept.as_ms())).unwrap_or(i64::MAX)
}

async fn failed(host: &Host, operator: &Operator, kept: HumanDuration) -> Result<(), String> {
    let before = over_before(kept);
    loop {
        let ledger = host.ledger.clone();
        let over = blocking(move || ledger.failed_unchanged_since(before, AT_ONCE)).await?;
        let ids: Vec<i64> = over.iter().map(|(id, _)| *id).collect();
        let gone: BTreeSet<i64> = operator
            .expire(host, &ids, before)
            .await
            .into_iter()
            .collect();
        let (Some(first), Some(last)) = (gone.first(), gone.last()) else {
            return Ok(());
        };
        let waiting = over
            .iter()
            .filter(|(id, state)| *state == FailedState::Parked && gone.contains(id))
            .count();
        host.events.emit(
            Event::new(Code::FailedExpired, wall_unix_ms_i64())
                .field("count", gone.len())
                .field("waiting", waiting)
                .field("retention", kept.to_string())
                .field("first_id", *first)
                .field("last_id", *last)
                .message(format!(
                    "{} failed messages were deleted after {kept} (failed.retention); {waiting} of them waited for a person",
                    gone.len()
                )),
        );
        if over.len() < AT_ONCE as usize {
            return Ok(());
        }
    }
}

async fn events(host: &Host, kept: HumanDuration, at_most: u64) -> Result<(), String> {
    let before = over_before(kept);
    loop {
        let ledger = host.ledger.clone();
        let deleted = blocking(move || {
            let old = ledger.delete_events_before(before, AT_ONCE)?;
            let surplus = ledger.delete_events_beyond(at_most, AT_ONCE)?;
            Ok(old.max(surplus))
        })
        .await?;
        if deleted < u64::from(AT_ONCE) {
            return Ok(());
        }
    }
}
