//! The process side of the world: it carries out what the machine wants, dies and starts again.

use super::dest::{self, Fault};
use super::model::Op;
use super::{Ev, Live, World};
use consign_delivery::{
    Applied, ConnectionId, Decision, Delivery, Detail, DirectResult, DirectWrite, EventCode, Input,
    LaneId, Order, Outcome, Output, ProbeFailure, RequestId, SettleResult, Ticket,
};
use std::collections::BTreeSet;

impl World {
    pub fn carry_out(&mut self, output: Output) {
        match output {
            Output::Fetch {
                lane,
                after_seq,
                max_writes,
                max_bytes,
            } => {
                let at = self.now + self.rng.between(0, 3);
                self.later(
                    at,
                    Ev::Fetched {
                        lane: lane.0,
                        after: after_seq,
                        writes: max_writes,
                        bytes: max_bytes,
                    },
                );
            }
            Output::Frontier {
                lane,
                seq,
                wall_unix_ms,
                ticket,
            } => self.enqueue(
                ticket,
                Op::Frontier {
                    lane: lane.0,
                    seq,
                    wall: wall_unix_ms,
                },
            ),
            Output::Note {
                lane,
                notes,
                ticket,
            } => self.enqueue(
                ticket,
                Op::Notes {
                    lane: lane.0,
                    notes,
                },
            ),
            Output::Settle {
                lane,
                writes,
                ticket,
                ..
            } => {
                let writes: Vec<_> = writes
                    .iter()
                    .map(|settled| (settled.seq, settled.result))
                    .collect();
                for (_, result) in &writes {
                    *self.handed_out.entry((lane.0, *result)).or_default() += 1;
                }
                self.enqueue(
                    ticket,
                    Op::Settle {
                        lane: lane.0,
                        writes,
                    },
                );
            }
            Output::Park {
                lane,
                seq,
                reason,
                ticket,
                ..
            } => {
                self.parked.insert((lane.0, seq), reason);
                *self
                    .handed_out
                    .entry((lane.0, SettleResult::Parked))
                    .or_default() += 1;
                let writes = vec![(seq, SettleResult::Parked)];
                self.enqueue(
                    ticket,
                    Op::Settle {
                        lane: lane.0,
                        writes,
                    },
                );
            }
            Output::Divert {
                lane, seq, ticket, ..
            } => {
                *self
                    .handed_out
                    .entry((lane.0, SettleResult::Diverted))
                    .or_default() += 1;
                let writes = vec![(seq, SettleResult::Diverted)];
                self.enqueue(
                    ticket,
                    Op::Settle {
                        lane: lane.0,
                        writes,
                    },
                );
            }
            Output::Send(send) => self.take_request(send),
            Output::Cancel { request } => {
                let cancellable = self
                    .live
                    .get(&request)
                    .is_some_and(|live| live.plan.cancellable);
                if cancellable {
                    let at = self.now + self.rng.between(1, 500);
                    self.later(at, Ev::CancelAck(request));
                }
            }
            Output::Probe { connection, .. } => {
                let at = self.now + self.rng.between(1, 50);
                self.later(at, Ev::Probed(connection.0));
            }
            Output::Rebuild { connection } => {
                let at = self.now + self.rng.between(1, 2_000);
                self.later(at, Ev::Rebuilt(connection.0));
            }
            Output::Inspect { lane } => {
                let at = self.now + self.rng.between(0, 50);
                self.later(at, Ev::Inspected(lane));
            }
            Output::AskHandler { lane, seq, .. } => {
                let at = self.now + self.rng.between(1, 100);
                self.later(at, Ev::Decided { lane: lane.0, seq });
            }
            Output::DirectAnswer { lane, seq, result } => self.direct_answered(lane.0, seq, result),
            Output::Event(event) => {
                *self.events.entry(event.code).or_default() += 1;
                // An event has its time, and that of a clock that went back where it came from.
                let came_from = match event.code {
                    EventCode::ClockWentBack => self.last_wall,
                    _ => 0,
                };
                self.logged_wall = self.logged_wall.max(self.wall()).max(came_from);
                // And what was first sent before is older by that.
                let back = came_from.saturating_sub(self.wall());
                for sent in self.direct_sent.values_mut() {
                    *sent = sent.saturating_sub(back);
                }
                if let Some(lane) = event.lane {
                    self.lane_events.insert((lane.0, event.code));
                }
            }
            Output::LaneRemoved { lane } => {
                self.lane_removed(lane.0);
            }
            Output::Drained { unfinished } => self.drained = Some(unfinished),
        }
    }

    pub fn take_request(&mut self, send: consign_delivery::Send) {
        let lane = send.lane.0;
        let seqs: Vec<u64> = send.items.iter().map(|item| item.seq).collect();
        self.check_send(&send, &seqs);
        let spec = &self.lanes[&lane];
        let (target, order) = (spec.cfg.target.clone(), spec.cfg.order);
        let (manners, poison) = (spec.manners, spec.poison.clone());
        let faults = self.faults_of(send.connection.0, &target);
        let plan = dest::plan(
            &mut self.rng,
            self.now,
            send.request,
            &seqs,
            manners,
            &faults,
            |seq| poison.get(&seq).copied(),
        );
        let canary = self.is_canary(send.connection.0);
        if faults.iter().any(|fault| fault.is_partial()) {
            self.browned.extend(seqs.iter().map(|seq| (lane, *seq)));
        }
        let apply_at = plan.apply_at;
        self.later(apply_at, Ev::Apply(send.request));
        if let Some((at, _)) = plan.reply {
            self.later(at, Ev::Reply(send.request));
        }
        if let Some(seq) = seqs
            .iter()
            .copied()
            .find(|seq| poison.get(seq) == Some(&dest::Poison::Abort))
        {
            // The plugin dies on it as soon as it looks at the batch.
            let at = self.now + self.rng.between(0, 3);
            self.later(at, Ev::Abort(lane, seq));
        }
        self.sends.push((self.now, lane, seqs.clone()));
        self.live.insert(
            send.request,
            Live {
                lane,
                connection: send.connection.0,
                target,
                seqs,
                plan,
                applied: false,
                fenced: false,
                canary,
                order,
            },
        );
    }

    pub fn apply(&mut self, id: RequestId) {
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        if live.applied {
            return;
        }
        live.applied = true;
        let (lane, seqs, fenced) = (live.lane, live.plan.apply.clone(), live.fenced);
        let (order, place) = (live.order, (live.connection, live.target.clone()));
        let dedup = self.lanes[&lane].manners.dedup_ms;
        for seq in seqs {
            self.check_order(lane, seq, fenced, order);
            let repeat = self.effects.apply(&place, lane, seq, dedup, self.now);
            self.say(|| {
                format!(
                    "   * {lane}/{seq} takes effect{}",
                    if repeat { " (dropped)" } else { "" }
                )
            });
        }
    }

    pub fn reply(&mut self, id: RequestId) {
        self.apply(id);
        let Some(live) = self.live.remove(&id) else {
            return;
        };
        let outcomes = live.plan.reply.clone().map(|(_, o)| o).unwrap_or_default();
        if !live.fenced {
            self.count_answer(&live, &outcomes);
        } else {
            self.count_place("LateAnswer", live.connection, Some(live.lane));
        }
        let ends = |outcome: &Outcome| {
            outcome.applied == Applied::YES || outcome.applied == Applied::HANDED_OVER
        };
        if live.fenced && outcomes.iter().any(ends) {
            self.target_delivered(&live);
        }
        self.input(Input::Answered {
            request: id,
            outcomes,
        });
    }

    pub fn acknowledge_cancel(&mut self, id: RequestId) {
        let Some(live) = self.live.remove(&id) else {
            return;
        };
        let applied = if live.applied && live.plan.apply.len() == live.seqs.len() {
            if self.faults_of(live.connection, &live.target).is_empty() && self.rng.chance(5) {
                Applied::YES
            } else {
                Applied::MAYBE
            }
        } else if live.plan.apply.is_empty() && self.rng.chance(10) {
            Applied::NO
        } else {
            Applied::MAYBE
        };
        let outcome = match applied {
            Applied::YES => Outcome::delivered(),
            Applied::NO => Outcome::retry(Detail::default()),
            _ => Outcome::unknown(Detail::default()),
        };
        let outcomes = vec![outcome; live.seqs.len()];
        self.count_answer(&live, &outcomes);
        self.input(Input::CancelAcknowledged {
            request: id,
            applied,
        });
    }

    pub fn rebuilt(&mut self, connection: u32) {
        let fenced: Vec<RequestId> = self
            .live
            .iter()
            .filter(|(_, live)| live.connection == connection && !live.fenced)
            .map(|(id, _)| *id)
            .collect();
        for id in fenced {
            let live = self.live.get_mut(&id).unwrap();
            live.fenced = true;
            let live = live.clone();
            for seq in &live.seqs {
                self.order_broken.insert((live.lane, *seq));
            }
            let outcomes = vec![Outcome::unknown(Detail::default()); live.seqs.len()];
            self.count_answer(&live, &outcomes);
        }
        self.input(Input::Rebuilt {
            connection: ConnectionId(connection),
        });
    }

    pub fn direct_answered(&mut self, lane: u32, seq: u64, result: DirectResult) {
        let id = (lane, seq);
        match self.direct.get(&id) {
            Some(None) => {}
            other => self.violate(format!("direct {lane}/{seq} answered twice: {other:?}")),
        }
        if matches!(result, DirectResult::Withdrawn { .. })
            && self.reloads.awaits.contains_key(&lane)
        {
            // A reload gave it back; its source hands it over again to the lane's next form.
            if self.direct_sent.contains_key(&id) {
                let exit = (u32::MAX - 1, 1_000_000 + self.reloads.done);
                self.interruptions.entry(id).or_default().insert(exit);
            }
            return;
        }
        let accepted = matches!(result, DirectResult::Delivered { .. });
        if accepted && self.effects.copies_of(lane, seq) == 0 {
            self.violate(format!("direct {lane}/{seq} accepted and not there"));
        }
        let code = if accepted {
            SettleResult::Delivered
        } else {
            SettleResult::Skipped
        };
        let stored = self.buffer.lanes.get_mut(&lane).unwrap();
        stored.pending.remove(&seq);
        stored.settled.insert(seq, code);
        self.direct.insert(id, Some(result));
    }

    /// The host dies; what was not synced is gone.
    pub fn crash(&mut self) {
        self.say(|| "=== crash".into());
        self.crashes += 1;
        let crash = (u32::MAX, self.crashes);
        // Some of what was on its way to disk got there.
        let durable = self.rng.below(self.buffer.queue.len() as u64 + 1);
        for _ in 0..durable {
            self.buffer.commit_one();
        }
        let mut struck: BTreeSet<(u32, u64)> = self.buffer.undurable().into_iter().collect();
        for (_, live) in std::mem::take(&mut self.live) {
            struck.extend(live.seqs.iter().map(|seq| (live.lane, *seq)));
            if !live.applied && self.rng.chance(50) {
                let dedup = self.lanes[&live.lane].manners.dedup_ms;
                let place = (live.connection, live.target.clone());
                for seq in &live.plan.apply {
                    self.check_order(live.lane, *seq, live.fenced, live.order);
                    self.effects.apply(&place, live.lane, *seq, dedup, self.now);
                    if live.fenced {
                        self.fenced_unheard.insert((live.lane, *seq));
                    }
                    self.say(|| format!("   * {}/{seq} takes effect", live.lane));
                }
            }
        }
        // A person may have spoken of a write that was not there yet.
        struck.retain(|(lane, seq)| *seq <= self.buffer.lanes[lane].last_seq);
        for id in struck {
            self.interruptions.entry(id).or_default().insert(crash);
        }
        self.buffer.crash();
        self.start_again();
    }

    /// A new process on the durable state.
    pub fn start_again(&mut self) {
        self.epoch += 1;
        // A source hands over again what was not accepted: for a direct send that is one more
        // interruption, whatever kind of exit it was.
        let exit = (u32::MAX - 1, self.epoch);
        let open: Vec<(u32, u64)> = self.direct_sent.keys().copied().collect();
        for id in open {
            if self.direct.get(&id) == Some(&None) {
                self.interruptions.entry(id).or_default().insert(exit);
            }
        }
        self.live.clear();
        self.drained = None;
        self.last_commit = self.now;
        let seed = self.rng.next();
        self.d = Delivery::new(self.limits.clone(), seed);
        self.plant();
        for cfg in self.connections.clone() {
            self.input(Input::AddConnection(cfg));
        }
        self.reloads.awaits.clear();
        let ids: Vec<u32> = self.lanes.keys().copied().collect();
        for id in ids {
            self.take_up_configured(id);
            if !self.reloads.absent.contains(&id) {
                self.put_back(id);
            }
        }
    }

    pub fn plant(&mut self) {
        if let Some(bug) = self.bug {
            self.d.plant(bug);
        }
    }

    pub fn put_back(&mut self, id: u32) {
        let mut cfg = self.lanes[&id].cfg.clone();
        let stored = &self.buffer.lanes[&id];
        cfg.frontier = stored.frontier();
        cfg.frontier_wall_unix_ms = stored.frontiers.iter().map(|(_, w)| *w).max().unwrap_or(0);
        if cfg.direct.is_some() {
            cfg.frontier_wall_unix_ms = self.logged_wall;
        }
        cfg.held_keys = self.held_keys(id);
        cfg.moved_below = self.reloads.moved_below.get(&id).copied().unwrap_or(0);
        cfg.crash_suspects = self
            .suspects
            .iter()
            .filter(|(lane, _)| *lane == id)
            .map(|(_, seq)| *seq)
            .collect();
        cfg.crash_alone = self
            .aborts
            .last()
            .into_iter()
            .flatten()
            .filter(|(lane, _)| *lane == id)
            .map(|(_, seq)| *seq)
            .collect();
        self.handed_out.retain(|(lane, _), _| *lane != id);
        let direct = cfg.direct.is_some();
        self.input(Input::AddLane(Box::new(cfg)));
        if direct {
            let open: Vec<u64> = self.buffer.lanes[&id].pending.keys().copied().collect();
            for seq in open {
                let maybe = self.direct_sent.get(&(id, seq)).copied();
                self.hand_over_direct(id, seq, maybe);
            }
        }
    }

    /// Order keys of parked writes nobody has resolved.
    pub fn held_keys(&self, id: u32) -> Vec<u64> {
        let spec = &self.lanes[&id];
        if spec.cfg.after_park != consign_delivery::AfterPark::HoldKey
            || spec.cfg.order == Order::None
        {
            return Vec::new();
        }
        self.parked
            .keys()
            .filter(|(lane, seq)| {
                *lane == id
                    && self.buffer.lanes[&id].settled.get(seq) == Some(&SettleResult::Parked)
                    && !self.resolved.contains(&(id, *seq))
            })
            .map(|(_, seq)| match spec.cfg.order {
                Order::ByKey => self.order_of(id, *seq),
                _ => 0,
            })
            .collect()
    }

    /// Something joins the queue to the disk.
    pub fn enqueue(&mut self, ticket: Ticket, op: Op) {
        self.buffer.queue.push_back((ticket.0, op));
        let at = (self.now + self.rng.between(1, 12)).max(self.last_commit);
        self.last_commit = at;
        self.later(at, Ev::Commit);
    }

    pub fn probe(&mut self, connection: u32) -> Result<(), ProbeFailure> {
        let faults = self.faults_of(connection, "");
        let detail = Detail::new("probe", "simulated");
        if faults.contains(&Fault::DeniedConnection) {
            return Err(ProbeFailure {
                denied: true,
                detail,
            });
        }
        let silent = [Fault::Down, Fault::RepliesLost, Fault::RequestsLost];
        if silent.iter().any(|fault| faults.contains(fault)) {
            return Err(ProbeFailure {
                denied: false,
                detail,
            });
        }
        Ok(())
    }

    pub fn decide(&mut self) -> Decision {
        if let Some(decision) = &self.handler {
            return decision.clone();
        }
        match self.rng.below(12) {
            0 => Decision::Retry { after_ms: 1_000 },
            1 => Decision::Failed,
            2 | 3 => Decision::Skip,
            4 => Decision::Divert {
                target: "elsewhere".into(),
            },
            _ => Decision::Park {
                reason: "by the handler".into(),
            },
        }
    }

    pub fn hand_over_direct(&mut self, lane: u32, seq: u64, maybe: Option<u64>) {
        let stored = self.buffer.lanes[&lane].pending[&seq].clone();
        self.input(Input::Direct {
            lane: LaneId(lane),
            write: DirectWrite {
                seq,
                order: stored.order,
                bytes: stored.bytes,
                maybe_since_unix_ms: maybe,
                ..DirectWrite::default()
            },
        });
    }
}
