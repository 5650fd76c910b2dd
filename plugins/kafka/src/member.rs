//! A member of a consumer group: what it hears from the client library within a poll, how it answers a
//! rebalance, and what it commits.

use crate::config::Start;
use crate::connection::{Signals, log};
use crate::outcome::failure;
use crate::tracker::{Key, Tracker};
use consign_plugin::prelude::*;
use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::TopicPartitionList;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset;
use rdkafka::types::{RDKafkaErrorCode as Code, RDKafkaRespErr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::UnboundedSender;

/// How long a question to the group's coordinator or a partition's leader may take.
pub(crate) const QUESTION_WAIT: Duration = Duration::from_secs(10);

/// How long the host may take to settle what it has of partitions that are going. Well below the time
/// after which a member that does not poll is put out of its group.
const REVOKE_WAIT: Duration = Duration::from_secs(60);

/// How the committed metadata of this plugin begins; the epoch follows.
const MARK: &str = "consign:";

/// What both halves of the source see.
#[derive(Default)]
pub(crate) struct Shared {
    pub tracker: Mutex<Tracker>,
    pub stop: AtomicBool,
    given_back: Mutex<Option<Instant>>,
}

impl Shared {
    /// The host gave a record back.
    pub(crate) fn given_back(&self) {
        self.given_back.lock().get_or_insert_with(Instant::now);
    }

    /// How long ago that was.
    pub(crate) fn since_given_back(&self) -> Option<Duration> {
        let since = *self.given_back.lock();
        since.map(|since| since.elapsed())
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// Partitions that are going, as the host calls them; `done` is told once their records are settled.
pub(crate) struct Revoked {
    pub partitions: Vec<String>,
    pub done: std::sync::mpsc::Sender<()>,
}

/// Hears what the consumer says, and answers rebalances. Runs on the polling thread, within a poll.
pub(crate) struct Events {
    pub signals: Signals,
    shared: Arc<Shared>,
    start: Start,
    revoked: UnboundedSender<Revoked>,
    /// What went wrong within a callback.
    failure: Mutex<Option<Failure>>,
    /// Changes with each assignment: new partitions are not paused.
    assigned: AtomicU64,
}

/// The client library's consumer, with its ear.
pub(crate) type MemberConsumer = BaseConsumer<Events>;

impl ClientContext for Events {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        log(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.signals.note(&error, reason);
    }
}

impl ConsumerContext for Events {
    fn rebalance(
        &self,
        consumer: &MemberConsumer,
        error: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let assigns = error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let done = if assigns && !self.shared.is_stopped() {
            self.assign(consumer, partitions)
        } else if assigns {
            consumer.incremental_assign(partitions).map_err(of_group)
        } else {
            let settled = self.let_go(consumer, partitions);
            let unassigned = consumer.incremental_unassign(partitions).map_err(of_group);
            settled.and(unassigned)
        };
        if let Err(failure) = done {
            self.failure.lock().get_or_insert(failure);
        }
    }
}

impl Events {
    pub(crate) fn new(
        shared: Arc<Shared>,
        start: Start,
        revoked: UnboundedSender<Revoked>,
    ) -> Self {
        Self {
            signals: Signals::default(),
            shared,
            start,
            revoked,
            failure: Mutex::new(None),
            assigned: AtomicU64::new(0),
        }
    }

    /// What went wrong within a poll.
    pub(crate) fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().take()
    }

    /// How often partitions were assigned.
    pub(crate) fn assignments(&self) -> u64 {
        self.assigned.load(Ordering::Acquire)
    }

    /// Finds where each new partition begins, and takes it.
    fn assign(
        &self,
        consumer: &MemberConsumer,
        partitions: &TopicPartitionList,
    ) -> Result<(), Failure> {
        let found = self.begin(consumer, partitions);
        let begun = match found {
            Ok(begun) => begun,
            Err(failure) => {
                // The rebalance must be answered; the run ends before a record is handed over.
                consumer.incremental_assign(partitions).map_err(of_group)?;
                return Err(failure);
            }
        };
        let mut at = TopicPartitionList::with_capacity(begun.len());
        {
            let mut tracker = self.shared.tracker.lock();
            for (key, offset, epoch) in begun {
                add(&mut at, &key, offset, &epoch)?;
                tracker.assign(key, offset, epoch);
            }
        }
        self.assigned.fetch_add(1, Ordering::AcqRel);
        consumer.incremental_assign(&at).map_err(of_group)
    }

    /// Where partitions begin: the committed offset, or what `start` says, which is committed at once so
    /// that it is the same at the next start.
    fn begin(
        &self,
        consumer: &MemberConsumer,
        partitions: &TopicPartitionList,
    ) -> Result<Vec<(Key, i64, String)>, Failure> {
        let mut begun = Vec::new();
        let mut new = TopicPartitionList::new();
        let committed = consumer
            .committed_offsets(partitions.clone(), QUESTION_WAIT)
            .map_err(of_group)?;
        for element in committed.elements() {
            element.error().map_err(of_group)?;
            let key: Key = (element.topic().into(), element.partition());
            let known = element.metadata().strip_prefix(MARK);
            let (offset, epoch) = match (element.offset(), known) {
                (Offset::Offset(offset), Some(epoch)) => {
                    begun.push((key, offset, epoch.to_owned()));
                    continue;
                }
                (Offset::Offset(offset), None) => {
                    tracing::warn!(
                        topic = &*key.0,
                        partition = key.1,
                        offset,
                        "the group's offset was committed by somebody else: going on there"
                    );
                    (offset, new_epoch())
                }
                _ => {
                    let (low, high) = consumer
                        .fetch_watermarks(&key.0, key.1, QUESTION_WAIT)
                        .map_err(of_group)?;
                    let offset = match self.start {
                        Start::Earliest => low,
                        Start::Latest => high,
                    };
                    (offset, new_epoch())
                }
            };
            add(&mut new, &key, offset, &epoch)?;
            begun.push((key, offset, epoch));
        }
        if new.count() > 0 {
            consumer.commit(&new, CommitMode::Sync).map_err(of_group)?;
        }
        Ok(begun)
    }

    /// Partitions are taken away: their records are settled or given back, and what is settled committed.
    fn let_go(
        &self,
        consumer: &MemberConsumer,
        partitions: &TopicPartitionList,
    ) -> Result<(), Failure> {
        let keys: Vec<Key> = partitions
            .elements()
            .iter()
            .map(|element| (element.topic().into(), element.partition()))
            .collect();
        let names = {
            let tracker = self.shared.tracker.lock();
            let known = keys
                .iter()
                .filter_map(|key| Some(tracker.get(key)?.name(key)));
            known.collect::<Vec<_>>()
        };
        if !self.shared.is_stopped() && !names.is_empty() {
            let (done, settled) = std::sync::mpsc::channel();
            let revoked = Revoked {
                partitions: names,
                done,
            };
            if self.revoked.send(revoked).is_ok() {
                // Nobody there any more, or too slow: what is not settled comes again.
                let _ = settled.recv_timeout(REVOKE_WAIT);
            }
        }
        let committed = if consumer.assignment_lost() {
            // Somebody else may have them already: nothing is committed for them.
            tracing::warn!("partitions were lost: the group did not hear of this member in time");
            Ok(())
        } else {
            self.commit(consumer)
        };
        let mut tracker = self.shared.tracker.lock();
        for key in &keys {
            tracker.remove(key);
        }
        committed
    }

    /// Commits what is settled, after a look at what is committed: were it something else, the topic was
    /// made again or somebody moved the group, and going on would skip records silently. While the group
    /// is being rebalanced nothing is committed: it is tried again, or comes again elsewhere. Blocks.
    pub(crate) fn commit(&self, consumer: &MemberConsumer) -> Result<(), Failure> {
        let wanted = self.shared.tracker.lock().to_commit();
        if wanted.is_empty() {
            return Ok(());
        }
        let mut offsets = TopicPartitionList::with_capacity(wanted.len());
        for (key, offset, epoch) in &wanted {
            add(&mut offsets, key, *offset, epoch)?;
        }
        self.compare(consumer, &wanted)?;
        match consumer.commit(&offsets, CommitMode::Sync) {
            Ok(()) => {
                let mut tracker = self.shared.tracker.lock();
                for (key, offset, _) in &wanted {
                    tracker.committed(key, *offset);
                }
                Ok(())
            }
            Err(error) if is_rebalancing(&error) => {
                tracing::debug!(%error, "offsets were not committed");
                Ok(())
            }
            Err(error) => Err(of_group(error)),
        }
    }

    /// Compares what the group has committed with what this member knows of it.
    fn compare(
        &self,
        consumer: &MemberConsumer,
        wanted: &[(Key, i64, String)],
    ) -> Result<(), Failure> {
        let known: Vec<(Key, i64, String)> = {
            let tracker = self.shared.tracker.lock();
            let all = tracker.iter();
            all.map(|(key, p)| (key.clone(), p.committed, p.epoch.clone()))
                .collect()
        };
        let mut asked = TopicPartitionList::with_capacity(wanted.len());
        for (key, _, _) in wanted {
            asked.add_partition(&key.0, key.1);
        }
        let found = consumer
            .committed_offsets(asked, QUESTION_WAIT)
            .map_err(of_group)?;
        for element in found.elements() {
            let key: Key = (element.topic().into(), element.partition());
            let Some((_, offset, epoch)) = known.iter().find(|(known, _, _)| *known == key) else {
                continue;
            };
            let ours = element.metadata().strip_prefix(MARK) == Some(epoch.as_str())
                && matches!(element.offset(), Offset::Offset(found) if found >= *offset);
            if !ours {
                return Err(Failure::other((
                    "offsets_changed",
                    format!(
                        "the group's offset of partition {} of topic `{}` is {:?} and was {offset}: the topic was \
                         made again, or somebody moved the group; starting from what is there",
                        key.1,
                        key.0,
                        element.offset()
                    ),
                )));
            }
        }
        Ok(())
    }
}

fn add(list: &mut TopicPartitionList, key: &Key, offset: i64, epoch: &str) -> Result<(), Failure> {
    let added = list.add_partition_offset(&key.0, key.1, Offset::Offset(offset));
    added.map_err(of_group)?;
    if let Some(mut element) = list.find_partition(&key.0, key.1) {
        element.set_metadata(format!("{MARK}{epoch}"));
    }
    Ok(())
}

/// A name that no run of offsets has had before.
fn new_epoch() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    format!("{:x}", now.map_or(0, |now| now.as_micros()))
}

/// The group is about to hand partitions out anew, or has put this member out; a rebalance follows.
fn is_rebalancing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::RebalanceInProgress
                | Code::IllegalGeneration
                | Code::UnknownMemberId
                | Code::AssignmentLost
                | Code::NoOffset
        )
    )
}

fn of_group(error: KafkaError) -> Failure {
    let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
    failure(code, &error.to_string())
}
