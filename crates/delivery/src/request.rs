//! Requests on their way: deadlines, cancelling, fencing, and answers that come late (rule 3).

use crate::connection::MAX_FENCED;
use crate::event::EventCode;
use crate::gate::Cause;
use crate::ids::{ClassId, ConnectionId, LaneId, RequestId};
use crate::lane::Phase;
use crate::machine::{Delivery, Timer};
use crate::outcome::{Applied, Detail, Outcome, Reaction};
use crate::output::{Dependents, Output, SettleResult};
use crate::planted::Bug;

/// Fenced requests remembered for a late answer: a few instances' worth.
const MAX_GHOSTS: usize = 4_096;

/// One live request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) lane: LaneId,
    pub(crate) connection: ConnectionId,
    pub(crate) class: ClassId,
    pub(crate) seqs: Vec<u64>,
    pub(crate) sent_mark: u64,
    pub(crate) sent_ms: u64,
    pub(crate) sent_unix_ms: u64,
    pub(crate) deadline_ms: u64,
    pub(crate) cancelling: bool,
    /// A person stopped it: its end says nothing about the destination.
    pub(crate) by_operator: bool,
}

/// A fenced request: its answer may still come.
#[derive(Debug)]
pub(crate) struct Ghost {
    lane: LaneId,
    seqs: Vec<u64>,
    sent_mark: u64,
    sent_ms: u64,
    /// How long its destination recognises a repeat.
    window_ms: Option<u64>,
}

impl Delivery {
    /// Takes a request that ended off the books.
    pub(crate) fn end_request(&mut self, id: RequestId) -> Option<Request> {
        let request = self.requests.remove(&id)?;
        self.timers
            .remove(&(request.deadline_ms, Timer::Deadline(id)));
        self.classes.give_back(request.class);
        if let Some(connection) = self.connections.get_mut(&request.connection) {
            connection.live.remove(&id);
        }
        self.mark = self.mark.saturating_add(1);
        Some(request)
    }

    pub(crate) fn deadline(&mut self, id: RequestId) {
        if self.requests.contains_key(&id) {
            self.cancel(id, false);
        }
        if self.has(Bug::ResendsBeforeCancel) {
            self.cancel_acknowledged(id, Applied::MAYBE);
        }
    }

    /// Stops a request; after `cancel_grace` without an end its connection is fenced.
    pub(crate) fn cancel(&mut self, id: RequestId, by_operator: bool) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        if request.cancelling {
            return;
        }
        request.cancelling = true;
        request.by_operator = by_operator;
        let grace_ms = self
            .connections
            .get(&request.connection)
            .map_or(0, |connection| connection.cfg.cancel_grace_ms);
        self.timers
            .insert((self.now_ms.saturating_add(grace_ms), Timer::Grace(id)));
        self.out.push_back(Output::Cancel { request: id });
    }

    /// A cancelled request did not end in time.
    pub(crate) fn grace_over(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let connection = request.connection;
        if self.draining {
            self.check_drained(true);
            return;
        }
        self.fence(connection);
    }

    /// Fences the connection's instance: nothing new goes to it, what is on its way is stopped.
    fn fence(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.rebuilding {
            return;
        }
        connection.rebuilding = true;
        connection.fenced = connection.fenced.saturating_add(1);
        let live: Vec<RequestId> = connection.live.iter().copied().collect();
        for request in live {
            if let Some(found) = self.requests.get_mut(&request)
                && !found.cancelling
            {
                found.cancelling = true;
                self.out.push_back(Output::Cancel { request });
            }
        }
        self.event(
            EventCode::ConnectionFenced,
            None,
            Some(id),
            None,
            Detail::new(
                "connection_fenced",
                "a cancelled request did not end within cancel_grace; the order of its writes may break",
            ),
        );
        self.out.push_back(Output::Rebuild { connection: id });
    }

    /// The new instance is there: what the old one still had on its way is maybe.
    pub(crate) fn rebuilt(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if !connection.rebuilding {
            return;
        }
        connection.rebuilding = false;
        let halted = connection.fenced >= MAX_FENCED;
        let live: Vec<RequestId> = connection.live.iter().copied().collect();
        let detail = Detail::new("fenced", "the request did not end and was fenced");
        if halted {
            connection.gate.halt(self.now_ms);
            self.sync_clocks(id);
            self.event(
                EventCode::ConnectionHalted,
                None,
                Some(id),
                None,
                Detail::new(
                    "connection_halted",
                    "three instances did not stop when told: halted until restart",
                ),
            );
        } else {
            self.close_connection(id, None, Cause::Fenced, detail.clone());
        }
        for request in live {
            let Some(found) = self.requests.get(&request) else {
                continue;
            };
            let (lane, seqs) = (found.lane, found.seqs.clone());
            let (sent_mark, sent_ms) = (found.sent_mark, found.sent_ms);
            let outcomes = vec![Outcome::unknown(detail.clone()); seqs.len()];
            self.answered(request, &outcomes);
            let mut window_ms = None;
            if let Some(lane) = self.lanes.get_mut(&lane) {
                for seq in &seqs {
                    if let Some(write) = lane.writes.get_mut(seq) {
                        write.ghost = Some(request);
                    }
                }
                window_ms = lane.window_ms();
            }
            self.ghosts.insert(
                request,
                Ghost {
                    lane,
                    seqs,
                    sent_mark,
                    sent_ms,
                    window_ms,
                },
            );
            if self.ghosts.len() > MAX_GHOSTS {
                self.ghosts.pop_first();
            }
        }
    }

    /// Nothing of a cancelled request runs any more.
    pub(crate) fn cancel_acknowledged(&mut self, id: RequestId, applied: Applied) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let answered_since = self
            .connections
            .get(&request.connection)
            .is_some_and(|connection| connection.answered_mark > request.sent_mark);
        let detail = if request.by_operator {
            Detail::new("cancelled", "its request was stopped")
        } else {
            Detail::new("timeout", "no answer within the timeout")
        };
        let outcome = match applied {
            Applied::YES => Outcome::delivered(),
            Applied::HANDED_OVER => Outcome::sent_unconfirmed(),
            Applied::NO if answered_since || request.by_operator => Outcome::retry(detail),
            Applied::NO => Outcome::down(detail),
            _ if request.by_operator => Outcome::failed_maybe(detail),
            _ => Outcome::unknown(detail),
        };
        let outcomes = vec![outcome; request.seqs.len()];
        self.answered(id, &outcomes);
    }

    /// An answer of a fenced request: it settles a write that was not sent again since.
    pub(crate) fn late_answer(&mut self, id: RequestId, outcomes: &[Outcome]) {
        let Some(ghost) = self.ghosts.remove(&id) else {
            return;
        };
        let mut delivered = false;
        for (seq, outcome) in ghost.seqs.iter().zip(outcomes) {
            let result = match outcome.reaction() {
                Reaction::Delivered if outcome.repeat => SettleResult::DeliveredAsRepeat,
                Reaction::Delivered => SettleResult::Delivered,
                Reaction::HandedOver => SettleResult::SentUnconfirmed,
                _ => continue,
            };
            let waits = self
                .lanes
                .get(&ghost.lane)
                .and_then(|lane| lane.writes.get(seq))
                .is_some_and(|write| {
                    write.ghost == Some(id) && !matches!(write.phase, Phase::InFlight(_))
                });
            let late = ghost
                .window_ms
                .is_some_and(|window_ms| self.now_ms.saturating_sub(ghost.sent_ms) >= window_ms);
            if waits && result != SettleResult::DeliveredAsRepeat {
                self.check_window(ghost.lane, *seq);
            } else if late && result != SettleResult::DeliveredAsRepeat {
                // Another copy of it was sent since, and may have been delivered.
                self.tell_late_repeat(ghost.lane, *seq);
            }
            if waits {
                let target = self.lanes.get(&ghost.lane).map(|lane| lane.target);
                self.lane_event(
                    EventCode::LateAnswer,
                    ghost.lane,
                    *seq,
                    "the answer of a fenced request came before the resend",
                );
                self.settle(ghost.lane, *seq, result, Dependents::Release);
                match (target, result) {
                    (Some(target), SettleResult::SentUnconfirmed) => {
                        self.taken(target, ghost.sent_mark);
                    }
                    (Some(target), _) if !delivered => {
                        delivered = true;
                        self.evidence(target, ghost.sent_mark);
                    }
                    _ => {}
                }
            }
        }
    }

    /// The drain's deadline: stop what is still on its way.
    pub(crate) fn drain_deadline(&mut self) {
        let live: Vec<RequestId> = self.requests.keys().copied().collect();
        live.into_iter().for_each(|id| self.cancel(id, false));
        if self.requests.is_empty() {
            self.check_drained(true);
        }
    }

    /// Whether the drain is over: nothing is on its way and everything is durable, or nothing
    /// more can be waited for.
    pub(crate) fn check_drained(&mut self, overdue: bool) {
        if !self.draining || self.drained {
            return;
        }
        let waits = self.requests.values().any(|request| !request.cancelling);
        let clean = self.requests.is_empty() && self.tickets.is_empty();
        if clean || (overdue && !waits) {
            self.drained = true;
            let unfinished = u32::try_from(self.requests.len()).unwrap_or(u32::MAX);
            self.out.push_back(Output::Drained { unfinished });
        }
    }
}
