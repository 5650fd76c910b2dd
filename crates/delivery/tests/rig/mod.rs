//! A small driver for walks: the disk answers at once, sinks answer when the test says so.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "shared by several test binaries, none of which uses all of it; tests may panic"
)]

use consign_delivery::{
    Act, Applied, ConnectionConfig, ConnectionId, Delivery, Detail, DirectResult, Event, EventCode,
    FetchedWrite, HostLimits, Input, LaneConfig, LaneId, Outcome, Output, ParkReason, RequestId,
    Send, SettleResult, Settled, WriteNote,
};
use std::collections::{BTreeMap, VecDeque};

/// Wall time at monotonic 0.
pub const WALL0: u64 = 1_800_000_000_000;

/// A machine and what it asked for so far.
pub struct Rig {
    pub d: Delivery,
    pub now: u64,
    pub wall_shift: i64,
    pub pending: BTreeMap<u32, BTreeMap<u64, FetchedWrite>>,
    /// Requests not answered yet.
    pub sent: VecDeque<Send>,
    pub requests: u64,
    pub events: Vec<Event>,
    pub settled: BTreeMap<(u32, u64), Settled>,
    pub parked: BTreeMap<(u32, u64), ParkReason>,
    pub notes: BTreeMap<(u32, u64), WriteNote>,
    pub cancelled: Vec<RequestId>,
    pub probes: Vec<ConnectionId>,
    pub rebuilds: Vec<ConnectionId>,
    pub asked: Vec<(u32, u64)>,
    pub answers: BTreeMap<u64, DirectResult>,
    pub drained: Option<u32>,
    pub removed: Vec<LaneId>,
    /// Probes are answered with success at once.
    pub probes_pass: bool,
    /// Notes and settlements are durable at once; otherwise they wait in `tickets`.
    pub disk: bool,
    pub tickets: VecDeque<consign_delivery::Ticket>,
}

pub fn detail() -> Detail {
    Detail::new("test", "as the test says")
}

impl Rig {
    pub fn new(limits: HostLimits) -> Self {
        Self {
            d: Delivery::new(limits, 7),
            now: 0,
            wall_shift: 0,
            pending: BTreeMap::new(),
            sent: VecDeque::new(),
            requests: 0,
            events: Vec::new(),
            settled: BTreeMap::new(),
            parked: BTreeMap::new(),
            notes: BTreeMap::new(),
            cancelled: Vec::new(),
            probes: Vec::new(),
            rebuilds: Vec::new(),
            asked: Vec::new(),
            answers: BTreeMap::new(),
            drained: None,
            removed: Vec::new(),
            probes_pass: true,
            disk: true,
            tickets: VecDeque::new(),
        }
    }

    /// One connection, number 0, open.
    pub fn connected() -> Self {
        let mut rig = Self::new(HostLimits::default());
        rig.connect(0);
        rig
    }

    pub fn connect(&mut self, id: u32) {
        self.input(Input::AddConnection(ConnectionConfig::new(ConnectionId(
            id,
        ))));
    }

    pub fn lane(&mut self, cfg: LaneConfig) {
        self.pending.entry(cfg.id.0).or_default();
        self.input(Input::AddLane(Box::new(cfg)));
    }

    /// Commits writes `from..=to` to a lane, each with its own order key unless `order` is given.
    pub fn accept(&mut self, lane: u32, from: u64, to: u64, order: Option<u64>) {
        for seq in from..=to {
            self.store(
                lane,
                FetchedWrite {
                    seq,
                    order: order.unwrap_or(seq),
                    bytes: 100,
                    ..FetchedWrite::default()
                },
            );
        }
        self.input(Input::Available { lane: LaneId(lane) });
    }

    pub fn store(&mut self, lane: u32, write: FetchedWrite) {
        self.pending
            .entry(lane)
            .or_default()
            .insert(write.seq, write);
    }

    pub fn wall(&self) -> u64 {
        (WALL0 + self.now).saturating_add_signed(self.wall_shift)
    }

    pub fn input(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let wall = self.wall();
            self.d.handle(self.now, wall, input);
            let outputs: Vec<Output> = self.d.outputs().collect();
            for output in outputs {
                inputs.extend(self.take(output));
            }
        }
    }

    fn take(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Fetch {
                lane,
                after_seq,
                max_writes,
                ..
            } => {
                let all: Vec<FetchedWrite> = self.pending[&lane.0]
                    .range(after_seq + 1..)
                    .map(|(_, write)| *write)
                    .collect();
                let writes: Vec<FetchedWrite> =
                    all.iter().copied().take(max_writes as usize).collect();
                let more = writes.len() < all.len();
                return Some(Input::Fetched { lane, writes, more });
            }
            Output::Frontier { ticket, .. } => return self.durable(ticket),
            Output::Note {
                lane,
                notes,
                ticket,
            } => {
                for (seq, note) in notes {
                    self.notes.insert((lane.0, seq), note);
                }
                return self.durable(ticket);
            }
            Output::Settle {
                lane,
                writes,
                ticket,
                ..
            } => {
                for settled in writes {
                    self.pending.get_mut(&lane.0).unwrap().remove(&settled.seq);
                    let before = self.settled.insert((lane.0, settled.seq), settled);
                    assert_eq!(before, None, "settled twice");
                }
                return self.durable(ticket);
            }
            Output::Park {
                lane,
                seq,
                reason,
                ticket,
                ..
            } => {
                self.pending.get_mut(&lane.0).unwrap().remove(&seq);
                self.parked.insert((lane.0, seq), reason);
                return self.durable(ticket);
            }
            Output::Divert {
                lane, seq, ticket, ..
            } => {
                self.pending.get_mut(&lane.0).unwrap().remove(&seq);
                return self.durable(ticket);
            }
            Output::Send(send) => {
                self.requests += 1;
                self.sent.push_back(send);
            }
            Output::Cancel { request } => self.cancelled.push(request),
            Output::Probe { connection, .. } => {
                self.probes.push(connection);
                if self.probes_pass {
                    return Some(Input::Probed {
                        connection,
                        result: Ok(()),
                    });
                }
            }
            Output::Rebuild { connection } => self.rebuilds.push(connection),
            Output::Inspect { .. } => {}
            Output::AskHandler { lane, seq, .. } => self.asked.push((lane.0, seq)),
            Output::DirectAnswer { seq, result, .. } => {
                let before = self.answers.insert(seq, result);
                assert_eq!(before, None, "answered twice");
            }
            Output::Event(event) => self.events.push(event),
            Output::LaneRemoved { lane } => self.removed.push(lane),
            Output::Drained { unfinished } => self.drained = Some(unfinished),
        }
        None
    }

    fn durable(&mut self, ticket: consign_delivery::Ticket) -> Option<Input> {
        if self.disk {
            Some(Input::Durable { ticket })
        } else {
            self.tickets.push_back(ticket);
            None
        }
    }

    /// The oldest request that is not answered.
    pub fn next_sent(&mut self) -> Send {
        self.sent.pop_front().expect("a request is on its way")
    }

    /// Its write numbers.
    pub fn next_seqs(&mut self) -> (RequestId, Vec<u64>) {
        let send = self.next_sent();
        (send.request, seqs(&send))
    }

    pub fn answer(&mut self, request: RequestId, outcomes: Vec<Outcome>) {
        self.input(Input::Answered { request, outcomes });
    }

    /// Answers each write of the oldest request in the same way; gives back its numbers.
    pub fn answer_next(&mut self, outcome: &Outcome) -> Vec<u64> {
        let (request, seqs) = self.next_seqs();
        self.answer(request, vec![outcome.clone(); seqs.len()]);
        seqs
    }

    /// Lets time pass; each request is answered by `sink` at once.
    pub fn run(&mut self, until: u64, mut sink: impl FnMut(u64, u32, u64) -> Outcome) {
        loop {
            while let Some(send) = self.sent.pop_front() {
                let outcomes = seqs(&send)
                    .into_iter()
                    .map(|seq| sink(self.now, send.lane.0, seq))
                    .collect();
                self.answer(send.request, outcomes);
            }
            match self.d.next_wakeup() {
                Some(at) if at <= until => {
                    self.now = self.now.max(at);
                    self.input(Input::Tick);
                }
                _ => break,
            }
        }
        self.now = self.now.max(until);
    }

    /// Lets time pass with no answers.
    pub fn wait(&mut self, until: u64) {
        while let Some(at) = self.d.next_wakeup().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.input(Input::Tick);
        }
        self.now = self.now.max(until);
        self.input(Input::Tick);
    }

    /// Lets time pass until a request is on its way.
    pub fn wait_for_request(&mut self) {
        while self.sent.is_empty() {
            let at = self.d.next_wakeup().expect("something is waited for");
            self.now = self.now.max(at);
            self.input(Input::Tick);
        }
    }

    pub fn act(&mut self, act: Act) {
        self.input(Input::Operator(act));
    }

    pub fn acknowledge(&mut self, request: RequestId, applied: Applied) {
        self.input(Input::CancelAcknowledged { request, applied });
    }

    pub fn count(&self, code: EventCode) -> usize {
        self.events
            .iter()
            .filter(|event| event.code == code)
            .count()
    }

    pub fn result(&self, lane: u32, seq: u64) -> Option<SettleResult> {
        self.settled.get(&(lane, seq)).map(|settled| settled.result)
    }
}

pub fn seqs(send: &Send) -> Vec<u64> {
    send.items.iter().map(|item| item.seq).collect()
}
