//! Processors, transforms and error handlers while the host runs: each use in the configuration is opened
//! once, when it is first needed, and opened anew after it failed to answer.

use crate::clock::wall_unix_ms_i64;
use crate::events::Events;
use consign_ledger::{Code, Event};
use consign_loader::{
    Failure, FunctionAnswer, FunctionHandle, FunctionMessage, Names, OpenFunction, Plugins,
};
use consign_manifest::PluginKind;
use consign_pipeline::Message;
use serde_json::Value;
use std::time::Duration;

/// How long opening a function may take.
const OPEN_DEADLINE: Duration = Duration::from_secs(60);
/// How long an error handler, and a transform of a plugin, may take. A processor has a setting of its own.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// One use of a function in the configuration.
pub struct Function {
    plugins: Plugins,
    request: OpenFunction,
    timeout: Duration,
    events: Events,
    // One opening at a time: held across awaits.
    open: tokio::sync::Mutex<Option<FunctionHandle>>,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Function")
            .field("name", &self.request.name)
            .finish_non_exhaustive()
    }
}

/// Where a function stands in the configuration.
#[derive(Debug, Clone, Copy)]
pub struct UsedBy<'a> {
    /// The adapter.
    pub adapter: &'a str,
    /// The route; empty on an adapter.
    pub route: &'a str,
}

impl Function {
    /// A function that will be opened when it is first called.
    pub fn new(
        plugins: &Plugins,
        events: &Events,
        kind: PluginKind,
        name: &str,
        config: Value,
        used_by: UsedBy<'_>,
        timeout: Duration,
    ) -> Self {
        Self {
            plugins: plugins.clone(),
            request: OpenFunction {
                kind,
                name: name.to_owned(),
                config,
                names: Names {
                    adapter: Some(used_by.adapter.to_owned()),
                    route: Some(used_by.route.to_owned()),
                    ..Names::default()
                },
            },
            timeout,
            events: events.clone(),
            open: tokio::sync::Mutex::default(),
        }
    }

    /// What stands in the configuration.
    pub fn name(&self) -> &str {
        &self.request.name
    }

    /// Runs a processor or transform over messages: one answer each, in order. A failure of the whole call
    /// (a panic, a missed deadline) that one message caused must not be every message's, so each is then
    /// tried alone.
    pub async fn process(
        &self,
        messages: &[FunctionMessage],
    ) -> Vec<Result<FunctionAnswer, Failure>> {
        match self.process_together(messages).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(failure) if messages.len() < 2 => vec![Err(failure)],
            Err(_) => {
                let alone = messages.chunks(1).map(|one| async {
                    let mut answers = self.process_together(one).await?;
                    answers.pop().ok_or_else(|| no_answer(&self.request.name))
                });
                futures::future::join_all(alone).await
            }
        }
    }

    async fn process_together(
        &self,
        messages: &[FunctionMessage],
    ) -> Result<Vec<FunctionAnswer>, Failure> {
        let handle = self.handle().await?;
        let answer = handle.process(messages, self.timeout).await;
        self.judge(&answer).await;
        answer
    }

    /// Asks an error handler about one failure.
    ///
    /// # Errors
    /// It could not be opened, panicked, missed its deadline or gave no decision.
    pub async fn decide(
        &self,
        report: &Value,
        message: &FunctionMessage,
    ) -> Result<(Value, Option<FunctionMessage>), Failure> {
        let handle = self.handle().await?;
        let answer = handle.decide(report, message, self.timeout).await;
        self.judge(&answer).await;
        answer
    }

    async fn handle(&self) -> Result<FunctionHandle, Failure> {
        let mut open = self.open.lock().await;
        if let Some(handle) = open.as_ref() {
            return Ok(handle.clone());
        }
        let request = self.request.clone();
        let handle = self.plugins.open_function(request, OPEN_DEADLINE).await?;
        *open = Some(handle.clone());
        Ok(handle)
    }

    /// An instance that panicked or did not answer is not trusted with the next call.
    async fn judge<T>(&self, answer: &Result<T, Failure>) {
        let Err(failure) = answer else { return };
        *self.open.lock().await = None;
        if failure.panicked {
            let names = &self.request.names;
            let event = Event::new(Code::PluginPanicked, wall_unix_ms_i64())
                .adapter(names.adapter.clone().unwrap_or_default())
                .route(names.route.clone().unwrap_or_default())
                .message(format!("{}: {}", self.request.name, failure.message));
            self.events.emit(event);
        }
    }
}

fn no_answer(name: &str) -> Failure {
    Failure {
        kind: consign_loader::FailureKind::Other,
        code: "sdk_outcome_count".to_owned(),
        message: format!("{name} answered nothing"),
        hung: false,
        panicked: false,
    }
}

/// A message as a function gets it.
pub fn to_function(message: &Message) -> FunctionMessage {
    FunctionMessage {
        body: message.body.to_vec(),
        headers: message
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.to_vec()))
            .collect(),
        content_type: message.content_type.clone(),
        routing_key: message.routing_key.clone(),
        time_unix_ms: message.time_unix_ms,
        // A JSON object always serializes.
        source_json: serde_json::to_vec(&message.source).ok(),
    }
}

/// `message` as a function gave it back; what a function cannot change stays.
pub fn from_function(message: &Message, changed: FunctionMessage) -> Message {
    Message {
        // The same bytes keep the memory they share with the source's batch.
        body: if message.body == changed.body {
            message.body.clone()
        } else {
            changed.body.into()
        },
        content_type: changed.content_type,
        headers: changed
            .headers
            .into_iter()
            .map(|(name, value)| (name, value.into()))
            .collect(),
        routing_key: changed.routing_key,
        time_unix_ms: changed.time_unix_ms,
        ..message.clone()
    }
}
