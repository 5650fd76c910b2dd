//! Turning what authors return into what crosses.

use crate::{Failure, Outcome};
use consign_abi::{OutcomeRow, RVec, Reply, Span, Status, flags, json};
use serde::Serialize;

pub(super) fn failure(failure: &Failure) -> json::Failure {
    json::Failure {
        kind: failure.kind.code(),
        code: failure.code.clone(),
        message: failure.message.clone(),
    }
}

pub(super) fn failure_json(of: &Failure) -> RVec<u8> {
    serde_json::to_vec(&failure(of)).unwrap_or_default().into()
}

pub(super) fn failed(failure: &Failure) -> Reply {
    let mut reply = Reply::of(Status::Failed);
    reply.bytes = failure_json(failure);
    reply
}

pub(super) fn opened(handle: u64) -> Reply {
    let mut reply = Reply::of(Status::Ok);
    reply.handle = handle;
    reply
}

pub(super) fn done(result: Result<(), Failure>) -> Reply {
    match result {
        Ok(()) => Reply::of(Status::Ok),
        Err(failure) => failed(&failure),
    }
}

pub(super) fn json(value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(bytes) => {
            let mut reply = Reply::of(Status::Ok);
            reply.bytes = bytes.into();
            reply
        }
        Err(error) => failed(&Failure::other(("json", error.to_string()))),
    }
}

pub(super) fn outcomes(outcomes: &[Outcome]) -> Reply {
    let mut reply = Reply::of(Status::Ok);
    reply.outcomes.reserve(outcomes.len());
    for (index, outcome) in (0_u32..).zip(outcomes) {
        push(&mut reply, index, outcome);
    }
    reply
}

pub(super) fn push(reply: &mut Reply, index: u32, outcome: &Outcome) {
    let (code, message) = match outcome.detail() {
        Some(detail) => (
            Span::push(&mut reply.bytes, detail.code.as_bytes()),
            Span::push(&mut reply.bytes, detail.message.as_bytes()),
        ),
        None => (Span::ABSENT, Span::ABSENT),
    };
    let after_ms = outcome.after().map_or(0, |after| {
        u64::try_from(after.as_millis()).unwrap_or(u64::MAX)
    });
    reply.outcomes.push(OutcomeRow {
        index,
        applied: outcome.applied().code(),
        scope: outcome.scope().code(),
        advice: outcome.advice().code(),
        flags: if outcome.is_repeat() {
            flags::OUTCOME_REPEAT
        } else {
            0
        },
        after_ms,
        code,
        message,
        attributes: Span::EMPTY,
    });
}
