//! The driver: one task that owns the delivery machine, carries out what it asks for, and tells it
//! how that went.
//!
//! Only metadata goes through the machine. The bodies of the writes in its windows wait here, by lane
//! and number, until they are settled. Everything slow (flushes, requests, the ledger) runs in tasks
//! of their own, which are owned by the driver and end with it.

use crate::clock;
use crate::events::Events;
use crate::handlers::{Decided, Diversion, Handler, Handlers, Report, failed_event};
use crate::outages::Outages;
use crate::park::{Parker, ToDivert, ToPark};
use crate::plugs::{Plugs, Submission};
use crate::recent::Recent;
use bytes::Bytes;
use consign_buffer::{Buffer, Settlement};
use consign_delivery::{
    Applied, ConnectionStats, Decision, Delivery, Dependents, DirectResult, DirectWrite, Failure,
    FetchedWrite, Input, LaneId, LaneStats, Output, RequestId, Send as SendBatch, SettleResult,
    Ticket, WriteNote,
};
use consign_ledger::Code;
use consign_pipeline::{StoredWrite, WriteKey};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Inputs handled before the machine's outputs are looked at again: enough to share a pass among a
/// burst of answers, small enough that a burst delays no send.
const INPUTS_PER_PASS: usize = 1_024;

/// Lanes of direct sends have numbers from here on; the buffer's own never get so far.
pub const FIRST_DIRECT_LANE: u32 = 1 << 31;

/// What the rest of the host may ask of the driver.
#[derive(Debug)]
enum Command {
    Input(Input),
    Fetched {
        lane: LaneId,
        fetched: consign_buffer::Fetched,
    },
    Direct {
        lane: LaneId,
        write: DirectWrite,
        body: Body,
        answer: oneshot::Sender<DirectAnswer>,
    },
    Decided {
        lane: LaneId,
        seq: u64,
        decided: Decided,
    },
    Snapshot(oneshot::Sender<Snapshot>),
    Remove {
        lane: LaneId,
        leave_until_ms: Option<u64>,
        done: oneshot::Sender<()>,
    },
    Drain {
        deadline_ms: u64,
        done: oneshot::Sender<u32>,
    },
}

/// All lanes and connections at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// By lane number.
    pub lanes: BTreeMap<u32, LaneStats>,
    /// By connection number.
    pub connections: BTreeMap<u32, ConnectionStats>,
}

/// A write's stored form and what a request needs besides.
#[derive(Debug, Clone)]
pub struct Body {
    /// The write key.
    pub key: [u8; 16],
    /// The stored write, encoded.
    pub stored: Bytes,
    /// When it was accepted, wall clock.
    pub created_unix_ms: u64,
    /// Hash of its order key; 0 for strict order.
    pub order: u64,
    /// Whether dependents wait for it.
    pub has_dependents: bool,
}

/// The answer of a direct send.
#[derive(Debug)]
pub struct DirectAnswer {
    /// What the machine says.
    pub result: DirectResult,
    /// The write to commit instead, where the error handler diverted it.
    pub diversion: Option<Diversion>,
}

/// Speaks to the driver. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    // Unbounded, because the machine bounds what can be in it: one answer per request, one per
    // ticket, one per fetch; direct sends are bounded by the sources' credits.
    commands: mpsc::UnboundedSender<Command>,
}

impl Engine {
    /// Tells the machine something. Ignored once the driver has ended.
    pub fn input(&self, input: Input) {
        drop(self.commands.send(Command::Input(input)));
    }

    /// Hands a direct send over. The receiver fails only when the driver ends first.
    pub fn direct(
        &self,
        lane: LaneId,
        write: DirectWrite,
        body: Body,
    ) -> oneshot::Receiver<DirectAnswer> {
        let (answer, receiver) = oneshot::channel();
        drop(self.commands.send(Command::Direct {
            lane,
            write,
            body,
            answer,
        }));
        receiver
    }

    /// How all lanes and connections are; empty once the driver has ended.
    pub async fn snapshot(&self) -> Snapshot {
        let (reply, receiver) = oneshot::channel();
        drop(self.commands.send(Command::Snapshot(reply)));
        receiver.await.unwrap_or_default()
    }

    /// Takes a lane out once nothing of it is on its way; with a time to leave its target, what may
    /// have been applied there is finished first. Ends at once where there is no such lane.
    pub async fn remove(&self, lane: LaneId, leave_within: Option<Duration>) {
        let leave_until_ms = leave_within.map(|within| {
            let within = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
            clock::monotonic_ms().saturating_add(within)
        });
        let (done, receiver) = oneshot::channel();
        drop(self.commands.send(Command::Remove {
            lane,
            leave_until_ms,
            done,
        }));
        // It fails only when the driver ends first, and then nothing is sent any more.
        drop(receiver.await);
    }

    /// Sends nothing new and waits for what is in flight; the number of requests that never ended.
    pub async fn drain(&self, within: Duration) -> u32 {
        let (done, receiver) = oneshot::channel();
        let millis = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let deadline_ms = clock::monotonic_ms().saturating_add(millis);
        drop(self.commands.send(Command::Drain { deadline_ms, done }));
        receiver.await.unwrap_or(0)
    }
}

/// What the driver works with.
pub struct Parts {
    /// Where writes live.
    pub buffer: Buffer,
    /// Connections and sinks.
    pub plugs: Arc<Plugs>,
    /// Failed messages.
    pub parker: Arc<Parker>,
    /// Error handlers of the sends.
    pub handlers: Arc<Handlers>,
    /// Where it reports.
    pub events: Events,
    /// Outage reports.
    pub outages: Arc<Outages>,
    /// What became of the last messages.
    pub recent: Arc<Recent>,
}

/// Makes the driver's handle and the future that runs it.
pub fn engine(machine: Delivery, parts: Parts) -> (Engine, impl Future<Output = ()> + Send) {
    let (commands, receiver) = mpsc::unbounded_channel();
    let driver = Driver {
        machine,
        parts,
        commands: commands.clone(),
        bodies: HashMap::new(),
        requests: HashMap::new(),
        direct: HashMap::new(),
        diversions: HashMap::new(),
        removed: HashMap::new(),
        drained: Vec::new(),
        tasks: JoinSet::new(),
    };
    (Engine { commands }, driver.run(receiver))
}

struct Driver {
    machine: Delivery,
    parts: Parts,
    commands: mpsc::UnboundedSender<Command>,
    bodies: HashMap<u32, BTreeMap<u64, Body>>,
    requests: HashMap<RequestId, crate::plugs::Canceller>,
    direct: HashMap<(u32, u64), oneshot::Sender<DirectAnswer>>,
    /// What handlers made of writes that are about to leave their lane for another.
    diversions: HashMap<(u32, u64), Diversion>,
    removed: HashMap<u32, Vec<oneshot::Sender<()>>>,
    drained: Vec<oneshot::Sender<u32>>,
    tasks: JoinSet<()>,
}

impl Driver {
    async fn run(mut self, mut receiver: mpsc::UnboundedReceiver<Command>) {
        loop {
            let wait = self
                .machine
                .next_wakeup()
                .map(|at| Duration::from_millis(at.saturating_sub(clock::monotonic_ms())));
            tokio::select! {
                command = receiver.recv() => {
                    let Some(command) = command else { break };
                    self.take(command);
                    for _ in 1..INPUTS_PER_PASS {
                        match receiver.try_recv() {
                            Ok(command) => self.take(command),
                            Err(_) => break,
                        }
                    }
                }
                () = sleep(wait) => self.handle(Input::Tick),
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    // Reaps ended tasks; what they had to say came over the channel.
                    continue;
                }
            }
            let outputs: Vec<Output> = self.machine.outputs().collect();
            let mut drained = None;
            for output in outputs {
                if let Output::Drained { unfinished } = output {
                    drained = Some(unfinished);
                } else {
                    self.carry_out(output);
                }
            }
            if let Some(unfinished) = drained {
                for waiting in self.drained.drain(..) {
                    // Whoever waited may be gone.
                    let _ = waiting.send(unfinished);
                }
                break;
            }
        }
        // A drained machine asks for nothing more; what still runs is cut off with its connection.
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
    }

    fn handle(&mut self, input: Input) {
        self.machine
            .handle(clock::monotonic_ms(), clock::wall_unix_ms(), input);
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Input(input) => {
                if let Input::Answered { request, .. } | Input::CancelAcknowledged { request, .. } =
                    &input
                {
                    self.requests.remove(request);
                }
                self.handle(input);
            }
            Command::Fetched { lane, fetched } => self.fetched(lane, fetched),
            Command::Direct {
                lane,
                write,
                body,
                answer,
            } => {
                self.bodies
                    .entry(lane.0)
                    .or_default()
                    .insert(write.seq, body);
                self.direct.insert((lane.0, write.seq), answer);
                self.handle(Input::Direct { lane, write });
            }
            Command::Decided { lane, seq, decided } => self.decided(lane, seq, decided),
            Command::Snapshot(reply) => drop(reply.send(self.snapshot())),
            Command::Remove {
                lane,
                leave_until_ms,
                done,
            } => {
                if !self.machine.lanes().any(|known| known == lane) {
                    // Whoever waited may be gone.
                    let _ = done.send(());
                    return;
                }
                self.removed.entry(lane.0).or_default().push(done);
                self.handle(match leave_until_ms {
                    Some(until_ms) => Input::LeaveTarget { lane, until_ms },
                    None => Input::RemoveLane { lane },
                });
            }
            Command::Drain { deadline_ms, done } => {
                self.drained.push(done);
                self.handle(Input::Drain { deadline_ms });
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let machine = &self.machine;
        Snapshot {
            lanes: machine
                .lanes()
                .filter_map(|id| Some((id.0, machine.lane_stats(id)?)))
                .collect(),
            connections: machine
                .connections()
                .filter_map(|id| Some((id.0, machine.connection_stats(id)?)))
                .collect(),
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Fetch {
                lane,
                after_seq,
                max_writes,
                max_bytes,
            } => self.fetch(lane, after_seq, max_writes, max_bytes),
            Output::Frontier {
                lane,
                seq,
                wall_unix_ms,
                ticket,
            } => {
                let done = self
                    .parts
                    .buffer
                    .frontier(buffer_lane(lane), seq, wall_unix_ms);
                self.when_durable(ticket, done);
            }
            Output::Note {
                lane,
                notes,
                ticket,
            } => {
                let buffer = &self.parts.buffer;
                let done: Vec<_> = notes
                    .into_iter()
                    .map(|(seq, note)| buffer.note(buffer_lane(lane), seq, state_of(note)))
                    .collect();
                self.when_durable(ticket, async {
                    for one in done {
                        one.await?;
                    }
                    Ok::<(), consign_buffer::BufferError>(())
                });
            }
            Output::Settle {
                lane,
                writes,
                urgent: _,
                ticket,
            } => self.settle(lane, &writes, ticket),
            Output::Park {
                lane,
                seq,
                reason,
                failure,
                note,
                ticket,
            } => {
                let body = self.take_body(lane, seq);
                if let Some(body) = &body {
                    let parked = SettleResult::Parked.name();
                    let now = clock::wall_unix_ms_i64();
                    self.parts.recent.ended(body.key, parked, now);
                }
                let (parker, buffer) = (Arc::clone(&self.parts.parker), self.parts.buffer.clone());
                let what = ToPark {
                    lane,
                    seq,
                    body,
                    reason,
                    failure,
                    note,
                };
                let work = async move { parker.park(&buffer, what).await };
                self.when_durable(ticket, work);
            }
            Output::Send(send) => self.send(send),
            Output::Cancel { request } => {
                if let Some(canceller) = self.requests.get(&request) {
                    canceller.cancel();
                }
            }
            Output::Probe { connection, .. } => {
                let plugs = Arc::clone(&self.parts.plugs);
                self.answer(async move {
                    Input::Probed {
                        connection,
                        result: plugs.probe(connection).await,
                    }
                });
            }
            Output::Rebuild { connection } => {
                let plugs = Arc::clone(&self.parts.plugs);
                self.answer(async move {
                    plugs.rebuild(connection).await;
                    Input::Rebuilt { connection }
                });
            }
            Output::Inspect { lane } => {
                let plugs = Arc::clone(&self.parts.plugs);
                self.answer(async move {
                    let (verdict, window_ms) = plugs.inspect(lane).await;
                    Input::Inspected {
                        lane,
                        verdict,
                        window_ms,
                    }
                });
            }
            Output::AskHandler { lane, seq, failure } => self.ask(lane, seq, failure),
            Output::Divert {
                lane,
                seq,
                target,
                failure,
                ticket,
            } => self.divert(lane, seq, &target, failure, ticket),
            Output::DirectAnswer { lane, seq, result } => {
                self.take_body(lane, seq);
                let diversion = self.diversions.remove(&(lane.0, seq));
                if let Some(answer) = self.direct.remove(&(lane.0, seq)) {
                    drop(answer.send(DirectAnswer { result, diversion }));
                }
            }
            Output::Event(event) => {
                self.tell_outages(&event);
                self.parts.plugs.event(event);
            }
            Output::LaneRemoved { lane } => {
                self.bodies.remove(&lane.0);
                for done in self.removed.remove(&lane.0).unwrap_or_default() {
                    // Whoever waited may be gone.
                    let _ = done.send(());
                }
            }
            Output::Drained { .. } => {}
        }
    }

    /// Asks the write's error handler, which may take its time.
    fn ask(&mut self, lane: LaneId, seq: u64, failure: Failure) {
        let body = self
            .bodies
            .get(&lane.0)
            .and_then(|bodies| bodies.get(&seq))
            .cloned();
        let (handlers, parker) = (
            Arc::clone(&self.parts.handlers),
            Arc::clone(&self.parts.parker),
        );
        self.spawn(async move {
            let decided = match (handlers.of_lane(lane), body) {
                (Some(handler), Some(body)) => ask(&handler, &parker, &body, &failure).await,
                (None, _) => Decided::Failed("the send has no error handler".to_owned()),
                (_, None) => Decided::Failed("the write is not in memory".to_owned()),
            };
            Some(Command::Decided { lane, seq, decided })
        });
    }

    fn decided(&mut self, lane: LaneId, seq: u64, decided: Decided) {
        let handler = self.parts.handlers.of_lane(lane);
        let name = handler.as_ref().map_or("", |handler| handler.name());
        let decision = match decided.checked(&self.parts.buffer) {
            Decided::Retry(after_ms) => Decision::Retry { after_ms },
            Decided::Block => Decision::Block,
            Decided::Skip => {
                self.parts.plugs.handled(
                    lane,
                    seq,
                    Code::WriteSkipped,
                    &format!("error handler {name} skips"),
                );
                Decision::Skip
            }
            Decided::Park(reason) => Decision::Park { reason },
            Decided::Divert(diversion) => {
                let target = diversion.target.clone();
                self.parts.plugs.handled(
                    lane,
                    seq,
                    Code::WriteDiverted,
                    &format!("error handler {name} diverts to {target}"),
                );
                self.diversions.insert((lane.0, seq), diversion);
                Decision::Divert { target }
            }
            Decided::Failed(why) => {
                let event = failed_event(self.parts.parker.lane(lane).as_deref(), name, &why);
                self.parts.events.emit(event.field("seq", seq));
                Decision::Failed
            }
        };
        self.handle(Input::Decided {
            lane,
            seq,
            decision,
        });
    }

    fn divert(&mut self, lane: LaneId, seq: u64, target: &str, failure: Failure, ticket: Ticket) {
        let body = self.take_body(lane, seq);
        let diversion = self.diversions.remove(&(lane.0, seq));
        let (Some(body), Some(diversion)) = (body, diversion) else {
            // The machine diverts only what was decided just now. The write stays pending and is seen again
            // after a restart.
            tracing::error!(
                lane = lane.0,
                seq,
                target,
                "a write to divert is not in memory"
            );
            return;
        };
        let (parker, buffer) = (Arc::clone(&self.parts.parker), self.parts.buffer.clone());
        let what = ToDivert {
            lane,
            seq,
            body,
            diversion,
            failure,
        };
        self.when_durable(ticket, async move { parker.divert(&buffer, what).await });
    }

    /// A gate that closed opens an outage report over its lanes.
    fn tell_outages(&self, event: &consign_delivery::Event) {
        let plugs = &self.parts.plugs;
        let of_target = (event.code == consign_delivery::EventCode::TargetClosed)
            .then_some(event.lane)
            .flatten()
            .and_then(|lane| self.machine.lane_stats(lane));
        let connection = event
            .connection
            .or(of_target.as_ref().map(|stats| stats.connection));
        let target = of_target.map(|of| {
            let same =
                |stats: &LaneStats| stats.connection == of.connection && stats.target == of.target;
            let lanes = self
                .machine
                .lanes()
                .filter(|lane| self.machine.lane_stats(*lane).is_some_and(|s| same(&s)));
            (of.target.clone(), lanes.collect())
        });
        let name = connection.and_then(|id| plugs.connection_name(id));
        let drill = connection.is_some_and(|id| plugs.drills.is_on(id));
        self.parts
            .outages
            .event(event, name.as_deref(), target, drill);
    }

    fn fetch(&mut self, lane: LaneId, after_seq: u64, max_writes: u32, max_bytes: u64) {
        let max_writes = usize::try_from(max_writes).unwrap_or(usize::MAX);
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let fetching = self
            .parts
            .buffer
            .fetch(buffer_lane(lane), after_seq, max_writes, max_bytes);
        self.spawn(async move {
            match fetching.await {
                Ok(fetched) => Some(Command::Fetched { lane, fetched }),
                Err(error) => {
                    // The lane stands still, which is right when the log has failed: nothing more
                    // may be sent, and the buffer's own event says why.
                    tracing::error!(lane = lane.0, %error, "cannot read pending writes");
                    None
                }
            }
        });
    }

    fn fetched(&mut self, lane: LaneId, fetched: consign_buffer::Fetched) {
        let bodies = self.bodies.entry(lane.0).or_default();
        let more = fetched.more;
        let mut writes = Vec::with_capacity(fetched.writes.len());
        for pending in fetched.writes {
            writes.push(FetchedWrite {
                seq: pending.seq,
                key: pending.key,
                order: pending.order,
                bytes: u32::try_from(pending.body.len()).unwrap_or(u32::MAX),
                expires_unix_ms: pending.expires_unix_ms,
                maybe_since_unix_ms: pending.maybe_since_unix_ms,
                note: note_of(&pending.state),
            });
            bodies.insert(
                pending.seq,
                Body {
                    key: pending.key,
                    stored: pending.body,
                    created_unix_ms: pending.created_unix_ms,
                    order: pending.order,
                    has_dependents: pending.children > 0,
                },
            );
        }
        self.handle(Input::Fetched { lane, writes, more });
    }

    fn settle(&mut self, lane: LaneId, writes: &[consign_delivery::Settled], ticket: Ticket) {
        let mut settlements = Vec::with_capacity(writes.len());
        for write in writes {
            let body = self.take_body(lane, write.seq);
            if let Some(body) = &body {
                self.parts
                    .recent
                    .ended(body.key, write.result.name(), clock::wall_unix_ms_i64());
                if write.result == SettleResult::DeliveredAsRepeat {
                    self.parts.plugs.repeat_of_an_edit(lane, body);
                }
            }
            if write.dependents == Dependents::Drop
                && body.as_ref().is_some_and(|b| b.has_dependents)
            {
                self.parts
                    .plugs
                    .dependents_dropped(lane, write.seq, write.result);
            }
            settlements.push(Settlement {
                lane: buffer_lane(lane),
                seq: write.seq,
                result: write.result.code(),
                release_children: write.dependents == Dependents::Release,
            });
        }
        let done = self.parts.buffer.settle(settlements);
        self.when_durable(ticket, done);
    }

    fn send(&mut self, send: SendBatch) {
        let bodies = self.bodies.entry(send.lane.0).or_default();
        let mut writes = Vec::with_capacity(send.items.len());
        for item in &send.items {
            if let Some(body) = bodies.get(&item.seq) {
                writes.push((body.clone(), item.may_be_repeat));
            }
        }
        let request = send.request;
        if writes.len() != send.items.len() {
            // The machine asks only for what it was handed and not yet settled, so this is a fault
            // of ours; nothing was sent, and the machine may be told exactly that.
            tracing::error!(lane = send.lane.0, "a write to send is not in memory");
            let applied = Applied::NO;
            drop(
                self.commands
                    .send(Command::Input(Input::CancelAcknowledged {
                        request,
                        applied,
                    })),
            );
            return;
        }
        let Submission { canceller, answer } = self.parts.plugs.submit(&send, &writes);
        self.requests.insert(request, canceller);
        self.answer(async move { answer.await.into_input(request) });
    }

    fn take_body(&mut self, lane: LaneId, seq: u64) -> Option<Body> {
        self.bodies.get_mut(&lane.0)?.remove(&seq)
    }

    /// Tells the machine once `work` is durable. A failure is not told: nothing that depends on it
    /// may be sent, and the buffer or the ledger has said why.
    fn when_durable<E: std::fmt::Display>(
        &mut self,
        ticket: Ticket,
        work: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        self.spawn(async move {
            match work.await {
                Ok(()) => Some(Command::Input(Input::Durable { ticket })),
                Err(error) => {
                    tracing::error!(%error, "what delivery depends on could not be made durable");
                    None
                }
            }
        });
    }

    fn answer(&mut self, work: impl Future<Output = Input> + Send + 'static) {
        self.spawn(async move { Some(Command::Input(work.await)) });
    }

    fn spawn(&mut self, work: impl Future<Output = Option<Command>> + Send + 'static) {
        let commands = self.commands.clone();
        self.tasks.spawn(async move {
            if let Some(command) = work.await {
                drop(commands.send(command));
            }
        });
    }
}

/// Asks a handler about a write.
async fn ask(handler: &Handler, parker: &Parker, body: &Body, failure: &Failure) -> Decided {
    let message = match StoredWrite::decode(body.stored.clone()) {
        Ok(stored) => stored.message(),
        Err(why) => return Decided::Failed(why.to_string()),
    };
    let key = WriteKey(body.key);
    let unix = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    let report = Report {
        write_key: key.to_string(),
        message_id: message.id.to_string(),
        class: failure.class.to_owned(),
        code: failure.detail.code.clone(),
        message: parker.redacted(&failure.detail.message),
        may_have_landed: failure.maybe_applied,
        timed_out: failure.timed_out,
        attempts: failure.attempts,
        accepted_unix_ms: unix(body.created_unix_ms),
        first_attempt_unix_ms: unix(failure.first_attempt_unix_ms),
        last_attempt_unix_ms: unix(failure.last_attempt_unix_ms),
        ..handler.report()
    };
    handler.decide(report, &message, key).await
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

fn buffer_lane(lane: LaneId) -> consign_buffer::LaneId {
    consign_buffer::LaneId(lane.0)
}

fn state_of(note: WriteNote) -> consign_buffer::WriteState {
    consign_buffer::WriteState {
        attempts: note.attempts,
        first_maybe_unix_ms: (note.first_maybe_unix_ms > 0).then_some(note.first_maybe_unix_ms),
        spent_resends: note.spent_resends,
        open_gate_age_ms: note.open_gate_age_ms,
        first_attempt_unix_ms: note.first_attempt_unix_ms,
        sealed: note.sealed,
        flags: note.flags,
    }
}

fn note_of(state: &consign_buffer::WriteState) -> WriteNote {
    WriteNote {
        attempts: state.attempts,
        spent_resends: state.spent_resends,
        first_maybe_unix_ms: state.first_maybe_unix_ms.unwrap_or(0),
        first_attempt_unix_ms: state.first_attempt_unix_ms,
        open_gate_age_ms: state.open_gate_age_ms,
        sealed: state.sealed,
        flags: state.flags,
    }
}
