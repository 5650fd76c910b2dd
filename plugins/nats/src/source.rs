//! `nats.consume`: a durable pull consumer of a JetStream stream.
//!
//! * A pull asks for no more messages than the host has granted; idle heartbeats show that the server
//!   still knows about it.
//! * A message keeps one lease from its arrival here to its settlement: progress is reported at a
//!   third of `ack_wait`, also while it waits for credit. So a message that is held counts as one
//!   delivery, and `max_deliver` is not used up.
//! * Acknowledgements are confirmed by the server. One that is lost with a connection only means that
//!   the message comes again under the same identity.
//! * A connection that breaks ends the run; the host starts the next one, which finds the consumer
//!   where it was.

use crate::config::{ConnectionConfig, ConsumeConfig};
use crate::connection::{Nats, Session};
use crate::consumer::{lease_time, open};
use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::{Consumer, pull};
use async_nats::{Message as NatsMessage, Request, StatusCode, Subject, Subscriber};
use consign_plugin::prelude::*;
use futures::future::{FutureExt, pending};
use futures::stream::{FuturesUnordered, StreamExt};
use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::timeout;

/// How long the server keeps a pull that finds no messages.
const PULL_EXPIRES: Duration = Duration::from_secs(30);

/// How often it shows that it still keeps it. After three of these without a sign the run ends.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Bytes asked for at a time; what arrives is in memory before the host's byte credit applies.
const PULL_BYTES: usize = 8 << 20;

/// Wait before the server hands a released message over again: another host can have it soon, and a
/// host that restarts in a loop does not use up its deliveries.
const RELEASE_DELAY: Duration = Duration::from_secs(1);

/// Longest wait for the confirmation of an acknowledgement: it must not hold up a stop.
const ACK_WAIT: Duration = Duration::from_secs(5);

/// Headers that carry a login; passed on only when `include_headers` names them.
const AUTHENTICATING: [&str; 4] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "x-api-key",
];

/// How long after an acknowledgement a message may come again: the server keeps what it knows about
/// acknowledgements in memory for a while, so that a crash can take the last ones back.
const REDELIVERY_BOUND_MS: u64 = 24 * 60 * 60 * 1000;

/// The source of one adapter.
pub struct Consume;

#[async_trait]
impl Source for Consume {
    type Connector = Nats;
    type Config = ConsumeConfig;
    const OPERATION: &'static str = "nats.consume";
    const TITLE: &'static str = "Consume";

    fn declaration() -> SourceDeclaration {
        SourceDeclaration {
            delivery: DeliveryType::OffsetTrackedIndividual,
            identity: Identity::Stable("stream, its creation time and the sequence in it".into()),
            redelivery_bound_ms: Some(REDELIVERY_BOUND_MS),
            note: String::new(),
        }
    }

    fn resolve(connection: &ConnectionConfig, config: &ConsumeConfig) -> ResolvedSource {
        ResolvedSource {
            delivery: DeliveryType::OffsetTrackedIndividual,
            identity: Self::declaration().identity,
            reason: format!(
                "messages of stream `{}` have a sequence that never changes",
                config.stream
            ),
            faults: [connection.faults(), config.faults()].concat(),
        }
    }

    async fn run(
        connection: Arc<Nats>,
        config: ConsumeConfig,
        cx: SourceContext,
    ) -> Result<(), Failure> {
        let session = connection.session().await?;
        let (consumer, incarnation) = open(&session, &config).await?;
        let lease = lease_time(&consumer.cached_info().config);
        let run = Run {
            session: &session,
            incarnation,
            include_headers: &config.include_headers,
            leases: Mutex::default(),
            ack_wait: connection.request_timeout().min(ACK_WAIT),
        };
        let (deliverer, controls) = cx.split();
        let failure = tokio::select! {
            () = run.settle(&controls, lease) => return Ok(()),
            () = session.gone() => lost(&"the server went away"),
            ended = run.pull(&consumer, &deliverer, config.pull_messages) => match ended {
                Ok(never) => match never {},
                Err(failure) => failure,
            },
        };
        if failure.kind == FailureKind::Down {
            connection.forget(&session);
        }
        Err(failure)
    }
}

/// One run over one connection.
struct Run<'a> {
    session: &'a Session,
    incarnation: String,
    include_headers: &'a [String],
    /// Reply subjects of all messages that arrived and are not settled.
    leases: Mutex<HashSet<String>>,
    /// How long an acknowledgement may take to be confirmed.
    ack_wait: Duration,
}

/// A message's acknowledgement subject, tied to it while the host has it.
struct Lease(String);

impl Run<'_> {
    /// Pulls and delivers until the connection fails. Never returns after a stop.
    async fn pull(
        &self,
        consumer: &Consumer<pull::Config>,
        deliverer: &Deliverer,
        pull_messages: u32,
    ) -> Result<Infallible, Failure> {
        let inbox = Subject::from(self.session.client.new_inbox());
        let subscribed = self.session.client.subscribe(inbox.clone()).await;
        let mut arriving = subscribed.map_err(|error| lost(&error))?;
        let most = usize::try_from(pull_messages).unwrap_or(usize::MAX);
        let mut max_bytes = PULL_BYTES;
        loop {
            let Ok(room) = deliverer.ready().await else {
                // The settling half sees the stop as well, and ends the run.
                return pending().await;
            };
            let batch = if max_bytes == 0 {
                1
            } else {
                room.clamp(1, most)
            };
            let request = pull::BatchConfig {
                batch,
                expires: Some(PULL_EXPIRES),
                max_bytes,
                idle_heartbeat: HEARTBEAT,
                ..pull::BatchConfig::default()
            };
            let requested = consumer.request_batch(request, inbox.clone()).await;
            requested.map_err(|error| lost(&error))?;
            let end = self.receive(&mut arriving, batch, deliverer).await?;
            // A message larger than a whole pull comes alone, without a limit.
            max_bytes = if end == PullEnd::TooLarge {
                0
            } else {
                PULL_BYTES
            };
        }
    }

    /// Receives what one pull asked for and delivers it as it comes.
    async fn receive(
        &self,
        arriving: &mut Subscriber,
        batch: usize,
        deliverer: &Deliverer,
    ) -> Result<PullEnd, Failure> {
        let mut missing = batch;
        while missing > 0 {
            let stalled = || Failure::down(("stalled", "the server sends no heartbeats"));
            let first = timeout(HEARTBEAT * 3, arriving.next())
                .await
                .map_err(|_| stalled())?;
            let mut next = Some(first.ok_or_else(|| lost(&"subscription ended"))?);
            let (mut messages, mut end) = (Vec::new(), None);
            while let Some(message) = next {
                match status(&message)? {
                    Status::Message => match self.message(message) {
                        Some(message) => {
                            messages.push(message);
                            missing = missing.saturating_sub(1);
                        }
                        None => {
                            tracing::warn!("a message without JetStream coordinates was ignored")
                        }
                    },
                    Status::Alive => {}
                    Status::End(reason) => end = Some(reason),
                }
                next = if end.is_none() && missing > 0 {
                    arriving.next().now_or_never().flatten()
                } else {
                    None
                };
            }
            if !messages.is_empty() && deliverer.deliver(messages).await.is_err() {
                return pending().await;
            }
            if let Some(end) = end {
                return Ok(end);
            }
        }
        Ok(PullEnd::Done)
    }

    /// A message for the host, its lease noted.
    fn message(&self, message: NatsMessage) -> Option<SourceMessage> {
        let reply = message.reply.as_ref()?.to_string();
        let at = Coordinates::of(&reply)?;
        let mut out = SourceMessage::new(message.payload.to_vec())
            .identity(format!("{}#{}", self.incarnation, at.sequence))
            .routing_key(message.subject.to_string())
            .time_unix_ms(at.published_unix_ms)
            .attribute("subject", message.subject.to_string())
            .attribute("stream", at.stream)
            .attribute("consumer", at.consumer)
            .attribute("sequence", at.sequence)
            .attribute("delivered", at.delivered)
            .token(Lease(reply.clone()));
        for (name, values) in message.headers.iter().flat_map(|headers| headers.iter()) {
            let name: &str = name.as_ref();
            if !self.passes(name) {
                continue;
            }
            for value in values {
                if name.eq_ignore_ascii_case("content-type") {
                    out = out.content_type(value.as_str());
                }
                out = out.header(name, value.as_str());
            }
        }
        if let Ok(mut leases) = self.leases.lock() {
            leases.insert(reply);
        }
        Some(out)
    }

    fn passes(&self, header: &str) -> bool {
        !AUTHENTICATING
            .iter()
            .any(|name| name.eq_ignore_ascii_case(header))
            || self
                .include_headers
                .iter()
                .any(|name| name.eq_ignore_ascii_case(header))
    }

    /// Acknowledges and extends until the host stops the source and all acknowledgements are through.
    async fn settle(&self, controls: &Controls, lease: Duration) {
        let mut acknowledging = FuturesUnordered::new();
        let mut alive = tokio::time::interval(lease / 3);
        alive.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                control = controls.next() => match control {
                    Control::Settle(settled) => {
                        acknowledging.extend(settled.iter().filter_map(|one| self.answer(one)));
                    }
                    Control::Extend(ids) => {
                        let leases = ids.into_iter().filter_map(|id| controls.token::<Lease>(id));
                        self.extend(leases.map(|lease| lease.0.clone()).collect()).await;
                    }
                    Control::Seek(_) => tracing::warn!("a JetStream consumer keeps its own position; create another one to start elsewhere"),
                    Control::Stop => break,
                    _ => {}
                },
                _ = alive.tick() => {
                    let leases = self.leases.lock().map(|leases| leases.iter().cloned().collect());
                    self.extend(leases.unwrap_or_default()).await;
                }
                Some(()) = acknowledging.next() => {}
            }
        }
        while acknowledging.next().await.is_some() {}
    }

    /// The answer to the server for a settled message; `None` where it gets none.
    fn answer(&self, settled: &Settled) -> Option<impl Future<Output = ()> + use<'_>> {
        let lease = settled.token::<Lease>()?;
        if let Ok(mut leases) = self.leases.lock() {
            leases.remove(&lease.0);
        }
        let kind = match &settled.result {
            SettleResult::Accepted | SettleResult::Repeat | SettleResult::Dropped { .. } => {
                AckKind::Ack
            }
            SettleResult::Refused { .. } => AckKind::Term,
            SettleResult::Blocked { retry_after_ms, .. } => {
                AckKind::Nak(Some(Duration::from_millis(*retry_after_ms)))
            }
            SettleResult::Released => AckKind::Nak(Some(RELEASE_DELAY)),
            // The first delivery of the same message is still on its way and answers for both.
            _ => return None,
        };
        Some(async move {
            let request = Request::new()
                .payload(kind.into())
                .timeout(Some(self.ack_wait));
            if let Err(error) = self
                .session
                .client
                .send_request(lease.0.clone(), request)
                .await
            {
                tracing::debug!(%error, "an acknowledgement was not confirmed; the message may come again");
            }
        })
    }

    async fn extend(&self, leases: Vec<String>) {
        for lease in leases {
            // A connection that is gone ends the run in the pulling half.
            let _ = self
                .session
                .client
                .publish(lease, AckKind::Progress.into())
                .await;
        }
    }
}

/// How a pull ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PullEnd {
    /// All messages came, or the server has given it up without fault.
    Done,
    /// The next message is larger than the pull allows.
    TooLarge,
}

/// What a message on the inbox is.
#[derive(Debug, PartialEq, Eq)]
enum Status {
    Message,
    Alive,
    End(PullEnd),
}

fn status(message: &NatsMessage) -> Result<Status, Failure> {
    let text = message.description.as_deref().unwrap_or_default();
    match message.status {
        None | Some(StatusCode::OK) => Ok(Status::Message),
        Some(StatusCode::IDLE_HEARTBEAT) => Ok(Status::Alive),
        Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => Ok(Status::End(PullEnd::Done)),
        Some(StatusCode::REQUEST_TERMINATED) => {
            let text = text.to_ascii_lowercase();
            if text.contains("maxbytes") {
                Ok(Status::End(PullEnd::TooLarge))
            } else if text.contains("batch completed") || text.contains("exceeded max") {
                Ok(Status::End(PullEnd::Done))
            } else {
                Err(Failure::other(("pull_ended", text)))
            }
        }
        Some(StatusCode::NO_RESPONDERS) => Err(Failure::other((
            "no_consumer",
            "the consumer or its stream is gone",
        ))),
        Some(other) => Err(Failure::other(("pull_ended", format!("{other} {text}")))),
    }
}

/// What an acknowledgement subject says about its message.
#[derive(Debug, PartialEq, Eq)]
struct Coordinates<'a> {
    stream: &'a str,
    consumer: &'a str,
    delivered: u64,
    sequence: u64,
    published_unix_ms: i64,
}

impl<'a> Coordinates<'a> {
    /// Reads `$JS.ACK.[domain.account.]stream.consumer.delivered.sequence.consumer_sequence.nanos.…`.
    fn of(reply: &'a str) -> Option<Self> {
        let rest = reply.strip_prefix("$JS.ACK.")?;
        // Seven tokens in the old form, nine and more with domain and account.
        let skip = if rest.split('.').count() >= 9 { 2 } else { 0 };
        let mut tokens = rest.split('.').skip(skip);
        let (stream, consumer) = (tokens.next()?, tokens.next()?);
        let delivered = tokens.next()?.parse().ok()?;
        let sequence = tokens.next()?.parse().ok()?;
        let nanos: i64 = tokens.nth(1)?.parse().ok()?;
        Some(Self {
            stream,
            consumer,
            delivered,
            sequence,
            published_unix_ms: nanos / 1_000_000,
        })
    }
}

fn lost(error: &dyn std::fmt::Display) -> Failure {
    Failure::down(("connection_lost", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_read_from_old_and_new_subjects() {
        let expected = Coordinates {
            stream: "S",
            consumer: "c",
            delivered: 2,
            sequence: 7,
            published_unix_ms: 1_700_000_000_123,
        };
        let nanos = "1700000000123456789";
        for subject in [
            format!("$JS.ACK.S.c.2.7.5.{nanos}.3"),
            format!("$JS.ACK._.hash.S.c.2.7.5.{nanos}.3"),
            format!("$JS.ACK.hub.hash.S.c.2.7.5.{nanos}.3.token.more"),
        ] {
            assert_eq!(
                Coordinates::of(&subject).as_ref(),
                Some(&expected),
                "{subject}"
            );
        }
        for subject in [
            "",
            "$JS.ACK.",
            "$JS.ACK.S.c.x.7.5.1.3",
            "$JS.ACK.S.c.2",
            "_INBOX.a",
        ] {
            assert_eq!(Coordinates::of(subject), None, "{subject}");
        }
    }

    #[test]
    fn every_status_has_its_meaning() {
        let message = |code: Option<StatusCode>, text: &str| NatsMessage {
            subject: "i".into(),
            reply: None,
            payload: bytes::Bytes::new(),
            headers: None,
            status: code,
            description: Some(text.to_owned()),
            length: 0,
        };
        let ended = StatusCode::REQUEST_TERMINATED;
        for (code, text, expected) in [
            (None, "", Status::Message),
            (Some(StatusCode::OK), "", Status::Message),
            (
                Some(StatusCode::IDLE_HEARTBEAT),
                "Idle Heartbeat",
                Status::Alive,
            ),
            (
                Some(StatusCode::NOT_FOUND),
                "No Messages",
                Status::End(PullEnd::Done),
            ),
            (
                Some(StatusCode::TIMEOUT),
                "Request Timeout",
                Status::End(PullEnd::Done),
            ),
            (
                Some(ended),
                "Message Size Exceeds MaxBytes",
                Status::End(PullEnd::TooLarge),
            ),
            (Some(ended), "Batch Completed", Status::End(PullEnd::Done)),
            (
                Some(ended),
                "Exceeded MaxAckPending",
                Status::End(PullEnd::Done),
            ),
            (
                Some(ended),
                "Exceeded MaxWaiting",
                Status::End(PullEnd::Done),
            ),
        ] {
            assert_eq!(status(&message(code, text)).unwrap(), expected, "{text}");
        }
        for (code, text) in [
            (ended, "Consumer Deleted"),
            (ended, "Consumer is push based"),
            (ended, "Server Shutdown"),
            (StatusCode::NO_RESPONDERS, ""),
        ] {
            assert!(status(&message(Some(code), text)).is_err(), "{text}");
        }
    }
}
