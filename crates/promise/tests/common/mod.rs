//! What the tests share: declarations of the first four destinations, and a plugin's usual answer.
#![allow(dead_code, clippy::unwrap_used)]

use consign_manifest::*;
use consign_promise::SourceFacts;

pub fn declaration(
    promise: Promise,
    kind: RepeatKind,
    condition: Option<&str>,
    window: Window,
) -> SinkDeclaration {
    SinkDeclaration {
        promise,
        unconfirmed: false,
        repeat: Repeat {
            kind,
            condition: condition.map(str::to_owned),
            window,
        },
        key: KeyPlacement::On("header <prefix>.write-key".into()),
        batch: BatchKind::Independent,
        sealed: false,
        note: String::new(),
    }
}

pub fn sqlite_write() -> SinkDeclaration {
    let mut d = declaration(
        Promise::EffectivelyOnce,
        RepeatKind::WriteKey,
        Some("with `write_key_column` set on a column with a unique index"),
        Window::None,
    );
    d.key = KeyPlacement::On("column `write_key_column`".into());
    d.batch = BatchKind::Atomic;
    d
}

pub fn nats_publish() -> SinkDeclaration {
    declaration(
        Promise::EffectivelyOnce,
        RepeatKind::WriteKey,
        Some("with `jetstream: true`"),
        Window::Words("the stream's Duplicates window (2 min by default)".into()),
    )
}

pub fn localfile_write() -> SinkDeclaration {
    let mut d = declaration(
        Promise::EffectivelyOnce,
        RepeatKind::SameTarget,
        Some("not in append mode: a repeat finds its own bytes under the name"),
        Window::None,
    );
    d.key = KeyPlacement::Nowhere("a file is the message's bytes under a name".into());
    d
}

pub fn second_copy() -> SinkDeclaration {
    declaration(
        Promise::AtLeastOnce,
        RepeatKind::SecondCopy,
        None,
        Window::None,
    )
}

pub fn unconfirmed() -> SinkDeclaration {
    let mut d = second_copy();
    d.unconfirmed = true;
    d
}

pub fn at_most_once() -> SinkDeclaration {
    declaration(
        Promise::AtMostOnce,
        RepeatKind::NotApplicable,
        None,
        Window::None,
    )
}

/// The plugin's answer for a configuration that meets the declaration's condition.
pub fn as_declared(d: &SinkDeclaration) -> Resolved {
    Resolved {
        promise: d.promise,
        unconfirmed: d.unconfirmed,
        repeat: d.repeat.kind,
        window: d.repeat.window.clone(),
        reason: "as declared".into(),
        target_id: "target".into(),
        target_fields: vec![],
        faults: vec![],
    }
}

pub fn source(delivery: DeliveryType, identity: Identity) -> SourceFacts {
    SourceFacts {
        delivery,
        identity,
        idempotency_window_ms: Some(86_400_000),
    }
}

pub fn stable() -> SourceFacts {
    source(
        DeliveryType::OffsetTrackedIndividual,
        Identity::Stable("stream and sequence".into()),
    )
}

pub fn nameless() -> SourceFacts {
    source(DeliveryType::OffsetTrackedIndividual, Identity::None)
}

pub fn with_client_key() -> SourceFacts {
    source(DeliveryType::SessionBased, Identity::ClientKey)
}

pub fn without_client_key() -> SourceFacts {
    source(DeliveryType::SessionBased, Identity::None)
}

/// A connector's name, its title, and its operations.
pub type Connector<'a> = (&'a str, &'a str, Vec<(&'a str, OperationDeclaration)>);

/// A manifest with these connectors.
pub fn manifest(connectors: Vec<Connector<'_>>) -> Manifest {
    Manifest {
        format: MANIFEST_FORMAT,
        name: "test".into(),
        version: "1.0.0".into(),
        connectors: connectors
            .into_iter()
            .map(|(name, title, operations)| ConnectorManifest {
                name: name.into(),
                title: title.into(),
                description: String::new(),
                config_schema: serde_json::json!({}),
                operations: operations
                    .into_iter()
                    .map(|(id, declaration)| OperationManifest {
                        id: id.into(),
                        title: id.into(),
                        description: String::new(),
                        config_schema: serde_json::json!({}),
                        declaration,
                    })
                    .collect(),
                example: String::new(),
            })
            .collect(),
        functions: vec![],
    }
}
