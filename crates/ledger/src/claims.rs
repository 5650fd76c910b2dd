//! Acting on a failed message: a claim with one winner, then its end.
//!
//! A claim outlives the process that made it: after a crash the message is still `claimed`, and
//! whoever starts next asks for [`Ledger::open_claims`], looks whether the act was carried out, and
//! finishes or releases each.

use crate::{
    Error, FailedMessage, FailedState, Header, Ledger, NewFailed, Result, causes,
    db::{Fault, Inside},
    park::{bad, load, park, state_of},
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

/// What somebody wants to do with a failed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// The stored write with its key, back to its lane.
    SendAgain,
    /// The original message through today's routes.
    RouteAgain,
    /// Another body; it stays parked.
    Edit,
    /// Give it up.
    Skip,
    /// Take a skip back.
    Restore,
    /// It had landed: settle it as delivered.
    Confirm,
    /// To another send.
    Move,
}

impl Act {
    const ALL: [Self; 7] = [
        Self::SendAgain,
        Self::RouteAgain,
        Self::Edit,
        Self::Skip,
        Self::Restore,
        Self::Confirm,
        Self::Move,
    ];

    /// The name in the file and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SendAgain => "send_again",
            Self::RouteAgain => "route_again",
            Self::Edit => "edit",
            Self::Skip => "skip",
            Self::Restore => "restore",
            Self::Confirm => "confirm",
            Self::Move => "move",
        }
    }

    /// The state a message must be in for it.
    #[must_use]
    pub fn from_state(self) -> FailedState {
        match self {
            Self::Restore => FailedState::Skipped,
            _ => FailedState::Parked,
        }
    }

    /// Whether it sends what is stored, for which a redacted record will not do.
    fn sends(self) -> bool {
        matches!(self, Self::SendAgain | Self::RouteAgain | Self::Move)
    }
}

/// How a claim ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// The write is in its lane again, durably.
    SentAgain,
    /// The original message was accepted again.
    RoutedAgain,
    /// The record has another body, and stays parked.
    Edited {
        /// The new body.
        body: Vec<u8>,
        /// Its headers.
        headers: Vec<Header>,
        /// What else is needed to send it.
        envelope: Vec<u8>,
        /// A new key, where the person asked for one.
        write_key: Option<[u8; 16]>,
    },
    /// It is given up.
    Skipped,
    /// It waits again.
    Restored,
    /// It counts as delivered.
    Confirmed,
    /// It is in another lane, durably.
    Moved,
}

impl Done {
    fn name(&self) -> &'static str {
        match self {
            Self::SentAgain => "sent_again",
            Self::RoutedAgain => "routed_again",
            Self::Edited { .. } => "edited",
            Self::Skipped => "skipped",
            Self::Restored => "restored",
            Self::Confirmed => "confirmed",
            Self::Moved => "moved",
        }
    }

    fn state(&self) -> FailedState {
        match self {
            Self::SentAgain => FailedState::SentAgain,
            Self::RoutedAgain => FailedState::RoutedAgain,
            Self::Edited { .. } | Self::Restored => FailedState::Parked,
            Self::Skipped => FailedState::Skipped,
            Self::Confirmed => FailedState::Confirmed,
            Self::Moved => FailedState::Moved,
        }
    }
}

/// A claim that was won: the right to carry one act out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Its id.
    pub id: i64,
    /// The failed message.
    pub failed_id: i64,
    /// What is to be done.
    pub act: Act,
    /// The how-manieth claim of this message it is, from 1.
    pub nth: u32,
    /// The message, as it was when it was claimed.
    pub message: FailedMessage,
}

/// A claim in a message's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// Its id.
    pub id: i64,
    /// The failed message.
    pub failed_id: i64,
    /// What was to be done.
    pub act: Act,
    /// Who wanted it.
    pub who: String,
    /// When.
    pub at_unix_ms: i64,
    /// When it ended; `None` while it is under way.
    pub finished_unix_ms: Option<i64>,
    /// How it ended, or why it was released.
    pub result: Option<String>,
}

impl Ledger {
    /// Claims a message for one act. Of any number of callers, in any number of processes, one wins.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::NotClaimable`] for all but the winner;
    /// [`Error::NotReplayable`] where something was taken out of the record.
    pub fn claim(&self, id: i64, act: Act, who: &str, at_unix_ms: i64) -> Result<Claim> {
        self.write(|connection| claim(connection, id, act, who, at_unix_ms))
    }

    /// Claims several messages in one transaction. One that cannot be claimed does not hinder the
    /// others.
    ///
    /// # Errors
    /// As the file's, and then nothing is claimed; each message's own as [`Ledger::claim`].
    pub fn claim_all(
        &self,
        ids: &[i64],
        act: Act,
        who: &str,
        at_unix_ms: i64,
    ) -> Result<Vec<Result<Claim>>> {
        self.write(|connection| {
            let mut claims = Vec::with_capacity(ids.len());
            for id in ids {
                claims.push(match claim(connection, *id, act, who, at_unix_ms) {
                    Ok(claim) => Ok(claim),
                    // These are found before anything is changed.
                    Err(Fault::Own(
                        error @ (Error::NotFound(_)
                        | Error::NotClaimable { .. }
                        | Error::NotReplayable(_)),
                    )) => Err(error),
                    Err(other) => return Err(other),
                });
            }
            Ok(claims)
        })
    }

    /// Ends a claim with what was done. Asked again with the same end, nothing changes.
    ///
    /// # Errors
    /// [`Error::ClaimClosed`] where it ended otherwise.
    pub fn finish(&self, claim: &Claim, done: &Done, at_unix_ms: i64) -> Result<()> {
        self.write(|connection| finish(connection, claim, done, None, at_unix_ms))
    }

    /// As [`Ledger::finish`], for several claims in one transaction. `Some` takes the dependents out
    /// of the claimed message: those that are given become failed messages of their own in the same
    /// transaction, the others have gone elsewhere or were dropped.
    ///
    /// # Errors
    /// As [`Ledger::finish`]; then nothing is changed.
    pub fn finish_all(
        &self,
        ends: &[(Claim, Done, Option<Vec<NewFailed>>)],
        at_unix_ms: i64,
    ) -> Result<()> {
        self.write(|connection| {
            for (claim, done, split) in ends {
                finish(connection, claim, done, split.as_deref(), at_unix_ms)?;
            }
            Ok(())
        })
    }

    /// Whether a message was claimed in this name and that claim was carried out.
    ///
    /// # Errors
    /// As the file's.
    pub fn was_done_by(&self, failed_id: i64, who: &str) -> Result<bool> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT 1 FROM claims WHERE failed = ?1 AND who = ?2
                 AND finished_unix_ms IS NOT NULL AND result NOT LIKE 'released:%'",
            )?;
            Ok(statement.exists(params![failed_id, who])?)
        })
    }

    /// Gives a claim back: the message is what it was before, and `why` stands in its history.
    ///
    /// # Errors
    /// [`Error::ClaimClosed`] where it has ended.
    pub fn release(&self, claim: &Claim, why: &str, at_unix_ms: i64) -> Result<()> {
        self.write(|connection| {
            let (from, result) = open_claim(connection, claim.id)?;
            if result.is_some() {
                return Err(Error::ClaimClosed(claim.id).into());
            }
            move_state(connection, claim.failed_id, FailedState::Claimed, from)?;
            close_claim(connection, claim, &format!("released: {why}"), at_unix_ms)
        })
    }

    /// Claims that have not ended: at start, those of a process that did.
    ///
    /// # Errors
    /// As the file's.
    pub fn open_claims(&self) -> Result<Vec<ClaimRecord>> {
        self.claim_records("finished_unix_ms IS NULL AND ?1 IS NULL", None)
    }

    /// All claims of a message, oldest first.
    ///
    /// # Errors
    /// As the file's.
    pub fn claim_history(&self, failed_id: i64) -> Result<Vec<ClaimRecord>> {
        self.claim_records("failed = ?1", Some(failed_id))
    }

    /// Takes an open claim over, to finish or release it.
    ///
    /// # Errors
    /// [`Error::ClaimClosed`], [`Error::NotFound`].
    pub fn reopen_claim(&self, claim_id: i64) -> Result<Claim> {
        let record = self
            .claim_records("id = ?1", Some(claim_id))?
            .pop()
            .ok_or_else(|| Error::NotFound(format!("for claim {claim_id}")))?;
        if record.finished_unix_ms.is_some() {
            return Err(Error::ClaimClosed(claim_id));
        }
        let message = self
            .failed_message(record.failed_id)?
            .ok_or_else(|| Error::NotFound(record.failed_id.to_string()))?;
        Ok(Claim {
            id: record.id,
            failed_id: record.failed_id,
            act: record.act,
            nth: message.claims,
            message,
        })
    }

    /// Deletes failed messages with everything that belongs to them; those under a claim stay, and
    /// with a time those that changed at or after it. Gives how many were deleted.
    ///
    /// # Errors
    /// As the file's.
    pub fn purge(&self, ids: &[i64], unchanged_since_unix_ms: Option<i64>) -> Result<u64> {
        let changed_before = unchanged_since_unix_ms.unwrap_or(i64::MAX);
        self.write(|connection| {
            let mut purged = 0;
            for &id in ids {
                let row: Option<(i64, String)> = connection
                    .prepare_cached(
                        "DELETE FROM failed
                         WHERE id = ?1 AND state <> 'claimed' AND changed_unix_ms < ?2
                         RETURNING cause, state",
                    )?
                    .query_row((id, changed_before), |row| Ok((row.get(0)?, row.get(1)?)))
                    .optional()?;
                if let Some((cause, state)) = row {
                    causes::count_moved(connection, cause, state_of(&state)?, None)?;
                    purged += 1;
                }
            }
            Ok(purged)
        })
    }

    fn claim_records(&self, condition: &str, id: Option<i64>) -> Result<Vec<ClaimRecord>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT id, failed, act, who, at_unix_ms, finished_unix_ms, result
                 FROM claims WHERE {condition} ORDER BY id"
            ))?;
            let mut rows = statement.query([id])?;
            let mut records = Vec::new();
            while let Some(row) = rows.next()? {
                records.push(record(row)?);
            }
            Ok(records)
        })
    }
}

fn claim(connection: &Connection, id: i64, act: Act, who: &str, at_unix_ms: i64) -> Inside<Claim> {
    let message = load(connection, id)?.ok_or_else(|| Error::NotFound(id.to_string()))?;
    if message.state != act.from_state() {
        return Err(not_claimable(connection, &message)?);
    }
    if act.sends() && !message.record.replayable {
        return Err(Error::NotReplayable(id).into());
    }
    move_state(connection, id, message.state, FailedState::Claimed)?;
    connection
        .prepare_cached(
            "UPDATE failed SET claims = claims + 1, changed_unix_ms = ?2, changed_by = ?3
             WHERE id = ?1",
        )?
        .execute(params![id, at_unix_ms, who])?;
    let claim: i64 = connection
        .prepare_cached(
            "INSERT INTO claims (failed, act, who, from_state, at_unix_ms)
             VALUES (?1, ?2, ?3, ?4, ?5) RETURNING id",
        )?
        .query_row(
            params![id, act.name(), who, message.state.name(), at_unix_ms],
            |row| row.get(0),
        )?;
    Ok(Claim {
        id: claim,
        failed_id: id,
        act,
        nth: message.claims + 1,
        message,
    })
}

fn finish(
    connection: &Connection,
    claim: &Claim,
    done: &Done,
    split: Option<&[NewFailed]>,
    at_unix_ms: i64,
) -> Inside<()> {
    let (_, result) = open_claim(connection, claim.id)?;
    if let Some(result) = result {
        return if result == done.name() {
            Ok(())
        } else {
            Err(Error::ClaimClosed(claim.id).into())
        };
    }
    if let Done::Edited {
        body,
        headers,
        envelope,
        write_key,
    } = done
    {
        edit(connection, claim, body, headers, envelope, *write_key)?;
    }
    if let Some(split) = split {
        for dependent in split {
            park(connection, dependent)?;
        }
        connection
            .prepare_cached("DELETE FROM dependents WHERE failed = ?")?
            .execute([claim.failed_id])?;
        connection
            .prepare_cached("UPDATE failed SET dependents = 0 WHERE id = ?")?
            .execute([claim.failed_id])?;
    }
    move_state(
        connection,
        claim.failed_id,
        FailedState::Claimed,
        done.state(),
    )?;
    close_claim(connection, claim, done.name(), at_unix_ms)
}

fn record(row: &Row<'_>) -> Inside<ClaimRecord> {
    let act: String = row.get(2)?;
    Ok(ClaimRecord {
        id: row.get(0)?,
        failed_id: row.get(1)?,
        act: Act::ALL
            .into_iter()
            .find(|a| a.name() == act)
            .ok_or_else(|| bad("claim", &format!("`{act}` is no act")))?,
        who: row.get(3)?,
        at_unix_ms: row.get(4)?,
        finished_unix_ms: row.get(5)?,
        result: row.get(6)?,
    })
}

fn not_claimable(connection: &Connection, message: &FailedMessage) -> Inside<Fault> {
    let by: Option<String> = connection
        .query_row(
            "SELECT who FROM claims WHERE failed = ? ORDER BY id DESC LIMIT 1",
            [message.id],
            |row| row.get(0),
        )
        .optional()?;
    Ok(Error::NotClaimable {
        id: message.id,
        state: message.state.name().replace('_', " "),
        by,
    }
    .into())
}

/// The state a claim was won from, and how it ended.
fn open_claim(connection: &Connection, id: i64) -> Inside<(FailedState, Option<String>)> {
    let (from, result): (String, Option<String>) = connection
        .query_row(
            "SELECT from_state, result FROM claims WHERE id = ?",
            [id],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?
        .ok_or(Error::ClaimClosed(id))?;
    Ok((state_of(&from)?, result))
}

fn close_claim(
    connection: &Connection,
    claim: &Claim,
    result: &str,
    at_unix_ms: i64,
) -> Inside<()> {
    connection
        .prepare_cached("UPDATE claims SET finished_unix_ms = ?2, result = ?3 WHERE id = ?1")?
        .execute(params![claim.id, at_unix_ms, result])?;
    connection
        .prepare_cached("UPDATE failed SET changed_unix_ms = ?2 WHERE id = ?1")?
        .execute(params![claim.failed_id, at_unix_ms])?;
    Ok(())
}

/// Changes the state if it still is `from`, and the cause's count with it.
fn move_state(connection: &Connection, id: i64, from: FailedState, to: FailedState) -> Inside<()> {
    let cause: Option<i64> = connection
        .prepare_cached(
            "UPDATE failed SET state = ?3 WHERE id = ?1 AND state = ?2 RETURNING cause",
        )?
        .query_row(params![id, from.name(), to.name()], |row| row.get(0))
        .optional()?;
    let cause =
        cause.ok_or_else(|| bad("failed message", &format!("{id} is not {}", from.name())))?;
    causes::count_moved(connection, cause, from, Some(to))
}

fn edit(
    connection: &Connection,
    claim: &Claim,
    body: &[u8],
    headers: &[Header],
    envelope: &[u8],
    write_key: Option<[u8; 16]>,
) -> Inside<()> {
    let headers = serde_json::to_string(headers).map_err(|e| bad("header", &e))?;
    let key = write_key.unwrap_or(claim.message.record.write_key);
    connection.execute(
        "UPDATE failed SET body = ?2, envelope = ?3, write_key = ?4,
                record = json_set(record, '$.headers', json(?5))
         WHERE id = ?1",
        params![claim.failed_id, body, envelope, key.as_slice(), headers],
    )?;
    Ok(())
}
