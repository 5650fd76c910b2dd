//! `kafka.produce`: each write of a batch a record, in order, and a report for each.

use crate::config::{Compression, ConnectionConfig, ProduceConfig};
use crate::connection::{Kafka, blocking};
use crate::inspect;
use crate::outcome::{self, Answer, outcome};
use crate::producer::{Producer, Ticket, Topic, was_not_stored};
use crate::record::{Record, render};
use consign_plugin::prelude::*;
use parking_lot::Mutex;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Answers are given this much before the host's deadline: by then what has not left must be taken back,
/// and after it reports that did come would count as unknown too.
const ANSWER_MARGIN: Duration = Duration::from_millis(500);

/// How often a wait for reports looks whether the host still wants them.
const LOOK: Duration = Duration::from_millis(20);

/// How long reports may take once the producer was given up.
const REPORTS_WAIT: Duration = Duration::from_millis(300);

/// How long a topic's settings are waited for; they are a help, not a need.
const SETTINGS_WAIT: Duration = Duration::from_secs(2);

/// How long a question to a broker may take in a write.
const QUESTION_WAIT: Duration = Duration::from_secs(3);

/// The sink of one send.
pub struct Produce(Arc<Inner>);

struct Inner {
    kafka: Arc<Kafka>,
    config: ProduceConfig,
    key_header: String,
    producer: Mutex<Option<Arc<Producer>>>,
    /// `max.message.bytes` of the topic, where it is one and was told.
    limit_bytes: Mutex<Option<u64>>,
    /// A request was too large though none of its records needs to be: each goes alone from now on.
    alone: AtomicBool,
}

#[async_trait]
impl Sink for Produce {
    type Connector = Kafka;
    type Config = ProduceConfig;
    const OPERATION: &'static str = "kafka.produce";
    const TITLE: &'static str = "Produce";

    fn declaration() -> SinkDeclaration {
        SinkDeclaration {
            promise: Promise::AtLeastOnce,
            unconfirmed: false,
            repeat: Repeat {
                kind: RepeatKind::SecondCopy,
                condition: None,
                window: Window::None,
            },
            key: KeyPlacement::On("header <prefix>.write-key".into()),
            batch: BatchKind::Prefix,
            sealed: false,
            note: String::new(),
        }
    }

    fn resolve(connection: &ConnectionConfig, config: &ProduceConfig) -> Resolved {
        Resolved {
            promise: Promise::AtLeastOnce,
            unconfirmed: false,
            repeat: RepeatKind::SecondCopy,
            window: Window::None,
            reason: "Kafka stores what is sent again after an interruption once more".to_owned(),
            target_id: config.topic.as_written().unwrap_or_default().to_owned(),
            target_fields: ["topic", "partition"].map(str::to_owned).to_vec(),
            faults: [connection.faults(), config.faults()].concat(),
        }
    }

    async fn open(
        kafka: Arc<Kafka>,
        config: ProduceConfig,
        cx: &ConnectionContext,
    ) -> Result<Self, Failure> {
        Ok(Self(Arc::new(Inner {
            kafka,
            config,
            key_header: cx.write_key_name().to_owned(),
            producer: Mutex::new(None),
            limit_bytes: Mutex::new(None),
            alone: AtomicBool::new(false),
        })))
    }

    async fn write(&self, batch: &Batch, cx: &WriteContext) -> Vec<Outcome> {
        let (inner, batch, cx_of_work) = (Arc::clone(&self.0), batch.clone(), cx.clone());
        cx.blocking(move || inner.write(&batch, &cx_of_work)).await
    }

    async fn inspect(&self) -> Inspection {
        let inner = Arc::clone(&self.0);
        let Some(topic) = inner.literal_topic().map(str::to_owned) else {
            return Inspection::not_inspected(
                "`topic` is a template: each record may go elsewhere",
            );
        };
        let handle = tokio::runtime::Handle::current();
        blocking(move || {
            let found = inspect::topic(&handle, &inner.kafka, &topic, QUESTION_WAIT);
            if let Ok(settings) = &found {
                *inner.limit_bytes.lock() = settings.max_message_bytes;
            }
            inspect::judge(&topic, inner.config.key.is_some(), &found)
        })
        .await
    }
}

/// A write on its way: its record until it is sent, then what became of it.
struct Slot {
    record: Option<Record>,
    topic: String,
    outcome: Option<Outcome>,
}

impl Slot {
    fn settle(&mut self, answer: &Answer) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome(&self.topic, answer));
        }
    }
}

impl Inner {
    fn literal_topic(&self) -> Option<&str> {
        self.config.topic.as_written()
    }

    /// Carries a batch out. Runs on a thread for blocking work, to its end: the host hears of an abort
    /// only after what has not left was taken back.
    fn write(&self, batch: &Batch, cx: &WriteContext) -> Vec<Outcome> {
        let margin = ANSWER_MARGIN.min(cx.remaining() / 4);
        let until = cx.deadline() - margin;
        let producer = match self.producer(left(until)) {
            Ok(producer) => producer,
            Err(failure) => return batch.all(outcome::of_failure(failure)),
        };
        let mut slots: Vec<Slot> = batch
            .writes()
            .iter()
            .map(|write| self.slot(write))
            .collect();
        if let Err(failure) = self.look_at_topics(&producer, &mut slots, until) {
            let down = outcome::of_failure(failure);
            for slot in slots.iter_mut().filter(|slot| slot.outcome.is_none()) {
                slot.outcome = Some(down.clone());
            }
        }
        let (answers, reports) = mpsc::channel();
        let open = self.send(&producer, batch, &mut slots, answers, cx);
        self.collect(&producer, &mut slots, &reports, open, until, cx);
        slots
            .into_iter()
            .map(|slot| {
                let unanswered = || outcome(&slot.topic, &Answer::NoReport);
                slot.outcome.unwrap_or_else(unanswered)
            })
            .collect()
    }

    /// The producer that is in use, or a new one; with a broker that answers.
    fn producer(&self, within: Duration) -> Result<Arc<Producer>, Failure> {
        let current = self.producer.lock().clone();
        let alone = self.alone.load(Ordering::Relaxed);
        let fits = |producer: &Arc<Producer>| producer.is_usable() && producer.is_alone() == alone;
        let producer = match current.filter(fits) {
            Some(producer) => producer,
            None => self.new_producer(alone)?,
        };
        if producer.is_suspect() {
            producer.check(within.min(QUESTION_WAIT))?;
        }
        Ok(producer)
    }

    fn new_producer(&self, alone: bool) -> Result<Arc<Producer>, Failure> {
        let limit = self.topic_limit();
        let producer = Arc::new(Producer::open(&self.kafka, &self.config, limit, alone)?);
        *self.producer.lock() = Some(Arc::clone(&producer));
        Ok(producer)
    }

    /// `max.message.bytes` of the topic, asked for where it is not known.
    fn topic_limit(&self) -> Option<u64> {
        let known = *self.limit_bytes.lock();
        if known.is_some() {
            return known;
        }
        let topic = self.literal_topic()?;
        let handle = tokio::runtime::Handle::current();
        let found = inspect::topic(&handle, &self.kafka, topic, SETTINGS_WAIT).ok()?;
        *self.limit_bytes.lock() = found.max_message_bytes;
        found.max_message_bytes
    }

    fn slot(&self, write: &Write) -> Slot {
        let mut slot = Slot {
            record: None,
            topic: String::new(),
            outcome: None,
        };
        match render(write, &self.config, &self.key_header) {
            Ok(record) => {
                slot.topic.clone_from(&record.topic);
                slot.record = Some(record);
            }
            Err(outcome) => slot.outcome = Some(outcome),
        }
        let limit = *self.limit_bytes.lock();
        // Compressed, only the broker can tell.
        if let (Some(record), Some(limit)) = (&slot.record, limit)
            && self.config.compression == Compression::None
            && u64::try_from(record.bytes).is_ok_and(|bytes| bytes > limit)
        {
            let answer = Answer::TooLarge(record.bytes, limit);
            slot.settle(&answer);
        }
        slot
    }

    /// Settles what has no topic or partition to go to, before anything is sent.
    fn look_at_topics(
        &self,
        producer: &Producer,
        slots: &mut [Slot],
        until: Instant,
    ) -> Result<(), Failure> {
        let mut seen: BTreeMap<String, Result<usize, Code>> = BTreeMap::new();
        for slot in slots.iter_mut().filter(|slot| slot.outcome.is_none()) {
            if !seen.contains_key(&slot.topic) {
                let found = match producer.topic(&slot.topic, left(until).min(QUESTION_WAIT))? {
                    Topic::There(partitions) => Ok(partitions),
                    Topic::Refused(code) => Err(code),
                };
                seen.insert(slot.topic.clone(), found);
            }
            let partition = slot.record.as_ref().and_then(|record| record.partition);
            match (seen.get(&slot.topic), partition) {
                (Some(Err(code)), _) => slot.settle(&Answer::NotTaken(*code)),
                (Some(Ok(partitions)), Some(partition))
                    if usize::try_from(partition).is_ok_and(|p| p >= *partitions) =>
                {
                    slot.settle(&Answer::BadPartition(partition.to_string()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Hands the records over, in order; none behind one that was not taken. How many reports will come.
    fn send(
        &self,
        producer: &Producer,
        batch: &Batch,
        slots: &mut [Slot],
        answers: mpsc::Sender<(usize, Answer)>,
        cx: &WriteContext,
    ) -> usize {
        let (mut open, mut stopped) = (0, false);
        let writes = batch.writes().iter();
        for (place, (slot, write)) in slots.iter_mut().zip(writes).enumerate() {
            if slot.outcome.is_some() {
                continue;
            }
            if stopped || cx.is_cancelled() {
                slot.settle(&Answer::NotAttempted);
                continue;
            }
            let Some(record) = slot.record.take() else {
                continue;
            };
            let answers = answers.clone();
            match producer.send(record, write.body(), Ticket { place, answers }) {
                Ok(()) => open += 1,
                Err(code) => {
                    slot.settle(&Answer::NotTaken(code));
                    stopped = code == Code::QueueFull || !producer.is_usable();
                }
            }
        }
        open
    }

    /// Waits for the reports. When the time is over, or the host wants no more, the producer is given up
    /// and its last reports say what had left.
    fn collect(
        &self,
        producer: &Producer,
        slots: &mut [Slot],
        reports: &mpsc::Receiver<(usize, Answer)>,
        mut open: usize,
        until: Instant,
        cx: &WriteContext,
    ) {
        let mut given_up: Option<Instant> = None;
        while open > 0 {
            match reports.recv_timeout(LOOK) {
                Ok((place, answer)) => {
                    open -= 1;
                    if let Some(slot) = slots.get_mut(place) {
                        self.reported(producer, slot, answer);
                    }
                    continue;
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
            match given_up {
                Some(at) if at.elapsed() > REPORTS_WAIT => return,
                Some(_) => {}
                None if Instant::now() >= until || cx.is_cancelled() => {
                    producer.give_up();
                    given_up = Some(Instant::now());
                }
                None => {}
            }
        }
    }

    fn reported(&self, producer: &Producer, slot: &mut Slot, answer: Answer) {
        let answer = match answer {
            // What waited while the broker was away never left.
            Answer::Failed(Code::PurgeQueue | Code::PurgeInflight, stored)
                if producer.is_suspect() =>
            {
                Answer::Failed(Code::BrokerTransportFailure, stored)
            }
            other => other,
        };
        if was_not_stored(&answer) {
            match &answer {
                Answer::Failed(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge, _)
                    if !producer.is_alone() =>
                {
                    // Perhaps the request was too large, and none of its records.
                    self.alone.store(true, Ordering::Relaxed);
                    slot.outcome = Some(Outcome::retry((
                        "request_too_large",
                        format!(
                            "topic `{}` takes no request of this size: records go one by one from now on",
                            slot.topic
                        ),
                    )));
                    return;
                }
                Answer::Failed(
                    Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition,
                    _,
                ) => producer.forget_topic(&slot.topic),
                _ => {}
            }
        }
        slot.settle(&answer);
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
