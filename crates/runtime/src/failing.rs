//! Acceptance that fails: what an error handler's decision about a message, or about one of its direct
//! writes, comes to.

use crate::acceptance::{Acceptor, Lane};
use crate::clock;
use crate::counters::MessageOutcome;
use crate::engine::{Body, DirectAnswer};
use crate::handlers::{Decided, Handler, Report, failed_event};
use crate::park::{ParkedMessage, ParkedWrite};
use crate::staging::Staged;
use crate::work::{Evaluated, MessageFailure, Trouble, Work, Write};
use consign_delivery::{DirectResult, ParkReason};
use consign_ledger::{Code, Event};
use consign_pipeline::{BodyDigest, KeyParts, WriteKey, key};
use std::sync::Arc;

/// How long a message that its handler keeps waits before it goes through its route again.
const BLOCKED_MS: u64 = 30_000;
/// The shortest wait before it does so because its handler says "try again": one that says "at once" must
/// not keep a processor busy with nothing else.
const RETRY_AT_LEAST_MS: u64 = 50;

impl Acceptor {
    /// Who decides about messages of this route.
    pub fn handler(&self, route: usize) -> Option<&Handler> {
        self.routes.get(route)?.handler.as_ref()
    }

    /// Asks the route's handler about a message that has no writes, and does what it says as far as that is
    /// possible before acceptance.
    pub fn decide(
        self: &Arc<Self>,
        mut work: Work,
        failure: MessageFailure,
        offset_tracked: bool,
    ) -> impl Future<Output = Staged> + Send + use<> {
        let acceptor = Arc::clone(self);
        async move {
            let Some(handler) = acceptor.handler(failure.route) else {
                return Staged::Ready(vec![work]);
            };
            // Without a name the message is another one when it is handed over again.
            if offset_tracked && work.key_identity.is_some() {
                let id = work.message.id.0;
                work.attempts = acceptor.attempts.failed(&acceptor.adapter, id).await;
            }
            let key = acceptor.message_key(&work, failure.route);
            let report = acceptor.report(handler, &work, &failure, offset_tracked, key);
            let decided = handler.decide(report, &work.message, key).await;
            let decided = decided.checked(&acceptor.buffer);
            acceptor
                .decided(work, &failure, handler, decided, key)
                .await
        }
    }

    async fn decided(
        &self,
        mut work: Work,
        failure: &MessageFailure,
        handler: &Handler,
        decided: Decided,
        key: WriteKey,
    ) -> Staged {
        let offset_tracked = handler.report().offset_tracked;
        let says = |code, what: &str| {
            self.message_event(code, &work, failure.route)
                .message(format!(
                    "adapter {}: message {}: error handler {} {what}: {}",
                    self.adapter,
                    work.message.id,
                    handler.name(),
                    failure.message
                ))
        };
        match decided {
            Decided::Retry(after_ms) => return again(work, after_ms),
            Decided::Block if offset_tracked => {
                if work.failures == 1 {
                    self.events.emit(says(Code::HandlerBlocked, "keeps it"));
                }
                return again(work, BLOCKED_MS);
            }
            // A client cannot be kept waiting for a person.
            Decided::Block => return Staged::Drop(Box::new(work)),
            Decided::Failed(why) => {
                let event = failed_event(None, handler.name(), &why)
                    .adapter(self.adapter.clone())
                    .field("message_id", work.message.id.to_string());
                self.events.emit(event);
                if offset_tracked {
                    return again(work, BLOCKED_MS);
                }
                return Staged::Drop(Box::new(work));
            }
            Decided::Skip => self.events.emit(says(Code::WriteSkipped, "skips it")),
            Decided::Park(reason) => {
                let parked = ParkedMessage {
                    report: self.report(handler, &work, failure, offset_tracked, key),
                    message: &work.message,
                    key,
                    reason,
                };
                if let Err(why) = self.parker.park_message(parked).await {
                    tracing::error!(%why, "a message could not be parked");
                    return again(work, BLOCKED_MS);
                }
            }
            Decided::Divert(diversion) => {
                let event = says(Code::WriteDiverted, "diverts it");
                self.events
                    .emit(event.field("target", diversion.target.clone()));
                work.diverted.push(diversion);
            }
        }
        work.handled = true;
        work.evaluated = Some(Evaluated::Ends(MessageOutcome::Handled));
        Staged::Ready(vec![work])
    }

    fn report(
        &self,
        handler: &Handler,
        work: &Work,
        failure: &MessageFailure,
        offset_tracked: bool,
        key: WriteKey,
    ) -> Report {
        let class = if failure.passes {
            "processor_failed"
        } else {
            "template_failed"
        };
        Report {
            write_key: key.to_string(),
            message_id: work.message.id.to_string(),
            class: class.to_owned(),
            code: failure.code.clone(),
            message: self.events.redactor().text(&failure.message).into_owned(),
            // The ledger's count is the greater one, unless it could not be written down for a while.
            attempts: (work.attempts).map_or(work.failures, |of| of.attempts.max(work.failures)),
            first_attempt_unix_ms: work.attempts.map_or(0, |of| of.first_unix_ms),
            last_attempt_unix_ms: work.attempts.map_or(0, |of| of.last_unix_ms),
            accepted_unix_ms: work.message.time_unix_ms,
            offset_tracked,
            position: work.place.clone(),
            ..handler.report()
        }
    }

    /// What names a message that has no writes: the same each time it is handed over, where the source can
    /// tell.
    fn message_key(&self, work: &Work, route: usize) -> WriteKey {
        let route = self
            .routes
            .get(route)
            .map_or("", |route| route.name.as_str());
        match &work.key_identity {
            Some(identity) => key::derive(&KeyParts {
                adapter: &self.adapter,
                route,
                send: "",
                epoch: self.epoch,
                identity,
                body: &BodyDigest::of(&work.message.body),
            }),
            None => key::random(&mut |bytes| rand::fill(bytes)),
        }
    }

    fn message_event(&self, code: Code, work: &Work, route: usize) -> Event {
        let route = self
            .routes
            .get(route)
            .map_or("", |route| route.name.as_str());
        Event::new(code, clock::wall_unix_ms_i64())
            .adapter(self.adapter.clone())
            .route(route.to_owned())
            .field("message_id", work.message.id.to_string())
    }

    /// What the answer to a direct write means for its message.
    pub async fn direct_answered(
        &self,
        work: &mut Work,
        index: usize,
        write: &Write,
        answer: Option<DirectAnswer>,
    ) -> Result<(), Trouble> {
        let Some((route, send)) = self.target(work, index) else {
            return Err(Trouble::Failed("the route has no such send".to_owned()));
        };
        let Some(DirectAnswer { result, diversion }) = answer else {
            return Err(Trouble::Failed(format!(
                "send {}: the host stopped before it was answered",
                send.id
            )));
        };
        match result {
            DirectResult::Delivered { .. } | DirectResult::HandedOver => {}
            DirectResult::Skipped => {
                work.handled = true;
                if !send.releases_when_skipped {
                    let dropped = self.exclude_dependents(work, index);
                    if dropped > 0 {
                        let event = self
                            .message_event(Code::DependentDropped, work, route)
                            .message(format!(
                                "send {} was skipped for message {}, and with it {} that wait for it",
                                send.id,
                                work.message.id,
                                dropped
                            ));
                        self.events.emit(event);
                    }
                }
            }
            DirectResult::Parked { reason, failure } => {
                let dependents = self.dependents(work, index);
                let parked = self.parked_write(send, write, reason, failure, false);
                self.parker
                    .park_direct(parked, dependents)
                    .await
                    .map_err(Trouble::Failed)?;
                work.handled = true;
                self.exclude_dependents(work, index);
            }
            DirectResult::Diverted { target, failure } => {
                let Some(diversion) = diversion else {
                    return Err(Trouble::Failed(format!(
                        "send {}: its diversion to {target} is lost",
                        send.id
                    )));
                };
                // Whoever diverts a write decides nothing about those that wait for it: a person does.
                let dependents = self.dependents(work, index);
                if !dependents.is_empty() {
                    let parked =
                        self.parked_write(send, write, ParkReason::Operator, failure, true);
                    self.parker
                        .park_direct(parked, dependents)
                        .await
                        .map_err(Trouble::Failed)?;
                }
                self.exclude_dependents(work, index);
                work.handled = true;
                work.diverted.push(diversion);
            }
            DirectResult::Failed { failure } => {
                let detail = &failure.detail;
                return Err(Trouble::Failed(format!(
                    "send {}: {} ({})",
                    send.id, detail.message, detail.code
                )));
            }
            DirectResult::GaveUp { .. } | DirectResult::Withdrawn { .. } => {
                return Err(Trouble::Failed(format!(
                    "send {}: the host stopped before it was answered",
                    send.id
                )));
            }
        }
        work.direct_done.insert(send.path.clone());
        Ok(())
    }

    fn parked_write(
        &self,
        send: &crate::acceptance::SendTarget,
        write: &Write,
        reason: ParkReason,
        failure: consign_delivery::Failure,
        dependents_only: bool,
    ) -> ParkedWrite {
        ParkedWrite {
            lane: send.lane.number(),
            body: Body {
                key: write.key,
                stored: write.stored.clone(),
                created_unix_ms: clock::wall_unix_ms(),
                order: write.order,
                has_dependents: false,
            },
            reason,
            failure,
            dependents_only,
        }
    }

    /// The writes that wait for send `parent` of this message, those of dependents among them.
    fn dependents(&self, work: &Work, parent: usize) -> Vec<(consign_delivery::LaneId, Write)> {
        let waiting = self.waiting_for(work, parent);
        self.targets(work)
            .filter(|(_, write)| waiting.contains(&write.send))
            .map(|(send, write)| (send.lane.number(), write.clone()))
            .collect()
    }

    /// Leaves them out; how many there are.
    fn exclude_dependents(&self, work: &mut Work, parent: usize) -> usize {
        let waiting = self.waiting_for(work, parent);
        let paths: Vec<String> = self
            .targets(work)
            .filter(|(_, write)| waiting.contains(&write.send))
            .map(|(send, _)| send.path.clone())
            .collect();
        let count = paths.len();
        work.excluded.extend(paths);
        count
    }

    fn waiting_for(&self, work: &Work, parent: usize) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        let mut parents = vec![parent];
        while let Some(parent) = parents.pop() {
            let path = self.target(work, parent).map(|(_, send)| &send.path);
            for (send, write) in self.targets(work) {
                let waits = send.held_by == Some(parent)
                    || (path.is_some() && send.after_direct.as_ref() == path);
                if waits && !found.contains(&write.send) {
                    found.push(write.send);
                    parents.push(write.send);
                }
            }
        }
        found
    }
}

impl Lane {
    /// Its number in delivery.
    pub fn number(&self) -> consign_delivery::LaneId {
        match self {
            Self::Buffered(lane) => consign_delivery::LaneId(lane.0),
            Self::Direct { lane, .. } => *lane,
        }
    }
}

/// The message goes through its route again, later.
fn again(mut work: Work, after_ms: u64) -> Staged {
    work.evaluated = None;
    let after_ms = after_ms.max(RETRY_AT_LEAST_MS);
    work.not_before_ms = clock::monotonic_ms().saturating_add(after_ms);
    Staged::Ready(vec![work])
}
