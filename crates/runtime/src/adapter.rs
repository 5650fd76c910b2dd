//! An adapter's task: takes messages from its source, has them accepted, and tells the source.
//!
//! Messages of one group (a partition) are accepted in order, and one that cannot be accepted now holds
//! its group. Everything held is bounded by the source's credit. A session-based source holds nothing:
//! its client is told at once.

use crate::acceptance::{Acceptor, Finished, Given};
use crate::clock;
use crate::counters::{MessageLedger, MessageOutcome};
use crate::events::Events;
use crate::recent::{Recent, Seen};
use crate::staging::{Away, Staged, Staging};
use crate::steps::STEP_MESSAGES;
use crate::work::{Evaluated, MessageFailure, Trouble, Work};
use consign_buffer::{Known, Origin};
use consign_ledger::{Code, Event};
use consign_loader::{Incoming, Settle, SettleResult, SourceEvent, SourceEvents, SourceHandle};
use consign_pipeline::{Message, MessageId, key};
use futures::stream::{FuturesUnordered, StreamExt as _};
use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Messages committed in one record when the host keeps the source's position. Enough to share a
/// flush, few enough that a held message is noticed soon.
const RUN_MESSAGES: usize = 256;
/// Bytes of such a record; far below what one record may take.
const RUN_BYTES: u64 = 1 << 20;
/// How often held messages are tried again when nothing tells that there is room.
const RETRY_EVERY: Duration = Duration::from_millis(500);
/// How often the lease of messages in process is extended. Shorter than any broker's default.
const EXTEND_EVERY: Duration = Duration::from_secs(5);
/// Messages younger than this need no extension yet.
const EXTEND_AFTER_MS: u64 = 2_000;
/// What a client is told to wait before it tries again.
const RETRY_AFTER_MS: u64 = 1_000;
/// After this long without another one, a client's conflicts are over: the next is an event again.
const CONFLICT_QUIET_MS: u64 = 60_000;
/// Clients whose conflicts are told apart; beyond, they share one event.
const CONFLICTS_MAX: usize = 256;
/// How long a source may take to stop before it is left to its connection's close.
const STOP_DEADLINE: Duration = Duration::from_secs(15);
/// How long commits may take at a stop; a commit is a flush, a direct send may be anything.
const COMMIT_GRACE: Duration = Duration::from_secs(5);
/// Bytes of messages a source may have handed over without an answer.
const CREDIT_BYTES: u64 = 64 << 20;

/// Waits before a message that failed goes through its route again: doubled from the first to the second.
const FAILURE_BACKOFF_MS: (u64, u64) = (500, 30_000);

/// What is fixed about an adapter while it runs.
pub struct AdapterSpec {
    /// Accepts its messages; a reload puts another one in its place.
    pub acceptor: watch::Receiver<Arc<Acceptor>>,
    /// Its message ledger.
    pub ledger: Arc<MessageLedger>,
    /// Where it reports.
    pub events: Events,
    /// Whether its source hands over again what was not acknowledged.
    pub offset_tracked: bool,
    /// Whether its positions are cumulative: groups are partitions.
    pub cumulative: bool,
    /// Messages a source may have handed over without an answer.
    pub max_in_process: u32,
    /// Why messages are held, while any are.
    pub held: Arc<parking_lot::Mutex<Option<String>>>,
    /// Whether an operator paused the source.
    pub paused: watch::Receiver<bool>,
    /// What became of the last messages.
    pub recent: Arc<Recent>,
    /// Whether a message that is discarded is an event.
    pub log_discards: bool,
}

/// Why the adapter's task ended.
#[derive(Debug)]
pub enum Ended {
    /// The host stops.
    Stopped,
    /// The source failed; it is opened again.
    Fault(String),
}

type Running = FuturesUnordered<Pin<Box<dyn Future<Output = (Option<String>, Finished)> + Send>>>;

struct Task<'a> {
    spec: &'a AdapterSpec,
    acceptor: Arc<Acceptor>,
    source: SourceHandle,
    /// Messages that wait, by group; `None` are those that wait for nobody else.
    waiting: HashMap<Option<String>, VecDeque<Work>>,
    /// Groups whose head is being accepted.
    busy: HashSet<String>,
    running: Running,
    /// Source numbers and arrival of messages that are being accepted.
    accepting: HashMap<u64, u64>,
    settles: Vec<Settle>,
    /// Messages that are with a plugin.
    staging: Staging,
    blocked: bool,
    /// When each client used a key for two bodies last, by the subject of its episode.
    conflicts: HashMap<String, u64>,
}

/// Gives a source its first credits; until then it has no room for any message.
pub fn begin(spec: &AdapterSpec, source: &SourceHandle) {
    source.credit(u64::from(spec.max_in_process), CREDIT_BYTES);
}

/// Runs one opened source until it ends or `stop` turns true.
///
/// The source has been given its first credits by [`begin`].
pub async fn run(
    spec: &AdapterSpec,
    source: SourceHandle,
    mut events: SourceEvents,
    mut stop: watch::Receiver<bool>,
) -> Ended {
    let mut reloads = spec.acceptor.clone();
    let acceptor = Arc::clone(&reloads.borrow_and_update());
    let mut task = Task {
        spec,
        acceptor,
        source: source.clone(),
        waiting: HashMap::new(),
        busy: HashSet::new(),
        running: FuturesUnordered::new(),
        accepting: HashMap::new(),
        settles: Vec::new(),
        staging: Staging::default(),
        blocked: false,
        conflicts: HashMap::new(),
    };
    let mut paused = spec.paused.clone();
    if *paused.borrow_and_update() {
        source.pause();
    }
    let mut room = task.acceptor.buffer.watch_room();
    let mut retry = tokio::time::interval(RETRY_EVERY);
    let mut extend = tokio::time::interval(EXTEND_EVERY);
    let ended = loop {
        tokio::select! {
            biased;
            () = stopped(&mut stop) => break Ended::Stopped,
            Some((group, finished)) = task.running.next(), if !task.running.is_empty() => {
                task.finished(group, finished);
                // Answers that are ready together are told together.
                while let Some(Some((group, finished))) = futures::FutureExt::now_or_never(task.running.next()) {
                    task.finished(group, finished);
                }
            }
            (group, staged) = task.staging.next() => task.staged(group, staged),
            event = events.recv() => match event {
                Some(SourceEvent::Messages(messages)) => task.take(messages),
                Some(SourceEvent::Revoked { token, partitions }) => {
                    task.revoke(&partitions).await;
                    source.revoke_done(token);
                }
                Some(SourceEvent::Fault(failure)) => break Ended::Fault(failure.message),
                // An event of a newer plugin that this host does not know asks nothing of it.
                Some(_) => {}
                None => break Ended::Fault("the source ended by itself".to_owned()),
            },
            // What is on its way ends under the routes it began with; what waits is looked at anew.
            Ok(()) = reloads.changed() => {
                task.acceptor = Arc::clone(&reloads.borrow_and_update());
                task.retry();
            }
            Ok(()) = paused.changed() => {
                if *paused.borrow_and_update() {
                    source.pause();
                } else {
                    source.resume();
                }
            }
            Ok(()) = room.changed(), if task.holds() => task.retry(),
            _ = retry.tick(), if task.holds() => task.retry(),
            _ = extend.tick() => {
                task.extend();
                task.forget_conflicts();
            }
        }
        task.tell();
    };
    task.end().await;
    if matches!(ended, Ended::Stopped)
        && let Err(failure) = source.stop(STOP_DEADLINE).await
    {
        tracing::warn!(
            adapter = task.acceptor.adapter,
            "the source did not stop: {}",
            failure.message
        );
    }
    // What it handed over before it stopped and was not looked at is released by the SDK.
    ended
}

/// Ends when the host stops. The guard that the watch gives must not live across an await.
pub async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

impl Task<'_> {
    fn holds(&self) -> bool {
        self.waiting.values().any(|queue| !queue.is_empty())
    }

    fn take(&mut self, messages: Vec<Incoming>) {
        let mut groups = Vec::new();
        for incoming in messages {
            let work = self.work(&incoming);
            let group = work.group.clone();
            self.waiting
                .entry(group.clone())
                .or_default()
                .push_back(work);
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        for group in groups {
            self.pump(&group);
        }
    }

    fn work(&self, incoming: &Incoming) -> Work {
        let acceptor = &self.acceptor;
        let mut id = [0_u8; 16];
        rand::fill(&mut id);
        let source = incoming
            .source_json()
            .and_then(|json| serde_json::from_slice(json).ok())
            .unwrap_or_default();
        let mut message = Message {
            id: MessageId(id),
            body: incoming.body(),
            content_type: incoming.content_type().map(str::to_owned),
            headers: incoming
                .headers()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            routing_key: incoming.routing_key().map(str::to_owned),
            time_unix_ms: incoming
                .time_unix_ms()
                .unwrap_or_else(clock::wall_unix_ms_i64),
            identity: incoming.identity(),
            source,
        };
        let partition = incoming.partition().map(str::to_owned);
        let given = Given {
            cumulative: partition
                .clone()
                .zip(incoming.offset())
                .filter(|_| self.spec.cumulative)
                .map(|(partition, offset)| (partition, 0, offset)),
            client_key: incoming.client_key().map(str::to_owned),
            principal: incoming.principal().map(str::to_owned),
            keeps_position: incoming.position().is_some(),
        };
        let names = acceptor.names(&message, &given);
        if let Some(identity) = &names.identity {
            message.id = MessageId(key::message(&acceptor.adapter, acceptor.epoch, identity));
        }
        Work {
            source_id: incoming.id(),
            bytes: incoming.weight(),
            message,
            origin: names.origin,
            key_identity: names.identity,
            // A kept position is one for the whole source, whatever its partitions are called.
            group: match incoming.position() {
                Some(_) => Some(String::new()),
                None => partition.filter(|_| self.spec.cumulative),
            },
            position: incoming.position(),
            place: place_of(incoming),
            claim: None,
            entry: self.spec.ledger.receive(),
            received_ms: clock::monotonic_ms(),
            evaluated: None,
            generation: 0,
            names: given
                .client_key
                .clone()
                .into_iter()
                .chain(
                    incoming
                        .identity()
                        .and_then(|id| String::from_utf8(id.to_vec()).ok()),
                )
                .collect(),
            notes: crate::work::Notes::default(),
            direct_done: std::collections::BTreeSet::new(),
            excluded: std::collections::BTreeSet::new(),
            diverted: Vec::new(),
            handled: false,
            failures: 0,
            attempts: None,
            not_before_ms: 0,
        }
    }

    fn retry(&mut self) {
        let groups: Vec<Option<String>> = self.waiting.keys().cloned().collect();
        for group in groups {
            self.pump(&group);
        }
        if self.blocked && !self.holds() {
            self.blocked = false;
            *self.spec.held.lock() = None;
            self.spec.events.close(
                &self.subject(),
                Code::SourceBlocked,
                Some(self.event(Code::SourceUnblocked)),
            );
        }
    }

    /// Starts what can be started of a group.
    fn pump(&mut self, group: &Option<String>) {
        if self.is_busy(group) {
            return;
        }
        let Some(mut queue) = self.waiting.remove(group) else {
            return;
        };
        let mut held = VecDeque::new();
        // In a group nothing overtakes; messages without one wait for nobody.
        while group.is_none() || (held.is_empty() && !self.is_busy(group)) {
            let Some(first) = queue.pop_front() else {
                break;
            };
            let mut run = Vec::new();
            let mut steps = Vec::new();
            let mut bytes = 0_u64;
            let mut next = Some(first);
            while let Some(mut work) = next.take() {
                match self.ready(&mut work) {
                    // Nothing overtakes in a group: what was looked at before goes first.
                    Ready::Step if group.is_some() && !run.is_empty() => queue.push_front(work),
                    Ready::Go if group.is_some() && !steps.is_empty() => queue.push_front(work),
                    Ready::Step => {
                        steps.push(work);
                        if steps.len() < STEP_MESSAGES {
                            next = queue.pop_front();
                        }
                    }
                    Ready::Go => {
                        bytes = bytes.saturating_add(work.bytes);
                        let alone = work.position.is_none() || self.acceptor.has_direct(&work);
                        run.push(work);
                        if !alone && run.len() < RUN_MESSAGES && bytes < RUN_BYTES {
                            next = queue.pop_front();
                        }
                    }
                    Ready::Ended(result, outcome) => {
                        self.settled(work, result, outcome);
                        if !run.is_empty() || !steps.is_empty() {
                            next = queue.pop_front();
                        }
                    }
                    Ready::Wait => held.push_back(work),
                }
            }
            if !steps.is_empty() {
                self.step(group, steps);
            }
            // A message with direct sends is committed alone, so that only its own answer decides.
            if run.len() > 1
                && let Some(at) = run.iter().position(|work| self.acceptor.has_direct(work))
            {
                for work in run.split_off(at.max(1)).into_iter().rev() {
                    queue.push_front(work);
                }
            }
            if run.is_empty() {
                continue;
            }
            match self.acceptor.reserve(run) {
                Ok((run, rest)) => {
                    for work in rest.into_iter().rev() {
                        queue.push_front(work);
                    }
                    if self.start(group, run) {
                        break;
                    }
                }
                Err((trouble, works)) => {
                    // What was looked at before stands before what waits already.
                    for work in self.troubled(group, works, &trouble).into_iter().rev() {
                        held.push_front(work);
                    }
                }
            }
        }
        held.append(&mut queue);
        if !held.is_empty() {
            self.waiting.insert(group.clone(), held);
        }
    }

    fn is_busy(&self, group: &Option<String>) -> bool {
        group.as_ref().is_some_and(|name| self.busy.contains(name))
    }

    /// Sends messages through the steps of plugins; their group waits for them.
    fn step(&mut self, group: &Option<String>, works: Vec<Work>) {
        let acceptor = Arc::clone(&self.acceptor);
        let away = works.iter().map(away).collect();
        let work = async move { Staged::Ready(acceptor.step(works).await) };
        self.send_away(group, away, work);
    }

    fn send_away(
        &mut self,
        group: &Option<String>,
        away: Vec<Away>,
        work: impl Future<Output = Staged> + Send + 'static,
    ) {
        if let Some(name) = group {
            self.busy.insert(name.clone());
        }
        self.staging.start(group.clone(), away, work);
    }

    /// What was with a plugin is back.
    fn staged(&mut self, group: Option<String>, staged: Staged) {
        if let Some(name) = &group {
            self.busy.remove(name);
        }
        match staged {
            Staged::Ready(works) => {
                let queue = self.waiting.entry(group.clone()).or_default();
                for work in works.into_iter().rev() {
                    queue.push_front(work);
                }
            }
            Staged::Drop(work) => {
                let reason = match &work.evaluated {
                    Some(Evaluated::Failed(failure)) => failure.message.clone(),
                    _ => "its error handler gave it up".to_owned(),
                };
                self.refuse(*work, &Trouble::Failed(reason));
            }
        }
        self.pump(&group);
    }

    /// Starts a run; true when the rest of its group has to wait for it.
    fn start(&mut self, group: &Option<String>, run: crate::acceptance::Run) -> bool {
        let exclusive = run
            .works
            .iter()
            .any(|w| w.position.is_some() || self.acceptor.has_direct(w));
        for work in &run.works {
            self.accepting.insert(work.source_id, work.received_ms);
        }
        let name = group.clone();
        let commit = self.acceptor.commit(run);
        self.running
            .push(Box::pin(async move { (name, commit.await) }));
        match group {
            Some(name) if exclusive => {
                self.busy.insert(name.clone());
                true
            }
            _ => false,
        }
    }

    /// The acceptance check, and the routes.
    fn ready(&mut self, work: &mut Work) -> Ready {
        let acceptor = Arc::clone(&self.acceptor);
        let acceptor = acceptor.as_ref();
        if work.not_before_ms > clock::monotonic_ms() {
            return Ready::Wait;
        }
        if work.claim.is_none()
            && let Some(origin) = &work.origin
        {
            match acceptor.buffer.claim(&acceptor.adapter, origin) {
                Ok(claim) => work.claim = Some(claim),
                Err(Known::Repeat) => {
                    return Ready::Ended(SettleResult::Repeat, MessageOutcome::Repeat);
                }
                Err(Known::Conflict) => {
                    self.conflict(work);
                    return Ready::Ended(SettleResult::Conflict, MessageOutcome::RefusedAtSource);
                }
                // The first copy is still on its way: what becomes of it decides about this one.
                Err(_) if self.spec.offset_tracked => return Ready::Wait,
                Err(_) => {
                    return Ready::Ended(SettleResult::InFlight, MessageOutcome::RefusedAtSource);
                }
            }
        }
        if acceptor.needs_steps(work) {
            return Ready::Step;
        }
        acceptor.evaluate(work);
        match work.evaluated {
            // Without a position to keep or a key to remember there is nothing to record.
            Some(Evaluated::Ends(outcome))
                if work.position.is_none() && !acceptor.is_recorded(work) =>
            {
                Ready::Ended(SettleResult::Accepted, outcome)
            }
            _ => Ready::Go,
        }
    }

    /// One event for each client that uses a key for two bodies, until it has stopped for a while.
    fn conflict(&mut self, work: &Work) {
        let said = |name: &str| work.message.source.get(name).and_then(|v| v.as_str());
        let (principal, peer) = (said("principal"), said("remote"));
        let mut subject = self.subject();
        let client = principal.or(peer).unwrap_or("unknown");
        if self.conflicts.len() < CONFLICTS_MAX {
            subject = format!("{subject}, client {client}");
        }
        let mut event = self.event(Code::IdempotencyConflict).message(format!(
            "adapter {}: client {client} used one idempotency key for two bodies",
            self.acceptor.adapter
        ));
        for (field, value) in [("principal", principal), ("peer", peer)] {
            if let Some(value) = value {
                event = event.field(field, value);
            }
        }
        if let Some(Origin::ClientKey { key, .. }) = &work.origin {
            event = event.field("key", MessageId(*key).to_string());
        }
        self.spec.events.open(&subject, event);
        self.conflicts.insert(subject, clock::monotonic_ms());
    }

    /// Ends the episodes of clients that have not used a key twice for a while.
    fn forget_conflicts(&mut self) {
        let now = clock::monotonic_ms();
        let events = &self.spec.events;
        self.conflicts.retain(|subject, last| {
            let goes_on = now.saturating_sub(*last) < CONFLICT_QUIET_MS;
            if !goes_on {
                events.close(subject, Code::IdempotencyConflict, None);
            }
            goes_on
        });
    }

    fn finished(&mut self, group: Option<String>, finished: Finished) {
        for work in &finished.works {
            self.accepting.remove(&work.source_id);
        }
        if let Some(name) = &group {
            self.busy.remove(name);
        }
        match finished.result {
            Ok(()) => {
                for work in finished.works {
                    let outcome = work.outcome();
                    self.settled(work, SettleResult::Accepted, outcome);
                }
                if !self.spec.offset_tracked {
                    for opened in [Code::RefusedAtSource, Code::TemplateFailed] {
                        self.spec.events.close(&self.subject(), opened, None);
                    }
                }
            }
            Err(trouble) => {
                let held = self.troubled(&group, finished.works, &trouble);
                let queue = self.waiting.entry(group.clone()).or_default();
                for work in held.into_iter().rev() {
                    queue.push_front(work);
                }
                // The retry tick takes it up again; trying at once would spin.
                return;
            }
        }
        self.pump(&group);
    }

    /// What cannot be accepted now: with its error handler, held where the source would redeliver it,
    /// answered where not.
    fn troubled(
        &mut self,
        group: &Option<String>,
        works: Vec<Work>,
        trouble: &Trouble,
    ) -> Vec<Work> {
        let mut held = Vec::new();
        for mut work in works {
            if let Some(Evaluated::Failed(failure)) = &work.evaluated {
                let failure = failure.clone();
                work.failures = work.failures.saturating_add(1);
                self.tell_failure(&work, &failure);
                if self.acceptor.handler(failure.route).is_some() {
                    let away = vec![away(&work)];
                    let decided = self
                        .acceptor
                        .decide(work, failure, self.spec.offset_tracked);
                    self.send_away(group, away, decided);
                    continue;
                }
                if self.spec.offset_tracked {
                    let shift = work.failures.saturating_sub(1).min(16);
                    let wait = (FAILURE_BACKOFF_MS.0 << shift).min(FAILURE_BACKOFF_MS.1);
                    work.not_before_ms = clock::monotonic_ms().saturating_add(wait);
                    if failure.passes {
                        work.evaluated = None;
                    }
                }
            }
            if self.spec.offset_tracked {
                held.push(work);
            } else {
                self.refuse(work, trouble);
            }
        }
        if !held.is_empty() {
            self.blocked = true;
            *self.spec.held.lock() = Some(trouble.reason().to_owned());
            let event = self.event(Code::SourceBlocked).message(format!(
                "adapter {} holds its source back: {}",
                self.acceptor.adapter,
                trouble.reason()
            ));
            self.spec.events.open(&self.subject(), event);
        }
        held
    }

    /// Says why a message has no writes, once a message.
    fn tell_failure(&self, work: &Work, failure: &MessageFailure) {
        if work.failures > 1 {
            return;
        }
        let code = if failure.passes {
            Code::ProcessorFailed
        } else {
            Code::TemplateFailed
        };
        let event = self
            .event(code)
            .field("message_id", work.message.id.to_string())
            .field("code", failure.code.clone())
            .message(format!(
                "adapter {}: message {}: {}",
                self.acceptor.adapter, work.message.id, failure.message
            ));
        if code == Code::TemplateFailed && !self.spec.offset_tracked {
            // Its sender is told each time; the log, once for the episode.
            self.spec.events.open(&self.subject(), event);
        } else {
            self.spec.events.emit(event);
        }
    }

    /// Tells the client of a session-based source.
    fn refuse(&mut self, work: Work, trouble: &Trouble) {
        let reason = trouble.reason().to_owned();
        let (result, outcome, code) = match trouble {
            Trouble::Blocked { .. } => (
                SettleResult::Blocked {
                    retry_after_ms: RETRY_AFTER_MS,
                    reason: reason.clone(),
                },
                MessageOutcome::RefusedAtSource,
                Code::RefusedAtSource,
            ),
            Trouble::Impossible(_) | Trouble::Unrenderable(_) => (
                SettleResult::Refused {
                    reason: reason.clone(),
                },
                MessageOutcome::RefusedAtSource,
                Code::RefusedAtSource,
            ),
            Trouble::Failed(_) => (
                SettleResult::Dropped {
                    reason: reason.clone(),
                },
                MessageOutcome::Dropped,
                Code::MessageDropped,
            ),
        };
        let event = self
            .event(code)
            .field("message_id", work.message.id.to_string())
            .message(format!(
                "adapter {}: message {} was not accepted: {reason}",
                self.acceptor.adapter, work.message.id
            ));
        if code == Code::MessageDropped {
            self.spec.events.emit(event);
        } else {
            self.spec.events.open(&self.subject(), event);
        }
        self.settled(work, result, outcome);
    }

    fn settled(&mut self, work: Work, result: SettleResult, outcome: MessageOutcome) {
        self.remember(&work, &result, outcome);
        self.settles.push(Settle {
            id: work.source_id,
            result,
        });
        self.source.credit(1, work.bytes);
        work.entry.end(outcome);
    }

    /// For `consign trace`, and for the log where discards are to be in it.
    fn remember(&self, work: &Work, result: &SettleResult, outcome: MessageOutcome) {
        let acceptor = &self.acceptor;
        let named = |route: usize| acceptor.routes.get(route).map(|route| route.name.clone());
        let why = match result {
            SettleResult::Blocked { reason, .. }
            | SettleResult::Refused { reason }
            | SettleResult::Dropped { reason } => Some(reason.clone()),
            _ => work.notes.why.clone(),
        };
        if self.spec.log_discards
            && matches!(
                outcome,
                MessageOutcome::NoRoute | MessageOutcome::TransformFailed
            )
        {
            let mut event = self
                .event(Code::Discarded)
                .field("message_id", work.message.id.to_string())
                .field("reason", outcome.name())
                .message(format!(
                    "adapter {}: message {} was discarded ({}){}",
                    acceptor.adapter,
                    work.message.id,
                    outcome.name(),
                    why.as_ref()
                        .map(|why| format!(": {why}"))
                        .unwrap_or_default()
                ));
            if let Some(key) = &work.message.routing_key {
                event = event.field("routing_key", key.clone());
            }
            if let Some(route) = work.notes.route.and_then(named) {
                event = event.route(route);
            }
            self.spec.events.emit(event);
        }
        self.spec.recent.add(Seen {
            message_id: work.message.id.to_string(),
            adapter: acceptor.adapter.clone(),
            names: work.names.clone(),
            at_unix_ms: clock::wall_unix_ms_i64(),
            outcome: outcome.name(),
            route: work.notes.route.and_then(named),
            why,
            condition_errors: work
                .notes
                .condition_errors
                .iter()
                .map(|(route, why)| format!("route {}: {why}", named(*route).unwrap_or_default()))
                .collect(),
            writes: match outcome {
                MessageOutcome::Accepted => acceptor.seen_writes(work),
                _ => Vec::new(),
            },
        });
    }

    fn tell(&mut self) {
        if !self.settles.is_empty() {
            self.source.settle(self.settles.drain(..));
        }
    }

    fn extend(&self) {
        if !self.spec.offset_tracked {
            return;
        }
        let now = clock::monotonic_ms();
        let waiting = self
            .waiting
            .values()
            .flatten()
            .map(|work| (work.source_id, work.received_ms));
        let accepting = self.accepting.iter().map(|(id, at)| (*id, *at));
        let away = self
            .staging
            .away()
            .map(|one| (one.source_id, one.received_ms));
        let ids: Vec<u64> = waiting
            .chain(accepting)
            .chain(away)
            .filter(|(_, at)| now.saturating_sub(*at) >= EXTEND_AFTER_MS)
            .map(|(id, _)| id)
            .collect();
        if !ids.is_empty() {
            self.source.extend(ids);
        }
    }

    /// Partitions go away: what is being accepted is waited for, the rest is given back.
    async fn revoke(&mut self, partitions: &[String]) {
        let gone =
            |group: &Option<String>| group.as_ref().is_some_and(|name| partitions.contains(name));
        self.release(gone);
        while let Some((group, finished)) = self.running.next().await {
            self.finished(group, finished);
            self.release(gone);
        }
        self.tell();
    }

    fn release(&mut self, which: impl Fn(&Option<String>) -> bool) {
        // The messages themselves end with what carried them, and count as released.
        for (group, works) in self.staging.take_back(&which) {
            if let Some(name) = group {
                self.busy.remove(&name);
            }
            for one in works {
                self.settles.push(Settle {
                    id: one.source_id,
                    result: SettleResult::Released,
                });
                self.source.credit(1, one.bytes);
            }
        }
        let groups: Vec<Option<String>> = self
            .waiting
            .keys()
            .filter(|group| which(group))
            .cloned()
            .collect();
        for group in groups {
            for work in self.waiting.remove(&group).unwrap_or_default() {
                self.settled(work, SettleResult::Released, MessageOutcome::Released);
            }
        }
    }

    /// Ends what is in process: commits are waited for, since they may be durable already; what waits, or
    /// waits for a direct send, is given back.
    async fn end(&mut self) {
        self.release(|_| true);
        let commits = async {
            while let Some((group, finished)) = self.running.next().await {
                self.finished(group, finished);
                self.release(|_| true);
            }
        };
        if tokio::time::timeout(COMMIT_GRACE, commits).await.is_err() {
            let ids: Vec<u64> = self.accepting.keys().copied().collect();
            self.settles.extend(ids.into_iter().map(|id| Settle {
                id,
                result: SettleResult::Released,
            }));
        }
        self.tell();
    }

    fn subject(&self) -> String {
        format!("adapter {}", self.acceptor.adapter)
    }

    fn event(&self, code: Code) -> Event {
        Event::new(code, clock::wall_unix_ms_i64()).adapter(self.acceptor.adapter.clone())
    }
}

/// Where the source has a message, for people.
fn place_of(incoming: &Incoming) -> String {
    match (incoming.partition(), incoming.offset()) {
        (Some(partition), Some(offset)) => format!("{partition}@{offset}"),
        (Some(partition), None) => partition.to_owned(),
        (None, Some(offset)) => offset.to_string(),
        (None, None) => String::new(),
    }
}

fn away(work: &Work) -> Away {
    Away {
        source_id: work.source_id,
        bytes: work.bytes,
        received_ms: work.received_ms,
    }
}

/// What the acceptance check and the routes say about a message.
enum Ready {
    /// Plugins have a part in its route.
    Step,
    /// Commit it.
    Go,
    /// It ends here.
    Ended(SettleResult, MessageOutcome),
    /// Ask again later.
    Wait,
}
