//! The source contract at its edges: revocation, stop and settlement at the same moment.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test code"
)]

use consign_plugin::prelude::*;
use consign_plugin::testing::{self, SourceDriver};
use std::time::Duration;
use tokio::sync::mpsc;

const SOON: Duration = Duration::from_secs(10);
const A_WHILE: Duration = Duration::from_millis(100);

/// Nothing to set.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Nothing {}

/// Hands its context's halves to the test.
struct Puppet(mpsc::UnboundedSender<(Deliverer, Controls)>);

#[async_trait]
impl Connector for Puppet {
    type Config = Nothing;
    const NAME: &'static str = "puppet";
    const TITLE: &'static str = "Puppet";

    async fn connect(_: Nothing, _: &ConnectionContext) -> Result<Self, Failure> {
        Err(Failure::config(("unused", "made by the test itself")))
    }

    async fn probe(&self) -> Result<(), Failure> {
        Ok(())
    }
}

struct Strings;

#[async_trait]
impl Source for Strings {
    type Connector = Puppet;
    type Config = Nothing;
    const OPERATION: &'static str = "puppet.strings";
    const TITLE: &'static str = "Strings";

    fn declaration() -> SourceDeclaration {
        SourceDeclaration {
            delivery: DeliveryType::OffsetTrackedIndividual,
            identity: Identity::None,
            redelivery_bound_ms: None,
            note: String::new(),
        }
    }

    fn resolve(_: &Nothing, _: &Nothing) -> ResolvedSource {
        ResolvedSource {
            delivery: DeliveryType::OffsetTrackedIndividual,
            identity: Identity::None,
            reason: String::new(),
            faults: Vec::new(),
        }
    }

    async fn run(puppet: Arc<Puppet>, _: Nothing, cx: SourceContext) -> Result<(), Failure> {
        let (deliverer, controls) = cx.split();
        let stopped = deliverer.clone();
        let _ = puppet.0.send((deliverer, controls));
        stopped.stopped().await;
        Ok(())
    }
}

async fn start() -> (SourceDriver, Deliverer, Arc<Controls>) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let driver = SourceDriver::start::<Strings>(Arc::new(Puppet(sender)), Nothing {}, None);
    let (deliverer, controls) = receiver.recv().await.unwrap();
    (driver, deliverer, Arc::new(controls))
}

fn of(partition: &str) -> SourceMessage {
    SourceMessage::new("x")
        .partition(partition)
        .token(partition.to_owned())
}

fn shown(settled: &[Settled]) -> Vec<(String, String)> {
    let token = |s: &Settled| s.token::<String>().unwrap().as_ref().clone();
    settled
        .iter()
        .map(|s| (token(s), format!("{:?}", s.result)))
        .collect()
}

fn pair(a: &str, b: &str) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

#[tokio::test]
async fn a_revocation_takes_along_what_control_had_not_given_yet_and_leaves_other_partitions() {
    let (mut driver, deliverer, controls) = start().await;
    driver.credit(10, 1_000);
    let ids = deliverer
        .deliver(vec![of("a"), of("b"), of("a"), of("a")])
        .await
        .unwrap();
    driver.accept([ids[0].get(), ids[1].get()]);
    let revoking = {
        let controls = Arc::clone(&controls);
        tokio::spawn(async move { controls.revoke(vec!["a".to_owned()]).await })
    };
    let (token, partitions) = driver.revoked(SOON).await.unwrap();
    assert_eq!(partitions, ["a"]);
    driver.settle(ids[2].get(), SettleResult::Repeat);
    driver.revoke_done(token);
    driver.revoke_done(token);
    let settled = revoking.await.unwrap();
    assert_eq!(
        shown(&settled),
        [
            pair("a", "Accepted"),
            pair("a", "Repeat"),
            pair("a", "Released")
        ]
    );
    let Control::Settle(rest) = controls.next().await else {
        panic!("the other partition is settled as ever");
    };
    assert_eq!(shown(&rest), [pair("b", "Accepted")]);
    driver.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn stop_ends_a_revocation_and_every_message_is_settled_exactly_once() {
    let (mut driver, deliverer, controls) = start().await;
    driver.credit(10, 1_000);
    deliverer.deliver(vec![of("a"), of("b")]).await.unwrap();
    let revoking = {
        let controls = Arc::clone(&controls);
        tokio::spawn(async move { controls.revoke(vec!["a".to_owned()]).await })
    };
    driver.revoked(SOON).await.unwrap();
    driver.stop(SOON).await.unwrap();
    assert_eq!(shown(&revoking.await.unwrap()), [pair("a", "Released")]);
    let Control::Settle(rest) = controls.next().await else {
        panic!("settlements come before stop");
    };
    assert_eq!(shown(&rest), [pair("b", "Released")]);
    assert!(matches!(controls.next().await, Control::Stop));
    assert!(
        matches!(controls.next().await, Control::Stop),
        "again and again"
    );
    assert!(controls.revoke(vec!["a".to_owned()]).await.is_empty());
    assert_eq!(deliverer.deliver(vec![of("a")]).await, Err(Stopped));
    assert_eq!(
        deliverer.deliver_and_wait(of("a")).await,
        SettleResult::Released
    );
    assert_eq!(deliverer.ready().await, Err(Stopped));
}

#[tokio::test]
async fn a_waiting_delivery_hears_of_stop_and_of_credit() {
    let (driver, deliverer, _controls) = start().await;
    let waiting = {
        let deliverer = deliverer.clone();
        tokio::spawn(async move { deliverer.deliver(vec![of("a"), of("b"), of("c")]).await })
    };
    tokio::time::sleep(A_WHILE).await;
    assert!(!waiting.is_finished());
    driver.credit(2, 1_000);
    tokio::time::sleep(A_WHILE).await;
    assert!(!waiting.is_finished(), "two of three are with the host");
    driver.stop(SOON).await.unwrap();
    assert_eq!(waiting.await.unwrap(), Err(Stopped));
}

#[tokio::test]
async fn a_client_that_went_away_leaves_nothing_behind() {
    let (mut driver, deliverer, controls) = start().await;
    driver.credit(10, 1_000);
    let asking = {
        let deliverer = deliverer.clone();
        tokio::spawn(async move { deliverer.deliver_and_wait(of("a")).await })
    };
    let message = driver.receive(SOON).await.unwrap();
    asking.abort();
    let _ = asking.await;
    driver.accept([message.id]);
    let next = tokio::time::timeout(A_WHILE, controls.next()).await;
    assert!(
        next.is_err(),
        "its settlement goes to nobody else: {next:?}"
    );
    assert!(
        controls
            .token::<String>(deliver_one(&deliverer).await)
            .is_some()
    );
    driver.stop(SOON).await.unwrap();
}

async fn deliver_one(deliverer: &Deliverer) -> MessageId {
    deliverer.deliver(vec![of("a")]).await.unwrap()[0]
}

#[tokio::test]
async fn extends_and_pauses_that_nobody_heard_are_merged() {
    let (driver, deliverer, controls) = start().await;
    driver.credit(10, 1_000);
    let id = deliver_one(&deliverer).await;
    driver.extend([id.get(), id.get()]);
    driver.extend([id.get(), 99]);
    driver.pause();
    driver.resume();
    let Control::Extend(ids) = controls.next().await else {
        panic!("extend comes first");
    };
    assert_eq!(ids, [id]);
    let next = tokio::time::timeout(A_WHILE, controls.next()).await;
    assert!(
        next.is_err(),
        "a pause that was taken back is none: {next:?}"
    );
    driver.extend([id.get()]);
    driver.accept([id.get()]);
    assert!(matches!(controls.next().await, Control::Settle(_)));
    let next = tokio::time::timeout(A_WHILE, controls.next()).await;
    assert!(next.is_err(), "no lease on what is settled: {next:?}");
    driver.stop(SOON).await.unwrap();
}

#[tokio::test]
async fn blocking_work_of_a_write_is_waited_for() {
    // Through the public testing door: a write that is dropped at its deadline.
    struct Slow(std::sync::Arc<std::sync::atomic::AtomicBool>);
    #[async_trait]
    impl Sink for Slow {
        type Connector = Puppet;
        type Config = Nothing;
        const OPERATION: &'static str = "puppet.slow";
        const TITLE: &'static str = "Slow";
        fn declaration() -> SinkDeclaration {
            unreachable!()
        }
        fn resolve(_: &Nothing, _: &Nothing) -> Resolved {
            unreachable!()
        }
        async fn open(_: Arc<Puppet>, _: Nothing, _: &ConnectionContext) -> Result<Self, Failure> {
            unreachable!()
        }
        async fn write(&self, batch: &Batch, cx: &WriteContext) -> Vec<Outcome> {
            let done = Arc::clone(&self.0);
            cx.blocking(move || {
                std::thread::sleep(Duration::from_millis(200));
                done.store(true, std::sync::atomic::Ordering::SeqCst);
            })
            .await;
            batch.all(Outcome::delivered())
        }
    }
    let done = Arc::default();
    let batch = testing::batch([testing::TestWrite::new("a")]);
    let sink = Slow(Arc::clone(&done));
    let outcomes = testing::write_within(&sink, &batch, Duration::from_millis(20)).await;
    assert_eq!(outcomes[0].code(), "deadline");
    assert!(done.load(std::sync::atomic::Ordering::SeqCst));
}
