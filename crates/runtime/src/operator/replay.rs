//! Acts on failed messages whose writes go back into lanes, so that a process that dies at any point
//! neither loses a write nor has it twice in a lane.
//!
//! One batch at a time, in this order:
//!
//! 1. the messages are **claimed** in the ledger (of any number of operators one wins each);
//! 2. their writes join their lanes in **one** record of the buffer, which also keeps, as a position of
//!    its own, which claims it carried out;
//! 3. the claims are **finished** in the ledger. The next batch starts only after that.
//!
//! Dead before 2: the claims are open and the position does not name them: they are given back.
//! Dead after 2: the position names them: they are finished. The position holds one batch only, which
//! is enough because no second record is written while claims of the first are open. Nothing here is
//! recognised by a write key, so that what was sent again can be sent again once more.

use super::acts;
use super::records::split;
use super::request::Bulk;
use crate::clock::wall_unix_ms_i64;
use crate::host::Host;
use crate::lanes::{LaneInfo, Lanes};
use bytes::Bytes;
use consign_buffer::{Acceptance, Buffer, BufferError, Full, NewWrite};
use consign_ledger::{Act, Claim, Code, Done, Error, Event, Ledger, NewFailed};
use consign_pipeline::WriteKey;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::time::Duration;

/// Messages carried out together: they share a commit of the buffer and two of the ledger. The
/// position that names them stays a few kilobytes.
pub const BATCH: usize = 64;
/// The name of the position that says which claims the last record carried out.
const POSITION: &str = "consign/replay";
/// How long to wait before a ledger that refused is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// What became of one message: facts for people, or why nothing was done.
pub type Acted = (i64, Result<Value, NotDone>);

/// Why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotDone {
    /// In one sentence.
    pub why: String,
    /// It passes by itself (a full lane): bulk work waits for it.
    pub passes: bool,
}

impl From<String> for NotDone {
    fn from(why: String) -> Self {
        Self { why, passes: false }
    }
}

impl NotDone {
    fn for_now(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            passes: true,
        }
    }
}

/// A claim as the buffer's position names it. The id alone would not do: a ledger that was moved
/// away and begun anew counts from one again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Named {
    claim: i64,
    write_key: String,
    at_unix_ms: i64,
}

/// An act, ready to be carried out.
pub(super) struct Ready {
    pub(super) claim: Claim,
    named: Named,
    pub(super) writes: Vec<NewWrite>,
    done: Done,
    /// What becomes of the dependents in the record; see [`consign_ledger::Ledger::finish_all`].
    pub(super) split: Option<Vec<NewFailed>>,
    /// For the answer.
    pub(super) facts: Map<String, Value>,
    /// Emitted once it is done.
    pub(super) events: Vec<Event>,
}

fn act_of(act: Bulk) -> Option<Act> {
    Some(match act {
        Bulk::SendAgain => Act::SendAgain,
        Bulk::RouteAgain => Act::RouteAgain,
        Bulk::Skip => Act::Skip,
        Bulk::Restore => Act::Restore,
        Bulk::Confirm => Act::Confirm,
        Bulk::Move => Act::Move,
        Bulk::Purge => return None,
    })
}

fn done_of(act: Act) -> Option<Done> {
    Some(match act {
        Act::SendAgain => Done::SentAgain,
        Act::RouteAgain => Done::RoutedAgain,
        Act::Skip => Done::Skipped,
        Act::Restore => Done::Restored,
        Act::Confirm => Done::Confirmed,
        Act::Move => Done::Moved,
        Act::Edit => return None,
    })
}

/// Runs a blocking call of the ledger.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> consign_ledger::Result<T> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the host stops".to_owned()),
    }
}

/// Ends what a process that died had begun. Before anything is acted on, and before any lane sends:
/// a write that is sent again and fails again closes the claim itself.
pub async fn recover(buffer: &Buffer, ledger: &Ledger) -> Result<(), String> {
    let of = ledger.clone();
    let open = blocking(move || of.open_claims()).await?;
    if open.is_empty() {
        return Ok(());
    }
    let carried_out: Vec<Named> = buffer
        .position(POSITION)
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let (finished, released) = {
        let ledger = ledger.clone();
        blocking(move || {
            let now = wall_unix_ms_i64();
            let (mut finished, mut released) = (0_u64, 0_u64);
            for record in open {
                let claim = ledger.reopen_claim(record.id)?;
                let named = Named {
                    claim: record.id,
                    write_key: WriteKey(claim.message.record.write_key).to_string(),
                    at_unix_ms: record.at_unix_ms,
                };
                match done_of(claim.act).filter(|_| carried_out.contains(&named)) {
                    Some(done) => {
                        // What the record carried out took the dependents with it or left them
                        // where a person decides; sent again they stay part of the history.
                        let split = match claim.act {
                            Act::SendAgain => None,
                            Act::Move => Some(split(&claim.message.record, None, "moved")),
                            _ => Some(Vec::new()),
                        };
                        ledger.finish_all(&[(claim, done, split)], now)?;
                        finished += 1;
                    }
                    None => {
                        ledger.release(&claim, "the host ended before it was carried out", now)?;
                        released += 1;
                    }
                }
            }
            Ok((finished, released))
        })
        .await?
    };
    tracing::info!(
        finished,
        released,
        "acts on failed messages that the last run had begun are ended"
    );
    Ok(())
}

/// Writes whose parking the last run made durable and whose lane did not learn of it: settled before
/// anything is sent, so that a parked write is not tried once more and cannot be in its lane twice.
pub async fn settle_parked(buffer: &Buffer, ledger: &Ledger, lanes: &Lanes) -> Result<(), String> {
    for (lane, info) in lanes.all().into_iter().filter(|(_, info)| info.buffered) {
        let lane = consign_buffer::LaneId(lane.0);
        let Some(mut after) = buffer.stats(lane).map(|stats| stats.settled_through) else {
            continue;
        };
        loop {
            let ledger = ledger.clone();
            let (adapter, route, send) =
                (info.adapter.clone(), info.route.clone(), info.send.clone());
            let seqs = blocking(move || ledger.parked_seqs((&adapter, &route, &send), after, 0));
            let seqs = seqs.await?;
            let Some(last) = seqs.last().copied() else {
                break;
            };
            after = last;
            for seq in seqs {
                let fetched = buffer.fetch(lane, seq.saturating_sub(1), 1, 1).await;
                let fetched = fetched.map_err(|error| error.to_string())?;
                if fetched.writes.first().is_some_and(|write| write.seq == seq) {
                    tracing::info!(lane = info.id, seq, "a parked write was still in its lane");
                    let settled = buffer.settle(vec![consign_buffer::Settlement {
                        lane,
                        seq,
                        result: consign_delivery::SettleResult::Parked.code(),
                        release_children: false,
                    }]);
                    settled.await.map_err(|error| error.to_string())?;
                }
            }
        }
    }
    Ok(())
}

/// The order keys that wait in a lane because a write with them waits for a person.
///
/// # Errors
/// The ledger cannot be read.
pub async fn held_keys(ledger: &Ledger, info: &LaneInfo, most: u32) -> Result<Vec<u64>, String> {
    let (ledger, info) = (ledger.clone(), info.clone());
    blocking(move || ledger.held_orders((&info.adapter, &info.route, &info.send), most)).await
}

/// Carries one act out on at most [`BATCH`] messages. The caller holds the turn.
pub async fn act(host: &Host, act: Bulk, ids: &[i64], to: Option<&str>, who: &str) -> Vec<Acted> {
    let all = |why: String| {
        ids.iter()
            .map(|id| (*id, Err(why.clone().into())))
            .collect()
    };
    let Some(claimed_act) = act_of(act) else {
        return purge(host, ids, None).await;
    };
    let (parker, list) = (std::sync::Arc::clone(&host.parker), ids.to_vec());
    let settling = match blocking(move || Ok(parker.settling_among(&list))).await {
        Ok(settling) => settling,
        Err(why) => return all(why),
    };
    let mut acted = Vec::with_capacity(ids.len());
    let mut wanted = Vec::with_capacity(ids.len());
    for id in ids {
        if settling.contains(id) {
            let why = "it was parked a moment ago and its lane has not noted that yet: try again";
            acted.push((*id, Err(NotDone::for_now(why))));
        } else {
            wanted.push(*id);
        }
    }
    let (ledger, name, at) = (host.ledger.clone(), who.to_owned(), wall_unix_ms_i64());
    let list = wanted.clone();
    let claims = match blocking(move || ledger.claim_all(&list, claimed_act, &name, at)).await {
        Ok(claims) => claims,
        Err(why) => return all(why),
    };
    let mut ready = Vec::new();
    for (id, claim) in wanted.into_iter().zip(claims) {
        match claim {
            Ok(claim) => match prepare(host, act, claim, to, at).await {
                Ok(one) => ready.push(one),
                Err((claim, why)) => {
                    release(host, claim, &why).await;
                    acted.push((id, Err(why.into())));
                }
            },
            Err(error) => acted.push((id, Err(error.to_string().into()))),
        }
    }
    let mut groups = VecDeque::from([ready]);
    while let Some(group) = groups.pop_front() {
        if group.is_empty() {
            continue;
        }
        match enter_lanes(host, group).await {
            Entered::All(group) => {
                for one in finish(host, group).await {
                    acted.push(one);
                }
            }
            Entered::TooMuch(mut group, why) => {
                if group.len() > 1 {
                    let tail = group.split_off(group.len() / 2);
                    groups.push_front(tail);
                    groups.push_front(group);
                } else if let Some(one) = group.pop() {
                    let id = one.claim.failed_id;
                    release(host, one.claim, &why.why).await;
                    acted.push((id, Err(why)));
                }
            }
            Entered::Unknown(group, why) => {
                // Whether the record is durable shows at the next start; so long the claims stay.
                for one in group {
                    acted.push((one.claim.failed_id, Err(why.clone().into())));
                }
            }
        }
    }
    acted.sort_by_key(|(id, _)| *id);
    acted
}

enum Entered {
    All(Vec<Ready>),
    TooMuch(Vec<Ready>, NotDone),
    Unknown(Vec<Ready>, String),
}

/// Step 2: one record with all writes and the names of their claims.
async fn enter_lanes(host: &Host, group: Vec<Ready>) -> Entered {
    let writes: Vec<NewWrite> = group.iter().flat_map(|one| one.writes.clone()).collect();
    if writes.is_empty() && group.iter().all(|one| !one.claim_needs_record()) {
        return Entered::All(group);
    }
    let mut wanted = Vec::new();
    charges(&writes, &mut wanted);
    let reservation = match host.buffer.reserve(&wanted) {
        Ok(reservation) if reservation.dropped().is_empty() => reservation,
        // `when_full: drop` is for what comes from a source; what a person sends again is kept.
        Ok(_) => {
            let why = "its lane is full: nothing was done; try again once it has room";
            return Entered::TooMuch(group, NotDone::for_now(why));
        }
        Err(full) => {
            let why = format!("{full}: nothing was done");
            let passes = matches!(full, Full::Lane { .. } | Full::Disk { .. });
            return Entered::TooMuch(group, NotDone { why, passes });
        }
    };
    let names: Vec<&Named> = group.iter().map(|one| &one.named).collect();
    let position = json!(names).to_string();
    let accepting = host.buffer.accept(
        reservation,
        Acceptance {
            scope: String::new(),
            origin: None,
            position: Some((POSITION.to_owned(), Bytes::from(position))),
            writes,
            settles: Vec::new(),
        },
    );
    match accepting.await {
        Ok(_) => Entered::All(group),
        Err(error @ BufferError::TooLarge { .. }) => {
            Entered::TooMuch(group, error.to_string().into())
        }
        Err(error) => Entered::Unknown(
            group,
            format!("{error}; whether it was sent again shows at the next start"),
        ),
    }
}

fn charges(writes: &[NewWrite], wanted: &mut Vec<(consign_buffer::LaneId, u64)>) {
    for write in writes {
        wanted.push((
            write.lane,
            u64::try_from(write.body.len()).unwrap_or(u64::MAX),
        ));
        charges(&write.children, wanted);
    }
}

/// Step 3. The writes are in their lanes, so this is tried until the ledger takes it: were it given
/// up, the next batch's position would overwrite this one's.
async fn finish(host: &Host, group: Vec<Ready>) -> Vec<Acted> {
    let mut ends = Vec::with_capacity(group.len());
    let mut answers = Vec::with_capacity(group.len());
    let mut events = Vec::new();
    let mut keys = Vec::new();
    for mut one in group {
        one.facts.insert("nth".to_owned(), json!(one.claim.nth));
        keys.push((one.claim.message.record.clone_lane(), one.done.clone()));
        answers.push((one.claim.failed_id, Ok(Value::Object(one.facts))));
        events.append(&mut one.events);
        ends.push((one.claim, one.done, one.split));
    }
    let ends = std::sync::Arc::new(ends);
    loop {
        let (ledger, ends) = (host.ledger.clone(), std::sync::Arc::clone(&ends));
        let done =
            tokio::task::spawn_blocking(move || ledger.finish_all(&ends, wall_unix_ms_i64())).await;
        match done {
            Ok(Ok(())) => break,
            Ok(Err(error @ (Error::ClaimClosed(_) | Error::BadRecord { .. }))) => {
                tracing::error!(%error, "a claim could not be finished");
                break;
            }
            Ok(Err(error)) => {
                let event = Event::new(Code::LedgerFull, wall_unix_ms_i64()).message(format!(
                    "acts on failed messages wait, because they cannot be recorded: {error}"
                ));
                host.events.open("ledger", event);
                tokio::time::sleep(RETRY_AFTER).await;
            }
            Err(_) => break,
        }
    }
    host.events.close("ledger", Code::LedgerFull, None);
    for event in events {
        host.events.emit(event);
    }
    for ((lane, order), done) in keys {
        if !matches!(done, Done::Restored) {
            release_key(host, &lane, order).await;
        }
    }
    answers
}

async fn release(host: &Host, claim: Claim, why: &str) {
    let (ledger, why) = (host.ledger.clone(), why.to_owned());
    let released = blocking(move || ledger.release(&claim, &why, wall_unix_ms_i64())).await;
    if let Err(error) = released {
        // It stays claimed; the next start gives it back.
        tracing::error!(error, "a claim could not be given back");
    }
}

/// Lets go what waits behind a parked write with the same order key, once none of them waits for a
/// person any more.
async fn release_key(host: &Host, lane: &(String, String, String), order: u64) {
    let id = format!("{}/{}/{}", lane.0, lane.1, lane.2);
    let Some((number, _)) = host
        .plugs
        .lanes()
        .by_id(&id)
        .filter(|(_, info)| info.holds_keys)
    else {
        return;
    };
    let (ledger, lane) = (host.ledger.clone(), lane.clone());
    let waits = blocking(move || ledger.order_waits((&lane.0, &lane.1, &lane.2), order)).await;
    if waits == Ok(false) {
        host.engine.input(consign_delivery::Input::Operator(
            consign_delivery::Act::ReleaseKey(number, order),
        ));
    }
}

trait LaneOf {
    fn clone_lane(&self) -> ((String, String, String), u64);
}

impl LaneOf for NewFailed {
    fn clone_lane(&self) -> ((String, String, String), u64) {
        (
            (self.adapter.clone(), self.route.clone(), self.send.clone()),
            self.order,
        )
    }
}

impl Ready {
    /// Whether the record must name the claim although no write goes anywhere: an act that ends in
    /// the ledger alone can simply be given back after a crash.
    fn claim_needs_record(&self) -> bool {
        !self.writes.is_empty()
    }
}

async fn prepare(
    host: &Host,
    act: Bulk,
    claim: Claim,
    to: Option<&str>,
    at_unix_ms: i64,
) -> Result<Ready, (Claim, String)> {
    let Some(done) = done_of(claim.act) else {
        return Err((claim, "that is not carried out here".to_owned()));
    };
    let mut ready = Ready {
        named: Named {
            claim: claim.id,
            write_key: WriteKey(claim.message.record.write_key).to_string(),
            at_unix_ms,
        },
        claim,
        writes: Vec::new(),
        done,
        split: None,
        facts: Map::new(),
        events: Vec::new(),
    };
    let filled = match act {
        Bulk::SendAgain => acts::send_again(host, &mut ready),
        Bulk::Move => acts::move_to(host, &mut ready, to),
        Bulk::RouteAgain => acts::route_again(host, &mut ready).await,
        Bulk::Confirm => acts::confirm(host, &mut ready),
        Bulk::Skip => acts::skip(host, &mut ready),
        Bulk::Restore | Bulk::Purge => Ok(()),
    };
    match filled {
        Ok(()) => Ok(ready),
        Err(why) => Err((ready.claim, why)),
    }
}

/// Deletes failed messages; with a time, only those that have not changed since.
pub async fn purge(host: &Host, ids: &[i64], unchanged_since: Option<i64>) -> Vec<Acted> {
    let mut acted = Vec::with_capacity(ids.len());
    for &id in ids {
        let ledger = host.ledger.clone();
        let purged = blocking(move || {
            let message = ledger.failed_message(id)?;
            Ok((message, ledger.purge(&[id], unchanged_since)?))
        })
        .await;
        let result = match purged {
            Ok((Some(message), 1)) => {
                let record = message.record;
                let waits = matches!(
                    message.state,
                    consign_ledger::FailedState::Parked | consign_ledger::FailedState::Skipped
                );
                if waits && !record.dependents.is_empty() {
                    host.events.emit(acts::dropped_event(&record, "purged"));
                }
                let (lane, order) = record.clone_lane();
                release_key(host, &lane, order).await;
                Ok(json!({}))
            }
            Ok((Some(_), _)) => Err(format!("failed message {id} is claimed: nothing was done")),
            Ok((None, _)) => Err(format!("no failed message {id}")),
            Err(why) => Err(why),
        };
        acted.push((id, result.map_err(NotDone::from)));
    }
    acted
}
