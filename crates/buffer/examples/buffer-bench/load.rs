//! Producers of several kinds, and what they measured.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consign_buffer::inspect::Inspection;
use consign_buffer::{
    Acceptance, Accepting, Buffer, LaneId, LaneSpec, NewWrite, Options, Settlement, WhenFull,
};

use crate::limits::{Limits, Reading, Timed};
use crate::{Outcome, ms, percentile};

/// How much longer a load may take to reach its bytes.
const LONGEST: Duration = Duration::from_secs(60);

/// What producers do.
pub struct Load {
    lanes: usize,
    /// Acceptances that each has on its way.
    outstanding: usize,
    body: usize,
    /// Writes a second and lane; none = as fast as they are answered.
    pace: Option<u32>,
    /// Whether each write is settled at once, as while destinations answer.
    settled: bool,
    /// Bytes of bodies that are accepted at least, also when the time is over.
    least: u64,
}

impl Load {
    /// So many producers, each with so many writes on their way.
    pub fn closed(lanes: usize, outstanding: usize, body: usize) -> Load {
        Load {
            lanes,
            outstanding,
            body,
            pace: None,
            settled: true,
            least: 0,
        }
    }

    /// The same while no destination answers, until the log was filled several times: everything is spilled.
    pub fn outage(lanes: usize, outstanding: usize, body: usize) -> Load {
        Load {
            settled: false,
            least: 4 * Options::default().log_bytes,
            ..Load::closed(lanes, outstanding, body)
        }
    }

    /// Lanes that each get so many writes a second.
    pub fn paced(lanes: usize, per_s: u32, body: usize) -> Load {
        Load {
            pace: Some(per_s),
            ..Load::closed(lanes, 1, body)
        }
    }

    /// Runs it for so long.
    pub async fn run(&self, buffer: &Buffer, fs: &Timed, time: Duration) -> Outcome<Measured> {
        let before = buffer.totals().written_bytes;
        let accepted = Arc::new(AtomicU64::new(0));
        let reading = Reading::take(fs)?;
        let start = Instant::now();
        let mut tasks = Vec::new();
        for n in 0..self.lanes {
            let lane = lane(buffer, &format!("bench/{n}"))?;
            let producer = Producer {
                buffer: buffer.clone(),
                lane,
                body: Bytes::from(vec![5u8; self.body]),
                settled: self.settled,
                least: self.least,
                accepted: Arc::clone(&accepted),
            };
            let (outstanding, until) = (self.outstanding, start + time);
            // Spread over the period, as quiet lanes are.
            let pace = self.pace.map(|per_s| Duration::from_secs(1) / per_s);
            let offset = pace.map_or(Duration::ZERO, |p| p.mul_f64(n as f64 / self.lanes as f64));
            tasks.push(tokio::spawn(async move {
                match pace {
                    Some(pace) => producer.paced(start + offset, pace, until).await,
                    None => producer.closed(outstanding, until).await,
                }
            }));
        }
        let mut samples = Vec::new();
        for task in tasks {
            samples.append(&mut task.await??);
        }
        let elapsed = start.elapsed();
        let limits = reading.until(Reading::take(fs)?);
        samples.sort();
        let totals = buffer.totals();
        Ok(Measured {
            body: self.body,
            samples,
            elapsed,
            before,
            written: totals.written_bytes - before,
            per_flush: totals.records as f64 / totals.groups.max(1) as f64,
            spilled: (0, 0),
            limits,
        })
    }
}

fn lane(buffer: &Buffer, id: &str) -> Outcome<LaneId> {
    Ok(buffer.lane(LaneSpec {
        id: id.into(),
        formerly: Vec::new(),
        quota_bytes: 64 << 30,
        in_flight_limit: 64,
        when_full: WhenFull::Block,
    })?)
}

struct Producer {
    buffer: Buffer,
    lane: LaneId,
    body: Bytes,
    settled: bool,
    least: u64,
    /// Bytes of bodies, of all producers.
    accepted: Arc<AtomicU64>,
}

impl Producer {
    fn accept(&self) -> Outcome<Accepting> {
        let room = self
            .buffer
            .reserve(&[(self.lane, self.body.len() as u64)])?;
        let write = NewWrite {
            lane: self.lane,
            key: [1; 16],
            order: 0,
            body: self.body.clone(),
            created_unix_ms: 1,
            expires_unix_ms: None,
            children: Vec::new(),
        };
        let acceptance = Acceptance {
            writes: vec![write],
            ..Acceptance::default()
        };
        Ok(self.buffer.accept(room, acceptance))
    }

    fn goes_on(&self, until: Instant) -> bool {
        let now = Instant::now();
        let short = self.accepted.load(Ordering::Relaxed) < self.least;
        now < until || short && now < until + LONGEST
    }

    async fn answered(&self, accepting: Accepting) -> Outcome<()> {
        let numbers = accepting.await?;
        let bytes = self.body.len() as u64;
        self.accepted.fetch_add(bytes, Ordering::Relaxed);
        if self.settled {
            let settlements = numbers.into_iter().map(|(lane, seq)| Settlement {
                lane,
                seq,
                result: 1,
                release_children: true,
            });
            drop(self.buffer.settle(settlements.collect()));
        }
        Ok(())
    }

    async fn closed(&self, outstanding: usize, until: Instant) -> Outcome<Vec<Duration>> {
        let (mut samples, mut flying) = (Vec::new(), VecDeque::new());
        loop {
            while flying.len() < outstanding && self.goes_on(until) {
                flying.push_back((Instant::now(), self.accept()?));
            }
            let Some((begun, accepting)) = flying.pop_front() else {
                return Ok(samples);
            };
            self.answered(accepting).await?;
            samples.push(begun.elapsed());
        }
    }

    /// Latency counts from when the write was due: a late one does not hide behind the one before.
    async fn paced(
        &self,
        first: Instant,
        pace: Duration,
        until: Instant,
    ) -> Outcome<Vec<Duration>> {
        let (mut samples, mut due) = (Vec::new(), first);
        while due < until {
            tokio::time::sleep_until(due.into()).await;
            self.answered(self.accept()?).await?;
            samples.push(due.elapsed());
            due += pace;
        }
        Ok(samples)
    }
}

/// What producers measured.
pub struct Measured {
    body: usize,
    samples: Vec<Duration>,
    elapsed: Duration,
    before: u64,
    written: u64,
    per_flush: f64,
    /// Pending writes in spill files, and the bytes of those files.
    spilled: (u64, u64),
    /// What it was limited by.
    pub limits: Limits,
}

impl Measured {
    /// Writes a second.
    pub fn rate(&self) -> f64 {
        self.samples.len() as f64 / self.elapsed.as_secs_f64()
    }
    /// MiB of bodies a second.
    pub fn mib_s(&self) -> f64 {
        self.rate() * self.body as f64 / f64::from(1 << 20)
    }
    /// Half of the writes were answered within.
    pub fn p50(&self) -> Duration {
        percentile(&self.samples, 0.5)
    }
    /// 99 of a hundred were.
    pub fn p99(&self) -> Duration {
        percentile(&self.samples, 0.99)
    }
    /// Takes in what the run left in its folder, and what was written until the buffer was closed.
    pub fn look(&mut self, found: &Inspection, written: u64) {
        self.written = written - self.before;
        let pending: u64 = found.lanes.iter().map(|lane| lane.pending).sum();
        let bytes = found.lanes.iter().map(|lane| lane.spill_bytes).sum();
        self.spilled = (pending.saturating_sub(found.log_writes as u64), bytes);
    }
    /// Bytes written to the disk per byte of body accepted. What is still in the log is counted as if it were spilled,
    /// too, at the rate of what was.
    pub fn written(&self) -> f64 {
        let (writes, bytes) = self.spilled;
        let accepted = (self.samples.len() * self.body).max(1) as f64;
        let at_once = self.written.saturating_sub(bytes) as f64 / accepted;
        let later = bytes as f64 / (writes as f64 * self.body as f64).max(1.0);
        at_once + if writes > 0 { later } else { 0.0 }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "({:.0} writes/s, p50 {:.3} ms, p99 {:.3} ms, {:.1} records a flush; {})",
            self.rate(),
            ms(self.p50()),
            ms(self.p99()),
            self.per_flush,
            self.limits
        )
    }
}
