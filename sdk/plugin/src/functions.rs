//! Processors, transforms and error handlers: functions over one message or one failure.

use crate::plugin::{BoxFuture, parse, schema_of};
use crate::{Applied, Config, Detail, Failure};
use async_trait::async_trait;
use consign_manifest::{FunctionManifest, PluginKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// A message as a function sees it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// The body's bytes.
    pub body: Vec<u8>,
    /// Headers in order; a name may come twice.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body's content type, where known.
    pub content_type: Option<String>,
    /// What patterns match on.
    pub routing_key: Option<String>,
    /// Unix milliseconds.
    pub time_unix_ms: i64,
    /// Fields of `.source`; changes to it are ignored.
    pub source: Map<String, Value>,
}

/// Where a function lives in the host, and how long one call may take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FunctionContext {
    /// The adapter's name.
    #[serde(default)]
    pub adapter: String,
    /// The route's name; empty on an adapter.
    #[serde(default)]
    pub route: String,
}

/// Enriches, records or checks a message. A failure counts as a delivery failure.
///
/// ```
/// use consign_plugin::prelude::*;
///
/// /// Puts the tenant's name beside its number.
/// #[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// pub struct TenantConfig {
///     /// The header that gets the name.
///     pub header: String,
/// }
///
/// pub struct Tenant(TenantConfig);
///
/// #[async_trait]
/// impl Processor for Tenant {
///     type Config = TenantConfig;
///     const NAME: &'static str = "acme_tenant";
///     const TITLE: &'static str = "Tenant";
///
///     async fn open(config: TenantConfig, _: &FunctionContext) -> Result<Self, Failure> {
///         Ok(Self(config))
///     }
///
///     async fn process(&self, message: &mut Message) -> Result<(), Detail> {
///         let name = match message.body.as_slice() {
///             b"7" => "acme",
///             _ => return Err(Detail::new("unknown_tenant", "nobody has this number")),
///         };
///         message.headers.push((self.0.header.clone(), name.into()));
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Failure> {
/// let config = TenantConfig { header: "tenant".into() };
/// let tenant = Tenant::open(config, &FunctionContext::default()).await?;
/// let mut message = Message { body: b"7".to_vec(), ..Message::default() };
/// assert_eq!(tenant.process(&mut message).await, Ok(()));
/// assert_eq!(message.headers, [("tenant".to_owned(), b"acme".to_vec())]);
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Processor: Sized + Send + Sync + 'static {
    /// Its `config`. The doc comment is the reference text.
    type Config: Config;
    /// What stands after `processor:` in a configuration.
    const NAME: &'static str;
    /// A title for people.
    const TITLE: &'static str;

    /// Opens it; called once per use in the configuration.
    ///
    /// # Errors
    /// As for [`crate::Connector::connect`].
    async fn open(config: Self::Config, cx: &FunctionContext) -> Result<Self, Failure>;

    /// Called concurrently; dropped at its deadline. May change the message.
    ///
    /// # Errors
    /// The message's error handler decides. A panic or a missed deadline is handled the same way.
    async fn process(&self, message: &mut Message) -> Result<(), Detail>;
}

/// Changes a message. An error discards it, counted, as if no route had matched. Written as a
/// [`Processor`] is, with `transform` instead of `process`.
#[async_trait]
pub trait Transform: Sized + Send + Sync + 'static {
    /// Its `config`. The doc comment is the reference text.
    type Config: Config;
    /// What stands after `transform:` in a configuration.
    const NAME: &'static str;
    /// A title for people.
    const TITLE: &'static str;

    /// Opens it; called once per use in the configuration.
    ///
    /// # Errors
    /// As for [`crate::Connector::connect`].
    async fn open(config: Self::Config, cx: &FunctionContext) -> Result<Self, Failure>;

    /// Called concurrently; dropped at its deadline.
    ///
    /// # Errors
    /// Discards the message. A panic or a missed deadline does not: that is handled as a failure.
    async fn transform(&self, message: &mut Message) -> Result<(), Detail>;
}

/// Decides what becomes of a write whose policy is spent or which the destination refused, and of a message
/// that a processor failed on or that cannot be rendered (its `send` is empty then).
///
/// ```
/// use consign_plugin::prelude::*;
/// use std::time::Duration;
///
/// /// Tries messages a few times, and lets a person look at everything else.
/// #[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// pub struct PatientConfig {
///     /// How often. Minimum 1.
///     pub attempts: u32,
/// }
///
/// pub struct Patient(PatientConfig);
///
/// #[async_trait]
/// impl ErrorHandler for Patient {
///     type Config = PatientConfig;
///     const NAME: &'static str = "acme_patient";
///     const TITLE: &'static str = "Patient";
///
///     async fn open(config: PatientConfig, _: &FunctionContext) -> Result<Self, Failure> {
///         Ok(Self(config))
///     }
///
///     async fn decide(&self, failure: &FailureReport, _: &Message) -> Decision {
///         if failure.send.is_empty() && failure.attempts < self.0.attempts {
///             return Decision::Retry { after: Duration::from_secs(2) };
///         }
///         Decision::Park { reason: format!("{} after {} attempts", failure.code, failure.attempts) }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Failure> {
/// let config = PatientConfig { attempts: 3 };
/// let patient = Patient::open(config, &FunctionContext::default()).await?;
/// let mut failure = FailureReport::default();
/// failure.attempts = 2;
/// assert!(matches!(patient.decide(&failure, &Message::default()).await, Decision::Retry { .. }));
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait ErrorHandler: Sized + Send + Sync + 'static {
    /// Its `config`. The doc comment is the reference text.
    type Config: Config;
    /// What stands after `handler:` in a configuration.
    const NAME: &'static str;
    /// A title for people.
    const TITLE: &'static str;

    /// Opens it; called once per use in the configuration.
    ///
    /// # Errors
    /// As for [`crate::Connector::connect`].
    async fn open(config: Self::Config, cx: &FunctionContext) -> Result<Self, Failure>;

    /// Called once per failure; a function of the failure alone, since the host keeps the counts.
    /// `message` is what people may see of it: without headers that authenticate and the fields that
    /// the configuration redacts.
    /// When it panics or misses its deadline, a buffered write parks.
    async fn decide(&self, failure: &FailureReport, message: &Message) -> Decision;
}

/// What failed, and how. The host keeps the counts; a handler is a function of this alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FailureReport {
    /// The write key, 32 hex digits. Empty for a message that has no writes yet.
    pub write_key: String,
    /// The adapter.
    pub adapter: String,
    /// The route.
    pub route: String,
    /// The send; empty where the message failed before any of its writes was made.
    pub send: String,
    /// The connection the write goes to; empty with `send`.
    pub connection: String,
    /// The operation that failed (`kafka.produce`); empty with `send`.
    pub operation: String,
    /// The source's operation (`http.receive`).
    pub source: String,
    /// The message's id in this host.
    pub message_id: String,
    /// What kind of failure: `refused`, `attempts_spent`, `age_spent`, `processor_failed`,
    /// `template_failed`.
    pub class: String,
    /// The code of the last outcome, in the connector's words (`http_422`).
    pub code: String,
    /// The sentence that came with it, without secrets.
    pub message: String,
    /// Whether the write may have been applied.
    pub may_have_landed: bool,
    /// Whether the last attempt ended without an answer.
    pub timed_out: bool,
    /// Attempts charged so far. For a message, how often it failed: over restarts, where its source hands it
    /// over again under an identity; else since it came in.
    pub attempts: u32,
    /// When the message was accepted, or came in; unix milliseconds.
    pub accepted_unix_ms: i64,
    /// First attempt, unix milliseconds; 0 for none.
    pub first_attempt_unix_ms: i64,
    /// Last attempt, unix milliseconds; 0 for none.
    pub last_attempt_unix_ms: i64,
    /// What the send promises for this configuration (`effectively_once`); empty with `send`.
    pub promise: String,
    /// Its workload class; empty for the default.
    pub workload_class: String,
    /// Whether the source hands a message over again until it is acknowledged.
    pub offset_tracked: bool,
    /// Whether the write waits in a lane; false for a direct one and for a message.
    pub buffered: bool,
    /// Where the source has the message, in words (`orders-3@1042`); empty where it has no place.
    pub position: String,
    /// The send targets that `divert:` lists.
    pub divert: Vec<String>,
    /// Whether the message that comes with this report had secrets or fields taken out, as the
    /// configuration asks. What a `Divert` without a message sends is whole.
    pub redacted: bool,
    /// The host's version.
    pub host_version: String,
}

impl FailureReport {
    /// Whether the write took effect, as far as the host knows.
    #[must_use]
    pub fn applied(&self) -> Applied {
        if self.may_have_landed {
            Applied::Maybe
        } else {
            Applied::No
        }
    }
}

/// What an error handler decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Decision {
    /// Try again after this time.
    Retry {
        /// How long.
        after: Duration,
    },
    /// Keep it at the head and wait for a person.
    Block,
    /// Settle it as skipped.
    Skip,
    /// Move it to failed messages.
    Park {
        /// Why, one sentence.
        reason: String,
    },
    /// Send the message to another target instead, one that `divert:` lists.
    Divert {
        /// Which: `adapter/route/send`.
        target: String,
        /// What to send there; `None` sends the message as it is. Changes to `source` are ignored.
        #[serde(skip)]
        message: Option<Message>,
    },
}

/// A function with its type erased.
pub(crate) struct FunctionDef {
    pub manifest: FunctionManifest,
    pub open: fn(Value, FunctionContext) -> BoxFuture<'static, Result<AnyFunction, Failure>>,
}

/// An opened function.
#[derive(Clone)]
pub(crate) enum AnyFunction {
    /// A processor or a transform: both change a message or fail.
    Change(Arc<dyn Change>),
    /// An error handler.
    Decide(Arc<dyn Decide>),
}

pub(crate) trait Change: Send + Sync {
    fn change<'a>(&'a self, message: &'a mut Message) -> BoxFuture<'a, Result<(), Detail>>;
}

pub(crate) trait Decide: Send + Sync {
    fn decide<'a>(
        &'a self,
        failure: &'a FailureReport,
        message: &'a Message,
    ) -> BoxFuture<'a, Decision>;
}

struct OfProcessor<P>(P);
struct OfTransform<T>(T);
struct OfHandler<E>(E);

impl<P: Processor> Change for OfProcessor<P> {
    fn change<'a>(&'a self, message: &'a mut Message) -> BoxFuture<'a, Result<(), Detail>> {
        self.0.process(message)
    }
}

impl<T: Transform> Change for OfTransform<T> {
    fn change<'a>(&'a self, message: &'a mut Message) -> BoxFuture<'a, Result<(), Detail>> {
        self.0.transform(message)
    }
}

impl<E: ErrorHandler> Decide for OfHandler<E> {
    fn decide<'a>(
        &'a self,
        failure: &'a FailureReport,
        message: &'a Message,
    ) -> BoxFuture<'a, Decision> {
        self.0.decide(failure, message)
    }
}

impl FunctionDef {
    /// Whether this is the function of that kind (`processor`, …) and name.
    pub fn is(&self, kind: &str, name: &str) -> bool {
        let own = match self.manifest.kind {
            PluginKind::Processor => "processor",
            PluginKind::Transform => "transform",
            _ => "error_handler",
        };
        own == kind && self.manifest.name == name
    }

    pub fn processor<P: Processor>() -> Self {
        Self {
            manifest: manifest::<P::Config>(PluginKind::Processor, P::NAME, P::TITLE),
            open: |config, cx| {
                Box::pin(async move {
                    let open = P::open(parse(config, P::NAME)?, &cx).await?;
                    Ok(AnyFunction::Change(Arc::new(OfProcessor(open))))
                })
            },
        }
    }

    pub fn transform<T: Transform>() -> Self {
        Self {
            manifest: manifest::<T::Config>(PluginKind::Transform, T::NAME, T::TITLE),
            open: |config, cx| {
                Box::pin(async move {
                    let open = T::open(parse(config, T::NAME)?, &cx).await?;
                    Ok(AnyFunction::Change(Arc::new(OfTransform(open))))
                })
            },
        }
    }

    pub fn error_handler<E: ErrorHandler>() -> Self {
        Self {
            manifest: manifest::<E::Config>(PluginKind::ErrorHandler, E::NAME, E::TITLE),
            open: |config, cx| {
                Box::pin(async move {
                    let open = E::open(parse(config, E::NAME)?, &cx).await?;
                    Ok(AnyFunction::Decide(Arc::new(OfHandler(open))))
                })
            },
        }
    }
}

fn manifest<C: Config>(kind: PluginKind, name: &str, title: &str) -> FunctionManifest {
    let (config_schema, description) = schema_of::<C>();
    FunctionManifest {
        kind,
        name: name.to_owned(),
        title: title.to_owned(),
        description,
        config_schema,
    }
}
