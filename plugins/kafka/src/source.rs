//! `kafka.consume`: a member of a consumer group.
//!
//! * The consumer runs on a thread of its own (`group`, `member`), because the client library's calls block. Here is
//!   the other half: it hears from the host what became of each record.
//! * While the host grants no credit, partitions are paused and the library is polled all the same: a
//!   member that does not poll is put out of its group.
//! * An offset is committed once its record and all before it in the partition are settled. When a
//!   partition is taken away its records are settled or given back first, then what is settled is
//!   committed, then the partition is let go. Nothing is committed for one that is lost.
//! * With each commit goes a name for this run of offsets. Kafka drops a group's offsets with their topic,
//!   so a topic that was made again begins a new run, under partition names that the host has not seen.

use crate::config::{ConnectionConfig, ConsumeConfig};
use crate::connection::{Kafka, blocking};
use crate::group::Group;
use crate::inspect::refusal;
use crate::member::{Revoked, Shared};
use crate::tracker::Place;
use consign_plugin::prelude::*;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

/// The source of one adapter.
pub struct Consume;

#[async_trait]
impl Source for Consume {
    type Connector = Kafka;
    type Config = ConsumeConfig;
    const OPERATION: &'static str = "kafka.consume";
    const TITLE: &'static str = "Consume";

    fn declaration() -> SourceDeclaration {
        SourceDeclaration {
            delivery: DeliveryType::OffsetTrackedCumulative,
            identity: Identity::Stable("topic, partition, offset and stored timestamp".into()),
            redelivery_bound_ms: None,
            note: String::new(),
        }
    }

    fn resolve(connection: &ConnectionConfig, config: &ConsumeConfig) -> ResolvedSource {
        ResolvedSource {
            delivery: DeliveryType::OffsetTrackedCumulative,
            identity: Self::declaration().identity,
            reason: "a record's partition, offset and timestamp never change".to_owned(),
            faults: [connection.faults(), config.faults()].concat(),
        }
    }

    async fn run(
        kafka: Arc<Kafka>,
        config: ConsumeConfig,
        cx: SourceContext,
    ) -> Result<(), Failure> {
        look_for_topics(&kafka, &config).await?;
        let shared = Arc::<Shared>::default();
        let stop = StopWhenDropped(Arc::clone(&shared));
        let (revoked, mut revokes) = mpsc::unbounded_channel::<Revoked>();
        let (deliverer, controls) = cx.split();
        let group = Group::new(kafka, config, deliverer, Arc::clone(&shared), revoked);
        let handle = tokio::runtime::Handle::current();
        let mut running = Box::pin(blocking(move || group.run(&handle)));
        loop {
            tokio::select! {
                ended = &mut running => return ended,
                control = controls.next() => match control {
                    Control::Settle(settled) => shared.settle(&settled),
                    Control::Seek(_) => tracing::warn!(
                        "a consumer group keeps its own position: stop the adapter and move it with Kafka's own tool"
                    ),
                    Control::Stop => break,
                    _ => {}
                },
                Some(revoked) = revokes.recv() => {
                    let settled = controls.revoke(revoked.partitions).await;
                    shared.settle_revoked(&settled);
                    // The group may have stopped waiting.
                    let _ = revoked.done.send(());
                }
            }
        }
        // Whoever waits for a revocation is told by the closed channel that there is nobody left to ask.
        drop(revokes);
        drop(stop);
        running.await
    }
}

/// Tells the consumer's thread to end, also when this half is dropped.
struct StopWhenDropped(Arc<Shared>);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}

/// Asks for each topic, so that one that is not there is named at once.
async fn look_for_topics(kafka: &Arc<Kafka>, config: &ConsumeConfig) -> Result<(), Failure> {
    let (kafka, topics) = (Arc::clone(kafka), config.topics.clone());
    blocking(move || {
        for topic in topics {
            let metadata = kafka.ask(Some(&topic), kafka.connect_timeout())?;
            let found = metadata.topics().iter().find(|t| t.name() == topic);
            let error = found.and_then(|found| found.error());
            if let Some(error) = error {
                let code = crate::producer::broker_code(error);
                return Err(refusal(&topic, code));
            }
        }
        Ok(())
    })
    .await
}

impl Shared {
    /// The host has settled these.
    fn settle(&self, settled: &[Settled]) {
        let mut tracker = self.tracker.lock();
        for one in settled {
            let Some(place) = one.token::<Place>() else {
                continue;
            };
            if one.result.acknowledges() {
                tracker.acknowledge(&place);
            } else {
                // At a stop, which follows; anything else would leave a hole in the partition.
                self.given_back();
            }
        }
    }

    /// The same for partitions that are going: what is given back comes to whoever gets them.
    fn settle_revoked(&self, settled: &[Settled]) {
        let mut tracker = self.tracker.lock();
        for one in settled {
            if let Some(place) = one.token::<Place>()
                && one.result.acknowledges()
            {
                tracker.acknowledge(&place);
            }
        }
    }
}
