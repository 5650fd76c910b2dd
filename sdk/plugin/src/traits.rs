//! The three traits of a connector.

use crate::{
    Batch, Config, ConnectionContext, Failure, Inspection, Outcome, Resolved, ResolvedSource,
    SinkDeclaration, SourceContext, SourceDeclaration, WriteContext,
};
use async_trait::async_trait;
use std::sync::Arc;

/// One system: connecting to it, and asking whether it is there.
///
/// Methods run on the plugin's own runtime (two threads): await, never block for more than a
/// millisecond. Blocking drivers run through [`WriteContext::blocking`] in a write, and through
/// `tokio::task::spawn_blocking` elsewhere. A panic in any method is caught, faults the connection
/// and leaves the host alive.
#[async_trait]
pub trait Connector: Sized + Send + Sync + 'static {
    /// A connection's `config`. Its doc comment is the connector's reference text.
    type Config: Config;
    /// What stands after `connector:`, `snake_case`, and the prefix of its operations.
    const NAME: &'static str;
    /// The system's name as its maker writes it.
    const TITLE: &'static str;

    /// Connects. Called once per connection, and again after the host has closed a faulted one.
    /// Bounded by the host's deadline; dropped when it passes.
    ///
    /// # Errors
    /// `Down` and `Other`: tried again with backoff. `Denied`: a person must act. `Config`: halts
    /// until the configuration changes.
    async fn connect(config: Self::Config, cx: &ConnectionContext) -> Result<Self, Failure>;

    /// A cheap round trip that does not use the write path. Called while a gate is not open, at
    /// most once at a time, concurrently with writes.
    ///
    /// # Errors
    /// Keeps the gate closed; kinds as for [`Connector::connect`].
    async fn probe(&self) -> Result<(), Failure>;

    /// Called once, when nothing of the connection is in use any more. Bounded by a deadline;
    /// dropping follows in any case.
    async fn close(&self) {}
}

/// One operation that writes.
#[async_trait]
pub trait Sink: Sized + Send + Sync + 'static {
    /// The system it belongs to.
    type Connector: Connector;
    /// The function's `config`. Its doc comment is the operation's reference text.
    type Config: Config;
    /// Its id, `<connector>.<verb>`; fixed for ever.
    const OPERATION: &'static str;
    /// A title for people ("Publish").
    const TITLE: &'static str;

    /// What it promises at its best. Pure and constant.
    fn declaration() -> SinkDeclaration;

    /// What the declaration comes to for one configuration. Pure: contacts nothing, called at any
    /// time, also by tools that never connect. Templates hold the text as the operator wrote it,
    /// secrets their placeholders.
    fn resolve(
        connection: &<Self::Connector as Connector>::Config,
        config: &Self::Config,
    ) -> Resolved;

    /// Opens the function. Called once per send and connection.
    ///
    /// # Errors
    /// As for [`Connector::connect`].
    async fn open(
        connection: Arc<Self::Connector>,
        config: Self::Config,
        cx: &ConnectionContext,
    ) -> Result<Self, Failure>;

    /// Carries the batch out: one outcome per write, in order. Called concurrently, with several
    /// batches in flight. Its future is dropped at the deadline and when the host cancels; tasks
    /// it spawned must stop then too, because the host takes the drop as an acknowledged abort.
    /// Never retries: the host does. A panic answers unknown for every write and faults the
    /// connection; too few outcomes leave the rest unknown.
    async fn write(&self, batch: &Batch, cx: &WriteContext) -> Vec<Outcome>;

    /// Compares the promise with the live destination (is the unique index there?). Called at
    /// each opening of the gate, never concurrently with itself. Changes nothing there.
    async fn inspect(&self) -> Inspection {
        Inspection::not_inspected("this operation has nothing to inspect")
    }
}

/// One operation that reads.
///
/// ```
/// use consign_plugin::prelude::*;
/// use consign_plugin::testing::{self, SourceDriver};
/// use std::sync::Mutex;
/// use std::time::Duration;
///
/// /// Nothing.
/// #[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// pub struct Nothing {}
///
/// /// A queue in memory: what was acknowledged.
/// #[derive(Default)]
/// pub struct Queue(Mutex<Vec<u64>>);
///
/// #[async_trait]
/// impl Connector for Queue {
///     type Config = Nothing;
///     const NAME: &'static str = "queue";
///     const TITLE: &'static str = "Queue";
///
///     async fn connect(_: Nothing, _: &ConnectionContext) -> Result<Self, Failure> {
///         Ok(Self::default())
///     }
///
///     async fn probe(&self) -> Result<(), Failure> {
///         Ok(())
///     }
/// }
///
/// pub struct Take;
///
/// #[async_trait]
/// impl Source for Take {
///     type Connector = Queue;
///     type Config = Nothing;
///     const OPERATION: &'static str = "queue.take";
///     const TITLE: &'static str = "Take";
///
///     fn declaration() -> SourceDeclaration {
///         SourceDeclaration {
///             delivery: DeliveryType::OffsetTrackedIndividual,
///             identity: Identity::Stable("the number".into()),
///             redelivery_bound_ms: None,
///             note: String::new(),
///         }
///     }
///
///     fn resolve(_: &Nothing, _: &Nothing) -> ResolvedSource {
///         ResolvedSource {
///             delivery: DeliveryType::OffsetTrackedIndividual,
///             identity: Identity::Stable("the number".into()),
///             reason: "numbers never change".into(),
///             faults: vec![],
///         }
///     }
///
///     async fn run(queue: Arc<Queue>, _: Nothing, cx: SourceContext) -> Result<(), Failure> {
///         let (deliverer, controls) = cx.split();
///         controls.connection().spawn(async move {
///             for number in 1..=3_u64 {
///                 let message = SourceMessage::new(number.to_string())
///                     .identity(number.to_be_bytes())
///                     .token(number);
///                 // Waits for credit: that is how the host holds a source back.
///                 if deliverer.deliver(vec![message]).await.is_err() {
///                     return;
///                 }
///             }
///         });
///         loop {
///             match controls.next().await {
///                 Control::Settle(settled) => {
///                     for one in settled.iter().filter(|one| one.result.acknowledges()) {
///                         queue.0.lock().unwrap().extend(one.token::<u64>().map(|n| *n));
///                     }
///                 }
///                 Control::Stop => return Ok(()),
///                 _ => {}
///             }
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Failure> {
/// let queue = testing::connect::<Queue>(Nothing {}).await?;
/// let mut source = SourceDriver::start::<Take>(Arc::clone(&queue), Nothing {}, None);
/// source.credit(2, 1 << 20);
/// let messages = source.receive_many(2, Duration::from_secs(5)).await;
/// source.accept([messages[1].id]);
/// source.stop(Duration::from_secs(5)).await?;
/// assert_eq!(*queue.0.lock().unwrap(), [2], "acknowledged is what was accepted, and nothing else");
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Source: Sized + Send + Sync + 'static {
    /// The system it belongs to.
    type Connector: Connector;
    /// The function's `config`. Its doc comment is the operation's reference text.
    type Config: Config;
    /// Its id, `<connector>.<verb>`; fixed for ever.
    const OPERATION: &'static str;
    /// A title for people ("Consume").
    const TITLE: &'static str;

    /// How it redelivers and what names a message. Pure and constant.
    fn declaration() -> SourceDeclaration;

    /// What the declaration comes to for one configuration. Pure, as [`Sink::resolve`].
    fn resolve(
        connection: &<Self::Connector as Connector>::Config,
        config: &Self::Config,
    ) -> ResolvedSource;

    /// What this configuration takes for itself, so that no other adapter of the same connection may
    /// claim it too, as people say it (`POST /payments`): two with the same claim are an error of the
    /// host's `check`. Pure, as [`Sink::resolve`]. Default: nothing.
    fn claims(
        _connection: &<Self::Connector as Connector>::Config,
        _config: &Self::Config,
    ) -> Vec<String> {
        Vec::new()
    }

    /// Reads until told to stop: returns soon after [`crate::Control::Stop`]. Called once per
    /// adapter at a time. Its future is dropped when the host's stop deadline passes.
    ///
    /// # Errors
    /// A fault: every message not settled is released, and the host runs the source again with
    /// backoff. Returning `Ok` without having been told to stop counts as a fault too.
    async fn run(
        connection: Arc<Self::Connector>,
        config: Self::Config,
        cx: SourceContext,
    ) -> Result<(), Failure>;
}
