//! Control calls: one completion each, bounded on the host's side too.

use crate::registry::{Completion, REGISTRY};
use crate::text::shortened;
use consign_abi::{Call, FailureKind, PluginRef, Reply, Status, json};
use std::fmt;
use std::time::Duration;
use tokio::sync::oneshot;

/// How much longer than the deadline the host waits for the plugin's word that it has stopped.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// Why a control call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What to do with it: see the kinds.
    pub kind: FailureKind,
    /// Stable, `snake_case`.
    pub code: String,
    /// One sentence.
    pub message: String,
    /// The plugin did not answer at all, not even that it has stopped: fence and rebuild.
    pub hung: bool,
    /// The plugin panicked: rebuild.
    pub panicked: bool,
}

impl Failure {
    pub(crate) fn new(
        kind: FailureKind,
        code: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            code: code.into(),
            message: message.into(),
            hung: false,
            panicked: false,
        }
    }

    pub(crate) fn other(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(FailureKind::Other, code, message)
    }

    pub(crate) fn from_json(bytes: &[u8]) -> Self {
        match serde_json::from_slice::<json::Failure>(bytes) {
            Ok(failure) => {
                let panicked = failure.code == "plugin_panicked";
                Self {
                    panicked,
                    ..Self::new(
                        FailureKind::from_code(failure.kind),
                        shortened(failure.code),
                        shortened(failure.message),
                    )
                }
            }
            Err(error) => {
                REGISTRY.count_garbage();
                Self::other(
                    "bad_reply",
                    format!("the plugin's failure is unreadable: {error}"),
                )
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Failure {}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Gives a call up, and asks the plugin to drop it, unless it was completed.
pub(crate) struct Abandon {
    pub plugin: PluginRef,
    pub token: u64,
    pub generation: u64,
    pub armed: bool,
}

impl Drop for Abandon {
    fn drop(&mut self) {
        if self.armed {
            REGISTRY.abandon(self.token);
            (self.plugin.cancel())(self.token, self.generation);
        }
    }
}

/// Makes a call and waits for its reply. Dropping the future cancels the call.
pub(crate) async fn call(
    plugin: PluginRef,
    generation: u64,
    deadline: Duration,
    send: impl FnOnce(Call),
) -> Result<Reply, Failure> {
    let (token, receiver) = REGISTRY.enter(generation);
    await_reply(plugin, token, generation, receiver, deadline, send).await
}

/// As [`call`], for a token that was entered before.
pub(crate) async fn await_reply(
    plugin: PluginRef,
    token: u64,
    generation: u64,
    receiver: oneshot::Receiver<Completion>,
    deadline: Duration,
    send: impl FnOnce(Call),
) -> Result<Reply, Failure> {
    let mut abandon = Abandon {
        plugin,
        token,
        generation,
        armed: true,
    };
    send(Call {
        token,
        generation,
        deadline_ms: millis(deadline),
    });
    let waited = tokio::time::timeout(deadline.saturating_add(ANSWER_GRACE), receiver).await;
    let completion = match waited {
        Ok(Ok(completion)) => completion,
        // The sender is only dropped together with the registry's entry.
        Ok(Err(_)) => Completion::Fenced,
        Err(_) => {
            let message = format!(
                "the plugin did not answer within {deadline:?} and does not say that it has stopped"
            );
            let mut failure = Failure::new(FailureKind::Down, "hung", message);
            failure.hung = true;
            return Err(failure);
        }
    };
    abandon.armed = false;
    match completion {
        Completion::Fenced => Err(Failure::other("fenced", "the connection was fenced")),
        Completion::Reply(reply) => read(reply, deadline),
    }
}

fn read(reply: Reply, deadline: Duration) -> Result<Reply, Failure> {
    match Status::from_code(reply.status) {
        Status::Ok => Ok(reply),
        Status::Aborted => Err(Failure::new(
            FailureKind::Down,
            "deadline",
            format!("not done within {deadline:?}"),
        )),
        Status::Panicked => {
            let text = String::from_utf8_lossy(&reply.bytes);
            let mut failure = Failure::other("plugin_panicked", text);
            failure.panicked = true;
            Err(failure)
        }
        Status::NoSuchHandle => Err(Failure::other(
            "closed",
            "the plugin does not know this handle: it was closed",
        )),
        _ => Err(Failure::from_json(&reply.bytes)),
    }
}
