//! A model of the destinations: what they do to each request, under which fault.

use super::rng::SimRng;
use consign_delivery::{Detail, Outcome, RequestId};
use std::collections::{BTreeMap, BTreeSet};

/// What is wrong, while it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Connections are refused; probes fail.
    Down,
    /// Requests are carried out, answers are lost; probes fail.
    RepliesLost,
    /// Requests are lost; probes fail.
    RequestsLost,
    /// Probes pass, writes vanish: half of them are carried out.
    WritesVanish,
    /// The target answers 502; half of it is carried out.
    BadGateway,
    /// The target answers 500; half of it is carried out.
    ServerError,
    /// The target asks for a pause.
    Throttled,
    /// The target denies the credentials.
    DeniedTarget,
    /// The connection denies the credentials.
    DeniedConnection,
    /// The connection is cut in the middle of a batch.
    CutMidBatch,
    /// The plugin ignores cancels and may still write later.
    Hang,
    /// Lock conflicts.
    Conflict,
    /// Half of the answers lack rows, or have too many.
    OddAnswers,
}

impl Fault {
    pub const ALL: [Self; 13] = [
        Self::Down,
        Self::RepliesLost,
        Self::RequestsLost,
        Self::WritesVanish,
        Self::BadGateway,
        Self::ServerError,
        Self::Throttled,
        Self::DeniedTarget,
        Self::DeniedConnection,
        Self::CutMidBatch,
        Self::Hang,
        Self::Conflict,
        Self::OddAnswers,
    ];

    /// Whether other requests get through meanwhile: then a write may be taken for poison, by
    /// the rules.
    pub fn is_partial(self) -> bool {
        matches!(
            self,
            Self::Hang | Self::Conflict | Self::CutMidBatch | Self::OddAnswers
        )
    }

    /// Whether it strikes a target rather than a whole connection.
    pub fn of_target(self) -> bool {
        matches!(
            self,
            Self::BadGateway
                | Self::ServerError
                | Self::Throttled
                | Self::DeniedTarget
                | Self::Conflict
        )
    }
}

/// What is wrong with a payload, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Poison {
    Refused,
    ServerError,
    BadGateway,
    Denied,
    Silent,
    /// The plugin makes the process crash on it.
    Abort,
}

/// How a lane's destination takes writes.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    pub atomic: bool,
    pub prefix: bool,
    /// It drops a repeat within this time.
    pub dedup_ms: Option<u64>,
    pub latency_ms: u64,
    /// It never says that a write is there: what was handed over may vanish.
    pub unconfirmed: bool,
}

/// What will become of one request.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Writes that take effect, and when.
    pub apply: Vec<u64>,
    pub apply_at: u64,
    /// The answer, and when it comes.
    pub reply: Option<(u64, Vec<Outcome>)>,
    /// Acknowledges a cancel.
    pub cancellable: bool,
}

/// Effects at the destinations, as an independent reader counts them.
#[derive(Debug, Default)]
pub struct Effects {
    /// Times each write took effect.
    pub copies: BTreeMap<(u32, u64), u32>,
    first_ms: BTreeMap<(u32, String, u32, u64), u64>,
    /// Effects that came outside the window.
    pub outside_window: BTreeSet<(u32, u64)>,
}

impl Effects {
    /// Carries out one write; `true` if the destination knew it and dropped it.
    pub fn apply(
        &mut self,
        place: &(u32, String),
        lane: u32,
        seq: u64,
        dedup_ms: Option<u64>,
        now: u64,
    ) -> bool {
        let id = (lane, seq);
        // One target knows nothing of what another one took.
        let at_place = (place.0, place.1.clone(), lane, seq);
        if let (Some(window), Some(first)) = (dedup_ms, self.first_ms.get(&at_place).copied()) {
            if now.saturating_sub(first) < window {
                return true;
            }
            self.outside_window.insert(id);
        }
        self.first_ms.insert(at_place, now);
        *self.copies.entry(id).or_default() += 1;
        false
    }

    pub fn copies_of(&self, lane: u32, seq: u64) -> u32 {
        self.copies.get(&(lane, seq)).copied().unwrap_or(0)
    }
}

fn detail(code: &str) -> Detail {
    Detail::new(code, "simulated")
}

/// Decides what becomes of a request of `seqs`, under the faults that strike it now.
#[allow(clippy::too_many_arguments)]
pub fn plan(
    rng: &mut SimRng,
    now: u64,
    _request: RequestId,
    seqs: &[u64],
    manners: Manners,
    faults: &BTreeSet<Fault>,
    poison: impl Fn(u64) -> Option<Poison>,
) -> Plan {
    let mut plan = confirmed(rng, now, seqs, manners, faults, poison);
    if !manners.unconfirmed {
        return plan;
    }
    // What a system takes for a peer that is not there any more counts as handed over too.
    let lost = faults.contains(&Fault::RequestsLost) || faults.contains(&Fault::RepliesLost);
    if lost && !faults.contains(&Fault::Down) && plan.reply.is_none() && plan.cancellable {
        plan.reply = Some((now + 1, vec![Outcome::delivered(); seqs.len()]));
        plan.apply_at = now;
    }
    for outcome in plan.reply.iter_mut().flat_map(|(_, outcomes)| outcomes) {
        if *outcome == Outcome::delivered() {
            *outcome = Outcome::sent_unconfirmed();
        }
    }
    plan
}

/// As of a destination that confirms.
fn confirmed(
    rng: &mut SimRng,
    now: u64,
    seqs: &[u64],
    manners: Manners,
    faults: &BTreeSet<Fault>,
    poison: impl Fn(u64) -> Option<Poison>,
) -> Plan {
    let lat = rng.between(1, manners.latency_ms.max(1));
    let mid = now + lat / 2;
    let done = now + lat;
    let all = || seqs.to_vec();
    let some = |rng: &mut SimRng| -> Vec<u64> {
        if manners.atomic {
            if rng.chance(50) { all() } else { Vec::new() }
        } else {
            let cut = rng.below(seqs.len() as u64 + 1) as usize;
            seqs[..cut].to_vec()
        }
    };
    let same = |outcome: Outcome| vec![outcome; seqs.len()];
    let quiet = |apply: Vec<u64>, cancellable: bool, at: u64| Plan {
        apply,
        apply_at: at,
        reply: None,
        cancellable,
    };
    let says = |apply: Vec<u64>, outcomes: Vec<Outcome>| Plan {
        apply,
        apply_at: mid,
        reply: Some((done, outcomes)),
        cancellable: true,
    };
    if faults.contains(&Fault::Down) {
        return says(
            Vec::new(),
            same(Outcome::down(detail("refused_connection"))),
        );
    }
    if faults.contains(&Fault::Hang) && rng.chance(50) {
        let mut hung = quiet(some(rng), false, now + rng.between(1, 20_000));
        if rng.chance(50) {
            let at = now + rng.between(15_000, 60_000);
            hung.reply = Some((at, same(Outcome::delivered())));
            hung.apply = all();
            hung.apply_at = at - 1;
        }
        return hung;
    }
    if faults.contains(&Fault::RepliesLost) {
        return quiet(all(), true, mid);
    }
    if faults.contains(&Fault::RequestsLost) {
        return quiet(Vec::new(), true, mid);
    }
    if faults.contains(&Fault::WritesVanish) {
        let apply = some(rng);
        return if rng.chance(50) {
            quiet(apply, true, mid)
        } else {
            says(apply, same(Outcome::unknown(detail("reset"))))
        };
    }
    if faults.contains(&Fault::DeniedConnection) {
        return says(Vec::new(), same(Outcome::denied_connection(detail("401"))));
    }
    if faults.contains(&Fault::DeniedTarget) {
        return says(Vec::new(), same(Outcome::denied(detail("403"))));
    }
    if faults.contains(&Fault::Throttled) {
        let after = rng.pick(&[0, 1_000, 60_000, 90_000_000]);
        return says(Vec::new(), same(Outcome::throttled(after)));
    }
    if faults.contains(&Fault::BadGateway) {
        return says(some(rng), same(Outcome::target_failed(detail("502"))));
    }
    if faults.contains(&Fault::ServerError) {
        return says(some(rng), same(Outcome::failed_maybe(detail("500"))));
    }
    if faults.contains(&Fault::Conflict) && rng.chance(70) {
        return says(Vec::new(), same(Outcome::retry(detail("conflict"))));
    }
    if faults.contains(&Fault::CutMidBatch) && rng.chance(60) {
        let apply = some(rng);
        let known = rng.below(apply.len() as u64 + 1) as usize;
        let outcomes = seqs
            .iter()
            .enumerate()
            .map(|(at, _)| {
                if at < known && !manners.atomic {
                    Outcome::delivered()
                } else {
                    Outcome::unknown(detail("cut"))
                }
            })
            .collect();
        return says(apply, outcomes);
    }
    let mut plan = sound(rng, seqs, manners, mid, done, poison);
    if faults.contains(&Fault::OddAnswers)
        && rng.chance(50)
        && let Some((_, outcomes)) = &mut plan.reply
    {
        if rng.chance(50) {
            outcomes.pop();
        } else {
            outcomes.push(Outcome::refused(detail("surplus")));
        }
    }
    plan
}

/// A destination in order; payloads may be poison.
fn sound(
    _rng: &mut SimRng,
    seqs: &[u64],
    manners: Manners,
    mid: u64,
    done: u64,
    poison: impl Fn(u64) -> Option<Poison>,
) -> Plan {
    let mut apply = Vec::new();
    let mut outcomes = Vec::new();
    let mut silent = false;
    let says = |poison: Poison| match poison {
        Poison::Refused => Outcome::refused(detail("422")),
        Poison::ServerError => Outcome::failed_maybe(detail("500")),
        Poison::BadGateway => Outcome::target_failed(detail("502")),
        Poison::Denied => Outcome::denied(detail("403")),
        Poison::Silent | Poison::Abort => Outcome::unknown(detail("reset")),
    };
    let first = seqs.iter().find_map(|seq| poison(*seq));
    for seq in seqs {
        let bad = if manners.atomic { first } else { poison(*seq) };
        if manners.prefix && outcomes.iter().any(|o| *o != Outcome::delivered()) {
            outcomes.push(Outcome::retry(detail("after_failure")));
            continue;
        }
        match bad {
            None => {
                apply.push(*seq);
                outcomes.push(Outcome::delivered());
            }
            Some(bad @ (Poison::Silent | Poison::Abort)) => {
                silent = true;
                outcomes.push(says(bad));
            }
            Some(bad) => outcomes.push(says(bad)),
        }
    }
    Plan {
        apply,
        apply_at: mid,
        reply: (!silent || seqs.len() > 1).then_some((done, outcomes)),
        cancellable: true,
    }
}
