//! One idempotent producer: records go in, a report comes out for each.
//!
//! * `acks=all`, idempotent, at most five requests in flight: what the library sends again, the broker
//!   stores once and in order. So its own retries are harmless, and they end with the write's time.
//! * The library's own time limit for records is off: when a write's time is over the producer is given up
//!   as a whole (purged, then dropped), so that nothing of it is sent later, and nothing behind a record
//!   that failed is sent before it.
//! * Only delivery reports count. Flushing may claim success, and a dropped producer loses what it had.

use crate::config::{Compression, Partitioner, ProduceConfig};
use crate::connection::{Client, Disposals, Events, Kafka, Signals, ask, of_creation};
use crate::outcome::Answer;
use crate::raw::{Stored, stored};
use crate::record::Record;
use consign_plugin::prelude::*;
use parking_lot::Mutex;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, Producer as _, PurgeConfig};
use rdkafka::types::{RDKafkaErrorCode as Code, RDKafkaRespErr};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The host has gathered a batch already: the library only waits for what is handed over with it.
const LINGER_MS: &str = "1";

/// Most bytes of one request for a partition, unless its topic takes less.
const SET_BYTES: u64 = 1_000_000;

/// The broker's own limit decides how large a record may be, not the client's.
const LARGEST_MESSAGE_BYTES: &str = "1000000000";

/// A topic's partitions are asked for again after this.
const TOPIC_KNOWN_FOR: Duration = Duration::from_secs(60);

/// Topics whose partitions are remembered; beyond, all are asked for again.
const TOPICS_KNOWN: usize = 1024;

/// How long the library waits for a topic that was there a moment ago.
const TOPIC_GONE_AFTER_MS: &str = "5000";

/// Whom a record's report goes to.
pub(crate) struct Ticket {
    pub(crate) place: usize,
    pub(crate) answers: mpsc::Sender<(usize, Answer)>,
}

impl Ticket {
    pub(crate) fn report(&self, result: &DeliveryResult<'_>) {
        let answer = match result {
            Ok(_) => Answer::Stored,
            Err((error, record)) => Answer::Failed(code(error), stored(record)),
        };
        // The write may have been answered without it.
        drop(self.answers.send((self.place, answer)));
    }
}

/// What is known of a topic.
pub(crate) enum Topic {
    /// It is there, with so many partitions.
    There(usize),
    /// The broker's answer to the question.
    Refused(Code),
}

/// A producer and the library's threads behind it.
pub(crate) struct Producer {
    client: Option<Client>,
    signals: Arc<Signals>,
    given_up: AtomicBool,
    topics: Mutex<BTreeMap<String, (usize, Instant)>>,
    disposals: Arc<Disposals>,
    /// Each record goes in a request of its own for its partition.
    alone: bool,
}

impl Producer {
    /// Makes one. Nothing is dialled before the first question or record. Blocks.
    pub(crate) fn open(
        kafka: &Kafka,
        config: &ProduceConfig,
        limit_bytes: Option<u64>,
        alone: bool,
    ) -> Result<Self, Failure> {
        let signals = Arc::<Signals>::default();
        let set_bytes = limit_bytes.unwrap_or(SET_BYTES).min(SET_BYTES);
        let mut client = kafka.client_config();
        client
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", "0")
            .set("linger.ms", LINGER_MS)
            .set("batch.size", set_bytes.to_string())
            .set("message.max.bytes", LARGEST_MESSAGE_BYTES)
            .set("topic.metadata.propagation.max.ms", TOPIC_GONE_AFTER_MS)
            .set("compression.type", compression(config.compression))
            .set("partitioner", partitioner(config.partitioner));
        if alone {
            client.set("batch.num.messages", "1");
        }
        let client = client
            .create_with_context::<_, Client>(Events(Arc::clone(&signals)))
            .map_err(|error| of_creation(&error))?;
        Ok(Self {
            client: Some(client),
            signals,
            given_up: AtomicBool::new(false),
            topics: Mutex::default(),
            disposals: Arc::clone(kafka.disposals()),
            alone,
        })
    }

    /// Whether it still takes records.
    pub(crate) fn is_usable(&self) -> bool {
        !self.given_up.load(Ordering::Acquire) && !self.signals.is_fatal()
    }

    /// Whether a record that was too large was the only one of its request.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Whether something is wrong with its connections, so that a question should come first.
    pub(crate) fn is_suspect(&self) -> bool {
        self.signals.is_suspect()
    }

    /// Asks whether a broker is there. Blocks.
    pub(crate) fn check(&self, within: Duration) -> Result<(), Failure> {
        let Some(client) = &self.client else {
            return Err(Failure::down(("closed", "the producer is closed")));
        };
        ask(client, &self.signals, None, within).map(drop)
    }

    /// A topic's partitions, as last asked. Blocks.
    pub(crate) fn topic(&self, name: &str, within: Duration) -> Result<Topic, Failure> {
        let Some(client) = &self.client else {
            return Err(Failure::down(("closed", "the producer is closed")));
        };
        if let Some((partitions, at)) = self.topics.lock().get(name)
            && at.elapsed() < TOPIC_KNOWN_FOR
        {
            return Ok(Topic::There(*partitions));
        }
        let metadata = ask(client, &self.signals, Some(name), within)?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == name);
        let Some(topic) = topic else {
            return Ok(Topic::Refused(Code::UnknownTopicOrPartition));
        };
        if let Some(error) = topic.error() {
            return Ok(Topic::Refused(broker_code(error)));
        }
        let partitions = topic.partitions().len();
        let mut topics = self.topics.lock();
        if topics.len() >= TOPICS_KNOWN {
            topics.clear();
        }
        topics.insert(name.to_owned(), (partitions, Instant::now()));
        Ok(Topic::There(partitions))
    }

    /// Has the topic asked for again before the next record.
    pub(crate) fn forget_topic(&self, name: &str) {
        self.topics.lock().remove(name);
    }

    /// Hands a record to the library, which copies it. Never blocks.
    pub(crate) fn send(&self, record: Record, body: &[u8], ticket: Ticket) -> Result<(), Code> {
        let Some(client) = &self.client else {
            return Err(Code::Fatal);
        };
        let Record {
            topic,
            key,
            partition,
            time_unix_ms,
            headers,
            null,
            ..
        } = record;
        let mut base =
            BaseRecord::<[u8], [u8], Box<Ticket>>::with_opaque_to(&topic, Box::new(ticket))
                .headers(headers);
        if !null {
            base = base.payload(body);
        }
        if let Some(key) = &key {
            base = base.key(key.as_bytes());
        }
        if let Some(partition) = partition {
            base = base.partition(partition);
        }
        if let Some(time) = time_unix_ms {
            base = base.timestamp(time);
        }
        client.send(base).map_err(|(error, _)| code(&error))
    }

    /// Takes back what has not left, and stops waiting for the rest; each record's report says which it
    /// was. Nothing is sent by it any more. Blocks for a moment.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        if let Some(client) = &self.client {
            client.purge(PurgeConfig::default().queue().inflight());
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            self.disposals.drop_later(client);
        }
    }
}

fn code(error: &KafkaError) -> Code {
    error.rdkafka_error_code().unwrap_or(Code::Unknown)
}

/// A broker's error as the library numbers it.
pub(crate) fn broker_code(error: RDKafkaRespErr) -> Code {
    error.into()
}

fn compression(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "none",
        Compression::Gzip => "gzip",
        Compression::Snappy => "snappy",
        Compression::Lz4 => "lz4",
        Compression::Zstd => "zstd",
    }
}

fn partitioner(partitioner: Partitioner) -> &'static str {
    match partitioner {
        Partitioner::Murmur2 => "murmur2_random",
        Partitioner::Crc32 => "consistent_random",
        Partitioner::Fnv1a => "fnv1a_random",
        Partitioner::Random => "random",
    }
}

/// Whether the report says that nothing was stored.
pub(crate) fn was_not_stored(answer: &Answer) -> bool {
    matches!(answer, Answer::Failed(_, Stored::No) | Answer::NotTaken(_))
}
