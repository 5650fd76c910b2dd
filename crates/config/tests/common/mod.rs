//! A catalog of invented plugins, with the shapes real ones have.

#![allow(
    dead_code,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail loudly, and each test file uses some"
)]

use consign_config::{Catalog, Config, Problem, parse};
use consign_manifest::{
    BatchKind, ConnectorManifest, DeliveryType, FunctionManifest, Identity, KeyPlacement, Manifest,
    OperationDeclaration, OperationManifest, PluginKind, Promise, Repeat, RepeatKind,
    SinkDeclaration, SourceDeclaration, Window,
};
use serde_json::{Value, json};
use std::path::Path;

fn sink(id: &str, unconfirmed: bool, schema: Value) -> OperationManifest {
    operation(
        id,
        schema,
        OperationDeclaration::Sink(SinkDeclaration {
            promise: Promise::AtLeastOnce,
            unconfirmed,
            repeat: Repeat {
                kind: RepeatKind::SecondCopy,
                condition: None,
                window: Window::None,
            },
            key: KeyPlacement::On("header".into()),
            batch: BatchKind::Independent,
            sealed: false,
            note: String::new(),
        }),
    )
}

fn source(id: &str, schema: Value) -> OperationManifest {
    operation(
        id,
        schema,
        OperationDeclaration::Source(SourceDeclaration {
            delivery: DeliveryType::SessionBased,
            identity: Identity::ClientKey,
            redelivery_bound_ms: None,
            note: String::new(),
        }),
    )
}

fn operation(
    id: &str,
    config_schema: Value,
    declaration: OperationDeclaration,
) -> OperationManifest {
    OperationManifest {
        id: id.into(),
        title: id.into(),
        description: String::new(),
        config_schema,
        declaration,
    }
}

fn connector(name: &str, config_schema: Value, operations: Vec<OperationManifest>) -> Manifest {
    Manifest {
        format: 1,
        name: name.into(),
        version: "0.1.0".into(),
        connectors: vec![ConnectorManifest {
            name: name.into(),
            title: name.into(),
            description: String::new(),
            config_schema,
            operations,
            example: String::new(),
        }],
        functions: vec![],
    }
}

fn closed(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

pub fn catalog() -> Catalog {
    let text = json!({ "type": "string" });
    let template = json!({ "type": "string", "format": "consign-template" });
    let http = connector(
        "http",
        closed(
            json!({
                "listen": text,
                "port": { "type": ["integer", "null"], "format": "uint16", "minimum": 0 },
                "tls": { "anyOf": [{ "$ref": "#/$defs/Tls" }, { "type": "null" }] },
                "auth": { "oneOf": [
                    closed(json!({ "type": { "const": "basic" }, "username": text, "password": { "type": "string", "format": "password" } }), &["type", "username", "password"]),
                    closed(json!({ "type": { "const": "bearer" }, "token": { "type": "string", "format": "password" } }), &["type", "token"]),
                ] },
            }),
            &["listen"],
        ),
        vec![source(
            "http.receive",
            closed(json!({ "path": text }), &["path"]),
        )],
    );
    let mut http = http;
    http.connectors[0].config_schema["$defs"] = json!({
        "Tls": closed(json!({ "ca_file": { "type": "string", "format": "path" } }), &[])
    });
    let nats = connector(
        "nats",
        closed(
            json!({ "servers": { "type": "array", "items": text, "minItems": 1 }, "token": { "type": ["string", "null"], "format": "password" } }),
            &["servers"],
        ),
        vec![
            sink(
                "nats.publish",
                false,
                closed(
                    json!({ "subject": template, "jetstream": { "type": "boolean" } }),
                    &["subject"],
                ),
            ),
            source(
                "nats.consume",
                closed(json!({ "stream": text }), &["stream"]),
            ),
        ],
    );
    let sqlite = connector(
        "sqlite",
        closed(
            json!({ "path": { "type": "string", "format": "path" } }),
            &["path"],
        ),
        vec![sink(
            "sqlite.write",
            false,
            closed(
                json!({ "table": text, "write_key_column": text }),
                &["table"],
            ),
        )],
    );
    let udp = connector(
        "syslog",
        closed(json!({}), &[]),
        vec![sink("syslog.send", true, closed(json!({}), &[]))],
    );
    let functions = Manifest {
        format: 1,
        name: "poison".into(),
        version: "0.1.0".into(),
        connectors: vec![],
        functions: vec![FunctionManifest {
            kind: PluginKind::ErrorHandler,
            name: "isolate_poison".into(),
            title: String::new(),
            description: String::new(),
            config_schema: closed(json!({ "limit": { "type": "integer", "minimum": 1 } }), &[]),
        }],
    };
    Catalog::new(
        vec![http, nats, sqlite, udp, functions],
        vec!["./plugins".into(), "/opt/consign/plugins".into()],
    )
}

pub fn read(source: &str) -> Result<Config, Vec<Problem>> {
    parse(Path::new("consign.yaml"), source, &catalog())
}

/// All problems as a person reads them.
pub fn told(source: &str) -> String {
    match read(source) {
        Ok(config) => lines(&config.warnings),
        Err(problems) => lines(&problems),
    }
}

pub fn lines(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("{p}\n")).collect()
}

pub const EXAMPLE: &str = r##"data_dir: ./data
plugins: [./plugins]                 # folders of .so files
console: { listen: "127.0.0.1:8640" }

connections:
  hooks:   { connector: http,   config: { listen: "127.0.0.1:8080" } }
  bus:     { connector: nats,   config: { servers: ["nats://127.0.0.1:4222"] } }
  ledger:  { connector: sqlite, config: { path: ./ledger.db } }

classes:
  critical: { reserved: 4 }
  bulk:     { max_in_flight: 8, rate_per_s: 500 }

adapters:
  payments:
    source: { connection: hooks, operation: http.receive, config: { path: /payments } }
    key: .body.type
    routes:
      - name: completed
        match: "payment.*"
        when: '(to_int(.body.amount) ?? 0) > 0'
        transforms:
          - vrl: '.body.amount_cents = to_int!(.body.amount) * 100'
        send:
          - id: billing
            connection: ledger
            operation: sqlite.write
            config: { table: invoices, write_key_column: write_key }
            order: { by_key: .body.invoice }
            retry: { max_attempts: 5, max_age: 1h, backoff: { initial: 500ms, max: 5m } }
            batch: { max_writes: 500, linger: 5ms }
            timeout: 30s
            on_failure: { handler: isolate_poison }
            class: critical
            quota: 2GiB
            require: effectively_once
          - id: receipt
            after: billing
            connection: bus
            operation: nats.publish
            config: { subject: "receipts.{{ .body.invoice }}", jetstream: true }
      - name: rest
        send: []
"##;

/// The smallest configuration, with this in place of its only send.
pub fn with_send(send: &str) -> String {
    with_sends(&format!(
        "          - {}\n",
        send.trim_end().replace('\n', "\n            ")
    ))
}

pub fn with_sends(sends: &str) -> String {
    format!(
        "connections:
  hooks: {{ connector: http, config: {{ listen: \"127.0.0.1:8080\" }} }}
  bus: {{ connector: nats, config: {{ servers: [\"nats://127.0.0.1:4222\"] }} }}
  log: {{ connector: syslog }}
classes:
  critical: {{}}
adapters:
  payments:
    source: {{ connection: hooks, operation: http.receive, config: {{ path: /p }} }}
    routes:
      - name: all
        send:
{sends}"
    )
}

pub const PUBLISH: &str = "connection: bus\noperation: nats.publish\nconfig: { subject: a }";
