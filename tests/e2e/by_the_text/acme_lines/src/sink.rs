//! `acme_lines.put`: each body as a line, behind its write key.

use crate::config::{ConnectionConfig, PutConfig};
use crate::connection::AcmeLines;
use crate::outcome;
use consign_plugin::prelude::*;

/// The operation.
pub struct Put {
    connection: Arc<AcmeLines>,
    config: PutConfig,
}

#[async_trait]
impl Sink for Put {
    type Connector = AcmeLines;
    type Config = PutConfig;
    const OPERATION: &'static str = "acme_lines.put";
    const TITLE: &'static str = "Put";

    fn declaration() -> SinkDeclaration {
        SinkDeclaration {
            promise: Promise::EffectivelyOnce,
            unconfirmed: false,
            repeat: Repeat {
                kind: RepeatKind::WriteKey,
                condition: None,
                window: Window::None,
            },
            key: KeyPlacement::On("second word of the line".into()),
            batch: BatchKind::Independent,
            sealed: false,
            note: String::new(),
        }
    }

    fn resolve(connection: &ConnectionConfig, _: &PutConfig) -> Resolved {
        Resolved {
            promise: Promise::EffectivelyOnce,
            unconfirmed: false,
            repeat: RepeatKind::WriteKey,
            window: Window::None,
            reason: "the server drops a key that it has seen".into(),
            target_id: connection.address.clone(),
            target_fields: Vec::new(),
            faults: Vec::new(),
        }
    }

    async fn open(
        connection: Arc<AcmeLines>,
        config: PutConfig,
        _: &ConnectionContext,
    ) -> Result<Self, Failure> {
        Ok(Self { connection, config })
    }

    async fn write(&self, batch: &Batch, _: &WriteContext) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.writes().len());
        for write in batch.writes() {
            outcomes.push(self.put(write).await);
        }
        outcomes
    }
}

impl Put {
    async fn put(&self, write: &Write) -> Outcome {
        let tag = match write.text(&self.config.tag) {
            Ok(tag) => tag,
            Err(detail) => return Outcome::refused(detail),
        };
        let Ok(body) = std::str::from_utf8(write.body()) else {
            return Outcome::refused(("not_text", "the body is no UTF-8, and a line is text"));
        };
        if tag.contains(char::is_whitespace) || tag.is_empty() || body.contains('\n') {
            return Outcome::refused((
                "line",
                "a tag with a blank, or a body with a line break, makes no line",
            ));
        }
        let line = format!("LINE {} {tag} {body}", write.key());
        outcome::of(self.connection.exchange(&line).await)
    }
}
