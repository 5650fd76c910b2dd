//! `dead_letter`: a full record of the failed write, to a send of the operator's choice.

use crate::record::Record;
use consign_plugin::prelude::*;

/// Hands what failed, with its history and its diagnosis, to another send: a queue, a topic, a file.
///
/// The record is JSON (schema: docs/dead-letter.schema.json). Values that the configuration redacts, and
/// headers that authenticate, are not in it; it then says `replayable: false`. The record is committed to
/// the target's lane in the same step that settles the failed write, so a dead letter whose own
/// destination is down waits there and is not lost.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeadLetterConfig {
    /// The send, `adapter/route/send`, one of those that `divert:` lists. Default: the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Leaves the body and the headers out of the record. Default false.
    pub without_body: bool,
}

/// The handler.
pub struct DeadLetter {
    config: DeadLetterConfig,
}

#[async_trait]
impl ErrorHandler for DeadLetter {
    type Config = DeadLetterConfig;
    const NAME: &'static str = "dead_letter";
    const TITLE: &'static str = "Dead letter";

    async fn open(config: DeadLetterConfig, _: &FunctionContext) -> Result<Self, Failure> {
        Ok(Self { config })
    }

    async fn decide(&self, failure: &FailureReport, message: &Message) -> Decision {
        let target = self.config.target.as_ref().or(failure.divert.first());
        let Some(target) = target.filter(|target| failure.divert.contains(target)) else {
            return Decision::Park {
                reason: "dead_letter has no target: `divert:` lists no such send".to_owned(),
            };
        };
        let record = Record::of(failure, message, self.config.without_body);
        let body = match serde_json::to_vec(&record) {
            Ok(body) => body,
            Err(error) => {
                return Decision::Park {
                    reason: format!("the dead-letter record cannot be written: {error}"),
                };
            }
        };
        Decision::Divert {
            target: target.clone(),
            message: Some(Message {
                body,
                content_type: Some("application/json".to_owned()),
                routing_key: message.routing_key.clone(),
                time_unix_ms: message.time_unix_ms,
                ..Message::default()
            }),
        }
    }
}
