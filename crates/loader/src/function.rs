//! Processors, transforms and error handlers.

use crate::call::{self, Failure};
use crate::connection::json_bytes;
use crate::plugins::Loaded;
use crate::registry::REGISTRY;
use crate::text::said;
use consign_abi::json::{self, Names};
use consign_abi::{
    Applied, Call, HeaderRow, MessageBatch, MessageRow, PluginRef, Reply, Span, flags,
};
use consign_manifest::PluginKind;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Asks for a function to be opened.
#[derive(Debug, Clone)]
pub struct OpenFunction {
    /// Processor, transform or error handler.
    pub kind: PluginKind,
    /// Its name.
    pub name: String,
    /// Its `config`.
    pub config: Value,
    /// Where it is.
    pub names: Names,
}

/// A message for a function, and as it comes back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionMessage {
    /// The body.
    pub body: Vec<u8>,
    /// Headers, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Content type.
    pub content_type: Option<String>,
    /// Routing key.
    pub routing_key: Option<String>,
    /// Unix milliseconds.
    pub time_unix_ms: i64,
    /// A JSON object for `.source`; does not come back.
    pub source_json: Option<Vec<u8>>,
}

/// What a function made of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FunctionAnswer {
    /// The message as it is now.
    Changed(FunctionMessage),
    /// It failed: code and sentence.
    Failed {
        /// Stable.
        code: String,
        /// One sentence.
        message: String,
    },
}

/// An opened function. Clones are the same one; it is closed with the last of them.
#[derive(Clone, Debug)]
pub struct FunctionHandle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    plugin: Arc<Loaded>,
    generation: u64,
    handle: u64,
    closed: AtomicBool,
}

/// Time a plugin gets to close a function nobody waits for.
const BACKGROUND_CLOSE: Duration = Duration::from_secs(10);

impl Drop for Inner {
    fn drop(&mut self) {
        if let (false, Some(close)) = (
            self.closed.load(Ordering::Acquire),
            self.plugin.vtable.function_close(),
        ) {
            let call = Call {
                token: REGISTRY.enter_ignored(self.generation),
                generation: self.generation,
                deadline_ms: call::millis(BACKGROUND_CLOSE),
            };
            close(call, self.handle);
        }
    }
}

impl FunctionHandle {
    pub(crate) async fn open(
        plugin: Arc<Loaded>,
        request: OpenFunction,
        deadline: Duration,
    ) -> Result<Self, Failure> {
        let kind = match request.kind {
            PluginKind::Processor => "processor",
            PluginKind::Transform => "transform",
            _ => "error_handler",
        };
        let Some(open) = plugin.vtable.function_open() else {
            return Err(absent());
        };
        let bytes = json_bytes(&json::OpenFunction {
            operation: request.name,
            kind: Some(kind.to_owned()),
            config: request.config,
            names: request.names,
        })?;
        let generation = REGISTRY.issue();
        let send = |call| open(call, bytes);
        let reply = call::call(plugin.vtable, generation, deadline, send).await?;
        Ok(Self {
            inner: Arc::new(Inner {
                plugin,
                generation,
                handle: reply.handle,
                closed: AtomicBool::new(false),
            }),
        })
    }

    async fn call(
        &self,
        messages: &[FunctionMessage],
        details: &Value,
        deadline: Duration,
    ) -> Result<Reply, Failure> {
        let Some(function) = self.inner.plugin.vtable.function_call() else {
            return Err(absent());
        };
        let batch = encode(messages);
        let details = json_bytes(details)?;
        let handle = self.inner.handle;
        let send = |call| function(call, handle, batch, details);
        call::call(
            self.inner.plugin.vtable,
            self.inner.generation,
            deadline,
            send,
        )
        .await
    }

    /// Runs a processor or transform over messages: one answer each, in order.
    ///
    /// # Errors
    /// A panic, a missed deadline or an answer that does not fit: a fault, never a transform's own
    /// error.
    pub async fn process(
        &self,
        messages: &[FunctionMessage],
        deadline: Duration,
    ) -> Result<Vec<FunctionAnswer>, Failure> {
        let reply = self.call(messages, &Value::Null, deadline).await?;
        let answers: Vec<FunctionAnswer> = reply
            .outcomes
            .iter()
            .zip(reply.messages.rows.iter())
            .map(|(outcome, row)| {
                let text = |span: Span| span.of(&reply.bytes).map(said).unwrap_or_default();
                if Applied::from_code(outcome.applied) != Applied::Yes {
                    return FunctionAnswer::Failed {
                        code: text(outcome.code),
                        message: text(outcome.message),
                    };
                }
                decode(&reply.messages, row).map_or_else(unreadable, FunctionAnswer::Changed)
            })
            .collect();
        let all = [reply.outcomes.len(), reply.messages.rows.len()];
        if all.iter().all(|count| *count == messages.len()) {
            return Ok(answers);
        }
        REGISTRY.count_garbage();
        let message = format!(
            "the function was given {} messages and answered with {} outcomes and {} messages",
            messages.len(),
            reply.outcomes.len(),
            reply.messages.rows.len()
        );
        Err(Failure::other("sdk_outcome_count", message))
    }

    /// Asks an error handler about one failure: a `FailureReport` in, a `Decision` out, as JSON, with the
    /// message to divert where the handler made another one.
    ///
    /// # Errors
    /// A panic, a missed deadline or no decision: buffered, park; direct on an offset-tracked
    /// source, block.
    pub async fn decide(
        &self,
        report: &Value,
        message: &FunctionMessage,
        deadline: Duration,
    ) -> Result<(Value, Option<FunctionMessage>), Failure> {
        let reports = Value::Array(vec![report.clone()]);
        let reply = self
            .call(std::slice::from_ref(message), &reports, deadline)
            .await?;
        let decisions: Vec<Value> = serde_json::from_slice(&reply.bytes).unwrap_or_default();
        let decision = decisions.into_iter().next().ok_or_else(|| {
            REGISTRY.count_garbage();
            Failure::other("bad_reply", "the error handler gave no decision")
        })?;
        let Some(row) = reply.messages.rows.first() else {
            return Ok((decision, None));
        };
        let Some(diverted) = decode(&reply.messages, row) else {
            REGISTRY.count_garbage();
            let message = "the message that the error handler diverts can't be read";
            return Err(Failure::other("bad_reply", message));
        };
        Ok((decision, Some(diverted)))
    }

    /// Closes it.
    ///
    /// # Errors
    /// The plugin did not manage in time, or not without a panic.
    pub async fn close(&self, deadline: Duration) -> Result<(), Failure> {
        let Some(close) = self.inner.plugin.vtable.function_close() else {
            return Ok(());
        };
        if self.inner.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (plugin, handle): (PluginRef, u64) = (self.inner.plugin.vtable, self.inner.handle);
        let send = |call| close(call, handle);
        call::call(plugin, self.inner.generation, deadline, send)
            .await
            .map(|_| ())
    }
}

/// A message that came back in pieces, or without a body because it has more than 4 GiB.
fn unreadable() -> FunctionAnswer {
    REGISTRY.count_garbage();
    FunctionAnswer::Failed {
        code: "sdk_bad_reply".to_owned(),
        message: "the message that the function gave back can't be read, or is larger than 4 GiB"
            .to_owned(),
    }
}

fn absent() -> Failure {
    Failure::new(
        consign_abi::FailureKind::Config,
        "not_supported",
        "the plugin was built with an SDK that has no processors, transforms or error handlers: rebuild it with a newer consign-plugin",
    )
}

fn encode(messages: &[FunctionMessage]) -> MessageBatch {
    let mut batch = MessageBatch::new();
    for (id, message) in (1_u64..).zip(messages) {
        let first = batch.headers.len();
        for (name, value) in &message.headers {
            batch.headers.push(HeaderRow {
                name: Span::push(&mut batch.arena, name.as_bytes()),
                value: Span::push(&mut batch.arena, value),
            });
        }
        let mut put = |bytes: Option<&[u8]>| match bytes {
            Some(bytes) => Span::push(&mut batch.arena, bytes),
            None => Span::ABSENT,
        };
        batch.rows.push(MessageRow {
            id,
            time_unix_ms: message.time_unix_ms,
            offset: 0,
            flags: flags::MESSAGE_HAS_TIME,
            body: put(Some(&message.body)),
            content_type: put(message.content_type.as_deref().map(str::as_bytes)),
            routing_key: put(message.routing_key.as_deref().map(str::as_bytes)),
            identity: Span::ABSENT,
            partition: Span::ABSENT,
            client_key: Span::ABSENT,
            principal: Span::ABSENT,
            position: Span::ABSENT,
            source: put(message.source_json.as_deref()),
            headers: Span::since(first, batch.headers.len()),
            attributes: Span::EMPTY,
        });
    }
    batch
}

/// `None` where not all of it can be read: half a message is never taken for one.
fn decode(batch: &MessageBatch, row: &MessageRow) -> Option<FunctionMessage> {
    let bytes = |span: Span| span.of(&batch.arena).map(<[u8]>::to_vec);
    let text = |span: Span| span.text(&batch.arena).map(str::to_owned);
    // Absent is nothing; present must be readable.
    let optional = |span: Span| match span.is_present() {
        true => text(span).map(Some),
        false => Some(None),
    };
    let headers = row.headers.of(&batch.headers)?.iter();
    Some(FunctionMessage {
        body: bytes(row.body)?,
        headers: headers
            .map(|header| Some((text(header.name)?, bytes(header.value)?)))
            .collect::<Option<_>>()?,
        content_type: optional(row.content_type)?,
        routing_key: optional(row.routing_key)?,
        time_unix_ms: row.time_unix_ms,
        source_json: None,
    })
}
