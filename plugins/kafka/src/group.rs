//! The consumer on its own thread: polls, hands records over, commits, and notices what goes wrong.

use crate::config::ConsumeConfig;
use crate::connection::{Kafka, of_creation};
use crate::incoming::Record;
use crate::member::{Events, MemberConsumer, QUESTION_WAIT, Revoked, Shared};
use crate::outcome::failure;
use crate::tracker::Key;
use crate::watchdog::Watchdog;
use consign_plugin::prelude::*;
use futures::FutureExt as _;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;

/// How long a poll waits for a record, and how long one may wait for a settlement to be committed.
const POLL: Duration = Duration::from_millis(100);

/// The same while partitions are paused: credit should be noticed soon.
const POLL_PAUSED: Duration = Duration::from_millis(20);

/// How long credit is waited for before partitions are paused: pausing drops what was fetched ahead.
const CREDIT_WAIT: Duration = Duration::from_millis(300);

/// Memory of the library for records fetched ahead of the host's credit, and its aim in records.
const FETCHED_AHEAD_KIB: &str = "16384";
const FETCHED_AHEAD_RECORDS: &str = "1000";

/// What a broker is asked for at a time; a larger record comes alone.
const FETCH_BYTES: &str = "16777216";

/// A response of a broker may be this long; records are bounded by the broker.
const LARGEST_RESPONSE_BYTES: &str = "1000000000";

/// Brokers that stay away this long end the run, so that the host says so.
const DOWN_AFTER: Duration = Duration::from_secs(5);

/// A record that the host gave back without a stop or a rebalance ends the run after this.
const GIVEN_BACK_WAIT: Duration = Duration::from_secs(5);

/// How often the watchdog looks.
const WATCH: Duration = Duration::from_secs(1);

/// How long a stop waits for the member to leave its group.
const LEAVE_WAIT: Duration = Duration::from_secs(3);

/// One member of a group.
pub(crate) struct Group {
    kafka: Arc<Kafka>,
    config: ConsumeConfig,
    deliverer: Deliverer,
    shared: Arc<Shared>,
    revoked: UnboundedSender<Revoked>,
}

/// What the polling loop knows.
struct Loop<'a> {
    group: &'a Group,
    consumer: &'a MemberConsumer,
    handle: &'a Handle,
    /// A record for which there is no credit.
    pending: Option<Record>,
    /// Whether partitions are paused, and which assignment that was.
    paused: Option<u64>,
    commit_at: Instant,
    down_since: Option<Instant>,
    watch_at: Instant,
    watchdog: Watchdog,
}

impl Group {
    pub(crate) fn new(
        kafka: Arc<Kafka>,
        config: ConsumeConfig,
        deliverer: Deliverer,
        shared: Arc<Shared>,
        revoked: UnboundedSender<Revoked>,
    ) -> Self {
        Self {
            kafka,
            config,
            deliverer,
            shared,
            revoked,
        }
    }

    /// Joins the group and hands records over until told to stop. Blocks.
    pub(crate) fn run(self, handle: &Handle) -> Result<(), Failure> {
        let consumer = self.consumer()?;
        let topics: Vec<&str> = self.config.topics.iter().map(String::as_str).collect();
        consumer
            .subscribe(&topics)
            .map_err(|error| Failure::config(("topics", error.to_string())))?;
        let mut polling = Loop {
            group: &self,
            consumer: &consumer,
            handle,
            pending: None,
            paused: None,
            commit_at: Instant::now(),
            down_since: None,
            watch_at: Instant::now(),
            watchdog: Watchdog::default(),
        };
        let mut ended = polling.run();
        let away = polling.down_since.is_some();
        // From here on a rebalance asks nobody.
        self.shared.stop.store(true, Ordering::Release);
        if !away {
            let committed = consumer.context().commit(&consumer);
            ended = ended.and(committed);
        }
        self.leave(consumer);
        ended
    }

    fn consumer(&self) -> Result<MemberConsumer, Failure> {
        let isolation = if self.config.read_uncommitted {
            "read_uncommitted"
        } else {
            "read_committed"
        };
        let session_ms = self.config.session_timeout.get().as_millis();
        let mut client = self.kafka.client_config();
        client
            .set("group.id", &self.config.group)
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", session_ms.to_string())
            .set(
                "heartbeat.interval.ms",
                (session_ms / 4).clamp(1, 3000).to_string(),
            )
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // A position is always given; one that is out of range is for a person.
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("isolation.level", isolation)
            .set("check.crcs", "true")
            .set("queued.max.messages.kbytes", FETCHED_AHEAD_KIB)
            .set("queued.min.messages", FETCHED_AHEAD_RECORDS)
            .set("fetch.max.bytes", FETCH_BYTES)
            .set("receive.message.max.bytes", LARGEST_RESPONSE_BYTES);
        let events = Events::new(
            Arc::clone(&self.shared),
            self.config.start,
            self.revoked.clone(),
        );
        client
            .create_with_context(events)
            .map_err(|error| of_creation(&error))
    }

    /// Leaves the group. Where no broker answers that takes long, and nobody need wait for it.
    fn leave(&self, consumer: MemberConsumer) {
        let (left, gone) = std::sync::mpsc::channel::<()>();
        self.kafka.disposals().drop_later((consumer, left));
        // The end of the channel is the end of the consumer.
        let _ = gone.recv_timeout(LEAVE_WAIT);
    }
}

impl Loop<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let events = self.consumer.context();
        while !self.group.shared.is_stopped() {
            if let Some(failure) = events.take_failure() {
                return Err(failure);
            }
            self.check_given_back()?;
            let room = self.hand_over_pending();
            self.pause(!room)?;
            let wait = if room { POLL } else { POLL_PAUSED };
            match self.consumer.poll(wait) {
                Some(Ok(message)) => self.took(&message),
                Some(Err(error)) => self.trouble(&error)?,
                None => {}
            }
            self.commit()?;
            self.check_down()?;
            self.watch()?;
        }
        Ok(())
    }

    /// Hands the waiting record over once there is credit; whether there is room for another one.
    fn hand_over_pending(&mut self) -> bool {
        let deliverer = &self.group.deliverer;
        if let Some(record) = self.pending.take() {
            if self.paused.is_none() && !deliverer.has_credit() {
                let ready = tokio::time::timeout(CREDIT_WAIT, deliverer.ready());
                // Whatever came of it is asked for below.
                drop(self.handle.block_on(ready));
            }
            self.pending = self.hand_over(record);
        }
        self.pending.is_none() && deliverer.has_credit()
    }

    /// Hands one record over; gives it back where there is no credit for it.
    fn hand_over(&mut self, record: Record) -> Option<Record> {
        let deliverer = &self.group.deliverer;
        if !deliverer.has_credit() {
            return Some(record);
        }
        let (place, partition) = {
            let mut tracker = self.group.shared.tracker.lock();
            // Taken away meanwhile: it comes to whoever has the partition now.
            let place = tracker.take(&record.key, record.offset)?;
            let partition = tracker.get(&record.key)?.name(&record.key);
            (place, partition)
        };
        let message = record.message(&partition, &self.group.config, place.clone());
        // With credit this never waits, unless the host paused the source this very moment.
        match deliverer.deliver(vec![message]).now_or_never() {
            Some(_) => None,
            None => {
                self.group.shared.tracker.lock().put_back(&place);
                Some(record)
            }
        }
    }

    fn took(&mut self, message: &BorrowedMessage<'_>) {
        self.consumer.context().signals.clear();
        self.down_since = None;
        let record = Record::of(message);
        self.watchdog
            .record(&record.key, record.offset, Instant::now());
        self.pending = self.hand_over(record);
    }

    /// Pauses or resumes all partitions; those that were assigned since as well.
    fn pause(&mut self, pause: bool) -> Result<(), Failure> {
        let assigned = self.consumer.context().assignments();
        let as_wanted = if pause {
            self.paused == Some(assigned)
        } else {
            self.paused.is_none()
        };
        if as_wanted {
            return Ok(());
        }
        let done = self.consumer.assignment().and_then(|partitions| {
            if pause {
                self.consumer.pause(&partitions)
            } else {
                self.consumer.resume(&partitions)
            }
        });
        done.map_err(|error| Failure::other(("pause", error.to_string())))?;
        self.paused = pause.then_some(assigned);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if now < self.commit_at || self.down_since.is_some() {
            return Ok(());
        }
        self.commit_at = now + self.group.config.commit_interval.get();
        match self.consumer.context().commit(self.consumer) {
            // Whether the brokers are away is found out, and told, by who looks after that.
            Err(failure) if failure.kind == FailureKind::Down => {
                tracing::debug!("offsets were not committed: {failure}");
                self.down_since.get_or_insert_with(Instant::now);
                Ok(())
            }
            done => done,
        }
    }

    fn trouble(&mut self, error: &KafkaError) -> Result<(), Failure> {
        if let KafkaError::PartitionEOF(partition) = error {
            self.down_since = None;
            self.watchdog.end(*partition);
            return Ok(());
        }
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        let reason = self.consumer.context().signals.trouble();
        let reason = reason.map_or_else(|| error.to_string(), |(_, reason)| reason);
        match code {
            Code::AllBrokersDown | Code::BrokerTransportFailure | Code::Resolve => {
                self.down_since.get_or_insert_with(Instant::now);
                Ok(())
            }
            Code::AutoOffsetReset | Code::OffsetOutOfRange => Err(Failure::denied((
                "offset_out_of_range",
                format!(
                    "the records at the group's committed offset are gone ({reason}): decide where the group \
                     goes on and move it there with Kafka's own tool (reset-offsets)"
                ),
            ))),
            Code::PollExceeded => Err(Failure::other((
                "left_group",
                "the group has put this member out because it did not poll in time",
            ))),
            Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedSASLMechanism
            | Code::SSL
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownTopicId
            | Code::Fatal
            | Code::FencedInstanceId
            | Code::InvalidSessionTimeout
            | Code::InconsistentGroupProtocol
            | Code::InvalidGroupId => Err(failure(code, &reason)),
            _ if matches!(error, KafkaError::MessageConsumptionFatal(_)) => {
                Err(failure(code, &reason))
            }
            // The library tries again by itself (a coordinator that moves, a leader that changes).
            _ => {
                tracing::debug!(?code, "{reason}");
                Ok(())
            }
        }
    }

    /// Brokers that stay away end the run.
    fn check_down(&mut self) -> Result<(), Failure> {
        if self
            .down_since
            .is_none_or(|since| since.elapsed() < DOWN_AFTER)
        {
            return Ok(());
        }
        self.group
            .kafka
            .ask(None, self.group.kafka.connect_timeout())?;
        self.down_since = None;
        self.consumer.context().signals.clear();
        Ok(())
    }

    fn check_given_back(&self) -> Result<(), Failure> {
        let since = self.group.shared.since_given_back();
        if since.is_some_and(|since| since > GIVEN_BACK_WAIT) {
            return Err(Failure::other((
                "given_back",
                "the host gave a record back: the group goes on at its committed offset",
            )));
        }
        Ok(())
    }

    /// Looks whether a partition grows while nothing comes of it.
    fn watch(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if now < self.watch_at {
            return Ok(());
        }
        self.watch_at = now + WATCH;
        if self.paused.is_some() || self.pending.is_some() || self.down_since.is_some() {
            self.watchdog.excuse(now);
            return Ok(());
        }
        let assigned: Vec<(Key, i64)> = {
            let tracker = self.group.shared.tracker.lock();
            let all = tracker.iter();
            all.map(|(key, partition)| (key.clone(), partition.position))
                .collect()
        };
        self.watchdog.keep(&assigned, now);
        let Some(key) = self.watchdog.due(now) else {
            return Ok(());
        };
        let ends = self.consumer.fetch_watermarks(&key.0, key.1, QUESTION_WAIT);
        let Ok((_, end)) = ends else {
            // Nothing is known; an outage is told elsewhere.
            self.watchdog.excuse(Instant::now());
            return Ok(());
        };
        if self.watchdog.looked(&key, end, Instant::now()) {
            return Err(Failure::down((
                "stalled",
                format!(
                    "partition {} of topic `{}` grows and the client library hands nothing over",
                    key.1, key.0
                ),
            )));
        }
        Ok(())
    }
}
