//! `nats.publish`: each write of a batch to its subject, under its write key.

use crate::config::{ConnectionConfig, PublishConfig, is_subject};
use crate::connection::{Denial, Nats, Session};
use crate::outcome::{self, Answer, outcome};
use async_nats::jetstream::stream;
use async_nats::{HeaderMap, HeaderName, HeaderValue, Request};
use bytes::Bytes;
use consign_plugin::prelude::*;
use futures::stream::{FuturesUnordered, StreamExt};
use std::str::FromStr;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The server's duplicates window unless the stream says otherwise.
const DEFAULT_WINDOW_MS: u64 = 120_000;

/// Answers are given this much before the host's deadline: after it, those that did arrive would
/// count as unknown as well.
const ANSWER_MARGIN: Duration = Duration::from_millis(50);

const MESSAGE_ID: &str = "Nats-Msg-Id";
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
const CONTENT_TYPE: &str = "Content-Type";

/// The sink of one send.
pub struct Publish {
    connection: Arc<Nats>,
    config: PublishConfig,
    key_header: HeaderName,
    /// The stream that acknowledged last.
    stream_seen: Mutex<Option<String>>,
}

#[async_trait]
impl Sink for Publish {
    type Connector = Nats;
    type Config = PublishConfig;
    const OPERATION: &'static str = "nats.publish";
    const TITLE: &'static str = "Publish";

    fn declaration() -> SinkDeclaration {
        SinkDeclaration {
            promise: Promise::EffectivelyOnce,
            unconfirmed: false,
            repeat: Repeat {
                kind: RepeatKind::WriteKey,
                condition: Some("with `jetstream: true`".into()),
                window: Window::Words("the stream's Duplicates window (2 min by default)".into()),
            },
            key: KeyPlacement::On("header <prefix>.write-key; JetStream also Nats-Msg-Id".into()),
            batch: BatchKind::Independent,
            sealed: false,
            note: String::new(),
        }
    }

    fn resolve(connection: &ConnectionConfig, config: &PublishConfig) -> Resolved {
        let effectively_once = config.jetstream && !config.overrides_message_id();
        let reason = if !config.jetstream {
            "`jetstream` is not set: the server passes the message on and nobody confirms it"
        } else if !effectively_once {
            "`headers` replaces Nats-Msg-Id, under which the stream recognises a repeat"
        } else {
            "Nats-Msg-Id is the write key; the stream's duplicates window is inspected"
        };
        let subject = config.subject.as_written().unwrap_or_default();
        Resolved {
            promise: if effectively_once {
                Promise::EffectivelyOnce
            } else {
                Promise::AtLeastOnce
            },
            unconfirmed: !config.jetstream,
            repeat: if effectively_once {
                RepeatKind::WriteKey
            } else {
                RepeatKind::SecondCopy
            },
            window: if effectively_once {
                Window::DurationMs(DEFAULT_WINDOW_MS)
            } else {
                Window::None
            },
            reason: reason.to_owned(),
            target_id: config.stream.clone().unwrap_or_else(|| subject.to_owned()),
            target_fields: vec!["subject".to_owned()],
            faults: [connection.faults(), config.faults()].concat(),
        }
    }

    async fn open(
        connection: Arc<Nats>,
        config: PublishConfig,
        cx: &ConnectionContext,
    ) -> Result<Self, Failure> {
        let key_header = HeaderName::from_str(cx.write_key_name())
            .map_err(|error| Failure::config(("write_key_name", error.to_string())))?;
        Ok(Self {
            connection,
            config,
            key_header,
            stream_seen: Mutex::new(None),
        })
    }

    async fn write(&self, batch: &Batch, cx: &WriteContext) -> Vec<Outcome> {
        let deadline = Instant::from_std(cx.deadline()) - ANSWER_MARGIN.min(cx.remaining() / 2);
        let session = match tokio::time::timeout_at(deadline, self.connection.session()).await {
            Ok(Ok(session)) => session,
            Ok(Err(failure)) => return batch.all(outcome::of_failure(failure)),
            Err(_) => return batch.all(Outcome::down(("timeout", "the server does not answer"))),
        };
        let mut slots: Vec<Slot> = batch
            .writes()
            .iter()
            .map(|write| self.slot(write))
            .collect();
        if self.config.jetstream {
            publish_acknowledged(&session, &mut slots, deadline).await;
            self.remember_stream(&slots);
        } else {
            publish_unconfirmed(&session, &mut slots, deadline).await;
        }
        slots.into_iter().map(Slot::outcome).collect()
    }

    async fn inspect(&self) -> Inspection {
        if !self.config.jetstream {
            return Inspection::not_inspected("without `jetstream` there is no stream to inspect");
        }
        let session = match self.connection.session().await {
            Ok(session) => session,
            Err(failure) => return Inspection::not_inspected(failure.to_string()),
        };
        let name = match self.stream_name(&session).await {
            Ok(name) => name,
            Err(inspection) => return inspection,
        };
        match session.jetstream.get_stream(&name).await {
            Ok(stream) => inspected(
                &stream.cached_info().config,
                self.config.overrides_message_id(),
            ),
            Err(error) => match error.kind() {
                async_nats::jetstream::context::GetStreamErrorKind::JetStream(error)
                    if error.error_code() == async_nats::jetstream::ErrorCode::STREAM_NOT_FOUND =>
                {
                    Inspection::contradicted(format!("there is no stream `{name}`"))
                }
                _ => Inspection::not_inspected(error.to_string()),
            },
        }
    }
}

/// One write on its way: the message until it is sent, then its answer.
struct Slot {
    subject: String,
    message: Option<(HeaderMap, Bytes)>,
    outcome: Option<Outcome>,
    stream: Option<String>,
}

impl Slot {
    fn settle(&mut self, answer: Answer) {
        if self.outcome.is_none() {
            if let Answer::Reply(body) = &answer {
                self.stream = outcome::stream_of(body);
            }
            self.outcome = Some(outcome(&self.subject, answer));
        }
    }

    fn outcome(self) -> Outcome {
        let unanswered = || outcome(&self.subject, Answer::TimedOut);
        self.outcome.unwrap_or_else(unanswered)
    }
}

impl Publish {
    fn slot(&self, write: &Write) -> Slot {
        let mut slot = Slot {
            subject: String::new(),
            message: None,
            outcome: None,
            stream: None,
        };
        match write.text(&self.config.subject) {
            Ok(subject) => subject.clone_into(&mut slot.subject),
            Err(detail) => slot.outcome = Some(Outcome::refused(detail)),
        }
        if slot.outcome.is_none() && !is_subject(&slot.subject, false) {
            slot.settle(Answer::BadSubject);
        }
        if slot.outcome.is_none() {
            match self.headers(write) {
                Ok(headers) => {
                    slot.message = Some((headers, Bytes::copy_from_slice(write.body())));
                }
                Err(detail) => slot.outcome = Some(Outcome::refused(detail)),
            }
        }
        slot
    }

    /// The headers of one write. The key's come last: nothing replaces them but the operator's own
    /// `Nats-Msg-Id`, which the promise accounts for.
    fn headers(&self, write: &Write) -> Result<HeaderMap, Detail> {
        let mut headers = HeaderMap::new();
        for (name, value) in write.headers().filter(|(name, _)| self.forwards(name)) {
            let text = std::str::from_utf8(value);
            let text = text.map_err(|_| ("header", format!("header `{name}` is not UTF-8")))?;
            headers.append(header_name(name)?, header_value(name, text)?);
        }
        if let Some(content_type) = write.content_type() {
            headers.insert(CONTENT_TYPE, header_value(CONTENT_TYPE, content_type)?);
        }
        for (name, template) in &self.config.headers {
            headers.insert(
                header_name(name)?,
                header_value(name, write.text(template)?)?,
            );
        }
        let key = write.key().to_string();
        if self.config.jetstream && !self.config.overrides_message_id() {
            headers.insert(MESSAGE_ID, key.as_str());
        }
        if let Some(stream) = &self.config.stream {
            headers.insert(EXPECTED_STREAM, header_value(EXPECTED_STREAM, stream)?);
        }
        headers.insert(self.key_header.clone(), key.as_str());
        Ok(headers)
    }

    fn forwards(&self, name: &str) -> bool {
        let control = name
            .get(..5)
            .is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
        let key = name.eq_ignore_ascii_case(self.key_header.as_ref());
        let mut wanted = self.config.forward_headers.iter();
        !control && !key && wanted.any(|want| want == "*" || want.eq_ignore_ascii_case(name))
    }

    fn remember_stream(&self, slots: &[Slot]) {
        if let Some(stream) = slots.iter().rev().find_map(|slot| slot.stream.clone())
            && let Ok(mut seen) = self.stream_seen.lock()
        {
            *seen = Some(stream);
        }
    }

    /// The stream to inspect: the configured one, the one that covers a literal subject, or the one
    /// that acknowledged last.
    async fn stream_name(&self, session: &Session) -> Result<String, Inspection> {
        let configured = self.config.stream.clone();
        if let Some(subject) = self.config.subject.as_written() {
            use async_nats::jetstream::context::GetStreamByNameErrorKind as E;
            let found = session.jetstream.stream_by_subject(subject).await;
            let found = found.map_err(|error| match error.kind() {
                E::NotFound => {
                    Inspection::contradicted(format!("no stream covers subject `{subject}`"))
                }
                _ => Inspection::not_inspected(error.to_string()),
            })?;
            return match configured {
                Some(name) if name != found => Err(Inspection::contradicted(format!(
                    "subject `{subject}` belongs to stream `{found}`, not to `{name}`"
                ))),
                _ => Ok(found),
            };
        }
        if let Some(name) = configured {
            return Ok(name);
        }
        let seen = self.stream_seen.lock().ok().and_then(|seen| seen.clone());
        seen.ok_or_else(|| {
            Inspection::not_inspected(
                "`subject` is a template: set `stream` to have its window inspected",
            )
        })
    }
}

/// What a stream's settings mean for the promise, and what an operator should know.
fn inspected(config: &stream::Config, overridden: bool) -> Inspection {
    let name = &config.name;
    let window_ms = u64::try_from(config.duplicate_window.as_millis()).unwrap_or(u64::MAX);
    let mut inspection = if config.no_ack {
        Inspection::contradicted(format!("stream `{name}` acknowledges nothing (no_ack)"))
    } else if window_ms == 0 {
        Inspection::contradicted(format!("stream `{name}` has no duplicates window"))
    } else if overridden {
        Inspection::not_inspected("`headers` replaces Nats-Msg-Id")
    } else {
        let mut verified =
            Inspection::verified(format!("stream `{name}` drops repeats for {window_ms} ms"));
        verified.window = Some(Window::DurationMs(window_ms));
        verified
    };
    let mut warn = |warning: &str| {
        inspection
            .warnings
            .push(format!("stream `{name}` {warning}"))
    };
    if config.storage == stream::StorageType::Memory {
        warn("is kept in memory: messages and duplicates window are gone when the server restarts");
    }
    let limited =
        config.max_messages > 0 || config.max_bytes > 0 || config.max_messages_per_subject > 0;
    if limited && config.discard == stream::DiscardPolicy::Old {
        warn("drops its oldest messages when it is full, consumed or not");
    }
    if !config.max_age.is_zero() {
        warn(&format!(
            "drops messages after {} s, consumed or not",
            config.max_age.as_secs()
        ));
    }
    if config.retention == stream::RetentionPolicy::Interest {
        warn("keeps a message only for consumers that exist when it arrives");
    }
    inspection
}

/// Publishes into JetStream, all at once, and waits for each acknowledgement.
async fn publish_acknowledged(session: &Session, slots: &mut [Slot], deadline: Instant) {
    let mut denials = session.denials();
    let mut requests: FuturesUnordered<_> = slots
        .iter_mut()
        .enumerate()
        .filter_map(|(index, slot)| {
            let (headers, body) = slot.message.take()?;
            let request = Request::new().headers(headers).payload(body).timeout(None);
            let answer = session.client.send_request(slot.subject.clone(), request);
            Some(async move { (index, answer.await) })
        })
        .collect();
    while slots.iter().any(|slot| slot.outcome.is_none()) {
        tokio::select! {
            answered = requests.next() => {
                let Some((index, result)) = answered else { break };
                let answer = match result {
                    Ok(message) => Answer::Reply(message.payload.to_vec()),
                    Err(error) => outcome::of_request(&error),
                };
                if let Some(slot) = slots.get_mut(index) {
                    slot.settle(answer);
                }
            }
            denial = denials.recv() => {
                if let Ok(Denial::Publish(denied)) = denial {
                    for slot in slots.iter_mut().filter(|slot| slot.subject == denied) {
                        slot.settle(Answer::NotPermitted);
                    }
                }
            }
            () = tokio::time::sleep_until(deadline) => break,
        }
    }
}

/// Publishes without acknowledgement; a round trip then shows that the server has read it all.
async fn publish_unconfirmed(session: &Session, slots: &mut [Slot], deadline: Instant) {
    let mut denials = session.denials();
    let sending = async {
        for slot in slots.iter_mut() {
            if let Some((headers, body)) = slot.message.take() {
                let sent = session
                    .client
                    .publish_with_headers(slot.subject.clone(), headers, body);
                if let Err(error) = sent.await {
                    slot.settle(outcome::of_publish(&error));
                }
            }
        }
        session.round_trip().await
    };
    let read = match tokio::time::timeout_at(deadline, sending).await {
        Ok(Ok(())) => true,
        Ok(Err(_)) => {
            slots.iter_mut().for_each(|slot| slot.settle(Answer::Lost));
            false
        }
        Err(_) => {
            // What is still here never left.
            let unsent = slots.iter_mut().filter(|slot| slot.message.is_some());
            unsent.for_each(|slot| slot.settle(Answer::NotSent));
            false
        }
    };
    while let Ok(denial) = denials.try_recv() {
        if let Denial::Publish(denied) = denial {
            for slot in slots.iter_mut().filter(|slot| slot.subject == denied) {
                slot.settle(Answer::NotPermitted);
            }
        }
    }
    if read {
        slots.iter_mut().for_each(|slot| slot.settle(Answer::Read));
    }
}

fn header_name(name: &str) -> Result<HeaderName, Detail> {
    HeaderName::from_str(name)
        .map_err(|_| ("header", format!("`{name}` is not a header name")).into())
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, Detail> {
    HeaderValue::from_str(value)
        .map_err(|_| ("header", format!("header `{name}` holds a line break")).into())
}
