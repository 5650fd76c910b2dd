//! What became of a submitted batch.

use crate::registry::{Completion, REGISTRY};
use crate::text::said;
use consign_abi::{Advice, Applied, OutcomeRow, Reply, Scope, Span, Status, flags};

/// What became of one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it took effect.
    pub applied: Applied,
    /// What a failure says something about.
    pub scope: Scope,
    /// When another attempt makes sense.
    pub advice: Advice,
    /// The destination recognised the key.
    pub repeat: bool,
    /// With [`Advice::After`]: milliseconds.
    pub after_ms: u64,
    /// Stable code of the failure; empty when delivered.
    pub code: String,
    /// A sentence for people; may be empty.
    pub message: String,
}

impl Outcome {
    fn made_here(applied: Applied, scope: Scope, code: &str, message: &str) -> Self {
        Self {
            applied,
            scope,
            advice: Advice::Now,
            repeat: false,
            after_ms: 0,
            code: code.to_owned(),
            message: message.to_owned(),
        }
    }

    fn read(row: &OutcomeRow, arena: &[u8]) -> Self {
        let known = Applied::is_known(row.applied)
            && Scope::is_known(row.scope)
            && Advice::is_known(row.advice);
        let text = |span: Span| span.of(arena).map(said).unwrap_or_default();
        // A row with any code from the future is read as a whole as the cautious one: a known
        // "yes" beside an unknown advice may not mean what it meant.
        let (applied, scope, advice) = if known {
            (
                Applied::from_code(row.applied),
                Scope::from_code(row.scope),
                Advice::from_code(row.advice),
            )
        } else {
            (Applied::Maybe, Scope::Write, Advice::Now)
        };
        Self {
            applied,
            scope,
            advice,
            repeat: known && row.flags & flags::OUTCOME_REPEAT != 0,
            after_ms: row.after_ms,
            code: text(row.code),
            message: text(row.message),
        }
    }
}

/// How a submitted batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerEnd {
    /// The sink answered.
    Answered,
    /// Cancel or deadline, acknowledged: nothing of it runs any more. Outcomes are unknown.
    Aborted,
    /// The plugin panicked: rebuild the connection. Outcomes are unknown.
    Panicked,
    /// The sink or its connection was closed or fenced before the batch was handed over: it was
    /// never sent.
    Failed,
    /// The connection was fenced; no abort was acknowledged. Outcomes are unknown.
    Fenced,
}

/// The answer to one submitted batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// How it ended.
    pub end: AnswerEnd,
    /// Exactly one per write, in order.
    pub outcomes: Vec<Outcome>,
}

impl Answer {
    fn all(end: AnswerEnd, writes: usize, outcome: Outcome) -> Self {
        Self {
            end,
            outcomes: vec![outcome; writes],
        }
    }

    fn unknown(end: AnswerEnd, writes: usize, code: &str, message: &str) -> Self {
        let outcome = Outcome::made_here(Applied::Maybe, Scope::Connection, code, message);
        Self::all(end, writes, outcome)
    }

    /// The batch was never handed over.
    pub(crate) fn not_sent(writes: usize) -> Self {
        let message = "the sink was closed before the batch was handed over";
        let outcome = Outcome::made_here(Applied::No, Scope::Connection, "sink_closed", message);
        Self::all(AnswerEnd::Failed, writes, outcome)
    }

    pub(crate) fn read(completion: Completion, writes: usize) -> Self {
        match completion {
            Completion::Fenced => Self::unknown(
                AnswerEnd::Fenced,
                writes,
                "fenced",
                "the connection was fenced before the plugin answered",
            ),
            Completion::Reply(reply) => Self::of_reply(&reply, writes),
        }
    }

    fn of_reply(reply: &Reply, writes: usize) -> Self {
        match Status::from_code(reply.status) {
            Status::Ok => Self {
                end: AnswerEnd::Answered,
                outcomes: place(reply, writes),
            },
            Status::Aborted => Self::unknown(
                AnswerEnd::Aborted,
                writes,
                "aborted",
                "the request was dropped at its deadline or because the host cancelled it",
            ),
            Status::Panicked => {
                let text = said(&reply.bytes);
                Self::unknown(AnswerEnd::Panicked, writes, "plugin_panicked", &text)
            }
            Status::NoSuchHandle => Self::not_sent(writes),
            _ => {
                REGISTRY.count_garbage();
                let message =
                    "the plugin failed the batch as a whole instead of answering for each write";
                Self::unknown(AnswerEnd::Answered, writes, "sdk_bad_reply", message)
            }
        }
    }
}

/// Puts the rows at their places. The first row for a write counts; a write without one is
/// unknown; rows for writes that are not there are dropped. Each of these counts as garbage.
fn place(reply: &Reply, writes: usize) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = Vec::new();
    outcomes.resize_with(writes, || None);
    let mut faults = reply.outcomes.len() != writes;
    for row in &reply.outcomes {
        let place = usize::try_from(row.index)
            .ok()
            .and_then(|index| outcomes.get_mut(index));
        match place {
            Some(place @ None) => *place = Some(Outcome::read(row, &reply.bytes)),
            _ => faults = true,
        }
    }
    if faults {
        REGISTRY.count_garbage();
    }
    let missing = || {
        Outcome::made_here(
            Applied::Maybe,
            Scope::Write,
            "sdk_outcome_count",
            "the plugin gave no outcome for this write",
        )
    };
    outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap_or_else(missing))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(index: u32, applied: u32, scope: u32, advice: u32) -> OutcomeRow {
        OutcomeRow {
            index,
            applied,
            scope,
            advice,
            flags: flags::OUTCOME_REPEAT,
            after_ms: 0,
            code: Span { start: 9, len: 9 },
            message: Span::ABSENT,
            attributes: Span::EMPTY,
        }
    }

    fn answer(rows: &[OutcomeRow], writes: usize) -> Vec<(Applied, String)> {
        let mut reply = Reply::of(Status::Ok);
        reply.outcomes = rows.to_vec().into();
        Answer::read(Completion::Reply(reply), writes)
            .outcomes
            .into_iter()
            .map(|o| (o.applied, o.code))
            .collect()
    }

    #[test]
    fn missing_surplus_and_double_outcomes_leave_one_per_write() {
        let outcomes = answer(
            &[
                row(1, 1, 1, 1),
                row(1, 3, 1, 1),
                row(7, 1, 1, 1),
                row(u32::MAX, 1, 1, 1),
            ],
            3,
        );
        assert_eq!(
            outcomes,
            [
                (Applied::Maybe, "sdk_outcome_count".to_owned()),
                (Applied::Yes, String::new()),
                (Applied::Maybe, "sdk_outcome_count".to_owned()),
            ]
        );
    }

    #[test]
    fn one_unknown_code_makes_the_row_cautious() {
        for garbage in [(99, 1, 1), (1, 99, 1), (1, 1, 99), (0, 0, 0)] {
            let mut reply = Reply::of(Status::Ok);
            reply.outcomes = vec![row(0, garbage.0, garbage.1, garbage.2)].into();
            let answer = Answer::read(Completion::Reply(reply), 1);
            let outcome = &answer.outcomes[0];
            assert_eq!(
                (
                    outcome.applied,
                    outcome.scope,
                    outcome.advice,
                    outcome.repeat
                ),
                (Applied::Maybe, Scope::Write, Advice::Now, false)
            );
        }
    }
}
