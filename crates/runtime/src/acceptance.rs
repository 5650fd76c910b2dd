//! Acceptance: from evaluated messages to one durable record.
//!
//! Room for every buffered write is reserved first, all or none. Then direct sends run; then the
//! record is committed: all writes with their dependents, the position the host keeps, and what
//! names the message. Only after that may the source be told.

use crate::attempts::Attempts;
use crate::clock;
use crate::counters::MessageOutcome;
use crate::engine::{Body, Engine};
use crate::events::Events;
use crate::handlers::{Diversion, RouteHandler};
use crate::park::Parker;
use crate::recent::SeenWrite;
use crate::steps::{Stepped, Steps};
use crate::work::{Evaluated, MessageFailure, Notes, Trouble, Work, Write};
use bytes::Bytes;
use consign_buffer::{
    Acceptance, Buffer, BufferError, Full, LaneId, NewWrite, Origin, Reservation,
};
use consign_delivery::DirectWrite;
use consign_pipeline::{
    BodyDigest, KeyParts, Message, Outcome, Program, StoredWrite, Verdict, key,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a send's writes go.
#[derive(Debug)]
pub enum Lane {
    /// Into the buffer.
    Buffered(LaneId),
    /// Straight to the destination; writes are numbered from 1.
    Direct {
        /// The volatile lane.
        lane: consign_delivery::LaneId,
        /// The last number given; a reload that keeps the lane goes on counting.
        last: Arc<AtomicU64>,
    },
}

/// One send, as acceptance needs it.
#[derive(Debug)]
pub struct SendTarget {
    /// Its id, unique in the route.
    pub id: String,
    /// `route/send`, unique in the adapter.
    pub path: String,
    /// Its lane.
    pub lane: Lane,
    /// The send it waits for, by index in the route; only when that one is buffered.
    pub held_by: Option<usize>,
    /// The direct send that must accept before it, as `route/send`.
    pub after_direct: Option<String>,
    /// How long a write is worth sending, in milliseconds.
    pub expires_after_ms: Option<u64>,
    /// Whether those that wait for it go on when it is skipped.
    pub releases_when_skipped: bool,
}

/// One route's sends.
pub struct RouteTarget {
    /// Its name.
    pub name: String,
    /// Its sends, in the order of the configuration.
    pub sends: Vec<SendTarget>,
    /// Whether the original message is kept with a write that a transform changed.
    pub keep_original: bool,
    /// Decides about messages that a processor failed on or that cannot be rendered.
    pub handler: Option<RouteHandler>,
    /// Messages, by what became of them here.
    pub counts: Arc<RouteCounts>,
}

/// One route's messages since the process started.
#[derive(Debug, Default)]
pub struct RouteCounts {
    /// It claimed them.
    pub claimed: AtomicU64,
    /// Claimed, and a transform failed.
    pub transform_failed: AtomicU64,
    /// Claimed, and there is no send.
    pub no_send: AtomicU64,
    /// Not claimed because the condition failed.
    pub condition_errors: AtomicU64,
}

/// What accepts the messages of one adapter.
pub struct Acceptor {
    /// The adapter's name; scope of keys.
    pub adapter: String,
    /// Its compiled routes.
    pub program: Arc<Program>,
    /// Where their sends go; same order.
    pub routes: Vec<RouteTarget>,
    /// Steps that plugins carry out, where there are any.
    pub steps: Option<Steps>,
    /// The buffer.
    pub buffer: Buffer,
    /// The driver.
    pub engine: Engine,
    /// Part of derived keys; raised by a deliberate rewind.
    pub epoch: u64,
    /// Name of the position the host keeps for this source.
    pub position_name: String,
    /// Failed messages.
    pub parker: Arc<Parker>,
    /// How often messages without writes failed.
    pub attempts: Arc<Attempts>,
    /// Where it reports.
    pub events: Events,
    /// What is counted about the adapter, over all reloads.
    pub counters: Arc<Counters>,
    /// Tells what was evaluated under other routes: it is evaluated again.
    pub generation: u64,
}

/// Counters of an adapter's acceptance.
#[derive(Debug, Default)]
pub struct Counters {
    /// Conditions and identity expressions that failed.
    pub condition_errors: AtomicU64,
    /// Writes left out because `when_full: drop` found no room.
    pub dropped_writes: AtomicU64,
}

/// Several messages of one group, or a single one, that are committed together.
#[derive(Debug)]
pub struct Run {
    /// In order.
    pub works: Vec<Work>,
    /// Room for their buffered writes.
    reservation: Option<Reservation>,
}

/// What became of a run.
#[derive(Debug)]
pub struct Finished {
    /// Its messages, still without an outcome.
    pub works: Vec<Work>,
    /// Committed, or why not.
    pub result: Result<(), Trouble>,
}

impl Acceptor {
    /// Whether plugins have a part in what the routes make of this message: see [`Acceptor::step`].
    pub fn needs_steps(&self, work: &Work) -> bool {
        self.steps.is_some() && !self.is_current(work)
    }

    /// Whether what the routes made of a message still holds. What a handler decided about a message without
    /// writes does, whatever the routes are now.
    fn is_current(&self, work: &Work) -> bool {
        match &work.evaluated {
            None => false,
            Some(Evaluated::Ends(MessageOutcome::Handled)) => true,
            Some(_) => work.generation == self.generation,
        }
    }

    /// Runs the routes and renders the writes, once per message, where no plugin has a part in it.
    pub fn evaluate(&self, work: &mut Work) {
        if !self.is_current(work) {
            let verdict = self.program.evaluate(&work.message);
            self.take_verdict(work, verdict);
            work.generation = self.generation;
        }
    }

    fn take_verdict(&self, work: &mut Work, verdict: Verdict) {
        let (evaluated, notes) = self.evaluated(&work.message, work.key_identity.as_ref(), verdict);
        self.count(&evaluated, &notes);
        work.evaluated = Some(evaluated);
        work.notes = notes;
    }

    /// The same with the steps of plugins, over several messages at once.
    pub async fn step(&self, mut works: Vec<Work>) -> Vec<Work> {
        let Some(steps) = &self.steps else {
            return works;
        };
        let messages: Vec<&Message> = works.iter().map(|work| &work.message).collect();
        let stepped = steps.run(&self.program, &messages).await;
        for (work, stepped) in works.iter_mut().zip(stepped) {
            work.generation = self.generation;
            match stepped {
                Stepped::Verdict(verdict) => self.take_verdict(work, verdict),
                Stepped::Failed {
                    route,
                    reason,
                    code,
                } => {
                    work.notes.route = Some(route);
                    work.evaluated = Some(Evaluated::Failed(MessageFailure {
                        route,
                        code,
                        message: reason,
                        passes: true,
                    }));
                }
            }
        }
        works
    }

    /// Counts what ended in a route, by route and reason.
    fn count(&self, evaluated: &Evaluated, notes: &Notes) {
        let errors = u64::try_from(notes.condition_errors.len()).unwrap_or(u64::MAX);
        self.counters
            .condition_errors
            .fetch_add(errors, Ordering::Relaxed);
        for (route, _) in &notes.condition_errors {
            if let Some(route) = self.routes.get(*route) {
                route
                    .counts
                    .condition_errors
                    .fetch_add(1, Ordering::Relaxed);
            }
        }
        let Some(counts) = notes
            .route
            .and_then(|route| self.routes.get(route))
            .map(|route| &route.counts)
        else {
            return;
        };
        counts.claimed.fetch_add(1, Ordering::Relaxed);
        match evaluated {
            Evaluated::Ends(MessageOutcome::TransformFailed) => {
                counts.transform_failed.fetch_add(1, Ordering::Relaxed);
            }
            Evaluated::Ends(MessageOutcome::NoSend) => {
                counts.no_send.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// What a verdict makes of a message; without an identity its writes get random keys.
    fn evaluated(
        &self,
        message: &Message,
        identity: Option<&Bytes>,
        verdict: Verdict,
    ) -> (Evaluated, Notes) {
        let mut notes = Notes {
            condition_errors: verdict
                .condition_errors
                .into_iter()
                .map(|error| (error.route, error.message))
                .collect(),
            ..Notes::default()
        };
        let evaluated = self.rendered(message, identity, verdict.outcome, &mut notes);
        (evaluated, notes)
    }

    fn rendered(
        &self,
        message: &Message,
        identity: Option<&Bytes>,
        outcome: Outcome,
        notes: &mut Notes,
    ) -> Evaluated {
        let failed = |route: usize, code: &str, message: String, passes: bool| {
            Evaluated::Failed(MessageFailure {
                route,
                code: code.to_owned(),
                message,
                passes,
            })
        };
        let matched = match outcome {
            Outcome::NoRoute => return Evaluated::Ends(MessageOutcome::NoRoute),
            Outcome::TransformFailed {
                route,
                message,
                place,
                ..
            } => {
                notes.route = Some(route);
                notes.why = Some(format!("{place}: {message}"));
                return Evaluated::Ends(MessageOutcome::TransformFailed);
            }
            Outcome::ProcessorFailed { route, message, .. } => {
                notes.route = Some(route);
                return failed(route, "processor_failed", message, true);
            }
            Outcome::Matched(matched) => matched,
        };
        notes.route = Some(matched.route);
        let Some(route) = self.routes.get(matched.route) else {
            let message = "the route has no targets".to_owned();
            return failed(matched.route, "no_targets", message, false);
        };
        if route.sends.is_empty() {
            return Evaluated::Ends(MessageOutcome::NoSend);
        }
        let digest = identity.map(|_| BodyDigest::of(&message.body));
        let mut writes = Vec::with_capacity(route.sends.len());
        for (index, (send, verdict)) in route.sends.iter().zip(&matched.sends).enumerate() {
            let rendered = match verdict {
                Ok(rendered) => rendered,
                Err(error) => {
                    let message = format!("send {}: {}", send.id, error.message);
                    return failed(matched.route, "template_failed", message, false);
                }
            };
            let key = match (identity, &digest) {
                (Some(identity), Some(body)) => key::derive(&KeyParts {
                    adapter: &self.adapter,
                    route: &route.name,
                    send: &send.id,
                    epoch: self.epoch,
                    identity,
                    body,
                }),
                _ => key::random(&mut |bytes| rand::fill(bytes)),
            };
            let order = rendered.order.stored_hash();
            let stored = StoredWrite::of(message, &matched, rendered, route.keep_original).encode();
            writes.push(Write {
                send: index,
                key: key.0,
                order,
                stored,
            });
        }
        Evaluated::Writes {
            route: matched.route,
            writes,
        }
    }

    /// Reserves room for `works`, as many of them from the front as fit; the rest comes back. Works
    /// with direct sends are committed alone.
    pub fn reserve(&self, mut works: Vec<Work>) -> Result<(Run, Vec<Work>), (Trouble, Vec<Work>)> {
        if let Some((index, trouble)) =
            works
                .iter()
                .enumerate()
                .find_map(|(i, work)| match &work.evaluated {
                    Some(Evaluated::Failed(failure)) if failure.passes => {
                        Some((i, Trouble::Failed(failure.message.clone())))
                    }
                    Some(Evaluated::Failed(failure)) => {
                        Some((i, Trouble::Unrenderable(failure.message.clone())))
                    }
                    _ => None,
                })
        {
            if index == 0 {
                return Err((trouble, works));
            }
            let rest = works.split_off(index);
            return self.reserve_from(works, rest);
        }
        self.reserve_from(works, Vec::new())
    }

    fn reserve_from(
        &self,
        mut works: Vec<Work>,
        mut rest: Vec<Work>,
    ) -> Result<(Run, Vec<Work>), (Trouble, Vec<Work>)> {
        loop {
            let wanted: Vec<(LaneId, u64)> =
                works.iter().flat_map(|work| self.wanted(work)).collect();
            if wanted.is_empty() {
                return Ok((
                    Run {
                        works,
                        reservation: None,
                    },
                    rest,
                ));
            }
            match self.buffer.reserve(&wanted) {
                Ok(reservation) => {
                    return Ok((
                        Run {
                            works,
                            reservation: Some(reservation),
                        },
                        rest,
                    ));
                }
                Err(_) if works.len() > 1 => {
                    let mut tail = works.split_off(works.len() / 2);
                    tail.append(&mut rest);
                    rest = tail;
                }
                Err(full) => {
                    works.append(&mut rest);
                    return Err((trouble_of_full(full), works));
                }
            }
        }
    }

    fn wanted<'a>(&'a self, work: &'a Work) -> impl Iterator<Item = (LaneId, u64)> + 'a {
        self.targets(work)
            .filter_map(|(send, write)| match send.lane {
                Lane::Buffered(lane) => {
                    Some((lane, u64::try_from(write.stored.len()).unwrap_or(u64::MAX)))
                }
                Lane::Direct { .. } => None,
            })
            .chain(work.diverted.iter().map(Diversion::wanted))
    }

    /// The route of a message, and a send of it, by index.
    pub fn target(&self, work: &Work, send: usize) -> Option<(usize, &SendTarget)> {
        match &work.evaluated {
            Some(Evaluated::Writes { route, .. }) => {
                Some((*route, self.routes.get(*route)?.sends.get(send)?))
            }
            _ => None,
        }
    }

    /// The writes of a message that are still to be made.
    pub fn targets<'a>(
        &'a self,
        work: &'a Work,
    ) -> impl Iterator<Item = (&'a SendTarget, &'a Write)> + 'a {
        self.targets_of(work.evaluated.as_ref())
            .filter(|(send, _)| !work.excluded.contains(&send.path))
    }

    /// All writes that the routes made of a message.
    fn targets_of<'a>(
        &'a self,
        evaluated: Option<&'a Evaluated>,
    ) -> impl Iterator<Item = (&'a SendTarget, &'a Write)> + 'a {
        let (route, writes) = match evaluated {
            Some(Evaluated::Writes { route, writes }) => {
                (self.routes.get(*route), writes.as_slice())
            }
            _ => (None, [].as_slice()),
        };
        writes
            .iter()
            .filter_map(move |write| Some((route?.sends.get(write.send)?, write)))
    }

    /// A message's writes, for `consign trace`; a direct one has been answered by now.
    pub fn seen_writes(&self, work: &Work) -> Vec<SeenWrite> {
        self.targets(work)
            .map(|(send, write)| match send.lane {
                Lane::Buffered(_) => SeenWrite::new(&send.id, write.key),
                Lane::Direct { .. } => SeenWrite {
                    ended: Some("delivered"),
                    ended_unix_ms: Some(clock::wall_unix_ms_i64()),
                    ..SeenWrite::new(&send.id, write.key)
                },
            })
            .collect()
    }

    /// Whether a message has direct sends that did not accept yet.
    pub fn has_direct(&self, work: &Work) -> bool {
        self.targets(work).any(|(send, _)| {
            matches!(send.lane, Lane::Direct { .. }) && !work.direct_done.contains(&send.path)
        })
    }

    /// Queues the run's record now, where no direct send has to go first, so that runs are durable in the
    /// order of these calls; the future ends when it is.
    pub fn commit(self: &Arc<Self>, mut run: Run) -> impl Future<Output = Finished> + Send + use<> {
        let acceptor = Arc::clone(self);
        let queued =
            (!run.works.iter().any(|work| self.has_direct(work))).then(|| self.queue(&mut run));
        async move {
            let queued = match queued {
                Some(queued) => queued,
                None => {
                    for work in &mut run.works {
                        if let Err(trouble) = acceptor.send_direct(work).await {
                            return Finished {
                                works: run.works,
                                result: Err(trouble),
                            };
                        }
                    }
                    match acceptor.reserve_again(&mut run) {
                        Ok(()) => acceptor.queue(&mut run),
                        Err(trouble) => Err(trouble),
                    }
                }
            };
            let result = match queued {
                Ok(None) => Ok(()),
                Ok(Some(accepting)) => match accepting.await {
                    Ok(_) => Ok(()),
                    Err(error) => Err(trouble_of_error(&error)),
                },
                Err(trouble) => Err(trouble),
            };
            if result.is_ok() {
                let ids = run.works.iter().map(|work| work.message.id.0);
                acceptor.attempts.ended(ids).await;
            }
            Finished {
                works: run.works,
                result,
            }
        }
    }

    /// Hands the record to the buffer; `None` where there is nothing to record.
    fn queue(&self, run: &mut Run) -> Result<Option<consign_buffer::Accepting>, Trouble> {
        let mut writes = Vec::new();
        // The reservation counts the wanted writes in the order of `wanted`.
        let dropped = run
            .reservation
            .as_ref()
            .map(|r| r.dropped().to_vec())
            .unwrap_or_default();
        let mut wanted = 0_usize;
        for work in &run.works {
            let kept = self.kept(work, &dropped, &mut wanted);
            writes.extend(self.new_writes(work.evaluated.as_ref(), &kept, None));
            for diversion in &work.diverted {
                if dropped.contains(&wanted) {
                    self.counters.dropped_writes.fetch_add(1, Ordering::Relaxed);
                } else {
                    writes.push(diversion.write.clone());
                }
                wanted += 1;
            }
        }
        let position = run
            .works
            .iter()
            .rev()
            .find_map(|work| work.position.clone());
        let origin: Option<Origin> = match run.works.as_slice() {
            [only] => only.origin.clone().filter(|_| self.is_recorded(only)),
            _ => None,
        };
        if writes.is_empty() && position.is_none() && origin.is_none() {
            return Ok(None);
        }
        let acceptance = Acceptance {
            scope: self.adapter.clone(),
            origin,
            position: position.map(|position| (self.position_name.clone(), position)),
            writes,
            settles: Vec::new(),
        };
        let reservation = match run.reservation.take() {
            Some(reservation) => reservation,
            None => self.buffer.reserve(&[]).map_err(trouble_of_full)?,
        };
        Ok(Some(self.buffer.accept(reservation, acceptance)))
    }

    /// A message that ends without writes is evaluated again if it comes again, which is cheaper than
    /// remembering it. A client's key is remembered whatever came of it, and so is what a handler decided.
    pub fn is_recorded(&self, work: &Work) -> bool {
        matches!(
            work.evaluated,
            Some(Evaluated::Writes { .. } | Evaluated::Ends(MessageOutcome::Handled))
        ) || matches!(work.origin, Some(Origin::ClientKey { .. }))
    }

    /// The writes of a message that found room, by send index.
    fn kept(&self, work: &Work, dropped: &[usize], wanted: &mut usize) -> Vec<usize> {
        let mut kept = Vec::new();
        for (send, write) in self.targets(work) {
            if matches!(send.lane, Lane::Direct { .. }) {
                continue;
            }
            if dropped.contains(wanted) {
                self.counters.dropped_writes.fetch_add(1, Ordering::Relaxed);
            } else {
                kept.push(write.send);
            }
            *wanted += 1;
        }
        kept
    }

    /// The buffered writes that wait for `parent` (or for none), each with those that wait for it.
    fn new_writes(
        &self,
        evaluated: Option<&Evaluated>,
        kept: &[usize],
        parent: Option<usize>,
    ) -> Vec<NewWrite> {
        let now = clock::wall_unix_ms();
        let mut writes = Vec::new();
        for (send, write) in self.targets_of(evaluated) {
            let Lane::Buffered(lane) = send.lane else {
                continue;
            };
            // A parent that `when_full: drop` left out takes its dependents with it.
            if send.held_by != parent || !kept.contains(&write.send) {
                continue;
            }
            writes.push(NewWrite {
                lane,
                key: write.key,
                order: write.order,
                body: write.stored.clone(),
                created_unix_ms: now,
                expires_unix_ms: send.expires_after_ms.map(|after| now.saturating_add(after)),
                children: self.new_writes(evaluated, kept, Some(write.send)),
            });
        }
        writes
    }

    /// What the routes made of a message, for a preview.
    pub fn described(&self, evaluated: &Evaluated) -> serde_json::Value {
        let route = match evaluated {
            Evaluated::Ends(outcome) => {
                return serde_json::json!({ "outcome": outcome.name(), "writes": [] });
            }
            Evaluated::Failed(failure) => {
                let why = &failure.message;
                return serde_json::json!({ "outcome": "failed", "why": why, "writes": [] });
            }
            Evaluated::Writes { route, .. } => *route,
        };
        let writes: Vec<serde_json::Value> = self
            .targets_of(Some(evaluated))
            .map(|(send, write)| {
                let key = consign_pipeline::WriteKey(write.key).to_string();
                serde_json::json!({ "send": send.id, "write_key": key })
            })
            .collect();
        let name = self.routes.get(route).map(|route| route.name.as_str());
        serde_json::json!({ "outcome": "accepted", "route": name, "writes": writes })
    }

    /// The writes of a message that is routed again.
    ///
    /// # Errors
    /// Why it cannot be carried out: a direct send, whose answer nobody would wait for, or a template
    /// that failed.
    pub async fn route_again(
        &self,
        message: &Message,
    ) -> Result<(Evaluated, Vec<NewWrite>), String> {
        let verdict = match &self.steps {
            Some(steps) => match steps.run(&self.program, &[message]).await.pop() {
                Some(Stepped::Verdict(verdict)) => verdict,
                Some(Stepped::Failed { reason, .. }) => return Err(reason),
                None => return Err("no step answered".to_owned()),
            },
            None => self.program.evaluate(message),
        };
        let (evaluated, _) = self.evaluated(message, None, verdict);
        if let Evaluated::Failed(failure) = &evaluated {
            return Err(failure.message.clone());
        }
        let mut kept = Vec::new();
        for (send, write) in self.targets_of(Some(&evaluated)) {
            if matches!(send.lane, Lane::Direct { .. }) {
                return Err(format!(
                    "send {} is direct: only buffered sends can be routed again",
                    send.id
                ));
            }
            kept.push(write.send);
        }
        let writes = self.new_writes(Some(&evaluated), &kept, None);
        Ok((evaluated, writes))
    }

    /// Runs the direct sends that have not accepted yet, parents before those that wait for them.
    async fn send_direct(&self, work: &mut Work) -> Result<(), Trouble> {
        loop {
            let next = self.targets(work).find_map(|(send, write)| {
                let Lane::Direct { lane, last } = &send.lane else {
                    return None;
                };
                let ready = send
                    .after_direct
                    .as_ref()
                    .is_none_or(|parent| work.direct_done.contains(parent));
                (ready && !work.direct_done.contains(&send.path)).then(|| {
                    let seq = last.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                    (*lane, seq, write.clone())
                })
            });
            let Some((lane, seq, write)) = next else {
                return Ok(());
            };
            let index = write.send;
            let direct = DirectWrite {
                seq,
                key: write.key,
                order: write.order,
                bytes: u32::try_from(write.stored.len()).unwrap_or(u32::MAX),
                maybe_since_unix_ms: None,
                give_up_at_ms: None,
            };
            let body = Body {
                key: write.key,
                stored: write.stored.clone(),
                created_unix_ms: clock::wall_unix_ms(),
                order: write.order,
                has_dependents: false,
            };
            let answer = self.engine.direct(lane, direct, body).await.ok();
            self.direct_answered(work, index, &write, answer).await?;
        }
    }

    /// Room for a message whose direct sends changed what is to be buffered.
    fn reserve_again(&self, run: &mut Run) -> Result<(), Trouble> {
        let changed = |work: &Work| !work.diverted.is_empty() || !work.excluded.is_empty();
        if !run.works.iter().any(changed) {
            return Ok(());
        }
        run.reservation = None;
        let wanted: Vec<(LaneId, u64)> = run
            .works
            .iter()
            .flat_map(|work| self.wanted(work))
            .collect();
        if !wanted.is_empty() {
            run.reservation = Some(self.buffer.reserve(&wanted).map_err(trouble_of_full)?);
        }
        Ok(())
    }
}

fn trouble_of_full(full: Full) -> Trouble {
    let reason = full.to_string();
    match full {
        Full::Lane { lane, .. } => Trouble::Blocked {
            lane: Some(lane),
            reason,
        },
        Full::Never { .. } => Trouble::Impossible(reason),
        Full::Disk { .. } | Full::Buffer(_) => Trouble::Blocked { lane: None, reason },
    }
}

fn trouble_of_error(error: &BufferError) -> Trouble {
    match error {
        BufferError::TooLarge { .. } => Trouble::Impossible(error.to_string()),
        _ => Trouble::Blocked {
            lane: None,
            reason: error.to_string(),
        },
    }
}

/// What a source's message is called in the acceptance check and in its write keys.
#[derive(Debug, Default)]
pub struct Names {
    /// For the acceptance check.
    pub origin: Option<Origin>,
    /// For write keys.
    pub identity: Option<Bytes>,
}

/// Facts about a message that the source gave, besides the message.
#[derive(Debug, Default, Clone)]
pub struct Given {
    /// Partition, incarnation and offset of a cumulative position.
    pub cumulative: Option<(String, u64, u64)>,
    /// The client's key.
    pub client_key: Option<String>,
    /// Who sent it.
    pub principal: Option<String>,
    /// Whether the host keeps its position: the position itself then tells repeats.
    pub keeps_position: bool,
}

impl Acceptor {
    /// Names a message. An identity expression that fails names nothing, which is counted.
    pub fn names(&self, message: &Message, given: &Given) -> Names {
        if let Some(client_key) = &given.client_key {
            let principal = given.principal.as_deref();
            return Names {
                origin: Some(Origin::ClientKey {
                    key: key::client_scope(&self.adapter, principal, client_key),
                    body: BodyDigest::of(&message.body).short(),
                }),
                identity: Some(Bytes::from(key::client_identity(principal, client_key))),
            };
        }
        let identity = match self.program.identity(message) {
            Ok(identity) => identity,
            Err(_) => {
                self.counters
                    .condition_errors
                    .fetch_add(1, Ordering::Relaxed);
                None
            }
        };
        let origin = match (&identity, &given.cumulative) {
            _ if given.keeps_position => None,
            (_, Some((partition, incarnation, offset))) => Some(Origin::Cumulative {
                partition: partition.clone(),
                incarnation: *incarnation,
                offset: *offset,
            }),
            (Some(identity), None) => Some(Origin::Individual {
                id: key::individual(&self.adapter, self.epoch, identity),
            }),
            (None, None) => None,
        };
        Names { origin, identity }
    }
}
